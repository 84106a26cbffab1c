"""Environments whose answer is known: what a learner gets wrong here it gets wrong everywhere."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capo import envs
from capo.envs.probes import PROBES
from capo.neural.algorithms.ncapo import NCAPOConfig
from capo.neural.algorithms.registry import learner_for
from capo.neural.algorithms.settings import override
from capo.neural.parts import networks

GAMMA = 0.9
# Rollouts of 4 steps cross many ends of these episodes of one or two steps.
CONFIG = NCAPOConfig(
    horizon=20_000, n_envs=16, rollout_length=4, batch_size=32, gradient_steps=8, replay_rollouts=256,
    gamma=GAMMA, learning_rate=3e-3, width=32, tau_q=0.2,
)  # fmt: skip


def train(env, config=CONFIG):
    learner = learner_for(env, config, 1)
    state, metrics = learner.run(learner.init([0]), config.horizon // learner.frames_per_iteration)
    return learner, learner.policy_params(state, 0), metrics


def q_and_pi(learner, params, *observations):
    obs = jnp.array(observations, jnp.float32)[:, None]
    logits, q, _ = networks.logits_and_q(learner.network, params, obs)
    return np.asarray(q), np.asarray(jax.nn.softmax(logits))


def test_constant_reward():
    q, _ = q_and_pi(*train("probe-constant")[:2], -1.0, 1.0)
    np.testing.assert_allclose(q, 1.0, atol=0.1)


def test_reward_that_depends_on_the_observation():
    q, _ = q_and_pi(*train("probe-observation")[:2], -1.0, 1.0)
    np.testing.assert_allclose(q, [[-1, -1], [1, 1]], atol=0.1)


def test_delayed_reward():
    q, _ = q_and_pi(*train("probe-delayed")[:2], 0.0, 1.0)
    np.testing.assert_allclose(q, [[GAMMA, GAMMA], [1, 1]], atol=0.1)


@pytest.mark.parametrize("kl", ["policy-to-target", "target-to-policy"])
def test_reward_that_depends_on_the_action(kl):
    config = override(CONFIG, {"kl": kl})
    learner, params, metrics = train("probe-action", config)
    q, pi = q_and_pi(learner, params, -1.0, 1.0)
    np.testing.assert_allclose(q, [[1, -1], [1, -1]], atol=0.15)
    assert pi[:, 0].min() > 0.95
    assert metrics["episode_return"][-1, 0] > 0.7  # with epsilon 0.05 still exploring


@pytest.mark.parametrize("returns", ["retrace", "v-trace"])
def test_reward_that_depends_on_both(returns):
    learner, params, _ = train("probe-both", override(CONFIG, {"returns": returns}))
    _, pi = q_and_pi(learner, params, -1.0, 1.0)
    assert pi[0, 0] > 0.95
    assert pi[1, 1] > 0.95
    returns = learner.evaluate(jax.tree.map(lambda x: x[None], params), jax.random.PRNGKey(0)[None], 200)
    assert returns.mean() > 0.95


class Endless:
    """Reward 1 at every step, cut off after 3: the true value is 1 / (1 - gamma) = 10, and not 2.7."""

    name, n_actions, observation_shape, observation_dtype = "endless", 2, (1,), np.float32

    def __init__(self, final):
        self.final = final

    def reset(self, key):
        del key
        return jnp.int32(0), jnp.ones(1)

    def step(self, key, env_state, action):
        del key, action
        after = env_state + 1
        obs = jnp.where(after == 3, self.final, 1.0)[None]
        return after, obs, jnp.float32(1), jnp.bool_(False), after == 3


class EndlessGym(gymnasium.Env):
    """The same in Gymnasium, with a final observation like the others."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        del action
        self.steps += 1
        return np.ones(1, np.float32), 1.0, False, self.steps == 3, {}


def test_truncation_bootstraps():
    q, _ = q_and_pi(*train(Endless(final=1.0))[:2], 1.0)
    np.testing.assert_allclose(q, 10.0, rtol=0.1)


def test_truncation_bootstraps_from_the_final_observation_and_not_from_the_one_after_the_reset():
    """Nothing is ever learnt at the final observation, so the value here cannot get near 10."""
    q, _ = q_and_pi(*train(Endless(final=-1.0))[:2], 1.0)
    assert 1.0 < q.max() < 8.0


def test_truncation_bootstraps_on_gymnasium():
    modes = gymnasium.vector.AutoresetMode
    env = gymnasium.vector.SyncVectorEnv([EndlessGym] * CONFIG.n_envs, autoreset_mode=modes.NEXT_STEP)
    learner, params, metrics = train(env, override(CONFIG, {"horizon": 10_000}))
    q, _ = q_and_pi(learner, params, 1.0)
    np.testing.assert_allclose(q, 10.0, rtol=0.12)
    ended = metrics["episodes"][:, 0] > 0
    np.testing.assert_allclose(metrics["episode_return"][ended, 0], 3.0)
    np.testing.assert_allclose(metrics["episode_length"][ended, 0], 3.0)


def test_probes_are_environments_with_names():
    assert all(envs.make(name).name == name for name in PROBES)
