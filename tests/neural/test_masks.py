"""Action masks: an action that is not allowed is never taken, given probability, or learned from."""

from __future__ import annotations

from functools import partial

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from helpers_masks import N_ACTIONS, Doors, Gates, GatesVecEnv, Shut, open_gates
from helpers_shell import bits

import capo
from capo import envs
from capo.envs.failures import EnvironmentFailed
from capo.envs.layout import MASK
from capo.envs.noise import NoisyReward
from capo.neural.learners.protocol import check_masks
from capo.neural.metrics import BadEnvironment
from capo.neural.parts import networks, policies

REPLAY = {
    "n_envs": 4,
    "rollout_length": 3,
    "batch_size": 4,
    "gradient_steps": 2,
    "replay_rollouts": 64,
    "width": 8,
}
SETTINGS = {
    "NCAPO": REPLAY,
    "OffPAC": REPLAY,
    "A2C": {"n_envs": 4, "rollout_length": 3, "width": 8},
    "PPO": {"n_envs": 4, "rollout_length": 4, "batch_size": 8, "epochs": 2, "width": 8},
    "Rainbow": {
        "n_envs": 4, "rollout_length": 3, "batch_size": 8, "gradient_steps": 1, "learning_starts": 16,
        "replay_transitions": 64, "width": 8, "epsilon_start": 0.5,
    },
    "PQN": {
        "n_envs": 4, "rollout_length": 4, "batch_size": 8, "epochs": 2, "width": 8, "epsilon_start": 0.5,
    },
}  # fmt: skip
ALGORITHMS = list(SETTINGS)


def make(algorithm: str, env, **more):
    return getattr(capo, algorithm)(env, **(SETTINGS[algorithm] | more))


# Training and playing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_closed_door_is_never_tried_inside_jax(algorithm, tmp_path):
    """It would pay nan, on which training, evaluation and film fail. A run that is cut ends the same."""
    whole = make(algorithm, Doors(), horizon=240).learn(240)
    first = make(algorithm, Doors(), horizon=240).learn(144)
    first.save(tmp_path / "agent")
    again = type(first).load(tmp_path / "agent", env=Doors()).learn(96)
    assert bits(again) == bits(whole)
    assert bits(first) != bits(whole)
    for deterministic in (False, True):
        assert np.isfinite(whole.evaluate(16, deterministic=deterministic).returns).all()
    assert np.isfinite(whole.watch(tmp_path / "play.gif", episodes=3)).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_closed_gate_is_never_tried_on_the_host(algorithm, tmp_path):
    agent = make(algorithm, Gates()).learn(144)
    assert np.isfinite(agent.evaluate(4).returns).all()
    assert np.isfinite(agent.watch(tmp_path / "play.gif", episodes=2)).all()


def test_without_its_mask_the_environment_does_fail():
    with pytest.raises(EnvironmentFailed, match="reward nan"):
        make("PPO", Gates("nowhere")).learn(144)


def test_stored_probabilities_are_those_of_what_is_allowed():
    agent = make("NCAPO", Doors(), epsilon_start=1.0, epsilon_final=1.0).learn(240)
    learner, state = agent.learner, agent._states.groups[0].state
    replay = jax.tree.map(lambda leaf: np.asarray(leaf)[0], state.replay)
    masks = learner.spec.layout.mask(replay.obs)[:, :3]
    assert replay.obs.dtype == np.uint8
    assert replay.obs.shape[-1] == 4 * N_ACTIONS + 1  # five floats, and five bits in a byte
    taken = np.take_along_axis(masks, replay.action[..., None], axis=-1)[..., 0]
    filled = replay.log_mu != 0
    assert filled.sum() > 100
    assert taken[filled].all()
    # Epsilon is 1, so the behaviour is uniform over the three open doors.
    np.testing.assert_allclose(np.exp(replay.log_mu[filled]), 1 / 3, rtol=1e-6)


def test_noise_on_rewards_keeps_the_mask():
    make("A2C", NoisyReward(Doors(), 0.5)).learn(48)


# The behaviour ----------------------------------------------------------------------------------------------


def test_epsilon_greedy_over_what_is_allowed_against_a_plain_loop():
    rng = np.random.default_rng(0)
    pi, mask = rng.dirichlet(np.ones(6), size=50).astype(np.float32), rng.random((50, 6)) < 0.5
    mask[:, 2] |= ~mask.any(axis=1)
    pi = np.where(mask, pi, 0) / np.where(mask, pi, 0).sum(axis=1, keepdims=True)
    found = np.exp(np.asarray(policies.mix_uniform(jnp.asarray(pi), jnp.float32(0.3), jnp.asarray(mask))))
    for row in range(50):
        allowed = [a for a in range(6) if mask[row, a]]
        for a in range(6):
            wanted = 0.7 * pi[row, a] + 0.3 / len(allowed) if a in allowed else 0.0
            assert found[row, a] == pytest.approx(wanted, abs=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_the_behaviour_gives_no_probability_to_what_is_not_allowed(algorithm, epsilon):
    agent = make(algorithm, Doors())
    inside = agent.learner.algorithm
    rng = np.random.default_rng(1)
    masks = np.array([rng.permutation(np.arange(N_ACTIONS) < n) for n in (1, 2, 3, 4, 5) for _ in range(4)])
    seen = rng.standard_normal((20, N_ACTIONS)).astype(np.float32) * 100
    params = inside.init_params(np.random.default_rng(0))
    rows = agent.learner.spec.with_masks(seen, masks)
    mu = np.exp(np.asarray(inside.behaviour(inside.acting_params(params), rows, jnp.float32(epsilon))))
    assert (mu[~masks] == 0).all()
    np.testing.assert_allclose(mu.sum(axis=1), 1, rtol=1e-5)
    if epsilon == 1.0 and inside.explores:
        np.testing.assert_allclose(mu, masks / masks.sum(axis=1, keepdims=True), atol=1e-6)


def test_an_environment_without_masks_has_none_in_its_programs():
    learner = make("NCAPO", "probe-action").learner
    assert learner.spec.layout is None
    assert networks.inputs(learner.network, jnp.zeros((3, 1))).mask is None


# The same as with fewer actions -----------------------------------------------------------------------------

KEPT = [1, 3]  # of four actions, in all states


class Two:
    """Two actions, nothing masked."""

    name = "two"
    n_actions = 2
    observation_shape = (3,)
    observation_dtype = np.float32

    def reset(self, key):
        return key, jax.random.normal(key, (3,))

    def step(self, key, state, action):
        del action
        return state, jax.random.normal(key, (3,)), jnp.float32(0), jnp.bool_(False), jnp.bool_(False)


class Four(Two):
    """The same two among four."""

    name = "four"
    n_actions = 4

    def action_mask(self, state):
        del state
        return jnp.array([a in KEPT for a in range(4)])


def pair(algorithm: str, **more):
    """The algorithm on both, and networks of which the small ones' heads are the large ones' rows."""
    large, small = (make(algorithm, env, **more).learner for env in (Four(), Two()))
    params = jax.tree.map(jnp.asarray, large.algorithm.init_params(np.random.default_rng(3)))

    # The policy's head starts near 0: make the actions differ.
    def apart(leaf):
        return leaf * 3 if leaf.ndim == 2 else leaf + 0.1 * jnp.arange(leaf.size).reshape(leaf.shape)

    return large, small, jax.tree.map(apart, params)


def reduced(params, names=("actor", "critic", "advantage"), n_actions=4):
    """The networks with the rows of the heads that belong to the two actions."""

    def fewer(layer):
        def columns(leaf):
            if leaf.shape[-1] == 8 * n_actions:  # all actions of the first estimate of Q, then of the second, ...
                return leaf.reshape(*leaf.shape[:-1], 8, n_actions)[..., KEPT].reshape(*leaf.shape[:-1], -1)
            by_action = leaf.reshape(*leaf.shape[:-1], n_actions, -1)[..., KEPT, :]
            return by_action.reshape(*leaf.shape[:-1], -1)

        return {
            name: columns(leaf) if leaf.ndim and leaf.shape[-1] % n_actions == 0 else leaf
            for name, leaf in layer.items()
        }

    def smaller(part):
        return fewer(part) if "kernel" in part else part | {"head": fewer(part["head"])}

    return {name: smaller(part) if name in names else part for name, part in params.items()}


def rows(learner, seen):
    if not learner.spec.masked:
        return jnp.asarray(seen)
    mask = np.broadcast_to([a in KEPT for a in range(4)], (*seen.shape[:-1], 4))
    return jnp.asarray(learner.spec.with_masks(seen, mask))


def assert_same_gradients(large, small, zero=(0, 2)):
    """Those of the rows kept are the same; those of the others are exactly 0."""
    for found, wanted in zip(jax.tree.leaves(reduced(large)), jax.tree.leaves(small), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    for leaf in jax.tree.leaves(large):
        assert np.isfinite(np.asarray(leaf)).all()
    head = next(large[name] for name in ("advantage", "actor") if name in large)
    kernel = np.asarray(head.get("kernel", head.get("head", {}).get("kernel")))
    by_action = kernel.reshape(kernel.shape[0], 4, -1)
    assert (by_action[:, list(zero)] == 0).all()
    assert (by_action[:, KEPT] != 0).any()


SIGN = {"advantage_weight": "none", "kl": "policy-to-target", "critic_heads": 1, "explorers": 0.0}
OFF_POLICY = {
    "default": {},
    "one head": {"critic_heads": 1},
    "sign": SIGN,
    "paper's networks": SIGN | {"target_from": "target-network", "shared_trunk": True, "target_critic": "head"},
    "other loss": SIGN | {"kl": "target-to-policy", "advantage_weight": "normalised", "entropy": 0.1},
    "v-trace": SIGN | {"returns": "v-trace", "retrace_lambda": 0.7, "actor_lambda": 0.5, "step_size": "fixed"},
    "categorical": SIGN | {"critic": "categorical", "atoms": 11, "v_min": -5.0, "v_max": 5.0},
}


@pytest.mark.parametrize("case", OFF_POLICY)
def test_ncapo_as_with_two_actions(case):
    large, small, params = pair("NCAPO", **OFF_POLICY[case])
    compare_off_policy(large, small, params)


@pytest.mark.parametrize("weight", ["q", "advantage"])
def test_offpac_as_with_two_actions(weight):
    large, small, params = pair("OffPAC", weight=weight, entropy=0.1)
    compare_off_policy(large, small, params)


def compare_off_policy(large, small, params):
    from capo.neural.parts.replay import Rollout

    rng = np.random.default_rng(0)
    batch, length = 6, 3
    seen = rng.standard_normal((batch, 2 * length, 3)).astype(np.float32)
    action = rng.integers(0, 2, (batch, length)).astype(np.int32)
    terminated = rng.random((batch, length)) < 0.2
    common = {
        "reward": rng.standard_normal((batch, length)).astype(np.float32),
        "terminated": terminated,
        "truncated": (rng.random((batch, length)) < 0.2) & ~terminated,
        "log_mu": np.log(rng.uniform(0.2, 0.8, (batch, length))).astype(np.float32),
    }
    results = []
    for learner, mine, numbers in ((large, params, np.array(KEPT)[action]), (small, reduced(params), action)):
        inside = learner.algorithm
        target = jax.tree.map(lambda leaf: leaf * 0.9, inside.init_target(mine))
        rollouts = Rollout(obs=rows(learner, seen), action=jnp.asarray(numbers, jnp.int32), **common)
        loss = jax.value_and_grad(inside.loss, has_aux=True)
        (total, terms), grads = loss(mine, target, rollouts, jnp.float32(0.05), "both")
        inputs = networks.inputs(inside.network, rollouts.obs)
        logits, _, features = networks.logits_and_q(inside.network, mine, inputs)
        log_pi, q = inside.slow_policy_and_q(mine, target, inputs, logits, features)
        results.append((total, terms, grads, log_pi, q))
    (total, terms, grads, log_pi, q), (total2, terms2, grads2, log_pi2, q2) = results
    np.testing.assert_allclose(log_pi[..., KEPT], log_pi2, rtol=1e-5, atol=1e-6)
    assert (np.exp(log_pi[..., [0, 2]]) == 0).all()
    if q.ndim > log_pi.ndim:  # several estimates
        log_pi, log_pi2 = log_pi[..., None, :], log_pi2[..., None, :]
    np.testing.assert_allclose((np.exp(log_pi) * q).sum(-1), (np.exp(log_pi2) * q2).sum(-1), rtol=1e-4, atol=1e-6)
    assert set(terms) == set(terms2)
    for name in terms:  # among them the returns, the advantages, both losses and the entropy
        np.testing.assert_allclose(terms[name], terms2[name], rtol=1e-4, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(total, total2, rtol=1e-4, atol=1e-6)
    assert_same_gradients(grads, grads2)


def test_the_target_distribution_never_moves_what_is_not_allowed():
    from capo.neural.algorithms.ncapo import actor_target

    config = make("NCAPO", Four()).config
    logits = policies.masked(jnp.array([3.0, 1.0, 2.0, 0.0]), jnp.array([False, True, False, True]))
    log_pi = jax.nn.log_softmax(logits)
    for sign in (-1.0, 0.0, 1.0):
        pi = np.exp(actor_target(log_pi, jnp.array([0.0, sign, 0.0, 0.0]), config))
        assert (pi[[0, 2]] == 0).all()
        small = np.exp(actor_target(log_pi[jnp.array(KEPT)], jnp.array([sign, 0.0]), config))
        np.testing.assert_allclose(pi[KEPT], small, rtol=1e-5)


@pytest.mark.parametrize("algorithm", ["A2C", "PPO"])
def test_actor_critics_as_with_two_actions(algorithm):
    from capo.neural.algorithms import a2c, ppo
    from capo.neural.algorithms.onpolicy import Batch

    large, small, params = pair(algorithm)
    rng = np.random.default_rng(0)
    seen, action = rng.standard_normal((16, 3)).astype(np.float32), rng.integers(0, 2, 16)
    numbers = [rng.standard_normal(16).astype(np.float32) for _ in range(4)]
    results = []
    for learner, mine, taken in (
        (large, params, np.array(KEPT)[action]),
        (small, reduced(params, ("actor",)), action),
    ):
        batch = Batch(rows(learner, seen), jnp.asarray(taken), *map(jnp.asarray, numbers))
        arguments = (learner.config, learner.network)
        weights = (jnp.float32(0.1),) if algorithm == "A2C" else (jnp.float32(0.1), jnp.float32(0.2))
        loss = partial(a2c.loss if algorithm == "A2C" else ppo.loss, *arguments)
        results.append(jax.value_and_grad(loss, has_aux=True)(mine, batch, *weights))
    ((total, terms), grads), ((total2, terms2), grads2) = results
    np.testing.assert_allclose(total, total2, rtol=1e-5)
    for name in terms:
        np.testing.assert_allclose(terms[name], terms2[name], rtol=1e-4, atol=1e-6, err_msg=name)
    critic = grads.pop("critic"), grads2.pop("critic")
    for found, wanted in zip(*map(jax.tree.leaves, critic), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    assert_same_gradients(grads, grads2)


@pytest.mark.parametrize("distributional", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
def test_rainbow_as_with_two_actions(distributional, dueling):
    from capo.neural.algorithms import rainbow
    from capo.neural.parts.transitions import NStep

    large, small, params = pair("Rainbow", distributional=distributional, dueling=dueling, noisy=False, atoms=9)
    rng = np.random.default_rng(0)
    seen, after = rng.standard_normal((2, 16, 3)).astype(np.float32)
    action = rng.integers(0, 2, 16)
    returns = rng.standard_normal(16).astype(np.float32)
    results = []
    for learner, mine, taken in (
        (large, params, np.array(KEPT)[action]),
        (small, reduced(params, ("advantage",)), action),
    ):
        slow = jax.tree.map(lambda leaf: leaf * 0.9, mine)
        batch = NStep(rows(learner, seen), jnp.asarray(taken), returns, jnp.full(16, 0.9), rows(learner, after))

        def loss(p, learner=learner, slow=slow, mine=mine, batch=batch):
            each, q = rainbow.loss_each(learner.config, learner.network, p, (slow, mine), batch)
            return each.mean(), (each, q)

        results.append(jax.grad(loss, has_aux=True)(mine))
    (grads, (each, q)), (grads2, (each2, q2)) = results
    np.testing.assert_allclose(each, each2, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(q, q2, rtol=1e-4, atol=1e-5)
    assert_same_gradients(grads, grads2)


def test_pqn_as_with_two_actions():
    from capo.neural.parts.replay import Rollout

    large, small, params = pair("PQN")
    rng = np.random.default_rng(0)
    batch, length = 6, 4
    seen = rng.standard_normal((batch, 2 * length, 3)).astype(np.float32)
    action = rng.integers(0, 2, (batch, length))
    terminated = rng.random((batch, length)) < 0.3
    common = {
        "reward": rng.standard_normal((batch, length)).astype(np.float32),
        "terminated": terminated,
        "truncated": (rng.random((batch, length)) < 0.3) & ~terminated,
        "log_mu": np.zeros((batch, length), np.float32),
    }
    head = {"head"}
    results = []
    for learner, mine, taken in ((large, params, np.array(KEPT)[action]), (small, reduced(params, head), action)):
        inside = learner.algorithm
        rollouts = Rollout(obs=rows(learner, seen), action=jnp.asarray(taken, jnp.int32), **common)
        targets = inside.returns(mine, rollouts)
        steps = (rollouts.obs[:, :length], rollouts.action, targets)
        results.append((targets, *jax.value_and_grad(inside.loss, has_aux=True)(mine, *steps)))
    (targets, (loss, terms), grads), (targets2, (loss2, terms2), grads2) = results
    np.testing.assert_allclose(targets, targets2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, loss2, rtol=1e-5)
    np.testing.assert_allclose(terms["value"], terms2["value"], rtol=1e-5)
    for found, wanted in zip(jax.tree.leaves(reduced(grads, head)), jax.tree.leaves(grads2), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    assert (np.asarray(grads["head"]["kernel"])[:, [0, 2]] == 0).all()
    assert (np.asarray(grads["head"]["kernel"])[:, KEPT] != 0).any()


# Where masks come from --------------------------------------------------------------------------------------


def check_rows(env, rows):
    """Packed rows whose masks follow from their observations."""
    parts = envs.EnvSpec(env).layout.unpack(np.asarray(rows))
    np.testing.assert_array_equal(parts[MASK], open_gates(parts[""]))
    return parts[""]


def first_allowed(env, rows):
    return envs.EnvSpec(env).layout.mask(rows).argmax(axis=-1)


@pytest.mark.parametrize("how", ["info", "method"])
@pytest.mark.parametrize(
    "kind", ["single", "wrapped", "id", "NextStep", "SameStep", "Disabled", "async", "list of infos"]
)
def test_every_row_has_its_own_mask(how, kind):
    if kind == "SameStep" and how == "method":
        pytest.skip("refused: see the next test")
    env = envs.make(source(how, kind))
    assert env.masked
    vector = env.open(3)
    try:
        obs = vector.reset(0)
        check_rows(env, obs)
        ends = 0
        for _ in range(9):
            moved = vector.step(first_allowed(env, obs))
            obs = moved.obs
            before, after = check_rows(env, moved.successor), check_rows(env, obs)
            assert (before[moved.valid][:, 1] > 0).all()
            ends += int((moved.terminated | moved.truncated).sum())
            if kind in ("single", "wrapped", "id", "SameStep", "Disabled"):
                assert (after[moved.terminated | moved.truncated][:, 1] == 0).all()
        assert ends
        who = np.arange(vector.n) == 0
        check_rows(env, vector.restart(who))
    finally:
        vector.close()


def source(how: str, kind: str):
    if kind == "single":
        return Gates(how)
    if kind == "wrapped":
        return gymnasium.wrappers.TimeLimit(gymnasium.wrappers.RecordEpisodeStatistics(Gates(how)), 100)
    if kind == "id":
        name = f"Gates-{how}-v0"
        if name not in gymnasium.registry:
            gymnasium.register(name, lambda how=how: Gates(how), disable_env_checker=True)
        return name
    if kind == "async":
        return AsyncVectorEnv([lambda: Gates(how)] * 2)
    mode = {"SameStep": AutoresetMode.SAME_STEP, "Disabled": AutoresetMode.DISABLED}.get(
        kind, AutoresetMode.NEXT_STEP
    )
    vector = SyncVectorEnv([lambda: Gates(how)] * 3, autoreset_mode=mode)
    return gymnasium.wrappers.vector.DictInfoToList(vector) if kind == "list of infos" else vector


def test_a_method_cannot_say_what_final_observations_allow():
    with pytest.raises(capo.CapoError, match="NEXT_STEP"):
        envs.make(source("method", "SameStep"))


@pytest.mark.parametrize("how", ["info", "method"])
def test_a_vector_of_stable_baselines_has_masks(how):
    check_vector_of_stable_baselines(how, GatesVecEnv(how))


@pytest.mark.oracle
@pytest.mark.parametrize("how", ["info", "method"])
def test_the_real_vector_of_stable_baselines_has_masks(how):
    from stable_baselines3.common.vec_env import DummyVecEnv

    check_vector_of_stable_baselines(how, DummyVecEnv([lambda: Gates(how)] * 3))


def check_vector_of_stable_baselines(how, given):
    """Every row has its own mask, but a method can't know what final observations allowed: there, everything."""
    env = envs.make(given)
    assert env.masked
    vector = env.open(3)
    obs, ends = vector.reset(0), 0
    check_rows(env, obs)
    for _ in range(9):
        moved = vector.step(first_allowed(env, obs))
        assert (moved.reward == 1).all()  # what is not allowed pays nan
        obs = moved.obs
        check_rows(env, obs)
        ended = moved.terminated | moved.truncated
        ends += int(ended.sum())
        check_rows(env, moved.successor[~ended])
        if how == "info":
            check_rows(env, moved.successor[ended])
        else:
            assert envs.EnvSpec(env).layout.mask(moved.successor[ended]).all()
    assert ends


@pytest.mark.parametrize("how", ["info", "method"])
@pytest.mark.parametrize("algorithm", ["NCAPO", "PPO", "PQN"])
def test_training_on_a_vector_of_stable_baselines_obeys_its_masks(algorithm, how):
    agent = make(algorithm, GatesVecEnv(how, 4)).learn(144)
    assert np.isfinite(agent.evaluate(4).returns).all()
    with pytest.raises(EnvironmentFailed, match="allows no action at all"):
        make(algorithm, GatesVecEnv(how, 4, shut_at=6)).learn(144)


def test_a_vector_of_stable_baselines_without_masks_has_none():
    assert not envs.make(GatesVecEnv("nowhere")).masked
    with pytest.raises(EnvironmentFailed, match="reward nan"):
        make("PPO", GatesVecEnv("nowhere", 4)).learn(144)


def test_taxi_is_masked_and_cartpole_is_not():
    taxi = next(name for name in gymnasium.registry if name.startswith("Taxi-"))
    assert envs.make(taxi).masked
    assert not envs.make("CartPole-v1").masked


def test_looking_for_masks_does_not_touch_the_environment():
    env = Gates()
    envs.make(env)
    assert env.episode == 0


# Mistakes ---------------------------------------------------------------------------------------------------


def test_predict_needs_the_mask():
    for env, seen in ((Doors(), np.zeros(N_ACTIONS)), (Gates(), np.zeros(2))):
        agent = make("NCAPO", env)
        with pytest.raises(capo.CapoError, match=r"has action masks.*action_masks="):
            agent.predict(seen)
        first = agent.env.first_action if hasattr(agent.env, "first_action") else 0
        for allowed in range(N_ACTIONS):
            mask = np.arange(N_ACTIONS) == allowed
            for deterministic in (False, True):
                action, _ = agent.predict(seen, deterministic=deterministic, action_masks=mask)
                assert action == first + allowed
        batch, _ = agent.predict([seen, seen], action_masks=[mask, mask[::-1]])
        assert batch.tolist() == [first + 4, first]
        with pytest.raises(capo.CapoError, match="allows no action"):
            agent.predict(seen, action_masks=np.zeros(N_ACTIONS))


def test_a_mask_that_allows_nothing_stops_the_training():
    with pytest.raises(BadEnvironment, match="'shut' returned an action mask that allows no action"):
        make("NCAPO", Shut()).learn(48)
    with pytest.raises(EnvironmentFailed, match=r"Gates.*reset.*allows no action at all.*\[3\., 0\.\]"):
        make("NCAPO", Gates(shut_at=3)).learn(48)
    vector = SyncVectorEnv([lambda: Gates(shut_at=3)] * 4)
    with pytest.raises(EnvironmentFailed, match=r"allows no action at all.*\[3\., 0\.\]"):
        make("NCAPO", vector).learn(96)


def test_masks_that_stop_coming_or_do_not_fit():
    with pytest.raises(EnvironmentFailed, match=r"its reset returned no info\['action_mask'\]"):
        make("NCAPO", Gates(silent_at=3)).learn(48)
    vector = SyncVectorEnv([lambda: Gates(silent_at=3)] * 4)
    with pytest.raises(EnvironmentFailed, match=r"no info\['action_mask'\] for copy 0"):
        make("NCAPO", vector).learn(96)

    class Short(Gates):
        def _mask(self):
            return np.ones(3, bool)

    with pytest.raises(EnvironmentFailed, match=r"shape \(3,\).*must have 5 booleans"):
        make("NCAPO", Short()).learn(48)


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (None, "must be a method"),
        (lambda _, state: state[1][:4], "must be 5 booleans"),
        (lambda _, state: state[1] * 1.0, "must be 5 booleans"),
        (lambda _, state: bool(state[0]), "cannot be traced"),
    ],
)
def test_a_wrong_jitted_mask_is_named(mask, text):
    with pytest.raises(capo.CapoError, match=f"'doors': action_mask.*{text}"):
        envs.make(type("Wrong", (Doors,), {"action_mask": mask})())


def test_a_run_without_masks_is_not_continued_with_them(tmp_path):
    class Open(Doors):
        def _doors(self, key):
            return key[0] >= jnp.zeros(N_ACTIONS, key.dtype)

    class Unmasked(Open):
        action_mask = property()  # as if it had none

    make("A2C", Unmasked()).learn(12).save(tmp_path / "agent")
    with pytest.raises(capo.CapoError, match="masked was None when the run was saved and is True now"):
        capo.A2C.load(tmp_path / "agent", env=Open())
    with pytest.raises(capo.CapoError, match="masked is True, not None"):
        make("A2C", Unmasked(), eval_env=Open())


def test_masks_of_factors_may_be_given_one_by_one():
    each = (np.array([1, 0, 1], np.int8), np.array([0, 1], np.int8))
    np.testing.assert_array_equal(check_masks(each, 1, 5, (3, 2)), [[True, False, True, False, True]])
    batch = tuple(np.stack([own, own]) for own in each)
    np.testing.assert_array_equal(check_masks(batch, 2, 5, (3, 2)), check_masks(each, 2, 5, (3, 2)))


@pytest.mark.parametrize(
    ("each", "given"),
    [
        ((np.ones(2), np.ones((1, 3))), r"shapes \(2,\) and \(1, 3\)"),
        ((np.ones(3), np.ones(2)), r"shapes \(3,\) and \(2,\)"),
        ((np.ones((4, 2)), np.ones((4, 3))), r"shapes \(4, 2\) and \(4, 3\)"),
        (([[1], [1, 0]], np.ones(3)), "rows of different lengths"),
    ],
)
def test_masks_of_factors_of_other_shapes_are_told(each, given):
    allowed = r"their shapes must be \(2,\) and \(3,\), or \(1, 2\) and \(1, 3\)"
    with pytest.raises(capo.CapoError, match=f"one array per factor with {given}; {allowed}"):
        check_masks(each, 1, 5, (2, 3))
    rows = ([1, 0, 1, 0, 1],)  # a batch of one, as a tuple
    np.testing.assert_array_equal(check_masks(rows, 1, 5, (2, 3)), [[True, False, True, False, True]])
