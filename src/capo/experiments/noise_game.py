"""The noise experiment's part on a game: NCAPO and PPO whose training rewards are noisy.

The paper's poster shows it on Breakout, without saying what the noise is. Here it is Gaussian, of the poster's
numbers as standard deviation, on every training reward. Evaluations play the game as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capo.errors import unknown_name
from capo.experiments import minatar, variants
from capo.experiments.common import text_table
from capo.experiments.minatar import Plan
from capo.experiments.variants import Variant, VariantJob, finals, interval, mean
from capo.report import figures, statistics
from capo.report.folders import Record

GAME = "breakout"
LEVELS = (0.0, 3.0, 10.0)  # the poster's
# Who learns: name -> (title, algorithm, settings). The presets but "paper" and "official" weigh the step with |A|;
# the paper's argument is about the sign alone.
LEARNERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ncapo": ("NCAPO", "ncapo", {}),
    "ncapo-sign": ("NCAPO, sign of A only", "ncapo", {"advantage_weight": "none"}),
    "ppo": ("PPO", "ppo", {}),
}
POSTER = {"ncapo": {0.0: 42, 3.0: 42, 10.0: 24}, "ppo": {0.0: 33, 3.0: 24, 10.0: 7}}  # Breakout, 10 M steps
PLAN = Plan()
QUICK = Plan(frames=10_000, seeds=2, preset="cpu", evaluations=4, episodes=10, final_episodes=10, quick=True)
QUICK_LEVELS, QUICK_LEARNERS = (0.0, 10.0), ("ncapo", "ppo")
QUICK_NOTE = "QUICK run of the game: far too few frames and seeds to conclude anything."


def variant(learner: str, level: float) -> Variant:
    """A learner at one level of noise."""
    title, algorithm, settings = LEARNERS[learner]
    return Variant(f"{learner}-noise-{level:g}", f"{title}, noise {level:g}", settings, algorithm, level)


def jobs(
    out: Path, quick: bool, games: Sequence[str] | None, algos: Sequence[str] | None, plan: Plan
) -> list[VariantJob]:
    """The trainings, each of which writes ``<game>-<learner>-noise-<level>.json`` into ``out``."""
    learners = choose_learners(algos) or (QUICK_LEARNERS if quick else tuple(LEARNERS))
    return [
        VariantJob(out, game, variant(learner, level), plan)
        for game in minatar.choose_games(games or [GAME])
        for learner in learners
        for level in (QUICK_LEVELS if quick else LEVELS)
    ]


def choose_learners(given: Sequence[str] | None) -> tuple[str, ...]:
    """Learners by name, in the order given; empty if none is."""
    names = [name.lower() for part in given or () for name in part.split(",") if name]
    for name in names:
        if name not in LEARNERS:
            raise unknown_name("algorithm of the noise experiment", name, LEARNERS)
    return tuple(dict.fromkeys(names))


def read(folder: Path) -> tuple[dict[str, dict[tuple[str, float], Record]], list[str]]:
    """Records by game, then by (learner, level); and what is damaged or unlike, in words."""
    names = {variant(learner, level).name: (learner, level) for learner in LEARNERS for level in LEVELS}
    found, notes = variants.read(folder, list(names))
    games: dict[str, dict[tuple[str, float], Record]] = {}
    for (game, name), record in found.items():
        games.setdefault(game, {})[names[name]] = record
    return games, notes


# --- what is printed and drawn --------------------------------------------------------------------------------


def report_game(folder: Path) -> list[str]:
    """A table a game; empty if there is no results file."""
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
            poster = POSTER.get(learner, {}).get(level) if game == GAME else None
            title = f"{LEARNERS[learner][0]}, noise {level:g}"
            rows.append([title, len(scores), interval(mean(scores)), kept, "-" if poster is None else poster])
        first = next(iter(own.values()))
        presets = " or ".join(dict.fromkeys(record.preset for record in own.values()))
        parts.append(
            text_table(
                f"{game}, preset {presets}, {first.frames:,} frames: Gaussian noise on the training rewards, "
                "none in evaluations",
                ["", "seeds", "final return [95 %]", "share of its own without noise [95 %]", "poster, 10 M"],
                rows,
            )
        )
    first = next(iter(next(iter(games.values())).values()))
    parts.append(
        f"Scores: {first.protocol_line('Final score')}.\n"
        "Intervals: percentile bootstrap over seeds, 95 %; with fewer than five seeds they are too narrow."
    )
    return parts + [f"Note: {note}" for note in notes]


def _kept(scores: Any, clean: Any) -> str:
    """Mean over mean without noise, with its interval."""
    if clean.mean() <= 0:
        return "-"
    ratio = statistics.stratified_bootstrap(
        [scores, clean], lambda both: np.asarray(both[0].mean(-1) / np.maximum(both[1].mean(-1), 1e-9))
    )
    return interval(ratio)


def draw_game(folder: Path, out: Path) -> list[Path]:
    """game.png: final returns against the noise, and every learner's evaluations; a row a game."""
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
                axis.set(title=LEARNERS[learner][0], xlabel="frames")
        figures.legend_below(drawing, list(axes.flat))
        quick = any(record.quick for own in games.values() for record in own.values())
        drawing.suptitle(
            f"{'QUICK run; ' if quick else ''}Gaussian noise on the training rewards; returns of the game without "
            "noise: mean (left) and interquartile mean, 95 % intervals",
            x=0.01,
            ha="left",
            fontsize=10.5,
        )
    return [path]


def _draw_finals(axis: Any, game: str, own: dict[tuple[str, float], Record], learners: Sequence[str]) -> None:
    for index, learner in enumerate(learners):
        colour = figures.COLOURS[index]
        levels = [level for name, level in own if name == learner]
        found = [mean(finals(own[learner, level])) for level in levels]
        x = np.array([LEVELS.index(level) for level in levels]) + 0.06 * (index - (len(learners) - 1) / 2)
        middle = np.array([float(one.value) for one in found])
        below = middle - [float(one.low) for one in found]
        above = [float(one.high) for one in found] - middle
        axis.errorbar(x, middle, (below, above), color=colour, marker="o", label=LEARNERS[learner][0])
        if game == GAME and learner in POSTER:
            values = [POSTER[learner][level] for level in LEVELS]
            axis.plot(
                range(len(LEVELS)),
                values,
                color=colour,
                ls=":",
                lw=1.2,
                label=f"{LEARNERS[learner][0]}, poster, 10 M",
            )
    axis.set_xticks(range(len(LEVELS)), [f"{level:g}" for level in LEVELS])
    axis.set(title=game.replace("_", " ").title(), xlabel="standard deviation of the noise", ylabel="return")


def _draw_curves(axis: Any, own: dict[float, Record]) -> None:
    shades = dict(zip(LEVELS, figures.shades(len(LEVELS)), strict=True))
    for level, record in own.items():
        if not record.evaluation:
            continue
        summary = statistics.summarise_curves(list(record.evaluation.values()))
        axis.fill_between(summary.frames, summary.low, summary.high, color=shades[level], alpha=0.2, lw=0)
        axis.plot(summary.frames, summary.iqm, color=shades[level], label=f"noise {level:g}")
    axis.set_xlim(left=0)
    axis.xaxis.set_major_formatter(lambda value, _: minatar._short(value))
