"""Reading a run's folder: config.json, metrics.csv and evaluation.json, by the schema of :mod:`capo.runs.schema`.

There are two ways to read. ``read_config`` and ``read_metrics`` are strict, for whoever continues or evaluates the
run: a file that does not fit the schema is a :class:`CapoError` that names the file and the rule.
``salvage_config``, ``salvage_metrics`` and ``salvage_evaluation`` are tolerant, for reports: they return what is
usable, and what is not in words.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from capo.errors import CapoError
from capo.reading import Unreadable, read_bytes, read_errors, read_json
from capo.runs import schema
from capo.runs.layout import CONFIG, EVALUATION, FRAMES, METRICS, SEED

__all__ = ["Rows", "Unreadable", "read_config", "read_json", "read_metrics"]

CONFIG_LIMIT = 4_000_000  # bytes of config.json
METRICS_LIMIT = 500_000_000  # bytes of metrics.csv

Rows = list[dict[str, float]]


# --- strict ---------------------------------------------------------------------------------------------------


def read_config(path: Path) -> dict[str, Any]:
    """The config.json of the run in folder ``path``.

    Raises:
        CapoError: if ``path`` is not the folder of a run, or the file does not fit the schema.
    """
    with read_errors(path):
        if not path.exists():
            raise CapoError(f"{path}: no such folder; to start a run: `capo train ENV --out {path}`")
        if not (path / CONFIG).exists():
            raise CapoError(f"{path}: not a run's folder (it has no {CONFIG})")
    try:
        config = read_json(path / CONFIG, CONFIG_LIMIT)
    except Unreadable as error:
        raise CapoError(f"{path / CONFIG}: {error}") from None
    schema.check(path / CONFIG, config, schema.CONFIG_FIELDS, schema.CONFIG_REQUIRED)
    return config


def read_metrics(path: Path) -> Rows:
    """The rows of the metrics.csv in folder ``path``; empty if nothing has been logged yet.

    Raises:
        CapoError: if the file cannot be read, or a line of it.
    """
    file = path / METRICS
    with read_errors(file):
        if not file.exists() or (file.is_file() and not file.stat().st_size):
            return []
    rows, problems = salvage_metrics(path)
    if problems:
        raise CapoError(f"{file}: {'; '.join(problems)}")
    return rows


# --- tolerant -------------------------------------------------------------------------------------------------


def salvage_config(path: Path) -> tuple[dict[str, Any], list[str]]:
    """What is usable of the config.json in folder ``path``, and what is not, in words."""
    try:
        config = read_json(path / CONFIG, CONFIG_LIMIT)
    except Unreadable as error:
        return {}, [f"{error}; the curves are drawn without the run's settings"]
    unfit = schema.problems(config, schema.CONFIG_FIELDS)
    problems = list(unfit.values())
    if missing := [name for name in schema.REPORTED_FIELDS if name not in config]:
        problems.append(f"was written by another version of capo (no {', '.join(missing)})")
    return {name: value for name, value in config.items() if name not in unfit}, problems


def salvage_metrics(path: Path) -> tuple[Rows, list[str]]:
    """The whole rows of the metrics.csv in folder ``path``, and what is missing or damaged, in words."""
    try:
        text = read_bytes(path / METRICS, METRICS_LIMIT).decode(errors="replace")
    except Unreadable as error:
        return [], [f"{error}, so there is nothing to draw for this run"]
    # Numbers need no quotation marks, so a line is split at its commas and damage to one leaves the others alone.
    lines = [line.rstrip("\r").split(",") for line in text.removesuffix("\n").split("\n")]
    header = lines[0]
    if missing := [name for name in schema.METRICS_COLUMNS if name not in header]:
        return [], [f"has no column {', '.join(missing)}, so there is nothing to draw for this run"]
    rows, bad = [], []
    for number, cells in enumerate(lines[1:], 2):
        try:
            row = {key: float(cell or "nan") for key, cell in zip(header, cells, strict=True)}
            _check_position(row)
        except (ValueError, OverflowError):
            bad.append(number)
        else:
            rows.append(row)
    if not bad:
        return rows, []
    where = f"line {bad[0]}" if len(bad) == 1 else f"{len(bad)} lines from line {bad[0]}"
    return rows, [f"{where} cannot be read (truncated or damaged); the other {len(rows)} rows are usable"]


def _check_position(row: dict[str, float]) -> None:
    """Raise a ValueError if the seed or the frames of a row are not whole numbers in their range."""
    for column, most in ((SEED, 2**31 - 1), (FRAMES, schema.MOST)):
        if not (0 <= row[column] <= most and row[column] == math.floor(row[column])):
            raise ValueError(column)


def salvage_evaluation(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The evaluation.json in folder ``path``, or None and why it is not used; None alone if there is none."""
    try:
        found = read_json(path / EVALUATION)
    except Unreadable as error:
        return None, [str(error)] if os.path.lexists(path / EVALUATION) else []
    fields = schema.EVALUATION_FIELDS
    whole = all(name in found for name in fields) and not schema.problems(found, fields)
    if not whole or len(found["seeds"]) != len(found["mean_by_seed"]):
        return None, ["was written by another version of capo"]
    return found, []
