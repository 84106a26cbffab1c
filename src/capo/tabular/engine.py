"""The engine: what is settled before a run, the two ways an iteration is made, and many seeds at once.

:func:`capo.solve` and :func:`solve_many` both start from a :class:`Problem`, whose :meth:`~Problem.runner` makes
the iterations.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from capo.checks import one_of, positive, whole
from capo.checks import seeds as checked_seeds
from capo.errors import CapoError, CapoWarning
from capo.progress import show_progress
from capo.tabular import kernels
from capo.tabular.coordinates import (
    Batch,
    Cyclic,
    FromIterable,
    Rule,
    Source,
    WalkSource,
    check_pairs,
    check_policy,
    make_rule,
)
from capo.tabular.critic import (
    SIGN_CRITIC_ABOVE,
    AdvantageSigns,
    Coordinates,
    DenseCritic,
    DirectCritic,
    Steps,
    encode,
    greatest_advantage,
    require_dense,
    single_threaded_blas,
)
from capo.tabular.mdp import MDP, Bools, Floats, Ints, as_floats, check_distribution, require_mdp
from capo.tabular.record import ManyResult, Signs, Trace, record_points
from capo.tabular.sign_critic import SignCritic
from capo.update import StepSize, coordinate_update, floor, log_normalise

CRITICS = ("auto", "exact", "direct", "signs", "k-step")
DEFAULT_TOL = 1e-8
DEFAULT_CYCLES = 10_000  # where a run that asked for a gap gives up
RELATIVE_SIGN_TOL = 1e-13
LOWEST = floor(np.float64)  # log pi of an action that is not allowed: its probability is 0
TRACE_STEPS, TRACE_BYTES = 20_000, 64 * 2**20
_CHUNK = 1 << 16


# --- what is settled before any work --------------------------------------------------------------------------


def make_stepsize(stepsize: str | StepSize, mdp: MDP, allow_violation: bool, **options: float | None) -> StepSize:
    """A checked step size for this MDP, from its name and options or from a :class:`StepSize`."""
    require_mdp(mdp)
    given = {key: value for key, value in options.items() if value is not None}
    if isinstance(stepsize, StepSize):
        if given:
            raise CapoError(f"stepsize is already a StepSize: set {', '.join(given)} on it instead")
        step = stepsize
    else:
        takes = {"log": {"multiple"}, "fixed": {"eta"}, "clipped": {"clip"}, "on-policy": {"beta", "zeta"}}
        if isinstance(stepsize, str) and (wrong := set(given) - takes.get(stepsize, set(given))):
            allowed = ", ".join(sorted(takes[stepsize]))
            raise CapoError(f"step size {stepsize!r} does not take {', '.join(sorted(wrong))}; it takes {allowed}")
        step = StepSize(stepsize, **given)  # type: ignore[arg-type]
    step = step.with_defaults(mdp.max_actions)
    for violation in step.violations(mdp.max_actions):
        if not allow_violation:
            raise CapoError(f"step size: {violation}; pass allow_violation=True to run it anyway")
        warnings.warn(f"step size outside the theorems: {violation}", CapoWarning, stacklevel=3)
    return step


def value_scale(mdp: MDP) -> float:
    """A bound on \\|V_pi(s)\\| over all policies and states, at least 1.

    From max r / (1 - gamma) and min r / (1 - gamma), tightened by a few sweeps of optimal and worst backups.
    """
    lives = ~mdp.terminal | (mdp.reward != 0).any(axis=1)  # nothing is worth anything after the end
    least, most = mdp.reward_range
    upper = lives * (max(most, 0.0) / (1 - mdp.gamma))
    lower = lives * (min(least, 0.0) / (1 - mdp.gamma))
    entries = mdp.rows.nnz if mdp.is_sparse else mdp.rows.size
    for _ in range(int(np.clip(2e7 / entries, 2, 200))):
        upper = np.minimum(upper, over_actions(np.maximum, mdp.masked(mdp.q_values(upper))))
        lower = np.maximum(lower, over_actions(np.minimum, mdp.masked(mdp.q_values(lower), np.inf)))
    return max(1.0, float(upper.max()), -float(lower.min()))


def over_actions(reduce: Any, scores: Floats) -> Floats:
    """(S,) ``np.maximum`` or ``np.minimum`` over the actions of (S, A); far faster than along a short axis."""
    return np.asarray(reduce.reduce(np.ascontiguousarray(scores.T), axis=0))


def initial_log_policy(mdp: MDP, init: Any, theta: Any) -> Floats:
    """(S, A) log-policy from a policy, from softmax parameters, or uniform; at the floor where not allowed."""
    shape = (mdp.n_states, mdp.n_actions)
    if init is not None and theta is not None:
        raise CapoError("give either init (a policy) or theta (softmax parameters), not both")
    if theta is not None:
        parameters = as_floats("theta=", theta)
        if parameters.shape != shape or not np.isfinite(mdp.masked(parameters, 0.0)).all():
            raise CapoError(f"theta of shape {parameters.shape} must be finite and of shape (S, A) = {shape}")
        return mdp.masked(np.asarray(log_normalise(mdp.masked(parameters, LOWEST))[0]), LOWEST)
    if init is None:
        return uniform_log_policy(mdp)
    policy = check_policy(init, mdp, "init (pass softmax parameters as theta)")
    with np.errstate(divide="ignore"):
        # log_normalise lifts -inf to the floor: a positive update can still bring the action back.
        return mdp.masked(np.asarray(log_normalise(np.maximum(np.log(policy), -1e299))[0]), LOWEST)


def uniform_log_policy(mdp: MDP) -> Floats:
    """(S, A) the log of the uniform policy, at the floor where an action is not allowed."""
    if mdp.actions is None:
        return np.full((mdp.n_states, mdp.n_actions), -np.log(mdp.n_actions))
    return np.where(mdp.actions, -np.log(mdp.actions.sum(axis=1, keepdims=True)), LOWEST)


def rounded_up(number: float) -> str:
    """Three digits, never below the number itself: advice that works when it is followed."""
    text = f"{number:.3g}"
    return text if float(text) >= number else f"{number * 1.005:.3g}"


@dataclass
class Problem:
    """A run that has been checked in full and is ready to start.

    Attributes:
        limit: the most iterations.
        first: (S, A) initial log-policy.
        critic: which critic evaluates all pairs in rule ``batch``.
        cycle: iterations in a cycle of the rule.
        covered: (S,) the states that the rule can reach.
        settings: for display.
    """

    mdp: MDP
    rule: Rule
    stepsize: StepSize
    limit: int
    tol: float | None
    first: Floats
    mu: Floats | None
    sign_tol: float
    critic: str
    record_every: int | None
    cycle: int
    covered: Bools
    settings: dict[str, Any]

    def runner(self, seed: int, keep_trace: bool = True) -> Runner:
        """What makes the iterations."""
        if isinstance(self.rule, Batch):
            return BatchRunner(self)
        return CoordinateRunner(self, self.rule.source(self.mdp, np.random.default_rng(seed)), keep_trace)


def prepare(
    mdp: MDP, rule: Rule, step: StepSize, iterations: int | None, tol: float | None = None,
    cycles: float | None = None, init: Any = None, theta: Any = None, mu: Any = None,
    sign_tol: float | None = None, critic: str = "auto", record_every: int | None = None,
) -> Problem:  # fmt: skip
    """Check the arguments of :func:`capo.solve` and fill in their defaults."""
    rule.check(mdp)
    critic = _check_critic(critic, rule, mdp)
    iterations = None if iterations is None else whole("iterations", iterations)
    record_every = None if record_every is None else whole("record_every", record_every)
    cycle = rule.cycle_length(mdp)
    if cycles is not None:
        if iterations is not None:
            raise CapoError(f"give either iterations={iterations} or cycles={cycles}, not both")
        iterations = max(1, round(positive("cycles", cycles) * cycle))
    by_signs = isinstance(rule, Batch) and critic == "signs"
    tol, sign_tol = _check_tolerances(mdp, tol, sign_tol, by_signs, has_limit=iterations is not None)
    settings = {"rule": rule.name, "step size": _describe(step)}
    settings |= {"order": rule.order} if isinstance(rule, Cyclic) and isinstance(rule.order, str) else {}
    settings |= {"critic": critic} if isinstance(rule, Batch) else {}
    settings |= {"tol": f"{tol:g}"} if tol is not None else {}
    return Problem(
        mdp,
        rule,
        step,
        limit=iterations if iterations is not None else DEFAULT_CYCLES * cycle,
        tol=tol,
        first=initial_log_policy(mdp, init, theta),
        mu=None if mu is None else check_distribution(mu, mdp.n_states, "mu", positive=True),
        sign_tol=sign_tol,
        critic=critic,
        record_every=record_every,
        cycle=cycle,
        covered=rule.covers(mdp),
        settings=settings,
    )


def takes_k_steps(critic: str, mdp: MDP, rule: Rule, step: StepSize, counted: bool) -> bool:
    """Whether a run uses the k-step critic: asked for, or large and only its solution is wanted.

    ``counted``: whether a number of iterations was asked for, that is, a trajectory.
    """
    if one_of("critic", critic, CRITICS) != "auto":
        return critic == "k-step"
    in_order = isinstance(rule, Batch) or (isinstance(rule, Cyclic) and rule.order == "state-major")
    large = mdp.is_sparse and mdp.n_states >= SIGN_CRITIC_ABOVE
    return large and in_order and step.kind == "log" and not counted


def _check_critic(critic: str, rule: Rule, mdp: MDP) -> str:
    if not isinstance(rule, Batch):
        require_dense(mdp.n_states)
    one_of("critic", critic, CRITICS)
    critic = "auto" if critic == "exact" else critic
    if critic != "auto" and not isinstance(rule, Batch):
        raise CapoError(f"critic={critic!r} applies to rule='batch' only; rule {rule.name!r} has a single critic")
    if critic == "auto":
        return "signs" if mdp.is_sparse and mdp.n_states >= SIGN_CRITIC_ABOVE else "direct"
    return critic


def _check_tolerances(
    mdp: MDP, tol: float | None, sign_tol: float | None, by_signs: bool, *, has_limit: bool
) -> tuple[float | None, float]:
    """The gap to stop at, if any, and the sign tolerance; an error if that gap cannot be certified."""
    tol = None if tol is None else positive("tol", tol)
    asked = tol if tol is not None else (None if has_limit else DEFAULT_TOL)
    # Exact signs leave A <= sign_tol; signs from bounds leave A <= 2 sign_tol, known to within another.
    factor = (3 if by_signs else 1) / (1 - mdp.gamma)
    if sign_tol is not None:
        sign_tol = finest = positive("sign_tol", sign_tol)
    else:
        # An error bound from residuals cannot be finer than their rounding over 1 - gamma.
        rounding = 1e-15 / (1 - mdp.gamma) if by_signs else 0.0
        finest = max(RELATIVE_SIGN_TOL, rounding) * value_scale(mdp)
        sign_tol = max(finest, asked / factor) if by_signs and asked is not None else finest
    attainable = finest * factor
    if tol is None and asked is not None and attainable > asked:
        warnings.warn(
            f"the default tol of {DEFAULT_TOL:g} cannot be certified on this MDP; stopping at "
            f"{rounded_up(attainable)} instead",
            CapoWarning,
            stacklevel=4,
        )
        asked = attainable
    if tol is not None and tol < attainable * (1 - 1e-9):
        other = " or critic='direct'" if by_signs else ""
        raise CapoError(
            f"tol={tol:g} cannot be certified: advantages up to sign_tol={sign_tol:.3g} count as 0, so the gap is "
            f"only known to within {attainable:.3g}; set tol >= {rounded_up(attainable)}, "
            f"or give a smaller sign_tol{other}"
        )
    return asked, sign_tol


def _describe(step: StepSize) -> str:
    if step.kind == "log":
        return "log 1/pi" if step.multiple == 1 else f"{step.multiple:g} log 1/pi"
    if step.kind == "fixed":
        return f"fixed eta={step.eta:g}"
    if step.kind == "clipped":
        return f"min(log 1/pi, {step.clip:g})"
    return f"on-policy beta={step.beta:.4g} zeta={step.zeta:.4g}"


# --- runners: the two ways an iteration is made ---------------------------------------------------------------


class _BatchTrace:
    """Collects updates of several pairs at once, as many as there is room for."""

    def __init__(self, first: Floats, enabled: bool = True) -> None:
        self.first = first
        self.updates: list[tuple[Signs, Floats, Floats, Bools, float]] = []
        self._room = min(TRACE_STEPS, TRACE_BYTES // (18 * first.size)) if enabled else 0

    @property
    def has_room(self) -> bool:
        return len(self.updates) < self._room

    def add(self, sign: Signs, alpha: Floats, log_policy: Floats, batch: Bools, value: float) -> None:
        self.updates.append((sign, alpha, log_policy.copy(), batch, value))

    def trace(self) -> Trace | None:
        if not self.updates:
            return None
        sign, alpha, log_policies, batch, value = (np.array(column) for column in zip(*self.updates, strict=True))
        return Trace(self.first, sign, alpha, value, log_policies=log_policies, batch=batch)


class CoordinateRunner(DenseCritic):
    """Single coordinates and mini-batches: a dense critic that takes its coordinates from a source."""

    def __init__(self, problem: Problem, source: Source, keep_trace: bool) -> None:
        super().__init__(problem.mdp, problem.first, problem.sign_tol)
        self._step, self._source = problem.stepsize, source
        self._covered, self._first = problem.covered, problem.first
        self._steps: list[Steps] = []
        self._room = min(TRACE_STEPS, TRACE_BYTES // (8 * (problem.mdp.n_actions + 4))) if keep_trace else 0
        self._batches = _BatchTrace(problem.first, keep_trace)

    def advance(self, n: int) -> int:
        """Make up to n iterations; fewer only when the user's iterable ends."""
        if not self._source.single:
            return self._advance_batches(n)
        done = 0
        while done < n:
            size = min(n - done, _CHUNK)
            steps = self.run(self._coordinates(size), self._step, self._room)
            self._room -= len(steps.state)
            if len(steps.state):
                self._steps.append(steps)
            done += len(steps.value)
            if len(steps.value) < size:
                break
        return done

    def _coordinates(self, n: int) -> Coordinates:
        if isinstance(self._source, WalkSource):
            return Coordinates(np.empty((0, 2), np.int64), self._source.walk, self._source.uniforms(n))
        return Coordinates(self._source.take(n))

    def _advance_batches(self, n: int) -> int:
        for done in range(n):
            if isinstance(self._source, WalkSource):
                pairs = self.walk_pairs(self._source.walk, self._source.uniforms(self._source.batch))
            else:
                pairs = next(self._source.blocks, np.empty((0, 2), np.int64))
            if not len(pairs):
                return done
            self._update(np.unique(pairs, axis=0))
        return n

    def _update(self, pairs: Ints) -> None:
        """One iteration on distinct pairs (n, 2), all with the advantages of the policy before it."""
        states, index = np.unique(pairs[:, 0], return_inverse=True)
        batch = np.zeros((len(states), self.mdp.n_actions), bool)
        batch[index, pairs[:, 1]] = True
        self.counts[states] += batch
        advantage = self.advantage_rows(states)
        signs = np.where(batch & (np.abs(advantage) > self.sign_tol), np.sign(advantage), 0).astype(np.int8)
        before = self.log_policy[states]
        alpha = self._step.alpha(before, signs, self.counts[states])
        moved = (signs != 0).any(axis=1)
        self.replace_rows(states[moved], coordinate_update(before, signs, alpha)[moved])
        if self._batches.has_room:
            value = float(self.mdp.start @ self.values)
            every = [np.zeros(self._first.shape, part.dtype) for part in (signs, alpha, batch)]
            for whole_array, part in zip(every, (signs, alpha, batch), strict=True):
                whole_array[states] = part
            self._batches.add(every[0], every[1], self.log_policy, every[2], value)

    def status(self) -> tuple[float, float, Floats]:
        """V at the start distribution, the certified gap over the covered states, and the (S, A) log-policy."""
        advantage = self.mdp.masked(self.checked_q() - self.values[:, None], 0.0)
        greatest = greatest_advantage(advantage[self._covered])
        return float(self.mdp.start @ self.values), greatest / (1 - self.mdp.gamma), self.log_policy

    def trace(self) -> Trace | None:
        """The updates that were kept; None if there are none."""
        parts = self._steps
        if not parts:
            return self._batches.trace()
        value = np.concatenate([part.value[: len(part.state)] for part in parts])
        names = ("sign", "alpha", "state", "action", "row")
        kept = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return Trace(self._first, value=value, **kept)


class BatchRunner:
    """All pairs at once; the evaluation of the current policy serves both the status and the next update."""

    refactorisations = 0

    def __init__(self, problem: Problem) -> None:
        self._mdp = problem.mdp
        self._kernel_step = encode(problem.stepsize, problem.mdp.n_actions)
        self.log_policy = problem.first.copy()
        self._policy = np.exp(self.log_policy)
        self.counts = np.zeros(problem.first.shape, np.int64)
        kind = SignCritic if problem.critic == "signs" else DirectCritic
        self._critic: SignCritic | DirectCritic = kind(problem.mdp, problem.sign_tol)
        self._batches = _BatchTrace(problem.first)
        self._now: AdvantageSigns = self._critic.evaluate(self._policy)

    @property
    def values(self) -> Floats:
        """(S,)."""
        return self._now.values

    def advance(self, n: int) -> int:
        """Make n iterations."""
        for _ in range(n):
            signs = self._now.signs
            self.counts += self._mdp.allowed
            alpha = np.empty_like(self.log_policy)
            kernels.update_all(*self._kernel_step, self.log_policy, signs, self.counts, alpha, self._policy)
            self._now = self._critic.evaluate(self._policy)
            if self._batches.has_room:
                value = float(self._mdp.start @ self._now.values)
                self._batches.add(signs, alpha, self.log_policy, self._mdp.allowed, value)
        return n

    def status(self) -> tuple[float, float, Floats]:
        """V at the start distribution, the certified gap, and the (S, A) log-policy."""
        value, gamma = float(self._mdp.start @ self._now.values), self._mdp.gamma
        return value, self._now.greatest / (1 - gamma), self.log_policy

    def trace(self) -> Trace | None:
        """The updates that were kept; None if there are none."""
        return self._batches.trace()


Runner = CoordinateRunner | BatchRunner


# --- many seeds -----------------------------------------------------------------------------------------------


def solve_many(
    mdp: MDP,
    seeds: int | Sequence[int],
    rule: Any = "randomized",
    stepsize: str | StepSize = "log",
    *,
    iterations: int,
    record: int | Sequence[int] = 200,
    track: tuple[int, int] | None = None,
    init: Any = None,
    theta: Any = None,
    sign_tol: float | None = None,
    allow_violation: bool = False,
    threads: int | None = None,
    progress: bool = False,
    **options: Any,
) -> ManyResult:
    """Run many seeds on a small MDP at once, in compiled code on several threads.

    Seed k gives exactly what :func:`capo.solve` gives with ``seed=k``.

    Args:
        mdp: the MDP, small enough for one dense inverse per seed.
        seeds: how many (0, 1, ...), or which.
        rule, stepsize: as in :func:`capo.solve`, but not ``batch``, which has no randomness.
        iterations: per seed.
        record: how many iterations to record, spread evenly in the logarithm; or which ones.
        track: a pair (s, a) whose probability is recorded.
        init, theta, sign_tol, allow_violation: as in :func:`capo.solve`.
        threads: how many; by default one per core.
        progress: show a status line on standard error.
        **options: of the rule and the step size, as in :func:`capo.solve`.

    >>> import capo
    >>> many = capo.solve_many(capo.mdps.chain(5), seeds=3, iterations=500)
    >>> many.policies.shape
    (3, 6, 2)
    """
    step_options = {key: options.pop(key, None) for key in ("multiple", "eta", "clip", "beta", "zeta")}
    if "behaviour" in options:
        options["policy"] = options.pop("behaviour")
    chosen = make_rule(rule, **options)
    if isinstance(chosen, Batch | FromIterable):
        raise CapoError(f"rule {chosen.name!r} uses no random numbers: solve_many needs a rule that does")
    step = make_stepsize(stepsize, mdp, allow_violation, **step_options)
    problem = prepare(mdp, chosen, step, iterations, init=init, theta=theta, sign_tol=sign_tol)
    which = checked_seeds(seeds)
    points = record_points(record, problem.limit)
    tracked_pair = None if track is None else tuple(check_pairs([track], mdp, "track")[0])
    ticker = show_progress(progress)
    started = time.perf_counter()
    finished = 0

    def one(seed: int) -> tuple[Floats, Floats, Floats, Ints, float]:
        nonlocal finished
        runner = problem.runner(seed, keep_trace=False)
        value, tracked = np.empty(len(points)), np.empty(len(points))
        for i, n in enumerate(np.diff(points, prepend=0).tolist()):
            runner.advance(n)
            value[i] = runner.status()[0]
            tracked[i] = np.exp(runner.log_policy[tracked_pair]) if tracked_pair is not None else np.nan
        runner.advance(problem.limit - int(points[-1]))
        finished += 1
        ticker.show(f"{finished} of {len(which)} seeds, {time.perf_counter() - started:.0f} s")
        return value, tracked, np.exp(runner.log_policy), runner.counts, runner.status()[1]

    workers = None if threads is None else whole("threads", threads)
    with single_threaded_blas, ThreadPoolExecutor(workers) as pool:
        rows = list(pool.map(one, which.tolist()))
    ticker.close()
    value, tracked, policies, counts, gap_bound = (np.array(column) for column in zip(*rows, strict=True))
    kept, seconds = tracked if track is not None else None, time.perf_counter() - started
    return ManyResult(mdp, which, problem.limit, points, value, kept, policies, counts, gap_bound, seconds)
