"""Stopping a process from outside: SIGINT, SIGTERM and SIGHUP ask for a clean end instead of killing it.

Python runs a signal's handler in the main thread, once that gets back to Python code; a compiler or an environment
may keep it for a long time. So a second thread hears of every signal the moment it arrives, and enforces the end.

A signal that is ignored when capo starts stays ignored: SIGHUP under ``nohup``, SIGINT in a shell's background.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
GRACE = 5.0  # seconds that a process has to answer before it is ended


class Interrupted(KeyboardInterrupt):
    """A signal arrived; the run ended cleanly, as a rule at its next log point."""

    def __init__(self, signum: int, frames: int, checkpoint: Path | None) -> None:
        self.signum, self.frames, self.checkpoint = signum, frames, checkpoint
        where = f", checkpoint {checkpoint}" if checkpoint else ""
        super().__init__(f"stopped by {signal.Signals(signum).name} at frame {frames:,}{where}")


class Unanswered(KeyboardInterrupt):
    """A signal asked for an end, and no log point came: raised wherever the main thread is."""


class _Hearing:
    """While entered, signals call ``handle`` in the main thread, and ``heard`` in another one at once.

    Outside the main thread signals can't be caught, and nothing changes.
    """

    def __init__(self, handle: Callable[[int, FrameType | None], None], heard: Callable[[int], None]) -> None:
        self._handle, self._heard = handle, heard
        self._old: dict[int, Any] = {}
        self._bell: socket.socket | None = None  # what the system writes the signals' numbers to
        self._wakeup = -1

    def __enter__(self) -> _Hearing:
        if threading.current_thread() is not threading.main_thread():
            return self
        for signum in SIGNALS:
            if signal.getsignal(signum) not in (signal.SIG_IGN, None):
                self._old[signum] = signal.signal(signum, self._handle)
        self._bell, ear = socket.socketpair()
        self._bell.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(ear,), daemon=True).start()
        _ENTERED.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bell is not None:
            _ENTERED.remove(self)
            self.restore()
            with contextlib.suppress(OSError):
                self._bell.shutdown(socket.SHUT_RDWR)  # the thread ends, also if a forked child has a copy
            self._bell.close()
            self._bell = None

    def restore(self) -> None:
        """Put back what there was."""
        signal.set_wakeup_fd(self._wakeup)
        for signum, handler in self._old.items():
            signal.signal(signum, handler)
        self._old = {}

    def _listen(self, ear: socket.socket) -> None:
        with ear, contextlib.suppress(OSError):
            while numbers := ear.recv(64):
                for signum in numbers:
                    if signum in self._old:
                        self._heard(signum)


_ENTERED: list[_Hearing] = []


def _forget_in_a_fork() -> None:
    """A forked child, such as a Gymnasium environment's, can be stopped like any process."""
    for hearing in reversed(_ENTERED):
        with contextlib.suppress(ValueError):
            hearing.restore()
    _ENTERED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_a_fork)


class Interrupts:
    """While entered, the first signal only sets ``signum``: whoever trains looks at it, and ends.

    A second SIGINT raises KeyboardInterrupt immediately. If SIGTERM or SIGHUP isn't answered within :data:`GRACE`
    seconds, :class:`Unanswered` is raised in the main thread; if that is of no avail either, since the main thread
    is not in Python code, the process ends. A checkpoint is whole whenever that happens.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._hearing = _Hearing(self._handle, self._heard)
        self._forced = False
        self._count = 0
        self._answered = threading.Event()

    def __enter__(self) -> Interrupts:
        self._answered.clear()
        self._hearing.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.answer()
        self._hearing.__exit__()

    def answer(self) -> None:
        """The signal was understood: the end is not enforced any more."""
        self._answered.set()

    def _handle(self, signum: int, _: FrameType | None) -> None:
        if self._forced:
            raise Unanswered
        if self.signum == signal.SIGINT and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum
        more = "press Ctrl-C again to stop immediately"
        if signum != signal.SIGINT:
            more = f"{signal.Signals(signum).name} was received"
        say(f"\ncapo: stopping at the next log point; {more}")

    def _heard(self, signum: int) -> None:
        self._count += signum == signal.SIGINT
        if signum == signal.SIGINT and self._count < 2:
            return  # whoever is there can press Ctrl-C again
        if self._answered.wait(GRACE):
            return
        if signum != signal.SIGINT:
            self._forced = True
            main = threading.main_thread().ident
            if main is not None and hasattr(signal, "pthread_kill"):
                signal.pthread_kill(main, signum)  # wakes it from a sleep or a wait
        if not self._answered.wait(GRACE):
            _end(signum)


class EndsAtOnce(_Hearing):
    """While entered, a signal ends the process with one line, also while something is imported or compiled."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None, _end)


def _end(signum: int) -> None:
    name = signal.Signals(signum).name
    say("\ncapo: interrupted" if signum == signal.SIGINT else f"\ncapo: stopped by {name}")
    os._exit(128 + signum)


def say(text: str) -> None:
    """A line on standard error, in a handler too; there may be nobody to read it any more."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())
