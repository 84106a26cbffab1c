"""Many trials as one program: settings that are plain numbers are arguments of it, one value per trial.

A tuning tries the same training with other numbers. Here the numbers are part of the state that the compiled program
takes, so trials x seeds are the rows of one vmapped program, and other numbers need no new compilation. Which
settings can be given so is a matter of their type: see :class:`capo.neural.algorithms.settings.Traced`.

A row computes what a training of its own with these settings would: the same random numbers in the same order. The
last bits may differ, since a compiler folds a constant (``gamma * lambda`` in double precision, a division turned
into a product) where it can't fold an argument.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, Metrics, PyTree
from capo.errors import CapoError
from capo.neural.algorithms.base import Algorithm, TrainState
from capo.neural.algorithms.settings import with_traced
from capo.neural.learners.jitted import JittedLearner

Numbers = Mapping[str, float]  # the settings of one trial, by name


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrialState(TrainState):
    """The state of K = trials x seeds rows, and the numbers that each of them trains with."""

    numbers: dict[str, Array]  # name to (K,) float32


class TrialsLearner(JittedLearner):
    """An algorithm on a jitted environment; each row has a seed and settings of its own.

    Rows are ordered by trial, then by seed: row ``trial * seeds + seed``.

    Args:
        algorithm: with the settings that all trials share.
        env: made by :func:`capo.envs.make`.
        names: the settings that each trial has for itself; all of them traced.
        n_rows: trials x seeds.
    """

    def __init__(self, algorithm: Algorithm, env: Any, names: Sequence[str], n_rows: int) -> None:
        self.names = tuple(names)
        with_traced(algorithm.config, dict.fromkeys(self.names))  # raises if one of them can't be
        super().__init__(algorithm, env, n_rows)

    def start(self, trials: Sequence[Numbers], seeds: Sequence[int]) -> TrialState:
        """The state before the first iteration of every trial with every seed.

        Args:
            trials: the numbers of each; those of ``names`` that are missing have the value that all share.
            seeds: each trial is trained with each of them.
        """
        if len(trials) * len(seeds) != self.n_seeds:
            raise CapoError(f"{len(trials)} trials x {len(seeds)} seeds do not fit a program of {self.n_seeds} rows")
        state: Any = self.init([seed for _ in trials for seed in seeds])

        def column(name: str) -> np.ndarray[Any, Any]:
            usual = getattr(self.config, name)
            return np.repeat(np.array([trial.get(name, usual) for trial in trials], np.float32), len(seeds))

        made: TrialState = replace(state, numbers=self.place({name: column(name) for name in self.names}))
        return made

    def take(self, state: TrialState, rows: Sequence[int]) -> TrialState:
        """Some rows of a state, for a learner of so many rows."""
        chosen: TrialState = jax.tree.map(lambda leaf: leaf[np.asarray(rows)], state)
        return chosen

    def _begin(self, params: PyTree, keys: Array) -> TrialState:
        state = super()._begin(params, keys)
        shared = {field.name: getattr(state, field.name) for field in fields(state)}
        return TrialState(**shared, numbers={name: jnp.zeros(self.n_seeds, jnp.float32) for name in self.names})

    def _iterate(self, state: TrainState, iteration: Array) -> tuple[TrainState, Metrics]:
        """One iteration of one row, by an algorithm whose settings are this row's."""
        assert isinstance(state, TrialState)
        algorithm, learner = copy.copy(self.algorithm), copy.copy(self)
        algorithm.config, learner.algorithm = with_traced(self.config, state.numbers), algorithm
        return JittedLearner._iterate(learner, state, iteration)
