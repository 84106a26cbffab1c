"""MinAtar's Asterix without loops: one step of a game as operations on all eight lines at once.

State, observation, reward and end of the game are those of pgx for the same key, to the bit.

The list of things is (8, 4) of int32, one for each line of the screen but the first and the last: thing i is
always on line i + 1. So two things never share a cell, and the player meets at most one. Columns are x, the line,
whether it goes right, whether it is treasure; where there is nothing all are 99.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from capo.arrays import Array, PyTree
from capo.envs.minatar import lists
from capo.envs.minatar.lists import SIZE, STICKY, UNIFORM_BITS, direction, indices

NOTHING = 99
LEFT, UP, RIGHT, DOWN = 1, 2, 3, 4
HARDER_EVERY = 100
# Free lines and draws (see ``_chosen_line``) for which the sum of 1/n in float32 falls on the other side of the
# exact one.
ROUNDED_DOWN = ((5, 5033165), (6, 6990507), (7, 3595118), (7, 5991863))


def reset(_key: Array) -> PyTree:
    """The first state: what ``init`` of pgx's Asterix returns."""
    from pgx.minatar.asterix import State

    state = State()
    return state.replace(observation=observe(state))


def observe(state: PyTree) -> Array:
    """The screen, (10, 10, 4): line, column, kind of thing.

    Kinds are the player, enemies, the cells that things come from, and treasure.
    """
    things = jnp.pad(state._entities, ((1, 1), (0, 0)), constant_values=NOTHING)  # of every line
    x, _, right, treasure = (things[:, i] for i in range(4))
    player_x = jnp.where(indices(SIZE) == state._player_y, state._player_x, NOTHING)
    return lists.draw_screen(4, [(player_x, 0), (x, jnp.where(treasure != 0, 3, 1)), (x - direction(right), 2)])


def _advance(state: PyTree, action: Array, key: Array) -> PyTree:
    """One step of a game that is not over, without its observation."""
    x, line, right, treasure = (state._entities[:, i] for i in range(4))
    free = x == NOTHING
    chance = _draw_random(key, lax.population_count(lists.as_bits(free)))
    action = jnp.where(chance["sticky"], state._last_action, action)

    # A new thing, on one of the free lines.
    spawn = state._spawn_timer == 0
    new = spawn & free & (lists.count_before(free) == chance["chosen"])
    x = jnp.where(new, jnp.where(chance["right"], 0, SIZE - 1), x)
    line = jnp.where(new, 1 + indices(len(free)), line)
    right = jnp.where(new, chance["right"], right)
    treasure = jnp.where(new, chance["treasure"], treasure)
    spawn_timer = jnp.where(spawn, state._spawn_speed, state._spawn_timer)

    # The player moves; things do when it is time, and meet the player before or after that.
    player_x = jnp.clip(state._player_x + (action == RIGHT) - (action == LEFT), 0, SIZE - 1)
    player_y = jnp.clip(state._player_y + (action == DOWN) - (action == UP), 1, SIZE - 2)
    due = state._move_timer == 0
    moved_x = jnp.where(due & (x != NOTHING), x + direction(right), x)
    meets = (line == player_y) & ((x == player_x) | (moved_x == player_x))
    taken = meets & (treasure == 1)
    gone = taken | lists.off_screen(moved_x)
    things = jnp.where(gone[:, None], NOTHING, jnp.stack([moved_x, line, right, treasure], axis=1))
    terminal = state._terminal | (meets & ~taken).any()
    move_timer = jnp.where(due, state._move_speed, state._move_timer)

    # It gets harder.
    ramps = (state._spawn_speed > 1) | (state._move_speed > 1)
    harder = ramps & (state._ramp_timer < 0)
    faster = harder & (state._move_speed > 1) & (state._ramp_index % 2 == 1)
    return state.replace(
        rewards=taken.any().astype(jnp.float32)[None],
        terminated=terminal,
        legal_action_mask=jnp.ones_like(state.legal_action_mask),
        _step_count=state._step_count + 1,
        _player_x=player_x,
        _player_y=player_y,
        _entities=things,
        _spawn_speed=state._spawn_speed - (harder & (state._spawn_speed > 1)),
        _spawn_timer=spawn_timer - 1,
        _move_speed=state._move_speed - faster,
        _move_timer=move_timer - 1,
        _ramp_timer=jnp.where(harder, HARDER_EVERY, state._ramp_timer - ramps),
        _ramp_index=state._ramp_index + harder,
        _terminal=terminal,
        _last_action=action,
    )


step = lists.game_step(_advance, observe)  # action: (), 0 to 4


def _draw_random(key: Array, n_free: Array) -> dict[str, Array]:
    """Everything random in a step: four keys in pgx's order, drawn from together.

    Args:
        key: of the step.
        n_free: how many lines are free, ().
    """
    sticky, right, treasure, chosen = jax.random.split(key, 4)
    (right,) = lists.randint_keys([right])
    bits = lists.random_bits([sticky, right, treasure, chosen])
    return {
        "sticky": lists.uniform(bits[0]) < STICKY,
        "right": bits[1] % 2 == 0,
        "treasure": 1 - lists.uniform(bits[2]) <= 1 / 3,
        "chosen": _chosen_line(n_free, bits[3]),
    }


def _chosen_line(n_free: Array, bits: Array) -> Array:
    """Which of the free lines gets a new thing, from 0.

    It is the line whose share of 0 to 1, of n equal ones, a uniform number falls into. pgx adds up these shares in
    float32; here it is done in integers, with its rounding put back.
    """
    draw = (1 << UNIFORM_BITS) - (bits >> (32 - UNIFORM_BITS)).astype(jnp.int32)  # 1 to 2^23
    chosen = (n_free * draw - 1) >> UNIFORM_BITS
    for n, rounded in ROUNDED_DOWN:
        chosen -= (n_free == n) & (draw == rounded)
    return chosen
