"""A job for processes of their own, which have to be able to import it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from capo import CapoError


@dataclass
class Job:
    """Says something, waits, and leaves a file; or fails."""

    out: Path
    label: str
    seconds: float = 0.0
    error: str = ""

    def finish(self, say: Callable[[str], None], progress: bool) -> None:
        assert progress
        say(f"this is {self.label}")
        (self.out / f"{self.label}.pid").write_text(str(os.getpid()))
        (self.out / f"{self.label}.began").write_text(str(time.time()))
        if self.error:
            raise CapoError(self.error)
        time.sleep(self.seconds)
        (self.out / f"{self.label}.ended").write_text(str(time.time()))
