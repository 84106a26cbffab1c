"""Evaluation of a policy only as far as the signs of its advantages need: rule ``batch`` on large sparse MDPs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from capo.errors import CapoError
from capo.tabular import kernels_signs as kernels
from capo.tabular.critic import AdvantageSigns
from capo.tabular.mdp import MDP, Floats
from capo.tabular.modified import action_mask

GMRES_DEPTH = 16  # steps between restarts
REDUCTION = 1e-3  # of the residual by one cycle
STALLED_AFTER = 30  # restarts without progress
FAST, SLOW = 1.0, 0.1  # logarithms of what a fast and a slow step of GMRES shrink the error by
KNOWN = 1e-4  # V is computed to within this of the greatest advantage, but no further than the tolerance needs
NEGLIGIBLE = 1e-5  # entries of P_pi up to this times 1 - gamma are left out of the equations for a correction
SINGLE_UP_TO = 0.999  # discount up to which corrections are computed in single precision


class Corrections:
    """What to add to V to come closer to V_pi, from its Bellman residual: GMRES, preconditioned by two sweeps.

    Args:
        pattern: (S, S) CSR, where P_pi may have entries, in ascending order in each row.
        gamma: discount.

    Attributes:
        lumped: which preconditioner, see :mod:`capo.tabular.kernels_signs`.
    """

    def __init__(self, pattern: sp.csr_array, gamma: float) -> None:
        n_states, room = pattern.shape[0], pattern.nnz + 1
        self._pattern, self._gamma = pattern, gamma
        row = np.repeat(np.arange(n_states, dtype=np.int32), np.diff(pattern.indptr))
        self._middle = pattern.indptr[:-1] + np.bincount(row[pattern.indices < row], minlength=n_states)
        # In single precision, corrections shrink the residual by less: too little where 1 - gamma is small.
        number = np.float32 if gamma <= SINGLE_UP_TO else np.float64
        starts, splits, targets = (np.empty(size, np.int32) for size in (n_states + 1, n_states, room))
        self._system = (starts, splits, targets, np.empty(room, number), np.empty(n_states, number))
        self._diagonal, self._ratio = np.empty(n_states), np.empty(n_states)
        self._basis, self._work = np.empty((GMRES_DEPTH + 1, n_states), number), np.empty((2, n_states), number)
        self.lumped = False
        self._rates: dict[bool, float] = {}  # of the last correction with each preconditioner

    def note(self, pi_data: Floats, rate: float) -> None:
        """Learn by how much a step has shrunk the error, its logarithm, and choose the next preconditioner.

        The other one is tried where this one is not fast for the first time, where it is slow, and where the other
        one was faster when it was last used. What is best changes with the residual, so no choice is final.
        """
        self._rates[self.lumped] = rate
        other = self._rates.get(not self.lumped)
        if rate < FAST and (other is None or rate < SLOW or rate < other):
            self.lumped = not self.lumped
            self.follow(pi_data)

    def follow(self, pi_data: Floats) -> None:
        """Take P_pi, as the entries of the pattern."""
        indptr, indices, gamma = self._pattern.indptr, self._pattern.indices, self._gamma
        kernels.scaled_system(
            indptr, self._middle, indices, pi_data, gamma, NEGLIGIBLE * (1 - gamma), self.lumped,
            *self._system, self._diagonal, self._ratio,
        )  # fmt: skip

    def correct(self, values: Floats, residual: Floats, size: float, reduction: float) -> int:
        """Correct ``values`` (S,) until their residual has shrunk by about ``reduction``, or one cycle of GMRES.

        ``size`` is the residual's greatest entry. Returns the number of steps.
        """
        return int(
            kernels.gmres_cycle(
                self._system, self._diagonal, residual, size, values, self._basis, self._work, reduction
            )
        )


class SignCritic:
    """Only the sign of A matters: it is certain as soon as V is known well enough.

    V_pi - V is bounded by the Bellman residual of V, computed in double precision: its span by that of the
    residual over 1 - gamma. Corrections of V come from GMRES, warm-started at the last policy's values. How they
    are computed decides how many are needed, not what is certain.

    An evaluation ends when every sign is certain, or its advantage is certain to be below twice the tolerance and
    counts as 0; and V is known to within ``KNOWN`` of the greatest advantage.
    """

    def __init__(self, mdp: MDP, sign_tol: float) -> None:
        self.mdp, self.sign_tol = mdp, sign_tol
        n_states = mdp.n_states
        rows = mdp.csr()
        self._pattern, self._place = _policy_pattern(rows, n_states)
        self._corrections = Corrections(self._pattern, mdp.gamma)
        self._rows = (rows.indptr, rows.indices, rows.data)
        mask = action_mask(mdp)
        self._allowed = np.empty((0, 0), np.bool_) if mask is None else np.ascontiguousarray(mask)
        self._pi_reward, self._residual = np.empty(n_states), np.empty(n_states)
        self._signs = np.empty((n_states, mdp.n_actions), np.int8)
        self._values = np.zeros(n_states)
        self.solver_steps = 0

    def evaluate(self, policy: Floats) -> AdvantageSigns:
        """Signs of the advantages of ``policy`` (S, A)."""
        mdp, gamma = self.mdp, self.mdp.gamma
        indptr, indices, pi_data = self._pattern.indptr, self._pattern.indices, self._pattern.data
        values, residual = self._values, self._residual
        kernels.policy_system(
            self._rows[0], self._rows[2], mdp.reward, policy, self._place, pi_data, self._pi_reward
        )
        self._corrections.follow(pi_data)
        finest = self.sign_tol / (1 + gamma)  # an error that decides every sign
        best, looks, state = np.inf, 0, 0
        before, steps = np.inf, 0
        while True:
            # Shifting V by a constant centres its bounds: V_pi - V lies in [low, high] / (1 - gamma).
            bounds = kernels.bellman_residual(indptr, indices, pi_data, gamma, self._pi_reward, values, residual)
            low, high = (bound / (1 - gamma) for bound in bounds)
            error = (high - low) / 2
            if not np.isfinite(error):
                raise CapoError("values are no longer finite: use smaller rewards or a smaller step size")
            centred = values + (low + high) / 2
            undecided, greatest = kernels.certain_signs(
                *self._rows, mdp.reward, self._allowed, policy, gamma,
                centred, 2 * error, self.sign_tol, self._signs, state,
            )  # fmt: skip
            if undecided < 0 and error <= max(KNOWN * greatest / (1 + gamma), finest):
                return self._found(centred, greatest, error)
            if before < np.inf:
                self._corrections.note(pi_data, float(np.log(before / error)) / max(1, steps))
            state, before = max(undecided, 0), error
            best, looks = (error, 0) if error < 0.9 * best else (best, looks + 1)
            if looks > STALLED_AFTER:
                if undecided < 0:  # rounding keeps V from being known better, but no sign depends on it
                    return self._found(centred, greatest, error)
                raise CapoError(
                    f"the evaluation stalled at an error of {error:.3g} with signs undecided: "
                    f"give a sign_tol of at least {error * (1 + gamma):.3g} or use critic='direct'"
                )
            # Far enough to be worth another look, but no further than what decides everything.
            reduction = min(max(REDUCTION, 0.5 * finest / error), 0.5)
            if looks:  # no progress: rounding at a few states may hide the rest of the residual
                reduction = REDUCTION ** min(1 + looks, 5)
            size = max(high, -low) * (1 - gamma)
            steps = self._corrections.correct(values, residual, size, reduction)
            self.solver_steps += max(1, steps)

    def _found(self, values: Floats, greatest: float, error: float) -> AdvantageSigns:
        at_most = max(greatest, (1 + self.mdp.gamma) * error)
        return AdvantageSigns(values, self._signs.copy(), at_most, error)


def _policy_pattern(rows: sp.csr_array, n_states: int) -> tuple[sp.csr_array, npt.NDArray[np.int32]]:
    """The pattern of P_pi for any pi, and where each transition entry is added in it."""
    number, n_actions = np.arange(rows.nnz, dtype=np.int32), rows.shape[0] // n_states
    every = sp.csr_array((number, rows.indices.copy(), rows.indptr[::n_actions]), shape=(n_states, n_states))
    every.sort_indices()  # an entry of several actions is there several times
    new = np.ones(rows.nnz, bool)
    new[1:] = every.indices[1:] != every.indices[:-1]
    new[every.indptr[:-1][np.diff(every.indptr) > 0]] = True
    count = np.cumsum(new, dtype=np.int32)
    place = np.empty(rows.nnz, np.int32)
    place[every.data] = count - 1
    indptr = np.concatenate([np.zeros(1, np.int32), count])[every.indptr]
    indices = every.indices[new]
    return sp.csr_array((np.zeros(len(indices)), indices, indptr), shape=(n_states, n_states)), place
