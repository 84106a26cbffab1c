"""What an agent is made of before it learns: environment, settings, seeds. Checked when made, stored in runs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Self

import numpy as np

from capo import envs
from capo.checks import whole
from capo.envs.layout import Part
from capo.envs.wrappers import wrap
from capo.errors import CapoError, CapoWarning
from capo.neural.algorithms.base import Algorithm
from capo.neural.algorithms.settings import CommonSettings, field_kinds, override, plain
from capo.neural.parts.encoders import is_image
from capo.neural.parts.own import OwnParts, check_given_again
from capo.neural.preset_file import is_preset_file, read_preset
from capo.runs.schema import MAX_EPISODES
from capo.runs.semantics import SEMANTICS


@dataclass(frozen=True)
class Setup:
    """An algorithm with its settings on an environment, for some seeds.

    Attributes:
        env: made by :func:`capo.envs.make`.
        env_name: the name it was given by; None for an object, which a file can't hold.
        eval_env: what evaluations play; None for the training environment.
        eval_env_name: as ``env_name``.
        overrides: the settings that replace the preset's.
        settings: the preset's with the overrides.
        eval_every: frames between two evaluations during training; None for no such evaluations.
        own: network and schedules given as Python objects.
    """

    algorithm: type[Algorithm]
    env: Any
    env_name: str | None
    eval_env: Any
    eval_env_name: str | None
    preset: str
    overrides: dict[str, Any]
    settings: CommonSettings
    seeds: list[int]
    eval_every: int | None
    eval_episodes: int
    own: OwnParts

    @classmethod
    def make(
        cls,
        algorithm: type[Algorithm],
        env: Any,
        preset: str | PathLike[str],
        overrides: Mapping[str, Any],
        seeds: Sequence[int],
        eval_every: int | None,
        eval_episodes: int,
        eval_env: Any,
    ) -> Self:
        """From what a user gave; a preset's file is read here, and not needed any more afterwards.

        Raises:
            CapoError: if any of it is wrong.
        """
        _check_not_sb3(algorithm, env, overrides)
        made = envs.make(env)
        if len(seeds) > 1 and not envs.is_jitted(made) and not getattr(made, "reopens", True):
            raise CapoError(
                "several seeds need the environment's id, or a function that makes it, rather than one "
                "object: each seed needs its own copy"
            )
        other = None if eval_env is None else envs.make(eval_env)
        if other is not None:
            _check_same_spaces(made, other)
        own, network, overrides = OwnParts.split(overrides, field_kinds(algorithm.Config))
        overrides = {name: plain(value) for name, value in overrides.items()}
        if is_preset_file(preset):
            found = read_preset(preset, algorithm.name, algorithm.Config)
            preset, overrides = found.name, found.settings | overrides
        preset = str(preset)
        settings = _settings(algorithm, preset, made, overrides)
        _warn_if_channels_first(made, settings)
        if network is not None:
            own = own.with_network(network, envs.EnvSpec(wrap(made, settings.frame_stack)).seen)
        return cls(
            algorithm,
            made,
            env if isinstance(env, str) else None,
            other,
            eval_env if isinstance(eval_env, str) else None,
            preset,
            overrides,
            settings,
            list(seeds),
            None if eval_every is None else whole("eval_every", eval_every),
            whole("eval_episodes", eval_episodes, most=MAX_EPISODES),
            own,
        )

    @classmethod
    def from_dict(
        cls,
        algorithm: type[Algorithm],
        content: Mapping[str, Any],
        env: Any,
        eval_env: Any,
        trust: bool = False,
        own: Mapping[str, Any] | None = None,
    ) -> Self:
        """From config.json or a checkpoint, with the environment where it was not given by name.

        Args:
            algorithm: the one it must be of.
            content: checked against the schema.
            env, eval_env: what the user gave; None to take the file's.
            trust: whether an environment that the file names may import a module.
            own: the network and schedules that were given as objects, by name.

        Raises:
            CapoError: if it is another algorithm's, the environment is not the same any more, or its name needs
                consent.
        """
        if content["algorithm"] != algorithm.name:
            raise CapoError(f"this is a run of {content['algorithm']}, not of {algorithm.name}")
        check_given_again(own or {})
        from_file = env is None
        if from_file:
            env = content["env"]
        if env is None:
            raise CapoError(
                f"the agent was trained on {content['environment']['name']!r}, given as an object or a "
                "function, which cannot be stored in a file: in Python, give it again as env= to load or "
                "resume"
            )
        other = content.get("eval_env") if eval_env is None else eval_env
        for name, given in ((env, from_file), (other, eval_env is None)):
            if given and isinstance(name, str):
                envs.prepare_named_in_file(name, trust)
        algorithm.Config.preset(content["preset"])  # a name: what is read here must not name another file to read
        # Files of earlier versions have none of the last three.
        made = cls.make(
            algorithm,
            env,
            content["preset"],
            {**content["overrides"], **(own or {})},
            content["seeds"],
            content.get("eval_every"),
            content.get("eval_episodes", 100),
            other,
        )
        made.own.check(content.get("own") or {})
        found = describe(made.env)
        for key, value in {"masked": None, "factors": None, **content["environment"]}.items():
            if found.get(key) != value:
                raise CapoError(
                    f"the environment changed: {key} was {value!r} when the run was saved and is "
                    f"{found.get(key)!r} now; continuing requires the same environment"
                )
        _check_copies(made.env, algorithm.Config.from_dict(content["config"]).n_envs)
        return made

    def to_dict(self, settings: CommonSettings) -> dict[str, Any]:
        """The part that config.json and checkpoints share, with the settings as they are now."""
        return {
            "algorithm": self.algorithm.name,
            "env": self.env_name,
            "environment": describe(self.env),
            "preset": self.preset,
            "overrides": dict(self.overrides),
            "config": settings.to_dict(),
            "seeds": list(self.seeds),
            "eval_every": self.eval_every,
            "eval_episodes": self.eval_episodes,
            "eval_env": self.eval_env_name,
            "semantics": SEMANTICS,
            **({"own": self.own.notes()} if self.own.notes() else {}),
        }


# What Stable-Baselines3 calls them, and what to give here.
_SB3_POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")
_SB3_NAMES = {
    "n_steps": "rollout_length",
    "n_epochs": "epochs",
    "ent_coef": "entropy",
    "vf_coef": "critic_coefficient",
    "clip_range": "clip",
    "buffer_size": "replay_rollouts, or replay_transitions for Rainbow",
    "policy_kwargs": "network, width, layer_norm and activation",
    "tensorboard_log": "out, a folder that also gets TensorBoard's events",
    "verbose": "progress_bar=True in learn()",
    "device": "jax's own choice of device (JAX_PLATFORMS)",
}


def _check_not_sb3(algorithm: type[Algorithm], env: Any, overrides: Mapping[str, Any]) -> None:
    """Raise with a hint if the arguments are those of Stable-Baselines3."""
    if isinstance(env, str) and env in _SB3_POLICIES:
        raise CapoError(
            f"{env!r} is a Stable-Baselines3 policy, not an environment: here the environment comes "
            f"first, and its observations determine the network: {algorithm.name.upper()}(env), with "
            "network=, width= or activation= to change it"
        )
    settings = field_kinds(algorithm.Config)
    for name in overrides:
        if name in _SB3_NAMES and name not in settings:
            raise CapoError(f"{name} is an argument of Stable-Baselines3; here it is {_SB3_NAMES[name]}")


def describe(env: Any) -> dict[str, Any]:
    """What must be the same when a run is continued."""
    spec = envs.EnvSpec(env)
    parts = [] if spec.layout is None else [_describe_part(part) for part in spec.layout.parts]
    return {
        "name": env.name,
        "n_actions": int(env.n_actions),
        "observation_shape": list(env.observation_shape),
        "observation_dtype": str(np.dtype(env.observation_dtype)),
        "jitted": envs.is_jitted(env),
        **({"observation_parts": parts} if parts else {}),
        **({"masked": True} if spec.masked else {}),  # with action masks
        **({"factors": list(spec.factors)} if spec.factors else {}),
    }


def _describe_part(part: Part) -> str:
    """Everything about a part that the networks depend on.

    >>> _describe_part(Part("where", (2,), "int32", classes=1000))
    'where: int32[2] of 1000'
    """
    name = ascii(part.name)[1:-1][:100]
    shape = ",".join(map(str, part.shape))
    of = part.classes if part.classes else part.high if part.dtype == "uint8" else 0
    return f"{name}: {part.dtype}[{shape}]{f' of {of}' if of else ''}"


def _settings(algorithm: type[Algorithm], preset: str, env: Any, overrides: Mapping[str, Any]) -> CommonSettings:
    """The preset's settings with the user's; a vector environment brings its number of copies."""
    base = algorithm.Config.preset(preset, env.name)
    copies = envs.EnvSpec(env).vector_copies
    settings = override(base, overrides if copies is None else {"n_envs": copies, **overrides})
    _check_copies(env, settings.n_envs)
    return settings


def _check_copies(env: Any, n_envs: int) -> None:
    copies = envs.EnvSpec(env).vector_copies
    if copies not in (None, n_envs):
        raise CapoError(
            f"{env.name!r} is a vector environment of {copies} copies, but n_envs={n_envs}: leave n_envs "
            f"out (or set it to {copies}), or give an environment of {n_envs}"
        )


def _check_same_spaces(env: Any, other: Any) -> None:
    """Raise if policies trained on ``env`` can't play ``other``."""
    ours, theirs = describe(env), describe(other)
    first = ("masked", "factors")  # of which the other differences follow
    for key in sorted((ours.keys() | theirs.keys()) - {"name"}, key=lambda name: (name not in first, name)):
        if ours.get(key) != theirs.get(key):
            raise CapoError(
                f"eval_env {other.name!r} does not match {env.name!r}: {key} is {theirs.get(key)!r}, not "
                f"{ours.get(key)!r}"
            )


def _warn_if_channels_first(env: Any, settings: CommonSettings) -> None:
    for part in envs.EnvSpec(env).seen:
        shape = part.shape
        if settings.network == "mlp" or not is_image(part) or not shape[0] < shape[1] == shape[2]:
            continue
        text = (
            f"{env.name}: observations of shape {shape} look like (channels, height, width), but the "
            "convolution expects (height, width, channels): move the first axis to the end, or set "
            "network='mlp'"
        )
        warnings.warn(text, CapoWarning, stacklevel=5)
