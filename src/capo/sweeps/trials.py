"""Running a batch of trials: train, evaluate, keep the better half, until the last stage.

What a trial comes to does not depend on the other trials of its batch, except that they decide whether it is
trained further. A :class:`BatchTask` is a task of :mod:`capo.sweeps.engine`: everything it needs is in it, and
everything it finds is in its folder.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from capo.errors import CapoError
from capo.runs.checkpoint import Checkpoint, CheckpointStore, size
from capo.runs.layout import CHECKPOINTS
from capo.sweeps.batch import Batch, Outcome, read_outcomes, write_outcomes
from capo.sweeps.groups import Group, Together, make_groups

Say = Callable[[str], None]


@dataclass(frozen=True)
class BatchTask:
    """A batch for an engine, in this process or another one."""

    batch: Batch

    def run(self, folder: Path, say: Say = lambda text: print(text, file=sys.stderr, flush=True)) -> None:
        """Write the outcomes to ``folder``, unless they are there; continue after the last complete stage."""
        if read_outcomes(folder) is None:
            write_outcomes(folder, run_batch(self.batch, say, CheckpointStore(folder / CHECKPOINTS, keep=1)))


def run_batch(batch: Batch, say: Say = lambda _: None, store: CheckpointStore | None = None) -> list[Outcome]:
    """The outcome of every trial: a function of the batch alone.

    Args:
        batch: what to train.
        say: is told how each stage ended.
        store: keeps what was learned after each stage, so that a lost batch continues from there. On the host's
            environments new episodes begin then, and the outcome differs a little from that of an undisturbed run.
    """
    outcomes = [Outcome() for _ in batch.trials]
    alive = list(range(len(batch.trials)))
    groups = list(make_groups(batch))
    first = 0
    saved = None if store is None else _newest(store)
    if saved is not None:
        first, alive, outcomes = _restore(saved, batch, groups)
        say(f"continuing after stage {first} of {len(batch.stages)}")
    try:
        for stage in range(first, len(batch.stages)):
            for group in groups:
                for trial, score in group.advance(batch.stages[stage]).items():
                    outcomes[trial] = score.after(outcomes[trial])
            say(_stage_line(batch, stage, alive, outcomes))
            alive = [trial for trial in alive if not outcomes[trial].diverged]
            if stage + 1 < len(batch.stages):
                alive = better_half(alive, [outcome.scores for outcome in outcomes])
                for group in groups:
                    group.keep(alive)
                if store is not None:
                    _save(store, stage + 1, alive, outcomes, groups)
    finally:
        for group in groups:
            group.close()
    return outcomes


def better_half(alive: Sequence[int], scores: Sequence[Sequence[float]]) -> list[int]:
    """Those with the higher last scores, rounded up; of equal ones the earlier.

    >>> better_half([0, 1, 2], [[1.0], [3.0], [2.0]])
    [1, 2]
    """
    best = sorted(alive, key=lambda trial: (-scores[trial][-1], trial))
    return sorted(best[: math.ceil(len(alive) / 2)])


def check_batch(batch: Batch) -> None:
    """Raise if a batch can't be trained; nothing is compiled, and nothing large is allocated.

    Raises:
        CapoError: if a setting is wrong, the environment does not exist, or there is no room for so many trials.
    """
    try:
        for group in make_groups(batch):
            if isinstance(group, Together):
                group.learner()
    except CapoError as error:
        if " free" not in str(error):
            raise
        rows = f"{len(batch.trials)} trials x {len(batch.seeds)} seeds"
        raise CapoError(f"{error}, or fewer trials together: this is a program of {rows}") from None


def _stage_line(batch: Batch, stage: int, alive: Sequence[int], outcomes: Sequence[Outcome]) -> str:
    scores = [outcomes[trial].scores[-1] for trial in alive if not outcomes[trial].diverged]
    diverged = len(alive) - len(scores)
    trials, seeds = (
        f"{n} {what}{'s' if n > 1 else ''}" for n, what in ((len(alive), "trial"), (len(batch.seeds), "seed"))
    )
    best = f"best score {max(scores):.4g}" if scores else "no score"
    lost = f", {diverged} diverged" if diverged else ""
    where = f"stage {stage + 1} of {len(batch.stages)}, {batch.stages[stage]:,} frames"
    return f"{where}: {trials} x {seeds}, {best}{lost}"


def _newest(store: CheckpointStore) -> Checkpoint | None:
    """What was learned before the batch was lost; a damaged file only means to start again."""
    try:
        return store.load()
    except CapoError:
        return None


def _save(
    store: CheckpointStore, stage: int, alive: Sequence[int], outcomes: Sequence[Outcome], groups: Sequence[Group]
) -> None:
    """Keep what was learned, if the disk has room for it: it only saves time."""
    tree = {str(index): group.tree() for index, group in enumerate(groups)}
    store.folder.mkdir(parents=True, exist_ok=True)
    if size(tree) < shutil.disk_usage(store.folder).free / 2:
        content = {"stage": stage, "alive": list(alive), "outcomes": [asdict(one) for one in outcomes]}
        store.save(stage, tree, content)


def _restore(saved: Checkpoint, batch: Batch, groups: Sequence[Group]) -> tuple[int, list[int], list[Outcome]]:
    """The number of complete stages, who is left, and the outcomes so far."""
    stage, alive = int(saved.content["stage"]), [int(trial) for trial in saved.content["alive"]]
    for index, group in enumerate(groups):
        group.keep(alive)
        group.restore(saved, f"{index}/", batch.stages[stage - 1])
    return stage, alive, [Outcome.from_dict(one) for one in saved.content["outcomes"]]
