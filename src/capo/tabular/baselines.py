"""The methods CAPO is compared with: policy gradient, natural policy gradient, policy iteration (also modified),
value iteration.

All are exact and return a :class:`capo.Result`, except :func:`stochastic_npg`, which samples the arms of a bandit
with many seeds and returns a :class:`~capo.tabular.record.ManyResult`. Gap bounds are max A+ / (1 - gamma) of the
evaluated policy, so they need no V*. Dynamic programming on large MDPs evaluates by iteration
(:mod:`capo.tabular.baselines_large`). Public as ``capo.baselines``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numba as nb
import numpy as np

from capo.checks import between, one_of, positive, whole
from capo.checks import seeds as checked_seeds
from capo.errors import CapoError
from capo.tabular import baselines_large as large
from capo.tabular.coordinates import check_pairs
from capo.tabular.critic import greatest_advantage, single_threaded_blas
from capo.tabular.engine import DEFAULT_TOL, RELATIVE_SIGN_TOL, initial_log_policy, rounded_up, value_scale
from capo.tabular.kernels import draw_action, normalise_row
from capo.tabular.mdp import MDP, Floats, as_floats, check_distribution, require_mdp
from capo.tabular.modified import Sharp
from capo.tabular.record import Baseline, Callback, ManyResult, Recorder, record_points
from capo.tabular.solver import Result
from capo.tabular.theory.lemmas import PolicyValues
from capo.tabular.theory.lemmas import policy_gradient as softmax_gradient
from capo.update import MOST_ETA, floor, log_normalise

DEFAULT_ITERATIONS = 10_000  # where a run that asked for a gap gives up
PG_STEPSIZES = ("mei", "tuned", "fixed")
_ARMIJO = 0.5  # share of the improvement predicted by a linear model that a tuned step must achieve
_FIRST_TUNED, _LEAST_TUNED, _MOST_TUNED = 1.0, 1e-12, 1e100


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

    With step size ``mei`` or ``tuned``, V(mu) never decreases; V at single states may.

    Args:
        mdp: the MDP.
        stepsize: ``mei``, the proven step (1 - gamma)^3 / 8 of Mei et al. (2020) for rewards in [0, 1] (other
            rewards are rescaled for it: the gradient is divided by their range); ``tuned``, a backtracking line
            search (the last step doubled, then halved until V(mu) rises by half of what a linear model
            predicts; stops early where rounding hides every rise); ``fixed``, the given ``eta`` on the rewards
            as they are. By default ``fixed`` if ``eta`` is given, else ``mei``.
        eta: size of the fixed step.
        iterations, tol, init, theta, record_every, callback, progress: as in :func:`capo.solve`.
        mu: (S,) positive distribution whose value is maximised; uniform by default.

    >>> import capo
    >>> result = policy_gradient(capo.mdps.random(5, 3, gamma=0.5), stepsize="tuned", tol=1e-6)
    >>> result.converged
    True
    """
    require_mdp(mdp)
    usual = "mei" if eta is None else "fixed"
    kind = one_of("step size of the policy gradient", usual if stepsize is None else stepsize, PG_STEPSIZES)
    if (kind == "fixed") != (eta is not None):
        raise CapoError(f"stepsize={kind!r} with eta={eta!r}: 'fixed' needs eta, and no other step size takes it")
    weights = check_distribution(mu, mdp.n_states, "mu", positive=True)
    if kind == "tuned":
        words = "tuned by backtracking"
        improve: _Improve = _LineSearch(weights)
    else:
        step, words = _constant_step(mdp, eta)

        def improve(now: PolicyValues) -> Floats:
            return np.asarray(log_normalise(now.log_policy + step * softmax_gradient(now, weights))[0])

    baseline = Baseline("policy gradient", proven_step=kind == "mei")
    ascent = _Ascent(mdp, baseline, iterations, tol, record_every, callback, progress, {"step size": words})
    result = ascent.run(initial_log_policy(mdp, init, theta), improve)
    result.mu = weights
    return result


def _constant_step(mdp: MDP, eta: float | None) -> tuple[float, str]:
    """The factor of the gradient, and its description."""
    if eta is not None:
        return positive("eta", eta), f"fixed eta={eta:g}"
    proven = (1 - mdp.gamma) ** 3 / 8
    if mdp.has_unit_rewards:
        return proven, f"(1-gamma)^3/8 = {proven:.4g}"
    low, high = mdp.reward_range
    # Rescaling rewards to [0, 1] divides every advantage by their range; the shift changes no advantage.
    scaled = proven / max(high - low, np.finfo(float).tiny)
    return scaled, f"(1-gamma)^3/8 = {proven:.4g} on rewards scaled to [0, 1]"


class _LineSearch:
    """Policy-gradient steps sized by a line search that starts from twice the last step."""

    def __init__(self, mu: Floats) -> None:
        self._mu, self._eta = mu, _FIRST_TUNED / 2

    def __call__(self, now: PolicyValues) -> PolicyValues | None:
        gradient = softmax_gradient(now, self._mu)
        slope = float((gradient**2).sum())
        before = float(self._mu @ now.values)
        eta = min(2 * self._eta, _MOST_TUNED)
        while eta > _LEAST_TUNED and slope > 0:
            tried = _evaluate(now.mdp, np.asarray(log_normalise(now.log_policy + eta * gradient)[0]))
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

    def improve(now: PolicyValues) -> Floats:
        return np.asarray(log_normalise(now.log_policy + factor * now.advantage)[0])

    baseline = Baseline("natural policy gradient", monotone=True, eta=float(eta))
    settings = {"step size": f"fixed eta={eta:g}"}
    ascent = _Ascent(mdp, baseline, iterations, tol, record_every, callback, progress, settings)
    return ascent.run(initial_log_policy(mdp, init, theta), improve)


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
    """Howard's policy iteration, from the greedy policy of the rewards or from ``init``.

    Stops when no action improves, with an optimal policy, or when the certified gap is within ``tol``. Sparse MDPs
    of 5000 states or more are evaluated iteratively, and ``values`` are then a lower bound on V; the run
    ends at the gap of ``tol``, by default 1e-8 or what rounding allows.

    Args:
        mdp: the MDP.
        iterations, tol, init, callback, progress: as in :func:`capo.solve`; ``iterations`` is an upper limit.
    """
    require_mdp(mdp)
    start = _deterministic(mdp, mdp.reward) if init is None else initial_log_policy(mdp, init, None)
    baseline = Baseline("policy iteration", monotone=True)
    if large.is_large(mdp):
        solved = large.Solved(mdp)
        large.start_from(solved, None if init is None else np.exp(start), 1)
        return large.run_baseline(
            baseline, solved, 2, iterations, tol, record_every=1, callback=callback, progress=progress,
            settings={"evaluation": "GMRES"},
        )  # fmt: skip
    ascent = _Ascent(mdp, baseline, iterations, tol, 1, callback, progress, {}, default_tol=False)

    def improve(now: PolicyValues) -> Floats | None:
        better = now.advantage.max(axis=1) > ascent.resolution
        if not better.any():
            return None
        # States without an action that is better beyond round-off keep theirs, or ties would cycle forever.
        return np.where(better[:, None], _deterministic(mdp, now.advantage), now.log_policy)

    return ascent.run(start, improve)


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

    History and result describe that greedy policy, evaluated exactly, not the iterate. On sparse MDPs of 5000
    states or more, what is evaluated is a bound, from the iterate's residual.

    Args:
        mdp: the MDP.
        iterations, tol, record_every, callback, progress: as in :func:`capo.solve`.
        values: (S,) initial values; zeros by default. On large MDPs, the bound of a run that starts from values
            far above those of any policy includes their rounding.
    """
    require_mdp(mdp)
    given = np.zeros(mdp.n_states) if values is None else values
    iterate = as_floats("values=", given, "is not a vector of numbers")
    if iterate.shape != (mdp.n_states,) or not np.isfinite(iterate).all():
        raise CapoError(f"values of shape {iterate.shape} must be finite and of shape (S,) = ({mdp.n_states},)")
    largest = float(np.abs(iterate).max())
    if not math.isfinite(largest / (1 - mdp.gamma) * 1e8):
        raise CapoError(
            f"values of size {largest:g} are too large with gamma={mdp.gamma!r}: they would overflow. "
            f"No policy is worth more than {value_scale(mdp):.3g} in any state"
        )
    if large.is_large(mdp):
        return large.run_baseline(
            Baseline("value iteration"), Sharp(mdp, values=iterate.copy()), 1, iterations, tol,
            record_every=record_every, callback=callback, progress=progress, settings={},
            rounding=large.rounding_of(mdp, iterate),
        )  # fmt: skip
    q = mdp.q_values(iterate)

    def improve(now: PolicyValues) -> Floats:  # noqa: ARG001
        nonlocal q
        q = mdp.q_values(mdp.masked(q).max(axis=1))
        return _deterministic(mdp, q)

    baseline = Baseline("value iteration")
    ascent = _Ascent(mdp, baseline, iterations, tol, record_every, callback, progress, {})
    return ascent.run(_deterministic(mdp, q), improve)


def modified_policy_iteration(
    mdp: MDP,
    k: int = 20,
    iterations: int | None = None,
    tol: float | None = None,
    *,
    init: Any = None,
    threads: int = 1,
    record_every: int | None = None,
    callback: Callback | None = None,
    progress: bool = False,
) -> Result:
    """Modified policy iteration (Puterman and Shin): greedy actions, then k sweeps of the policy's own backup.

    The policy is certified by the residual of the values; ``values`` are a lower bound on its V.

    Args:
        mdp: the MDP.
        k: sweeps per iteration; 1 is value iteration.
        iterations, tol, init, record_every, callback, progress: as in :func:`capo.solve`.
        threads: how many.

    >>> import capo
    >>> modified_policy_iteration(capo.mdps.garnet(50, 3, 4), tol=1e-6).converged
    True
    """
    require_mdp(mdp)
    k = whole("k", k)
    sweeper = Sharp(mdp, threads=min(whole("threads", threads), mdp.n_states))
    if init is not None:
        large.start_from(sweeper, np.exp(initial_log_policy(mdp, init, None)), k)
    return large.run_baseline(
        Baseline("modified policy iteration"), sweeper, k, iterations, tol,
        record_every=record_every, callback=callback, progress=progress, settings={"k": k},
    )  # fmt: skip


def _deterministic(mdp: MDP, scores: Floats) -> Floats:
    """(S, A) log-policy that takes the first of the best actions that are allowed."""
    best = np.arange(scores.shape[1]) == mdp.masked(scores).argmax(axis=1)[:, None]
    return np.where(best, 0.0, floor(np.float64))


# --- the loop they share --------------------------------------------------------------------------------------

# From a policy with its values to the next one; None where nothing is left to improve.
_Improve = Callable[[PolicyValues], Floats | PolicyValues | None]
_evaluate = partial(PolicyValues, dense_up_to=0)


@dataclass
class _Ascent:
    """One run of a baseline: its arguments, checked, and the loop."""

    mdp: MDP
    baseline: Baseline
    iterations: int | None
    tol: float | None
    record_every: int | None
    callback: Callback | None
    progress: bool
    settings: dict[str, Any]
    default_tol: bool = True  # whether to stop at 1e-8 if neither a tol nor a number of iterations is given

    def __post_init__(self) -> None:
        for name in ("iterations", "record_every"):
            if getattr(self, name) is not None:
                setattr(self, name, whole(name, getattr(self, name)))
        self.tol = None if self.tol is None else positive("tol", self.tol)
        attainable = self.resolution / (1 - self.mdp.gamma)
        if self.tol is not None and self.tol < attainable * (1 - 1e-9):
            raise CapoError(
                f"tol={self.tol!r} cannot be certified: because of rounding, the gap of this MDP is only "
                f"known to within {attainable:.3g}; set tol >= {rounded_up(attainable)}"
            )
        if self.tol is None and self.iterations is None and self.default_tol:
            self.tol = max(DEFAULT_TOL, attainable)
        if self.tol is not None:
            self.settings = {**self.settings, "tol": f"{self.tol:g}"}

    @cached_property
    def resolution(self) -> float:
        """Advantages up to this size may be rounding errors."""
        return RELATIVE_SIGN_TOL * value_scale(self.mdp)

    def run(self, log_policy: Floats, improve: _Improve) -> Result:
        """Improve until the gap, the number of iterations, the callback or ``improve`` itself ends the run."""
        limit = int(self.iterations) if self.iterations is not None else DEFAULT_ITERATIONS
        recorder = Recorder(self.baseline.method, limit, self.tol, self.callback, self.progress)
        now, finished = _evaluate(self.mdp, log_policy), False

        def advance(n: int) -> int:
            nonlocal now, finished
            for done in range(n):
                better = improve(now)
                if better is None:
                    finished = True
                    return done
                now = better if isinstance(better, PolicyValues) else _evaluate(self.mdp, better)
            return n

        def status() -> tuple[float, float, Floats]:
            gap_bound = greatest_advantage(now.advantage) / (1 - self.mdp.gamma)
            return float(self.mdp.start @ now.values), gap_bound, now.log_policy

        ended = "no further improvement"
        with single_threaded_blas:
            iterations = recorder.run(advance, status, ended, every=self.record_every)
        recorder.stopped = ended if finished else recorder.stopped
        # Without a tol, policy iteration runs down to rounding.
        goal = self.resolution / (1 - self.mdp.gamma) if self.tol is None and not self.default_tol else self.tol
        return Result(
            **(outcome := recorder.outcome()),
            mdp=self.mdp,
            algorithm=self.baseline.method,
            log_policy=now.log_policy,
            values=now.values,
            covered=np.ones(self.mdp.n_states, bool),
            converged=goal is not None and outcome["gap_bound"] <= goal,
            iterations=iterations,
            settings=self.settings,
            tol=self.tol,
            baseline=self.baseline,
        )


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
        mdp: a bandit, that is, an MDP with one state.
        eta: step size, on the rewards as they are.
        seeds: how many (0, 1, ...), or which.
        iterations: per seed.
        record: how many iterations to record, spread evenly in the logarithm; or which ones.
        track: a pair (0, arm) whose probability is recorded.
        init, theta: (1, A) initial policy or softmax parameters; uniform if neither is given.

    Returns:
        What :func:`capo.solve_many` returns.
    """
    require_mdp(mdp)
    if mdp.n_states != 1:
        raise CapoError(f"stochastic_npg needs a bandit, an MDP with one state; this one has {mdp.n_states}")
    rate, largest = positive("eta", eta), float(np.abs(mdp.reward).max())
    if not math.isfinite(2 * math.exp(_MOST_ODDS) * largest * rate):
        raise CapoError(f"eta={eta!r} is too large for rewards of size {largest:g}: a step would overflow")
    iterations, which = whole("iterations", iterations), checked_seeds(seeds)
    arm = None if track is None else int(check_pairs([track], mdp, "track")[0, 1])
    first, points = initial_log_policy(mdp, init, theta), record_points(record, iterations)
    started = time.perf_counter()
    rewards = np.ascontiguousarray(mdp.reward[0])
    policies = np.empty((len(which), 1, mdp.n_actions))
    counts = np.zeros((len(which), 1, mdp.n_actions), np.int64)
    value, tracked = np.empty((2, len(which), len(points)))
    for k, seed in enumerate(which):
        rng, row = np.random.default_rng(int(seed)), first[0].copy()
        for i, n in enumerate(np.diff(points, prepend=0)):
            _npg_steps(rewards, rate, row, counts[k, 0], rng.random(n))
            value[k, i] = np.exp(row) @ rewards / (1 - mdp.gamma)
            tracked[k, i] = math.exp(row[arm]) if arm is not None else np.nan
        _npg_steps(rewards, rate, row, counts[k, 0], rng.random(iterations - points[-1]))
        policies[k, 0] = np.exp(row)
    gap = (mdp.masked(mdp.reward).max() - policies[:, 0] @ rewards) / (1 - mdp.gamma)
    seconds = time.perf_counter() - started
    kept = tracked if arm is not None else None
    return ManyResult(mdp, which, iterations, points, value, kept, policies, counts, np.maximum(gap, 0), seconds)


_MOST_ODDS = 600.0  # log of the greatest 1/pi that is used: floats end beyond it, and such arms are never drawn


@nb.njit(cache=True, nogil=True)
def _npg_steps(rewards, eta, row, counts, uniforms):  # type: ignore[no-untyped-def]
    """One update for each uniform number, of the log-policy ``row`` (A,) and ``counts`` (A,), in place."""
    for i in range(uniforms.shape[0]):
        arm = draw_action(row, row, 1.0, uniforms[i])
        counts[arm] += 1
        row[arm] += eta * rewards[arm] * math.exp(min(-row[arm], _MOST_ODDS))
        normalise_row(row)
