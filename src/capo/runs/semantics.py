"""The number that says which results this version of capo computes.

Two versions with the same number train the same run to the same result, up to rounding. It is raised whenever results
change: ``tests/golden`` fails if golden numbers move and it does not. Every checkpoint and config.json records it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SEMANTICS = 1

# What a run would compute differently since the number before, in a few words for the message.
CHANGES: Mapping[int, str] = {1: "the first number"}


def difference(path: Path, content: Mapping[str, Any]) -> str:
    """How the results of a stored run differ from what this version would compute; empty if they do not.

    Args:
        path: of the file, for the message.
        content: of config.json or a checkpoint.
    """
    found = content.get("semantics")
    if found == SEMANTICS:
        return ""
    version = content.get("versions", {}).get("capo-rl", "unknown")
    if found is None:
        who = f"was written by a version of capo ({version}) that did not number its results yet"
        return f"{path}: {who}; this one computes results number {SEMANTICS}, which may differ"
    who = f"was written by capo {version}, whose results have number {found}; this one's have {SEMANTICS}"
    if found > SEMANTICS:
        return f"{path}: {who}: it is newer than this capo"
    changed = "; ".join(f"{number}: {CHANGES[number]}" for number in range(found + 1, SEMANTICS + 1))
    return f"{path}: {who} ({changed})"
