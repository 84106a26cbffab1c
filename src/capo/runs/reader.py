"""Reading a run's folder: config.json, metrics.csv and evaluation.json, by one schema.

There are two ways to read. ``read_config`` and ``read_metrics`` are strict, for whoever continues or evaluates the
run: a file that does not fit the schema is a :class:`CapoError` that names the file and the rule.
``salvage_config``, ``salvage_metrics`` and ``salvage_evaluation`` are tolerant, for reports: they return what is
usable, and what is not in words.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from capo.errors import CapoError
from capo.runs.layout import CONFIG, EVALUATION, FRAMES, METRICS, RETURN, SEED

Rows = list[dict[str, float]]


class Unreadable(Exception):
    """A file that cannot be used, and why."""


# --- the schema -----------------------------------------------------------------------------------------------


def _is(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _list_of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(_is(*types), value))


Rule = tuple[str, Callable[[Any], bool]]  # what a value must be, in words, and whether it is
_NAME: Rule = ("a name", _is(str))
_NAME_OR_NULL: Rule = ("a name, or null for an environment given as an object", _is(str, type(None)))
_INTEGER: Rule = ("an integer", _is(int))
_INTERVAL: Rule = ("an interval such as '5m' or '100000'", _is(str, int, float))
_OBJECT: Rule = ("an object", _is(dict))
_SEEDS: Rule = ("a list of integers", _list_of(int))

CONFIG_FIELDS: Mapping[str, Rule] = {
    "algorithm": _NAME,
    "env": _NAME_OR_NULL,
    "environment": _OBJECT,
    "preset": _NAME,
    "overrides": _OBJECT,
    "config": _OBJECT,
    "seeds": _SEEDS,
    "frames": _INTEGER,
    "log_every": _INTEGER,
    "checkpoint_every": _INTERVAL,
    "keep": _INTEGER,
    "extra": _OBJECT,
    "versions": _OBJECT,
    "hardware": _OBJECT,
}
REPORTED_FIELDS = ("algorithm", "env", "config", "seeds", "frames", "versions")  # a report says if one is missing
EVALUATION_FIELDS: Mapping[str, Rule] = {
    "seeds": _SEEDS,
    "mean_by_seed": ("a list of numbers", _list_of(int, float)),
    "frames": _INTEGER,
    "episodes_per_seed": _INTEGER,
    "deterministic": ("true or false", _is(bool)),
}
METRICS_COLUMNS = (SEED, FRAMES, RETURN)  # those without which there is nothing to read


def _unfit(content: Mapping[str, Any], fields: Mapping[str, Rule]) -> dict[str, str]:
    """The fields that break their rule, and how."""
    return {
        name: f"{name} must be {rule}, not {content[name]!r}"
        for name, (rule, fits) in fields.items()
        if name in content and not fits(content[name])
    }


# --- strict ---------------------------------------------------------------------------------------------------


def read_config(path: Path) -> dict[str, Any]:
    """The config.json of the run in folder ``path``.

    Raises:
        CapoError: if ``path`` is not the folder of a run, or the file does not fit :data:`CONFIG_FIELDS`.
    """
    if not path.exists():
        raise CapoError(f"{path}: there is no such folder; `capo train ENV --out {path}` starts a run")
    if not (path / CONFIG).exists():
        raise CapoError(f"{path}: this is not the folder of a run (it has no {CONFIG})")
    try:
        config = read_json(path / CONFIG)
    except Unreadable as error:
        raise CapoError(f"{path / CONFIG}: {error}") from None
    if missing := [name for name in CONFIG_FIELDS if name not in config]:
        raise CapoError(f"{path / CONFIG}: not written by this version of capo (no {', '.join(missing)})")
    if unfit := _unfit(config, CONFIG_FIELDS):
        raise CapoError(f"{path / CONFIG}: {'; '.join(unfit.values())}")
    return config


def read_metrics(path: Path) -> Rows:
    """The rows of the metrics.csv in folder ``path``; empty if nothing has been logged yet.

    Raises:
        CapoError: if the file cannot be read, or a line of it.
    """
    file = path / METRICS
    if not file.exists() or not file.stat().st_size:
        return []
    rows, problems = salvage_metrics(path)
    if problems:
        raise CapoError(f"{file}: {'; '.join(problems)}")
    return rows


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        Unreadable: if it is missing, damaged or something else; says which.
    """
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise Unreadable("is missing") from None
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise Unreadable(f"not readable as JSON, perhaps cut short ({error})") from None
    if not isinstance(found, dict):
        raise Unreadable("is not what capo writes there")
    return found


# --- tolerant -------------------------------------------------------------------------------------------------


def salvage_config(path: Path) -> tuple[dict[str, Any], list[str]]:
    """What is usable of the config.json in folder ``path``, and what is not, in words."""
    try:
        config = read_json(path / CONFIG)
    except Unreadable as error:
        return {}, [f"{error}; the curves are drawn without the run's settings"]
    unfit = _unfit(config, CONFIG_FIELDS)
    problems = list(unfit.values())
    if missing := [name for name in REPORTED_FIELDS if name not in config]:
        problems.append(f"was written by another version of capo (no {', '.join(missing)})")
    return {name: value for name, value in config.items() if name not in unfit}, problems


def salvage_metrics(path: Path) -> tuple[Rows, list[str]]:
    """The whole rows of the metrics.csv in folder ``path``, and what is missing or damaged, in words."""
    try:
        text = (path / METRICS).read_text(errors="replace")
    except FileNotFoundError:
        return [], ["is missing: nothing to draw for this run"]
    except OSError as error:
        return [], [f"cannot be read ({error.strerror})"]
    lines = csv.reader(io.StringIO(text.replace("\0", "")))
    header = next(lines, [])
    if missing := [name for name in METRICS_COLUMNS if name not in header]:
        return [], [f"has no column {', '.join(missing)}: nothing to draw for this run"]
    rows, bad = [], []
    for number, cells in enumerate(lines, 2):
        try:
            row = {key: float(cell or "nan") for key, cell in zip(header, cells, strict=True)}
            int(row[SEED]), int(row[FRAMES])  # raises for nan
        except (ValueError, OverflowError):
            bad.append(number)
        else:
            rows.append(row)
    if not bad:
        return rows, []
    where = f"line {bad[0]}" if len(bad) == 1 else f"{len(bad)} lines from line {bad[0]}"
    return rows, [f"{where} cannot be read (cut short or damaged); the other {len(rows)} rows are usable"]


def salvage_evaluation(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The evaluation.json in folder ``path``, or None and why it is not used; None alone if there is none."""
    try:
        found = read_json(path / EVALUATION)
    except Unreadable as error:
        return None, [str(error)] if (path / EVALUATION).exists() else []
    whole = all(name in found for name in EVALUATION_FIELDS) and not _unfit(found, EVALUATION_FIELDS)
    if not whole or len(found["seeds"]) != len(found["mean_by_seed"]):
        return None, ["was written by another version of capo"]
    return found, []
