"""Numbers that users give: each check returns the plain value or raises the CapoError that names it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from capo.errors import CapoError


def whole(name: str, value: Any, least: int = 1) -> int:
    """An integer of at least ``least``; 3.0 and numpy's integers count."""
    number = _as_float(value)
    if number is None or not math.isfinite(number) or number != int(number) or number < least:
        kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise CapoError(f"{name}={_show(value)} must be {kind}")
    return int(value)


def positive(name: str, value: Any) -> float:
    """A positive, finite number."""
    number = _as_float(value)
    if number is None or not 0 < number < math.inf:
        raise CapoError(f"{name}={_show(value)} must be positive and finite")
    return number


def between(name: str, value: Any, low: float, high: float) -> float:
    """A number in [low, high]."""
    number = _as_float(value)
    if number is None or not low <= number <= high:
        raise CapoError(f"{name}={_show(value)} must lie in [{low:g}, {high:g}]")
    return number


def seeds(given: Any) -> npt.NDArray[np.int64]:
    """Which seeds: 0..n-1 for a number n, or a list of them."""
    if isinstance(given, Sequence | np.ndarray) and not isinstance(given, str):
        which = [whole("seed", seed, 0) for seed in given]
        if not which:
            raise CapoError("seeds: at least one is needed")
        return np.array(which, np.int64)
    return np.arange(whole("seeds", given))


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool | np.bool_ | str | bytes | complex) or np.ndim(value) != 0:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _show(value: Any) -> str:
    return repr(value.item()) if isinstance(value, np.generic) else repr(value)
