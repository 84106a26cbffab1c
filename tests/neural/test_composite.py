"""Environments whose observations have several parts, through training, playing, saving and resuming."""

from __future__ import annotations

import io
import shutil

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from helpers_envs import Counting, Everything

import capo
from capo.envs.layout import Layout, Part
from capo.neural import notices, pace
from capo.neural.algorithms import registry
from capo.neural.setup import describe
from capo.progress import Lines, Ticker

# Few and small layers: what these tests need is a program that compiles fast.
TINY = {"width": 8, "conv_features": 2, "n_envs": 2, "rollout_length": 4, "network": "auto"}
TINY_BY_ALGORITHM = {
    "ncapo": {"batch_size": 2, "gradient_steps": 1, "replay_rollouts": 8},
    "offpac": {"batch_size": 2, "gradient_steps": 1, "replay_rollouts": 8},
    "a2c": {},
    "ppo": {"batch_size": 8, "epochs": 1},
    "pqn": {"batch_size": 4},
    "rainbow": {"batch_size": 2, "gradient_steps": 1, "replay_transitions": 32, "learning_starts": 8},
}


def agent_for(name, env="Everything-v0", **more):
    return registry.find(name).agent(env, **{**TINY, **TINY_BY_ALGORITHM[name], **more})


def state_bits(agent):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(agent._states.tree())]


@pytest.mark.parametrize("name", TINY_BY_ALGORITHM)
def test_every_algorithm_learns_plays_saves_and_resumes(name, tmp_path):
    """From a Dict with a part of every kind; a resumed run continues as its copy does, bit for bit."""
    assert set(TINY_BY_ALGORITHM) == set(registry.ROWS)
    agent = agent_for(name, out=tmp_path / "run", seed=1, horizon=99).learn(16)
    parts = describe(agent.env)["observation_parts"]
    assert parts[:3] == ["box: float32[2,2]", "count: float32[1]", "grid: bool[4,4,2]"]
    assert "large: int32[1] of 2000" in parts
    kinds = {one.part.name: one.kind for one in agent.learner.network.encoders}
    assert (kinds["image"], kinds["grid"], kinds["large"], kinds["box"]) == (
        "nature", "conv", "embedding", "vector",
    )  # fmt: skip
    assert agent.evaluate(episodes=2).returns.shape == (1, 2)
    samples = [agent.env._make_one().observation_space.sample() for _ in range(2)]
    single = [int(agent.predict(sample, deterministic=True)[0]) for sample in samples]
    space = Everything.observation_space
    batch = gymnasium.vector.utils.concatenate(space, samples, gymnasium.vector.utils.create_empty_array(space, 2))
    assert agent.predict(batch, deterministic=True)[0].tolist() == single
    agent.save(tmp_path / "saved")
    loaded = type(agent).load(tmp_path / "saved")
    assert loaded.predict(batch, deterministic=True)[0].tolist() == single
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    resumed = [type(agent).resume(tmp_path / folder) for folder in ("run", "copy")]
    assert state_bits(resumed[0]) == state_bits(agent)
    for one in resumed:
        one.learn(8)
        one.close()
    assert state_bits(resumed[0]) == state_bits(resumed[1]) != state_bits(agent)


def test_an_agent_is_not_loaded_on_other_parts(tmp_path):
    class Larger(Everything):
        observation_space = spaces.Dict({**Everything.observation_space, "large": spaces.Discrete(2001)})

    Larger.__name__ = "Everything"
    agent_for("a2c", Everything()).save(tmp_path / "saved")
    with pytest.raises(capo.CapoError, match=r"observation_parts was .* of 2000.* of 2001"):
        capo.A2C.load(tmp_path / "saved", Larger())
    with pytest.raises(capo.CapoError, match=r"eval_env .* observation_parts"):
        agent_for("a2c", Everything(), eval_env=Larger())


class Both(gymnasium.Env):
    """One step: the action that pays is known only from the picture and the number together."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict(
        {"picture": spaces.Box(0, 255, (1, 6, 6), np.uint8), "sign": spaces.Box(-1.0, 1.0, (1,), np.float32)}
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        bright, positive = self.np_random.integers(0, 2, 2)
        self.right = int(bright ^ positive)
        picture = np.full((1, 6, 6), 255 * bright, np.uint8)
        return {"picture": picture, "sign": np.float32([2 * positive - 1])}, {}

    def step(self, action):
        paid = float(int(action) == self.right)
        return self.reset()[0], paid, True, False, {}


gymnasium.register("Both-v0", Both, disable_env_checker=True)


def test_a_reward_that_depends_on_two_parts_is_learned():
    agent = capo.PPO(
        "Both-v0", seed=0, n_envs=8, rollout_length=32, batch_size=64, epochs=8, width=32, learning_rate=3e-3
    ).learn(4096)
    assert agent.evaluate(episodes=64, deterministic=True).mean > 0.95


def test_a_film_of_an_environment_that_does_not_draw_itself(tmp_path):
    pytest.importorskip("PIL")
    agent = agent_for("a2c")
    assert len(agent.watch(tmp_path / "play.gif", steps=6)) == 1
    assert (tmp_path / "play.gif").stat().st_size > 0


class Packed(Counting):
    """A jitted environment whose observations have two parts; the number is nan from the third step on."""

    name = "packed"
    layout = Layout((Part("cells", (5,), "bool"), Part("number", (1,), "float32")))
    observation_shape, observation_dtype = (layout.n_bytes,), np.uint8

    def see(self, state):
        number = jnp.where(state > 2, jnp.nan, jnp.float32(state))[None]
        return self.layout.pack({"cells": jnp.arange(5) < state, "number": number})

    def reset(self, key):
        return super().reset(key)[0], self.see(jnp.int32(0))

    def step(self, key, state, action):
        state, _, *rest = super().step(key, state, action)
        return state, self.see(state), *rest

    def outcome(self, state, action):
        return jnp.float32(action), state >= self.last - 1

    last = 2


def test_a_jitted_environment_of_several_parts(tmp_path):
    agent = agent_for("a2c", Packed(), seeds=2).learn(32)
    assert [one.kind for one in agent.learner.network.encoders] == ["vector", "vector"]
    row = np.asarray(Packed().see(jnp.int32(1)))
    assert agent.predict(row)[0].shape == ()
    assert agent.predict(np.stack([row, row]))[0].shape == (2,)
    assert agent.watch(tmp_path / "play.gif")
    broken = Packed()
    broken.last = 9
    with pytest.raises(capo.CapoError, match="observation"):
        agent_for("a2c", broken).learn(64)
    broken.observation_shape = (4,)
    with pytest.raises(capo.CapoError, match=r"packs observations into 5 bytes, but .* \(4,\)"):
        capo.A2C(broken)


class Raw(gymnasium.Env):
    """Atari's raw frames, all black."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 255, (210, 160, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return np.zeros((210, 160, 3), np.uint8), {}

    def step(self, action):
        del action
        return np.zeros((210, 160, 3), np.uint8), 0.0, True, False, {}


def test_large_images_are_warned_of():
    agent = agent_for("a2c", Raw(), n_envs=1, rollout_length=1)
    found = list(notices.warnings_about(agent._make_plan(1, None, None), 0, agent.learner))
    assert any("images of 210x160x3, 100,800 bytes" in text and "84x84" in text for text in found)
    assert agent.learner.network.describe() == "nature"


def test_the_speed_is_said_after_a_few_seconds(monkeypatch):
    monkeypatch.setattr(pace, "SECONDS", 0.0)
    monkeypatch.setattr(pace, "WORTH_SAYING", 0.0)
    calls = []

    class Slow:
        frames_per_iteration, n_seeds = 8, 2

        def run(self, state, iterations):
            calls.append(iterations)
            learned = np.float32(state + iterations > 2)  # as an algorithm that fills its replay first
            values = np.arange(state, state + iterations, dtype=np.float32)[:, None]
            return state + iterations, {"x": values, "learned": np.full_like(values, learned)}

    stream = io.StringIO()
    speed = pace.Pace(Lines(stream))
    state, metrics = speed.run(Slow(), 0, 10, 100)
    assert (state, calls) == (10, [1, 2, 7])
    assert metrics["x"][:, 0].tolist() == list(range(10))
    assert stream.getvalue().count("frames/s; the remaining 776 frames will take about") == 1
    assert speed.run(Slow(), 10, 10, 90)[0] == 20
    assert calls == [1, 2, 7, 10]
    pace.Pace(Ticker()).run(Slow(), 0, 10, 100)
    assert calls[-1] == 10  # nobody is told: nothing is cut


def test_what_is_paid_once_is_not_in_the_speed(monkeypatch):
    """The first iteration on the host compiles how to act: an estimate by it would be minutes for seconds."""
    now = [0.0]
    monkeypatch.setattr(pace.time, "perf_counter", lambda: now[0])

    class CompilesFirst:
        frames_per_iteration, n_seeds = 10, 1

        def run(self, state, iterations):
            now[0] += (60 if state == 0 else 0) + iterations
            return state + iterations, {"x": np.zeros((iterations, 1))}

    stream = io.StringIO()
    pace.Pace(Lines(stream)).run(CompilesFirst(), 0, 20, 100)
    assert "speed: about 10 frames/s; the remaining 930 frames will take about 1:33" in stream.getvalue()


def test_a_mask_among_the_observations_is_said_to_forbid_nothing():
    class WithMask(Both):
        observation_space = spaces.Dict(
            {"seen": spaces.Box(-1.0, 1.0, (3,)), "action_mask": spaces.Box(0, 1, (2,), np.int8)}
        )

    agent = agent_for("a2c", WithMask())
    assert any("forbids no action: if it is meant as a mask, return it in info" in text for text in said(agent))
    assert not any("forbidden" in text for text in said(agent_for("a2c", "Both-v0")))


def said(agent):
    return list(notices.warnings_about(agent._make_plan(1, None, None), 0, agent.learner))
