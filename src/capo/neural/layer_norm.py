"""LayerNorm and relu after a matrix product, as few passes over memory as there can be.

On an accelerator the products of these small networks take less time than what is done to their results: autodiff
writes float32 copies of bfloat16 arrays and reads them again. So the derivative is written by hand, arrays that
are as long as the batch stay in the products' number format, and nothing but the product itself is kept for the
way back. On a GPU each way is one kernel.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

Array = Any

EPSILON = 1e-6
BLOCK = 4096  # numbers that one GPU program works on


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def normalise(product: Array, bias: Array, scale: Array, shift: Array, relu: bool, kernel: bool) -> Array:
    """``relu(LayerNorm(product + bias))``: normalised over the last axis, in float32, given back as it came.

    Args:
        product: (..., F), bfloat16 or float32.
        bias, scale, shift: (F,) float32.
        relu: False leaves negative numbers.
        kernel: whether to use the GPU kernels.
    """
    return _forward(product, bias, scale, shift, relu, kernel)[0]


def _forward(product: Array, bias: Array, scale: Array, shift: Array, relu: bool, kernel: bool) -> tuple[Array, Any]:
    given = (product, bias, scale, shift)
    rows = _rows(product) if kernel else 0
    if rows:
        flat = product.reshape(-1, product.shape[-1])
        result = _call(partial(_forward_kernel, relu=relu), rows, [flat], given[1:], [flat.dtype], 0)[0]
        return result.reshape(product.shape), given
    return _result(*_normal(product, bias)[:1], scale, shift, relu).astype(product.dtype), given


def _backward(relu: bool, kernel: bool, given: Any, gradient: Array) -> tuple[Array, Array, Array, Array]:
    product, bias, scale, shift = given
    n = product.shape[-1]
    rows = _rows(product) if kernel else 0
    if rows:
        flat = [x.reshape(-1, n) for x in (product, gradient)]
        way_back = partial(_backward_kernel, relu=relu)
        to_product, *sums = _call(way_back, rows, flat, given[1:], [product.dtype], 3)
        return (to_product.reshape(product.shape), *(x.sum(axis=0) for x in sums))
    to_product, to_scale, to_shift = _derivative(product, gradient, bias, scale, shift, relu)
    batch = tuple(range(product.ndim - 1))
    sums = [x.sum(axis=batch) for x in (to_product, to_scale, to_shift)]
    return to_product.astype(product.dtype), *sums


normalise.defvjp(_forward, _backward)


def _normal(product: Array, bias: Array) -> tuple[Array, Array]:
    """(product + bias - mean) / deviation, and 1 / deviation."""
    n = product.shape[-1]
    x = product.astype(jnp.float32) + bias
    x = x - jnp.sum(x, axis=-1, keepdims=True) / n
    inverse = jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) / n + EPSILON)
    return x * inverse, inverse


def _result(normal: Array, scale: Array, shift: Array, relu: bool) -> Array:
    y = normal * scale + shift
    return jnp.maximum(y, 0.0) if relu else y


def _derivative(
    product: Array, gradient: Array, bias: Array, scale: Array, shift: Array, relu: bool
) -> tuple[Array, Array, Array]:
    """float32 derivatives with respect to the product, and each row's part of those to scale and shift."""
    n = product.shape[-1]
    normal, inverse = _normal(product, bias)
    above = gradient.astype(jnp.float32)
    if relu:
        above = jnp.where(normal * scale + shift > 0, above, 0.0)
    inner = above * scale
    mean = jnp.sum(inner, axis=-1, keepdims=True) / n
    along = jnp.sum(inner * normal, axis=-1, keepdims=True) / n
    return (inner - mean - normal * along) * inverse, above * normal, above


def _rows(product: Array) -> int:
    """Rows for one GPU program: a power of two that divides their number; 0 if there is no good one."""
    n = product.shape[-1]
    rows = product.size // n
    fitting = min(rows & -rows, BLOCK // n if n else 0)
    return fitting if n >= 16 and n & (n - 1) == 0 and fitting >= 8 else 0


def _call(kernel: Any, rows: int, arrays: list[Array], small: Any, dtypes: list[Any], sums: int) -> list[Array]:
    """A kernel on blocks of rows of (N, F) arrays; also gives ``sums`` arrays (N / rows, F) of float32."""
    total, n = arrays[0].shape
    block = pl.BlockSpec((rows, n), lambda i: (i, 0))
    whole = pl.BlockSpec((n,), lambda i: (0,))
    one = pl.BlockSpec((None, n), lambda i: (i, 0))
    shapes = [jax.ShapeDtypeStruct((total, n), dtype) for dtype in dtypes]
    shapes += [jax.ShapeDtypeStruct((total // rows, n), jnp.float32)] * sums
    call = pl.pallas_call(
        kernel,
        out_shape=shapes,
        grid=(total // rows,),
        in_specs=[block] * len(arrays) + [whole] * len(small),
        out_specs=[block] * len(dtypes) + [one] * sums,
        interpret=jax.default_backend() == "cpu",
        **_TRITON,
    )
    result: list[Array] = call(*arrays, *small)
    return result


def _forward_kernel(product: Any, bias: Any, scale: Any, shift: Any, result: Any, *, relu: bool) -> None:
    normal, _ = _normal(product[...], bias[...][None])
    result[...] = _result(normal, scale[...][None], shift[...][None], relu).astype(result.dtype)


def _backward_kernel(
    product: Any,
    gradient: Any,
    bias: Any,
    scale: Any,
    shift: Any,
    to_product: Any,
    to_bias: Any,
    to_scale: Any,
    to_shift: Any,
    *,
    relu: bool,
) -> None:
    small = (x[...][None] for x in (bias, scale, shift))
    d_product, d_scale, d_shift = _derivative(product[...], gradient[...], *small, relu)
    to_product[...] = d_product.astype(to_product.dtype)
    to_bias[...] = jnp.sum(d_product, axis=0)
    to_scale[...] = jnp.sum(d_scale, axis=0)
    to_shift[...] = jnp.sum(d_shift, axis=0)


try:
    from jax.experimental.pallas import triton

    _TRITON: dict[str, Any] = {"compiler_params": triton.CompilerParams(num_warps=4)}
except ImportError:
    _TRITON = {}
