"""Reading what runs left on the disk, whatever state it is in.

A :class:`Record` is one training of some seeds, from a run's folder or from a results file of
``capo reproduce minatar``. Damage is no reason to draw nothing: what can be read is read, and what can't is
named in ``problems``.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capo.errors import CapoError
from capo.report.curve import SCORE, smooth

FORMAT = 1  # of the results files of `capo reproduce minatar`
CONFIG, METRICS, EVALUATION = "config.json", "metrics.csv", "evaluation.json"
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
STICKY = 0.1  # MinAtar's own
LAST = 0.1  # share of training that stands for its end where there is no evaluation

Array = NDArray[np.float64]
Curve = tuple[Array, Array]  # frames (n,) and returns (n,)


class Unreadable(Exception):
    """A file that can't be used, and why."""


@dataclass
class Record:
    """One training of some seeds.

    Attributes:
        path: the folder or file it was read from.
        env, algorithm, preset: what was trained on what; ``"unknown"`` where the file that says it is lost.
        settings: the algorithm's settings by name.
        noise: what was added to the environment's name if its rewards were noisy while training.
        frames: of training that were planned for each seed, if known.
        training: curve of each seed, from the episodes that ended while training, smoothed.
        evaluation: curve of each seed, from evaluations during training; empty if there were none.
        finals: final score of each finished seed.
        final_how: how those were measured.
        unfinished: seeds that have not reached ``frames``, and the last frame they have.
        protocol: how the curves and scores were measured, as (what, how).
        facts: versions, commit, hardware, wall time, as (what, value).
        versions: of the packages.
        spans: begin and end of its trainings, in seconds since 1970, if they are known.
        gifs: pictures of the agent playing.
        quick: whether it is a small version of an experiment, not the real one.
        problems: what is missing or damaged, in words.
    """

    path: Path
    env: str = "unknown"
    algorithm: str = "unknown"
    preset: str = "unknown"
    settings: dict[str, Any] = field(default_factory=dict)
    noise: str = ""
    frames: int | None = None
    seeds: list[int] = field(default_factory=list)
    training: dict[int, Curve] = field(default_factory=dict)
    evaluation: dict[int, Curve] = field(default_factory=dict)
    finals: dict[int, float] = field(default_factory=dict)
    final_how: str = ""
    unfinished: dict[int, int] = field(default_factory=dict)
    protocol: list[tuple[str, str]] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    spans: list[tuple[float, float]] = field(default_factory=list)
    gifs: list[Path] = field(default_factory=list)
    quick: bool = False
    problems: list[str] = field(default_factory=list)

    def protocol_line(self, what: str) -> str:
        """How something was measured; empty if that isn't known."""
        return dict(self.protocol).get(what, "")

    def problem(self, file: str, text: str) -> None:
        """Note something that is missing or damaged."""
        self.problems.append(f"{self.path / file if file else self.path}: {text}")


def read(paths: Sequence[Path]) -> tuple[list[Record], list[str]]:
    """Everything the folders hold.

    Args:
        paths: folders of runs, folders that hold such folders, and results of ``capo reproduce minatar``.

    Returns:
        The records, and what could not be read, in words.

    Raises:
        CapoError: if a path is none of these, or if there is nothing to draw in any of them.
    """
    if not paths:
        raise CapoError("give at least one folder: `capo report runs/breakout`")
    records: list[Record] = []
    notes: list[str] = []
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            notes.append(f"{path}: given twice, drawn once")
            continue
        seen.add(path.resolve())
        records += _read_one(path, notes)
    for record in records:
        notes += record.problems
    if not any(record.training or record.evaluation for record in records):
        detail = "; ".join(notes[:3]) or "nothing has been logged yet"
        raise CapoError(
            f"no seed of {', '.join(map(str, paths))} has anything to draw: {detail}. "
            "`capo resume DIR` goes on with a run"
        )
    return records, notes


def _read_one(path: Path, notes: list[str]) -> list[Record]:
    if not path.exists():
        raise CapoError(f"{path}: there is no such folder; give one that `capo train ... --out` made")
    if not path.is_dir():
        raise CapoError(f"{path}: is a file; give the folder it is in")
    if is_run(path):
        return [read_run(path)]
    results = [file for file in sorted(path.glob("*.json")) if _is_result(file)]
    found = []
    for file in results:
        try:
            found.append(read_result(file))
        except Unreadable as error:
            notes.append(f"{file}: {error}; left out")
    inside = [one for one in _runs_below(path) if not _has_result(one, found)]
    found += [read_run(one) for one in inside]
    if not found and not results:
        raise CapoError(
            f"{path}: is not the folder of a run (it has neither {CONFIG} nor {METRICS}) and holds none; give "
            "what `capo train ENV --out DIR` or `capo reproduce minatar --out DIR` wrote"
        )
    return found


def is_run(path: Path) -> bool:
    """Whether a folder is a run's."""
    return any((path / name).is_file() for name in (CONFIG, METRICS))


def _runs_below(path: Path) -> list[Path]:
    """Folders of runs one or two levels down."""
    below = sorted({*path.glob("*/"), *path.glob("*/*/")})
    return [one for one in below if is_run(one)]


def _has_result(run: Path, results: Sequence[Record]) -> bool:
    """Whether a results file tells of this run already (it is then not drawn twice)."""
    try:
        config = _read_json(run / CONFIG)
    except Unreadable:
        return False
    named = config.get("environment")
    env = config.get("env") or (named.get("name") if isinstance(named, Mapping) else None)
    key = (env, config.get("algorithm"), config.get("preset"), config.get("frames"), config.get("config"))
    seeds = _seeds(config)
    return seeds is not None and any(
        (one.env + one.noise, one.algorithm, one.preset, one.frames, one.settings) == key
        and set(seeds) <= set(one.seeds)
        for one in results
    )


def _noise(deviation: float) -> str:
    """As :class:`capo.envs.noise.NoisyReward` says it."""
    return f", reward noise {deviation!r}".removesuffix(".0") if deviation else ""


def _is_result(file: Path) -> bool:
    """Whether a JSON file is meant to be a results file, readable or not.

    Those are ``<game>-<algorithm>-<preset>.json``, and of the ablation and the noise ``<game>-<variant>.json``.
    """
    return file.stem.partition("-")[0] in GAMES and "-" in file.stem


# --- a run's folder -------------------------------------------------------------------------------------------


def read_run(path: Path) -> Record:
    """A run's folder; never fails, see :attr:`Record.problems`."""
    record = Record(path, gifs=sorted(path.glob("*.gif")))
    try:
        _take_config(record, _read_json(path / CONFIG))
    except Unreadable as error:
        record.problem(CONFIG, f"{error}; the curves are drawn without the run's settings")
    rows = _read_metrics(record)
    raw: dict[int, Curve] = {}
    for seed in sorted({int(row["seed"]) for row in rows}):
        own = {row["frames"]: row["episode_return"] for row in rows if int(row["seed"]) == seed}
        frames, returns = np.array(sorted(own.items())).T
        raw[seed] = (frames, returns)
        record.training[seed] = (frames, smooth(returns))
        if record.frames and frames[-1] < record.frames:
            record.unfinished[seed] = int(frames[-1])
        tested = [row for row in rows if int(row["seed"]) == seed and math.isfinite(row.get(SCORE, math.nan))]
        if tested:
            record.evaluation[seed] = (_column(tested, "frames"), _column(tested, SCORE))
    record.seeds = record.seeds or sorted(record.training)
    for seed in record.seeds:
        if seed not in record.training and rows:
            record.unfinished[seed] = 0
    if not rows and not record.problems:
        record.problem(METRICS, "holds no rows yet: the run has only just started")
    for seed, last in record.unfinished.items():
        record.problem("", f"seed {seed} {_stopped(last, record.frames)}")
    seconds = max((row.get("elapsed_seconds", math.nan) for row in rows), default=math.nan)
    if math.isfinite(seconds):
        record.facts.insert(0, ("training took", duration(seconds)))
    _take_evaluation(record, raw)
    return record


def _column(rows: Sequence[Mapping[str, float]], name: str) -> NDArray[np.float64]:
    return np.array([row[name] for row in rows])


def _stopped(last: int, planned: int | None) -> str:
    if last == 0:
        return "has logged nothing"
    return f"stops at frame {last:,} of {planned:,}: drawn as far as it goes, left out of the final table"


def _seeds(config: Mapping[str, Any]) -> list[int] | None:
    """The seeds of a run; None if they are no list of integers."""
    given = config.get("seeds")
    return given if isinstance(given, list) and all(isinstance(seed, int) for seed in given) else None


def _take_config(record: Record, config: Mapping[str, Any]) -> None:
    environment = config.get("environment")
    name = environment.get("name") if isinstance(environment, Mapping) else None
    record.env = str(config.get("env") or name or "unknown")
    record.algorithm = str(config.get("algorithm", "unknown"))
    record.preset = str(config.get("preset", "unknown"))
    if isinstance(config.get("config"), Mapping):
        record.settings = dict(config["config"])
    if isinstance(config.get("frames"), int):
        record.frames = config["frames"]
    record.seeds = list(_seeds(config) or ())
    if not record.seeds and "seeds" in config:
        record.problem(CONFIG, f"names no seeds ({config['seeds']!r}); those of {METRICS} are drawn")
    missing = [key for key in ("algorithm", "env", "config", "seeds", "frames", "versions") if key not in config]
    if missing:
        record.problem(CONFIG, f"was written by another version of capo (no {', '.join(missing)})")
    record.facts += _facts(config)
    record.versions = _versions(config)
    record.protocol += [
        ("Training curve", training_protocol(record.settings)),
        ("Sticky actions", sticky(record.env)),
    ]
    if config.get("eval_every"):
        how = {"deterministic": record.algorithm == "rainbow", "episodes_per_seed": config.get("eval_episodes")}
        record.protocol.append(("Evaluation curve", evaluation_protocol(how)))


def training_protocol(settings: Mapping[str, Any]) -> str:
    """What a training curve is, in words."""
    how = "mean return of the episodes that ended since the last log point, with the exploration of training"
    if settings.get("behaviour") == "uniform":
        return (
            f"{how}: all actions are uniform, so this is not the policy that is learnt; smoothed over a fiftieth"
        )
    start, end = settings.get("epsilon_start"), settings.get("epsilon_final")
    if start is not None and end is not None:
        how += f" (epsilon {start:g} to {end:g})"
    return how + "; smoothed over a fiftieth of the run"


def sticky(env: str) -> str:
    """What is known of an environment's sticky actions."""
    if env.startswith("minatar-"):
        return f"{STICKY} is the chance that the last action is repeated, always; there is no time limit"
    return "none added by capo"


def _facts(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Commit, start and hardware as lines for a reader."""
    facts = [(name, str(content[name])) for name in ("started", "commit") if content.get(name)]
    hardware = content.get("hardware")
    if isinstance(hardware, Mapping):
        names = ", ".join(map(str, hardware.get("devices", ())))
        parts = [
            hardware.get("processor"),
            f"{hardware.get('cores')} cores",
            f"{hardware.get('backend')}: {names}",
        ]
        facts.append(("hardware", "; ".join(str(part) for part in parts if part and "None" not in str(part))))
    return facts


def _versions(content: Mapping[str, Any]) -> dict[str, str]:
    found = content.get("versions")
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, Mapping) else {}


def _read_metrics(record: Record) -> list[dict[str, float]]:
    """The rows of metrics.csv that are whole; what is not is noted."""
    try:
        text = (record.path / METRICS).read_text(errors="replace")
    except FileNotFoundError:
        record.problem(METRICS, "is missing: nothing to draw for this run")
        return []
    except OSError as error:
        record.problem(METRICS, f"cannot be read ({error.strerror})")
        return []
    lines = csv.reader(io.StringIO(text.replace("\0", "")))
    header = next(lines, [])
    missing = [name for name in ("seed", "frames", "episode_return") if name not in header]
    if missing:
        record.problem(METRICS, f"has no column {', '.join(missing)}: nothing to draw for this run")
        return []
    rows, bad = [], []
    for number, cells in enumerate(lines, 2):
        try:
            row = {key: float(cell or "nan") for key, cell in zip(header, cells, strict=True)}
            int(row["seed"]), int(row["frames"])  # raises for nan
        except (ValueError, OverflowError):
            bad.append(number)
        else:
            rows.append(row)
    if bad:
        where = f"line {bad[0]}" if len(bad) == 1 else f"{len(bad)} lines from line {bad[0]}"
        record.problem(
            METRICS, f"{where} cannot be read (cut short or damaged); the other {len(rows)} rows are drawn"
        )
    return rows


def _take_evaluation(record: Record, raw: Mapping[int, Curve]) -> None:
    """The final scores: of evaluation.json if it is of the finished run, otherwise of the end of training."""
    finished = [seed for seed in record.training if seed not in record.unfinished]
    try:
        found = _read_json(record.path / EVALUATION)
        scores = {int(s): float(m) for s, m in zip(found["seeds"], found["mean_by_seed"], strict=True)}
        how = evaluation_protocol(found)
        if record.frames and found["frames"] < record.frames:
            record.problem(EVALUATION, f"is of frame {found['frames']:,} and not of the finished run: not used")
        elif lacking := [seed for seed in finished if seed not in scores]:
            named = ", ".join(map(str, lacking))
            record.problem(
                EVALUATION, f"lacks seed {named}: not used; `capo evaluate {record.path}` plays them all"
            )
        elif scores:
            record.finals = {seed: score for seed, score in scores.items() if math.isfinite(score)}
            record.final_how = how
            record.protocol.append(("Final score", how))
            return
    except Unreadable as error:
        if finished and (record.path / EVALUATION).exists():
            record.problem(EVALUATION, f"{error}; the end of training stands for it")
    except (KeyError, TypeError, ValueError):
        record.problem(EVALUATION, "was written by another version of capo; the end of training stands for it")
    tested = {seed: curve for seed, curve in record.evaluation.items() if curve[0][-1] == raw[seed][0][-1]}
    if finished and all(seed in tested for seed in finished):
        record.finals = {seed: float(tested[seed][1][-1]) for seed in finished}
        record.final_how = dict(record.protocol).get("Evaluation curve", "")
        record.protocol.append(("Final score", record.final_how))
        return
    for seed in finished:
        frames, returns = raw[seed]
        end = returns[(frames > (1 - LAST) * frames[-1]) & ~np.isnan(returns)]
        if len(end):
            record.finals[seed] = float(end.mean())
    if record.finals:
        record.final_how = f"training episodes of the last {LAST:.0%} of frames, with exploration (no evaluation)"
        record.protocol.append(("Final score", record.final_how))


def evaluation_protocol(found: Mapping[str, Any]) -> str:
    """How an evaluation was made, in words."""
    actions = "the likeliest action" if found["deterministic"] else "actions sampled from the policy"
    return f"{found['episodes_per_seed']} whole episodes of each seed, {actions}, no epsilon"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise Unreadable("is missing") from None
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise Unreadable(f"is not readable JSON, perhaps cut short ({error})") from None
    if not isinstance(found, dict):
        raise Unreadable("is not what capo writes there")
    return found


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(70), duration(600), duration(9000)
    ('70 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# --- a results file of `capo reproduce minatar` ---------------------------------------------------------------


def read_result(file: Path) -> Record:
    """One game, algorithm and preset of ``capo reproduce minatar``.

    Raises:
        Unreadable: if the file is damaged or of another version; says which.
    """
    content = _read_json(file)
    if content.get("experiment") != "minatar":
        raise Unreadable("is no result of `capo reproduce minatar`")
    if content.get("format") != FORMAT:
        raise Unreadable(
            f"was written by another version of capo (format {content.get('format')}, this one reads {FORMAT}): "
            "repeat that run"
        )
    try:
        return _result_record(file, content)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise Unreadable(f"lacks something or has it in another shape ({type(error).__name__}: {error})") from None


def _result_record(file: Path, content: Mapping[str, Any]) -> Record:
    record = Record(
        file,
        env=content["env"],
        algorithm=content["algorithm"],
        preset=content["preset"],
        settings=dict(content["config"]),
        noise=_noise(float(content.get("reward_noise", 0.0))),
        frames=int(content["frames_trained"]),
        quick=bool(content["quick"]),
        protocol=[(str(what), str(how)) for what, how in content["protocol"].items()],
    )
    for entry in content["seeds"]:
        seed = int(entry["seed"])
        record.seeds.append(seed)
        for name, curves in (("training", record.training), ("evaluation", record.evaluation)):
            if entry[name]["frames"]:
                frames, returns = (_floats(entry[name][key]) for key in ("frames", "returns"))
                if len(frames) != len(returns):
                    raise ValueError(f"seed {seed}: {len(frames)} frames, {len(returns)} returns")
                curves[seed] = (frames, returns)
        record.finals[seed] = float(np.mean(_floats(entry["final_returns"])))
    record.final_how = str(content["protocol"]["Final score"])
    programs = content["programs"]
    for one in programs:
        begin = datetime.fromisoformat(one["started"]).timestamp()
        record.spans.append((begin, begin + float(one["wall_seconds"])))
    record.facts.append(("training took", duration(sum(end - begin for begin, end in record.spans))))
    record.facts += _facts(programs[-1])
    record.versions = _versions(programs[-1])
    for one in programs[:-1]:
        record.problems += version_differences(f"{file}: seeds {one['seeds']}", _versions(one), record.versions)
    return record


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The time that spans cover together; where they overlap it counts once.

    >>> covered([(0, 5), (3, 8), (20, 21)])
    9.0
    """
    total, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


def _floats(values: Sequence[float | None]) -> Array:
    return np.array([math.nan if value is None else value for value in values], np.float64)


def version_differences(what: str, theirs: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """One line if packages that matter differ, otherwise none."""
    differ = [
        f"{name} {theirs[name]} against {others[name]}"
        for name in ("capo-rl", "jax", "pgx")
        if name in theirs and name in others and theirs[name] != others[name]
    ]
    return [f"{what}: made with other versions ({', '.join(differ)})"] if differ else []
