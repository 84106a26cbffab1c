"""Networks for large images, as matrix products: Nature's three convolutions, and IMPALA's residual network.

They are those of Mnih et al. (2015) and Espeholt et al. (2018).

A convolution with a stride s and a kernel of 2 s is one with a kernel of 2 and no stride on the image whose s x s
blocks of pixels are channels. So Nature's first layers (8x8, stride 4; 4x4, stride 2) look at four blocks each.

On a CPU a few images at a time go through all layers, so that their windows stay in a core's cache
(:func:`a_few_at_a_time`); a GPU gets whole batches.

Kernels are (rows x columns x channels, features). Where a layer has a stride, a row of the kernel stands for
(block row, block column, row in the block, column in the block, channel).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, PyTree
from capo.neural.parts.layers import KERNEL, Layer, Style, activate, dense, hidden, is_layer, nonlinear, product

NATURE = ((8, 4, 32), (4, 2, 64), (3, 1, 64))  # kernel, stride, features of each layer
NATURE_SMALLEST = 36  # pixels of a side: the last layer then gives a single one
IMPALA = (16, 32, 32)  # features of each stage
IMPALA_BLOCKS = 2  # residual blocks of a stage
FEW = 16  # images whose windows fit in the cache, and whose products still occupy two cores


def a_few_at_a_time(network: Callable[[PyTree, Array], Array], layers: PyTree, x: Array) -> Array:
    """``network(layers, x)`` of images (..., H, W, C) to (..., n); on a CPU, of :data:`FEW` images at a time.

    What lies between the layers is computed again for the gradients, rather than kept for the whole batch. Kernels
    enter the loop transposed: the sums over batches that are their gradients are then products that a CPU computes
    two to four times as fast.
    """
    lead, shape = x.shape[:-3], x.shape[-3:]
    n = math.prod(lead)
    if jax.default_backend() != "cpu" or n <= FEW:
        return network(layers, x)

    def transposed(layers: PyTree) -> PyTree:
        return jax.tree.map(lambda layer: layer | {"kernel": layer["kernel"].T}, layers, is_leaf=is_layer)

    @jax.checkpoint
    def few(sideways: PyTree, x: Array) -> Array:
        return network(transposed(sideways), x)

    images = jnp.concatenate([x.reshape(n, *shape), jnp.zeros((-n % FEW, *shape), x.dtype)])
    sideways = transposed(layers)
    _, features = jax.lax.scan(lambda _, x: (None, few(sideways, x)), None, images.reshape(-1, FEW, *shape))
    joined: Array = features.reshape(-1, features.shape[-1])[:n]
    return joined.reshape(*lead, -1)


def nature_size(shape: tuple[int, ...]) -> int:
    """Numbers that Nature's convolutions give for an image (H, W, C)."""
    height, width, _ = shape
    for kernel, stride, _ in NATURE:
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return height * width * NATURE[-1][2]


def init_nature(style: Style, rng: np.random.Generator, channels: int) -> list[Layer]:
    """Nature's three layers, orthogonal."""
    inputs = [channels, *(features for _, _, features in NATURE)]
    layers = zip(NATURE, inputs[:-1], strict=True)
    return [hidden(style, rng, kernel * kernel * n_in, features) for (kernel, _, features), n_in in layers]


def nature_blocks(x: Array) -> Array:
    """An image (..., H, W, C) as blocks of 4x4 pixels (..., h, w, 16 C), in its own dtype."""
    return _blocks(x, *NATURE[0][:2])


def nature(style: Style, layers: list[Layer], blocks: Array) -> Array:
    """:func:`nature_blocks`, as floats, to features (..., n)."""
    x = blocks
    for index, ((kernel, stride, _), layer) in enumerate(zip(NATURE, layers, strict=True)):
        if stride > 1 and index:
            x = _blocks(x, kernel, stride)
        x = activate(style, layer, product(style, layer["kernel"], _windows(x, kernel // stride)))
    return x.reshape(*x.shape[:-3], -1)


def impala_size(shape: tuple[int, ...]) -> int:
    """Numbers that IMPALA's network gives for an image (H, W, C)."""
    height, width, _ = shape
    for _ in IMPALA:
        height, width = -(-height // 2), -(-width // 2)
    return height * width * IMPALA[-1]


def init_impala(rng: np.random.Generator, channels: int) -> PyTree:
    """IMPALA's stages, each {"conv": layer, "blocks": [[layer, layer], ...]}, orthogonal.

    They have no LayerNorm: what is added up must not be normalised.
    """

    def convolution(n_in: int, n_out: int) -> Layer:
        return dense(rng, KERNEL * KERNEL * n_in, n_out, scale=1.0)

    return [
        {
            "conv": convolution(n_in, n_out),
            "blocks": [[convolution(n_out, n_out) for _ in range(2)] for _ in range(IMPALA_BLOCKS)],
        }
        for n_in, n_out in pairwise([channels, *IMPALA])
    ]


def impala(style: Style, stages: PyTree, x: Array) -> Array:
    """Images (..., H, W, C), as floats, to features (..., n).

    A stage: a 3x3 convolution, the maximum of 3x3 pixels at every second one, and two residual blocks of two 3x3
    convolutions each. All of them are padded with zeros.
    """
    for stage in stages:
        x = _pool(_linear(style, stage["conv"], x))
        for first, second in stage["blocks"]:
            inner = _linear(style, first, _nonlinear(style, x))
            x = x + _linear(style, second, _nonlinear(style, inner))
    x = _nonlinear(style, x)
    return x.reshape(*x.shape[:-3], -1)


def _blocks(x: Array, kernel: int, stride: int) -> Array:
    """(..., H, W, C) cut into blocks of ``stride`` pixels, as many as windows need: (..., h, w, stride**2 C)."""
    lead, (height, width, channels) = x.shape[:-3], x.shape[-3:]
    rows, columns = ((side - kernel) // stride + kernel // stride for side in (height, width))
    x = x[..., : rows * stride, : columns * stride, :]
    x = x.reshape(*lead, rows, stride, columns, stride, channels)
    return jnp.swapaxes(x, -4, -3).reshape(*lead, rows, columns, stride * stride * channels)


def _windows(x: Array, kernel: int) -> Array:
    """All windows of ``kernel`` x ``kernel`` pixels: (..., H, W, C) to (..., H-k+1, W-k+1, k*k C)."""
    rows, columns = x.shape[-3] - kernel + 1, x.shape[-2] - kernel + 1
    shifts = [x[..., i : i + rows, j : j + columns, :] for i in range(kernel) for j in range(kernel)]
    return jnp.concatenate(shifts, axis=-1)


def _linear(style: Style, layer: Layer, x: Array) -> Array:
    """A 3x3 convolution of an image padded with zeros, with its bias and nothing after it."""
    around = [(0, 0)] * (x.ndim - 3) + [(1, 1), (1, 1), (0, 0)]
    values = product(style, layer["kernel"], _windows(jnp.pad(x, around), KERNEL))
    shifted: Array = values.astype(jnp.float32) + layer["bias"]
    return shifted.astype(values.dtype)


def _nonlinear(style: Style, x: Array) -> Array:
    if style.activation == "relu":
        return jnp.maximum(x, 0)
    return nonlinear(style, x.astype(jnp.float32)).astype(x.dtype)


def _pool(x: Array) -> Array:
    """The maximum of 3x3 pixels around every second one: (..., H, W, C) to (..., ceil(H/2), ceil(W/2), C)."""
    lowest = -jnp.inf
    for axis in (x.ndim - 3, x.ndim - 2):
        size = x.shape[axis]
        # Padded as the pooling of the original: an even side has its extra pixel at the end.
        before = 0 if size % 2 == 0 else 1
        padding = [(0, 0)] * x.ndim
        padding[axis] = (before, 1)
        padded = jnp.pad(x, padding, constant_values=lowest)
        count = -(-size // 2)
        parts = [jax.lax.slice_in_dim(padded, i, i + 2 * count - 1, 2, axis) for i in range(KERNEL)]
        x = jnp.maximum(jnp.maximum(parts[0], parts[1]), parts[2])
    return x
