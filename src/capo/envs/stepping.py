"""Gymnasium environments stepped together on the host: separate copies, or a user's vector environment.

All autoreset modes end in the same :class:`HostStep`: the observation to act on next, the observation the step led
to, and whether the call was a step at all (in the next-step mode, the call after an episode's end only resets, and
its transition means nothing).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from capo.arrays import NDArray
from capo.envs.failures import EnvironmentFailed, environment_call
from capo.envs.protocol import HostStep
from capo.errors import CapoError


class SeparateCopies:
    """A :class:`HostVector` of single environments, stepped one after another and reset as soon as they end.

    Args:
        envs: of the same kind.
        encode: observations (N, *raw_shape) -> (N, *observation_shape).
        first_action: the environment's own number of action 0.
        owned: whether they were made for this and are closed with it.
    """

    skips = False

    def __init__(
        self, envs: list[Any], encode: Callable[[NDArray], NDArray], first_action: int, owned: bool = True
    ) -> None:
        self._envs, self._encode, self._first_action, self._owned = envs, encode, first_action, owned
        self.n = len(envs)

    def reset(self, seed: int) -> NDArray:
        with environment_call("reset"):
            obs = np.stack([np.array(env.reset(seed=seed + i)[0]) for i, env in enumerate(self._envs)])
            return checked_observations("reset", self._encode(obs))

    def step(self, action: NDArray) -> HostStep:
        successors, observations = [], []
        reward = np.zeros(self.n, np.float32)
        terminated, truncated = np.zeros(self.n, np.bool_), np.zeros(self.n, np.bool_)
        with environment_call("step"):
            for i, env in enumerate(self._envs):
                obs, reward[i], terminated[i], truncated[i], _ = env.step(int(action[i]) + self._first_action)
                successors.append(np.array(obs))  # an environment may write the next one into the same array
                if terminated[i] or truncated[i]:
                    with environment_call("reset"):
                        obs = env.reset()[0]
                observations.append(np.array(obs))
            successor, obs = self._encode(np.stack(successors)), self._encode(np.stack(observations))
        return checked_step(
            HostStep(obs, successor, reward, terminated, truncated & ~terminated, np.ones(self.n, np.bool_))
        )

    def restart(self, who: NDArray) -> NDArray:
        with environment_call("reset"):
            obs = np.stack([np.array(self._envs[i].reset()[0]) for i in np.flatnonzero(who)])
            return checked_observations("reset", self._encode(obs))

    def close(self) -> None:
        for env in self._envs if self._owned else []:
            with contextlib.suppress(Exception):  # one that failed may fail again here, and is not needed any more
                env.close()


class UserVector:
    """A :class:`HostVector` around a vector environment that the user made, in any autoreset mode.

    Args:
        vector: of Gymnasium.
        encode: observations (N, *raw_shape) -> (N, *observation_shape).
        first_action: the environment's own number of action 0.
        owned: whether it was made for this, by the user's function, and is closed with it.
    """

    def __init__(
        self, vector: Any, encode: Callable[[NDArray], NDArray], first_action: int, owned: bool = False
    ) -> None:
        self._vector, self._encode, self._first_action, self._owned = vector, encode, first_action, owned
        self.n = int(vector.num_envs)
        mode = (vector.metadata or {}).get("autoreset_mode", "NextStep")
        self._mode = str(getattr(mode, "value", mode))  # an enum in Gymnasium 1.1 and later
        if self._mode not in ("NextStep", "SameStep", "Disabled"):
            raise CapoError(f"{vector!r}: autoreset mode {mode!r} must be NextStep, SameStep or Disabled")
        self.skips = self._mode == "NextStep"
        self._only_resets = np.zeros(self.n, np.bool_)

    def reset(self, seed: int) -> NDArray:
        self._only_resets[:] = False
        with environment_call("reset"):
            return checked_observations("reset", self._encode(self._vector.reset(seed=seed)[0]))

    def step(self, action: NDArray) -> HostStep:
        with environment_call("step"):
            return checked_step(self._step(action))

    def _step(self, action: NDArray) -> HostStep:
        obs, reward, terminated, truncated, info = self._vector.step(action + self._first_action)
        terminated, truncated = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        done = terminated | truncated
        obs = self._encode(obs)
        successor = obs
        valid = ~self._only_resets
        if self._mode == "NextStep":
            self._only_resets = done
        elif done.any():
            successor = obs.copy()
            if self._mode == "SameStep":
                final = info["final_obs"] if "final_obs" in info else info["final_observation"]
                for i in np.flatnonzero(done):
                    successor[i] = self._encode(np.asarray(final[i])[None])[0]
            else:
                obs = self._encode(self._vector.reset(options={"reset_mask": done})[0])
        return HostStep(obs, successor, np.asarray(reward, np.float32), terminated, truncated & ~terminated, valid)

    def restart(self, who: NDArray) -> NDArray:
        self._only_resets = self._only_resets & ~who  # Gymnasium's vectors reset single copies in every mode
        with environment_call("reset"):
            return self._encode(self._vector.reset(options={"reset_mask": who})[0])[who]

    def close(self) -> None:
        """Close it, unless the user gave the vector itself, and closes it."""
        if self._owned:
            with contextlib.suppress(Exception):  # one that failed may fail again here, and is not needed any more
                self._vector.close()


def checked_step(moved: HostStep) -> HostStep:
    """The step itself, if its rewards and observations are finite."""
    wrong = moved.reward[moved.valid & ~np.isfinite(moved.reward)]
    if wrong.size:
        raise EnvironmentFailed(f"its step returned the reward {wrong[0]:g}, which is not a finite number")
    checked_observations("step", moved.successor)
    if moved.obs is not moved.successor:
        checked_observations("reset", moved.obs)
    return moved


def checked_observations(method: str, obs: NDArray) -> NDArray:
    """The observations themselves, if they are finite."""
    wrong = obs[~np.isfinite(obs)] if obs.dtype.kind == "f" else obs[:0]
    if wrong.size:
        raise EnvironmentFailed(
            f"its {method} returned an observation with {wrong.flat[0]:g} in it, which is not a finite number"
        )
    return obs
