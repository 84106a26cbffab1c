"""Environments, inside jax (:class:`JittedEnv`: MinAtar, suites, your own) or on the host (:class:`HostEnv`).

:func:`make` turns whatever a user gives into one of the two; :class:`EnvSpec` describes either to the learners.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from capo.envs import suites
from capo.envs.atari import AtariEnv, is_atari
from capo.envs.failures import describe_error
from capo.envs.gymnasium import GymEnv, is_gymnasium_object
from capo.envs.ids import check_consent, is_gymnasium_id, prepare_named_in_file, registry
from capo.envs.minatar.games import FULL_NAMES, NAMES, MinAtar
from capo.envs.probes import PROBES
from capo.envs.protocol import Env, EnvSpec, HostEnv, JittedEnv, is_jitted
from capo.envs.small import SMALL
from capo.envs.validation import check_jitted
from capo.errors import CapoError

__all__ = [
    "Env",
    "EnvSpec",
    "GymEnv",
    "HostEnv",
    "JittedEnv",
    "check_consent",
    "is_jitted",
    "is_jitted_name",
    "make",
    "prepare_named_in_file",
]


def make(env: Any) -> Env:
    """An environment that a learner can run.

    Args:
        env: a name (``minatar-breakout``, ``gymnax:CartPole-v1``, ``ALE/Pong-v5``, a Gymnasium id), a
            ``gymnasium.Env``, a vector environment of Gymnasium or Stable-Baselines3, an environment of a suite,
            an object of the jitted protocol, or a function that makes one of these objects.

    Returns:
        A :class:`JittedEnv` (an object of the protocol is returned as it is) or a :class:`HostEnv`.
    """
    if isinstance(env, str):
        return _by_name(env)
    if isinstance(env, GymEnv | MinAtar | AtariEnv | suites.Adapter):
        return env
    if is_gymnasium_object(env):
        return GymEnv(env)
    if suites.suite_of_object(env) and not hasattr(env, "observation_dtype"):  # else it has the protocol, too
        return suites.adapt(env)
    if is_factory(env):
        return _from_factory(env)
    check_jitted(env)
    jitted: JittedEnv = env
    return jitted


def is_jitted_name(name: str) -> bool:
    """Whether the environment of this name runs inside jax; nothing is made or imported to find out."""
    return name in (*NAMES, *FULL_NAMES, *PROBES, *SMALL) or suites.suite_of_name(name) is not None


def is_factory(env: Any) -> bool:
    """Whether ``env`` is a function (or a class) that makes an environment, rather than one itself."""
    return callable(env) and (isinstance(env, type) or not hasattr(env, "step"))


def _from_factory(factory: Callable[[], Any]) -> Env:
    """What a user's function makes; one of Gymnasium's is made anew whenever it is needed."""
    name = getattr(factory, "__name__", type(factory).__name__)
    try:
        first = factory()
    except Exception as error:
        raise CapoError(
            f"the function {name} that was given as the environment raised {describe_error(error)}; it is called "
            "without arguments and must return an environment"
        ) from error
    if not is_gymnasium_object(first):
        if is_factory(first) or isinstance(first, str) or first is None:
            raise CapoError(f"the function {name} returned {first!r}; it must return an environment")
        return make(first)
    return GymEnv(factory, first)


def _by_name(name: str) -> Env:
    if name in (*NAMES, *FULL_NAMES):
        return MinAtar(name)
    if name in PROBES:
        return PROBES[name]
    if name in SMALL:
        return SMALL[name]
    if suites.suite_of_name(name):
        return suites.by_name(name)
    if is_atari(name):
        return AtariEnv(name)
    if is_gymnasium_id(name):
        return GymEnv(name)
    ids = sorted(registry())
    near = difflib.get_close_matches(name, [*NAMES, *FULL_NAMES, *PROBES, *SMALL, *ids], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    others = "any Gymnasium id (module:id if a module registers it)" if ids else _NO_GYMNASIUM
    found = ", ".join(f"{suite}:..." for suite in suites.SUITES)
    raise CapoError(
        f"unknown environment {name!r}: {hint}allowed: {', '.join([*NAMES, *SMALL])}, {found} ('capo envs' "
        f"lists them) and {others}"
    )


_NO_GYMNASIUM = "any Gymnasium id (with the extra 'gym': pip install 'capo-rl[gym]')"
