"""Encoders of the parts of an observation, against plain slow twins."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capo.envs.layout import MASK, Layout, Part
from capo.errors import CapoError
from capo.neural.algorithms.ncapo import NCAPOConfig
from capo.neural.algorithms.settings import override
from capo.neural.parts import encoders, images, layers, networks

SHAPES = [(36, 36, 1), (50, 41, 3)]


def make(parts, precision="float32", layout=None, **settings):
    spec = networks.spec_for(override(NCAPOConfig(width=24, layer_norm=False), settings), parts, 3)
    spec = dataclasses.replace(spec, precision=precision, layout=layout)
    return spec, networks.init(spec, np.random.default_rng(0))


def convolution(x, kernel, stride, padding="VALID"):
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def unblocked(kernel, size, stride, channels):
    """A kernel whose rows stand for blocks of pixels, as one whose rows stand for pixels."""
    blocks = size // stride
    six = kernel.reshape(blocks, blocks, stride, stride, channels, -1)
    return six.transpose(0, 2, 1, 3, 4, 5).reshape(size, size, channels, -1)


def slow_nature(convolutions, x):
    for (size, stride, _), layer in zip(images.NATURE, convolutions, strict=True):
        kernel = unblocked(layer["kernel"], size, stride, x.shape[-1])
        x = jax.nn.relu(convolution(x, kernel, stride) + layer["bias"])
    return x.reshape(len(x), -1)


def slow_impala(stages, x):
    def conv(layer, x):
        return convolution(x, layer["kernel"].reshape(3, 3, x.shape[-1], -1), 1, "SAME") + layer["bias"]

    for stage in stages:
        x = conv(stage["conv"], x)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for first, second in stage["blocks"]:
            x = x + conv(second, jax.nn.relu(conv(first, jax.nn.relu(x))))
    return jax.nn.relu(x).reshape(len(x), -1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("network", ["nature", "impala"])
@pytest.mark.parametrize("n", [2, images.FEW + 3])  # at once, and a few at a time with some left over
def test_large_images_go_through_the_convolutions_of_the_papers(n, shape, network):
    spec, params = make((Part("", shape, "uint8"),), network=network)
    obs = np.random.default_rng(1).integers(0, 256, (n, *shape), np.uint8)
    body = params["critic"]["body"]
    (encoder,) = spec.encoders
    slow = {"nature": slow_nature, "impala": slow_impala}[network]

    def twin(body):
        x = slow(body["parts"][0]["conv"], obs / np.float32(255))
        layer = body["dense"][0]
        return jax.nn.relu(x @ layer["kernel"] + layer["bias"])

    def ours(body):
        return networks.body(spec, body, obs)

    def with_gradient(function):
        def loss(body):
            features = function(body)
            return jnp.sum(jnp.sin(features)), features

        return jax.jit(jax.grad(loss, has_aux=True))(body)

    assert spec.n_flat == encoder.n_outputs
    (grads, features), (slow_grads, slow_features) = with_gradient(ours), with_gradient(twin)
    assert features.shape == (n, 24)
    np.testing.assert_allclose(features, slow_features, atol=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-4 * n, rtol=2e-3), grads, slow_grads)


def test_nature_has_the_published_sizes():
    spec, params = make((Part("", (84, 84, 4), "uint8"),), network="auto", width=512, shared_trunk=True)
    kernels = [layer["kernel"].shape for layer in params["body"]["parts"][0]["conv"]]
    assert kernels == [(256, 32), (512, 64), (576, 64)]
    assert (spec.encoders[0].kind, spec.n_flat, spec.n_features) == ("nature", 3136, 512)
    counted = sum(np.size(leaf) for leaf in jax.tree.leaves(params["body"]))
    assert counted == 8224 + 32832 + 36928 + 3136 * 512 + 512


def test_no_convolution_is_compiled_under_vmap_for_large_images():
    for network in ("nature", "impala"):
        spec, params = make((Part("", (36, 36, 2), "uint8"),), network=network)
        seeds = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), params)
        obs = jnp.zeros((2, images.FEW + 1, 36, 36, 2), jnp.uint8)
        loss = jax.grad(lambda p, o, spec=spec: networks.logits_and_q(spec, p, o)[1].sum())
        program = jax.jit(jax.vmap(loss)).lower(seeds, obs).as_text()
        assert "stablehlo.convolution" not in program
        assert "select_and_scatter" not in program


LAYOUT = Layout(
    (
        Part("image", (8, 7, 3), "uint8", high=9),
        Part("vector", (5,), "float32"),
        Part("where", (2,), "int32", classes=3000),
        Part("keys", (11,), "bool"),
        Part(MASK, (3,), "bool"),
    )
)


def packed(lead=(4, 6)):
    rng = np.random.default_rng(0)
    values = {
        "image": rng.integers(0, 10, (*lead, 8, 7, 3), np.uint8),
        "vector": rng.standard_normal((*lead, 5)).astype(np.float32),
        "where": rng.integers(0, 3000, (*lead, 2)).astype(np.int32),
        "keys": rng.random((*lead, 11)) < 0.5,
        MASK: rng.random((*lead, 3)) < 0.5,
    }
    return values, jnp.asarray(LAYOUT.pack(values))


def test_every_part_has_its_own_encoder():
    spec, params = make(LAYOUT.seen, layout=LAYOUT)
    values, rows = packed()
    body = params["actor"]["body"]
    grid, _, table, _ = body["parts"]
    x = values["image"].reshape(-1, 8, 7, 3) / np.float32(9)
    kernel = grid["conv"]["kernel"].reshape(3, 3, 3, -1)
    image = jax.nn.relu(convolution(x, kernel, 1) + grid["conv"]["bias"]).reshape(24, -1)
    image = jax.nn.relu(image @ grid["dense"][0]["kernel"] + grid["dense"][0]["bias"])
    embedded = table["table"][values["where"].reshape(-1, 2)].reshape(24, 2 * encoders.EMBEDDING)
    vector, keys = values["vector"].reshape(24, 5), values["keys"].reshape(24, 11).astype(np.float32)
    joined = np.concatenate([image, vector, embedded, keys], axis=-1)
    assert [one.kind for one in spec.encoders] == ["conv", "vector", "embedding", "vector"]
    assert (joined.shape[1], spec.n_dense) == (spec.n_flat, 1)
    expected = jax.nn.relu(joined @ body["dense"][0]["kernel"] + body["dense"][0]["bias"]).reshape(4, 6, 24)
    np.testing.assert_allclose(networks.body(spec, body, rows), expected, atol=1e-5)
    text = "image (8x7x3: conv) + vector (5 numbers) + where (3,000 categories: embedding) + keys (11 numbers)"
    assert spec.describe() == text


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("norm", [False, True])
def test_prepared_parts_and_shared_inputs_give_the_same(precision, norm):
    spec, params = make(LAYOUT.seen, precision, LAYOUT, layer_norm=norm)
    _, rows = packed()
    shared = networks.inputs(spec, rows)
    plain = networks.logits_and_q(spec, params, rows)
    prepared = networks.logits_and_q(spec, networks.prepare(spec, params), shared)
    jax.tree.map(np.testing.assert_array_equal, plain, prepared)
    assert shared.n_steps == 6
    later = networks.logits_and_q(spec, params, shared.steps(2, 5))
    tolerance = 1e-5 if precision == "float32" else 0.1
    np.testing.assert_allclose(later[1], plain[1][:, 2:5], atol=tolerance)


@pytest.mark.parametrize("network", ["nature", "impala"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_prepared_images_give_the_same(network, precision):
    spec, params = make((Part("", (40, 40, 2), "uint8"),), precision, network=network)
    obs = np.random.default_rng(1).integers(0, 256, (3, 40, 40, 2), np.uint8)
    both = jax.jit(networks.logits_and_q, static_argnums=0)
    plain = both(spec, params, obs)
    prepared = both(spec, networks.prepare(spec, params), networks.inputs(spec, obs))
    tolerance = 1e-5 if precision == "float32" else 0.05  # fused differently, so rounded differently
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance), plain, prepared)
    assert plain[1].dtype == jnp.float32


@pytest.mark.parametrize(
    "parts", [LAYOUT.seen, (Part("", (36, 40, 3), "uint8"),), (Part("a", (), "int32", classes=2000),)]
)
@pytest.mark.parametrize("network", ["auto", "mlp"])
def test_shapes_are_known_without_making_anything(parts, network):
    spec, params = make(parts, network=network, layer_norm=True)
    counted = networks.init(spec, layers.ShapesOnly())
    assert jax.tree.map(np.shape, params) == jax.tree.map(lambda leaf: leaf.shape, counted)


def test_auto_chooses_by_size():
    kinds = {
        (10, 10, 4): "conv",
        (35, 60, 3): "conv",
        (36, 36, 1): "nature",
        (84, 84, 4): "nature",
        (7,): "vector",
        (2, 9, 1): "vector",
    }
    for shape, kind in kinds.items():
        (chosen,) = encoders.choose("auto", (Part("", shape, "uint8"),), 16, 24)
        assert chosen.kind == kind


@pytest.mark.parametrize(
    ("network", "shape", "message"),
    [
        ("nature", (20, 20, 3), "at least 36x36"),
        ("nature", (7,), "network='mlp'"),
        ("impala", (7,), "network='mlp'"),
    ],
)
def test_networks_that_do_not_fit_are_refused(network, shape, message):
    with pytest.raises(CapoError, match=message):
        make((Part("", shape, "uint8"),), network=network)


def test_auto_precision_needs_parts_that_are_exact(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert networks.precision("auto", LAYOUT.seen) == "float32"
    exact = tuple(part for part in LAYOUT.seen if part.name != "vector")
    assert networks.precision("auto", exact) == "bfloat16"
