"""Which records are one curve, what the curve is called and which colour it has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from capo.neural.algorithms import registry
from capo.report.figures import darker
from capo.runs.records import Array, Record

# For algorithms without a colour of their own, and where that is taken; at least 4.5 to 1 against white.
_MORE_COLOURS = ("#3F3F3F", "#5B4FC4", "#00718A", "#8A1C3B", "#4F6F00", "#6B6B6B")
_SHADES = (0.0, 0.5)  # share of black in the colour of an algorithm's first and second preset

Kind = tuple[str, str]  # algorithm and preset


def title(algorithm: str) -> str:
    """What an algorithm is called; its own name if it is not one of capo's (an old or foreign file).

    >>> title("offpac"), title("dqn")
    ('Off-PAC', 'dqn')
    """
    row = registry.ROWS.get(algorithm)
    return row.title if row else algorithm


def colour(algorithm: str) -> str:
    """An algorithm's colour on a white page; a grey if it is not one of capo's."""
    row = registry.ROWS.get(algorithm)
    return (row.dark_colour or row.colour) if row else _MORE_COLOURS[0]


def samples(algorithm: str, settings: Mapping[str, Any]) -> bool:
    """Whether evaluations sample actions; assumed of algorithms that are not capo's."""
    return algorithm not in registry.ROWS or not registry.evaluates_best(algorithm, settings)


def kind_names(kinds: Iterable[Kind]) -> dict[Kind, str]:
    """Algorithms and presets in the order they are shown, and what they are called beside each other.

    The preset is part of the name if it is not ``default``, or if the algorithm is there with several.

    >>> kind_names([("ppo", "default"), ("ncapo", "official"), ("ncapo", "default")])
    {('ncapo', 'default'): 'NCAPO (default)', ('ncapo', 'official'): 'NCAPO (official)', ('ppo', 'default'): 'PPO'}
    """
    order = list(registry.ROWS)

    def place(kind: Kind) -> tuple[int, bool, str, str]:
        algorithm, preset = kind
        known = order.index(algorithm) if algorithm in order else len(order)
        return known, preset != "default", preset, algorithm

    found = sorted(set(kinds), key=place)
    presets = {algorithm: [p for a, p in found if a == algorithm] for algorithm, _ in found}
    plain = (["default"], ["unknown"])  # unknown: the file that says it is lost
    return {
        (algorithm, preset): title(algorithm) + ("" if presets[algorithm] in plain else f" ({preset})")
        for algorithm, preset in found
    }


@dataclass
class Series:
    """Records that are drawn as one curve: the same environment, algorithm and settings, other seeds."""

    label: str
    records: list[Record]
    colour: str = ""

    @property
    def env(self) -> str:
        return self.records[0].env

    @property
    def algorithm(self) -> str:
        return self.records[0].algorithm

    @property
    def kind(self) -> Kind:
        return self.algorithm, self.records[0].preset

    @property
    def finals(self) -> dict[int, float]:
        """Final score by seed."""
        return {seed: score for record in self.records for seed, score in record.finals.items()}

    @property
    def scores(self) -> Array:
        """(finished seeds,) final scores."""
        return np.array(list(self.finals.values()))

    @property
    def seeds(self) -> int:
        """How many seeds were planned."""
        return len({seed for record in self.records for seed in record.seeds})


def group(records: Sequence[Record]) -> list[Series]:
    """Records as series: those that differ in their seeds alone are one; names and colours are given here."""
    found: dict[str, list[Record]] = {}
    for record in records:
        same = [record.env, record.reward_noise, record.algorithm, record.preset, record.frames, record.settings]
        key = json.dumps(same, default=str, sort_keys=True)
        if not record.settings or any(set(one.seeds) & set(record.seeds) for one in found.get(key, ())):
            key += str(record.path)  # settings that are lost may differ; the same seed twice is not a new seed
        found.setdefault(key, []).append(record)
    names = kind_names((record.algorithm, record.preset) for record in records)
    series = [Series(_label(names, members[0]), members) for members in found.values()]
    order = list(names)
    series.sort(key=lambda one: order.index(one.kind))
    _tell_apart(series)
    _colour(series)
    return series


def _label(names: Mapping[Kind, str], record: Record) -> str:
    """The algorithm with its preset, and the settings that tell it from a sweep's other jobs."""
    own = "".join(f", {name}={shown(value)}" for name, value in record.varied.items())
    return names[record.algorithm, record.preset] + own


def shown(value: object) -> str:
    """The value of a setting, for people.

    >>> shown(0.0003), shown(True), shown("log")
    ('0.0003', 'true', 'log')
    """
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _tell_apart(series: Sequence[Series]) -> None:
    """Add the folder to names that occur twice in an environment, and a number where that isn't enough."""
    labels = [(one.env, one.label) for one in series]
    twice = [one for one, label in zip(series, labels, strict=True) if labels.count(label) > 1]
    for members in ([one for one in twice if one.env == env] for env in {one.env for one in twice}):
        if len({one.records[0].path.name for one in members}) > 1:
            for one in members:
                one.label += f" ({one.records[0].path.name})"
    for index, one in enumerate(series):
        if any((one.env, one.label) == (other.env, other.label) for other in series[:index]):
            one.label += f" #{index + 1}"


def _colour(series: Sequence[Series]) -> None:
    """A colour for each: the algorithm's own, darker for its second preset, if still free in its environment."""
    shades: dict[Kind, str] = {}
    for algorithm in registry.ROWS:
        presets = dict.fromkeys(one.kind for one in series if one.algorithm == algorithm)
        shades |= {kind: darker(colour(algorithm), share) for kind, share in zip(presets, _SHADES, strict=False)}
    others = (*_MORE_COLOURS, *map(colour, registry.ROWS))
    for env in {one.env for one in series}:
        taken: set[str] = set()
        for one in (one for one in series if one.env == env):
            wanted = [shades.get(one.kind, _MORE_COLOURS[0]), *others]
            one.colour = next((each for each in wanted if each not in taken), wanted[0])
            taken.add(one.colour)
