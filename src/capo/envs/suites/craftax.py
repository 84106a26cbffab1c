"""Craftax and Craftax-Classic, symbolic or in pixels. The limit on the number of steps truncates."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from capo.arrays import Array, PyTree
from capo.envs.suites.common import Adapter, no_arguments, with_parameters

NAMES = (
    "Craftax-Symbolic-v1",
    "Craftax-Pixels-v1",
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Classic-Pixels-v1",
)
SLOW = dict.fromkeys(NAMES[1::2], "pixels; drawing the textures takes a minute the first time")
_NEVER = 2**30  # a number of steps that no episode reaches
_PIXELS = 24  # of a block in a picture


class CraftaxEnv(Adapter):
    """An environment of Craftax, stepped without its automatic reset.

    The symbolic observation is a vector of thousands of floats, nearly all of them a map of zeros and ones: it is
    taken apart into ``map`` (H, W, C), as bits, and ``state``, the inventory and the like. Pixels become bytes.
    """

    costly_reset = True  # it makes a world

    def __init__(self, env: Any, params: Any = None, name: str | None = None) -> None:
        self._env, self._params = env, env.default_params if params is None else params
        self._endless = self._params.replace(max_timesteps=_NEVER)
        module = sys.modules[type(env).__module__]
        self._map_shape: tuple[int, ...] | None = None
        if "Symbolic" in type(env).__name__:
            self._map_shape = tuple(module.get_map_obs_shape())
        super().__init__(name or f"craftax:{env.name.replace('-NoAutoReset', '')}", int(env.num_actions))

    def start(self, key: Array) -> tuple[PyTree, PyTree]:
        observation, state = self._env.reset_env(key, self._params)
        return state, self._parted(observation)

    def advance(self, key: Array, env_state: Any, action: Array) -> tuple[PyTree, PyTree, Array, Array, Array]:
        observation, state, reward, _, _ = self._env.step_env(key, env_state, action, self._params)
        terminated = self._env.is_terminal(state, self._endless)
        return state, self._parted(observation), reward, terminated, state.timestep >= self._params.max_timesteps

    def _parted(self, observation: Array) -> PyTree:
        if self._map_shape is None:
            return jnp.round(observation * 255).astype(jnp.uint8)
        height, width, channels = self._map_shape
        cells = height * width * channels
        return {
            "map": observation[:cells].reshape(self._map_shape).astype(jnp.bool_),
            "state": observation[cells:],
        }

    def picture(self, env_state: Any) -> Array:
        """The game as it looks to people, (H, W, 3) bytes."""
        if "Classic" in type(self._env).__name__:
            from craftax.craftax_classic.renderer import make_craftax_pixel_renderer
        else:
            from craftax.craftax.renderer import make_craftax_pixel_renderer
        pixels: Array = make_craftax_pixel_renderer(_PIXELS)(env_state)
        return jnp.clip(pixels, 0, 255).astype(jnp.uint8)


def names() -> list[str]:
    """The names of Craftax."""
    return list(NAMES)


def make(name: str, env_id: str, arguments: Mapping[str, Any]) -> CraftaxEnv:
    """An environment by its name; arguments are fields of its parameters, such as ``max_timesteps``."""
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name(env_id, auto_reset=False)
    params, others = with_parameters(name, env.default_params, arguments)
    no_arguments(name, others, [field.name for field in dataclasses.fields(params)])
    return CraftaxEnv(env, params, f"craftax:{env_id}")


def adapt(env: Any) -> CraftaxEnv:
    """The adapter of an environment of Craftax."""
    return CraftaxEnv(env)
