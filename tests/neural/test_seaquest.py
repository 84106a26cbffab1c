"""Seaquest without loops against pgx's own, field by field."""

from __future__ import annotations

from functools import partial

import helpers_games
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
    pick,
    primitives,
)

from capo import envs
from capo.envs.minatar import seaquest

pgx = pytest.importorskip("pgx")
GAME = pgx.make("minatar-seaquest")
BOTH = in_both(GAME.step, seaquest.step)


def made_up(rng):
    """States that play seldom or never reaches: full lists, crowded cells, timers at 0, games over."""
    n, mixed = COPIES, partial(helpers_games.mixed, rng)
    width, height = (np.where(rng.random((n, 1)) < 0.5, most, rng.integers(1, 5, (n, 1))) for most in (10, 8))
    left, top = (
        (rng.random((n, 1)) * (11 - width)).astype(int),
        1 + (rng.random((n, 1)) * (9 - height)).astype(int),
    )

    def things(rows, *timers):
        columns = [
            left + (rng.random((n, rows)) * width).astype(int),
            top + (rng.random((n, rows)) * height).astype(int),
        ]
        columns.append(rng.integers(0, 2, (n, rows)))
        for longest in timers:
            due = rng.random((n, rows)) < rng.random((n, 1))
            columns.append(np.where(due, 0, rng.integers(0, longest + 1, (n, rows))))
        list_ = np.stack(columns, -1).astype(np.int32)
        list_[np.arange(rows) >= mixed(0.25, rows, rng.integers(0, rows + 1, n))[:, None]] = -1
        return list_

    torpedoes = things(25)
    off = (torpedoes[..., 1] != -1) & (rng.random((n, 25)) < rng.choice([0.0, 0.3], (n, 1)))
    torpedoes[..., 0] = np.where(off, rng.choice([-1, -1, 10, 11, 30, 1000, -2, -12], (n, 25)), torpedoes[..., 0])
    return any_start(rng, GAME).replace(
        _oxygen=mixed(0.1, rng.integers(-2, 3, n), rng.integers(-1, 201, n)),
        _diver_count=mixed(0.5, rng.integers(4, 7, n), rng.integers(-3, 7, n)),
        _sub_x=left[:, 0].astype(np.int32) + mixed(0.5, 0, rng.integers(0, width[:, 0])),
        _sub_y=mixed(0.2, 0, rng.integers(top[:, 0], top[:, 0] + height[:, 0])),
        _sub_or=rng.random(n) < 0.5,
        _f_bullets=things(5),
        _e_bullets=torpedoes,
        _e_fish=things(25, 5),
        _e_subs=things(25, 5, 10),
        _divers=things(5, 5),
        _e_spawn_speed=rng.integers(1, 21, n).astype(np.int32),
        _e_spawn_timer=mixed(0.5, 0, rng.integers(0, 21, n)),
        _d_spawn_timer=mixed(0.5, 0, rng.integers(0, 31, n)),
        _move_speed=rng.integers(2, 6, n).astype(np.int32),
        _ramp_index=rng.integers(0, 50, n).astype(np.int32),
        _shot_timer=mixed(0.5, 0, rng.integers(0, 6, n)),
        _surface=rng.random(n) < 0.5,
        _last_action=rng.integers(0, 6, n).astype(np.int32),
    )


def check_play(seed, steps):
    """Play through the ends of games; how many ended, and the most enemies and torpedoes in one game.

    A third of the games as they are, the others with enemies as dense and fast as they ever get, half of those
    going on in spite of every end, with air and divers given now and then.
    """
    rng, n = np.random.default_rng(seed), COPIES
    reset = jax.jit(jax.vmap(envs.make("minatar-seaquest").reset))
    state, _ = reset(keys_of(rng))
    hard, immortal = np.arange(n) % 3 > 0, np.arange(n) % 3 == 2
    ends = crowd = torpedoes = 0

    for _ in range(steps):
        likely = rng.choice(3, n, p=[0.2, 0.4, 0.4])  # to the surface, shooting, anything
        action = np.where(likely == 0, 2, np.where(likely == 1, 5, rng.integers(0, 6, n))).astype(np.int32)
        action = np.where(rng.random(n) < 0.3, 4, action)
        expected, found = BOTH(state, action, keys_of(rng))
        assert not differing(expected, found)
        ends += int(expected.terminated.sum())
        state = pick(np.asarray(expected.terminated) & ~immortal, reset(keys_of(rng))[0], expected)
        helped = immortal & (rng.random(n) < 0.02)
        state = state.replace(
            terminated=state.terminated & ~immortal,
            _terminal=state._terminal & ~immortal,
            _oxygen=jnp.where(helped, 200, state._oxygen),
            _diver_count=jnp.where(helped, rng.integers(1, 7, n).astype(np.int32), state._diver_count),
            _e_spawn_speed=jnp.where(hard, 1, state._e_spawn_speed),
            _e_spawn_timer=jnp.where(hard, jnp.minimum(state._e_spawn_timer, 1), state._e_spawn_timer),
        )
        crowd = max(crowd, *(int((list_[..., 0] != -1).sum(1).max()) for list_ in (state._e_subs, state._e_fish)))
        torpedoes = max(torpedoes, int((state._e_bullets[..., 1] != -1).sum(1).max()))
    return ends, crowd, torpedoes


def test_made_up_states_step_as_in_pgx():
    assert sum(check_made_up(BOTH, made_up, seed, 3) for seed in range(16)) > 1000


def test_play_is_as_in_pgx():
    ends, crowd, torpedoes = check_play(0, 250)
    assert ends > 200
    assert crowd > 10
    assert torpedoes == 25


def test_games_start_as_in_pgx():
    check_starts(GAME, seaquest)


def test_there_are_no_loops():
    env = envs.make("minatar-seaquest")
    assert "population_count" in primitives(env)
    assert not loops(env)
