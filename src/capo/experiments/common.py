"""What the experiments share: reading and writing their data, tables for the terminal, pieces of figures.

An experiment is a module with

- ``DATA``: the names (or patterns) of the data files it writes;
- ``OPTIONS``: the options of ``capo reproduce`` that it accepts beyond the common ones;
- ``run(out, quick, progress, **options)``: computes, and writes those files with settings, seeds and provenance;
- ``report(folder)``: the tables to print, from the files alone;
- ``draw(folder, out)``: the figures, from the files alone.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from capo import reading
from capo.errors import CapoError
from capo.files import write_json, write_text
from capo.provenance import provenance
from capo.reading import Unreadable, parse_json

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Row = dict[str, Any]
Groups = dict[tuple[Any, ...], list[Row]]
Say = Callable[[str], None]  # tells the user something

SUMMARY = "summary.json"


class Experiment(Protocol):
    """The shape of an experiment's module."""

    DATA: tuple[str, ...]
    OPTIONS: tuple[str, ...]

    def run(self, out: Path, quick: bool, progress: bool, **options: Any) -> None: ...
    def report(self, folder: Path) -> str: ...
    def draw(self, folder: Path, out: Path) -> list[Path]: ...


def teller(experiment: str, progress: bool) -> Say:
    """Prints lines to standard error, if ``progress`` is wanted."""
    if not progress:
        return lambda _: None
    return lambda text: print(f"{experiment}: {text}", file=sys.stderr, flush=True)


def split_names(given: Sequence[str] | None) -> list[str]:
    """Names in lower case from arguments that may hold several, separated by commas."""
    return [name.lower() for part in given or () for name in part.split(",") if name]


# --- data files -----------------------------------------------------------------------------------------------


def write_data(out: Path, summary: Mapping[str, Any], file: str = SUMMARY, **tables: Sequence[Row]) -> None:
    """Write every table as ``<name>.csv``, then the summary with the provenance as ``file``."""
    for name, rows in tables.items():
        write_csv(out / f"{name}.csv", rows)
    write_json(out / file, {**summary, **provenance()})


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows with the same keys; numbers to six digits, None and NaN as an empty cell."""
    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return write_text(path, text.getvalue())


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_csv(path: Path) -> list[Row]:
    """Rows of a file that :func:`write_csv` wrote: numbers as float, empty cells as NaN, other text as it is."""
    try:
        rows = csv.DictReader(io.StringIO(_read(path).decode(), newline=""), strict=True)
        return [{key: _value(cell) for key, cell in row.items() if key is not None} for row in rows]
    except (csv.Error, UnicodeDecodeError) as error:
        raise CapoError(f"{path} is damaged: {error}") from None


def _value(cell: str | None) -> Any:
    if not cell:
        return math.nan
    try:
        return float(cell)
    except ValueError:
        return cell


def read_json(path: Path) -> Any:
    """The content of a JSON file; a CapoError if it cannot be read."""
    try:
        return parse_json(_read(path))
    except Unreadable as error:
        raise CapoError(f"{path} is damaged: {error}") from None


def content_of(path: Path) -> Row:
    """A JSON file's dictionary; an empty one if the file is missing or unreadable."""
    try:
        return reading.read_json(path)
    except Unreadable:
        return {}


def experiment_of(content: Mapping[str, Any]) -> str:
    """The experiment that a JSON file belongs to; empty if it is none's.

    In older files the chain of the ablation says "ablation, chain", and its game and the noise experiment's say
    minatar, with a variant.
    """
    found = str(content.get("experiment", "")).partition(",")[0]
    if found == "minatar" and "variant" in content:
        return "noise" if "-noise-" in str(content["variant"]) else "ablation"
    return found


def _read(path: Path) -> bytes:
    try:
        return reading.read_bytes(path, reading.JSON_LIMIT)
    except Unreadable as error:
        raise CapoError(f"{path}: {error}; run the experiment without --draw-only first") from None


def read_groups(path: Path, *keys: str) -> Groups:
    """Rows of a CSV file by their values of ``keys``, in the order they come."""
    found: Groups = {}
    for row in read_csv(path):
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


# --- numbers of many runs -------------------------------------------------------------------------------------


def curve_rows(key: Row, points: Ints, values: Floats, digits: int | None = None) -> list[Row]:
    """Rows of a curve with its spread: mean, 10 % and 90 % quantile over runs.

    Args:
        key: the first columns of every row.
        points: (points,) iterations.
        values: (runs, points).
        digits: decimals to keep; all if None.
    """
    low, high = np.quantile(values, [0.1, 0.9], axis=0)
    curves = {"mean": values.mean(axis=0), "low": low, "high": high}
    shorten: Callable[[Any], float] = float if digits is None else lambda value: round(float(value), digits)
    return [
        {**key, "iteration": int(point), **{name: shorten(curve[i]) for name, curve in curves.items()}}
        for i, point in enumerate(points)
    ]


def last_row(key: Row, values: Floats) -> Row:
    """The last of the values (runs, points), one column per run."""
    return {**key, **{f"run_{k}": last for k, last in enumerate(values[:, -1].round(3).tolist())}}


def first_points(points: Ints, reached: npt.NDArray[np.bool_]) -> Floats:
    """(runs,) first point at which each run has ``reached`` (runs, points) something; inf if it never has."""
    return np.where(reached.any(axis=1), points[reached.argmax(axis=1)].astype(float), np.inf)


def median_first(points: Ints, reached: npt.NDArray[np.bool_]) -> float | None:
    """The median over runs of :func:`first_points`; None if half of them never get there."""
    median = float(np.median(first_points(points, reached)))
    return None if math.isinf(median) else median


# --- tables ---------------------------------------------------------------------------------------------------


def text_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]], note: str = "") -> str:
    """A plain table: the first column to the left, the others to the right, readable in a log file too."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in cells
    ]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([title, rule, lines[0], rule, *lines[1:], rule, *([note] if note else [])])


def count(value: float | None) -> str:
    """A whole number for a table; ``-`` where there is none.

    >>> count(30.0), count(math.nan), count(math.inf), count(None)
    ('30', '-', '-', '-')
    """
    return "-" if value is None or not math.isfinite(value) else f"{value:.0f}"


def quick_note(quick: bool, what: str) -> list[str]:
    """The line above the tables of a quick run, which has less of ``what``; none for a full one."""
    return [f"QUICK run: fewer {what} than the full experiment."] if quick else []


# --- figures --------------------------------------------------------------------------------------------------


def caption(drawing: Any, text: str, quick: bool = False, **options: Any) -> None:
    """The line above a figure."""
    drawing.suptitle(f"{'QUICK run; ' if quick else ''}{text}", x=0.01, ha="left", **options)


def draw_curve(
    axis: Any, rows: Sequence[Row], colour: Any, label: str, line: str = "-", band: float = 0.12
) -> None:
    """A curve of :func:`curve_rows`; ``band`` is the opacity of its spread, 0 for none."""
    x = [row["iteration"] for row in rows]
    axis.plot(x, [row["mean"] for row in rows], color=colour, ls=line, label=label)
    if band:
        low, high = ([row[side] for row in rows] for side in ("low", "high"))
        axis.fill_between(x, low, high, color=colour, alpha=band, lw=0)
