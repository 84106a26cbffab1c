"""Dynamic programming on large MDPs: policies are evaluated by iteration, never by a factorisation that fills in.

The results carry the certificate of modified CAPO: V* - V_pi <= (max(T V - V) - min(T_pi V - V)) / (1 - gamma).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from capo.checks import positive, whole
from capo.tabular import kernels_signs as kernels
from capo.tabular.critic import SIGN_CRITIC_ABOVE
from capo.tabular.engine import DEFAULT_TOL
from capo.tabular.mdp import MDP, Floats
from capo.tabular.modified import EPS, Rounds, Sharp, action_mask
from capo.tabular.modified_run import DEFAULT_ROUNDS, run_rounds
from capo.tabular.record import Baseline, Callback, Recorder
from capo.tabular.sign_critic import Corrections
from capo.tabular.solver import Result

MOST_CYCLES = 400  # of GMRES per evaluation; the next improvement continues where this one stopped
REDUCTION = 1e-3  # of the residual's span per evaluation, until it is at rounding level


def is_large(mdp: MDP) -> bool:
    """Whether an LU factorisation of I - gamma P_pi may fill in beyond use."""
    return bool(mdp.is_sparse and mdp.n_states >= SIGN_CRITIC_ABOVE)


class Solved(Sharp):
    """Howard's policy iteration: after every improvement the policy's linear system is solved by GMRES.

    It is preconditioned by Gauss-Seidel sweeps and starts from the last values, as the exact critic ``signs`` is,
    and it ends when the residual's span has shrunk by ``REDUCTION``.
    """

    def sweep(self, most: int, goal: float) -> tuple[int, float, float]:  # noqa: ARG002
        """Solve for V of the policy, then one sweep, whose residuals are returned."""
        before = self._values.copy()
        self._solve()
        change = self._values - before
        self._moved(float(change.min()), float(change.max()))
        return super().sweep(1, goal)

    def _solve(self) -> None:
        mdp, values, gamma = self.mdp, self._values, self.mdp.gamma
        states = np.arange(mdp.n_states)
        matrix = mdp.csr()[states * mdp.n_actions + self.action]
        matrix.sort_indices()
        reward = mdp.reward[states, self.action]
        corrections, residual = Corrections(matrix, gamma), np.empty(mdp.n_states)
        corrections.follow(matrix.data)
        finest, first = 16 * EPS * max(1.0, float(np.abs(values).max())), np.inf
        for cycle in range(MOST_CYCLES):
            low, high = kernels.bellman_residual(
                matrix.indptr, matrix.indices, matrix.data, gamma, reward, values, residual
            )
            first = high - low if cycle == 0 else first
            if high - low <= max(finest, REDUCTION * first):
                break
            corrections.correct(values, residual, max(high, -low), 1 / 64)


def run_baseline(
    baseline: Baseline, sweeper: Sharp, k: int, iterations: int | None, tol: float | None, *,
    record_every: int | None, callback: Callback | None, progress: bool, settings: dict[str, Any],
    rounding: float = 0.0,
) -> Result:  # fmt: skip
    """Rounds of k sweeps until the certified gap is within ``tol``."""
    mdp = sweeper.mdp
    limit = DEFAULT_ROUNDS if iterations is None else whole("iterations", iterations)
    scale = max(1.0, float(np.abs(mdp.reward).max()) / (1 - mdp.gamma))
    if tol is None and iterations is None:
        tol = max(DEFAULT_TOL, 16 * EPS * scale / (1 - mdp.gamma))
    tol = None if tol is None else positive("tol", tol)
    every = None if record_every is None else whole("record_every", record_every)
    recorder = Recorder(baseline.method, limit, tol, callback, progress)
    rounds = Rounds(sweeper, mdp.gamma, k, choose=False, rounding=rounding)
    run_rounds(rounds, recorder, mdp, tol, every)
    return Result(
        **(outcome := recorder.outcome()),
        mdp=mdp,
        algorithm=baseline.method,
        log_policy=sweeper.log_policy,
        values=rounds.values,
        covered=np.ones(mdp.n_states, bool),
        converged=tol is not None and outcome["gap_bound"] <= tol,
        iterations=rounds.rounds,
        settings={**settings, **({} if tol is None else {"tol": f"{tol:g}"})},
        tol=tol,
        baseline=baseline,
        critic="iterative",
    )


def rounding_of(mdp: MDP, values: Floats) -> float:
    """How wrong the residuals of initial values (S,) may be because they are larger than any policy's; else 0."""
    size = float(np.abs(values).max())
    if size <= float(np.abs(mdp.reward).max()) / (1 - mdp.gamma):
        return 0.0
    successors = int(np.diff(mdp.csr().indptr).max())
    return 2 * (successors + 8) * EPS * size  # one rounding per product and per sum, twice for good measure


def start_from(sweeper: Sharp, policy: Floats | None, sweeps: int) -> None:
    """Let a run start at the likeliest actions of a policy (S, A), evaluated by some sweeps."""
    if policy is not None:
        mask = action_mask(sweeper.mdp)
        sweeper.action[:] = (policy if mask is None else np.where(mask, policy, -1.0)).argmax(axis=1)
    sweeper.sweep(sweeps, -1.0)
