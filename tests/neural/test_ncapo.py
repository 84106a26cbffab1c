"""The NCAPO update is the paper's: on a table of logits it reproduces tabular CAPO."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capo.neural.algorithms import ncapo
from capo.neural.algorithms.base import means, scan_means
from capo.neural.algorithms.ncapo import NCAPOAlgorithm, NCAPOConfig
from capo.neural.algorithms.offpolicy import retrace_targets
from capo.neural.parts import networks, policies
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.replay import Rollout
from capo.update import StepSize, coordinate_update

KLS = ("policy-to-target", "target-to-policy")
GAMMA = 0.9


class Vectors:
    """The shapes of an environment: all that an algorithm needs of one."""

    name, n_actions, truncates = "vectors", 3, False
    observation_shape, observation_dtype = (4,), np.float32


def algorithm_of(**settings):
    return NCAPOAlgorithm(NCAPOConfig(width=8, **settings), Vectors())


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@partial(jax.jit, static_argnames=("kl", "steps"))
def regress(theta, target, kl, steps=400):
    """Descend the actor's loss on a fixed target until it stands still, from logits theta (S, A).

    The policy is one-hot linear: its logits are the table itself. The gradient is divided by about pi, as a
    natural gradient would, since an action with pi = 1e-20 would otherwise need 1e20 steps.
    """

    def loss(theta):
        return ncapo.actor_loss(jax.nn.log_softmax(theta), target, kl).sum()

    def step(_, theta):
        scale = jnp.maximum(jax.nn.softmax(theta), 1e-300)
        if kl == "target-to-policy":
            scale = jnp.maximum(scale, jnp.exp(target))
        return theta - 0.5 * jax.grad(loss)(theta) / scale

    return jax.lax.fori_loop(0, steps, step, theta)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kl", KLS)
@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
def test_regression_to_convergence_is_the_coordinate_update(kl, sign):
    config = NCAPOConfig(kl=kl)
    rng = np.random.default_rng(0)
    log_pi = np.log(rng.dirichlet(np.ones(4), size=50))
    action = rng.integers(0, 4, 50)
    advantage = np.where(np.arange(4) == action[:, None], sign * rng.uniform(0.1, 3, (50, 1)), 0.0)
    target = ncapo.actor_target(jnp.asarray(log_pi), jnp.asarray(advantage), config)
    got = jax.nn.softmax(regress(jnp.asarray(log_pi), target, kl))
    signs = np.sign(advantage)
    expected = np.exp(coordinate_update(log_pi, signs, StepSize("clipped", clip=50.0).alpha(log_pi, signs)))
    np.testing.assert_allclose(got, expected, atol=1e-6)
    if sign:
        assert np.abs(np.exp(log_pi) - expected).max() > 0.1
    # and the closed form of the log step, independently of update.py
    pi = np.exp(log_pi)
    taken = pi[np.arange(50), action]
    closed = {1.0: 1 / (2 - taken), -1.0: taken**2 / (1 - taken + taken**2), 0.0: taken}[sign]
    np.testing.assert_allclose(np.asarray(got)[np.arange(50), action], closed, atol=1e-6)


def advantages(pi, transition, reward):
    """Exact A (S, A) of a policy (S, A), with noise at convergence cut off."""
    n = len(pi)
    flow = np.einsum("sa,sat->st", pi, transition)
    value = np.linalg.solve(np.eye(n) - GAMMA * flow, (pi * reward).sum(-1))
    advantage = reward + GAMMA * transition @ value - value[:, None]
    return np.where(np.abs(advantage) < 1e-9, 0.0, advantage)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kl", KLS)
def test_twenty_rounds_follow_tabular_batch_capo(kl):
    config = NCAPOConfig(kl=kl)
    rng = np.random.default_rng(1)
    transition, reward = rng.dirichlet(np.full(6, 0.3), size=(6, 3)), rng.uniform(size=(6, 3))
    log_pi = np.full((6, 3), -np.log(3.0))
    theta = jnp.asarray(log_pi)
    changes = []
    for _ in range(20):
        sign = np.sign(advantages(np.exp(log_pi), transition, reward))
        before = np.exp(log_pi)
        log_pi = coordinate_update(log_pi, sign, StepSize("clipped", clip=50.0).alpha(log_pi, sign))
        neural = jax.nn.log_softmax(theta)
        exact = advantages(np.exp(np.asarray(neural)), transition, reward)
        theta = regress(theta, ncapo.actor_target(neural, jnp.asarray(exact), config), kl)
        np.testing.assert_allclose(jax.nn.softmax(theta), np.exp(log_pi), atol=1e-4)
        changes.append(np.abs(np.exp(log_pi) - before).max())
    assert changes[0] > 0.1
    assert sum(change > 1e-3 for change in changes) >= 4  # a trajectory, not one jump


def test_the_gradient_at_the_start_is_the_papers():
    """At its own starting point the gradient of KL(pi || pi~) is -alpha sign(A) pi_a (e_a - pi)."""
    config = NCAPOConfig()
    theta = jnp.array([0.3, -0.5, 1.0])
    pi = jax.nn.softmax(theta)
    for sign in (1.0, -1.0):
        target = ncapo.actor_target(jnp.log(pi), jnp.array([0.0, sign, 0.0]), config)
        got = jax.grad(lambda t, goal=target: ncapo.actor_loss(jax.nn.log_softmax(t), goal, config.kl))(theta)
        expected = jnp.log(pi[1]) * sign * pi[1] * (jnp.array([0.0, 1.0, 0.0]) - pi)
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_alpha_clip_bonus_and_weight():
    log_pi = jnp.log(jnp.array([0.01, 0.99]))
    advantage = jnp.array([2.0, 0.0])

    def step(**settings):
        """The alpha that was added to theta of the first action."""
        target = ncapo.actor_target(log_pi, advantage, NCAPOConfig(**settings))
        return float((target[0] - target[1]) - (log_pi[0] - log_pi[1]))

    assert step() == pytest.approx(-np.log(0.01), rel=1e-5)
    assert step(clip=1.5) == pytest.approx(1.5, rel=1e-5)
    assert step(step_size="fixed", fixed_alpha=0.25, clip=0.1) == pytest.approx(0.25, rel=1e-5)
    assert step(clip=1.5, alpha_bonus=0.1) == pytest.approx(1.6, rel=1e-5)
    assert step(clip=1.5, advantage_weight="normalised") == pytest.approx(3.0, rel=1e-5)


def test_sign_is_the_default_with_expected_signs_instead_of_the_size_of_the_advantage():
    for game in ("minatar-asterix", "MinAtar/Asterix-v1"):
        default, sign = (NCAPOConfig.preset(name, game).to_dict() for name in ("default", "sign"))
        critic = {"critic_heads", "noise_uncertainty", "noise_uncertainty_schedule"}
        differs = {name for name in sign if sign[name] != default[name]}
        assert differs == {"advantage_weight", "gradient_steps", "tau_q", *critic}
        assert sign["advantage_weight"] == "certain"
        assert default["evaluation"] == sign["evaluation"] == "best"
    assert NCAPOConfig.preset("sign", "CartPole-v1") == NCAPOConfig.preset("default", "CartPole-v1")


def test_normalised_weights_do_not_depend_on_the_scale_of_the_rewards():
    """With Q' = 0 the advantages are proportional to the rewards."""
    algorithm = algorithm_of(advantage_weight="normalised")
    params = algorithm.init_params(np.random.default_rng(0))
    target = jax.tree.map(jnp.zeros_like, algorithm.init_target(params))
    batch = make_batch(algorithm.network, False, np.random.default_rng(0))
    loss = jax.jit(lambda b: algorithm.loss(params, target, b, 0.0, "both")[1]["actor_loss"])
    small, large = (float(loss(batch._replace(reward=scale * batch.reward))) for scale in (1.0, 100.0))
    assert small == pytest.approx(large, rel=1e-4)


def make_batch(spec, truncates, rng, batch=3, length=5):
    rows = length * 2 if truncates else length + 1
    shape = (batch, length)
    return Rollout(
        obs=jnp.asarray(rng.normal(size=(batch, rows, *spec.observation_shape)), jnp.float32),
        action=jnp.asarray(rng.integers(0, spec.n_actions, shape)),
        reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
        terminated=jnp.asarray(rng.uniform(size=shape) < 0.2),
        truncated=jnp.zeros(shape, bool),
        log_mu=jnp.full(shape, -1.0),
    )


def test_the_actors_lambda_changes_its_advantages_alone():
    """A part of the critic's lambda: 0 gives advantages that look one step ahead, 1 those of its returns."""
    rng = np.random.default_rng(0)
    batch = make_batch(networks.spec_for(NCAPOConfig(width=8), (4,), 3), False, rng)
    log_pi = jax.nn.log_softmax(jnp.asarray(rng.normal(size=(3, 6, 3))))
    q = jnp.asarray(rng.normal(size=(3, 6, 3)))

    def evaluated(**values):
        return retrace_targets(NCAPOConfig(gamma=GAMMA, **values), batch, log_pi, q)

    one = evaluated(retrace_lambda=0.8, actor_lambda=0.0)
    value = np.sum(np.exp(log_pi) * q, axis=-1)
    ahead = batch.reward + GAMMA * (1 - np.asarray(batch.terminated)) * value[:, 1:]
    np.testing.assert_allclose(one.advantage, ahead - value[:, :5], atol=1e-5)
    same, half, low = evaluated(retrace_lambda=0.8), evaluated(retrace_lambda=0.8, actor_lambda=0.5), 0.4
    np.testing.assert_array_equal(same.returns, one.returns)
    np.testing.assert_allclose(same.advantage, same.returns - value[:, :5], atol=1e-6)
    np.testing.assert_array_equal(half.returns, one.returns)
    np.testing.assert_allclose(half.advantage, evaluated(retrace_lambda=low).advantage, atol=1e-6)
    assert np.abs(half.advantage - same.advantage).max() > 1e-3


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("target_critic", ["full", "head"])
@pytest.mark.parametrize("target_from", ["current", "target-network"])
def test_the_target_networks_are_used_as_configured(shared, target_critic, target_from):
    algorithm = algorithm_of(shared_trunk=shared, target_critic=target_critic, target_from=target_from)
    spec = algorithm.network
    params, other = (networks.init(spec, np.random.default_rng(seed)) for seed in (0, 1))
    target = algorithm.init_target(other)
    batch = make_batch(spec, False, np.random.default_rng(0))
    logits, _, features = networks.logits_and_q(spec, params, batch.obs[:, :5])
    inputs = networks.inputs(spec, batch.obs)
    log_pi, q = algorithm.slow_policy_and_q(params, target, inputs, logits, features)
    source = other if target_from == "target-network" else params
    expected = jax.nn.log_softmax(networks.outputs(spec, networks.select(source, "actor"), batch.obs))
    np.testing.assert_allclose(log_pi, expected, atol=1e-6)
    critic = networks.select(other, "critic")
    if target_critic == "head":
        critic = {"body": networks.select(params, "critic")["body"], "head": critic["head"]}
    np.testing.assert_allclose(q, networks.outputs(spec, critic, batch.obs), atol=1e-5)


def test_targets_move_by_their_taus():
    algorithm = algorithm_of(target_from="target-network", tau_q=0.25, tau_policy=1.0)
    old, new = (networks.init(algorithm.network, np.random.default_rng(seed)) for seed in (0, 1))
    moved = algorithm.update_target(new, algorithm.init_target(old))
    np.testing.assert_array_equal(moved["actor"]["head"]["kernel"], new["actor"]["head"]["kernel"])
    mixed = 0.75 * old["critic"]["head"]["kernel"] + 0.25 * new["critic"]["head"]["kernel"]
    np.testing.assert_allclose(moved["critic"]["head"]["kernel"], mixed, atol=1e-6)


def test_the_average_of_all_networks_is_what_is_played():
    algorithm = algorithm_of(tau_average=0.25, shared_trunk=True)
    old, new = (networks.init(algorithm.network, np.random.default_rng(seed)) for seed in (0, 1))
    moved = algorithm.update_target(new, algorithm.init_target(old))
    mixed = jax.tree.map(lambda a, b: 0.75 * a + 0.25 * b, old, new)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), moved["average"], mixed)
    state = SimpleNamespace(params=new, target=moved)
    assert algorithm.played(state) is moved["average"]
    plain = algorithm_of(shared_trunk=True)
    assert "average" not in plain.init_target(old)
    assert plain.played(SimpleNamespace(params=new, target=plain.init_target(old))) is new


def test_successor_rows_replace_the_next_rows():
    """The same rollouts in both layouts give the same loss."""
    algorithm = algorithm_of()
    spec = algorithm.network
    params = networks.init(spec, np.random.default_rng(0))
    target = algorithm.init_target(networks.init(spec, np.random.default_rng(1)))
    short = make_batch(spec, False, np.random.default_rng(0))
    long = short._replace(obs=jnp.concatenate([short.obs[:, :5], short.obs[:, 1:]], axis=1))

    @jax.jit
    def loss(batch):
        return algorithm.loss(params, target, batch, 0.0, "both")[0]

    a, b = loss(short), loss(long)
    np.testing.assert_allclose(a, b, rtol=1e-5)
    changed = long._replace(obs=long.obs.at[:, 7].add(1.0))
    assert abs(float(loss(changed) - b)) > 1e-4


@pytest.mark.parametrize(
    ("train", "moves"), [("both", {"actor", "critic"}), ("critic", {"critic"}), ("actor", {"actor"})]
)
def test_only_the_trained_part_moves(train, moves):
    algorithm = algorithm_of()
    params = networks.init(algorithm.network, np.random.default_rng(0))
    target, opt_state = algorithm.init_target(params), algorithm.init_optimiser(params)
    batch = make_batch(algorithm.network, False, np.random.default_rng(0))
    step = jax.jit(lambda p: algorithm.gradient_step(p, opt_state, target, batch, 1e-2, 0.0, train))
    new, _, metrics = step(params)
    moved = {
        name
        for name in ("actor", "critic")
        if not np.array_equal(new[name]["head"]["kernel"], params[name]["head"]["kernel"])
    }
    assert moved == moves
    assert all(np.isfinite(value) for value in metrics.values())


def test_rmsprop_is_the_one_of_pytorch():
    """v = 0.99 v + 0.01 g^2 from v = 0, step g / (sqrt(v) + eps): the epsilon outside the root."""
    transform = algorithm_of(optimiser="rmsprop", optimiser_epsilon=1e-2, max_grad_norm=1e9).optimiser()
    gradient = jnp.array([0.5, -0.02])
    state = transform.init(gradient)
    v = np.zeros(2)
    for _ in range(3):
        step, state = transform.update(gradient, state)
        v = 0.99 * v + 0.01 * np.asarray(gradient) ** 2
    np.testing.assert_allclose(step, np.asarray(gradient) / (np.sqrt(v) + 1e-2), rtol=1e-5)


def test_gradients_are_clipped():
    # rmsprop's first step is g / (0.1 |g| + eps): with a large epsilon it is proportional to the clipped g
    big = algorithm_of(max_grad_norm=0.5, optimiser="rmsprop", optimiser_epsilon=1e6).optimiser()
    gradient = {"w": jnp.array([3.0, 4.0])}
    step, _ = big.update(gradient, big.init(gradient))
    np.testing.assert_allclose(step["w"] * 1e6, [0.3, 0.4], rtol=1e-3)


def test_schedules():
    options = {"horizon": 1000, "learning_rate": 1.0, "learning_rate_schedule": "linear"}
    algorithm = algorithm_of(n_envs=5, rollout_length=2, **options)
    epsilon = [float(algorithm.exploration(jnp.float32(f))) for f in (0, 50, 100, 5000)]
    np.testing.assert_allclose(epsilon, [0.3, 0.175, 0.05, 0.05], rtol=1e-5)
    rates = [float(algorithm.learning_rate(Iteration.number(frames // 10))) for frames in (0, 500, 1000, 5000)]
    np.testing.assert_allclose(rates, [1.0, 0.5, 0.0, 0.0], atol=1e-6)


def test_behaviour_mixes_in_epsilon():
    mu = jnp.exp(policies.mix_uniform(jax.nn.softmax(jnp.array([100.0, 0.0, 0.0, 0.0])), 0.2))
    np.testing.assert_allclose(mu, [0.85, 0.05, 0.05, 0.05], atol=1e-6)


@pytest.mark.parametrize(("train", "resting"), [("critic", "actor"), ("actor", "critic")])
def test_what_is_not_trained_costs_no_way_back(train, resting):
    """Separate networks: the resting one's gradient is 0 and not computed, even where its loss is not finite."""
    algorithm = algorithm_of(shared_trunk=False, target_from="target-network")
    spec = algorithm.network
    params = networks.init(spec, np.random.default_rng(0))
    target = algorithm.init_target(networks.init(spec, np.random.default_rng(1)))
    params[resting]["head"]["bias"] = np.full(3, np.inf, np.float32)
    batch = make_batch(spec, False, np.random.default_rng(0))
    grads, _ = jax.grad(lambda p: algorithm.loss(p, target, batch, 0.0, train), has_aux=True)(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads[train]))
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(grads[train])) > 0
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(grads[resting]))


def test_means_over_a_loop():
    each = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones((2, 3))}
    assert {name: float(x) for name, x in means(each).items()} == {"a": 2.5, "b": 1.0}

    def step(carry, x):
        return carry + x, {"twice": 2 * x, "before": carry}

    carry, logged = scan_means(step, jnp.float32(0), jnp.arange(4.0))
    assert float(carry) == 6
    assert {name: float(x) for name, x in logged.items()} == {"twice": 3.0, "before": 1.0}
