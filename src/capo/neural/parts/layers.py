"""The layers that all networks are made of: dense layers, and 3x3 convolutions of small grids.

A real convolution would become a grouped one under vmap over seeds, which is slow on every device, so every
convolution here and in :mod:`capo.neural.parts.images` is written as a matrix product. On a small grid three whole
rows, side by side, are multiplied by one banded matrix to give a row of the result: a (batched) product of about
100 x 100, which suits matrix units, on an input copied three times rather than nine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, PyTree
from capo.neural.parts.layer_norm import kernels_run_here, normalise

Layer: TypeAlias = dict[str, PyTree]
"""Arrays by name: kernel (n_in, n_out), bias (n_out,), and what LayerNorm or noise add."""

KERNEL = 3
# A banded matrix has W/3 times the entries it needs: beyond this width it costs more than it saves.
MAX_BANDED_WIDTH = 16


class Style(Protocol):
    """What all layers of a network share."""

    @property
    def precision(self) -> str: ...
    @property
    def activation(self) -> str: ...
    @property
    def layer_norm(self) -> bool: ...


class ShapesOnly(np.random.Generator):
    """Given instead of a generator, makes the functions below return shapes instead of arrays."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))


def shapes(**layer: tuple[int, ...]) -> Layer:
    """A layer as it is made with :class:`ShapesOnly`."""
    return {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in layer.items()}  # type: ignore[no-untyped-call]


def dense(rng: np.random.Generator, n_in: int, n_out: int, scale: float) -> Layer:
    """A kernel with orthonormal columns (or rows, if those are fewer) times ``scale``, and a bias of 0."""
    if isinstance(rng, ShapesOnly):
        return shapes(kernel=(n_in, n_out), bias=(n_out,))
    q, r = np.linalg.qr(rng.standard_normal((max(n_in, n_out), min(n_in, n_out))))
    q *= np.sign(np.diag(r))  # makes it uniform over the orthogonal matrices
    kernel = scale * (q if n_in >= n_out else q.T)
    return {"kernel": kernel.astype(np.float32), "bias": np.zeros(n_out, np.float32)}


def hidden(style: Style, rng: np.random.Generator, n_in: int, n_out: int) -> Layer:
    """A layer that :func:`activate` follows, with LayerNorm if the style has it."""
    layer = dense(rng, n_in, n_out, scale=math.sqrt(2))  # the gain for relu, customary for tanh too
    if style.layer_norm and isinstance(rng, ShapesOnly):
        layer |= shapes(scale=(n_out,), shift=(n_out,))
    elif style.layer_norm:
        layer |= {"scale": np.ones(n_out, np.float32), "shift": np.zeros(n_out, np.float32)}
    return layer


def product(style: Style, kernel: Array, x: Array, result: type[np.generic] | None = None) -> Array:
    """``x @ kernel`` in the chosen precision; the product has the dtype ``result``, if given."""
    dtype = jnp.dtype(style.precision)
    return jnp.matmul(x.astype(dtype), kernel.astype(dtype), preferred_element_type=result or dtype)


def products_are_rounded() -> bool:
    """Whether the device rounds float32 numbers before it multiplies matrices: NVIDIA GPUs do (TF32).

    ``JAX_DEFAULT_MATMUL_PRECISION=highest`` in the environment turns that off, at a cost in speed.
    """
    if jax.default_backend() == "cpu":
        return False
    number = np.float32(1 + 2**-14)  # TF32 has 10 bits
    found = jax.jit(jnp.matmul)(np.full((256, 256), number), np.eye(256, dtype=np.float32))
    return bool(np.asarray(found)[0, 0] != number)


def precision_here(style: Style) -> str:
    """What matrix products are computed in: the style's precision, or tf32 where the device rounds to it."""
    rounded = style.precision == "float32" and products_are_rounded()
    return "tf32" if rounded else str(style.precision)


def activate(style: Style, layer: Layer, values: Array) -> Array:
    """What follows a product (..., n): bias, LayerNorm if any, activation; in the product's dtype."""
    relu = style.activation == "relu"
    if "scale" in layer:
        x = normalise(values, layer["bias"], layer["scale"], layer["shift"], relu, kernels_run_here())
        return x if relu else nonlinear(style, x.astype(jnp.float32)).astype(values.dtype)
    x = values.astype(jnp.float32) + layer["bias"]
    return nonlinear(style, x).astype(values.dtype)


def nonlinear(style: Style, x: Array) -> Array:
    """The activation of every number."""
    return _ACTIVATIONS[style.activation](x)


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "silu": jax.nn.silu,
}


def as_float(style: Style, obs: Array, byte_high: int) -> Array:
    """Booleans to 0 and 1, bytes (images, boards) to [0, 1]."""
    dtype = jnp.dtype(style.precision)
    return obs.astype(dtype) / byte_high if obs.dtype == jnp.uint8 else obs.astype(dtype)


def is_layer(node: Any) -> bool:
    """Whether a node of a tree of parameters is a :data:`Layer`."""
    return isinstance(node, dict) and "kernel" in node


# --- a 3x3 convolution of a small grid ----------------------------------------------------------------------


def grid_size(shape: tuple[int, ...], features: int) -> int:
    """Numbers that :func:`convolve_grid` gives for a grid (H, W, C)."""
    return (shape[0] - KERNEL + 1) * (shape[1] - KERNEL + 1) * features


def grid_windows(shape: tuple[int, ...], x: Array) -> Array:
    """What a 3x3 convolution multiplies, (..., H, W, C) to (..., H-2, n): three whole rows side by side.

    On a wide grid, nine shifted copies, (..., H-2, W-2, 9 C).
    """
    height, width, _ = shape
    rows, columns = height - KERNEL + 1, width - KERNEL + 1
    if width > MAX_BANDED_WIDTH:
        shifts = [x[..., i : i + rows, j : j + columns, :] for i in range(KERNEL) for j in range(KERNEL)]
        return jnp.concatenate(shifts, axis=-1)
    lines = x.reshape(*x.shape[:-3], height, -1)
    # Materialised once: otherwise bits are unpacked again for each of the three copies.
    lines = jax.lax.optimization_barrier(lines)  # type: ignore[no-untyped-call]
    return jnp.concatenate([lines[..., i : i + rows, :] for i in range(KERNEL)], axis=-1)


def convolve_grid(style: Style, shape: tuple[int, ...], layer: Layer, windows: Array, features: int) -> Array:
    """3x3 convolution without padding as one matrix product; :func:`grid_windows` to (..., (H-2) (W-2) F)."""
    layer = wide_kernel(style, shape, layer)
    values = product(style, layer["kernel"], windows)
    lead = windows.shape[: windows.ndim - (3 if shape[1] > MAX_BANDED_WIDTH else 2)]
    pixels = activate(style, layer, values.reshape(*lead, -1, features))
    return pixels.reshape(*lead, -1)


def wide_kernel(style: Style, shape: tuple[int, ...], layer: Layer) -> Layer:
    """A convolution with its kernel as the matrix that multiplies the windows (it may be that already)."""
    _, width, channels = shape
    if width <= MAX_BANDED_WIDTH and layer["kernel"].shape[0] == KERNEL * KERNEL * channels:
        layer = layer | {"kernel": _banded(layer["kernel"], width)}
    return layer | {"kernel": layer["kernel"].astype(style.precision)}


def _banded(kernel: Array, width: int) -> Array:
    """The kernel (9 C, F) as a matrix (3 W C, (W-2) F) from three whole rows to one row of the result."""
    columns = width - KERNEL + 1
    small = kernel.reshape(KERNEL, KERNEL, -1, kernel.shape[-1])
    shifted = [jnp.pad(small, ((0, 0), (j, columns - 1 - j), (0, 0), (0, 0))) for j in range(columns)]
    return jnp.stack(shifted, axis=3).reshape(-1, columns * kernel.shape[-1])
