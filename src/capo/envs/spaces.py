"""Gymnasium's spaces: which are supported, and how observations become arrays for the networks.

A space is taken apart into its leaves (:class:`Leaf`): a Box, Discrete, MultiDiscrete or MultiBinary space each. A
Dict or Tuple, nested or not, has several. An :class:`Encoding` turns observations of any structure into one array:
that of the only leaf as it is, or rows of bytes that a :class:`Layout` describes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from capo.arrays import NDArray
from capo.envs.failures import EnvironmentFailed
from capo.envs.layout import MASK, Layout, Part
from capo.errors import CapoError

MAX_ONE_HOT = 1024  # categories of one entry that are one-hot; more are embedded
MAX_ONE_HOT_BITS = 16_384  # of all entries of a MultiDiscrete space together
MAX_CATEGORIES = 10_000_000  # rows of an embedding's table
LEAST_PICTURE = 36  # pixels of a side from which bytes of two axes are a grey picture

Path = tuple[str | int, ...]
"""The keys and indices that lead from an observation to one of its leaves."""


def _exactly(name: str, obs: NDArray, dtype: Any) -> NDArray:
    """Numbers in a format without fractions, if none of them changes."""
    if obs.dtype == dtype:
        return obs
    with np.errstate(invalid="ignore"):  # nan becomes some integer, and differs from it
        found = obs.astype(dtype)
    changed = obs != found
    if changed.any():
        raise EnvironmentFailed(
            f"the observation {obs[changed][0]!s} of {name!r} is none of the {np.dtype(dtype)} numbers that its "
            "space promises: change the space to what the environment returns, such as a Box of float32"
        )
    return found


@dataclass(frozen=True)
class Bits:
    """Of MultiBinary: they stay as they are. ``name`` is that of the environment, for messages."""

    name: str

    def __call__(self, obs: NDArray) -> list[NDArray]:
        return [_exactly(self.name, obs, np.bool_)]


@dataclass(frozen=True)
class Pixels:
    """Bytes with their axes in another order.

    Attributes:
        name: of the environment, for messages.
        axes: the raw axes, in the new order.
        shape: of the part.
    """

    name: str
    axes: tuple[int, ...]
    shape: tuple[int, ...]

    def __call__(self, obs: NDArray) -> list[NDArray]:
        moved = np.transpose(_exactly(self.name, obs, np.uint8), (0, *(axis + 1 for axis in self.axes)))
        return [np.ascontiguousarray(moved).reshape(len(obs), *self.shape)]


@dataclass(frozen=True)
class Numbers:
    """Numbers in a format that the networks know.

    Attributes:
        name: of the environment, for messages.
        shape, dtype: of the part.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __call__(self, obs: NDArray) -> list[NDArray]:
        if self.dtype.kind != "f":
            return [_exactly(self.name, obs, self.dtype).reshape(len(obs), *self.shape)]
        with np.errstate(over="ignore"):
            numbers = obs.astype(self.dtype)
        if obs.dtype != np.float32:
            beyond = np.isinf(numbers) & np.isfinite(obs)
            if beyond.any():
                raise CapoError(
                    f"observation {obs[beyond][0]:g} of {self.name!r} is too large for the networks' "
                    "float32: scale it down"
                )
        return [numbers.reshape(len(obs), *self.shape)]


@dataclass(frozen=True, eq=False)
class Categories:
    """Entries (k,) that each are one of so many: one-hot, all side by side, or embedded where that would be long.

    Entries that are embedded share one table, in which each has rows of its own. There is a part for the entries
    that are one-hot and one for those that are embedded; usually there are only entries of one kind.

    Attributes:
        name: of the environment, for messages.
        sizes, starts: (k,) how many values an entry has, and the first of them.
        long: (k,) bool, whether an entry is embedded.
    """

    name: str
    sizes: NDArray
    starts: NDArray
    long: NDArray

    @property
    def offsets(self) -> NDArray:
        """(k,) The place of each entry's first value among those of all entries of its kind."""
        before = np.zeros(len(self.sizes), np.int64)
        for kind in (self.long, ~self.long):
            before[kind] = np.cumsum(self.sizes[kind]) - self.sizes[kind]
        return before

    def __call__(self, obs: NDArray) -> list[NDArray]:
        flat, sizes, starts, long = obs.reshape(len(obs), -1), self.sizes, self.starts, self.long
        if flat.shape[1] != len(sizes):
            raise CapoError(
                f"{self.name!r} was given observations of shape {obs.shape}; it expects {len(sizes)} integers"
            )
        with np.errstate(invalid="ignore"):  # nan becomes some integer, and differs from it
            index = flat.astype(np.int64) - starts
        wrong = (index < 0) | (index >= sizes) | (flat != index + starts)
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            last = starts[column] + sizes[column] - 1
            raise CapoError(
                f"observation {flat[row, column]!s} of {self.name!r} must be an integer from {starts[column]} to "
                f"{last}"
            )
        places = index + self.offsets
        encoded: list[NDArray] = []
        if not long.all():
            bits = np.zeros((len(obs), int(sizes[~long].sum())), np.bool_)
            np.put_along_axis(bits, places[:, ~long], True, axis=1)
            encoded.append(bits)
        if long.any():
            encoded.append(places[:, long].astype(np.int32))
        return encoded


Encode: TypeAlias = Bits | Pixels | Numbers | Categories
"""(N, *raw_shape) to an array (N, *part.shape) for each part."""


class Leaf(NamedTuple):
    """A space that has no others inside."""

    path: Path
    raw_shape: tuple[int, ...]  # of what the environment gives
    raw_dtype: np.dtype[Any]
    parts: tuple[Part, ...]  # what that becomes: usually one
    encode: Encode


class Encoding:
    """How the observations of a space are encoded.

    Attributes:
        leaves: of the space, in order.
        composite: whether observations are Dicts or Tuples rather than arrays.
        layout: of the encoded rows; None if there is one plain array.
        shape, dtype, high: of an encoded observation, as in :class:`HostEnv`.
        raw_shape: of an observation before that; () if it is a Dict or Tuple.
    """

    def __init__(self, name: str, leaves: Sequence[Leaf]) -> None:
        self.name, self.leaves = name, tuple(leaves)
        self.composite = any(leaf.path for leaf in leaves)
        parts = tuple(part for leaf in leaves for part in leaf.parts)
        first = parts[0]
        plain = len(parts) == 1 and not first.classes
        self.layout = None if plain else Layout(parts)
        self.shape = first.shape if self.layout is None else (self.layout.n_bytes,)
        self.dtype: np.dtype[Any] = np.dtype(first.dtype if self.layout is None else np.uint8)
        self.high = first.high if plain else 255
        self.raw_shape = () if self.composite else self.leaves[0].raw_shape

    def copied(self, observation: Any) -> list[NDArray]:
        """The leaves of one raw observation, copied: an environment may reuse its arrays for the next one."""
        return [np.array(leaf_of(observation, leaf.path)) for leaf in self.leaves]

    def encode_each(self, copies: Sequence[Sequence[NDArray]]) -> NDArray:
        """What :meth:`copied` gave for N observations, as they are stored: (N, *shape)."""
        return self._encode([np.stack(arrays) for arrays in zip(*copies, strict=True)])

    def encode(self, observations: Any) -> NDArray:
        """A batch of raw observations, an array (N, ...) or a Dict or Tuple of such, as they are stored."""
        return self._encode([np.asarray(leaf_of(observations, leaf.path)) for leaf in self.leaves])

    def row(self, observations: Any, index: int) -> list[NDArray]:
        """One of N raw observations, as :meth:`copied` gives it: from a sequence of them, or a batched Dict."""
        if self.composite and isinstance(observations, dict | tuple):
            return [np.array(leaf_of(observations, leaf.path)[index]) for leaf in self.leaves]
        return self.copied(observations[index])

    def _encode(self, arrays: Sequence[NDArray]) -> NDArray:
        values = {
            part.name: value
            for leaf, array in zip(self.leaves, arrays, strict=True)
            for part, value in zip(leaf.parts, leaf.encode(self._shaped(leaf, array)), strict=True)
        }
        packed: NDArray = next(iter(values.values())) if self.layout is None else self.layout.pack(values)
        return packed

    def _shaped(self, leaf: Leaf, array: NDArray) -> NDArray:
        """Observations (N, ...) of a leaf, which may differ from the space in axes of length 1 alone."""
        given = array.shape[1:]
        if given == leaf.raw_shape:
            return array
        if [n for n in given if n != 1] != [n for n in leaf.raw_shape if n != 1]:
            raise EnvironmentFailed(
                f"{_text(leaf.path)} of {self.name!r} has the shape {given}, but the space says {leaf.raw_shape}"
            )
        return array.reshape(len(array), *leaf.raw_shape)

    def batched(self, observation: Any) -> tuple[Any, bool]:
        """A Dict or Tuple observation with a batch axis on every leaf, and whether a single one was given.

        Raises:
            CapoError: names the leaf that is missing, or has another shape.
        """
        found: dict[Path, NDArray] = {}
        single: set[bool] = set()
        for leaf in self.leaves:
            array = self._leaf_array(observation, leaf)
            single.add(array.shape == leaf.raw_shape)
            found[leaf.path] = array[None] if array.shape == leaf.raw_shape else array
        lengths = {len(array) for array in found.values()}
        if len(single) > 1 or len(lengths) > 1:
            raise CapoError(
                f"all parts of an observation of {self.name} must have a batch axis of the same length, or none"
            )
        return nested(found), single.pop()

    def _leaf_array(self, observation: Any, leaf: Leaf) -> NDArray:
        where = _text(leaf.path)
        shape = leaf.raw_shape
        try:
            array = np.asarray(leaf_of(observation, leaf.path))
        except (KeyError, IndexError, TypeError, ValueError):
            array = np.empty((), object)
        if array.dtype.kind not in "biuf":
            names = ", ".join(_text(one.path) for one in self.leaves)
            raise CapoError(
                f"an observation of {self.name} has the parts {names}: {where} must be an array of numbers"
            )
        if array.shape != shape and (array.ndim == 0 or array.shape[1:] != shape):
            raise CapoError(
                f"{where} of shape {array.shape} was given; {self.name} has shape {shape} there, a batch of them "
                f"{('n', *shape)}"
            )
        return array

    def drawable(self, observation: Any) -> NDArray:
        """An array of one raw observation for people to look at: its first image, or all of its numbers."""
        if not self.composite:
            return np.array(observation)
        rows = self.encode_each([self.copied(observation)])
        if self.layout is None:
            return np.asarray(rows[0])
        return drawable(self.layout, rows[0])


def drawable(layout: Layout, row: NDArray) -> NDArray:
    """The first image of a packed observation, or all of its numbers."""
    values = layout.unpack(row)
    image = next((values[part.name] for part in layout.seen if len(part.shape) == 3), None)
    if image is not None:
        return np.asarray(image)
    return np.concatenate([np.asarray(values[part.name], np.float32).reshape(-1) for part in layout.seen])


def observation_encoding(name: str, space: Any) -> Encoding:
    """The encoding of an observation space.

    Args:
        name: of the environment, for messages.
        space: of one environment.

    Raises:
        CapoError: if the space, or one inside it, is not supported.
    """
    taken: set[str] = {MASK}  # the name of a part that the networks do not see
    leaves = []
    for path, one in _leaf_spaces(name, space, ()):
        leaf = _leaf(name, path, one)
        parts = []
        for part in leaf.parts:
            label = part.name
            while label in taken:
                label += "'"
            taken.add(label)
            parts.append(Part(label, part.shape, part.dtype, part.high, part.classes))
        leaves.append(leaf._replace(parts=tuple(parts)))
    if not any(part.size for leaf in leaves for part in leaf.parts):
        raise CapoError(f"{name!r} has the observation space {space}, which contains no numbers")
    return Encoding(name, leaves)


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


def leaf_of(observation: Any, path: Path) -> Any:
    """What is at the end of a path."""
    for key in path:
        observation = observation[key]
    return observation


def nested(leaves: Mapping[Path, Any]) -> Any:
    """An observation of these leaves: dicts, also in place of tuples."""
    found: dict[Any, Any] = {}
    for path, value in leaves.items():
        node = found
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = value
    return found


def _text(path: Path) -> str:
    return ".".join(map(str, path)) or "the observation"


def _leaf_spaces(name: str, space: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        inside = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, one in inside:
            yield from _leaf_spaces(name, one, (*path, key))
        return
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise _unsupported(name, space, path)
    yield path, space


def _unsupported(name: str, space: Any, path: Path) -> CapoError:
    """What to do about a space that has no fixed number of numbers."""
    kind = type(space).__name__
    inside = f" in {_text(path)!r}" if path else ""
    if type(space).__module__.partition(".")[0] == "minigrid":
        advice = (
            "use only its image, with minigrid.wrappers.ImgObsWrapper; by name: "
            f"{name.partition(',')[0]},wrapper=minigrid.wrappers:ImgObsWrapper"
        )
    elif path:
        advice = (
            "leave it out with gymnasium.wrappers.FilterObservation, or turn it into numbers with "
            "gymnasium.wrappers.TransformObservation"
        )
    else:
        advice = "turn it into numbers with gymnasium.wrappers.TransformObservation (or FlattenObservation)"
    return CapoError(
        f"{name!r} has the observation space {kind}{inside}, which does not have a fixed size; Box, "
        f"Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these are supported: {advice}"
    )


def _leaf(name: str, path: Path, space: Any) -> Leaf:
    from gymnasium import spaces

    label = _text(path) if path else ""
    raw_shape, raw_dtype = tuple(space.shape or ()), np.dtype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        parts, encode = _bits(name, label, raw_shape)
    elif isinstance(space, spaces.Discrete):
        sizes, starts = np.array([int(space.n)]), np.array([int(space.start)])
        parts, encode = _categories(name, label, sizes, starts)
    elif isinstance(space, spaces.MultiDiscrete):
        sizes = np.asarray(space.nvec, np.int64).reshape(-1)
        starts = np.asarray(getattr(space, "start", np.zeros_like(sizes)), np.int64).reshape(-1)
        parts, encode = _categories(name, label, sizes, starts)
    else:
        parts, encode = _box(name, label, raw_shape, space)
    return Leaf(path, raw_shape, raw_dtype, parts, encode)


_Encoded: TypeAlias = tuple[tuple[Part, ...], Encode]  # the parts of a leaf, and what makes them


def _bits(name: str, label: str, raw_shape: tuple[int, ...]) -> _Encoded:
    return (Part(label, raw_shape, "bool"),), Bits(name)


def _box(name: str, label: str, raw_shape: tuple[int, ...], space: Any) -> _Encoded:
    keep = space.dtype in (np.bool_, np.uint8, np.float32)
    dtype: np.dtype[Any] = np.dtype(space.dtype if keep else np.float32)
    if dtype == np.uint8:
        high = max(int(np.asarray(space.high).max(initial=0)), 1)
        axes = _image_axes(raw_shape)
        moved = tuple(raw_shape[axis] for axis in axes)
        stacked = len(moved) == 4 and axes != (0, 1, 2, 3)
        grey = len(moved) == 2 and min(moved) >= LEAST_PICTURE
        shape = (*moved[:2], int(np.prod(moved[2:]))) if stacked or grey else moved
        return (Part(label, shape or (1,), "uint8", high),), Pixels(name, axes, shape or (1,))
    shape = raw_shape or (1,)
    return (Part(label, shape, dtype.name),), Numbers(name, shape, dtype)


def _image_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The order of the axes of bytes that makes them (height, width, channels), where they are an image at all.

    Channels come first where the first axis is shorter than two equally long ones, or is that of a grey or
    coloured picture. Four axes are a stack of pictures, whose number comes first. A large picture of two axes gets
    one channel: see :func:`_box`.
    """
    if len(shape) == 3 and _channels_first(shape):
        return 1, 2, 0
    if len(shape) == 4 and shape[0] <= 16 and min(shape[1:3]) >= 16 and shape[3] in (1, 3, 4):
        return 1, 2, 0, 3
    if len(shape) == 4 and shape[0] <= 16 and _channels_first(shape[1:]):
        return 2, 3, 0, 1
    return tuple(range(len(shape)))


def _channels_first(shape: tuple[int, ...]) -> bool:
    channels, height, width = shape
    return channels < height == width or (channels in (1, 3, 4) and min(height, width) >= 16)


def _categories(name: str, label: str, sizes: NDArray, starts: NDArray) -> _Encoded:
    """See :class:`Categories`."""
    long = sizes > MAX_ONE_HOT
    if int(sizes[~long].sum()) > MAX_ONE_HOT_BITS:
        long[:] = True
    rows = int(sizes[long].sum())
    if rows > MAX_CATEGORIES:
        raise CapoError(
            f"{name!r} has {rows:,} different observations{f' in {label!r}' if label else ''}; at most "
            f"{MAX_CATEGORIES:,} are supported: wrap the environment so that it describes a state with "
            "fewer numbers"
        )
    parts = []
    if not long.all():
        parts.append(Part(label, (int(sizes[~long].sum()),), "bool"))
    if long.any():
        parts.append(Part(label, (int(long.sum()),), "int32", classes=rows))
    return tuple(parts), Categories(name, sizes, starts, long)
