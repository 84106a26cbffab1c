"""Environments that users bring: functions that make them, vectors in processes, Stable-Baselines3's vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from helpers_envs import Coin
from helpers_shell import TINY

import capo
from capo import envs
from capo.envs.sb3 import SB3Vector
from capo.neural.learners.host import Collector
from capo.neural.parts import replay

SMALL: dict[str, Any] = TINY | {"horizon": 640}


class Steps(gymnasium.Env[Any, Any]):
    """Observes its step's number; the episodes of a life end after 2, 3, 4, 2, ... steps, every second cut off."""

    observation_space = spaces.Box(0, 99, (1,), np.float32)
    action_space = spaces.Discrete(2, start=3)
    made = 0
    open = 0

    def __init__(self) -> None:
        Steps.made += 1
        Steps.open += 1
        self.episode = -1

    def _seen(self) -> Any:
        return np.full(1, self.steps, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.episode, self.steps = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in (3, 4)
        self.steps += 1
        end, cut = self.steps == 2 + self.episode % 3, self.episode % 2 == 1
        return self._seen(), float(action - 3), end and not cut, end and cut, {}

    def close(self) -> None:
        Steps.open -= 1


class FakeVecEnv:
    """The interface of Stable-Baselines3's DummyVecEnv, and nothing else."""

    def __init__(self, n: int = 3) -> None:
        self.envs = [Steps() for _ in range(n)]
        self.num_envs = n
        self.observation_space, self.action_space = Steps.observation_space, Steps.action_space
        self.seeds: list[Any] = [None] * n
        self.closed = False

    def seed(self, seed: int | None = None) -> list[int | None]:
        self.seeds = [None if seed is None else seed + i for i in range(self.num_envs)]
        return self.seeds

    def reset(self) -> Any:
        return np.stack([env.reset(seed=seed)[0] for env, seed in zip(self.envs, self.seeds, strict=True)])

    def step_async(self, actions: Any) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        rows = []
        for env, action in zip(self.envs, self.actions, strict=True):
            obs, reward, terminated, truncated, info = env.step(int(action))
            info["TimeLimit.truncated"] = truncated and not terminated
            if terminated or truncated:
                info["terminal_observation"] = obs
                obs, _ = env.reset()
            rows.append((obs, reward, terminated or truncated, info))
        obs, reward, done, infos = zip(*rows, strict=True)
        return np.stack(obs), np.array(reward, np.float32), np.array(done), list(infos)

    def close(self) -> None:
        self.closed = True


def collected(env: Any, n: int = 3) -> Any:
    """Four iterations of rollouts of random actions."""
    made = envs.make(env)
    shape = (made.observation_shape, made.observation_dtype, True)
    opened = made.open(n)  # type: ignore[union-attr]
    collector = Collector(opened, replay.spec_for(*shape, n_envs=n, length=5), seed=0)
    rng = np.random.default_rng(0)

    def behave(obs: Any, step: int) -> Any:
        del step
        return rng.integers(0, 2, len(obs)), np.zeros(len(obs), np.float32)

    return [collector.collect(behave, n) for _ in range(4)]


def test_a_vector_of_stable_baselines_gives_the_same_transitions_as_gymnasium() -> None:
    found = collected(FakeVecEnv())
    assert any(rollouts.truncated.any() for rollouts, _ in found)
    assert any(rollouts.terminated.any() for rollouts, _ in found)
    vector = SyncVectorEnv([Steps] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    for (ours, episodes), (theirs, others) in zip(found, collected(vector), strict=True):
        np.testing.assert_equal(episodes, others)
        for mine, its in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine, its)


def test_a_vector_of_stable_baselines_is_trained_on_and_stays_open() -> None:
    vector = FakeVecEnv(4)
    agent = capo.NCAPO(vector, **(SMALL | {"n_envs": 4})).learn(160)
    assert agent.env.name == "FakeVecEnv"
    assert agent.config.n_envs == 4
    assert agent.evaluate(episodes=8).returns.shape == (1, 8)
    agent.close()
    assert not vector.closed
    with pytest.raises(capo.CapoError, match="vector environment of 4 copies, but n_envs=3"):
        capo.NCAPO(vector, n_envs=3)


def test_a_vector_of_stable_baselines_cannot_reset_some_of_its_copies() -> None:
    vector = SB3Vector(FakeVecEnv(), lambda obs: obs, 3)
    with pytest.raises(capo.CapoError, match="give it a time limit"):
        vector.restart(np.array([True, False, False]))


@pytest.mark.oracle
def test_the_real_vector_of_stable_baselines() -> None:
    from stable_baselines3.common import env_util

    vector = env_util.make_vec_env("CartPole-v1", n_envs=2)
    agent = capo.PPO(vector, rollout_length=16, batch_size=32, width=16).learn(64)
    assert agent.env.name == "CartPole-v1"
    assert agent.frames == 64
    vector.close()


def test_a_function_makes_as_many_environments_as_are_needed_and_they_are_closed() -> None:
    Steps.made = Steps.open = 0
    agent = capo.NCAPO(Steps, seeds=2, **SMALL)
    assert (Steps.made, Steps.open) == (1, 0)  # looked at, and closed
    agent.learn(160)
    evaluation = agent.evaluate(episodes=4)
    assert evaluation.returns.shape == (2, 4)
    agent.close()
    assert Steps.made == 1 + 2 * agent.config.n_envs + 2 * 4
    assert Steps.open == 0


def test_a_function_gives_the_same_training_as_the_name(tmp_path: Path) -> None:
    def make() -> Any:
        return gymnasium.make("CartPole-v1")

    named = capo.NCAPO("CartPole-v1", seeds=2, **SMALL).learn(160)
    made = capo.NCAPO(make, seeds=2, **SMALL).learn(160)
    observation = np.linspace(-1, 1, 4, dtype=np.float32)
    for seed in (0, 1):
        ours, theirs = (agent.use_seed(seed).policy(observation) for agent in (made, named))
        np.testing.assert_array_equal(ours.probabilities, theirs.probabilities)
    path = made.save(tmp_path / "made")
    with pytest.raises(capo.CapoError, match=r"given as an object or a function.*give it again as env="):
        capo.load(path)
    again = capo.load(path, env=make).learn(64)
    assert again.frames == made.frames + 64


def test_a_run_of_a_function_is_resumed_with_it(tmp_path: Path) -> None:
    agent = capo.NCAPO(Steps, out=tmp_path / "run", **SMALL)
    agent.learn(320, callback=lambda *_: False)
    assert agent.frames_left
    agent.close()
    with pytest.raises(capo.CapoError, match="give it again as env="):
        capo.NCAPO.resume(tmp_path / "run")
    resumed = capo.NCAPO.resume(tmp_path / "run", env=Steps)
    assert resumed.learn(resumed.frames_left).frames == 320
    resumed.close()


def test_a_function_may_make_a_vector_in_processes() -> None:
    def make() -> Any:
        return AsyncVectorEnv([Steps] * 2)

    agent = capo.NCAPO(make, seeds=2, **(SMALL | {"n_envs": 2})).learn(80)
    assert agent.config.n_envs == 2
    assert agent.evaluate(episodes=4).returns.shape == (2, 4)
    agent.close()


def test_a_vector_in_processes_is_trained_on() -> None:
    vector = AsyncVectorEnv([Steps] * 2)
    agent = capo.NCAPO(vector, **(SMALL | {"n_envs": 2})).learn(80)
    agent.close()
    vector.reset()  # still open
    vector.close()


def test_a_function_may_make_a_jitted_environment() -> None:
    assert capo.NCAPO(Coin, **SMALL).learn(64).env.name == "coin"


def test_functions_that_make_no_environments_are_refused() -> None:
    def needs(name: str) -> Any:
        return gymnasium.make(name)

    with pytest.raises(capo.CapoError, match=r"function needs .* raised TypeError.*without arguments"):
        capo.NCAPO(needs)
    with pytest.raises(capo.CapoError, match="returned None; it must return an environment"):
        capo.NCAPO(lambda: None)
    one = gymnasium.make("CartPole-v1")
    agent = capo.NCAPO(lambda: one, **SMALL)
    with pytest.raises(capo.CapoError, match="the same object twice"):
        agent.learn(64)
    with pytest.raises(capo.CapoError, match="or a function that makes it"):
        capo.NCAPO(gymnasium.make("CartPole-v1"), seeds=2)


def test_an_environment_describes_itself() -> None:
    assert repr(envs.make("CartPole-v1")) == "<CartPole-v1: 2 actions, observations (4,) float32>"


class Returns(gymnasium.Env[Any, Any]):
    """Returns what it is given from every reset and step, whatever its spaces say."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: Any, observation: Any, step: Any = None, late: bool = False) -> None:
        self.observation_space, self.observation, self.returned = space, observation, step
        self.info = {"action_mask": np.ones(2, np.int8)} if late else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.observation, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return self.returned or (self.observation, 1.0, False, False, self.info)


BYTES, UNIT = spaces.Box(0, 255, (6, 6, 3), np.uint8), spaces.Box(0, 1, (2,))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            Returns(BYTES, np.zeros((3, 6, 6), np.uint8)),
            r"shape \(3, 6, 6\), but the space says \(6, 6, 3\)",
        ),
        (Returns(spaces.Box(-1, 1, (2, 3)), np.zeros((3, 2))), r"shape \(3, 2\), but the space says \(2, 3\)"),
        (Returns(spaces.Box(-1, 1, (3,)), np.zeros(4)), r"shape \(4,\), but the space says \(3,\)"),
        (
            Returns(spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(2)), {"a": np.zeros(3), "b": 1}),
            r"a of 'Returns' has the shape \(3,\)",
        ),
        (Returns(BYTES, np.full((6, 6, 3), 0.5)), r"observation 0.5 of 'Returns' is none of the uint8 numbers"),
        (Returns(BYTES, np.full((6, 6, 3), 256)), r"observation 256 of 'Returns' is none of the uint8 numbers"),
        (
            Returns(spaces.MultiBinary(2), np.array([0.3, 1.0])),
            "0.3 of 'Returns' is none of the bool",
        ),
        (Returns(UNIT, np.zeros(2), late=True), r"its step returned info\['action_mask'\], but"),
        (
            Returns(UNIT, np.zeros(2), (np.zeros(2), 1.0, False, {})),
            "its step returned 4 values",
        ),
        (
            Returns(UNIT, np.zeros(2), (np.zeros(2), None, False, False, {})),
            "returned the reward None, which is not a number",
        ),
        (
            Returns(UNIT, np.zeros(2), (np.zeros(2), "1", False, False, {})),
            "returned the reward '1', which is not a number",
        ),
    ],
    ids=[
        "axes",
        "matrix",
        "length",
        "part",
        "fraction",
        "overflow",
        "bit",
        "late mask",
        "old step",
        "no reward",
        "text",
    ],
)
def test_what_does_not_fit_the_spaces_is_refused(env: Any, message: str) -> None:
    with pytest.raises(capo.CapoError, match=message):
        capo.A2C(env, width=8, n_envs=1).learn(20)


class Tensor:
    """A scalar of another library, which only says how to make a float of it."""

    def __float__(self) -> float:
        return 3.0


@pytest.mark.parametrize("reward", [np.array([3.0]), np.float16(3), jnp.float32(3), Tensor()], ids=type)
def test_axes_of_length_one_and_rewards_of_any_kind_are_as_good(reward: Any) -> None:
    inside = Returns(UNIT, np.ones((1, 2)), (np.ones((2, 1)), reward, True, False, {}))
    agent = capo.A2C(inside, width=8, n_envs=1).learn(20)
    assert agent.evaluate(2).mean == 3.0
