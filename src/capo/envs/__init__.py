"""Environments, inside jax (:class:`JittedEnv`: MinAtar, your own) or on the host (:class:`HostEnv`: Gymnasium).

:func:`make` turns whatever a user gives into one of the two; :class:`EnvSpec` describes either to the learners.
"""

from __future__ import annotations

import difflib
from typing import Any

from capo.envs.gymnasium import GymEnv, is_gymnasium_object
from capo.envs.ids import is_gymnasium_id, prepare_named_in_file, registry
from capo.envs.minatar.games import FULL_NAMES, NAMES, MinAtar
from capo.envs.probes import PROBES
from capo.envs.protocol import Env, EnvSpec, HostEnv, JittedEnv, is_jitted
from capo.envs.validation import check_jitted
from capo.errors import CapoError

__all__ = ["Env", "EnvSpec", "GymEnv", "HostEnv", "JittedEnv", "is_jitted", "make", "prepare_named_in_file"]


def make(env: Any) -> Env:
    """An environment that a learner can run.

    Args:
        env: a name (``minatar-breakout``, a Gymnasium id), a ``gymnasium.Env``, a Gymnasium vector
            environment, or an object of the jitted protocol.

    Returns:
        A :class:`JittedEnv` (an object of the protocol is returned as it is) or a :class:`HostEnv`.
    """
    if isinstance(env, str):
        return _by_name(env)
    if isinstance(env, GymEnv | MinAtar):
        return env
    if is_gymnasium_object(env):
        return GymEnv(env)
    check_jitted(env)
    jitted: JittedEnv = env
    return jitted


def _by_name(name: str) -> Env:
    if name in (*NAMES, *FULL_NAMES):
        return MinAtar(name)
    if name in PROBES:
        return PROBES[name]
    if is_gymnasium_id(name):
        return GymEnv(name)
    ids = sorted(registry())
    near = difflib.get_close_matches(name, [*NAMES, *FULL_NAMES, *PROBES, *ids], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    others = "every Gymnasium id (module:id if a module registers it)" if ids else _NO_GYMNASIUM
    raise CapoError(f"unknown environment {name!r}: {hint}allowed are {', '.join(NAMES)} and {others}")


_NO_GYMNASIUM = "every Gymnasium id (with the extra 'gym': pip install 'capo-rl[gym]')"
