"""Results files: what a training on a game leaves, written, read back and compared.

A training ends as one small JSON file with every seed's curves and final returns, its settings and its provenance.
:func:`capo.runs.records.read_result` reads one; :func:`read_variants` reads those of an experiment.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capo.envs.minatar.games import GAMES
from capo.experiments.common import Floats, content_of
from capo.files import write_text
from capo.neural.algorithms import registry
from capo.report import statistics
from capo.runs.reader import Unreadable
from capo.runs.records import Record, read_result

INTERVALS = "Intervals: percentile bootstrap over seeds, 95 %"
TOO_FEW = "; with fewer than five seeds they are too narrow."


def write_result(path: Path, content: Mapping[str, Any]) -> None:
    """A results file: JSON with one line per entry and per seed, so that a diff of it can be read."""
    lines = []
    for key, value in content.items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list):
            text = "[\n" + ",\n".join("  " + json.dumps(one, allow_nan=False) for one in value) + "\n]"
        lines.append(f"{json.dumps(key)}: {text}")
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def curve(frames: Any, returns: Any) -> dict[str, list[Any]]:
    """A curve as a results file holds it."""
    return {"frames": [int(frame) for frame in frames], "returns": rounded(returns)}


def rounded(values: Any) -> list[float | None]:
    """Five significant digits; None for NaN."""
    return [None if math.isnan(value) else float(f"{value:.5g}") for value in values]


# --- the variants of an experiment ----------------------------------------------------------------------------


def read_variants(folder: Path, names: Sequence[str]) -> tuple[dict[str, dict[str, Record]], list[str]]:
    """Readable results files ``<game>-<name>.json`` by game and name, and what is damaged or differs."""
    found: dict[str, dict[str, Record]] = {}
    notes: list[str] = []
    for game in GAMES:
        own: dict[str, Record] = {}
        for name in names:
            file = folder / f"{game}-{name}.json"
            record = read_noting(file, notes) if file.exists() else None
            if record is not None and record.finals:
                own[name] = record
        if own:
            found[game] = own
            notes += _unlike(own)
    records = [record for own in found.values() for record in own.values()]
    notes += different_lengths(records)
    seeds = sorted({len(record.finals) for record in records})
    if len(seeds) > 1:
        notes.append(f"different numbers of seeds: {', '.join(map(str, seeds))}")
    return found, notes


def read_noting(file: Path, notes: list[str]) -> Record | None:
    """A results file; None if it cannot be read. What is wrong with it is added to ``notes``."""
    try:
        record = read_result(file)
    except Unreadable as error:
        notes.append(f"{file}: {error}; left out")
        return None
    notes += record.problems
    return record


def different_lengths(records: Sequence[Record]) -> list[str]:
    """One line if the records are of different lengths, otherwise none."""
    lengths = sorted({record.frames or 0 for record in records})
    if lengths and lengths[-1] > 1.01 * lengths[0]:  # whole iterations are not equally long everywhere
        return [f"runs of different lengths: {', '.join(f'{frames:,}' for frames in lengths)} frames"]
    return []


def _unlike(records: Mapping[str, Record]) -> list[str]:
    """One line per variant with other differences from the first one of its algorithm than it should have."""
    notes = []
    first: dict[str, str] = {}
    for name, record in records.items():
        base = first.setdefault(record.algorithm, name)
        changed = {key for one in (name, base) for key in content_of(records[one].path).get("changed", {})}
        ours, theirs = (registry.all_settings(record.algorithm, records[one].settings) for one in (name, base))
        differ = [
            f"{key} {value!r} instead of {theirs[key]!r}"
            for key, value in ours.items()
            if key in theirs and key not in changed | {"horizon"} and theirs[key] != value
        ]
        if differ:
            notes.append(f"{record.path}: differs from {base} in more than it should ({', '.join(differ)})")
    return notes


def finals(record: Record) -> Floats:
    """(seeds,) final scores."""
    return np.array(list(record.finals.values()))


def mean(scores: Floats) -> statistics.Estimate:
    """The mean of (seeds,) scores with its 95 % bootstrap interval."""
    return statistics.stratified_bootstrap([scores], statistics.aggregate_mean)


def difference(scores: Floats, base: Floats) -> statistics.Estimate:
    """The mean of ``scores`` minus that of ``base``; the seeds of both are resampled independently."""
    statistic: Callable[[Sequence[Floats]], Floats] = lambda both: np.asarray(both[0].mean(-1) - both[1].mean(-1))
    return statistics.stratified_bootstrap([scores, base], statistic)


def interval(found: statistics.Estimate, sign: str = "", digits: int = 2) -> str:
    """``1.23 [1.00, 1.50]``."""
    value, low, high = (f"{float(x):{sign}.{digits}f}" for x in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"
