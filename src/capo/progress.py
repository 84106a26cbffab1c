"""How far a long computation is: a live line on a terminal, a bar in a notebook, a line every so often in a log.

Everything but a notebook's bar goes to standard error, so that results can be piped.
"""

from __future__ import annotations

import contextlib
import html
import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY = 10.0  # seconds between two lines in a log file


class Ticker:
    """Shows nothing: what is used when progress is not wanted, and the interface of the kinds below."""

    silent = True  # whether messages are seen by nobody

    def message(self, text: str) -> None:
        """A line for the user that stays, such as how long compiling took."""

    def show(self, text: str, share: float | None = None) -> None:
        """Where the computation stands, replacing what was shown before.

        Args:
            text: one line.
            share: of the work that is done, from 0 to 1; None if unknown.
        """

    def close(self) -> None:
        """The computation ended, successfully or not."""


class Lines(Ticker):
    """For log files and pipes: whole lines, at most one every ten seconds.

    Args:
        stream: where to.
        final: whether the last line is printed at the end, however soon that comes.
    """

    silent = False

    def __init__(self, stream: TextIO, final: bool = False) -> None:
        self.stream, self.final = stream, final
        self._pending: str | None = None
        self._printed = time.monotonic()

    def message(self, text: str) -> None:
        with contextlib.suppress(OSError):  # progress that can't be shown is no reason to stop
            print(text, file=self.stream, flush=True)

    def show(self, text: str, share: float | None = None) -> None:
        done = "" if share is None else f"{math.floor(100 * share)}%  "
        self._pending = done + text
        if time.monotonic() - self._printed >= LINE_EVERY:
            self._print()

    def _print(self) -> None:
        if self._pending is not None:
            self.message(self._pending)
        self._pending, self._printed = None, time.monotonic()

    def close(self) -> None:
        if self.final:
            self._print()


class Live(Ticker):
    """For a terminal: a line that is rewritten, with a bar where the share of the work is known.

    Args:
        console: where to.
        final: whether the line stays at the end.
    """

    silent = False

    def __init__(self, console: Console, final: bool = False) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        bar = (TextColumn("{task.percentage:>3.0f}%"), BarColumn(bar_width=8)) if final else ()  # fits 80 columns
        columns = (*bar, TextColumn("{task.description}", markup=False))
        self._progress = Progress(*columns, console=console, transient=not final)
        self._task = self._progress.add_task("starting" if final else "", total=1.0)
        self._progress.start()

    def message(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def show(self, text: str, share: float | None = None) -> None:
        self._progress.update(self._task, completed=share or 0.0, description=text)

    def close(self) -> None:
        self._progress.stop()


class Notebook(Ticker):
    """For Jupyter: a bar that is redrawn in place, with the messages above it.

    Args:
        display: IPython's function of that name.
        make_html: makes what it displays from HTML.
        final: whether the bar stays at the end.
    """

    silent = False

    def __init__(self, display: Callable[..., Any], make_html: Callable[[str], Any], final: bool = False) -> None:
        self._make_html, self._final = make_html, final
        self._messages: list[str] = []
        self._line = "starting"
        self._share: float | None = None
        self._handle = display(self._drawn(), display_id=True)

    def message(self, text: str) -> None:
        self._messages.append(text)
        self._handle.update(self._drawn())

    def show(self, text: str, share: float | None = None) -> None:
        self._line, self._share = text, share
        self._handle.update(self._drawn())

    def close(self) -> None:
        if not self._final:
            self._line, self._share = "", None
            self._handle.update(self._drawn())

    def _drawn(self) -> Any:
        said = html.escape("\n".join(self._messages))
        bar = "" if self._share is None else f'<progress value="{self._share:.4f}" max="1"></progress> '
        done = "" if self._share is None else f"{math.floor(100 * self._share)}%  "
        line = f"{bar}<code>{html.escape(done + self._line)}</code>" if self._line else ""
        return self._make_html((f"<pre>{said}</pre>" if said else "") + line)


def show_progress(enabled: bool, stream: TextIO | None = None, final: bool = False) -> Ticker:
    """The kind of progress that suits where it is shown.

    Args:
        enabled: show nothing if false.
        stream: standard error if None.
        final: whether the last line is kept, and a bar drawn (a training), or not (a quick computation).
    """
    if not enabled:
        return Ticker()
    stream = sys.stderr if stream is None else stream
    if type(stream).__module__.startswith("ipykernel."):  # a notebook's
        from IPython.display import HTML, display

        return Notebook(display, HTML, final)
    if not stream.isatty():
        return Lines(stream, final=final)
    from rich.console import Console

    return Live(Console(file=stream), final)


def clock(seconds: float) -> str:
    """A duration for people.

    >>> clock(75), clock(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
