"""Exact evaluation that follows the policy.

:class:`DenseCritic`  single coordinates and mini-batches: keeps (I - gamma P_pi)^-1, changed by rank-1 updates.
:class:`DirectCritic` all pairs at once: one LU solve per iteration, dense or sparse.

:mod:`capo.tabular.sign_critic` has the third one: all pairs at once on large sparse MDPs.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import solve_triangular
from scipy.linalg.blas import dgemm
from threadpoolctl import ThreadpoolController

from capo.errors import CapoError
from capo.tabular import kernels
from capo.tabular.mdp import MDP, Floats, Ints, singular
from capo.update import KINDS, StepSize

DIRECT_BELOW = 128  # up to this S the inverse is changed immediately: the matrix fits in the cache
DEPTH = 48  # pending rank-1 changes for larger S
FEW_SUCCESSORS = 1 / 8  # share of entries below which skipping zeros beats a matrix product
DENSE_BYTES_LIMIT = 4 * 2**30  # the most a dense inverse and its work space may take
SIGN_CRITIC_ABOVE = 5_000  # from this S on, sparse batch runs evaluate by iteration rather than by LU


class _SingleThreadedBLAS:
    """BLAS on one thread while any thread is inside; the last one to leave restores the previous number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._controller: ThreadpoolController | None = None
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._controller is None:  # looking for the libraries takes milliseconds, once
                self._controller = ThreadpoolController()
            if not self._inside:
                self._limit = self._controller.limit(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limit.restore_original_limits()


# At these sizes starting BLAS's threads costs more than it saves. The limit is process-wide, and OpenBLAS may
# ignore one that is not set by the main thread: solve_many stays inside while its threads come and go.
single_threaded_blas = _SingleThreadedBLAS()


@dataclass
class Coordinates:
    """Where single-coordinate updates come from: ``pairs`` (n, 2), or a walk driven by ``uniforms`` (n, 3)."""

    pairs: Ints
    walk: Walk | None = None
    uniforms: Floats | None = None

    def __len__(self) -> int:
        return len(self.pairs if self.uniforms is None else self.uniforms)


@dataclass
class Walk:
    """A walk through the MDP under mix * pi + (1 - mix) * behaviour.

    Attributes:
        behaviour: (S, A) fixed part of the behaviour policy.
        mix: weight of the current policy.
        restart: (S,) distribution a walk starts from.
        horizon: steps after which it restarts.
        position: [state, steps taken in this walk], updated in place.
    """

    behaviour: Floats
    mix: float
    restart: Floats
    horizon: int
    position: Ints


@dataclass
class Steps:
    """What n single-coordinate updates did; ``value`` has n entries, the others those of traced updates."""

    state: Ints
    action: Ints
    sign: npt.NDArray[np.int8]
    alpha: Floats
    row: Floats
    value: Floats


def encode(stepsize: StepSize, n_actions: int) -> tuple[int, float, float]:
    """A step size as the numbers the kernels take."""
    full = stepsize.with_defaults(n_actions)
    first = {"log": full.multiple, "fixed": full.eta, "clipped": full.clip, "on-policy": full.beta}[full.kind]
    return KINDS.index(full.kind), float(first or 0), float(full.zeta or 0)


def greatest_advantage(advantage: Floats) -> float:
    """The greatest advantage or 0; an error if values overflowed, which must not pass for a solved run."""
    if not np.isfinite(advantage).all():
        raise CapoError("values are no longer finite: use smaller rewards or a smaller step size")
    return max(0.0, float(advantage.max()))


def require_dense(n_states: int) -> None:
    """Raise if a dense inverse would not fit in memory, before anything is allocated."""
    needed = 3 * 8 * n_states**2  # the inverse, the factorisation and its copy
    if needed > DENSE_BYTES_LIMIT:
        most = int((DENSE_BYTES_LIMIT / 24) ** 0.5)
        raise CapoError(
            f"single-coordinate and mini-batch rules keep a dense inverse: {n_states} states would take "
            f"{needed / 2**30:.1f} GB, more than the {DENSE_BYTES_LIMIT / 2**30:.0f} GB allowed (S <= {most}); "
            "use critic='k-step' or rule='batch', which stay sparse"
        )


class DenseCritic:
    """V, and M = (I - gamma P_pi)^-1, following a policy that changes one state at a time.

    Attributes:
        log_policy, policy: (S, A).
        values: (S,) V_pi.
        counts: (S, A) visits.
        refactorisations: how often drift made a fresh factorisation necessary.
    """

    def __init__(self, mdp: MDP, log_policy: Floats, sign_tol: float, depth: int | None = None) -> None:
        require_dense(mdp.n_states)
        self.mdp, self.sign_tol = mdp, sign_tol
        rows = mdp.csr()
        self._csr = (rows.indptr.astype(np.int64), rows.indices.astype(np.int64), rows.data)
        self._start = mdp.start.copy()  # read-only arrays are types of their own, which would compile dot twice
        self._depth = (0 if mdp.n_states <= DIRECT_BELOW else DEPTH) if depth is None else depth
        self.log_policy = np.ascontiguousarray(log_policy, dtype=np.float64).copy()
        self.policy = np.exp(self.log_policy)
        self.counts = np.zeros(log_policy.shape, np.int64)
        self.refactorisations = -1  # the first factorisation does not count
        self._u = np.empty((max(self._depth, 1), mdp.n_states))
        self._w = np.empty_like(self._u)
        self._scratch = tuple(np.empty(size) for size in 2 * (mdp.n_states,) + 3 * (mdp.n_actions,))
        self.refactor()

    def refactor(self) -> None:
        """Evaluate the policy afresh."""
        n = self.mdp.n_states
        transition = self.mdp.policy_transition(self.policy)
        system = np.eye(n) - self.mdp.gamma * (transition.toarray() if sp.issparse(transition) else transition)
        with single_threaded_blas:
            try:
                self._inverse = np.ascontiguousarray(np.linalg.inv(system))
            except np.linalg.LinAlgError:
                raise singular(self.mdp) from None
            self.values: Floats = self._inverse @ (self.policy * self.mdp.reward).sum(axis=1)
        self._pending = 0
        self.refactorisations += 1
        q = self.mdp.q_values(self.values)
        self._residual_limit = max(8 * self.residual(q), (1 - self.mdp.gamma) * self.sign_tol)

    def flush(self) -> None:
        """Multiply the pending rank-1 changes into the inverse: M <- prod_k (I + u_k w_k^T) M."""
        k = self._pending
        if k == 0:
            return
        u, w = self._u[:k], self._w[:k]
        with single_threaded_blas:
            # The product of the factors is I + U T W with T = (I - L)^-1, L the strict lower part of W U.
            left = np.empty_like(w)
            if np.count_nonzero(w) < FEW_SUCCESSORS * w.size:
                kernels.left_product(w, self._inverse, left)
            else:
                np.matmul(w, self._inverse, out=left)
            mixed = solve_triangular(-(w @ u.T), left, lower=True, unit_diagonal=True)
            # M += U^T mixed in place: the transposed view of M is in the order BLAS wants.
            dgemm(1.0, mixed.T, u.T, 1.0, self._inverse.T, trans_b=True, overwrite_c=True)
        self._pending = 0

    def residual(self, q: Floats) -> float:
        """The largest Bellman residual of V, from q = Q(V)."""
        return float(np.abs((self.policy * q).sum(axis=1) - self.values).max())

    def checked_q(self) -> Floats:
        """Q (S, A); if V has drifted beyond rounding, it is computed afresh first."""
        q = self.mdp.q_values(self.values)
        if self.residual(q) > self._residual_limit:
            self.refactor()
            q = self.mdp.q_values(self.values)
        return q

    def run(self, coordinates: Coordinates, stepsize: StepSize, traced: int) -> Steps:
        """Make single-coordinate updates; keep what the first ``traced`` of them did."""
        n = len(coordinates)
        traced = min(traced, n)
        steps = Steps(
            np.empty(traced, np.int64),
            np.empty(traced, np.int64),
            np.empty(traced, np.int8),
            np.empty(traced),
            np.empty((traced, self.mdp.n_actions)),
            np.empty(n),
        )
        walk = coordinates.walk
        walked = None if walk is None else (*self._walk_arrays(walk), coordinates.uniforms)
        done = 0
        while done < n:
            done, self._pending = kernels.run(
                self._csr, self.mdp.reward, self.mdp.gamma, self._start, self.sign_tol,
                *encode(stepsize, self.mdp.n_actions),
                self.log_policy, self.policy, self.values, self.counts,
                self._inverse, self._u, self._w, self._pending, self._depth or None,
                self._scratch,
                coordinates.pairs, walked,
                steps.state, steps.action, steps.sign, steps.alpha, steps.value, steps.row, traced,
                done,
            )  # fmt: skip
            if self._depth and self._pending >= self._depth:
                self.flush()
        return steps

    def walk_pairs(self, walk: Walk, uniforms: Floats) -> Ints:
        """(n, 2) pairs visited by continuing the walk under the current policy."""
        pairs = np.empty((len(uniforms), 2), np.int64)
        kernels.walk(self._csr, self.log_policy, *self._walk_arrays(walk), uniforms, pairs)
        return pairs

    def _walk_arrays(self, walk: Walk) -> tuple[Any, ...]:
        return walk.behaviour, walk.mix, self.mdp.terminal, walk.restart, walk.horizon, walk.position

    def advantage_rows(self, states: Ints) -> Floats:
        """(n, A) advantages at ``states`` (n,)."""
        q = np.empty((len(states), self.mdp.n_actions))
        kernels.q_rows(self._csr, self.mdp.reward, self.mdp.gamma, self.values, states, q)
        return np.asarray(q - self.values[states, None])

    def replace_rows(self, states: Ints, rows: Floats) -> None:
        """Set the log-policy at ``states`` (n,) to ``rows`` (n, A) and follow with V and M."""
        done = 0
        while done < len(states):
            done, self._pending = kernels.commit_rows(
                self._csr, self.mdp.reward, self.mdp.gamma, self.log_policy, self.policy, self.values,
                self._inverse, self._u, self._w, self._pending, self._depth or None, states, rows, done,
            )  # fmt: skip
            if self._depth and self._pending >= self._depth:
                self.flush()


@dataclass
class AdvantageSigns:
    """Signs of all advantages under one policy, and the values they came from.

    Attributes:
        values: (S,) V, exact or within ``error`` of it everywhere.
        signs: (S, A) in {-1, 0, 1}.
        greatest: the greatest advantage, with ``error`` accounted for.
        error: bound on \\|V - V_pi\\|.
    """

    values: Floats
    signs: npt.NDArray[np.int8]
    greatest: float
    error: float


class DirectCritic:
    """One LU solve per evaluation; dense or sparse like the MDP."""

    def __init__(self, mdp: MDP, sign_tol: float) -> None:
        self.mdp, self.sign_tol = mdp, sign_tol

    def evaluate(self, policy: Floats) -> AdvantageSigns:
        """Signs of the advantages of ``policy`` (S, A)."""
        values = self.mdp.policy_values(policy)
        advantage = self.mdp.masked(self.mdp.q_values(values) - values[:, None], 0.0)
        signs = np.sign(advantage).astype(np.int8)
        signs[np.abs(advantage) <= self.sign_tol] = 0
        return AdvantageSigns(values, signs, greatest_advantage(advantage), 0.0)
