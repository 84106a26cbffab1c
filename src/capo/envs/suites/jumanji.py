"""jumanji: logic, packing and routing problems. Time limits truncate; most problems have action masks."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, PyTree
from capo.envs.layout import MASK
from capo.envs.suites.common import MAX_ACTIONS, Adapter, Bounds
from capo.errors import CapoError

SLOW = {"Sokoban-v0": "downloads its levels when it is created"}
_NEVER = 2**30  # a time limit that no episode reaches


class JumanjiState(NamedTuple):
    """The state of a problem, with what else has to be known of it."""

    inner: PyTree
    steps: Array  # () int32
    mask: Array  # (A,) bool, or (0,) if the problem has no mask


class JumanjiEnv(Adapter):
    """A problem of jumanji with one agent, or with several that are paid and masked as one.

    An action of several numbers is flattened: action ``i`` stands for the ``i``-th combination. jumanji says of
    most time limits that the episode terminated; here the problem is played without its limit, and cut off at it.
    """

    def __init__(self, env: Any, name: str | None = None) -> None:
        name = name or f"jumanji:{type(env).__name__}"
        if hasattr(env, "_env"):
            raise CapoError(f"{name!r} is inside a wrapper: give the unwrapped environment")
        if tuple(env.reward_spec.shape):
            raise CapoError(
                f"{name!r} gives each of its {env.reward_spec.shape[0]} agents a reward of its own; only "
                "one reward per step is supported"
            )
        self._limit = int(getattr(env, "time_limit", _NEVER))
        self._env = copy.copy(env)
        if hasattr(env, "time_limit"):
            self._env.time_limit = _NEVER
        self._factors = _factors(name, env.action_spec)
        self._action_shape = tuple(env.action_spec.shape)
        n_actions = math.prod(self._factors)
        bounds = _bounds(env.observation_spec)
        if self._limit < _NEVER:
            bounds.setdefault("step_count", Bounds(0, self._limit))
        self._mask_shape = self._find_mask(name)
        if self._mask_shape is not None:
            self.action_mask = self._action_mask
        super().__init__(name, n_actions, bounds)

    def start(self, key: Array) -> tuple[PyTree, PyTree]:
        state, timestep = self._env.reset(key)
        mask, seen = self._parted(timestep.observation)
        return JumanjiState(state, jnp.int32(0), mask), seen

    def advance(self, key: Array, env_state: Any, action: Array) -> tuple[PyTree, PyTree, Array, Array, Array]:
        del key  # the state has its own
        if self._action_shape:
            action = jnp.stack(jnp.unravel_index(action, self._factors)).reshape(self._action_shape)
        state, timestep = self._env.step(env_state.inner, action)
        steps = env_state.steps + 1
        mask, seen = self._parted(timestep.observation)
        last, ended = timestep.last(), timestep.discount == 0
        truncated = (last & ~ended) | (steps >= self._limit)
        return JumanjiState(state, steps, mask), seen, timestep.reward, last & ended, truncated

    def _action_mask(self, env_state: Any) -> Array:
        """The actions that are allowed, (A,)."""
        mask: Array = env_state.mask
        return mask

    def _find_mask(self, name: str) -> tuple[int, ...] | None:
        _, timestep = jax.eval_shape(self._env.reset, jax.random.PRNGKey(0))
        found = [leaf.shape for path, leaf in _paths(timestep.observation).items() if path == MASK]
        if not found:
            return None
        per_factor = (len(self._factors), self._factors[0])
        if math.prod(found[0]) != math.prod(self._factors) and found[0] != per_factor:
            raise CapoError(
                f"{name!r} has a mask of shape {found[0]} for actions {self._factors}; they do not match"
            )
        return tuple(found[0])

    def _parted(self, observation: PyTree) -> tuple[Array, dict[str, Any]]:
        """The mask (A,) of an observation, and the parts that are seen."""
        parts = _paths(observation)
        mask = parts.pop(MASK, None)
        if self._mask_shape is None:
            return jnp.zeros(0, jnp.bool_), parts
        if math.prod(self._mask_shape) == math.prod(self._factors):
            flat = jnp.asarray(mask, jnp.bool_).reshape(-1)
        else:  # a mask for each number of the action: a combination needs all of them
            flat = jnp.ones((), jnp.bool_)
            for factor in range(len(self._factors)):
                flat = flat[..., None] & mask[factor]
            flat = flat.reshape(-1)
        return flat | ~flat.any(), parts  # nothing is allowed once the game is over


def _factors(name: str, spec: Any) -> tuple[int, ...]:
    """How many values each number of an action has."""
    if not hasattr(spec, "num_values"):
        raise CapoError(f"{name!r} has the actions {spec}; CAPO needs a finite number")
    factors = tuple(int(n) for n in np.asarray(spec.num_values).reshape(-1))
    if math.prod(factors) > MAX_ACTIONS:
        raise CapoError(
            f"{name!r} has actions of {len(factors)} numbers, {math.prod(factors):,} combinations in all; at most "
            f"{MAX_ACTIONS:,} are supported"
        )
    return factors


def _paths(observation: PyTree) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(observation)
    }


def _bounds(spec: Any, path: str = "") -> dict[str, Bounds]:
    """The bounds of an observation's parts, by their path."""
    if hasattr(spec, "shape"):
        if not hasattr(spec, "maximum"):
            return {}
        amounts = path.rpartition(".")[2].startswith("step")
        categories = hasattr(spec, "num_values") and not amounts
        return {path: Bounds(float(np.min(spec.minimum)), float(np.max(spec.maximum)), categories)}
    found: dict[str, Bounds] = {}
    for name, inner in vars(spec).items():
        if hasattr(inner, "generate_value"):
            found |= _bounds(inner, f"{path}.{name}" if path else name)
    return found


def names() -> list[str]:
    """The ids of jumanji."""
    import jumanji

    return sorted(jumanji.registered_environments())


def make(name: str, env_id: str, arguments: Mapping[str, Any]) -> JumanjiEnv:
    """A problem by its id; arguments are those of its constructor."""
    import jumanji

    try:
        env = jumanji.make(env_id, **arguments)
    except TypeError as error:
        raise CapoError(f"{name!r}: {error}") from error
    return JumanjiEnv(env, f"jumanji:{env_id}")


def adapt(env: Any) -> JumanjiEnv:
    """The adapter of a problem of jumanji."""
    return JumanjiEnv(env)
