"""What the loop needs to know of an algorithm, and the state that a run is.

The loop steps environments, counts episodes, vmaps over seeds and keeps time; an :class:`Algorithm` says how
to act and what to learn from the rollouts of an iteration. All of its methods are pure functions of their
arguments, written for one seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from capo.envs.protocol import may_truncate
from capo.neural import networks, replay
from capo.neural.networks import NetworkSpec, Params
from capo.neural.replay import ReplaySpec, Rollout
from capo.neural.settings import Settings

Array = Any
PyTree = Any
Metrics = dict[str, Array]

OF_LEARNING = ("critic_loss", "value", "grad_norm")  # metrics of the updates alone: none before they begin


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Everything a run is, with a leading axis of K seeds on every leaf."""

    params: PyTree
    target: PyTree  # slow copies of networks; empty where the algorithm has none
    optimiser: PyTree
    replay: PyTree  # what is kept of earlier iterations; empty where the algorithm learns on-policy
    env_state: PyTree  # (K, n_envs, ...); empty where the host steps the environment
    observation: Array  # (K, n_envs, *observation_shape)
    episode_return: Array  # (K, n_envs) so far in the running episodes
    episode_length: Array  # (K, n_envs)
    iteration: Array  # (K,) int32, the same for all seeds
    key: Array  # (K, 2) uint32, the seed's key; never changes


class Algorithm(ABC):
    """One algorithm with its settings, on one environment.

    Attributes:
        network: what the networks look like.
        rollouts: shapes of the rollouts of an iteration.
    """

    name: ClassVar[str]
    Config: ClassVar[type[Settings]]
    explores: ClassVar[bool] = False  # whether exploration follows a schedule, logged as "epsilon"
    on_policy: ClassVar[bool] = False  # whether it learns from steps of the present policy alone
    samples: ClassVar[bool] = True  # whether the policy is stochastic; if not, the best action is always taken

    def __init__(self, config: Any, env: Any) -> None:
        self.config = config
        network = self._network(tuple(env.observation_shape), int(env.n_actions))
        self.network = replace(
            network,
            byte_high=int(getattr(env, "observation_high", 255)),
            precision=networks.precision(config.precision, env.observation_dtype),
        )
        self.rollouts: ReplaySpec = replay.spec_for(
            config, env.observation_shape, env.observation_dtype, may_truncate(env)
        )
        self.frames_per_iteration: int = config.n_envs * config.rollout_length

    def _network(self, observation_shape: tuple[int, ...], n_actions: int) -> NetworkSpec:
        return networks.spec_for(self.config, observation_shape, n_actions)

    # The state --------------------------------------------------------------------------------------------

    def init_params(self, rng: np.random.Generator) -> Params:
        """Networks of one seed, as numpy arrays."""
        return networks.init(self.network, rng)

    def init_target(self, params: Params) -> PyTree:
        """Slow copies of the networks."""
        del params
        return ()

    @abstractmethod
    def init_optimiser(self, params: Params) -> PyTree:
        """The optimiser's state."""

    def init_replay(self) -> PyTree:
        """What is kept of earlier iterations, with nothing in it yet."""
        return ()

    def cut(self, state: TrainState) -> TrainState:
        """The state of all seeds (K, ...) if what comes next does not continue the last rollouts."""
        return state

    # Acting -----------------------------------------------------------------------------------------------

    def acting(self, params: Params) -> Params:
        """The part of the networks that :meth:`scores` and :meth:`behaviour` need."""
        return networks.part(params, "actor")

    def scores(self, acting: Params, obs: Array) -> Array:
        """(..., A) for observations: logits if the policy is stochastic, else values; the best is the largest."""
        return networks.outputs(self.network, acting, obs)

    @property
    def perturbs(self) -> bool:
        """Whether noise is added to the networks at every step."""
        return False

    def noise(self, acting: Params, key: Array, steps: int) -> Array:
        """Noise of ``steps`` steps, (steps, ...), for :meth:`perturb`."""
        raise NotImplementedError

    def perturb(self, acting: Params, noise: Array) -> Params:
        """The networks with the noise of one step."""
        raise NotImplementedError

    def exploration(self, frames: Array) -> Array:
        """Epsilon after ``frames``."""
        del frames
        return jnp.zeros(())

    @abstractmethod
    def behaviour(self, acting: Params, obs: Array, epsilon: Array) -> Array:
        """Log-probabilities (..., A) of the actions while training."""

    # Learning ---------------------------------------------------------------------------------------------

    @abstractmethod
    def learn(
        self, state: TrainState, rollouts: Rollout, iteration: Array, key: Array
    ) -> tuple[TrainState, Metrics]:
        """Everything that follows the collection of an iteration's rollouts, for one seed.

        Args:
            state: of one seed; its environment has been stepped already.
            rollouts: (n_envs, T) of this iteration, observations as the environment gives them.
            iteration: the number of this iteration, the same for all seeds (a branch on it stays a branch).
            key: random, of this iteration.

        Returns:
            The state with the networks, optimiser and replay moved on, and scalars to log; among them
            ``grad_norm`` and ``critic_loss``; ``learnt``, 1 or 0, if it may learn nothing in an iteration.
        """

    # What a run says about itself -------------------------------------------------------------------------

    @property
    @abstractmethod
    def updates_per_iteration(self) -> float:
        """Gradient steps an iteration, on average."""

    @property
    @abstractmethod
    def transitions_per_update(self) -> int:
        """Transitions in the batch of one gradient step."""

    @property
    def memory(self) -> tuple[int, str, int]:
        """Bytes that one seed keeps of earlier iterations, the setting that decides it, and its value."""
        return 0, "", 0

    @abstractmethod
    def describe_learning(self, n_seeds: int) -> list[str]:
        """Two lines or so: batches, updates, memory."""

    def _frames(self, iteration: Array) -> Array:
        return iteration.astype(jnp.float32) * self.frames_per_iteration


def finite(params: Params) -> Array:
    """1.0 if every parameter is a finite number, else 0.0: the guard of the loop."""
    each = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]
    return jnp.stack(each).all().astype(jnp.float32)


def global_norm(grads: Params) -> Array:
    """Length of the gradient; optax clips by the same expression, so it is computed once."""
    return optax.tree.norm(grads)


def scan_means(
    step: Callable[[PyTree, Any], tuple[PyTree, Metrics]], carry: PyTree, xs: Any
) -> tuple[PyTree, Metrics]:
    """``jax.lax.scan`` of a step that gives scalars to log, and the scalars' means.

    They leave the loop as one array: on a GPU an array each is a kernel each, at every step.
    """
    names: list[str] = []

    def stacked(carry: PyTree, x: Any) -> tuple[PyTree, Array]:
        carry, metrics = step(carry, x)
        names[:] = metrics
        return carry, jnp.stack(list(metrics.values()))

    carry, rows = jax.lax.scan(stacked, carry, xs)
    return carry, dict(zip(names, rows.mean(axis=0), strict=True))


def means(each: Metrics) -> Metrics:
    """The mean of every array, all of one shape; one reduction for all of them."""
    arrays = jnp.stack(list(each.values()))
    return dict(zip(each, arrays.mean(axis=tuple(range(1, arrays.ndim))), strict=True))


class At:
    """The settings at a moment: ``config``, but for the values given, which may be traced.

    >>> from capo.neural.config import preset
    >>> now = At(preset("default"), entropy=0.5)
    >>> now.entropy, now.gamma
    (0.5, 0.99)
    """

    def __init__(self, config: Any, **values: Array) -> None:
        self.__dict__ |= {"_config": config} | values

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def linear(start: float, schedule: str, progress: Array) -> Array:
    """A value that falls to 0 while ``progress`` goes from 0 to 1, or stays."""
    if schedule == "constant":
        return jnp.full((), start)
    return start * jnp.maximum(1.0 - progress, 0.0)
