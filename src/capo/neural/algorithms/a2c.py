"""A2C: one gradient step on the rollouts of each iteration.

    loss = - mean(A log pi(a|s)) + critic_coefficient * mean((V(s) - R)^2) - entropy * mean(H(pi))

with A by generalised advantage estimation and R = A + V.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import jax
import jax.numpy as jnp

from capo.arrays import Array, Metrics
from capo.neural.agent import Agent
from capo.neural.algorithms.base import TrainState, finite
from capo.neural.algorithms.onpolicy import Batch, OnPolicy, normalised, policy_and_value
from capo.neural.algorithms.settings import Count, GAELambda, LearningRate, OnPolicySettings, is_minatar
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.networks import NetworkSpec, Params
from capo.neural.parts.optimisers import Optimiser
from capo.neural.parts.replay import Rollout


@dataclass(frozen=True)
class A2CConfig(OnPolicySettings):
    """All settings of A2C. Frames are environment steps of one seed, summed over its environments."""

    PRESETS: ClassVar[tuple[str, ...]] = ("paper", "default")

    horizon: Count = 1_000_000
    """Frames over which learning rate and entropy follow their schedules; then they stay constant."""
    rollout_length: Count = 5
    """Steps of each environment per iteration; n_envs * rollout_length transitions are one batch."""
    gae_lambda: GAELambda = 1.0
    """Lambda of generalised advantage estimation; 1 gives plain n-step returns."""
    learning_rate: LearningRate = 7e-4
    optimiser: Optimiser = "rmsprop"
    normalise_advantage: bool = False
    """Whether to normalise advantages to mean 0 and standard deviation 1 over the batch."""

    @classmethod
    def _preset(cls, name: str, env_name: str) -> Self:
        if name == "paper":
            return cls(
                n_envs=10,  # authors
                rollout_length=5,  # authors
                gamma=0.99,  # table
                gae_lambda=1.0,  # authors: Stable-Baselines3's default
                learning_rate=7e-4,  # table
                learning_rate_schedule="constant",  # authors: Stable-Baselines3's default
                optimiser="rmsprop-tf",  # authors: RMSprop; Stable-Baselines3's for Atari is TensorFlow's kind
                optimiser_decay=0.99,  # authors: Stable-Baselines3's default
                optimiser_epsilon=1e-5,  # authors: Stable-Baselines3's default
                max_grad_norm=0.5,  # table
                critic_coefficient=0.25,  # table
                entropy=4.04e-6,  # table
                network="auto",  # open: the convolution of the authors' NCAPO, see there
                width=128,  # open
                activation="relu",  # open
                shared_trunk=True,  # open
            )
        if is_minatar(env_name):
            return cls(
                n_envs=16,
                gae_lambda=0.95,
                learning_rate=1e-3,
                learning_rate_schedule="linear",
                optimiser="adam",
                entropy=0.01,
                width=128,
                activation="relu",
                shared_trunk=True,
            )
        return cls()  # Stable-Baselines3's defaults


def loss(
    config: A2CConfig, spec: NetworkSpec, params: Params, batch: Batch, entropy_weight: Array
) -> tuple[Array, Metrics]:
    """The loss to descend on a batch, and its terms."""
    log_pi, entropy, value = policy_and_value(spec, params, batch.obs, batch.action)
    advantage = normalised(batch.advantage) if config.normalise_advantage else batch.advantage
    actor = -jnp.mean(advantage * log_pi)
    critic = jnp.mean(jnp.square(batch.returns - value))
    entropy = jnp.mean(entropy)
    total = actor + config.critic_coefficient * critic - entropy_weight * entropy
    return total, {
        "actor_loss": actor,
        "critic_loss": critic,
        "entropy": entropy,
        "value": jnp.mean(value),
        "advantage_abs": jnp.mean(jnp.abs(batch.advantage)),
    }


class A2CAlgorithm(OnPolicy):
    """A2C for a learner."""

    name = "a2c"
    Config = A2CConfig
    config: A2CConfig

    def learn(
        self, state: TrainState, rollouts: Rollout, iteration: Iteration, key: Array
    ) -> tuple[TrainState, Metrics]:
        del key
        batch = jax.lax.stop_gradient(self.batch(state.params, rollouts))
        entropy, rate = self.entropy_weight(iteration), self.learning_rate(iteration)
        descent = jax.grad(lambda p: loss(self.config, self.network, p, batch, entropy), has_aux=True)
        grads, metrics = descent(state.params)
        params, opt_state, metrics = self.descend(state.params, state.optimiser, rate, grads, metrics)
        metrics |= {"learning_rate": rate, "finite": finite(params)}
        return replace(state, params=params, optimiser=opt_state), metrics

    @property
    def updates_per_iteration(self) -> float:
        return 1.0

    @property
    def transitions_per_update(self) -> int:
        return self.frames_per_iteration


class A2C(Agent):
    """Advantage actor-critic, on-policy, with Stable-Baselines3's meaning of every setting.

    >>> A2C("probe-action", width=16).learn(80).frames
    80
    """

    _algorithm = A2CAlgorithm
