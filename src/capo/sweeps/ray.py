"""Work on a Ray cluster: a Ray task per piece, continued elsewhere when a worker or a machine is lost.

The folder of the process that starts the work is the truth. Where workers see that folder under the same name (a
shared disk), they write there. Otherwise each works in a temporary copy, and its files come back: checkpoints and
logs through a *mailbox* actor as they are written, everything once more as the result of the Ray task. An update
that is lost with the mailbox's machine costs nothing but an older checkpoint, should the worker be lost too.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capo.checks import whole
from capo.errors import CapoError
from capo.files import write_text
from capo.provenance import versions
from capo.sweeps import mirror
from capo.sweeps.local import interrupts
from capo.sweeps.mirror import Mirror, Update
from capo.sweeps.work import Losses, Outcome, Task, Watcher, Work, attempt, here, keep_programs, share_device

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as missing:
    raise CapoError(
        f"a Ray cluster needs the extra 'cluster': pip install 'capo-rl[cluster]' ({missing})"
    ) from None

TICK = 0.5  # seconds between two looks at the mailbox
LOOK_AT_CLUSTER = 5.0  # seconds between two counts of what fits
AHEAD = 4  # tasks submitted beyond what fits: enough to keep workers busy, few enough for a driver
FORGET_PROGRAMS = 7 * 86_400.0  # seconds after which the compiled programs of a sweep are removed from a machine
STOPPING = 20.0  # seconds that tasks have for a last checkpoint when the driver is interrupted
TOKEN = ".shared-disk"  # in a folder: tells a worker whether it sees the driver's


@dataclass(frozen=True)
class Order:
    """What a worker is told.

    Attributes:
        number: of the attempt; later ones replace it.
        files: of the folder so far, where workers may not see it.
        token: the content of the folder's token, if the driver wants to know whether workers see it.
        sweep: a name that the orders of one driver share.
        versions: of the driver's packages.
        path: where the driver finds modules; a worker looks there too, if it has such folders.
    """

    name: str
    number: int
    task: Task
    folder: Path
    files: Update | None
    token: str
    sweep: str
    versions: dict[str, str]
    path: list[str]


class Mailbox:
    """An actor that holds what workers send until the driver takes it; only the newest of each file."""

    def __init__(self) -> None:
        self._messages: dict[tuple[str, int], tuple[str, Update]] = {}

    def post(self, name: str, number: int, where: str, update: Update) -> None:
        """From the attempt ``number`` at a piece of work."""
        key = (name, number)
        if key in self._messages:
            self._messages[key][1].merge(update)
        else:
            self._messages[key] = (where, update)

    def take(self) -> dict[tuple[str, int], tuple[str, Update]]:
        """Everything that came since the last call."""
        taken, self._messages = self._messages, {}
        return taken


# --- on the worker ----------------------------------------------------------------------------------------------


def carry_out(order: Order, mailbox: Any) -> tuple[str, Update | None]:
    """What a Ray task does: one attempt; returns the error, and all files if the disk is not shared."""
    wrong = _other_versions(order.versions)
    if wrong:
        return wrong, None
    sys.path += [one for one in order.path if one not in sys.path and Path(one).is_dir()]
    share_device()
    keep_programs(_programs(order.sweep))
    mailbox.post.remote(order.name, order.number, here(), Update())
    if order.token and _reads(order.folder / TOKEN) == order.token:
        return attempt(order.task, order.folder), None
    if order.files is None:
        return f"{here()} does not see {order.folder}: shared_disk is true, but the disk is not shared", None
    scratch = Path(tempfile.mkdtemp(prefix="capo-job-"))
    try:
        order.files.write(scratch)
        with Mirror(scratch, _Sender(order, mailbox)):
            try:
                error = attempt(order.task, scratch)
            except KeyboardInterrupt:  # the driver is stopping: the last checkpoint
                last = mirror.read(scratch)
                ray.get(mailbox.post.remote(order.name, order.number, here(), last), timeout=STOPPING)
                raise
        return error.replace(str(scratch), str(order.folder)), mirror.read(scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class _Sender:
    """Posts updates, one at a time: a slow mailbox gets fewer, larger ones."""

    def __init__(self, order: Order, mailbox: Any) -> None:
        self._order, self._mailbox = order, mailbox
        self._last: Any = None

    def __call__(self, update: Update) -> bool:
        if self._last is not None and not ray.wait([self._last], timeout=0)[0]:
            return False
        self._last = self._mailbox.post.remote(self._order.name, self._order.number, here(), update)
        return True


def _programs(sweep: str) -> str:
    """The folder for compiled programs that the workers of a machine share; Ray uses a GPU's worker only once."""
    top = Path(tempfile.gettempdir())
    for old in top.glob("capo-programs-*"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > FORGET_PROGRAMS:
                shutil.rmtree(old, ignore_errors=True)
    folder = top / f"capo-programs-{sweep}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return str(folder)


def _reads(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _other_versions(theirs: dict[str, str]) -> str:
    """Why a result would not be the driver's: versions that differ, in words."""
    ours = versions()
    names = ("capo-rl", "jax", "jaxlib", "numpy")
    differ = [
        f"{name} {ours.get(name)} instead of {theirs.get(name)}"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]
    return (
        f"{here()} has different versions ({', '.join(differ)}): install the same on every machine"
        if differ
        else ""
    )


# --- on the driver ----------------------------------------------------------------------------------------------


@dataclass
class Submitted:
    """A piece of work that Ray has."""

    work: Work
    number: int
    began: float
    where: str = ""


class RayEngine:
    """A Ray cluster.

    Args:
        address: ``auto``, ``ray://HOST:PORT`` or ``HOST:PORT``.
        workers: the most tasks at a time; None for as many as fit.
        shared_disk: whether workers see the folders under the same names; None: each worker finds out.
    """

    def __init__(self, address: str, workers: int | None = None, shared_disk: bool | None = None) -> None:
        self.address, self.shared_disk = address, shared_disk
        self.workers = None if workers is None else whole("workers", workers)

    def run(self, work: Sequence[Work], watcher: Watcher) -> None:
        with self._connected(), interrupts():
            self._watcher, self._losses = watcher, Losses()
            self._versions, self._token = versions(), secrets.token_hex(16)
            self._waiting = deque(Submitted(one, 0, 0.0) for one in work)
            self._submitted: dict[Any, Submitted] = {}
            self._room, self._counted = 0, -math.inf
            # Wherever it runs, it takes no processor and comes back if its machine is lost.
            self._mailbox = ray.remote(Mailbox).options(num_cpus=0, max_restarts=-1).remote()
            self._taking: Any = None
            try:
                while self._waiting or self._submitted:
                    self._submit()
                    ready, _ = ray.wait(list(self._submitted), timeout=TICK)
                    self._take()
                    for ref in ready:
                        self._finish(ref)
                    watcher.tick()
            except KeyboardInterrupt:
                self._stop()
                raise
            finally:
                for one in work:
                    (one.folder / TOKEN).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """A connection to the cluster; one that the user has is kept."""
        if ray.is_initialized():
            yield
            return
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            hint = "`ray start --head` starts one on this machine" if self.address == "auto" else "is it running?"
            raise CapoError(f"on={self.address!r}: there is no Ray cluster ({error}); {hint}") from None
        try:
            yield
        finally:
            ray.shutdown()

    # Submitting -------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        """Hand over what fits and a little more: the rest waits here, where it costs nothing."""
        while self._waiting and len(self._submitted) < self._limit():
            one = self._waiting.popleft()
            one.number, one.began, one.where = one.number + 1, time.monotonic(), ""
            folder = one.work.folder.resolve()
            folder.mkdir(parents=True, exist_ok=True)
            token = ""
            if self.shared_disk is not False:
                token = self._token
                write_text(folder / TOKEN, token)
            files = None if self.shared_disk else mirror.read(folder)
            path = [str(Path(entry).resolve()) for entry in sys.path]
            told = (folder, files, token, self._token, self._versions, path)
            order = Order(one.work.name, one.number, one.work.task, *told)
            task = ray.remote(carry_out).options(
                num_cpus=one.work.cpus, num_gpus=one.work.gpus, max_retries=0, name=one.work.name
            )
            self._submitted[task.remote(order, self._mailbox)] = one

    def _limit(self) -> int:
        if self.workers is not None:
            return self.workers
        if time.monotonic() - self._counted > LOOK_AT_CLUSTER:  # machines come and go
            self._counted = time.monotonic()
            self._room = self._fits() + AHEAD
        return self._room

    def _fits(self) -> int:
        """How many of the smallest pieces of work the cluster has room for."""
        there = ray.cluster_resources()
        every = [one.work for one in (*self._waiting, *self._submitted.values())]
        bounds = [
            there.get(name, 0.0) / least
            for name, least in (("CPU", min(one.cpus for one in every)), ("GPU", min(one.gpus for one in every)))
            if least
        ]
        return int(min(bounds, default=len(every)))

    # What comes back --------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """Write what the mailbox has; its loss is no misfortune."""
        if self._taking is None:
            self._taking = self._mailbox.take.remote()
            return
        if not ray.wait([self._taking], timeout=0)[0]:
            return
        taken, self._taking = self._taking, None
        with contextlib.suppress(RayError):
            now = {(one.work.name, one.number): one for one in self._submitted.values()}
            for key, (where, update) in ray.get(taken).items():
                one = now.get(key)
                if one is None:
                    continue  # an earlier attempt, or one that has ended since
                if not one.where:
                    one.where, one.began = where, time.monotonic()
                    self._watcher.started(one.work.name, where)
                update.write(one.work.folder)

    def _finish(self, ref: Any) -> None:
        """A task ended: well, by itself, or with its machine."""
        one = self._submitted.pop(ref)
        try:
            error, update = ray.get(ref)
        except RayTaskError as failure:  # outside the task proper: capo is not installed there, say
            self._end(one, f"the worker raised {str(failure).strip().splitlines()[-1]}")
            return
        except RayError as loss:
            why = (
                f"{type(loss).__name__}: {str(loss).strip().partition('.')[0]}"  # the rest is about Ray's own logs
            )
            given_up = self._losses.give_up(one.work, why)
            if given_up:
                self._end(one, given_up)
            else:
                self._watcher.lost(one.work.name, why)
                self._waiting.appendleft(one)
            return
        if update is not None:
            update.write(one.work.folder)
        self._end(one, error)

    def _end(self, one: Submitted, error: str) -> None:
        seconds = time.monotonic() - one.began
        self._watcher.ended(Outcome(one.work.name, error, one.where, one.number, seconds))

    def _stop(self) -> None:
        """Ask all tasks for a last checkpoint, and wait a little for it; a second interrupt does not wait."""
        for ref in self._submitted:
            ray.cancel(ref, force=False)
        until = time.monotonic() + STOPPING
        left = list(self._submitted)
        while left and time.monotonic() < until:
            _, left = ray.wait(left, num_returns=len(left), timeout=TICK)
            self._take()
        for _ in range(2):  # what the last ones posted: one call may be under way
            time.sleep(TICK)
            self._take()
