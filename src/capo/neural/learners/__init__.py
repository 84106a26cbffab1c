"""Learners: an algorithm on an environment inside jax, or on one that the host steps."""

from __future__ import annotations

from typing import Any

from capo import envs
from capo.neural.algorithms.base import Algorithm
from capo.neural.learners.behaviours import Behaviour
from capo.neural.learners.host import HostLearner
from capo.neural.learners.jitted import JittedLearner
from capo.neural.learners.protocol import Learner

__all__ = ["Behaviour", "HostLearner", "JittedLearner", "Learner", "make_learner"]


def make_learner(
    algorithm: Algorithm, env: Any, n_seeds: int = 1, eval_env: Any = None, behaviour: Behaviour | None = None
) -> Learner:
    """The learner for an environment made by :func:`capo.envs.make`; see :class:`Learner` for the arguments."""
    kind: type[Learner] = JittedLearner if envs.is_jitted(env) else HostLearner
    learner = kind(algorithm, env, n_seeds, eval_env)
    learner.behaviour = behaviour
    return learner
