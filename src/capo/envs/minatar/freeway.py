"""MinAtar's Freeway without loops: one step of a game as operations on all eight cars at once.

State, observation, reward and end of the game are those of pgx for the same key, to the bit.

The list of cars is (8, 4) of int32, one for each line of the screen but the first and the last: car i is always
on line i + 1, so at most one car can hit the player. Columns are x, the line, how long until the car moves, and
how long it waits then, which is called its speed: 1 to 5 steps, negative for a car that goes left.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from capo.arrays import Array, PyTree
from capo.envs.minatar import lists
from capo.envs.minatar.lists import SIZE, STICKY, direction, indices

CARS = 8
SLOWEST = 5
HOME = SIZE - 1  # the player's line at the start
COLUMN = 4  # of the player
MOVE_EVERY = 3
UP, DOWN = 2, 4  # as pgx remembers them; the actions are 0, 1 and 2


def reset(key: Array) -> PyTree:
    """The first state: what ``init`` of pgx's Freeway returns for the same key."""
    from pgx.minatar.freeway import State

    speed = _new_speeds(key)
    cars = [jnp.zeros_like(speed), 1 + indices(CARS), jnp.abs(speed), speed]
    state = State(_cars=jnp.stack(cars, axis=1))
    return state.replace(observation=observe(state))


def observe(state: PyTree) -> Array:
    """The screen, (10, 10, 7): line, column, kind of thing.

    Kinds are the player, cars, and the cells that cars come from, by their speed.
    """
    x, _, _, speed = (state._cars[:, i] for i in range(4))
    car_x, trail_x = (jnp.pad(column, 1, constant_values=-1) for column in (x, _wrapped(x - direction(speed > 0))))
    trail = jnp.pad(1 + jnp.abs(speed), 1)
    player_x = jnp.where(indices(SIZE) == state._pos, COLUMN, -1)
    return lists.draw_screen(2 + SLOWEST, [(player_x, 0), (car_x, 1), (trail_x, trail)])


def _advance(state: PyTree, action: Array, key: Array) -> PyTree:
    """One step of a game that is not over, without its observation."""
    sticky_key, traffic_key = jax.random.split(key)
    sticky = jax.random.uniform(sticky_key, dtype=jnp.float32) < STICKY
    action = jnp.where(sticky, state._last_action, 2 * action)

    # The player; on the other side, back home and into new traffic.
    ready = state._move_timer == 0
    up, down = ready & (action == UP), ready & (action == DOWN)
    move_timer = jnp.where(up | down, MOVE_EVERY, state._move_timer)
    position = jnp.clip(state._pos + down - up, 0, HOME)
    across = position == 0
    position = jnp.where(across, HOME, position)
    x, line, wait, speed = (state._cars[:, i] for i in range(4))
    speed = jnp.where(across, _new_speeds(traffic_key), speed)
    wait = jnp.where(across, jnp.abs(speed), wait)

    # Cars move when it is time, and hit the player before or after that.
    moves = wait == 0
    moved_x = jnp.where(moves, _wrapped(x + direction(speed > 0)), x)
    hit = ((line == position) & ((x == COLUMN) | (moved_x == COLUMN))).any()
    wait = jnp.where(moves, jnp.abs(speed), wait - 1)
    terminate_timer = state._terminate_timer - 1
    terminal = terminate_timer < 0
    return state.replace(
        rewards=across.astype(jnp.float32)[None],
        terminated=terminal,
        legal_action_mask=jnp.ones_like(state.legal_action_mask),
        _step_count=state._step_count + 1,
        _cars=jnp.stack([moved_x, line, wait, speed], axis=1),
        _pos=jnp.where(hit, HOME, position),
        _move_timer=move_timer - (move_timer > 0),
        _terminate_timer=terminate_timer,
        _terminal=terminal,
        _last_action=action,
    )


step = lists.game_step(_advance, observe)  # action: (), 0 to 2


def _new_speeds(key: Array) -> Array:
    """New speeds of the cars, (8,): 1 to 5 to the right or to the left, from two keys in pgx's order."""
    speed_key, way_key = jax.random.split(key)
    speed = jax.random.randint(speed_key, (CARS,), 1, 1 + SLOWEST, jnp.int32)
    return speed * direction(jax.random.randint(way_key, (CARS,), 0, 2, jnp.int32))


def _wrapped(x: Array) -> Array:
    """The column, on the other side of the screen for one that is off it."""
    return jnp.where(x < 0, SIZE - 1, jnp.where(x >= SIZE, 0, x))
