"""A training that is cut off inside a step: what is kept is right, and what is lost is not made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from helpers_shell import ENV, FRAMES, TINY_640, bits

import capo


def cut_off(agent: capo.NCAPO, monkeypatch: pytest.MonkeyPatch) -> None:
    """``agent`` after a second Ctrl-C in the middle of a jitted call, which has taken the state."""

    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(agent._training.learner, "run", stopped)  # type: ignore[union-attr]
        with pytest.raises(KeyboardInterrupt):
            agent.learn(10 * FRAMES)


def test_a_lost_state_is_not_replaced_by_an_untrained_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    agent = capo.NCAPO(ENV, out=out, **TINY_640).learn(10 * FRAMES)
    saved = agent.save(tmp_path / "saved")
    before = saved.read_bytes(), sorted((out / "checkpoints").iterdir())
    cut_off(agent, monkeypatch)
    for use in (
        lambda: agent.predict([1.0]),
        lambda: agent.evaluate(2),
        lambda: agent.save(saved),
        lambda: agent.learn(FRAMES),
    ):
        with pytest.raises(capo.CapoError, match=r"training state was lost.*capo resume DIR"):
            use()
    assert (saved.read_bytes(), sorted((out / "checkpoints").iterdir())[: len(before[1])]) == before
    assert capo.NCAPO.resume(out).frames == 10 * FRAMES


def test_a_state_of_another_iteration_is_never_written(tmp_path: Path) -> None:
    agent = capo.NCAPO(ENV, **TINY_640).learn(10 * FRAMES)
    agent._training.parts[0].iteration += 1  # type: ignore[union-attr]
    with pytest.raises(capo.CapoError, match="training state was lost"):
        agent.save(tmp_path / "agent")


class Fragile(gymnasium.Env[Any, Any]):
    """Raises, or pays nan, at one step of its life."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    steps = 0
    breaks_at = 70
    nan_at = 10**9

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        del action
        self.steps += 1
        if self.steps == self.breaks_at:
            raise RuntimeError("the simulator is gone")
        reward = float("nan") if self.steps == self.nan_at else 1.0
        return np.zeros(1, np.float32), reward, self.steps % 3 == 0, False, {}


def test_an_environment_that_raises_leaves_the_last_good_state(tmp_path: Path) -> None:
    agent = capo.NCAPO(Fragile(), out=tmp_path / "run", **TINY_640)
    message = r"Fragile, after frame 69: its step raised RuntimeError: the simulator is gone.* frame 64"
    with pytest.raises(capo.CapoError, match=message) as caught:
        agent.learn(640)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert agent.frames == 64
    kept = agent.save(tmp_path / "kept")
    assert bits(capo.NCAPO.load(kept, env=Fragile())) == bits(agent)
    reference = capo.NCAPO(Fragile(), **TINY_640).learn(64)
    assert bits(agent) == bits(reference)
    assert agent.learn(64).frames == 128  # the environment works again


def test_a_reward_of_the_host_that_is_nan_is_named() -> None:
    env = Fragile()
    env.nan_at, env.breaks_at = 20, 10**9
    agent = capo.NCAPO(env, **TINY_640)
    with pytest.raises(capo.CapoError, match="Fragile, after frame 20: its step gave the reward nan"):
        agent.learn(640)
    assert agent.frames == 16
