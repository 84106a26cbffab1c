"""Many trials with one compiled program: settings that are plain numbers are arguments of it.

A tuning tries the same training with other numbers. Here the numbers are part of the state that the compiled
program takes, so other numbers need no new compilation; and on a jitted environment, trials x seeds are the rows
of one vmapped program. Which settings can be given so is a matter of their type: see
:class:`capo.neural.algorithms.settings.Traced`.

A row computes what a training of its own with these settings would: the same random numbers in the same order. The
last bits may differ, since a compiler folds a constant (``gamma * lambda`` in double precision, a division turned
into a product) where it can't fold an argument.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, Metrics, NDArray, PyTree
from capo.envs.protocol import HostEnv
from capo.errors import CapoError
from capo.neural.algorithms.base import Algorithm, TrainState
from capo.neural.algorithms.settings import CommonSettings, with_traced
from capo.neural.learners.host import HostLearner
from capo.neural.learners.jitted import JittedLearner
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.replay import Rollout

Numbers = Mapping[str, float]  # the settings of one trial, by name


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrialState(TrainState):
    """The state of K = trials x seeds rows, and the numbers that each of them trains with."""

    numbers: dict[str, Array] = field(default_factory=dict)  # name to (K,) float32


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
            raise CapoError(
                f"{len(trials)} trials x {len(seeds)} seeds do not fit a program of {self.n_seeds} rows"
            )
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
        return with_blanks(super()._begin(params, keys), {name: jnp.zeros(self.n_seeds) for name in self.names})

    def _iterate(self, state: TrainState, iteration: Iteration) -> tuple[TrainState, Metrics]:
        """One iteration of one row, by an algorithm whose settings are this row's."""
        assert isinstance(state, TrialState)
        learner = copy.copy(self)
        learner.algorithm = _with_numbers(self.algorithm, self.config, state.numbers)
        return JittedLearner._iterate(learner, state, iteration)


class HostTrialsLearner(HostLearner):
    """An algorithm on an environment of the host; each training has settings of its own, one seed each.

    Args:
        algorithm: with the settings that all trials share.
        env: made by :func:`capo.envs.make`.
        names: the settings that each trial has for itself; all of them traced.
    """

    def __init__(self, algorithm: Algorithm, env: HostEnv, names: Sequence[str]) -> None:
        self.names = tuple(names)
        with_traced(algorithm.config, dict.fromkeys(self.names))  # raises if one of them can't be
        super().__init__(algorithm, env, 1)

    def fork(self) -> Self:
        """Another learner with the same compiled programs, and environments of its own."""
        self.compile()
        other = copy.copy(self)
        other._collector = other._closing = other._expected = other._kept = None
        return other

    def start(self, trial: Numbers, seed: int) -> TrialState:
        """The state before the first iteration; numbers that are missing have the value that all share."""
        state: Any = self.init([seed])
        values = {name: trial.get(name, getattr(self.config, name)) for name in self.names}
        made: TrialState = replace(state, numbers={name: jnp.float32(x)[None] for name, x in values.items()})
        return made

    def run(self, state: TrainState, iterations: int) -> tuple[TrainState, dict[str, NDArray]]:
        assert isinstance(state, TrialState)
        numbers = {name: np.asarray(values)[0] for name, values in state.numbers.items()}
        self.algorithm = _with_numbers(self.algorithm, self.config, numbers)  # it says how to explore
        return super().run(state, iterations)

    def _init_seed(self, params: PyTree, key: Array) -> TrialState:
        return with_blanks(super()._init_seed(params, key), {name: jnp.zeros(()) for name in self.names})

    def _learn_iteration(self, state: TrainState, rollouts: Rollout) -> tuple[TrainState, Metrics]:
        assert isinstance(state, TrialState)
        learner = copy.copy(self)
        numbers = {name: values[0] for name, values in state.numbers.items()}
        learner.algorithm = _with_numbers(self.algorithm, self.config, numbers)
        return HostLearner._learn_iteration(learner, state, rollouts)


def _with_numbers(algorithm: Algorithm, config: CommonSettings, numbers: Mapping[str, Any]) -> Algorithm:
    """The algorithm with some of its numbers replaced."""
    made = copy.copy(algorithm)
    made.config = with_traced(config, numbers)
    return made


def with_blanks(state: TrainState, blanks: dict[str, Array]) -> TrialState:
    """A state with room for the numbers."""
    return TrialState(**{one.name: getattr(state, one.name) for one in fields(state)}, numbers=blanks)
