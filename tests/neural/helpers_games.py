"""A game of our own against pgx's, field by field: for the tests of Asterix, Freeway and Seaquest."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

COPIES = 96  # the same everywhere: one program to compile
LOOPS = ("while", "scan", "cond", "gather", "scatter", "sort", "cum", "dynamic", "custom")


def differing(expected, found):
    """The names of the fields that differ in any of the games, each with how many games."""
    counts = {}
    for field in dataclasses.fields(expected):
        one, other = (np.asarray(getattr(state, field.name)) for state in (expected, found))
        assert (one.shape, one.dtype) == (other.shape, other.dtype), field.name
        if (one != other).any():
            counts[field.name] = int((one != other).reshape(len(one), -1).any(1).sum())
    return counts


def keys_of(rng, n=COPIES):
    return jax.random.split(jax.random.PRNGKey(int(rng.integers(1 << 31))), n)


def in_both(one, other):
    """A jitted function of many games at once: what the one makes of them, and what the other does."""
    return jax.jit(lambda *arguments: (jax.vmap(one)(*arguments), jax.vmap(other)(*arguments)))


def pick(chosen, fresh, old):
    """The fresh states of the chosen games, the old ones of the others."""
    return jax.tree.map(lambda a, b: jnp.where(chosen.reshape(-1, *(1,) * (b.ndim - 1)), a, b), fresh, old)


def mixed(rng, share, special, otherwise, n=COPIES):
    """(n,) of int32: a share of them special."""
    return np.where(rng.random(n) < share, special, otherwise).astype(np.int32)


def any_start(rng, game, n=COPIES):
    """n states, to be changed, some of them of games that are over, or with actions that are not legal."""
    start = jax.tree.map(lambda leaf: np.repeat(leaf[None], n, 0), game.init(jax.random.PRNGKey(0)))
    ended = rng.random(n) < 0.1
    forbidden = rng.random(start.legal_action_mask.shape) < rng.choice([0.0, 0.3], (n, 1), p=[0.9, 0.1])
    return start.replace(
        rewards=rng.integers(0, 3, (n, 1)).astype(np.float32),
        terminated=ended | (rng.random(n) < 0.05),
        truncated=rng.random(n) < 0.03,
        legal_action_mask=~forbidden,
        _step_count=rng.integers(0, 1000, n).astype(np.int32),
        _terminal=ended,
    )


def check_made_up(both, made_up, seed, steps):
    """Steps from made-up states, the first with any action, also one that is none; how many rewards were not 0."""
    rng = np.random.default_rng(seed)
    state, rewarded = made_up(rng), 0
    n_actions = state.legal_action_mask.shape[1]
    for t in range(steps):
        action = rng.integers(-2 if t == 0 else 0, n_actions + (2 if t == 0 else 0), COPIES).astype(np.int32)
        expected, found = both(state, action, keys_of(rng))
        assert not differing(expected, found)
        rewarded += int((expected.rewards != 0).sum())
        state = expected
    return rewarded


def check_starts(game, module):
    """The first states of many games, and that a state keeps its types whatever jax counts in."""
    expected, found = in_both(game.init, module.reset)(keys_of(np.random.default_rng(0)))
    assert not differing(expected, found)
    state = game.init(jax.random.PRNGKey(0))
    for wide in (False, True):
        with jax.enable_x64(wide):
            first = jax.eval_shape(module.reset, jax.random.PRNGKey(0))
            next_ = jax.eval_shape(module.step, state, jnp.int32(0), jax.random.PRNGKey(0))
        for other in (first, next_):
            assert jax.tree.map(_type, other) == jax.tree.map(_type, state)


def _type(leaf):
    return leaf.shape, leaf.dtype


def primitives(env):
    """Names of everything that a step and a reset of many games do."""
    key = jax.random.PRNGKey(0)
    arguments = (key[None], jax.vmap(env.reset)(key[None])[0], jnp.zeros(1, jnp.int32))
    step = jax.make_jaxpr(jax.vmap(env.step))(*arguments).jaxpr
    reset = jax.make_jaxpr(jax.vmap(env.reset))(key[None]).jaxpr
    return _names(step) | _names(reset)


def _names(jaxpr):
    names = set()
    for equation in jaxpr.eqns:
        names.add(equation.primitive.name)
        for inner in jaxprs_in_params(equation.params):
            names |= _names(inner)
    return names


def loops(env):
    """Names of what is slow on a GPU in a step and a reset."""
    return {name for name in primitives(env) if name.startswith(LOOPS)}
