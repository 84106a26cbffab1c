"""Small environments of users: jitted ones of capo's protocol and Gymnasium ones, some of them broken."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces


class Counting:
    """A jitted environment whose state is the number of steps of its episode, which ends with the third."""

    name = "counting"
    n_actions = 2
    observation_shape: tuple[int, ...] = (1,)
    observation_dtype = np.float32

    def reset(self, key: Any) -> tuple[Any, Any]:
        del key
        return jnp.int32(0), jnp.zeros(1)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, ...]:
        del key
        reward, terminated = self.outcome(state, action)
        return state + 1, jnp.zeros(1), reward, terminated, jnp.bool_(False)

    def outcome(self, state: Any, action: Any) -> tuple[Any, Any]:
        """The reward, and whether the episode ends."""
        del action
        return jnp.float32(1), state >= 2


class Coin(Counting):
    """One step: action 1 pays."""

    name = "coin"

    def outcome(self, state: Any, action: Any) -> tuple[Any, Any]:
        del state
        return jnp.where(action == 1, 1.0, 0.0), jnp.bool_(True)


class Numbers(Counting):
    """Says with numbers whether its episode ended, and pays integers."""

    name = "numbers"

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, ...]:
        state, observation, reward, terminated, truncated = super().step(key, state, action)
        return state, observation, jnp.int32(reward), jnp.float32(terminated), jnp.int32(truncated)


class Unpaid(Counting):
    """Pays nan from the third step of an episode on, which never ends."""

    name = "unpaid"

    def outcome(self, state: Any, action: Any) -> tuple[Any, Any]:
        del action
        return jnp.where(state >= 2, jnp.nan, 1.0), jnp.bool_(False)


class Board(gymnasium.Env[Any, Any]):
    """Bytes up to ``high``; an episode that never ends and whose reward is the number of its step."""

    action_space = spaces.Discrete(2)

    def __init__(self, high: int = 1) -> None:
        self.observation_space = spaces.Box(0, high, (2,), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return np.ones(2, np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        del action
        self.steps += 1
        return np.ones(2, np.uint8), float(self.steps), False, False, {}


class Fragile(gymnasium.Env[Any, Any]):
    """Raises, pays or shows nan, at one step (or one reset) of its life; its episodes have three steps."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    steps = resets = 0

    def __init__(
        self,
        breaks_at: int = 10**9,
        reset_breaks_at: int = 10**9,
        nan_at: int = 10**9,
        copies: bool = True,
        blind_at: int = 10**9,
    ) -> None:
        self.breaks_at, self.reset_breaks_at, self.nan_at, self.copies = breaks_at, reset_breaks_at, nan_at, copies
        self.blind_at = blind_at

    def __deepcopy__(self, memo: Any) -> Fragile:
        if not self.copies:
            raise TypeError("cannot be copied")
        return Fragile(self.breaks_at, self.reset_breaks_at, self.nan_at)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.resets += 1
        if self.resets == self.reset_breaks_at:
            raise OSError("the simulator does not start")
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        del action
        self.steps += 1
        if self.steps == self.breaks_at:
            raise RuntimeError("the simulator is gone")
        reward = float("nan") if self.steps == self.nan_at else 1.0
        seen = np.full(1, np.nan if self.steps == self.blind_at else 0.0, np.float32)
        return seen, reward, self.steps % 3 == 0, False, {}

    def close(self) -> None:
        if self.steps >= self.breaks_at:
            raise RuntimeError("the simulator cannot be closed")


class Numbered(gymnasium.Env[Any, Any]):
    """Observes the number of its episode (of all that were ever begun) and of its step; pays the latter."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)
    begun = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        Numbered.begun += 1
        self.at = np.array([Numbered.begun, 0], np.float32)
        self.last = int(self.np_random.integers(5, 40))
        return self.at.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        del action
        self.at[1] += 1
        return self.at.copy(), float(self.at[1]), bool(self.at[1] >= self.last), False, {}


class OneBuffer(gymnasium.Env[Any, Any]):
    """Writes every observation, the number of its step, into the same array; cut off at the fifth."""

    observation_space = spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.buffer = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.buffer[:] = 0
        return self.buffer, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        del action
        self.buffer += 1
        return self.buffer, 1.0, False, bool(self.buffer[0] == 5), {}


class Blind(Counting):
    """Shows nan from the third step of an episode on, which never ends."""

    name = "blind"

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, ...]:
        state, observation, *rest = super().step(key, state, action)
        return (state, jnp.where(state > 2, jnp.nan, observation), rest[0], jnp.bool_(False), rest[2])


class Everything(gymnasium.Env[Any, Any]):
    """Observes a part of every supported kind."""

    action_space = spaces.Discrete(3)
    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (3, 36, 36), np.uint8),
            "grid": spaces.Box(0, 1, (4, 4, 2), np.bool_),
            "box": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
            "count": spaces.Box(0, 99, (), np.int64),
            "small": spaces.Discrete(4, start=-1),
            "large": spaces.Discrete(2000),
            "several": spaces.MultiDiscrete([3, 5]),
            "pair": spaces.Tuple([spaces.MultiBinary(3), spaces.Dict(a=spaces.Box(0, 9, (2,), np.uint8))]),
        }
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observation_space.sample(), float(action), self.steps == 5, False, {}


gymnasium.register("Everything-v0", Everything, disable_env_checker=True)
