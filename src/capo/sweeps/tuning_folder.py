"""The folder of a tuning: what is in it, written and read back. Nothing here needs Optuna.

tuning.json      what was asked for: environment, algorithm, space, frames, seeds; versions, commit and hardware
study.db         Optuna's study
generations/     which trials were proposed together, and the batches they are trained in
batches/N/       what the batch whose first trial is N came to
fresh/N/         trial N and the preset again, with seeds that choosing did not use
result.json      the best trial, the importance of the settings, the scores on fresh seeds
preset.toml      the best settings, for ``capo train --preset``
trials.csv       one row per trial, for people
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capo.checks import seeds_from, whole
from capo.errors import CapoError
from capo.files import write_json, write_text
from capo.neural.algorithms import registry
from capo.neural.algorithms.settings import check_value
from capo.reading import Unreadable, read_json
from capo.sweeps.batch import Outcome, read_outcomes
from capo.sweeps.space import space_from

TUNING, STUDY, GENERATIONS, BATCHES, FRESH = "tuning.json", "study.db", "generations", "batches", "fresh"
RESULT, PRESET, TRIALS = "result.json", "preset.toml", "trials.csv"
FORMAT = 1


@dataclass(frozen=True)
class Trial:
    """A trial and what it came to; ``outcome`` is None if it is not done."""

    number: int
    settings: dict[str, Any]
    outcome: Outcome | None = None

    def state(self, stages: int) -> str:
        """In a word: waiting, diverged, complete, or stopped after one of the earlier stages."""
        if self.outcome is None:
            return "waiting"
        if self.outcome.diverged:
            return "diverged"
        return "complete" if len(self.outcome.scores) == stages else "stopped"

    @property
    def score(self) -> float | None:
        """The last one."""
        return self.outcome.scores[-1] if self.outcome is not None and self.outcome.scores else None


@dataclass(frozen=True, repr=False)
class Tuning:
    """What a tuning found.

    Attributes:
        folder: where everything is.
        asked: what was asked for, as in tuning.json.
        trials: all that were proposed so far.
        best: the number of the best trial; None before there is one.
        importance: share of each setting in the difference between good and other trials.
        fresh: mean return of each fresh seed, by ``tuned`` and ``preset``; empty before that is done.
    """

    folder: Path
    asked: dict[str, Any]
    trials: list[Trial]
    best: int | None = None
    importance: dict[str, float] = field(default_factory=dict)
    fresh: dict[str, list[float | None]] = field(default_factory=dict)

    @property
    def stages(self) -> list[int]:
        """Frames at the end of each stage."""
        return list(self.asked["stages"])

    @property
    def preset(self) -> Path:
        """The preset file with the best settings."""
        return self.folder / PRESET

    @property
    def best_trial(self) -> Trial:
        """The trial with the highest score at the end of training."""
        if self.best is None:
            raise CapoError(f"{self.folder}: no trial has been trained to the end yet")
        return self.trials[self.best]

    def __repr__(self) -> str:
        where = f"{self.asked['algorithm']} on {self.asked['env']}, {len(self.trials)} trials in {self.folder}"
        best = "" if self.best is None else f", best score {self.best_trial.score:.4g}"
        return f"<Tuning of {where}{best}>"


def is_tuning(folder: Path) -> bool:
    """Whether a folder is a tuning's."""
    return (folder / TUNING).is_file()


def read_tuning(folder: Path) -> Tuning:
    """What is in a tuning's folder so far.

    Raises:
        CapoError: if it is not one, or a file in it is damaged.
    """
    asked = read_asked(folder)
    trials = [trial for batch in read_batches(folder) for trial in batch]
    for number, trial in enumerate(trials):
        if trial.number != number or set(trial.settings) != set(asked["space"]):
            raise CapoError(f"{folder / GENERATIONS}: trial {number} does not fit {TUNING}: a file was changed")
    result = _read(folder / RESULT) if (folder / RESULT).exists() else {}
    try:
        best = result.get("best")
        if best is not None and (type(best) is not int or best < 0 or trials[best].score is None):
            raise ValueError(f"best={best!r}")
        importance = {str(name): _finite(share) for name, share in result.get("importance", {}).items()}
        fresh = {
            str(name): [None if score is None else _finite(score) for score in scores]
            for name, scores in result.get("fresh", {}).items()
        }
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise CapoError(f"{folder / RESULT}: is damaged ({error})") from None
    return Tuning(folder, asked, trials, best, importance, fresh)


def read_asked(folder: Path) -> dict[str, Any]:
    """tuning.json, checked for what others rely on."""
    if not is_tuning(folder):
        raise CapoError(f"{folder} is not the folder of a tuning: it has no {TUNING}")
    asked = _read(folder / TUNING)
    wanted: dict[str, type] = {
        "format": int,
        "env": str,
        "algorithm": str,
        "preset": str,
        "settings": dict,
        "space": dict,
        "stages": list,
        "seeds": list,
        "fresh_seeds": list,
        "episodes": int,
    }
    for name, kind in wanted.items():
        if not isinstance(asked.get(name), kind):
            raise CapoError(f"{folder / TUNING}: {name} must be a {kind.__name__}: the file is damaged")
    if asked["format"] != FORMAT:
        raise CapoError(f"{folder / TUNING}: has format {asked['format']}; this version of capo reads {FORMAT}")
    try:
        kind = registry.find(asked["algorithm"]).settings
        asked["space"] = {name: one.to_dict() for name, one in space_from(asked["space"], kind).items()}
        asked["settings"] = {name: check_value(kind, name, one) for name, one in asked["settings"].items()}
        asked["stages"] = [whole("stages", one) for one in asked["stages"]]
        whole("stages", len(asked["stages"]))
        seeds_from(0, asked["seeds"])
        if asked["fresh_seeds"]:
            seeds_from(0, asked["fresh_seeds"])
    except CapoError as error:
        raise CapoError(f"{folder / TUNING}: {error}") from None
    return asked


def read_batches(folder: Path) -> Iterator[list[Trial]]:
    """The trials of every batch, in the order of their numbers."""
    for path in generation_files(folder):
        for batch in read_generation(path):
            outcomes = read_outcomes(batch_folder(folder, batch[0].number))
            if outcomes is None:
                yield batch
            elif len(outcomes) != len(batch):
                raise CapoError(
                    f"{batch_folder(folder, batch[0].number)}: does not fit {path}: a file was changed"
                )
            else:
                yield [Trial(one.number, one.settings, out) for one, out in zip(batch, outcomes, strict=True)]


def generation_files(folder: Path) -> list[Path]:
    """The generations so far, in order."""
    return sorted((folder / GENERATIONS).glob("*.json"))


def read_generation(path: Path) -> list[list[Trial]]:
    """The batches of a generation, none of them done as far as this file knows."""
    content = _read(path)
    try:
        batches = [
            [Trial(int(one["number"]), dict(one["settings"])) for one in batch] for batch in content["batches"]
        ]
        if not all(batches):
            raise ValueError("a batch without trials")
        return batches
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CapoError(f"{path}: is damaged ({type(error).__name__}: {error})") from None


def write_generation(folder: Path, batches: Sequence[Sequence[Trial]]) -> Path:
    """Write the next generation."""
    (folder / GENERATIONS).mkdir(exist_ok=True)
    path = folder / GENERATIONS / f"{len(generation_files(folder)):05d}.json"
    content = [[{"number": one.number, "settings": one.settings} for one in batch] for batch in batches]
    return write_json(path, {"batches": content})


def batch_folder(folder: Path, first: int) -> Path:
    """The folder of the batch whose first trial has this number."""
    return folder / BATCHES / f"{first:05d}"


def write_trials(tuning: Tuning) -> Path:
    """trials.csv: number, state, score, frames, seconds, and the settings."""
    names = list(tuning.asked["space"])
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["trial", "state", "score", "frames", "seconds", *names])
    for one in tuning.trials:
        score = "" if one.score is None else f"{one.score:.6g}"
        frames = one.outcome.frames[-1] if one.outcome is not None and one.outcome.frames else 0
        seconds = "" if one.outcome is None else f"{one.outcome.seconds:.1f}"
        values = (one.settings[name] for name in names)
        rows.writerow([one.number, one.state(len(tuning.stages)), score, frames, seconds, *values])
    return write_text(tuning.folder / TRIALS, text.getvalue())


def in_words(seeds: Sequence[int]) -> str:
    """Seeds for people.

    >>> in_words([0]), in_words([2, 3, 4]), in_words([1, 5])
    ('seed 0', 'seeds 2 to 4', 'seeds 1, 5')
    """
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except Unreadable as error:
        raise CapoError(f"{path}: {error}") from None
