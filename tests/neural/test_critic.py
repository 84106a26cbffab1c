"""A critic as a distribution over atoms: its targets keep their mean, and it learns what the plain one learns."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers_envs import Coin

import capo
from capo.errors import CapoError
from capo.neural.algorithms.ncapo import NCAPOAlgorithm, NCAPOConfig
from capo.neural.algorithms.offpac import OffPACConfig
from capo.neural.algorithms.rainbow import RainbowConfig
from capo.neural.parts import critic, networks

CONFIG = NCAPOConfig(critic="categorical", atoms=21, v_min=-5.0, v_max=50.0)
HEAD = critic.CriticHead(True, 21, -5.0, 50.0)


def head_of(config):
    return NCAPOAlgorithm(config, Coin()).critic


def two_hot_by_loop(x, points):
    """One number at a time."""
    weights = np.zeros(len(points))
    x = min(max(x, points[0]), points[-1])
    right = next(k for k in range(1, len(points)) if x <= points[k])
    weights[right] = (x - points[right - 1]) / (points[right] - points[right - 1])
    weights[right - 1] = 1 - weights[right]
    return weights


def test_two_hot_keeps_the_mean():
    rng = np.random.default_rng(0)
    points = HEAD.atoms.astype(np.float64)
    x = np.concatenate([rng.uniform(-9, 60, 200), points])
    found = np.asarray(critic.two_hot(jnp.asarray(x), points))
    np.testing.assert_allclose(found, [two_hot_by_loop(one, points) for one in x], atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(found @ points, np.clip(x, -5, 50), rtol=1e-5, atol=1e-4)


def test_atoms_are_close_around_zero():
    points = HEAD.atoms
    assert points.shape == (21,)
    assert points[0] == pytest.approx(-5.0, rel=1e-6)
    assert points[-1] == pytest.approx(50.0, rel=1e-6)
    gaps = np.diff(points)
    assert gaps.min() > 0
    assert gaps.argmin() in (np.abs(points).argmin() - 1, np.abs(points).argmin())
    assert gaps[-1] > 5 * gaps.min()


def test_the_loss_is_the_cross_entropy_of_the_taken_action():
    rng = np.random.default_rng(1)
    numbers = jnp.asarray(rng.normal(size=(4, 3 * 21)))
    action, returns = jnp.asarray([0, 2, 1, 2]), jnp.asarray([0.3, -9.0, 17.0, 80.0])
    found = HEAD.loss(numbers, action, returns)
    for row in range(4):
        logits = np.asarray(numbers[row]).reshape(3, 21)[int(action[row])]
        log_p = logits - np.log(np.exp(logits).sum())
        goal = two_hot_by_loop(float(returns[row]), HEAD.atoms)
        assert found[row] == pytest.approx(-(goal * log_p).sum(), rel=1e-4)
        q = HEAD.values(numbers)[row, int(action[row])]
        assert q == pytest.approx((np.exp(log_p) * HEAD.atoms).sum(), rel=1e-4)


@pytest.mark.parametrize("kind", ["mean", "categorical"])
def test_descending_the_loss_finds_the_mean_return(kind):
    """Two returns of one action, seen equally often: Q is their mean. The action not taken is not touched."""
    config = dataclasses.replace(CONFIG, critic=kind)
    numbers = jnp.asarray(head_of(config).initial_bias(2))
    action, returns = jnp.zeros(2, int), jnp.asarray([1.0, 7.0])

    def loss(numbers):
        return head_of(config).loss(jnp.stack([numbers, numbers]), action, returns).mean()

    step = jax.jit(lambda numbers: numbers - 0.3 * jax.grad(loss)(numbers))
    before = head_of(config).values(numbers)
    for _ in range(3000):
        numbers = step(numbers)
    after = head_of(config).values(numbers)
    assert after[0] == pytest.approx(4.0, abs=0.05)
    assert after[1] == before[1]


def test_the_gradient_does_not_grow_with_the_returns():
    def length(config, returns):
        numbers = jnp.asarray(head_of(config).initial_bias(2))
        grad = jax.grad(lambda x: head_of(config).loss(x, jnp.int32(0), jnp.float32(returns)))(numbers)
        return float(jnp.linalg.norm(grad))

    assert length(CONFIG, 40.0) < 1.5
    assert length(dataclasses.replace(CONFIG, critic="mean"), 40.0) > 50


def test_q_begins_near_zero():
    algorithm = NCAPOAlgorithm(dataclasses.replace(CONFIG, width=32), Coin())
    params = algorithm.init_params(np.random.default_rng(0))
    obs = jnp.linspace(-1, 1, 9)[:, None]
    numbers = networks.outputs(algorithm.network, networks.select(params, "critic"), obs)
    assert numbers.shape == (9, 2 * 21)
    assert np.abs(algorithm.critic.values(numbers)).max() < 2.0


@pytest.mark.parametrize("target_critic", ["full", "head"])
def test_the_update_uses_the_mean_of_the_target_critic(target_critic):
    """Retrace sees Q of the slow critic, whatever form its head has."""
    config = dataclasses.replace(CONFIG, width=8, target_critic=target_critic)
    algorithm = NCAPOAlgorithm(config, Coin())
    spec = algorithm.network
    params, other = (networks.init(spec, np.random.default_rng(seed)) for seed in (0, 1))
    target = algorithm.init_target(other)
    inputs = networks.inputs(spec, jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 1)), jnp.float32))
    logits, _, features = networks.logits_and_q(spec, params, inputs.steps(0, 5))
    _, q = algorithm.slow_policy_and_q(params, target, inputs, logits, features)
    slow = networks.select(other, "critic")
    if target_critic == "head":
        slow = {"body": networks.select(params, "critic")["body"], "head": slow["head"]}
    numbers = networks.outputs(spec, slow, inputs)
    np.testing.assert_allclose(q, head_of(config).values(numbers), atol=1e-5)


@pytest.mark.parametrize("agent_class", [capo.NCAPO, capo.OffPAC])
def test_agents_learn_with_it(agent_class, tmp_path):
    settings = {"critic": "categorical", "atoms": 21, "v_min": -1.0, "v_max": 2.0, "n_envs": 4, "seed": 0}
    agent = agent_class(Coin(), width=16, learning_rate=3e-3, **settings).learn(3200)
    assert agent.evaluate(50, deterministic=True).mean > 0.9
    agent.save(tmp_path / "agent.safetensors")
    loaded = agent_class.load(tmp_path / "agent.safetensors", env=Coin())
    np.testing.assert_array_equal(loaded.evaluate(20, seed=3).returns, agent.evaluate(20, seed=3).returns)


@pytest.mark.parametrize("config_class", [NCAPOConfig, OffPACConfig, RainbowConfig])
def test_a_range_without_room_is_refused(config_class):
    with pytest.raises(CapoError, match=r"v_min=3.* must be below v_max=3"):
        config_class(v_min=3.0, v_max=3.0)


def test_atoms_that_cannot_be_told_apart_are_refused():
    with pytest.raises(CapoError, match=r"51 atoms from v_min=199.9999 to v_max=200.0 are too close"):
        capo.NCAPO(Coin(), critic="categorical", v_min=199.9999, v_max=200.0)
