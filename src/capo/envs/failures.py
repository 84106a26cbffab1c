"""Failures of a user's environment: whatever it raises or returns wrongly becomes one kind of error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from capo.errors import CapoError


class EnvironmentFailed(CapoError):
    """A Gymnasium environment raised an error, or returned a reward or an observation that is not a number."""


@contextlib.contextmanager
def environment_call(method: str) -> Iterator[None]:
    """Turn whatever a user's environment raises into an :class:`EnvironmentFailed` that names the ``method``."""
    try:
        yield
    except EnvironmentFailed:
        raise
    except Exception as error:
        raise EnvironmentFailed(f"its {method} raised {describe_error(error)}") from error


@contextlib.contextmanager
def failure_context(where: str, consequence: str = "") -> Iterator[None]:
    """Add to an :class:`EnvironmentFailed` where it happened and what follows from it.

    The environment's own error stays the cause.
    """
    try:
        yield
    except EnvironmentFailed as error:
        raise EnvironmentFailed(f"{where}: {error}{consequence and f'. {consequence}'}") from error.__cause__


def describe_error(error: Exception) -> str:
    """The type of an error, and its message if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
