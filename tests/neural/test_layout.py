"""Observations of several parts as one row of bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capo.envs.layout import MASK, Layout, Part

LAYOUT = Layout(
    (
        Part("image", (5, 4, 3), "uint8"),
        Part("vector", (7,), "float32"),
        Part("where", (), "int32", classes=1000),
        Part("keys", (11,), "bool"),
        Part(MASK, (9,), "bool"),
    )
)


def values(lead=(2, 3)):
    rng = np.random.default_rng(0)
    floats = rng.standard_normal((*lead, 7)).astype(np.float32)
    floats[0, 0, :4] = [np.nan, np.inf, -0.0, np.float32(1e-45)]
    return {
        "image": rng.integers(0, 256, (*lead, 5, 4, 3), np.uint8),
        "vector": floats,
        "where": rng.integers(0, 1000, lead).astype(np.int32),
        "keys": rng.random((*lead, 11)) < 0.5,
        MASK: rng.random((*lead, 9)) < 0.5,
    }


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_every_bit_comes_back(convert):
    given = values()
    packed = LAYOUT.pack({name: convert(value) for name, value in given.items()})
    assert packed.shape == (2, 3, LAYOUT.n_bytes)
    assert packed.dtype == np.uint8
    assert LAYOUT.n_bytes == 60 + 28 + 4 + 2 + 2
    back = LAYOUT.unpack(packed)
    assert list(back) == [part.name for part in LAYOUT.parts]
    for part in LAYOUT.parts:
        found = np.asarray(back[part.name])
        assert found.dtype == np.dtype(part.dtype)
        assert found.tobytes() == given[part.name].tobytes()
    np.testing.assert_array_equal(np.asarray(LAYOUT.mask(packed)), given[MASK])


def test_numpy_and_jax_pack_the_same_bytes_also_under_jit_and_vmap():
    given = values()
    plain = LAYOUT.pack(given)
    jitted = jax.jit(jax.vmap(LAYOUT.pack))({name: jnp.asarray(value) for name, value in given.items()})
    np.testing.assert_array_equal(np.asarray(jitted), plain)
    unpacked = jax.jit(LAYOUT.unpack)(plain)
    np.testing.assert_array_equal(np.asarray(unpacked["vector"]), given["vector"])


def test_the_networks_do_not_see_the_mask():
    assert LAYOUT.masked
    assert [part.name for part in LAYOUT.seen] == ["image", "vector", "where", "keys"]
    without = Layout(LAYOUT.seen)
    assert not without.masked
    with pytest.raises(KeyError):
        without.mask(np.zeros((1, without.n_bytes), np.uint8))
