"""How fast a training is, said once, a few seconds after it began."""

from __future__ import annotations

import time

import numpy as np

from capo.arrays import NDArray
from capo.neural.algorithms.base import TrainState
from capo.neural.learners import Learner
from capo.progress import Ticker, clock

SECONDS = 3.0  # of training before the pace is known
WORTH_SAYING = 10.0  # seconds left


class Pace:
    """Runs the first iterations of a training in pieces that double, and tells the user how long the rest takes.

    A run in pieces ends as a run at once does, bit for bit. Nothing is cut where nobody is shown anything.
    """

    def __init__(self, shown: Ticker) -> None:
        self._shown = shown
        self._known = type(shown) is Ticker
        self._piece, self._seconds = 1, 0.0

    def run(
        self, learner: Learner, state: TrainState, iterations: int, left: int
    ) -> tuple[TrainState, dict[str, NDArray]]:
        """As :meth:`Learner.run`; ``left`` iterations of the plan are still to do, these included."""
        done, rows = 0, list[dict[str, NDArray]]()
        while done < iterations or not rows:
            count = iterations - done if self._known else min(self._piece, iterations - done)
            begin = time.perf_counter()
            state, metrics = learner.run(state, count)
            rows.append(metrics)
            done += count
            self._time(learner, metrics, count, time.perf_counter() - begin, left - done)
        return state, {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}

    def _time(self, learner: Learner, metrics: dict[str, NDArray], count: int, seconds: float, left: int) -> None:
        if self._known:
            return
        first = self._piece == 1  # it also pays for what happens once, such as compiling how to act
        self._piece *= 2
        if first:
            return
        self._seconds += seconds
        if self._seconds < SECONDS or not np.min(metrics.get("learned", 1)):  # collecting alone is faster
            return
        self._known = True
        each = seconds / count
        if left * each > WORTH_SAYING:
            speed = learner.frames_per_iteration * learner.n_seeds / each
            frames = left * learner.frames_per_iteration
            self._shown.message(
                f"speed: about {speed:,.0f} frames/s; the remaining {frames:,} frames will take about "
                f"{clock(left * each)}"
            )
