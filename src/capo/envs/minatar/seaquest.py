"""MinAtar's Seaquest without loops: one step of a game as operations on whole lists.

pgx walks through its lists of subs, fish, divers and bullets row by row, and closes the gap whenever it takes a
row out. Here every row is looked at once, all at the same time, and each list closes its gaps once, at the end.
State, observation, reward and end of the game are those of pgx for the same key, to the bit.

What makes that possible: rows keep their order, so a row that is taken out changes nothing for the others but who
comes first. Where several compete (shots and targets in one cell, room for divers, free rows for torpedoes), each
gets its turn as pgx would serve them.

A list is (rows, columns) of int32. Columns are x, y, whether it goes right, then timers; an empty row is all -1,
and empty rows come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from capo.arrays import Array, PyTree
from capo.envs.minatar import lists
from capo.envs.minatar.lists import SIZE, STICKY, as_bits, count_before, direction, indices, off_screen

Columns: TypeAlias = list[Array]  # the columns of a list, (rows,) each

AIR = 200
DIVERS_ABOARD = 6
DIVER_EVERY, DIVER_WAIT, RELOAD, TORPEDO_EVERY = 30, 5, 5, 10
LEFT, UP, RIGHT, DOWN, FIRE = 1, 2, 3, 4, 5
FIELD = 6  # bits of a number in a packed row: -1 to 62, and no list that loses rows has larger ones


def reset(_key: Array) -> PyTree:
    """The first state: what ``init`` of pgx's Seaquest returns."""
    from pgx.minatar.seaquest import State

    state = State()
    return state.replace(observation=observe(state))


def observe(state: PyTree) -> Array:
    """The screen, (10, 10, 10): row, column, kind of thing."""
    lines = indices(SIZE)
    player_back = jnp.where(state._sub_or, state._sub_x - 1, state._sub_x + 1)
    player = (lines == state._sub_y) * (_column_bit(state._sub_x) | (_column_bit(player_back) << SIZE))
    shots, torpedoes = (
        _rows_of(rows[:, 1], _column_bit(rows[:, 0])) for rows in (state._f_bullets, state._e_bullets)
    )
    fish, subs, divers = (_rows_with_back(rows) for rows in (state._e_fish, state._e_subs, state._divers))
    gauge = jnp.where(state._oxygen < 0, 9, state._oxygen * 10 // AIR)
    aboard = (SIZE - 1 - state._diver_count <= lines) & (lines < SIZE - 1)
    bottom = lines == SIZE - 1
    backs = (fish | subs | divers) >> SIZE
    kinds = (
        *(player, player >> SIZE, shots, backs, torpedoes, fish, subs),
        *(bottom * as_bits(lines < gauge), bottom * as_bits(aboard), divers),
    )
    rows = jnp.stack(kinds, axis=-1)  # (row, kind), a bit for every column
    return ((rows[:, None, :] >> lines[:, None]) & 1).astype(jnp.bool_)


def _column_bit(x: Array) -> Array:
    """The bit of a column, none off the screen; from -2 down columns are counted from the end of eleven."""
    x = jnp.where(x < 0, x + SIZE + 1, x)
    return jnp.where((x >= 0) & (x < SIZE), 1 << jnp.clip(x, 0, SIZE), 0)


def _rows_of(y: Array, bits: Array) -> Array:
    """Rows of the screen (10,): the bits of all things in a row together."""
    placed = jnp.where(y == indices(SIZE)[:, None], bits, 0)
    rows: Array = lax.reduce(placed, jnp.int32(0), lax.bitwise_or, (1,))
    return rows


def _rows_with_back(rows: Array) -> Array:
    """Rows of the screen (10,) with the things of a list, and ten bits further the cells they come from."""
    x, y, right = (rows[:, i] for i in range(3))
    back = x - direction(right)
    return _rows_of(y, _column_bit(x) | (_column_bit(back) << SIZE))


def _advance(state: PyTree, action: Array, key: Array) -> PyTree:
    """One step of a game that is not over, without its observation."""
    chance = _draw_random(key)
    action = jnp.where(chance["sticky"], state._last_action, action)

    # New enemies and divers.
    subs, fish = _columns(state._e_subs), _columns(state._e_fish)
    divers, shots = _columns(state._divers), _columns(state._f_bullets)
    spawn = state._e_spawn_timer == 0
    free_lane = ~_oncoming(subs, chance) & ~_oncoming(fish, chance)
    enemy = [_entrance(chance["enemy_right"]), chance["enemy_y"], chance["enemy_right"], state._move_speed]
    subs = _insert(subs, [*enemy, TORPEDO_EVERY], spawn & free_lane & chance["is_sub"])
    fish = _insert(fish, enemy, spawn & free_lane & ~chance["is_sub"])
    spawn_timer = jnp.where(spawn, state._e_spawn_speed, state._e_spawn_timer)
    spawn_diver = state._d_spawn_timer == 0
    diver = [_entrance(chance["diver_right"]), chance["diver_y"], chance["diver_right"]]
    divers = _insert(divers, [*diver, DIVER_WAIT], spawn_diver)
    diver_timer = jnp.where(spawn_diver, DIVER_EVERY, state._d_spawn_timer)

    # The player.
    fire = (action == FIRE) & (state._shot_timer == 0)
    shots = _insert(shots, [state._sub_x, state._sub_y, state._sub_or], fire)
    shot_timer = jnp.where(fire, RELOAD, state._shot_timer)
    x = jnp.clip(state._sub_x + (action == RIGHT) - (action == LEFT), 0, SIZE - 1)
    y = jnp.clip(state._sub_y + (action == DOWN) - (action == UP), 0, SIZE - 2)
    faces_right = (state._sub_or | (action == RIGHT)) & (action != LEFT)

    # Everything else moves.
    shots, flying, fish_left, subs_left, points = _move_shots(shots, fish, subs)
    divers_list, aboard = _move_divers(divers, state._diver_count, x, y)
    subs, subs_left, flying, hit_by_sub, shot_subs = _move_enemies(
        subs, subs_left, shots, flying, x, y, state._move_speed
    )
    torpedoes = _launch(state._e_bullets, subs, subs_left & (subs[4] == 0))
    subs[4] = jnp.where(subs[4] == 0, TORPEDO_EVERY, subs[4] - 1)
    torpedoes, hit_by_torpedo = _move_torpedoes(torpedoes, x, y)
    fish, fish_left, flying, hit_by_fish, shot_fish = _move_enemies(
        fish, fish_left, shots, flying, x, y, state._move_speed
    )
    terminal = state._terminal | hit_by_sub | hit_by_torpedo | hit_by_fish | (state._oxygen < 0)

    # Air, and the surface.
    under = y > 0
    arrives = ~under & ~state._surface
    terminal |= arrives & (aboard == 0)
    surfaces = arrives & (aboard != 0)
    full = surfaces & (aboard == DIVERS_ABOARD)
    bonus = jnp.where(full, state._oxygen * 10 // AIR, 0)
    harder = surfaces & ((state._e_spawn_speed > 1) | (state._move_speed > 2))
    ramp_index = state._ramp_index + harder
    faster = harder & (state._move_speed > 2) & (ramp_index % 2 == 1)
    reward = (points + shot_subs + shot_fish + bonus).astype(jnp.float32)
    return state.replace(
        rewards=reward[None],
        terminated=terminal,
        legal_action_mask=jnp.ones_like(state.legal_action_mask),
        _step_count=state._step_count + 1,
        _oxygen=jnp.where(surfaces, AIR, state._oxygen - under),
        _diver_count=jnp.where(full, 0, aboard) - surfaces,
        _sub_x=x,
        _sub_y=y,
        _sub_or=faces_right,
        _f_bullets=_compact(shots, flying),
        _e_bullets=torpedoes,
        _e_fish=_compact(fish, fish_left),
        _e_subs=_compact(subs, subs_left),
        _divers=divers_list,
        _e_spawn_speed=state._e_spawn_speed - (harder & (state._e_spawn_speed > 1)),
        _e_spawn_timer=spawn_timer - (spawn_timer > 0),
        _d_spawn_timer=diver_timer - (diver_timer != 0),
        _move_speed=state._move_speed - faster,
        _ramp_index=ramp_index,
        _shot_timer=shot_timer - (shot_timer > 0),
        _surface=~under & (state._surface | surfaces),
        _terminal=terminal,
        _last_action=action,
    )


step = lists.game_step(_advance, observe)  # action: (), 0 to 5


def _draw_random(key: Array) -> dict[str, Array]:
    """Everything random in a step: six keys in pgx's order, drawn from together.

    A draw from two things is the parity of a draw from eight: both are the low bits of the same number.
    """
    keys = jax.random.split(key, 6)
    integers = lists.randint_keys([keys[1], keys[3], keys[4], keys[5]])
    bits = lists.random_bits([keys[0], keys[2], *integers])
    uniform, of_eight = lists.uniform(bits[:2]), (bits[2:] % 8).astype(jnp.int32)
    return {
        "sticky": uniform[0] < STICKY,
        "is_sub": 1 - uniform[1] <= 1 / 3,
        "enemy_right": of_eight[0] % 2 == 0,
        "enemy_y": 1 + of_eight[1],
        "diver_right": of_eight[2] % 2 == 0,
        "diver_y": 1 + of_eight[3],
    }


def _entrance(right: Array) -> Array:
    return jnp.where(right, 0, SIZE - 1)


def _oncoming(enemies: Columns, chance: dict[str, Array]) -> Array:
    """Whether the new enemy would meet one of these in its row of the screen."""
    return ((enemies[1] == chance["enemy_y"]) & (enemies[2] != chance["enemy_right"])).any()


def _move_shots(shots: Columns, fish: Columns, subs: Columns) -> tuple[Columns, Array, Array, Array, Array]:
    """The player's shots move and hit what is in their cells, the last shot first.

    A shot takes the first fish of its cell that is left; without any, the first sub.

    Returns:
        The shots; which of them still fly (5,); which fish (25,) and which subs (25,) are left; how many were hit.
    """
    there = _present(shots)
    shots = [shots[0] + direction(shots[2]), *shots[1:]]
    there &= ~off_screen(shots[0])
    on_fish, on_subs = (as_bits(_same_cell(shots, enemies) & there[:, None]) for enemies in (fish, subs))
    fish_hit = subs_hit = spent = jnp.int32(0)
    for i in reversed(range(len(there))):
        first_fish = _lowest(on_fish[i] & ~fish_hit)
        first_sub = jnp.where(first_fish == 0, _lowest(on_subs[i] & ~subs_hit), 0)
        fish_hit, subs_hit = fish_hit | first_fish, subs_hit | first_sub
        spent |= jnp.where((first_fish | first_sub) != 0, 1 << i, 0)
    flying, fish_left, subs_left = (
        left & ~_as_mask(gone, len(left))
        for left, gone in ((there, spent), (_present(fish), fish_hit), (_present(subs), subs_hit))
    )
    return shots, flying, fish_left, subs_left, lax.population_count(spent)


def _move_divers(divers: Columns, aboard: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Divers move and are picked up at the player's cell, before their move or after it, the last diver first.

    Returns:
        The list of divers (5, 4) and how many are aboard.
    """
    there, moves = _present(divers), divers[3] == 0
    moved_x = divers[0] + direction(divers[2])
    meets = there & (divers[1] == y) & ((divers[0] == x) | (moves & (moved_x == x)))
    picked = meets & (aboard + _count_after(meets) < DIVERS_ABOARD)
    left = there & ~picked & ~(moves & off_screen(moved_x))
    wait = jnp.where(moves, DIVER_WAIT, divers[3] - 1)
    moved = [jnp.where(moves, moved_x, divers[0]), *divers[1:3], wait]
    return _compact(moved, left), aboard + picked.sum(dtype=jnp.int32)


def _move_enemies(
    enemies: Columns, there: Array, shots: Columns, flying: Array, x: Array, y: Array, wait: Array
) -> tuple[Columns, Array, Array, Array, Array]:
    """Subs or fish move, those whose time has come; one that moved into a shot is gone, and the shot with it.

    The last enemy comes first. It takes the first shot of its cell that is left, unless it moved into the player's
    cell: that ends the game.

    Args:
        enemies: their list.
        there: (25,) which are still there.
        shots: the player's shots after their move.
        flying: (5,) which of them are left.
        x: column of the player, ().
        y: row of the player, ().
        wait: steps until an enemy moves again, ().

    Returns:
        The enemies; which are left; which shots are left; whether one met the player; how many were hit.
    """
    moves = there & (enemies[3] == 0)
    meets = there & (enemies[0] == x) & (enemies[1] == y)
    moved_x = jnp.where(moves, enemies[0] + direction(enemies[2]), enemies[0])
    enemies = [moved_x, *enemies[1:3], jnp.where(moves, wait, enemies[3] - 1), *enemies[4:]]
    out = moves & off_screen(moved_x)
    meets_now = moves & (moved_x == x) & (enemies[1] == y)
    on = as_bits(_same_cell(shots, enemies) & flying[:, None] & (moves & ~out & ~meets_now))
    hit = spent = jnp.int32(0)
    for i in range(len(flying)):  # the first shot of a cell goes to its last enemy
        last = _highest(on[i] & ~hit)
        hit |= last
        spent |= jnp.where(last != 0, 1 << i, 0)
    left, flying = there & ~out & ~_as_mask(hit, len(there)), flying & ~_as_mask(spent, len(flying))
    return enemies, left, flying, (meets | meets_now).any(), lax.population_count(hit)


def _launch(torpedoes: Array, subs: Columns, launching: Array) -> Array:
    """The enemies' torpedoes (25, 3) and one more from each of the launching subs (25,), the last sub first.

    Each takes the first row whose x is -1: an empty one, or that of a torpedo which has left to the left. When no
    such row is left they take the first one, over what was there.
    """
    free = torpedoes[:, 0] == -1
    packed = _packed(subs[:3])
    turn = _count_after(launching)
    takes = free[:, None] & launching & (turn == count_before(free)[:, None])  # (torpedo, sub)
    # The last to launch, if without a row.
    late = launching & (turn >= free.sum(dtype=jnp.int32)) & (count_before(launching) == 0)
    overwritten = (indices(len(free)) == 0) & late.any()
    takes = jnp.where(overwritten[:, None], late, takes)
    found = jnp.where(takes, packed, 0).sum(1, dtype=jnp.int32)
    return jnp.where((found != 0)[:, None], _unpacked(found, 3), torpedoes)


def _move_torpedoes(torpedoes: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Torpedoes (25, 3) before the first row whose x is -1 move, and none if there is no such row.

    They are never taken out: those that have left the screen keep moving, or wait at -1 to be written over.

    Returns:
        The torpedoes and whether one met the player, before its move or after it.
    """
    free = torpedoes[:, 0] == -1
    moves = free.any() & ~free & (count_before(free) == 0)
    moved_x = torpedoes[:, 0] + direction(torpedoes[:, 2])
    meets = moves & (torpedoes[:, 1] == y) & ((torpedoes[:, 0] == x) | (moved_x == x))
    moved = jnp.stack([jnp.where(moves, moved_x, torpedoes[:, 0]), torpedoes[:, 1], torpedoes[:, 2]], axis=1)
    return moved, meets.any()


def _columns(rows: Array) -> Columns:
    return [rows[:, i] for i in range(rows.shape[1])]


def _present(columns: Columns) -> Array:
    """Which rows are not empty, (rows,)."""
    return columns[0] != -1


def _insert(columns: Columns, values: Sequence[Array | int], when: Array) -> Columns:
    """The list with one more thing in its first empty row; in a full list, over the first."""
    empty = ~_present(columns)
    first = empty & (count_before(empty) == 0)
    first |= ~empty.any() & (indices(len(empty)) == 0)
    return [jnp.where(when & first, value, column) for value, column in zip(values, columns, strict=True)]


def _same_cell(one: Columns, other: Columns) -> Array:
    """Which are in the same cell, (rows of the one, rows of the other)."""
    return (one[0][:, None] == other[0]) & (one[1][:, None] == other[1])


def _as_mask(bits: Array, n: int) -> Array:
    """The set of rows with these bits, (n,)."""
    return ((bits >> indices(n)) & 1) != 0


def _lowest(bits: Array) -> Array:
    """The lowest bit that is set, 0 without any."""
    return bits & -bits


def _highest(bits: Array) -> Array:
    """The highest bit that is set, 0 without any."""
    return jnp.where(bits == 0, 0, 1 << (31 - lax.clz(bits | 1)))


def _count_after(mask: Array) -> Array:
    """How many rows of the set come after each row, (..., rows)."""
    return lax.population_count(as_bits(mask)[..., None] >> (1 + indices(mask.shape[-1])))


def _packed(columns: Columns) -> Array:
    """Each row as one integer (rows,), an empty one as 0."""
    packed = jnp.zeros_like(columns[0])
    for i, column in enumerate(columns):
        packed |= (column + 1) << (FIELD * i)
    return packed


def _unpacked(packed: Array, n_columns: int) -> Array:
    """The list (rows, columns) of packed rows."""
    shifts = FIELD * indices(n_columns)
    return ((packed[:, None] >> shifts) & ((1 << FIELD) - 1)) - 1


def _compact(columns: Columns, left: Array) -> Array:
    """The list (rows, columns) of the rows that are left, without gaps."""
    row = indices(len(left))
    goes_to = left & (count_before(left) == row[:, None])  # (new row, old row)
    return _unpacked(jnp.where(goes_to, _packed(columns), 0).sum(1, dtype=jnp.int32), len(columns))
