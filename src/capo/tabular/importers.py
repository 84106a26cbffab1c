"""Other ways to write an MDP, as the arguments of :class:`capo.MDP`: functions, pairs, other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from capo.checks import has_items, whole
from capo.errors import CapoError
from capo.tabular.mdp_checks import Bools, Floats, Ints, action_mask, real_array, sparse_rows, terminal_mask

BLOCK = 1 << 18  # pairs that a function is asked about at once
MOST_UNROLLED = 10**9  # transitions of an MDP over a finite horizon

Step = Callable[[Ints, Ints], tuple[Any, Any, Any]]


# --- functions ------------------------------------------------------------------------------------------------


def from_function(
    n_states: int, n_actions: int, step: Step, terminal: Any, actions: Any, block: int | None
) -> tuple[sp.csr_array, Floats, Bools | None]:
    """Transitions (S*A, S), rewards (S, A) and action sets of :meth:`capo.MDP.from_function`."""
    n_states, n_actions = whole("n_states", n_states), whole("n_actions", n_actions)
    size = max(1, (BLOCK if block is None else whole("block", block)) // n_actions)
    if not callable(step):
        raise CapoError(f"step={step!r} must be a function of (states, actions)")
    ends = terminal_mask(terminal, n_states)
    if callable(actions):
        ask = actions
        parts = [_asked(ask, first, min(first + size, n_states), n_actions) for first in range(0, n_states, size)]
        actions = np.concatenate(parts)
    allowed = action_mask(actions, (n_states, n_actions), ends)
    blocks = [
        _block(step, np.arange(first, min(first + size, n_states)), n_states, n_actions, ends, allowed)
        for first in range(0, n_states, size)
    ]
    rewards = np.concatenate([reward for _, reward in blocks])
    return _stacked([rows for rows, _ in blocks], n_states), rewards, allowed


def _asked(actions: Callable[[Ints], Any], first: int, end: int, n_actions: int) -> Bools:
    """(n, A) the action sets of a block of states, from a function of them."""
    mask = np.asarray(actions(np.arange(first, end)))
    if mask.dtype != np.bool_ or mask.shape != (end - first, n_actions):
        raise CapoError(
            f"actions(states) returned shape {mask.shape} and type {mask.dtype} for {end - first} states; "
            f"it must be a mask of booleans, shape {(end - first, n_actions)}"
        )
    return mask


def _block(
    step: Step, states: Ints, n_states: int, n_actions: int, ends: Bools | None, allowed: Bools | None
) -> tuple[sp.csr_array, Floats]:
    """Rows (n*A, S) and expected rewards (n, A) of a block of n states."""
    asked = np.ones((len(states), n_actions), bool) if allowed is None else allowed[states].copy()
    if ends is not None:
        asked[ends[states]] = False  # an episode is over there: nobody asks what comes next
    local, chosen = np.nonzero(asked)
    reward = np.zeros((len(states), n_actions))
    if not len(local):
        return _staying(states, n_states, n_actions), reward
    target, probability, paid = _answer(step(states[local], chosen), states[local], chosen, n_states)
    with np.errstate(invalid="ignore", divide="ignore"):
        reward[asked] = (probability * paid).sum(axis=1) / probability.sum(axis=1)
    width = np.zeros(asked.size + 1, np.int64)
    width[1:][asked.ravel()] = target.shape[1]
    index = np.int32 if max(n_states, target.size) < 2**31 else np.int64
    parts = (probability.flatten(), target.ravel().astype(index), width.cumsum().astype(index))  # own copies
    rows = sp.csr_array(parts, shape=(asked.size, n_states))
    rows.sum_duplicates()
    rows.eliminate_zeros()
    if ends is not None and ends[states].any():
        stay = _staying(states, n_states, n_actions).multiply(np.repeat(ends[states], n_actions)[:, None])
        rows = sp.csr_array(rows + stay)
    return rows, reward


def _staying(states: Ints, n_states: int, n_actions: int) -> sp.csr_array:
    """Rows (n*A, S) that stay where they are."""
    n = len(states) * n_actions
    return sp.csr_array((np.ones(n), np.repeat(states, n_actions), np.arange(n + 1)), shape=(n, n_states))


def _answer(given: Any, states: Ints, actions: Ints, n_states: int) -> tuple[Ints, Floats, Floats]:
    """Next states, probabilities and rewards, each (n, K), from what a step function returned."""
    try:
        target, probability, reward = given
    except (TypeError, ValueError):
        rule = "must return three arrays: next states, probabilities, rewards"
        raise CapoError(f"step(states, actions) {rule}") from None
    n = len(states)
    targets = _columns(np.asarray(target), n, "next states")
    if not np.issubdtype(targets.dtype, np.integer):
        raise CapoError(f"step(states, actions): next states of type {targets.dtype} must be integers")
    bad = np.argwhere((targets < 0) | (targets >= n_states))
    if len(bad):
        i, k = bad[0]
        raise CapoError(
            f"step(states, actions): state {states[i]}, action {actions[i]} leads to state {targets[i, k]}, "
            f"outside 0..{n_states - 1}"
        )
    shape = targets.shape
    chances, paid = (
        np.broadcast_to(_columns(real_array(part, what).reshape(np.shape(part)), n, what, shape[1]), shape)
        for part, what in ((probability, "probabilities"), (reward, "rewards"))
    )
    return np.asarray(targets), chances, paid


def _columns(array: npt.NDArray[Any], n: int, what: str, width: int | None = None) -> npt.NDArray[Any]:
    """(n, K) of (n, K), (n,) or one number for all."""
    if array.ndim == 0:
        array = np.broadcast_to(array, (n,))
    columns = array[:, None] if array.ndim == 1 else array
    if columns.ndim != 2 or len(columns) != n or (width is not None and columns.shape[1] not in (1, width)):
        rule = f"must be ({n},) or ({n}, successors)"
        raise CapoError(f"step(states, actions): {what} of shape {array.shape} {rule}")
    return columns


def _stacked(blocks: list[Any], n_states: int) -> sp.csr_array:
    """The blocks on top of each other; each is freed as soon as it has been copied."""
    entries, n_rows = sum(rows.nnz for rows in blocks), sum(rows.shape[0] for rows in blocks)
    index = np.int32 if max(entries, n_states) < 2**31 else np.int64
    data, indices = np.empty(entries), np.empty(entries, index)
    indptr = np.zeros(n_rows + 1, index)
    entry = row = 0
    for i, rows in enumerate(blocks):
        data[entry : entry + rows.nnz], indices[entry : entry + rows.nnz] = rows.data, rows.indices
        indptr[row + 1 : row + 1 + rows.shape[0]] = rows.indptr[1:].astype(np.int64) + entry
        entry, row = entry + rows.nnz, row + rows.shape[0]
        blocks[i] = None
    return sp.csr_array((data, indices, indptr), shape=(n_rows, n_states))


def unrolled(rows: sp.csr_array, allowed: Bools, n_actions: int, steps: int) -> sp.csr_array:
    """Transitions of :meth:`capo.MDP.unroll`: step h leads to step h + 1, the last one to the end.

    Args:
        rows: (S*A, S) transitions of one step.
        allowed: (S*A,) which pairs are allowed.
        steps: H.

    Returns:
        ((H*S + 1)*A, H*S + 1).
    """
    n_states = rows.shape[1]
    entries = (steps - 1) * rows.nnz + int(allowed.sum()) + n_actions
    if entries > MOST_UNROLLED:
        raise CapoError(
            f"{steps} steps of {n_states} states have {entries:,} transitions, and at most {MOST_UNROLLED:,} are "
            "allowed: give a shorter horizon"
        )
    index = np.int32 if max(entries, steps * n_states + 1) < 2**31 else np.int64
    onward = (np.arange(1, steps)[:, None] * n_states + rows.indices).astype(index)
    ending = np.full(entries - onward.size, steps * n_states, index)
    data = np.concatenate([np.tile(rows.data, steps - 1), np.ones(ending.size)])
    width = np.concatenate([np.tile(np.diff(rows.indptr), steps - 1), allowed, np.ones(n_actions, index)])
    indptr = np.concatenate([[0], width.cumsum()]).astype(index)
    return sp.csr_array(
        (data, np.concatenate([onward.ravel(), ending]), indptr), shape=(len(width), steps * n_states + 1)
    )


# --- lists of pairs, and quantecon ------------------------------------------------------------------------------


def from_pairs(states: Any, actions: Any, transition: Any, reward: Any, n_actions: int | None) -> dict[str, Any]:
    """The arguments of :meth:`capo.MDP.from_pairs`."""
    chosen = _pair_list(states, actions)
    rows = _matrix(transition, "transitions")
    if rows.ndim != 2 or len(chosen) != rows.shape[0]:
        rule = f"must be (pairs, states), and there are {len(chosen)} pairs"
        raise CapoError(f"transitions of shape {rows.shape} {rule}")
    n_states = rows.shape[1]
    width = int(chosen[:, 1].max()) + 1 if n_actions is None else whole("n_actions", n_actions)
    if (chosen >= (n_states, width)).any():
        s, a = chosen[(chosen >= (n_states, width)).any(axis=1)][0]
        raise CapoError(f"pair ({s}, {a}) is outside {n_states} states x {width} actions")
    place = chosen[:, 0] * width + chosen[:, 1]
    if len(np.unique(place)) != len(place):
        first = np.flatnonzero(np.bincount(place) > 1)[0]
        raise CapoError(f"pair ({first // width}, {first % width}) occurs more than once")
    paid = _matrix(reward, "rewards")
    if paid.shape not in ((len(place),), rows.shape):
        raise CapoError(f"rewards of shape {paid.shape} must be ({len(place)},) or {rows.shape}")
    if paid.ndim == 1:
        placed: Any = np.zeros(n_states * width)
        placed[place] = paid
        placed = placed.reshape(n_states, width)
    else:
        placed = _placed(paid, place, n_states * width)
    mask = np.zeros((n_states, width), bool)
    mask[chosen[:, 0], chosen[:, 1]] = True
    return {"transition": _placed(rows, place, n_states * width), "reward": placed, "actions": mask}


def _matrix(given: Any, what: str) -> Any:
    return sparse_rows(given, what) if sp.issparse(given) else real_array(given, what)


def _pair_list(states: Any, actions: Any) -> Ints:
    try:
        chosen = np.stack([np.asarray(states), np.asarray(actions)], axis=1)
    except ValueError:
        raise CapoError("states and actions must be two lists of the same length") from None
    if chosen.ndim != 2 or len(chosen) == 0 or not np.issubdtype(chosen.dtype, np.integer) or (chosen < 0).any():
        raise CapoError("states and actions must be two lists of indices (0, 1, ...), one entry per pair")
    return np.asarray(chosen, np.int64)


def _placed(rows: Any, place: Ints, n_rows: int) -> Any:
    """Rows (n, S) moved to ``place`` (n,) among n_rows; dense ones become (S, A, S)."""
    if not sp.issparse(rows):
        out = np.zeros((n_rows, rows.shape[1]))
        out[place] = rows
        return out.reshape(rows.shape[1], -1, rows.shape[1])
    entries = sp.coo_array(rows)
    return sp.coo_array((entries.data, (place[entries.row], entries.col)), shape=(n_rows, rows.shape[1]))


def from_quantecon(problem: Any, gamma: float | None) -> dict[str, Any]:
    """The arguments that say what quantecon's ``DiscreteDP`` says."""
    missing = [name for name in ("R", "Q", "beta") if not hasattr(problem, name)]
    if missing:
        raise CapoError(f"{problem!r} is not a quantecon DiscreteDP: it has no {', '.join(missing)}")
    gamma = float(problem.beta) if gamma is None else gamma
    if getattr(problem, "s_indices", None) is not None:
        reward = real_array(problem.R, "rewards")
        feasible = reward > -np.inf
        states, actions = np.asarray(problem.s_indices)[feasible], np.asarray(problem.a_indices)[feasible]
        width = int(np.asarray(problem.a_indices).max()) + 1
        return from_pairs(states, actions, problem.Q[feasible], reward[feasible], width) | {"gamma": gamma}
    reward = real_array(problem.R, "rewards")  # minus infinity where an action is not feasible
    return {"transition": problem.Q, "reward": reward, "actions": reward > -np.inf, "gamma": gamma}


# --- pymdptoolbox -----------------------------------------------------------------------------------------------


def from_mdptoolbox(transitions: Any, rewards: Any, gamma: float | None) -> dict[str, Any]:
    """The arguments that say what pymdptoolbox's matrices, or one of its solvers, say."""
    if rewards is None and all(hasattr(transitions, name) for name in ("P", "R")):
        solver = transitions
        gamma = getattr(solver, "discount", None) if gamma is None else gamma
        transitions, rewards = solver.P, np.stack([np.asarray(part).ravel() for part in solver.R], axis=1)
    if rewards is None or gamma is None:
        missing = "rewards" if rewards is None else "gamma"
        raise CapoError(f"from_mdptoolbox needs {missing}, unless it is given one of pymdptoolbox's solvers")
    matrices = _action_matrices(transitions, "transitions")
    n_actions, n_states = len(matrices), matrices[0].shape[0]
    # Row a*S + s of the stacked matrices becomes row s*A + a.
    order = np.arange(n_actions * n_states).reshape(n_actions, n_states).T.ravel()
    sparse = any(sp.issparse(matrix) for matrix in matrices)

    def by_state(parts: Sequence[Any]) -> Any:
        if sparse:
            return sp.csr_array(sp.vstack([sp.csr_array(part) for part in parts]))[order]
        return np.stack([part.toarray() if sp.issparse(part) else part for part in parts], axis=1)

    listed = isinstance(rewards, list | tuple) and any(sp.issparse(part) for part in rewards)
    reward: Any = sparse_rows(rewards, "rewards").toarray() if sp.issparse(rewards) else rewards
    reward = reward if listed else real_array(reward, "rewards")
    if not listed and reward.ndim == 1:
        reward = np.repeat(reward[:, None], n_actions, axis=1)
    elif listed or reward.ndim != 2:
        parts = _action_matrices(rewards, "rewards")
        if len(parts) != n_actions or parts[0].shape != matrices[0].shape:
            raise CapoError(
                f"rewards: {len(parts)} matrices of shape {parts[0].shape}, but the transitions have "
                f"{n_actions} of shape {matrices[0].shape}"
            )
        reward = by_state(parts)
    return {"transition": by_state(matrices), "reward": reward, "gamma": gamma}


def _action_matrices(given: Any, what: str) -> list[Any]:
    """(A, S, S) or a list of A square (S, S) matrices, checked."""
    parts: list[Any] = list(given) if isinstance(given, Iterable) and has_items(given) else [given]
    if not parts:
        raise CapoError(f"{what}: no actions; give (A, S, S) or a list of A matrices (S, S)")
    matrices = [sparse_rows(part, what) if sp.issparse(part) else np.asarray(part) for part in parts]
    for action, matrix in enumerate(matrices):
        if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape != matrices[0].shape:
            raise CapoError(
                f"{what}: the matrix of action {action} has shape {matrix.shape}; all must be (S, S), S the same"
            )
    return matrices
