"""Several trainings at a time, each in a process of its own.

Ten seeds of a small network do not fill a GPU: two or three trainings side by side finish sooner than one after
another. On a CPU they only share its cores.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from capo.errors import CapoError
from capo.experiments.common import Say
from capo.files import prepare_folder

SHOW_EVERY = 30.0  # seconds between two reports on all of them


class Training(Protocol):
    """What can run in a process of its own; it has to survive pickling."""

    @property
    def out(self) -> Path: ...
    @property
    def label(self) -> str: ...
    def finish(self, say: Say, progress: bool) -> None: ...


class Running:
    """One training in its process; what it prints goes to a log file."""

    def __init__(self, job: Training) -> None:
        self.job, self.began = job, time.monotonic()
        self.log = prepare_folder(job.out / "logs") / f"{job.label}.log"
        self._earlier = self.log.stat().st_size if self.log.exists() else 0
        share_device()
        spawn = multiprocessing.get_context("spawn")
        self.process = spawn.Process(target=_work, args=(job, self.log), daemon=True)
        self.process.start()

    def last_line(self) -> str:
        """The newest line of its log since it started."""
        text = self.log.read_bytes()[self._earlier :].decode(errors="replace") if self.log.exists() else ""
        lines = text.replace("\r", "\n").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing logged yet")


def finish_all(jobs: Sequence[Training], workers: int, say: Say) -> None:
    """Finish all jobs, ``workers`` at a time, in their order.

    A job that fails does not stop the others. After SIGINT, SIGTERM or SIGHUP all of them stop at their next log
    point; they do the same if this process ends.

    Raises:
        CapoError: at the end, if some failed.
        KeyboardInterrupt: after one of those signals.
    """
    waiting, failed = deque(jobs), []
    running: list[Running] = []
    shown = time.monotonic()
    before = _interrupt_on_signals()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(Running(waiting.popleft()))
                say(f"{running[-1].job.label}: started, log in {running[-1].log}")
            wait([one.process.sentinel for one in running], timeout=SHOW_EVERY)
            for one in [one for one in running if one.process.exitcode is not None]:
                running.remove(one)
                code = one.process.exitcode
                ended = "finished" if code == 0 else f"FAILED (exit status {code})"
                seconds, left = time.monotonic() - one.began, len(waiting) + len(running)
                say(f"{one.job.label}: {ended} after {seconds:.0f} s; {left} left")
                if code != 0:
                    say(f"{one.job.label}: {one.last_line()}")
                    failed.append(one)
            if time.monotonic() - shown >= SHOW_EVERY:
                shown = time.monotonic()
                for one in running:
                    say(f"{one.job.label}: {one.last_line()}")
    except BaseException:  # whatever happened, nobody would be left to watch them
        _stop(running)
        raise
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if failed:
        logs = ", ".join(str(one.log) for one in failed)
        raise CapoError(f"{len(failed)} of {len(jobs)} trainings failed; see {logs}")


def share_device() -> None:
    """Let later processes, and this one if it has not used a GPU yet, take GPU memory as they need it.

    Otherwise every program would take three quarters of the memory for itself.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _interrupt_on_signals() -> dict[int, Any]:
    """Make SIGTERM and SIGHUP a KeyboardInterrupt; returns the handlers before, none outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores SIGHUP
    return {number: signal.signal(number, signal.default_int_handler) for number in heard}


def _work(job: Training, log: Path) -> None:
    """Run one job; this is what a process does."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C goes to the parent, which passes it on
    # A script's `capo ... &` ignores SIGINT, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_stop_without_parent, daemon=True).start()
    with log.open("a") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    try:
        job.finish(lambda text: print(text, file=sys.stderr, flush=True), progress=True)
    except CapoError as error:
        print(f"capo: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _stop_without_parent() -> None:
    """Stop this process cleanly once its parent is gone, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)


def _stop(running: Sequence[Running]) -> None:
    """Ask all of them to stop at their next log point, and wait; a second interrupt stops them immediately."""
    for last in (False, True):
        for one in running:
            if one.process.pid is not None and one.process.exitcode is None:
                os.kill(one.process.pid, signal.SIGINT)
        try:
            for one in running:
                one.process.join()
            return
        except KeyboardInterrupt:
            if last:
                raise
