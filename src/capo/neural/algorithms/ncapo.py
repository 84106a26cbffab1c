"""NCAPO (Algorithm 3 of the paper): the critic by Retrace, the actor by coordinate ascent.

One batch of rollouts goes through these steps, in the paper's order:

1. pi_m and Q' of every observation, Retrace returns and advantages of the taken actions
   (:func:`capo.neural.algorithms.offpolicy.retrace_targets`);
2. the critic's loss: squared distance of Q from the Retrace return;
3. the actor's target pi~ = softmax(f + alpha * sign(A)) at the taken action, alpha = min(log 1/pi, clip)
   (:func:`actor_target`);
4. the actor's loss: KL between pi and pi~ (:func:`actor_loss`).

In a preset, "table" is the paper's hyper-parameter table, "text" its description, "authors" their released program
where the paper says nothing, "open" a value chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import jax.numpy as jnp

from capo.arrays import Array, Metrics
from capo.neural.agent import Agent
from capo.neural.algorithms.offpolicy import OffPolicy, Targets
from capo.neural.algorithms.settings import (
    FinalEpsilon,
    RetraceSettings,
    Search,
    TracedFraction,
    TracedNonNegative,
    TracedPositive,
    is_minatar,
)
from capo.neural.parts.replay import Rollout
from capo.update import clipped_step, coordinate_update

StepKind = Literal["log", "fixed"]
AdvantageWeight = Literal["none", "normalised"]
KL = Literal["policy-to-target", "target-to-policy"]


@dataclass(frozen=True)
class NCAPOConfig(RetraceSettings):
    """All settings of NCAPO. Frames are environment steps of one seed, summed over its environments."""

    PRESETS: ClassVar[tuple[str, ...]] = ("paper", "official", "default", "cpu")

    epsilon_start: TracedFraction = 0.3
    epsilon_final: FinalEpsilon = 0.05
    step_size: StepKind = "log"
    """log: alpha = min(log 1/pi, clip), as in the paper; fixed: alpha = fixed_alpha for every pi."""
    fixed_alpha: TracedPositive = 1.0
    """The step size alpha, if it is fixed."""
    clip: Annotated[TracedPositive, Search(0.5, 50.0, "log")] = 50.0
    """Largest step size: alpha = min(log 1/pi, clip)."""
    alpha_bonus: TracedNonNegative = 0.0
    """Added to every step size alpha."""
    advantage_weight: AdvantageWeight = "none"
    """none: only the sign of A counts, as in the paper; normalised: alpha is multiplied by |A| / mean |A|."""
    kl: KL = "policy-to-target"
    """Direction of the actor's loss: policy-to-target, KL(pi || pi~), as in the paper; or target-to-policy."""

    @classmethod
    def _preset(cls, name: str, env_name: str) -> Self:
        grid = is_minatar(env_name)
        presets = {"paper": _PAPER, "official": _OFFICIAL, "default": _DEFAULT, "cpu": _CPU}
        authors = name in ("paper", "official")
        config = presets[name] if grid or authors else _VECTOR
        if authors and "asterix" in env_name.lower():  # the table's footnote: Asterix has two values of its own
            config = replace(config, critic_coefficient=0.25, epsilon_start=0.8)
        return cls(**config.to_dict())


_PAPER = NCAPOConfig(
    n_envs=40,  # authors
    rollout_length=64,  # table: train frequency (64, steps), as PPO's (256, steps) is 256 of each environment
    batch_size=32,  # table; that these are rollouts is from the pseudo-code ("sample rollout r")
    gradient_steps=30,  # table
    replay_rollouts=6400,  # table; read as rollouts, which is what the replay holds
    gamma=0.99,  # table
    retrace_lambda=1.0,  # text: Retrace as such, without a factor; authors: 1
    actor_lambda=1.0,  # pseudo-code: one Q_retrace for critic and actor
    learning_rate=5e-4,  # table
    learning_rate_schedule="linear",  # authors
    optimiser="adam",  # open
    max_grad_norm=0.8,  # table
    network="auto",  # text: "four simple 2-layer feed-forward neural networks"; authors: one convolves on grids
    width=256,  # open here; 256 is what the chain experiment uses
    shared_trunk=False,  # text: separate networks
    epsilon_start=0.3,  # table; 0.8 in Asterix
    epsilon_final=0.05,  # table
    epsilon_fraction=0.1,  # table
    clip=50.0,  # table
    kl="policy-to-target",  # the NCAPO loss
    target_from="target-network",  # pseudo-code: pi_theta is the target network, theta^b is trained
    target_critic="full",  # pseudo-code: Q(. | theta^Q')
    updates="joint",  # pseudo-code: both at every gradient step
    critic_coefficient=1.0,  # table; 0.25 in Asterix
    entropy=0.0,  # table
    tau_q=0.05,  # table
    tau_policy=1.0,  # table
    precision="float32",  # text: trained on a CPU
)

# The authors' released program, where it differs from the paper.
_OFFICIAL = replace(
    _PAPER,
    rollout_length=20,
    gamma=0.995,
    retrace_lambda=1.0,
    actor_lambda=1.0,
    optimiser="rmsprop",
    optimiser_decay=0.99,
    optimiser_epsilon=1e-5,
    max_grad_norm=0.5,
    width=512,
    shared_trunk=True,
    target_critic="head",
    target_from="current",
    updates="separate",  # 30 critic steps per iteration ...
    actor_every=2,  # ... plus 30 actor steps every second iteration
    replay_clear_every=50,
    alpha_bonus=0.1,
    precision="auto",
)

# Chosen on MinAtar (results/tuning): LayerNorm, a shared trunk, |A| as a weight (normalised, or the critic's
# gradient drowns it in the shared trunk), a little entropy, a few small batches from a long replay, lambda < 1,
# little exploration at the end, a critic that looks far ahead and an actor that relies on it.
_DEFAULT = NCAPOConfig(
    n_envs=40,
    rollout_length=20,
    batch_size=32,
    gradient_steps=8,
    replay_rollouts=25600,
    gamma=0.998,
    retrace_lambda=0.8,
    actor_lambda=0.5,
    learning_rate=2e-3,
    learning_rate_schedule="linear",
    max_grad_norm=0.8,
    epsilon_final=0.01,
    network="auto",
    width=128,
    layer_norm=True,
    shared_trunk=True,
    target_critic="full",
    target_from="current",
    advantage_weight="normalised",
    entropy=0.01,
    entropy_schedule="linear",
)

# A quarter of the arithmetic per environment step: an MLP and a lower replay ratio.
_CPU = replace(
    _DEFAULT,
    n_envs=64,
    rollout_length=8,
    batch_size=64,
    gradient_steps=4,
    replay_rollouts=1600,
    gamma=0.99,
    retrace_lambda=0.9,
    actor_lambda=1.0,
    learning_rate=1e-3,
    network="mlp",
    entropy_schedule="constant",
)

# Small observation vectors (such as CartPole's): both default and cpu.
_VECTOR = replace(
    _DEFAULT,
    n_envs=8,
    rollout_length=16,
    batch_size=32,
    gradient_steps=8,
    replay_rollouts=1024,
    gamma=0.99,
    retrace_lambda=1.0,
    actor_lambda=1.0,
    learning_rate=1e-3,
    epsilon_final=0.05,
    network="auto",
    width=64,
    layer_norm=False,
    shared_trunk=False,
    advantage_weight="none",  # the sign alone was steadier on CartPole
    entropy_schedule="constant",
)


def actor_target(log_pi: Array, advantage: Array, config: NCAPOConfig) -> Array:
    """The coordinate-ascent target distribution pi~.

    Args:
        log_pi: (..., A) log-probabilities of pi_m.
        advantage: (..., A) advantages of the pairs in the batch, 0 for all other pairs.
        config: step_size, fixed_alpha, clip, alpha_bonus and advantage_weight.

    Returns:
        (..., A) log-probabilities of pi~.
    """
    sign = jnp.sign(advantage)
    if config.step_size == "fixed":
        alpha = jnp.full_like(log_pi, config.fixed_alpha)
    else:
        alpha = clipped_step(log_pi, config.clip)
    alpha = alpha + config.alpha_bonus
    if config.advantage_weight != "none":
        alpha = alpha * jnp.abs(advantage)
    return coordinate_update(log_pi, sign, alpha)


def actor_loss(log_pi: Array, target: Array, kl: KL) -> Array:
    """KL(pi || target), or KL(target || pi), over the last axis: (..., A) to (...,)."""
    if kl == "policy-to-target":
        return jnp.sum(jnp.exp(log_pi) * (log_pi - target), axis=-1)
    return jnp.sum(jnp.exp(target) * (target - log_pi), axis=-1)


class NCAPOAlgorithm(OffPolicy):
    """NCAPO for a learner."""

    name = "ncapo"
    Config = NCAPOConfig
    config: NCAPOConfig

    def losses(self, log_pi: Array, batch: Rollout, targets: Targets) -> Metrics:
        in_batch = jnp.arange(self.network.n_actions) == batch.action[..., None]
        advantage = jnp.where(in_batch, targets.advantage[..., None], 0.0)
        if self.config.advantage_weight == "normalised":
            # The signs stay: this only decides how much the batch's advantages weigh against each other.
            advantage = advantage / (jnp.mean(jnp.abs(targets.advantage)) + 1e-8)
        pi_tilde = actor_target(targets.log_pi, advantage, self.config)
        return {"actor_loss": actor_loss(log_pi, pi_tilde, self.config.kl)}


class NCAPO(Agent):
    """Neural CAPO: off-policy coordinate ascent with Retrace and a replay of rollouts.

    >>> agent = NCAPO("minatar-breakout", preset="cpu", seeds=4, out="runs/breakout")  # doctest: +SKIP
    >>> agent.learn(1_000_000, progress_bar=True)  # doctest: +SKIP

    >>> agent = NCAPO("probe-action", width=16)
    >>> actions, _ = agent.predict([[1.0], [-1.0]], action_mask=[False, True])
    >>> actions.tolist()
    [1, 1]
    """

    _algorithm = NCAPOAlgorithm
