"""Opponents in games of two: a random one, a function, or an agent that was trained.

Environments lie below the agents and cannot load one. The module that can says how, with :func:`load_with`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from capo.arrays import Array
from capo.errors import CapoError

Opponent: TypeAlias = Callable[[Array, Array, Array], Array]
"""A pure function of a key, an observation and the mask (A,) of legal actions; returns a legal action."""

RANDOM = "random"
_loaders: list[Callable[[Any, Any], Opponent]] = []


def load_with(loader: Callable[[Any, Any], Opponent]) -> None:
    """Use ``loader(agent or path, game)`` for opponents that are agents."""
    _loaders[:] = [loader]


def random_opponent(key: Array, observation: Array, mask: Array) -> Array:
    """A legal action, all of them equally likely."""
    del observation
    return jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf))


def find(given: Any, game: Any) -> Opponent:
    """What the user calls an opponent, as a function.

    Args:
        given: None or ``"random"``, a function, an agent, or the path of a run or a saved agent.
        game: that the opponent plays, with a random opponent of its own: agents are loaded for it.
    """
    if given is None or given == RANDOM:
        return random_opponent
    if callable(given):
        function: Opponent = given
        return function
    if not _loaders:
        raise CapoError(f"the opponent {given!r} needs the agents: import capo.neural.algorithms.registry first")
    return _loaders[0](given, game)
