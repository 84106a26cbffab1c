"""The settings of NCAPO as one frozen dataclass, and its presets.

A preset says where each value comes from: "table" is the paper's hyper-parameter table, "text" its
description, "authors" their released program where the paper says nothing, "open" a value chosen here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from capo.errors import unknown_name
from capo.neural.settings import RetraceSettings, is_minatar, override

__all__ = ["KL", "PRESETS", "NCAPOConfig", "override", "preset"]

KL = Literal["policy-to-target", "target-to-policy"]
AdvantageWeight = Literal["none", "absolute", "normalised"]
StepKind = Literal["log", "fixed"]

PRESETS = ("paper", "official", "default", "cpu")


@dataclass(frozen=True)
class NCAPOConfig(RetraceSettings):
    """All settings of one NCAPO run. Frames are environment steps of one seed, over all its environments."""

    PRESETS: ClassVar[tuple[str, ...]] = PRESETS

    epsilon_start: float = 0.3
    epsilon_final: float = 0.05
    step_size: StepKind = "log"
    """log: alpha = min(log 1/pi, clip), the paper's; fixed: alpha = fixed_alpha, whatever pi is."""
    fixed_alpha: float = 1.0
    """The step size, if it is fixed."""
    clip: float = 50.0
    """Largest step size: alpha = min(log 1/pi, clip)."""
    alpha_bonus: float = 0.0
    """Added to every step size."""
    advantage_weight: AdvantageWeight = "none"
    """none: only the sign counts, as in the paper; absolute: alpha times |A|; normalised: |A| / mean |A|."""
    kl: KL = "policy-to-target"
    """Direction of the actor's loss: KL(pi || pi~) (the paper's) or KL(pi~ || pi)."""

    @classmethod
    def _preset(cls, name: str, env_name: str) -> Self:
        return preset(name, env_name)  # type: ignore[return-value]


def preset(name: str, env_name: str = "") -> NCAPOConfig:
    """The settings of a preset for an environment (only Asterix has values of its own).

    Args:
        name: ``paper``, ``official``, ``default`` or ``cpu``.
        env_name: the environment's name.
    """
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    grid = is_minatar(env_name)
    if name == "paper":
        config = _PAPER
    elif name == "official":
        config = _OFFICIAL
    elif name == "cpu":
        config = _CPU if grid else _VECTOR
    else:
        config = _DEFAULT if grid else _VECTOR
    if name in ("paper", "official") and "asterix" in env_name.lower():
        # The table's footnote: Asterix has its own two values.
        config = dataclasses.replace(config, critic_coefficient=0.25, epsilon_start=0.8)
    return config


_PAPER = NCAPOConfig(
    n_envs=40,  # authors
    rollout_length=64,  # table: train frequency (64, steps), as PPO's (256, steps) is 256 of each environment
    batch_size=32,  # table; that these are rollouts is from the pseudo-code ("sample rollout r")
    gradient_steps=30,  # table
    replay_rollouts=6400,  # table; read as rollouts, which is what the replay holds
    gamma=0.99,  # table
    retrace_lambda=0.8,  # open: with half of it for the actor the best in Asterix (results/tuning)
    actor_lambda=0.5,  # open
    learning_rate=5e-4,  # table
    learning_rate_schedule="linear",  # authors
    optimiser="adam",  # open
    max_grad_norm=0.8,  # table
    network="auto",  # text: "four simple 2-layer feed-forward neural networks"; authors: on grids one convolves
    width=256,  # open here; 256 is what the chain experiment uses
    shared_trunk=False,  # text: separate networks
    epsilon_start=0.3,  # table; 0.8 in Asterix
    epsilon_final=0.05,  # table
    epsilon_fraction=0.1,  # table
    clip=50.0,  # table
    kl="policy-to-target",  # the NCAPO loss
    target_from="target-network",  # pseudo-code: pi_theta is the target network, theta^b the one that learns
    target_critic="full",  # pseudo-code: Q(. | theta^Q')
    updates="joint",  # pseudo-code: both at every gradient step
    critic_coefficient=1.0,  # table; 0.25 in Asterix
    entropy=0.0,  # table
    tau_q=0.05,  # table
    tau_policy=1.0,  # table
)

# What the authors' released program does, where it differs from the paper.
_OFFICIAL = dataclasses.replace(
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
    updates="separate",  # 30 critic steps an iteration ...
    actor_every=2,  # ... plus 30 actor steps every second iteration
    replay_clear_every=50,
    alpha_bonus=0.1,
)

# Chosen on MinAtar: LayerNorm, |A| as a weight (normalised, or it is lost beside the critic in the
# shared trunk), a little entropy, one trunk; small batches, not many, from a long replay, a lambda below 1, little
# exploration in the end, a critic that looks far ahead and an actor that leans on it (results/tuning).
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

# A quarter of the arithmetic an environment step: an MLP and a lower replay ratio.
_CPU = dataclasses.replace(
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

# Small observation vectors (CartPole and the like), for default and cpu alike.
_VECTOR = dataclasses.replace(
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
    advantage_weight="none",  # the sign alone was the steadier on CartPole
    entropy_schedule="constant",
)
