"""The main figure: every algorithm on the five MinAtar games, many seeds, the paper's curves beside ours.

Every (game, algorithm, preset) is one training (:mod:`capo.experiments.training`) with one results file
``<game>-<algorithm>-<preset>.json``. Tables and figures come from those files alone: one figure of the best
settings, one of the paper's own (:mod:`capo.experiments.paper_figure`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from capo.envs.minatar.games import GAMES
from capo.errors import CapoError
from capo.experiments import paper_figure, results, training
from capo.experiments.common import teller, text_table
from capo.experiments.together import train_together
from capo.experiments.training import QUICK, Job, Plan, environment
from capo.neural.algorithms import registry
from capo.report import figures, paper, statistics, wording
from capo.report.series import Kind, kind_names
from capo.runs.records import Curve, Record, covered

DATA = ("*-*.json",)
OPTIONS = (*training.OPTIONS, "first_seed", "algos", "settings", "seconds")
SETTINGS = ("best", "paper", "causes")
# Of the presets of one algorithm: share of black in its colour, and a marker. Dashed curves are the paper's.
STYLES = ((0.0, ""), (0.5, "o"), (0.25, "^"), (0.7, "s"))
PAPER = "the paper's, in the algorithm's colour"
QUICK_NOTE = "QUICK run: far too few frames and seeds to compare with the paper."


def run(
    out: Path,
    quick: bool = False,
    progress: bool = True,
    *,
    games: Sequence[str] | None = None,
    algos: Sequence[str] | None = None,
    settings: str = "best",
    workers: int | None = None,
    on: str | None = None,
    gpus: float | None = None,
    seconds: float | None = None,
    **sizes: Any,
) -> None:
    """Train what is missing and write the results files into ``out``.

    Args:
        algos: each ``ALGORITHM`` or ``ALGORITHM:PRESET``; all registered algorithms if none is given.
        settings: best; paper: the paper's presets on its four games; causes: one change of them at a time.
        workers, on, gpus: see :class:`training.Where`.
        seconds: that each training may take; see :mod:`capo.experiments.together`.
        **sizes: frames, seeds, first_seed, and the preset of the algorithms that name none.
    """
    plan = (QUICK if quick else Plan()).with_options(**sizes)
    training.known("settings", settings, SETTINGS)
    if settings != "best" and (sizes.get("preset") or (settings == "causes" and algos)):
        raise CapoError(f"--settings {settings} sets the presets and algorithms: leave out --preset and --algos")
    if settings == "paper":
        games, algos = games or paper_figure.GAMES, algos or [":".join(kind) for kind in paper_figure.KINDS]
    chosen, kinds = training.choose_games(games), training.choose_kinds(algos, plan)
    jobs = (
        paper_figure.cause_jobs(out, games, plan)
        if settings == "causes"
        else [
            Job(out, "minatar", game, name, replace(plan, preset=own), title=f"{name} ({own})")
            for game in chosen
            for name, own in kinds
        ]
    )
    train = training.train_all if seconds is None else partial(train_together, seconds=seconds)
    train(jobs, teller("minatar", progress), progress, training.place(on, workers, gpus))


# --- what is printed and drawn --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What a folder of results holds.

    Attributes:
        records: those with a finished seed, by game and (algorithm, preset).
        names: of every (algorithm, preset), in the order they are shown.
        notes: what is missing or damaged, in words.
    """

    records: dict[tuple[str, Kind], Record]
    names: dict[Kind, str]
    notes: list[str]

    @property
    def games(self) -> list[str]:
        """The games with results."""
        return [game for game in GAMES if any(key[0] == game for key in self.records)]

    def of(self, game: str) -> dict[Kind, Record]:
        """The records of a game, in the order they are shown."""
        return {kind: self.records[game, kind] for kind in self.names if (game, kind) in self.records}


def _kinds_in(folder: Path) -> dict[Path, tuple[str, Kind]]:
    """The results files of algorithms and presets, by their names; not those of causes or other experiments."""
    found = {}
    for file in sorted(folder.glob("*-*-*.json")):
        game, algorithm, preset = file.stem.split("-", 2)
        if game in GAMES and algorithm in registry.ROWS and "-" not in preset:
            found[file] = game, (algorithm, preset)
    return found


def read(folder: Path) -> Found:
    """Every readable results file.

    Raises:
        CapoError: if there is no finished seed at all.
    """
    records: dict[tuple[str, Kind], Record] = {}
    notes: list[str] = []
    for file, (game, (algorithm, preset)) in _kinds_in(folder).items():
        record = results.read_noting(file, notes)
        if record is None:
            continue
        if (record.algorithm, record.preset) != (algorithm, preset):
            notes.append(f"{file}: contains {record.algorithm} with preset {record.preset}; left out")
        elif record.finals:
            records[game, (algorithm, preset)] = record
        else:
            notes.append(f"{file}: has no finished seed; left out")
    if not records:
        detail = "; ".join(notes) or "no results files"
        raise CapoError(f"{folder}: no finished seed ({detail}); run without --draw-only first")
    found = Found(records, _names(records), notes)
    gaps = [
        f"{name} on {game}"
        for game in found.games
        for kind, name in found.names.items()
        if (game, kind) not in records
    ]
    if gaps:
        notes.append(f"no results of {', '.join(gaps)}")
    notes += results.different_lengths(list(records.values()))
    return found


def _names(records: Mapping[tuple[str, Kind], Record]) -> dict[Kind, str]:
    """What each (algorithm, preset) is called; one whose settings are not those of the preset now says so."""
    names = kind_names(kind for _, kind in records)
    earlier = {kind for (_, kind), record in records.items() if training.settings_changed(record)}
    return {kind: f"{name}, earlier settings" if kind in earlier else name for kind, name in names.items()}


def report(folder: Path) -> str:
    """The final tables, from the files in ``folder``."""
    causes = [table] if (table := paper_figure.causes_table(folder)) else []
    if causes and not _kinds_in(folder):
        return causes[0]
    found = read(folder)
    parts = [QUICK_NOTE] if any(record.quick for record in found.records.values()) else []
    if len(found.games) > 1:
        parts.append(_overview(found))
    parts += [_game_table(found, game) for game in found.games]
    if any(preset in paper_figure.PRESETS for _, preset in found.names):
        parts.append(paper_figure.verdict_table(found.records))
    return "\n\n".join([*parts, *causes, _closing(found)])


def _game_table(found: Found, game: str) -> str:
    """One row per algorithm and preset."""
    rows = []
    for kind, record in found.of(game).items():
        finals = results.finals(record)
        iqm = statistics.stratified_bootstrap([finals], statistics.aggregate_iqm)
        theirs = paper.final(environment(game), kind[0])
        rows.append(
            [
                found.names[kind],
                len(finals),
                f"{record.frames:,}",
                results.interval(iqm),
                results.interval(results.mean(finals)),
                f"{finals.std(ddof=1):.2f}" if len(finals) > 1 else "-",
                f"{finals.min():.2f} - {finals.max():.2f}",
                "-" if theirs is None else f"{theirs:.1f}",
                wording.duration(record.wall_seconds or 0.0),
            ]
        )
    header = ["", "seeds", "frames", "IQM [95 %]", "mean [95 %]", "std", "lowest - highest", "paper, 10 M"]
    return text_table(game, [*header, "all seeds trained in"], rows)


def _closing(found: Found) -> str:
    """What the tables' numbers are, and what made them."""
    protocols: dict[str, list[str]] = {}
    for game in found.games:
        for kind, record in found.of(game).items():
            names = protocols.setdefault(wording.final_score(record), [])
            names += [found.names[kind]] if found.names[kind] not in names else []
    scores = [f"{how} ({', '.join(names)})" if len(protocols) > 1 else how for how, names in protocols.items()]
    lines = [f"Scores: {text}." for text in scores]
    lines.append(results.INTERVALS + results.TOO_FEW)
    machines = dict.fromkeys(dict(wording.facts(record)).get("hardware", "") for record in found.records.values())
    lines += [f"Trained on: {machine}." for machine in machines if machine]
    lines += _precisions(found)
    spans = [span for record in found.records.values() for span in record.spans]
    together, apart = covered(spans), sum(end - begin for begin, end in spans)
    aside = f"; trainings that overlap count once ({wording.duration(apart)} one after another)"
    lines.append(f"Trained in {wording.duration(together)}{aside if together < apart else ''}.")
    return "\n".join([*lines, *(f"Note: {note}" for note in found.notes)])


def _precisions(found: Found) -> list[str]:
    """Which records have which matrix products, and which do not say."""
    by_text: dict[str, dict[str, None]] = {}
    for (_, kind), record in found.records.items():
        by_text.setdefault(str(record.made_by.get("precision") or "not recorded"), {})[found.names[kind]] = None
    return [f"Matrix products: {text} ({', '.join(names)})." for text, names in by_text.items()]


def _overview(found: Found) -> str:
    """Mean final returns, one column per game, and the paper's NCAPO and best other algorithm below."""
    rows = []
    for kind, name in found.names.items():
        own = [found.records.get((game, kind)) for game in found.games]
        rows.append([name, *("-" if one is None else f"{results.finals(one).mean():.1f}" for one in own)])
    others = [name for name in registry.ROWS if name != "ncapo"]
    for name, algorithms in (("paper: NCAPO", ["ncapo"]), ("paper: best other", others)):
        finals = [[paper.final(environment(game), algorithm) for algorithm in algorithms] for game in found.games]
        best = [max((value for value in own if value is not None), default=None) for own in finals]
        rows.append([name, *("-" if value is None else f"{value:.1f}" for value in best)])
    return text_table("mean final return", ["", *found.games], rows)


def draw(folder: Path, out: Path) -> list[Path]:
    """minatar.png and, of the paper's presets, paper_settings.png: mean and 0.5 std, and interquartile mean."""
    if not _kinds_in(folder):
        return []  # causes alone have a table
    found = read(folder)
    drawn = []
    for name, of_paper in (("minatar.png", False), ("paper_settings.png", True)):
        kinds = {kind: text for kind, text in found.names.items() if (kind[1] in paper_figure.PRESETS) == of_paper}
        records = {key: record for key, record in found.records.items() if key[1] in kinds}
        if records:
            drawn.append(_draw_figure(out / name, Found(records, kinds, found.notes)))
    return drawn


def _draw_figure(path: Path, found: Found) -> Path:
    games, styles = found.games, _styles(found.names)
    width = max(3.1 * len(games), 6.2)
    shared = {"squeeze": False, "sharex": "col", "sharey": "col"}
    with figures.figure(path, 2, len(games), (width, 6.4), **shared) as (drawing, axes):
        for column, game in enumerate(games):
            own = found.of(game)
            last = max(max(frames[-1] for frames, _ in _drawn(record).values()) for record in own.values())
            for algorithm in dict.fromkeys(algorithm for algorithm, _ in found.names):
                _draw_paper(axes[:, column], game, algorithm, last)
            for kind, record in reversed(own.items()):  # the first, which the figure is about, on top
                _draw_curves(axes[:, column], record, found.names[kind], styles[kind])
            absent = [name for kind, name in found.names.items() if kind not in own]
            title = game.replace("_", " ").title() + (f"\n(no {', '.join(absent)})" if absent else "")
            axes[0, column].set_title("\n".join(textwrap.fill(line, 38) for line in title.splitlines()))
            axes[1, column].set_xlabel("frames")
            axes[1, column].set_xlim(0, last)
            axes[1, column].xaxis.set_major_formatter(figures.short_number)
        axes[0, 0].set_ylabel("mean ± 0.5 std")
        axes[1, 0].set_ylabel("interquartile mean, 95 % interval")
        _legend(drawing, axes, list(found.names.values()), width)
    return path


def _styles(names: Iterable[Kind]) -> dict[Kind, dict[str, Any]]:
    """How each (algorithm, preset) is drawn: the algorithm's colour, its presets by shade and marker."""
    found: dict[Kind, dict[str, Any]] = {}
    for algorithm, preset in names:
        share, marker = STYLES[sum(one == algorithm for one, _ in found) % len(STYLES)]
        colour = figures.darker(registry.find(algorithm).colour, share)
        found[algorithm, preset] = {"color": colour, "marker": marker}
    return found


def _drawn(record: Record) -> dict[int, Curve]:
    return record.evaluation or record.training


def _draw_curves(axes: Any, record: Record, name: str, style: dict[str, Any]) -> None:
    """One record in both panels of a game."""
    summary = statistics.summarise_curves(list(_drawn(record).values()))
    half = 0.5 * summary.std
    bands = ((summary.mean, summary.mean - half, summary.mean + half), (summary.iqm, summary.low, summary.high))
    every = max(1, len(summary.frames) // 10)
    for axis, (middle, low, high) in zip(axes, bands, strict=True):
        axis.fill_between(summary.frames, low, high, color=style["color"], alpha=0.18, linewidth=0)
        axis.plot(summary.frames, middle, **style, markersize=4.5, markevery=(every - 1, every), label=name)


def _draw_paper(axes: Any, game: str, algorithm: str, last: float) -> None:
    """The paper's curve, up to where ours end."""
    curve = paper.of_environment(environment(game)).get(algorithm)
    if curve is None or curve[0][0] > last:
        return
    frames, returns = (values[curve[0] <= last] for values in curve)
    colour = registry.find(algorithm).colour
    for axis in axes:
        axis.plot(frames, returns, color=colour, linestyle="--", linewidth=1.1, label=PAPER)


def _legend(drawing: Any, axes: Any, names: Sequence[str], width: float) -> None:
    """One entry per name, in their order, and one for all of the paper's curves."""
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    for axis in axes.flat:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    if PAPER in handles:
        handles[PAPER] = Line2D([], [], color=figures.MUTED, linestyle="--", linewidth=1.1)
    shown = [name for name in (*names, PAPER) if name in handles]
    columns = min(len(shown), int(width / 1.7))
    drawing.legend([handles[name] for name in shown], shown, loc="outside lower center", ncols=columns)
