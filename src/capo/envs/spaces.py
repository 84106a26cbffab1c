"""Gymnasium's spaces: which are supported, and how observations become arrays for the networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from capo.arrays import NDArray
from capo.errors import CapoError

MAX_ONE_HOT = 100_000  # different observations of a Discrete space


class Encoding(NamedTuple):
    """How the observations of a space are encoded."""

    shape: tuple[int, ...]  # of an encoded observation
    dtype: np.dtype[Any]
    high: int  # the largest value if they are bytes: images have 255, a board of 0 and 1 has 1
    raw_shape: tuple[int, ...]  # of an observation before that
    encode: Callable[[NDArray], NDArray]  # (N, *raw_shape) -> (N, *shape)


def observation_encoding(name: str, space: Any) -> Encoding:
    """The encoding of an observation space: Box keeps its dtype, Discrete becomes one-hot, MultiBinary booleans.

    Args:
        name: of the environment, for messages.
        space: of one environment.

    Raises:
        CapoError: if the space is of another kind.
    """
    from gymnasium import spaces

    raw_shape = tuple(space.shape or ())
    if isinstance(space, spaces.Discrete):
        size, start = int(space.n), int(space.start)
        if size > MAX_ONE_HOT:
            raise CapoError(
                f"{name!r} has {size:,} different observations, which would become vectors of that length; at "
                f"most {MAX_ONE_HOT:,} are supported: wrap the environment so that it describes a state by fewer "
                "numbers"
            )
        return Encoding((size,), np.dtype(np.bool_), 255, raw_shape, partial(_one_hot, name, size, start))
    if isinstance(space, spaces.MultiBinary):
        return Encoding(raw_shape, np.dtype(np.bool_), 255, raw_shape, lambda obs: obs.astype(np.bool_))
    if isinstance(space, spaces.Box):
        keep = space.dtype in (np.bool_, np.uint8, np.float32)
        dtype: np.dtype[Any] = np.dtype(space.dtype if keep else np.float32)
        high = max(int(np.asarray(space.high).max()), 1) if dtype == np.uint8 else 255
        shape = raw_shape or (1,)
        return Encoding(shape, dtype, high, raw_shape, lambda obs: obs.astype(dtype).reshape(len(obs), *shape))
    raise CapoError(
        f"{name!r} has the observation space {space}; Box, Discrete and MultiBinary are supported: "
        "flatten it with gymnasium.wrappers.FlattenObservation"
    )


class Actions(NamedTuple):
    """What an action space offers."""

    n: int  # actions, of all factors together
    factors: tuple[int, ...]  # their sizes; () if an action is a single number
    first: int | NDArray  # the environment's own number of action 0: see protocol.native_action


def discrete_actions(name: str, space: Any) -> Actions:
    """The actions of a space: Discrete as they are, those of MultiDiscrete and MultiBinary as factors.

    Raises:
        CapoError: if the space is of another kind.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Actions(int(space.n), (), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        sizes, start = np.asarray(space.nvec), np.asarray(getattr(space, "start", 0))
    elif isinstance(space, spaces.MultiBinary):
        sizes, start = np.full(space.shape, 2), np.asarray(0)
    else:
        raise CapoError(
            f"{name!r} has the action space {space}, but CAPO needs a finite number of actions: wrap the "
            "environment so that it offers a list of them to choose from (Discrete, MultiDiscrete or MultiBinary)"
        )
    ends = np.cumsum(sizes)
    before = (ends - sizes.ravel()).reshape(sizes.shape)  # the coordinate of each factor's first action
    return Actions(int(ends[-1]), tuple(sizes.ravel().tolist()), start - before)


def _one_hot(name: str, size: int, start: int, obs: NDArray) -> NDArray:
    with np.errstate(invalid="ignore"):  # nan becomes some integer, and differs from it
        index = obs.astype(np.int64) - start
    wrong = (index < 0) | (index >= size) | (obs != index + start)
    if wrong.any():
        raise CapoError(
            f"observation {obs[wrong][0]!s} of {name!r} must be an integer from {start} to {start + size - 1}"
        )
    encoded = np.zeros((*index.shape, size), np.bool_)
    np.put_along_axis(encoded, index[..., None], True, axis=-1)
    return encoded
