"""The number that says which results this version of capo computes.

Two versions with the same number train the same run to the same result, up to rounding. It is raised whenever
results change: ``tests/golden`` fails if golden numbers move and it does not. Every checkpoint and config.json
records it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SEMANTICS = 1

# What a run would compute differently since the number before, in a few words for the message.
CHANGES: Mapping[int, str] = {1: "the first number"}


def difference(content: Mapping[str, Any]) -> list[str]:
    """How the results of a stored run differ from what this version would compute, in words; empty if they do not.

    Args:
        content: of config.json or a checkpoint.
    """
    found = content.get("semantics")
    if found == SEMANTICS:
        return []
    version = content.get("versions", {}).get("capo-rl", "unknown")
    if found is None:
        who = f"written by a version of capo ({version}) that did not yet number its results"
        return [f"{who}; those of this version have number {SEMANTICS} and may differ"]
    who = (
        f"written by capo {version}, whose results have number {found}; those of this version have number "
        f"{SEMANTICS}"
    )
    if found > SEMANTICS:
        return [f"{who}: the file is from a newer version of capo"]
    changed = "; ".join(f"{number}: {CHANGES[number]}" for number in range(found + 1, SEMANTICS + 1))
    return [f"{who} ({changed})"]
