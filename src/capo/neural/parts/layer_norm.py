"""LayerNorm and relu after a matrix product, in as few passes over memory as possible.

On an accelerator the products of these small networks take less time than what follows them: autodiff writes
float32 copies of bfloat16 arrays and reads them again. So the derivative is written by hand, arrays as long as the
batch stay in the product's dtype, and only the product itself is kept for the backward pass. On a GPU each pass is
one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from capo.arrays import Array

Ref: TypeAlias = Any
"""A reference to a block in memory, as Pallas gives them to kernels."""
EPSILON = 1e-6
BLOCK = 4096  # numbers per GPU program


class Operands(NamedTuple):
    """What the result is computed from, and all that is kept for the backward pass."""

    product: Array  # (..., F), bfloat16 or float32
    bias: Array  # (F,) float32, like the next two
    scale: Array
    shift: Array


def kernels_run_here() -> bool:
    """Whether XLA compiles Triton kernels for the device in use: NVIDIA, compute capability 8.0 or later."""
    chosen = getattr(jax.config, "jax_default_device", None)
    if isinstance(chosen, str):
        chosen = jax.local_devices(backend=chosen)[0]
    device = chosen or jax.local_devices()[0]
    try:
        return bool(device.platform == "gpu" and float(device.compute_capability) >= 8.0)
    except (AttributeError, TypeError, ValueError):  # another vendor's
        return False


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def normalise(product: Array, bias: Array, scale: Array, shift: Array, relu: bool, kernel: bool) -> Array:
    """``relu(LayerNorm(product + bias))``: normalised over the last axis in float32, in the product's dtype.

    Args:
        product: (..., F), bfloat16 or float32.
        bias: (F,) float32.
        scale: (F,) float32.
        shift: (F,) float32.
        relu: whether to apply relu.
        kernel: whether to use the GPU kernels where the shape allows it.
    """
    return _forward(product, bias, scale, shift, relu, kernel)[0]


def _forward(
    product: Array, bias: Array, scale: Array, shift: Array, relu: bool, kernel: bool
) -> tuple[Array, Operands]:
    given = Operands(product, bias, scale, shift)
    if kernel and (rows := _rows(product)):
        (result,) = _call(partial(_forward_kernel, relu=relu), rows, [product], given)
    else:
        result = _result(given, relu).astype(product.dtype)
    return result, given


def _backward(relu: bool, kernel: bool, given: Operands, gradient: Array) -> tuple[Array, Array, Array, Array]:
    product = given.product
    if kernel and (rows := _rows(product)):
        long = [product, gradient]
        to_product, sums = _call(partial(_backward_kernel, relu=relu), rows, long, given, sums=True)
        to_bias, to_scale, to_shift = sums[:, :3].sum(axis=0)
    else:
        derivatives = _derivatives(given, gradient, relu)
        to_product = derivatives[0].astype(product.dtype)
        batch = tuple(range(product.ndim - 1))
        to_bias, to_scale, to_shift = (each.sum(axis=batch) for each in derivatives)
    return to_product, to_bias, to_scale, to_shift


normalise.defvjp(_forward, _backward)


def _normal(given: Operands) -> tuple[Array, Array]:
    """(product + bias - mean) / deviation, and 1 / deviation; float32."""
    n = given.product.shape[-1]
    x = given.product.astype(jnp.float32) + given.bias
    x = x - jnp.sum(x, axis=-1, keepdims=True) / n
    inverse = jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) / n + EPSILON)
    return x * inverse, inverse


def _result(given: Operands, relu: bool) -> Array:
    y = _normal(given)[0] * given.scale + given.shift
    return jnp.maximum(y, 0.0) if relu else y


def _derivatives(given: Operands, gradient: Array, relu: bool) -> tuple[Array, Array, Array]:
    """Gradients of product + bias, scale and shift, (..., F) float32 each, before the sum over the batch."""
    n = gradient.shape[-1]
    normal, inverse = _normal(given)
    above = gradient.astype(jnp.float32)
    if relu:
        above = jnp.where(normal * given.scale + given.shift > 0, above, 0.0)
    inner = above * given.scale
    mean = jnp.sum(inner, axis=-1, keepdims=True) / n
    along = jnp.sum(inner * normal, axis=-1, keepdims=True) / n
    return (inner - mean - normal * along) * inverse, above * normal, above


def _rows(product: Array) -> int:
    """Rows per GPU program: a power of two that divides their number; 0 if none fits."""
    n = product.shape[-1]
    rows = product.size // n
    fitting = min(rows & -rows, BLOCK // n)
    return fitting if n >= 16 and n & (n - 1) == 0 and fitting >= 8 else 0


def _call(
    kernel: Callable[..., None], rows: int, long: list[Array], given: Operands, sums: bool = False
) -> list[Array]:
    """Run a kernel on blocks of rows.

    Args:
        kernel: takes references to blocks (rows, F) of ``long``, to bias, scale and shift, and to its results.
        rows: per block.
        long: (..., F) arrays.
        given: the product, for its shape, and the three small arrays.
        sums: whether there is a second result.

    Returns:
        One array like the product, and with ``sums`` a float32 array (blocks, 4, F): three are used, but a block's
        size must be a power of two.
    """
    from jax.experimental import pallas as pl  # slow to import, and only a GPU needs it
    from jax.experimental.pallas import triton

    n = given.product.shape[-1]
    flat = [array.reshape(-1, n) for array in long]
    blocks = flat[0].shape[0] // rows
    block = pl.BlockSpec((rows, n), lambda i: (i, 0))
    lines = pl.BlockSpec((None, 4, n), lambda i: (i, 0, 0))
    whole = pl.BlockSpec((n,), lambda _: (0,))
    partial_sums = jax.ShapeDtypeStruct((blocks, 4, n), jnp.float32)  # type: ignore[no-untyped-call]
    call = pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct(flat[0].shape, flat[0].dtype)] + [partial_sums] * sums,  # type: ignore[no-untyped-call]
        grid=(blocks,),
        in_specs=[block] * len(long) + [whole] * 3,
        out_specs=[block] + [lines] * sums,
        interpret=not kernels_run_here(),  # for tests
        compiler_params=triton.CompilerParams(num_warps=4),
    )
    result, *rest = call(*flat, *given[1:])
    return [result.reshape(given.product.shape), *rest]


def _forward_kernel(product: Ref, bias: Ref, scale: Ref, shift: Ref, result: Ref, *, relu: bool) -> None:
    given = Operands(product[...], bias[...][None], scale[...][None], shift[...][None])
    result[...] = _result(given, relu).astype(result.dtype)


def _backward_kernel(
    product: Ref, gradient: Ref, bias: Ref, scale: Ref, shift: Ref, to_product: Ref, sums: Ref, *, relu: bool
) -> None:
    given = Operands(product[...], bias[...][None], scale[...][None], shift[...][None])
    derivatives = _derivatives(given, gradient[...], relu)
    to_product[...] = derivatives[0].astype(to_product.dtype)
    for i, each in enumerate(derivatives):
        sums[i, :] = jnp.sum(each, axis=0)
