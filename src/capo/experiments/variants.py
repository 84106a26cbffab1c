"""Trainings on MinAtar that differ in a few settings, or in the noise on their rewards.

The ablation and the noise experiment use it. A :class:`Variant` is trained as ``capo reproduce minatar`` trains an
algorithm: all seeds as one program, one small results file ``<game>-<variant>.json`` with every seed's curve and
final returns; what is finished is not repeated, and what is half-finished goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capo.errors import CapoError
from capo.experiments.minatar import Job, Plan
from capo.experiments.side_by_side import Say
from capo.report import folders, statistics
from capo.report.folders import GAMES, Record

if TYPE_CHECKING:
    from capo.neural.agent import Agent

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Variant:
    """One way to train.

    Attributes:
        name: of its files.
        title: for tables and figures.
        settings: that replace the preset's.
        algorithm: who learns.
        reward_noise: standard deviation of Gaussian noise on every training reward.
    """

    name: str
    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = "ncapo"
    reward_noise: float = 0.0


class VariantJob(Job):
    """The seeds of one variant on one game."""

    def __init__(self, out: Path, game: str, variant: Variant, plan: Plan) -> None:
        super().__init__(out, game, variant.algorithm, plan)
        self.variant = variant

    @property
    def title(self) -> str:
        return self.variant.title

    def finish(self, say: Say, progress: bool) -> None:
        super().finish(say, progress)
        say(f"{self.title}: final return {np.mean(finals(folders.read_result(self.file))):.2f}")

    @property
    def label(self) -> str:
        return f"{self.game}-{self.variant.name}"

    def _what(self) -> dict[str, Any]:
        variant = self.variant
        own = {"variant": variant.name, "changed": dict(variant.settings)}
        return {**super()._what(), **own, "reward_noise": variant.reward_noise}

    def _stem(self) -> str:
        return f"{self.game}-{self.variant.name}-{self.preset}-{self.plan.frames}-seeds-"

    def _more(self) -> dict[str, Any]:
        return {"title": self.title}

    def _settings(self) -> Mapping[str, Any]:
        return self.variant.settings

    def _training_env(self) -> Any:
        """The game's name, or the game with noise on its rewards."""
        if not self.variant.reward_noise:
            return self.env
        from capo import envs
        from capo.envs.noise import NoisyReward

        return NoisyReward(envs.make(self.env), self.variant.reward_noise)

    def _player(self, agent: Agent) -> Agent:
        """The agent on the game as it is: itself, or a twin that shares its states but not its noisy game."""
        if not self.variant.reward_noise:
            return agent
        twin = type(agent)(self.env, self.preset, seeds=agent.seeds, **self._settings())
        twin._ready().parts = agent._ready().parts
        return twin

    def _protocol(self, agent: Agent) -> dict[str, str]:
        noise = self.variant.reward_noise
        if not noise:
            return super()._protocol(agent)
        rewards = f"Gaussian noise of standard deviation {noise:g} on every training reward, so that the training "
        rewards += "curve is of noisy returns; evaluations play the game without noise"
        return {**super()._protocol(agent), "Rewards": rewards}


def check(jobs: Sequence[VariantJob]) -> None:
    """Raise what would stop the trainings later: an unknown preset, results of other settings in the way."""
    for job in jobs:
        job.missing()


def refuse_with(part: str | None, short: str, **options: Any) -> None:
    """Refuse options of the trainings where only the ``short`` part is asked for."""
    given = [name for name, value in options.items() if value is not None]
    if part == short and given:
        raise CapoError(f"--{given[0]} is of the part game, and --part {short} leaves that out")


# --- reading it back ------------------------------------------------------------------------------------------


def read(folder: Path, names: Sequence[str]) -> tuple[dict[tuple[str, str], Record], list[str]]:
    """Readable results files of these variants by (game, variant), and what is damaged or unlike, in words."""
    found: dict[tuple[str, str], Record] = {}
    notes: list[str] = []
    for game in GAMES:
        for name in names:
            file = folder / f"{game}-{name}.json"
            if not file.exists():
                continue
            try:
                record = folders.read_result(file)
            except folders.Unreadable as error:
                notes.append(f"{file}: {error}; left out")
                continue
            notes += record.problems
            if record.finals:
                found[game, name] = record
        notes += _unlike({name: record for (own, name), record in found.items() if own == game})
    lengths = sorted({record.frames or 0 for record in found.values()})
    if lengths and lengths[-1] > 1.01 * lengths[0]:  # whole iterations are not of the same length everywhere
        notes.append(f"runs of different lengths: {', '.join(f'{frames:,}' for frames in lengths)} frames")
    seeds = sorted({len(record.finals) for record in found.values()})
    if len(seeds) > 1:
        notes.append(f"different numbers of seeds: {', '.join(map(str, seeds))}")
    return found, notes


def _unlike(records: Mapping[str, Record]) -> list[str]:
    """One line for every variant whose other settings are not those of the first one of the same algorithm."""
    from capo.neural import algorithms

    notes = []
    first: dict[str, str] = {}
    for name, record in records.items():
        other = first.setdefault(record.algorithm, name)
        changed = {key for one in (name, other) for key in _changed(records[one])} | {"horizon"}
        ours, theirs = (algorithms.all_settings(record.algorithm, records[one].settings) for one in (name, other))
        differ = [
            f"{key} {value!r} against {theirs[key]!r}"
            for key, value in ours.items()
            if key in theirs and key not in changed and theirs[key] != value
        ]
        if differ:
            notes.append(f"{record.path}: differs from {other} in more than it should ({', '.join(differ)})")
    return notes


def _changed(record: Record) -> Mapping[str, Any]:
    changed: Mapping[str, Any] = json.loads(record.path.read_text()).get("changed", {})
    return changed


def finals(record: Record) -> Floats:
    """(seeds,) final scores."""
    return np.array(list(record.finals.values()))


def mean(scores: Floats) -> statistics.Estimate:
    """The mean of (seeds,) scores with its 95 % bootstrap interval."""
    return statistics.stratified_bootstrap([scores], statistics.aggregate_mean)


def difference(scores: Floats, base: Floats) -> statistics.Estimate:
    """Mean of ``scores`` less that of ``base``, the seeds of both drawn again independently."""
    statistic: Callable[[Sequence[Floats]], Floats] = lambda both: np.asarray(both[0].mean(-1) - both[1].mean(-1))
    return statistics.stratified_bootstrap([scores, base], statistic)


def interval(found: statistics.Estimate, sign: str = "", digits: int = 2) -> str:
    """``1.23 [1.00, 1.50]``."""
    value, low, high = (f"{float(x):{sign}.{digits}f}" for x in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"
