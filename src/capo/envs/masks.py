"""Action masks: where environments say which actions are allowed, and the checks of what they say.

A Gymnasium environment says it by ``info["action_mask"]``, in every reset and step, or by a method
``action_masks()``; a jitted one by ``action_mask(env_state)``. Learners see neither: they get observations with
the mask packed into the same row of bytes.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from typing import Any, Literal

import numpy as np

from capo.arrays import Array, NDArray, PyTree
from capo.envs.failures import EnvironmentFailed
from capo.envs.layout import MASK
from capo.envs.protocol import EnvSpec, JittedEnv
from capo.errors import CapoError

METHOD = "action_masks"  # of a Gymnasium environment
Source = Literal["info", "method"]


class Steppable:
    """A jitted environment as a learner steps it; two functions are all it has.

    Observations are packed with the action mask, if there is one; actions are coordinates, if they have factors.
    """

    def __init__(self, env: Any) -> None:
        self._env, self._spec = env, EnvSpec(env)

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        env_state, observation = self._env.reset(key)
        return env_state, self._with_mask(env_state, observation)

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        if self._spec.factors:
            action = action + self._spec.first_action
        env_state, observation, reward, terminated, truncated = self._env.step(key, env_state, action)
        return env_state, self._with_mask(env_state, observation), reward, terminated, truncated

    def _with_mask(self, env_state: PyTree, observation: Array) -> Array:
        if not self._spec.masked:
            return observation
        packed: Array = self._spec.with_masks(observation, self._env.action_mask(env_state))
        return packed


def steppable(env: JittedEnv) -> Any:
    """The environment itself, or if it has action masks or factors, a :class:`Steppable` of it."""
    spec = EnvSpec(env)
    return Steppable(env) if spec.masked or spec.factors else env


class HostMasks:
    """Reads the masks of Gymnasium environments.

    Args:
        source: where they are.
        spec: of the environment.
    """

    def __init__(self, source: Source, spec: EnvSpec) -> None:
        self.source, self.n_actions, self._factors = source, spec.n_actions, spec.factors
        self.pack = spec.with_masks  # observations (n, ...) and masks (n, A) to rows of bytes

    def of_env(self, method: str, env: Any, info: Any) -> NDArray:
        """The mask (A,) after a call of ``method`` ("reset" or "step") that returned ``info``."""
        if self.source == "method":
            return self._checked(method, env.get_wrapper_attr(METHOD)())
        if MASK not in info:
            raise EnvironmentFailed(f"its {method} returned no info[{MASK!r}], although its first reset did")
        return self._checked(method, info[MASK])

    def of_vector(self, method: str, vector: Any, infos: Any, who: NDArray) -> NDArray:
        """The masks (n, A) after a call of a vector environment; those that are not ``who`` allow everything."""
        if self.source == "method":
            ask = vector.env_method if hasattr(vector, "env_method") else vector.unwrapped.call
            given = ask(METHOD)
            return np.stack([self._checked(method, mask) for mask in given])
        masks = np.ones((len(who), self.n_actions), np.bool_)
        for i in np.flatnonzero(who).tolist():
            masks[i] = self._checked(method, _entry(method, infos, i))
        return masks

    def pack_first(self, observations: NDArray, masks: NDArray, who: NDArray | bool = True) -> NDArray:
        """First observations (n, ...) with their masks (n, A), as rows of bytes; raises if one allows nothing."""
        self.check_some_allowed("reset", masks, observations, who)
        return np.asarray(self.pack(observations, masks))

    def check_some_allowed(
        self, method: str, masks: NDArray, observations: NDArray, who: NDArray | bool = True
    ) -> None:
        """Raise if a mask of those who act next allows nothing.

        Args:
            method: after which.
            masks: (n, A).
            observations: (n, ...) that they belong to, for the message.
            who: (n,) those who act next, or whose value counts.
        """
        starts = [0, *itertools.accumulate(self._factors[:-1])]
        some = np.logical_or.reduceat(masks, starts, axis=-1).all(axis=-1)  # of every factor
        nothing = np.flatnonzero(~some & who)
        if nothing.size:
            state = np.array2string(observations[nothing[0]], threshold=40, separator=", ", precision=4)
            which = "action at all" if masks[nothing[0]].sum() == 0 else "action of one of the factors"
            raise EnvironmentFailed(
                f"after its {method}, its action mask allows no {which}; the observation there is {state}"
            )

    def _checked(self, method: str, mask: Any) -> NDArray:
        found = np.concatenate(mask) if isinstance(mask, tuple) else np.asarray(mask)  # one array per factor
        if found.shape != (self.n_actions,) or found.dtype.kind not in "biu":
            raise EnvironmentFailed(
                f"after its {method}, its action mask is of shape {found.shape} and dtype {found.dtype}; it must "
                f"have {self.n_actions} booleans, one per action"
            )
        return found.astype(np.bool_)


def refuse_late(info: Any) -> None:
    """Raise if a step's info has a mask where the first reset's had none: it would go unnoticed."""
    if isinstance(info, dict) and MASK in info:
        raise EnvironmentFailed(
            f"its step returned info[{MASK!r}], but its first reset did not: return the mask from every reset too"
        )


def _entry(method: str, infos: Any, i: int) -> Any:
    """``action_mask`` of copy ``i`` in the infos of a vector environment: a dict of arrays, or a list of dicts."""
    if isinstance(infos, dict):
        known = infos.get(f"_{MASK}")
        if MASK in infos and (known is None or known[i]):
            return infos[MASK][i]
    elif infos is not None and infos[i] is not None and MASK in infos[i]:
        return infos[i][MASK]
    raise EnvironmentFailed(f"its {method} returned no info[{MASK!r}] for copy {i}, although its first reset did")


def find_source(env: Any, vector: bool, owned: bool = False) -> Source | None:
    """Where a Gymnasium environment or vector environment says which actions are allowed, if it does.

    One environment is reset to look into its info: a copy where there can be one, unless this one is ``owned``.
    An environment that fails here has no masks: it will fail again, and be reported, when it is used.
    """
    with contextlib.suppress(Exception):  # whatever a user's environment raises
        if not vector:
            return _look(env, owned)
        if hasattr(env, "env_method"):  # Stable-Baselines3's
            if env.has_attr(METHOD):
                return "method"
            env.reset()
            return "info" if MASK in env.reset_infos[0] else None
        inside = env.unwrapped
        if getattr(inside, "envs", None):
            return _look(inside.envs[0], owned=False)
        if not hasattr(inside, "env_fns"):
            return "info" if MASK in env.reset(seed=0)[1] else None
        one = inside.env_fns[0]()  # the others are in processes, which a failing call would end
        with contextlib.closing(one):
            return _look(one, owned=True)
    return None


def _look(env: Any, owned: bool) -> Source | None:
    """:func:`find_source` of a single environment."""
    if _has_method(env):
        return "method"
    with contextlib.suppress(Exception):  # whatever a user's environment raises when it is copied
        env = env if owned else copy.deepcopy(env)
    return "info" if MASK in env.reset(seed=0)[1] else None


def _has_method(env: Any) -> bool:
    try:
        return callable(env.get_wrapper_attr(METHOD))
    except AttributeError:
        return False


def check_vector_source(name: str, source: Source | None, mode: str) -> None:
    """Raise if the masks of final observations would be lost: a method speaks of the episode begun since."""
    if source == "method" and mode == "SameStep":
        raise CapoError(
            f"{name!r}: a vector environment of autoreset mode SameStep with the method {METHOD}() does not say "
            f"which actions its final observations allow: use autoreset_mode=AutoresetMode.NEXT_STEP, or put the "
            f"mask into info[{MASK!r}]"
        )
