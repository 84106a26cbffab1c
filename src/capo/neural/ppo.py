"""PPO: several epochs of minibatches on the rollouts of each iteration, with a clipped ratio.

    ratio = pi(a|s) / mu(a|s), mu the policy that collected
    loss = - mean(min(ratio A, clip(ratio, 1 - c, 1 + c) A))
           + critic_coefficient * mean((V(s) - R)^2) - entropy * mean(H(pi))

with A by generalised advantage estimation, normalised over each minibatch, and R = A + V of before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from capo.errors import CapoError
from capo.neural.algorithm import Metrics, TrainState, finite, linear, scan_means
from capo.neural.networks import NetworkSpec, Params
from capo.neural.onpolicy import Batch, OnPolicy, normalised, policy_and_value
from capo.neural.replay import Rollout
from capo.neural.settings import OnPolicySettings, Schedule, is_minatar

Array = Any
PyTree = Any


@dataclass(frozen=True)
class PPOConfig(OnPolicySettings):
    """All settings of PPO. Frames are environment steps of one seed, over all its environments."""

    PRESETS: ClassVar[tuple[str, ...]] = ("paper", "default")

    horizon: int = 1_000_000
    """Frames over which the learning-rate and clip schedules run; later frames use their final values."""
    rollout_length: int = 128
    epochs: int = 10
    """Times that an iteration's transitions are gone through."""
    batch_size: int = 64
    """Transitions of one minibatch; has to divide n_envs * rollout_length."""
    clip: float = 0.2
    """How far the ratio of new to old probability may pay: between 1 - clip and 1 + clip."""
    clip_schedule: Schedule = "constant"
    """constant, or linear: down to 0 at the horizon."""
    clip_value: float = 0.0
    """How far the value may move from what it was when the batch was made; 0 does not limit it."""
    learning_rate: float = 3e-4
    normalise_advantage: bool = True
    """Whether advantages are shifted and scaled to mean 0 and deviation 1 over each minibatch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = self.n_envs * self.rollout_length
        if steps % self.batch_size:
            near = min((d for d in range(1, steps + 1) if steps % d == 0), key=lambda d: abs(d - self.batch_size))
            raise CapoError(
                f"batch_size={self.batch_size} has to divide n_envs * rollout_length = {self.n_envs} * "
                f"{self.rollout_length} = {steps}: {near} does"
            )

    @classmethod
    def _preset(cls, name: str, env_name: str) -> Self:
        if name == "paper":
            return cls(
                n_envs=40,  # authors
                rollout_length=256,  # table: train frequency (256, steps)
                epochs=10,  # authors; the table's "gradient steps 1" is one a minibatch
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
        # Stable-Baselines3's own but for the environments: 8 x 256 instead of 1 x 2048.
        return cls(rollout_length=256)


def loss(config: Any, spec: NetworkSpec, params: Params, batch: Batch, clip: Array) -> tuple[Array, Metrics]:
    """The loss to descend on a minibatch, and its parts."""
    log_pi, entropy, value = policy_and_value(spec, params, batch.obs, batch.action)
    advantage = normalised(batch.advantage) if config.normalise_advantage else batch.advantage
    ratio = jnp.exp(log_pi - batch.log_mu)
    actor = -jnp.mean(jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage))
    if config.clip_value:
        value = batch.value + jnp.clip(value - batch.value, -config.clip_value, config.clip_value)
    critic = jnp.mean(jnp.square(batch.returns - value))
    entropy = jnp.mean(entropy)
    total = actor + config.critic_coefficient * critic - config.entropy * entropy
    return total, {
        "actor_loss": actor,
        "critic_loss": critic,
        "entropy": entropy,
        "value": jnp.mean(value),
        "clip_fraction": jnp.mean(jnp.abs(ratio - 1) > clip),
        "approximate_kl": jnp.mean(ratio - 1 - (log_pi - batch.log_mu)),
    }


class PPOAlgorithm(OnPolicy):
    """PPO for the loop."""

    name = "ppo"
    Config = PPOConfig

    def learn(
        self, state: TrainState, rollouts: Rollout, iteration: Array, key: Array
    ) -> tuple[TrainState, Metrics]:
        config = self.config
        everything = self.batch(state.params, rollouts)
        rate = self.learning_rate(iteration)
        clip = linear(config.clip, config.clip_schedule, self.progress(iteration))
        now = self.settings_at(iteration)

        def minibatch(carry: tuple[Params, PyTree], index: Array) -> tuple[tuple[Params, PyTree], Metrics]:
            params, opt_state = carry
            batch = Batch(*(leaf[index] for leaf in everything))
            grads, metrics = jax.grad(lambda p: loss(now, self.network, p, batch, clip), has_aux=True)(params)
            params, opt_state, metrics = self.descend(params, opt_state, rate, grads, metrics)
            return (params, opt_state), metrics

        def epoch(carry: tuple[Params, PyTree], key: Array) -> tuple[tuple[Params, PyTree], Metrics]:
            order = jax.random.permutation(key, self.frames_per_iteration)
            return scan_means(minibatch, carry, order.reshape(-1, config.batch_size))

        carry = (state.params, state.optimiser)
        (params, opt_state), metrics = scan_means(epoch, carry, jax.random.split(key, config.epochs))
        metrics |= {"learning_rate": rate, "clip": clip, "finite": finite(params)}
        return replace(state, params=params, optimiser=opt_state), metrics

    @property
    def updates_per_iteration(self) -> float:
        return float(self.config.epochs * (self.frames_per_iteration // self.config.batch_size))

    @property
    def transitions_per_update(self) -> int:
        return int(self.config.batch_size)
