"""Asterix without loops against pgx's own, field by field."""

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
from capo.envs.minatar import asterix
from capo.envs.minatar.lists import count_before

pgx = pytest.importorskip("pgx")
GAME = pgx.make("minatar-asterix")
BOTH = in_both(GAME.step, asterix.step)


def made_up(rng):
    """States that play seldom reaches: all lines taken, things at the edges and beside the player, timers at 0."""
    n = COPIES
    player = rng.integers(0, 10, n)
    near = player[:, None] + rng.integers(-1, 2, (n, 8))
    edge = rng.choice([0, 9], (n, 8))
    where = rng.random((n, 8))
    x = np.where(where < 0.4, near.clip(0, 9), np.where(where < 0.6, edge, rng.integers(0, 10, (n, 8))))
    columns = [x, np.tile(np.arange(1, 9), (n, 1)), *rng.integers(0, 2, (2, n, 8))]
    things = np.stack(columns, -1).astype(np.int32)
    things[rng.random((n, 8)) < rng.choice([0.0, 0.1, 0.5, 1.0], (n, 1))] = 99
    speed = mixed(rng, 0.3, 1, rng.integers(1, 11, n))
    return any_start(rng, GAME).replace(
        _player_x=player.astype(np.int32),
        _player_y=mixed(rng, 0.3, rng.choice([1, 8], n), rng.integers(1, 9, n)),
        _entities=things,
        _spawn_speed=speed,
        _spawn_timer=mixed(rng, 0.5, 0, rng.integers(-1, 11, n)),
        _move_speed=mixed(rng, 0.3, 1, rng.integers(1, 6, n)),
        _move_timer=mixed(rng, 0.5, 0, rng.integers(-1, 6, n)),
        _ramp_timer=mixed(rng, 0.5, rng.integers(-1, 2, n), rng.integers(-1, 101, n)),
        _ramp_index=rng.integers(0, 50, n).astype(np.int32),
        _last_action=rng.integers(0, 5, n).astype(np.int32),
    )


def check_play(seed, steps):
    """Play through the ends of games, half of them full of things; how many ended, points, the most things."""
    rng = np.random.default_rng(seed)
    reset = jax.jit(jax.vmap(envs.make("minatar-asterix").reset))
    state, _ = reset(keys_of(rng))
    hard = np.arange(COPIES) % 2 == 1
    ends = points = crowd = 0
    for _ in range(steps):
        expected, found = BOTH(state, rng.integers(0, 5, COPIES).astype(np.int32), keys_of(rng))
        assert not differing(expected, found)
        ends += int(expected.terminated.sum())
        points += float(expected.rewards.sum())
        state = pick(np.asarray(expected.terminated), reset(keys_of(rng))[0], expected)
        state = state.replace(
            _spawn_speed=jnp.where(hard, 1, state._spawn_speed),
            _spawn_timer=jnp.where(hard, jnp.minimum(state._spawn_timer, 1), state._spawn_timer),
        )
        crowd = max(crowd, int((state._entities[..., 0] != 99).sum(1).max()))
    return ends, points, crowd


def test_made_up_states_step_as_in_pgx():
    assert sum(check_made_up(BOTH, made_up, seed, 3) for seed in range(40)) > 500


def test_play_is_as_in_pgx():
    ends, points, crowd = check_play(0, 300)
    assert ends > 500
    assert points > 300
    assert crowd == 8


def test_games_start_as_in_pgx():
    check_starts(GAME, asterix)


def test_the_line_of_a_new_thing_is_the_one_that_jax_chooses():
    """For all sets of free lines, at every draw next to where one line ends and the next begins.

    In between nothing changes: both are monotonic in the draw.
    """
    free = (np.arange(1, 256)[:, None] >> np.arange(8)) % 2 == 1
    bounds = (np.arange(9) * 2**23 // free.sum(1, keepdims=True))[:, :, None] + np.arange(-4, 5)
    draws = bounds.clip(1, 2**23).reshape(255, 81)  # one minus the uniform number, times 2^23

    @jax.jit
    @jax.vmap
    def chosen(free, draws):
        slots = free.astype(jnp.float32)
        sums = jnp.cumsum(slots / slots.sum())
        return jnp.searchsorted(sums, sums[-1] * (1 - (2**23 - draws) / 2**23))

    @jax.jit
    @jax.vmap
    def found(free, draws):
        turn = asterix._chosen_line(free.sum(), ((2**23 - draws).astype(jnp.uint32) << 9) + 511)
        return (free & (count_before(free) == turn[:, None])).argmax(1)

    expected = chosen(free, draws)
    assert free[np.arange(255)[:, None], expected].all()
    np.testing.assert_array_equal(found(free, draws), expected)


def test_there_are_no_loops():
    assert not loops(envs.make("minatar-asterix"))
