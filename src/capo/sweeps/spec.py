"""What a user asks for (environments, algorithms, presets, settings, seeds), and the jobs it stands for."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capo import envs
from capo.checks import seeds_from, whole
from capo.errors import CapoError, unknown_name
from capo.neural.algorithms import registry
from capo.reading import Unreadable, read_bytes
from capo.runs.checkpoint import Interval
from capo.sweeps.jobs import Job

Values = dict[str, Any]
MAX_JOBS = 1_000_000
MAX_BYTES = 1_000_000  # of a specification


@dataclass(frozen=True)
class Spec:
    """A sweep. Every combination is a job: environments x algorithms x presets x settings x groups of seeds.

    Attributes:
        environments: their names.
        frames: per seed.
        algorithms: each ``ALGORITHM`` or ``ALGORITHM:PRESET``.
        presets: of the algorithms that name none.
        settings: by name, a value or a list of values; all combinations of the lists are tried. A table under an
            algorithm's name holds settings of that algorithm alone.
        zipped: groups of settings whose lists go together: the first value of each, the second of each, ...
            The entry ``algorithm`` restricts a group to one algorithm.
        seeds: a number of seeds from 0 on, or a list.
        seeds_per_job: how many a job trains. None: all in one program where the environment is jitted, else one.
        cpus, gpus: of a job, on a Ray cluster; fractions share a device.
        eval_every, eval_episodes, log_every, checkpoint_every, keep: as of ``capo train``.
    """

    environments: Sequence[str]
    frames: int
    algorithms: Sequence[str] = ("ncapo",)
    presets: Sequence[str] = ("default",)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    zipped: Sequence[Mapping[str, Any]] = ()
    seeds: int | Sequence[int] = 1
    seeds_per_job: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    eval_every: int | None = None
    eval_episodes: int = 100
    log_every: int | None = None
    checkpoint_every: str = "60s"
    keep: int = 1

    def __post_init__(self) -> None:
        for name in ("environments", "algorithms", "presets"):
            given = getattr(self, name)
            names = (given,) if isinstance(given, str) else given
            if not isinstance(names, Sequence) or not names or not all(isinstance(one, str) for one in names):
                raise CapoError(f"{name}={given!r} must be a name or a list of names")
            object.__setattr__(self, name, tuple(dict.fromkeys(names)))
        for name in ("frames", "eval_episodes", "keep"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        for name in ("seeds_per_job", "eval_every", "log_every"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(name, getattr(self, name)))
        object.__setattr__(self, "seeds", tuple(seeds_from(0, self.seeds)))
        object.__setattr__(self, "checkpoint_every", str(Interval.parse(self.checkpoint_every)))
        _check_resources(self.cpus, self.gpus)
        if not isinstance(self.settings, Mapping):
            raise CapoError(f"settings={self.settings!r} must be a table of settings by name")
        if not isinstance(self.zipped, Sequence) or not all(isinstance(one, Mapping) for one in self.zipped):
            raise CapoError(f"zipped={self.zipped!r} must be a list of tables: [[zipped]] in a file")

    # The jobs ---------------------------------------------------------------------------------------------------

    def jobs(self) -> list[Job]:
        """All jobs, in order; no two are the same.

        Raises:
            CapoError: if one of them cannot be made, naming it.
        """
        jitted = {name: envs.is_jitted_name(name) for name in self.environments}
        kinds = [kind for name in self.algorithms for kind in self._kinds(name)]
        self._check_number(kinds)
        found: dict[str, Job] = {}
        for env in self.environments:
            for algorithm, preset in dict.fromkeys(kinds):
                for settings in self._combinations(algorithm):
                    for seeds in self._groups(jitted[env]):
                        job = self._job(env, algorithm, preset, settings, seeds)
                        found.setdefault(job.id, job)
        return list(found.values())

    def _check_number(self, kinds: Sequence[tuple[str, str]]) -> None:
        """Raise if there are more jobs than anybody wants, before they are made."""
        lists = [self.settings, *(value for value in self.settings.values() if isinstance(value, Mapping))]
        axes = [len(one) for table in lists for one in table.values() if isinstance(one, list | tuple)]
        axes += [len(one) for group in self.zipped for one in list(group.values())[:1] if isinstance(one, list)]
        most = len(self.environments) * len(kinds) * math.prod(axes) * len(self._groups(False))
        if most > MAX_JOBS:
            raise CapoError(f"the sweep has up to {most:,} jobs; at most {MAX_JOBS:,} can be planned at once")

    def _job(self, env: str, algorithm: str, preset: str, settings: Values, seeds: tuple[int, ...]) -> Job:
        job = Job(
            env,
            algorithm,
            preset,
            self.frames,
            seeds,
            settings,
            self.eval_every,
            self.eval_episodes,
            self.eval_episodes,
            log_every=self.log_every,
            checkpoint_every=self.checkpoint_every,
            keep=self.keep,
        )
        try:
            job.config  # noqa: B018 - refuses unknown settings and values
        except CapoError as error:
            raise CapoError(f"the job {job.title}: {error}") from None
        return job

    def _kinds(self, name: str) -> list[tuple[str, str]]:
        """An algorithm with its presets."""
        algorithm, colon, preset = name.partition(":")
        row = registry.find(algorithm)
        presets = (preset,) if colon else self.presets
        for one in presets:
            if one not in row.settings.PRESETS:
                raise unknown_name(f"preset of {algorithm}", one, row.settings.PRESETS)
        return [(algorithm, one) for one in presets]

    def _combinations(self, algorithm: str) -> list[Values]:
        """Every combination of the settings that are tried with an algorithm."""
        own = self.settings.get(algorithm, {})
        if not isinstance(own, Mapping):
            raise CapoError(f"settings: {algorithm}={own!r} must be a table of settings of {algorithm} alone")
        tables = {name for name, value in self.settings.items() if isinstance(value, Mapping)}
        for name in tables:
            registry.find(name)  # a table is an algorithm's
        grid = {name: value for name, value in self.settings.items() if name not in tables} | dict(own)
        axes = [[{name: one} for one in _listed(name, value)] for name, value in grid.items()]
        for group in self.zipped:
            if group.get("algorithm", algorithm) == algorithm:
                axes.append(_zip({name: value for name, value in group.items() if name != "algorithm"}))
        combined = []
        for parts in itertools.product(*axes):
            names = [name for part in parts for name in part]
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise CapoError(f"the setting {twice[0]} is given twice: in settings and zipped, or in two groups")
            combined.append({name: value for part in parts for name, value in part.items()})
        return combined

    def _groups(self, jitted: bool) -> list[tuple[int, ...]]:
        seeds = tuple(seeds_from(0, self.seeds))
        size = self.seeds_per_job or (len(seeds) if jitted else 1)
        return [seeds[start : start + size] for start in range(0, len(seeds), size)]

    # Files ------------------------------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], where: str = "the sweep") -> Spec:
        """From the entries of a file or the arguments of a call.

        Raises:
            CapoError: if an entry is unknown, missing or wrong.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in names:
                raise unknown_name(f"entry of {where}", name, names)
        for name in ("environments", "frames"):
            if name not in given:
                raise CapoError(f"{where} has no {name}: it needs at least environments and frames")
        return cls(**given)

    @classmethod
    def read(cls, path: Path) -> Spec:
        """From a TOML file."""
        return cls.parse(read_text(path), str(path))

    @classmethod
    def parse(cls, text: str, where: str) -> Spec:
        """From TOML."""
        try:
            entries = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # ValueError: also dates and numbers beyond Python's
            raise CapoError(f"{where} is not valid TOML: {error}") from None
        return cls.from_dict(entries, where)

    def to_toml(self) -> str:
        """The entries that differ from the defaults, as a file that :meth:`parse` reads."""
        lines, tables = [], []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("settings", "zipped"):
                continue
            if value is not None and value != field.default:
                lines.append(f"{field.name} = {_toml(value)}")
        plain = {name: value for name, value in self.settings.items() if not isinstance(value, Mapping)}
        own = {name: value for name, value in self.settings.items() if isinstance(value, Mapping)}
        for title, table in [
            ("[settings]", plain),
            *((f"[settings.{name}]", table) for name, table in own.items()),
        ]:
            if table:
                tables += ["", title, *(f"{name} = {_toml(value)}" for name, value in table.items())]
        for group in self.zipped:
            tables += ["", "[[zipped]]", *(f"{name} = {_toml(value)}" for name, value in group.items())]
        return "\n".join([*lines, *tables, ""])


def read_text(path: Path) -> str:
    """A specification's text."""
    if not path.exists():
        raise CapoError(f"{path}: no such file; give a specification: `capo sweep SPEC.toml --out DIR`")
    try:
        return read_bytes(path, MAX_BYTES, follow=True).decode()
    except (Unreadable, UnicodeDecodeError) as error:
        raise CapoError(f"{path}: {error}") from None


def _listed(name: str, value: Any) -> list[Any]:
    """A value as a list of one."""
    if not isinstance(value, list | tuple):
        return [value]
    if not value:
        raise CapoError(f"the setting {name} has an empty list of values: give at least one")
    return list(value)


def _zip(group: Values) -> list[Values]:
    """The combinations of a zipped group."""
    lists = {name: _listed(name, value) for name, value in group.items()}
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise CapoError(f"zipped settings need lists of the same length: {told}")
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def _check_resources(cpus: Any, gpus: Any) -> None:
    for name, value in (("cpus", cpus), ("gpus", gpus)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
            raise CapoError(f"{name}={value!r} must be a number of at least 0, such as 2 or 0.5")
        if value > 1 and value != int(value):
            raise CapoError(
                f"{name}={value!r} must be an integer if it is above 1: Ray can share one device, not several"
            )


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool | str):
        return json.dumps(value)
    return repr(value)
