"""Writing a run's folder, so that a killed run can be resumed exactly.

The logs (metrics.csv and the event files) only ever grow. Each checkpoint holds their lengths at that moment; on
resume they are cut back to those lengths, and the rows that were lost with the process are written again.
"""

from __future__ import annotations

import csv
import errno
import io
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from capo.errors import CapoError
from capo.files import DiskError, disk_errors, make_folder, open_regular, sync_folder, write_json
from capo.provenance import provenance
from capo.runs import events, schema
from capo.runs.checkpoint import CheckpointStore
from capo.runs.layout import CHECKPOINTS, CONFIG, EVALUATION, EVENT_FILE, EVENTS, LOCK, METRICS, is_timing
from capo.runs.lock import Lock
from capo.runs.reader import read_config


def check_new(path: Path) -> None:
    """Raise a CapoError if a new run can't be started in ``path``; nothing is created."""
    if path.exists() and not path.is_dir():
        raise CapoError(f"{path} is a file; give a folder for the run")
    if any((path / name).exists() for name in (CONFIG, METRICS, CHECKPOINTS)):
        raise CapoError(
            f"{path}: already contains a run; continue it with `capo resume {path}`, or give another --out"
        )
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise CapoError(f"{path}: {existing} is a file, so no folder can be created in it")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise CapoError(f"{path}: {existing} is read-only; choose another folder")


class RunWriter:
    """A run's folder, open for writing by this process alone."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self._found: dict[str, Any] | None = None  # config.json as it was, if there was a run
        self.store = CheckpointStore(path / CHECKPOINTS, int(config["keep"]))
        self._made = False  # whether the folder was made for the run
        self._lock = Lock(path)
        self._files: dict[str, io.BufferedWriter] = {}

    @classmethod
    def create(cls, path: Path, config: dict[str, Any]) -> RunWriter:
        """Create the folder and write its config.json."""
        check_new(path)
        made = not path.exists()
        with disk_errors(path):
            make_folder(path)
        run = cls(path, config)
        run._made = made
        with run.withdrawn_on_error():
            run.write_config({**config, "started": datetime.now(UTC).isoformat(timespec="seconds")})
        return run

    @classmethod
    def open(cls, path: Path) -> RunWriter:
        """Open an existing run to continue it."""
        run = cls(path, read_config(path))
        try:
            run.config = run._found = read_config(path)  # again: the owner before may have changed it until now
            run.store.paths()  # raises if the checkpoints lie elsewhere
            with disk_errors(path):
                run.store.clean()
        except BaseException:
            run.close()
            raise
        return run

    @contextmanager
    def withdrawn_on_error(self) -> Iterator[None]:
        """Withdraw the run if the block raises: nothing has been trained yet."""
        try:
            yield
        except BaseException:
            self.withdraw()
            raise

    def check_never_started(self) -> None:
        """Raise if a run without checkpoints can't be started from its config.json."""
        start = self.config.get("start_frames", 0)
        if start:
            raise CapoError(
                f"{self.path}: the run was to continue from a saved agent at frame {start:,} and ended before its "
                "first checkpoint: load that agent again, with another out="
            )
        path = self.path / METRICS
        if path.exists() and path.stat().st_size > 0:  # a run's first checkpoint is older than its first row
            raise CapoError(
                f"{self.path}: {METRICS} has rows, but the checkpoints are gone: put them back into "
                f"{self.path / CHECKPOINTS}, or train in another folder"
            )

    def update_config(self, config: Mapping[str, Any]) -> None:
        """Replace entries of config.json, but for where the run started from."""
        start = self.config.get("start_frames", 0)
        self.write_config({**self.config, **config, "start_frames": start})

    def follow_plan(self, plan: Mapping[str, Any]) -> None:
        """Make config.json say what the checkpoint does, if a process ended between writing the one and the other.

        Args:
            plan: the checkpoint's ``frames`` and ``config``.
        """
        told, meant = ((entry["frames"], entry["config"].get("horizon")) for entry in (self.config, plan))
        if told != meant:
            self.write_config({**self.config, **plan})

    def write_config(self, config: dict[str, Any]) -> None:
        """Replace config.json."""
        self.config = config
        write_json(self.path / CONFIG, config, allow_nan=True)

    # Logs -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if the folder or a log was moved, deleted or replaced since it was opened.

        Raises:
            CapoError: says which, and what to do.
        """
        self._lock.check()
        for name, file in self._files.items():
            try:
                there, here = os.stat(self.path / name, follow_symlinks=False), os.fstat(file.fileno())
                same = (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
            except OSError:
                same = False
            if not same:
                raise DiskError(f"{self.path / name} was moved, deleted or replaced during the run; put it back")

    def log(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Append one log point: a row per seed, each with ``seed`` and ``frames`` in it."""
        self.check()
        text = io.StringIO()
        file = self._append(METRICS)
        columns = list(rows[0]) if file.tell() == 0 else self.columns()
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
        name = f"{EVENTS}/seed-{int(row['seed'])}/{EVENT_FILE}"
        file = self._append(name)
        now = time.time()
        values = {
            ("time/" if is_timing(key) else "train/") + key: float(value)
            for key, value in row.items()
            if key not in ("seed", "frames", "iteration") and math.isfinite(value)
        }
        with disk_errors(self.path / name):
            if file.tell() == 0:
                file.write(events.file_start(now))
            file.write(events.scalars(now, int(row["frames"]), values))
            file.flush()

    def columns(self) -> list[str]:
        """The header of metrics.csv: new rows follow it, whichever version of capo wrote it.

        Raises:
            CapoError: if it is not one.
        """
        with disk_errors(self.path / METRICS), os.fdopen(self._open(METRICS, os.O_RDONLY), "rb") as file:
            found = file.readline(100_000).decode(errors="replace").rstrip("\r\n").split(",")
        if missing := [name for name in schema.METRICS_COLUMNS if name not in found]:
            raise CapoError(
                f"{self.path / METRICS}: has no column {', '.join(missing)}: it was changed; put it back, or move "
                "it away to start a new one"
            )
        return found

    def _open(self, name: str, flags: int) -> int:
        """A descriptor of a log: a file of this folder alone, never one that lies elsewhere under another name."""
        path = self.path / name
        for folder in path.relative_to(self.path).parents:
            if (self.path / folder).is_symlink() and folder != Path("."):
                raise OSError(errno.ELOOP, f"{self.path / folder} is a symbolic link; put a folder in its place")
        descriptor = open_regular(path, flags)
        if os.fstat(descriptor).st_nlink > 1:
            os.close(descriptor)
            raise OSError(errno.EMLINK, "it has a second name (a hard link); replace it with a copy")
        return descriptor

    def _append(self, name: str) -> io.BufferedWriter:
        if name not in self._files:
            path = self.path / name
            with disk_errors(path):
                make_folder(path.parent)
                new = not path.exists()
                descriptor = self._open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                file = os.fdopen(descriptor, "ab")
                file.seek(0, os.SEEK_END)
                self._files[name] = file
                if new:
                    sync_folder(path.parent)
        return self._files[name]

    def log_lengths(self) -> dict[str, int]:
        """Bytes of every log, once they are safely on disk: what a checkpoint has to remember."""
        self.check()
        for name, file in self._files.items():
            with disk_errors(self.path / name):
                file.flush()
                os.fsync(file.fileno())
        return {name: self._append(name).tell() for name in self._log_names()}

    def cut_logs(self, lengths: Mapping[str, int]) -> list[str]:
        """Cut the logs back to ``lengths`` and drop those that are not in it.

        Returns:
            The logs that are shorter than they should be: someone changed them.

        Raises:
            CapoError: if a log is not a regular file of this folder; then none of them is cut.
        """
        short, long = [], {}
        for name in sorted(set(self._log_names()) | set(lengths)):
            if not schema.is_log(name):
                raise CapoError(f"{self.path}: {schema.shown(name)} is not the name of a log")
            path, wanted = self.path / name, lengths.get(name, 0)
            with disk_errors(path):
                descriptor = self._open(name, os.O_RDONLY) if os.path.lexists(path) else None
                have = 0
                if descriptor is not None:
                    have = os.fstat(descriptor).st_size
                    os.close(descriptor)
            if have < wanted:
                short.append(name)
            elif have > wanted:
                long[name] = wanted
        for name, wanted in long.items():
            with disk_errors(self.path / name):
                descriptor = self._open(name, os.O_WRONLY)
                try:
                    os.ftruncate(descriptor, wanted)
                finally:
                    os.close(descriptor)
        if lengths.get(METRICS) and self.log_sizes().get(METRICS):
            self.columns()  # raises if new rows would follow something that is not a table
        return short

    def log_sizes(self) -> dict[str, int]:
        """Bytes of every log as the folder has them."""
        with disk_errors(self.path):
            return {name: os.stat(self.path / name).st_size for name in self._log_names()}

    def _log_names(self) -> list[str]:
        found = sorted(self.path.glob(f"{EVENTS}/seed-*/{EVENT_FILE}"))
        paths = [self.path / METRICS, *found]
        names = [path.relative_to(self.path).as_posix() for path in paths if os.path.lexists(path)]
        return [name for name in names if schema.is_log(name)]

    def withdraw(self) -> None:
        """Leave the folder as it was found: without the new run, or with the old config.json."""
        with suppress(OSError, DiskError):  # the first error matters more
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
        """Close the logs and release the folder."""
        for file in self._files.values():
            with suppress(OSError):  # on a full disk, the failed write was already reported
                file.close()
        self._files = {}
        self._lock.release()


def write_evaluation(folder: Path, evaluation: Mapping[str, Any]) -> None:
    """Replace a run's evaluation.json; ``evaluation`` is :meth:`capo.neural.evaluation.Evaluation.to_dict`."""
    write_json(folder / EVALUATION, {**evaluation, "made_by": provenance()}, allow_nan=True)


def _cell(value: float) -> str:
    """A number as a CSV cell: integers as integers, nan as an empty cell."""
    if isinstance(value, int):
        return str(value)
    return "" if math.isnan(value) else f"{value:.9g}"
