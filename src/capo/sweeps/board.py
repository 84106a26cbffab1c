"""What a sweep is doing: a live table on a terminal, lines in a log, and status.json for other terminals."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from capo.files import DiskError, write_json
from capo.progress import clock
from capo.sweeps.folder import Progress, progress
from capo.sweeps.work import LOG, Outcome, Watcher, Work

if TYPE_CHECKING:
    from rich.console import Group

LINE_EVERY = 30.0  # seconds between two lines about everything, in a log
STATUS_EVERY = 2.0  # seconds between two writings of status.json
MOST_ROWS = 20  # running jobs that the live table shows

Entry = dict[str, Any]


@dataclass
class Seen:
    """What is known about a piece of work."""

    state: str = "waiting"  # then running, done or failed
    where: str = ""
    losses: int = 0
    error: str = ""


class Board(Watcher):
    """Shows what happens.

    Args:
        work: all of it.
        titles: of each, by name; the name itself where there is none.
        frames: of each over all seeds, by name, if known: for the time left.
        finished: names that were done before.
        stream: standard error if None.
        status: the file for other terminals, if there is to be one.
        enabled: whether anything is shown.
    """

    def __init__(
        self,
        work: Sequence[Work],
        *,
        titles: Mapping[str, str] | None = None,
        frames: Mapping[str, int] | None = None,
        finished: int = 0,
        stream: TextIO | None = None,
        status: Path | None = None,
        enabled: bool = True,
    ) -> None:
        self._work = {one.name: one for one in work}
        self._titles, self._frames = titles or {}, frames or {}
        self._finished, self._status = finished, status
        self._seen = {one.name: Seen() for one in work}
        self._stream = sys.stderr if stream is None else stream
        self._enabled = enabled
        self._began = self._lined = time.monotonic()
        self._written = -STATUS_EVERY
        self._at_start = sum(progress(one.folder).frames for one in work)
        self._lock = threading.Lock()
        self._live: Any = None
        if enabled and self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._stream), auto_refresh=False)
            self._live.start()

    # What engines tell ------------------------------------------------------------------------------------------

    def started(self, name: str, where: str) -> None:
        self._seen[name].state, self._seen[name].where = "running", where
        if self._live is None:
            again = "continues" if self._seen[name].losses else "started"
            self._say(f"{self._title(name)}: {again} on {where}")

    def lost(self, name: str, why: str) -> None:
        seen = self._seen[name]
        seen.losses, seen.state = seen.losses + 1, "waiting"
        self._say(f"{self._title(name)}: lost its worker ({why}); it will continue from its newest checkpoint")

    def ended(self, outcome: Outcome) -> None:
        seen = self._seen[outcome.name]
        seen.state, seen.error, seen.where = "failed" if outcome.error else "done", outcome.error, outcome.where
        if outcome.error:
            log = self._work[outcome.name].folder / LOG
            self._say(f"{self._title(outcome.name)}: FAILED: {outcome.error} (log: {log})")
        elif self._live is None:
            left = sum(one.state in ("waiting", "running") for one in self._seen.values())
            self._say(f"{self._title(outcome.name)}: done after {outcome.seconds:.0f} s; {left} left")
        self.tick(ended=True)

    def tick(self, ended: bool = False) -> None:
        now = time.monotonic()
        with self._lock:
            if self._live is not None:
                self._live.update(table(self._entries(), self._summary()), refresh=True)
            elif now - self._lined >= LINE_EVERY:
                self._lined = now
                self._say(self._summary())
                for entry in self._entries()[:MOST_ROWS]:
                    self._say(f"  {line(entry)}")
            if self._status is not None and (now - self._written >= STATUS_EVERY or ended):
                self._written = now
                self._write("running")

    def close(self, state: str = "finished") -> None:
        """The end: ``finished`` or ``stopped``."""
        if self._live is not None:
            self._live.update(table(self._entries(), self._summary()), refresh=True)
            self._live.stop()
        if self._status is not None:
            self._write(state)

    # What is shown ----------------------------------------------------------------------------------------------

    def _title(self, name: str) -> str:
        return self._titles.get(name, name)

    def _say(self, text: str) -> None:
        if not self._enabled:
            return
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            print(f"capo: {text}", file=self._stream, flush=True)

    def _entries(self) -> list[Entry]:
        """What is running, in the order it was asked for."""
        found = []
        for name, seen in self._seen.items():
            if seen.state == "running":
                at = progress(self._work[name].folder)
                found.append(_entry(self._title(name), name, seen, at))
        return found

    def _counts(self) -> dict[str, int]:
        states = [seen.state for seen in self._seen.values()]
        counts = {state: states.count(state) for state in ("done", "running", "waiting", "failed")}
        counts["done"] += self._finished
        return counts

    def _left(self) -> float | None:
        """Seconds left at the speed so far; None before anything is known."""
        done = {name: progress(one.folder).frames for name, one in self._work.items() if self._frames.get(name)}
        behind = sum(done.values()) - self._at_start
        if behind <= 0:
            return None
        open_names = [name for name in done if self._seen[name].state in ("waiting", "running")]
        if not open_names:
            return None
        left = sum(max(self._frames[name] - done[name], 0) for name in open_names)
        return left * (time.monotonic() - self._began) / behind

    def _summary(self) -> str:
        counts = self._counts()
        text = ", ".join(f"{count} {state}" for state, count in counts.items() if count or state == "done")
        left = self._left()
        after = f"{clock(time.monotonic() - self._began)} so far"
        return f"{text}; {after}" + ("" if left is None else f", about {clock(left)} left")

    def _write(self, state: str) -> None:
        left = self._left()
        content = {
            "state": state,
            "by": f"{socket.gethostname()}/{os.getpid()}",
            "updated": time.time(),
            "seconds": round(time.monotonic() - self._began, 1),
            "seconds_left": None if left is None else round(left),
            "counts": self._counts(),
            "running": self._entries(),
            "failed": {name: seen.error for name, seen in self._seen.items() if seen.state == "failed"},
            "lost": {name: seen.losses for name, seen in self._seen.items() if seen.losses},
        }
        assert self._status is not None
        with suppress(DiskError):  # the jobs matter more
            write_json(self._status, content)


def _entry(title: str, name: str, seen: Seen, at: Progress) -> Entry:
    left = (at.total - at.frames) / at.speed if at.speed else None
    return {
        "name": name,
        "title": title,
        "where": seen.where,
        "losses": seen.losses,
        "frames": at.frames,
        "total": at.total,
        "frames_per_second": round(at.speed),
        "seconds_left": None if left is None else round(left),
    }


def line(entry: Entry) -> str:
    """An entry of status.json as one line."""
    return "  ".join(_cells(entry))


def _cells(entry: Entry) -> list[str]:
    left = entry["seconds_left"]
    share = f"{100 * entry['frames'] // entry['total']}%" if entry["total"] else "starting"
    speed = f"{entry['frames_per_second']:,} frames/s" if entry["frames_per_second"] else ""
    where = entry["where"] + (f" (lost {entry['losses']}x)" if entry["losses"] else "")
    return [entry["title"], where, share, speed, "" if left is None else f"{clock(left)} left"]


def table(entries: Sequence[Entry], summary: str) -> Group:
    """The live table: what is running, and everything in one line below it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if not entries:
        return Group(Text(summary))
    found = Table(box=None, pad_edge=False)
    for name in ("running", "where", "done", "speed", "left"):
        found.add_column(name, overflow="fold", justify="left" if name in ("running", "where") else "right")
    for entry in entries[:MOST_ROWS]:
        found.add_row(*(Text(cell) for cell in _cells(entry)))
    if len(entries) > MOST_ROWS:
        found.add_row(f"... and {len(entries) - MOST_ROWS} more", "", "", "", "")
    return Group(found, Text(summary))
