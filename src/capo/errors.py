"""The exception and the warning that users see, and the wording that many messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CapoError(ValueError):
    """A user's mistake. The message contains what was given, what is allowed, and what to do."""


class CapoWarning(UserWarning):
    """Something that is allowed but not covered by the theory, or that a user should know about."""


def unknown_name(kind: str, given: object, allowed: Iterable[str]) -> CapoError:
    """The error for a name that does not exist, with the nearest names that do."""
    names = sorted(allowed)
    near = difflib.get_close_matches(str(given), names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return CapoError(f"unknown {kind} {given!r}: {hint}allowed: {', '.join(names)}")
