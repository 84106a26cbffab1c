"""The picture of one tabular run: its value and its certified gap against iterations."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from capo.report.figures import COLOURS, HIGHLIGHT, figure
from capo.tabular.mdp import Floats


def draw_history(history: dict[str, Floats], path: Path, title: str) -> Path:
    """Draw ``history`` (arrays iteration, value, gap_bound) to ``path`` (PNG)."""
    iteration, gap = history["iteration"], history["gap_bound"]
    with figure(path, columns=2, size=(8.0, 3.4)) as (drawing, (left, right)):
        drawing.suptitle(title, x=0.01, ha="left", fontsize=11)
        left.plot(iteration, history["value"], color=COLOURS[0], marker="o", markersize=3)
        left.set(title="value of the policy at the start distribution", xlabel="iteration", ylabel="V")
        shown = gap > 0
        right.plot(iteration[shown], gap[shown], color=HIGHLIGHT, marker="o", markersize=3)
        right.set(title="certified bound on V* - V", xlabel="iteration", yscale="log")
        if not shown.all():
            right.annotate("0 from here on", (iteration[np.argmin(shown)], gap[shown].min() if shown.any() else 1))
    return path
