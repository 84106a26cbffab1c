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
    """Says something, waits, and leaves files; or fails, or kills its process some times first.

    With ``meets`` it also waits until the task of that name has begun, for a minute at most.
    """

    label: str
    seconds: float = 0.0
    error: str = ""
    deaths: int = 0
    meets: str = ""

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
        deadline = time.time() + 60
        while self.meets and not (folder.parent / self.meets / "began").exists() and time.time() < deadline:
            time.sleep(0.05)
        (folder / "ended").write_text(str(time.time()))
