"""Environments: names, spaces, autoreset modes, the protocol and its documented example."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from helpers_envs import Counting, OneBuffer

import capo
from capo import envs
from capo.envs.gymnasium import GymEnv
from capo.envs.minatar.games import LOOP_ITERATIONS, NAMES
from capo.envs.minatar.unrolled import unroll_loops
from capo.errors import CapoError
from capo.neural.algorithms import registry as algorithms
from capo.neural.algorithms.ncapo import NCAPOConfig
from capo.neural.learners.host import Collector
from capo.neural.parts import replay


class Counter(gymnasium.Env):
    """Observes the step's number; episode e (from 0) ends after 2 + e % 3 steps, terminated if e is even."""

    action_space = spaces.Discrete(2, start=5)
    observation_space = spaces.Box(0, 99, (2,), np.float64)

    def __init__(self):
        self.episode = -1

    def _obs(self):
        return np.array([self.episode, self.steps], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.episode, self.steps = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action):
        assert action in (5, 6), "the space starts at 5"
        self.steps += 1
        end = self.steps == 2 + self.episode % 3
        even = self.episode % 2 == 0
        return self._obs(), float(action - 5), end and even, end and not even, {}


def vector(mode, n=3):
    return SyncVectorEnv([Counter] * n, autoreset_mode=mode)


def spec_of(config, env):
    shape = (env.observation_shape, env.observation_dtype, True)
    return replay.spec_for(*shape, n_envs=config.n_envs, length=config.rollout_length)


@pytest.mark.parametrize("mode", ["one", *AutoresetMode])
def test_every_autoreset_mode_gives_the_same_transitions(mode):
    """Each environment's own sequence of steps is what the environment itself says it is."""
    env = envs.make(Counter() if mode == "one" else vector(mode))
    config = NCAPOConfig(n_envs=6, rollout_length=4)
    spec = spec_of(config, env)
    collector = Collector(env.open(6), spec, seed=0)
    rng = np.random.default_rng(0)
    returns = 0

    def behave(obs, step):
        del step
        return rng.integers(0, 2, len(obs)), np.full(len(obs), -0.5, np.float32)

    for _ in range(4):
        rollouts, episodes = collector.collect(behave, 6)
        returns += episodes["episodes"]
        obs, successor = rollouts.obs[:, :4], rollouts.obs[:, 4:]
        episode, step = obs[..., 0], obs[..., 1]
        np.testing.assert_array_equal(successor[..., 0], episode)  # no step leads into another episode
        np.testing.assert_array_equal(successor[..., 1], step + 1)
        end = step + 1 == 2 + episode % 3
        np.testing.assert_array_equal(rollouts.terminated, end & (episode % 2 == 0))
        truncated = end & (episode % 2 == 1)
        truncated[:, -1] |= ~end[:, -1]  # 6 rollouts of 3 environments: the next ones may be another's
        np.testing.assert_array_equal(rollouts.truncated, truncated)
        np.testing.assert_array_equal(rollouts.reward, rollouts.action)
        goes_on = ~end[:, :-1]
        np.testing.assert_array_equal(obs[:, 1:][goes_on], successor[:, :-1][goes_on])
        np.testing.assert_array_equal(step[:, 1:][~goes_on], 0)  # and every end is followed by a start
    assert returns > 10


def test_an_on_policy_learner_gets_no_steps_of_an_earlier_policy():
    config = NCAPOConfig(n_envs=6, rollout_length=4)
    rng = np.random.default_rng(0)

    def collector(fresh):
        env = envs.make(gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync"))
        spec = spec_of(config, env)
        return Collector(env.open(3), spec, seed=0, fresh=fresh)

    fresh, usual = collector(True), collector(False)
    stale = 0
    for policy in range(20):

        def behave(obs, step, policy=policy):
            del step
            return rng.integers(0, 2, len(obs)), np.full(len(obs), -policy, np.float32)

        assert (fresh.collect(behave, 6)[0].log_mu == -policy).all()
        stale += int((usual.collect(behave, 6)[0].log_mu != -policy).sum())
    assert stale > 0  # without it there are some
    assert {name for name, row in algorithms.ROWS.items() if row.algorithm.on_policy} == {"a2c", "ppo", "pqn"}


@pytest.mark.parametrize("where", ["each", "all"])
def test_copies_of_a_vector_environment_keep_its_wrappers(where):
    def times_seven(env):
        return gymnasium.wrappers.TransformReward(env, lambda reward: 7 * reward)

    if where == "each":
        made = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync", wrappers=[times_seven])
    else:
        made = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
        made = gymnasium.wrappers.vector.TransformReward(made, lambda reward: 7 * reward)
    copies = GymEnv(made).open_for_evaluation(2)
    if where == "all":
        assert copies is None  # one alone cannot be made: the vector itself is played
        copies = GymEnv(made).open(2)
    copies.reset(0)
    assert copies.step(np.zeros(2, np.int64)).reward.tolist() == [7.0, 7.0]


def test_an_environment_that_reuses_its_array_does_not_leak_into_the_next_episode():
    envs = GymEnv(OneBuffer()).open(1)
    envs.reset(0)
    steps = [envs.step(np.zeros(1, np.int64)) for _ in range(6)]
    assert [float(step.successor[0, 0]) for step in steps] == [1, 2, 3, 4, 5, 1]
    assert [float(step.obs[0, 0]) for step in steps] == [1, 2, 3, 4, 0, 1]
    assert [bool(step.truncated[0]) for step in steps] == [False] * 4 + [True, False]


def test_arguments_follow_an_id(tmp_path):
    name = "FrozenLake-v1,map_name=8x8,is_slippery=False"
    assert envs.make("FrozenLake-v1").observation_shape == (16,)
    env = envs.make(name)
    assert (env.name, env.observation_shape) == (name, (64,))
    assert env._make_one().unwrapped.spec.kwargs["is_slippery"] is False
    for wrong, message in (("map_name", "as in FrozenLake-v1,map_name=8x8"), ("no_such=1", "no_such")):
        with pytest.raises(CapoError, match=message):
            envs.make(f"FrozenLake-v1,{wrong}")
    settings = {"n_envs": 2, "rollout_length": 2, "width": 8, "gradient_steps": 1, "replay_rollouts": 32}
    agent = capo.NCAPO(name, out=tmp_path / "run", **settings).learn(4)
    assert capo.NCAPO.resume(tmp_path / "run").env.name == agent.env.name == name


def test_gymnasium_spaces_are_encoded():
    frozen = envs.make("FrozenLake-v1")
    assert (frozen.observation_shape, frozen.observation_dtype, frozen.n_actions) == ((16,), np.bool_, 4)
    np.testing.assert_array_equal(frozen.encode(np.array([0, 3])).argmax(-1), [0, 3])
    cart = envs.make("CartPole-v1")
    assert (cart.name, cart.observation_shape, cart.n_actions, cart.jitted) == ("CartPole-v1", (4,), 2, False)
    assert envs.make(Counter()).observation_dtype == np.float32

    class Bits(Counter):
        observation_space = spaces.MultiBinary([2, 3])

    bits = envs.make(Bits())
    assert (bits.observation_shape, bits.observation_dtype, bits.raw_shape) == ((2, 3), np.bool_, (2, 3))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("minatar-brekout", "did you mean 'minatar-breakout'"),
        ("CartPole-v9", "did you mean 'CartPole-v1'"),
        ("Pendulum-v1", "Box.*finite number of actions"),
        (3, "is not an environment"),
    ],
)
def test_mistakes_are_named(env, message):
    with pytest.raises(CapoError, match=message):
        envs.make(env)


@pytest.mark.parametrize("name", NAMES)
def test_minatar_games_step_under_jit(name):
    env = envs.make(name)
    assert env.observation_dtype == np.bool_
    state, obs = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
    state2, obs2, reward, _, _ = jax.eval_shape(env.step, jax.random.PRNGKey(0), state, jnp.int32(0))
    assert obs.shape == obs2.shape == env.observation_shape
    assert (reward.shape, reward.dtype) == ((), jnp.float32)
    assert jax.tree.structure(state) == jax.tree.structure(state2)


@pytest.mark.parametrize("name", LOOP_ITERATIONS)
def test_games_without_their_loops_are_the_same_games(name):
    env, n = envs.make(name), 16
    turns = LOOP_ITERATIONS[name]
    without = jax.vmap(unroll_loops(env.step, turns))
    keys = jax.random.split(jax.random.PRNGKey(0), n)
    reset, plain, written_out = jax.jit(jax.vmap(env.reset)), jax.jit(jax.vmap(env.step)), jax.jit(without)
    state = reset(keys)[0]
    assert "while[" not in str(jax.make_jaxpr(without)(keys, state, jnp.zeros(n, jnp.int32)))
    for t in range(150):
        keys = jax.random.split(jax.random.PRNGKey(t), n)
        action = jax.random.randint(keys[0], (n,), 0, env.n_actions)
        expected, found = plain(keys, state, action), written_out(keys, state, action)
        jax.tree.map(np.testing.assert_array_equal, expected, found)
        done = expected[3] | expected[4]

        def pick(fresh, old, done=done):
            return jnp.where(done.reshape(n, *(1,) * (old.ndim - 1)), fresh, old)

        state = jax.tree.map(pick, reset(keys)[0], expected[0])


def test_a_function_without_its_loops_is_the_same_function():
    def with_loops(x, limit):
        total, rows = jax.lax.scan(lambda c, y: (c + y, c * y), 1.0, x, reverse=True)
        doubled, turns = jax.lax.while_loop(lambda c: c[0] < limit, lambda c: (2 * c[0], c[1] + 1), (total, 0))
        return {"rows": rows, "doubled": jax.lax.fori_loop(0, 3, lambda i, c: c + x[i], doubled), "turns": turns}

    x, limits = jnp.arange(1.0, 5.0), jnp.array([0.0, 50.0, 100.0])
    expected = jax.vmap(lambda limit: with_loops(x, limit))(limits)
    found = jax.vmap(lambda limit: unroll_loops(with_loops, 5)(x, limit))(limits)
    jax.tree.map(np.testing.assert_array_equal, expected, found)
    assert expected["turns"].tolist() == [0, 3, 4]
    short = unroll_loops(with_loops, 2)(x, limits[2])
    assert short["turns"] == 2  # too few turns are missing turns
    with pytest.raises(CapoError, match="max_iterations=0"):
        unroll_loops(with_loops, 0)(x, limits[2])
    assert unroll_loops(jax.nn.relu, 0)(-x).tolist() == [0.0] * 4


def test_what_an_environment_does_not_say_has_one_default():
    env = Counting()
    assert envs.make(env) is env
    spec = envs.EnvSpec(env)
    assert (spec.name, spec.n_actions, spec.first_action, spec.raw_shape) == ("counting", 2, 0, (1,))
    assert (spec.truncates, spec.observation_high) == (True, 255)
    assert (spec.fixed_copies, spec.vector_copies) == (None, None)
    assert spec.encode(np.zeros((3, 1))).dtype == np.float32
    host = envs.EnvSpec(envs.make(vector(AutoresetMode.NEXT_STEP)))
    assert (host.first_action, host.fixed_copies, host.vector_copies, host.raw_shape) == (5, 3, 3, (2,))
    assert not envs.EnvSpec(envs.make("probe-both")).truncates


def test_the_protocol_is_checked():
    assert envs.make(Counting()).n_actions == 2

    class WrongShape(Counting):
        observation_shape = (2,)

    class ChangingState(Counting):
        def step(self, key, env_state, action):
            _, *rest = super().step(key, env_state, action)
            return (env_state * 1.0, *rest)

    class FourValues(Counting):
        def step(self, key, env_state, action):
            return super().step(key, env_state, action)[:4]

    class Untraceable(Counting):
        def step(self, key, env_state, action):
            return super().step(key, env_state, action) if action else None

    for env, message in (
        (WrongShape(), "observation of shape"),
        (ChangingState(), "type of env_state"),
        (FourValues(), "4 values"),
        (Untraceable(), "cannot be traced"),
    ):
        with pytest.raises(CapoError, match=message):
            envs.make(env)


@pytest.mark.parametrize("game", ["breakout", "space_invaders"])
def test_all_six_actions_are_the_originals(game):
    """Against pgx with its own full action set, bit by bit."""

    import pgx

    made = pgx.make(f"minatar-{game}")
    theirs = type(made)(use_minimal_action_set=False)
    env = envs.make(f"minatar-{game}-full")
    assert env.n_actions == 6
    step, other = jax.jit(env.step), jax.jit(theirs.step)
    key = jax.random.PRNGKey(3)
    ours, seen = env.reset(key)
    state = theirs.init(key)
    np.testing.assert_array_equal(seen, state.observation)
    for i in range(40):
        own = jax.random.fold_in(key, i)
        ours, seen, reward, *_ = step(own, ours, jnp.int32(i % 6))
        state = other(state, jnp.int32(i % 6), own)
        np.testing.assert_array_equal(seen, state.observation)
        assert float(reward) == float(state.rewards[0])
