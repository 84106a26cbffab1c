"""The networks compute what they say."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capo.errors import CapoError
from capo.neural.algorithms.ncapo import NCAPOConfig
from capo.neural.algorithms.settings import override
from capo.neural.parts import layers, networks


def make(shape=(10, 10, 4), precision="float32", **settings):
    spec = networks.spec_for(override(NCAPOConfig(width=32), settings), shape, 3)
    spec = dataclasses.replace(spec, precision=precision)
    return spec, networks.init(spec, np.random.default_rng(0))


def test_the_matrix_product_is_the_convolution():
    spec, params = make()
    layer = params["actor"]["body"]["conv"]
    x = jax.random.normal(jax.random.PRNGKey(1), (5, 10, 10, 4))
    kernel = layer["kernel"].reshape(3, 3, 4, 16)
    expected = jax.nn.relu(
        jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        + layer["bias"]
    )
    windows = networks.inputs(spec, x).x
    for given in (layer, networks.prepare(spec, params)["actor"]["body"]["conv"]):
        ours = layers.convolve_grid(spec, (10, 10, 4), given, windows, 16).reshape(expected.shape)
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_no_convolution_is_compiled_under_vmap():
    spec, _ = make()
    params = jax.tree.map(lambda *x: jnp.stack(x), *[make()[1] for _ in range(2)])
    obs = jnp.zeros((2, 6, 10, 10, 4), bool)
    program = jax.jit(jax.vmap(lambda p, o: networks.logits_and_q(spec, p, o))).lower(params, obs).as_text()
    assert "convolution" not in program
    assert "dot_general" in program


@pytest.mark.parametrize("shape", [(7,), (10, 10, 4)])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("norm", [True, False])
def test_shapes_and_a_first_policy_near_uniform(shape, shared, norm):
    spec, params = make(shape, shared_trunk=shared, layer_norm=norm)
    obs = jax.random.normal(jax.random.PRNGKey(2), (2, 5, *shape))
    logits, q, features = networks.logits_and_q(spec, params, obs)
    assert logits.shape == q.shape == (2, 5, 3)
    assert features.shape == (2, 5, 32)
    np.testing.assert_allclose(jax.nn.softmax(logits), 1 / 3, atol=0.05)
    assert float(jnp.abs(q).max()) > 0.05
    np.testing.assert_allclose(networks.outputs(spec, networks.select(params, "critic"), obs), q, atol=1e-6)
    np.testing.assert_allclose(networks.outputs(spec, networks.select(params, "actor"), obs), logits, atol=1e-6)
    assert ("body" in params) == shared


@pytest.mark.parametrize("shape", [(7,), (10, 10, 4), (5, 20, 2)], ids=["vector", "grid", "wide grid"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_prepared_networks_and_inputs_give_the_same(shape, precision):
    spec, params = make(shape, layer_norm=True, precision=precision)
    obs = jax.random.bernoulli(jax.random.PRNGKey(4), 0.3, (2, 5, *shape))
    plain = networks.logits_and_q(spec, params, obs)
    prepared = networks.logits_and_q(spec, networks.prepare(spec, params), networks.inputs(spec, obs))
    jax.tree.map(np.testing.assert_array_equal, plain, prepared)


def test_layer_norm_makes_the_features_independent_of_the_input_scale():
    spec, params = make((7,), layer_norm=True, shared_trunk=True)
    obs = jax.random.normal(jax.random.PRNGKey(3), (4, 7))
    features = [networks.logits_and_q(spec, params, scale * obs)[2] for scale in (1.0, 100.0)]
    np.testing.assert_allclose(features[0], features[1], atol=1e-3)


def test_kernels_are_orthogonal():
    _, params = make((7,))
    kernel = params["actor"]["body"]["dense"][1]["kernel"]
    np.testing.assert_allclose(kernel.T @ kernel, 2 * jnp.eye(32), atol=1e-4)


def test_bytes_are_scaled_and_booleans_are_not():
    spec, params = make((7,))
    body = params["critic"]["body"]
    ones = networks.body(spec, body, jnp.ones((1, 7)))
    np.testing.assert_allclose(networks.body(spec, body, jnp.full((1, 7), 255, jnp.uint8)), ones, atol=1e-6)
    np.testing.assert_allclose(networks.body(spec, body, jnp.ones((1, 7), bool)), ones, atol=1e-6)


def test_bfloat16_is_close_and_returns_float32():
    spec, params = make()
    low, _ = make(precision="bfloat16")
    obs = jax.random.bernoulli(jax.random.PRNGKey(4), 0.3, (6, 10, 10, 4))
    full, half = (networks.logits_and_q(s, params, obs)[1] for s in (spec, low))
    assert half.dtype == jnp.float32
    np.testing.assert_allclose(full, half, atol=0.1)
    assert not np.array_equal(full, half)


def test_conv_on_vectors_is_refused():
    with pytest.raises(CapoError, match="network='mlp'"):
        make((7,), network="conv")


def test_rounded_products_are_noticed(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not layers.products_are_rounded()

    def rounded(x, y):
        return x.astype(jnp.bfloat16) @ y.astype(jnp.bfloat16)

    monkeypatch.setattr(jnp, "matmul", rounded)
    assert layers.products_are_rounded()
