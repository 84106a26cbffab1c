"""What a run leaves behind, as plain data: its updates one by one, its history, and the record of it all.

Solvers and baselines write these; :mod:`capo.tabular.theory` reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from capo.checks import whole
from capo.errors import CapoError
from capo.progress import show_progress
from capo.tabular.coordinates import Rule
from capo.tabular.mdp import MDP, Bools, Floats, Ints
from capo.update import StepSize

Signs = npt.NDArray[np.int8]


@dataclass
class Trace:
    """The updates of a run one by one, from the first on: what a certificate checks.

    Single-coordinate runs fill ``state``, ``action`` (T,) and ``row`` (T, A), the log-policy of that state after
    the update. The others fill ``log_policies`` (T, S, A), the whole log-policy after it. ``sign`` and ``alpha``
    are (T,) or (T, S, A) accordingly, with sign 0 outside the batch.

    Attributes:
        first: (S, A) log-policy before the first update.
        batch: (T, S, A) which pairs each update changed; None for single coordinates.
        value: (T,) V at the start distribution after each update, as computed during the run.
    """

    first: Floats
    sign: Signs
    alpha: Floats
    value: Floats
    state: Ints | None = None
    action: Ints | None = None
    row: Floats | None = None
    log_policies: Floats | None = None
    batch: Bools | None = None

    def __len__(self) -> int:
        return len(self.value)

    @property
    def single(self) -> bool:
        """Whether every update changed one coordinate."""
        return self.state is not None

    @property
    def coordinates(self) -> tuple[Ints, Ints, Floats]:
        """``state``, ``action`` and ``row`` of a single-coordinate run."""
        assert self.state is not None
        assert self.action is not None
        assert self.row is not None
        return self.state, self.action, self.row

    @property
    def batches(self) -> tuple[Bools, Floats]:
        """``batch`` and ``log_policies`` of a run that updates several pairs at once."""
        assert self.batch is not None
        assert self.log_policies is not None
        return self.batch, self.log_policies

    def policies(self, wanted: Any) -> Iterator[tuple[int, Floats]]:
        """(k, log-policy after k updates) for each k in ``wanted``, in increasing order."""
        indices = np.unique(np.asarray(wanted, np.int64))
        if not self.single:
            for k in indices.tolist():
                yield k, self.first if k == 0 else self.batches[1][k - 1]
            return
        states, _, rows = self.coordinates
        log_policy, done = self.first.copy(), 0
        for k in indices.tolist():
            # If a state was updated several times, the last one counts: numpy assigns repeated indices in order.
            log_policy[states[done:k]] = rows[done:k]
            done = k
            yield k, log_policy.copy()

    def update(self, t: int) -> tuple[Signs, Bools]:
        """(S, A) signs of update t, 0 outside its batch, and (S, A) the pairs that it changed."""
        if not self.single:
            return np.asarray(self.sign[t]), np.asarray(self.batches[0][t])
        signs, batch = np.zeros(self.first.shape, np.int8), np.zeros(self.first.shape, bool)
        pair = self.coordinates[0][t], self.coordinates[1][t]
        signs[pair], batch[pair] = self.sign[t], True
        return signs, batch


@dataclass
class RoundTrace:
    """The rounds of a run of modified CAPO one by one, from the first on: what its certificate checks.

    Attributes:
        log_policies: (R + 1, S, A), before the first round and after each.
        values: (R + 1, S) V at the same times.
        jacobi: (R,) whether the sweeps of a round were Jacobi's.
        multiple: of log 1/pi in every update.
        in_turn: whether the pairs of a state were updated one after another.
        all_pairs: whether every round updated every pair.
        tolerance: differences of Q up to this had sign 0.
    """

    log_policies: Floats
    values: Floats
    jacobi: Bools
    multiple: float
    in_turn: bool
    all_pairs: bool
    tolerance: float


@dataclass(frozen=True)
class Baseline:
    """Which baseline made a run, as far as the theory needs to know.

    Attributes:
        monotone: whether the method guarantees that V never decreases at any state.
        proven_step: whether policy gradient took the step (1 - gamma)^3 / 8 on rewards in [0, 1].
        eta: step size of the natural policy gradient.
    """

    method: Literal[
        "policy gradient",
        "natural policy gradient",
        "policy iteration",
        "value iteration",
        "modified policy iteration",
    ]
    monotone: bool = False
    proven_step: bool = False
    eta: float = 0.0


@dataclass(repr=False)
class RunRecord:
    """Everything that is known about one run; :class:`capo.Result` says what the fields mean."""

    mdp: MDP
    algorithm: str
    log_policy: Floats
    values: Floats
    gap_bound: float
    covered: Bools
    converged: bool
    stopped: str
    iterations: int
    seconds: float
    history: dict[str, Floats]
    settings: dict[str, Any] = field(default_factory=dict)
    tol: float | None = None
    counts: Ints | None = None
    rule: Rule | None = None
    stepsize: StepSize | None = None
    baseline: Baseline | None = None
    critic: str | None = None
    sign_tol: float = 0.0
    cycle_length: int = 1
    mu: Floats | None = None
    trace: Trace | None = None
    rounds: RoundTrace | None = None
    refactorisations: int = 0
    horizon: int | None = None
    undiscounted: bool = False

    @cached_property
    def policy(self) -> Floats:
        """(S, A)."""
        return np.exp(self.log_policy)

    @cached_property
    def q(self) -> Floats:
        """(S, A) Q of the policy; minus infinity where the action is not allowed."""
        return self.mdp.masked(self.mdp.q_values(self.values))

    @property
    def value(self) -> float:
        """V at the start distribution."""
        return float(self.mdp.start @ self.values)

    @property
    def cycles(self) -> float:
        """Iterations in units of the rule's cycle (S*A single updates; 1 for batch)."""
        return self.iterations / self.cycle_length


# --- the history, and when to stop ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """What a callback receives at every entry of the history. Returning False stops the run."""

    iteration: int
    value: float
    gap_bound: float
    log_policy: Floats
    seconds: float


Callback = Callable[[Snapshot], object]
# V at the start distribution, the certified gap, and the (S, A) log-policy or a function that makes it
Status = tuple[float, float, "Floats | Callable[[], Floats]"]


class Recorder:
    """Collects a run's history and decides when the run is over.

    Args:
        algorithm: for the progress line.
        limit: the most iterations.
        tol: stop when V* - V is certified to be at most this; None for never.
        callback: called at every entry of the history.
        progress: show a status line on standard error.
        time_limit: seconds after which the run ends at the next entry; None for never.

    Attributes:
        stopped: why the run is over, in words; empty as long as it is not.
    """

    def __init__(
        self, algorithm: str, limit: int, tol: float | None, callback: Callback | None, progress: bool,
        time_limit: float | None = None,
    ) -> None:  # fmt: skip
        self._time_limit = time_limit
        self._algorithm, self._limit, self._tol, self._callback = algorithm, limit, tol, callback
        self._ticker, self._started = show_progress(progress), time.perf_counter()
        self._rows: list[tuple[int, float, float, float]] = []
        self.stopped = ""

    def run(
        self,
        advance: Callable[[int], int],
        status: Callable[[], Status],
        ended: str,
        cycle: int = 1,
        every: int | None = None,
        early: bool = False,
    ) -> int:
        """Advance from one entry of the history to the next until the run is over; the iterations made.

        Args:
            advance: makes up to n iterations and returns how many; fewer only if there are no more.
            status: V at the start distribution, the certified gap, and the (S, A) log-policy or what makes it.
            ended: what to say when there are no more iterations.
            cycle: iterations in a cycle of the rule.
            every: iterations between entries; by default every cycle at first, then sparser.
            early: whether ``advance`` may return early because there is something to record; it then returns 0
                when there are no more iterations.
        """
        iteration = 0
        try:
            self._record(iteration, *status())
            while not self.stopped:
                # Every cycle for the first 200, then a hundredth further each time: dense where curves move.
                n = every or max(cycle, iteration // 200 // cycle * cycle)
                n = min(n, self._limit - iteration)
                done = advance(n)
                iteration += done
                if done < n and not (early and done):
                    self.stopped = ended
                if done > 0:
                    self._record(iteration, *status())
        finally:
            self._ticker.close()
        return iteration

    def _record(
        self, iteration: int, value: float, gap_bound: float, log_policy: Floats | Callable[[], Floats]
    ) -> None:
        """Add the policy after ``iteration`` iterations to the history."""
        seconds, tol = time.perf_counter() - self._started, self._tol
        self._rows.append((iteration, value, gap_bound, seconds))
        self._ticker.show(
            f"{self._algorithm}: iteration {iteration}  value {value:.8g}  V* - V <= {gap_bound:.3g}  "
            f"{seconds:.0f} s"
        )
        if tol is not None and gap_bound <= tol:
            self.stopped = f"V* - V <= {tol:g} certified"
        elif iteration >= self._limit:
            self.stopped = f"{self._limit} iterations done" + ("" if tol is None else f" before V* - V <= {tol:g}")
        elif self._time_limit is not None and seconds >= self._time_limit:
            self.stopped = f"the time limit of {self._time_limit:g} s was reached"
        if self._callback is not None:
            policy = log_policy() if callable(log_policy) else log_policy.copy()
            said = self._callback(Snapshot(iteration, value, gap_bound, policy, seconds))
            if isinstance(said, bool | np.bool_) and not said:
                self.stopped = self.stopped or "stopped by the callback"

    def settle(self, iteration: int, value: float, gap_bound: float) -> None:
        """Make this the last entry of the history: what is certified in the end, wherever the run stopped."""
        self._rows = [row for row in self._rows if row[0] < iteration]
        self._rows.append((iteration, value, gap_bound, time.perf_counter() - self._started))

    def outcome(self) -> dict[str, Any]:
        """The fields of a :class:`RunRecord` that are known here."""
        columns = (np.array(column) for column in zip(*self._rows, strict=True))
        history = dict(zip(("iteration", "value", "gap_bound", "seconds"), columns, strict=True))
        gap_bound, seconds = self._rows[-1][2], time.perf_counter() - self._started
        return {"gap_bound": gap_bound, "stopped": self.stopped, "seconds": seconds, "history": history}


# --- many seeds -----------------------------------------------------------------------------------------------


@dataclass(repr=False)
class ManyResult:
    """The outcome of :func:`capo.solve_many`: one run for each of K seeds.

    Attributes:
        seeds: (K,).
        iterations: per seed.
        iteration: (R,) recorded iterations.
        value: (K, R) V at the start distribution.
        tracked: (K, R) pi(a|s) of the tracked pair; None if no pair was tracked.
        policies: (K, S, A) policies after the last iteration.
        counts: (K, S, A) visits.
        gap_bound: (K,) certified bound on V* - V at the end, at the states that the rule can reach.
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
        what = f"{len(self.seeds)} seeds x {self.iterations:,} iterations on {self.mdp.label}"
        return f"<ManyResult: {what}, gap bounds {bounds}, {self.seconds:.3g} s>"

    @property
    def updates_per_second(self) -> float:
        """Over all seeds."""
        return len(self.seeds) * self.iterations / self.seconds


def record_points(record: int | Sequence[int], iterations: int) -> Ints:
    """(R,) iterations to record: the given ones, or ``record`` of them spread evenly in the logarithm."""
    if isinstance(record, Sequence) or np.ndim(record):
        listed = record if isinstance(record, Sequence) else np.asarray(record).tolist()
        points = np.unique(np.array([whole("record", point, 0) for point in listed], np.int64))
        if points.size == 0 or points[-1] > iterations:
            raise CapoError(f"record must list iterations between 0 and {iterations}")
        return points
    spread = np.geomspace(1, iterations + 1, whole("record", record)) - 1
    return np.unique(np.concatenate([[0], np.round(spread), [iterations]]).astype(np.int64))
