"""Values that change during training, as functions of its progress."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from capo.arrays import Array
from capo.envs.failures import describe_error
from capo.errors import CapoError

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


class OwnSchedule:
    """A user's function of the progress, from 0 at the start to 1 at the horizon, where it stays.

    It is called at :data:`POINTS` + 1 places before the training and interpolated between them, so it may be any
    Python function.

    Args:
        name: of what it is a schedule.
        function: from a float to a number.
        allowed: the range of that number, both ends included (``low`` and ``high``).

    Raises:
        CapoError: if the function fails, or returns something else.
    """

    POINTS = 10_000

    def __init__(self, name: str, function: Callable[[float], Any], allowed: Any) -> None:
        places = np.arange(self.POINTS + 1) / self.POINTS
        try:
            values = np.array([float(function(float(place))) for place in places])
        except Exception as error:
            raise CapoError(
                f"{name}: the function of the progress (a number from 0 to 1) raised {describe_error(error)}"
            ) from error
        least = 0.0 if allowed.low < 1e-9 else allowed.low  # a rate may be 0 at times
        wrong = ~((values >= least) & (values <= allowed.high) & np.isfinite(values))
        if wrong.any() or (name == "learning_rate" and not values.any()):
            at = int(wrong.argmax())
            raise CapoError(
                f"{name}: the function returned {values[at]:g} at progress {places[at]:g}; it must be {allowed}"
            )
        self._table = values.astype(np.float32)
        self.first, self.last, self.largest = float(values[0]), float(values[-1]), float(values.max())
        self.digest = hashlib.sha256(self._table.tobytes()).hexdigest()[:16]

    def __call__(self, progress: Array) -> Array:
        """The value at a progress, a scalar; beyond 1 it is that at 1."""
        at = jnp.clip(progress, 0.0, 1.0) * self.POINTS
        below = jnp.minimum(at.astype(jnp.int32), self.POINTS - 1)
        table = jnp.asarray(self._table)
        return table[below] + (at - below) * (table[below + 1] - table[below])
