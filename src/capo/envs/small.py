"""Two small environments inside jax, after those of the same names in the Behaviour Suite (Osband et al., 2020).

``catch`` asks whether a policy depends on what it sees; ``deep-sea-10`` whether it finds a reward that needs ten
right actions in a row.
"""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, PyTree
from capo.checks import whole


class Catch:
    """A ball falls through 10 rows, straight down from a random column; a paddle at the bottom has to be under it.

    Actions: left, stay, right, in 5 columns. The reward is 1 or -1 when the ball arrives, after 9 steps. The
    observation (10, 5) is 1 where the ball is and where the paddle is. The best policy returns 1.
    """

    jitted, truncates = True, False
    name, n_actions = "catch", 3
    rows, columns = 10, 5
    observation_shape: tuple[int, ...] = (rows, columns)
    observation_dtype: Any = np.dtype(np.float32)

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        ball = jax.random.randint(key, (), 0, self.columns)
        env_state = jnp.stack([jnp.int32(0), ball, jnp.int32(self.columns // 2)])  # row, column, paddle
        return env_state, self._observe(env_state)

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        del key
        row, column, paddle = env_state
        paddle = jnp.clip(paddle + action - 1, 0, self.columns - 1)
        after = jnp.stack([row + 1, column, paddle])
        arrived = row + 1 == self.rows - 1
        reward = jnp.where(arrived, jnp.where(paddle == column, 1.0, -1.0), 0.0)
        return after, self._observe(after), reward, arrived, jnp.bool_(False)

    def _observe(self, env_state: PyTree) -> Array:
        row, column, paddle = env_state
        board = jnp.zeros(self.observation_shape, jnp.float32)
        return board.at[row, column].set(1.0).at[self.rows - 1, paddle].set(1.0)


class DeepSea:
    """A diver sinks one row per step through a square sea, one column to the left or right; a treasure lies right.

    The treasure, 1, is found by moving right in all ``size`` rows. Each move to the right costs 0.01 / size, so
    whoever has not found it learns to go left: uniform play finds it once in 2**size episodes. Which of the two
    actions moves right differs from cell to cell, and is always the same in a cell. The observation (size, size)
    is 1 where the diver is, and 0 everywhere at the end. The best policy returns 0.99.
    """

    jitted, truncates = True, False
    n_actions = 2
    observation_dtype: Any = np.dtype(np.float32)

    def __init__(self, size: int = 10) -> None:
        self.size = whole("size", size, 2, 1000)
        self.name = f"deep-sea-{self.size}"
        self.observation_shape: tuple[int, ...] = (self.size, self.size)
        cells = [[_scattered_bit(row, column) for column in range(self.size)] for row in range(self.size)]
        self._right = np.array(cells, np.int32)  # (size, size) the action that moves right

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        del key
        env_state = jnp.zeros(2, jnp.int32)  # row, column
        return env_state, self._observe(env_state)

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        del key
        row, column = env_state
        right = action == jnp.asarray(self._right)[row, column]
        found = right & (column == self.size - 1)  # that column is reached in the last row only
        reward = jnp.where(right, -0.01 / self.size, 0.0) + found
        column = jnp.clip(column + jnp.where(right, 1, -1), 0, self.size - 1)
        after = jnp.stack([row + 1, column])
        return after, self._observe(after), reward, row + 1 == self.size, jnp.bool_(False)

    def _observe(self, env_state: PyTree) -> Array:
        row, column = env_state
        one_hot: Array = jax.nn.one_hot(row * self.size + column, self.size**2)  # zeros below the last row
        return one_hot.reshape(self.observation_shape)


def _scattered_bit(row: int, column: int) -> int:
    """0 or 1, the same on every machine, without a pattern that would help."""
    return hashlib.sha256(f"{row},{column}".encode()).digest()[0] & 1


SMALL: dict[str, Catch | DeepSea] = {env.name: env for env in (Catch(), DeepSea(10))}
