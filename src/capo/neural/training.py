"""The mutable middle of a run: the states of its seeds, advanced chunk by chunk, and what is logged."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.errors import CapoError
from capo.neural.algorithm import OF_LEARNING
from capo.neural.checkpoint import Checkpoint

PyTree = Any
Rows = list[dict[str, float]]


class Diverged(CapoError):
    """A loss or a parameter is no longer a finite number."""


class BadEnvironment(Diverged):
    """An environment's reward or observation is not a finite number."""


_GIVEN = {"rewards_finite": "a reward", "observations_finite": "an observation"}  # what a learner sees of them


@dataclass
class Part:
    """Seeds that advance together: all of a run on a jitted environment, one of them on the host's."""

    seeds: list[int]
    iteration: int = 0
    state: PyTree | None = None
    diverged: str = ""  # why there is no state to go on from, in words


class Training:
    """The states of a run's seeds.

    Attributes:
        learner: the jitted learner; replaced when a new horizon needs another one.
        parts: the seeds, grouped by what advances together.
        log_every: iterations between two log points.
        target: the iteration at which every part is done.
        elapsed: seconds spent training, over all sessions.
    """

    def __init__(self, learner: Any, seeds: Sequence[int], together: bool) -> None:
        self.learner = learner
        self.parts = [Part(list(seeds))] if together else [Part([seed]) for seed in seeds]
        self.log_every = 1
        self.target = 0
        self.elapsed = 0.0

    @property
    def iteration(self) -> int:
        """Iterations that every seed has behind it."""
        return min(part.iteration for part in self.parts)

    @property
    def total_frames(self) -> int:
        """Frames done, summed over what runs one after another: it orders the checkpoints."""
        return sum(part.iteration for part in self.parts) * int(self.learner.frames_per_iteration)

    def start(self) -> None:
        """Make the initial state of the first seeds, if there is none yet.

        Raises:
            CapoError: if any seed has no state to go on from.
        """
        for part in self.parts:
            _check_usable(part)
        self._start(self.parts[0])

    def begun(self) -> list[Part]:
        """The parts whose training has begun; the first always has."""
        return [part for part in self.parts if part is self.parts[0] or part.iteration or part.state is not None]

    def playable(self, seed: int) -> Part:
        """The part that holds ``seed``, with a state to act on.

        Raises:
            CapoError: if it has none.
        """
        part = next(part for part in self.parts if seed in part.seeds)
        _check_usable(part)
        if part is self.parts[0] or part.iteration:
            self._start(part)
        if part.state is None:
            raise CapoError(f"seed {seed} has not been trained yet")
        return part

    def _start(self, part: Part) -> None:
        if part.state is None:
            if part.iteration:  # a new state would be an untrained one under a trained one's name
                raise _lost()
            part.state = self.learner.init(part.seeds)

    def chunk(self, part: Part) -> int:
        """Iterations to the next log point of ``part``, or to the target."""
        return min(self.log_every - part.iteration % self.log_every, self.target - part.iteration)

    def advance(self, part: Part) -> Rows:
        """Run one chunk of ``part``; returns its log point."""
        self._start(part)
        iterations = self.chunk(part)
        start = time.perf_counter()
        # The learner takes the state's memory for its result: if it fails there is no state.
        state, part.state = part.state, None
        try:
            part.state, metrics = self.learner.run(state, iterations)
        except BaseException:
            kept = self.learner.take_kept()
            if kept is not None and _is_finite(kept.params):  # whole iterations, perhaps fewer than asked for
                part.state, part.iteration = kept, int(np.asarray(kept.iteration)[0])
            raise
        seconds = time.perf_counter() - start
        self.elapsed += seconds
        first = part.iteration + 1
        part.iteration += iterations
        rows = self._rows(part, metrics, seconds / iterations)
        try:
            self._check_finite(part, metrics, first)
        except Diverged as error:
            part.state, part.diverged = None, str(error)  # nothing may act on it, go on from it or save it
            raise
        return rows

    def _rows(self, part: Part, metrics: Mapping[str, Any], seconds: float) -> Rows:
        """One row per seed: counts summed, episode statistics weighted by episodes, the rest averaged.

        What is of learning is averaged over the iterations that learnt: before Rainbow begins to, there is none.
        """
        frames = int(self.learner.frames_per_iteration)
        columns = {name: np.asarray(values, np.float64) for name, values in metrics.items()}
        episodes = columns.pop("episodes")
        learnt = columns.pop("learnt", np.ones_like(episodes))
        for guard in ("finite", *_GIVEN):  # always 1 in a row that is written
            columns.pop(guard, None)
        rows = []
        for index, seed in enumerate(part.seeds):
            count = episodes[:, index]
            row: dict[str, float] = {
                "seed": seed,
                "iteration": part.iteration,
                "frames": part.iteration * frames,
                "episodes": int(count.sum()),
            }
            for name in sorted(columns, key=_order):
                values = columns[name]
                if name.startswith("episode_") or name in OF_LEARNING:
                    weight = learnt[:, index] if name in OF_LEARNING else count
                    total = np.where(weight > 0, values[:, index], 0.0) @ weight
                    row[name] = float(total / weight.sum()) if weight.any() else math.nan
                else:
                    row[name] = float(values[:, index].mean())
            row["elapsed_seconds"] = self.elapsed
            row["frames_per_second"] = frames * len(part.seeds) / max(seconds, 1e-9)
            rows.append(row)
        return rows

    def _check_finite(self, part: Part, metrics: Mapping[str, Any], first: int) -> None:
        """Raise if a loss is not finite or the learner saw a parameter that is not."""
        losses = ("actor_loss", "critic_loss", "grad_norm")  # an algorithm without an actor has no first one
        for guard, what in _GIVEN.items():
            wrong = np.asarray(metrics.get(guard, 1.0)) == 0
            if wrong.any():
                at, index = (int(i) for i in np.argwhere(wrong)[0])
                raise BadEnvironment(
                    f"iteration {first + at}, seed {part.seeds[index]}: the environment "
                    f"{self.learner.env.name!r} gave {what} that is not a finite number (nan or infinite)"
                )
        watched = {name: np.asarray(metrics[name]) for name in losses if name in metrics}
        bad = np.asarray(metrics["finite"]) == 0
        for values in watched.values():
            bad = bad | ~np.isfinite(values)
        if not bad.any():
            return
        at, index = (int(i) for i in np.argwhere(bad)[0])
        shown = ", ".join(f"{name} {value[at, index]:g}" for name, value in watched.items())
        broken = self._broken_parameters(part, index)
        raise Diverged(
            f"iteration {first + at}, seed {part.seeds[index]}: {shown}"
            + (f"; not finite by iteration {part.iteration}: {broken}" if broken else "")
        )

    def _broken_parameters(self, part: Part, index: int) -> str:
        params = self.learner.policy_params(part.state, index)
        broken = []
        for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
            wrong = int((~jnp.isfinite(leaf)).sum())
            if wrong:
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                broken.append(f"{name} ({wrong} of {leaf.size})")
        return ", ".join(broken[:3]) + (f" and {len(broken) - 3} more" if len(broken) > 3 else "")

    # To disk and back -------------------------------------------------------------------------------------

    def tree(self) -> PyTree:
        """All arrays a checkpoint has to hold.

        Raises:
            CapoError: if they are not those of the iteration that the seeds are said to be at, or not finite.
        """
        for part in self.parts:
            _check_usable(part)
            reached = 0 if part.state is None else int(np.asarray(part.state.iteration)[0])
            if reached != part.iteration:
                raise _lost()
            if part.state is not None and not _is_finite(part.state.params):
                raise CapoError(f"seeds {part.seeds}: a parameter is not a finite number, so nothing is saved")
        return {str(index): part.state for index, part in enumerate(self.parts) if part.state is not None}

    def content(self) -> dict[str, Any]:
        """All plain values a checkpoint has to hold."""
        return {
            "parts": [
                {"seeds": p.seeds, "iteration": p.iteration, "started": p.state is not None} for p in self.parts
            ],
            "log_every": self.log_every,
            "target": self.target,
            "elapsed_seconds": self.elapsed,
            "frames_per_iteration": int(self.learner.frames_per_iteration),
        }

    def restore(self, saved: Checkpoint) -> None:
        """Take over everything :meth:`tree` and :meth:`content` gave away."""
        content = saved.content["training"]
        self.log_every, self.target = content["log_every"], content["target"]
        self.elapsed = content["elapsed_seconds"]
        for index, (part, stored) in enumerate(zip(self.parts, content["parts"], strict=True)):
            part.iteration = stored["iteration"]
            if stored["started"]:
                part.state = saved.restore(self._shapes(part), prefix=f"{index}/")

    def _shapes(self, part: Part) -> PyTree:
        """The structure of a state, which the learner alone knows, without making one."""
        return self.learner.shapes(part.seeds)


def _check_usable(part: Part) -> None:
    if part.diverged:
        raise CapoError(f"this agent can't be used any more: {part.diverged}")


def _is_finite(params: PyTree) -> bool:
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(params))


def _lost() -> CapoError:
    return CapoError(
        "the training state was lost when learn() was stopped half-way; go on from a checkpoint: load a saved "
        "agent, or `capo resume DIR` for the folder of a run"
    )


def _order(column: str) -> tuple[int, str]:
    """Where a column stands in metrics.csv: what people look at first comes first."""
    first = ("episode_return", "episode_length", "actor_loss", "critic_loss", "entropy", "grad_norm")
    return (first.index(column) if column in first else len(first), column)
