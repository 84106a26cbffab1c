"""Progress of a training run: a bar on a terminal, a plain line every so often in a log file."""

from __future__ import annotations

import math
import sys
import time
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

LINE_EVERY = 10.0  # seconds between two lines in a log file


class Reporter:
    """Says nothing: what ``learn(progress_bar=False)`` uses, and the interface of the two below."""

    def message(self, text: str) -> None:
        """A line for the user, such as how long compiling took."""

    def update(self, frames: int, speed: float, episode_return: float, left: float) -> None:
        """Where the run stands.

        Args:
            frames: done so far, of one seed (summed over seeds that run one after another).
            speed: frames a second, of all seeds together.
            episode_return: mean return of the latest episodes, nan if none ended.
            left: seconds to the end at this speed, nan if unknown.
        """

    def close(self) -> None:
        """The run ended, well or not."""


class Lines(Reporter):
    """For log files and pipes: whole lines, at most one every ten seconds, and one at the end."""

    def __init__(self, total: int, stream: TextIO, every: float = LINE_EVERY) -> None:
        self.total, self.stream, self.every = total, stream, every
        self._printed = time.monotonic()
        self._pending: str | None = None

    def message(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def update(self, frames: int, speed: float, episode_return: float, left: float) -> None:
        share = f" ({math.floor(100 * frames / max(self.total, 1))}%)"
        self._pending = status(frames, self.total, speed, episode_return, left, share)
        if time.monotonic() - self._printed >= self.every:
            self.close()

    def close(self) -> None:
        if self._pending is not None:
            print(self._pending, file=self.stream, flush=True)
        self._pending, self._printed = None, time.monotonic()


class Bar(Reporter):
    """For a terminal."""

    def __init__(self, total: int, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.percentage:>3.0f}%"),
            BarColumn(bar_width=8),  # the line has to fit 80 columns
            TextColumn("{task.description}"),
            console=console,
            transient=False,
        )
        self.total = total
        self._task = self._bar.add_task("starting", total=total)
        self._bar.start()

    def message(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, markup=False)

    def update(self, frames: int, speed: float, episode_return: float, left: float) -> None:
        text = status(frames, self.total, speed, episode_return, left)
        self._bar.update(self._task, completed=frames, description=text)

    def close(self) -> None:
        self._bar.stop()


def reporter(total: int, show: bool, stream: TextIO | None = None) -> Reporter:
    """The kind of progress that suits where it is shown (standard error, unless told otherwise)."""
    stream = sys.stderr if stream is None else stream
    if not show:
        return Reporter()
    console = Console(file=stream)
    return Bar(total, console) if console.is_terminal else Lines(total, stream)


def status(frames: int, total: int, speed: float, episode_return: float, left: float, share: str = "") -> str:
    """One line about where a run stands.

    >>> status(250_000, 1_000_000, 50_000.0, 3.25, 15.0)
    'frames 250,000/1,000,000  50,000 frames/s  return 3.25  left 0:15'
    """
    shown = "-" if math.isnan(episode_return) else f"{episode_return:.4g}"
    wait = "-" if math.isnan(left) else clock(left)
    return f"frames {frames:,}/{total:,}{share}  {speed:,.0f} frames/s  return {shown}  left {wait}"


def clock(seconds: float) -> str:
    """A duration for people.

    >>> clock(75), clock(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
