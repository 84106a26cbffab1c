"""The loop: same result however it is cut, seeds that do not know of each other, honest numbers."""

from __future__ import annotations

import dataclasses
import gc

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capo.errors import CapoError
from capo.neural.algorithms.ncapo import NCAPOConfig
from capo.neural.algorithms.registry import learner_for
from capo.neural.algorithms.settings import override
from capo.neural.learners import jitted as loop
from capo.neural.learners import protocol

SMALL = NCAPOConfig(
    horizon=2000, n_envs=8, rollout_length=4, batch_size=8, gradient_steps=2, replay_rollouts=32, width=16,
    network="mlp", learning_rate_schedule="linear",
)  # fmt: skip
# Everything that branches: separate updates, an actor every second iteration, a replay that is emptied.
BRANCHES = override(
    SMALL, {"updates": "separate", "actor_every": 2, "replay_clear_every": 3, "target_critic": "head"}
)


def leaves(state):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


@pytest.fixture(scope="module")
def breakout():
    return learner_for("minatar-breakout", BRANCHES, 2)


def test_the_result_does_not_depend_on_how_a_run_is_cut(breakout):
    state, metrics = breakout.run(breakout.init([3, 4]), 7)
    cut, parts = breakout.init([3, 4]), []
    for iterations in (1, 4, 2):
        cut, part = breakout.run(cut, iterations)
        # as a checkpoint does it: to numpy and back
        cut = jax.tree.map(np.asarray, cut)
        parts.append(part)
    for a, b in zip(leaves(state), leaves(cut), strict=True):
        np.testing.assert_array_equal(a, b)
    for name in metrics:
        np.testing.assert_array_equal(metrics[name], np.concatenate([part[name] for part in parts]), err_msg=name)


def test_more_iterations_than_a_chunk(breakout, monkeypatch):
    once = breakout.run(breakout.init([0, 1]), 5)[1]
    monkeypatch.setattr(loop, "CHUNK", 2)  # the compiled buffer is longer, only the calls are shorter
    several = breakout.run(breakout.init([0, 1]), 5)[1]
    for name in once:
        np.testing.assert_array_equal(once[name], several[name])


def test_shapes_and_metrics(breakout):
    state = breakout.init([0, 1])
    assert all(leaf.shape[0] == 2 for leaf in jax.tree.leaves(state))
    state, metrics = breakout.run(state, 3)
    wanted = {
        "episode_return", "episodes", "episode_length", "actor_loss", "critic_loss", "entropy", "epsilon",
        "learning_rate", "grad_norm", "finite",
    }  # fmt: skip
    assert wanted <= set(metrics)
    assert all(values.shape == (3, 2) for values in metrics.values())
    assert np.isfinite(metrics["actor_loss"]).all()
    assert (metrics["finite"] == 1).all()
    assert breakout.frames_per_iteration == 32
    np.testing.assert_allclose(metrics["learning_rate"][:, 0], 5e-4 * (1 - 32 * np.arange(3) / 2000), rtol=1e-5)
    np.testing.assert_array_equal(state.iteration, [3, 3])
    assert breakout.run(state, 0)[1] == {}


def test_seeds_do_not_know_of_each_other(breakout):
    """A seed beside another is the same seed alone, but for rounding; and seeds differ."""
    together, _ = breakout.run(breakout.init([5, 6]), 4)
    swapped, _ = breakout.run(breakout.init([6, 5]), 4)
    for a, b in zip(leaves(together), leaves(swapped), strict=True):
        np.testing.assert_array_equal(a[0], b[1])
    alone = learner_for("minatar-breakout", BRANCHES, 1)
    single, _ = alone.run(alone.init([6]), 4)
    np.testing.assert_array_equal(together.replay.action[1], single.replay.action[0])
    np.testing.assert_array_equal(together.replay.obs[1], single.replay.obs[0])
    for a, b in zip(leaves(together.params), leaves(single.params), strict=True):
        np.testing.assert_allclose(a[1], b[0], atol=1e-4)
    assert not np.array_equal(together.replay.action[0], together.replay.action[1])


def test_the_actor_rests_every_second_iteration():
    config = override(BRANCHES, {"shared_trunk": False, "target_critic": "full"})
    learner = learner_for("probe-both", config, 1)
    state = learner.init([0])
    heads = []
    for _ in range(4):
        state, _ = learner.run(state, 1)
        heads.append(np.asarray(state.params["actor"]["head"]["kernel"]))
    np.testing.assert_array_equal(heads[0], heads[1])
    assert not np.array_equal(heads[1], heads[2])
    np.testing.assert_array_equal(heads[2], heads[3])


class Counting:
    """Observes (episode's start number, step); the reward of step t is t; ends after 5 steps."""

    name, n_actions, observation_shape, observation_dtype, truncates = "counting", 3, (2,), np.float32, False

    def reset(self, key):
        start = jax.random.randint(key, (), 0, 1000).astype(jnp.float32)
        return jnp.stack([start, 0.0]), jnp.stack([start, 0.0])

    def step(self, key, env_state, action):
        del key, action
        after = env_state + jnp.array([0.0, 1.0])
        return after, after, after[1], after[1] == 5, jnp.bool_(False)


def test_collected_rollouts_are_what_the_environment_did():
    learner = learner_for(Counting(), SMALL, 1)
    state, metrics = learner.run(learner.init([0]), 4)  # exactly fills the replay
    replay = jax.tree.map(lambda leaf: np.asarray(leaf[0]), state.replay)
    episode, step = replay.obs[..., 0], replay.obs[..., 1]
    np.testing.assert_array_equal(replay.reward, step[:, :-1] + 1)
    np.testing.assert_array_equal(replay.terminated, step[:, :-1] == 4)
    same = ~replay.terminated
    np.testing.assert_array_equal(episode[:, 1:][same], episode[:, :-1][same])
    np.testing.assert_array_equal(step[:, 1:][~same], 0)
    assert (episode[:, 1:][~same] != episode[:, :-1][~same]).mean() > 0.9
    # rollouts of one environment follow each other: 8 environments, so row i + 8 goes on from row i
    np.testing.assert_array_equal(replay.obs[8:16, 0], replay.obs[:8, -1])
    ended = metrics["episodes"][:, 0] > 0
    np.testing.assert_allclose(metrics["episode_return"][ended, 0], 15.0)
    np.testing.assert_allclose(metrics["episode_length"][ended, 0], 5.0)
    assert np.isnan(metrics["episode_return"][~ended]).all()
    assert metrics["episodes"].sum() == 8 * (16 // 5)
    assert np.exp(replay.log_mu).min() > 0.05 / 3


class Unequal:
    """One step or nine, by chance, with as much reward: the mean return is 5 a priori."""

    name, n_actions, observation_shape, observation_dtype, truncates = "unequal", 2, (1,), np.float32, False

    def reset(self, key):
        length = jnp.where(jax.random.bernoulli(key), 9, 1)
        return length, jnp.zeros(1)

    def step(self, key, env_state, action):
        del key, action
        return env_state - 1, jnp.zeros(1), jnp.float32(1), env_state == 1, jnp.bool_(False)


def test_evaluation_does_not_favour_short_episodes():
    learner = learner_for(Unequal(), SMALL, 2)
    state = learner.init([0, 1])
    returns = learner.evaluate(state.params, jax.random.split(jax.random.PRNGKey(0), 2), 400)
    assert returns.shape == (2, 400)
    assert set(returns.ravel().tolist()) == {1.0, 9.0}
    assert (abs(returns.mean(axis=1) - 5) < 1).all()


def test_act_masks_and_modes(breakout):
    params = breakout.policy_params(breakout.init([0, 1]), 0)
    params = jax.tree.map(np.asarray, params)
    params["actor"]["head"]["bias"] = np.array([3.0, 2.0, 1.0], np.float32)
    obs = np.zeros((200, 10, 10, 4), bool)
    assert set(breakout.act(params, obs, deterministic=True).tolist()) == {0}
    masked = breakout.act(params, obs, deterministic=True, action_masks=[False, True, True])
    assert set(masked.tolist()) == {1}
    sampled = breakout.act(params, obs, jax.random.PRNGKey(0), action_masks=[True, False, True])
    assert set(sampled.tolist()) == {0, 2}
    with pytest.raises(CapoError, match="allows no action"):
        breakout.act(params, obs, deterministic=True, action_masks=[False] * 3)
    with pytest.raises(CapoError, match="observations of shape"):
        breakout.act(params, obs[0], deterministic=True)
    with pytest.raises(CapoError, match="key"):
        breakout.act(params, obs)


def test_description_says_the_replay_ratio():
    learner = learner_for("minatar-breakout", NCAPOConfig.preset("official", "minatar-breakout"), 3)
    text = learner.describe()
    assert "45 updates per iteration" in text
    assert "640 transitions" in text
    assert "replay ratio 36" in text
    assert f"{learner.replay.nbytes / 1e6:.1f} MB per seed" in text


def test_what_does_not_fit_is_refused_before_it_is_allocated(monkeypatch):
    config = dataclasses.replace(SMALL, replay_rollouts=10**9)
    with pytest.raises(CapoError, match="set replay_rollouts to"):
        learner_for("minatar-breakout", config, 4)
    monkeypatch.setattr(protocol, "available_memory", lambda _=1: 10_000)
    with pytest.raises(CapoError, match="MB are free"):
        learner_for("minatar-breakout", SMALL, 1)


def test_wrong_seeds():
    learner = learner_for("probe-both", SMALL, 2)
    for seeds, message in (([1], "1 seeds were given"), ([1, -1], "between 0 and"), ([1, 2**31], "between 0 and")):
        with pytest.raises(CapoError, match=message):
            learner.init(seeds)


def test_a_non_finite_reward_is_seen():
    class Broken(Counting):
        def step(self, key, env_state, action):
            after, obs, _, terminated, truncated = super().step(key, env_state, action)
            return after, obs, jnp.float32(jnp.inf), terminated, truncated

    learner = learner_for(Broken(), SMALL, 1)
    _, metrics = learner.run(learner.init([0]), 2)
    assert metrics["finite"][-1, 0] == 0


def test_gymnasium_runs_are_repeatable_and_go_on():
    def trained(calls):
        learner = learner_for("CartPole-v1", SMALL, 1)
        state = learner.init([7])
        for iterations in calls:
            state, metrics = learner.run(state, iterations)
        return learner, state, metrics

    (learner, once, metrics), (_, cut, _) = trained([6]), trained([2, 4])
    for a, b in zip(leaves(once), leaves(cut), strict=True):
        np.testing.assert_array_equal(a, b)
    assert metrics["critic_loss"].shape == (6, 1)
    returns = learner.evaluate(once.params, jax.random.PRNGKey(1)[None], 6)
    assert returns.shape == (1, 6)
    assert (returns > 5).all()
    again = learner.evaluate(once.params, jax.random.PRNGKey(1)[None], 6)
    np.testing.assert_array_equal(returns, again)


def test_gymnasium_takes_one_seed():
    with pytest.raises(CapoError, match="one seed at a time"):
        learner_for("CartPole-v1", SMALL, 2)


def test_an_environment_that_cannot_be_copied_is_evaluated_itself():
    class Single(gymnasium.Env):
        action_space, observation_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(0, 1, (1,))

        def __deepcopy__(self, memo):
            raise TypeError("a socket cannot be copied")

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed, options=options)
            return np.ones(1, np.float32), {}

        def close(self):
            raise AssertionError("the user's environment is not ours to close")

        def step(self, action):
            del action
            return np.ones(1, np.float32), 2.0, True, False, {}

    learner = learner_for(Single(), SMALL, 1)
    state, _ = learner.run(learner.init([0]), 1)
    returns = learner.evaluate(state.params, jax.random.PRNGKey(0)[None], 3)
    np.testing.assert_array_equal(returns, [[2.0, 2.0, 2.0]])
    state, metrics = learner.run(state, 1)
    assert np.isfinite(metrics["critic_loss"]).all()


def test_memory_is_reused_between_calls(breakout):
    """Donated buffers: many calls leave as many arrays alive as one."""
    state, _ = breakout.run(breakout.init([0, 1]), 1)
    gc.collect()
    before = sum(array.nbytes for array in jax.live_arrays())
    for _ in range(5):
        state, _ = breakout.run(state, 1)
    gc.collect()
    assert sum(array.nbytes for array in jax.live_arrays()) <= before * 1.05
