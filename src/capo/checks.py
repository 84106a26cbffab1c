"""Checks of the numbers that users give: each returns the plain value, or raises a CapoError that names it."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from capo.errors import CapoError, unknown_name

MAX_SEEDS = 10_000  # of one agent
MAX_TABULAR_SEEDS = 10_000_000  # of one call of solve_many


def whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """An integer of at least ``least`` and at most ``most``; 3.0 and numpy's integers count."""
    number = _as_float(value)
    wrong = number is None or not math.isfinite(number) or number != int(number) or number < least
    if wrong or (most is not None and int(value) > most):
        kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise CapoError(f"{name}={_show(value)} must be {kind}" + (f" of at most {most:,}" if most else ""))
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
        raise CapoError(f"{name}={_show(value)} must be between {low:g} and {high:g}")
    return number


def seeds(given: Any) -> npt.NDArray[np.int64]:
    """The seeds (n,) of a tabular run: 0 to n - 1 for a number n, or the list that was given."""
    if isinstance(given, Sequence | np.ndarray) and not isinstance(given, str) and has_items(given):
        which = [whole("seed", seed, 0) for seed in given]
        if not which:
            raise CapoError(f"seeds={given!r} must have at least one seed")
        return np.array(which, np.int64)
    return np.arange(whole("seeds", given, most=MAX_TABULAR_SEEDS))


def has_items(given: Any) -> bool:
    """Whether something that calls itself iterable is: a single number of numpy does, and is not."""
    return getattr(given, "ndim", None) != 0


def as_path(call: str, given: Any) -> Path:
    """The name of a file or folder."""
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise CapoError(f"{call}: {given!r} is not the name of a file or folder")
    return Path(given)


def printable(name: str, given: Any) -> str:
    """Text that is safe to show on a screen: one line, without control characters."""
    if not isinstance(given, str) or not given.isprintable():
        raise CapoError(f"{name}={given!a} must be printable text, on one line")
    return given


def one_of(kind: str, given: Any, allowed: Collection[str]) -> str:
    """One of the names that are allowed; ``kind`` is what they name."""
    if not isinstance(given, str) or given not in allowed:
        raise unknown_name(kind, given, allowed)
    return given


def check_seed(value: Any) -> int:
    """A seed of jax's random keys."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**31:
        raise CapoError(f"seed={_show(value)} must be an integer from 0 to 2**31 - 1")
    return int(value)


def seeds_from(first: Any, given: Any) -> list[int]:
    """The seeds of an agent.

    Args:
        first: the seed, or the first of several.
        given: how many seeds there are from ``first`` on, the list of them, or None for ``first`` alone.

    >>> seeds_from(3, None), seeds_from(3, 2), seeds_from(0, [5, 9])
    ([3], [3, 4], [5, 9])
    """
    if given is None:
        return [check_seed(first)]
    if isinstance(given, Sequence | np.ndarray) and not isinstance(given, str) and has_items(given):
        chosen = [check_seed(one) for one in given]
        if not chosen or len(set(chosen)) != len(chosen):
            raise CapoError(f"seeds={given!r} must contain at least one seed and no duplicates")
        if len(chosen) > MAX_SEEDS:
            raise CapoError(f"{len(chosen):,} seeds were given; at most {MAX_SEEDS:,} can be trained at once")
        return chosen
    start = check_seed(first)
    return [check_seed(one) for one in range(start, start + whole("seeds", given, most=MAX_SEEDS))]


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool | np.bool_ | str | bytes | complex) or np.ndim(value) != 0:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _show(value: Any) -> str:
    return repr(value.item()) if isinstance(value, np.generic) else repr(value)
