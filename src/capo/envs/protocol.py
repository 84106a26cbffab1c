"""What an environment has to offer, inside jax or on the host, and the defaults of what it may leave unsaid."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeGuard

import numpy as np

from capo.arrays import Array, NDArray, PyTree
from capo.envs.layout import MASK, Layout, Part, plain_layout

FirstAction: TypeAlias = int | NDArray


class JittedEnv(Protocol):
    """An environment as two pure functions that jax can compile and vmap.

    The learner resets a finished episode itself, so ``step`` never has to: it returns the observation that the
    step led to, also when the episode ended there. ``terminated`` says that nothing follows (the return after it
    is 0); ``truncated`` says that the episode was only cut off (its value is bootstrapped from the observation
    returned).

    Optional: ``truncates = False`` promises that ``truncated`` is never true, which halves the replay.
    ``observation_high`` is the largest value of observations that are bytes; without it they are images, 0 to 255.
    ``layout`` says that observations are rows of bytes packed by that :class:`Layout`: several parts, a mask.
    ``picture(env_state)`` draws a state for people, (H, W, 3) bytes; without it the observations are drawn.
    ``action_mask(env_state)`` gives a mask (n_actions,), true where an action is allowed: the others are never
    taken. After the last step of an episode, where nothing is taken any more, it may allow nothing.
    ``factors = (3, 2)`` says that an action has two factors, of 3 and 2 actions: ``step`` gets an array (2,),
    ``n_actions`` is their sum, 5, and a mask has the actions of all factors side by side.
    ``costly_reset = True`` says that ``reset`` costs much more than ``step``: episodes are then begun only where
    others ended, a few at a time, instead of for all environments at every step. Results are the same.
    ``frame_stack = k`` says that an observation is the last k frames side by side, see :mod:`capo.envs.wrappers`.
    """

    name: str
    n_actions: int
    observation_shape: tuple[int, ...]
    observation_dtype: Any

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        """A new episode: ``(env_state, observation)``."""
        ...

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        """One step: ``(env_state, observation, reward, terminated, truncated)``, the last three scalars."""
        ...


class HostStep(NamedTuple):
    """One step of n environments, observations encoded."""

    obs: NDArray  # (n, ...) what to act on next
    successor: NDArray  # (n, ...) what the step led to: the final observation where the episode ended
    reward: NDArray  # (n,) float32
    terminated: NDArray  # (n,) bool
    truncated: NDArray  # (n,) bool, false where terminated
    valid: NDArray  # (n,) bool, false where the call only reset the environment
    over: NDArray | None = None  # (n,) bool, see :attr:`ended`; None where it is the same as the end of learning

    @property
    def ended(self) -> NDArray:
        """(n,) Where an episode ended as people count it: a game of several lives outlives the loss of one."""
        return self.terminated | self.truncated if self.over is None else self.over


class HostVector(Protocol):
    """Several environments on the host, stepped together; each is reset automatically when its episode ends.

    Optional: ``send(action)`` begins a step in other threads and ``receive()`` gives its end, a :class:`HostStep`.
    """

    n: int  # number of environments
    skips: bool  # whether a call of ``step`` may reset one of them instead of stepping it

    def reset(self, seed: int) -> NDArray:
        """New episodes everywhere; their first observations (n, *observation_shape)."""
        ...

    def step(self, action: NDArray) -> HostStep:
        """One step of every environment with actions (n,), counted from 0, or coordinates (n, F)."""
        ...

    def restart(self, who: NDArray) -> NDArray:
        """New episodes where ``who`` (n,) is true; the first observations of those alone."""
        ...

    def close(self) -> None:
        """Close the environments that were made for this vector; those of the user stay open."""
        ...


class WatchableEnv(NamedTuple):
    """One environment to play for people to look at."""

    env: Any  # a gymnasium.Env
    owned: bool  # made for watching, so it has to be closed afterwards
    renders: bool  # draws itself
    read_mask: Callable[[str, Any, Any], NDArray] | None = None  # the action mask, from method, env and info

    def picture(self) -> NDArray | None:
        """Its own picture (H, W, 3) of bytes; None if it does not draw itself."""
        return np.asarray(self.env.render()) if self.renders else None

    def mask(self, method: str, info: Any) -> NDArray | None:
        """Its action mask after a call of ``method`` that returned ``info``; None if it has none."""
        return None if self.read_mask is None else self.read_mask(method, self.env, info)


class HostEnv(Protocol):
    """An environment that is stepped outside jax, with discrete actions.

    Optional: ``splits = True`` says that its vectors have ``send`` and ``receive``, see :class:`HostVector`.

    Optional, for observations of several parts: ``batched(observation)`` adds the batch axis to every part of a
    raw one and says whether it was missing; ``drawable(observation)`` is an array to look at; ``leaves`` are the
    arrays that it consists of, and how each is encoded (:class:`capo.envs.spaces.Leaf`).
    """

    name: str  # in logs and files
    n_actions: int  # the networks count them from 0; of all factors together, if actions have factors
    factors: tuple[int, ...]  # sizes of the factors of an action; () if it is a single number
    first_action: FirstAction  # the environment's own number of action 0: see native_action
    observation_shape: tuple[int, ...]  # of an encoded observation, as the networks take it
    observation_dtype: np.dtype[Any]  # of an encoded observation
    observation_high: int  # the largest value of observations that are bytes; the networks divide by it
    raw_shape: tuple[int, ...]  # of an observation as the environment returns it; () for a Dict or Tuple
    layout: Layout | None  # of encoded observations, if they are rows of bytes
    masked: bool  # whether its vectors give action masks, packed with the observations

    @property
    def fixed_copies(self) -> int | None:
        """How many copies there are, or None if any number of them can be made."""
        ...

    @property
    def vector_copies(self) -> int | None:
        """How many copies the user's vector environment steps, or None if the user gave none."""
        ...

    def encode(self, observations: Any) -> NDArray:
        """Observations (N, *raw_shape), or a Dict or Tuple of arrays (N, ...): (N, *observation_shape)."""
        ...

    def open(self, n: int) -> HostVector:
        """The environments to train on: ``n`` copies, or those that there are."""
        ...

    def open_for_evaluation(self, n: int) -> HostVector | None:
        """``n`` copies apart from training, or None if none can be made."""
        ...

    def open_to_watch(self) -> WatchableEnv:
        """One environment to look at, which draws itself if it can."""
        ...


Env: TypeAlias = JittedEnv | HostEnv


class EnvSpec:
    """What learners and agents need to know about an environment of either kind; the fields are HostEnv's.

    A jitted environment may leave most of it unsaid: here are the defaults. Where there are action masks,
    ``observation_shape`` and ``observation_dtype`` are those of both, packed together by ``layout``.
    """

    def __init__(self, env: Env) -> None:
        self.name = env.name
        self.n_actions = int(env.n_actions)
        self.factors: tuple[int, ...] = tuple(getattr(env, "factors", ()))
        starts = np.array([0, *itertools.accumulate(self.factors[:-1])], np.int32)
        self.first_action: FirstAction = getattr(env, "first_action", -starts if self.factors else 0)
        self.observation_shape = shape = tuple(env.observation_shape)
        self.observation_dtype = dtype = np.dtype(env.observation_dtype)
        self.observation_high = int(getattr(env, "observation_high", 255))
        self.raw_shape: tuple[int, ...] = tuple(getattr(env, "raw_shape", shape))
        self.truncates = bool(getattr(env, "truncates", True))
        self.costly_reset = bool(getattr(env, "costly_reset", False))
        self.fixed_copies: int | None = getattr(env, "fixed_copies", None)
        self.vector_copies: int | None = getattr(env, "vector_copies", None)
        self.encode: Callable[[Any], NDArray] = getattr(env, "encode", lambda obs: np.asarray(obs).astype(dtype))
        # Of a Dict or Tuple: adds the batch axis to every part, and says whether it was missing.
        self.batched: Callable[[Any], tuple[Any, bool]] | None = getattr(env, "batched", None)
        self.layout: Layout | None = getattr(env, "layout", None)
        self.frame_stack = int(getattr(env, "frame_stack", 1))
        self.masked = bool(getattr(env, "masked", callable(getattr(env, "action_mask", None))))
        self._packed = self.layout is not None  # without the mask
        if self.masked:
            plain = self.layout or plain_layout(shape, dtype, self.observation_high)
            self.layout = plain.with_mask(self.n_actions)
            self.observation_shape, self.observation_dtype = (self.layout.n_bytes,), np.dtype(np.uint8)

    def with_masks(self, observations: Any, masks: Any) -> Any:
        """Encoded observations (..., *shape) and their masks (..., A) as rows of bytes (..., n_bytes)."""
        assert self.layout is not None
        parts = Layout(self.layout.seen).unpack(observations) if self._packed else {"": observations}
        return self.layout.pack({**parts, MASK: masks})

    @property
    def seen(self) -> tuple[Part, ...]:
        """What the networks see: the parts of the layout but for the action mask, or the whole observation."""
        if self.layout is not None:
            return self.layout.seen
        return (Part("", self.observation_shape, self.observation_dtype.name, self.observation_high),)


def native_action(action: NDArray, first: FirstAction) -> NDArray:
    """Actions as the environment counts them.

    Args:
        action: (...,) counted from 0; where they have F factors, coordinates (..., F).
        first: the environment's own number of action 0; with factors, what is to be added to each coordinate, of
            the shape that the environment's actions have.
    """
    if isinstance(first, int | np.integer):
        return action + first
    native: NDArray = action.reshape(*action.shape[:-1], *first.shape) + first
    return native


def one_action(native: NDArray) -> int | NDArray:
    """One of :func:`native_action`'s as a single environment takes it: a number of Python's, or an array."""
    return native if native.ndim else int(native)


def is_jitted(env: Env) -> TypeGuard[JittedEnv]:
    """Whether the environment runs inside jax; an object of the protocol does unless it says otherwise."""
    return bool(getattr(env, "jitted", True))
