"""The check of a user's own jitted environment: traced once, nothing is run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, PyTree
from capo.errors import CapoError

REQUIRED = ("name", "n_actions", "observation_shape", "observation_dtype", "reset", "step")


def check_jitted(env: Any) -> None:
    """Raise a :class:`CapoError` that names the first part of the protocol that ``env`` breaks."""
    missing = [part for part in REQUIRED if not hasattr(env, part)]
    if missing:
        raise CapoError(
            f"{env!r} is not an environment: give a name, a gymnasium.Env, a vector environment, a function that "
            f"makes one, or an object of the jitted protocol (this one has no {', '.join(missing)})"
        )
    if not isinstance(env.name, str):
        raise CapoError(f"environment {type(env).__name__}: name={env.name!r} must be text")
    name = f"environment {env.name!r}"
    if not isinstance(env.n_actions, int | np.integer) or env.n_actions < 1:
        raise CapoError(f"{name}: n_actions={env.n_actions!r} must be a positive integer")
    factors = getattr(env, "factors", ())
    if not all(isinstance(size, int | np.integer) and size > 0 for size in factors) or (
        len(factors) and sum(factors) != env.n_actions
    ):
        raise CapoError(
            f"{name}: factors={factors!r} must be positive integers that add up to n_actions={env.n_actions}"
        )
    try:
        shape, dtype = tuple(env.observation_shape), np.dtype(env.observation_dtype)
    except TypeError as error:
        raise CapoError(
            f"{name}: observation_shape={env.observation_shape!r} must be a tuple and "
            f"observation_dtype={env.observation_dtype!r} a dtype of numpy"
        ) from error
    layout = getattr(env, "layout", None)
    if layout is not None and (shape, dtype) != ((layout.n_bytes,), np.uint8):
        raise CapoError(
            f"{name}: its layout packs observations into {layout.n_bytes} bytes, but observation_shape is "
            f"{shape} and observation_dtype is {dtype}"
        )
    try:
        (state, obs), stepped = jax.eval_shape(lambda key: _one_step(env, key), jax.random.PRNGKey(0))
    except CapoError:
        raise
    except Exception as error:
        raise CapoError(f"{name} cannot be traced by jax: {error}") from error
    next_state, next_obs, *scalars = stepped
    for method, found in (("reset", obs), ("step", next_obs)):
        if (found.shape, found.dtype) != (shape, dtype):
            raise CapoError(
                f"{name}: {method} returns an observation of shape {found.shape} and dtype {found.dtype}, "
                f"but observation_shape is {shape} and observation_dtype is {dtype}"
            )
    for label, scalar in zip(("reward", "terminated", "truncated"), scalars, strict=True):
        if scalar.shape != ():
            raise CapoError(f"{name}: {label} has shape {scalar.shape}; it must be a scalar")
    _check_same_types(name, state, next_state)
    _check_mask(name, env, state)


def _check_mask(name: str, env: Any, state: PyTree) -> None:
    if not hasattr(env, "action_mask"):
        return
    if not callable(env.action_mask):
        raise CapoError(f"{name}: action_mask must be a method, action_mask(env_state), that returns the mask")
    try:
        mask = jax.eval_shape(lambda state: jnp.asarray(env.action_mask(state)), state)
    except Exception as error:
        raise CapoError(f"{name}: action_mask cannot be traced by jax: {error}") from error
    if mask.shape != (env.n_actions,) or mask.dtype != jnp.bool_:
        raise CapoError(
            f"{name}: action_mask returns an array of shape {mask.shape} and dtype {mask.dtype}; it must be "
            f"{env.n_actions} booleans, one per action"
        )


def _check_same_types(name: str, state: PyTree, next_state: PyTree) -> None:
    before, after = (
        [(jax.tree_util.keystr(path), leaf.shape, str(leaf.dtype)) for path, leaf in leaves]
        for leaves in map(jax.tree_util.tree_leaves_with_path, (state, next_state))
    )
    if before != after:
        raise CapoError(
            f"{name}: step changes the type of env_state from {before} to {after}; "
            "cast its leaves to the dtypes that reset gives them"
        )


def _one_step(env: Any, key: Array) -> tuple[tuple[PyTree, Array], tuple[Any, ...]]:
    state, obs = env.reset(key)
    factors = tuple(getattr(env, "factors", ()))
    result = env.step(key, state, jnp.zeros(len(factors), jnp.int32) if factors else jnp.int32(0))
    if len(result) != 5:
        raise CapoError(
            f"environment {env.name!r}: step returns {len(result)} values; it must return "
            "(env_state, observation, reward, terminated, truncated)"
        )
    next_state, next_obs, *scalars = result
    return (state, jnp.asarray(obs)), (next_state, jnp.asarray(next_obs), *map(jnp.asarray, scalars))
