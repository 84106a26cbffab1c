"""Observations of several parts, and action masks, as one array of bytes.

The replay, the rollouts and the learners hold an observation as one array. A plain Box or grid is that array; a
Dict, a Tuple, or any observation that comes with an action mask is packed into a row of bytes here: floats and
integers by their bits, booleans eight to a byte. A :class:`Layout` says which bytes are which part, so that a
network can take the row apart again. Nothing is rounded: unpacking gives back every bit that was packed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from capo.arrays import Array, NDArray

MASK = "action_mask"  # the part that says which actions are allowed
KINDS = ("bool", "uint8", "int32", "float32")


@dataclass(frozen=True)
class Part:
    """One array of an observation."""

    name: str  # unique in a layout: the keys of a Dict and the indices of a Tuple, joined by dots
    shape: tuple[int, ...]
    dtype: str  # one of KINDS
    high: int = 255  # the largest value of bytes: networks divide by it
    classes: int = 0  # if positive, every entry is one of 0 ... classes - 1 and stands for a category

    @property
    def size(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Bytes in a packed row."""
        return -(-self.size // 8) if self.dtype == "bool" else self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Layout:
    """The parts of an observation, in the order in which they are packed."""

    parts: tuple[Part, ...]

    @cached_property
    def n_bytes(self) -> int:
        """Bytes of a packed observation."""
        return sum(part.n_bytes for part in self.parts)

    @property
    def masked(self) -> bool:
        """Whether an action mask is among the parts."""
        return any(part.name == MASK for part in self.parts)

    @property
    def seen(self) -> tuple[Part, ...]:
        """The parts that the networks see: all but the action mask."""
        return tuple(part for part in self.parts if part.name != MASK)

    def pack(self, values: Mapping[str, Any]) -> Any:
        """Arrays (..., *part.shape) by part name, of numpy or jax, to rows of bytes (..., n_bytes)."""
        numpy = all(isinstance(value, np.ndarray | np.generic) for value in values.values())
        xp = np if numpy else _jax_numpy()
        rows = [_to_bytes(xp, part, xp.asarray(values[part.name])) for part in self.parts]
        return xp.concatenate(rows, axis=-1)

    def unpack(self, packed: NDArray | Array) -> dict[str, Any]:
        """Rows of bytes (..., n_bytes) to arrays (..., *part.shape) by part name."""
        values, start = {}, 0
        for part in self.parts:
            values[part.name] = _from_bytes(part, packed[..., start : start + part.n_bytes])
            start += part.n_bytes
        return values

    def floats(self, packed: NDArray | Array) -> list[tuple[str, Any]]:
        """The names and arrays of the parts that may hold nan or infinity."""
        if all(part.dtype != "float32" for part in self.parts):
            return []
        values = self.unpack(packed)
        return [(part.name, values[part.name]) for part in self.parts if part.dtype == "float32"]

    def mask(self, packed: NDArray | Array) -> Any:
        """The action masks (..., A) of packed observations (..., n_bytes)."""
        start = 0
        for part in self.parts:
            if part.name == MASK:
                return _from_bytes(part, packed[..., start : start + part.n_bytes])
            start += part.n_bytes
        raise KeyError(MASK)


def _to_bytes(xp: Any, part: Part, value: Any) -> Any:
    """(..., *part.shape) to (..., part.n_bytes)."""
    lead = value.shape[: value.ndim - len(part.shape)]
    flat = value.astype(part.dtype).reshape(*lead, part.size)
    if part.dtype == "bool":
        return xp.packbits(flat, axis=-1)
    if part.dtype == "uint8":
        return flat
    if xp is np:
        return np.ascontiguousarray(flat).view(np.uint8)
    import jax

    return jax.lax.bitcast_convert_type(flat, np.uint8).reshape(*lead, part.n_bytes)


def _from_bytes(part: Part, row: Any) -> Any:
    """(..., part.n_bytes) to (..., *part.shape)."""
    lead = row.shape[:-1]
    numpy = isinstance(row, np.ndarray)
    if part.dtype == "bool":
        xp = np if numpy else _jax_numpy()
        flat = xp.unpackbits(row, axis=-1, count=part.size).astype(bool)
    elif part.dtype == "uint8":
        flat = row
    elif numpy:
        flat = np.ascontiguousarray(row).view(part.dtype)
    else:
        import jax

        flat = jax.lax.bitcast_convert_type(row.reshape(*lead, part.size, 4), np.dtype(part.dtype))
    return flat.reshape(*lead, *part.shape)


def _jax_numpy() -> Any:
    import jax.numpy as jnp

    return jnp
