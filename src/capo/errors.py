"""The one exception users meet, and the helpers that word it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CapoError(ValueError):
    """A user's mistake: says what was given, what is allowed, and what to do."""


class CapoWarning(UserWarning):
    """Something allowed but outside what the theory covers."""


def unknown_name(kind: str, given: object, allowed: Iterable[str]) -> CapoError:
    """The error for a name that does not exist, with the nearest names that do."""
    names = sorted(allowed)
    near = difflib.get_close_matches(str(given), names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return CapoError(f"unknown {kind} {given!r}: {hint}allowed are {', '.join(names)}")
