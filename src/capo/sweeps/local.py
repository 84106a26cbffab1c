"""Work on this machine: in processes of their own, some at a time, or one after another in this very process.

A worker process runs one piece of work after another. What it prints goes to the log in each piece's folder. If it
dies, its work is started again in a new one. Workers end with the process that started them, however that ended.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from capo.checks import whole
from capo.sweeps.work import (
    Losses,
    Outcome,
    Watcher,
    Work,
    attempt,
    here,
    keep_programs,
    share_device,
)

TICK = 0.5  # seconds between two looks at what happens


def engine(workers: int | None = None) -> Pool:
    """Worker processes: as many as given, or one per GPU, or one."""
    return Pool(max(1, len(gpus())) if workers is None else whole("workers", workers))


def gpus() -> list[str]:
    """The NVIDIA GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them; jax is not started."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name and name != "-1"]
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(index) for index, _ in enumerate(folder.iterdir())] if folder.is_dir() else []


class InProcess:
    """One after another in this process.

    Args:
        quiet: whether what the work prints goes to its log rather than to where this process prints.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def run(self, work: Sequence[Work], watcher: Watcher) -> None:
        for one in work:
            began = time.monotonic()
            watcher.started(one.name, here())
            error = attempt(one.task, one.folder, log=self.quiet)
            watcher.ended(Outcome(one.name, error, here(), 1, time.monotonic() - began))


@dataclass
class Running:
    """A piece of work in a worker."""

    work: Work
    attempts: int
    began: float


class Worker:
    """A process that runs one piece of work after another."""

    def __init__(self, index: int, programs: str) -> None:
        ours, theirs = Pipe()
        environment = dict(os.environ)
        devices = gpus()
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = devices[index % len(devices)]
        # Not multiprocessing's spawn: that would run the user's script again. Its own session: Ctrl-C reaches
        # this process alone, which passes it on.
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from capo.sweeps.local import serve; serve()", str(theirs.fileno()), programs],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        theirs.close()
        self.connection: Connection[Any, Any] = ours
        self.connection.send((os.getpid(), sys.path))
        self.index = index
        self.running: Running | None = None

    def begin(self, running: Running) -> bool:
        """Hand it a piece of work; whether it was still there to take it."""
        self.running = running
        try:
            self.connection.send_bytes(pickle.dumps((running.work.task, running.work.folder)))
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def end(self) -> None:
        """Let an idle worker go; a dead one is cleared away."""
        self.connection.close()
        self.process.wait()

    def interrupt(self) -> None:
        """Ask it to stop at its next log point; a second time: immediately."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGINT)


class Pool:
    """So many worker processes.

    Args:
        workers: the most pieces of work at a time; they share the GPUs evenly.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, work: Sequence[Work], watcher: Watcher) -> None:
        share_device()
        self._watcher, self._losses = watcher, Losses()
        self._waiting = deque(Running(one, 0, 0.0) for one in work)
        self._idle: list[Worker] = []
        self._busy: list[Worker] = []
        with tempfile.TemporaryDirectory(prefix="capo-programs-") as programs, interrupts():
            try:
                while self._waiting or self._busy:
                    self._start(programs)
                    ready = wait([one.connection for one in self._busy], timeout=TICK)
                    for worker in [one for one in self._busy if one.connection in ready]:
                        self._take(worker)
                    watcher.tick()
            except BaseException:  # whatever happened, nobody would be left to watch them
                stop([*self._busy, *self._idle])
                raise
            finally:
                for worker in [*self._idle, *self._busy]:
                    worker.end()

    def _start(self, programs: str) -> None:
        while self._waiting and len(self._busy) < self.workers:
            taken = {one.index for one in [*self._busy, *self._idle]}
            free = next(index for index in range(self.workers + 1) if index not in taken)
            worker = self._idle.pop() if self._idle else Worker(free, programs)
            running = self._waiting.popleft()
            running.attempts, running.began = running.attempts + 1, time.monotonic()
            self._busy.append(worker)
            self._watcher.started(running.work.name, f"{here().partition('/')[0]}/{worker.process.pid}")
            if not worker.begin(running):
                self._lost(worker)

    def _take(self, worker: Worker) -> None:
        """What a worker has to say: how its work ended, or that it is gone."""
        try:
            error = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            self._lost(worker)
            return
        running, worker.running = worker.running, None
        assert running is not None
        self._busy.remove(worker)
        self._idle.append(worker)
        self._end(worker, running, error)

    def _lost(self, worker: Worker) -> None:
        running, code = worker.running, worker.process.wait()
        assert running is not None
        self._busy.remove(worker)
        worker.end()
        why = f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"it exited with status {code}"
        error = self._losses.give_up(running.work, why)
        if error:
            self._end(worker, running, error)
        else:
            self._watcher.lost(running.work.name, why)
            self._waiting.appendleft(running)

    def _end(self, worker: Worker, running: Running, error: str) -> None:
        where = f"{here().partition('/')[0]}/{worker.process.pid}"
        seconds = time.monotonic() - running.began
        self._watcher.ended(Outcome(running.work.name, error, where, running.attempts, seconds))


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Make SIGTERM and SIGHUP a KeyboardInterrupt too, while the block runs; not outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGTERM, signal.SIGHUP]
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, signal.default_int_handler) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop(workers: Sequence[Worker]) -> None:
    """Ask all to stop at their next log point, and wait; a second interrupt stops them immediately."""
    for last in (False, True):
        for one in workers:
            one.interrupt()
        try:
            for one in workers:
                one.process.wait()
            return
        except KeyboardInterrupt:
            if last:
                raise


# --- in the worker ----------------------------------------------------------------------------------------------


def serve() -> None:
    """What a worker process does: take tasks from the connection until it closes."""
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    # A script's `capo ... &` ignores SIGINT, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        parent, path = connection.recv()
        threading.Thread(target=_stop_without, args=(parent,), daemon=True).start()
        sys.path[:] = path
        keep_programs(sys.argv[2])
        while True:
            connection.send(_run(connection.recv_bytes()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)  # the compiler's threads may still be running


def _run(message: bytes) -> str:
    try:
        task, folder = pickle.loads(message)  # from the parent: not a file
    except Exception as error:
        return f"the worker cannot load the task: {type(error).__name__}: {error}"
    return attempt(task, folder)


def _stop_without(parent: int) -> None:
    """Stop this process cleanly once its parent is gone, however that ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)
