"""Vector environments of Stable-Baselines3, and those that look like them, as a :class:`HostVector`.

They are recognised by their methods; Stable-Baselines3 need not be installed. Unlike Gymnasium's, they give single
spaces, take no seed in ``reset``, return one ``done`` per environment, and reset a finished environment within the
same step: the final observation is ``info["terminal_observation"]``, and ``info["TimeLimit.truncated"]`` says
whether the episode was only cut off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from capo.arrays import NDArray
from capo.envs.failures import EnvironmentFailed, environment_call
from capo.envs.protocol import HostStep
from capo.envs.stepping import checked_observations, checked_step

_METHODS = ("reset", "step_async", "step_wait")


def is_sb3_vector(env: Any) -> bool:
    """Whether ``env`` has the interface of Stable-Baselines3's ``VecEnv``."""
    methods = all(callable(getattr(env, name, None)) for name in _METHODS)
    return methods and hasattr(env, "num_envs") and not hasattr(env, "single_observation_space")


class SB3Vector:
    """A :class:`HostVector` around a vector environment of Stable-Baselines3.

    Args:
        vector: with the interface of its ``VecEnv``.
        encode: observations (N, *raw_shape) -> (N, *observation_shape).
        first_action: the environment's own number of action 0.
        owned: whether it was made for this and is closed with it.
    """

    skips = False

    def __init__(
        self, vector: Any, encode: Callable[[NDArray], NDArray], first_action: int, owned: bool = False
    ) -> None:
        self._vector, self._encode, self._first_action, self._owned = vector, encode, first_action, owned
        self.n = int(vector.num_envs)

    def reset(self, seed: int) -> NDArray:
        with environment_call("reset"):
            if callable(getattr(self._vector, "seed", None)):
                self._vector.seed(seed)  # for the next reset
            return checked_observations("reset", self._encode(self._vector.reset()))

    def step(self, action: NDArray) -> HostStep:
        with environment_call("step"):
            self._vector.step_async(action + self._first_action)
            observations, reward, done, infos = self._vector.step_wait()
            done = np.asarray(done, np.bool_)
            cut = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
            obs = self._encode(observations)
            successor = obs
            if done.any():
                successor = obs.copy()
                for i in np.flatnonzero(done):
                    final = np.asarray(infos[i]["terminal_observation"])
                    successor[i] = self._encode(final[None])[0]
        reward = np.asarray(reward, np.float32)
        return checked_step(HostStep(obs, successor, reward, done & ~cut, done & cut, np.ones(self.n, np.bool_)))

    def restart(self, who: NDArray) -> NDArray:
        del who
        raise EnvironmentFailed(
            "an episode of it does not end, and a vector environment of Stable-Baselines3 can't reset some of its "
            "copies: give it a time limit, or evaluate on another environment (eval_env=)"
        )

    def close(self) -> None:
        if self._owned:
            with contextlib.suppress(Exception):  # one that failed may fail again here, and is not needed any more
                self._vector.close()
