"""A whole algorithm in one file: REINFORCE with returns cut at the rollout's end, and plain gradient descent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import jax
import jax.numpy as jnp

from capo.arrays import Array, Metrics, PyTree
from capo.neural.agent import Agent
from capo.neural.algorithms.base import Algorithm, TrainState, finite
from capo.neural.algorithms.registry import Row
from capo.neural.algorithms.settings import CommonSettings
from capo.neural.parts import networks
from capo.neural.parts.networks import Params
from capo.neural.parts.replay import Rollout


@dataclass(frozen=True)
class ToyConfig(CommonSettings):
    """All settings of the toy."""

    PRESETS: ClassVar[tuple[str, ...]] = ("default",)

    learning_rate: float = 0.1
    """Step size of the gradient descent."""

    @classmethod
    def _preset(cls, name: str, env_name: str) -> Self:
        del name, env_name
        return cls(width=16, network="mlp")


class ToyAlgorithm(Algorithm):
    """REINFORCE for a learner."""

    name = "toy"
    Config = ToyConfig
    on_policy = True

    def init_optimiser(self, params: Params) -> PyTree:
        del params
        return ()

    def behaviour(self, acting: Params, obs: Array, epsilon: Array) -> Array:
        del epsilon
        return jax.nn.log_softmax(self.action_scores(acting, obs))

    def learn(
        self, state: TrainState, rollouts: Rollout, iteration: Array, key: Array
    ) -> tuple[TrainState, Metrics]:
        del iteration, key
        length = rollouts.action.shape[-1]
        ended = (rollouts.terminated | rollouts.truncated).astype(jnp.float32)

        def back(after: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
            value = step[0] + self.config.gamma * (1 - step[1]) * after
            return value, value

        steps = (rollouts.reward.T, ended.T)
        returns = jax.lax.scan(back, jnp.zeros(rollouts.reward.shape[0]), steps, reverse=True)[1].T

        def loss(params: Params) -> Array:
            actor = networks.select(params, "actor")
            log_pi = jax.nn.log_softmax(self.action_scores(actor, rollouts.obs[:, :length]))
            taken = jnp.take_along_axis(log_pi, rollouts.action[..., None], axis=-1)[..., 0]
            return -jnp.mean((returns - returns.mean()) * taken)

        value, grads = jax.value_and_grad(loss)(state.params)
        params = jax.tree.map(lambda p, g: p - self.config.learning_rate * g, state.params, grads)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
        metrics = {"actor_loss": value, "grad_norm": norm, "value": returns.mean(), "finite": finite(params)}
        return replace(state, params=params), metrics

    @property
    def updates_per_iteration(self) -> float:
        return 1.0

    @property
    def transitions_per_update(self) -> int:
        return self.frames_per_iteration

    def describe_learning(self, n_seeds: int) -> list[str]:
        del n_seeds
        return ["learning: one update per iteration"]


class Toy(Agent):
    """REINFORCE."""

    _algorithm = ToyAlgorithm


ROW = Row("toy", "Toy", "#7A68A6", ToyConfig, ToyAlgorithm, Toy)
