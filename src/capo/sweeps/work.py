"""Pieces of work, and one attempt at one: what all engines share."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from capo.errors import CapoError
from capo.files import disk_errors
from capo.runs.lock import Lock

LOG = "log.txt"  # in a task's folder: what it printed
MAX_LOSSES = 4  # in a row, without a new checkpoint between them: then the task itself is to blame
WAIT_FOR_LOCK = 120.0  # seconds that a new attempt waits for a lost one to let go of the folder


class Task(Protocol):
    """What can be run by an engine; picklable, of a class that other processes can import."""

    def run(self, folder: Path) -> None:
        """Do the work, or what is left of it, in ``folder``; an exception means that it failed."""


@dataclass(frozen=True)
class Work:
    """A task with its place.

    Attributes:
        name: tells it from the others, in messages and tables.
        folder: where its files are, on the machine that starts it.
        task: what to run.
        cpus, gpus: what it takes of a Ray cluster; fractions share a device.
    """

    name: str
    folder: Path
    task: Task
    cpus: float = 1.0
    gpus: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """How a piece of work ended: ``error`` is empty if it succeeded."""

    name: str
    error: str = ""
    where: str = ""
    attempts: int = 1
    seconds: float = 0.0


class Watcher:
    """Is told what happens; this one ignores it, :class:`capo.sweeps.board.Board` shows it."""

    def started(self, name: str, where: str) -> None:
        """A worker began with it (again, if it was lost before)."""

    def lost(self, name: str, why: str) -> None:
        """Its worker is gone; it will be started again."""

    def ended(self, outcome: Outcome) -> None:
        """It succeeded or failed."""

    def tick(self) -> None:
        """Called about once a second."""


# --- one attempt ------------------------------------------------------------------------------------------------


def attempt(task: Task, folder: Path, log: bool = True) -> str:
    """Run a task in its folder; returns the error, or nothing.

    Args:
        task: what to run.
        folder: made if it is not there.
        log: whether what it prints goes to log.txt in the folder.

    Raises:
        KeyboardInterrupt: if it was stopped.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _wait_until_free(folder)
    with contextlib.ExitStack() as stack:
        if log:
            file = stack.enter_context((folder / LOG).open("a", buffering=1))
            stack.enter_context(contextlib.redirect_stdout(file))
            stack.enter_context(contextlib.redirect_stderr(file))
            print(f"-- {time.strftime('%Y-%m-%d %H:%M:%S')} on {here()}")
        try:
            task.run(folder)
        except CapoError as error:
            print(f"capo: error: {error}", file=sys.stderr)
            return str(error)
        except Exception as error:  # whatever a user's environment raises is this task's affair
            traceback.print_exc()
            return f"{type(error).__name__}: {error}"
    return ""


def here() -> str:
    """This machine and process, for tables: ``node7/12345``."""
    return f"{socket.gethostname()}/{os.getpid()}"


def _wait_until_free(folder: Path) -> None:
    """Wait for a lost attempt, whose process may end a moment after its machine was given up."""
    until = time.monotonic() + WAIT_FOR_LOCK
    while True:
        try:
            Lock(folder).release()
            return
        except CapoError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def newest_checkpoint(folder: Path) -> str:
    """The name of the newest checkpoint, empty if there is none: whether a lost attempt got anywhere."""
    return max((path.name for path in folder.glob("checkpoints/checkpoint-*")), default="")


class Losses:
    """Counts how often a piece of work was lost without getting anywhere."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int]] = {}

    def give_up(self, work: Work, why: str) -> str:
        """The error if it has been lost too often without a new checkpoint; empty to try again."""
        newest = newest_checkpoint(work.folder)
        before, count = self._seen.get(work.name, ("", 0))
        count = count + 1 if newest == before else 1
        self._seen[work.name] = (newest, count)
        if count < MAX_LOSSES:
            return ""
        return f"its worker was lost {count} times without making progress, most recently because {why}"


def share_device() -> None:
    """Let processes share a GPU: each takes memory as it needs it, not three quarters of it at once."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def keep_programs(folder: str | None = None) -> None:
    """Keep compiled programs for the later tasks of this process: those that differ in seeds alone compile once.

    A cache of the user's own (``JAX_COMPILATION_CACHE_DIR``) is left as it is.

    Args:
        folder: for them, to share it with other processes; a temporary one of this process if None.
    """
    import jax

    config: Any = jax.config
    if config.jax_compilation_cache_dir:
        return
    if folder is None:
        folder = tempfile.mkdtemp(prefix="capo-programs-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config.update("jax_compilation_cache_dir", folder)
    config.update("jax_persistent_cache_min_compile_time_secs", 0)
    config.update("jax_persistent_cache_min_entry_size_bytes", 0)
