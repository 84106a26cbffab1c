"""What users read from an agent: probabilities, values, parameters; and calls as Stable-Baselines3 has them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from helpers_shell import ENV, TINY

import capo
from capo.neural.algorithms import registry
from capo.neural.parts import networks


def make(name: str, **settings: Any) -> Any:
    return registry.find(name).agent("probe-action", width=16, **settings)


@pytest.mark.parametrize("name", list(registry.ROWS))
def test_probabilities_and_values_of_every_algorithm(name: str) -> None:
    agent = make(name)
    batch = np.array([[1.0], [-1.0], [0.5]], np.float32)
    probabilities, values = agent.policy(batch)
    assert probabilities.shape == (3, 2)
    assert values.shape == (3,)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    best = agent.predict(batch, deterministic=True)[0]
    np.testing.assert_array_equal(probabilities.argmax(axis=1), best)
    one = agent.policy(batch[0])
    np.testing.assert_allclose(one.probabilities, probabilities[0], rtol=1e-6)
    assert one.values.shape == ()
    masked = agent.policy(batch, action_masks=[False, True]).probabilities
    np.testing.assert_array_equal(masked, [[0, 1]] * 3)


def test_the_probabilities_are_those_that_predict_draws_from() -> None:
    agent = make("ncapo").learn(4000)
    observation = np.array([0.3], np.float32)
    drawn = [int(agent.predict(observation)[0]) for _ in range(400)]
    expected = agent.policy(observation).probabilities[1]
    assert abs(np.mean(drawn) - expected) < 5 * np.sqrt(0.25 / 400)


def test_values_are_the_mean_of_q_under_the_policy_or_the_critics_own() -> None:
    observation = np.array([[0.7]], np.float32)
    agent = make("ncapo", critic="categorical", critic_heads=1)
    spec, algorithm = agent.learner.network, agent.learner.algorithm
    q = algorithm.critic.values(networks.outputs(spec, networks.select(agent.params, "critic"), observation))
    probabilities, values = agent.policy(observation)
    np.testing.assert_allclose(values, (probabilities * np.asarray(q)).sum(axis=1), rtol=1e-5)
    agent = make("ppo")
    v = networks.outputs(agent.learner.network, networks.select(agent.params, "critic"), observation)
    np.testing.assert_allclose(agent.policy(observation).values, np.asarray(v)[:, 0], rtol=1e-5)


def test_params_are_those_of_the_seed_in_use_and_a_copy() -> None:
    agent = capo.NCAPO(ENV, seeds=[3, 5], **TINY)
    first, second = agent.use_seed(3).params, agent.use_seed(5).params
    alone = capo.NCAPO(ENV, seed=5, **TINY).params
    leaves = list(zip(*map(jax.tree.leaves, (first, second, alone)), strict=True))
    assert all((theirs == one).all() for _, theirs, one in leaves)
    assert any((ours != theirs).any() for ours, theirs, _ in leaves)
    jax.tree.leaves(second)[0][:] = np.nan
    assert np.isfinite(agent.policy(np.zeros(agent.env.observation_shape, np.float32)).values)


def test_total_timesteps_is_another_name_of_frames() -> None:
    agent = make("ncapo", n_envs=4, rollout_length=4)
    assert agent.learn(total_timesteps=64).frames == 64
    with pytest.raises(capo.CapoError, match="both were given"):
        agent.learn(64, total_timesteps=64)
    with pytest.raises(capo.CapoError, match="neither was given"):
        agent.learn()
    with pytest.raises(capo.CapoError, match="total_timesteps=-1"):
        agent.learn(total_timesteps=-1)


def test_calls_in_the_manner_of_stable_baselines_get_a_hint() -> None:
    with pytest.raises(capo.CapoError, match=r"the environment comes first.*PPO\(env\)"):
        capo.PPO("MlpPolicy", "CartPole-v1")
    with pytest.raises(capo.CapoError, match="here it is rollout_length"):
        capo.PPO("CartPole-v1", n_steps=128)


def test_a_notebook_shows_settings_line_by_line() -> None:
    class Printer:
        def text(self, text: str) -> None:
            self.shown = text

    printer, config = Printer(), capo.PPO("probe-action").config
    config._repr_pretty_(printer, cycle=False)
    assert "    gamma=0.99,\n" in printer.shown
    assert printer.shown.count("\n") == len(config.to_dict()) + 1


def test_tab_completion_shows_the_public_names_alone() -> None:
    assert set(dir(capo)) == set(capo.__all__)
    assert {"policy", "params", "export", "learn", "load"} <= set(dir(capo.NCAPO))
