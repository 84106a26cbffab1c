"""Freeway without loops against pgx's own, field by field."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers_games import (
    COPIES,
    any_start,
    check_made_up,
    check_starts,
    differing,
    in_both,
    keys_of,
    loops,
    mixed,
    pick,
)

from capo import envs
from capo.envs.minatar import freeway

pgx = pytest.importorskip("pgx")
GAME = pgx.make("minatar-freeway")
BOTH = in_both(GAME.step, freeway.step)


def made_up(rng):
    """States that play seldom reaches: cars around the player and at the edges, about to move, the last steps."""
    n = COPIES
    where = rng.random((n, 8))
    x = np.where(where < 0.4, rng.integers(3, 6, (n, 8)), rng.integers(0, 10, (n, 8)))
    x = np.where(where > 0.8, rng.choice([0, 9], (n, 8)), x)
    speed = rng.integers(1, 6, (n, 8)) * rng.choice([-1, 1], (n, 8))
    wait = np.where(rng.random((n, 8)) < 0.5, 0, rng.integers(0, 6, (n, 8)))
    cars = np.stack([x, np.tile(np.arange(1, 9), (n, 1)), wait, speed], -1)
    return any_start(rng, GAME).replace(
        _cars=cars.astype(np.int32),
        _pos=mixed(rng, 0.4, 1, rng.integers(0, 10, n)),
        _move_timer=mixed(rng, 0.6, 0, rng.integers(0, 4, n)),
        _terminate_timer=mixed(rng, 0.3, rng.integers(-1, 2, n), rng.integers(0, 2501, n)),
        _last_action=rng.choice([0, 2, 4], n).astype(np.int32),
    )


def check_play(seed, steps):
    """Play through the ends of games, mostly upwards, half of them short; how many ended, points, hits."""
    rng = np.random.default_rng(seed)
    reset = jax.jit(jax.vmap(envs.make("minatar-freeway").reset))
    state, _ = reset(keys_of(rng))
    ends = points = hits = 0
    for _ in range(steps):
        action = mixed(rng, 0.8, 1, rng.integers(0, 3, COPIES))
        expected, found = BOTH(state, action, keys_of(rng))
        assert not differing(expected, found)
        ends += int(expected.terminated.sum())
        points += float(expected.rewards.sum())
        hits += int(((expected._pos - state._pos > 1) & (expected.rewards[:, 0] == 0)).sum())
        state = pick(np.asarray(expected.terminated), reset(keys_of(rng))[0], expected)
        soon = (np.arange(COPIES) % 2 == 1) & (rng.random(COPIES) < 0.01)
        state = state.replace(_terminate_timer=jnp.where(soon, 1, state._terminate_timer))
    return ends, points, hits


def test_made_up_states_step_as_in_pgx():
    assert sum(check_made_up(BOTH, made_up, seed, 3) for seed in range(40)) > 500


def test_play_is_as_in_pgx():
    ends, points, hits = check_play(0, 300)
    assert ends > 50
    assert points > 50
    assert hits > 500


def test_games_start_as_in_pgx():
    check_starts(GAME, freeway)


def test_there_are_no_loops():
    assert not loops(envs.make("minatar-freeway"))
