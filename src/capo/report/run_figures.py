"""The figure of one run: a training's curve, or the path of a tabular solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capo.errors import CapoError
from capo.report.figures import COLOURS, HIGHLIGHT, figure, short_number
from capo.report.statistics import common_grid, on_grid
from capo.runs.records import Curve, evaluation_curves, training_curves


def draw_training(rows: Sequence[Mapping[str, float]], path: Path, title: str) -> Path:
    """Draw every seed of a training, their mean, and the mean of its evaluations to ``path`` (PNG).

    Args:
        rows: of metrics.csv, with ``seed``, ``frames`` and ``episode_return``.
    """
    if not rows:
        raise CapoError(f"{path}: nothing to draw yet: metrics.csv is empty")
    training, tested = training_curves(rows), evaluation_curves(rows)
    evaluated = len(tested) == len(training)
    with figure(path, size=(7, 4)) as (_, axes):
        if len(training) == 1:
            ((seed, curve),) = training.items()
            axes.plot(*curve, color=COLOURS[0], lw=1.6, label=f"seed {seed}")
        else:
            for curve in training.values():
                axes.plot(*curve, color=COLOURS[0], lw=0.8, alpha=0.4)
            mean = _mean(list(training.values()))
            axes.plot(*mean, color=COLOURS[0], lw=2, label=f"mean of {len(training)} seeds")
        if evaluated:
            axes.plot(*_mean(list(tested.values())), "o-", color=HIGHLIGHT, ms=4, label="evaluation")
        axes.set(title=title, xlabel="frames")
        axes.set_ylabel("episode return" if evaluated else "episode return during training")
        axes.xaxis.set_major_formatter(short_number)
        axes.legend(loc="upper left")
    return path


def _mean(curves: Sequence[Curve]) -> Curve:
    """The mean over seeds, where all of them have a value: over some of them only it would jump."""
    grid = common_grid(curves, points=10_000)
    return grid, np.mean([on_grid(*curve, grid) for curve in curves], axis=0)


def draw_solution(history: Mapping[str, NDArray[np.float64]], path: Path, title: str) -> Path:
    """Draw the value and the certified gap of a tabular run to ``path`` (PNG).

    Args:
        history: arrays (n,) ``iteration``, ``value`` and ``gap_bound``.
    """
    iteration, gap = history["iteration"], history["gap_bound"]
    with figure(path, columns=2, size=(8.0, 3.4)) as (drawing, (left, right)):
        drawing.suptitle(title, x=0.01, ha="left", fontsize=11)
        left.plot(iteration, history["value"], color=COLOURS[0], marker="o", markersize=3)
        left.set(title="value of the policy at the start distribution", xlabel="iteration", ylabel="V")
        shown = gap > 0
        right.plot(iteration[shown], gap[shown], color=HIGHLIGHT, marker="o", markersize=3)
        right.set(title="certified bound on V* - V", xlabel="iteration", yscale="log")
        if not shown.all():
            right.annotate("0 from here", (iteration[np.argmin(shown)], gap[shown].min() if shown.any() else 1))
    return path
