"""What a certificate is, and the two things every check works with.

:class:`Certificate` has one :class:`Line` per statement. A check reads a :class:`CheckedRun`, the run prepared for
checking, and writes what it found to a :class:`Checklist`.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from capo.tabular.coordinates import Batch, Rule
from capo.tabular.mdp import MDP, Floats, Ints, check_distribution
from capo.tabular.record import RunRecord, Trace
from capo.tabular.theory.lemmas import EPS, PolicyValues, Sides, optimal, value_rounding
from capo.update import StepSize

Status = Literal["held", "FAILED", "not decided", "not applicable"]
WIDTH = 110
# Of log pi, relatively: exp turns an error of EPS |x| in x into a relative one, and exp(-745) is the least number.
LOG_ROUNDING = 16 * 745.0 * EPS
EVERY_UP_TO = 20_000  # updates up to which every one is evaluated: seconds


@dataclass(frozen=True)
class Line:
    """One statement and what was found.

    Attributes:
        statement: its name.
        relation: ``<=`` or ``=``.
        ratio: the worst ratio found, at most 1 where the statement held: lhs / (rhs + rounding) for ``<=``, and
            \\|lhs - rhs\\| / rounding for ``=``.
        where: the iteration at which it was worst: k means after k updates.
        checks: how many comparisons were made.
        note: what the sides are, or why the statement does not apply or could not be decided.
    """

    statement: str
    relation: str
    status: Status
    ratio: float | None = None
    where: int | None = None
    checks: int = 0
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, ready for JSON."""
        entry = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if self.ratio is not None and not math.isfinite(self.ratio):
            entry["ratio"] = str(self.ratio)
        return entry

    def rows(self) -> list[str]:
        """The line as printed, wrapped."""
        ratio = "" if self.ratio is None else f"{self.ratio:.3g}"
        at = "" if self.where is None else str(self.where)
        front = f"{self.status:11} {self.relation:>2}{ratio:>9} {at:>7} {self.checks:>8}  "
        text = self.statement + (f": {self.note}" if self.note else "")
        rows = textwrap.wrap(text, WIDTH - len(front), break_long_words=False)
        return [front + rows[0], *(" " * (len(front) + 2) + row for row in rows[1:])]


@dataclass(frozen=True, repr=False)
class Certificate:
    """The paper's statements on one run, line by line. ``print(certificate)`` shows all of them."""

    title: str
    header: list[str]
    lines: list[Line]

    @property
    def held(self) -> bool:
        """Whether no line failed."""
        return not self.failed

    @property
    def failed(self) -> list[Line]:
        """The lines that failed."""
        return self._with("FAILED")

    @property
    def undecided(self) -> list[Line]:
        """The lines about a limit that the run did not reach: neither refuted nor confirmed."""
        return self._with("not decided")

    def _with(self, status: Status) -> list[Line]:
        return [line for line in self.lines if line.status == status]

    def line(self, beginning: str) -> Line:
        """The line whose statement begins with ``beginning``."""
        for line in self.lines:
            if line.statement.startswith(beginning):
                return line
        raise KeyError(f"no line begins with {beginning!r}: {[line.statement for line in self.lines]}")

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, ready for JSON."""
        lines = [line.to_dict() for line in self.lines]
        return {"title": self.title, "header": self.header, "held": self.held, "lines": lines}

    def _summary(self) -> str:
        count = {status: len(self._with(status)) for status in get_args(Status)}
        return ", ".join(f"{number} {status}" for status, number in count.items() if number)

    def __repr__(self) -> str:
        failed = [f"  FAILED: {line.statement}" for line in self.failed]
        return "\n".join([self.title, f"  {self._summary()}", *failed])

    def __str__(self) -> str:
        out = [self.title, *(f"  {text}" for text in self.header), f"  {self._summary()}", ""]
        out.append(f"{'':11}{'':3}{'worst':>9} {'at':>7} {'checks':>8}  statement")
        out += [row for line in self.lines if line.status != "not applicable" for row in line.rows()]
        skipped = self._with("not applicable")
        out += ["", "not applicable"] if skipped else []
        for reason in dict.fromkeys(line.note for line in skipped):
            names = "; ".join(line.statement for line in skipped if line.note == reason)
            out += textwrap.wrap(f"{reason}: {names}", WIDTH, initial_indent="  ", subsequent_indent="      ")
        return "\n".join(out)


# --- what checks write ----------------------------------------------------------------------------------------


@dataclass
class _Entry:
    relation: str
    note: str
    ratio: float = -1.0
    where: int | None = None
    checks: int = 0
    reason: str = ""
    undecided: bool = False

    def line(self, statement: str) -> Line:
        if self.checks == 0 and self.undecided and not self.reason:
            return Line(statement, self.relation, "not decided", note=self.note)
        if self.reason or self.checks == 0:
            reason = self.reason or "no such update among those checked"
            return Line(statement, self.relation, "not applicable", note=reason)
        status: Status = "FAILED" if self.ratio > 1 else "not decided" if self.undecided else "held"
        return Line(statement, self.relation, status, self.ratio, self.where, self.checks, self.note)


@dataclass
class Checklist:
    """Collects comparisons statement by statement, in the order in which the statements were announced."""

    entries: dict[str, _Entry] = field(default_factory=dict)

    def expect(self, statement: str, note: str = "", relation: str = "<=", unless: str = "") -> None:
        """Announce a statement that will be checked, ``unless`` there is a reason why it does not apply."""
        if self.skip(statement, unless):
            return
        entry = self.entries.setdefault(statement, _Entry(relation, note))
        entry.note = note or entry.note

    def skip(self, statement: str, reason: str) -> bool:
        """Say why a statement does not apply; with an empty reason it does. Returns whether it is skipped."""
        if reason:
            self.entries.setdefault(statement, _Entry("", "")).reason = reason
        return bool(reason)

    def leave_open(self, statement: str) -> None:
        """Say that the run ended before the limit that a statement is about: it can fail but not hold."""
        self.entries[statement].undecided = True

    def applies(self, statement: str) -> bool:
        """Whether a statement was announced and not skipped."""
        return statement in self.entries and not self.entries[statement].reason

    def compare(self, statement: str, sides: Sides, rounding: Any, where: Any) -> None:
        """Compare both sides, unless skipped; ``where`` is the iteration, one for all entries or one for each."""
        entry = self.entries.setdefault(statement, _Entry(sides.relation, ""))
        if entry.reason:
            return
        entry.relation = sides.relation
        ratio = np.atleast_1d(sides.ratio(rounding))
        if ratio.size == 0:
            return
        worst = int(ratio.argmax())
        entry.checks += ratio.size
        if ratio.flat[worst] > entry.ratio:
            entry.ratio = float(ratio.flat[worst])
            entry.where = int(np.broadcast_to(where, ratio.shape).flat[worst])

    def lines(self) -> list[Line]:
        """One line per statement."""
        return [entry.line(statement) for statement, entry in self.entries.items()]


# --- what checks read -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckedRun:
    """A run prepared for checking: rewards in [0, 1], V*, and how much rounding to allow.

    Values, advantages and gaps are those of ``mdp``, whose rewards lie in [0, 1].

    Attributes:
        record: the run as it was made, with the MDP's own rewards.
        scale, low: reward = scale * (reward in [0, 1]) + low.
        best: an optimal policy.
        rounding: error of a value that is evaluated here.
        engine: how far the run's own values may be off: their rounding and the drift that sign_tol allows.
        ambiguous: advantages up to this size have no reliable sign: 2 sign_tol and the rounding of A.
        slack: the gap that advantages counted as 0 can leave, 2 sign_tol/(1 - gamma).
        steps: (n,) the updates that one-step lines check: update t leads from policy t to policy t + 1.
        every: whether all traced updates are evaluated, for the lines about values and directions.
    """

    record: RunRecord
    mdp: MDP
    scale: float
    low: float
    mu: Floats
    best: PolicyValues
    rounding: float
    engine: float
    ambiguous: float
    slack: float
    steps: Ints
    every: bool
    seeds: int
    max_steps: int

    @property
    def trace(self) -> Trace:
        """The updates of the run; only where there is a trace."""
        assert self.record.trace is not None
        return self.record.trace

    @property
    def stepsize(self) -> StepSize:
        """The step size of a CAPO run."""
        assert self.record.stepsize is not None
        return self.record.stepsize

    @property
    def whole(self) -> bool:
        """Whether the trace holds every update of the run."""
        return self.record.trace is not None and len(self.trace) == self.record.iterations

    def other_rule(self, kind: type[Rule]) -> str:
        """Why a statement about rules of this kind does not apply; empty where it does."""
        return "" if isinstance(self.record.rule, kind) else f"the rule is not {kind.name}"

    @property
    def step_rounding(self) -> float:
        """Of a difference of values compared with advantages weighted by visitation / (1 - gamma)."""
        return 4 * self.rounding / (1 - self.mdp.gamma)

    @property
    def weight_rounding(self) -> float:
        """Of a probability."""
        return 64 * (1 + self.mdp.n_actions) * EPS

    def unit(self, values: Any) -> Floats:
        """Values of the original MDP in the units of ``mdp``."""
        return (np.asarray(values, float) - self.low / (1 - self.mdp.gamma)) / self.scale

    def recorded(self) -> tuple[Ints, Floats, Floats]:
        """Iterations k, V(rho) after k updates and how far it may be off: from the trace, then the history."""
        history = self.record.history
        ks, values = history["iteration"].astype(np.int64), self.unit(history["value"])
        # Between two entries of the history the larger of their bounds holds, since gaps do not grow.
        largest = np.maximum.accumulate(history["gap_bound"][::-1])[::-1]
        known = ks
        if self.record.trace is not None:
            n = len(self.trace)
            beyond = ks > n
            known = np.concatenate([ks[:1], np.arange(1, n + 1), ks[beyond]])
            values = np.concatenate([values[:1], self.unit(self.trace.value), values[beyond]])
        allowed = self.engine_at(np.interp(known, ks, largest))
        return known, values, np.broadcast_to(allowed, known.shape)

    def gaps_at_mu(self, values: list[Floats]) -> Floats:
        """V*(mu) - V(mu) of each of the values (S,)."""
        return np.array([self.mu @ (self.best.values - one) for one in values])

    def engine_at(self, gap_bound: Any) -> Any:
        """``engine``, plus what remains of an evaluation that goes only as far as the signs need.

        Such an evaluation adds (1 + gamma) times its error to the greatest advantage, so the gap it certifies
        bounds that error.
        """
        if not isinstance(self.record.rule, Batch) or self.record.critic != "signs":
            return self.engine
        return self.engine + np.asarray(gap_bound) / self.scale * (1 - self.mdp.gamma) / (1 + self.mdp.gamma)


def prepare_run(record: RunRecord, mu: Any, seeds: int, max_steps: int) -> CheckedRun:
    """Settle everything that comes before the first check."""
    original = record.mdp
    scaled = not original.has_unit_rewards
    mdp = original.rescale_rewards() if scaled else original
    least, most = original.reward_range
    low, scale = (least, (most - least) or 1.0) if scaled else (0.0, 1.0)
    mu = check_distribution(record.mu if mu is None else mu, mdp.n_states, "mu", positive=True)
    best = optimal(mdp, first=record.log_policy.argmax(axis=1))
    rounding = value_rounding(mdp, float(best.values.max()))
    # V* itself is known up to its Bellman residual.
    rounding += max(float(best.advantage.max()), 0.0) / (1 - mdp.gamma)
    g = 1 - mdp.gamma
    largest = max(abs(low) / g, float(np.abs(scale * best.values + low / g).max()))
    engine = rounding + (value_rounding(original, largest) + record.sign_tol) / scale
    tolerance = 2 * record.sign_tol / scale
    updates = 0 if record.trace is None else len(record.trace)
    affordable = int(max(20, 1e10 / mdp.n_states**3))  # evaluations that take seconds rather than minutes
    return CheckedRun(
        record=record,
        mdp=mdp,
        scale=scale,
        low=low,
        mu=mu,
        best=best,
        rounding=rounding,
        engine=engine,
        ambiguous=tolerance + (1 + mdp.gamma) * engine,
        slack=tolerance / g,
        steps=spread(updates, min(max_steps, updates, affordable)),
        every=updates <= min(affordable, EVERY_UP_TO),
        seeds=seeds,
        max_steps=max_steps,
    )


def spread(total: int, n: int) -> Ints:
    """Up to n of 0..total - 1, evenly, the first and the last among them."""
    if total <= 0 or n <= 0:
        return np.empty(0, np.int64)
    return np.unique(np.linspace(0, total - 1, min(n, total)).round().astype(np.int64))
