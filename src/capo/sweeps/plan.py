"""The jobs of a sweep, checked as a whole before anything starts: settings, environments, memory, disk."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from capo import envs
from capo.envs.protocol import is_jitted
from capo.errors import CapoError
from capo.neural.algorithms import registry
from capo.neural.learners.protocol import available_memory
from capo.sweeps.folder import SweepFolder
from capo.sweeps.jobs import Job, titles, varied
from capo.sweeps.spec import Spec

SHOWN = 24  # jobs that the printed plan lists


@dataclass(frozen=True)
class Plan:
    """What a sweep is going to do.

    Attributes:
        jobs: all of them.
        done: the ids of those that are already finished.
        sizes: bytes of the state of each job, by id; jobs whose size is unknown are not in it.
    """

    spec: Spec
    folder: SweepFolder
    jobs: list[Job]
    done: frozenset[str]
    sizes: dict[str, int]

    @property
    def missing(self) -> list[Job]:
        """The jobs that are not finished."""
        return [job for job in self.jobs if job.id not in self.done]

    def describe(self) -> str:
        """The plan in words, a line per job for the first ones."""
        spec, missing = self.spec, self.missing
        frames = sum(job.whole_frames * len(job.seeds) for job in missing)
        lines = [
            f"{len(self.jobs)} jobs, {len(self.jobs) - len(missing)} already finished; "
            f"{frames:,} frames to train over all seeds"
        ]
        common = {key: value for key, value in self.jobs[0].settings.items() if key not in varied(self.jobs)}
        if common:
            lines.append("all with " + ", ".join(f"{key}={value}" for key, value in common.items()))
        names = titles(self.jobs)
        for job in self.jobs[:SHOWN]:
            state = "done   " if job.id in self.done else "to do  "
            size = f", {self.sizes[job.id] / 1e6:,.1f} MB" if job.id in self.sizes else ""
            lines.append(f"  {state} {names[job.id]}: {job.whole_frames:,} frames{size}")
        if len(self.jobs) > SHOWN:
            lines.append(f"  ... and {len(self.jobs) - SHOWN} more")
        kept = spec.keep * sum(self.sizes.get(job.id, 0) for job in missing)
        if missing:
            lines.append(f"checkpoints will take {kept / 1e6:,.1f} MB in {self.folder.path}")
        return "\n".join(lines)


def make(spec: Spec, folder: SweepFolder, on: str, workers: int, trust: bool = True) -> Plan:
    """Check everything and return the plan; nothing is written.

    Args:
        spec: what is wanted.
        folder: where.
        on: the engine; memory is checked for ``local`` alone, since a cluster's machines are not this one.
        workers: jobs at a time on this machine.
        trust: whether environments may be named ``module:id``, which imports the module.

    Raises:
        CapoError: naming the job that cannot be done.
    """
    for name in spec.environments:
        try:
            envs.check_consent(name, trust)
            envs.make(name)
        except CapoError as error:
            raise CapoError(f"the jobs on {name}: {error}") from None
    jobs = spec.jobs()
    done = set()
    for job in jobs:
        at = folder.job(job.id)
        if job.done(at):
            done.add(job.id)
        else:
            try:
                job.check(at)
            except CapoError as error:
                raise CapoError(f"the job {job.title}: {error}") from None
    sizes = _sizes([job for job in jobs if job.id not in done], strict=on == "local")
    plan = Plan(spec, folder, jobs, frozenset(done), sizes)
    if on == "local":
        _check_memory(plan, workers)
    _check_disk(plan, workers)
    return plan


def _sizes(jobs: Sequence[Job], strict: bool) -> dict[str, int]:
    """Bytes of the state of each job; those that this machine has no room for are an error, or left out."""
    known: dict[Any, int] = {}
    found = {}
    for job in jobs:
        # Floats change no shapes: what differs in them alone is looked at once.
        shapes = {name: value for name, value in job.config.to_dict().items() if not isinstance(value, float)}
        key = (job.env, job.algorithm, len(job.seeds), tuple(shapes.items()))
        try:
            if key not in known:
                known[key] = _size(job)
            found[job.id] = known[key]
        except CapoError as error:
            if strict:
                raise CapoError(f"the job {job.title}: {error}") from None
    return found


def _size(job: Job) -> int:
    """Bytes of a job's state; raises if its networks or replay do not fit into this machine."""
    learner = registry.learner_for(job.env, job.config, len(job.seeds))
    jitted = is_jitted(learner.env)
    try:
        leaves = jax.tree.leaves(learner.shapes(job.seeds if jitted else job.seeds[:1]))
    finally:
        learner.close()
    one: int = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    return one if jitted else one * len(job.seeds)


def _check_memory(plan: Plan, workers: int) -> None:
    """Raise if the largest jobs, as many as run at a time, do not fit into memory together."""
    largest = sorted((size, id) for id, size in plan.sizes.items())[-workers:]
    free = available_memory(len(jax.local_devices()))
    together = sum(size for size, _ in largest)
    if largest and free is not None and together > 0.8 * free:
        title = next(job.title for job in plan.jobs if job.id == largest[-1][1])
        raise CapoError(
            f"the largest {len(largest)} jobs need {together / 1e6:,.0f} MB together, but {free / 1e6:,.0f} MB "
            f"are free; the largest is {title} ({largest[-1][0] / 1e6:,.0f} MB): use fewer --workers, fewer "
            "seeds_per_job, or a smaller replay"
        )


def _check_disk(plan: Plan, workers: int) -> None:
    """Raise if the checkpoints of all jobs do not fit onto the disk."""
    if not plan.sizes:
        return
    size, largest = max((size, id) for id, size in plan.sizes.items())
    needed = plan.spec.keep * sum(plan.sizes.values()) + workers * size
    path = plan.folder.path
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        title = next(job.title for job in plan.jobs if job.id == largest)
        raise CapoError(
            f"{path}: the checkpoints of {len(plan.sizes)} jobs need {needed / 1e6:,.0f} MB, but the disk has "
            f"{free / 1e6:,.0f} MB left; the largest are those of {title} ({size / 1e6:,.0f} MB): free some "
            "space, keep fewer, or shrink the replay"
        )
