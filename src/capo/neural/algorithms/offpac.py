"""Off-PAC: NCAPO's replay and Retrace critic, with the importance-weighted policy gradient for the actor.

    ratio = pi(a|s) / mu(a|s), where mu is the fixed policy that acts (uniform)
    grad = mean(ratio Q(s, a) grad log pi(a|s))

Q is the paper's equation; the authors' program uses the advantage A = Q - V instead (``weight``).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import jax.numpy as jnp

from capo.arrays import Array, Metrics
from capo.envs.atari import is_atari
from capo.neural.agent import Agent
from capo.neural.algorithms.ncapo import NCAPOConfig
from capo.neural.algorithms.offpolicy import OffPolicy, Targets
from capo.neural.algorithms.settings import NonNegative, RetraceSettings, TargetFrom, TracedFraction, is_minatar
from capo.neural.parts import networks, policies
from capo.neural.parts.networks import Params
from capo.neural.parts.policies import taken
from capo.neural.parts.replay import Rollout

Behaviour = Literal["uniform", "policy"]
Weight = Literal["q", "advantage"]


@dataclass(frozen=True)
class OffPACConfig(RetraceSettings):
    """All settings of Off-PAC. Frames are environment steps of one seed, summed over its environments."""

    PRESETS: ClassVar[tuple[str, ...]] = ("paper", "official", "default", "cpu")

    behaviour: Behaviour = "uniform"
    """Policy that acts during training: uniform (throughout), or policy: pi itself with epsilon."""
    weight: Weight = "advantage"
    """Factor of ratio * grad log pi: q (the paper's equation) or advantage (the authors' program)."""
    max_ratio: NonNegative = 0.0
    """Largest importance ratio; 0 sets no limit (if mu is uniform, it is at most the number of actions)."""
    epsilon_start: TracedFraction = 0.0
    """Probability of a uniform action at the start of training, with behaviour=policy."""
    epsilon_final: TracedFraction = 0.0
    """Probability of a uniform action once epsilon has stopped falling, with behaviour=policy."""
    target_from: TargetFrom = "current"
    """Policy that the ratio and Retrace use: current (at every gradient step) or target-network."""

    @classmethod
    def _preset(cls, name: str, env_name: str) -> Self:
        """NCAPO's preset of that name, since the machinery is the same (text), with Off-PAC's own values."""
        like = NCAPOConfig.preset(name, env_name)
        same = {field.name: getattr(like, field.name) for field in dataclasses.fields(RetraceSettings)}
        own = dict(_OWN)
        if name in ("default", "cpu") and not is_minatar(env_name):
            own |= _OWN_ATARI if is_atari(env_name) else _OWN_VECTOR
        elif name == "default":
            own |= _OWN_DEFAULT
        return cls(**same | own, weight="q" if name == "paper" else "advantage")


_OWN: dict[str, Any] = {
    "behaviour": "uniform",  # text: "We choose such behavior policy to be a uniform policy"
    "epsilon_start": 0.0,  # table
    "epsilon_final": 0.0,  # table
    "target_from": "current",  # open
    "actor_lambda": 1.0,  # one lambda for both: a separate one was chosen by runs of NCAPO
}
# NCAPO's `default` on MinAtar was tuned further by runs of NCAPO; Off-PAC keeps the values before that.
_OWN_DEFAULT: dict[str, Any] = {
    "n_envs": 40,
    "tau_q": 0.05,
    "frame_stack": 1,
    "evaluation": "sampled",
    "entropy": 0.01,
    "gamma": 0.995,
    "learning_rate": 1e-3,
    "gradient_steps": 30,
    "replay_rollouts": 6400,
    "entropy_schedule": "constant",
}
# NCAPO copies the critic's target network at every iteration, which was chosen for its certain signs.
_OWN_ATARI: dict[str, Any] = {"tau_q": 0.05}  # table
# Small vectors: no value that was chosen for NCAPO's certain signs.
_OWN_VECTOR: dict[str, Any] = {
    **_OWN_ATARI,
    "batch_size": 32,
    "retrace_lambda": 1.0,
    "learning_rate": 1e-3,
    "width": 64,
    "layer_norm": False,
    "clip_each_network": False,
}


class OffPACAlgorithm(OffPolicy):
    """Off-PAC for a learner."""

    name = "offpac"
    Config = OffPACConfig
    config: OffPACConfig

    def losses(self, log_pi: Array, batch: Rollout, targets: Targets) -> Metrics:
        ratio = jnp.exp(taken(targets.log_pi, batch.action) - batch.log_mu)
        if self.config.max_ratio:
            ratio = jnp.minimum(ratio, self.config.max_ratio)
        weight = targets.returns if self.config.weight == "q" else targets.advantage
        return {"actor_loss": -ratio * weight * taken(log_pi, batch.action), "ratio": ratio}

    def behaviour(self, acting: Params, obs: Array, epsilon: Array) -> Array:
        if self.config.behaviour == "policy":
            return super().behaviour(acting, obs, epsilon)
        inputs = networks.inputs(self.network, obs)
        scores = self.action_scores(acting, inputs)  # only for its shape: the compiler drops the rest
        factors = self.network.factors
        if inputs.mask is None and not factors:
            return jnp.full_like(scores, -jnp.log(scores.shape[-1]))
        mask = jnp.ones_like(scores, jnp.bool_) if inputs.mask is None else inputs.mask
        return jnp.log(policies.uniform(mask, factors))


class OffPAC(Agent):
    """Off-policy actor-critic: NCAPO's machinery with the importance-weighted policy gradient.

    >>> OffPAC("probe-action", width=16, n_envs=8, rollout_length=2).learn(16).frames
    16
    """

    _algorithm = OffPACAlgorithm
