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
from capo.envs.masks import HostMasks, refuse_late
from capo.envs.protocol import FirstAction, HostStep, native_action, one_action
from capo.envs.spaces import Encoding
from capo.errors import CapoError


class SeparateCopies:
    """A :class:`HostVector` of single environments, stepped one after another and reset as soon as they end.

    Args:
        envs: of the same kind.
        encoding: of their observations.
        first_action: the environment's own number of action 0: see :func:`native_action`.
        masks: reads their action masks, which are packed with the observations; None if they have none.
        owned: whether they were made for this and are closed with it.
    """

    skips = False

    def __init__(
        self,
        envs: list[Any],
        encoding: Encoding,
        first_action: FirstAction,
        masks: HostMasks | None = None,
        owned: bool = True,
    ) -> None:
        self._envs, self._encoding, self._first_action, self._owned = envs, encoding, first_action, owned
        self._masks = masks
        self.n = len(envs)

    def reset(self, seed: int) -> NDArray:
        with environment_call("reset"):
            results = [env.reset(seed=seed + i) for i, env in enumerate(self._envs)]
            return self._begun(results, self._envs)

    def _begun(self, results: list[tuple[Any, Any]], envs: list[Any]) -> NDArray:
        """The first observations of what the resets of ``envs`` returned."""
        encoded = self._encoding.encode_each([self._encoding.copied(obs) for obs, _ in results])
        obs = checked_observations("reset", encoded, self._encoding.layout)
        if self._masks is None:
            return obs
        infos = [info for _, info in results]
        masks = np.stack([self._read_mask("reset", env, info) for env, info in zip(envs, infos, strict=True)])
        return self._masks.pack_first(obs, masks)

    def step(self, action: NDArray) -> HostStep:
        successors, observations, masks, next_masks = [], [], [], []
        reward = np.zeros(self.n, np.float32)
        terminated, truncated = np.zeros(self.n, np.bool_), np.zeros(self.n, np.bool_)
        native = native_action(action, self._first_action)
        with environment_call("step"):
            for i, env in enumerate(self._envs):
                obs, reward[i], terminated[i], truncated[i], info = _returned(env.step(one_action(native[i])))
                successors.append(self._encoding.copied(obs))
                mask = self._read_mask("step", env, info)
                masks.append(mask)
                if terminated[i] or truncated[i]:
                    with environment_call("reset"):
                        obs, info = env.reset()
                        mask = self._read_mask("reset", env, info)
                observations.append(self._encoding.copied(obs))
                next_masks.append(mask)
            successor, obs = self._encoding.encode_each(successors), self._encoding.encode_each(observations)
        moved = HostStep(obs, successor, reward, terminated, truncated & ~terminated, np.ones(self.n, np.bool_))
        moved = checked_step(moved, self._encoding.layout)
        return moved if self._masks is None else packed(self._masks, moved, np.stack(next_masks), np.stack(masks))

    def _read_mask(self, method: str, env: Any, info: Any) -> NDArray:
        """The mask (A,) of one environment after ``method``; (0,) if there are none."""
        if self._masks is None:
            refuse_late(info)
            return np.ones(0, np.bool_)
        return self._masks.of_env(method, env, info)

    def restart(self, who: NDArray) -> NDArray:
        with environment_call("reset"):
            envs = [self._envs[i] for i in np.flatnonzero(who)]
            return self._begun([env.reset() for env in envs], envs)

    def close(self) -> None:
        for env in self._envs if self._owned else []:
            with contextlib.suppress(Exception):  # one that failed may fail again here, and is not needed any more
                env.close()


class UserVector:
    """A :class:`HostVector` around a vector environment that the user made, in any autoreset mode.

    Args:
        vector: of Gymnasium.
        encoding: of its observations.
        first_action: the environment's own number of action 0: see :func:`native_action`.
        masks: reads their action masks, which are packed with the observations; None if they have none.
        owned: whether it was made for this, by the user's function, and is closed with it.
    """

    def __init__(
        self,
        vector: Any,
        encoding: Encoding,
        first_action: FirstAction,
        masks: HostMasks | None = None,
        owned: bool = False,
    ) -> None:
        self._vector, self._encoding, self._first_action, self._masks = vector, encoding, first_action, masks
        self._owned = owned
        self.n = int(vector.num_envs)
        self._mode = autoreset_mode(vector)
        if self._mode not in ("NextStep", "SameStep", "Disabled"):
            raise CapoError(f"{vector!r}: autoreset mode {self._mode!r} must be NextStep, SameStep or Disabled")
        self.skips = self._mode == "NextStep"
        self._only_resets = np.zeros(self.n, np.bool_)

    def reset(self, seed: int) -> NDArray:
        self._only_resets[:] = False
        with environment_call("reset"):
            obs, info = self._vector.reset(seed=seed)
            return self._begun(obs, info, np.ones(self.n, np.bool_))

    def _begun(self, observations: Any, info: Any, who: NDArray) -> NDArray:
        """The first observations of those ``who`` (n,) were reset, and the current ones of the others."""
        obs = checked_observations("reset", self._encoding.encode(observations), self._encoding.layout)
        if self._masks is None:
            return obs
        masks = self._read_masks("reset", info, who)
        return self._masks.pack_first(obs, masks, who)

    def step(self, action: NDArray) -> HostStep:
        with environment_call("step"):
            moved, masks, next_masks = self._step(action)
            moved = checked_step(moved, self._encoding.layout)
        return moved if self._masks is None else packed(self._masks, moved, next_masks, masks)

    def _step(self, action: NDArray) -> tuple[HostStep, NDArray, NDArray]:
        """A step, and the masks (n, A) of what it led to and of what to act on next; (n, 0) if there are none."""
        obs, reward, terminated, truncated, info = self._vector.step(native_action(action, self._first_action))
        terminated, truncated = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        done = terminated | truncated
        obs = self._encoding.encode(obs)
        successor = obs
        valid = ~self._only_resets
        masks = next_masks = self._read_masks("step", info, np.ones(self.n, np.bool_))
        if self._mode == "NextStep":
            self._only_resets = done
        elif done.any():
            successor = obs.copy()
            if self._mode == "SameStep":
                final = info["final_obs"] if "final_obs" in info else info["final_observation"]
                for i in np.flatnonzero(done).tolist():
                    successor[i] = self._encoding.encode_each([self._encoding.row(final, i)])[0]
                final_masks = self._read_masks("step", info.get("final_info"), done)
                masks = np.where(done[:, None], final_masks, masks)
            else:
                observations, info = self._vector.reset(options={"reset_mask": done})
                obs = self._encoding.encode(observations)
                next_masks = np.where(done[:, None], self._read_masks("reset", info, done), masks)
        reward, truncated = np.asarray(reward, np.float32), truncated & ~terminated
        return HostStep(obs, successor, reward, terminated, truncated, valid), masks, next_masks

    def _read_masks(self, method: str, info: Any, who: NDArray) -> NDArray:
        """The masks (n, A) of those ``who`` (n,), what follows ``method``; (n, 0) if there are none."""
        if self._masks is None:
            refuse_late(info)
            return np.ones((self.n, 0), np.bool_)
        return self._masks.of_vector(method, self._vector, info, who)

    def restart(self, who: NDArray) -> NDArray:
        self._only_resets = self._only_resets & ~who  # Gymnasium's vectors reset single copies in every mode
        with environment_call("reset"):
            obs, info = self._vector.reset(options={"reset_mask": who})
            return self._begun(obs, info, who)[who]

    def close(self) -> None:
        """Close it, unless the user gave the vector itself, and closes it."""
        if self._owned:
            with contextlib.suppress(Exception):  # one that failed may fail again here, and is not needed any more
                self._vector.close()


def _returned(step: Any) -> tuple[Any, float, bool, bool, Any]:
    """What ``step`` returned, its reward as a number."""
    if not isinstance(step, tuple) or len(step) != 5:
        found = f"{len(step)} values" if isinstance(step, tuple) else type(step).__name__
        raise EnvironmentFailed(
            f"its step returned {found}, not Gymnasium's five: observation, reward, terminated, truncated, info"
        )
    obs, reward, terminated, truncated, info = step
    return obs, _number(reward), terminated, truncated, info


def _number(reward: Any) -> float:
    """A reward as a float: a number, or an array or tensor of one number from any library."""
    try:
        if isinstance(reward, str | bytes | bytearray):
            raise TypeError
        return float(reward.reshape(()) if isinstance(reward, np.ndarray) and reward.size == 1 else reward)
    except (TypeError, ValueError):
        raise EnvironmentFailed(f"its step returned the reward {reward!r}, which is not a number") from None


def autoreset_mode(vector: Any) -> str:
    """The autoreset mode of a vector environment: NextStep, SameStep, Disabled, or what it says instead."""
    mode = (vector.metadata or {}).get("autoreset_mode", "NextStep")
    return str(getattr(mode, "value", mode))  # an enum in Gymnasium 1.1 and later


def packed(masks: HostMasks, moved: HostStep, next_masks: NDArray, successor_masks: NDArray) -> HostStep:
    """The step with its action masks packed into the observations; raises if one allows nothing."""
    # After a terminated episode nothing is done any more, so nothing has to be allowed.
    masks.check_some_allowed("step", successor_masks, moved.successor, ~moved.terminated)
    if next_masks is not successor_masks:
        masks.check_some_allowed("reset", next_masks, moved.obs)
    obs, successor = masks.pack(moved.obs, next_masks), masks.pack(moved.successor, successor_masks)
    return moved._replace(obs=obs, successor=successor)


def checked_step(moved: HostStep, layout: Layout | None) -> HostStep:
    """The step itself, if its rewards and observations are finite."""
    wrong = moved.reward[moved.valid & ~np.isfinite(moved.reward)]
    if wrong.size:
        raise EnvironmentFailed(f"its step returned the reward {wrong[0]:g}, which is not a finite number")
    checked_observations("step", moved.successor, layout)
    if moved.obs is not moved.successor:
        checked_observations("reset", moved.obs, layout)
    return moved


def checked_observations(method: str, obs: NDArray, layout: Layout | None) -> NDArray:
    """The observations themselves, if they are finite."""
    for name, numbers in [("", obs)] if layout is None else layout.floats(obs):
        wrong = numbers[~np.isfinite(numbers)] if numbers.dtype.kind == "f" else numbers[:0]
        if wrong.size:
            where = f" (in {name!r})" if name else ""
            raise EnvironmentFailed(
                f"its {method} returned an observation containing {wrong.flat[0]:g}{where}, which is not a finite "
                "number"
            )
    return obs
