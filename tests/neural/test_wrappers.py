"""Time limits, stacked frames, scaled rewards and normalised observations, beside plain twins in Python."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers_envs import Numbered

import capo
from capo import envs
from capo.envs.layout import Layout, Part
from capo.envs.wrappers import wrap
from capo.errors import CapoError
from capo.neural.algorithms.ppo import PPOAlgorithm, PPOConfig
from capo.neural.learners.trials import TrialsLearner
from capo.neural.parts import normaliser, replay
from capo.neural.parts.replay import Rollout

SMALL = {"n_envs": 4, "rollout_length": 8, "width": 8}
TINY = {
    capo.NCAPO: SMALL | {"batch_size": 2, "gradient_steps": 2, "replay_rollouts": 8},
    capo.PPO: SMALL | {"batch_size": 16, "epochs": 2},
    capo.Rainbow: SMALL | {"learning_starts": 16, "replay_transitions": 64, "gradient_steps": 2},
}


class Wander:
    """A jitted environment that shows its step and noise, pays what it shows, and ends or is cut off at random."""

    name = "wander"
    n_actions = 2
    observation_shape = (2,)
    observation_dtype = np.float32

    def reset(self, key: Any) -> tuple[Any, Any]:
        return jnp.int32(0), jnp.stack([0.0, 5 + 3 * jax.random.normal(key)])

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, ...]:
        noise_key, end_key = jax.random.split(key)
        noise, chance = 5 + 3 * jax.random.normal(noise_key), jax.random.uniform(end_key)
        state = state + 1
        obs = jnp.stack([state.astype(jnp.float32), noise])
        return state, obs, noise + action, chance < 0.15, (chance > 0.15) & (chance < 0.3)


class Paid(Wander):
    """The same with other rewards."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, ...]:
        state, obs, reward, *ends = super().step(key, state, action)
        return state, obs, self.change(reward), *ends


def leaves(agent: Any, path: Path) -> dict[str, np.ndarray]:
    return capo_arrays(agent.save(path))


def capo_arrays(path: Path) -> dict[str, np.ndarray]:
    from capo.runs import checkpoint

    return {name: np.asarray(value) for name, value in checkpoint.read(path).arrays.items()}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray], but: tuple[str, ...] = ()) -> None:
    keys = {name for name in one if not any(part in name for part in but)}
    assert keys == {name for name in other if not any(part in name for part in but)}
    for name in keys:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


# --- the environments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("frames", "limit"), [(1, 3), (3, 0), (3, 4)])
def test_jitted_wrappers_do_what_a_plain_loop_does(frames: int, limit: int) -> None:
    env = Wander()
    wrapped = wrap(env, frames, limit)
    assert wrapped.name == "wander"
    assert wrapped.observation_shape == (2 * frames,)
    reset, step, plain_step = jax.jit(wrapped.reset), jax.jit(wrapped.step), jax.jit(env.step)
    for episode in range(6):
        key = jax.random.PRNGKey(episode)
        state, obs = reset(key)
        plain, first = env.reset(key)
        stack = deque([np.asarray(first)] * frames, maxlen=frames)
        np.testing.assert_array_equal(obs, np.concatenate(stack))
        for count in range(1, 30):
            at = jax.random.fold_in(key, count)
            state, obs, reward, terminated, truncated = step(at, state, jnp.int32(1))
            plain, seen, paid, ended, cut = plain_step(at, plain, jnp.int32(1))
            stack.append(np.asarray(seen))
            np.testing.assert_array_equal(obs, np.concatenate(stack))
            assert float(reward) == float(paid)
            assert bool(terminated) == bool(ended)
            assert bool(truncated) == (bool(cut) or count == limit)
            if terminated or truncated:
                break
        assert terminated or truncated


@pytest.mark.parametrize("mode", ["copies", "NextStep", "SameStep"])
@pytest.mark.parametrize(("frames", "limit"), [(1, 7), (3, 0), (3, 7)])
def test_host_wrappers_do_what_a_plain_loop_does(frames: int, limit: int, mode: str) -> None:
    """Numbered says which episode and step an observation is of: every stack can be foretold from the newest."""
    source: Any = Numbered
    if mode == "copies":
        gymnasium.register("Numbered-v0", Numbered)
        made = envs.make("Numbered-v0")
    else:
        vector = gymnasium.vector.SyncVectorEnv([source] * 3, autoreset_mode=gymnasium.vector.AutoresetMode(mode))
        made = envs.make(vector)
    vector = wrap(made, frames, limit).open(3)
    obs = vector.reset(0)
    assert obs.shape == (3, 2 * frames)
    expected = np.tile(obs[:, -2:], (1, frames))
    np.testing.assert_array_equal(obs, expected)
    lengths: list[float] = []
    for _ in range(120):
        moved = vector.step(np.zeros(3, np.int64))
        done = moved.terminated | moved.truncated
        for i in np.flatnonzero(moved.valid):
            episode, step = moved.successor[i, -2:]
            steps = np.maximum(np.arange(step - frames + 1, step + 1), 0)
            np.testing.assert_array_equal(moved.successor[i], np.stack([0 * steps + episode, steps], 1).ravel())
            assert episode == obs[i, -2]  # a step never leads into another episode
            if limit:
                assert moved.truncated[i] == (step == limit and not moved.terminated[i])
            if done[i]:
                lengths.append(step)
        for i in np.flatnonzero(moved.valid & ~done):
            np.testing.assert_array_equal(moved.obs[i], moved.successor[i])
        fresh = ~moved.valid | (done & (mode != "NextStep"))
        if mode == "NextStep" and limit:
            fresh |= moved.valid & moved.truncated  # the wrapper starts these at once
        for i in np.flatnonzero(fresh):
            np.testing.assert_array_equal(moved.obs[i], np.tile([moved.obs[i, 0], 0], frames))
        obs = moved.obs
    assert len(set(lengths)) > 1
    assert not limit or max(lengths) == limit


def test_frames_of_one_number_and_of_discrete_observations() -> None:
    wrapped = wrap(envs.make("FrozenLake-v1"), 2)
    assert wrapped.raw_shape == (2,)
    assert wrapped.observation_shape == (32,)
    encoded = wrapped.encode(np.array([[3, 5]]))
    assert np.flatnonzero(encoded[0]).tolist() == [3, 16 + 5]
    agent = capo.PPO("FrozenLake-v1", frame_stack=2, **TINY[capo.PPO]).learn(64)
    assert agent.predict([0, 4])[0].shape == ()
    with pytest.raises(CapoError, match=r"shape \(\) was given"):
        agent.predict(0)


def test_a_single_frame_given_to_predict_is_refused_with_a_word_on_stacks() -> None:
    agent = capo.NCAPO("minatar-breakout", width=16)  # the default has two frames
    with pytest.raises(CapoError, match=r"the last 2 joined along the last axis, oldest first \(frame_stack\)"):
        agent.predict(np.zeros(agent.env.observation_shape, bool))


def test_observations_that_can_not_be_stacked_are_refused() -> None:
    env = Wander()
    env.layout = Layout((Part("a", (2,), "float32"),))  # type: ignore[attr-defined]
    with pytest.raises(CapoError, match="frame_stack=2 needs observations that are a single array"):
        wrap(env, 2)
    with pytest.raises(CapoError, match="not stacked already"):
        wrap(wrap(Wander(), 2), 2)


@pytest.mark.parametrize("env", ["CartPole-v1", "probe-delayed"])
def test_watching_shows_the_wrapped_environment(env: str, tmp_path: Path) -> None:
    agent = capo.PPO(env, frame_stack=2, time_limit=1, **TINY[capo.PPO])
    scores = agent.watch(tmp_path / "play.gif", episodes=3)
    assert len(scores) == 3
    assert scores == [1.0] * 3 if env == "CartPole-v1" else [0.0] * 3


# --- stacks in the replay -------------------------------------------------------------------------------------


def stacked_rollouts(rng: Any, spec: replay.ReplaySpec) -> Rollout:
    """Rollouts of an environment that resets at its ends, stacked by a deque each."""
    n, length, k = spec.n_envs, spec.length, spec.frames
    new = lambda: rng.integers(0, 2, spec.frame_shape).astype(spec.observation_dtype)
    ends = rng.integers(0, 4, (n, length))  # 0: terminated, 1: truncated
    terminated, truncated = ends == 0, (ends == 1) & (spec.successors == length)
    rows = np.zeros((n, length + spec.successors, *spec.observation_shape), spec.observation_dtype)
    for i in range(n):
        stack = deque([new() for _ in range(k)], maxlen=k)
        for t in range(length):
            rows[i, t] = np.concatenate(stack, axis=-1)
            stack.append(new())
            if spec.successors == length:
                rows[i, length + t] = np.concatenate(stack, axis=-1)
            if terminated[i, t] or truncated[i, t]:
                stack = deque([new()] * k, maxlen=k)
        if spec.successors == 1:
            rows[i, length] = np.concatenate(stack, axis=-1)
    zeros = jnp.zeros((n, length))
    return Rollout(
        jnp.asarray(rows), zeros.astype(int), zeros, jnp.asarray(terminated), jnp.asarray(truncated), zeros
    )


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize(("shape", "dtype"), [((2, 3, 8), np.uint8), ((6,), np.bool_), ((4,), np.float32)])
def test_frames_are_stored_once_and_come_back_as_stacks(shape: Any, dtype: Any, truncates: bool) -> None:
    k, length = 2 if shape != (2, 3, 8) else 4, 9
    spec = replay.spec_for(shape, dtype, truncates, n_envs=16, length=length, frames=k)
    rollouts = stacked_rollouts(np.random.default_rng(0), spec)
    stored = jax.jit(lambda r: replay.pack_rollouts(spec, r))(rollouts)
    assert stored.obs.shape == replay.empty(spec).obs.shape
    assert stored.obs.shape[1] == (2 * length if truncates else length + 1) + k - 1
    back = jax.jit(lambda r: replay.unpack_rollouts(spec, r))(stored)
    np.testing.assert_array_equal(back.obs, rollouts.obs)
    assert back.obs.dtype == dtype


@pytest.mark.parametrize("length", [1, 6])
def test_training_is_the_same_as_with_whole_stacks_in_the_replay(length: int, tmp_path: Path) -> None:
    stacked = wrap(Wander(), 3)
    whole = SimpleNamespace(
        name="wander",
        n_actions=2,
        observation_shape=(6,),
        observation_dtype=np.float32,
        reset=stacked.reset,
        step=stacked.step,
    )
    settings = TINY[capo.NCAPO] | {"rollout_length": length}
    once = capo.NCAPO(Wander(), frame_stack=3, **settings).learn(length * 40)
    four_times = capo.NCAPO(whole, **settings).learn(length * 40)
    assert_same(leaves(once, tmp_path / "a"), leaves(four_times, tmp_path / "b"), but=("replay/obs",))
    assert once.learner.algorithm.memory.nbytes < four_times.learner.algorithm.memory.nbytes


# --- rewards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [capo.NCAPO, capo.Rainbow])
def test_rewards_are_scaled_for_learning_alone(algorithm: Any, tmp_path: Path) -> None:
    rows: list[list[Any]] = [[], []]
    ours = algorithm(Wander(), reward_scale=0.25, **TINY[algorithm])
    theirs = algorithm(Paid(lambda reward: reward * 0.25), **TINY[algorithm])
    for agent, mine in zip((ours, theirs), rows, strict=True):
        agent.learn(96, callback=lambda _, new, mine=mine: mine.extend(new) is None)
    one, other = leaves(ours, tmp_path / "a"), leaves(theirs, tmp_path / "b")
    assert_same(one, other, but=("episode_return",))
    returns = [[row["episode_return"] for row in mine if row["episodes"]] for mine in rows]
    np.testing.assert_allclose(returns[0], np.multiply(returns[1], 4), rtol=1e-6)
    assert np.abs(returns[0]).max() > 5


def test_rewards_are_clipped_after_scaling(tmp_path: Path) -> None:
    ours = capo.PPO(Wander(), reward_scale=0.5, reward_clip=2.0, **TINY[capo.PPO]).learn(64)
    theirs = capo.PPO(Paid(lambda reward: (reward * 0.5).clip(-2.0, 2.0)), **TINY[capo.PPO]).learn(64)
    assert_same(leaves(ours, tmp_path / "a"), leaves(theirs, tmp_path / "b"), but=("episode_return",))


# --- normalised observations ----------------------------------------------------------------------------------


def test_running_statistics_are_those_of_all_rows() -> None:
    rng = np.random.default_rng(3)
    batches = [1e3 + 50 * rng.standard_normal((n, 2, 3)) for n in (1, 7, 400, 64)]
    grown = normaliser.start([Part("a", (2, 3), "float32"), Part("b", (9,), "uint8")])
    for batch in batches:
        grown = jax.jit(normaliser.update)(grown, {"a": jnp.asarray(batch, jnp.float32)})
    rows, statistics = np.concatenate(batches), grown["a"]
    np.testing.assert_allclose(statistics.mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(statistics.variance, rows.var(0), rtol=1e-3)
    assert float(statistics.n) == len(rows)
    expected = ((rows - rows.mean(0)) / rows.std(0)).clip(-10, 10)
    np.testing.assert_allclose(
        normaliser.apply(grown, {"a": jnp.asarray(rows, jnp.float32)})["a"], expected, atol=2e-3
    )
    far = normaliser.apply(grown, {"a": jnp.full((2, 3), 1e9)})["a"]
    assert (np.asarray(far) == normaliser.LIMIT).all()


@pytest.mark.parametrize("algorithm", [capo.PPO, capo.Rainbow])
def test_statistics_are_of_every_step_and_are_used_everywhere(algorithm: Any) -> None:
    agent = algorithm(Wander(), normalise_observations=True, **TINY[algorithm]).learn(3200)
    state = agent._states.groups[0].state
    by_part = jax.tree.map(lambda leaf: leaf[0], state.normaliser)
    statistics = by_part[""]
    assert float(statistics.n) == 3200
    assert float(statistics.mean[1]) == pytest.approx(5, abs=0.3)
    assert float(statistics.variance[1]) == pytest.approx(9, rel=0.15)
    before = jax.tree.map(np.asarray, state.normaliser)
    # The plain algorithm on observations that were normalised by hand acts the same.
    obs = np.array([[0.0, 3.0], [4.0, 9.0], [2.0, -1.0]], np.float32)
    by_hand = (obs - before[""].mean[0]) / np.sqrt(before[""].variance[0])
    plain, params = agent.learner.algorithm, jax.tree.map(lambda leaf: leaf[0], state.params)
    wanted = plain.action_scores(plain.acting_params(params), jnp.asarray(by_hand)).argmax(-1)
    raw = plain.action_scores(plain.acting_params(params), jnp.asarray(obs))
    seen = plain.seeing(by_part).action_scores(plain.acting_params(params), jnp.asarray(obs))
    assert not np.allclose(raw, seen)
    np.testing.assert_array_equal(agent.predict(obs, deterministic=True)[0], wanted)
    agent.evaluate(4)
    after = agent._states.groups[0].state.normaliser
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.asarray, after))


def test_normalising_is_the_same_as_an_environment_that_is_normalised(tmp_path: Path) -> None:
    """With fixed statistics: PPO on observations that an environment normalises itself."""
    mean, scale = jnp.array([2.0, 5.0]), jnp.array([0.5, 0.25])

    class Seen(Wander):
        def reset(self, key: Any) -> tuple[Any, Any]:
            state, obs = super().reset(key)
            return state, ((obs - mean) * scale).clip(-10, 10)

        def step(self, key: Any, state: Any, action: Any) -> tuple[Any, ...]:
            state, obs, *rest = super().step(key, state, action)
            return state, ((obs - mean) * scale).clip(-10, 10), *rest

    statistics = normaliser.Statistics(mean, 1 / scale**2 - 1e-8, jnp.float32(1e30))  # what is new does not count
    theirs = capo.PPO(Seen(), **TINY[capo.PPO])
    ours = capo.PPO(Wander(), normalise_observations=True, **TINY[capo.PPO])
    group = ours._states.groups[0]
    state = group.start(ours.learner)
    from dataclasses import replace

    group.state = replace(state, normaliser={"": jax.tree.map(lambda leaf: leaf[None], statistics)})
    one, other = (leaves(agent.learn(128), tmp_path / name) for agent, name in ((theirs, "a"), (ours, "b")))
    for name in one:
        if "/params/" in name:
            np.testing.assert_allclose(one[name], other[name], atol=1e-5, err_msg=name)


def test_bits_are_not_normalised() -> None:
    with pytest.raises(CapoError, match=r"the observations of 'FrozenLake-v1' are bits, bytes or categories"):
        capo.PPO("FrozenLake-v1", normalise_observations=True, **TINY[capo.PPO]).learn(32)


ALL = {
    "reward_scale": 0.5,
    "reward_clip": 2.0,
    "normalise_observations": True,
    "frame_stack": 2,
    "time_limit": 5,
}


@pytest.mark.parametrize("algorithm", TINY)
def test_a_run_with_all_of_it_is_resumed_exactly(algorithm: Any, tmp_path: Path) -> None:
    def new() -> Any:
        return algorithm(Wander(), seeds=2, horizon=320, **ALL, **TINY[algorithm]).learn(128)

    whole = new().learn(192)
    first = new()
    second = algorithm.load(first.save(tmp_path / "first"), Wander()).learn(192)
    assert_same(leaves(whole, tmp_path / "a"), leaves(second, tmp_path / "b"))
    assert (whole.evaluate(8).returns == second.evaluate(8).returns).all()


def test_on_the_host_what_a_run_learned_of_observations_is_saved(tmp_path: Path) -> None:
    agent = capo.PPO("CartPole-v1", **ALL, **TINY[capo.PPO]).learn(256)
    again = capo.PPO.load(agent.save(tmp_path / "agent"))
    assert_same(leaves(agent, tmp_path / "a"), leaves(again, tmp_path / "b"))
    obs = np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32)
    assert (agent.predict(obs, deterministic=True)[0] == again.predict(obs, deterministic=True)[0]).all()
    assert agent.evaluate(4).returns.max() <= 5  # the time limit, in evaluation too
    assert float(capo_arrays(tmp_path / "agent.safetensors")["0/normaliser//n"][0]) == 256
    again.learn(128)
    assert float(capo_arrays(again.save(tmp_path / "c"))["0/normaliser//n"][0]) == 384


def test_trials_of_a_tuning_have_them_too() -> None:
    config = PPOConfig(**ALL, **TINY[capo.PPO])
    learner = TrialsLearner(PPOAlgorithm(config, Wander()), Wander(), ["learning_rate"], 2)
    state = learner.start([{"learning_rate": 1e-3}, {"learning_rate": 1e-2}], [0])
    state, _ = learner.run(state, 2)
    assert np.asarray(state.normaliser[""].n).tolist() == [64, 64]  # type: ignore[attr-defined]
    returns = learner.evaluate(learner.playable(state), jnp.stack([jax.random.PRNGKey(0)] * 2), 4)
    assert returns.shape == (2, 4)
