"""Suites of environments written in jax, by name (``gymnax:CartPole-v1``) or as the suites' own objects.

A suite's package is imported when one of its environments is made, and needs an extra of the same name.
"""

from __future__ import annotations

import importlib.metadata
from types import ModuleType
from typing import Any

from capo.envs import ids
from capo.envs.suites import craftax, gymnax, jumanji, navix, pgx
from capo.envs.suites.common import Adapter
from capo.errors import CapoError, unknown_name

__all__ = ["SUITES", "Adapter", "adapt", "by_name", "installed", "names", "suite_of_name", "suite_of_object"]

SUITES: dict[str, ModuleType] = dict(zip(ids.SUITES, (gymnax, pgx, jumanji, craftax, navix), strict=True))


def installed(suite: str) -> str | None:
    """The version of a suite's package, or None if it is not installed; nothing is imported."""
    try:
        return importlib.metadata.version(suite)
    except importlib.metadata.PackageNotFoundError:
        return None


def suite_of_name(name: str) -> str | None:
    """The suite of a name such as ``pgx:2048``; None for any other."""
    suite, colon, _ = name.partition(":")
    return suite if colon and suite in SUITES else None


def suite_of_object(env: Any) -> str | None:
    """The suite whose class an object's is or inherits from; None for any other object."""
    if isinstance(env, tuple) and len(env) == 2:  # what gymnax.make returns
        return "gymnax" if suite_of_object(env[0]) == "gymnax" else None
    roots = [base.__module__.partition(".")[0] for base in type(env).__mro__]
    return next((root for root in roots if root in SUITES), None)


def by_name(name: str) -> Adapter:
    """The environment called ``suite:id`` or ``suite:id,argument=value``.

    Raises:
        CapoError: if the suite is not installed, or has no such environment, or not with these arguments.
    """
    suite, _, rest = name.partition(":")
    if installed(suite) is None:
        raise ids.missing_suite(name, suite)
    env_id, arguments = ids.split_id(rest)
    if ids.wrappers_of(rest):
        raise CapoError(f"{name!r}: Gymnasium's wrappers do not fit the environments of {suite}")
    known = names(suite)
    if env_id not in known:
        raise unknown_name(f"environment of {suite}", env_id, known)
    made: Adapter = SUITES[suite].make(name, env_id, arguments)
    return made


def names(suite: str) -> list[str]:
    """The ids of a suite that is installed.

    Raises:
        CapoError: if its package cannot be imported.
    """
    try:
        found: list[str] = SUITES[suite].names()
    except ImportError as error:
        raise CapoError(
            f"{suite} cannot be imported: {error}; install it: pip install 'capo-rl[{suite}]'"
        ) from error
    return found


def adapt(env: Any) -> Adapter:
    """The adapter of a suite's own object."""
    suite = suite_of_object(env)
    assert suite is not None
    made: Adapter = SUITES[suite].adapt(env)
    return made
