"""The space that a tuning searches: for each setting a range or a list of values.

By default it is that of the algorithm's settings, whose types say where to look. A file lists other ones, a table
per setting; only those in the file are searched:

    [learning_rate]
    low = 1e-4
    high = 1e-2
    scale = "log"            # linear (the default), log, or log-from-one (for discounts: log of 1 - value)

    [width]
    choices = [64, 128, 256]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, get_args

from capo.errors import CapoError, unknown_name
from capo.neural.algorithms.settings import CommonSettings, Kind, Scale, check_value, field_kinds
from capo.neural.preset_file import read_toml

_ENTRIES = ("low", "high", "scale", "choices")
_DIGITS = 6  # significant ones of a value that is tried: what a preset file says is what was trained


@dataclass(frozen=True)
class Dimension:
    """One setting to search: a range with a scale, or some choices.

    Attributes:
        name: of the setting.
        traced: whether trials that differ in it are one program.
    """

    name: str
    traced: bool
    low: float = 0.0
    high: float = 0.0
    scale: Scale = "linear"
    choices: tuple[Any, ...] = ()
    integer: bool = False

    def distribution(self, optuna: Any) -> Any:
        """As Optuna has it: over :meth:`to_search` of the value."""
        kinds = optuna.distributions
        if self.choices:
            return kinds.CategoricalDistribution(self.choices)
        if self.integer:
            return kinds.IntDistribution(int(self.low), int(self.high), log=self.scale == "log")
        ends = sorted((self.to_search(self.low), self.to_search(self.high)))
        return kinds.FloatDistribution(*ends, log=self.scale != "linear")

    def to_search(self, value: Any) -> Any:
        """The number that Optuna sees for a value; the value itself except for ``log-from-one``."""
        return _rounded(1.0 - value) if self.scale == "log-from-one" else value

    def from_search(self, number: Any) -> Any:
        """The inverse of :meth:`to_search`, rounded to six digits."""
        if self.choices or self.integer:
            return number
        return _rounded(1.0 - number if self.scale == "log-from-one" else number)

    def nearest(self, value: Any) -> Any:
        """The value in the space that is nearest to a value that may lie outside."""
        if not self.choices:
            return min(max(value, int(self.low) if self.integer else self.low), self.high)
        if value in self.choices or not _is_number(value):
            return value if value in self.choices else self.choices[0]
        return min(self.choices, key=lambda choice: abs(choice - value))

    def to_dict(self) -> dict[str, Any]:
        """As a table of a space file."""
        if self.choices:
            return {"choices": list(self.choices)}
        return {"low": self.low, "high": self.high, "scale": self.scale}

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        how = {"linear": "", "log": " (log)", "log-from-one": " (log of 1 - value)"}[self.scale]
        return f"{self.low:g} to {self.high:g}{how}"


Space = dict[str, Dimension]  # by the setting's name


def default_space(kind: type[CommonSettings]) -> Space:
    """Where an algorithm's settings say that good values are."""
    return {
        name: Dimension(name, one.traced, one.search.low, one.search.high, one.search.scale)
        for name, one in field_kinds(kind).items()
        if one.search is not None
    }


def read_space(path: str | PathLike[str], kind: type[CommonSettings]) -> Space:
    """The space in a file.

    Raises:
        CapoError: if the file can't be read, or anything in it is not as it must be.
    """
    try:
        return space_from(read_toml(path, "a search space"), kind)
    except CapoError as error:
        text = str(error)
        raise CapoError(text if text.startswith(str(path)) else f"{path}: {text}") from None


def space_from(tables: Mapping[str, Any], kind: type[CommonSettings]) -> Space:
    """A space from a dictionary with a table per setting."""
    if not isinstance(tables, Mapping) or not tables:
        raise CapoError("a search space needs at least one table, such as [learning_rate] with low and high")
    kinds = field_kinds(kind)
    space = {}
    for name, table in tables.items():
        if name not in kinds:
            raise unknown_name("setting", name, kinds)
        if name == "horizon":
            raise CapoError("horizon can't be searched: it is the number of frames of a trial")
        if not isinstance(table, Mapping):
            raise CapoError(f"{name} must be a table: write [{name}], and below it low and high, or choices")
        for entry in table:
            if entry not in _ENTRIES:
                raise unknown_name(f"entry of [{name}]", entry, _ENTRIES)
        space[name] = _dimension(name, table, kinds[name], kind)
    return space


def _dimension(name: str, table: Mapping[str, Any], one: Kind, kind: type[CommonSettings]) -> Dimension:
    if "choices" in table:
        given = table["choices"]
        if len(table) > 1 or not isinstance(given, list | tuple) or len(given) < 2:
            raise CapoError(f"[{name}] must have a list of at least two choices and nothing else, or low and high")
        choices = tuple(check_value(kind, name, value) for value in given)
        if len(set(choices)) < len(choices):
            raise CapoError(f"[{name}] has a choice twice: {', '.join(map(str, choices))}")
        return Dimension(name, one.traced, choices=choices, integer=one.type is int)
    if one.choices or one.type in (bool, str):
        raise CapoError(f"[{name}] needs a list of choices: it is not a number")
    if not {"low", "high"} <= set(table):
        raise CapoError(f"[{name}] needs low and high, or choices")
    low, high = (check_value(kind, name, table[end]) for end in ("low", "high"))
    scale = table.get("scale", "linear")
    if scale not in get_args(Scale):
        raise unknown_name(f"scale of [{name}]", scale, get_args(Scale))
    if low >= high:
        raise CapoError(f"[{name}] low={low:g} must be below high={high:g}")
    if (scale == "log" and low <= 0) or (scale == "log-from-one" and high >= 1):
        end = "low must be above 0" if scale == "log" else "high must be below 1"
        raise CapoError(f'[{name}] scale="{scale}": {end}')
    if scale == "log-from-one" and one.type is int:
        raise CapoError(f"[{name}] is an integer: its scale is linear or log")
    return Dimension(name, one.traced, low, high, scale, integer=one.type is int)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
