"""Presets in files: what ``capo tune`` writes, and what ``--preset FILE`` and ``preset="file.toml"`` read.

    algorithm = "ncapo"
    preset = "default"                 # the preset that the settings are changes of
    environment = "minatar-breakout"   # what they were tuned on; only for people

    [settings]
    gamma = 0.995
    learning_rate = 0.001

A file may come from a stranger: it holds values only, every one of them is checked, and what does not belong there
is an error.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capo.errors import CapoError, unknown_name
from capo.files import write_text
from capo.neural.algorithms.settings import Settings, check_value, field_kinds, override

SUFFIX = ".toml"
MAX_BYTES = 100_000
_KEYS = ("algorithm", "preset", "environment", "settings")


@dataclass(frozen=True)
class Preset:
    """What a preset file says.

    Attributes:
        name: of the preset that it changes.
        settings: the changes, checked one by one.
    """

    name: str
    settings: dict[str, Any]


def is_preset_file(given: Any) -> bool:
    """Whether a preset was given as a file rather than by its name."""
    return isinstance(given, os.PathLike) or (isinstance(given, str) and given.endswith(SUFFIX))


def read_preset(path: str | os.PathLike[str], algorithm: str, kind: type[Settings]) -> Preset:
    """The preset in a file.

    Args:
        path: of the file.
        algorithm: the name of the algorithm it must be for.
        kind: the settings of that algorithm.

    Raises:
        CapoError: if the file can't be read, or anything in it is not as it must be.
    """
    content = read_toml(path, "a preset")
    for key in content:
        if key not in _KEYS:
            raise CapoError(f"{path}: {unknown_name('entry', key, _KEYS)}")
    for key in ("algorithm", "preset", "environment"):
        if not isinstance(content.get(key, "" if key == "environment" else None), str):
            raise CapoError(f'{path}: a preset file needs a line such as {key} = "..."')
    if content["algorithm"] != algorithm:
        raise CapoError(f"{path} is a preset for {content['algorithm']}, not for {algorithm}")
    if content["preset"] not in kind.PRESETS:
        raise CapoError(f"{path}: {unknown_name('preset', content['preset'], kind.PRESETS)}")
    settings = content.get("settings")
    if not isinstance(settings, dict):
        raise CapoError(f"{path}: a preset file needs a table [settings]; it may be empty")
    try:
        checked = {name: _checked(kind, name, value) for name, value in settings.items()}
        override(kind.preset(content["preset"]), checked)  # together
    except CapoError as error:
        raise CapoError(f"{path}: {error}") from None
    return Preset(content["preset"], checked)


def _checked(kind: type[Settings], name: str, value: Any) -> Any:
    found = field_kinds(kind).get(name)
    if found is not None and not found.choices and found.type is not str and isinstance(value, str):
        raise CapoError(f"{name}={value!r} must be a {'boolean' if found.type is bool else 'number'}, not text")
    if not isinstance(value, int | float | str):  # a table, a list or a date
        raise CapoError(f"{name} must be a single value, not {type(value).__name__}")
    return check_value(kind, name, value)


def read_toml(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """A TOML file of a user, small enough to be one.

    Raises:
        CapoError: if there is no such file, it is too large, or it is not TOML.
    """
    file = Path(path)
    if not file.is_file():
        raise CapoError(f"{file}: no such file; give {what} as a {SUFFIX} file")
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise CapoError(f"{file} is larger than {MAX_BYTES // 1000} kB, so it is not {what}")
        return tomllib.loads(content.decode())
    except OSError as error:
        raise CapoError(f"{file} cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise CapoError(f"{file} is not a valid TOML file ({error})") from None


def write_preset(
    path: Path,
    *,
    algorithm: str,
    preset: str,
    environment: str,
    settings: Mapping[str, Any],
    comments: Sequence[str] = (),
) -> Path:
    """Write a preset file; the comments stand above it, a line each."""
    head = {"algorithm": algorithm, "preset": preset, "environment": environment}
    lines = [
        *(f"# {' '.join(text.split())}" for text in comments),
        *(f"{key} = {_value(value)}" for key, value in head.items()),
        "",
        "[settings]",
        *(f"{key} = {_value(value)}" for key, value in settings.items()),
    ]
    return write_text(path, "\n".join(lines) + "\n")


def _value(value: Any) -> str:
    """A text, number or boolean in TOML, which has JSON's words for them."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False)
