"""Catch and the deep sea against plain versions of their rules."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import capo
from capo import envs
from capo.envs.small import Catch, DeepSea


def play(env: Any, actions: Any, seed: int) -> tuple[list[Any], list[float], list[bool]]:
    """Observations, rewards and ends of one episode."""
    state, obs = env.reset(jax.random.PRNGKey(seed))
    step = jax.jit(env.step)
    seen, rewards, ends = [np.asarray(obs)], [], []
    for action in actions:
        state, obs, reward, terminated, truncated = step(jax.random.PRNGKey(0), state, action)
        seen.append(np.asarray(obs))
        rewards.append(float(reward))
        ends.append(bool(terminated))
        assert not truncated
        if terminated:
            break
    return seen, rewards, ends


def test_catch_against_its_rules() -> None:
    rng = np.random.default_rng(0)
    columns = set()
    for seed in range(12):
        actions = rng.integers(0, 3, 9)
        seen, rewards, ends = play(Catch(), actions, seed)
        ball = int(seen[0][0].argmax())
        columns.add(ball)
        paddle = 2
        for row, board in enumerate(seen):
            if row:
                paddle = min(max(paddle + [-1, 0, 1][actions[row - 1]], 0), 4)
            expected = np.zeros((10, 5))
            expected[row, ball] = expected[9, paddle] = 1
            np.testing.assert_array_equal(board, expected)
        assert rewards == [0.0] * 8 + [1.0 if paddle == ball else -1.0]
        assert ends == [False] * 8 + [True]
    assert len(columns) > 2


@pytest.mark.parametrize("size", [2, 5, 10])
def test_deep_sea_against_its_rules(size: int) -> None:
    rng = np.random.default_rng(size)
    env = DeepSea(size)
    for _ in range(6):
        actions = rng.integers(0, 2, size)
        seen, rewards, ends = play(env, actions, 0)
        column, total = 0, 0.0
        for row in range(size):
            board = np.zeros((size, size))
            board[row, column] = 1
            np.testing.assert_array_equal(seen[row], board)
            right = actions[row] == env._right[row, column]
            total += (-0.01 / size + (column == size - 1)) if right else 0.0
            column = min(column + 1, size - 1) if right else max(column - 1, 0)
        np.testing.assert_array_equal(seen[size], 0)
        np.testing.assert_allclose(sum(rewards), total, atol=1e-6)
        assert ends == [False] * (size - 1) + [True]


def test_the_treasure_needs_every_action_and_actions_differ_between_cells() -> None:
    env = DeepSea(10)
    best = np.diagonal(env._right)
    assert 0 < best.sum() < 10  # neither action alone dives right
    np.testing.assert_allclose(sum(play(env, best, 0)[1]), 0.99, atol=1e-6)
    for wrong in range(10):
        actions = best.copy()
        actions[wrong] = 1 - actions[wrong]
        assert sum(play(env, actions, 0)[1]) <= 0


def test_they_have_names() -> None:
    assert isinstance(envs.make("catch"), Catch)
    assert envs.make("deep-sea-10").observation_shape == (10, 10)
    with pytest.raises(capo.CapoError, match="did you mean 'deep-sea-10'"):
        envs.make("deep-sea10")
    with pytest.raises(capo.CapoError, match="size=1 must be an integer of at least 2"):
        DeepSea(1)
