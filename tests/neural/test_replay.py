"""The replay keeps what it should, returns it unchanged and says its size."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capo.neural.parts import replay
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.replay import Rollout


def make_spec(dtype=np.bool_, shape=(3, 5), truncates=False, **settings):
    return replay.spec_for(shape, dtype, truncates, n_envs=4, length=3, capacity=10, **settings)


def rollouts_of(spec, iteration):
    """Rollouts that carry their iteration in every reward."""
    rng = np.random.default_rng(iteration)
    rows = (spec.n_envs, spec.length)
    obs = rng.integers(0, 2, (spec.n_envs, spec.length + spec.successors, *spec.observation_shape))
    return Rollout(
        obs=jnp.asarray(obs.astype(spec.observation_dtype)),
        action=jnp.zeros(rows, jnp.int32),
        reward=jnp.full(rows, float(iteration)),
        terminated=jnp.zeros(rows, bool),
        truncated=jnp.zeros(rows, bool),
        log_mu=jnp.zeros(rows),
    )


def fill(spec, iterations):
    buffer = replay.empty(spec)
    for i in range(iterations):
        new = rollouts_of(spec, i)
        buffer = replay.add(spec, buffer, new._replace(obs=replay.pack(spec, new.obs)), Iteration.number(i))
    return buffer


def sampled_iterations(spec, buffer, iteration):
    index = replay.draw(spec, jax.random.PRNGKey(0), Iteration.number(iteration), (500,))
    batch = replay.take(spec, buffer, index)
    return set(np.asarray(batch.reward)[:, 0].astype(int).tolist())


def test_capacity_is_rounded_up_to_whole_iterations():
    assert make_spec().capacity == 12


@pytest.mark.parametrize(("stored", "expected"), [(1, {0}), (2, {0, 1}), (3, {0, 1, 2}), (5, {2, 3, 4})])
def test_samples_exactly_what_the_ring_holds(stored, expected):
    spec = make_spec()
    assert sampled_iterations(spec, fill(spec, stored), stored - 1) == expected


def test_clearing_forgets_older_iterations():
    spec = make_spec(clear_every=2)
    assert sampled_iterations(spec, fill(spec, 3), 2) == {2}
    assert sampled_iterations(spec, fill(spec, 4), 3) == {2, 3}


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float32])
@pytest.mark.parametrize("truncates", [False, True])
def test_observations_come_back_unchanged(dtype, truncates):
    spec = make_spec(dtype, truncates=truncates)
    new = rollouts_of(spec, 7)
    back = replay.unpack(spec, replay.pack(spec, new.obs))
    assert back.dtype == spec.observation_dtype
    np.testing.assert_array_equal(back, new.obs)


def test_announced_size_is_the_real_one_and_bits_are_bits():
    spec = make_spec(np.bool_, (10, 10, 4))
    buffer = replay.empty(spec)
    assert spec.nbytes == sum(leaf.nbytes for leaf in buffer)
    assert buffer.obs.nbytes == 12 * 4 * 50  # 400 booleans are 50 bytes
    assert make_spec(np.bool_, (10, 10, 4), truncates=True).nbytes > spec.nbytes
