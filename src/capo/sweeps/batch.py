"""A batch of trials and what they come to: plain values, which travel between processes and lie in files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capo.arrays import NDArray
from capo.errors import CapoError
from capo.files import write_json
from capo.neural.algorithms import registry
from capo.neural.algorithms.settings import CommonSettings, override
from capo.reading import JSON_LIMIT, Unreadable, parse_json, read_bytes

RESULT = "result.json"  # in a batch's folder
Values = Mapping[str, Any]  # settings by name


@dataclass(frozen=True)
class Batch:
    """Trials that are compared with each other.

    Attributes:
        env: its name, or an environment.
        algorithm: its name.
        preset: the settings that all start from.
        settings: of all of them, on top of the preset.
        trials: the settings of each, on top of those.
        seeds: every trial is trained with all of them.
        stages: frames per seed at which scores are taken; the last is the end of training. After each of the
            others, only the better half is trained further.
        episodes: of each evaluation, per seed.
    """

    env: Any
    algorithm: str
    preset: str
    settings: Values
    trials: tuple[Values, ...]
    seeds: tuple[int, ...]
    stages: tuple[int, ...]
    episodes: int

    def settings_of(self, trial: Values, env_name: str) -> CommonSettings:
        """All settings of a trial, checked."""
        preset = registry.find(self.algorithm).settings.preset(self.preset, env_name)
        return override(preset, {"horizon": self.stages[-1], **self.settings, **trial})


@dataclass(frozen=True)
class Outcome:
    """What one trial came to.

    Attributes:
        frames: at the end of each stage it was trained for, per seed.
        scores: at the same places: the mean return over all seeds and episodes.
        by_seed: the mean return of each seed at the last of them.
        diverged: whether a loss or parameter of a seed stopped being finite; such a trial has no further score.
        seconds: of its stages, training and evaluation, shared evenly among the trials of a program.
    """

    frames: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    by_seed: tuple[float, ...] = ()
    diverged: bool = False
    seconds: float = 0.0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        """From a file.

        Raises:
            KeyError, TypeError, ValueError, OverflowError: if it is not one.
        """
        found = cls(
            tuple(int(x) for x in values["frames"]),
            tuple(float(x) for x in values["scores"]),
            tuple(float(x) for x in values["by_seed"]),
            bool(values["diverged"]),
            float(values["seconds"]),
        )
        if len(found.frames) != len(found.scores):
            raise ValueError(f"{len(found.frames)} stages have {len(found.scores)} scores")
        if not all(map(math.isfinite, (*found.scores, *found.by_seed, found.seconds))):
            raise ValueError("a score is not a finite number")
        return found


@dataclass(frozen=True)
class Score:
    """A trial's result of one stage: ``returns`` (seeds, episodes), None if it diverged."""

    frames: int
    returns: NDArray | None
    seconds: float

    def after(self, before: Outcome) -> Outcome:
        """The outcome with this stage."""
        seconds = before.seconds + self.seconds
        if self.returns is None:
            return Outcome(before.frames, before.scores, before.by_seed, True, seconds)
        frames, scores = (*before.frames, self.frames), (*before.scores, float(self.returns.mean()))
        return Outcome(frames, scores, tuple(map(float, self.returns.mean(axis=1))), False, seconds)


def write_outcomes(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Write what a batch came to into its folder."""
    write_json(folder / RESULT, [asdict(one) for one in outcomes])


def read_outcomes(folder: Path) -> list[Outcome] | None:
    """What a batch came to, from its folder; None if it is not done."""
    if not (folder / RESULT).exists():
        return None
    try:
        found = parse_json(read_bytes(folder / RESULT, JSON_LIMIT))
        return [Outcome.from_dict(one) for one in found]
    except (Unreadable, OverflowError, ValueError, TypeError, KeyError) as error:
        raise CapoError(f"{folder / RESULT}: is damaged ({error}); delete it to run the batch again") from None
