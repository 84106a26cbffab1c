"""One owner of a run's folder at a time."""

from __future__ import annotations

import os
from pathlib import Path

from capo.errors import CapoError
from capo.files import disk_errors
from capo.runs.layout import LOCK


class Lock:
    """Holds a run's folder for this process; the system releases it however the process ends."""

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        try:
            import fcntl
        except ImportError:  # Windows
            return
        with disk_errors(folder / LOCK):
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise CapoError(
                f"{folder}: another process is training in this folder; wait for it or stop it"
            ) from None
        self._descriptor = descriptor

    def release(self) -> None:
        """Let other processes have the folder."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
