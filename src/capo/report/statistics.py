"""Statistics over few seeds: interquartile mean, stratified bootstrap, profiles, probability of improvement.

The definitions are those of Agarwal et al., *Deep Reinforcement Learning at the Edge of the Statistical
Precipice* (2021), and of their library rliable. Scores are given per task (game): a sequence with one array
(runs,) for each task, and the arrays may differ in length. A statistic takes such a sequence with any leading
axes, ``(..., runs)`` each, and returns ``(...)``: that makes the bootstrap one array operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capo.errors import CapoError

Array = NDArray[np.float64]
Statistic = Callable[[Sequence[Array]], Array]

RESAMPLES = 2000
LEVEL = 0.95
_BLOCK = 4_000_000  # numbers held at once by one resampling step


@dataclass(frozen=True)
class Estimate:
    """A statistic with its interval; all three have the statistic's shape.

    >>> stratified_bootstrap([[1.0, 2.0, 4.0]], aggregate_mean)
    Estimate(2.333, interval 1 to 4)
    """

    value: Array
    low: Array
    high: Array

    def __repr__(self) -> str:
        if np.ndim(self.value):
            return f"Estimate(array of shape {np.shape(self.value)} with intervals)"
        return f"Estimate({self.value:.4g}, interval {self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class CurveSummary:
    """Curves of several seeds on one grid of frames.

    >>> summarise_curves([([0, 10], [1.0, 2.0]), ([0, 10], [3.0, 6.0])])
    CurveSummary(2 seeds, 2 points, frames 0 to 10, last mean 4)
    """

    frames: Array  # (points,) the grid
    seeds: Array  # (seeds, points) every curve on the grid; nan outside the frames that the seed has logged
    count: NDArray[np.int64]  # (points,) how many seeds have a value at each point
    mean: Array  # (points,) over those seeds
    std: Array  # (points,) over them (n - 1 in the denominator; 0 for a single seed)
    iqm: Array  # (points,) interquartile mean
    low: Array  # (points,) and high: bootstrap interval of iqm, pointwise
    high: Array

    def __repr__(self) -> str:
        seeds, points = self.seeds.shape
        if not points:
            return f"CurveSummary({seeds} seeds, no points)"
        first, last = (f"{frame:,.0f}" for frame in self.frames[[0, -1]])
        ends = f"frames {first} to {last}, last mean {self.mean[-1]:.4g}"
        return f"CurveSummary({seeds} seeds, {points} points, {ends})"


def interquartile_mean(values: ArrayLike) -> Array:
    """Mean of the middle half: what is left when a quarter of the values is cut off at each end.

    Args:
        values: (..., n); floor(n / 4) of the n values are cut off at each end.

    Returns:
        (...)

    >>> float(interquartile_mean([0.0, 1.0, 2.0, 100.0]))
    1.5
    """
    ordered = np.sort(np.asarray(values, np.float64), axis=-1)
    n = ordered.shape[-1]
    if n == 0:
        raise CapoError("an interquartile mean needs at least one value")
    cut = n // 4
    return np.asarray(ordered[..., cut : n - cut].mean(axis=-1))


def aggregate_iqm(scores: Sequence[Array]) -> Array:
    """Interquartile mean over all runs of all tasks together; (..., runs) each -> (...)."""
    return interquartile_mean(np.concatenate(list(scores), axis=-1))


def aggregate_mean(scores: Sequence[Array]) -> Array:
    """Mean over tasks of each task's mean; (..., runs) each -> (...)."""
    return np.asarray(np.mean([one.mean(axis=-1) for one in scores], axis=0))


def performance_profile(scores: Sequence[Array], thresholds: ArrayLike) -> Array:
    """Share of runs with a score above each threshold, averaged over tasks.

    Args:
        scores: (..., runs) each; comparable over tasks (normalised) if there are several.
        thresholds: (thresholds,)

    Returns:
        (..., thresholds)

    >>> performance_profile([np.array([1.0, 2.0])], [0.0, 1.0, 2.0]).tolist()
    [1.0, 0.5, 0.0]
    """
    at = np.asarray(thresholds, np.float64)
    return np.asarray(np.mean([(one[..., None, :] > at[:, None]).mean(axis=-1) for one in scores], axis=0))


def probability_of_improvement(x: Sequence[Array], y: Sequence[Array]) -> Array:
    """Chance that a run of X scores higher than one of Y on the same task, averaged over tasks; ties count half.

    Args:
        x: (..., runs of X) for each task.
        y: (..., runs of Y) for each task, in the same order.

    Returns:
        (...)

    >>> float(probability_of_improvement([np.array([1.0, 2.0])], [np.array([1.0, 1.5])]))
    0.625
    """
    if len(x) != len(y):
        raise CapoError(f"X has scores for {len(x)} tasks and Y for {len(y)}: give the same tasks for both")
    chances = []
    for ours, theirs in zip(x, y, strict=True):
        difference = ours[..., :, None] - theirs[..., None, :]
        chances.append(((difference > 0) + 0.5 * (difference == 0)).mean(axis=(-2, -1)))
    return np.asarray(np.mean(chances, axis=0))


def stratified_bootstrap(
    scores: Sequence[ArrayLike],
    statistic: Statistic,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Estimate:
    """A statistic and its percentile interval; the runs are resampled within each task.

    Args:
        scores: (runs,) for each task.
        statistic: a function of such scores; see the module's docstring.
        resamples: how many times to resample.
        level: of the interval.
        seed: of the random draws.
    """
    tasks = [np.asarray(one, np.float64) for one in scores]
    _check(tasks, resamples, level)
    rng = np.random.default_rng(seed)
    size = max(1, _BLOCK // sum(len(one) ** 2 for one in tasks))  # pairs of runs are the largest intermediate
    drawn = [
        statistic([one[rng.integers(0, len(one), (min(size, resamples - start), len(one)))] for one in tasks])
        for start in range(0, resamples, size)
    ]
    low, high = _interval(np.concatenate(drawn), level)
    return Estimate(np.asarray(statistic(tasks)), low, high)


def improvement(x: Sequence[ArrayLike], y: Sequence[ArrayLike]) -> Estimate:
    """:func:`probability_of_improvement` with its interval; X and Y are resampled independently."""
    half = len(x)
    return stratified_bootstrap([*x, *y], lambda both: probability_of_improvement(both[:half], both[half:]))


def _check(tasks: Sequence[Array], resamples: int, level: float) -> None:
    if not tasks or any(one.ndim != 1 or len(one) == 0 for one in tasks):
        shapes = ", ".join(str(one.shape) for one in tasks) or "none"
        raise CapoError(f"scores must be one array (runs,) per task, each with at least one run; given: {shapes}")
    if any(not np.isfinite(one).all() for one in tasks):
        raise CapoError("scores must be finite numbers: leave out the runs without a score")
    if resamples < 1 or not 0 < level < 1:
        raise CapoError(
            f"resamples={resamples}, level={level}: resamples must be at least 1, and level between 0 and 1"
        )


def _interval(drawn: Array, level: float) -> tuple[Array, Array]:
    """Percentile interval over the first axis."""
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


# --- curves ---------------------------------------------------------------------------------------------------


def common_grid(curves: Sequence[tuple[Any, Any]], points: int = 150) -> Array:
    """Frames on which all curves can be compared: evenly spaced, from the first to the last one logged.

    If all curves have the same few frames already, those are used as they are.
    """
    logged = [np.asarray(frames, np.float64)[~np.isnan(np.asarray(values))] for frames, values in curves]
    logged = [frames for frames in logged if len(frames)]
    if not logged:
        return np.zeros(0)
    shared = np.unique(np.concatenate(logged))
    if len(shared) <= points and all(len(frames) == len(shared) for frames in logged):
        return shared
    return np.linspace(shared[0], shared[-1], min(points, max(len(shared), 2)))


def on_grid(frames: ArrayLike, values: ArrayLike, grid: Array) -> Array:
    """A curve on a grid by linear interpolation; nan outside the frames it covers.

    Args:
        frames: (n,) ascending.
        values: (n,); nan values are left out.
        grid: (points,)
    """
    at, curve = np.asarray(frames, np.float64), np.asarray(values, np.float64)
    known = ~np.isnan(curve)
    if not known.any():
        return np.full(len(grid), np.nan)
    return np.interp(grid, at[known], curve[known], left=np.nan, right=np.nan)


def summarise_curves(curves: Sequence[tuple[Any, Any]], points: int = 150, resamples: int = 1000) -> CurveSummary:
    """Mean, spread, interquartile mean and its interval over the seeds' curves.

    Whole curves are resampled, so the interval at a point is that of the seeds' values there. Where some seeds
    have no value (a run that stopped early), the others are used, and ``count`` says how many those are.

    Args:
        curves: (frames (n,), values (n,)) of each seed; the frames may differ between seeds.
    """
    if not curves:
        raise CapoError("there are no curves to summarise")
    grid = common_grid(curves, points)
    seeds = np.stack([on_grid(frames, values, grid) for frames, values in curves])
    known = ~np.isnan(seeds)
    shape = len(grid)
    mean, std, iqm, low, high = (np.full(shape, np.nan) for _ in range(5))
    # Points with the same seeds are handled together; there are few such groups.
    patterns, group = np.unique(known, axis=1, return_inverse=True) if shape else (known, np.zeros(0, int))
    for index in np.flatnonzero(patterns.any(axis=0)):
        pattern = patterns[:, index]
        here = group.reshape(-1) == index
        values = seeds[np.ix_(pattern, here)]
        mean[here] = values.mean(axis=0)
        std[here] = values.std(axis=0, ddof=1) if len(values) > 1 else 0.0
        iqm[here] = interquartile_mean(values.T)
        low[here], high[here] = _curve_interval(values, resamples)
    return CurveSummary(grid, seeds, known.sum(axis=0), mean, std, iqm, low, high)


def _curve_interval(values: Array, resamples: int) -> tuple[Array, Array]:
    """Bootstrap interval of the interquartile mean of ``values`` (seeds, points) at every point."""
    draws = np.random.default_rng(0).integers(0, len(values), (resamples, len(values)))
    size = max(1, _BLOCK // values.size)
    by_point = np.ascontiguousarray(values.T)  # (points, seeds): sorting runs along memory
    drawn = [
        interquartile_mean(by_point[:, draws[start : start + size]])  # (points, draws, seeds) -> (points, draws)
        for start in range(0, resamples, size)
    ]
    return _interval(np.concatenate(drawn, axis=1).T, LEVEL)
