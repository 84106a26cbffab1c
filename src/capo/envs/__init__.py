"""Environments behind one protocol: MinAtar (pgx) and a user's own inside jax, Gymnasium's on the host."""

from __future__ import annotations

import difflib
from typing import Any

from capo.envs import minatar
from capo.envs.gym import GymEnv, gymnasium_ids
from capo.envs.probes import PROBES
from capo.envs.protocol import JittedEnv, check_jitted, is_jitted, may_truncate
from capo.errors import CapoError

__all__ = ["GymEnv", "JittedEnv", "is_jitted", "make", "may_truncate"]


def make(env: Any) -> Any:
    """An environment that the loop can run.

    Args:
        env: a name (``minatar-breakout``, a Gymnasium id), a ``gymnasium.Env``, a Gymnasium vector
            environment, or an object of the jitted protocol.

    Returns:
        An object with ``name``, ``n_actions``, ``observation_shape``, ``observation_dtype`` and ``jitted``.
    """
    if isinstance(env, str):
        return _by_name(env)
    if isinstance(env, GymEnv | minatar.MinAtar):
        return env
    if GymEnv.recognises(env):
        return GymEnv(env)
    missing = [
        part
        for part in ("name", "n_actions", "observation_shape", "observation_dtype", "reset", "step")
        if not hasattr(env, part)
    ]
    if missing:
        raise CapoError(
            f"{env!r} is no environment: give a name, a gymnasium.Env, a Gymnasium vector environment, or an "
            f"object of the jitted protocol (this one has no {', '.join(missing)})"
        )
    check_jitted(env)
    return env


def _by_name(name: str) -> Any:
    if name in minatar.NAMES:
        return minatar.MinAtar(name)
    if name in PROBES:
        return PROBES[name]()
    if GymEnv.knows(name):
        return GymEnv(name)
    known = [*minatar.NAMES, *PROBES, *gymnasium_ids()]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    others = "every Gymnasium id; of a module of its own, 'module:id'" if gymnasium_ids() else _NO_GYMNASIUM
    raise CapoError(f"unknown environment {name!r}: {hint}allowed are {', '.join(minatar.NAMES)} and {others}")


_NO_GYMNASIUM = "every Gymnasium id (with the extra 'gym': pip install 'capo-rl[gym]')"
