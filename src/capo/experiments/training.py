"""Trainings on MinAtar as jobs: what is finished is not repeated, and what was stopped continues.

The main figure, the ablation and the noise experiment use it. A :class:`Job` trains the seeds of one algorithm
with one set of settings on one game, all seeds as one program, in a run's folder under ``runs/``, and ends as one
results file (:mod:`capo.experiments.results`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from capo.envs.minatar.games import FULL, GAMES
from capo.errors import CapoError, unknown_name
from capo.experiments import results
from capo.experiments.common import Row, Say, content_of, split_names, teller
from capo.neural.algorithms import registry
from capo.neural.algorithms.settings import CommonSettings, override
from capo.report import statistics, wording
from capo.report.series import Kind
from capo.runs.layout import CONFIG, EVALUATION, is_run
from capo.runs.reader import Unreadable, read_config, read_json, read_metrics
from capo.runs.records import FORMAT, Record, read_result, read_run
from capo.sweeps import jobs as sweeps
from capo.sweeps.board import Board
from capo.sweeps.engine import choose as choose_engine
from capo.sweeps.engine import run_all
from capo.sweeps.work import Outcome, Watcher, Work, share_device

OPTIONS = (
    "games",
    "frames",
    "seeds",
    "preset",
    "workers",
    "on",
    "gpus",
)  # that every experiment with trainings accepts
POINTS = 100  # of a stored training curve


@dataclass(frozen=True)
class Plan:
    """How much to train, and how to evaluate it.

    Attributes:
        frames: per seed; the default is the paper's.
        first_seed: the others follow it.
        evaluations: during training, evenly spaced.
        episodes: of each of those, per seed.
        final_episodes: of the evaluation after training, per seed; as many as ``episodes`` share one program.
    """

    frames: int = 10_000_000
    seeds: int = 10
    preset: str = "default"
    evaluations: int = 20
    episodes: int = 100
    final_episodes: int = 100
    quick: bool = False
    first_seed: int = 0

    def with_options(self, **given: Any) -> Plan:
        """The plan with what the user gave."""
        return replace(self, **{name: value for name, value in given.items() if value})


QUICK = Plan(frames=10_000, seeds=2, preset="cpu", evaluations=4, episodes=10, final_episodes=10, quick=True)


# --- choosing -------------------------------------------------------------------------------------------------


def environment(game: str) -> str:
    """The name of a game's environment."""
    return f"minatar-{game}"


def known(kind: str, name: str, allowed: Iterable[str]) -> str:
    """The name, refused if it is not allowed."""
    if name not in allowed:
        raise unknown_name(kind, name, allowed)
    return name


def choose(kind: str, given: Sequence[str] | None, allowed: Iterable[str]) -> list[str]:
    """Names out of those that are allowed; empty if none is given."""
    return list(dict.fromkeys(known(kind, name, allowed) for name in split_names(given)))


def choose_games(given: Sequence[str] | None) -> list[str]:
    """Games by name, ``minatar-`` and hyphens allowed; all of them if none is given."""
    names = [name.removeprefix("minatar-").replace("-", "_") for name in split_names(given)]
    return choose("game", names, GAMES) or list(GAMES)


def choose_kinds(given: Sequence[str] | None, plan: Plan) -> list[Kind]:
    """Algorithms with their presets, each given as ``ALGORITHM`` or ``ALGORITHM:PRESET``; all if none is given."""
    kinds = []
    for entry in split_names(given) or registry.ROWS:
        name, colon, preset = entry.partition(":")
        row = registry.find(name if name in registry.ROWS else name.replace("-", ""))
        if colon:
            kinds.append((row.name, known(f"preset of {row.name}", preset, row.settings.PRESETS)))
        else:
            kinds.append((row.name, find_preset(row.name, plan)))
    return list(dict.fromkeys(kinds))


def find_preset(algorithm: str, plan: Plan) -> str:
    """The plan's preset; a quick run takes ``default`` where an algorithm has no ``cpu``."""
    presets = registry.find(algorithm).settings.PRESETS
    if plan.quick and plan.preset == QUICK.preset and plan.preset not in presets:
        return "default"
    return known(f"preset of {algorithm}", plan.preset, presets)


# --- one training ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """The seeds of one algorithm with one set of settings on one game.

    Attributes:
        out: the experiment's folder.
        plan: how much, and the preset.
        variant: in the names of its files, for jobs that differ in more than algorithm and preset.
        title: for tables, figures and messages.
        settings: that replace the preset's.
        reward_noise: standard deviation of Gaussian noise on every training reward; evaluations have none.
        full_actions: all six actions of MinAtar instead of the game's minimal set.
    """

    out: Path
    experiment: str
    game: str
    algorithm: str
    plan: Plan
    variant: str = ""
    title: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    reward_noise: float = 0.0
    full_actions: bool = False

    @property
    def env(self) -> str:
        """The name of the environment, without noise."""
        return environment(self.game) + (FULL if self.full_actions else "")

    @property
    def preset(self) -> str:
        """See :func:`find_preset`."""
        return find_preset(self.algorithm, self.plan)

    @property
    def label(self) -> str:
        """The name of its files."""
        return f"{self.game}-{self.variant or f'{self.algorithm}-{self.preset}'}"

    @property
    def file(self) -> Path:
        """The results file."""
        return self.out / f"{self.label}.json"

    @property
    def eval_every(self) -> int:
        """Frames between two evaluations during training."""
        return max(1, self.plan.frames // self.plan.evaluations)

    # What is there already ----------------------------------------------------------------------------------

    def missing(self) -> list[int]:
        """Seeds that are not in the results file yet.

        Raises:
            CapoError: if the algorithm has no such preset, or if the file, or a run to be continued, has other
                settings.
        """
        done = {entry["seed"] for entry in self.stored().get("seeds", ())}
        first = self.plan.first_seed
        left = [seed for seed in range(first, first + self.plan.seeds) if seed not in done]
        for path, config in self._stopped():
            if set(config["seeds"]) <= set(left):
                wanted = {"eval_every": self.eval_every, "eval_episodes": self.plan.episodes}
                _refuse(f"{path} is a run with", _differences(wanted, config) + self._changes(config["config"]))
        return left

    def stored(self) -> Row:
        """The results file; empty if it is missing or damaged (the run's folder can make it again).

        One that a time limit stopped is that of the plan whose frames it was made for.
        """
        wanted = self._identity()  # before anything is read: it checks the preset
        try:
            read_result(self.file)
        except Unreadable:
            return {}
        stored = content_of(self.file)
        unknown = [key for key in self._protocol() if key not in stored]
        if unknown:
            raise CapoError(
                f"{self.file} is from an earlier version of capo and does not record how it was evaluated "
                f"({', '.join(unknown)} missing), so nothing can be added to it: give another --out (--draw-only "
                "still shows what is there)"
            )
        asked = {"frames": self.plan.frames} if self._was_stopped(stored) else {}
        differ = _differences(wanted | self._protocol(), stored | asked)
        _refuse(f"{self.file} contains results with", differ + self._changes(stored["config"]))
        return stored

    def _was_stopped(self, stored: Row) -> bool:
        """Whether the results file is that of a training of this plan that a time limit stopped."""
        per_iteration = self._config().frames_per_iteration
        whole = -(-self.plan.frames // per_iteration) * per_iteration
        return bool(stored["frames_trained"] < whole == stored["config"].get("horizon"))

    def _identity(self) -> Row:
        """What must be the same for seeds to be put together."""
        found: Row = {"experiment": self.experiment, "env": self.env, "algorithm": self.algorithm}
        found |= {"preset": self.preset, "frames": self.plan.frames}
        if self.variant:
            found |= {"variant": self.variant, "changed": dict(self.settings), "reward_noise": self.reward_noise}
        return found

    def _protocol(self) -> Row:
        """How it is evaluated, in numbers."""
        plan = asdict(self.plan)
        numbers = {key: plan[key] for key in ("evaluations", "episodes", "final_episodes")}
        return {**numbers, "deterministic": registry.evaluates_best(self.algorithm, self._settings())}

    def _changes(self, then: Mapping[str, Any]) -> list[str]:
        """Settings that are not those a training would have now, in words; the horizon is the plan's."""
        now = self._settings()
        del now["horizon"]
        return _differences(now, registry.all_settings(self.algorithm, then))

    def _settings(self) -> Row:
        """The settings that a training would have now."""
        return self._config().to_dict()

    def _config(self) -> CommonSettings:
        base = registry.find(self.algorithm).settings.preset(self.preset, self.env)
        return override(base, self.settings)

    def _stopped(self) -> list[tuple[Path, Row]]:
        """Folders of runs that were begun, with their config.json."""
        found = sorted((self.out / "runs").glob(f"{self._stem()}*"))
        return [(path, read_config(path)) for path in found if (path / CONFIG).is_file()]

    def _stem(self) -> str:
        return f"{self.game}-{self.variant or self.algorithm}-{self.preset}-{self.plan.frames}-seeds-"

    # Training -----------------------------------------------------------------------------------------------

    def pieces(self) -> list[tuple[Path, sweeps.Job]]:
        """What is missing: the runs that were stopped, then the other seeds as one program."""
        missing = self.missing()
        found = [
            (path, self._sweep_job(config["seeds"]))
            for path, config in self._stopped()
            if set(config["seeds"]) <= set(missing)
        ]
        begun = {seed for _, job in found for seed in job.seeds}
        rest = [seed for seed in missing if seed not in begun]
        if rest:
            path = self.out / "runs" / f"{self._stem()}{rest[0]}-{rest[-1]}"
            found.append((path, self._sweep_job(rest)))
        return found

    def _sweep_job(self, seeds: Sequence[int]) -> sweeps.Job:
        plan = self.plan
        return sweeps.Job(
            self.env,
            self.algorithm,
            self.preset,
            plan.frames,
            tuple(seeds),
            dict(self.settings),
            self.eval_every,
            plan.episodes,
            plan.final_episodes,
            evaluation_seed=1,  # other episodes than those of the last evaluation during training
            reward_noise=self.reward_noise,
        )

    def store(self, path: Path) -> None:
        """Add the seeds of the finished run in ``path`` to the results file."""
        stored, config, trained = self.stored(), read_config(path), read_run(path)
        if config.get("diverged_seeds"):  # the rest without them would look better than the algorithm is
            raise CapoError(
                f"{path}: " + "; ".join(f"seed {s} {why}" for s, why in config["diverged_seeds"].items())
            )
        final = read_json(path / EVALUATION)
        self.write(
            config["config"],
            final["frames"],
            [
                self.entry(seed, trained.training[seed], trained.evaluation[seed], returns)
                for seed, returns in zip(final["seeds"], final["returns"], strict=True)
            ],
            {
                "seeds": final["seeds"],
                "wall_seconds": round(max(row["elapsed_seconds"] for row in read_metrics(path)), 1),
                **{key: config[key] for key in ("precision", "versions", "commit", "hardware", "started")},
            },
            stored,
        )

    def entry(self, seed: int, training: tuple[Any, Any], evaluation: tuple[Any, Any], returns: Any) -> Row:
        """What the results file says of a seed.

        Args:
            training: frames and returns of its log points.
            evaluation: frames and mean returns of its evaluations.
            returns: of every episode of the last one.
        """
        return {
            "seed": seed,
            "training": _thin(*training),
            "evaluation": results.curve(*evaluation),
            "final_returns": results.rounded(returns),
        }

    def write(
        self, settings: Row, frames: int, entries: Sequence[Row], program: Row, stored: Row | None = None
    ) -> None:
        """Write the results file.

        Args:
            settings: all of them.
            frames: trained, in whole iterations.
            entries: of :meth:`entry`.
            program: the program that trained them, and where.
            stored: the file so far, whose seeds are kept.
        """
        stored = stored or {}
        results.write_result(
            self.file,
            {
                **self._identity(),
                "format": FORMAT,
                "game": self.game,
                "title": self.title,
                "frames_trained": frames,
                "quick": self.plan.quick,
                **self._protocol(),
                "protocol": self._sentences(settings),
                "config": settings,
                "programs": [*stored.get("programs", ()), program],
                "seeds": sorted([*stored.get("seeds", ()), *entries], key=lambda entry: int(entry["seed"])),
            },
        )

    def _sentences(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """How everything was measured, for readers of the file: :meth:`_protocol` in words."""
        plan, sampled = self.plan, not self._protocol()["deterministic"]
        found = {
            "Evaluation curve": f"every {self.eval_every:,} frames (at the next log point), "
            + wording.evaluation(plan.episodes, sampled),
            "Final score": wording.evaluation(plan.final_episodes, sampled),
            "Training curve": wording.training_curve(settings),
            "Sticky actions": wording.sticky_actions(self.env),
        }
        if self.reward_noise:
            found["Rewards"] = (
                f"Gaussian noise of standard deviation {self.reward_noise:g} on every training reward, so the "
                "training curve shows noisy returns; evaluations play the game without noise"
            )
        return found


def _thin(frames: Any, returns: Any) -> dict[str, list[Any]]:
    grid = statistics.common_grid([(frames, returns)], POINTS)
    return results.curve(grid, statistics.on_grid(frames, returns, grid))


def _differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What is not as wanted, in words."""
    return [f"{key} {found.get(key)!r}, not {value!r}" for key, value in wanted.items() if found.get(key) != value]


def settings_changed(record: Record) -> list[str]:
    """How the settings of a record differ from what its preset has now, in words; the horizon is the plan's."""
    row = registry.ROWS.get(record.algorithm)
    if row is None or record.preset not in row.settings.PRESETS or not record.settings:
        return []
    now = row.settings.preset(record.preset, record.env).to_dict()
    del now["horizon"]
    return _differences(now, registry.all_settings(record.algorithm, record.settings))


def _refuse(what: str, differences: Sequence[str]) -> None:
    if differences:
        raise CapoError(
            f"{what} other settings ({'; '.join(differences)}); the preset may have changed since: give another "
            "--out (--draw-only still shows what is there)"
        )


# --- many of them ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Where:
    """Where trainings run; see :func:`capo.sweeps.engine.run_all`. ``gpus`` are those of each training, on Ray."""

    on: str = "local"
    workers: int | None = None
    gpus: float = 0.0

    @property
    def inline(self) -> bool:
        """Whether this process does the training itself, one after another."""
        return self.on == "local" and self.workers in (None, 1)


def place(on: str | None = None, workers: int | None = None, gpus: float | None = None) -> Where:
    """Where to train, from the options that a user gave; an engine that does not exist is refused."""
    where = Where(on or "local", workers, gpus or 0.0)
    choose_engine(where.on, where.workers)
    if not where.inline:
        share_device()
    return where


class _Storing(Watcher):
    """Stores what is finished, beside a board; says what an engine in this process begins with."""

    def __init__(self, inner: Watcher, pieces: Mapping[str, tuple[Job, Path]], say: Say | None) -> None:
        self._inner, self._pieces, self._say = inner, pieces, say
        self.lost, self.tick = inner.lost, inner.tick  # type: ignore[method-assign]

    def started(self, name: str, where: str) -> None:
        self._inner.started(name, where)
        if self._say is not None:
            job, path = self._pieces[name]
            number = list(self._pieces).index(name) + 1
            self._say(f"{number} of {len(self._pieces)}: {job.title} on {job.game}, {name.partition(': ')[2]}")
            if is_run(path):
                self._say(f"continuing {path}")

    def ended(self, outcome: Outcome) -> None:
        job, path = self._pieces[outcome.name]
        if not outcome.error:
            job.store(path)
        self._inner.ended(outcome)
        if self._say is not None and not outcome.error:
            self._say(f"{job.title}: final return {np.mean(results.finals(read_result(job.file))):.2f}")


def train_all(jobs: Sequence[Job], say: Say, progress: bool, where: Where | None = None) -> None:
    """Train what is missing, in this process or elsewhere.

    Raises:
        CapoError: at the end, if a training failed; the others are finished.
    """
    where = where or Where()
    todo = [job for job in jobs if job.missing()]  # also refuses results with other settings before any work
    plan = jobs[0].plan
    say(
        f"{len(jobs)} trainings, {plan.seeds} seeds of {plan.frames:,} frames each; "
        f"{len(jobs) - len(todo)} already finished"
    )
    pieces, work, frames = {}, [], {}
    for job in todo:
        for path, training in job.pieces():
            name = f"{job.label}: seeds {', '.join(map(str, training.seeds))}"
            pieces[name], frames[name] = (job, path), training.whole_frames * len(training.seeds)
            work.append(Work(name, path, training, gpus=where.gpus))
    try:
        if where.inline:
            outcomes = run_all(work, "inline", None, _Storing(Watcher(), pieces, say), quiet=not progress)
        else:
            board = Board(work, frames=frames, enabled=progress)
            try:
                outcomes = run_all(work, where.on, where.workers, _Storing(board, pieces, None))
            finally:
                board.close()
    except KeyboardInterrupt:
        say("stopped; nothing is lost: repeat the same command to continue")
        raise
    failed = [f"{one.name} ({one.error}; log in {pieces[one.name][1]})" for one in outcomes.values() if one.error]
    if failed:
        raise CapoError(f"{len(failed)} of {len(work)} trainings failed: {'; '.join(failed)}")


@dataclass(frozen=True)
class ExactPart:
    """The part of an experiment that takes minutes and trains nothing on a game.

    Attributes:
        files: that it writes; the first one says whether it was a quick run.
        compute: writes them, from (out, quick, progress).
    """

    name: str
    files: tuple[str, ...]
    compute: Callable[[Path, bool, bool], None]

    def is_there(self, out: Path, quick: bool) -> bool:
        """Whether all of it is there, in this size."""
        whole = all((out / name).exists() for name in self.files)
        return whole and content_of(out / self.files[0]).get("quick") is quick


def run_parts(
    experiment: str,
    exact: ExactPart,
    plan: Plan,
    make_jobs: Callable[..., Sequence[Job]],
    out: Path,
    progress: bool,
    *,
    train: Callable[[Sequence[Job], Say, bool, Where], None] = train_all,
    part: str | None = None,
    games: Sequence[str] | None = None,
    frames: int | None = None,
    seeds: int | None = None,
    preset: str | None = None,
    workers: int | None = None,
    on: str | None = None,
    gpus: float | None = None,
    **own: Any,
) -> None:
    """Compute what is missing of an experiment with an exact part and a part ``game``.

    The exact part takes minutes: it is computed again if it is asked for by name, else only if it is missing.

    Args:
        plan: of the trainings, before the user's options.
        make_jobs: the trainings, from (out, games, plan, **own); refuses what would stop them later.
        train: how the trainings are trained.
        part: the one to compute; both if None.
        games: breakout if none is given.
        workers, on, gpus: see :class:`Where`.
        **own: the experiment's other options for the game.
    """
    if part is not None:
        known("part", part, (exact.name, "game"))
    sizes = {"frames": frames, "seeds": seeds, "preset": preset}
    places: Row = {"workers": workers, "on": on, "gpus": gpus}
    for name, value in {"games": games, **sizes, **places, **own}.items():
        if part == exact.name and value is not None:
            raise CapoError(f"--{name} does not apply to --part {part}: it is about training on a game")
    say = teller(experiment, progress)
    jobs: Sequence[Job] = ()
    if part != exact.name:
        jobs = make_jobs(out, choose_games(games or ["breakout"]), plan.with_options(**sizes), **own)
        for job in jobs:
            job.missing()  # refuses before minutes of work
    where = place(**places)
    if part == exact.name or (part is None and not exact.is_there(out, plan.quick)):
        exact.compute(out, plan.quick, progress)
    elif part is None:
        say(f"the part {exact.name} is already finished (in {out}; --part {exact.name} computes it again)")
    if jobs:
        train(jobs, say, progress, where)
