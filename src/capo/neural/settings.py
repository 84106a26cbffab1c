"""What the settings of all algorithms share: checked values, overrides by name, plain dictionaries.

Every algorithm has one frozen dataclass with a sentence under each field. What several algorithms have in common
stands once, here; an algorithm that starts from another value has the field again, and if it means something
else by it, with a sentence of its own:

    Settings                  checks, overrides, dictionaries
      CommonSettings            the loop, the optimiser, the networks: all algorithms
        ActorCriticSettings       two networks
          OnPolicySettings          A2C, PPO
        EpsilonSettings           uniform actions now and then: Rainbow
          RetraceSettings           NCAPO, Off-PAC; actor-critics too

A preset says where each value comes from: "table" is the paper's hyper-parameter table, "text" its description,
"authors" a file that its authors released or cite, "open" a value they leave open and that was chosen here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_type_hints

import numpy as np

from capo.errors import CapoError, unknown_name

Network = Literal["auto", "mlp", "conv"]
Activation = Literal["relu", "tanh"]
Optimiser = Literal["adam", "rmsprop"]
OnPolicyOptimiser = Literal["adam", "rmsprop", "rmsprop-tf"]
Schedule = Literal["constant", "linear"]
Precision = Literal["auto", "float32", "bfloat16"]
TargetFrom = Literal["current", "target-network"]
TargetCritic = Literal["full", "head"]
Critic = Literal["mean", "categorical"]
Updates = Literal["joint", "separate"]

# The least value of each number and the greatest, where there is one.
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(
        ("horizon", "n_envs", "rollout_length", "batch_size", "gradient_steps", "replay_rollouts", "width"),
        (1, math.inf),
    ),
    **dict.fromkeys(
        ("conv_features", "actor_every", "epochs", "n_step", "replay_transitions", "target_every"), (1, math.inf)
    ),
    **dict.fromkeys(("noisy_sigma",), (1e-30, math.inf)),
    **dict.fromkeys(("replay_clear_every", "alpha_bonus", "critic_coefficient", "entropy"), (0, math.inf)),
    **dict.fromkeys(("clip_value", "max_ratio", "learning_starts", "hidden_layers"), (0, math.inf)),
    **dict.fromkeys(
        ("gamma", "retrace_lambda", "actor_lambda", "epsilon_start", "epsilon_final", "epsilon_fraction"), (0, 1)
    ),
    **dict.fromkeys(("tau_q", "tau_policy", "optimiser_decay", "gae_lambda"), (0, 1)),
    **dict.fromkeys(("priority_exponent", "priority_correction"), (0, 1)),
    **dict.fromkeys(
        ("learning_rate", "max_grad_norm", "optimiser_epsilon", "clip", "fixed_alpha"), (1e-30, math.inf)
    ),
    "atoms": (2, math.inf),
    **dict.fromkeys(("v_min", "v_max"), (-math.inf, math.inf)),
}


@dataclass(frozen=True)
class Settings:
    """The settings of one algorithm. Frames are environment steps of one seed, over all its environments."""

    PRESETS: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        hints = _hints(type(self))
        for field in dataclasses.fields(self):
            _check(field.name, getattr(self, field.name), hints[field.name])

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and booleans, as they go into config.json."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`; a missing key takes its default, an unknown one is an error."""
        return override(cls(), values)

    @classmethod
    def preset(cls, name: str, env_name: str = "") -> Self:
        """The settings called ``name`` for an environment."""
        if name not in cls.PRESETS:
            raise unknown_name("preset", name, cls.PRESETS)
        return cls._preset(name, env_name)

    @classmethod
    def _preset(cls, name: str, env_name: str) -> Self:
        raise NotImplementedError

    def value_range(self) -> tuple[float, float] | None:
        """The least and the greatest value that the critic can have, if its head is a distribution over atoms."""
        return None


@dataclass(frozen=True)
class CommonSettings(Settings):
    """The loop, the optimiser, the networks: what all algorithms have."""

    horizon: int = 1_000_000
    """Frames over which epsilon, learning rate and entropy change, if they do; later ones use the final values."""
    n_envs: int = 8
    """Environments a seed steps together."""
    rollout_length: int = 8
    """Steps of each environment an iteration."""
    gamma: float = 0.99
    """Discount of future rewards."""
    learning_rate: float = 5e-4
    """Learning rate at the start."""
    learning_rate_schedule: Schedule = "constant"
    """constant, or linear: down to 0 at the horizon."""
    optimiser_epsilon: float = 1e-5
    """Epsilon of the optimiser."""
    max_grad_norm: float = 0.5
    """Gradients longer than this are scaled down to it."""
    network: Network = "auto"
    """mlp (two layers), conv (16 filters of 3x3, then one layer), or auto: conv for image grids."""
    width: int = 128
    """Units of each dense layer."""
    conv_features: int = 16
    """Filters of the convolution."""
    layer_norm: bool = False
    """Normalise every layer's output before its activation."""
    precision: Precision = "float32"
    """Number format of the matrix products (parameters are always float32). auto: bfloat16 on an accelerator, if
    observations are bits or bytes; else float32."""


@dataclass(frozen=True)
class ActorCriticSettings(CommonSettings):
    """A policy network beside a value network."""

    optimiser_decay: float = 0.99
    """Decay of the second moment of rmsprop (adam uses 0.9 and 0.999)."""
    shared_trunk: bool = False
    """Whether actor and critic share all layers but their heads."""
    entropy: float = 0.0
    """Weight of the policy's entropy at the start of training, added to what the actor maximises."""
    entropy_schedule: Schedule = "constant"
    """constant, or linear: the entropy's weight falls to 0 at the horizon."""


@dataclass(frozen=True)
class OnPolicySettings(ActorCriticSettings):
    """A2C and PPO: every iteration's rollouts are learned from, then forgotten."""

    gae_lambda: float = 0.95
    """Lambda of the generalised advantages."""
    optimiser: OnPolicyOptimiser = "adam"
    """adam, rmsprop, or rmsprop-tf: TensorFlow's, whose moment starts at 1 with epsilon inside the root."""
    critic_coefficient: float = 0.5
    """Weight of the value's loss."""
    width: int = 64
    activation: Activation = "tanh"
    """relu or tanh."""


@dataclass(frozen=True)
class EpsilonSettings(CommonSettings):
    """Exploration by uniform actions now and then."""

    epsilon_start: float = 0.0
    """Chance of a uniform action at the start of training."""
    epsilon_final: float = 0.0
    """Chance of a uniform action after the first part of training."""
    epsilon_fraction: float = 0.1
    """Fraction of the horizon over which epsilon falls to its final value."""


@dataclass(frozen=True)
class RetraceSettings(EpsilonSettings, ActorCriticSettings):
    """NCAPO and Off-PAC: a replay of rollouts, and Q evaluated by Retrace with slow networks."""

    n_envs: int = 40
    """Environments a seed steps together; each gives one rollout an iteration."""
    rollout_length: int = 20
    """Steps of one rollout; rollouts go on across episode ends."""
    precision: Precision = "auto"
    batch_size: int = 32
    """Rollouts in the batch of one gradient step."""
    gradient_steps: int = 30
    """Gradient steps an iteration (of the critic and of the actor each, if updates are separate)."""
    replay_rollouts: int = 6400
    """Rollouts kept in the replay; rounded up to a multiple of n_envs."""
    replay_clear_every: int = 0
    """Empty the replay every so many iterations; 0 never does."""
    retrace_lambda: float = 1.0
    """Lambda of Retrace: 0 looks one step ahead, 1 down the whole rollout."""
    actor_lambda: float = 1.0
    """Times retrace_lambda: the lambda of the returns that the actor's advantages are taken from. 1: the critic's;
    less: advantages that lean on the critic sooner, and vary less. Off-PAC with weight=q has no use for it."""
    optimiser: Optimiser = "adam"
    """adam or rmsprop; one for actor and critic together."""
    optimiser_epsilon: float = 1e-5
    """Added to the root of the second moment in the optimiser."""
    max_grad_norm: float = 0.8
    target_from: TargetFrom = "current"
    """The pi of the actor's target and of Retrace: current (at every gradient step) or target-network."""
    target_critic: TargetCritic = "full"
    """Whether the whole critic has a slow copy, or its head only (on the current trunk)."""
    updates: Updates = "joint"
    """joint: one step on both losses; separate: critic steps, then actor steps."""
    actor_every: int = 1
    """Iterations between two of the actor's turns, if updates are separate."""
    critic: Critic = "mean"
    """mean: the critic gives Q and learns by squared errors; categorical: a distribution over atoms, by
    cross-entropy, and Q is its mean."""
    atoms: int = 51
    """Atoms of a categorical critic; they stand closest together around 0."""
    v_min: float = -20.0
    """Lowest atom."""
    v_max: float = 200.0
    """Highest atom."""
    critic_coefficient: float = 1.0
    """Weight of the critic's loss."""
    tau_q: float = 0.05
    """Fraction of the way the critic's target network moves to the critic, once an iteration."""
    tau_policy: float = 1.0
    """Fraction of the way the policy's target network moves to the policy, once an iteration."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_support(self.v_min, self.v_max, self.atoms)

    def value_range(self) -> tuple[float, float] | None:
        return (self.v_min, self.v_max) if self.critic == "categorical" else None


def check_support(v_min: float, v_max: float, atoms: int) -> None:
    """Raise where there is no room for the atoms."""
    if v_min >= v_max:
        raise CapoError(f"v_min={v_min} has to be below v_max={v_max}")
    if (v_max - v_min) / atoms < 1e-6 * (1 + max(abs(v_min), abs(v_max))):
        raise CapoError(f"{atoms} atoms from v_min={v_min} to v_max={v_max} are too close together for float32")


S = TypeVar("S", bound=Settings)


def is_minatar(env_name: str) -> bool:
    """Whether the environment is a MinAtar game, pgx's or the original."""
    return env_name.startswith(("minatar-", "MinAtar/"))


def plain(value: Any) -> Any:
    """A number of numpy's as one of Python's; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _hints(cls: type[Settings]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def override(config: S, values: Mapping[str, Any]) -> S:
    """``config`` with some fields replaced; values may be strings, as typed on a command line."""
    hints = _hints(type(config))
    parsed = {}
    for name, value in values.items():
        if name not in hints:
            raise unknown_name("setting", name, hints)
        parsed[name] = _parse(name, value, hints[name])
    return dataclasses.replace(config, **parsed)


def _check(name: str, value: Any, hint: Any) -> None:
    """Raise where ``value`` is not of the field's type or out of its range."""
    choices = get_args(hint)
    if choices:
        if value not in choices:
            raise unknown_name(f"value of {name}", value, choices)
        return
    if hint is bool:
        if not isinstance(value, bool):
            raise CapoError(f"{name}={value!r} must be true or false")
        return
    allowed = int if hint is int else int | float
    if isinstance(value, bool) or not isinstance(value, allowed):
        kind = "an integer" if hint is int else "a number"
        raise CapoError(f"{name}={value!r} must be {kind}")
    low, high = RANGES[name]
    if not (math.isfinite(value) and low <= value <= high):
        bound = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        bound = "finite" if low == -math.inf else bound
        raise CapoError(f"{name}={value!r} must be {bound}")


def _parse(name: str, value: Any, hint: Any) -> Any:
    value = plain(value)
    if get_args(hint):
        return value
    if not isinstance(value, str):
        # JSON has one kind of number: 1.0 for an integer and 1 for a float are both meant well.
        if hint is int and isinstance(value, float) and value.is_integer():
            return int(value)
        return float(value) if hint is float and isinstance(value, int) and not isinstance(value, bool) else value
    if hint is bool:
        lowered = value.strip().lower()
        if lowered in ("true", "yes", "on", "1"):
            return True
        if lowered in ("false", "no", "off", "0"):
            return False
        raise CapoError(f"{name}={value!r} must be true or false")
    try:
        number = float(value.replace("_", ""))
    except ValueError:
        raise CapoError(f"{name}={value!r} must be {'an integer' if hint is int else 'a number'}") from None
    if hint is int:
        if not number.is_integer():
            raise CapoError(f"{name}={value!r} must be an integer")
        return int(number)
    return number
