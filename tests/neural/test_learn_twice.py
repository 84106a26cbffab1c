"""Going on with an agent: schedules that have ended, folders and files, callbacks, vector environments."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from helpers_envs import Numbers
from helpers_shell import ENV, FRAMES, TINY, TINY_640, bits

import capo
from capo.neural import trainer
from capo.neural.trainer import Trainer
from capo.runs.writer import RunWriter


def test_a_learning_rate_that_has_ended_is_said() -> None:
    agent = capo.NCAPO(ENV, **TINY_640, learning_rate_schedule="linear")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.learn(640)
    with pytest.warns(
        capo.CapoWarning, match=r"is 0 after .*\(640 frames\), so nothing .* learn\(160, horizon=800\)"
    ):
        agent.learn(160)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.learn(160, horizon=960)
        capo.NCAPO(ENV, **TINY_640, learning_rate_schedule="constant").learn(640).learn(16)


def test_a_learning_rate_that_will_have_ended_is_said() -> None:
    agent = capo.NCAPO(ENV, **TINY, learning_rate_schedule="linear", horizon=160)
    with pytest.warns(capo.CapoWarning, match=r"nothing will be learned in the last 480 frames: learn\(640, hori"):
        agent.learn(640)


def test_a_plan_that_is_refused_is_forgotten(tmp_path: Path) -> None:
    out = tmp_path / "run"
    agent = capo.NCAPO(ENV, out=out, **TINY)
    other = capo.NCAPO(ENV, out=out, **TINY).learn(FRAMES)  # takes the folder first
    with pytest.raises(capo.CapoError, match="already contains a run"):
        agent.learn(10 * FRAMES)
    assert agent.frames_left == 0
    agent.out = tmp_path / "another"
    agent.learn(20 * FRAMES)
    assert (agent.config.horizon, other.config.horizon) == (20 * FRAMES, FRAMES)


def test_a_plan_that_the_disk_refuses_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = capo.NCAPO(ENV, out=tmp_path / "run", **TINY)
    with monkeypatch.context() as patch:
        patch.setattr(trainer.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        with pytest.raises(capo.CapoError, match="the disk has 0 MB left"):
            agent.learn(40 * FRAMES)
    assert agent.learn(2 * FRAMES).config.horizon == 2 * FRAMES


def test_a_batch_larger_than_the_replay_is_said() -> None:
    with pytest.warns(
        capo.CapoWarning, match=r"batch_size=64 is more than the replay holds \(replay_rollouts=32\)"
    ):
        capo.NCAPO(ENV, **TINY_640 | {"batch_size": 64}).learn(FRAMES)


def cartpoles(n: int) -> Any:
    import gymnasium

    return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * n)


def test_a_vector_environment_says_how_many_copies_there_are(tmp_path: Path) -> None:
    settings = {name: value for name, value in TINY_640.items() if name != "n_envs"}
    agent = capo.NCAPO(cartpoles(3), **settings)
    assert agent.config.n_envs == 3
    assert agent.learn(60).frames == 60
    assert "3 environments x 2 steps = 6 frames" in agent.learner.describe()
    collector = agent.learner._collector
    assert len(collector._complete) <= 3, "rollouts pile up and are learned from later and later"
    saved = agent.save(tmp_path / "agent")
    assert bits(capo.NCAPO.load(saved, env=cartpoles(3))) == bits(agent)
    with pytest.raises(capo.CapoError, match=r"vector environment of 4 copies, but n_envs=3"):
        capo.NCAPO.load(saved, env=cartpoles(4))
    with pytest.raises(capo.CapoError, match=r"vector environment of 3 copies, but n_envs=8"):
        capo.NCAPO(cartpoles(3), **TINY)


def test_one_environment_gives_its_rollouts_one_after_another() -> None:
    import gymnasium

    agent = capo.NCAPO(gymnasium.make("CartPole-v1"), **TINY_640)
    assert "8 rollouts of one environment x 2 steps = 16 frames" in agent.learner.describe()


def test_a_folder_that_was_to_go_on_from_a_file_does_not_start_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = capo.NCAPO(ENV, **TINY_640).learn(320).save(tmp_path / "agent")
    out = tmp_path / "more"

    def killed(*_: Any, **__: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "write_to", killed)
        patch.setattr(RunWriter, "withdraw", RunWriter.close)  # nobody is left to tidy up
        with pytest.raises(SystemExit):
            capo.NCAPO.load(path, out=out).learn(320)
    with pytest.raises(capo.CapoError, match=r"saved agent at frame 320 and ended before its first checkpoint"):
        capo.NCAPO.resume(out)
    capo.NCAPO.load(path, out=tmp_path / "again").learn(160)
    assert capo.NCAPO.resume(tmp_path / "again").frames == 480


@pytest.mark.parametrize("answer", [False, np.False_, np.float32(1) > 2])
def test_numpy_says_false_too(answer: Any) -> None:
    agent = capo.NCAPO(ENV, log_every=FRAMES, **TINY_640)
    assert agent.learn(640, callback=lambda *_: answer).frames == FRAMES
    agent = capo.NCAPO(ENV, log_every=FRAMES, **TINY_640)
    assert agent.learn(32, callback=lambda *_: 0).frames == 32  # type: ignore[arg-type, return-value]


def test_ends_that_are_numbers() -> None:
    agent = capo.NCAPO(Numbers(), **TINY_640).learn(32)
    np.testing.assert_array_equal(agent.evaluate(4).returns, [[3.0] * 4])


def test_a_file_beside_a_folder_of_its_name(tmp_path: Path) -> None:
    saved = capo.NCAPO(ENV, **TINY_640).learn(32).save(tmp_path / "x")
    (tmp_path / "x").mkdir()
    assert capo.NCAPO.load(tmp_path / "x").frames == 32
    (tmp_path / "x").rmdir()
    capo.NCAPO(ENV, out=tmp_path / "x", **TINY_640).learn(64)
    with pytest.raises(capo.CapoError, match=rf"both the run {tmp_path}/x/ and the saved agent {saved}"):
        capo.NCAPO.load(tmp_path / "x")
    assert capo.NCAPO.load(saved).frames == 32
