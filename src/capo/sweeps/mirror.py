"""The files of a task's folder on their way to another machine, so that what has arrived can always be continued.

A run's checkpoint remembers how long its logs were. Checkpoints are therefore read before the logs and written
after them: the logs of a copy are never shorter than its checkpoints say.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from threading import Event, Thread

from capo.errors import CapoError
from capo.files import disk_errors, write_bytes
from capo.runs.layout import CHECKPOINTS, EVALUATION, LOCK

LOOK_EVERY = 0.5  # seconds between two looks at the folder
SEND_EVERY = 5.0  # seconds between two updates, unless there is a new checkpoint

Stamp = tuple[int, int]  # size and time of the last change


@dataclass
class Update:
    """Files that changed.

    Attributes:
        files: content by path in the folder.
        checkpoints: the paths of all checkpoints that are there; others are to be removed.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    checkpoints: list[str] = field(default_factory=list)

    def merge(self, newer: Update) -> None:
        """Take over a later update."""
        self.files |= newer.files
        self.checkpoints = newer.checkpoints
        gone = [name for name in self.files if _is_checkpoint(name) and name not in newer.checkpoints]
        for name in gone:
            del self.files[name]

    def write(self, folder: Path) -> None:
        """Bring a copy of the folder up to date."""
        order = sorted(self.files, key=lambda name: (name == EVALUATION, _is_checkpoint(name), name))
        for name in order:
            path = folder / _inside(name)
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, self.files[name])
        if self.checkpoints:
            for path in (folder / CHECKPOINTS).glob("checkpoint-*"):
                if path.relative_to(folder).as_posix() not in self.checkpoints:
                    path.unlink(missing_ok=True)


def read(folder: Path, seen: dict[str, Stamp] | None = None) -> Update:
    """The files of a folder that changed since ``seen``, which is brought up to date; all of them if None."""
    seen = {} if seen is None else seen
    checkpoints = sorted(_names(folder / CHECKPOINTS, folder))
    update = Update(checkpoints=checkpoints)
    others = [name for name in _names(folder, folder) if not name.startswith(f"{CHECKPOINTS}/")]
    for name in [*checkpoints, *others]:  # the logs after the checkpoints
        with suppress(FileNotFoundError):  # an old checkpoint may have gone since
            status = os.stat(folder / name)
            stamp = (status.st_size, status.st_mtime_ns)
            if seen.get(name) != stamp:
                update.files[name] = (folder / name).read_bytes()
                seen[name] = stamp
    update.checkpoints = [name for name in checkpoints if (folder / name).exists()]
    return update


def _names(top: Path, folder: Path) -> list[str]:
    """The files below ``top`` by their paths in ``folder``; not hidden ones: locks, what is half written."""
    found = top.rglob("*") if top.is_dir() else ()
    return sorted(
        path.relative_to(folder).as_posix() for path in found if path.is_file() and not path.name.startswith(".")
    )


def _is_checkpoint(name: str) -> bool:
    return name.startswith(f"{CHECKPOINTS}/")


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or path.name == LOCK:
        raise CapoError(f"{name!r} is not the name of a file in a task's folder")
    return path


class Mirror:
    """Sends what changes in a folder, from a thread, while the block runs.

    Args:
        folder: to watch.
        send: takes an update; whether it could be sent now. Otherwise a later one will have the same files.
    """

    def __init__(self, folder: Path, send: Callable[[Update], bool]) -> None:
        self._folder, self._send = folder, send
        self._seen: dict[str, Stamp] = {}
        read(folder, self._seen)  # what is there came from the other side
        self._end = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Mirror:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        waited = 0.0
        while not self._end.wait(LOOK_EVERY):
            waited += LOOK_EVERY
            newest = set(_names(self._folder / CHECKPOINTS, self._folder)) - set(self._seen)
            if newest or waited >= SEND_EVERY:
                self._look()
                waited = 0.0

    def _look(self) -> None:
        seen = dict(self._seen)
        update = read(self._folder, seen)
        update.files.pop(EVALUATION, None)  # says that the run is done: it comes with the final state
        if update.files and self._send(update):
            self._seen = seen
