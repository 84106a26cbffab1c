"""Running mean and variance of observations, and observations normalised by them.

Only numbers are normalised: bits, bytes (images) and categories have a range that the networks know. The
statistics are part of a run's explicit state: saved with it, exact when it is resumed, one row per seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp

from capo.arrays import Array
from capo.envs.layout import Part
from capo.errors import CapoError

LIMIT = 10.0  # normalised numbers are clipped to [-LIMIT, LIMIT]
_TINY = 1e-8  # of the squared mean, added to the variance: a number that never changes becomes 0, not its rounding


class Statistics(NamedTuple):
    """Of all observations so far, each of their numbers on its own."""

    mean: Array  # (*part.shape) float32
    variance: Array  # (*part.shape) float32, divided by n
    n: Array  # () float32, how many there were


ByPart: TypeAlias = dict[str, Statistics]
"""The statistics of the parts that are normalised, by name; the only part of a plain observation is called ""."""


def check(env_name: str, seen: Sequence[Part]) -> None:
    """Raise if there is nothing to normalise.

    Raises:
        CapoError: says why.
    """
    if not start(seen):
        raise CapoError(
            f"normalise_observations=True, but the observations of {env_name!r} are bits, bytes or categories, "
            "whose range is known: leave it off"
        )


def start(seen: Sequence[Part]) -> ByPart:
    """Before the first observation: normalising by these only clips."""
    numbers = [part for part in seen if part.dtype in ("float32", "int32") and not part.classes]
    return {part.name: Statistics(jnp.zeros(part.shape), jnp.ones(part.shape), jnp.zeros(())) for part in numbers}


def update(statistics: ByPart, values: Mapping[str, Array], counted: Array | None = None) -> ByPart:
    """The statistics with more observations: arrays (N, *part.shape) by name.

    Args:
        counted: (N,) 1 for an observation that counts, 0 for one that does not; all of them if not given.
    """
    if counted is None:
        return {name: _grown(old, values[name].astype(jnp.float32)) for name, old in statistics.items()}
    return {name: _grown_by(old, values[name].astype(jnp.float32), counted) for name, old in statistics.items()}


def apply(statistics: ByPart, values: Mapping[str, Array]) -> dict[str, Array]:
    """The parts that have statistics, (..., *part.shape) by name, normalised and clipped; float32.

    >>> seen = (Part("", (1,), "float32"),)
    >>> grown = update(update(start(seen), {"": jnp.array([[1.0], [3.0]])}), {"": jnp.array([[5.0]])})
    >>> grown[""].mean.tolist(), round(float(grown[""].variance[0]), 4), float(grown[""].n)
    ([3.0], 2.6667, 3.0)
    >>> apply(grown, {"": jnp.array([[3.0], [99.0]])})[""].tolist()
    [[0.0], [10.0]]
    """
    return {name: _normalised(one, values[name].astype(jnp.float32)) for name, one in statistics.items()}


def _grown(old: Statistics, rows: Array) -> Statistics:
    """The statistics of ``old`` and of these rows."""
    return _joined(old, jnp.float32(rows.shape[0]), rows.mean(axis=0), rows.var(axis=0))


def _grown_by(old: Statistics, rows: Array, counted: Array) -> Statistics:
    """The same by those rows alone that count; at least one does."""
    mean = jnp.average(rows, axis=0, weights=counted)
    variance = jnp.average((rows - mean) ** 2, axis=0, weights=counted)
    return _joined(old, counted.sum(), mean, variance)


def _joined(old: Statistics, more: Array, mean: Array, variance: Array) -> Statistics:
    """The statistics of ``old`` and of ``more`` observations with this mean and variance (Chan's formula)."""
    total = old.n + more
    share = more / total
    change = mean - old.mean
    spread = (1 - share) * old.variance + share * variance + share * (1 - share) * change**2
    return Statistics(old.mean + share * change, spread, total)


def scale_of(statistics: Statistics) -> tuple[Array, Array]:
    """What is subtracted from numbers, and what they are multiplied by then, (*part.shape) both."""
    return statistics.mean, (statistics.variance + _TINY * (1 + statistics.mean**2)) ** -0.5


def _normalised(statistics: Statistics, numbers: Array) -> Array:
    mean, scale = scale_of(statistics)
    return ((numbers - mean) * scale).clip(-LIMIT, LIMIT)
