"""How a network takes in an observation of several parts: each has its own encoder, their features are joined.

A vector is taken as it is. A category becomes a row of a table that is learned. An image goes through convolutions
and, if there are other parts, a dense layer, so that a few numbers beside it are not lost among thousands.

Parameters of an encoder: {} for a vector, {"table"} for categories, {"conv", "dense": [...]} for an image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, assert_never

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, PyTree
from capo.envs.layout import Part
from capo.errors import CapoError
from capo.neural.parts import images, layers
from capo.neural.parts.layers import KERNEL, ShapesOnly, Style

EMBEDDING = 64  # numbers that stand for a category

ImageKind = Literal["conv", "nature", "impala"]
Kind = Literal["vector", "embedding", "conv", "nature", "impala"]
Network = Literal["auto", "mlp", "conv", "nature", "impala"]


@dataclass(frozen=True)
class Encoder:
    """What one part of an observation goes through."""

    part: Part
    kind: Kind
    features: int = 0  # filters of the convolution, for "conv"
    width: int = 0  # units of the dense layer that ends an image's encoder; 0 if there is none

    @property
    def convolves(self) -> bool:
        """Whether it is an image's."""
        return self.kind in ("conv", "nature", "impala")

    @property
    def n_convolved(self) -> int:
        """Numbers that an image's convolutions give."""
        if self.kind == "conv":
            return layers.grid_size(self.part.shape, self.features)
        return (images.impala_size if self.kind == "impala" else images.nature_size)(self.part.shape)

    @property
    def n_outputs(self) -> int:
        """Numbers that it gives."""
        if self.kind == "vector":
            return self.part.size
        if self.kind == "embedding":
            return self.part.size * EMBEDDING
        return self.width or self.n_convolved

    def __str__(self) -> str:
        name, shape = self.part.name or "observation", "x".join(map(str, self.part.shape))
        if self.kind == "embedding":
            return f"{name} ({self.part.classes:,} categories: embedding)"
        if self.kind == "vector":
            return f"{name} ({self.part.size} number{'' if self.part.size == 1 else 's'})"
        return f"{name} ({shape}: {self.kind})"


def is_image(part: Part) -> bool:
    """Whether a part can be convolved: (height, width, channels) of at least 3x3."""
    return len(part.shape) == 3 and min(part.shape[:2]) >= KERNEL and not part.classes


def choose(network: Network, parts: tuple[Part, ...], features: int, width: int) -> tuple[Encoder, ...]:
    """An encoder for each part.

    Args:
        network: the setting; ``auto`` takes Nature's network for images of at least 36x36 pixels, a single 3x3
            convolution for smaller ones, and none for anything else.
        parts: what the networks see.
        features: filters of a single convolution.
        width: units of a dense layer.

    Raises:
        CapoError: if a convolution was asked for and no part can be convolved, or not by that network.
    """
    if network not in ("auto", "mlp") and not any(map(is_image, parts)):
        shapes = ", ".join(f"{part.name} {part.shape}".strip() for part in parts)
        raise CapoError(
            f"network={network!r} needs observations (height, width, channels) of at least 3x3; "
            f"these have shape {shapes}: use network='mlp'"
        )
    made = tuple(_choose(network, part, features) for part in parts)
    if len(made) == 1:
        return made
    return tuple(replace(one, width=width) if one.convolves else one for one in made)


def _choose(network: Network, part: Part, features: int) -> Encoder:
    if part.classes:
        return Encoder(part, "embedding")
    if not is_image(part) or network == "mlp":
        return Encoder(part, "vector")
    large = min(part.shape[:2]) >= images.NATURE_SMALLEST
    if network == "nature" and not large:
        raise CapoError(
            f"network='nature' needs images of at least 36x36 pixels; {part.name or 'the observation'} has shape "
            f"{part.shape}: use network='conv' or network='impala'"
        )
    kind: ImageKind = network if network != "auto" else "nature" if large else "conv"
    return Encoder(part, kind, features if kind == "conv" else 0)


def init(style: Style, encoder: Encoder, rng: np.random.Generator) -> PyTree:
    """The parameters of an encoder, made on the host."""
    part = encoder.part
    if encoder.kind == "vector":
        return {}
    if encoder.kind == "embedding":
        if isinstance(rng, ShapesOnly):
            return layers.shapes(table=(part.classes, EMBEDDING))
        # Rows of length about 1, as one-hot vectors have: longer ones would drown the other parts.
        return {"table": rng.standard_normal((part.classes, EMBEDDING), np.float32) / np.float32(EMBEDDING**0.5)}
    convolution: PyTree
    if encoder.kind == "conv":
        convolution = layers.hidden(style, rng, KERNEL * KERNEL * part.shape[2], encoder.features)
    elif encoder.kind == "nature":
        convolution = images.init_nature(style, rng, part.shape[2])
    elif encoder.kind == "impala":
        convolution = images.init_impala(rng, part.shape[2])
    else:
        assert_never(encoder.kind)
    dense = [layers.hidden(style, rng, encoder.n_convolved, encoder.width)] if encoder.width else []
    return {"conv": convolution, "dense": dense}


def inputs(style: Style, encoder: Encoder, obs: Array) -> Array:
    """A part (..., *part.shape) in the form that its first layer takes, to share it between networks.

    Large images stay bytes here: floats of a whole batch would take four times the memory.
    """
    shape, kind = encoder.part.shape, encoder.kind
    if kind == "embedding" or kind == "impala":
        return obs
    if kind == "nature":
        return images.nature_blocks(obs)
    x = layers.as_float(style, obs, encoder.part.high)
    lead = x.shape[: x.ndim - len(shape)]
    return layers.grid_windows(shape, x) if kind == "conv" else x.reshape(*lead, -1)


def apply(style: Style, encoder: Encoder, params: PyTree, x: Array) -> Array:
    """What :func:`inputs` made of a part, to features (..., n_outputs)."""
    part, kind = encoder.part, encoder.kind
    if kind == "vector":
        return x
    if kind == "embedding":
        rows: Array = params["table"].astype(style.precision)[x]
        return rows.reshape(*x.shape[: x.ndim - len(part.shape)], -1)
    if kind == "conv":
        x = layers.convolve_grid(style, part.shape, params["conv"], x, encoder.features)
    else:
        network = images.nature if kind == "nature" else images.impala

        def convolved(convolutions: PyTree, x: Array) -> Array:
            return network(style, convolutions, layers.as_float(style, x, part.high))

        x = images.a_few_at_a_time(convolved, params["conv"], x)
    for layer in params["dense"]:
        x = layers.activate(style, layer, layers.product(style, layer["kernel"], x))
    return x


def prepare(style: Style, encoder: Encoder, params: PyTree) -> PyTree:
    """The parameters with kernels and tables in the form that :func:`apply` uses them."""
    if encoder.kind == "conv":
        wide = layers.wide_kernel(style, encoder.part.shape, params["conv"])
        params = params | {"conv": wide}

    def cast(node: PyTree) -> PyTree:
        name = "kernel" if layers.is_layer(node) else "table"
        return node | {name: node[name].astype(style.precision)}

    def kernel_or_table(node: PyTree) -> bool:
        return layers.is_layer(node) or (isinstance(node, dict) and "table" in node)

    return jax.tree.map(cast, params, is_leaf=kernel_or_table)


def join(features: list[Array]) -> Array:
    """The features of all parts side by side."""
    return features[0] if len(features) == 1 else jnp.concatenate(features, axis=-1)
