"""The settings of NCAPO as one frozen dataclass, and its presets.

A preset says where each value comes from: "table" is the paper's hyper-parameter table, "text" its
description, "open" a value the paper leaves open and that was chosen here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from capo.errors import unknown_name
from capo.neural.settings import RANGES as _RANGES  # noqa: F401
from capo.neural.settings import Network, Optimiser, Precision, Schedule, Settings, is_minatar, override

__all__ = ["KL", "PRESETS", "NCAPOConfig", "override", "preset"]

KL = Literal["policy-to-target", "target-to-policy"]
TargetFrom = Literal["current", "target-network"]
TargetCritic = Literal["full", "head"]
Updates = Literal["joint", "separate"]
AdvantageWeight = Literal["none", "absolute", "normalised"]
StepKind = Literal["log", "fixed"]

PRESETS = ("paper", "official", "default", "cpu")


@dataclass(frozen=True)
class NCAPOConfig(Settings):
    """All settings of one NCAPO run. Frames are environment steps of one seed, over all its environments."""

    PRESETS: ClassVar[tuple[str, ...]] = PRESETS

    horizon: int = 1_000_000
    """Frames over which the epsilon and learning-rate schedules run; later frames use the final values."""
    n_envs: int = 40
    """Environments a seed steps together; each gives one rollout an iteration."""
    rollout_length: int = 20
    """Steps of one rollout; rollouts go on across episode ends."""
    batch_size: int = 32
    """Rollouts in the batch of one gradient step."""
    gradient_steps: int = 30
    """Gradient steps an iteration (of the critic and of the actor each, if updates are separate)."""
    replay_rollouts: int = 6400
    """Rollouts kept in the replay; rounded up to a multiple of n_envs."""
    replay_clear_every: int = 0
    """Empty the replay every so many iterations; 0 never does."""
    gamma: float = 0.99
    """Discount of future rewards."""
    retrace_lambda: float = 1.0
    """Lambda of Retrace: 0 looks one step ahead, 1 down the whole rollout."""
    learning_rate: float = 5e-4
    """Learning rate at the start."""
    learning_rate_schedule: Schedule = "constant"
    """constant, or linear: down to 0 at the horizon."""
    optimiser: Optimiser = "adam"
    """adam or rmsprop; one for actor and critic together."""
    optimiser_epsilon: float = 1e-5
    """Added to the root of the second moment in the optimiser."""
    optimiser_decay: float = 0.99
    """Decay of the second moment of rmsprop (adam uses 0.9 and 0.999)."""
    max_grad_norm: float = 0.8
    """Gradients longer than this are scaled down to it."""
    network: Network = "auto"
    """mlp (two layers), conv (16 filters of 3x3, then one layer), or auto: conv for image grids."""
    width: int = 128
    """Units of each dense layer."""
    conv_features: int = 16
    """Filters of the convolution."""
    layer_norm: bool = False
    """Normalise every layer's output before its activation."""
    shared_trunk: bool = False
    """Whether actor and critic share all layers but their heads."""
    precision: Precision = "float32"
    """Number format of the matrix products; parameters are always float32."""
    epsilon_start: float = 0.3
    """Chance of a uniform action at the start of training."""
    epsilon_final: float = 0.05
    """Chance of a uniform action after the first part of training."""
    epsilon_fraction: float = 0.1
    """Fraction of the horizon over which epsilon falls to its final value."""
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
    target_from: TargetFrom = "current"
    """The pi of the actor's target and of Retrace: current (at every gradient step) or target-network."""
    target_critic: TargetCritic = "full"
    """Whether the whole critic has a slow copy, or its head only (on the current trunk)."""
    updates: Updates = "joint"
    """joint: one step on both losses; separate: critic steps, then actor steps."""
    actor_every: int = 1
    """Iterations between two of the actor's turns, if updates are separate."""
    critic_coefficient: float = 1.0
    """Weight of the critic's loss."""
    entropy: float = 0.0
    """Weight of the policy's entropy, added to what the actor maximises."""
    tau_q: float = 0.05
    """Fraction of the way the critic's target network moves to the critic, once an iteration."""
    tau_policy: float = 1.0
    """Fraction of the way the policy's target network moves to the policy, once an iteration."""

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
    n_envs=8,  # open: "train frequency (64, steps)" is read as 8 environments x 8 steps an iteration
    rollout_length=8,  # open, see n_envs
    batch_size=32,  # table; that these are rollouts is from the pseudo-code ("sample rollout r")
    gradient_steps=30,  # table
    replay_rollouts=6400,  # table; read as rollouts, which is what the replay holds
    gamma=0.99,  # table
    retrace_lambda=1.0,  # open
    learning_rate=5e-4,  # table
    learning_rate_schedule="constant",  # open
    optimiser="adam",  # open
    max_grad_norm=0.8,  # table
    network="mlp",  # text: "four simple 2-layer feed-forward neural networks"
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
    n_envs=40,
    rollout_length=20,
    gamma=0.995,
    learning_rate_schedule="linear",
    optimiser="rmsprop",
    optimiser_decay=0.99,
    optimiser_epsilon=1e-5,
    max_grad_norm=0.5,
    network="auto",  # conv 16@3x3 + dense 512 on image grids
    width=512,
    shared_trunk=True,
    target_critic="head",
    target_from="current",
    updates="separate",  # 30 critic steps an iteration ...
    actor_every=2,  # ... plus 30 actor steps every second iteration
    replay_clear_every=50,
    alpha_bonus=0.1,
)

# What worked best on MinAtar: LayerNorm, |A| as a weight (normalised, or it is lost beside the critic in the
# shared trunk), a little entropy, one trunk.
_DEFAULT = NCAPOConfig(
    n_envs=40,
    rollout_length=20,
    batch_size=256,
    gradient_steps=8,
    replay_rollouts=6400,
    gamma=0.99,
    learning_rate=5e-4,
    learning_rate_schedule="linear",
    max_grad_norm=0.8,
    network="auto",
    width=128,
    layer_norm=True,
    shared_trunk=True,
    target_critic="full",
    target_from="current",
    advantage_weight="normalised",
    entropy=0.01,
)

# A tenth of the arithmetic an environment step: an MLP and a low replay ratio.
_CPU = dataclasses.replace(
    _DEFAULT,
    n_envs=64,
    rollout_length=8,
    batch_size=64,
    gradient_steps=4,
    replay_rollouts=4096,
    network="mlp",
)

# Small observation vectors (CartPole and the like), for default and cpu alike.
_VECTOR = dataclasses.replace(
    _DEFAULT,
    n_envs=8,
    rollout_length=16,
    batch_size=32,
    gradient_steps=8,
    replay_rollouts=1024,
    learning_rate=1e-3,
    network="auto",
    width=64,
    layer_norm=False,
    shared_trunk=False,
    advantage_weight="none",  # the sign alone was the steadier on CartPole
)
