"""What the settings of all algorithms share: checked values, overrides by name, plain dictionaries.

Every algorithm has one frozen dataclass, derived from :class:`Settings`, with a sentence under each field. A
preset says where each value comes from: "table" is the paper's hyper-parameter table, "text" its description,
"authors" a file that its authors released or cite, "open" a value they leave open and that was chosen here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_type_hints

from capo.errors import CapoError, unknown_name

Network = Literal["auto", "mlp", "conv"]
Activation = Literal["relu", "tanh"]
Optimiser = Literal["adam", "rmsprop"]
OnPolicyOptimiser = Literal["adam", "rmsprop", "rmsprop-tf"]
Schedule = Literal["constant", "linear"]
Precision = Literal["float32", "bfloat16"]

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
    **dict.fromkeys(("gamma", "retrace_lambda", "epsilon_start", "epsilon_final", "epsilon_fraction"), (0, 1)),
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


S = TypeVar("S", bound=Settings)


def is_minatar(env_name: str) -> bool:
    """Whether the environment is a MinAtar game, pgx's or the original."""
    return env_name.startswith(("minatar-", "MinAtar/"))


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
