"""What the experiments share: reading and writing their data, and tables for the terminal.

An experiment is a module with

- ``DATA``: the names (or patterns) of the data files it writes;
- ``run(out, quick, progress)``: computes, and writes those files with settings, seeds and provenance;
- ``report(folder)``: the tables to print, from the files alone;
- ``draw(folder, out)``: the figures, from the files alone.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from capo.errors import CapoError
from capo.files import write_atomically

Row = Mapping[str, Any]


class Experiment(Protocol):
    """The shape of an experiment's module."""

    DATA: tuple[str, ...]

    def run(self, out: Path, quick: bool, progress: bool, **options: Any) -> None: ...
    def report(self, folder: Path) -> str: ...
    def draw(self, folder: Path, out: Path) -> list[Path]: ...


def write_csv(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows with the same keys; numbers to six digits, None and NaN as an empty cell."""
    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return write_atomically(path, lambda file: file.write(text.getvalue().encode()))


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Rows of a file that :func:`write_csv` wrote: numbers as float, empty cells as NaN, other text as it is."""
    with _open(path) as file:
        return [{key: _value(cell) for key, cell in row.items()} for row in csv.DictReader(file)]


def _value(cell: str | None) -> Any:
    if not cell:
        return math.nan
    try:
        return float(cell)
    except ValueError:
        return cell


def read_json(path: Path) -> Any:
    with _open(path) as file:
        try:
            return json.load(file)
        except ValueError as error:
            raise CapoError(f"{path} is damaged: {error}") from error


def content_of(path: Path) -> dict[str, Any]:
    """A JSON file's dictionary; an empty one if there is none, or not one that can be read."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _open(path: Path) -> io.TextIOWrapper:
    try:
        return path.open(newline="")
    except OSError as error:
        raise CapoError(
            f"cannot read {path}: {error.strerror}; run the experiment without --draw-only first"
        ) from error


def groups(rows: Iterable[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Rows by their values of ``keys``, in the order they come."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


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
