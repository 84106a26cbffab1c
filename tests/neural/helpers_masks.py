"""Environments with action masks: an action that is not allowed pays nan, which ends the training."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

N_ACTIONS = 5


class Doors:
    """A jitted environment: three doors of five are open, others at every step, and the first of them pays.

    Episodes terminate after three to five steps, and are cut off after four. Where they end no door is open.
    """

    name = "doors"
    n_actions = N_ACTIONS
    observation_shape = (N_ACTIONS,)
    observation_dtype = np.float32

    def reset(self, key: Any) -> tuple[Any, Any]:
        state = (jnp.int32(0), self._doors(key), 3 + jax.random.bernoulli(key).astype(jnp.int32) * 2)
        return state, self._seen(state)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, ...]:
        step, doors, last = state
        reward = jnp.where(doors[action], jnp.float32(action == doors.argmax()), jnp.nan)
        terminated = step + 1 >= last
        state = (step + 1, self._doors(key) & ~terminated, last)
        return state, self._seen(state), reward, terminated, step + 1 >= 4

    def action_mask(self, state: Any) -> Any:
        return state[1]

    def _doors(self, key: Any) -> Any:
        return jax.random.permutation(key, jnp.arange(N_ACTIONS) < 3)

    def _seen(self, state: Any) -> Any:
        return jnp.where(state[1], 1.0, -1.0).astype(jnp.float32)


class Shut(Doors):
    """No door is open after the second step, though the episode continues."""

    name = "shut"

    def action_mask(self, state: Any) -> Any:
        return state[1] & (state[0] < 2)


class Gates(gymnasium.Env[Any, Any]):
    """A Gymnasium environment whose mask follows from its observation, (episode, step): see :func:`open_gates`.

    Episodes end after three steps, or are cut off after two if their number is even.

    Args:
        how: where the mask is: "info", "method" or "nowhere".
        shut_at: the episode of the first mask that allows nothing.
        silent_at: the episode whose infos have no mask.
    """

    observation_space = spaces.Box(0.0, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(N_ACTIONS, start=1)

    def __init__(self, how: str = "info", shut_at: int = 10**9, silent_at: int = 10**9) -> None:
        self.how, self.shut_at, self.silent_at = how, shut_at, silent_at
        self.episode = 0
        if how == "method":
            self.action_masks = self._mask

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        del options
        self.episode += 1
        self.at = 0
        return self._seen(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        allowed = bool(self._mask()[int(action) - 1])
        self.at += 1
        terminated, truncated = self.at == 3, self.at == 2 and self.episode % 2 == 0
        return self._seen(), 1.0 if allowed else float("nan"), terminated, truncated, self._info()

    def _seen(self) -> Any:
        return np.array([self.episode, self.at], np.float32)

    def _mask(self) -> Any:
        return open_gates(self._seen()) & (self.episode < self.shut_at)

    def _info(self) -> dict[str, Any]:
        silent = self.how != "info" or self.episode == self.silent_at
        return {} if silent else {"action_mask": self._mask().astype(np.int8)}

    def __deepcopy__(self, memo: Any) -> Gates:
        return Gates(self.how, self.shut_at, self.silent_at)


def open_gates(seen: Any) -> Any:
    """The masks (..., 5) of observations (..., 2): every third gate is shut."""
    total = np.asarray(seen).sum(axis=-1, keepdims=True)
    return (np.arange(N_ACTIONS) + total) % 3 != 0


class GatesVecEnv:
    """Copies of :class:`Gates` with the interface of Stable-Baselines3's DummyVecEnv."""

    def __init__(self, how: str, n: int = 3, **arguments: Any) -> None:
        self.envs = [Gates(how, **arguments) for _ in range(n)]
        self.num_envs = n
        self.observation_space, self.action_space = Gates.observation_space, Gates.action_space
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(n)]

    def has_attr(self, name: str) -> bool:
        return all(hasattr(env, name) for env in self.envs)

    def env_method(self, name: str) -> list[Any]:
        return [getattr(env, name)() for env in self.envs]

    def reset(self) -> Any:
        return np.stack([self._reset(i) for i in range(self.num_envs)])

    def _reset(self, i: int) -> Any:
        obs, self.reset_infos[i] = self.envs[i].reset()
        return obs

    def step_async(self, actions: Any) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        rows = []
        for i, action in enumerate(self.actions):
            obs, reward, terminated, truncated, info = self.envs[i].step(action)
            info["TimeLimit.truncated"] = truncated and not terminated
            if terminated or truncated:
                info["terminal_observation"] = obs
                obs = self._reset(i)
            rows.append((obs, reward, terminated or truncated, info))
        obs, reward, done, infos = zip(*rows, strict=True)
        return np.stack(obs), np.array(reward, np.float32), np.array(done), list(infos)
