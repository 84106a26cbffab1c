"""The algorithms by name: each brings its settings with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capo.errors import unknown_name
from capo.neural.a2c import A2CAlgorithm
from capo.neural.algorithm import Algorithm
from capo.neural.ncapo import NCAPOAlgorithm
from capo.neural.offpac import OffPACAlgorithm
from capo.neural.ppo import PPOAlgorithm
from capo.neural.rainbow import RainbowAlgorithm
from capo.neural.settings import Settings

ALGORITHMS: dict[str, type[Algorithm]] = {
    each.name: each for each in (NCAPOAlgorithm, OffPACAlgorithm, A2CAlgorithm, PPOAlgorithm, RainbowAlgorithm)
}


def by_name(name: str) -> type[Algorithm]:
    """The algorithm called ``name``."""
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


def all_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from a file; those that it does not have (yet) are what they are when nothing is said.

    >>> all_settings("ncapo", {"gamma": 0.5})["actor_lambda"]
    1.0
    """
    return by_name(name).Config().to_dict() | dict(settings)


def of(config: Settings) -> type[Algorithm]:
    """The algorithm whose settings these are."""
    return next(each for each in ALGORITHMS.values() if each.Config is type(config))
