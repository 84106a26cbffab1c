"""The main figure with the paper's own settings: which trainings, what is compared, the causes to test.

Part of ``capo reproduce minatar`` (``--settings paper`` and ``--settings causes``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from capo.experiments import results, training
from capo.experiments.common import text_table
from capo.experiments.training import Job, Plan, environment, settings_changed
from capo.report import paper
from capo.report.series import Kind, title
from capo.runs.records import Record

GAMES = ("asterix", "breakout", "seaquest", "space_invaders")  # of the paper's figure
KINDS: tuple[Kind, ...] = (
    ("ncapo", "paper"),
    ("ncapo", "official"),
    ("ppo", "paper"),
    ("a2c", "paper"),
    ("rainbow", "paper"),
    ("offpac", "paper"),
)
PRESETS = ("paper", "official")
NOT_RUN = "not run with these settings"
FRAMES = 10_000_000  # of the paper's figure


@dataclass(frozen=True)
class Cause:
    """One thing that may explain a difference from the paper, as a training that changes only it.

    Attributes:
        game: where the difference was seen.
        settings: that replace the preset's.
        full_actions: play with all six actions instead of the game's minimal set.
    """

    title: str
    game: str
    preset: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    full_actions: bool = False


CAUSES: dict[str, Cause] = {
    "official-base": Cause("official", "asterix", "official"),
    "official-no-footnote": Cause(
        "official without the table's footnote", "asterix", "official",
        {"critic_coefficient": 1.0, "epsilon_start": 0.3},
    ),
    "official-cut-rollouts": Cause(
        "official, rollouts cut at episode ends", "asterix", "official", {"rollouts": "cut"}
    ),
    "official-full-actions": Cause("official, all six actions", "asterix", "official", full_actions=True),
    "official-float32": Cause("official, float32 products", "asterix", "official", {"precision": "float32"}),
    "paper-base": Cause("paper, 40 x 64 steps per iteration", "breakout", "paper"),
    "paper-64-steps": Cause(
        "paper, 64 steps in all per iteration", "breakout", "paper", {"n_envs": 1, "rollout_length": 64}
    ),
    "paper-bfloat16": Cause("paper, bfloat16 products", "breakout", "paper", {"precision": "bfloat16"}),
}  # fmt: skip


def cause_jobs(out: Path, games: Sequence[str] | None, plan: Plan) -> list[Job]:
    """The trainings that test the causes, on the games where differences were seen."""
    chosen = training.choose_games(games) if games else [cause.game for cause in CAUSES.values()]
    return [
        Job(
            out, "minatar", cause.game, "ncapo", replace(plan, preset=cause.preset),
            variant=name, title=cause.title, settings=cause.settings, full_actions=cause.full_actions,
        )
        for name, cause in CAUSES.items()
        if cause.game in chosen
    ]  # fmt: skip


# --- line by line ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """One curve of the paper beside ours with one preset: mean returns at the end."""

    game: str
    kind: Kind
    theirs: float
    ours: str
    verdict: str

    @property
    def row(self) -> list[str]:
        """The cells of a table."""
        return [self.game, title(self.kind[0]), self.kind[1], f"{self.theirs:.1f}", self.ours, self.verdict]


HEADER = ("game", "algorithm", "preset", "the paper", "here [95 %]", "verdict")


def line_by_line(records: Mapping[tuple[str, Kind], Record]) -> list[Verdict]:
    """Every curve of the paper's figure with the presets that stand for it, run or not.

    A curve is reproduced if the paper's final mean lies in the 95 % interval of ours over seeds. A record of a
    preset whose settings have changed since does not count. One of fewer frames stands beside the paper's curve at
    those frames, without a verdict.
    """
    found = []
    for game in GAMES:
        for kind in KINDS:
            theirs = paper.final(environment(game), kind[0])
            assert theirs is not None
            record = records.get((game, kind))
            found.append(Verdict(game, kind, theirs, *_compare(record, theirs)))
    return found


def _compare(record: Record | None, theirs: float) -> tuple[str, str]:
    """Our score at the end, and the verdict."""
    if record is None:
        return "-", NOT_RUN
    ours = results.mean(results.finals(record))
    text = results.interval(ours, digits=1)
    if record.quick or settings_changed(record):
        return "-", f"{NOT_RUN}; with others {text}"
    if (record.frames or 0) < 0.99 * FRAMES:
        return "-", _part_way(record, text)
    if ours.low <= theirs <= ours.high:
        return text, "reproduced"
    return text, f"not: {'higher' if ours.low > theirs else 'lower'}"


def _part_way(record: Record, ours: str) -> str:
    """What there is of a run that is shorter than the paper's."""
    frames = record.frames or 0
    at, returns = paper.of_environment(record.env)[record.algorithm]
    theirs = f"theirs {np.interp(frames, at, returns):.1f}"
    return f"not run to the end: {ours} after {frames / 1e6:.1f} M frames, {theirs}"


def verdict_table(records: Mapping[tuple[str, Kind], Record]) -> str:
    """The lines as a table for the terminal."""
    lines = line_by_line(records)
    return text_table(
        "Every curve of the paper's figure: final mean return; reproduced: the paper's is in our 95 % interval",
        HEADER,
        [line.row for line in lines],
        "The missing ones: capo reproduce minatar --settings paper (a GPU, or days)",
    )


def causes_table(folder: Path) -> str:
    """What the causes change, from the files in ``folder``; empty if there are none."""
    rows: list[list[str]] = []
    notes: list[str] = []
    for name, cause in CAUSES.items():
        file = folder / f"{cause.game}-{name}.json"
        record = results.read_noting(file, notes) if file.exists() else None
        if record is not None and record.finals:
            theirs = paper.final(environment(cause.game), "ncapo")
            ours = results.interval(results.mean(results.finals(record)), digits=1)
            rows.append(
                [cause.title, cause.game, str(len(record.finals)), f"{record.frames:,}", ours, f"{theirs}"]
            )
    if not rows:
        return ""
    header = ["causes", "game", "seeds", "frames", "mean [95 %]", "paper, 10 M"]
    return text_table("What may explain a difference, one change at a time", header, rows, "\n".join(notes))
