"""Sweeps: a specification is planned, checked as a whole, run by an engine, and ends as a table."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capo.checks import as_path, whole
from capo.errors import CapoError
from capo.files import write_text
from capo.runs.lock import Lock
from capo.sweeps import plan as planning
from capo.sweeps.board import Board
from capo.sweeps.engine import choose, run_all
from capo.sweeps.folder import FAILED, STATUS, Row, SweepFolder
from capo.sweeps.jobs import titles
from capo.sweeps.local import gpus
from capo.sweeps.plan import Plan
from capo.sweeps.spec import Spec, read_text
from capo.sweeps.work import Outcome, Watcher, Work, share_device


@dataclass(frozen=True)
class SweepResult:
    """What a sweep made.

    Attributes:
        path: its folder.
        rows: those of table.csv, one per job: settings, state, return.
    """

    path: Path
    rows: list[Row]

    @property
    def failed(self) -> dict[str, str]:
        """Why jobs failed, by id."""
        return {row["id"]: row["error"] for row in self.rows if row["state"] == "failed" and row["planned"]}

    def __repr__(self) -> str:
        done = sum(row["state"] == "done" for row in self.rows)
        return f"<SweepResult in {self.path}: {done} of {len(self.rows)} jobs done>"


def sweep(
    spec: str | Path | Mapping[str, Any] | None = None,
    *,
    out: str | Path,
    on: str = "local",
    workers: int | None = None,
    shared_disk: bool | None = None,
    progress: bool = True,
    trust: bool = False,
    **entries: Any,
) -> SweepResult:
    """Train every combination of environments, algorithms, presets, settings and seeds; finish what is missing.

    Repeating the call trains only what is missing. A changed specification adds jobs to the existing ones.

    Args:
        spec: a TOML file, or a dictionary with its entries. None: the entries are given as arguments.
        out: the sweep's folder.
        on: ``local`` (processes on this machine), ``auto`` (the Ray cluster that this machine belongs to),
            ``ray://HOST:PORT`` or ``HOST:PORT``.
        workers: maximum number of jobs at a time. None: one per GPU of this machine, or one; on Ray as many as
            fit.
        shared_disk: whether Ray's workers see ``out`` under the same name; None to detect it.
        progress: show the plan and what is running, on standard error.
        trust: whether a file may name environments as ``module:id``, which imports the module.
        **entries: of the specification, see :class:`capo.sweeps.spec.Spec`: ``environments``, ``frames``,
            ``algorithms``, ``presets``, ``settings``, ``zipped``, ``seeds``, ``seeds_per_job``, ...

    Returns:
        One row per job. Jobs that failed by themselves are in ``result.failed``.

    Raises:
        CapoError: if anything about the plan is wrong; nothing has been started then.
        KeyboardInterrupt: after SIGINT or SIGTERM; repeat the call to continue.
    """
    text = _text(spec, entries)
    planned = make_plan(text, out, on, workers, trust or spec is None or isinstance(spec, Mapping))
    if progress:
        print(planned.describe(), file=sys.stderr, flush=True)
    return run_plan(planned, text, on, workers, shared_disk, progress)


def _text(spec: str | Path | Mapping[str, Any] | None, entries: Mapping[str, Any]) -> str:
    """The specification as the text of sweep.toml."""
    if spec is None or isinstance(spec, Mapping):
        return Spec.from_dict({**(spec or {}), **entries}).to_toml()
    if entries:
        raise CapoError(f"{next(iter(entries))} is given alongside the file {spec}: write it into the file")
    return read_text(as_path("sweep", spec))


def make_plan(text: str, out: str | Path, on: str, workers: int | None, trust: bool = False) -> Plan:
    """Check everything; nothing is written or started.

    Args:
        text: of the specification.
        out, on, workers, trust: as of :func:`sweep`.
    """
    folder = SweepFolder(as_path("out", out))
    if folder.path.exists() and not folder.path.is_dir():
        raise CapoError(f"{folder.path} is a file; give a folder for the sweep")
    at_a_time = max(1, len(gpus())) if workers is None else whole("workers", workers)
    choose(on, workers)  # refuses an engine that does not exist
    share_device()  # before jax is used here: the jobs need its memory
    return planning.make(Spec.parse(text, "the sweep"), folder, on, at_a_time, trust)


def run_plan(
    plan: Plan, text: str, on: str, workers: int | None, shared_disk: bool | None, progress: bool
) -> SweepResult:
    """Run what is missing, and write the table."""
    folder = plan.folder
    folder.prepare(text)
    lock = Lock(folder.path)  # one process at a time
    try:
        missing = plan.missing
        work = [Work(job.id, folder.job(job.id), job, plan.spec.cpus, plan.spec.gpus) for job in missing]
        for job in missing:
            with suppress(FileNotFoundError):
                (folder.job(job.id) / FAILED).unlink()
        board = Board(
            work,
            titles=titles(missing),
            frames={job.id: job.whole_frames * len(job.seeds) for job in missing},
            finished=len(plan.done),
            status=folder.path / STATUS,
            enabled=progress,
        )
        state = "stopped"
        try:
            run_all(work, on, workers, _Failures(board, folder), shared_disk)
            state = "finished"
        finally:
            board.close(state)
            rows = folder.write_table(plan.jobs)
        return SweepResult(folder.path, rows)
    finally:
        lock.release()


class _Failures(Watcher):
    """Writes down why jobs failed, beside a board."""

    def __init__(self, board: Board, folder: SweepFolder) -> None:
        self._board, self._folder = board, folder
        self.started, self.lost, self.tick = board.started, board.lost, board.tick  # type: ignore[method-assign]

    def ended(self, outcome: Outcome) -> None:
        if outcome.error:
            at = self._folder.job(outcome.name)
            at.mkdir(parents=True, exist_ok=True)
            write_text(at / FAILED, outcome.error + "\n")
        self._board.ended(outcome)
