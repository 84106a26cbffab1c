"""NCAPO (Algorithm 3 of the paper): the critic by Retrace, the actor by coordinate ascent.

One batch of rollouts goes through these steps, in the paper's order:

1. pi_m and Q' of every observation, Retrace returns and advantages of the taken actions
   (:func:`capo.neural.algorithms.offpolicy.retrace_targets`);
2. the critic's loss: squared distance of Q from the Retrace return;
3. the actor's target pi~ = softmax(f + alpha * sign(A)) at the taken action, alpha = min(log 1/pi, clip)
   (:func:`actor_target`); or, with certain signs, at every action of the state, with the expectation of the sign
   under what the critic believes instead of the sign (:meth:`NCAPOAlgorithm.certain_signs`);
4. the actor's loss: KL between pi and pi~, or the distance of their logits (:func:`actor_loss`).

In a preset, "table" is the paper's hyper-parameter table, "text" its description, "authors" their released program
where the paper says nothing, "open" a value chosen here.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, Metrics
from capo.envs.atari import is_atari
from capo.errors import CapoError
from capo.neural.agent import Agent
from capo.neural.algorithms.base import TrainState
from capo.neural.algorithms.offpolicy import OffPolicy, Targets
from capo.neural.algorithms.settings import (
    Count,
    FinalEpsilon,
    Fraction,
    RetraceSettings,
    Search,
    TracedFraction,
    TracedNonNegative,
    TracedPositive,
    is_minatar,
    with_traced,
)
from capo.neural.parts import certainty, networks, policies, schedules, units
from capo.neural.parts.critic import CriticHead
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.networks import Inputs, Params
from capo.neural.parts.policies import Sizes, taken_column
from capo.neural.parts.replay import Rollout
from capo.neural.parts.schedules import Schedule
from capo.update import clipped_step, coordinate_update

StepKind = Literal["log", "fixed"]
AdvantageWeight = Literal["none", "normalised", "certain"]
KL = Literal["policy-to-target", "target-to-policy", "logits"]
CriticUnits = Literal["rewards", "noise", "returns"]


@dataclass(frozen=True)
class NCAPOConfig(RetraceSettings):
    """All settings of NCAPO. Frames are environment steps of one seed, summed over its environments."""

    PRESETS: ClassVar[tuple[str, ...]] = ("paper", "official", "default", "sign", "cpu", "atari")

    epsilon_start: TracedFraction = 0.3
    epsilon_final: FinalEpsilon = 0.05
    step_size: StepKind = "log"
    """log: alpha = min(log 1/pi, clip), as in the paper; fixed: alpha = fixed_alpha for every pi."""
    fixed_alpha: TracedPositive = 1.0
    """The step size alpha with step_size=fixed."""
    clip: Annotated[TracedPositive, Search(0.5, 50.0, "log")] = 50.0
    """Largest step size: alpha = min(log 1/pi, clip)."""
    alpha_bonus: TracedNonNegative = 0.0
    """Added to every step size alpha."""
    advantage_weight: AdvantageWeight = "none"
    """none: only the sign of A counts, as in the paper; normalised: alpha is multiplied by |A| / mean |A|;
    certain: every action of a state is updated, and alpha is multiplied by P(A > 0) - P(A < 0) as estimated by the
    critic."""
    critic_heads: Count = 1
    """Number of estimates of Q from the critic: 1 or an even number. They start as pairs that cancel and learn
    from separate returns; their disagreement measures the uncertainty of the critic. A categorical critic has
    one."""
    noise_uncertainty: TracedNonNegative = 0.3
    """With advantage_weight=certain: the fraction of the noise of returns (the rms of G - Q') that counts as
    uncertainty, at the start of training."""
    noise_uncertainty_schedule: Schedule = "constant"
    """constant, or linear: noise_uncertainty falls to 0 at the horizon."""
    optimism: TracedNonNegative = 0.0
    """With advantage_weight=certain: how many standard deviations of its uncertainty are added to every
    advantage."""
    chance_kept: TracedNonNegative = 0.0
    """With advantage_weight=certain: each of n actions keeps a probability of at least this number times P(A > 0)
    / n. Below that, it is raised instead of lowered, so the policy does not become more certain than the
    critic."""
    explorers: Fraction = 0.0
    """Fraction of the environments, rounded down (in each of the two groups that overlap makes), in which one of
    the critic's heads acts instead of the policy (its best action, with epsilon), for whole episodes, so that what
    a head is optimistic about gets tried."""
    kl: KL = "policy-to-target"
    """The actor's loss: policy-to-target, KL(pi || pi~), as in the paper; target-to-policy, KL(pi~ || pi); or
    logits: half the squared distance of the logits, whose step does not shrink when pi is small."""
    floor: Fraction = 0.0
    """Probability below which an action is not lowered further."""
    critic_units: CriticUnits = "rewards"
    """rewards: the critic minimises squared errors; noise: it minimises squared errors divided by their mean over
    the batch, so that neither its step nor the actor's depends on the scale of rewards; returns: in addition, its
    outputs are in units of the largest discounted sum of rewards within a rollout, so that it reaches values of
    any size equally fast. One rare reward that is thousands of times larger than all others slows learning down.
    A categorical critic has no unit: its atoms are the values themselves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic_heads > 1 and self.critic_heads % 2:
            raise CapoError(f"critic_heads={self.critic_heads} must be 1 or even: they start as pairs that cancel")

    @classmethod
    def _preset(cls, name: str, env_name: str) -> Self:
        grid = is_minatar(env_name)
        presets = {"paper": _PAPER, "official": _OFFICIAL, "default": _DEFAULT, "sign": _SIGN}
        presets |= {"cpu": _CPU, "atari": _ATARI}
        authors = name in ("paper", "official")
        config = presets[name] if grid or authors else _VECTOR
        if name == "atari" or (is_atari(env_name) and not authors):
            config = _ATARI
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
# little exploration at the end, a critic that looks far ahead and an actor that relies on it. Two frames, as one
# does not show when things move next. Few iterations of many environments are quick on a GPU; the target network
# moves once per iteration, hence further in each (0.185 = 1 - 0.95 ** 4).
_DEFAULT = NCAPOConfig(
    n_envs=160,
    rollout_length=20,
    batch_size=32,
    gradient_steps=32,
    replay_rollouts=25600,
    gamma=0.998,
    retrace_lambda=0.8,
    actor_lambda=0.75,
    learning_rate=2e-3,
    learning_rate_schedule="linear",
    max_grad_norm=0.8,
    epsilon_final=0.01,
    network="auto",
    width=128,
    layer_norm=True,
    shared_trunk=True,
    tau_q=0.185,
    target_critic="full",
    target_from="current",
    advantage_weight="normalised",
    entropy=0.003,
    entropy_schedule="linear",
    evaluation="best",
    frame_stack=2,
)

# The paper's form, without the size of A: the expected sign, from eight heads (a single sampled sign scores less).
# Fewer updates and a slower target network than `default`: it was chosen and measured with these.
_SIGN = replace(
    _DEFAULT,
    gradient_steps=16,
    advantage_weight="certain",
    critic_heads=8,
    noise_uncertainty=1.0,
    noise_uncertainty_schedule="linear",
    tau_q=0.05,
)

# What the presets below start from.
_SAMPLED = replace(
    _DEFAULT,
    n_envs=40,
    gradient_steps=8,
    actor_lambda=0.5,
    tau_q=0.05,
    entropy=0.01,
    evaluation="sampled",
    frame_stack=1,
)

# A quarter of the arithmetic per environment step: an MLP and a lower replay ratio.
_CPU = replace(
    _SAMPLED,
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

# Everything but MinAtar, both default and cpu (docs/research/certain-signs.md): certain signs from eight heads, of
# which every action keeps its chance, steps in the logits, a target network that is copied at every iteration.
_VECTOR = replace(
    _SAMPLED,
    n_envs=8,
    rollout_length=16,
    batch_size=16,
    gradient_steps=8,
    replay_rollouts=1024,
    gamma=0.99,
    retrace_lambda=0.95,
    actor_lambda=1.0,
    learning_rate=1e-3,
    epsilon_final=0.05,
    clip_each_network=True,
    shared_trunk=False,
    advantage_weight="certain",
    critic_heads=8,
    noise_uncertainty=1.0,
    noise_uncertainty_schedule="linear",
    chance_kept=0.5,
    explorers=0.25,
    kl="logits",
    floor=1e-3,
    critic_units="returns",
    tau_q=1.0,
    entropy_schedule="constant",
)

# Atari: certain signs at sizes that are usual for Atari. With MinAtar's update (sampled signs, normalised |A|) the
# policy of Pong was deterministic after 100,000 frames and had learned nothing (docs/research/atari.md).
_ATARI = replace(
    _VECTOR,
    n_envs=64,
    rollout_length=16,
    batch_size=32,
    gradient_steps=16,
    replay_rollouts=4096,
    retrace_lambda=0.8,
    learning_rate=5e-4,
    epsilon_final=0.01,
    shared_trunk=True,
    width=512,
    clip_each_network=False,  # one trunk, one gradient
    reward_clip=1.0,
    frame_stack=4,
    overlap="acting",
)


def actor_target(log_pi: Array, advantage: Array, config: NCAPOConfig, factors: Sizes = ()) -> Array:
    """The coordinate-ascent target distribution pi~.

    Args:
        log_pi: (..., A) log-probabilities of pi_m.
        advantage: (..., A) advantages of the pairs in the batch, 0 for all other pairs; or expected signs.
        config: step_size, fixed_alpha, clip, alpha_bonus, floor and advantage_weight.
        factors: sizes of an action's factors: each is updated by itself.

    Returns:
        (..., A) log-probabilities of pi~.
    """
    sign = jnp.sign(advantage)
    if config.floor:
        sign = jnp.where((sign < 0) & (log_pi < math.log(config.floor)), 0.0, sign)
    if config.step_size == "fixed":
        alpha = jnp.full_like(log_pi, config.fixed_alpha)
    else:
        alpha = clipped_step(log_pi, config.clip)
    alpha = alpha + config.alpha_bonus
    if config.advantage_weight != "none":
        alpha = alpha * jnp.abs(advantage)
    return policies.each_factor(coordinate_update, factors, log_pi, sign, alpha)


def factor_advantages(targets: Targets, action: Array, factors: Sizes) -> Array:
    """The advantage of each factor's action (B, T, A), at the coordinates taken.

    A_i = A - sum over the other factors j of (Q_j(s, a_j) - V_j(s)): what the critic credits to the actions of the
    others is taken off. It does not depend on a_i, so as a baseline it does not bias A_i.

    Args:
        targets: of a batch.
        action: (B, T, F) coordinates.
        factors: their sizes.
    """
    weighted = jnp.exp(targets.log_pi) * targets.q
    value = policies.each_factor(lambda x: x.sum(axis=-1, keepdims=True), factors, weighted)  # (B, T, F)
    own = jnp.take_along_axis(targets.q, action, axis=-1) - value
    each = targets.advantage[..., None] - own.sum(axis=-1, keepdims=True) + own
    return jnp.repeat(each, jnp.array(factors), axis=-1, total_repeat_length=sum(factors))


def actor_loss(log_pi: Array, target: Array, kl: KL, factors: Sizes = ()) -> Array:
    """KL(pi || target), KL(target || pi), or half the squared distance of logits: (..., A) to (...,).

    Logits have no fixed level: only their distance from the mean over actions counts, over those of a factor that
    are allowed.
    """
    if kl == "policy-to-target":
        return jnp.sum(jnp.exp(log_pi) * (log_pi - target), axis=-1)
    if kl == "target-to-policy":
        return jnp.sum(jnp.exp(target) * (target - log_pi), axis=-1)
    allowed = log_pi > policies.FORBIDDEN / 2
    centred = policies.each_factor(_centred, factors, jnp.where(allowed, log_pi - target, 0.0), allowed)
    return 0.5 * jnp.sum(jnp.square(centred), axis=-1)


def _centred(apart: Array, allowed: Array) -> Array:
    """Numbers (..., A) less their mean over the actions allowed; 0 for the others."""
    count = jnp.maximum(allowed.sum(axis=-1, keepdims=True), 1)
    return jnp.where(allowed, apart - apart.sum(axis=-1, keepdims=True) / count, 0.0)


class NCAPOAlgorithm(OffPolicy):
    """NCAPO for a learner."""

    name = "ncapo"
    Config = NCAPOConfig
    config: NCAPOConfig

    @property
    def critic(self) -> CriticHead:
        head = super().critic
        return head if head.categorical else replace(head, n_heads=self.config.critic_heads)

    @property
    def has_unit(self) -> bool:
        """Whether the critic's outputs are in units of returns; the atoms of a distribution are Q itself."""
        return self.config.critic_units == "returns" and not self.critic.categorical

    def init_params(self, rng: np.random.Generator) -> Params:
        """Networks of one seed; the critic's heads cancel in pairs, so that their mean is 0 until it learns."""
        params = super().init_params(rng)
        if self.has_unit:
            params["critic"]["head"]["unit"] = units.start(isinstance(rng, networks.ShapesOnly))
        if self.critic.n_heads > 1 and not isinstance(rng, networks.ShapesOnly):
            kernel = params["critic"]["head"]["kernel"]
            half = kernel[:, : kernel.shape[1] // 2]
            params["critic"]["head"]["kernel"] = np.concatenate([half, -half], axis=1)
        return params

    # Acting -----------------------------------------------------------------------------------------------

    def acting_params(self, params: Params) -> Params:
        """The actor; beside it the critic, if some environments follow its heads."""
        if not self.config.explorers:
            return super().acting_params(params)
        return {name: networks.select(params, name) for name in ("actor", "critic")}

    def action_scores(self, acting: Params, obs: Array | Inputs) -> Array:
        return super().action_scores(acting.get("actor", acting), obs)

    def behaviour(self, acting: Params, obs: Array, epsilon: Array) -> Array:
        """mu = (1 - epsilon) pi + epsilon / A; in the explorers, a head's best action stands for pi."""
        log_mu = super().behaviour(acting, obs, epsilon)
        n = int(self.config.explorers * obs.shape[0])
        if n == 0:
            return log_mu
        inputs = networks.inputs(self.network, obs[:n])
        q = self.head_values(acting, inputs)
        if self.critic.n_heads > 1:
            q = q[jnp.arange(n), jnp.arange(n) % self.critic.n_heads]
        scores = policies.masked(q, inputs.mask)
        return log_mu.at[:n].set(policies.epsilon_greedy(scores, epsilon, inputs.mask, self.network.factors))

    def head_values(self, acting: Params, inputs: Inputs) -> Array:
        """What the critic's heads say (..., M, A), or its only one (..., A)."""
        return self.critic.values(networks.outputs(self.network, acting["critic"], inputs))

    # Learning ---------------------------------------------------------------------------------------------

    def learn(
        self, state: TrainState, rollouts: Rollout, iteration: Iteration, key: Array
    ) -> tuple[TrainState, Metrics]:
        config = self.config
        counts = schedules.decay(
            config.noise_uncertainty, config.noise_uncertainty_schedule, self.progress(iteration)
        )
        now = copy.copy(self)
        now.config = with_traced(config, {"noise_uncertainty": counts})
        if self.has_unit:
            ended = rollouts.terminated | rollouts.truncated
            old = state.params["critic"]["head"]["unit"]
            unit = units.grown(old, rollouts.reward, ended, config.gamma)
            params, target = (units.changed(networks, unit) for networks in (state.params, state.target))
            state = replace(state, params=params, target=target)
        return OffPolicy.learn(now, state, rollouts, iteration, key)

    def losses(self, log_pi: Array, batch: Rollout, targets: Targets) -> Metrics:
        factors = self.network.factors
        if self.config.advantage_weight == "certain":
            advantage = self.certain_signs(batch, targets)
            logged = {"certainty": certainty.mean_certainty(targets.log_pi, advantage, factors)}
        else:
            advantage, logged = self._sampled_advantage(batch, targets), {}
        pi_tilde = actor_target(targets.log_pi, advantage, self.config, factors)
        return {"actor_loss": actor_loss(log_pi, pi_tilde, self.config.kl, factors), **logged}

    def _sampled_advantage(self, batch: Rollout, targets: Targets) -> Array:
        """Advantages (B, T, A) of the taken actions, 0 for all others."""
        n_actions, factors = self.network.n_actions, self.network.factors
        sampled = self.over_heads(targets.advantage)
        advantage = sampled[..., None]
        if factors:
            q = targets.q.mean(axis=-2) if self.critic.n_heads > 1 else targets.q
            advantage = factor_advantages(targets._replace(advantage=sampled, q=q), batch.action, factors)
        advantage = jnp.where(policies.is_taken(batch.action, n_actions, factors), advantage, 0.0)
        if self.config.advantage_weight == "normalised":
            # The signs stay: this only decides how much the batch's advantages weigh against each other.
            advantage = advantage / (jnp.mean(jnp.abs(sampled)) + 1e-8)
        return advantage

    def certain_signs(self, batch: Rollout, targets: Targets) -> Array:
        """E sign(A) of every action (B, T, A) under what the critic believes; see :mod:`.certainty`."""
        config = self.config
        mean, variance = self.belief(batch, targets)
        sign = certainty.expected_sign(mean + config.optimism * jnp.sqrt(variance), variance)
        return certainty.keep_chance(targets.log_pi, sign, config.chance_kept, self.network.factors)

    def belief(self, batch: Rollout, targets: Targets) -> tuple[Array, Array]:
        """Mean and variance (B, T, A) of the advantages: of the heads, and of a part of the noise of returns."""
        several = self.critic.n_heads > 1
        q = targets.q if several else targets.q[..., None, :]  # (B, T, M, A)
        returns = targets.returns if several else targets.returns[..., None]
        noise = jnp.mean(jnp.square(returns - taken_column(q, batch.action)))
        mean, variance = certainty.advantage_belief(targets.log_pi, q, self.network.factors)
        return mean, variance + jnp.square(self.config.noise_uncertainty) * noise

    def critic_unit(self, params: Params, losses: Array) -> Array | float:
        if self.config.critic_units == "rewards":
            return 1.0
        unit = units.factor(params["critic"]["head"]["unit"]) if self.has_unit else 1.0
        least = 1e-8 * jnp.square(unit)  # errors far below the unit are rounding
        return jax.lax.stop_gradient(1.0 / (jnp.mean(losses) + least))


class NCAPO(Agent):
    """Neural CAPO: off-policy coordinate ascent with Retrace and a replay of rollouts.

    >>> agent = NCAPO("minatar-breakout", preset="cpu", seeds=4, out="runs/breakout")  # doctest: +SKIP
    >>> agent.learn(1_000_000, progress_bar=True)  # doctest: +SKIP

    >>> agent = NCAPO("probe-action", width=16)
    >>> actions, _ = agent.predict([[1.0], [-1.0]], action_masks=[False, True])
    >>> actions.tolist()
    [1, 1]
    """

    _algorithm = NCAPOAlgorithm
