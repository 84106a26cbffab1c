"""Seaquest without loops against pgx's own step, field by field."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from capo import envs
from capo.envs import seaquest

pgx = pytest.importorskip("pgx")
GAME = pgx.make("minatar-seaquest")
COPIES = 96  # the same everywhere: one program to compile


def differing(expected, found):
    """The names of the fields that differ in any of the games, each with how many games."""
    counts = {}
    for field in dataclasses.fields(expected):
        one, other = (np.asarray(getattr(state, field.name)) for state in (expected, found))
        assert (one.shape, one.dtype) == (other.shape, other.dtype), field.name
        if (one != other).any():
            counts[field.name] = int((one != other).reshape(len(one), -1).any(1).sum())
    return counts


@jax.jit
def both(state, action, keys):
    return jax.vmap(GAME.step)(state, action, keys), jax.vmap(seaquest.step)(state, action, keys)


def keys_of(rng, n):
    return jax.random.split(jax.random.PRNGKey(int(rng.integers(1 << 31))), n)


def made_up(rng, n):
    """n states that play seldom or never reaches: full lists, crowded cells, timers at 0, games over."""
    width, height = (np.where(rng.random((n, 1)) < 0.5, most, rng.integers(1, 5, (n, 1))) for most in (10, 8))
    left, top = (
        (rng.random((n, 1)) * (11 - width)).astype(int),
        1 + (rng.random((n, 1)) * (9 - height)).astype(int),
    )

    def mixed(share, special, otherwise):
        return np.where(rng.random(n) < share, special, otherwise).astype(np.int32)

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
    forbidden = rng.random((n, 6)) < rng.choice([0.0, 0.3], (n, 1), p=[0.9, 0.1])
    ended = rng.random(n) < 0.1
    start = jax.tree.map(lambda leaf: np.repeat(leaf[None], n, 0), GAME.init(jax.random.PRNGKey(0)))
    return start.replace(
        rewards=rng.integers(0, 3, (n, 1)).astype(np.float32),
        terminated=ended | (rng.random(n) < 0.05),
        truncated=rng.random(n) < 0.03,
        legal_action_mask=~forbidden,
        _step_count=rng.integers(0, 1000, n).astype(np.int32),
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
        _terminal=ended,
        _last_action=rng.integers(0, 6, n).astype(np.int32),
    )


def check_made_up(seed, n, steps):
    """Steps from made-up states, the first with any action, also one that is none; how many rewards were not 0."""
    rng = np.random.default_rng(seed)
    state, rewarded = made_up(rng, n), 0
    for t in range(steps):
        action = rng.integers(-2 if t == 0 else 0, 8 if t == 0 else 6, n).astype(np.int32)
        expected, found = both(state, action, keys_of(rng, n))
        assert not differing(expected, found)
        rewarded += int((expected.rewards != 0).sum())
        state = expected
    return rewarded


def check_play(seed, n, steps):
    """Play through the ends of games; how many ended, and the most enemies and torpedoes in one game.

    A third of the games as they are, the others with enemies as dense and fast as they ever get, half of those
    going on in spite of every end, with air and divers given now and then.
    """
    rng = np.random.default_rng(seed)
    env = envs.make("minatar-seaquest")
    reset = jax.jit(jax.vmap(env.reset))
    state, _ = reset(keys_of(rng, n))
    hard, immortal = np.arange(n) % 3 > 0, np.arange(n) % 3 == 2
    ends = crowd = torpedoes = 0

    def pick(chosen, fresh, old):
        return jax.tree.map(lambda a, b: jnp.where(chosen.reshape(n, *(1,) * (b.ndim - 1)), a, b), fresh, old)

    for _ in range(steps):
        likely = rng.choice(3, n, p=[0.2, 0.4, 0.4])  # to the surface, shooting, anything
        action = np.where(likely == 0, 2, np.where(likely == 1, 5, rng.integers(0, 6, n))).astype(np.int32)
        action = np.where(rng.random(n) < 0.3, 4, action)
        expected, found = both(state, action, keys_of(rng, n))
        assert not differing(expected, found)
        ends += int(expected.terminated.sum())
        state = pick(np.asarray(expected.terminated) & ~immortal, reset(keys_of(rng, n))[0], expected)
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
    assert sum(check_made_up(seed, COPIES, 3) for seed in range(16)) > 1000


def test_play_is_as_in_pgx():
    ends, crowd, torpedoes = check_play(0, COPIES, 250)
    assert ends > 200
    assert crowd > 10
    assert torpedoes == 25


def primitives(jaxpr):
    """Names of everything that a program does, the programs inside it included."""
    names = set()
    for equation in jaxpr.eqns:
        names.add(equation.primitive.name)
        for inner in jaxprs_in_params(equation.params):
            names |= primitives(inner)
    return names


def test_a_step_has_no_loops():
    env = envs.make("minatar-seaquest")
    key = jax.random.PRNGKey(0)
    arguments = (key[None], jax.vmap(env.reset)(key[None])[0], jnp.zeros(1, jnp.int32))
    names = primitives(jax.make_jaxpr(jax.vmap(env.step))(*arguments).jaxpr)
    assert "population_count" in names
    unwanted = ("while", "scan", "cond", "gather", "scatter", "sort", "cum")
    assert not {name for name in names if name.startswith(unwanted)}


def test_a_step_keeps_the_types_of_a_state_whatever_jax_counts_in():
    state = GAME.init(jax.random.PRNGKey(0))
    for wide in (False, True):
        with jax.enable_x64(wide):
            found = jax.eval_shape(seaquest.step, state, jnp.int32(0), jax.random.PRNGKey(0))
        assert jax.tree.map(lambda leaf: leaf.dtype, found) == jax.tree.map(lambda leaf: leaf.dtype, state)
