"""Trainings that differ in their reward noise only as rows of one program, and trainings with a time limit.

On a GPU three levels cost little more than one, and compile once. There are no checkpoints: what is interrupted
starts again. With a time limit, what was reached by then is evaluated and written as a result of so many frames.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import jax
import numpy as np

from capo import envs
from capo.arrays import NDArray
from capo.errors import CapoError
from capo.experiments.common import Row, Say
from capo.experiments.training import Job, Where
from capo.neural.algorithms import registry
from capo.neural.algorithms.base import TrainState
from capo.neural.algorithms.settings import override
from capo.neural.learners.noise import NoiseLearner
from capo.neural.metrics import broken, rows
from capo.neural.parts import layers
from capo.neural.player import EVALUATE_STREAM, stream_key
from capo.neural.trainer import first_log_every
from capo.provenance import provenance
from capo.runs.layout import FRAMES, RETURN


def train_together(
    jobs: Sequence[Job], say: Say, progress: bool, where: Where | None = None, *, seconds: float = math.inf
) -> None:
    """Train what is missing, in this process: one program per learner and game, which writes all its files.

    Args:
        where: refused if it is anywhere else.
        seconds: for each program, compiling included; then it is stopped and evaluated.

    Raises:
        CapoError: if a training diverged.
    """
    del progress
    if seconds <= 0:
        raise CapoError(f"seconds={seconds:g} must be positive")
    if where is not None and not where.inline:
        raise CapoError("--together and --seconds train in this process: leave out --workers and --on")
    todo = [(job, job.missing()) for job in jobs]
    same = lambda one: (one[0].game, one[0].algorithm, one[0].preset, str(one[0].settings), one[1])
    for (*_, missing), group in itertools.groupby(todo, same):
        if missing:
            _train([job for job, _ in group], missing, say, time.monotonic() + seconds)


def _train(jobs: Sequence[Job], seeds: Sequence[int], say: Say, deadline: float) -> None:
    first, stored = jobs[0], [job.stored() for job in jobs]
    plan = first.plan
    algorithm, env = registry.find(first.algorithm), envs.make(first.env)
    config = override(algorithm.settings.preset(first.preset, first.env), first.settings)
    per_iteration = config.frames_per_iteration
    target = -(-plan.frames // per_iteration)
    config = replace(config, horizon=target * per_iteration)
    learner = NoiseLearner(algorithm.algorithm(config, env), env, [job.reward_noise for job in jobs], len(seeds))
    started = datetime.now(UTC).isoformat(timespec="seconds")
    names = ", ".join(job.title for job in jobs)
    say(f"{names}: {len(jobs)} x {len(seeds)} seeds of {plan.frames:,} frames as one program")
    say(f"compiled in {learner.compile():.1f} s")
    state: TrainState = learner.start(seeds)
    chunk = first_log_every(None, True, per_iteration, target)
    training: list[tuple[int, list[float]]] = []
    evaluation: list[tuple[int, NDArray]] = []
    done, seconds = 0, 0.0
    stopped = False
    while done < target and not stopped:
        now = min(chunk - done % chunk, target - done)
        begin = time.perf_counter()
        state, metrics = learner.run(state, now)
        seconds += time.perf_counter() - begin
        before, done = done * per_iteration, done + now
        stopped = time.monotonic() > deadline
        if broken(metrics, env.name).any():
            raise CapoError(f"{names}: a training diverged by frame {done * per_iteration:,}")
        found = rows(metrics, range(learner.n_seeds), done, per_iteration)
        training.append((int(found[0][FRAMES]), [row[RETURN] for row in found]))
        if done * per_iteration // first.eval_every > before // first.eval_every or done == target or stopped:
            returns = _play(learner, state, seeds, plan.episodes, 0)
            evaluation.append((done * per_iteration, returns.mean(axis=1)))
            means = ", ".join(f"{level:.2f}" for level in returns.reshape(len(jobs), -1).mean(axis=1))
            speed = done * per_iteration * learner.n_seeds / seconds
            say(f"frame {done * per_iteration:,}: returns {means}; {speed:,.0f} frames/s")
    finals = _play(learner, state, seeds, plan.final_episodes, 1)
    made: Row = {"precision": layers.precision_here(learner.network), **provenance(), "started": started}
    frames = done * per_iteration
    if done < target:
        say(f"stopped at frame {frames:,} of {target * per_iteration:,}: the time limit was reached")
        kept = [str(job.file) for job, there in zip(jobs, stored, strict=True) if there]
        if kept:
            raise CapoError(
                f"{', '.join(kept)}: contains fully trained seeds, but this run was stopped at frame "
                f"{frames:,}, so nothing was added: give more --seconds, or another --out"
            )
        jobs = [replace(job, plan=replace(job.plan, frames=frames)) for job in jobs]
    for level, job in enumerate(jobs):
        at = [level * len(seeds) + index for index in range(len(seeds))]
        job.write(
            config.to_dict(),
            frames,
            [
                job.entry(
                    seed,
                    ([at_frame for at_frame, _ in training], [returns[row] for _, returns in training]),
                    ([at_frame for at_frame, _ in evaluation], [returns[row] for _, returns in evaluation]),
                    finals[row],
                )
                for seed, row in zip(seeds, at, strict=True)
            ],
            {"seeds": seeds, "wall_seconds": round(seconds, 1), "rows_of_its_program": learner.n_seeds, **made},
            stored[level],
        )
    say(f"{names}: final returns {', '.join(f'{level:.2f}' for level in finals.reshape(len(jobs), -1).mean(1))}")


def _play(learner: NoiseLearner, state: TrainState, seeds: Sequence[int], episodes: int, seed: int) -> NDArray:
    """Returns (rows, episodes): the episodes that an agent with this seed would play."""
    key = stream_key(seed, EVALUATE_STREAM)
    keys = jax.vmap(lambda one: jax.random.fold_in(key, one))(np.tile(seeds, learner.n_seeds // len(seeds)))
    return learner.evaluate(learner.playable(state), keys, episodes)
