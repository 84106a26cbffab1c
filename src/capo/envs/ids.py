"""Gymnasium ids: ``CartPole-v1``, ``module:id``, ``FrozenLake-v1,map_name=8x8``."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import Any

from capo.envs.failures import describe_error
from capo.errors import CapoError


def registry() -> Mapping[str, Any]:
    """Gymnasium's environments by id; empty if it is not installed."""
    try:
        import gymnasium
    except ImportError:
        return {}
    found: Mapping[str, Any] = gymnasium.registry
    return found


def is_gymnasium_id(name: str) -> bool:
    """Whether ``name`` is a Gymnasium id, with or without a module in front and arguments behind it.

    A module in front is imported, and MinAtar's own ids are registered.
    """
    known = registry()
    if not known:
        return False
    if name.startswith("MinAtar/") and name not in known:
        try:
            importlib.import_module("minatar.gym").register_envs()
        except ImportError as error:
            raise CapoError("MinAtar/ ids need the package 'minatar': pip install minatar") from error
    module, _, name = split_id(name)[0].rpartition(":")
    if module:
        try:
            importlib.import_module(module)  # registers its environments
        except Exception as error:  # also what the module itself raises
            raise CapoError(f"{module}:{name}: importing {module} raised {describe_error(error)}") from error
    return name in known


def split_id(name: str) -> tuple[str, dict[str, Any]]:
    """An id and the arguments behind it.

    >>> split_id("FrozenLake-v1,map_name=8x8,is_slippery=false")
    ('FrozenLake-v1', {'map_name': '8x8', 'is_slippery': False})
    """
    name, *parts = name.split(",")
    arguments = {}
    for part in parts:
        key, equals, text = part.partition("=")
        if not equals or not key.isidentifier():
            raise CapoError(
                f"{part!r}: a Gymnasium id may only be followed by arguments, as in FrozenLake-v1,map_name=8x8"
            )
        try:
            arguments[key] = json.loads(text)
        except ValueError:
            arguments[key] = {"True": True, "False": False, "None": None}.get(text, text)
    return name, arguments
