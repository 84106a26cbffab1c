"""The training curve of a run, drawn from its metrics.csv."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capo.errors import CapoError

SCORE = "evaluation_return"  # the column of metrics.csv with the evaluations on the way


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def training_curve(rows: Sequence[dict[str, float]]) -> tuple[Any, dict[int, Any]]:
    """Episode return by frame and seed.

    Args:
        rows: of metrics.csv, with ``seed``, ``frames`` and ``episode_return``.

    Returns:
        ``frames`` (n,), and the smoothed return (n,) of every seed, nan before its first episode ended.
    """
    frames = np.array(sorted({row["frames"] for row in rows}))
    place = {frame: index for index, frame in enumerate(frames)}
    curves = {int(row["seed"]): np.full(len(frames), np.nan) for row in rows}
    for row in rows:
        curves[int(row["seed"])][place[row["frames"]]] = row["episode_return"]
    return frames, {seed: smooth(curve) for seed, curve in curves.items()}


def smooth(curve: Any) -> Any:
    """Mean of the values that exist over the last fiftieth of the run, at every point: (n,) -> (n,)."""
    # Enough to read a noisy curve, too little to shift it visibly.
    window = max(1, len(curve) // 50)
    known = ~np.isnan(curve)
    totals = np.concatenate([[0.0], np.cumsum(np.where(known, curve, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    start = np.maximum(np.arange(len(curve)) + 1 - window, 0)
    end = np.arange(len(curve)) + 1
    with np.errstate(invalid="ignore"):
        return np.where(
            counts[end] > counts[start],
            (totals[end] - totals[start]) / np.maximum(counts[end] - counts[start], 1),
            np.nan,
        )


def draw_curve(rows: Sequence[dict[str, float]], path: Path, title: str) -> Path:
    """Draw every seed, and their mean if there are several, as a PNG (or what ``path`` ends in)."""
    if not rows:
        raise CapoError(f"{path}: there is nothing to draw yet: metrics.csv is empty")
    if not available():
        raise CapoError("drawing needs matplotlib: pip install 'capo-rl[report]'")
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # needs no display, changes no global state
    from matplotlib.figure import Figure

    frames, curves = training_curve(rows)
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    several = len(curves) > 1
    for seed, curve in curves.items():
        label = f"seed {seed}" if not several else None
        axes.plot(
            frames,
            curve,
            color="tab:blue",
            lw=0.8 if several else 1.6,
            alpha=0.4 if several else 1,
            label=label,
        )
    if several:
        stacked = np.stack(list(curves.values()))
        known = ~np.isnan(stacked)
        mean = np.where(known, stacked, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        mean = np.where(known.all(axis=0), mean, np.nan)  # a mean over some seeds only would jump
        axes.plot(frames, mean, color="tab:blue", lw=2, label=f"mean of {len(curves)} seeds")
    tested: dict[float, list[float]] = {}
    for row in rows:
        if not np.isnan(row.get(SCORE, np.nan)):
            tested.setdefault(row["frames"], []).append(row[SCORE])
    points = sorted((frame, np.mean(scores)) for frame, scores in tested.items() if len(scores) == len(curves))
    if points:
        axes.plot(*zip(*points, strict=True), "o-", color="tab:orange", ms=4, label="evaluation")
    what = "episode return" if points else "episode return while training"
    axes.set(title=title, xlabel="frames", ylabel=what)
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
