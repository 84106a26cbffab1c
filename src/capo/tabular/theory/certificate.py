"""What a certificate is: lines, each a statement with what was found."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from capo.tabular.theory.evaluation import Sides

Status = Literal["held", "FAILED", "not applicable"]
WIDTH = 110


@dataclass(frozen=True)
class Line:
    """One statement.

    Attributes:
        statement: its name.
        relation: ``<=`` or ``=``.
        ratio: the worst found, at most 1 where it held: lhs / (rhs + rounding) for ``<=``, and
            \\|lhs - rhs\\| / rounding for ``=``.
        where: the iteration at which it was worst: k means after k updates.
        checks: how many comparisons were made.
        note: what the sides are, or why the statement does not apply.
    """

    statement: str
    relation: str
    status: Status
    ratio: float | None = None
    where: int | None = None
    checks: int = 0
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class Certificate:
    """The paper's statements along one run, line by line."""

    title: str
    header: list[str]
    lines: list[Line]

    @property
    def held(self) -> bool:
        """Whether no line failed."""
        return not self.failed

    @property
    def failed(self) -> list[Line]:
        return [line for line in self.lines if line.status == "FAILED"]

    def line(self, beginning: str) -> Line:
        """The line whose statement begins so."""
        for line in self.lines:
            if line.statement.startswith(beginning):
                return line
        raise KeyError(f"no line begins with {beginning!r}: {[line.statement for line in self.lines]}")

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, ready for JSON."""
        lines = [line.to_dict() for line in self.lines]
        for entry in lines:
            if entry["ratio"] is not None and not math.isfinite(entry["ratio"]):
                entry["ratio"] = str(entry["ratio"])
        return {"title": self.title, "header": self.header, "held": self.held, "lines": lines}

    def __str__(self) -> str:
        count = {status: sum(line.status == status for line in self.lines) for status in STATUSES}
        summary = ", ".join(f"{number} {status}" for status, number in count.items() if number)
        out = [self.title, *(f"  {text}" for text in self.header), f"  {summary}", ""]
        out.append(f"{'':6}{'':3}{'worst':>9} {'at':>7} {'checks':>8}  statement")
        out += [row for line in self.lines if line.status != "not applicable" for row in _row(line)]
        skipped = [line for line in self.lines if line.status == "not applicable"]
        reasons = dict.fromkeys(line.note for line in skipped)
        out += ["", "not applicable"] if skipped else []
        for reason in reasons:
            names = "; ".join(line.statement for line in skipped if line.note == reason)
            out += textwrap.wrap(f"{reason}: {names}", WIDTH, initial_indent="  ", subsequent_indent="      ")
        return "\n".join(out)


STATUSES: tuple[Status, ...] = ("held", "FAILED", "not applicable")


def _row(line: Line) -> list[str]:
    ratio = "" if line.ratio is None else f"{line.ratio:.3g}"
    at = "" if line.where is None else str(line.where)
    front = f"{line.status:6} {line.relation:>2}{ratio:>9} {at:>7} {line.checks:>8}  "
    text = line.statement + (f": {line.note}" if line.note else "")
    rows = textwrap.wrap(text, WIDTH - len(front), break_long_words=False)
    return [front + rows[0], *(" " * (len(front) + 2) + row for row in rows[1:])]


@dataclass
class _Entry:
    relation: str
    note: str
    ratio: float = -1.0
    where: int | None = None
    checks: int = 0
    reason: str = ""


@dataclass
class Book:
    """Collects comparisons statement by statement, in the order in which they were announced."""

    entries: dict[str, _Entry] = field(default_factory=dict)

    def expect(self, statement: str, note: str = "", relation: str = "<=") -> None:
        """Announce a statement that will be checked where it comes up."""
        entry = self.entries.setdefault(statement, _Entry(relation, note))
        entry.note = note or entry.note

    def skip(self, statement: str, reason: str) -> None:
        """Say why a statement does not apply."""
        self.entries.setdefault(statement, _Entry("", "")).reason = reason

    def add(self, statement: str, sides: Sides, rounding: Any, where: Any) -> None:
        """Compare; ``where`` is the iteration, one for all entries or one each."""
        entry = self.entries.setdefault(statement, _Entry(sides.relation, ""))
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
        return [_line(statement, entry) for statement, entry in self.entries.items()]


def _line(statement: str, entry: _Entry) -> Line:
    if entry.reason or entry.checks == 0:
        reason = entry.reason or "no such update among those checked"
        return Line(statement, entry.relation, "not applicable", note=reason)
    status: Status = "held" if entry.ratio <= 1 else "FAILED"
    return Line(statement, entry.relation, status, entry.ratio, entry.where, entry.checks, entry.note)
