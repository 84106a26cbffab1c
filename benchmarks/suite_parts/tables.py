"""What the stored rows say, as Markdown."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capo.report.statistics import Estimate, aggregate_mean, stratified_bootstrap
from suite_parts.lines import Lines, Row
from suite_parts.tasks import TASKS
from suite_parts.training import ALGORITHMS, PEERS, TITLES

SHOWN = ("random", "ncapo", "ppo", "pqn", "sb3-ppo", "sb3-dqn")  # the order of the columns
BEGIN, END = "<!-- suite: begin -->", "<!-- suite: end -->"


@dataclass(frozen=True)
class Cell:
    """One algorithm on one task."""

    rows: list[Row]  # one per seed

    @property
    def estimate(self) -> Estimate:
        """Mean over seeds of the seeds' means, with its bootstrap interval."""
        return stratified_bootstrap([np.array([row["mean"] for row in self.rows])], aggregate_mean)

    def __str__(self) -> str:
        found = self.estimate
        spread = f" ({number(found.low)} to {number(found.high)})" if len(self.rows) > 1 else ""
        return f"{number(found.value)}{spread}"


Cells = dict[tuple[str, str], Cell]  # by task and algorithm


def number(value: float) -> str:
    """Three digits, never an exponent.

    >>> number(-123.4), number(0.7349), number(8.0)
    ('-123', '0.735', '8.00')
    """
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}"


def read(folder: Path, frames: int) -> Cells:
    """Every stored row of trainings of this length."""
    found: Cells = {}
    for algorithm in ALGORITHMS:
        for row in Lines(folder / f"{algorithm}.jsonl").rows:
            if row["env"] in TASKS and row["frames"] == min(frames, TASKS[row["env"]].frames):
                found.setdefault((row["env"], algorithm), Cell([])).rows.append(row)
    return found


def tables(folder: Path, frames: int) -> str:
    """Returns, the comparison with the better peer, and the seconds."""
    cells = read(folder, frames)
    if not cells:
        return f"{folder}: no finished training of {frames:,} frames"
    parts = [returns_table(cells), *comparison(cells), seconds_table(cells), made_on(cells)]
    return "\n\n".join(parts)


def returns_table(cells: Cells) -> str:
    """One row per task: the mean return and its interval."""
    columns = [name for name in SHOWN if any(name == algorithm for _, algorithm in cells)]
    header = ["environment", "seeds", *(TITLES[name] for name in columns)]
    rows = []
    for env in TASKS:
        own = [cells.get((env, name)) for name in columns]
        if any(own):
            seeds = sorted({len(one.rows) for one in own if one})
            shown = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
            rows.append([env, shown, *("" if one is None else str(one) for one in own)])
    return markdown(header, rows)


def comparison(cells: Cells) -> list[str]:
    """NCAPO beside the better of the peers, task by task and in two sentences."""
    rows, level, shares = [], [], []
    for env, task in TASKS.items():
        peers = {name: cells[env, name] for name in PEERS if (env, name) in cells}
        ours, random = cells.get((env, "ncapo")), cells.get((env, "random"))
        if not task.counts or ours is None or random is None or len(peers) < len(PEERS):
            continue
        best = max(peers, key=lambda name: float(peers[name].estimate.value))
        peer, own, floor = peers[best].estimate, ours.estimate, float(random.estimate.value)
        reached = bool(own.high >= peer.low - 1e-6 * abs(peer.low))  # ours are float32: a tie is no loss
        gain = float(peer.value) - floor
        share = (float(own.value) - floor) / gain if gain > 0.02 * abs(floor) else None
        level.append(reached)
        shares += [] if share is None else [share]
        told = "nothing to gain" if share is None else f"{share:.2f}"
        rows.append([env, TITLES[best], "yes" if reached else "no", told])
    if not rows:
        return ["No environment has rows of NCAPO, both peers and random play yet: nothing to compare."]
    header = ["environment", "better peer", "NCAPO at or above it", "share of its gain over random"]
    half = sum(share < 0.5 for share in shares)
    summary = (
        f"NCAPO is at or above the better of the two peers, within intervals, in {sum(level)} of {len(level)} "
        f"environments. Of what the better peer gains over random play, NCAPO gains at least "
        f"{min(shares, default=0.0):.2f} (median {statistics.median(shares or [0.0]):.2f}); less than half in "
        f"{half} of {len(shares)}."
    )
    return [markdown(header, rows), summary]


def seconds_table(cells: Cells) -> str:
    """Median seconds of a training: by the clock, and of the processor."""
    columns = [name for name in SHOWN if name != "random" and any(name == each for _, each in cells)]
    rows = []
    for env in TASKS:
        own = [cells.get((env, name)) for name in columns]
        if any(own):
            rows.append([env, *("" if one is None else _seconds(one) for one in own)])
    return markdown(["seconds: clock / processor", *(TITLES[name] for name in columns)], rows)


def _seconds(cell: Cell) -> str:
    both = (statistics.median(row[f"{clock}_seconds"] for row in cell.rows) for clock in ("wall", "processor"))
    return " / ".join(f"{value:.0f}" for value in both)


def made_on(cells: Cells) -> str:
    """The machines and versions."""
    rows = [row for cell in cells.values() for row in cell.rows]
    makers = [row["made_by"] for row in rows]
    machines = sorted({f"{one['hardware']['processor']}, {one['hardware']['cores']} cores" for one in makers})
    names = ("gymnasium", "stable-baselines3", "minigrid", "jax")
    versions = {name: sorted({one["versions"].get(name, "") for one in makers} - {""}) for name in names}
    told = ", ".join(f"{name} {' and '.join(found)}" for name, found in versions.items() if found)
    loads = [row["load_average_before"][0] for row in rows]
    return (
        f"Trained on: {'; '.join(machines)}; load average before a training {min(loads):.1f} to {max(loads):.1f}. "
        f"Versions: {told}."
    )


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def put_into(page: Path, text: str) -> None:
    """Replace what a page has between the two marks."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no lines {BEGIN} and {END}")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
