"""A training that is cut off inside a step: what is kept is right, and what is lost is not made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers_envs import Fragile
from helpers_shell import ENV, FRAMES, TINY_640, bits, uses

import capo
from capo.cli import main


def cut_off(agent: capo.NCAPO, monkeypatch: pytest.MonkeyPatch) -> None:
    """``agent`` after a second Ctrl-C in the middle of a jitted call, which has taken the state."""

    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(agent.learner, "run", stopped)
        with pytest.raises(KeyboardInterrupt):
            agent.learn(10 * FRAMES)


def test_a_lost_state_is_not_replaced_by_an_untrained_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    agent = capo.NCAPO(ENV, out=out, **TINY_640).learn(10 * FRAMES)
    saved = agent.save(tmp_path / "saved")
    before = saved.read_bytes(), sorted((out / "checkpoints").iterdir())
    cut_off(agent, monkeypatch)
    for use in uses(agent, saved):
        with pytest.raises(capo.CapoError, match=r"training state was lost.*capo resume DIR"):
            use()
    assert (saved.read_bytes(), sorted((out / "checkpoints").iterdir())[: len(before[1])]) == before
    assert capo.NCAPO.resume(out).frames == 10 * FRAMES


def test_a_state_of_another_iteration_is_never_written(tmp_path: Path) -> None:
    agent = capo.NCAPO(ENV, **TINY_640).learn(10 * FRAMES)
    agent._states.groups[0].iteration += 1
    with pytest.raises(capo.CapoError, match="training state was lost"):
        agent.save(tmp_path / "agent")


def test_an_environment_that_raises_leaves_the_last_good_state(tmp_path: Path) -> None:
    agent = capo.NCAPO(Fragile(breaks_at=70), out=tmp_path / "run", **TINY_640)
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
    agent = capo.NCAPO(Fragile(nan_at=20), **TINY_640)
    with pytest.raises(capo.CapoError, match="Fragile, after frame 19: its step returned the reward nan"):
        agent.learn(640)
    assert agent.frames == 16


def test_a_reset_that_raises_while_training_is_named() -> None:
    agent = capo.NCAPO(Fragile(reset_breaks_at=4), **TINY_640)
    with pytest.raises(
        capo.CapoError, match="Fragile, after frame 8: its reset raised OSError: the sim"
    ) as caught:
        agent.learn(640)
    assert isinstance(caught.value.__cause__, OSError)
    agent = capo.NCAPO(Fragile(reset_breaks_at=1), **TINY_640)
    with pytest.raises(capo.CapoError, match="Fragile: its reset raised OSError"):
        agent.learn(640)
    assert agent.learn(16).frames == 16


def test_an_environment_that_fails_when_it_is_opened_again_costs_nothing(tmp_path: Path) -> None:
    env = Fragile()
    agent = capo.NCAPO(env, **TINY_640).learn(64)
    before = bits(agent)
    env.reset_breaks_at = env.resets + 1
    with pytest.raises(
        capo.CapoError, match=r"Fragile: its reset raised OSError.* keeps what it learned .*frame 64"
    ):
        agent.learn(64, horizon=1280)  # a new learner opens its environments anew
    assert bits(agent) == before
    loaded = capo.NCAPO.load(agent.save(tmp_path / "agent"), env=env)
    env.reset_breaks_at = env.resets + 1
    with pytest.raises(capo.CapoError, match="its reset raised OSError"):
        loaded.learn(64)
    assert bits(loaded) == before
    assert loaded.learn(64).frames == 128


def test_an_observation_of_the_host_that_is_nan_is_named() -> None:
    agent = capo.NCAPO(Fragile(blind_at=20), **TINY_640)
    with pytest.raises(
        capo.CapoError, match="Fragile, after frame 19: its step returned an observation containing nan"
    ):
        agent.learn(640)
    assert agent.frames == 16


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize(
    ("fault", "message", "cause"),
    [
        ({"breaks_at": 40}, "its step raised RuntimeError: the simulator is gone", RuntimeError),
        ({"reset_breaks_at": 9}, "its reset raised OSError: the simulator does not start", OSError),
        ({"nan_at": 40}, "its step returned the reward nan", type(None)),
    ],
)
def test_an_evaluation_that_fails_changes_nothing(
    copies: bool, fault: dict[str, int], message: str, cause: type
) -> None:
    env = Fragile(copies=copies)
    agent = capo.NCAPO(env, **TINY_640).learn(16)
    before = bits(agent)
    env.steps = env.resets = 0
    for name, value in fault.items():
        setattr(env, name, value)
    with pytest.raises(
        capo.CapoError, match=f"Fragile, in the evaluation: {message}.*agent is unchanged"
    ) as caught:
        agent.evaluate(17)
    assert isinstance(caught.value.__cause__, cause)
    assert bits(agent) == before
    env.steps, env.breaks_at, env.reset_breaks_at, env.nan_at = 0, 10**9, 10**9, 10**9
    np.testing.assert_array_equal(agent.evaluate(2).returns, [[3.0, 3.0]])
    assert agent.learn(16).frames == 32


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that the environment of the id Fragile-v0 is made with."""
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    gymnasium.register("Fragile-v0", Fragile, disable_env_checker=True)
    arguments: dict[str, Any] = gymnasium.registry["Fragile-v0"].kwargs
    return arguments


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"breaks_at": 2}, "Fragile-v0, at step 2: its step raised RuntimeError: the simulator is gone"),
        ({"reset_breaks_at": 1}, "Fragile-v0: its reset raised OSError: the simulator does not start"),
        ({"unknown": 1}, "Gymnasium cannot make 'Fragile-v0'"),
    ],
)
def test_watching_an_environment_that_fails(
    fault: dict[str, int],
    message: str,
    registered: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent = capo.NCAPO("Fragile-v0", **TINY_640)
    monkeypatch.setattr("capo.neural.algorithms.registry.load", lambda _, **__: agent)
    registered |= fault
    assert main(["watch", "saved", "--out", str(tmp_path / "play.gif")]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_can_not_be_made_again(registered: dict[str, Any]) -> None:
    agent = capo.NCAPO("Fragile-v0", **TINY_640).learn(16)
    registered["unknown"] = 1
    with pytest.raises(capo.CapoError, match=r"Gymnasium cannot make 'Fragile-v0': TypeError: .*unknown"):
        agent.evaluate(2)
    with pytest.raises(capo.CapoError, match=r"Gymnasium cannot make 'Fragile-v0': TypeError: .*unknown"):
        capo.NCAPO("Fragile-v0")
