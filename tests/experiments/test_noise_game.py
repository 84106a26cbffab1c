"""The noise experiment on a game: noisy rewards in training, the game itself in evaluations."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # before jax is imported: compiles faster

import jax
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tiny_agents import PLAN, TinyNCAPO, tiny_trainings

from capo import CapoError, envs
from capo.cli import main
from capo.envs.noise import NoisyReward
from capo.envs.validation import check_jitted
from capo.experiments import noise, noise_game


def test_only_the_reward_is_noisy() -> None:
    inner = envs.make("probe-both")
    env = NoisyReward(inner, 3.0)
    check_jitted(env)
    keys = jax.random.split(jax.random.PRNGKey(0), 4000)
    state, obs = jax.vmap(env.reset)(keys)
    clean_state, clean_obs = jax.vmap(inner.reset)(keys)
    np.testing.assert_array_equal(obs, clean_obs)
    action = np.ones(4000, np.int32)
    _, next_obs, reward, terminated, truncated = jax.vmap(env.step)(keys, state, action)
    _, clean_next, clean, ended, cut = jax.vmap(inner.step)(keys, clean_state, action)
    for found, expected in ((next_obs, clean_next), (terminated, ended), (truncated, cut)):
        np.testing.assert_array_equal(found, expected)
    noise = np.asarray(reward - clean)
    assert noise.std() == pytest.approx(3, rel=0.05)
    assert noise.mean() == pytest.approx(0, abs=0.2)
    assert not env.truncates


def test_noise_has_to_be_noise_on_a_jitted_environment() -> None:
    for deviation in (0.0, -1.0, float("nan")):
        with pytest.raises(CapoError, match="must be positive and finite"):
            NoisyReward(envs.make("probe-both"), deviation)
    with pytest.raises(CapoError, match="needs an object of the jitted protocol"):
        NoisyReward(envs.make("CartPole-v1"), 1.0)


def quick(out: Path, *more: str) -> int:
    return main(["reproduce", "noise", "--quick", "--part", "game", "--out", str(out), *more])


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    monkeypatch.setattr(noise, "QUICK", PLAN)
    with tiny_trainings(monkeypatch, tmp_path_factory.getbasetemp() / "noise-jax-cache", "ncapo", "ppo"):
        yield


@pytest.mark.usefixtures("tiny")
def test_training_is_noisy_and_evaluations_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "whole"
    assert quick(out, "--algos", "ncapo") == 0
    shown = capsys.readouterr()
    assert "QUICK" in shown.out
    assert "share of its own: of the return without noise" in shown.out
    assert "1 of 2: NCAPO, noise 0" in shown.err
    monkeypatch.setattr(noise_game, "QUICK_LEVELS", (10.0,))
    assert quick(out) == 0
    assert "1 already finished" in capsys.readouterr().err
    assert (out / "game.png").read_bytes().startswith(b"\x89PNG")
    for learner in ("ncapo", "ppo"):
        content = json.loads((out / f"breakout-{learner}-noise-10.json").read_text())
        assert (content["experiment"], content["reward_noise"]) == ("noise", 10)
        assert "standard deviation 10" in content["protocol"]["Rewards"]
        for entry in content["seeds"]:
            assert set(entry["final_returns"]) <= {-1.0, 1.0}, "the probe's own rewards"
            assert np.abs(entry["evaluation"]["returns"]).max() <= 1
            assert len(entry["evaluation"]["returns"]) == 4
        trained = [abs(value) for entry in content["seeds"] for value in entry["training"]["returns"] if value]
        assert max(trained) > 1, "returns of noisy rewards"
    # Nothing is repeated; a stopped run goes on to the same end; the figure needs the files only.
    assert quick(out) == 0
    assert "2 already finished" in capsys.readouterr().err
    broken = tmp_path / "broken"
    with monkeypatch.context() as patch:
        patch.setattr(TinyNCAPO, "stop_at", 320)
        assert quick(broken, "--algos", "ncapo") == 130
    assert quick(broken, "--algos", "ncapo") == 0
    assert "continuing" in capsys.readouterr().err
    ours, theirs = (json.loads((one / "breakout-ncapo-noise-10.json").read_text()) for one in (broken, out))
    assert ours["seeds"] == theirs["seeds"]
    assert main(["reproduce", "noise", "--draw-only", "--out", str(broken)]) == 0
    assert "noise 10" in capsys.readouterr().out


@pytest.mark.usefixtures("tiny")
def test_levels_as_one_program_give_the_same_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_game, "QUICK_LEVELS", (0.0, 10.0))
    together, apart = tmp_path / "together", tmp_path / "apart"
    assert quick(together, "--algos", "ncapo", "--together") == 0
    assert "2 x 2 seeds" in capsys.readouterr().err
    assert quick(apart, "--algos", "ncapo") == 0
    for level in (0, 10):
        ours, theirs = (
            json.loads((one / f"breakout-ncapo-noise-{level}.json").read_text()) for one in (together, apart)
        )
        assert ours.pop("programs")[0]["rows_of_its_program"] == 4
        del theirs["programs"]
        assert ours == theirs
    assert quick(together, "--algos", "ncapo") == 0
    assert "2 already finished" in capsys.readouterr().err
    short = tmp_path / "short"
    assert quick(short, "--algos", "ncapo", "--together", "--seconds", "1e-9") == 0
    assert "the time limit was reached" in capsys.readouterr().err
    stopped = json.loads((short / "breakout-ncapo-noise-0.json").read_text())
    assert 0 < stopped["frames"] < ours["frames"]
    assert stopped["config"]["horizon"] == ours["config"]["horizon"], "the schedules are those of the whole"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seconds", "5"], "--seconds needs --together"),
        (["--together", "--seconds", "-1"], "seconds=-1 must be positive"),
        (["--together", "--workers", "2"], "leave out --workers and --on"),
        (["--algos", "rainbow"], "allowed: ncapo, ncapo-paper, ncapo-sign, ppo"),
        (["--levels", "5"], "allowed: 0, 10, 3"),
        (["--part", "tabula"], "did you mean 'tabular'"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "noise", "--out", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_posters_numbers_belong_to_levels_that_are_run() -> None:
    assert all(set(values) == set(noise_game.LEVELS) for values in noise_game.POSTER.values())
    assert set(noise_game.POSTER) == {one.algorithm for one in noise_game.LEARNERS.values()}


def test_each_learner_trains_with_its_own_preset_at_the_levels_asked_for(tmp_path: Path) -> None:
    jobs = noise_game.jobs(tmp_path, ["breakout"], noise_game.PLAN, ["ncapo-paper", "ncapo-sign"], ["3", "10"])
    assert [(job.label, job.preset, dict(job.settings), job.reward_noise) for job in jobs] == [
        ("breakout-ncapo-paper-noise-3", "paper", {}, 3),
        ("breakout-ncapo-paper-noise-10", "paper", {}, 10),
        ("breakout-ncapo-sign-noise-3", "default", {"advantage_weight": "none"}, 3),
        ("breakout-ncapo-sign-noise-10", "default", {"advantage_weight": "none"}, 10),
    ]
