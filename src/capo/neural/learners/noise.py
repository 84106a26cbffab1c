"""Trainings that differ in the noise on their rewards, as rows of one compiled program."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, Metrics, PyTree
from capo.neural.algorithms.base import Algorithm, TrainState
from capo.neural.learners.jitted import JittedLearner
from capo.neural.learners.trials import TrialState, with_blanks
from capo.neural.parts.iterations import Iteration

_DEVIATION = "reward_noise"


class NoiseLearner(JittedLearner):
    """An algorithm on a jitted environment; each row has a seed and a noise on its training rewards.

    Rows are ordered by level, then by seed: row ``level * n_seeds + seed``. A row computes what a training of its
    own on a :class:`capo.envs.noise.NoisyReward` would, with the same random numbers; evaluations have no noise.

    Args:
        env: made by :func:`capo.envs.make`, without noise.
        deviations: standard deviation of the Gaussian noise of each level; 0 is none.
        n_seeds: of each level.
    """

    def __init__(self, algorithm: Algorithm, env: Any, deviations: Sequence[float], n_seeds: int) -> None:
        self.deviations = np.repeat(np.asarray(deviations, np.float32), n_seeds)
        super().__init__(algorithm, env, len(self.deviations))

    def start(self, seeds: Sequence[int]) -> TrialState:
        """The state before the first iteration of every level with every seed."""
        state: Any = self.init([*seeds] * (self.n_seeds // len(seeds)))
        made: TrialState = replace(state, numbers=self.place({_DEVIATION: self.deviations}))
        return made

    def _begin(self, params: PyTree, keys: Array) -> TrialState:
        return with_blanks(super()._begin(params, keys), {_DEVIATION: jnp.zeros(self.n_seeds)})

    def _iterate(self, state: TrainState, iteration: Iteration) -> tuple[TrainState, Metrics]:
        assert isinstance(state, TrialState)
        learner = copy.copy(self)
        learner._steppable = _Noisy(self._steppable, state.numbers[_DEVIATION])
        return JittedLearner._iterate(learner, state, iteration)


class _Noisy:
    """As :class:`capo.envs.noise.NoisyReward`, with a deviation that is an argument of the program."""

    def __init__(self, inner: Any, deviation: Array) -> None:
        self.reset, self._inner, self._deviation = inner.reset, inner, deviation

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        env_key, noise_key = jax.random.split(key)
        env_key = jnp.where(self._deviation > 0, env_key, key)  # without noise there is no wrapper
        env_state, observation, reward, *ends = self._inner.step(env_key, env_state, action)
        reward = reward + self._deviation * jax.random.normal(noise_key)
        return env_state, observation, reward, ends[0], ends[1]
