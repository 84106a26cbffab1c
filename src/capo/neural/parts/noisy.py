"""Noisy layers: weights with a learned amount of noise, so that exploration is learned too.

A noisy layer is a dense layer with two extra arrays, ``kernel_sigma`` and ``bias_sigma``. With factorised noise
f(e_in) f(e_out), f(e) = sign(e) sqrt(|e|), e normal:

    kernel + kernel_sigma * outer(f(e_in), f(e_out)),   bias + bias_sigma * f(e_out)

:func:`perturb` turns them into plain layers, which the usual networks take; without it they act on the means.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, PyTree
from capo.neural.parts.networks import Layer, Params, ShapesOnly, shapes


def init(rng: np.random.Generator, n_in: int, n_out: int, sigma: float) -> Layer:
    """A noisy layer: uniform means within 1 / sqrt(n_in), and ``sigma / sqrt(n_in)`` of noise."""
    if isinstance(rng, ShapesOnly):
        return shapes(kernel=(n_in, n_out), bias=(n_out,), kernel_sigma=(n_in, n_out), bias_sigma=(n_out,))
    bound = 1 / np.sqrt(n_in)
    return {
        "kernel": rng.uniform(-bound, bound, (n_in, n_out)).astype(np.float32),
        "bias": rng.uniform(-bound, bound, n_out).astype(np.float32),
        "kernel_sigma": np.full((n_in, n_out), sigma * bound, np.float32),
        "bias_sigma": np.full(n_out, sigma * bound, np.float32),
    }


def draw(params: Params, key: Array, shape: tuple[int, ...]) -> Array:
    """f(e) for ``shape`` draws of all noisy layers: (*shape, n), the n numbers that :func:`perturb` needs.

    All in one call: each call of the generator adds about as much compile time as a layer.
    """
    sizes = [sum(layer["kernel"].shape[-2:]) for layer in _layers(params)[0] if _is_noisy(layer)]
    noise = jax.random.normal(key, (*shape, sum(sizes)))
    return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))


def perturb(params: Params, noise: Array) -> Params:
    """``params`` with one draw of noise (n,) added to its noisy layers, a separate slice for each."""
    layers, structure = _layers(params)
    start, moved = 0, []
    for layer in layers:
        if _is_noisy(layer):
            end = start + sum(layer["kernel"].shape)
            layer, start = _perturb_layer(layer, noise[start:end]), end
        moved.append(layer)
    return jax.tree.unflatten(structure, moved)


def _layers(params: Params) -> tuple[list[PyTree], jax.tree_util.PyTreeDef]:
    return jax.tree.flatten(params, is_leaf=lambda node: isinstance(node, dict) and "kernel" in node)


def _is_noisy(node: PyTree) -> bool:
    return isinstance(node, dict) and "kernel_sigma" in node


def _perturb_layer(layer: Layer, noise: Array) -> Layer:
    n_in = layer["kernel"].shape[0]
    ins, outs = noise[:n_in], noise[n_in:]
    plain = {name: leaf for name, leaf in layer.items() if not name.endswith("_sigma")}
    return plain | {
        "kernel": layer["kernel"] + layer["kernel_sigma"] * jnp.outer(ins, outs),
        "bias": layer["bias"] + layer["bias_sigma"] * outs,
    }
