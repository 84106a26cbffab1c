"""Running mean and variance of observations, and observations normalised by them.

The statistics are part of a run's explicit state: saved with it, exact when it is resumed, one row per seed.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from capo.arrays import Array

LIMIT = 10.0  # normalised numbers are clipped to [-LIMIT, LIMIT]
_TINY = 1e-8  # of the squared mean, added to the variance: a number that never changes becomes 0, not its rounding


class Statistics(NamedTuple):
    """Of all observations so far, each of their numbers on its own."""

    mean: Array  # (*observation_shape) float32
    variance: Array  # (*observation_shape) float32, divided by n
    n: Array  # () float32, how many there were


def start(shape: tuple[int, ...]) -> Statistics:
    """Before the first observation: normalising by these only clips."""
    return Statistics(jnp.zeros(shape), jnp.ones(shape), jnp.zeros(()))


def update(statistics: Statistics, rows: Array) -> Statistics:
    """The statistics with more observations (N, *observation_shape): Chan's parallel formula.

    >>> grown = update(update(start((1,)), jnp.array([[1.0], [3.0]])), jnp.array([[5.0]]))
    >>> grown.mean.tolist(), round(float(grown.variance[0]), 4), float(grown.n)
    ([3.0], 2.6667, 3.0)
    """
    rows = rows.astype(jnp.float32)
    more = jnp.float32(rows.shape[0])
    total = statistics.n + more
    share = more / total
    mean = rows.mean(axis=0)
    change = mean - statistics.mean
    spread = (1 - share) * statistics.variance + share * rows.var(axis=0) + share * (1 - share) * change**2
    return Statistics(statistics.mean + share * change, spread, total)


def apply(statistics: Statistics, numbers: Array) -> Array:
    """Numbers (..., *observation_shape) minus the mean, divided by the standard deviation, clipped; float32."""
    scale = (statistics.variance + _TINY * (1 + statistics.mean**2)) ** -0.5
    return ((numbers.astype(jnp.float32) - statistics.mean) * scale).clip(-LIMIT, LIMIT)
