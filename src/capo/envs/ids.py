"""Names: ``CartPole-v1``, ``module:id``, ``FrozenLake-v1,map_name=8x8``, ``id,wrapper=module:Class``, ``pgx:``."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping
from typing import Any

from capo.envs.failures import describe_error
from capo.errors import CapoError
from capo.modules import without_current_folder

SUITES = ("gymnax", "pgx", "jumanji", "craftax", "navix")  # packages that a name may import without being asked
WRAPPER = "wrapper"  # the argument that names a wrapper; there may be several, the first one is the innermost
# Whose wrappers a file may name without consent: importing them runs no code of a stranger's.
KNOWN_WRAPPERS = ("gymnasium.wrappers", "minigrid.wrappers")


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

    A module in front is imported, and the ids of MinAtar and MiniGrid are registered.
    """
    known = registry()
    if not known:
        return False
    if name.startswith("MinAtar/") and name not in known:
        try:
            importlib.import_module("minatar.gym").register_envs()
        except ImportError as error:
            raise CapoError("MinAtar/ ids need the package 'minatar': pip install minatar") from error
    if name.startswith(("MiniGrid-", "BabyAI-")) and split_id(name)[0] not in known:
        try:
            with without_current_folder():  # the id may come from a file
                importlib.import_module("minigrid")  # registers its environments
        except ImportError as error:
            raise CapoError(f"{name} needs the package 'minigrid': pip install 'capo-rl[minigrid]'") from error
    module, _, name = split_id(name)[0].rpartition(":")
    if module:
        try:
            importlib.import_module(module)  # registers its environments
        except Exception as error:  # also what the module itself raises
            raise CapoError(f"{module}:{name}: importing {module} raised {describe_error(error)}") from error
    return name in known


def check_consent(name: str, trust: bool) -> None:
    """Refuse an environment's name that comes from a file and would run code, unless the user trusts the file.

    A registered id is harmless, and so are the suites, which are known packages. What imports another module, or
    has an argument that names a module or a file (a wrapper, an opponent), is not.

    Raises:
        CapoError: without consent.
    """
    plain, *arguments = name.split(",")
    module, _, _ = plain.rpartition(":")
    odd = next(filter(_is_odd, arguments), "")
    known = not module or module in SUITES or module in sys.modules  # what is imported runs no code again
    if trust or (known and not odd):
        return
    what = f"has the argument {odd!r}" if odd else f"imports the module {module!r}"
    raise CapoError(
        f"the environment {name!r} in the file {what}, which can run any code: if you trust the source of "
        "the file, allow it with --allow-import (in Python: trust=True)"
    )


def prepare_named_in_file(name: str, trust: bool) -> None:
    """What an environment's name needs before it is used, if it comes from a file and not from the user.

    A registered id needs nothing. A name that would import a module runs that module's code: the user has to say
    that he trusts the file, and even then the current folder, where a stranger's files may lie, is not searched.
    The suites need no consent, unless an argument names another file: an opponent.

    Raises:
        CapoError: without consent, or if the module cannot be imported.
    """
    check_consent(name, trust)
    module, _, _ = name.split(",")[0].rpartition(":")
    if module in SUITES:
        with without_current_folder():  # before it is searched, too
            if importlib.util.find_spec(module) is None:
                raise missing_suite(name, module)
    wanted = [module] if module and module not in sys.modules else []
    for one in [*wanted, *(text.partition(":")[0] for text in wrappers_of(name))]:
        with without_current_folder():
            try:
                importlib.import_module(one)
            except Exception as error:  # also what the module itself raises
                raise CapoError(
                    f"{name}: importing {one} raised {describe_error(error)}; for a name from a file the "
                    "current folder is not searched: install the module, or put its folder on PYTHONPATH as an "
                    "absolute path"
                ) from error


def missing_suite(name: str, suite: str) -> CapoError:
    """The error for an environment whose suite is not installed."""
    return CapoError(f"{name!r} needs the extra {suite!r}: pip install 'capo-rl[{suite}]'")


def _is_odd(argument: str) -> bool:
    """Whether an argument of an id may lead to other code or files: a wrapper, an opponent."""
    key, _, text = argument.partition("=")
    if key == WRAPPER:
        return text.partition(":")[0] not in KNOWN_WRAPPERS
    return any(sign in argument for sign in ":/\\") or (key == "opponent" and text != "random")


def split_id(name: str) -> tuple[str, dict[str, Any]]:
    """An id and the arguments behind it, without the wrappers.

    >>> split_id("FrozenLake-v1,map_name=8x8,is_slippery=false")
    ('FrozenLake-v1', {'map_name': '8x8', 'is_slippery': False})
    """
    name, *parts = name.split(",")
    arguments = {}
    for part in parts:
        key, equals, text = part.partition("=")
        if not equals or not key.isidentifier():
            raise CapoError(
                f"{part!r}: a name may only be followed by arguments, as in FrozenLake-v1,map_name=8x8"
            )
        if key == WRAPPER:
            continue
        try:
            arguments[key] = json.loads(text)
        except ValueError:
            arguments[key] = {"True": True, "False": False, "None": None}.get(text, text)
    return name, arguments


def wrappers_of(name: str) -> list[str]:
    """The wrappers that an id asks for, the innermost first.

    >>> wrappers_of("CarRacing-v3,continuous=false,wrapper=gymnasium.wrappers:GrayscaleObservation")
    ['gymnasium.wrappers:GrayscaleObservation']
    """
    parts = (part.partition("=") for part in name.split(",")[1:])
    return [text for key, _, text in parts if key == WRAPPER]


def find_wrapper(text: str) -> Any:
    """The wrapper ``module:name``: anything that takes an environment and returns one.

    Raises:
        CapoError: if there is no such module, or no such name in it.
    """
    module, colon, name = text.partition(":")
    if not colon or not module or not name.isidentifier():
        raise CapoError(f"wrapper={text}: give it as module:name, such as gymnasium.wrappers:FlattenObservation")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # also what the module itself raises
        raise CapoError(f"wrapper={text}: importing {module} raised {describe_error(error)}") from error
    if not callable(found) or (module in KNOWN_WRAPPERS and not _is_wrapper(found)):
        raise CapoError(f"wrapper={text}: {module} has no wrapper called {name}")
    return found


def _is_wrapper(found: Any) -> bool:
    import gymnasium

    return isinstance(found, type) and issubclass(found, gymnasium.Wrapper)
