"""gymnax: classic control, bsuite, MinAtar and small problems. Time limits truncate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from capo.arrays import Array, PyTree
from capo.envs.suites.common import Adapter, Bounds, no_arguments, with_parameters
from capo.errors import CapoError

SLOW = {"MNISTBandit-bsuite": "downloads its images when it is created"}


class GymnaxEnv(Adapter):
    """An environment of gymnax with its parameters, stepped without gymnax's automatic reset."""

    def __init__(self, env: Any, params: Any = None, name: str | None = None) -> None:
        self._env, self._params = env, env.default_params if params is None else params
        name = name or f"gymnax:{env.name}"
        if hasattr(env, "_env"):
            raise CapoError(f"{name!r} is inside a wrapper that resets by itself: give the unwrapped environment")
        if not hasattr(env, "is_truncated"):
            raise CapoError(
                f"{name!r}: this version of gymnax does not distinguish time limits from terminal states; "
                "install gymnax 1.0"
            )
        actions, observations = env.action_space(self._params), env.observation_space(self._params)
        if not hasattr(actions, "n"):
            raise CapoError(
                f"{name!r} has continuous actions ({type(actions).__name__}); CAPO needs a finite number"
            )
        # A number of one of n states is a name, not an amount.
        bounds = {"": Bounds(0, int(observations.n) - 1, categories=True)} if hasattr(observations, "n") else {}
        super().__init__(name, int(actions.n), bounds)

    def start(self, key: Array) -> tuple[PyTree, PyTree]:
        observation, state = self._env.reset_env(key, self._params)
        return state, observation

    def advance(self, key: Array, env_state: Any, action: Array) -> tuple[PyTree, PyTree, Array, Array, Array]:
        observation, state, reward, terminated, _ = self._env.step_env(key, env_state, action, self._params)
        return state, observation, reward, terminated, self._env.is_truncated(state, self._params)


def names() -> list[str]:
    """The ids of gymnax."""
    from gymnax.registration import registered_envs

    return list(registered_envs)


def make(name: str, env_id: str, arguments: Mapping[str, Any]) -> GymnaxEnv:
    """An environment by its id; arguments are fields of its parameters, or of its constructor."""
    import gymnax

    env, params = gymnax.make(env_id)
    params, others = with_parameters(name, params, arguments)
    if others:
        try:
            env, _ = gymnax.make(env_id, **others)
        except TypeError:
            no_arguments(name, others, [field.name for field in dataclasses.fields(params)])
    return GymnaxEnv(env, params, f"gymnax:{env_id}")


def adapt(env: Any) -> GymnaxEnv:
    """The adapter of an environment, or of the pair (environment, parameters) that ``gymnax.make`` returns."""
    return GymnaxEnv(*env) if isinstance(env, tuple) else GymnaxEnv(env)
