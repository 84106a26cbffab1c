"""Certain signs: the paper's update where the critic is certain, none where it knows nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import capo
from capo.errors import CapoError
from capo.neural.algorithms import ncapo
from capo.neural.algorithms.ncapo import NCAPOAlgorithm, NCAPOConfig
from capo.neural.algorithms.offpolicy import Targets, ensemble_targets, retrace_targets
from capo.neural.parts import networks, optimisers, units
from capo.neural.parts.certainty import advantage_belief, expected_sign, keep_chance, mean_certainty
from capo.neural.parts.critic import CriticHead
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.policies import FORBIDDEN
from capo.neural.parts.replay import Rollout
from capo.update import StepSize, coordinate_update

CERTAIN = {
    "advantage_weight": "certain",
    "critic_heads": 4,
    "kl": "logits",
    "floor": 1e-3,
    "critic_units": "noise",
}


class Vectors:
    """The shapes of an environment: all that an algorithm needs of one."""

    name, n_actions, truncates = "vectors", 3, False
    observation_shape, observation_dtype = (4,), np.float32


def algorithm_of(**settings):
    return NCAPOAlgorithm(NCAPOConfig(width=8, **{**CERTAIN, **settings}), Vectors())


def make_batch(rng, batch=3, length=5):
    shape = (batch, length)
    return Rollout(
        obs=jnp.asarray(rng.normal(size=(batch, length + 1, 4)), jnp.float32),
        action=jnp.asarray(rng.integers(0, 3, shape)),
        reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
        terminated=jnp.asarray(rng.uniform(size=shape) < 0.2),
        truncated=jnp.zeros(shape, bool),
        log_mu=jnp.full(shape, -1.0),
    )


def test_the_expected_sign_is_that_of_many_draws():
    rng = np.random.default_rng(0)
    for mean, deviation in ((0.0, 1.0), (0.3, 1.0), (-2.0, 0.7), (5.0, 1.0), (1e-3, 10.0)):
        drawn = np.sign(rng.normal(mean, deviation, 400_000)).mean()
        got = float(expected_sign(jnp.float32(mean), jnp.float32(deviation**2)))
        assert got == pytest.approx(drawn, abs=0.006)


def slow_belief(log_pi, q):
    """The same as loops over plain numbers."""
    mean, variance = np.zeros(log_pi.shape), np.zeros(log_pi.shape)
    for at in np.ndindex(log_pi.shape[:-1]):
        pi, heads = np.exp(log_pi[at]), q[at]
        for action in range(len(pi)):
            each = [float(head[action]) - sum(p * x for p, x in zip(pi, head, strict=True)) for head in heads]
            mean[at][action] = sum(each) / len(each)
            spread = sum((x - mean[at][action]) ** 2 for x in each)
            variance[at][action] = spread / (len(each) - 1) if len(each) > 1 else 0.0
    return mean, variance


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_the_belief_is_mean_and_variance_over_heads(heads):
    rng = np.random.default_rng(1)
    log_pi = np.log(rng.dirichlet(np.ones(3), size=(4, 2)))
    q = rng.normal(size=(4, 2, heads, 3))
    got = advantage_belief(jnp.asarray(log_pi), jnp.asarray(q))
    for one, slow in zip(got, slow_belief(log_pi, q), strict=True):
        np.testing.assert_allclose(one, slow, atol=1e-5)


def test_certainty_is_between_0_and_1():
    log_pi = jnp.log(jnp.array([[0.5, 0.25, 0.25], [1.0 - 2e-6, 1e-6, 1e-6]]))
    np.testing.assert_allclose(mean_certainty(log_pi, jnp.ones((2, 3))), [1.0, 1.0], atol=1e-5)
    np.testing.assert_allclose(mean_certainty(log_pi, jnp.zeros((2, 3))), [0.0, 0.0], atol=1e-5)
    chosen = jnp.array([0.0, -1.0, -1.0])  # the best action's own advantage is 0 once it is chosen
    assert float(mean_certainty(log_pi[1], chosen)) == pytest.approx(1.0, abs=1e-5)


def test_certainty_of_factors_is_between_0_and_1():
    binary = jnp.log(jnp.array([[0.5, 0.5, 0.5, 0.5], [0.9, 0.1, 0.3, 0.7]]))
    np.testing.assert_allclose(mean_certainty(binary, jnp.ones((2, 4)), (2, 2)), [1.0, 1.0], atol=1e-5)
    # Of the second factor only one action is allowed: the first one's three are left, two of them not chosen.
    log_pi = jnp.array([*np.log([0.2, 0.5, 0.3]), 0.0, FORBIDDEN])
    assert float(mean_certainty(log_pi, jnp.ones(5), (3, 2))) == pytest.approx(1.0, abs=1e-5)
    assert float(mean_certainty(log_pi, jnp.full(5, 0.5), (3, 2))) == pytest.approx(0.5, abs=1e-5)


def slow_keep_chance(log_pi, sign, share, sizes):
    """The same as loops over plain numbers."""
    result = sign.copy()
    for at in np.ndindex(log_pi.shape[:-1]):
        first = 0
        for size in sizes:
            actions = [a for a in range(first, first + size) if log_pi[at][a] > -100.0]
            for a in actions:
                w, pi = float(sign[at][a]), float(np.exp(log_pi[at][a]))
                good = (1.0 + w) / 2.0
                if w < 0 and pi < share * good / len(actions):
                    result[at][a] = -w
            first += size
    return result


@pytest.mark.parametrize("sizes", [(5,), (2, 3)])
def test_an_action_keeps_its_chance(sizes):
    rng = np.random.default_rng(2)
    parts = [np.log(rng.dirichlet(np.full(size, 0.3), size=(40, 2))) for size in sizes]
    log_pi = np.maximum(np.concatenate(parts, axis=-1), -50.0).astype(np.float32)
    log_pi[:10, :, 1] = FORBIDDEN
    sign = rng.uniform(-1, 1, log_pi.shape).astype(np.float32)
    factors = sizes if len(sizes) > 1 else ()
    for share in (0.0, 0.5, 1.0):
        got = np.asarray(keep_chance(jnp.asarray(log_pi), jnp.asarray(sign), share, factors))
        expected = slow_keep_chance(log_pi, sign, share, sizes)
        np.testing.assert_allclose(got, expected, atol=1e-6)
        assert (got != sign).any() == (share > 0)


def test_a_policy_ends_as_sure_as_the_critic_is():
    """A table under the update, with signs that stay as they are: rare where certain, its chance where not."""
    config = NCAPOConfig(kl="logits", advantage_weight="certain", chance_kept=0.5)
    sign = jnp.array([[0.2, -0.4, -1.0], [1.0, -1.0, -1.0]])

    def step(_, theta):
        log_pi = jax.nn.log_softmax(theta)
        w = keep_chance(log_pi, sign, config.chance_kept)
        target = ncapo.actor_target(log_pi, w, config)
        return theta - 0.02 * jax.grad(lambda t: ncapo.actor_loss(jax.nn.log_softmax(t), target, "logits").sum())(
            theta
        )

    pi = np.exp(jax.nn.log_softmax(jax.lax.fori_loop(0, 20_000, step, jnp.zeros((2, 3)))))
    assert pi[0, 1] == pytest.approx(0.5 * 0.3 / 3, rel=0.1)
    assert pi[0, 2] < 1e-3
    assert pi[1, 0] > 0.999


def exact_targets(log_pi, q, action, noise=0.0):
    """Targets (S, 1, ...) of S states whose Q' (S, M, A) is known; every return is off by ``noise``."""
    taken = np.take_along_axis(q, action[:, None, None], axis=-1)[..., 0]
    return Targets(*(jnp.asarray(x)[:, None] for x in (log_pi, taken + noise, taken * 0, q)))


def steps_of(algorithm, targets, action):
    batch = make_batch(np.random.default_rng(0))._replace(action=jnp.asarray(action)[:, None])
    return np.asarray(algorithm.certain_signs(batch, targets))[:, 0]


@pytest.mark.parametrize("chance_kept", [0.0, 0.5])
@pytest.mark.parametrize("kl", ["policy-to-target", "logits"])
def test_a_certain_critic_gives_tabular_batch_capo(kl, chance_kept):
    """Twenty rounds with exact Q, heads that agree and returns without noise: all signs, and the paper's pi~."""
    with jax.enable_x64(True):
        algorithm = algorithm_of(kl=kl, floor=0.0, chance_kept=chance_kept)
        rng = np.random.default_rng(1)
        transition, reward = rng.dirichlet(np.full(6, 0.3), size=(6, 3)), rng.uniform(size=(6, 3))
        log_pi = np.full((6, 3), -np.log(3.0))
        moved = []
        for _ in range(20):
            pi = np.exp(log_pi)
            value = np.linalg.solve(
                np.eye(6) - 0.9 * np.einsum("sa,sat->st", pi, transition), (pi * reward).sum(-1)
            )
            q = reward + 0.9 * transition @ value
            sign = np.sign(np.where(np.abs(q - value[:, None]) < 1e-9, 0.0, q - value[:, None]))
            heads = np.repeat(q[:, None], 4, axis=1) + rng.normal(size=(6, 4, 1))  # their levels may differ
            action = rng.integers(0, 3, 6)
            got = steps_of(algorithm, exact_targets(log_pi, heads, action), action)
            known = np.abs(q - value[:, None]) > 1e-6
            np.testing.assert_allclose(got[known], sign[known], atol=1e-6)
            target = ncapo.actor_target(
                jnp.asarray(log_pi), jnp.asarray(np.where(known, got, 0.0)), algorithm.config
            )
            expected = coordinate_update(log_pi, sign, StepSize("clipped", clip=50.0).alpha(log_pi, sign))
            np.testing.assert_allclose(np.exp(target), np.exp(expected), atol=1e-5)
            moved.append(np.abs(np.exp(expected) - pi).max())
            log_pi = expected
    assert sum(change > 1e-3 for change in moved) >= 4  # a trajectory, not one jump


def test_a_critic_that_knows_nothing_moves_nothing():
    """Before it learns, its heads cancel: every expected sign is 0, whatever the observation."""
    algorithm = algorithm_of()
    params = algorithm.init_params(np.random.default_rng(0))
    batch = make_batch(np.random.default_rng(1))
    q = algorithm.critic.values(networks.outputs(algorithm.network, params["critic"], batch.obs))
    assert np.abs(q).max() > 0.1  # each of them believes something
    log_pi = jax.nn.log_softmax(jnp.asarray(np.random.default_rng(2).normal(size=(3, 6, 3))))
    targets = ensemble_targets(algorithm.config, batch, log_pi, q)
    signs = algorithm.certain_signs(batch, targets)
    np.testing.assert_allclose(signs, 0.0, atol=1e-5)
    np.testing.assert_allclose(
        ncapo.actor_target(targets.log_pi, signs, algorithm.config), targets.log_pi, atol=1e-4
    )
    learned = targets._replace(q=targets.q + jnp.array([0.5, 0.0, 0.0]))
    assert float(algorithm.certain_signs(batch, learned)[..., 0].min()) > 0.05


def test_disagreeing_heads_noise_and_optimism():
    log_pi = np.log(np.full((1, 3), 1 / 3))
    q = np.array([[[1.0, 0.0, -1.0], [1.2, -0.2, -1.0], [0.8, 0.2, -1.0], [1.0, 0.0, -1.0]]])
    action = np.array([0])
    agree = steps_of(algorithm_of(noise_uncertainty=0.0), exact_targets(log_pi, q, action), action)
    np.testing.assert_allclose(agree, [[1.0, 0.0, -1.0]], atol=1e-6)
    apart = steps_of(
        algorithm_of(noise_uncertainty=0.0), exact_targets(log_pi, q * [[[1], [-1], [1], [-1]]], action), action
    )
    assert np.abs(apart[0, [0, 2]]).max() < 0.1
    noisy = steps_of(algorithm_of(noise_uncertainty=1.0), exact_targets(log_pi, q, action, noise=5.0), action)
    np.testing.assert_allclose(noisy, np.array([[1.0, 0.0, -1.0]]) * 0.158, atol=0.01)  # erf(1 / (5 sqrt 2))
    hopeful = algorithm_of(noise_uncertainty=1.0, optimism=0.5)
    assert (steps_of(hopeful, exact_targets(log_pi, q, action, noise=5.0), action) > 0).all()


def test_noise_counts_less_towards_the_horizon(monkeypatch):
    counted = []

    def learn(self, state, *_):
        counted.append(float(self.config.noise_uncertainty))
        return state, {}

    monkeypatch.setattr(ncapo.OffPolicy, "learn", learn)
    sizes = {"n_envs": 2, "rollout_length": 5, "horizon": 100}
    for schedule in ("constant", "linear"):
        algorithm = algorithm_of(noise_uncertainty=0.8, noise_uncertainty_schedule=schedule, **sizes)
        for iteration in (0, 5, 10, 50):
            algorithm.learn(None, None, Iteration.number(iteration), None)
        assert algorithm.config.noise_uncertainty == 0.8
    np.testing.assert_allclose(counted, [0.8] * 4 + [0.8, 0.4, 0.0, 0.0], atol=1e-6)


def test_one_head_has_the_noise_alone():
    log_pi, q, action = np.log(np.full((2, 3), 1 / 3)), np.array([[1.0, 0.0, -1.0]] * 2), np.array([0, 1])
    targets = exact_targets(log_pi, q[:, None], action, noise=2.0)
    single = targets._replace(q=targets.q[:, :, 0], returns=targets.returns[..., 0])
    got = steps_of(algorithm_of(critic_heads=1, noise_uncertainty=1.0), single, action)
    np.testing.assert_allclose(got[0], [0.383, 0.0, -0.383], atol=1e-3)  # erf(1 / (2 sqrt 2))


def test_each_head_learns_from_its_own_returns():
    rng = np.random.default_rng(0)
    batch = make_batch(rng)
    log_pi = jax.nn.log_softmax(jnp.asarray(rng.normal(size=(3, 6, 3))))
    q = jnp.asarray(rng.normal(size=(3, 6, 4, 3)))
    config = NCAPOConfig(retrace_lambda=0.8)
    targets = ensemble_targets(config, batch, log_pi, q)
    for head in range(4):
        alone = retrace_targets(config, batch, log_pi, q[:, :, head])
        np.testing.assert_allclose(targets.returns[..., head], alone.returns, atol=1e-6)
        np.testing.assert_allclose(targets.advantage[..., head], alone.advantage, atol=1e-6)
    critic = CriticHead(False, 51, -1.0, 1.0, n_heads=4)
    outputs = q.reshape(3, 6, 12)[:, :5]
    got = critic.loss(outputs, batch.action, targets.returns)
    for at in np.ndindex(3, 5):
        errors = [float(q[(*at, head, int(batch.action[at]))] - targets.returns[(*at, head)]) for head in range(4)]
        assert float(got[at]) == pytest.approx(np.mean(np.square(errors)), rel=1e-4)


def test_regression_of_logits_converges_to_the_coordinate_update():
    rng = np.random.default_rng(0)
    log_pi = np.log(rng.dirichlet(np.ones(4), size=20)).astype(np.float32)
    signs = rng.choice([-1.0, 0.0, 1.0], size=(20, 4))
    config = NCAPOConfig(kl="logits")
    target = ncapo.actor_target(jnp.asarray(log_pi), jnp.asarray(signs), config)
    descend = jax.grad(lambda t: ncapo.actor_loss(jax.nn.log_softmax(t), target, "logits").sum())
    theta = jax.lax.fori_loop(0, 60, lambda _, t: t - 0.5 * descend(t), jnp.asarray(log_pi))
    expected = coordinate_update(log_pi, signs, StepSize("clipped", clip=50.0).alpha(log_pi, signs))
    np.testing.assert_allclose(jax.nn.softmax(theta), np.exp(expected), atol=1e-4)


def test_a_rare_action_comes_back_as_fast_as_any():
    """The first step of the logits is the paper's table update; that of KL(pi || pi~) is damped by pi."""
    theta = jnp.array([0.0, -8.0])
    target = ncapo.actor_target(jax.nn.log_softmax(theta), jnp.array([0.0, 1.0]), NCAPOConfig())

    def pull(kl):
        step = jax.grad(lambda t: ncapo.actor_loss(jax.nn.log_softmax(t), target, kl))(theta)
        return float(step[0] - step[1])

    assert pull("logits") == pytest.approx(8.0, rel=1e-3)
    assert pull("policy-to-target") < 0.01


def test_below_the_floor_an_action_is_not_lowered():
    log_pi = jnp.log(jnp.array([0.9, 0.0995, 0.0005]))
    down = jnp.array([0.0, -1.0, -1.0])
    config = NCAPOConfig(floor=1e-3)
    target = ncapo.actor_target(log_pi, down, config)
    assert float(target[2] - target[0]) == pytest.approx(float(log_pi[2] - log_pi[0]), rel=1e-5)
    assert float(target[1] - target[0]) < float(log_pi[1] - log_pi[0]) - 1
    assert float(ncapo.actor_target(log_pi, -down, config)[2]) > float(log_pi[2]) + 1


def test_the_size_of_rewards_changes_no_step_in_units_of_noise():
    """Rewards and Q' times 100: the losses' gradients are the same."""
    algorithm = algorithm_of()
    params = algorithm.init_params(np.random.default_rng(0))
    batch = make_batch(np.random.default_rng(1))

    def norms(scale):
        scaled = jax.tree.map(jnp.asarray, params)
        head = scaled["critic"]["head"]
        scaled["critic"]["head"] = {name: scale * leaf for name, leaf in head.items()}
        target = algorithm.init_target(scaled)
        loss = lambda p: algorithm.loss(p, target, batch._replace(reward=scale * batch.reward), 0.0, "both")[0]
        grads = jax.grad(loss)(scaled)
        return [float(jnp.linalg.norm(grads[name]["head"]["bias"])) for name in ("actor", "critic")]

    (actor, critic), (actor_100, critic_100) = norms(1.0), norms(100.0)
    assert actor_100 == pytest.approx(actor, rel=1e-3)
    assert 100 * critic_100 == pytest.approx(critic, rel=1e-3)  # on values 100 times as large: d log(loss)


def slow_unit(unit, reward, ended, gamma):
    """The unit after rollouts, with loops."""
    largest = 0.0
    for row, ends in zip(reward, ended, strict=True):
        for start in range(len(row)):
            total, factor = 0.0, 1.0
            for one, end in zip(row[start:], ends[start:], strict=True):
                total += factor * one
                factor *= gamma
                if end:
                    break
            largest = max(largest, abs(total))
    return max(largest, max(units.KEPT * unit, units.LEAST) if unit else units.FIRST)


@pytest.mark.parametrize("unit", [0.0, 1e-3, 5.0, 1e3])
def test_the_unit_is_the_largest_sum_of_rewards(unit):
    rng = np.random.default_rng(0)
    reward, ended = rng.normal(size=(7, 9)).astype(np.float32), rng.random((7, 9)) < 0.2
    got = units.grown(jnp.float32(unit), jnp.asarray(reward), jnp.asarray(ended), 0.9)
    np.testing.assert_allclose(got, slow_unit(unit, reward, ended, 0.9), rtol=1e-5)


def test_another_unit_changes_no_value():
    algorithm = algorithm_of(critic_units="returns")
    params = algorithm.init_params(np.random.default_rng(0))
    obs = jnp.asarray(np.random.default_rng(1).normal(size=(6, 4)), jnp.float32)
    values = lambda params: networks.outputs(algorithm.network, params["critic"], obs)
    first = units.changed(params, jnp.float32(8.0))
    np.testing.assert_allclose(values(first), 8.0 * values(params), rtol=1e-5)  # the first unit sets the scale
    again = units.changed({"critic": first, "average": first}, jnp.float32(500.0))
    for one in (again["critic"], again["average"]):
        assert float(one["critic"]["head"]["unit"]) == 500.0
        np.testing.assert_allclose(values(one), values(first), rtol=1e-5)
    assert "unit" not in again["critic"]["actor"]["head"]


def test_without_rewards_the_unit_does_not_vanish():
    def step(_, unit):
        return units.grown(unit, jnp.zeros((2, 3)), jnp.zeros((2, 3), bool), 0.99)

    assert float(jax.lax.fori_loop(0, 50_000, step, jnp.float32(1.0))) == np.float32(units.LEAST)


def test_a_parameter_of_an_own_network_may_be_called_unit():
    own = {"body": {"own": {"unit": {"w": jnp.ones(2)}, "head": {"unit": jnp.ones(3)}}}, "head": {"kernel": 1}}
    assert units.changed({"critic": own}, jnp.float32(5.0))["critic"] is not own
    jax.tree.map(np.testing.assert_array_equal, units.changed({"critic": own}, jnp.float32(5.0)), {"critic": own})


def test_a_categorical_critic_has_no_unit():
    algorithm = algorithm_of(critic="categorical", critic_heads=1, critic_units="returns")
    assert "unit" not in algorithm.init_params(np.random.default_rng(0))["critic"]["head"]


@pytest.mark.parametrize("scale", [2.0, 2.0**12])
def test_in_units_of_returns_a_training_does_not_depend_on_the_size_of_rewards(scale):
    """Of rewards of 1 and more; the first iteration has some."""
    settings = {"width": 16, "n_envs": 4, "rollout_length": 16, "horizon": 2000}
    plain, scaled = (capo.NCAPO("catch", reward_scale=x, **settings).learn(320) for x in (1.0, scale))
    obs = np.random.default_rng(0).random((32, *plain.env.observation_shape)).astype(plain.env.observation_dtype)
    (pi, values), (same_pi, scaled_values) = plain.policy(obs), scaled.policy(obs)
    assert abs(pi - 1 / 3).max() > 0.01, "something was learned"
    np.testing.assert_allclose(same_pi, pi, atol=1e-4)
    np.testing.assert_allclose(scaled_values / scale, values, atol=1e-4)


def test_each_network_clips_its_own_gradient():
    gradients = {"actor": {"a": jnp.array([0.3, 0.4])}, "critic": {"b": jnp.array([30.0]), "c": jnp.array([40.0])}}
    own, _ = optimisers.clip_each_by_norm(0.8).update(gradients, optax.EmptyState())
    np.testing.assert_allclose(own["actor"]["a"], [0.3, 0.4])
    np.testing.assert_allclose([*own["critic"]["b"], *own["critic"]["c"]], [0.48, 0.64], rtol=1e-5)
    together, _ = optax.clip_by_global_norm(0.8).update(gradients, optax.EmptyState())
    assert float(together["actor"]["a"][0]) < 0.01


@pytest.mark.parametrize(("shared_trunk", "moved"), [(False, True), (True, False)])
def test_a_shared_trunk_is_clipped_as_one(shared_trunk, moved):
    """Gradients beyond the limit by a factor that the two networks do not share."""
    params = algorithm_of(shared_trunk=shared_trunk).init_params(np.random.default_rng(0))
    grads = jax.tree.map(jnp.ones_like, params) | {"actor": jax.tree.map(lambda x: 1e3 * x, params["actor"])}

    def step(**settings):
        optimiser = algorithm_of(shared_trunk=shared_trunk, optimiser="rmsprop", **settings).optimiser()
        return jax.tree.leaves(optimiser.update(grads, optimiser.init(params))[1])

    pairs = zip(step(clip_each_network=True), step(), strict=True)
    assert any(not np.allclose(one, other) for one, other in pairs) == moved


def test_it_learns_what_fits_the_observation():
    settings = {"n_envs": 16, "rollout_length": 4, "gamma": 0.9, "learning_rate": 3e-3, "width": 32, "seed": 0}
    agent = capo.NCAPO("probe-both", **settings).learn(10_000)
    assert agent.config.advantage_weight == "certain"
    assert agent.evaluate(episodes=200).mean > 0.95


@pytest.mark.parametrize("heads", [1, 4])
def test_explorers_follow_a_head_each_and_the_others_the_policy(heads):
    algorithm = algorithm_of(critic_heads=heads, explorers=0.5)
    params = algorithm.init_params(np.random.default_rng(0))
    obs = jnp.asarray(np.random.default_rng(1).normal(size=(5, 4)), jnp.float32)
    acting = algorithm.acting_params(params)
    mu = np.exp(algorithm.behaviour(acting, obs, jnp.float32(0.3)))
    np.testing.assert_allclose(mu.sum(-1), 1.0, atol=1e-5)
    policy = algorithm_of(critic_heads=heads)
    np.testing.assert_allclose(mu[2:], np.exp(policy.behaviour(params["actor"], obs[2:], 0.3)), atol=1e-6)
    q = np.asarray(networks.outputs(algorithm.network, params["critic"], obs)).reshape(5, heads, 3)
    for env in (0, 1):
        best = q[env, env % heads].argmax()
        np.testing.assert_allclose(mu[env], np.where(np.arange(3) == best, 0.8, 0.1), atol=1e-6)
    np.testing.assert_array_equal(
        algorithm.action_scores(acting, obs), policy.action_scores(policy.acting_params(params), obs)
    )  # what is evaluated is the policy
    alone = algorithm.behaviour(acting, obs[:1], jnp.float32(0.3))  # a single environment never explores so
    np.testing.assert_allclose(np.exp(alone), np.exp(policy.behaviour(params["actor"], obs[:1], 0.3)), atol=1e-6)


@pytest.mark.parametrize("settings", [{"critic_heads": 3}, {"critic_heads": 0}])
def test_heads_that_do_not_fit_are_refused(settings):
    with pytest.raises(CapoError, match="critic_heads="):
        NCAPOConfig(**settings)


def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path):
    sizes = {
        "n_envs": 4,
        "rollout_length": 4,
        "batch_size": 4,
        "gradient_steps": 2,
        "replay_rollouts": 12,
        "width": 8,
    }

    def new():
        return capo.NCAPO("probe-both", horizon=96, **sizes, **CERTAIN, explorers=0.25).learn(48)

    whole = new().learn(48)
    second = capo.NCAPO.load(new().save(tmp_path / "agent")).learn(48)
    states = [agent._states.groups[0].state for agent in (whole, second)]
    for one, other in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(one, other)
