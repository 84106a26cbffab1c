"""Tuning: good settings of an algorithm for an environment, searched by trials.

Trials come in generations. Optuna proposes a generation (tree-structured Parzen estimators), its trials are
trained in batches (:mod:`capo.sweeps.trials`), the worse half of a batch stops after each stage (successive
halving), and what they came to goes back to Optuna. In the end the best settings and the preset are trained again
with fresh seeds, which say how good they are: a score that decided the choice is too high.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capo.checks import as_path, whole
from capo.errors import CapoError
from capo.files import prepare_folder, write_json
from capo.neural.preset_file import write_preset
from capo.progress import show_progress
from capo.provenance import provenance
from capo.runs.layout import CHECKPOINTS
from capo.runs.lock import Lock
from capo.sweeps.batch import Batch, Outcome, read_outcomes
from capo.sweeps.engine import choose, run_all
from capo.sweeps.study import Study, import_optuna
from capo.sweeps.trials import BatchTask, Say, check_batch
from capo.sweeps.tuning_folder import (
    FRESH,
    PRESET,
    RESULT,
    STUDY,
    TUNING,
    Trial,
    Tuning,
    batch_folder,
    generation_files,
    in_words,
    is_tuning,
    read_asked,
    read_batches,
    read_generation,
    read_tuning,
    write_generation,
    write_trials,
)
from capo.sweeps.tuning_plan import Plan, make_plan
from capo.sweeps.work import Outcome as Ended
from capo.sweeps.work import Watcher, Work


def tune(
    env: Any,
    algorithm: str = "ncapo",
    *,
    frames: int,
    out: str | Path,
    trials: int = 32,
    preset: str | Path = "default",
    settings: Mapping[str, Any] | None = None,
    space: str | Path | Mapping[str, Any] | None = None,
    seeds: int | Sequence[int] = 2,
    seed: int = 0,
    fresh_seeds: int = 5,
    episodes: int = 32,
    halvings: int = 2,
    together: int | None = None,
    workers: int | None = None,
    on: str = "local",
    cpus: float = 1.0,
    gpus: float = 0.0,
    progress_bar: bool = False,
) -> Tuning:
    """Search for good settings. Repeating the call runs what is missing, or adds trials if ``trials`` is larger.

    Args:
        env: the environment's name; on this machine also an object of capo's own (jitted) protocol.
        algorithm: its name, such as ``"ncapo"``.
        frames: environment steps of a full training run, per seed; most trials are stopped earlier.
        out: the tuning's folder.
        trials: how many settings to try, including those of earlier calls.
        preset: the settings to start from, by name or as a file; the first trial uses them unchanged.
        settings: settings that replace the preset's, in all trials.
        space: what to search: a file, or a dictionary with a table per setting. None: the ranges that the
            algorithm's settings define (see the settings reference).
        seeds: each trial is trained with this many seeds, or with the ones listed; its score is their mean.
        seed: of the search, and the first training seed if ``seeds`` is a number.
        fresh_seeds: how many fresh seeds to retrain the best settings and the preset with at the end; 0 for none.
        episodes: per seed and score.
        halvings: how many times the worse half of a batch is stopped; 2: after 1/4 and 1/2 of the frames.
        together: trials per batch. On a jitted environment they run as one program.
        workers: batches at a time, each in a process of its own or on a worker of the cluster.
        on: where: ``local``, or a Ray cluster (``auto``, ``ray://HOST:PORT``).
        cpus: per batch, on a Ray cluster.
        gpus: the same; a fraction shares a GPU.
        progress_bar: show progress on standard error.

    Returns:
        What was found; :attr:`Tuning.preset` is a file for ``preset=`` and ``capo train --preset``.

    Raises:
        CapoError: if anything given is wrong (nothing has started then), or no trial could be trained.
    """
    import_optuna()
    plan = make_plan(
        env,
        algorithm,
        frames=frames,
        trials=trials,
        preset=preset,
        settings=settings or {},
        space=space,
        seeds=seeds,
        seed=seed,
        fresh_seeds=fresh_seeds,
        episodes=episodes,
        halvings=halvings,
        together=together,
    )
    runner = Runner(on, workers, cpus, gpus)
    runner.check(plan)
    folder = as_path("out", out)
    check_batch(plan.batch([plan.first] * min(plan.together, plan.trials)))
    _check_folder(folder, plan)
    prepare_folder(folder)
    shown = show_progress(progress_bar)
    lock = Lock(folder)
    try:
        if not is_tuning(folder):
            write_json(folder / TUNING, plan.asked() | {"made_by": provenance()})
        return _tune(folder, plan, runner, shown.message)
    finally:
        lock.release()
        shown.close()


def _check_folder(folder: Path, plan: Plan) -> None:
    """Raise if the folder is something else, or a tuning that was asked for something else."""
    if is_tuning(folder):
        asked, now = read_asked(folder), plan.asked()
        for name, value in now.items():
            if asked.get(name) != value:
                raise CapoError(
                    f"{folder} was started with {name}={asked.get(name)!r}, not {value!r}: a tuning can "
                    "only be given more trials; choose another folder"
                )
    elif folder.is_dir() and any(folder.iterdir()):
        raise CapoError(f"{folder} is not empty and not the folder of a tuning; choose another one")


class Runner:
    """Runs batches, each in its folder: one after another in this process, or several elsewhere.

    Args:
        on: ``local``, or a Ray cluster.
        workers: at a time.
        cpus, gpus: of a batch, on a Ray cluster.
    """

    def __init__(self, on: str, workers: int | None, cpus: float, gpus: float) -> None:
        if on != "local" and workers is None:
            raise CapoError(f"on={on!r} needs workers: how many batches of trials are trained at a time")
        self.on, self.workers = on, 1 if workers is None else whole("workers", workers)
        self.cpus, self.gpus = cpus, gpus
        self.here = on == "local" and self.workers == 1
        if not self.here:
            choose(on, self.workers)  # raises if there is no such engine

    def check(self, plan: Plan) -> None:
        """Raise if the batches of a plan can't be sent elsewhere."""
        if not self.here and not isinstance(plan.env, str):
            raise CapoError("workers need the environment's name: an object can't be sent to another process")

    def run(self, work: Sequence[tuple[Batch, Path]], say: Say) -> list[list[Outcome]]:
        """The outcomes of every batch; those that are done already are not run again."""
        missing = [(BatchTask(batch), folder) for batch, folder in work if read_outcomes(folder) is None]
        if self.here:  # the compiled programs are kept for the next batches
            for task, folder in missing:
                folder.mkdir(parents=True, exist_ok=True)
                task.run(folder, say)
        else:
            pieces = [Work(folder.name, folder, task, self.cpus, self.gpus) for task, folder in missing]
            for ended in run_all(pieces, self.on, self.workers, Teller(say)).values():
                if ended.error:
                    raise CapoError(f"the batch {ended.name} failed: {ended.error}")
        found = []
        for _, folder in work:
            outcomes = read_outcomes(folder)
            assert outcomes is not None
            found.append(outcomes)
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        return found


class Teller(Watcher):
    """Says what becomes of batches that are run elsewhere."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def started(self, name: str, where: str) -> None:
        self._say(f"batch {name}: started on {where}")

    def lost(self, name: str, why: str) -> None:
        self._say(f"batch {name}: {why}; restarting it")

    def ended(self, outcome: Ended) -> None:
        self._say(f"batch {outcome.name}: {outcome.error or 'done'} after {outcome.seconds:.0f} s")


def _tune(folder: Path, plan: Plan, runner: Runner, say: Say) -> Tuning:
    study = Study(folder / STUDY, plan.space, plan.first, plan.seed)
    for path in generation_files(folder):
        _finish(folder, plan, study, runner, read_generation(path), say)
    while (done := sum(map(len, read_batches(folder)))) < plan.trials:
        numbers = range(done, min(done + plan.together * runner.workers, plan.trials))
        trials = [Trial(number, one) for number, one in zip(numbers, study.propose(numbers), strict=True)]
        batches = [trials[at : at + plan.together] for at in range(0, len(trials), plan.together)]
        write_generation(folder, batches)
        _finish(folder, plan, study, runner, batches, say)
    tuning = read_tuning(folder)
    best = _best(tuning)
    say(f"best: trial {best.number}, score {best.score:.4g} with {in_words(plan.seeds)}")
    fresh: dict[str, list[float | None]] = {}
    if plan.fresh_seeds:
        place = folder / FRESH / f"{best.number:05d}"
        if read_outcomes(place) is None:
            say(f"retraining it and the preset with fresh {in_words(plan.fresh_seeds)}")
        ((tuned, usual),) = runner.run([(plan.fresh_batch(best.settings), place)], say)
        fresh = {"tuned": _scores(tuned, plan), "preset": _scores(usual, plan)}
    first = {one.number: one.outcome.scores[0] for one in tuning.trials if one.outcome and one.outcome.scores}
    result = {"best": best.number, "importance": study.importances(first), "fresh": fresh}
    write_json(folder / RESULT, result | {"made_by": provenance()})
    tuning = read_tuning(folder)
    _write_preset(tuning)
    write_trials(tuning)
    return tuning


def _finish(
    folder: Path, plan: Plan, study: Study, runner: Runner, batches: Sequence[Sequence[Trial]], say: Say
) -> None:
    """Run what is missing of a generation, and tell the study all of it."""
    places = [batch_folder(folder, batch[0].number) for batch in batches]
    if any(read_outcomes(place) is None for place in places):
        say(f"trials {batches[0][0].number} to {batches[-1][-1].number} of {plan.trials}")
    work = [
        (plan.batch([one.settings for one in batch]), place) for batch, place in zip(batches, places, strict=True)
    ]
    for batch, outcomes in zip(batches, runner.run(work, say), strict=True):
        for trial, outcome in zip(batch, outcomes, strict=True):
            study.tell(trial.number, outcome, len(plan.stages))


def _best(tuning: Tuning) -> Trial:
    complete = [one for one in tuning.trials if one.state(len(tuning.stages)) == "complete"]
    if not complete:
        raise CapoError(
            f"{tuning.folder}: every trial diverged; search smaller learning rates with a space of your own"
        )
    return max(complete, key=lambda one: (one.score or 0.0, -one.number))


def _scores(outcome: Outcome, plan: Plan) -> list[float | None]:
    return [None] * len(plan.fresh_seeds) if outcome.diverged else list(outcome.by_seed)


def _write_preset(tuning: Tuning) -> None:
    asked, best = tuning.asked, tuning.best_trial
    comments = [
        f"Found by capo tune: trial {best.number} of {len(tuning.trials)}, {asked['stages'][-1]:,} frames;",
        f"score {best.score:.4g} with {in_words(asked['seeds'])}, which chose it.",
    ]
    for name, scores in tuning.fresh.items():
        known = [score for score in scores if score is not None]
        mean = f"{sum(known) / len(known):.4g}" if known else "diverged"
        comments.append(f"Fresh {in_words(asked['fresh_seeds'])}, {name}: {mean}")
    write_preset(
        tuning.folder / PRESET,
        algorithm=asked["algorithm"],
        preset=asked["preset"],
        environment=asked["env"],
        settings={**asked["settings"], **best.settings},
        comments=comments,
    )


__all__ = ["Tuning", "read_tuning", "tune"]
