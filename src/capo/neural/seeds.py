"""The seeds of an agent: what each has learned so far, to disk and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from capo.arrays import PyTree
from capo.errors import CapoError
from capo.neural.algorithms.base import TrainState
from capo.neural.learners import Learner
from capo.neural.metrics import is_finite
from capo.neural.parts.iterations import ERA
from capo.runs.checkpoint import Checkpoint


@dataclass
class SeedGroup:
    """Seeds that advance together: all of them on a jitted environment, one of them on the host's.

    Attributes:
        iteration: the number of iterations behind them.
        state: None before the first one, and where it was lost or every seed diverged.
        diverged: the seeds that are not trained any more, and why, in words.
    """

    seeds: list[int]
    iteration: int = 0
    state: TrainState | None = None
    diverged: dict[int, str] = field(default_factory=dict)

    @property
    def sound(self) -> list[int]:
        """The seeds that have not diverged."""
        return [seed for seed in self.seeds if seed not in self.diverged]

    def check_usable(self, seed: int) -> None:
        """Raise if a seed diverged."""
        if seed in self.diverged:
            raise CapoError(f"the policy of seed {seed} can no longer be used: {self.diverged[seed]}")

    def start(self, learner: Learner) -> TrainState:
        """The state, made at first use.

        Raises:
            CapoError: if it was lost: a new state would be an untrained one under a trained one's name.
        """
        if self.state is None:
            if self.iteration:
                raise _lost()
            self.state = learner.init(self.seeds)
        return self.state


class Seeds:
    """All seeds of an agent.

    Args:
        seeds: their numbers.
        together: whether they advance as one program, or one after another.

    Attributes:
        groups: the seeds by what advances together.
        elapsed: seconds spent training, over all processes.
    """

    def __init__(self, seeds: Sequence[int], together: bool) -> None:
        self.groups = [SeedGroup(list(seeds))] if together else [SeedGroup([seed]) for seed in seeds]
        self.elapsed = 0.0

    @property
    def iteration(self) -> int:
        """Iterations that every seed has behind it, but for those that diverged."""
        return min(group.iteration for group in self.sound() or self.groups)

    def sound(self) -> list[SeedGroup]:
        """The groups with a seed that has not diverged."""
        return [group for group in self.groups if group.sound]

    @property
    def diverged(self) -> dict[int, str]:
        """The seeds that diverged, and how."""
        return {seed: why for group in self.groups for seed, why in group.diverged.items()}

    def check_usable(self) -> None:
        """Raise if every seed diverged."""
        if not self.sound():
            self.groups[0].check_usable(self.groups[0].seeds[0])

    @property
    def era(self) -> int:
        """Whose program the next iterations need."""
        return self.iteration // ERA

    @property
    def total_iterations(self) -> int:
        """Iterations summed over groups, which run one after another: it orders the checkpoints."""
        return sum(group.iteration for group in self.groups)

    def start(self, learner: Learner) -> None:
        """Make the initial state of the first group, if there is none yet.

        Raises:
            CapoError: if no seed has a state to continue from.
        """
        self.check_usable()
        if self.groups[0].sound:
            self.groups[0].start(learner)

    def begun(self) -> list[SeedGroup]:
        """The groups whose training has begun (the first always has), without those that diverged.

        Raises:
            CapoError: if every seed diverged, or those that have begun.
        """
        self.check_usable()
        first = self.groups[0]
        found = [group for group in self.sound() if group is first or group.iteration or group.state is not None]
        if not found:
            first.check_usable(first.seeds[0])
        return found

    def playable(self, seed: int, learner: Learner) -> tuple[SeedGroup, TrainState]:
        """The group that holds ``seed``, and its state to act on.

        Raises:
            CapoError: if it has none.
        """
        group = next(group for group in self.groups if seed in group.seeds)
        group.check_usable(seed)
        if group is self.groups[0] or group.iteration or group.state is not None:
            return group, group.start(learner)
        raise CapoError(f"seed {seed} has not been trained yet")

    # To disk and back -------------------------------------------------------------------------------------

    def tree(self) -> PyTree:
        """All arrays a checkpoint has to hold.

        Raises:
            CapoError: if they are not those of the iteration that the seeds are said to be at, or not finite.
        """
        self.check_usable()
        for group in self.sound():
            reached = 0 if group.state is None else group.state.reached
            if reached != group.iteration:
                raise _lost()
            if group.state is not None and not is_finite(group.state.params):
                raise CapoError(f"seeds {group.seeds}: a parameter is not a finite number, so nothing is saved")
        return {str(index): group.state for index, group in enumerate(self.groups) if group.state is not None}

    def content(self) -> list[dict[str, Any]]:
        """What a checkpoint has to hold besides arrays."""
        found = []
        for group in self.groups:
            part = {"seeds": group.seeds, "iteration": group.iteration, "started": group.state is not None}
            if group.diverged:
                part["diverged"] = {str(seed): why for seed, why in group.diverged.items()}
            found.append(part)
        return found

    def restore(self, saved: Checkpoint, learner: Learner) -> None:
        """Take over what :meth:`tree` and :meth:`content` gave to a checkpoint.

        Raises:
            CapoError: if its arrays are not those of these seeds, or of another iteration than it says.
        """
        parts = saved.content["training"]["parts"]
        if [part["seeds"] for part in parts] != [group.seeds for group in self.groups]:
            raise CapoError(f"{saved.path}: its seeds are not grouped as this environment needs them")
        begun = {str(index) for index, part in enumerate(parts) if part["started"]}
        if {name.partition("/")[0] for name in saved.arrays} != begun:
            raise CapoError(f"{saved.path}: its arrays do not match the seeds that it records as trained")
        for index, (group, part) in enumerate(zip(self.groups, parts, strict=True)):
            group.iteration = part["iteration"]
            group.diverged = {int(seed): why for seed, why in part.get("diverged", {}).items()}
            if part["started"]:
                shapes = replace(learner.shapes(group.seeds), era=group.iteration // ERA)
                group.state = saved.restore(shapes, prefix=f"{index}/")
                reached = np.asarray(group.state.iteration)
                if (reached != group.iteration % ERA).any():
                    raise CapoError(
                        f"{saved.path}: records its seeds at iteration {group.iteration:,}, but their "
                        f"state is from iteration {int(reached.flat[0]):,}"
                    )


def _lost() -> CapoError:
    return CapoError(
        "the training state was lost when learn() was interrupted midway; continue from a checkpoint: "
        "load a saved agent, or run `capo resume DIR` on the folder of a run"
    )
