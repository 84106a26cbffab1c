"""LayerNorm with a derivative written by hand, beside the plain one with autodiff's."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from capo.neural.parts import layer_norm
from capo.neural.parts.layer_norm import normalise


def plain(product, bias, scale, shift, relu):
    """The slow twin."""
    x = product.astype(jnp.float32) + bias
    centred = x - x.mean(axis=-1, keepdims=True)
    x = centred / jnp.sqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + 1e-6) * scale + shift
    return (jax.nn.relu(x) if relu else x).astype(product.dtype)


def value_and_gradients(function, given, gradient):
    """Of two seeds at once, as the learner does it."""

    def one(given, gradient):
        value, back = jax.vjp(function, *given)
        return value, *back(gradient)

    return jax.jit(jax.vmap(one))(given, gradient)


@pytest.mark.parametrize("kernel", [False, True], ids=["jnp", "kernel"])
@pytest.mark.parametrize("relu", [True, False], ids=["relu", "linear"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(5, 8, 8, 16), (24, 128), (7, 20)], ids=["conv", "dense", "no kernel for it"])
def test_equals_the_plain_one(shape, dtype, relu, kernel):
    rng = np.random.default_rng(0)
    product, gradient = (jnp.asarray(rng.normal(0.3, 2, (2, *shape)), dtype) for _ in range(2))
    small = [jnp.asarray(rng.normal(mean, 1, (2, shape[-1])), jnp.float32) for mean in (0, 1, 0)]
    given = (product, *small)
    ours = value_and_gradients(lambda *x: normalise(*x, relu, kernel), given, gradient)
    theirs = value_and_gradients(lambda *x: plain(*x, relu), given, gradient)
    assert ours[0].dtype == ours[1].dtype == dtype
    # Long arrays are rounded to the product's format at the end, the sums are not.
    rounding = 1e-2 if dtype == jnp.bfloat16 else 1e-5
    for index, (mine, twin) in enumerate(zip(ours, theirs, strict=True)):
        mine, twin = (np.asarray(x, np.float32) for x in (mine, twin))
        np.testing.assert_allclose(mine, twin, rtol=rounding if index < 2 else 1e-4, atol=1e-4 if index else 1e-5)


@pytest.mark.parametrize("kernel", [False, True], ids=["jnp", "kernel"])
def test_numbers_far_from_zero_keep_their_deviation(kernel):
    """The variance is that of centred numbers, not a difference of large ones."""
    x = jnp.asarray([[1e4, 1e4 + 1, 1e4 + 2, 1e4 + 3] * 4] * 8, jnp.float32)
    ones, zeros = jnp.ones(16), jnp.zeros(16)
    result = normalise(x, zeros, ones, zeros, False, kernel)
    np.testing.assert_allclose(result[0, :4], np.array([-1.5, -0.5, 0.5, 1.5]) / np.sqrt(1.25), rtol=1e-3)


@pytest.mark.parametrize("shape", [(32, 21, 8, 8, 16), (32, 21, 128), (40, 512), (8, 16)])
def test_the_kernels_are_such_as_a_gpu_takes(shape, monkeypatch):
    """The interpreter of the other tests takes more than a GPU's compiler does."""
    monkeypatch.setattr(layer_norm, "kernels_run_here", lambda: True)
    product = jax.ShapeDtypeStruct((10, *shape), jnp.bfloat16)
    small = jax.ShapeDtypeStruct((10, shape[-1]), jnp.float32)

    def there_and_back(*given):
        value, back = jax.vjp(jax.vmap(lambda *x: normalise(*x, True, True)), *given)
        return value, back(value)

    unchecked = [export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]
    program = export.export(jax.jit(there_and_back), platforms=["cuda"], disabled_checks=unchecked)
    text = program(product, small, small, small).mlir_module()
    assert text.count("__gpu$xla.gpu.triton") == 2  # one each way


@pytest.mark.parametrize(
    ("platform", "capability", "runs"),
    [
        ("gpu", "9.0", True),
        ("gpu", "8.0", True),
        ("gpu", "7.5", False),
        ("gpu", "gfx942", False),
        ("cpu", None, False),
    ],
)
def test_kernels_run_on_newer_nvidia_gpus_only(platform, capability, runs, monkeypatch):
    device = SimpleNamespace(platform=platform, compute_capability=capability)
    monkeypatch.setattr(jax, "local_devices", lambda **_: [device])
    assert layer_norm.kernels_run_here() is runs


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ((6720, 16), 64),
        ((4096, 16), 256),
        ((32, 128), 32),
        ((64, 1024), 0),
        ((7, 16), 0),
        ((64, 8), 0),
        ((0, 16), 0),
    ],
)
def test_rows_of_a_block_are_a_power_of_two_that_divides_them(shape, rows):
    assert layer_norm._rows(jnp.zeros(shape)) == rows
