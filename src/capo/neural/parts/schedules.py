"""Values that change during training, as functions of its progress."""

from __future__ import annotations

from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from capo.arrays import Array

Schedule = Literal["constant", "linear"]


def decay(start: float, schedule: Schedule, progress: Array) -> Array:
    """``start``; if the schedule is linear, it falls to 0 as ``progress`` goes from 0 to 1 and stays there."""
    if schedule == "constant":
        return jnp.full((), start)
    return start * jnp.maximum(1.0 - progress, 0.0)


def epsilon(frames: Array | np.floating[Any], *, start: float, final: float, over: float) -> Array:
    """Chance of a uniform action after ``frames``: linear from ``start`` to ``final`` over ``over`` frames.

    >>> [float(epsilon(jnp.float32(f), start=0.5, final=0.25, over=100)) for f in (0, 50, 1000)]
    [0.5, 0.375, 0.25]
    """
    progress = jnp.minimum(frames / max(over, 1.0), 1.0)
    return start + (final - start) * progress
