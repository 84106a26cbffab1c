"""Checks of what an MDP is made of: discount, transitions, rewards, action sets, distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from capo.errors import CapoError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SUM_TOLERANCE = 1e-8  # how far the sum of a row of probabilities may be from 1; more in single precision
SUM_ROUNDING = 4 * 2.0**-52  # and how far it is left from 1: bounds on V take it for 1


def check_gamma(gamma: float) -> float:
    """The discount: above 0, and below 1, or 1 for a finite number of steps."""
    try:
        value = float(np.asarray(gamma).reshape(()))
    except (TypeError, ValueError, OverflowError):
        raise CapoError(f"gamma={gamma!r} must be a number between 0 and 1") from None
    if not 0 < value <= 1:
        raise CapoError(f"gamma={value!r} must be above 0 and below 1, or 1 for a finite number of steps")
    return value


def real_array(given: Any, what: str) -> Floats:
    """An array of float64, or a CapoError; complex numbers are refused rather than truncated."""
    try:
        array = np.asarray(given)
        if np.iscomplexobj(array):
            raise CapoError(f"{what} are complex numbers; they must be real")
        return np.ascontiguousarray(array, dtype=np.float64)
    except CapoError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise CapoError(f"{what} are not an array of numbers: {error}") from None


def transition_rows(transition: Any) -> tuple[Any, tuple[int, int]]:
    """Transitions as float64 (S*A, S) rows, dense or CSR with duplicates merged, and (S, A)."""
    if sp.issparse(transition):
        if transition.ndim != 2:
            raise CapoError(f"sparse transitions must be a matrix (S*A, S), got shape {transition.shape}")
        n_pairs, n_states = transition.shape
        if n_states == 0 or n_pairs == 0 or n_pairs % n_states:
            raise CapoError(
                f"sparse transitions of shape {transition.shape} must be (S*A, S): {n_pairs} rows is not a "
                f"positive multiple of {n_states} columns"
            )
        rows = sparse_rows(transition, "transitions")
        rows.sum_duplicates()
        rows.eliminate_zeros()
        return rows, (n_states, n_pairs // n_states)
    dense = real_array(transition, "transitions")
    if dense.ndim != 3 or dense.shape[0] != dense.shape[2]:
        raise CapoError(f"transitions of shape {dense.shape} must be (S, A, S), or scipy.sparse (S*A, S)")
    n_states, n_actions, _ = dense.shape
    if n_states == 0 or n_actions == 0:
        raise CapoError(f"transitions of shape {dense.shape}: an MDP needs at least one state and one action")
    return dense.reshape(n_states * n_actions, n_states).copy(), (n_states, n_actions)


def sparse_rows(given: Any, what: str) -> sp.csr_array:
    """A scipy.sparse matrix as CSR of float64, a copy; refused if an index lies outside of it.

    scipy's compiled code trusts the indices that a user has put into a matrix: a wrong one reads or writes foreign
    memory.
    """
    if given.ndim != 2:
        raise CapoError(f"{what}: sparse arrays must be matrices, got shape {given.shape}")
    if np.issubdtype(given.dtype, np.complexfloating):
        raise CapoError(f"{what} are complex numbers; they must be real")
    try:
        if given.format in ("csr", "csc", "bsr"):
            _check_pointers(given)
        _check_places(given, what)
        if given.format == "csr":  # what is stored becomes read-only
            parts = (given.data.astype(np.float64), given.indices.copy(), given.indptr.copy())
            return sp.csr_array(parts, shape=given.shape)
        # COO first: that conversion keeps duplicates.
        return sp.csr_array(sp.coo_array(given), dtype=np.float64)
    except CapoError:
        raise
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise CapoError(f"{what}: not a valid sparse matrix of numbers: {error}") from None


def _check_pointers(given: Any) -> None:
    """Raise a ValueError unless ``indptr`` of a compressed matrix splits its entries into rows or columns."""
    pointers, lines = np.asarray(given.indptr), given.shape[1 if given.format == "csc" else 0]
    lines //= given.blocksize[0] if given.format == "bsr" else 1
    if not np.issubdtype(pointers.dtype, np.integer) or not np.issubdtype(given.indices.dtype, np.integer):
        raise ValueError(
            f"indptr and indices are of types {pointers.dtype} and {given.indices.dtype}, not integers"
        )
    if pointers.shape != (lines + 1,) or pointers[0] != 0 or (pointers[1:] < pointers[:-1]).any():
        raise ValueError(f"indptr must rise from 0 and have {lines + 1} entries")
    if pointers[-1] > min(len(given.indices), len(given.data)):
        raise ValueError(f"indptr ends at {pointers[-1]}, but there are {len(given.indices)} indices")


def _check_places(given: Any, what: str) -> None:
    """Refuse entries outside the matrix; scipy itself does so when it converts the remaining formats."""
    if given.format == "coo":
        places = list(zip((given.row, given.col), given.shape, strict=True))
    elif given.format in ("csr", "csc"):
        places = [(given.indices[: given.indptr[-1]], given.shape[1 if given.format == "csr" else 0])]
    else:
        return
    for index, size in places:
        if len(index) and (index.min() < 0 or index.max() >= size):
            entry = int(np.flatnonzero((index < 0) | (index >= size))[0])
            row, column = _place(given, entry)
            rows, states = given.shape
            raise CapoError(
                f"{what}: row {row} has an entry for state {column}, outside a matrix of {rows} rows and {states} "
                "states; both are numbered from 0"
            )


def _place(given: Any, entry: int) -> tuple[int, int]:
    """The row and the column of an entry of a COO, CSR or CSC matrix."""
    if given.format == "coo":
        return int(given.row[entry]), int(given.col[entry])
    line, index = int(np.searchsorted(given.indptr, entry, "right")) - 1, int(given.indices[entry])
    return (line, index) if given.format == "csr" else (index, line)


def check_probabilities(rows: Any, n_actions: int, tolerance: float, allowed: Bools | None = None) -> Any:
    """The rows, refused if they are not distributions, and scaled where rounding keeps the sum from 1.

    Rows of pairs that ``allowed`` (S, A) rules out are empty.
    """
    entries = rows.data if sp.issparse(rows) else rows
    if not np.isfinite(entries).all() or (entries < 0).any():
        bad = sp.coo_array(rows)
        first = np.flatnonzero(~np.isfinite(bad.data) | (bad.data < 0))[0]
        (s, a), value = divmod(int(bad.row[first]), n_actions), float(bad.data[first])
        raise CapoError(
            f"P(s'={bad.col[first]} | s={s}, a={a}) = {value!r} is {'negative' if value < 0 else 'not finite'}: "
            "probabilities must be finite and at least 0"
        )
    sums = np.asarray(rows.sum(axis=1)).ravel()
    if allowed is not None:
        sums[~allowed.ravel()] = 1.0
    wrong = np.flatnonzero(np.abs(sums - 1) > tolerance)
    if wrong.size:
        pair = int(wrong[0])
        more = f"; {wrong.size - 1} other rows do not either" if wrong.size > 1 else ""
        raise CapoError(
            f"the probabilities of state {pair // n_actions}, action {pair % n_actions} sum to {sums[pair]:.12g}, "
            f"off by {sums[pair] - 1:+.3g}: each row must sum to 1 within {tolerance:g}{more}"
        )
    return _normalised(rows, np.flatnonzero(np.abs(sums - 1) > SUM_ROUNDING))


def _normalised(rows: Any, suspects: Ints) -> Any:
    """The rows, with those of ``suspects`` divided by their sums unless only their addition was rounded."""
    if not suspects.size:
        return rows
    excess = _sum_minus_one(rows[suspects])
    off = np.abs(excess) > SUM_ROUNDING
    if not off.any():
        return rows
    sums = np.ones(rows.shape[0])
    sums[suspects[off]] += excess[off]
    if not sp.issparse(rows):
        return rows / sums[:, None]
    rows.data /= np.repeat(sums, np.diff(rows.indptr))
    return rows


def _sum_minus_one(rows: Any) -> Floats:
    """(n,) how far the sums of rows (n, S) of probabilities are from 1, almost exactly however long they are.

    Multiples of 2^-27 are added without rounding, and what is left of the entries is at most 2^-28.
    """
    entries = rows.data if sp.issparse(rows) else rows
    coarse = np.round(entries * 2.0**27) * 2.0**-27
    fine = entries - coarse
    if not sp.issparse(rows):
        return np.asarray((coarse.sum(axis=1) - 1) + fine.sum(axis=1))
    sums = (
        sp.csr_array((part, rows.indices, rows.indptr), shape=rows.shape).sum(axis=1) for part in (coarse, fine)
    )
    high, low = (np.asarray(part).ravel() for part in sums)
    return np.asarray((high - 1) + low)


def expected_reward(
    reward: Any, rows: Any, shape: tuple[int, int], ends: Bools | None, allowed: Bools | None = None
) -> Floats:
    """(S, A) expected rewards; 0 at terminal states and where an action is not allowed, whatever was given there.

    Args:
        reward: (S, A); (S, A, S); or sparse (S*A, S), one per transition.
        rows: (S*A, S) transitions, dense or CSR.
        shape: (S, A).
        ends: (S,) terminal states.
        allowed: (S, A) action sets; None if every action is allowed.
    """
    n_states = shape[0]
    without = np.zeros(shape, bool) if allowed is None else ~allowed
    if ends is not None:
        without = without | ends[:, None]
    if sp.issparse(reward):
        if reward.shape not in (shape, rows.shape):
            raise CapoError(f"sparse rewards of shape {reward.shape} must be (S*A, S) = {rows.shape}")
        kept = sparse_rows(reward, "rewards")
        reward = kept.toarray() if reward.shape != rows.shape else kept
    if sp.issparse(reward):
        expected = np.asarray(sp.csr_array(rows).multiply(reward).sum(axis=1)).reshape(shape)
    else:
        expected = real_array(reward, "rewards").copy()
        if expected.shape not in (shape, per_transition := (*shape, n_states)):
            raise CapoError(
                f"rewards of shape {expected.shape} must be (S, A) = {shape} or (S, A, S) = {per_transition}"
            )
        expected[without] = 0.0
        if expected.ndim == 3:
            if not np.isfinite(expected).all():
                s, a, t = np.argwhere(~np.isfinite(expected))[0]
                raise CapoError(f"reward r(s={s}, a={a}, s'={t}) = {float(expected[s, a, t])!r} is not finite")
            flat = expected.reshape(-1, n_states)
            product = rows.multiply(flat) if sp.issparse(rows) else rows * flat
            expected = np.asarray(product.sum(axis=1)).reshape(shape)
    expected[without] = 0.0
    if not np.isfinite(expected).all():
        s, a = np.argwhere(~np.isfinite(expected))[0]
        value = float(expected[s, a])
        hint = "; to rule an action out, pass actions=" if value == -np.inf else ""
        raise CapoError(f"reward r(s={s}, a={a}) = {value!r} is not finite{hint}")
    return expected


def aligned_reward(transition: Any, reward: Any) -> Any:
    """Sparse rewards that stand entry by entry beside the transitions, averaged to (S*A,); others unchanged.

    Two COO matrices with the same rows and columns may hold a successor more than once, each time with a reward
    of its own, which summing duplicates would mix up.
    """
    if not all(sp.issparse(given) and given.format == "coo" for given in (transition, reward)):
        return reward
    if transition.shape != reward.shape or transition.nnz != reward.nnz or np.iscomplexobj(reward.data):
        return reward
    if not (np.array_equal(transition.row, reward.row) and np.array_equal(transition.col, reward.col)):
        return reward
    n_pairs, n_states = transition.shape
    weight = np.bincount(transition.row, transition.data, n_pairs)
    total = np.bincount(transition.row, transition.data * reward.data, n_pairs)
    return (total / np.where(weight == 0, 1.0, weight)).reshape(n_states, -1)


def action_mask(actions: Any, shape: tuple[int, int], ends: Bools | None) -> Bools | None:
    """(S, A) which actions each state has, or None if it is all of them.

    Args:
        actions: an (S, A) mask; (n, 2) pairs (state, action); or None.
        shape: (S, A).
        ends: (S,) terminal states. One without an action keeps all of them: there is nothing to choose there.
    """
    if actions is None:
        return None
    try:
        given = np.asarray(actions)
    except ValueError:
        raise CapoError(f"actions={actions!r} must be an (S, A) mask or pairs (state, action)") from None
    if given.dtype == np.bool_:
        if given.shape != shape:
            raise CapoError(f"actions: a mask of shape {given.shape} must be (S, A) = {shape}")
        mask = given.copy()
    else:
        _refuse_integer_mask(actions, given, shape)
        mask = np.zeros(shape, bool)
        states, chosen = _pairs(given, shape).T
        mask[states, chosen] = True
    if ends is not None:
        mask[ends & ~mask.any(axis=1)] = True
    without = np.flatnonzero(~mask.any(axis=1))
    if without.size:
        more = f", and neither do {without.size - 1} others" if without.size > 1 else ""
        raise CapoError(
            f"actions: state {without[0]} has no action{more}; allow at least one, or name it in terminal="
        )
    return None if mask.all() else mask


def _refuse_integer_mask(actions: Any, given: Any, shape: tuple[int, int]) -> None:
    """Raise if zeros and ones could be a mask as well as pairs; tuples are pairs without doubt."""
    if given.shape != shape or not np.issubdtype(given.dtype, np.integer) or ((given != 0) & (given != 1)).any():
        return
    if isinstance(actions, np.ndarray) or not all(isinstance(pair, tuple) for pair in actions):
        raise CapoError(
            f"actions: integers 0 and 1 of shape {shape} could be a mask or pairs (state, action): give a mask as "
            "booleans, such as np.array(actions, bool), and pairs as a list of tuples"
        )


def _pairs(given: Any, shape: tuple[int, int]) -> Ints:
    if given.ndim != 2 or given.shape[1] != 2 or not np.issubdtype(given.dtype, np.integer):
        raise CapoError(
            f"actions of shape {given.shape} and type {given.dtype} must be an (S, A) mask of booleans or "
            "integer pairs (state, action), shape (n, 2)"
        )
    outside = ((given < 0) | (given >= np.array(shape))).any(axis=1)
    if outside.any():
        s, a = given[outside][0]
        raise CapoError(f"actions: pair ({s}, {a}) is outside {shape[0]} states x {shape[1]} actions")
    return np.asarray(given, np.int64)


def drop_rows(rows: Any, pairs: Bools) -> Any:
    """Rows (S*A, S) with those in ``pairs`` (S*A,) emptied, whatever they held, even NaN; changed in place."""
    if not sp.issparse(rows):
        rows[pairs] = 0.0
        return rows
    rows.data[np.repeat(pairs, np.diff(rows.indptr))] = 0.0
    rows.eliminate_zeros()
    return rows


def as_floats(what: str, given: Any, rule: str = "is not an array of numbers") -> Floats:
    """An array of float64, or a CapoError: ``what``, what was given, ``rule``."""
    try:
        return np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise CapoError(f"{what}{given!r} {rule}") from None
    except OverflowError:
        raise CapoError(f"{what}a number in it is too large for floating point") from None


def check_distribution(given: Any, size: int, what: str, *, positive: bool = False) -> Floats:
    """A probability vector (size,), uniform for None, or a CapoError that says why ``given`` is not one."""
    if given is None:
        return np.full(size, 1 / size)
    vector = as_floats(f"{what}: ", given, "is not a vector of numbers").copy()
    if vector.shape != (size,):
        raise CapoError(f"{what}: shape {vector.shape} must be ({size},)")
    if not np.isfinite(vector).all() or (vector < 0).any():
        index = int(np.flatnonzero(~np.isfinite(vector) | (vector < 0))[0])
        raise CapoError(f"{what}: entry {index} is {vector[index]:g}; entries must be finite and at least 0")
    if positive and (vector == 0).any():
        index = int(np.flatnonzero(vector == 0)[0])
        raise CapoError(f"{what}: entry {index} is 0; every entry must be positive")
    total = float(vector.sum())
    if abs(total - 1) > SUM_TOLERANCE:
        raise CapoError(f"{what}: sums to {total:.12g}, must sum to 1 within {SUM_TOLERANCE:g}")
    return vector if abs(total - 1) < 1e-12 else np.asarray(vector / total)


def terminal_mask(terminal: Any, n_states: int) -> Bools | None:
    """(S,) mask of the states that were named as terminal; None if none were given."""
    if terminal is None:
        return None
    try:
        given = np.asarray(terminal)
    except ValueError:
        raise CapoError(f"terminal={terminal!r} must be state indices or an ({n_states},) mask") from None
    if given.dtype == np.bool_:
        if given.shape != (n_states,):
            raise CapoError(f"terminal mask of shape {given.shape} must be ({n_states},)")
        return given.copy()
    if given.size and not np.issubdtype(given.dtype, np.integer):
        raise CapoError(f"terminal={terminal!r} must be state indices or an ({n_states},) mask")
    if given.size and (given.min() < 0 or given.max() >= n_states):
        raise CapoError(f"terminal={terminal!r} contains states outside 0..{n_states - 1}")
    if len(np.unique(given)) != given.size:
        raise CapoError(f"terminal={terminal!r} repeats states: give each index once, or a mask of booleans")
    mask = np.zeros(n_states, bool)
    mask[given.astype(int).ravel()] = True
    return mask


def make_absorbing(rows: Any, ends: Bools, n_actions: int) -> Any:
    """Rows (S*A, S), where the states in ``ends`` (S,) stay where they are; changed in place where possible."""
    pairs = np.repeat(ends, n_actions)
    which = np.flatnonzero(pairs)
    if not sp.issparse(rows):
        drop_rows(rows, pairs)[which, which // n_actions] = 1
        return rows
    rows.data[np.repeat(pairs, np.diff(rows.indptr))] = 0.0
    first = rows.indptr[which]
    if (first < rows.indptr[which + 1]).all():  # each of them has an entry to write to: no second copy
        rows.indices[first], rows.data[first] = which // n_actions, 1.0
        rows.eliminate_zeros()
        return rows
    ones = sp.csr_array((np.ones(len(which)), (which, which // n_actions)), shape=rows.shape)
    rows.eliminate_zeros()
    return sp.csr_array(rows + ones)
