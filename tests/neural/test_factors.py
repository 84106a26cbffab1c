"""Actions of several factors (MultiDiscrete, MultiBinary): pi is a product, a coordinate a factor's action."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from helpers_shell import bits

import capo
from capo import envs
from capo.envs.failures import EnvironmentFailed
from capo.neural.algorithms.ncapo import actor_target, factor_advantages
from capo.neural.algorithms.offpolicy import Targets
from capo.neural.parts import policies
from capo.update import coordinate_update

SIZES = (2, 3)
PAIRS = [(a, b) for a in range(2) for b in range(3)]  # the joint actions, in the order of a flattened space
# What each factor's action pays in each of two contexts.
FIRST = np.array([[1.0, 0.0], [0.0, 0.5]], np.float32)
SECOND = np.array([[0.0, 0.2, 1.0], [1.0, 0.3, 0.0]], np.float32)
BEST = [(0, 2), (1, 0)]

REPLAY = {"n_envs": 8, "rollout_length": 4, "batch_size": 16, "gradient_steps": 4, "width": 16}
SETTINGS = {
    "NCAPO": REPLAY | {"replay_rollouts": 256, "learning_rate": 5e-3, "kl": "target-to-policy"},
    "OffPAC": REPLAY | {"replay_rollouts": 256, "learning_rate": 5e-3},
    "A2C": {"n_envs": 8, "rollout_length": 4, "width": 16, "learning_rate": 5e-3, "optimiser": "adam"},
    "PPO": {"n_envs": 8, "rollout_length": 8, "batch_size": 32, "epochs": 4, "width": 16, "learning_rate": 1e-2},
    "Rainbow": {
        "n_envs": 8, "rollout_length": 4, "gradient_steps": 4, "batch_size": 32, "learning_starts": 64,
        "replay_transitions": 1024, "width": 16, "distributional": False, "noisy": False, "epsilon_start": 1.0,
        "epsilon_fraction": 0.5, "target_every": 64, "learning_rate": 5e-3,
    },
}  # fmt: skip


def make(algorithm, env, **more):
    return getattr(capo, algorithm)(env, **(SETTINGS[algorithm] | more))


class Dials:
    """One step: two dials are set, and each pays by the context seen."""

    name = "dials"
    n_actions = 5
    factors: tuple[int, ...] = SIZES
    observation_shape = (2,)
    observation_dtype = np.float32
    truncates = False

    def reset(self, key):
        context = jax.random.bernoulli(key).astype(jnp.int32)
        return context, jax.nn.one_hot(context, 2)

    def step(self, key, context, action):
        del key
        reward = jnp.asarray(FIRST)[context, action[0]] + jnp.asarray(SECOND)[context, action[1]]
        return context, jax.nn.one_hot(context, 2), reward, jnp.bool_(True), jnp.bool_(False)


class Flat(Dials):
    """The same with the pairs numbered."""

    name = "flat"
    n_actions = 6
    factors = ()

    def step(self, key, context, action):
        return super().step(key, context, jnp.array([action // 3, action % 3]))


class Jammed(Dials):
    """The best setting of the second dial can't be chosen; whoever does is paid nan."""

    name = "jammed"

    def action_mask(self, context):
        return jnp.ones(5, bool).at[2 + jnp.asarray(SECOND)[context].argmax()].set(False)

    def step(self, key, context, action):
        state, seen, reward, *ends = super().step(key, context, action)
        allowed = self.action_mask(context)[2 + action[1]]
        return (state, seen, jnp.where(allowed, reward, jnp.nan), *ends)


# The algebra ------------------------------------------------------------------------------------------------


def random_rows(n=20):
    rng = np.random.default_rng(0)
    logits, q = rng.standard_normal((2, n, 5)).astype(np.float32) * 2
    action = np.stack([rng.integers(0, 2, n), 2 + rng.integers(0, 3, n)], axis=-1)
    return jnp.asarray(logits), jnp.asarray(q), jnp.asarray(action)


def joint(per_factor, combine):
    """(..., 5) of two factors to (..., 6) of their pairs."""
    x = np.asarray(per_factor)
    return np.stack([combine(x[..., a], x[..., 2 + b]) for a, b in PAIRS], axis=-1)


def test_a_product_policy_is_the_joint_one():
    logits, q, action = random_rows()
    log_pi = policies.log_softmax(logits, SIZES)
    flat = np.asarray(jax.nn.log_softmax(joint(logits, np.add)))
    np.testing.assert_allclose(joint(log_pi, np.add), flat, atol=1e-5)
    number = np.asarray(action[:, 0] * 3 + action[:, 1] - 2)
    np.testing.assert_allclose(policies.taken(log_pi, action), flat[np.arange(20), number], atol=1e-5)
    np.testing.assert_allclose(policies.entropy(log_pi), policies.entropy(flat), atol=1e-5)
    pairs = joint(q, np.add)
    np.testing.assert_allclose(policies.taken(q, action), pairs[np.arange(20), number], atol=1e-5)
    np.testing.assert_allclose((np.exp(log_pi) * q).sum(-1), (np.exp(flat) * pairs).sum(-1), atol=1e-5)
    best = np.asarray(policies.best(q, SIZES))
    np.testing.assert_array_equal(best[:, 0] * 3 + best[:, 1] - 2, pairs.argmax(-1))


def test_sampling_and_exploring_by_factor():
    logits = policies.masked(jnp.array([0.0, 1.0, 2.0, 0.0, 1.0]), jnp.array([True, True, False, True, True]))
    drawn = np.asarray(policies.sample(jax.random.PRNGKey(0), jnp.broadcast_to(logits, (20_000, 5)), SIZES))
    found = np.bincount(drawn[:, 0] * 3 + drawn[:, 1] - 2, minlength=6) / 20_000
    wanted = joint(np.exp(policies.log_softmax(logits, SIZES)), np.multiply)
    np.testing.assert_allclose(found, wanted, atol=0.015)
    assert found[[0, 3]].sum() == 0
    pi = np.array([0.25, 0.75, 0.0, 0.5, 0.5], np.float32)
    mask = jnp.array([True, True, False, True, True])
    np.testing.assert_allclose(
        np.exp(policies.mix_uniform(pi, 0.2, mask, SIZES)),
        0.8 * pi + 0.2 * np.array([0.5, 0.5, 0, 0.5, 0.5]),
        atol=1e-6,
    )
    np.testing.assert_allclose(
        np.exp(policies.mix_uniform(pi, 0.2, None, SIZES)), 0.8 * pi + 0.2 / np.array([2, 2, 3, 3, 3]), atol=1e-6
    )


def test_the_update_of_a_factor_moves_every_pair_that_has_its_action():
    """theta(a, b) = theta_1(a) + theta_2(b): alpha * sign at a moves all (a, b); the policy stays a product."""
    logits, _, action = random_rows()
    log_pi = policies.log_softmax(logits, SIZES)
    rng = np.random.default_rng(1)
    advantage = jnp.asarray(
        np.where(policies.is_taken(action, 5, SIZES), rng.standard_normal((20, 5)), 0.0), jnp.float32
    )
    config = capo.NCAPO("probe-action", advantage_weight="none", floor=0.0).config
    found = actor_target(log_pi, advantage, config, SIZES)
    alpha = np.minimum(-np.asarray(log_pi), config.clip) * np.sign(advantage)
    moved = joint(log_pi, np.add) + joint(alpha, np.add)
    np.testing.assert_allclose(joint(np.exp(found), np.multiply), jax.nn.softmax(moved), atol=1e-5)
    for sizes in (slice(0, 2), slice(2, 5)):  # each factor by the paper's equation
        own = coordinate_update(log_pi[:, sizes], jnp.sign(advantage[:, sizes]), -log_pi[:, sizes])
        np.testing.assert_allclose(found[:, sizes], own, atol=1e-5)


def test_a_factor_is_credited_with_what_it_did():
    """If the critic is right, the advantages are exactly the factors' own, whatever the others did."""
    logits, q, action = random_rows()
    log_pi = policies.log_softmax(logits, SIZES)
    value = (jnp.exp(log_pi) * q).sum(-1)
    advantage = policies.taken(q, action) - value
    targets = Targets(log_pi[None], (advantage + value)[None], advantage[None], q[None])
    found = np.asarray(factor_advantages(targets, action[None], SIZES))[0]
    for factor, sizes in enumerate((slice(0, 2), slice(2, 5))):
        own = np.asarray(q - (jnp.exp(log_pi) * q)[:, sizes].sum(-1, keepdims=True))
        at = np.asarray(action[:, factor])
        np.testing.assert_allclose(found[np.arange(20), at], own[np.arange(20), at], atol=1e-5)
    # With one factor it is the plain advantage.
    single = Targets(log_pi[None, :, :2], targets.returns, advantage[None], q[None, :, :2])
    alone = factor_advantages(single, action[None, :, :1], (2,))
    np.testing.assert_allclose(alone[0], np.broadcast_to(np.asarray(advantage)[:, None], (20, 2)), atol=1e-5)


# Training ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", SETTINGS)
def test_the_same_solution_as_with_all_pairs_in_one_space(algorithm):
    contexts = np.eye(2, dtype=np.float32)
    agent = make(algorithm, Dials()).learn(6400)
    found, _ = agent.predict(contexts, deterministic=True)
    assert [tuple(row) for row in found.tolist()] == BEST
    assert agent.evaluate(64, deterministic=True).mean == pytest.approx(1.75, abs=0.3)
    flat, _ = make(algorithm, Flat()).learn(6400).predict(contexts, deterministic=True)
    assert [PAIRS[number] for number in flat] == BEST


@pytest.mark.parametrize("algorithm", ["NCAPO", "Rainbow"])
def test_masked_factors_and_a_run_that_is_cut(algorithm, tmp_path):
    whole = make(algorithm, Jammed(), horizon=256).learn(256)
    first = make(algorithm, Jammed(), horizon=256).learn(128)
    first.save(tmp_path / "agent")
    again = type(first).load(tmp_path / "agent", env=Jammed()).learn(128)
    assert bits(again) == bits(whole)
    assert np.isfinite(whole.evaluate(32).returns).all()
    other = type("Other", (Jammed,), {"factors": (3, 2)})()
    with pytest.raises(capo.CapoError, match="factors was"):
        type(first).load(tmp_path / "agent", env=other)


class Panel(gymnasium.Env):
    """A Gymnasium environment that insists on actions of its space, and on its mask."""

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)

    def __init__(self, action_space, mask=None):
        self.action_space, self.mask = action_space, mask

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.steps = 0
        return np.zeros(3, np.float32), self._info()

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        return np.ones(3, np.float32), float(np.sum(action)), self.steps == 4, False, self._info()

    def _info(self):
        return {} if self.mask is None else {"action_mask": self.mask}

    def __deepcopy__(self, memo):
        return Panel(self.action_space, self.mask)


SPACES = {
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "start": spaces.MultiDiscrete([2, 3], start=[-1, 5]),
    "grid": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "multi-binary": spaces.MultiBinary(4),
}


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("vector", [False, True])
def test_gymnasium_gets_actions_of_its_space(kind, vector):
    space = SPACES[kind]
    env = envs.make(SyncVectorEnv([lambda: Panel(space)] * 3) if vector else Panel(space))
    assert env.n_actions == sum(env.factors)
    opened = env.open(1)
    opened.reset(0)
    rng = np.random.default_rng(0)
    starts = np.cumsum([0, *env.factors[:-1]])
    for _ in range(20):
        own = np.stack([rng.integers(0, size, opened.n) for size in env.factors], axis=-1)
        moved = opened.step((own + starts).astype(np.int32))
        first = np.broadcast_to(getattr(space, "start", 0), space.shape).sum()
        wanted = (own.sum(axis=-1) + first)[moved.valid]
        np.testing.assert_array_equal(moved.reward[moved.valid], wanted)


def test_an_agent_on_the_host(tmp_path):
    space = SPACES["start"]
    mask = (np.array([True, False]), np.array([False, True, True], np.int8))  # as space.sample takes it
    agent = make("NCAPO", Panel(space, mask)).learn(64)
    replay = jax.tree.map(lambda leaf: np.asarray(leaf)[0], agent._states.groups[0].state.replay)
    assert replay.action.shape[-1] == 2
    assert set(map(tuple, replay.action[:8].reshape(-1, 2).tolist())) == {(0, 3), (0, 4)}
    flat = np.concatenate(mask)
    for shape in ((), (5,)):
        action, _ = agent.predict(np.zeros((*shape, 3), np.float32), action_masks=flat)
        assert action.shape == (*shape, 2)
        assert all(space.contains(row) and row[0] == -1 and row[1] != 5 for row in action.reshape(-1, 2))
    agent.evaluate(2)
    agent.watch(tmp_path / "play.gif")


# Mistakes ---------------------------------------------------------------------------------------------------


def test_what_factors_do_not_go_with():
    with pytest.raises(capo.CapoError, match="distributional=False"):
        make("Rainbow", Dials(), distributional=True).learn(64)
    with pytest.raises(capo.CapoError, match="leave critic='categorical' out"):
        make("NCAPO", Dials(), critic="categorical").learn(64)
    for factors in ((2, 2), (5, 0), (2.5, 2.5)):
        with pytest.raises(capo.CapoError, match="add up to n_actions=5"):
            envs.make(type("Wrong", (Dials,), {"factors": factors})())
    with pytest.raises(EnvironmentFailed, match="allows no action of one of the factors"):
        make("PPO", Panel(SPACES["multi-discrete"], np.array([1, 1, 0, 0, 0]))).learn(64)
    with pytest.raises(capo.CapoError, match="MultiDiscrete or MultiBinary"):
        envs.make(Panel(spaces.Box(-1, 1, (2,))))
