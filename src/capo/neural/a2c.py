"""A2C: one gradient step on the rollouts of each iteration.

    loss = - mean(A log pi(a|s)) + critic_coefficient * mean((V(s) - R)^2) - entropy * mean(H(pi))

with A by generalised advantage estimation and R = A + V.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from capo.neural.algorithm import Metrics, TrainState, finite
from capo.neural.networks import NetworkSpec, Params
from capo.neural.onpolicy import Batch, OnPolicy, normalised, policy_and_value
from capo.neural.replay import Rollout
from capo.neural.settings import OnPolicyOptimiser, OnPolicySettings, is_minatar

Array = Any


@dataclass(frozen=True)
class A2CConfig(OnPolicySettings):
    """All settings of A2C. Frames are environment steps of one seed, over all its environments."""

    PRESETS: ClassVar[tuple[str, ...]] = ("paper", "default")

    horizon: int = 1_000_000
    """Frames over which the learning-rate schedule runs; later frames use its final value."""
    rollout_length: int = 5
    """Steps of each environment an iteration; n_envs times as many are one batch."""
    gae_lambda: float = 1.0
    """Lambda of the generalised advantages; 1 is the plain n-step return."""
    learning_rate: float = 7e-4
    optimiser: OnPolicyOptimiser = "rmsprop"
    normalise_advantage: bool = False
    """Whether advantages are shifted and scaled to mean 0 and deviation 1 over the batch."""

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
        return cls()  # Stable-Baselines3's own


def loss(config: Any, spec: NetworkSpec, params: Params, batch: Batch) -> tuple[Array, Metrics]:
    """The loss to descend on a batch, and its parts."""
    log_pi, entropy, value = policy_and_value(spec, params, batch.obs, batch.action)
    advantage = normalised(batch.advantage) if config.normalise_advantage else batch.advantage
    actor = -jnp.mean(advantage * log_pi)
    critic = jnp.mean(jnp.square(batch.returns - value))
    entropy = jnp.mean(entropy)
    total = actor + config.critic_coefficient * critic - config.entropy * entropy
    return total, {
        "actor_loss": actor,
        "critic_loss": critic,
        "entropy": entropy,
        "value": jnp.mean(value),
        "advantage_abs": jnp.mean(jnp.abs(batch.advantage)),
    }


class A2CAlgorithm(OnPolicy):
    """A2C for the loop."""

    name = "a2c"
    Config = A2CConfig

    def learn(
        self, state: TrainState, rollouts: Rollout, iteration: Array, key: Array
    ) -> tuple[TrainState, Metrics]:
        del key
        batch = jax.lax.stop_gradient(self.batch(state.params, rollouts))
        now = self.settings_at(iteration)
        grads, metrics = jax.grad(lambda p: loss(now, self.network, p, batch), has_aux=True)(state.params)
        rate = self.learning_rate(iteration)
        params, opt_state, metrics = self.descend(state.params, state.optimiser, rate, grads, metrics)
        metrics |= {"learning_rate": rate, "finite": finite(params)}
        return replace(state, params=params, optimiser=opt_state), metrics

    @property
    def updates_per_iteration(self) -> float:
        return 1.0

    @property
    def transitions_per_update(self) -> int:
        return self.frames_per_iteration
