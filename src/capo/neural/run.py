"""A run's folder: settings, logs and checkpoints, written so that a killed run can go on exactly.

    config.json      settings, seeds, versions, commit, hardware
    metrics.csv      one row per seed and log point
    tensorboard/     the same as event files, one folder a seed
    checkpoints/     the last few whole states
    evaluation.json  the last evaluation, and the versions, commit and hardware that made it
    curve.png        the training curve

The two logs only ever grow. Each checkpoint holds their lengths at its moment; on resume both are cut back
to those lengths and the rows that were lost with the process are written again.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from capo.errors import CapoError
from capo.neural import tensorboard
from capo.neural.checkpoint import CheckpointStore, DiskError, atomic_file, disk_errors
from capo.neural.evaluation import Evaluation
from capo.provenance import provenance

CONFIG = "config.json"
METRICS = "metrics.csv"
EVALUATION = "evaluation.json"
CURVE = "curve.png"
EVENTS = "tensorboard"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"


# What going on with a run takes from its config.json.
_NEEDED = (
    *("algorithm", "env", "environment", "preset", "overrides", "config", "seeds", "frames", "log_every"),
    *("checkpoint_every", "keep", "extra", "versions", "hardware"),
)


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM came; the run was left in order at the end of the step it was in."""

    def __init__(self, signum: int, frames: int, checkpoint: Path | None) -> None:
        self.signum, self.frames, self.checkpoint = signum, frames, checkpoint
        where = f", checkpoint {checkpoint}" if checkpoint else ""
        super().__init__(f"stopped by {signal.Signals(signum).name} at frame {frames:,}{where}")


@dataclass(frozen=True)
class Interval:
    """How often to checkpoint: every so many seconds, or every so many frames (of one seed)."""

    seconds: float | None = None
    frames: int | None = None

    @staticmethod
    def parse(text: str | int | float | Interval) -> Interval:
        """From ``"60s"``, ``"5m"``, ``"1h"`` (time) or ``"100000"``, ``100_000`` (frames).

        >>> Interval.parse("5m")
        Interval(seconds=300.0, frames=None)
        >>> Interval.parse("100000")
        Interval(seconds=None, frames=100000)
        """
        if isinstance(text, Interval):
            return text
        match = re.fullmatch(
            r"(\d+(?:\.\d+)?(?:e\d+)?)([smh]?)", re.sub(r"(?<=\d)_(?=\d)", "", str(text).strip().lower())
        )
        number = float(match[1]) if match else 0.0
        if not match or not 0 < number < math.inf or (not match[2] and number != int(number)):
            raise CapoError(
                f"checkpoint interval {text!r}: give a time such as 60s, 5m or 1h, or a number of frames "
                "such as 100000"
            )
        if match[2]:
            return Interval(seconds=number * {"s": 1, "m": 60, "h": 3600}[match[2]])
        return Interval(frames=int(number))

    def __str__(self) -> str:
        return f"{self.seconds:g}s" if self.seconds is not None else str(self.frames)


class Interrupts:
    """While it is entered, SIGINT and SIGTERM ask for a stop (``signum``) instead of ending the process.

    A second SIGINT ends it at once. Outside the main thread signals can't be caught and nothing changes.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._old[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for signum, handler in self._old.items():
            signal.signal(signum, handler)
        self._old = {}

    def _handle(self, signum: int, _: FrameType | None) -> None:
        if self.signum == signal.SIGINT and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum
        print("\ncapo: stopping at the next log point (once more: at once)", file=sys.stderr, flush=True)


def next_folder(env: str, algorithm: str, root: Path = Path("runs")) -> Path:
    """``runs/<env>-<algo>-<n>`` with the first n that is free."""
    stem = re.sub(r"[^\w.-]+", "-", f"{env}-{algorithm}")
    taken = {path.name for path in root.iterdir()} if root.is_dir() else set()
    return next(root / f"{stem}-{n}" for n in range(1, len(taken) + 2) if f"{stem}-{n}" not in taken)


def check_new(path: Path) -> None:
    """Raises a CapoError if a new run can't be started in ``path``; makes nothing."""
    if path.exists() and not path.is_dir():
        raise CapoError(f"{path}: is a file; give a folder for the run")
    if any((path / name).exists() for name in (CONFIG, METRICS, CHECKPOINTS)):
        raise CapoError(f"{path}: already holds a run; go on with `capo resume {path}`, or give another --out")
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise CapoError(f"{path}: {existing} is a file, so no folder can be made in it")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise CapoError(f"{path}: {existing} is read-only; choose another folder")


class RunFolder:
    """A run's folder, open for writing by this process alone."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self._found: dict[str, Any] | None = None  # config.json as it was, if there was a run
        self.store = CheckpointStore(path / CHECKPOINTS, int(config["keep"]))
        self._made = False  # whether the folder was made for the run
        self._lock = _lock(path)
        self._files: dict[str, io.BufferedWriter] = {}

    @classmethod
    def create(cls, path: Path, config: dict[str, Any]) -> RunFolder:
        """Make the folder and write its config.json."""
        check_new(path)
        made = not path.exists()
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        run = cls(path, config)
        run._made = made
        try:
            run.write_config({**config, "started": datetime.now(UTC).isoformat(timespec="seconds")})
        except BaseException:
            run.withdraw()
            raise
        return run

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open a run to go on with it."""
        run = cls(path, read_config(path))
        run._found = run.config
        with run.closed_if_it_fails(), disk_errors(path):
            run.store.clean()
        return run

    @contextmanager
    def closed_if_it_fails(self) -> Iterator[None]:
        """Let the folder go if what is inside raises: nobody else has it yet."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def write_config(self, config: dict[str, Any]) -> None:
        """Replace config.json."""
        self.config = config
        write_json(self.path / CONFIG, config)

    # Logs -------------------------------------------------------------------------------------------------

    def log(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Append one log point: a row per seed, each with ``seed`` and ``frames`` in it."""
        text = io.StringIO()
        file = self._append(METRICS)
        columns = list(rows[0]) if file.tell() == 0 else _columns(self.path / METRICS)
        writer = csv.writer(text, lineterminator="\n")
        if file.tell() == 0:
            writer.writerow(columns)
        writer.writerows([_cell(row.get(column, math.nan)) for column in columns] for row in rows)
        with disk_errors(self.path / METRICS):
            file.write(text.getvalue().encode())
            file.flush()
        for row in rows:
            self._log_events(row)

    def _log_events(self, row: Mapping[str, float]) -> None:
        name = f"{EVENTS}/seed-{int(row['seed'])}/events.out.tfevents.capo"
        file = self._append(name)
        now = time.time()
        values = {
            ("time/" if is_timing(key) else "train/") + key: float(value)
            for key, value in row.items()
            if key not in ("seed", "frames", "iteration") and math.isfinite(value)
        }
        with disk_errors(self.path / name):
            if file.tell() == 0:
                file.write(tensorboard.file_start(now))
            file.write(tensorboard.scalars(now, int(row["frames"]), values))
            file.flush()

    def _append(self, name: str) -> io.BufferedWriter:
        if name not in self._files:
            path = self.path / name
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                file = open(path, "ab")  # noqa: SIM115 - stays open for the whole run
                file.seek(0, os.SEEK_END)
                self._files[name] = file
        return self._files[name]

    def log_lengths(self) -> dict[str, int]:
        """Bytes of every log, once they are safely on the disk: what a checkpoint has to remember."""
        for name, file in self._files.items():
            with disk_errors(self.path / name):
                file.flush()
                os.fsync(file.fileno())
        return {name: self._append(name).tell() for name in self._log_names()}

    def cut_logs(self, lengths: Mapping[str, int]) -> list[str]:
        """Cut the logs back to ``lengths`` and drop those that are not in it.

        Returns:
            The logs that are shorter than they should be: somebody changed them.
        """
        short = []
        for name in set(self._log_names()) | set(lengths):
            path = self.path / name
            have = path.stat().st_size if path.exists() else 0
            if have < lengths.get(name, 0):
                short.append(name)
            elif have > lengths.get(name, 0):
                with disk_errors(path):
                    os.truncate(path, lengths.get(name, 0))
        return short

    def _log_names(self) -> list[str]:
        events = sorted(self.path.glob(f"{EVENTS}/seed-*/events.out.tfevents.capo"))
        paths = [self.path / METRICS, *events]
        return [path.relative_to(self.path).as_posix() for path in paths if path.exists()]

    def has_rows(self) -> bool:
        """Whether something has been logged."""
        path = self.path / METRICS
        return path.exists() and path.stat().st_size > 0

    def withdraw(self) -> None:
        """Before anything was trained: leave the folder as it was found, with no new run or the old plan."""
        with suppress(OSError, DiskError):  # what went wrong before matters more
            if self._found is not None:
                self.write_config(self._found)
            else:
                shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)
                (self.path / CONFIG).unlink(missing_ok=True)
            if self._made:
                (self.path / LOCK).unlink(missing_ok=True)
                self.path.rmdir()
        self.close()

    def close(self) -> None:
        """Close the logs and let other processes have the folder."""
        for file in self._files.values():
            with suppress(OSError):  # of a full disk: what could not be written was said by the one who wrote it
                file.close()
        self._files = {}
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def is_timing(column: str) -> bool:
    """Whether a column of metrics.csv is about time, and so differs between identical runs."""
    return column.endswith(("_seconds", "_per_second"))


def read_config(path: Path) -> dict[str, Any]:
    """The config.json of a run.

    Raises:
        CapoError: if ``path`` is not the folder of a run.
    """
    if not path.exists():
        raise CapoError(f"{path}: there is no such folder; `capo train ENV --out {path}` starts a run")
    try:
        config: dict[str, Any] = json.loads((path / CONFIG).read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise CapoError(f"{path}: is not the folder of a run (it has no {CONFIG})") from None
    except OSError as error:
        raise CapoError(f"{path / CONFIG}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise CapoError(f"{path / CONFIG}: is not readable JSON ({error})") from None
    missing = [key for key in _NEEDED if not isinstance(config, dict) or key not in config]
    if missing:
        raise CapoError(f"{path / CONFIG}: was not written by this version of capo (no {', '.join(missing)})")
    return config


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of a run's metrics.csv as numbers; empty where there are none yet."""
    try:
        with open(path / METRICS, newline="") as file:
            return [{key: float(value or "nan") for key, value in row.items()} for row in csv.DictReader(file)]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, AttributeError) as error:
        raise CapoError(f"{path / METRICS}: is not readable ({error})") from None


def write_json(path: Path, value: Any) -> None:
    """Write a small JSON file for people and programs, in one step."""
    with atomic_file(path) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())


def write_evaluation(folder: Path, evaluation: Evaluation) -> None:
    """Replace a run's evaluation.json."""
    write_json(folder / EVALUATION, evaluation.to_dict() | {"made_by": provenance()})


def _columns(path: Path) -> list[str]:
    """The header of a CSV file: rows are written to it, whatever version of capo made it."""
    with open(path, newline="") as file:
        return next(csv.reader(file))


def _cell(value: float) -> str:
    """A number as it stands in the CSV: whole numbers whole, what does not exist empty."""
    if isinstance(value, int):
        return str(value)
    return "" if math.isnan(value) else f"{value:.9g}"


def _lock(path: Path) -> int | None:
    """Take the run for this process; the system gives it back however the process ends."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    with disk_errors(path / LOCK):
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise CapoError(f"{path}: another process is training in this folder; wait for it or stop it") from None
    return descriptor
