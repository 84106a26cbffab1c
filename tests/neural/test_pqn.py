"""PQN part by part: its returns and its update against plain versions, exploration, CartPole."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import capo
from capo.neural.algorithms.pqn import PQNConfig, lambda_returns
from capo.neural.algorithms.registry import learner_for
from capo.neural.algorithms.settings import override
from capo.neural.parts import optimisers
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.replay import Rollout

SMALL: dict[str, Any] = {"n_envs": 4, "rollout_length": 8, "batch_size": 8, "width": 8}


def plain_returns(reward: Any, terminated: Any, truncated: Any, v_next: Any, gamma: float, lam: float) -> Any:
    """One rollout, every return by itself: a weighted mean of its n-step returns.

    The n-step return from t is r_t + ... + gamma^(n-1) r_t+n-1 + gamma^n V with weight (1 - lambda) lambda^(n-1);
    the longest one, which ends with the episode or with the rollout, has the weight that is left.
    """
    found = []
    for start in range(len(reward)):
        total, rewards, n = 0.0, 0.0, 0
        while True:
            at = start + n
            rewards += gamma**n * reward[at]
            n += 1
            bootstrap = 0.0 if terminated[at] else gamma**n * v_next[at]
            last = terminated[at] or truncated[at] or at == len(reward) - 1
            weight = lam ** (n - 1) * (1.0 if last else 1.0 - lam)
            total += weight * (rewards + bootstrap)
            if last:
                break
        found.append(total)
    return np.array(found)


@pytest.mark.parametrize("lam", [0.0, 0.65, 1.0])
def test_returns_against_a_plain_loop(lam: float) -> None:
    rng = np.random.default_rng(0)
    shape = (30, 12)
    reward, v_next = rng.normal(size=shape), rng.normal(size=shape)
    ends = rng.random(shape)
    terminated, truncated = ends < 0.15, ends > 0.85
    assert terminated[:, -1].any()
    assert truncated[:, -1].any()
    found = lambda_returns(
        reward=jnp.asarray(reward, jnp.float32),
        terminated=jnp.asarray(terminated, jnp.float32),
        truncated=jnp.asarray(truncated, jnp.float32),
        v_next=jnp.asarray(v_next, jnp.float32),
        gamma=0.9,
        lam=lam,
    )
    rows = zip(reward, terminated, truncated, v_next, strict=True)
    np.testing.assert_allclose(found, [plain_returns(*row, 0.9, lam) for row in rows], atol=1e-5)


def rollouts_of(learner: Any, *, seed: int) -> Rollout:
    spec = learner.algorithm.rollouts
    rng = np.random.default_rng(seed)
    shape = (spec.n_envs, spec.length)
    return Rollout(
        obs=jnp.asarray(rng.normal(size=(spec.n_envs, spec.length + spec.successors, 1)), jnp.float32),
        action=jnp.asarray(rng.integers(0, 2, shape), jnp.int32),
        reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
        terminated=jnp.asarray(rng.random(shape) < 0.2),
        truncated=jnp.zeros(shape, bool),
        log_mu=jnp.zeros(shape),
    )


def test_targets_use_the_best_action_of_what_each_step_led_to() -> None:
    learner = learner_for("probe-both", override(PQNConfig(), SMALL), 1)
    algorithm: Any = learner.algorithm
    params = algorithm.init_params(np.random.default_rng(0))
    rollouts = rollouts_of(learner, seed=1)
    best = np.asarray(algorithm.action_scores(params, rollouts.obs)).max(axis=-1)
    arrays = zip(rollouts.reward, rollouts.terminated, rollouts.truncated, best[:, 1:], strict=True)
    expected = [plain_returns(*map(np.asarray, row), 0.99, 0.9) for row in arrays]
    np.testing.assert_allclose(algorithm.returns(params, rollouts), expected, atol=1e-5)


def test_an_iteration_is_epochs_of_steps_of_radam_on_targets_that_stay() -> None:
    """Minibatches of everything, whose order can't matter, against RAdam and the loss written out."""
    config = override(PQNConfig(), SMALL | {"batch_size": 32, "epochs": 3, "learning_rate_schedule": "constant"})
    learner = learner_for("probe-both", config, 1)
    algorithm: Any = learner.algorithm
    state = jax.tree.map(lambda leaf: leaf[0], learner.init([0]))
    rollouts = rollouts_of(learner, seed=2)
    learned, metrics = algorithm.learn(state, rollouts, Iteration.number(0), jax.random.PRNGKey(1))

    target = algorithm.returns(state.params, rollouts).reshape(-1)
    obs, action = rollouts.obs[:, :8].reshape(-1, 1), rollouts.action.reshape(-1)

    def loss(params: Any) -> Any:
        return 0.5 * jnp.mean((algorithm.action_scores(params, obs)[jnp.arange(32), action] - target) ** 2)

    params = state.params
    mean = square = jax.tree.map(jnp.zeros_like, params)
    for step in range(1, 4):
        grads: Any = jax.grad(loss)(params)
        assert optimisers.global_norm(grads) < config.max_grad_norm
        mean, square, params = plain_radam(params, mean, square, grads, step, config.learning_rate)
    pairs = zip(jax.tree.leaves(learned.params), jax.tree.leaves(params), strict=True)
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert metrics["critic_loss"] > 0
    moved = max(
        float(jnp.abs(a - b).max())
        for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(state.params), strict=True)
    )
    assert moved > 1e-4


def plain_radam(params: Any, mean: Any, square: Any, grads: Any, step: int, rate: float) -> Any:
    """One step of RAdam as its paper's algorithm states it: momentum alone while the variance is intractable."""
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, square, grads)
    longest = 2 / (1 - 0.999) - 1
    length = longest - 2 * step * 0.999**step / (1 - 0.999**step)

    def moved(p: Any, m: Any, v: Any) -> Any:
        m = m / (1 - 0.9**step)
        if length <= 5:
            return p - rate * m
        short = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        return p - rate * math.sqrt(short) * m / (jnp.sqrt(v / (1 - 0.999**step)) + 1e-8)

    return mean, square, jax.tree.map(moved, params, mean, square)


def test_radam_against_its_algorithm_beyond_the_first_steps() -> None:
    optimiser = optimisers.make("radam", optimisers.clip_by_norm_like_torch(1e9), epsilon=1e-8)
    rng = np.random.default_rng(0)
    theirs = ours = {"x": jnp.zeros(5)}
    state: Any = optimiser.init(ours)
    mean = square = {"x": jnp.zeros(5)}
    for step in range(1, 20):
        grads = {"x": jnp.asarray(rng.normal(size=5), jnp.float32)}
        ours, state = optimisers.step(optimiser, ours, state, grads, jnp.float32(0.01))
        mean, square, theirs = plain_radam(theirs, mean, square, grads, step, 0.01)
        # 1 - 0.999**step loses digits in float32: a fraction of a step of 0.01.
        np.testing.assert_allclose(ours["x"], theirs["x"], atol=3e-5)
    assert abs(ours["x"]).max() > 0.01


def test_the_best_action_is_taken_but_for_epsilon() -> None:
    learner = learner_for("probe-both", override(PQNConfig(), SMALL | {"horizon": 1000}), 1)
    algorithm: Any = learner.algorithm
    params = algorithm.init_params(np.random.default_rng(0))
    obs = jnp.array([[-1.0], [1.0]])
    best = np.asarray(algorithm.action_scores(params, obs)).argmax(axis=-1)
    mu = np.exp(algorithm.behaviour(params, obs, jnp.float32(0.2)))
    np.testing.assert_allclose(mu[[0, 1], best], 0.9, rtol=1e-6)
    np.testing.assert_allclose(mu.sum(axis=-1), 1, rtol=1e-6)
    frames = [0.0, 50.0, 100.0, 1000.0]
    np.testing.assert_allclose(
        [algorithm.exploration(np.float32(f)) for f in frames], [1, 0.525, 0.05, 0.05], 1e-6
    )


def test_settings_are_the_authors_on_minatar() -> None:
    config = PQNConfig.preset("default", "minatar-breakout")
    assert config == PQNConfig.preset("paper", "minatar-breakout")
    assert config.frames_per_iteration // config.batch_size == 32
    algorithm = capo.PQN("minatar-breakout").learner.algorithm
    assert algorithm.updates_per_iteration == 64
    assert "each transition is trained on 2 times, then discarded" in algorithm.describe_learning(1)[0]
    with pytest.raises(capo.CapoError, match=r"4 \* 8 = 32: 8 does"):
        PQNConfig(n_envs=4, rollout_length=8, batch_size=10)


def test_pqn_learns_cartpole() -> None:
    """On Gymnasium: far above random play (about 20) within 20,000 steps."""
    agent = capo.PQN("CartPole-v1", seed=0, n_envs=8, epochs=8, batch_size=64).learn(20_480)
    assert agent.evaluate(10).mean > 100
    assert not agent.samples
