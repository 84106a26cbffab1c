"""What a stored run says about the version of capo that made it, beside what this version would compute."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capo.errors import CapoError, CapoWarning
from capo.neural.algorithms.settings import Settings, field_kinds
from capo.runs import schema, semantics


def version_difference(path: Path, content: Mapping[str, Any], kind: type[Settings]) -> str:
    """What this version would compute differently from the one that wrote a file; empty if nothing."""
    found = semantics.difference(content)
    if missing := [name for name in field_kinds(kind) if name not in content["config"]]:
        defaults = kind().to_dict()
        values = ", ".join(f"{name}={schema.shown(defaults[name])}" for name in missing)
        found.append(f"it does not record these settings, so they take their defaults {values}")
    return f"{path}: {'; '.join(found)}" if found else ""


def check_version(path: Path, content: Mapping[str, Any], kind: type[Settings], anyway: bool) -> None:
    """Raise if a run was made by a version with other results, unless ``anyway``; warn of settings it lacks."""
    different = version_difference(path, content, kind)
    if semantics.difference(content) and not anyway:
        raise CapoError(
            f"{different}. To continue nevertheless: --anyway (in Python: anyway=True), or use the version of "
            "capo that wrote it"
        )
    if different:
        warnings.warn(different, CapoWarning, stacklevel=5)


def check_same_settings(path: Path, now: Settings, then: Settings) -> None:
    """Raise if config.json (``now``) has other settings than the checkpoint (``then``).

    A new horizon reaches the checkpoint a moment before config.json; the checkpoint counts.
    """
    there = then.to_dict()
    keys = sorted(key for key, value in now.to_dict().items() if value != there[key] and key != "horizon")
    if keys:
        raise CapoError(
            f"{path}: config.json has changed since the checkpoint was written ({', '.join(keys)}): to continue "
            "the same run, change it back; for other settings, start a new run"
        )
