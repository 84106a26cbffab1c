"""The noise experiment's part on a game: NCAPO and PPO trained with noisy rewards.

The paper's poster shows it on Breakout, without saying what the noise is. Here it is Gaussian, with the poster's
numbers as standard deviation, on every training reward. Evaluations play the game without noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from capo.experiments import results, training
from capo.experiments.common import Floats, caption, text_table
from capo.experiments.results import finals, interval, mean
from capo.experiments.training import Job, Plan
from capo.neural.algorithms import registry
from capo.report import figures, statistics, wording
from capo.runs.records import Record

LEVELS = (0.0, 3.0, 10.0)  # the poster's


@dataclass(frozen=True)
class Learner:
    """What is trained under noise.

    Attributes:
        preset: the plan's if none is given.
        settings: that replace the preset's.
    """

    title: str
    algorithm: str
    preset: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


# All presets except "paper" and "official" weight the step with |A|; the paper's argument is about the sign alone.
LEARNERS: dict[str, Learner] = {
    "ncapo-paper": Learner("NCAPO, the paper's settings", "ncapo", "paper"),
    "ncapo-sign": Learner("NCAPO, sign of A only", "ncapo", settings={"advantage_weight": "none"}),
    "ncapo": Learner("NCAPO", "ncapo"),
    "ppo": Learner("PPO", "ppo"),
}
POSTER_GAME = "breakout"
POSTER = {"ncapo": {0.0: 42, 3.0: 42, 10.0: 24}, "ppo": {0.0: 33, 3.0: 24, 10.0: 7}}  # by algorithm, at 10 M steps
PLAN = Plan()
QUICK_LEVELS, QUICK_LEARNERS = (0.0, 10.0), ("ncapo", "ppo")
QUICK_NOTE = "QUICK run of the game: far too few frames and seeds to conclude anything."


def jobs(
    out: Path,
    games: Sequence[str],
    plan: Plan,
    algos: Sequence[str] | None = None,
    levels: Sequence[str] | None = None,
) -> list[Job]:
    """The trainings, each of which writes ``<game>-<learner>-noise-<level>.json`` into ``out``."""
    chosen = training.choose("algorithm of the noise experiment", algos, LEARNERS)
    known = [f"{level:g}" for level in LEVELS]
    wanted = [float(level) for level in training.choose("level of noise", levels, known)]
    return [
        Job(
            out, "noise", game, one.algorithm, replace(plan, preset=one.preset or plan.preset),
            _name(name, level), _title(name, level), one.settings, level,
        )
        for game in games
        for name in chosen or (QUICK_LEARNERS if plan.quick else LEARNERS)
        for one in [LEARNERS[name]]
        for level in wanted or (QUICK_LEVELS if plan.quick else LEVELS)
    ]  # fmt: skip


def _name(learner: str, level: float) -> str:
    """In the names of files."""
    return f"{learner}-noise-{level:g}"


def _title(learner: str, level: float) -> str:
    return f"{LEARNERS[learner].title}, noise {level:g}"


def read(folder: Path) -> tuple[dict[str, dict[tuple[str, float], Record]], list[str]]:
    """Records by game, then by (learner, level); and what is damaged or differs, in words."""
    keys = {_name(learner, level): (learner, level) for learner in LEARNERS for level in LEVELS}
    found, notes = results.read_variants(folder, list(keys))
    return {game: {keys[name]: record for name, record in own.items()} for game, own in found.items()}, notes


# --- what is printed and drawn --------------------------------------------------------------------------------


def report_game(folder: Path) -> list[str]:
    """One table per game; empty if there is no results file."""
    games, notes = read(folder)
    if not games:
        return []
    parts = [QUICK_NOTE] if any(record.quick for own in games.values() for record in own.values()) else []
    for game, own in games.items():
        rows = []
        for (learner, level), record in own.items():
            scores = finals(record)
            clean = own.get((learner, 0.0))
            kept = "-" if clean is None or level == 0 else _kept(scores, finals(clean))
            poster = POSTER[LEARNERS[learner].algorithm].get(level) if game == POSTER_GAME else None
            shown = "-" if poster is None else poster
            length, products = f"{record.frames:,}", record.made_by.get("precision") or "not recorded"
            rows.append(
                [_title(learner, level), len(scores), length, products, interval(mean(scores)), kept, shown]
            )
        presets = " or ".join(dict.fromkeys(record.preset for record in own.values()))
        parts.append(
            text_table(
                f"{game}, preset {presets}: Gaussian noise on the training rewards, none in evaluations",
                [
                    "",
                    "seeds",
                    "frames",
                    "products",
                    "final return [95 %]",
                    "share of its own [95 %]",
                    "poster, 10 M",
                ],
                rows,
                "share of its own: of the return without noise; products: of matrices",
            )
        )
    first = next(iter(next(iter(games.values())).values()))
    parts.append(f"Scores: {wording.final_score(first)}.\n{results.INTERVALS}{results.TOO_FEW}")
    return parts + [f"Note: {note}" for note in notes]


def _kept(scores: Floats, clean: Floats) -> str:
    """The mean as a share of the mean without noise, with its interval."""
    if clean.mean() <= 0:
        return "-"
    ratio = statistics.stratified_bootstrap(
        [scores, clean], lambda both: np.asarray(both[0].mean(-1) / np.maximum(both[1].mean(-1), 1e-9))
    )
    return interval(ratio)


def draw_game(folder: Path, out: Path) -> list[Path]:
    """game.png: final returns against the noise, and every learner's evaluations; one row per game."""
    games, _ = read(folder)
    if not games:
        return []
    learners = [name for name in LEARNERS if any(name == key[0] for own in games.values() for key in own)]
    path = out / "game.png"
    size = (3.6 * (len(learners) + 1), 3.6 * len(games) + 0.6)
    with figures.figure(path, len(games), len(learners) + 1, size, squeeze=False, sharey="row") as (drawing, axes):
        for row, (game, own) in zip(axes, games.items(), strict=True):
            _draw_finals(row[0], game, own, learners)
            for axis, learner in zip(row[1:], learners, strict=True):
                _draw_curves(axis, {level: record for (name, level), record in own.items() if name == learner})
                axis.set(title=LEARNERS[learner].title, xlabel="frames")
        figures.legend_below(drawing, list(axes.flat))
        quick = any(record.quick for own in games.values() for record in own.values())
        caption(
            drawing,
            "Gaussian noise on the training rewards; returns of the game without noise: mean (left) and "
            "interquartile mean, 95 % intervals",
            quick,
            fontsize=10.5,
        )
    return [path]


def _draw_finals(axis: Any, game: str, own: dict[tuple[str, float], Record], learners: Sequence[str]) -> None:
    for index, learner in enumerate(learners):
        colour = figures.COLOURS[index]
        levels = [level for name, level in own if name == learner]
        found = [mean(finals(own[learner, level])) for level in levels]
        x = np.array([LEVELS.index(level) for level in levels]) + 0.06 * (index - (len(learners) - 1) / 2)
        middle, low, high = np.array([(one.value, one.low, one.high) for one in found], np.float64).T
        title = LEARNERS[learner].title
        axis.errorbar(x, middle, (middle - low, high - middle), color=colour, marker="o", label=title)
    for algorithm in dict.fromkeys(LEARNERS[learner].algorithm for learner in learners):
        if game == POSTER_GAME:
            first = next(i for i, learner in enumerate(learners) if LEARNERS[learner].algorithm == algorithm)
            theirs = [POSTER[algorithm][level] for level in LEVELS]
            label = f"{registry.find(algorithm).title}, poster, 10 M"
            axis.plot(range(len(LEVELS)), theirs, color=figures.COLOURS[first], ls=":", lw=1.2, label=label)
    axis.set_xticks(range(len(LEVELS)), [f"{level:g}" for level in LEVELS])
    axis.set(title=game.replace("_", " ").title(), xlabel="standard deviation of the noise", ylabel="return")


def _draw_curves(axis: Any, own: dict[float, Record]) -> None:
    shades = dict(zip(LEVELS, figures.shades(len(LEVELS)), strict=True))
    for level, record in own.items():
        if record.evaluation:
            summary = statistics.summarise_curves(list(record.evaluation.values()))
            axis.fill_between(summary.frames, summary.low, summary.high, color=shades[level], alpha=0.2, lw=0)
            axis.plot(summary.frames, summary.iqm, color=shades[level], label=f"noise {level:g}")
    axis.set_xlim(left=0)
    axis.xaxis.set_major_formatter(figures.short_number)
