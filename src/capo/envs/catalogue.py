"""What environments there are: by group, without making them."""

from __future__ import annotations

import importlib.metadata

from capo.envs import suites
from capo.envs.ids import registry
from capo.envs.minatar.games import NAMES

EXTRAS = {"gymnasium": "gym"}  # of the groups whose extra has another name
_PACKAGES = {"minatar": "pgx"}


def version(group: str) -> str | None:
    """The version of the package behind a group (``minatar``, ``gymnasium`` or a suite); None if there is none."""
    try:
        return importlib.metadata.version(_PACKAGES.get(group, group))
    except importlib.metadata.PackageNotFoundError:
        return None


def slow(name: str) -> str | None:
    """Why an environment takes long to be made, or needs the network; None if it does not."""
    suite = suites.suite_of_name(name)
    reasons: dict[str, str] = getattr(suites.SUITES[suite], "SLOW", {}) if suite else {}
    return reasons.get(name.partition(":")[2])


def names(group: str) -> list[str]:
    """The names of a group's environments, as :func:`capo.envs.make` takes them.

    Of Gymnasium's only the newest versions, and not those that another simulator has to be installed for.
    """
    if group == "minatar":
        return list(NAMES)
    if group == "gymnasium":
        newest: dict[str, tuple[int, str]] = {}
        for env_id, spec in registry().items():
            if spec.namespace is None and "mujoco" not in str(spec.entry_point):
                found = (spec.version or 0, env_id)
                newest[spec.name] = max(found, newest.get(spec.name, found))
        return sorted(env_id for _, env_id in newest.values())
    return [f"{group}:{env_id}" for env_id in suites.names(group)]
