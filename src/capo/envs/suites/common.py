"""What the adapters of the suites share: observations as arrays or packed parts, and states of fixed types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, PyTree
from capo.envs.layout import Layout, Part
from capo.errors import CapoError

MAX_ACTIONS = 10_000  # actions of a flattened space: an output of the network for each
MAX_ONE_HOT = 100_000  # different values of a discrete observation


class Bounds(NamedTuple):
    """What a suite says about the values of a part of its observations."""

    low: float
    high: float
    categories: bool = False  # the values are names, not amounts: they become one-hot


@dataclass(frozen=True)
class PartEncoding:
    """How one array of an observation is stored: ``(value - low) * scale`` in the part's dtype, or one-hot."""

    part: Part
    low: float = 0
    scale: float = 1.0
    categories: int = 0

    def __call__(self, value: Array) -> Array:
        """An array as the suite gives it, to (*part.shape)."""
        if self.categories:
            return jax.nn.one_hot(value, self.categories, dtype=jnp.bool_).reshape(self.part.shape)
        value = jnp.asarray(value)
        if self.scale != 1:
            value = (value - self.low).astype(jnp.float32) * self.scale
        elif self.low:
            value = value - self.low
        return value.astype(self.part.dtype).reshape(self.part.shape)


def part_encoding(name: str, shape: tuple[int, ...], dtype: Any, bounds: Bounds | None = None) -> PartEncoding:
    """How to store an array of this shape and dtype.

    Booleans and bytes stay what they are. Bounded integers become bytes if they fit and fractions of the range if
    not; a categorical one becomes one-hot. Other integers become int32, and all floats float32.
    """
    dtype = jnp.dtype(dtype)
    wide = shape or (1,)
    if (
        bounds is None
        or not np.isfinite([bounds.low, bounds.high]).all()
        or not jnp.issubdtype(dtype, jnp.integer)
    ):
        kind = "float32" if jnp.issubdtype(dtype, jnp.floating) else dtype.name
        return PartEncoding(Part(name, wide, kind if kind in ("bool", "uint8", "float32") else "int32"))
    values = int(bounds.high - bounds.low)
    if bounds.categories and values < MAX_ONE_HOT:
        return PartEncoding(Part(name, (*shape, values + 1), "bool"), categories=values + 1)
    if values <= 255:
        return PartEncoding(Part(name, wide, "uint8", high=max(values, 1)), low=int(bounds.low))
    return PartEncoding(Part(name, wide, "float32"), low=int(bounds.low), scale=1 / values)


class Adapter(ABC):
    """A :class:`capo.envs.protocol.JittedEnv` around an environment of a suite.

    A subclass says how to :meth:`start` and to :meth:`advance`, both in the suite's own terms. An observation of
    one array is returned as that array; one of several (a dict, a tuple, a dataclass) is packed by a
    :class:`Layout`. Every leaf of the state keeps the type that ``start`` gave it, which loops and checkpoints
    rely on.

    A subclass whose games forbid actions has ``action_mask(env_state)``: (A,) bool, true where one is allowed. One
    that can draw itself has ``picture(env_state)``: (H, W, 3) bytes.
    """

    jitted = True
    truncates = True
    layout: Layout | None = None
    observation_high = 255

    def __init__(self, name: str, n_actions: int, bounds: Mapping[str, Bounds] | None = None) -> None:
        self.name, self.n_actions = name, int(n_actions)
        if not 1 <= self.n_actions <= MAX_ACTIONS:
            raise CapoError(f"{name!r} has {self.n_actions:,} actions; at most {MAX_ACTIONS:,} are supported")
        self._like, observation = jax.eval_shape(self.start, jax.random.PRNGKey(0))
        named = _leaves(observation)
        self._parts = [
            part_encoding(path, leaf.shape, leaf.dtype, (bounds or {}).get(path)) for path, leaf in named.items()
        ]
        if not self._parts:
            raise CapoError(f"{name!r} has no observation")
        if len(self._parts) == 1:
            part = self._parts[0].part
            self.observation_shape, self.observation_dtype = part.shape, np.dtype(part.dtype)
            self.observation_high = part.high
        else:
            self.layout = Layout(tuple(encoding.part for encoding in self._parts))
            self.observation_shape, self.observation_dtype = (self.layout.n_bytes,), np.dtype(np.uint8)

    @abstractmethod
    def start(self, key: Array) -> tuple[PyTree, PyTree]:
        """A new episode: ``(env_state, observation)``."""

    @abstractmethod
    def advance(self, key: Array, env_state: Any, action: Array) -> tuple[PyTree, PyTree, Array, Array, Array]:
        """One step without a reset: ``(env_state, observation, reward, terminated, truncated)``."""

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        env_state, observation = self.start(key)
        return self._typed(env_state), self._encoded(observation)

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        state, observation, reward, terminated, truncated = self.advance(key, env_state, action)
        terminated = jnp.asarray(terminated, jnp.bool_)
        return (
            self._typed(state),
            self._encoded(observation),
            jnp.asarray(reward, jnp.float32),
            terminated,
            jnp.asarray(truncated, jnp.bool_) & ~terminated,
        )

    def _encoded(self, observation: PyTree) -> Array:
        values = [encode(value) for encode, value in zip(self._parts, _leaves(observation).values(), strict=True)]
        if self.layout is None:
            return values[0]
        names = (part.name for part in self.layout.parts)
        packed: Array = self.layout.pack(dict(zip(names, values, strict=True)))
        return packed

    def _typed(self, state: PyTree) -> PyTree:
        return jax.tree.map(_as_type, state, self._like)


def _leaves(tree: PyTree) -> dict[str, Any]:
    """The arrays of an observation by the keys, names and indices that lead to them, joined by dots."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _as_type(leaf: Any, like: Any) -> Array:
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):  # a typed random key
        key: Array = leaf
        return key
    return jnp.asarray(leaf, like.dtype)


def with_parameters(name: str, params: Any, arguments: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Parameters (a dataclass of the suite) with those arguments that are among them, and the other arguments.

    Raises:
        CapoError: if a value is of another kind than the default.
    """
    own = {key: value for key, value in arguments.items() if hasattr(params, key)}
    for key, value in own.items():
        default = getattr(params, key)
        if not isinstance(value, int | float) or not isinstance(default, int | float | np.generic | jax.Array):
            raise CapoError(f"{name!r}: {key}={value!r} must be a number, such as {default!r}")
    return params.replace(**own), {key: value for key, value in arguments.items() if key not in own}


def no_arguments(name: str, arguments: Mapping[str, Any], allowed: Any) -> None:
    """Raise if there are arguments left that an environment does not have."""
    if arguments:
        known = ", ".join(sorted(allowed)) or "none"
        raise CapoError(f"{name!r} has no argument {next(iter(arguments))!r}; allowed: {known}")
