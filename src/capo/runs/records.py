"""What trainings left on the disk, as data: one :class:`Record` per run's folder or results file.

Reading is tolerant. Damage is no reason to draw nothing: what can be read is read, and :attr:`Record.problems`
names the rest. Other sentences about a record are made in :mod:`capo.report.wording`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from capo.reading import Unreadable, read_json
from capo.runs import schema
from capo.runs.layout import CONFIG, EVALUATION, FRAMES, METRICS, RETURN, SCORE, SEED
from capo.runs.reader import salvage_config, salvage_evaluation, salvage_metrics

FORMAT = 1  # of the results files of `capo reproduce`
EXPERIMENTS = ("minatar", "noise", "ablation")  # those that train on games and write such files
TRAINING_END = 0.1  # share of training that stands for its end where there is no evaluation

Array = NDArray[np.float64]
Curve = tuple[Array, Array]  # frames (n,) and returns (n,)


@dataclass
class Record:
    """One training of one or more seeds; dictionaries are by seed."""

    path: Path  # the folder or file it was read from
    env: str = "unknown"  # here and below: "unknown" where the file that says it is lost
    algorithm: str = "unknown"
    preset: str = "unknown"
    settings: dict[str, Any] = field(default_factory=dict)  # the algorithm's, by name
    varied: dict[str, Any] = field(
        default_factory=dict
    )  # those of a sweep's settings that differ between its jobs
    reward_noise: float = 0.0  # standard deviation of the noise on the training rewards
    frames: int | None = None  # planned for each seed, if known
    seeds: list[int] = field(default_factory=list)
    training: dict[int, Curve] = field(default_factory=dict)  # from the episodes of training, smoothed
    evaluation: dict[int, Curve] = field(default_factory=dict)  # from evaluations during training
    finals: dict[int, float] = field(default_factory=dict)  # final score of each finished seed
    # Where finals come from: an evaluation after training, the last one during training, or training episodes of
    # its last TRAINING_END.
    scored_by: Literal["final evaluation", "last evaluation", "training", ""] = ""
    episodes: int | None = None  # per seed of each evaluation during training, if known
    final_episodes: int | None = None  # per seed of the final evaluation, if known
    deterministic: bool | None = None  # whether the final evaluation took the likeliest actions, if known
    unfinished: dict[int, int] = field(
        default_factory=dict
    )  # the last frame of seeds that are short of ``frames``
    protocol: dict[str, str] = field(default_factory=dict)  # how it was measured, as a results file words it
    made_by: dict[str, Any] = field(default_factory=dict)  # started, commit, hardware, versions: those known
    spans: list[tuple[float, float]] = field(default_factory=list)  # of its trainings, in seconds since 1970
    wall_seconds: float | None = None  # that training took, if known
    gifs: list[Path] = field(default_factory=list)  # pictures of the agent playing
    quick: bool = False  # whether it is a small version of an experiment, not the real one
    problems: list[str] = field(default_factory=list)  # what is missing or damaged, in words

    @property
    def versions(self) -> dict[str, str]:
        """Packages and their versions."""
        return _texts(self.made_by.get("versions"))

    def note(self, file: str, *problems: str) -> None:
        """Note what is missing or damaged in a file; "" for the whole folder."""
        self.problems += [f"{self.path / file if file else self.path}: {text}" for text in problems]


# --- a run's folder -------------------------------------------------------------------------------------------


def read_run(path: Path) -> Record:
    """A run's folder; never fails, see :attr:`Record.problems`."""
    record = Record(path, gifs=_pictures(path))
    config, problems = salvage_config(path)
    record.note(CONFIG, *problems)
    record.env = environment_name(config)
    record.algorithm = config.get("algorithm", record.algorithm)
    record.preset = config.get("preset", record.preset)
    record.settings = dict(config.get("config", {}))
    record.frames = config.get("frames")
    record.seeds = list(config.get("seeds", ()))
    record.episodes = config.get("eval_episodes") if config.get("eval_every") else None
    record.made_by = {key: config[key] for key in ("started", "commit", "hardware", "versions") if config.get(key)}
    rows, problems = salvage_metrics(path)
    record.note(METRICS, *problems)
    if not rows and not record.problems:
        record.note(METRICS, "has no rows yet: the run has only just started")
    lost = config.get("diverged_seeds", {})
    _take_rows(record, rows, lost if isinstance(lost, dict) else {})
    _take_finals(record, curves(rows, RETURN))
    return record


def _pictures(path: Path) -> list[Path]:
    """The GIFs of a folder: files of its own, not links to what lies elsewhere."""
    with suppress(OSError):
        return sorted(one for one in path.glob("*.gif") if one.is_file() and not one.is_symlink())
    return []


def environment_name(config: Mapping[str, Any]) -> str:
    """The environment that a config.json names, by the name it was given or by its own; ``"unknown"`` if none."""
    return str(config.get("env") or config.get("environment", {}).get("name") or "unknown")


def curves(rows: Sequence[Mapping[str, float]], column: str) -> dict[int, Curve]:
    """A column of metrics.csv by seed: frames and values, ascending; those that are nan stay."""
    found: dict[int, dict[float, float]] = {}
    for row in rows:
        found.setdefault(int(row[SEED]), {})[row[FRAMES]] = row.get(column, math.nan)
    return {
        seed: (np.array(sorted(points)), np.array([points[frame] for frame in sorted(points)]))
        for seed, points in sorted(found.items())
    }


def smooth(curve: Array) -> Array:
    """Mean of the values that exist over the last fiftieth of the run, at every point: (n,) -> (n,)."""
    # Enough to read a noisy curve, too little to shift it visibly.
    window = max(1, len(curve) // 50)
    known = ~np.isnan(curve)
    totals = np.concatenate([[0.0], np.cumsum(np.where(known, curve, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    end = np.arange(len(curve)) + 1
    start = np.maximum(end - window, 0)
    count = counts[end] - counts[start]
    return np.where(count > 0, (totals[end] - totals[start]) / np.maximum(count, 1), np.nan)


def training_curves(rows: Sequence[Mapping[str, float]]) -> dict[int, Curve]:
    """The smoothed return of training episodes by seed; nan before a seed's first episode ended."""
    return {seed: (frames, smooth(returns)) for seed, (frames, returns) in curves(rows, RETURN).items()}


def evaluation_curves(rows: Sequence[Mapping[str, float]]) -> dict[int, Curve]:
    """The evaluations during training by seed, without the log points that have none."""
    found = {}
    for seed, (frames, scores) in curves(rows, SCORE).items():
        tested = np.isfinite(scores)
        if tested.any():
            found[seed] = (frames[tested], scores[tested])
    return found


def _take_rows(record: Record, rows: Sequence[Mapping[str, float]], diverged: Mapping[str, Any]) -> None:
    """Curves, and who has not finished: ``diverged`` are the seeds that never will, and why."""
    record.training, record.evaluation = training_curves(rows), evaluation_curves(rows)
    record.seeds = record.seeds or list(record.training)
    for seed in sorted({*record.seeds, *record.training}) if rows else ():
        last = int(record.training[seed][0][-1]) if seed in record.training else 0
        if last < (record.frames or 1) or str(seed) in diverged:
            record.unfinished[seed] = last
            stop = f"stops at frame {last:,} of {record.frames:,}" if last else "has logged nothing"
            if str(seed) in diverged:
                stop = str(diverged[str(seed)])
            left_out = "; drawn up to that frame and left out of the final table" if last else ""
            record.note("", f"seed {seed} {stop}{left_out}")
    seconds = [row.get("elapsed_seconds", math.nan) for row in rows]
    record.wall_seconds = max(filter(math.isfinite, seconds), default=None)


def _take_finals(record: Record, returns: Mapping[int, Curve]) -> None:
    """The final scores: of evaluation.json if it is of the finished run, otherwise of the end of training."""
    finished = [seed for seed in record.training if seed not in record.unfinished]
    if _take_evaluation(record, finished):
        return
    tested = {seed: own for seed, own in record.evaluation.items() if own[0][-1] == returns[seed][0][-1]}
    if finished and all(seed in tested for seed in finished):
        record.finals = {seed: float(tested[seed][1][-1]) for seed in finished}
        record.scored_by, record.final_episodes = "last evaluation", record.episodes
        return
    for seed in finished:
        frames, values = returns[seed]
        end = values[(frames > (1 - TRAINING_END) * frames[-1]) & ~np.isnan(values)]
        if len(end):
            record.finals[seed] = float(end.mean())
            record.scored_by = "training"


def _take_evaluation(record: Record, finished: Sequence[int]) -> bool:
    """The final scores of evaluation.json, if it can be used; whether it was."""
    found, problems = salvage_evaluation(record.path)
    if found is None:
        if finished:
            record.note(EVALUATION, *(f"{problem}; the end of training is used instead" for problem in problems))
        return False
    scores = dict(zip(found["seeds"], map(float, found["mean_by_seed"]), strict=True))
    lacking = [str(seed) for seed in finished if seed not in scores]
    if found["frames"] < (record.frames or 0):
        record.note(
            EVALUATION, f"is from frame {found['frames']:,}, not from the end of the run, so it is not used"
        )
    elif lacking:
        advice = f"`capo evaluate {record.path}` evaluates every seed"
        record.note(EVALUATION, f"lacks seed {', '.join(lacking)}, so it is not used; {advice}")
    elif scores:
        record.finals = {seed: score for seed, score in scores.items() if math.isfinite(score)}
        record.scored_by, record.final_episodes = "final evaluation", found["episodes_per_seed"]
        record.deterministic = found["deterministic"]
        return True
    return False


# --- a results file of `capo reproduce minatar` ---------------------------------------------------------------


def read_result(file: Path) -> Record:
    """One game, algorithm and preset of ``capo reproduce minatar``.

    Raises:
        Unreadable: if the file is damaged or of another version; says which.
    """
    content = read_json(file)
    if content.get("experiment") not in EXPERIMENTS:
        raise Unreadable("is not a results file of `capo reproduce minatar`")
    if content.get("format") != FORMAT:
        found = schema.shown(content.get("format"))
        raise Unreadable(
            f"was written by another version of capo (format {found}, this one reads {FORMAT}): repeat that run"
        )
    if missing := [name for name in schema.RESULT_REQUIRED if name not in content]:
        raise Unreadable(f"lacks {', '.join(missing)}")
    if unfit := schema.problems(content, schema.RESULT_FIELDS):
        raise Unreadable("; ".join(unfit.values()))
    try:
        return _result_record(file, content)
    except (ValueError, OverflowError) as error:  # a date that is none, curves of two lengths
        raise Unreadable(f"has an unexpected structure ({error})") from None


def _result_record(file: Path, content: Mapping[str, Any]) -> Record:
    programs = content["programs"]
    record = Record(
        file,
        env=content["env"],
        algorithm=content["algorithm"],
        preset=content["preset"],
        settings=dict(content["config"]),
        reward_noise=float(content.get("reward_noise", 0.0)),
        frames=int(content["frames_trained"]),
        scored_by="final evaluation",
        episodes=content.get("episodes"),
        final_episodes=content.get("final_episodes"),
        deterministic=content.get("deterministic"),
        protocol=_texts(content["protocol"]),
        made_by=dict(programs[-1]),
        quick=bool(content["quick"]),
    )
    for entry in content["seeds"]:
        seed = int(entry["seed"])
        record.seeds.append(seed)
        for name, found in (("training", record.training), ("evaluation", record.evaluation)):
            if entry[name]["frames"]:
                frames, returns = (_floats(entry[name][key]) for key in ("frames", "returns"))
                if len(frames) != len(returns):
                    raise ValueError(f"seed {seed}: {len(frames)} frames, {len(returns)} returns")
                found[seed] = (frames, returns)
        record.finals[seed] = float(np.mean(_floats(entry["final_returns"])))
    for one in programs:
        begin = datetime.fromisoformat(one["started"]).timestamp()
        record.spans.append((begin, begin + float(one["wall_seconds"])))
        record.problems += version_differences(
            f"{file}: seeds {one['seeds']}", _texts(one.get("versions")), record.versions
        )
    record.wall_seconds = sum(end - begin for begin, end in record.spans)
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


def version_differences(what: str, theirs: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """One line if packages that matter differ, otherwise none."""
    differ = [
        f"{name} {theirs[name]} instead of {others[name]}"
        for name in ("capo-rl", "jax", "pgx")
        if name in theirs and name in others and theirs[name] != others[name]
    ]
    return [f"{what}: made with other versions ({', '.join(differ)})"] if differ else []


def _floats(values: Sequence[float | None]) -> Array:
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _texts(found: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, Mapping) else {}
