"""What the games of our own share: the step around a game's rules, the screen, random bits, and sets of rows.

A set of rows is a mask, or the bits of one integer with the first row the lowest bit: counting rows and finding
the first of them is then arithmetic on single numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from capo.arrays import Array, PyTree

SIZE = 10  # lines and columns of the screen
STICKY = 0.1  # probability that the last action is repeated
UNIFORM_BITS = 23  # random bits in a uniform number of float32


def game_step(
    advance: Callable[[PyTree, Array, Array], PyTree], observe: Callable[[PyTree], Array]
) -> Callable[[PyTree, Array, Array], PyTree]:
    """The state after an action, given state, action and key: what ``step`` of pgx's game returns for the same.

    An illegal action, a number () from 0, ends the game. The key is used in the same way as by pgx.

    Args:
        advance: one step of a game that is not over, without its observation; takes the same arguments.
        observe: the screen of a state.
    """

    def step(state: PyTree, action: Array, key: Array) -> PyTree:
        action = jnp.asarray(action, jnp.int32)
        (n_actions,) = state.legal_action_mask.shape
        action = jnp.clip(jnp.where(action < 0, action + n_actions, action), 0, n_actions - 1)  # as an index
        legal = ((indices(n_actions) == action) & state.legal_action_mask).any()
        over = state.terminated | state.truncated
        still = state.replace(rewards=jnp.zeros_like(state.rewards))
        state = jax.tree.map(lambda old, new: jnp.where(over, old, new), still, advance(state, action, key))
        terminated = state.terminated | ~legal
        state = state.replace(
            rewards=jnp.where(legal, state.rewards, -1.0),
            terminated=terminated,
            legal_action_mask=state.legal_action_mask | terminated,
        )
        return state.replace(observation=observe(state))

    return step


def draw_screen(kinds: int, things: Sequence[tuple[Array, Array | int]]) -> Array:
    """The screen, (10, 10, kinds): line, column, kind; with no more than one thing of a kind on a line.

    A line is first packed into one integer, the column of every kind in four bits. This is a sum, which the
    compiler does not move: otherwise it might compute the step that led here again for every cell.

    Args:
        kinds: how many there are, at most seven.
        things: column and kind, (10,) each, of one thing per line; off the screen where there is none.
    """
    column = jnp.stack([column for column, _ in things], axis=1)
    kind = jnp.stack([jnp.broadcast_to(kind, SIZE) for _, kind in things], axis=1)
    placed = jnp.where(off_screen(column), 0, (column - 15) << (4 * kind))
    lines = (1 << 4 * kinds) - 1 + placed.sum(1, dtype=jnp.int32)  # 15 is not a column
    columns = (lines[:, None, None] >> (4 * indices(kinds))) & 15
    return columns == indices(SIZE)[:, None]


def off_screen(column: Array) -> Array:
    """Whether a column is outside the screen."""
    return (column < 0) | (column >= SIZE)


def direction(right: Array) -> Array:
    """How many columns a thing moves: 1 to the right, -1 to the left."""
    return jnp.where(right != 0, 1, -1)


def random_bits(keys: Sequence[Array]) -> Array:
    """32 random bits for each key, (keys,), by one call of the generator.

    ``uniform`` and ``randint`` of jax are arithmetic on such bits: see the two functions below.
    """
    return jax.vmap(lambda key: jax.random.bits(key, dtype=jnp.uint32))(jnp.stack(keys))


def uniform(bits: Array) -> Array:
    """What ``jax.random.uniform`` makes of the bits of its key."""
    return (bits >> (32 - UNIFORM_BITS)).astype(jnp.float32) * 2.0**-UNIFORM_BITS


def randint_keys(keys: Sequence[Array]) -> list[Array]:
    """The keys whose bits make the integers of ``jax.random.randint``: among two or eight, the last of them."""
    return list(jax.vmap(jax.random.split)(jnp.stack(keys))[:, 1])


def indices(n: int) -> Array:
    """0 to n - 1, (n,)."""
    return jnp.arange(n, dtype=jnp.int32)


def as_bits(mask: Array) -> Array:
    """A set of rows (..., rows), at most 31, as the bits of an integer (...)."""
    return jnp.where(mask, 1 << indices(mask.shape[-1]), 0).sum(-1, dtype=jnp.int32)


def count_before(mask: Array) -> Array:
    """How many rows of the set come before each row, (..., rows)."""
    below = (1 << indices(mask.shape[-1])) - 1
    return lax.population_count(as_bits(mask)[..., None] & below)
