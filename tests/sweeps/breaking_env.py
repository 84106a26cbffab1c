"""A Gymnasium environment that works until it has been stepped often enough."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Breaking(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps > 20:
            raise RuntimeError("out of order")
        return np.zeros(1, np.float32), float(action), True, False, {}


gymnasium.register("Breaking-v0", Breaking)
