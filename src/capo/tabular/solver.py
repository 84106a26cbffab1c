"""The loop: coordinates in, exact advantages, the update, until a certified gap or a number of iterations."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from capo.checks import positive, whole
from capo.checks import seeds as checked_seeds
from capo.errors import CapoError, CapoWarning, unknown_name
from capo.progress import Ticker
from capo.tabular import kernels
from capo.tabular.coordinates import (
    BatchSource,
    Cyclic,
    ListSource,
    PairSource,
    Rule,
    Source,
    WalkSource,
    check_pairs,
    check_policy,
    make_rule,
)
from capo.tabular.critic import (
    SIGN_CRITIC_ABOVE,
    Coordinates,
    DenseCritic,
    DirectCritic,
    Evaluation,
    SignCritic,
    Steps,
    Walk,
    encode,
    greatest_advantage,
    require_dense,
    single_threaded_blas,
)
from capo.tabular.mdp import MDP, Bools, Floats, check_distribution, require_mdp
from capo.tabular.result import Result, Trace
from capo.update import StepSize, coordinate_update, log_normalise

Ints = npt.NDArray[np.int64]
CRITICS = ("auto", "direct", "signs")
DEFAULT_TOL = 1e-8
DEFAULT_CYCLES = 10_000  # where a run that asked for a gap gives up
RELATIVE_SIGN_TOL = 1e-13
TRACE_STEPS, TRACE_BYTES = 20_000, 64 * 2**20
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Snapshot:
    """What a callback gets at every record point; returning False stops the run."""

    iteration: int
    value: float
    gap_bound: float
    log_policy: Floats
    seconds: float


Callback = Callable[[Snapshot], object]


def stops(said: object) -> bool:
    """Whether a callback's answer is False; None and everything else go on."""
    return isinstance(said, bool | np.bool_) and not said


def rounded_up(number: float) -> str:
    """Three digits, never below the number itself: advice that works when it is followed."""
    text = f"{number:.3g}"
    return text if float(text) >= number else f"{number * 1.005:.3g}"


def solve(
    mdp: MDP,
    rule: Any = "cyclic",
    stepsize: str | StepSize = "log",
    iterations: int | None = None,
    tol: float | None = None,
    seed: int = 0,
    *,
    cycles: float | None = None,
    order: Any = None,
    d_gen: Any = None,
    behaviour: Any = None,
    epsilon: float | None = None,
    batch_size: int | None = None,
    horizon: int | None = None,
    restart: Any = None,
    multiple: float | None = None,
    eta: float | None = None,
    clip: float | None = None,
    beta: float | None = None,
    zeta: float | None = None,
    allow_violation: bool = False,
    init: Any = None,
    theta: Any = None,
    mu: Any = None,
    sign_tol: float | None = None,
    critic: Literal["auto", "direct", "signs"] = "auto",
    record_every: int | None = None,
    callback: Callback | None = None,
    progress: bool = False,
) -> Result:
    """Coordinate Ascent Policy Optimization with exact advantages.

    Args:
        mdp: the MDP.
        rule: ``cyclic``, ``randomized``, ``batch``, ``on-policy``, ``behaviour``, a rule object of
            :mod:`capo.tabular.coordinates`, or an iterable of pairs (s, a) or of lists of pairs.
        stepsize: ``log``, ``fixed``, ``clipped``, ``on-policy``, or a :class:`capo.StepSize`.
        iterations: stop after so many. Given without ``tol``, exactly that many.
        tol: stop when V* - V is certified to be at most this at every covered state; 1e-8 if neither this nor
            ``iterations`` nor ``cycles`` is given (or what the sign tolerance allows, if that is coarser).
        seed: of the rule's random numbers.
        cycles: ``iterations`` in units of the rule's cycle.
        order: of the cyclic rule.
        d_gen: of the randomized rule.
        behaviour, epsilon, batch_size: of the behaviour rule.
        horizon, restart: of walks (on-policy and behaviour).
        multiple, eta, clip, beta, zeta: of the step size.
        allow_violation: accept beta, zeta or multiple outside the range the theorems need, with a warning.
        init: (S, A) policy to start from; uniform if neither this nor ``theta`` is given.
        theta: (S, A) softmax parameters to start from.
        mu: (S,) distribution for the rate bounds of the certificate; uniform if not given.
        sign_tol: advantages up to this size count as 0. If not given, 1e-13 times a bound on the values (at
            least 1); with critic ``signs`` and a ``tol``, the largest that still reaches it.
        critic: how all pairs are evaluated in rule ``batch``: ``direct`` (LU), ``signs`` (iteration, only as far
            as the signs need), ``auto`` by size.
        record_every: iterations between entries of the history; every cycle at first, sparser later, if not
            given.
        callback: called with a :class:`Snapshot` at every entry of the history; returning False stops.
        progress: show a status line on standard error.

    Returns:
        A :class:`capo.Result`.

    >>> import capo
    >>> result = capo.solve(capo.mdps.chain(10), rule="cyclic")
    >>> result.converged, round(result.value, 3)
    (True, 92.274)
    """
    chosen = make_rule(
        rule,
        order=order,
        d_gen=d_gen,
        policy=behaviour,
        epsilon=epsilon,
        batch_size=batch_size,
        horizon=horizon,
        restart=restart,
    )
    step = make_stepsize(
        stepsize, mdp, allow_violation, multiple=multiple, eta=eta, clip=clip, beta=beta, zeta=zeta
    )
    seed = whole("seed", seed, 0)
    if callback is not None and not callable(callback):
        raise CapoError(f"callback={callback!r} must be callable")
    problem = _prepare(mdp, chosen, step, iterations, tol, cycles, init, theta, mu, sign_tol, critic, record_every)
    started = time.perf_counter()
    runner = problem.runner(seed)
    loop = _Loop(problem, runner, callback, Ticker(progress), started)
    loop.run()
    return problem.result(runner, loop, seed, time.perf_counter() - started)


def make_stepsize(stepsize: str | StepSize, mdp: MDP, allow_violation: bool, **options: float | None) -> StepSize:
    """A checked step size for this MDP, from its name and options or from a :class:`StepSize`."""
    require_mdp(mdp)
    given = {key: value for key, value in options.items() if value is not None}
    if isinstance(stepsize, StepSize):
        if given:
            raise CapoError(f"stepsize is a StepSize already: set {', '.join(given)} on it instead")
        step = stepsize
    else:
        takes = {"log": {"multiple"}, "fixed": {"eta"}, "clipped": {"clip"}, "on-policy": {"beta", "zeta"}}
        if isinstance(stepsize, str) and stepsize in takes and not set(given) <= takes[stepsize]:
            wrong = ", ".join(sorted(set(given) - takes[stepsize]))
            raise CapoError(f"step size {stepsize!r} does not take {wrong}; it takes {', '.join(takes[stepsize])}")
        step = StepSize(stepsize, **given)  # type: ignore[arg-type]
    step = step.with_defaults(mdp.n_actions)
    for violation in step.violations(mdp.n_actions):
        if not allow_violation:
            raise CapoError(f"step size: {violation}; pass allow_violation=True to run it all the same")
        warnings.warn(f"step size outside the theorems: {violation}", CapoWarning, stacklevel=3)
    return step


def value_scale(mdp: MDP) -> float:
    """A bound on \\|V_pi(s)\\| over all policies and states, at least 1.

    From max r / (1 - gamma) and min r / (1 - gamma), tightened by a few sweeps of optimal and worst backups.
    """
    lives = ~mdp.terminal | (mdp.reward != 0).any(axis=1)  # after an end nothing is worth anything
    upper = lives * (max(float(mdp.reward.max()), 0.0) / (1 - mdp.gamma))
    lower = lives * (min(float(mdp.reward.min()), 0.0) / (1 - mdp.gamma))
    entries = mdp.rows.nnz if mdp.is_sparse else mdp.rows.size
    for _ in range(int(np.clip(2e7 / entries, 2, 200))):
        upper = np.minimum(upper, mdp.q_values(upper).max(axis=1))
        lower = np.maximum(lower, mdp.q_values(lower).min(axis=1))
    return max(1.0, float(upper.max()), -float(lower.min()))


# --- what is settled before any work ------------------------------------------------------------------------


@dataclass
class _Problem:
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

    def runner(self, seed: int) -> _CoordinateRunner | _BatchRunner:
        source = self.rule.source(self.mdp, np.random.default_rng(seed))
        if isinstance(source, BatchSource):
            return _BatchRunner(self)
        return _CoordinateRunner(self, source)

    def result(self, runner: _CoordinateRunner | _BatchRunner, loop: _Loop, seed: int, seconds: float) -> Result:
        return Result(
            mdp=self.mdp,
            algorithm=f"{self.rule.name} CAPO",
            log_policy=runner.log_policy,
            values=runner.values,
            gap_bound=loop.gap_bound,
            covered=self.covered,
            converged=self.tol is not None and loop.gap_bound <= self.tol,
            stopped=loop.stopped,
            iterations=loop.iteration,
            seconds=seconds,
            history=loop.history(),
            settings={**self.settings, "seed": seed},
            counts=runner.counts,
            rule=self.rule,
            stepsize=self.stepsize,
            sign_tol=self.sign_tol,
            cycle_length=self.cycle,
            mu=self.mu,
            trace=runner.trace(),
            refactorisations=runner.refactorisations,
        )


def _prepare(
    mdp: MDP, rule: Rule, step: StepSize, iterations: int | None, tol: float | None, cycles: float | None,
    init: Any, theta: Any, mu: Any, sign_tol: float | None, critic: str, record_every: int | None,
) -> _Problem:  # fmt: skip
    rule.check(mdp)
    is_batch = rule.name == "batch"
    if not is_batch:
        require_dense(mdp.n_states)
    if critic not in CRITICS:
        raise unknown_name("critic", critic, CRITICS)
    if critic != "auto" and not is_batch:
        raise CapoError(f"critic={critic!r} is for rule='batch'; rule {rule.name!r} has one critic only")
    if critic == "auto":
        critic = "signs" if mdp.is_sparse and mdp.n_states >= SIGN_CRITIC_ABOVE else "direct"
    iterations = None if iterations is None else whole("iterations", iterations)
    record_every = None if record_every is None else whole("record_every", record_every)
    cycle = rule.cycle_length(mdp)
    if cycles is not None:
        if iterations is not None:
            raise CapoError("give iterations or cycles: cycles goes without iterations")
        iterations = max(1, round(positive("cycles", cycles) * cycle))
    tol = None if tol is None else positive("tol", tol)
    asked = tol if tol is not None else (DEFAULT_TOL if iterations is None else None)
    sign_tol, attainable = _sign_tolerance(mdp, sign_tol, asked, is_batch and critic == "signs")
    if tol is None and asked is not None and attainable > asked:
        warnings.warn(
            f"the default tol of {DEFAULT_TOL:g} cannot be certified on this MDP; stopping at "
            f"{rounded_up(attainable)} instead",
            CapoWarning,
            stacklevel=3,
        )
        asked = attainable
    if tol is not None and tol < attainable * (1 - 1e-9):
        other = " or critic='direct'" if is_batch and critic == "signs" else ""
        raise CapoError(
            f"tol={tol:g} cannot be certified: advantages up to sign_tol={sign_tol:.3g} count as 0, so the gap is "
            f"only known to within {attainable:.3g}; ask for tol >= {rounded_up(attainable)}, "
            f"or give a smaller sign_tol{other}"
        )
    settings = {"rule": rule.name, "step size": _describe(step)}
    settings |= {"order": rule.order} if isinstance(rule, Cyclic) and isinstance(rule.order, str) else {}
    settings |= {"critic": critic} if is_batch else {}
    settings |= {"tol": f"{asked:g}"} if asked is not None else {}
    return _Problem(
        mdp,
        rule,
        step,
        limit=iterations if iterations is not None else DEFAULT_CYCLES * cycle,
        tol=asked,
        first=initial_log_policy(mdp, init, theta),
        mu=None if mu is None else check_distribution(mu, mdp.n_states, "mu", positive=True),
        sign_tol=sign_tol,
        critic=critic,
        record_every=record_every,
        cycle=cycle,
        covered=rule.covers(mdp),
        settings=settings,
    )


def _sign_tolerance(mdp: MDP, given: float | None, tol: float | None, by_signs: bool) -> tuple[float, float]:
    """The sign tolerance and the gap it allows to certify."""
    # Exact signs leave A <= sign_tol; signs from bounds leave A <= 2 sign_tol, known to within another.
    factor = (3 if by_signs else 1) / (1 - mdp.gamma)
    if given is not None:
        return positive("sign_tol", given), positive("sign_tol", given) * factor
    # An error bound from residuals cannot be finer than their rounding over 1 - gamma.
    rounding = 1e-15 / (1 - mdp.gamma) if by_signs else 0.0
    finest = max(RELATIVE_SIGN_TOL, rounding) * value_scale(mdp)
    if by_signs and tol is not None:
        return max(finest, tol / factor), finest * factor
    return finest, finest * factor


def initial_log_policy(mdp: MDP, init: Any, theta: Any) -> Floats:
    """(S, A) log-policy from a policy, from softmax parameters, or uniform."""
    shape = (mdp.n_states, mdp.n_actions)
    if init is not None and theta is not None:
        raise CapoError("give init (a policy) or theta (softmax parameters), not both")
    if theta is not None:
        try:
            parameters = np.asarray(theta, np.float64)
        except (TypeError, ValueError):
            raise CapoError(f"theta={theta!r} is not an array of numbers") from None
        if parameters.shape != shape or not np.isfinite(parameters).all():
            raise CapoError(f"theta of shape {parameters.shape} must be finite and (S, A) = {shape}")
        return np.asarray(log_normalise(parameters)[0])
    if init is None:
        return np.full(shape, -np.log(mdp.n_actions))
    policy = check_policy(init, mdp, "init (softmax parameters go into theta)")
    with np.errstate(divide="ignore"):
        # log_normalise lifts -inf to the floor: a positive update can still bring the action back.
        return np.asarray(log_normalise(np.maximum(np.log(policy), -1e299))[0])


def _describe(step: StepSize) -> str:
    if step.kind == "log":
        return "log 1/pi" if step.multiple == 1 else f"{step.multiple:g} log 1/pi"
    if step.kind == "fixed":
        return f"fixed eta={step.eta:g}"
    if step.kind == "clipped":
        return f"min(log 1/pi, {step.clip:g})"
    return f"on-policy beta={step.beta:.4g} zeta={step.zeta:.4g}"


# --- runners: the two ways an iteration is made ---------------------------------------------------------------


class _CoordinateRunner:
    """Single coordinates and mini-batches on the dense critic."""

    def __init__(self, problem: _Problem, source: Source, keep_trace: bool = True) -> None:
        self._mdp, self._step, self._source = problem.mdp, problem.stepsize, source
        self._covered = problem.covered
        self._first = problem.first
        self._critic = DenseCritic(problem.mdp, problem.first, problem.sign_tol)
        shape = (problem.mdp.n_states, problem.mdp.n_actions)
        single = isinstance(source, PairSource) or (isinstance(source, WalkSource) and source.batch == 1)
        size = 8 * (shape[1] + 4) if single else 18 * shape[0] * shape[1]
        self._room = min(TRACE_STEPS, TRACE_BYTES // size) if keep_trace else 0
        self._single = single
        self._steps: list[Steps] = []
        self._batches: list[tuple[npt.NDArray[np.int8], Floats, Floats, Bools, float]] = []
        idle = Walk(np.empty((0, 0)), 0.0, np.empty(0), 1, np.zeros(2, np.int64))
        self._idle = idle

    @property
    def log_policy(self) -> Floats:
        return self._critic.log_policy

    @property
    def values(self) -> Floats:
        return self._critic.values

    @property
    def counts(self) -> Ints:
        return self._critic.counts

    @property
    def refactorisations(self) -> int:
        return self._critic.refactorisations

    def advance(self, n: int) -> int:
        """Make up to n iterations; fewer only where the user's iterable ends."""
        if not self._single:
            return self._advance_batches(n)
        done = 0
        while done < n:
            size = min(n - done, _CHUNK)
            steps = self._critic.run(self._coordinates(size), self._step, self._room)
            self._room -= len(steps.state)
            if len(steps.state):
                self._steps.append(steps)
            done += len(steps.value)
            if len(steps.value) < size:
                break
        return done

    def _coordinates(self, n: int) -> Coordinates:
        if isinstance(self._source, WalkSource):
            return Coordinates(np.empty((0, 2), np.int64), self._source.uniforms(n), True, self._source.walk)
        assert isinstance(self._source, PairSource)
        return Coordinates(self._source.take(n), np.empty((0, 3)), False, self._idle)

    def _advance_batches(self, n: int) -> int:
        for done in range(n):
            if isinstance(self._source, WalkSource):
                pairs = self._critic.walk_pairs(self._source.walk, self._source.uniforms(self._source.batch))
            else:
                assert isinstance(self._source, ListSource)
                batch = next(self._source.batches, None)
                if batch is None:
                    return done
                pairs = batch
            self._update(np.unique(pairs, axis=0))
        return n

    def _update(self, pairs: Ints) -> None:
        """One iteration on distinct pairs (n, 2), all with the advantages of the policy before it."""
        critic = self._critic
        states, index = np.unique(pairs[:, 0], return_inverse=True)
        batch = np.zeros((len(states), self._mdp.n_actions), bool)
        batch[index, pairs[:, 1]] = True
        critic.counts[states] += batch
        advantage = critic.advantage_rows(states)
        signs = np.where(batch & (np.abs(advantage) > critic.sign_tol), np.sign(advantage), 0).astype(np.int8)
        before = critic.log_policy[states]
        alpha = self._step.alpha(before, signs, critic.counts[states])
        moved = (signs != 0).any(axis=1)
        critic.replace_rows(states[moved], coordinate_update(before, signs, alpha)[moved])
        if self._room > 0:
            self._room -= 1
            value = float(critic.mdp.start @ critic.values)
            whole = (_scatter(part, states, self._first.shape) for part in (signs, alpha, batch))
            signs, alpha, batch = whole
            self._batches.append((signs, alpha, critic.log_policy.copy(), batch, value))

    def status(self) -> tuple[float, float]:
        """V at the start distribution and the greatest advantage over the covered states."""
        q = self._critic.checked_q()
        advantage = (q - self._critic.values[:, None])[self._covered]
        return float(self._mdp.start @ self._critic.values), greatest_advantage(advantage)

    def trace(self) -> Trace | None:
        if self._steps:
            parts = self._steps
            return Trace(
                first=self._first,
                sign=np.concatenate([p.sign for p in parts]),
                alpha=np.concatenate([p.alpha for p in parts]),
                value=np.concatenate([p.value[: len(p.state)] for p in parts]),
                state=np.concatenate([p.state for p in parts]),
                action=np.concatenate([p.action for p in parts]),
                row=np.concatenate([p.row for p in parts]),
            )
        return _batch_trace(self._first, self._batches)


class _BatchRunner:
    """All pairs at once; the evaluation of the policy in force is kept for status and for the next update."""

    def __init__(self, problem: _Problem) -> None:
        mdp = problem.mdp
        self._mdp, self._first = mdp, problem.first
        self._kernel_step = encode(problem.stepsize, mdp.n_actions)
        self.log_policy = problem.first.copy()
        self._policy = np.exp(self.log_policy)
        self.counts = np.zeros(problem.first.shape, np.int64)
        self.refactorisations = 0
        kind = SignCritic if problem.critic == "signs" else DirectCritic
        self._critic: SignCritic | DirectCritic = kind(mdp, problem.sign_tol)
        self._room = min(TRACE_STEPS, TRACE_BYTES // (18 * problem.first.size))
        self._batches: list[tuple[npt.NDArray[np.int8], Floats, Floats, Bools, float]] = []
        self._now: Evaluation = self._critic.evaluate(self._policy)

    @property
    def values(self) -> Floats:
        return self._now.values

    def advance(self, n: int) -> int:
        """Make n iterations."""
        for _ in range(n):
            signs = self._now.signs
            self.counts += 1
            alpha = np.empty_like(self.log_policy)
            kernels.update_all(*self._kernel_step, self.log_policy, signs, self.counts, alpha, self._policy)
            self._now = self._critic.evaluate(self._policy)
            if self._room > 0:
                self._room -= 1
                value = float(self._mdp.start @ self._now.values)
                every = np.ones(signs.shape, bool)
                self._batches.append((signs, alpha, self.log_policy.copy(), every, value))
        return n

    def status(self) -> tuple[float, float]:
        """V at the start distribution and the greatest advantage."""
        return float(self._mdp.start @ self._now.values), self._now.greatest

    def trace(self) -> Trace | None:
        return _batch_trace(self._first, self._batches)


def _scatter(rows: npt.NDArray[Any], states: Ints, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    whole = np.zeros(shape, rows.dtype)
    whole[states] = rows
    return whole


def _batch_trace(
    first: Floats, batches: list[tuple[npt.NDArray[np.int8], Floats, Floats, Bools, float]]
) -> Trace | None:
    if not batches:
        return None
    sign, alpha, log_policies, batch, value = (list(column) for column in zip(*batches, strict=True))
    return Trace(
        first=first,
        sign=np.stack(sign),
        alpha=np.stack(alpha),
        value=np.array(value),
        log_policies=np.stack(log_policies),
        batch=np.stack(batch),
    )


class _Loop:
    """Advances a runner from record point to record point until something says stop."""

    def __init__(
        self,
        problem: _Problem,
        runner: _CoordinateRunner | _BatchRunner,
        callback: Callback | None,
        ticker: Ticker,
        started: float,
    ) -> None:
        self._problem, self._runner, self._callback = problem, runner, callback
        self._ticker, self._started = ticker, started
        self._rows: list[tuple[int, float, float, float]] = []
        self.iteration = 0
        self.gap_bound = np.inf
        self.stopped = ""

    def run(self) -> None:
        """Run to the end; :attr:`stopped` says why it ended."""
        try:
            self._record()
            while not self.stopped:
                n = self._next_record() - self.iteration
                done = self._runner.advance(n)
                self.iteration += done
                if done < n:
                    self.stopped = "the iterable of coordinates ended"
                if done > 0:
                    self._record()
        finally:
            self._ticker.close()

    def _next_record(self) -> int:
        every = self._problem.record_every
        if every is None:
            # Every cycle for the first 200, then a hundredth further each time: dense where curves move.
            cycle = self._problem.cycle
            every = max(cycle, self.iteration // 200 // cycle * cycle)
        return min(self.iteration + every, self._problem.limit)

    def _record(self) -> None:
        problem = self._problem
        value, greatest = self._runner.status()
        self.gap_bound = greatest / (1 - problem.mdp.gamma)
        seconds = time.perf_counter() - self._started
        self._rows.append((self.iteration, value, self.gap_bound, seconds))
        self._ticker.show(
            f"iteration {self.iteration}  value {value:.8g}  V* - V <= {self.gap_bound:.3g}  {seconds:.0f} s"
        )
        if problem.tol is not None and self.gap_bound <= problem.tol:
            self.stopped = f"V* - V <= {problem.tol:g} certified"
        elif self.iteration >= problem.limit:
            self.stopped = f"{problem.limit} iterations done"
            self.stopped += f" before V* - V <= {problem.tol:g}" if problem.tol is not None else ""
        if self._callback is not None:
            now = Snapshot(self.iteration, value, self.gap_bound, self._runner.log_policy.copy(), seconds)
            if stops(self._callback(now)) and not self.stopped:
                self.stopped = "the callback said so"

    def history(self) -> dict[str, Floats]:
        iteration, value, gap, seconds = (np.array(column) for column in zip(*self._rows, strict=True))
        return {"iteration": iteration, "value": value, "gap_bound": gap, "seconds": seconds}


# --- many seeds ------------------------------------------------------------------------------------------------


@dataclass(repr=False)
class ManyResult:
    """Many seeds of one run.

    Attributes:
        seeds: (K,).
        iterations: of every seed.
        iteration: (R,) record points.
        value: (K, R) V at the start distribution.
        tracked: (K, R) pi(a|s) of the tracked pair; None if none was.
        policies: (K, S, A) policies after the last iteration.
        counts: (K, S, A) visits.
        gap_bound: (K,) certified bound on V* - V at the end, in the states that the rule can meet.
    """

    mdp: MDP
    seeds: Ints
    iterations: int
    iteration: Ints
    value: Floats
    tracked: Floats | None
    policies: Floats
    counts: Ints
    gap_bound: Floats
    seconds: float

    def __repr__(self) -> str:
        bounds = f"{self.gap_bound.min():.3g} to {self.gap_bound.max():.3g}"
        what = f"{len(self.seeds)} seeds x {self.iterations:,} iterations on {self.mdp.name}"
        return f"<ManyResult: {what}, gap bounds {bounds}, {self.seconds:.3g} s>"

    @property
    def updates_per_second(self) -> float:
        return len(self.seeds) * self.iterations / self.seconds


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
    """Many seeds of a small MDP at once, in compiled code spread over threads; seed k is what ``solve`` gives.

    Args:
        mdp: the MDP, small enough for a dense inverse a seed.
        seeds: how many (0, 1, ...), or which.
        rule, stepsize: as in :func:`solve`; ``batch`` is refused, since it has no randomness.
        iterations: of every seed.
        record: how many record points, spread evenly in the logarithm; or which iterations.
        track: a pair (s, a) whose probability is recorded.
        init, theta, sign_tol, allow_violation: as in :func:`solve`.
        threads: how many; as many as there are cores if not given.
        progress: show a status line.
        **options: of the rule and the step size, as in :func:`solve`.
    """
    step_options = {key: options.pop(key, None) for key in ("multiple", "eta", "clip", "beta", "zeta")}
    if "behaviour" in options:
        options["policy"] = options.pop("behaviour")
    chosen = make_rule(rule, **options)
    if chosen.name in ("batch", "given"):
        raise CapoError(f"solve_many needs a rule with random numbers of its own, not {chosen.name!r}")
    step = make_stepsize(stepsize, mdp, allow_violation, **step_options)
    problem = _prepare(mdp, chosen, step, iterations, None, None, init, theta, None, sign_tol, "auto", None)
    which = checked_seeds(seeds)
    points = record_points(record, problem.limit)
    tracked_pair = None if track is None else tuple(check_pairs([track], mdp, "track")[0])
    ticker = Ticker(progress)
    started = time.perf_counter()
    finished = 0

    def one(seed: int) -> tuple[Floats, Floats, Floats, Ints, float]:
        nonlocal finished
        runner = _CoordinateRunner(problem, chosen.source(mdp, np.random.default_rng(seed)), keep_trace=False)
        value, tracked = np.empty(len(points)), np.empty(len(points))
        done = 0
        for i, point in enumerate(points):
            runner.advance(int(point) - done)
            done = int(point)
            value[i] = runner.status()[0]
            tracked[i] = np.exp(runner.log_policy[tracked_pair]) if tracked_pair is not None else np.nan
        runner.advance(problem.limit - done)
        finished += 1
        ticker.show(f"{finished} of {len(which)} seeds, {time.perf_counter() - started:.0f} s")
        return value, tracked, np.exp(runner.log_policy), runner.counts, runner.status()[1]

    workers = None if threads is None else whole("threads", threads)
    with single_threaded_blas, ThreadPoolExecutor(workers) as pool:
        rows = list(pool.map(one, which.tolist()))
    ticker.close()
    value, tracked, policies, counts, greatest = (np.array(column) for column in zip(*rows, strict=True))
    return ManyResult(
        mdp,
        which,
        problem.limit,
        points,
        value,
        tracked if track is not None else None,
        policies,
        counts,
        greatest / (1 - mdp.gamma),
        time.perf_counter() - started,
    )


def record_points(record: int | Sequence[int], iterations: int) -> Ints:
    if isinstance(record, Sequence) or np.ndim(record):
        listed = record if isinstance(record, Sequence) else np.asarray(record).tolist()
        points = np.unique(np.array([whole("record", point, 0) for point in listed], np.int64))
        if points.size == 0 or points[-1] > iterations:
            raise CapoError(f"record: points must lie in 0..{iterations}")
        return points
    spread = np.geomspace(1, iterations + 1, whole("record", record)) - 1
    return np.unique(np.concatenate([[0], np.round(spread), [iterations]]).astype(np.int64))
