"""navix: MiniGrid in jax. The limit on the number of steps truncates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capo.arrays import Array, PyTree
from capo.envs.suites.common import Adapter, Bounds
from capo.errors import CapoError

_ZOOM = 4  # of pictures: a tile of navix has 8 x 8 pixels
_HIGHEST_ID = 10  # of MiniGrid's kinds of object, colours and states


class NavixEnv(Adapter):
    """An environment of navix, stepped without its automatic reset."""

    def __init__(self, env: Any, name: str | None = None) -> None:
        from navix import observations

        self._env = env
        self._draws = env.observation_fn in (observations.rgb, observations.rgb_first_person)
        # The background's picture is part of every state, though only pixels need it.
        self._drops_cache = env.observation_fn in (
            observations.symbolic,
            observations.symbolic_first_person,
            observations.categorical,
            observations.categorical_first_person,
        )
        n_actions = int(env.action_space.maximum) + 1
        super().__init__(
            name or f"navix:{type(env).__name__}-{env.height}x{env.width}",
            n_actions,
            {"": Bounds(0, 255 if self._draws else _HIGHEST_ID)},
        )

    def start(self, key: Array) -> tuple[PyTree, PyTree]:
        timestep = self._env.reset(key)
        if self._drops_cache:
            timestep = timestep.replace(state=timestep.state.replace(cache=None))
        return timestep, timestep.observation

    def advance(self, key: Array, env_state: Any, action: Array) -> tuple[PyTree, PyTree, Array, Array, Array]:
        del key  # the state has its own
        timestep = self._env._step(env_state, action)  # its step would reset a finished episode
        return timestep, timestep.observation, timestep.reward, timestep.is_termination(), timestep.is_truncation()

    def picture(self, env_state: Any) -> Array:
        """The grid as it looks to people, (H, W, 3) bytes."""
        from navix.observations import rgb
        from navix.rendering.cache import RenderingCache

        state = env_state.state
        drawn: Array = rgb(state.replace(cache=RenderingCache.init(state.grid)))
        return drawn.repeat(_ZOOM, axis=0).repeat(_ZOOM, axis=1)


def names() -> list[str]:
    """The names of navix."""
    import navix

    return list(navix.registry())


def make(name: str, env_id: str, arguments: Mapping[str, Any]) -> NavixEnv:
    """An environment by its name; arguments are those of ``navix.make``, such as ``max_steps``."""
    import navix

    try:
        env = navix.make(env_id, **arguments)
    except TypeError as error:
        raise CapoError(f"{name!r}: {error}") from error
    return NavixEnv(env, f"navix:{env_id}")


def adapt(env: Any) -> NavixEnv:
    """The adapter of an environment of navix."""
    return NavixEnv(env)
