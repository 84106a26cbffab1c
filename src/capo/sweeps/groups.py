"""How the trials of a batch are trained: as rows of one program, or one after another.

On a jitted environment, trials that differ in traced settings only are one program, a row for each trial and seed.
On the host's environments each is trained alone, a seed after the other. In both cases other numbers need no new
compilation: the programs are kept for the next batch.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from capo import envs
from capo.arrays import PyTree
from capo.neural.algorithms import registry
from capo.neural.algorithms.settings import CommonSettings, field_kinds
from capo.neural.learners import Learner
from capo.neural.learners.trials import HostTrialsLearner, TrialsLearner
from capo.neural.metrics import broken
from capo.neural.player import EVALUATE_STREAM, stream_key
from capo.runs.checkpoint import Checkpoint
from capo.sweeps.batch import Batch, Score


class Group(Protocol):
    """Some trials of a batch that are trained together; they are called by their place in the batch."""

    def advance(self, frames: int) -> dict[int, Score]:
        """Train all that are left up to ``frames``, and evaluate them."""

    def keep(self, trials: Sequence[int]) -> None:
        """Give up all but these."""

    def close(self) -> None:
        """Close environments and let go of what was learned."""

    def tree(self) -> PyTree:
        """Everything that was learned, for a checkpoint."""

    def restore(self, saved: Checkpoint, prefix: str, frames: int) -> None:
        """Take over what :meth:`tree` gave, after ``frames``; :meth:`keep` came before."""


def make_groups(batch: Batch) -> Iterator[Group]:
    """The trials by what they have in common: all settings that are not traced.

    Raises:
        CapoError: if a setting is wrong.
    """
    kinds = field_kinds(registry.find(batch.algorithm).settings)
    env = envs.make(batch.env)
    names = tuple(sorted({name for trial in batch.trials for name in trial if kinds[name].traced}))
    by_config: dict[CommonSettings, list[int]] = {}
    for index, trial in enumerate(batch.trials):
        batch.settings_of(trial, env.name)  # checks all values together
        fixed = {name: value for name, value in trial.items() if not kinds[name].traced}
        by_config.setdefault(batch.settings_of(fixed, env.name), []).append(index)
    for config, trials in by_config.items():
        if envs.is_jitted(env):
            yield Together(batch, env.name, config, names, trials)
        else:
            yield from (Alone(batch, env.name, config, names, trial) for trial in trials)


def _iterations(frames: int, learner: Learner) -> int:
    return -(-frames // learner.frames_per_iteration)


def _evaluation_keys(seeds: Sequence[int]) -> Any:
    """The keys of ``agent.evaluate()``: a trial's score is what an agent trained with its settings would get."""
    fold = functools.partial(jax.random.fold_in, stream_key(0, EVALUATE_STREAM))
    return jax.vmap(fold)(np.asarray(seeds))


# --- rows of one program --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def _program(algorithm: str, config: CommonSettings, env: Any, names: tuple[str, ...], rows: int) -> TrialsLearner:
    """A learner whose compiled program is kept for later batches; ``env`` is a name or an object."""
    made = envs.make(env)
    return TrialsLearner(registry.find(algorithm).algorithm(config, made), made, names, rows)


@dataclass
class Together:
    """Trials on a jitted environment that differ in traced settings only: rows of one program."""

    batch: Batch
    env_name: str
    config: CommonSettings
    names: tuple[str, ...]
    trials: list[int]
    state: Any = None
    done: int = 0  # iterations

    def advance(self, frames: int) -> dict[int, Score]:
        if not self.trials:
            return {}
        begin = time.perf_counter()
        seeds, learner = self.batch.seeds, self.learner()
        if self.state is None:
            self.state = learner.start([self.batch.trials[trial] for trial in self.trials], seeds)
        target = _iterations(frames, learner)
        self.state, metrics = learner.run(self.state, target - self.done)
        self.done = target
        shape = (len(self.trials), len(seeds))
        bad = np.asarray(broken(metrics, self.env_name).reshape(shape).any(axis=1))
        keys = _evaluation_keys([seed for _ in self.trials for seed in seeds])
        returns = learner.evaluate(learner.playable(self.state), keys, self.batch.episodes).reshape(*shape, -1)
        seconds = (time.perf_counter() - begin) / len(self.trials)
        reached = target * learner.frames_per_iteration
        return {
            trial: Score(reached, None if bad[index] else returns[index], seconds)
            for index, trial in enumerate(self.trials)
        }

    def keep(self, trials: Sequence[int]) -> None:
        places = [place for place, trial in enumerate(self.trials) if trial in trials]
        if len(places) < len(self.trials) and self.state is not None:
            n_seeds = len(self.batch.seeds)
            rows = [place * n_seeds + seed for place in places for seed in range(n_seeds)]
            self.state = self.learner().take(self.state, rows) if rows else None
        self.trials = [self.trials[place] for place in places]

    def close(self) -> None:
        self.state = None

    def tree(self) -> PyTree:
        return self.state

    def restore(self, saved: Checkpoint, prefix: str, frames: int) -> None:
        if self.trials:
            learner = self.learner()
            self.state = saved.restore(learner.shapes(range(learner.n_seeds)), prefix)
            self.done = _iterations(frames, learner)

    def learner(self) -> TrialsLearner:
        """The program for as many rows as there are now."""
        batch, rows = self.batch, len(self.trials) * len(self.batch.seeds)
        return _program(batch.algorithm, self.config, batch.env, self.names, rows)


# --- one after another ----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def _host_program(algorithm: str, config: CommonSettings, env: str, names: tuple[str, ...]) -> HostTrialsLearner:
    """The same for an environment of the host."""
    made: Any = envs.make(env)
    return HostTrialsLearner(registry.find(algorithm).algorithm(config, made), made, names)


@dataclass
class Alone:
    """One trial on an environment of the host, a seed after the other."""

    batch: Batch
    env_name: str
    config: CommonSettings
    names: tuple[str, ...]
    trial: int | None
    learners: list[HostTrialsLearner] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    done: int = 0

    def advance(self, frames: int) -> dict[int, Score]:
        if self.trial is None:
            return {}
        begin = time.perf_counter()
        if not self.learners:
            self._open()
            numbers = self.batch.trials[self.trial]
            pairs = zip(self.learners, self.batch.seeds, strict=True)
            self.states = [learner.start(numbers, seed) for learner, seed in pairs]
        returns, bad = [], False
        target = _iterations(frames, self.learners[0])
        for index, (seed, learner) in enumerate(zip(self.batch.seeds, self.learners, strict=True)):
            self.states[index], metrics = learner.run(self.states[index], target - self.done)
            bad = bad or bool(broken(metrics, self.env_name).any())
            keys = _evaluation_keys([seed])
            returns.append(learner.evaluate(learner.playable(self.states[index]), keys, self.batch.episodes)[0])
        self.done = target
        reached = target * self.learners[0].frames_per_iteration
        return {self.trial: Score(reached, None if bad else np.stack(returns), time.perf_counter() - begin)}

    def _open(self) -> None:
        batch = self.batch
        program = _host_program(batch.algorithm, self.config, batch.env, self.names)
        self.learners = [program.fork() for _ in batch.seeds]

    def keep(self, trials: Sequence[int]) -> None:
        if self.trial not in trials:
            self.close()
            self.trial = None

    def close(self) -> None:
        for learner in self.learners:
            learner.close()
        self.learners, self.states = [], []

    def tree(self) -> PyTree:
        return self.states

    def restore(self, saved: Checkpoint, prefix: str, frames: int) -> None:
        if self.trial is not None:
            self._open()
            like = [learner.shapes([seed]) for learner, seed in zip(self.learners, self.batch.seeds, strict=True)]
            self.states = saved.restore(like, prefix)
            self.done = _iterations(frames, self.learners[0])
