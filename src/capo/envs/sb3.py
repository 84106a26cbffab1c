"""Vector environments of Stable-Baselines3, and those that look like them, as a :class:`HostVector`.

They are recognised by their methods; Stable-Baselines3 need not be installed. Unlike Gymnasium's, they give single
spaces, take no seed in ``reset``, return one ``done`` per environment, and reset a finished environment within the
same step: the final observation is ``info["terminal_observation"]``, and ``info["TimeLimit.truncated"]`` says
whether the episode was only cut off.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from capo.arrays import NDArray
from capo.envs.failures import EnvironmentFailed, environment_call
from capo.envs.masks import HostMasks
from capo.envs.protocol import FirstAction, HostStep, native_action
from capo.envs.spaces import Encoding
from capo.envs.stepping import checked_observations, checked_step, packed

_METHODS = ("reset", "step_async", "step_wait")


def is_sb3_vector(env: Any) -> bool:
    """Whether ``env`` has the interface of Stable-Baselines3's ``VecEnv``."""
    methods = all(callable(getattr(env, name, None)) for name in _METHODS)
    return methods and hasattr(env, "num_envs") and not hasattr(env, "single_observation_space")


class SB3Vector:
    """A :class:`HostVector` around a vector environment of Stable-Baselines3.

    Args:
        vector: with the interface of its ``VecEnv``.
        encoding: of its observations.
        first_action: the environment's own number of action 0: see :func:`native_action`.
        masks: reads its action masks, which are packed with the observations; None if it has none. If they are
            those of a method, masks of final observations are unknown and allow everything.
        owned: whether it was made for this and is closed with it.
    """

    skips = False

    def __init__(
        self,
        vector: Any,
        encoding: Encoding,
        first_action: FirstAction,
        masks: HostMasks | None = None,
        owned: bool = False,
    ) -> None:
        self._vector, self._encoding, self._first_action, self._owned = vector, encoding, first_action, owned
        self._masks = masks
        self.n = int(vector.num_envs)

    def reset(self, seed: int) -> NDArray:
        with environment_call("reset"):
            if callable(getattr(self._vector, "seed", None)):
                self._vector.seed(seed)  # for the next reset
            encoded = self._encoding.encode(self._vector.reset())
            obs = checked_observations("reset", encoded, self._encoding.layout)
            if self._masks is None:
                return obs
            return self._masks.pack_first(obs, self._read_masks("reset", self._reset_infos()))

    def _reset_infos(self) -> Any:
        """The infos of every copy's last reset, which only those with masks in them need to have."""
        return getattr(self._vector, "reset_infos", None)

    def _read_masks(self, method: str, infos: Any, who: NDArray | None = None) -> NDArray:
        assert self._masks is not None
        everyone = np.ones(self.n, np.bool_)
        return self._masks.of_vector(method, self._vector, infos, everyone if who is None else who)

    def _with_masks(self, moved: HostStep, infos: Any) -> HostStep:
        """The step with its masks packed; an info is that of the step, also where it ended an episode."""
        assert self._masks is not None
        masks, done = self._read_masks("step", infos), moved.terminated | moved.truncated
        if self._masks.source == "method":
            return packed(self._masks, moved, masks, masks | done[:, None])
        first = self._read_masks("reset", self._reset_infos(), done)
        return packed(self._masks, moved, np.where(done[:, None], first, masks), masks)

    def step(self, action: NDArray) -> HostStep:
        with environment_call("step"):
            self._vector.step_async(native_action(action, self._first_action))
            observations, reward, done, infos = self._vector.step_wait()
            done = np.asarray(done, np.bool_)
            cut = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
            obs = self._encoding.encode(observations)
            successor = obs
            if done.any():
                successor = obs.copy()
                for i in np.flatnonzero(done):
                    final = self._encoding.copied(infos[i]["terminal_observation"])
                    successor[i] = self._encoding.encode_each([final])[0]
        reward, valid = np.asarray(reward, np.float32), np.ones(self.n, np.bool_)
        moved = HostStep(obs, successor, reward, done & ~cut, done & cut, valid)
        moved = checked_step(moved, self._encoding.layout)
        return moved if self._masks is None else self._with_masks(moved, infos)

    def restart(self, who: NDArray) -> NDArray:
        del who
        raise EnvironmentFailed(
            "one of its episodes does not end, and a Stable-Baselines3 vector environment cannot reset "
            "only some of its copies: give it a time limit, or evaluate on another environment (eval_env=)"
        )

    def close(self) -> None:
        if self._owned:
            with contextlib.suppress(Exception):  # one that failed may fail again here, and is not needed any more
                self._vector.close()
