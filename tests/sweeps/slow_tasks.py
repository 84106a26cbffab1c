"""A task for other processes, which have to be able to import it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from capo import CapoError


@dataclass
class Slow:
    """Says something, waits, and leaves files; or fails, or kills its process some times first."""

    label: str
    seconds: float = 0.0
    error: str = ""
    deaths: int = 0

    def run(self, folder: Path) -> None:
        print(f"this is {self.label}")
        (folder / "pid").write_text(str(os.getpid()))
        (folder / "began").write_text(str(time.time()))
        died = len(list(folder.glob("died-*")))
        if died < self.deaths:
            (folder / f"died-{died}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.error:
            raise CapoError(self.error)
        time.sleep(self.seconds)
        (folder / "ended").write_text(str(time.time()))
