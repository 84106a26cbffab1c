"""The main figure: five algorithms on the five MinAtar games, many seeds, the paper's curves beside ours.

Every (game, algorithm, preset) trains its seeds as one program in a run's folder of its own under ``runs/``, and
ends as one small results file ``<game>-<algorithm>-<preset>.json`` with every seed's curve. What is finished is
not repeated, and what is half-finished goes on: the same command again continues. Tables and figures come from
the results alone.
"""

from __future__ import annotations

import csv
import json
import math
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capo.errors import CapoError, unknown_name
from capo.experiments import side_by_side
from capo.experiments.common import text_table
from capo.experiments.side_by_side import Say
from capo.files import prepare_folder, write_atomically
from capo.report import figures, folders, paper, statistics
from capo.report.folders import GAMES, Record
from capo.report.page import NAMES, Kind, kind_names

if TYPE_CHECKING:
    from capo.neural.agent import Agent

DATA = ("*-*.json",)
ALGORITHMS = tuple(NAMES)
COLOURS = dict(zip(ALGORITHMS, (figures.HIGHLIGHT, "#0072B2", "#009E73", "#CC79A7", "#E69F00"), strict=True))
# Of the presets of one algorithm: share of black in its colour, and a marker. Dashed curves are the paper's.
STYLES = ((0.0, ""), (0.5, "o"), (0.25, "^"), (0.7, "s"))
PAPER = "the paper's, in the algorithm's colour"
EVALUATIONS = "evaluations.csv"  # in a run's folder, beside metrics.csv
POINTS = 100  # of a stored training curve

Entry = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How much of it to do."""

    frames: int = 10_000_000  # the paper's
    seeds: int = 10
    preset: str = "default"
    evaluations: int = 20  # on the way, evenly
    episodes: int = 100  # of each of those
    final_episodes: int = 100  # as many: one program for both
    quick: bool = False


QUICK = Plan(frames=10_000, seeds=2, preset="cpu", evaluations=4, episodes=10, final_episodes=10, quick=True)

QUICK_NOTE = "QUICK run: far too few frames and seeds to compare with the paper."


def run(
    out: Path,
    quick: bool = False,
    progress: bool = True,
    *,
    games: Sequence[str] | None = None,
    algos: Sequence[str] | None = None,
    frames: int | None = None,
    seeds: int | None = None,
    preset: str | None = None,
    workers: int = 1,
) -> None:
    """Train what is missing and write the results files into ``out``.

    Args:
        algos: each ``ALGORITHM`` or ``ALGORITHM:PRESET``; all five if none is given.
        preset: of those that name none.
        workers: trainings at a time.
    """
    say = teller("minatar", progress)
    plan = chosen_plan(QUICK if quick else Plan(), frames, seeds, preset)
    chosen_games, chosen = choose_games(games), choose_kinds(algos, plan, say)
    jobs = [
        Job(out, game, algorithm, replace(plan, preset=own)) for game in chosen_games for algorithm, own in chosen
    ]
    train_all(jobs, "of (game, algorithm, preset)", say, progress, workers)


def teller(experiment: str, progress: bool) -> Say:
    """Prints lines on standard error, if ``progress`` is wanted."""
    return (
        (lambda text: print(f"{experiment}: {text}", file=sys.stderr, flush=True)) if progress else lambda _: None
    )


def chosen_plan(start: Plan, frames: int | None, seeds: int | None, preset: str | None) -> Plan:
    """The plan with what the user gave."""
    return replace(start, frames=frames or start.frames, seeds=seeds or start.seeds, preset=preset or start.preset)


def train_all(jobs: Sequence[Job], what: str, say: Say, progress: bool, workers: int = 1) -> None:
    """Train what is missing, ``workers`` at a time; ``what`` the jobs are, for the user."""
    todo = [job for job in jobs if job.missing()]  # also refuses results of other settings before any work
    plan = jobs[0].plan
    say(
        f"{len(jobs)} {what}, {plan.seeds} seeds of {plan.frames:,} frames each; "
        f"{len(jobs) - len(todo)} finished already"
    )
    try:
        if workers > 1:
            side_by_side.finish_all(todo, workers, say)
            return
        for index, job in enumerate(todo, 1):
            seeds = ", ".join(map(str, job.missing()))
            say(f"{index} of {len(todo)}: {job.title} on {job.game}, seeds {seeds}")
            job.finish(say, progress)
    except KeyboardInterrupt:
        say("stopped; nothing is lost: the same command goes on from here")
        raise


def choose_games(given: Sequence[str] | None) -> list[str]:
    """Games by name, ``minatar-`` and hyphens allowed; all five if none is given."""
    names = [name.removeprefix("minatar-").replace("-", "_").lower() for name in _split(given)]
    for name in names:
        if name not in GAMES:
            raise unknown_name("game", name, GAMES)
    return list(dict.fromkeys(names)) or list(GAMES)


def choose_kinds(given: Sequence[str] | None, plan: Plan, say: Say) -> list[Kind]:
    """Algorithms with their presets, of those that this version has; says which it has not.

    Args:
        given: each ``ALGORITHM`` or ``ALGORITHM:PRESET``; all five algorithms if none is given.
        plan: has the preset of those that name none.
        say: takes what is left out, in words.
    """
    from capo.neural.agent import ALGORITHMS as REGISTERED

    wanted = []
    for entry in _split(given) or ALGORITHMS:
        name, colon, preset = entry.lower().partition(":")
        name = name.replace("-", "")
        if name not in ALGORITHMS:
            raise unknown_name("algorithm", name, ALGORITHMS)
        wanted.append((name, preset if colon else None))
    missing = list(dict.fromkeys(name for name, _ in wanted if name not in REGISTERED))
    there = [(name, preset) for name, preset in wanted if name in REGISTERED]
    if not there:
        raise CapoError(f"not in this version of capo: {', '.join(missing)}; it has {', '.join(REGISTERED)}")
    if missing:
        say(f"not in this version of capo, left out: {', '.join(missing)}")
    kinds = [(name, find_preset(name, plan) if own is None else check_preset(name, own)) for name, own in there]
    return list(dict.fromkeys(kinds))


def find_preset(algorithm: str, plan: Plan) -> str:
    """The plan's preset; a quick run takes ``default`` where an algorithm has no ``cpu``."""
    from capo.neural import algorithms

    presets = algorithms.by_name(algorithm).Config.PRESETS
    if plan.quick and plan.preset == QUICK.preset and plan.preset not in presets:
        return "default"
    return check_preset(algorithm, plan.preset)


def check_preset(algorithm: str, preset: str) -> str:
    """The preset, if the algorithm has it.

    Raises:
        CapoError: if it has not.
    """
    from capo.neural import algorithms

    presets = algorithms.by_name(algorithm).Config.PRESETS
    if preset not in presets:
        raise unknown_name(f"preset of {algorithm}", preset, presets)
    return preset


def _split(given: Sequence[str] | None) -> list[str]:
    return [name for part in given or () for name in part.split(",") if name]


def environment(game: str) -> str:
    """The name of a game's environment."""
    return f"minatar-{game}"


# --- training -------------------------------------------------------------------------------------------------


class Job:
    """The seeds of one algorithm, with the plan's preset, on one game."""

    def __init__(self, out: Path, game: str, algorithm: str, plan: Plan) -> None:
        self.out, self.game, self.algorithm, self.plan = out, game, algorithm, plan
        self.env = environment(game)

    @property
    def title(self) -> str:
        """For the user."""
        return f"{self.algorithm} ({self.preset})"

    @property
    def file(self) -> Path:
        """The results file."""
        return self.out / f"{self.label}.json"

    @property
    def label(self) -> str:
        """The name of its files."""
        return f"{self.game}-{self.algorithm}-{self.preset}"

    def missing(self) -> list[int]:
        """Seeds that no results file holds yet.

        Raises:
            CapoError: if the algorithm has no such preset, or the file, or a run that is to go on, is of other
                settings.
        """
        done = {entry["seed"] for entry in self._stored().get("seeds", ())}
        left = [seed for seed in range(self.plan.seeds) if seed not in done]
        for path, config in self._interrupted():
            if set(config["seeds"]) <= set(left):
                self._refuse(f"{path}: is a run", self._changes(config["config"]))
        return left

    def _stored(self) -> dict[str, Any]:
        """The results file; empty if there is none, or if it is damaged (the runs' folders can make it again)."""
        wanted = self._what()
        try:
            record = folders.read_result(self.file)
        except folders.Unreadable:
            return {}
        stored: dict[str, Any] = json.loads(self.file.read_text())
        other = [
            f"{key} {stored.get(key)!r}, not {value!r}"
            for key, value in wanted.items()
            if stored.get(key) != value
        ]
        for what, episodes in (
            ("Evaluation curve", self.plan.episodes),
            ("Final score", self.plan.final_episodes),
        ):
            if f"{episodes} whole episodes" not in record.protocol_line(what):
                other.append(f"{what.lower()} {record.protocol_line(what)!r}, not {episodes} whole episodes")
        self._refuse(f"{self.file}: holds results", other + self._changes(stored["config"]))
        return stored

    def _changes(self, then: Mapping[str, Any]) -> list[str]:
        """Settings that are not what a training would have now, in words."""
        from capo.neural import algorithms

        now, was = self._config(), algorithms.all_settings(self.algorithm, then)
        return [f"{key} {was[key]!r}, not {value!r}" for key, value in now.items() if was[key] != value]

    def _refuse(self, what: str, other: Sequence[str]) -> None:
        if other:
            raise CapoError(
                f"{what} of other settings ({'; '.join(other)}); the preset may have changed since: give another "
                "--out (--draw-only still shows what is there)"
            )

    def _what(self) -> dict[str, Any]:
        """What has to be the same for seeds to be put together."""
        return {"env": self.env, "algorithm": self.algorithm, "preset": self.preset, "frames": self.plan.frames}

    def _config(self) -> dict[str, Any]:
        """The settings that a training would have now; its schedules' length is the plan's."""
        from capo.neural import algorithms
        from capo.neural.settings import override

        config = algorithms.by_name(self.algorithm).Config.preset(self.preset, self.env)
        settings = override(config, self._settings()).to_dict()
        del settings["horizon"]
        return settings

    @cached_property
    def preset(self) -> str:
        """See :func:`find_preset`."""
        return find_preset(self.algorithm, self.plan)

    def finish(self, say: Say, progress: bool) -> None:
        """Train what is missing: first the runs that were interrupted, then the rest as one program."""
        prepare_folder(self.out)
        for path, config in self._interrupted():
            if set(config["seeds"]) <= set(self.missing()):
                say(f"going on with {path}")
                self._train(path, config["seeds"], progress)
        seeds = self.missing()
        if seeds:
            self._train(self._folder(seeds), seeds, progress)

    def _stem(self) -> str:
        return f"{self.game}-{self.algorithm}-{self.preset}-{self.plan.frames}-seeds-"

    def _folder(self, seeds: Sequence[int]) -> Path:
        return self.out / "runs" / f"{self._stem()}{seeds[0]}-{seeds[-1]}"

    def _interrupted(self) -> list[tuple[Path, dict[str, Any]]]:
        """Folders of runs that were begun, with their config.json."""
        from capo.neural.run import CONFIG, read_config

        found = sorted((self.out / "runs").glob(f"{self._stem()}*"))
        return [(path, read_config(path)) for path in found if (path / CONFIG).is_file()]

    def _train(self, path: Path, seeds: Sequence[int], progress: bool) -> None:
        from capo.neural.agent import algorithm
        from capo.neural.run import read_config, write_evaluation

        kind = algorithm(self.algorithm)
        if folders.is_run(path):
            agent = kind.resume(path, self._training_env())
            left = agent.frames_left
        else:
            agent = kind(self._training_env(), self.preset, seeds=seeds, out=path, keep=1, **self._settings())
            left = self.plan.frames
        player = self._player(agent)
        log = EvaluationLog(path / EVALUATIONS, self.plan, agent.frames)
        if left:
            agent.learn(left, progress_bar=progress, callback=lambda _, rows: log(player, rows))
        final = player.evaluate(self.plan.final_episodes, seed=1)
        write_evaluation(path, final)
        self._store(agent, read_config(path), folders.read_run(path), log.rows(), final.returns)

    # What other experiments do otherwise ------------------------------------------------------------------

    def _settings(self) -> Mapping[str, Any]:
        """Settings that replace the preset's."""
        return {}

    def _training_env(self) -> Any:
        """What is trained on."""
        return self.env

    def _player(self, agent: Agent) -> Agent:
        """Who is evaluated."""
        return agent

    def _more(self) -> dict[str, Any]:
        """More entries for the results file."""
        return {}

    def _store(
        self, agent: Agent, config: dict[str, Any], trained: Record, rows: list[dict[str, float]], final: Any
    ) -> None:
        """Add the seeds of a finished run to the results file."""
        stored = self._stored()
        entries: list[Entry] = []
        for index, seed in enumerate(agent.seeds):
            own = [row for row in rows if row["seed"] == seed]
            entries.append(
                {
                    "seed": seed,
                    "training": _thin(*trained.training[seed]),
                    "evaluation": _curve([row["frames"] for row in own], [row["return"] for row in own]),
                    "final_returns": _rounded(final[index]),
                }
            )
        program = {
            "seeds": list(agent.seeds),
            "wall_seconds": round(agent.wall_seconds, 1),
            **{key: config[key] for key in ("precision", "versions", "commit", "hardware", "started")},
        }
        write_result(
            self.file,
            {
                "experiment": "minatar",
                "format": folders.FORMAT,
                "game": self.game,
                **self._what(),
                **self._more(),
                "frames_trained": agent.frames,  # whole iterations
                "quick": self.plan.quick,
                "protocol": self._protocol(agent),
                "config": config["config"],
                "programs": [*stored.get("programs", ()), program],
                "seeds": sorted([*stored.get("seeds", ()), *entries], key=lambda entry: int(entry["seed"])),
            },
        )

    def _protocol(self, agent: Agent) -> dict[str, str]:
        """How everything was measured, in words: for the file, the table and the page."""
        plan = self.plan
        how = "actions sampled from the policy" if agent.samples else "the best action"
        return {
            "Evaluation curve": f"every {plan.frames // plan.evaluations:,} frames (at the next log point), "
            f"{plan.episodes} whole episodes of each seed, {how}, no epsilon",
            "Final score": f"{plan.final_episodes} whole episodes of each seed, {how}, no epsilon",
            "Training curve": folders.training_protocol(agent.config.to_dict()),
            "Sticky actions": folders.sticky(self.env),
        }


class EvaluationLog:
    """Evaluates on the way and appends to a CSV file; a callback of :meth:`Agent.learn`.

    Args:
        path: the file; rows after ``frames`` are dropped, since a resumed run makes them again.
        plan: how often, and how many episodes.
        frames: that the agent has behind it.
    """

    def __init__(self, path: Path, plan: Plan, frames: int) -> None:
        self.path = path
        self._every = max(1, plan.frames // plan.evaluations)
        self._episodes = plan.episodes
        self._rows = [row for row in self._read() if row["frames"] <= frames]
        self._done = frames // self._every

    def _read(self) -> list[dict[str, float]]:
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]

    def rows(self) -> list[dict[str, float]]:
        """All rows: ``seed``, ``frames``, ``return``."""
        return self._rows

    def __call__(self, agent: Agent, rows: Sequence[dict[str, float]]) -> None:
        frames = int(rows[0]["frames"])
        if frames // self._every == self._done:
            return
        self._done = frames // self._every
        returns = agent.evaluate(self._episodes, seed=frames).returns
        for seed, value in zip(agent.seeds, returns.mean(axis=1), strict=True):
            self._rows.append({"seed": seed, "frames": frames, "return": float(value)})
        lines = [f"{int(row['seed'])},{int(row['frames'])},{row['return']:.6g}" for row in self._rows]
        text = "\n".join(["seed,frames,return", *lines, ""])
        write_atomically(self.path, lambda file: file.write(text.encode()))


def _thin(frames: Any, returns: Any) -> dict[str, list[Any]]:
    grid = statistics.common_grid([(frames, returns)], POINTS)
    return _curve(grid, statistics.on_grid(frames, returns, grid))


def _curve(frames: Any, returns: Any) -> dict[str, list[Any]]:
    return {"frames": [int(frame) for frame in frames], "returns": _rounded(returns)}


def _rounded(values: Any) -> list[float | None]:
    return [None if math.isnan(value) else float(f"{value:.5g}") for value in values]


def write_result(path: Path, content: dict[str, Any]) -> None:
    """A results file: JSON with one line for each entry and each seed, so that changes can be read in a diff."""
    lines = []
    for key, value in content.items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list):
            text = "[\n" + ",\n".join("  " + json.dumps(one, allow_nan=False) for one in value) + "\n]"
        lines.append(f"{json.dumps(key)}: {text}")
    whole = "{\n" + ",\n".join(lines) + "\n}\n"
    write_atomically(path, lambda file: file.write(whole.encode()))


# --- what is printed and drawn --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What a folder of results holds.

    Attributes:
        records: with a finished seed, by game and (algorithm, preset).
        names: of every (algorithm, preset) there is, in the order they are shown.
        notes: what is missing or damaged, in words.
    """

    records: dict[tuple[str, Kind], Record]
    names: dict[Kind, str]
    notes: list[str]

    @property
    def games(self) -> list[str]:
        """The games there are results of."""
        return [game for game in GAMES if any(key[0] == game for key in self.records)]

    def of(self, game: str) -> dict[Kind, Record]:
        """The records of a game, in the order they are shown."""
        return {kind: self.records[game, kind] for kind in self.names if (game, kind) in self.records}


def read(folder: Path) -> Found:
    """Every readable results file.

    Raises:
        CapoError: if there is no finished seed at all.
    """
    records: dict[tuple[str, Kind], Record] = {}
    notes: list[str] = []
    for file in sorted(folder.glob("*-*-*.json")):
        game, algorithm, preset = file.stem.split("-", 2)
        if game not in GAMES or algorithm not in ALGORITHMS or "-" in preset:
            continue  # a file of something else, such as the noise experiment's
        try:
            record = folders.read_result(file)
        except folders.Unreadable as error:
            notes.append(f"{file}: {error}; left out")
            continue
        notes += record.problems
        if (record.algorithm, record.preset) != (algorithm, preset):
            notes.append(f"{file}: is of {record.algorithm} with preset {record.preset}, by its content; left out")
        elif record.finals:
            records[game, (algorithm, preset)] = record
        else:
            notes.append(f"{file}: has no finished seed; left out")
    if not records:
        detail = "; ".join(notes) or "no results files"
        raise CapoError(f"{folder}: there is no finished seed ({detail}); run without --draw-only first")
    found = Found(records, kind_names(kind for _, kind in records), notes)
    gaps = [
        f"{name} on {game}"
        for game in found.games
        for kind, name in found.names.items()
        if (game, kind) not in records
    ]
    if gaps:
        notes.append(f"no results of {', '.join(gaps)}")
    lengths = sorted({record.frames or 0 for record in records.values()})
    if lengths[-1] > 1.01 * lengths[0]:  # whole iterations are not of the same length everywhere
        notes.append(f"runs of different lengths: {', '.join(f'{n:,}' for n in lengths)} frames")
    return found


def report(folder: Path) -> str:
    """The final table, from the files in ``folder``."""
    found = read(folder)
    parts = [QUICK_NOTE] if any(record.quick for record in found.records.values()) else []
    if len(found.games) > 1:
        parts.append(_overview(found))
    for game in found.games:
        rows = []
        for kind, record in found.of(game).items():
            finals = np.array(list(record.finals.values()))
            iqm = statistics.stratified_bootstrap([finals], statistics.aggregate_iqm)
            mean = statistics.stratified_bootstrap([finals], statistics.aggregate_mean)
            std = f"{finals.std(ddof=1):.2f}" if len(finals) > 1 else "-"
            theirs = paper.final(f"minatar-{game}", kind[0])
            rows.append(
                [
                    found.names[kind],
                    len(finals),
                    f"{record.frames:,}",
                    _interval(iqm),
                    _interval(mean),
                    std,
                    f"{finals.min():.2f} - {finals.max():.2f}",
                    "-" if theirs is None else f"{theirs:.1f}",
                    dict(record.facts)["training took"],
                ]
            )
        header = ["", "seeds", "frames", "IQM [95 %]", "mean [95 %]", "std", "lowest - highest", "paper, 10 M"]
        parts.append(text_table(game, [*header, "all seeds trained in"], rows))
    protocols: dict[str, list[str]] = {}
    for game in found.games:
        for kind, record in found.of(game).items():
            names = protocols.setdefault(record.protocol_line("Final score"), [])
            names += [found.names[kind]] if found.names[kind] not in names else []
    scores = [f"{how} ({', '.join(names)})" if len(protocols) > 1 else how for how, names in protocols.items()]
    closing = [f"Scores: {text}." for text in scores]
    closing.append("Intervals: percentile bootstrap over seeds; with fewer than five seeds they are too narrow.")
    machines = dict.fromkeys(dict(record.facts).get("hardware", "") for record in found.records.values())
    closing += [f"Trained on: {machine}." for machine in machines if machine]
    spans = [span for record in found.records.values() for span in record.spans]
    together, apart = folders.covered(spans), sum(end - begin for begin, end in spans)
    aside = f", trainings side by side counted once ({folders.duration(apart)} one after another)"
    closing.append(f"Trained in {folders.duration(together)}{aside if together < apart else ''}.")
    closing += [f"Note: {note}" for note in found.notes]
    return "\n\n".join([*parts, "\n".join(closing)])


def _overview(found: Found) -> str:
    """Mean returns at the end, a column a game, and the paper's NCAPO and best other algorithm below."""
    rows = []
    for kind, name in found.names.items():
        means = [
            f"{np.mean(list(found.of(game)[kind].finals.values())):.1f}" if kind in found.of(game) else "-"
            for game in found.games
        ]
        rows.append([name, *means])
    for name, algorithms in (("paper: NCAPO", ALGORITHMS[:1]), ("paper: best other", ALGORITHMS[1:])):
        finals = [[paper.final(environment(game), algorithm) for algorithm in algorithms] for game in found.games]
        best = [max((value for value in own if value is not None), default=None) for own in finals]
        rows.append([name, *("-" if value is None else f"{value:.1f}" for value in best)])
    return text_table("mean return at the end", ["", *found.games], rows)


def _interval(found: statistics.Estimate) -> str:
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def draw(folder: Path, out: Path) -> list[Path]:
    """minatar.png from the files in ``folder``: mean and 0.5 std as in the paper, and interquartile mean."""
    found = read(folder)
    games, styles = found.games, _styles(found.names)
    path = out / "minatar.png"
    width = max(3.1 * len(games), 6.2)
    with figures.figure(path, 2, len(games), (width, 6.4), squeeze=False, sharex="col", sharey="col") as (
        drawing,
        axes,
    ):
        for column, game in enumerate(games):
            own = found.of(game)
            last = max(max(frames[-1] for frames, _ in _drawn(record).values()) for record in own.values())
            for algorithm in dict.fromkeys(algorithm for algorithm, _ in found.names):
                _draw_paper(axes[:, column], game, algorithm, last)
            for kind, record in reversed(own.items()):  # the first, which the figure is about, above the others
                _draw_curves(axes[:, column], record, found.names[kind], styles[kind])
            absent = [name for kind, name in found.names.items() if kind not in own]
            title = game.replace("_", " ").title() + (f"\n(no {', '.join(absent)})" if absent else "")
            axes[0, column].set_title("\n".join(textwrap.fill(line, 38) for line in title.splitlines()))
            axes[1, column].set_xlabel("frames")
            axes[1, column].set_xlim(0, last)
            axes[1, column].xaxis.set_major_formatter(lambda value, _: _short(value))
        axes[0, 0].set_ylabel("mean ± 0.5 std")
        axes[1, 0].set_ylabel("interquartile mean, 95 % interval")
        _legend(drawing, axes, list(found.names.values()), width)
    return [path]


def _styles(names: Iterable[Kind]) -> dict[Kind, dict[str, Any]]:
    """How each (algorithm, preset) is drawn: the algorithm's colour, its presets by shade and marker."""
    found: dict[Kind, dict[str, Any]] = {}
    for algorithm, preset in names:
        share, marker = STYLES[sum(one == algorithm for one, _ in found) % len(STYLES)]
        found[algorithm, preset] = {"color": figures.darker(COLOURS[algorithm], share), "marker": marker}
    return found


def _drawn(record: Record) -> dict[int, folders.Curve]:
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
    """The paper's curve as far as ours go."""
    curve = paper.of_environment(f"minatar-{game}").get(algorithm)
    if curve is None or curve[0][0] > last:
        return
    frames, returns = (values[curve[0] <= last] for values in curve)
    for axis in axes:
        axis.plot(frames, returns, color=COLOURS[algorithm], linestyle="--", linewidth=1.1, label=PAPER)


def _legend(drawing: Any, axes: Any, names: Sequence[str], width: float) -> None:
    """One line for each name, in their order, and one for all of the paper's curves."""
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    for axis in axes.flat:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    if PAPER in handles:
        handles[PAPER] = Line2D([], [], color=figures.MUTED, linestyle="--", linewidth=1.1)
    shown = [name for name in (*names, PAPER) if name in handles]
    drawing.legend(
        [handles[name] for name in shown],
        shown,
        loc="outside lower center",
        ncols=min(len(shown), int(width / 1.7)),
    )


def _short(value: float) -> str:
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"
