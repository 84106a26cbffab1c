"""What environments there are: by group, without making them."""

from __future__ import annotations

import importlib
import importlib.metadata

from capo.envs import atari, suites
from capo.envs.ids import registry
from capo.envs.minatar.games import NAMES

EXTRAS = {"gymnasium": "gym"}  # of the groups whose extra has another name
_PACKAGES = {"minatar": "pgx", "atari": "ale-py"}
# MiniGrid's observations come with a text; this wrapper takes their image alone.
_IMAGE_ONLY = ",wrapper=minigrid.wrappers:ImgObsWrapper"


def version(group: str) -> str | None:
    """The version of the package behind a group (``gymnasium``, a suite, ...); None if there is none."""
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

    Of Gymnasium's only the newest versions, and not those that another simulator has to be installed for, nor
    those of other groups.
    """
    if group == "minatar":
        return list(NAMES)
    if group == "atari":
        return atari.names()
    if group == "minigrid":
        importlib.import_module("minigrid")  # registers its environments
        ids = [env_id for env_id, spec in registry().items() if str(spec.entry_point).startswith("minigrid.")]
        return sorted(env_id + _IMAGE_ONLY for env_id in ids)
    if group == "gymnasium":
        newest: dict[str, tuple[int, str]] = {}
        for env_id, spec in registry().items():
            elsewhere = ("mujoco" in str(spec.entry_point), str(spec.entry_point).startswith("minigrid."))
            if spec.namespace is None and not any(elsewhere):
                found = (spec.version or 0, env_id)
                newest[spec.name] = max(found, newest.get(spec.name, found))
        return sorted(env_id for _, env_id in newest.values())
    return [f"{group}:{env_id}" for env_id in suites.names(group)]
