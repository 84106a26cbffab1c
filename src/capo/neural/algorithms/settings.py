"""What the settings of all algorithms share: checked values, overrides by name, plain dictionaries.

Every algorithm has one frozen dataclass with a sentence under each field; the type of a number says its allowed
range. Fields that several algorithms have in common are here. An algorithm with another default repeats the field,
and if the field means something else there, gives it a sentence of its own:

    Settings                  checks, overrides, dictionaries
      CommonSettings            the loop, the optimiser, the networks: all algorithms
        ActorCriticSettings       two networks
          OnPolicySettings          A2C, PPO
        EpsilonSettings           epsilon-greedy exploration: Rainbow, PQN
          RetraceSettings           NCAPO, Off-PAC (also actor-critics)

The type of a number also says how tuning treats it: :class:`Traced` if it may be an argument of the compiled
program, and :class:`Search` where tuning looks for a good value. So a new algorithm brings its own.

A preset says where each value comes from: "table" is the paper's hyper-parameter table, "text" its description,
"authors" a file that its authors released or cite, "open" a value that they leave open and that was chosen here.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from capo.arrays import Array
from capo.errors import CapoError, unknown_name
from capo.neural.parts import schedules
from capo.neural.parts.iterations import LARGEST_PERIOD
from capo.neural.parts.optimisers import Optimiser
from capo.neural.parts.schedules import Schedule

Network = Literal["auto", "mlp", "conv", "nature", "impala"]
Activation = Literal["relu", "tanh", "silu"]
RetraceOptimiser = Literal["adam", "rmsprop"]
Precision = Literal["auto", "float32", "bfloat16"]
Returns = Literal["retrace", "v-trace"]
Rollouts = Literal["continue", "cut"]
TargetFrom = Literal["current", "target-network"]
TargetCritic = Literal["full", "head"]
Critic = Literal["mean", "categorical"]
Updates = Literal["joint", "separate"]
Evaluation = Literal["sampled", "best"]
Overlap = Literal["none", "acting"]


@dataclass(frozen=True)
class Between:
    """The allowed range of a number, both ends included: ``gamma: Annotated[float, Between(0, 1)]``."""

    low: float
    high: float = math.inf

    def __str__(self) -> str:
        if self.low == -math.inf:
            return "finite"
        if self.high < math.inf and 0 < self.low < 1e-9:
            return f"above 0 and at most {self.high:.10g}"
        if self.high < math.inf:
            return f"between {self.low:g} and {self.high:.10g}"
        return "positive" if 0 < self.low < 1 else f"at least {self.low:g}"


class Traced:
    """Marks a number that changes no shape and no branch: a tuning program takes it as an argument.

    Trials that differ only in such numbers are one compiled program. An algorithm may use the number in arithmetic
    only: no ``if``, no ``max`` of Python's, no conversion to ``float``.
    """


Scale = Literal["linear", "log", "log-from-one"]


@dataclass(frozen=True)
class Search:
    """Where tuning looks for a good value, both ends included.

    ``log-from-one`` is even in log(1 - value): 0.9, 0.99 and 0.999 are equally far apart.
    """

    low: float
    high: float
    scale: Scale = "linear"

    def __str__(self) -> str:
        how = {"linear": "", "log": ", log", "log-from-one": ", log of 1 - value"}[self.scale]
        return f"{self.low:g} to {self.high:g}{how}"


class Sizes:
    """Marks a text of positive integers with commas between them; in Python it may be given as a list."""


TRACED = Traced()
Widths = Annotated[str, Sizes()]
Count = Annotated[int, Between(1)]
CountOrZero = Annotated[int, Between(0)]
Fraction = Annotated[float, Between(0, 1)]
PositiveFraction = Annotated[float, Between(1e-30, 1)]
Positive = Annotated[float, Between(1e-30)]
NonNegative = Annotated[float, Between(0)]
Number = Annotated[float, Between(-math.inf)]
Atoms = Annotated[int, Between(2)]
Period = Annotated[int, Between(1, LARGEST_PERIOD)]  # of something that happens again and again
PeriodOrZero = Annotated[int, Between(0, LARGEST_PERIOD)]
TracedFraction = Annotated[Fraction, TRACED]
TracedPositive = Annotated[Positive, TRACED]
TracedNonNegative = Annotated[NonNegative, TRACED]
Discount = Annotated[TracedFraction, Search(0.9, 0.999, "log-from-one")]
LearningRate = Annotated[TracedPositive, Search(3e-5, 1e-2, "log")]
Entropy = Annotated[TracedNonNegative, Search(1e-4, 0.1, "log")]
GAELambda = Annotated[TracedFraction, Search(0.8, 1.0)]
FinalEpsilon = Annotated[TracedFraction, Search(0.0, 0.1)]
CriticCoefficient = Annotated[TracedNonNegative, Search(0.1, 4.0, "log")]


@dataclass(frozen=True)
class Settings:
    """The settings of one algorithm. Frames are environment steps of one seed, over all its environments."""

    PRESETS: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        for name, kind in field_kinds(type(self)).items():
            _check(name, getattr(self, name), kind)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How a notebook shows them: one line per setting."""
        del cycle
        lines = "".join(f"    {name}={value!r},\n" for name, value in self.to_dict().items())
        printer.text(f"{type(self).__name__}(\n{lines})")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and booleans, as they go into config.json."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`; a missing key gets its default, an unknown one is an error."""
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
        """The lowest and highest value that the critic can represent, if it is a distribution over atoms."""
        return None


@dataclass(frozen=True)
class CommonSettings(Settings):
    """The loop, the optimiser, the networks: what all algorithms have."""

    horizon: Count = 1_000_000
    """Frames over which epsilon, learning rate and entropy follow their schedules; then they stay constant."""
    n_envs: Count = 8
    """Environments that each seed steps in parallel."""
    rollout_length: Count = 8
    """Steps of each environment per iteration."""
    gamma: Discount = 0.99
    """Discount factor of future rewards."""
    learning_rate: LearningRate = 5e-4
    """Learning rate at the start of training."""
    learning_rate_schedule: Schedule = "constant"
    """constant, or linear: falls to 0 at the horizon."""
    optimiser_epsilon: TracedPositive = 1e-5
    """Epsilon of the optimiser, added to its denominator."""
    max_grad_norm: TracedPositive = 0.5
    """Gradients with a larger norm are scaled down to it."""
    network: Network = "auto"
    """mlp (two dense layers), conv (3x3 convolution, one dense layer), nature or impala (the convolutions of those
    papers for large images, one dense layer), or auto: nature for images of at least 36x36 pixels, conv for
    smaller ones, else mlp."""
    width: Count = 128
    """Units per dense layer."""
    widths: Widths = ""
    """Units of each dense layer, such as 256,128 (in Python also [256, 128]), which also says how many there are.
    Empty: width units in each of the usual layers."""
    conv_features: Count = 16
    """Filters of the convolution."""
    activation: Activation = "relu"
    """Activation of hidden layers: relu, tanh or silu."""
    layer_norm: bool = False
    """Whether to apply LayerNorm before the activation of every hidden layer."""
    precision: Precision = "float32"
    """Number format of matrix products (parameters are always float32). auto: bfloat16 on an accelerator if
    observations are bits or bytes, else float32."""
    reward_scale: Positive = 1.0
    """Rewards are multiplied by this before they are learned from; reported returns never are."""
    reward_clip: NonNegative = 0.0
    """Rewards are clipped to [-reward_clip, reward_clip], after scaling, before they are learned from; 0 does not
    clip. Reported returns are never clipped."""
    normalise_observations: bool = False
    """Whether to normalise what the networks see: from each number of an observation, its running mean is
    subtracted; the result is divided by its running standard deviation and clipped to [-10, 10]. Evaluations use
    the statistics from training without updating them."""
    frame_stack: Count = 1
    """How many of the most recent observations of an episode the networks see, joined along the last axis."""
    time_limit: PeriodOrZero = 0
    """Steps after which an episode is truncated, in training and evaluation; 0 sets no limit."""
    overlap: Overlap = "none"
    """What to do while environments on the host are stepped. none: wait. acting: step them in two groups, so that
    the device chooses actions for one group while the other is stepped in its own threads (Atari)."""

    @property
    def frames_per_iteration(self) -> int:
        """Environment steps of one iteration, over all environments of a seed."""
        return self.n_envs * self.rollout_length


@dataclass(frozen=True)
class ActorCriticSettings(CommonSettings):
    """A policy network beside a value network."""

    optimiser_decay: TracedFraction = 0.99
    """Decay of rmsprop's second moment (adam and radam always use 0.9 and 0.999)."""
    shared_trunk: bool = False
    """Whether actor and critic share all layers except their heads."""
    entropy: Entropy = 0.0
    """Weight of the policy's entropy in the actor's objective, at the start of training."""
    entropy_schedule: Schedule = "constant"
    """constant, or linear: the weight of the entropy falls to 0 at the horizon."""
    evaluation: Evaluation = "sampled"
    """How evaluations choose actions, including those during training: sampled from the policy, or the best (most
    likely) one. predict samples unless told otherwise."""


@dataclass(frozen=True)
class OnPolicySettings(ActorCriticSettings):
    """A2C and PPO: each iteration's rollouts are trained on, then discarded."""

    gae_lambda: GAELambda = 0.95
    """Lambda of generalised advantage estimation."""
    optimiser: Optimiser = "adam"
    """adam, radam (rectified), rmsprop (PyTorch's), or rmsprop-tf (TensorFlow's: its moment starts at 1, epsilon
    is in the root)."""
    critic_coefficient: CriticCoefficient = 0.5
    """Weight of the value loss."""
    width: Count = 64
    activation: Activation = "tanh"


@dataclass(frozen=True)
class EpsilonSettings(CommonSettings):
    """Epsilon-greedy exploration: a uniform action with probability epsilon."""

    epsilon_start: TracedFraction = 0.0
    """Probability of a uniform action at the start of training."""
    epsilon_final: FinalEpsilon = 0.0
    """Probability of a uniform action once epsilon has stopped falling."""
    epsilon_fraction: Fraction = 0.1
    """Fraction of the horizon over which epsilon falls to its final value."""

    def epsilon(self, frames: Array | np.floating[Any]) -> Array:
        """Probability of a uniform action after ``frames``."""
        over = self.epsilon_fraction * self.horizon
        return schedules.epsilon(frames, start=self.epsilon_start, final=self.epsilon_final, over=over)


@dataclass(frozen=True)
class RetraceSettings(EpsilonSettings, ActorCriticSettings):
    """NCAPO and Off-PAC: a replay of rollouts, and a critic trained on Retrace returns with target networks."""

    n_envs: Count = 40
    """Environments that each seed steps in parallel; each gives one rollout per iteration."""
    rollout_length: Count = 20
    """Steps per rollout, at most; see rollouts."""
    rollouts: Rollouts = "continue"
    """What a rollout does when an episode ends: continue into the next episode, or be cut there. After a cut, the
    next rollout begins with the next episode; the steps left out count as frames but are not trained on."""
    precision: Precision = "auto"
    batch_size: Count = 32
    """Rollouts per gradient step."""
    gradient_steps: Count = 30
    """Gradient steps per iteration (with updates=separate: this many for the critic and this many for the
    actor)."""
    replay_rollouts: Count = 6400
    """Rollouts kept in the replay, rounded up to a multiple of n_envs."""
    replay_clear_every: PeriodOrZero = 0
    """Clear the replay every so many iterations; 0 never clears it."""
    returns: Returns = "retrace"
    """retrace, or v-trace: how returns are corrected for actions that another policy took."""
    retrace_lambda: Annotated[TracedFraction, Search(0.5, 1.0)] = 1.0
    """Lambda of Retrace (or V-trace): 0 looks one step ahead, 1 to the end of the rollout."""
    actor_lambda: Annotated[TracedFraction, Search(0.0, 1.0)] = 1.0
    """Factor on retrace_lambda for the actor's advantages. 1 uses the critic's returns; smaller values rely on the
    critic sooner and have less variance. Ignored by Off-PAC with weight=q and by NCAPO with
    advantage_weight=certain."""
    optimiser: RetraceOptimiser = "adam"
    """adam or rmsprop; actor and critic share one optimiser."""
    max_grad_norm: TracedPositive = 0.8
    clip_each_network: bool = False
    """Whether actor and critic each clip their own gradient to max_grad_norm, instead of both together; only if
    they share no trunk."""
    target_from: TargetFrom = "current"
    """Policy that the actor's target and Retrace use: current (at every gradient step) or target-network."""
    target_critic: TargetCritic = "full"
    """full: the target network copies the whole critic; head: only its head, on the current trunk."""
    updates: Updates = "joint"
    """joint: each gradient step descends both losses; separate: critic steps first, then actor steps."""
    actor_every: Period = 1
    """With updates=separate: train the actor every so many iterations."""
    critic: Critic = "mean"
    """mean: the critic gives Q, trained by squared error; categorical: a distribution over atoms with mean Q,
    trained by cross-entropy."""
    atoms: Atoms = 51
    """Atoms of a categorical critic; they are closest together around 0."""
    v_min: Number = -20.0
    """Lowest atom."""
    v_max: Number = 200.0
    """Highest atom."""
    critic_coefficient: CriticCoefficient = 1.0
    """Weight of the critic's loss."""
    tau_q: Annotated[TracedFraction, Search(0.005, 1.0, "log")] = 0.05
    """How far the critic's target network moves towards the critic, once per iteration; 1 copies it."""
    tau_policy: TracedFraction = 1.0
    """How far the policy's target network moves towards the policy, once per iteration; 1 copies it."""
    tau_average: PositiveFraction = 1.0
    """How far the averaged networks move towards the trained ones, once per iteration. Evaluations, predict and
    export use the averaged networks; training never does. 1 turns averaging off: the trained networks are used."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_support(self.v_min, self.v_max, self.atoms)

    def value_range(self) -> tuple[float, float] | None:
        return (self.v_min, self.v_max) if self.critic == "categorical" else None


def check_support(v_min: float, v_max: float, atoms: int) -> None:
    """Raise if the atoms do not fit into their range."""
    if v_min >= v_max:
        raise CapoError(f"v_min={v_min} must be below v_max={v_max}")
    if (v_max - v_min) / atoms < 1e-6 * (1 + max(abs(v_min), abs(v_max))):
        raise CapoError(f"{atoms} atoms from v_min={v_min} to v_max={v_max} are too close together for float32")


def check_minibatches(n_envs: int, rollout_length: int, batch_size: int) -> None:
    """Raise if an iteration's transitions cannot be cut into minibatches of ``batch_size``."""
    steps = n_envs * rollout_length
    if steps % batch_size:
        near = min((d for d in range(1, steps + 1) if steps % d == 0), key=lambda d: abs(d - batch_size))
        raise CapoError(
            f"batch_size={batch_size} must divide n_envs * rollout_length = {n_envs} * "
            f"{rollout_length} = {steps}: {near} does"
        )


S = TypeVar("S", bound=Settings)


def is_minatar(env_name: str) -> bool:
    """Whether the environment is a MinAtar game, pgx's or the original."""
    return env_name.startswith(("minatar-", "MinAtar/"))


def plain(value: Any) -> Any:
    """A numpy number as a Python number; anything else unchanged."""
    return value.item() if isinstance(value, np.generic) else value


class Kind(NamedTuple):
    """What a field can be: one of ``choices`` if there are any, else a bool, sizes, or a number in ``allowed``.

    And how tuning treats it: whether it may be ``traced``, and where to ``search`` by default, if at all.
    """

    type: type
    choices: tuple[str, ...] = ()
    allowed: Between = Between(-math.inf)
    traced: bool = False
    search: Search | None = None


def field_kinds(cls: type[Settings]) -> dict[str, Kind]:
    """What each field of the settings can be, by name."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: _kind(hints[field.name]) for field in dataclasses.fields(cls)}


def _kind(hint: Any) -> Kind:
    if get_origin(hint) is Annotated:
        number, *notes = get_args(hint)
        allowed = next((note for note in notes if isinstance(note, Between)), Between(-math.inf))
        search = next((note for note in notes if isinstance(note, Search)), None)
        if any(isinstance(note, Sizes) for note in notes):
            return Kind(str)
        return Kind(number, (), allowed, any(isinstance(note, Traced) for note in notes), search)
    if get_origin(hint) is Literal:
        return Kind(str, choices=get_args(hint))
    return Kind(hint)


def override(config: S, values: Mapping[str, Any]) -> S:
    """``config`` with some fields replaced; values may be strings, as typed on a command line."""
    kinds = field_kinds(type(config))
    parsed = {}
    for name, value in values.items():
        if name not in kinds:
            raise unknown_name("setting", name, kinds)
        parsed[name] = _parse(name, value, kinds[name])
    return dataclasses.replace(config, **parsed)


def with_traced(config: S, values: Mapping[str, Any]) -> S:
    """``config`` with arrays, or what stands for them while a program is traced, in place of traced numbers.

    They can't be checked here: check the numbers before they become arrays.
    """
    kinds = field_kinds(type(config))
    made = copy.copy(config)
    for name, value in values.items():
        if not kinds[name].traced:
            raise CapoError(f"{name} can't be an argument of the compiled program: it changes a shape or a branch")
        object.__setattr__(made, name, value)
    return made


def check_value(cls: type[Settings], name: str, value: Any) -> Any:
    """The value that a setting would have, parsed and checked on its own."""
    kinds = field_kinds(cls)
    if name not in kinds:
        raise unknown_name("setting", name, kinds)
    parsed = _parse(name, value, kinds[name])
    _check(name, parsed, kinds[name])
    return parsed


def _check(name: str, value: Any, kind: Kind) -> None:
    """Raise if ``value`` is not what the field can be."""
    if kind.choices:
        if value not in kind.choices:
            raise unknown_name(f"value of {name}", value, kind.choices)
        return
    if kind.type is bool:
        if not isinstance(value, bool):
            raise CapoError(f"{name}={value!r} must be true or false")
        return
    if kind.type is str:
        parts = value.split(",") if isinstance(value, str) and value else []
        if not isinstance(value, str) or not all(re.fullmatch(r"[1-9]\d{0,6}", part, re.ASCII) for part in parts):
            raise CapoError(f"{name}={value!r} must be positive integers, such as 256,128 or [256, 128]")
        return
    if isinstance(value, bool) or not isinstance(value, int if kind.type is int else int | float):
        raise _not_a_number(name, value, kind)
    if not (abs(value) < sys.float_info.max and kind.allowed.low <= value <= kind.allowed.high):
        raise CapoError(f"{name}={value!r} must be {kind.allowed}")


def _parse(name: str, value: Any, kind: Kind) -> Any:
    value = plain(value)
    if kind.choices:
        return value
    if kind.type is str:
        if isinstance(value, list | tuple):
            return ",".join(str(plain(one)) for one in value)
        return value.replace(" ", "") if isinstance(value, str) else str(value)
    if not isinstance(value, str):
        # JSON has one kind of number: 1.0 for an integer and 1 for a float are both meant well.
        if kind.type is int and isinstance(value, float) and value.is_integer():
            return int(value)
        is_int = isinstance(value, int) and not isinstance(value, bool)
        return float(value) if kind.type is float and is_int else value
    if kind.type is bool:
        lowered = value.strip().lower()
        if lowered in ("true", "yes", "on", "1"):
            return True
        if lowered in ("false", "no", "off", "0"):
            return False
        raise CapoError(f"{name}={value!r} must be true or false")
    try:
        number = float(value.replace("_", ""))
    except ValueError:
        raise _not_a_number(name, value, kind) from None
    if kind.type is int:
        if not number.is_integer():
            raise _not_a_number(name, value, kind)
        return int(number)
    return number


def _not_a_number(name: str, value: Any, kind: Kind) -> CapoError:
    return CapoError(f"{name}={value!r} must be {'an integer' if kind.type is int else 'a number'}")
