"""Gymnasium environments stepped together on the host: separate copies, or a user's vector environment.

All autoreset modes end in the same :class:`HostStep`: the observation to act on next, the observation the step led
to, and whether the call was a step at all (in the next-step mode, the call after an episode's end only resets, and
its transition means nothing).
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from capo.arrays import NDArray
from capo.envs.failures import EnvironmentFailed, environment_call
from capo.envs.layout import Layout
from capo.envs.protocol import HostStep
from capo.envs.spaces import Encoding
from capo.errors import CapoError


class SeparateCopies:
    """A :class:`HostVector` of single environments, stepped one after another and reset as soon as they end.

    Args:
        envs: of the same kind.
        encoding: of their observations.
        first_action: the environment's own number of action 0.
        owned: whether they were made for this and are closed with it.
    """

    skips = False

    def __init__(self, envs: list[Any], encoding: Encoding, first_action: int, owned: bool = True) -> None:
        self._envs, self._encoding, self._first_action, self._owned = envs, encoding, first_action, owned
        self.n = len(envs)

    def reset(self, seed: int) -> NDArray:
        with environment_call("reset"):
            obs = [self._encoding.copied(env.reset(seed=seed + i)[0]) for i, env in enumerate(self._envs)]
            return self._checked("reset", self._encoding.encode_each(obs))

    def step(self, action: NDArray) -> HostStep:
        successors, observations = [], []
        reward = np.zeros(self.n, np.float32)
        terminated, truncated = np.zeros(self.n, np.bool_), np.zeros(self.n, np.bool_)
        with environment_call("step"):
            for i, env in enumerate(self._envs):
                obs, reward[i], terminated[i], truncated[i], _ = env.step(int(action[i]) + self._first_action)
                successors.append(self._encoding.copied(obs))
                if terminated[i] or truncated[i]:
                    with environment_call("reset"):
                        obs = env.reset()[0]
                observations.append(self._encoding.copied(obs))
            successor, obs = self._encoding.encode_each(successors), self._encoding.encode_each(observations)
        moved = HostStep(obs, successor, reward, terminated, truncated & ~terminated, np.ones(self.n, np.bool_))
        return _checked_step(moved, self._encoding.layout)

    def restart(self, who: NDArray) -> NDArray:
        with environment_call("reset"):
            obs = [self._encoding.copied(self._envs[i].reset()[0]) for i in np.flatnonzero(who)]
            return self._checked("reset", self._encoding.encode_each(obs))

    def _checked(self, method: str, obs: NDArray) -> NDArray:
        return _checked_observations(method, obs, self._encoding.layout)

    def close(self) -> None:
        for env in self._envs if self._owned else []:
            with contextlib.suppress(Exception):  # one that failed may fail again here, and is not needed any more
                env.close()


class UserVector:
    """A :class:`HostVector` around a vector environment that the user made, in any autoreset mode."""

    def __init__(self, vector: Any, encoding: Encoding, first_action: int) -> None:
        self._vector, self._encoding, self._first_action = vector, encoding, first_action
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
            obs = self._encoding.encode(self._vector.reset(seed=seed)[0])
            return _checked_observations("reset", obs, self._encoding.layout)

    def step(self, action: NDArray) -> HostStep:
        with environment_call("step"):
            return _checked_step(self._step(action), self._encoding.layout)

    def _step(self, action: NDArray) -> HostStep:
        obs, reward, terminated, truncated, info = self._vector.step(action + self._first_action)
        terminated, truncated = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        done = terminated | truncated
        obs = self._encoding.encode(obs)
        successor = obs
        valid = ~self._only_resets
        if self._mode == "NextStep":
            self._only_resets = done
        elif done.any():
            successor = obs.copy()
            if self._mode == "SameStep":
                final = info["final_obs"] if "final_obs" in info else info["final_observation"]
                for i in np.flatnonzero(done):
                    successor[i] = self._encoding.encode_each([self._encoding.row(final, int(i))])[0]
            else:
                obs = self._encoding.encode(self._vector.reset(options={"reset_mask": done})[0])
        return HostStep(obs, successor, np.asarray(reward, np.float32), terminated, truncated & ~terminated, valid)

    def restart(self, who: NDArray) -> NDArray:
        self._only_resets = self._only_resets & ~who  # Gymnasium's vectors reset single copies in every mode
        with environment_call("reset"):
            return self._encoding.encode(self._vector.reset(options={"reset_mask": who})[0])[who]

    def close(self) -> None:
        """Nothing: the user made the vector, and closes it."""


def _checked_step(moved: HostStep, layout: Layout | None) -> HostStep:
    """The step itself, if its rewards and observations are finite."""
    wrong = moved.reward[moved.valid & ~np.isfinite(moved.reward)]
    if wrong.size:
        raise EnvironmentFailed(f"its step returned the reward {wrong[0]:g}, which is not a finite number")
    _checked_observations("step", moved.successor, layout)
    if moved.obs is not moved.successor:
        _checked_observations("reset", moved.obs, layout)
    return moved


def _checked_observations(method: str, obs: NDArray, layout: Layout | None) -> NDArray:
    """The observations themselves, if they are finite."""
    for name, numbers in [("", obs)] if layout is None else layout.floats(obs):
        wrong = numbers[~np.isfinite(numbers)] if numbers.dtype.kind == "f" else numbers[:0]
        if wrong.size:
            where = f" (in {name!r})" if name else ""
            raise EnvironmentFailed(
                f"its {method} returned an observation with {wrong.flat[0]:g} in it{where}, which is not a finite "
                "number"
            )
    return obs
