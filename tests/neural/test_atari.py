"""Atari: ale-py's vector environment as capo sees it, beside the same games stepped in another mode."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import capo
from capo import envs
from capo.envs.atari import AtariEnv, AtariVector, is_atari
from capo.envs.wrappers import wrap
from capo.errors import CapoError
from capo.neural.learners.frames import FrameCollector, next_stack
from capo.neural.learners.host import Collector
from capo.neural.parts import replay

vector_env = pytest.importorskip("ale_py.vector_env")

SHORT = "ALE/Breakout-v5,max_num_frames_per_episode=160"  # 40 steps
TINY = {"n_envs": 2, "rollout_length": 8, "width": 4, "network": "mlp"}
NCAPO = TINY | {"batch_size": 2, "gradient_steps": 1, "replay_rollouts": 4}


def actions(steps: int, n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 4, (steps, n))


def test_steps_are_those_of_the_next_step_mode_with_its_resets_left_out() -> None:
    """In that mode the last observation is simply the next one, and a call of its own resets."""
    steps, n = 250, 3
    chosen = actions(steps, n)
    twin = vector_env.AtariVectorEnv(
        "breakout",
        n,
        stack_num=1,
        reward_clipping=False,
        autoreset_mode="NextStep",
        max_num_frames_per_episode=160,
    )
    ours = AtariEnv(f"{SHORT},episodic_life=false").open(n)
    first, theirs = ours.reset(5), twin.reset(seed=5)[0]
    np.testing.assert_array_equal(first[..., 0], theirs[:, 0])
    ended = 0
    for t in range(steps):
        moved = ours.step(chosen[t])
        obs, reward, terminated, truncated, _ = twin.step(chosen[t])
        np.testing.assert_array_equal(moved.successor[..., 0], obs[:, 0])
        np.testing.assert_array_equal(moved.reward, reward)
        np.testing.assert_array_equal(moved.terminated, terminated)
        np.testing.assert_array_equal(moved.truncated, truncated)
        if moved.ended.any():
            ended += 1
            assert moved.ended.all()  # all reach the limit at once, so that one call resets all
            fresh = twin.step(np.zeros(n, np.int64))[0]
            np.testing.assert_array_equal(moved.obs[..., 0], fresh[:, 0])
        else:
            np.testing.assert_array_equal(moved.obs, moved.successor)
    assert ended == 6
    ours.close()


def test_a_lost_life_ends_what_is_learned_from_and_not_the_game() -> None:
    steps, n = 400, 2
    chosen = actions(steps, n)
    env = AtariEnv("ALE/Breakout-v5")
    ours, twin = env.open(n), env.open_for_evaluation(n)
    ours.reset(5)
    assert twin is not None
    twin.reset(5)
    assert isinstance(twin, AtariVector)
    lives, lost, games = twin._lives.copy(), 0, 0
    for t in range(steps):
        moved, whole = ours.step(chosen[t]), twin.step(chosen[t])
        np.testing.assert_array_equal(moved.obs, whole.obs)
        np.testing.assert_array_equal(moved.ended, whole.terminated | whole.truncated)
        fewer = (twin._lives < lives) & ~whole.ended
        np.testing.assert_array_equal(moved.terminated, whole.terminated | fewer)
        lives = twin._lives.copy()
        lost, games = lost + fewer.sum(), games + whole.ended.sum()
    assert games >= 2
    assert lost == 4 * games + (5 - lives).sum()  # five lives a game


def test_training_curves_count_whole_games_by_their_own_rewards() -> None:
    n, length = 2, 100
    env = wrap(AtariEnv("ALE/Breakout-v5"), 4)
    spec = replay.spec_for(env.observation_shape, np.uint8, True, n_envs=n, length=length, frames=4)
    chosen = iter(actions(500, n))
    collector = Collector(env.open(n), spec, seed=5)
    behave: Any = lambda obs, step: (next(chosen), np.zeros(n, np.float32))  # noqa: ARG005
    found = [collector.collect(behave, n) for _ in range(4)]
    twin = AtariEnv("ALE/Breakout-v5").open_for_evaluation(n)
    assert twin is not None
    twin.reset(5)
    total, scores = np.zeros(n), []
    for action in actions(500, n)[: 4 * length]:
        moved = twin.step(action)
        total += moved.reward
        scores += total[moved.ended].tolist()
        total[moved.ended] = 0
    episodes = sum(row["episodes"] for _, row in found)
    assert episodes == len(scores) >= 2
    assert sum(row["episodes"] * row["episode_return"] for _, row in found if row["episodes"]) == sum(scores) > 0
    for rollouts, _ in found:  # frames that are stored once come back as the stacks that were acted on
        back = replay.unpack_rollouts(spec, replay.pack_rollouts(spec, rollouts))
        np.testing.assert_array_equal(back.obs, rollouts.obs)
        assert rollouts.terminated.sum() > 0


def test_two_groups_play_what_each_plays_alone() -> None:
    """Threads of both groups run at the same time; nothing depends on which is faster."""
    env, length = AtariEnv("ALE/Breakout-v5"), 60
    spec = replay.spec_for((84, 84, 4), np.uint8, True, n_envs=4, length=length, frames=4)
    chosen = actions(length, 2)

    def act(stack: Any, frame: Any, fresh: Any, turn: int) -> Any:
        return next_stack(spec, stack, frame, fresh), jnp.asarray(chosen[turn // 2]), jnp.zeros(2)

    both, _ = FrameCollector([env.open(2), env.open(2)], spec, seed=5).collect(act)
    for first in (0, 2):
        alone = env.open(2)
        frames = [alone.reset(5 + first)]
        for t in range(length):
            moved = alone.step(chosen[t])
            frames.append(moved.obs)
            np.testing.assert_array_equal(both.reward[first : first + 2, t], moved.reward)
            np.testing.assert_array_equal(both.terminated[first : first + 2, t], moved.terminated)
        rows = np.asarray(both.obs)[first : first + 2, 3 : 3 + length]
        np.testing.assert_array_equal(rows, np.stack(frames[:-1], axis=1))
        alone.close()


def test_time_limits_restart_single_games() -> None:
    vector = wrap(AtariEnv("ALE/Pong-v5"), 2, 5).open(2)
    vector.reset(0)
    for t in range(1, 16):
        moved = vector.step(np.array([2, 3]))
        assert moved.truncated.tolist() == [t % 5 == 0] * 2
        if t % 5 == 0:
            np.testing.assert_array_equal(moved.obs[..., 0], moved.obs[..., 1])
    vector.close()


@pytest.mark.parametrize(("algorithm", "settings"), [(capo.NCAPO, NCAPO), (capo.PPO, TINY | {"batch_size": 8})])
def test_train_evaluate_save_and_watch(algorithm: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    agent = algorithm(SHORT, **settings)
    assert is_atari(SHORT)
    assert (agent.config.frame_stack, agent.config.reward_clip) == (4, 1.0)
    assert agent.played_env.observation_shape == (84, 84, 4)
    agent.learn(64)
    assert agent.evaluate(2).returns.shape == (1, 2)
    again = algorithm(SHORT, **settings).learn(64)
    obs = np.random.default_rng(0).integers(0, 256, (20, 84, 84, 4), np.uint8)
    np.testing.assert_array_equal(*(a.predict(obs, deterministic=True)[0] for a in (agent, again)))
    loaded = algorithm.load(agent.save(tmp_path / "agent"))
    np.testing.assert_array_equal(*(a.predict(obs, deterministic=True)[0] for a in (agent, loaded)))
    loaded.learn(16)
    agent.watch(tmp_path / "play.gif", steps=4)
    assert (tmp_path / "play.gif").stat().st_size > 1000


def test_presets() -> None:
    for algorithm in (capo.NCAPO, capo.PPO):
        config = algorithm._algorithm.Config
        named, default = config.preset("atari"), config.preset("default", "ALE/Pong-v5")
        assert named == default
        assert config.preset("default", "CartPole-v1").frame_stack == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ALE/Pongo-v5", r"unknown Atari game 'ALE/Pongo-v5': did you mean 'ALE/Pong-v5'"),
        ("ALE/Pong-v5,sticky=1", "unknown argument of ALE/Pong-v5 'sticky'.*repeat_action_probability"),
        ("ALE/Pong-v5,noop_max=x", "noop_max='x' must be a value such as 30"),
        ("ALE/Pong-v5,episodic_life=3", "episodic_life=3 must be a value such as True"),
        ("ALE/Pong-v5,frameskip=0", "ale-py cannot make .*frameskip must be positive"),
    ],
)
def test_mistakes(name: str, message: str) -> None:
    with pytest.raises(CapoError, match=message):
        envs.make(name)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(CapoError, match=r"needs the extra 'atari': pip install 'capo-rl\[atari\]'"):
        envs.make("ALE/Pong-v5")
