"""What an environment has to offer: the protocol of jitted environments, and the check of a user's own."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from capo.errors import CapoError

Array = Any  # a numpy or a jax array
PyTree = Any


@runtime_checkable
class JittedEnv(Protocol):
    """An environment as two pure functions that jax can compile and vmap.

    The loop resets a finished episode itself, so ``step`` never has to: it returns the observation that the
    step led to, also when the episode ended there. ``terminated`` says that nothing follows (the return
    after it is 0); ``truncated`` that the episode was only cut off (its value goes on, and is bootstrapped
    from the observation returned).

    Optional: ``truncates = False`` promises that ``truncated`` is never true, which halves the replay.
    """

    name: str
    n_actions: int
    observation_shape: tuple[int, ...]
    observation_dtype: Any

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        """A new episode: ``(env_state, observation)``."""
        ...

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        """One step: ``(env_state, observation, reward, terminated, truncated)``, the last three scalars."""
        ...


def may_truncate(env: Any) -> bool:
    """Whether the environment can cut an episode off; assumed when it does not say."""
    return bool(getattr(env, "truncates", True))


def is_jitted(env: Any) -> bool:
    """Whether the environment runs inside jax; an object of the protocol does unless it says otherwise."""
    return bool(getattr(env, "jitted", True))


def check_jitted(env: Any) -> None:
    """Raise a :class:`CapoError` that names the first part of the protocol that ``env`` breaks."""
    name = getattr(env, "name", type(env).__name__)
    if not isinstance(name, str):
        raise CapoError(f"environment {type(env).__name__}: name={name!r} must be text")
    if not isinstance(env.n_actions, int | np.integer) or env.n_actions < 1:
        raise CapoError(f"environment {name!r}: n_actions={env.n_actions!r} must be a positive integer")
    try:
        wanted = (tuple(env.observation_shape), np.dtype(env.observation_dtype))
    except TypeError as error:
        raise CapoError(
            f"environment {name!r}: observation_shape={env.observation_shape!r} must be a tuple and "
            f"observation_dtype={env.observation_dtype!r} a dtype of numpy"
        ) from error
    try:
        (state, obs), stepped = jax.eval_shape(lambda key: _one_step(env, key), jax.random.PRNGKey(0))
    except CapoError:
        raise
    except Exception as error:
        raise CapoError(f"environment {name!r} cannot be traced by jax: {error}") from error
    next_state, next_obs, reward, terminated, truncated = stepped
    for label, found in (("reset", obs), ("step", next_obs)):
        if (found.shape, found.dtype) != wanted:
            raise CapoError(
                f"environment {name!r}: {label} returns an observation of shape {found.shape} and dtype "
                f"{found.dtype}, but observation_shape and observation_dtype say {wanted[0]} and {wanted[1]}"
            )
    for label, scalar in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
        if scalar.shape != ():
            raise CapoError(f"environment {name!r}: {label} has shape {scalar.shape}, it must be a scalar")
    before, after = (
        [(jax.tree_util.keystr(path), leaf.shape, str(leaf.dtype)) for path, leaf in leaves]
        for leaves in map(jax.tree_util.tree_leaves_with_path, (state, next_state))
    )
    if before != after:
        raise CapoError(
            f"environment {name!r}: step changes the type of env_state from {before} to {after}; "
            "cast its leaves to the dtypes that reset gives them"
        )


def _one_step(env: Any, key: Array) -> tuple[tuple[PyTree, Array], tuple[Any, ...]]:
    state, obs = env.reset(key)
    result = env.step(key, state, jnp.int32(0))
    if len(result) != 5:
        raise CapoError(
            f"environment {env.name!r}: step returns {len(result)} values, it must return "
            "(env_state, observation, reward, terminated, truncated)"
        )
    state2, obs2, *scalars = result
    return (state, jnp.asarray(obs)), (state2, jnp.asarray(obs2), *map(jnp.asarray, scalars))
