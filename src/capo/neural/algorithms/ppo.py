"""PPO: several epochs of minibatches on the rollouts of each iteration, with a clipped ratio.

    ratio = pi(a|s) / mu(a|s), where mu is the policy that collected the rollouts
    loss = - mean(min(ratio A, clip(ratio, 1 - c, 1 + c) A))
           + critic_coefficient * mean((V(s) - R)^2) - entropy * mean(H(pi))

with A by generalised advantage estimation, normalised over each minibatch, and R = A + V from before the update.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import jax
import jax.numpy as jnp

from capo.arrays import Array, Metrics, PyTree
from capo.envs.atari import is_atari
from capo.neural.agent import Agent
from capo.neural.algorithms.base import TrainState, finite, scan_epochs
from capo.neural.algorithms.onpolicy import Batch, OnPolicy, normalised, policy_and_value
from capo.neural.algorithms.settings import (
    Count,
    LearningRate,
    NonNegative,
    OnPolicySettings,
    Search,
    TracedPositive,
    check_minibatches,
    is_minatar,
)
from capo.neural.parts import schedules
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.networks import NetworkSpec, Params
from capo.neural.parts.replay import Rollout
from capo.neural.parts.schedules import Schedule


@dataclass(frozen=True)
class PPOConfig(OnPolicySettings):
    """All settings of PPO. Frames are environment steps of one seed, summed over its environments."""

    PRESETS: ClassVar[tuple[str, ...]] = ("paper", "default", "atari")

    horizon: Count = 1_000_000
    """Frames over which learning rate, entropy and clip follow their schedules; then they stay constant."""
    rollout_length: Count = 128
    epochs: Count = 10
    """Passes over an iteration's transitions."""
    batch_size: Count = 64
    """Transitions per minibatch; must divide n_envs * rollout_length."""
    clip: Annotated[TracedPositive, Search(0.05, 0.4, "log")] = 0.2
    """The ratio of new to old probability is clipped to [1 - clip, 1 + clip]."""
    clip_schedule: Schedule = "constant"
    """constant, or linear: falls to 0 at the horizon."""
    clip_value: NonNegative = 0.0
    """Largest change of a value from its value at collection; 0 sets no limit."""
    learning_rate: LearningRate = 3e-4
    normalise_advantage: bool = True
    """Whether to normalise advantages to mean 0 and standard deviation 1 over each minibatch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minibatches(self.n_envs, self.rollout_length, self.batch_size)

    @classmethod
    def _preset(cls, name: str, env_name: str) -> Self:
        if name == "paper":
            return cls(
                n_envs=40,  # authors
                rollout_length=256,  # table: train frequency (256, steps)
                epochs=10,  # authors; the table's "gradient steps 1" is one per minibatch
                batch_size=16,  # table
                clip=0.1,  # authors
                clip_schedule="linear",  # authors
                gamma=0.98,  # table
                gae_lambda=0.92,  # authors
                learning_rate=2.5e-4,  # table
                learning_rate_schedule="linear",  # authors
                optimiser="adam",  # authors: Stable-Baselines3's default
                optimiser_epsilon=1e-5,  # authors: Stable-Baselines3's default
                max_grad_norm=0.5,  # table
                normalise_advantage=True,  # authors: Stable-Baselines3's default
                critic_coefficient=0.38,  # table
                entropy=4e-6,  # authors; the table has a dash
                network="auto",  # open: the convolution of the authors' NCAPO, see there
                width=128,  # open
                activation="relu",  # open
                shared_trunk=True,  # open
            )
        if name == "atari" or is_atari(env_name):
            # The values of the PPO paper's Atari table, as Stable-Baselines3's zoo has them, but for more
            # environments with shorter rollouts (8 x 128 there), and a higher learning rate (2.5e-4).
            return cls(
                n_envs=64,
                rollout_length=32,
                epochs=4,
                batch_size=256,
                clip=0.1,
                clip_schedule="linear",
                gamma=0.99,
                gae_lambda=0.95,
                learning_rate=5e-4,
                learning_rate_schedule="linear",
                optimiser="adam",
                optimiser_epsilon=1e-5,
                max_grad_norm=0.5,
                critic_coefficient=0.5,
                entropy=0.01,
                network="auto",
                width=512,
                activation="relu",
                shared_trunk=True,
                precision="auto",
                reward_clip=1.0,
                frame_stack=4,
                overlap="acting",
            )
        if is_minatar(env_name):
            return cls(
                n_envs=64,
                rollout_length=128,
                epochs=4,
                batch_size=1024,
                clip_schedule="constant",
                learning_rate=1e-3,
                learning_rate_schedule="linear",
                entropy=0.01,
                width=128,
                activation="relu",
                shared_trunk=True,
            )
        # Stable-Baselines3's defaults, except for the environments: 8 x 256 instead of 1 x 2048.
        return cls(rollout_length=256)


def loss(
    config: PPOConfig, spec: NetworkSpec, params: Params, batch: Batch, entropy_weight: Array, clip: Array
) -> tuple[Array, Metrics]:
    """The loss to descend on a minibatch, and its terms."""
    log_pi, entropy, value = policy_and_value(spec, params, batch.obs, batch.action)
    advantage = normalised(batch.advantage) if config.normalise_advantage else batch.advantage
    ratio = jnp.exp(log_pi - batch.log_mu)
    actor = -jnp.mean(jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage))
    if config.clip_value:
        value = batch.value + jnp.clip(value - batch.value, -config.clip_value, config.clip_value)
    critic = jnp.mean(jnp.square(batch.returns - value))
    entropy = jnp.mean(entropy)
    total = actor + config.critic_coefficient * critic - entropy_weight * entropy
    return total, {
        "actor_loss": actor,
        "critic_loss": critic,
        "entropy": entropy,
        "value": jnp.mean(value),
        "clip_fraction": jnp.mean(jnp.abs(ratio - 1) > clip),
        "approximate_kl": jnp.mean(ratio - 1 - (log_pi - batch.log_mu)),
    }


class PPOAlgorithm(OnPolicy):
    """PPO for a learner."""

    name = "ppo"
    Config = PPOConfig
    config: PPOConfig

    def learn(
        self, state: TrainState, rollouts: Rollout, iteration: Iteration, key: Array
    ) -> tuple[TrainState, Metrics]:
        config = self.config
        everything = self.batch(state.params, rollouts)
        entropy, rate = self.entropy_weight(iteration), self.learning_rate(iteration)
        clip = schedules.decay(config.clip, config.clip_schedule, self.progress(iteration))

        def minibatch(carry: tuple[Params, PyTree], batch: Batch) -> tuple[tuple[Params, PyTree], Metrics]:
            params, opt_state = carry
            descent = jax.grad(lambda p: loss(config, self.network, p, batch, entropy, clip), has_aux=True)
            grads, metrics = descent(params)
            params, opt_state, metrics = self.descend(params, opt_state, rate, grads, metrics)
            return (params, opt_state), metrics

        carry, times = (state.params, state.optimiser), {"epochs": config.epochs, "batch_size": config.batch_size}
        (params, opt_state), metrics = scan_epochs(minibatch, carry, everything, key, **times)
        metrics |= {"learning_rate": rate, "clip": clip, "finite": finite(params)}
        return replace(state, params=params, optimiser=opt_state), metrics

    @property
    def updates_per_iteration(self) -> float:
        return float(self.config.epochs * (self.frames_per_iteration // self.config.batch_size))

    @property
    def transitions_per_update(self) -> int:
        return self.config.batch_size


class PPO(Agent):
    """Proximal policy optimization, on-policy, with Stable-Baselines3's meaning of every setting.

    >>> PPO("probe-action", n_envs=4, rollout_length=16, batch_size=32, width=16).learn(128).frames
    128
    """

    _algorithm = PPOAlgorithm
