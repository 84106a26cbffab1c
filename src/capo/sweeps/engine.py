"""Engines: run pieces of work, some at a time, here or on a Ray cluster, and survive the loss of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from capo.errors import CapoError
from capo.sweeps import local
from capo.sweeps.work import Outcome, Watcher, Work


class Engine(Protocol):
    """Runs pieces of work, some at a time, and tells the watcher about each."""

    def run(self, work: Sequence[Work], watcher: Watcher) -> None: ...


def run_all(
    work: Sequence[Work],
    on: str = "local",
    workers: int | None = None,
    watcher: Watcher | None = None,
    shared_disk: bool | None = None,
    quiet: bool = True,
) -> dict[str, Outcome]:
    """Run everything; a piece that fails does not stop the others.

    Args:
        work: with different names and folders.
        on: ``local``, ``inline`` (one after another in this process), or a Ray cluster: ``auto`` (the one that
            this machine belongs to), ``ray://HOST:PORT`` (from outside) or ``HOST:PORT``.
        workers: the most pieces of work at a time. None: one per GPU, or one; on Ray as many as fit.
        watcher: is told what happens.
        shared_disk: whether Ray's workers see the folders under the same names; None to find out.
        quiet: if ``inline``, whether what the work prints goes to its log.

    Returns:
        The outcomes by name.

    Raises:
        CapoError: if there is no such engine or cluster.
        KeyboardInterrupt: after SIGINT, SIGTERM or SIGHUP; everything can be continued.
    """
    engine = local.InProcess(quiet) if on == "inline" else choose(on, workers, shared_disk)
    collected = _Collector(watcher or Watcher())
    if len({one.name for one in work}) < len(work):
        raise CapoError("two pieces of work have the same name")
    if work:
        engine.run(work, collected)
    return {one.name: collected.outcomes[one.name] for one in work}


def choose(on: str, workers: int | None = None, shared_disk: bool | None = None) -> Engine:
    """The engine of a name; see :func:`run_all`."""
    if on == "local":
        return local.engine(workers)
    if on == "auto" or on.startswith("ray://") or on.rpartition(":")[2].isdigit():
        from capo.sweeps import ray

        return ray.RayEngine(on, workers, shared_disk)
    raise CapoError(f"on={on!r} must be local, auto (this machine's Ray cluster), ray://HOST:PORT or HOST:PORT")


class _Collector(Watcher):
    """Passes everything on and keeps the outcomes."""

    def __init__(self, inner: Watcher) -> None:
        self._inner = inner
        self.outcomes: dict[str, Outcome] = {}
        self.started, self.lost, self.tick = inner.started, inner.lost, inner.tick  # type: ignore[method-assign]

    def ended(self, outcome: Outcome) -> None:
        self.outcomes[outcome.name] = outcome
        self._inner.ended(outcome)
