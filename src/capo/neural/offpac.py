"""Off-PAC: NCAPO's replay and Retrace critic, with the importance-weighted policy gradient for the actor.

    ratio = pi(a|s) / mu(a|s), mu the fixed policy that acts (uniform)
    grad = mean(ratio Q(s, a) grad log pi(a|s))

Q is the paper's equation; the authors' program has the advantage A = Q - V in its place (``weight``).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp

from capo.neural import critic, ncapo, networks
from capo.neural.algorithm import Metrics
from capo.neural.config import preset as ncapo_preset
from capo.neural.ncapo import NCAPOAlgorithm
from capo.neural.networks import NetworkSpec, Params
from capo.neural.replay import Rollout
from capo.neural.settings import RetraceSettings, TargetFrom, is_minatar

Array = Any
Behaviour = Literal["uniform", "policy"]
Weight = Literal["q", "advantage"]


@dataclass(frozen=True)
class OffPACConfig(RetraceSettings):
    """All settings of Off-PAC. Frames are environment steps of one seed, over all its environments."""

    PRESETS: ClassVar[tuple[str, ...]] = ("paper", "official", "default", "cpu")

    behaviour: Behaviour = "uniform"
    """Who acts while training: uniform (all actions alike, for ever), or policy: pi itself with epsilon."""
    weight: Weight = "advantage"
    """What multiplies ratio * grad log pi: q (the paper's equation) or advantage (the authors' program)."""
    max_ratio: float = 0.0
    """Largest importance ratio; 0 leaves it as it is (at most the number of actions if mu is uniform)."""
    epsilon_start: float = 0.0
    """Chance of a uniform action at the start of training, if the behaviour is the policy."""
    epsilon_final: float = 0.0
    """Chance of a uniform action after the first part of training, if the behaviour is the policy."""
    target_from: TargetFrom = "current"
    """The pi of the ratio and of Retrace: current (at every gradient step) or target-network."""

    @classmethod
    def _preset(cls, name: str, env_name: str) -> Self:
        """NCAPO's preset of that name but for what is its own: the machinery is the same (text)."""
        like = ncapo_preset(name, env_name)
        same = {field.name: getattr(like, field.name) for field in dataclasses.fields(RetraceSettings)}
        own = _OWN | (_OWN_DEFAULT if name == "default" and is_minatar(env_name) else {})
        return cls(**same | own, weight="q" if name == "paper" else "advantage")


_OWN: dict[str, Any] = {
    "behaviour": "uniform",  # text: "We choose such behavior policy to be a uniform policy"
    "epsilon_start": 0.0,  # table
    "epsilon_final": 0.0,  # table
    "target_from": "current",  # open
    "actor_lambda": 1.0,  # one lambda for both: the split was chosen by runs of NCAPO
}
# Changed in NCAPO's `default` on MinAtar by runs of NCAPO; what it had before is what was run here.
_OWN_DEFAULT: dict[str, Any] = {
    "gamma": 0.995,
    "learning_rate": 1e-3,
    "gradient_steps": 30,
    "replay_rollouts": 6400,
    "entropy_schedule": "constant",
}


def losses(
    config: Any, spec: NetworkSpec, params: Params, target: Params, batch: Rollout, train: str
) -> tuple[Array, Metrics]:
    """The loss to descend and what to log; see :func:`capo.neural.ncapo.losses` for the arguments."""
    length = batch.action.shape[-1]

    def taken(x: Array) -> Array:
        return jnp.take_along_axis(x, batch.action[..., None], axis=-1)[..., 0]

    inputs = networks.inputs(spec, batch.obs)
    learnt = inputs.steps(0, ncapo.rows_at_once(config, batch))
    logits, numbers, features = networks.logits_and_q(spec, params, learnt)
    evaluation = ncapo.evaluate_by_slow_networks(config, spec, params, target, batch, inputs, logits, features)
    log_pi = jax.nn.log_softmax(logits[:, :length])

    ratio = jnp.exp(taken(evaluation.log_pi) - batch.log_mu)
    if config.max_ratio:
        ratio = jnp.minimum(ratio, config.max_ratio)
    worth = evaluation.returns if config.weight == "q" else evaluation.advantage
    each = {
        "actor_loss": -ratio * worth * taken(log_pi),
        "critic_loss": critic.loss(config, numbers[:, :length], batch.action, evaluation.returns),
        "entropy": -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1),
        "value": evaluation.returns,
        "advantage_abs": jnp.abs(evaluation.advantage),
        "ratio": ratio,
    }
    return ncapo.loss_and_metrics(config, each, train)


class OffPACAlgorithm(NCAPOAlgorithm):
    """Off-PAC for the loop."""

    name = "offpac"
    Config = OffPACConfig
    losses = staticmethod(losses)

    def behaviour(self, acting: Params, obs: Array, epsilon: Array) -> Array:
        if self.config.behaviour == "policy":
            return super().behaviour(acting, obs, epsilon)
        scores = self.scores(acting, obs)  # for its shape alone; the compiler drops the rest
        return jnp.full_like(scores, -jnp.log(scores.shape[-1]))
