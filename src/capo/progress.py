"""How far a long computation is: one line that is rewritten on a terminal, a line now and then in a log file."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Ticker:
    """Prints a status line, not more often than a reader needs it.

    Args:
        enabled: a disabled ticker does nothing.
        stream: where to; standard error if not given, so that results can be piped.
    """

    def __init__(self, enabled: bool, stream: TextIO | None = None) -> None:
        self._enabled = enabled
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._every = 0.2 if self._live else 10.0
        self._last = time.monotonic()
        self._width = 0

    def show(self, text: str) -> None:
        """Show ``text`` if enough time has passed since the last one."""
        now = time.monotonic()
        if not self._enabled or now - self._last < self._every:
            return
        self._last = now
        if self._live:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Wipe the live line, so that what follows starts on a clean one."""
        if self._enabled and self._live and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
