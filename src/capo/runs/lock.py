"""One owner of a run's folder at a time."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from capo.errors import CapoError
from capo.files import disk_errors, open_regular
from capo.runs.layout import LOCK

_held: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """Holds a run's folder for one agent of this process; the system releases it however the process ends.

    A child that the process forks (an environment in a process of its own) does not hold it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor: int | None = None
        try:
            import fcntl
        except ImportError:  # Windows
            return
        with disk_errors(folder / LOCK):
            descriptor = open_regular(folder / LOCK, os.O_RDWR | os.O_CREAT, mode=0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise CapoError(
                f"{folder}: another process is training in this folder, or another agent in this process "
                "has resumed it; wait for it, stop it, or close the agent (agent.close())"
            ) from None
        self._descriptor = descriptor
        _held.add(self)

    def check(self) -> None:
        """Raise if the folder is no longer there, or no longer this one.

        Raises:
            CapoError: if it was moved, deleted or replaced since the lock was taken.
        """
        if self._descriptor is None:
            return
        try:
            there, here = os.stat(self.folder / LOCK, follow_symlinks=False), os.fstat(self._descriptor)
            same = (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
        except OSError:
            same = False
        if not same:
            raise CapoError(
                f"{self.folder}: the folder was moved, deleted or replaced during the run; put it back, then "
                f"`capo resume {self.folder}` continues from its last checkpoint"
            )

    def release(self) -> None:
        """Let other processes have the folder."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.release()


def _forget_in_child() -> None:
    """Close a forked child's copies: as long as one is open, the folder stays locked when the parent is gone."""
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
