"""What CAPO is compared with: policy gradient, natural policy gradient, policy iteration, value iteration.

All are exact but :func:`stochastic_npg`, which samples arms of a bandit. Each returns what the solver returns: a
:class:`capo.Result` whose gap bound max A+ / (1 - gamma) belongs to the evaluated policy (so it needs no V*), or,
for the many seeds of :func:`stochastic_npg`, a :class:`~capo.tabular.solver.ManyResult`. Public as
``capo.baselines``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg

from capo.checks import between, positive, whole
from capo.checks import seeds as checked_seeds
from capo.errors import CapoError, unknown_name
from capo.progress import Ticker
from capo.tabular.coordinates import check_pairs
from capo.tabular.critic import greatest_advantage, single_threaded_blas
from capo.tabular.kernels import draw_action, normalise_row
from capo.tabular.mdp import MDP, Floats, check_distribution, require_mdp
from capo.tabular.result import Result
from capo.tabular.solver import (
    DEFAULT_TOL,
    RELATIVE_SIGN_TOL,
    Callback,
    ManyResult,
    Snapshot,
    initial_log_policy,
    record_points,
    rounded_up,
    stops,
    value_scale,
)
from capo.update import MOST_ETA, floor, log_normalise

Ints = npt.NDArray[np.int64]
DEFAULT_ITERATIONS = 10_000  # where a run that asked for a gap gives up
PG_STEPSIZES = ("mei", "tuned", "fixed")
_ARMIJO = 0.5  # share of the improvement a linear model promises that a tuned step must bring
_FIRST_TUNED, _LEAST_TUNED, _MOST_TUNED = 1.0, 1e-12, 1e100


class Evaluation:
    """A policy and, once they are asked for, its values, advantages and visitation."""

    def __init__(self, mdp: MDP, log_policy: Floats) -> None:
        self.mdp, self.log_policy = mdp, log_policy

    @cached_property
    def policy(self) -> Floats:
        """(S, A)."""
        return np.exp(self.log_policy)

    @cached_property
    def _factors(self) -> Any:
        """LU of I - gamma P_pi, for solves with it and with its transpose."""
        matrix = self.mdp.policy_transition(self.policy)
        if self.mdp.is_sparse:
            return scipy.sparse.linalg.splu(
                sp.csc_array(sp.eye_array(self.mdp.n_states) - self.mdp.gamma * matrix)
            )
        return scipy.linalg.lu_factor(np.eye(self.mdp.n_states) - self.mdp.gamma * matrix, check_finite=False)

    def _solve(self, right: Floats, transposed: bool) -> Floats:
        if self.mdp.is_sparse:
            return np.asarray(self._factors.solve(right, trans="T" if transposed else "N"))
        return np.asarray(scipy.linalg.lu_solve(self._factors, right, trans=int(transposed), check_finite=False))

    @cached_property
    def values(self) -> Floats:
        """(S,) V_pi."""
        return self._solve((self.policy * self.mdp.reward).sum(axis=1), transposed=False)

    @cached_property
    def advantage(self) -> Floats:
        """(S, A) A_pi."""
        return self.mdp.q_values(self.values) - self.values[:, None]

    @property
    def gap_bound(self) -> float:
        """V* - V is at most this everywhere."""
        return greatest_advantage(self.advantage) / (1 - self.mdp.gamma)

    def visitation(self, mu: Floats) -> Floats:
        """(S,) d_mu = (1 - gamma) (I - gamma P_pi^T)^-1 mu, which sums to 1."""
        return (1 - self.mdp.gamma) * self._solve(mu, transposed=True)


def softmax_gradient(now: Evaluation, mu: Floats) -> Floats:
    """(S, A) gradient of V_pi(mu) in theta: d_mu(s) pi(a|s) A(s, a) / (1 - gamma)."""
    return now.visitation(mu)[:, None] * now.policy * now.advantage / (1 - now.mdp.gamma)


# --- gradient methods -----------------------------------------------------------------------------------------


def policy_gradient(
    mdp: MDP,
    stepsize: str | None = None,
    eta: float | None = None,
    iterations: int | None = None,
    tol: float | None = None,
    *,
    mu: Any = None,
    init: Any = None,
    theta: Any = None,
    record_every: int | None = None,
    callback: Callback | None = None,
    progress: bool = False,
) -> Result:
    """Exact softmax policy gradient on V(mu): theta += eta * dV(mu)/dtheta.

    Every step size below that follows a proof or a line search keeps V(mu) from decreasing; V at single states
    may.

    Args:
        mdp: the MDP.
        stepsize: ``mei``, the proven step (1 - gamma)^3 / 8 of Mei et al. (2020) for rewards in [0, 1] (other
            rewards are rescaled for it: the gradient is divided by their range); ``tuned``, a backtracking line
            search (the last step doubled, then halved until V(mu) rises by half of what a linear model
            promises; ends early where round-off hides every rise); ``fixed``, the given ``eta`` on the rewards
            as they are. ``mei`` if neither this nor ``eta`` is given.
        eta: of the fixed step.
        iterations, tol, init, theta, record_every, callback, progress: as in :func:`capo.solve`.
        mu: (S,) positive distribution whose value is climbed; uniform if not given.

    >>> import capo
    >>> result = policy_gradient(capo.mdps.random(5, 3, gamma=0.5), stepsize="tuned", tol=1e-6)
    >>> result.converged
    True
    """
    require_mdp(mdp)
    kind = stepsize or ("mei" if eta is None else "fixed")
    if kind not in PG_STEPSIZES:
        raise unknown_name("step size of the policy gradient", kind, PG_STEPSIZES)
    if (kind == "fixed") != (eta is not None):
        raise CapoError(f"stepsize={kind!r} with eta={eta!r}: a fixed step needs eta, the others take none")
    weights = _check_mu(mu, mdp)
    if kind == "tuned":
        settings = {"step size": "tuned by backtracking"}
        improve: _Improve = _LineSearch(weights)
    else:
        step, words = _constant_step(mdp, eta)
        settings = {"step size": words}

        def improve(now: Evaluation) -> Floats:
            return np.asarray(log_normalise(now.log_policy + step * softmax_gradient(now, weights))[0])

    run = _Run(mdp, "policy gradient", iterations, tol, record_every, callback, progress, settings)
    result = run.ascend(initial_log_policy(mdp, init, theta), improve)
    result.mu = weights
    return result


def _constant_step(mdp: MDP, eta: float | None) -> tuple[float, str]:
    """The factor of the gradient, and how to call it."""
    if eta is not None:
        return positive("eta", eta), f"fixed eta={eta:g}"
    proven = (1 - mdp.gamma) ** 3 / 8
    if mdp.has_unit_rewards:
        return proven, f"(1-gamma)^3/8 = {proven:.4g}"
    low, high = float(mdp.reward.min()), float(mdp.reward.max())
    # Rescaling rewards to [0, 1] divides every advantage by their range; the shift changes no advantage.
    return proven / max(
        high - low, np.finfo(float).tiny
    ), f"(1-gamma)^3/8 = {proven:.4g} on rewards scaled to [0, 1]"


class _LineSearch:
    """Policy-gradient steps of the size that a line search finds, starting from twice the last one."""

    def __init__(self, mu: Floats) -> None:
        self._mu, self._eta = mu, _FIRST_TUNED / 2

    def __call__(self, now: Evaluation) -> Evaluation | None:
        gradient = softmax_gradient(now, self._mu)
        slope = float((gradient**2).sum())
        before = float(self._mu @ now.values)
        eta = min(2 * self._eta, _MOST_TUNED)
        while eta > _LEAST_TUNED and slope > 0:
            tried = Evaluation(now.mdp, np.asarray(log_normalise(now.log_policy + eta * gradient)[0]))
            gain = float(self._mu @ tried.values) - before
            if gain >= _ARMIJO * eta * slope and gain > 0:
                self._eta = eta
                return tried
            eta /= 2
        return None


def natural_policy_gradient(
    mdp: MDP,
    eta: float = 1.0,
    iterations: int | None = None,
    tol: float | None = None,
    *,
    init: Any = None,
    theta: Any = None,
    record_every: int | None = None,
    callback: Callback | None = None,
    progress: bool = False,
) -> Result:
    """Exact natural policy gradient: theta += eta / (1 - gamma) * A.

    From a uniform policy and rewards in [0, 1], V* - V after m iterations is at most
    log A / (eta m) + 1 / ((1 - gamma)^2 m) (Agarwal et al., 2020).

    Args:
        mdp: the MDP.
        eta: step size.
        iterations, tol, init, theta, record_every, callback, progress: as in :func:`capo.solve`.
    """
    require_mdp(mdp)
    factor = between("eta", positive("eta", eta), 0, MOST_ETA) / (1 - mdp.gamma)

    def improve(now: Evaluation) -> Floats:
        return np.asarray(log_normalise(now.log_policy + factor * now.advantage)[0])

    settings = {"step size": f"fixed eta={eta:g}"}
    run = _Run(mdp, "natural policy gradient", iterations, tol, record_every, callback, progress, settings)
    return run.ascend(initial_log_policy(mdp, init, theta), improve)


# --- dynamic programming --------------------------------------------------------------------------------------


def policy_iteration(
    mdp: MDP,
    iterations: int | None = None,
    tol: float | None = None,
    *,
    init: Any = None,
    callback: Callback | None = None,
    progress: bool = False,
) -> Result:
    """Howard's policy iteration, from the greedy policy of the rewards or from ``init``; ends when no action
    improves, with an optimal policy, or when the certified gap is within ``tol``.

    Args:
        mdp: the MDP.
        iterations, tol, init, callback, progress: as in :func:`capo.solve`; ``iterations`` is a limit here.
    """
    require_mdp(mdp)
    start = _deterministic(mdp.reward) if init is None else initial_log_policy(mdp, init, None)
    run = _Run(mdp, "policy iteration", iterations, tol, 1, callback, progress, {}, default_tol=False)

    def improve(now: Evaluation) -> Floats | None:
        better = now.advantage.max(axis=1) > run.resolution
        if not better.any():
            return None
        # States without an action that is better beyond round-off keep theirs, or ties would cycle for ever.
        return np.where(better[:, None], _deterministic(now.advantage), now.log_policy)

    return run.ascend(start, improve)


def value_iteration(
    mdp: MDP,
    iterations: int | None = None,
    tol: float | None = None,
    *,
    values: Any = None,
    record_every: int | None = None,
    callback: Callback | None = None,
    progress: bool = False,
) -> Result:
    """Value iteration V <- max_a Q; the policy is greedy with respect to V.

    History and result speak of that greedy policy, evaluated exactly at every record point, not of the iterate.

    Args:
        mdp: the MDP.
        iterations, tol, record_every, callback, progress: as in :func:`capo.solve`.
        values: (S,) to start from; zeros if not given.
    """
    require_mdp(mdp)
    try:
        iterate = np.zeros(mdp.n_states) if values is None else np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise CapoError(f"values={values!r} is not a vector of numbers") from None
    if iterate.shape != (mdp.n_states,) or not np.isfinite(iterate).all():
        raise CapoError(f"values of shape {iterate.shape} must be finite and (S,) = ({mdp.n_states},)")
    q = mdp.q_values(iterate)

    def improve(now: Evaluation) -> Floats:  # noqa: ARG001
        nonlocal q
        q = mdp.q_values(q.max(axis=1))
        return _deterministic(q)

    run = _Run(mdp, "value iteration", iterations, tol, record_every, callback, progress, {})
    return run.ascend(_deterministic(q), improve)


def _deterministic(scores: Floats) -> Floats:
    """(S, A) log-policy that takes the first of the best actions."""
    best = np.arange(scores.shape[1]) == scores.argmax(axis=1)[:, None]
    return np.where(best, 0.0, floor(np.float64))


# --- the loop they share --------------------------------------------------------------------------------------

# From the evaluation of a policy to the next one; None where nothing is left to improve.
_Improve = Callable[[Evaluation], Floats | Evaluation | None]


@dataclass
class _Run:
    mdp: MDP
    algorithm: str
    iterations: int | None
    tol: float | None
    record_every: int | None
    callback: Callback | None
    progress: bool
    settings: dict[str, Any]
    default_tol: bool = True  # whether to stop at 1e-8 where neither a tol nor a number of iterations is given

    def __post_init__(self) -> None:
        for name in ("iterations", "record_every"):
            if getattr(self, name) is not None:
                setattr(self, name, whole(name, getattr(self, name)))
        self.tol = None if self.tol is None else positive("tol", self.tol)
        attainable = self.resolution / (1 - self.mdp.gamma)
        if self.tol is not None and self.tol < attainable * (1 - 1e-9):
            raise CapoError(
                f"tol={self.tol!r} cannot be certified: round-off leaves the gap of this MDP known to within "
                f"{attainable:.3g}; ask for tol >= {rounded_up(attainable)}"
            )
        if self.tol is None and self.iterations is None and self.default_tol:
            self.tol = max(DEFAULT_TOL, attainable)
        if self.tol is not None:
            self.settings = {**self.settings, "tol": f"{self.tol:g}"}

    @property
    def _reached(self) -> float | None:
        """The gap at which the run counts as converged; policy iteration goes to round-off without a tol."""
        exact = None if self.default_tol else self.resolution / (1 - self.mdp.gamma)
        return exact if self.tol is None else self.tol

    @cached_property
    def resolution(self) -> float:
        """Advantages up to this size may be round-off."""
        return RELATIVE_SIGN_TOL * value_scale(self.mdp)

    def ascend(self, log_policy: Floats, improve: _Improve) -> Result:
        """Improve until the gap, the number of iterations, the callback or ``improve`` itself says stop."""
        self._started = time.perf_counter()
        self._rows: list[tuple[int, float, float, float]] = []
        limit = int(self.iterations) if self.iterations is not None else DEFAULT_ITERATIONS
        ticker = Ticker(self.progress)
        now, iteration, due = Evaluation(self.mdp, log_policy), 0, 0
        stopped = ""
        try:
            with single_threaded_blas:
                while True:
                    if iteration in (due, limit):
                        stopped = self._record(now, iteration, limit, ticker)
                        due = iteration + (self.record_every or max(1, iteration // 200))
                    if stopped:
                        break
                    better = improve(now)
                    if better is None:
                        stopped = "no further improvement"
                        if self._rows[-1][0] != iteration:
                            self._record(now, iteration, limit, ticker)
                        break
                    now = better if isinstance(better, Evaluation) else Evaluation(self.mdp, better)
                    iteration += 1
        finally:
            ticker.close()
        return self._result(now, iteration, stopped)

    def _record(self, now: Evaluation, iteration: int, limit: int, ticker: Ticker) -> str:
        """Enter the policy in force into the history; the reason to stop, if there is one."""
        value, gap = float(self.mdp.start @ now.values), now.gap_bound
        seconds = time.perf_counter() - self._started
        self._rows.append((iteration, value, gap, seconds))
        ticker.show(
            f"{self.algorithm}: iteration {iteration}  value {value:.8g}  V* - V <= {gap:.3g}  {seconds:.0f} s"
        )
        said = True
        if self.callback is not None:
            said = not stops(self.callback(Snapshot(iteration, value, gap, now.log_policy.copy(), seconds)))
        if self.tol is not None and gap <= self.tol:
            return f"V* - V <= {self.tol:g} certified"
        if iteration >= limit:
            return f"{limit} iterations done" + ("" if self.tol is None else f" before V* - V <= {self.tol:g}")
        return "" if said else "the callback said so"

    def _result(self, now: Evaluation, iteration: int, stopped: str) -> Result:
        columns = (np.array(column) for column in zip(*self._rows, strict=True))
        gap = now.gap_bound
        return Result(
            mdp=self.mdp,
            algorithm=self.algorithm,
            log_policy=now.log_policy,
            values=now.values,
            gap_bound=gap,
            covered=np.ones(self.mdp.n_states, bool),
            converged=self._reached is not None and gap <= self._reached,
            stopped=stopped,
            iterations=iteration,
            seconds=time.perf_counter() - self._started,
            history=dict(zip(("iteration", "value", "gap_bound", "seconds"), columns, strict=True)),
            settings=self.settings,
        )


def _check_mu(mu: Any, mdp: MDP) -> Floats:
    if mu is None:
        return np.full(mdp.n_states, 1 / mdp.n_states)
    return check_distribution(mu, mdp.n_states, "mu", positive=True)


# --- stochastic natural policy gradient on a bandit -----------------------------------------------------------


def stochastic_npg(
    mdp: MDP,
    eta: float,
    seeds: int | Sequence[int] = 100,
    *,
    iterations: int,
    record: int | Sequence[int] = 200,
    track: tuple[int, int] | None = None,
    init: Any = None,
    theta: Any = None,
) -> ManyResult:
    """On-policy stochastic natural policy gradient on a bandit, many seeds at once.

    The sampled arm a moves by theta(a) += eta * r(a) / pi(a), the importance-sampled estimate of Mei et al.
    (2021), whose example this is: with any constant eta it commits to a wrong arm with positive probability.

    Args:
        mdp: a bandit: an MDP of one state.
        eta: step size, on the rewards as they are.
        seeds: how many (0, 1, ...), or which.
        iterations: of every seed.
        record: how many record points, spread evenly in the logarithm; or which iterations.
        track: a pair (0, arm) whose probability is recorded.
        init, theta: (1, A) policy or softmax parameters to start from; uniform if neither is given.

    Returns:
        What :func:`capo.solve_many` returns.
    """
    require_mdp(mdp)
    if mdp.n_states != 1:
        raise CapoError(f"stochastic_npg works on a bandit, an MDP of one state; this one has {mdp.n_states}")
    rate = positive("eta", eta)
    iterations, which = whole("iterations", iterations), checked_seeds(seeds)
    arm = None if track is None else int(check_pairs([track], mdp, "track")[0, 1])
    first, points = initial_log_policy(mdp, init, theta), record_points(record, iterations)
    started = time.perf_counter()
    rewards = np.ascontiguousarray(mdp.reward[0])
    policies = np.empty((len(which), 1, mdp.n_actions))
    counts = np.zeros((len(which), 1, mdp.n_actions), np.int64)
    value, tracked = np.empty((2, len(which), len(points)))
    for k, seed in enumerate(which):
        rng, row, done = np.random.default_rng(int(seed)), first[0].copy(), 0
        for i, point in enumerate(points):
            _npg_steps(rewards, rate, row, counts[k, 0], rng.random(int(point) - done))
            done = int(point)
            value[k, i] = np.exp(row) @ rewards / (1 - mdp.gamma)
            tracked[k, i] = math.exp(row[arm]) if arm is not None else np.nan
        _npg_steps(rewards, rate, row, counts[k, 0], rng.random(iterations - done))
        policies[k, 0] = np.exp(row)
    gap = (rewards.max() - policies[:, 0] @ rewards) / (1 - mdp.gamma)
    seconds = time.perf_counter() - started
    kept = tracked if arm is not None else None
    return ManyResult(mdp, which, iterations, points, value, kept, policies, counts, np.maximum(gap, 0), seconds)


_MOST_ODDS = (
    600.0  # log of the greatest 1/pi that is used: beyond it the float range ends; such arms are never drawn
)


@nb.njit(cache=True, nogil=True)
def _npg_steps(rewards, eta, row, counts, uniforms):  # type: ignore[no-untyped-def]
    """One update for each uniform number, of the log-policy ``row`` (A,) and ``counts`` (A,), in place."""
    for i in range(uniforms.shape[0]):
        arm = draw_action(row, row, 1.0, uniforms[i])
        counts[arm] += 1
        row[arm] += eta * rewards[arm] * math.exp(min(-row[arm], _MOST_ODDS))
        normalise_row(row)
