"""A sweep's folder.

sweep.toml   what was asked for last
jobs/ID/     one run's folder per job, with log.txt; failed.txt if the job failed by itself
table.csv    one row per job: settings, state, score
status.json  what the process that runs it knows, for `capo sweep status`
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capo.files import open_regular, prepare_folder, write_text
from capo.reading import JSON_LIMIT, read_bytes
from capo.runs.layout import CONFIG, FRAMES, METRICS, SEED, is_run
from capo.runs.reader import Unreadable, read_json, salvage_config, salvage_evaluation
from capo.runs.records import environment_name
from capo.sweeps.jobs import Job

SPEC, JOBS, TABLE, STATUS, FAILED = "sweep.toml", "jobs", "table.csv", "status.json", "failed.txt"
TAIL = 16_384  # bytes of metrics.csv that are read to see how far a job is

Row = dict[str, Any]


def is_sweep(path: Path) -> bool:
    """Whether a folder is a sweep's."""
    return (path / SPEC).is_file() and (path / JOBS).is_dir()


@dataclass(frozen=True)
class SweepFolder:
    """The names in a sweep's folder, and what can be read from them."""

    path: Path

    def job(self, id: str) -> Path:
        """The folder of a job."""
        return self.path / JOBS / id

    def prepare(self, text: str) -> None:
        """Create the folder if there is none, and store the specification."""
        prepare_folder(self.path / JOBS)
        if not (self.path / SPEC).is_file() or (self.path / SPEC).read_text(encoding="utf-8") != text:
            write_text(self.path / SPEC, text)

    def write_table(self, jobs: Sequence[Job]) -> list[Row]:
        """Write table.csv, and return its rows.

        The rows of ``jobs`` come first, in their order; then those of earlier specifications that are still there.
        """
        rows = self.rows(jobs)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        table.writeheader()
        table.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)
        write_text(self.path / TABLE, text.getvalue())
        return rows

    def rows(self, jobs: Sequence[Job]) -> list[Row]:
        """One row per job: what it is, its settings, its state, its score."""
        names = list(dict.fromkeys(name for job in jobs for name in job.settings))
        rows = [self._planned_row(job, names) for job in jobs]
        planned = {job.id for job in jobs}
        folder = self.path / JOBS
        others = sorted(path for path in folder.iterdir() if path.name not in planned) if folder.is_dir() else []
        return rows + [_other_row(path, names) for path in others if is_run(path)]

    def _planned_row(self, job: Job, names: Sequence[str]) -> Row:
        at = self.job(job.id)
        state = "waiting"
        if job.done(at):
            state = "done"
        elif (at / FAILED).exists():
            state = "failed"
        elif is_run(at):
            state = "unfinished"
        settings = {name: job.settings.get(name, getattr(job.config, name, None)) for name in names}
        what = _what(job.id, job.env, job.algorithm, job.preset, settings, job.seeds, job.whole_frames)
        return {**what, "planned": True, "state": state, **_score(at), "error": self.error(job.id)}

    def error(self, id: str) -> str:
        """Why a job failed; empty if it did not."""
        try:
            return read_bytes(self.job(id) / FAILED, JSON_LIMIT).decode(errors="replace").strip()
        except Unreadable:
            return ""

    def status(self) -> Row:
        """What the process that runs the sweep wrote last; empty if there is nothing."""
        try:
            return read_json(self.path / STATUS)
        except Unreadable:
            return {}


def _what(
    id: str,
    env: str,
    algorithm: str,
    preset: str,
    settings: Mapping[str, Any],
    seeds: Sequence[int],
    frames: int | None,
) -> Row:
    base = {"id": id, "environment": env, "algorithm": algorithm, "preset": preset}
    return {**base, **settings, "seeds": " ".join(map(str, seeds)), "frames": frames}


def _other_row(path: Path, names: Sequence[str]) -> Row:
    """The row of a job that the present specification does not have."""
    config, _ = salvage_config(path)
    settings = config.get("config", {})
    what = _what(
        path.name,
        environment_name(config),
        config.get("algorithm", ""),
        config.get("preset", ""),
        {name: settings.get(name) for name in names},
        config.get("seeds", ()),
        config.get("frames"),
    )
    score = _score(path)
    state = "done" if score["return"] is not None else "unfinished"
    return {**what, "planned": False, "state": state, **score, "error": ""}


def _score(path: Path) -> Row:
    """The final score and the time that training took."""
    found, _ = salvage_evaluation(path)
    config, _ = salvage_config(path) if found else ({}, [])
    row: Row = {"return": None, "standard_error": None, "seconds": None}
    if found and found["frames"] >= config.get("frames", math.inf):
        row |= {"return": found.get("mean"), "standard_error": found.get("standard_error")}
        with suppress(KeyError, TypeError, ValueError):
            row["seconds"] = round(float(last_row(path)["elapsed_seconds"]), 2)
    return row


# --- how far a job is -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """Frames over all seeds: so far, in all, and per second."""

    frames: int = 0
    total: int = 0
    speed: float = 0.0


def progress(folder: Path) -> Progress:
    """How far the run in a folder is; zeros if it has not begun."""
    try:
        config = read_json(folder / CONFIG)
        seeds, frames = config["seeds"], int(config["frames"])
        total = frames * len(seeds)
        row = last_row(folder)
        own, speed = int(row[FRAMES]), float(row.get("frames_per_second") or 0.0)
        if config["environment"]["jitted"]:
            return Progress(own * len(seeds), total, speed)
        return Progress(frames * seeds.index(int(row[SEED])) + own, total, speed)  # one seed after another
    except (Unreadable, ValueError, KeyError, TypeError, OverflowError):
        return Progress()


def last_row(folder: Path) -> dict[str, str]:
    """The last whole row of a run's metrics.csv, as text; empty if there is none."""
    try:
        with os.fdopen(open_regular(folder / METRICS, os.O_RDONLY), "rb") as file:
            header = file.readline().decode()
            size = file.seek(0, 2)
            file.seek(max(len(header), size - TAIL))
            lines = file.read().decode(errors="replace").split("\n")
    except (OSError, UnicodeDecodeError):
        return {}
    columns = header.strip().split(",")
    for line in reversed(lines[:-1]):  # what follows the last line break is not whole
        cells = line.split(",")
        if len(cells) == len(columns):
            return dict(zip(columns, cells, strict=True))
    return {}
