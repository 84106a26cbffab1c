"""Rollouts that are cut at the end of an episode: what is collected, what is trained on, exact resume."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers_shell import bits

import capo
from capo.neural.algorithms.ncapo import NCAPOAlgorithm, NCAPOConfig
from capo.neural.algorithms.offpac import OffPACAlgorithm, OffPACConfig
from capo.neural.algorithms.registry import learner_for
from capo.neural.parts import normaliser, replay
from capo.neural.parts.replay import Rollout

SMALL = NCAPOConfig(
    horizon=2000, n_envs=8, rollout_length=4, batch_size=8, gradient_steps=2, replay_rollouts=32, width=16,
    network="mlp", rollouts="cut",
)  # fmt: skip
LENGTH = 6  # of an episode


class Counting:
    """Episodes of LENGTH steps; the observation is the episode's number and the steps so far."""

    name, n_actions, truncates = "counting", 3, False
    observation_shape, observation_dtype = (2,), np.float32

    def reset(self, key):
        state = jnp.stack([jax.random.randint(key, (), 0, 1000).astype(jnp.float32), jnp.float32(0)])
        return state, state

    def step(self, key, env_state, action):
        del key, action
        after = env_state + jnp.array([0.0, 1.0])
        return after, after, after[1], after[1] == LENGTH, jnp.bool_(False)


class Truncating(Counting):
    """The same, but the episodes are truncated."""

    truncates = True

    def step(self, key, env_state, action):
        after, obs, reward, ended, _ = super().step(key, env_state, action)
        return after, obs, reward, jnp.bool_(False), ended


def slow_filled(ended):
    """The steps (N, T) up to the first end of each rollout, by a plain loop."""
    filled = np.zeros(ended.shape)
    for i, row in enumerate(ended):
        for t in range(len(row)):
            filled[i, t] = 1.0
            if row[t]:
                break
    return filled


def random_ends(rng, shape=(50, 7)):
    terminated = rng.uniform(size=shape) < 0.15
    return terminated, (rng.uniform(size=shape) < 0.1) & ~terminated


def test_filled_against_a_plain_loop():
    terminated, truncated = random_ends(np.random.default_rng(0))
    blank = jnp.zeros(terminated.shape)
    made = Rollout(blank, blank, blank, jnp.asarray(terminated), jnp.asarray(truncated), blank)
    expected = slow_filled(terminated | truncated)
    np.testing.assert_array_equal(replay.filled(made), expected)
    assert 0.2 < expected.mean() < 0.9


@pytest.mark.parametrize("env", [Counting(), Truncating()], ids=["terminated", "truncated"])
def test_an_environment_waits_for_the_next_rollout(env):
    """Episodes of 6 steps are rollouts of 4 and 2, and the next one begins at the start of an episode."""
    learner = learner_for(env, SMALL, 1)
    state, metrics = learner.run(learner.init([0]), 4)  # exactly fills the replay
    stored = jax.tree.map(lambda leaf: np.asarray(leaf[0]), state.replay)
    steps = stored.obs[:, :4, 1].reshape(4, 8, 4)
    for iteration, first in enumerate([[0, 1, 2, 3], [4, 5, 0, 0], [0, 1, 2, 3], [4, 5, 0, 0]]):
        np.testing.assert_array_equal(steps[iteration], np.tile(first, (8, 1)))
    reward = stored.reward.reshape(4, 8, 4)
    np.testing.assert_array_equal(reward[0, 0], [1, 2, 3, 4])
    np.testing.assert_array_equal(reward[1, 0], [5, 6, 0, 0])
    ends = (stored.terminated | stored.truncated).reshape(4, 8, 4)
    np.testing.assert_array_equal(ends[1, 0], [False, True, False, False])
    assert not ends[0].any()
    np.testing.assert_array_equal(stored.truncated.any(), env.truncates)
    # What an iteration's padding repeats is where the next one begins.
    episodes = stored.obs[..., 0].reshape(4, 8, -1)
    np.testing.assert_array_equal(episodes[1, :, 3], episodes[2, :, 0])
    np.testing.assert_allclose(metrics["filled"][:, 0], [1.0, 0.5, 1.0, 0.5])
    np.testing.assert_allclose(metrics["episodes"][:, 0], [0, 8, 0, 8])
    np.testing.assert_allclose(metrics["episode_length"][1::2, 0], LENGTH)
    np.testing.assert_allclose(metrics["episode_return"][1::2, 0], 21.0)


def test_gymnasium_rollouts_are_cut_and_padded():
    learner = learner_for("CartPole-v1", SMALL.from_dict(SMALL.to_dict() | {"rollout_length": 16}), 1)
    state, metrics = learner.run(learner.init([0]), 4)
    stored = jax.tree.map(lambda leaf: np.asarray(leaf[0]), state.replay)
    filled = np.asarray(replay.filled(stored)) == 1
    ended = (stored.terminated | stored.truncated)[:, :-1].any(axis=1)
    assert 0 < ended.sum() < len(ended)
    assert filled[~ended].all()
    np.testing.assert_array_equal(stored.reward, filled)  # CartPole pays 1 for every step
    np.testing.assert_allclose(metrics["filled"].mean(), filled.mean(), rtol=1e-6)
    for rollout, count in zip(stored.obs, filled.sum(axis=1).astype(int), strict=True):
        # Within an episode, what a step led to is what the next one starts from.
        np.testing.assert_array_equal(rollout[1:count], rollout[16 : 16 + count - 1])
    starts = np.abs(stored.obs[:, 0]).max(axis=1) < 0.05
    assert starts.sum() >= ended.sum()  # after a cut, a rollout begins at the start of an episode


def make_batch(algorithm, rng, batch=6, length=5):
    shape = (batch, length)
    terminated, truncated = random_ends(rng, shape)
    terminated[0, 1] = True
    return Rollout(
        obs=jnp.asarray(rng.normal(size=(batch, 2 * length, *algorithm.network.observation_shape)), jnp.float32),
        action=jnp.asarray(rng.integers(0, algorithm.network.n_actions, shape)),
        reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated),
        log_mu=jnp.full(shape, -1.0),
    )


class Vectors:
    """The shapes of an environment: all that an algorithm needs of one."""

    name, n_actions, truncates = "vectors", 3, True
    observation_shape, observation_dtype = (4,), np.float32


MADE = {
    "ncapo": lambda **more: NCAPOAlgorithm(NCAPOConfig(width=8, **more), Vectors()),
    "offpac": lambda **more: OffPACAlgorithm(OffPACConfig(width=8, **more), Vectors()),
}


def gradient(algorithm, batch, train="both"):
    params = algorithm.init_params(np.random.default_rng(0))
    target = algorithm.init_target(algorithm.init_params(np.random.default_rng(1)))
    return jax.grad(lambda p: algorithm.loss(p, target, batch, 0.01, train), has_aux=True)(params)


@pytest.mark.parametrize("train", ["both", "critic", "actor"])
@pytest.mark.parametrize("name", MADE)
def test_padding_trains_nothing(name, train):
    """Whatever the padding holds, the loss and the gradient are the same; without the cut they are not."""
    rng = np.random.default_rng(0)
    algorithm = MADE[name](rollouts="cut")
    batch = make_batch(algorithm, rng)
    padding = replay.filled(batch) == 0
    assert padding.any()
    rows = jnp.concatenate([padding, padding], axis=1)[..., None]
    other = batch._replace(
        obs=jnp.where(rows, 5.0, batch.obs),
        action=jnp.where(padding, 2, batch.action),
        reward=jnp.where(padding, 100.0, batch.reward),
    )
    (first, logged), (second, again) = gradient(algorithm, batch, train), gradient(algorithm, other, train)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for key in logged:
        np.testing.assert_allclose(logged[key], again[key], rtol=1e-5, err_msg=key)
    crossing = MADE[name]()
    moved = [
        float(jnp.abs(a - b).max())
        for a, b in zip(
            *(jax.tree.leaves(gradient(crossing, given, train)[0]) for given in (batch, other)), strict=True
        )
    ]
    assert max(moved) > 1e-3


@pytest.mark.parametrize("name", MADE)
def test_the_loss_is_the_mean_over_the_rollouts_as_they_are(name):
    """The slow twin: each rollout alone, without its padding; then the mean over all of their steps."""
    algorithm = MADE[name](rollouts="cut")
    batch = make_batch(algorithm, np.random.default_rng(1))
    counts = np.asarray(replay.filled(batch)).sum(axis=1).astype(int)
    grads, logged = gradient(algorithm, batch)
    total: dict[str, float] = {}
    sums = jax.tree.map(jnp.zeros_like, grads)
    for i, count in enumerate(counts):
        length = batch.reward.shape[1]
        alone = Rollout(*(leaf[i : i + 1, :count] for leaf in batch))
        rows = jnp.concatenate([batch.obs[i, :count], batch.obs[i, length : length + count]])
        one, metrics = gradient(MADE[name](), alone._replace(obs=rows[None]))
        sums = jax.tree.map(lambda x, y, n=count: x + n * y, sums, one)
        for key, value in metrics.items():
            total[key] = total.get(key, 0.0) + count * float(value)
    for key, value in total.items():
        np.testing.assert_allclose(logged[key], value / counts.sum(), rtol=1e-4, err_msg=key)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(sums), strict=True):
        np.testing.assert_allclose(a, b / counts.sum(), atol=1e-5)


def test_statistics_of_observations_leave_padding_out():
    rng = np.random.default_rng(0)
    rows, counted = rng.normal(size=(20, 3)), rng.uniform(size=20) < 0.6
    part = normaliser.Part("", (3,), "float32")
    before = normaliser.update(normaliser.start((part,)), {"": jnp.asarray(rng.normal(size=(5, 3)))})
    some = normaliser.update(before, {"": jnp.asarray(rows)}, jnp.asarray(counted, jnp.float32))
    alone = normaliser.update(before, {"": jnp.asarray(rows[counted])})
    for a, b in zip(some[""], alone[""], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_run_in_parts_is_the_same_run(tmp_path):
    settings = {
        "n_envs": 4, "rollout_length": 4, "batch_size": 4, "gradient_steps": 2, "replay_rollouts": 12, "width": 8,
        "rollouts": "cut", "horizon": 640,
    }  # fmt: skip
    whole, first = (capo.NCAPO("minatar-asterix", "official", seeds=2, **settings) for _ in range(2))
    whole.learn(640)
    resumed = capo.load(first.learn(240).save(tmp_path / "agent"))
    assert resumed.config.rollouts == "cut"
    assert bits(resumed.learn(400)) == bits(whole)
