"""Stopping a run from outside: SIGINT and SIGTERM ask for a clean end instead of killing the process."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived; the run ended cleanly at its next log point."""

    def __init__(self, signum: int, frames: int, checkpoint: Path | None) -> None:
        self.signum, self.frames, self.checkpoint = signum, frames, checkpoint
        where = f", checkpoint {checkpoint}" if checkpoint else ""
        super().__init__(f"stopped by {signal.Signals(signum).name} at frame {frames:,}{where}")


class Interrupts:
    """While entered, SIGINT and SIGTERM only set ``signum``; a second SIGINT raises immediately.

    Outside the main thread signals can't be caught, and nothing changes.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._old[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._old.items():
            signal.signal(signum, handler)
        self._old = {}

    def _handle(self, signum: int, _: FrameType | None) -> None:
        if self.signum == signal.SIGINT and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum
        text = "stopping at the next log point; press Ctrl-C again to stop immediately"
        print(f"\ncapo: {text}", file=sys.stderr, flush=True)
