"""A seed that diverges is left behind and reported; the seeds beside it never notice."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from helpers_shell import ENV, SET, TINY_640, bits, metrics

import capo
from capo.cli import main
from capo.neural import trainer
from capo.neural.metrics import Diverged
from capo.neural.seeds import SeedGroup
from capo.runs.records import read_run

OPTIONS: dict[str, Any] = TINY_640 | {"log_every": 80, "checkpoint_every": 160, "seeds": [3, 4, 5]}


def poison(agent: Any, row: int) -> None:
    """Let one seed diverge: its parameters are so large that their products are infinite."""
    agent._states.start(agent.learner)
    group: SeedGroup = agent._states.groups[0]
    assert group.state is not None
    huge = jax.tree.map(lambda leaf: leaf.at[row].set(1e30), group.state.params)
    group.state = replace(group.state, params=huge)


def diverging(out: Path | None, frames: int = 640, **options: Any) -> capo.NCAPO:
    agent = capo.NCAPO(ENV, out=out, **OPTIONS | options)
    poison(agent, 1)
    said = r"seed 4 diverged at iteration \d+, seed 4: .*the other seeds continue"
    with pytest.warns(capo.CapoWarning, match=said):
        agent.learn(640, callback=lambda _, rows: rows[0]["frames"] < frames)
    return agent


def rows_of(agent: Any, rows: list[int]) -> list[bytes]:
    state = agent._states.groups[0].state
    return [np.asarray(leaf)[rows].tobytes() for leaf in jax.tree.leaves(state)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with a seed that diverges, and the same without."""
    folder = tmp_path_factory.mktemp("runs")
    diverging(folder / "diverging", eval_every=320, eval_episodes=4)
    capo.NCAPO(ENV, out=folder / "sound", **OPTIONS, eval_every=320, eval_episodes=4).learn(640)
    return folder / "diverging", folder / "sound"


def test_the_others_are_bit_for_bit_what_they_would_have_been(runs: tuple[Path, Path]) -> None:
    agent, reference = (capo.NCAPO.load(path) for path in runs)
    assert agent.frames == reference.frames == 640
    assert list(agent.diverged) == [4]
    assert rows_of(agent, [0, 2]) == rows_of(reference, [0, 2])
    assert rows_of(agent, [1]) != rows_of(reference, [1])
    with pytest.warns(capo.CapoWarning, match="seeds that diverged are left out: 4"):
        found = agent.evaluate(6)
    assert found.seeds == (3, 5)
    np.testing.assert_array_equal(found.returns, reference.evaluate(6).returns[[0, 2]])
    assert (found.to_dict()["diverged"], found.to_dict()["seeds"]) == ([4], [3, 5])
    assert "excluding seed 4, diverged" in str(found)


def test_the_files_say_which_seed_diverged(runs: tuple[Path, Path]) -> None:
    diverged, sound = (metrics(path) for path in runs)
    assert [row for row in diverged if row["seed"] != "4"] == [row for row in sound if row["seed"] != "4"]
    last = [row for row in diverged if row["seed"] == "4"]
    assert [row["frames"] for row in last] == ["80"]
    assert {value for name, value in last[0].items() if name not in ("seed", "iteration", "frames")} == {""}
    config = json.loads((runs[0] / "config.json").read_text())
    assert config["diverged_seeds"]["4"].startswith("diverged at iteration")
    record = read_run(runs[0])
    assert list(record.unfinished) == [4]
    assert any("seed 4 diverged at iteration" in problem for problem in record.problems)
    assert list(record.finals) == [3, 5]


def test_what_diverged_is_not_used_and_nothing_that_is_not_finite_is_written(runs: tuple[Path, Path]) -> None:
    agent = capo.NCAPO.load(runs[0])
    with pytest.raises(capo.CapoError, match=r"policy of seed 4 can no longer be used: diverged at iteration"):
        agent.use_seed(4).predict([1.0])
    assert agent.use_seed(5).predict([1.0])[0].shape == ()
    state = agent._states.groups[0].state
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(state.params))  # type: ignore[union-attr]


@pytest.mark.parametrize("frames", [80, 240])
def test_a_run_with_a_diverged_seed_is_resumed_exactly(
    frames: int, runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    diverging(out, frames, eval_every=320, eval_episodes=4)
    resumed = capo.NCAPO.resume(out)
    assert (resumed.frames, list(resumed.diverged)) == (frames, [4])
    resumed.learn(resumed.frames_left)
    assert bits(resumed) == bits(capo.NCAPO.load(runs[0]))
    assert metrics(out) == metrics(runs[0])
    with pytest.warns(capo.CapoWarning, match="seeds that diverged"):
        assert main(["resume", str(out), "--frames", "800"]) == 0
    said = capsys.readouterr()
    assert "seed 4 diverged at iteration" in said.err
    assert "excluding seed 4, diverged" in said.out


def test_if_every_seed_diverges_the_run_ends(tmp_path: Path) -> None:
    agent = capo.NCAPO(ENV, out=tmp_path / "run", **OPTIONS)
    for row in range(3):
        poison(agent, row)
    with pytest.raises(capo.CapoError, match=r"training diverged at iteration \d+, seed 3.*last good checkpoint"):
        agent.learn(640)
    for use in (lambda: agent.evaluate(2), lambda: agent.learn(80), lambda: agent.save(tmp_path / "x")):
        with pytest.raises(capo.CapoError, match="can no longer be used: training diverged"):
            use()


def test_a_reward_that_is_not_a_number_stops_its_seed_alone() -> None:
    """The environment of seed 1 gives an infinite reward: its observations carry the seed's own random numbers."""

    class Unlucky:
        name, n_actions, observation_shape, observation_dtype, truncates = "unlucky", 2, (1,), np.float32, False

        def reset(self, key: Any) -> Any:
            del key
            return jax.numpy.int32(0), jax.numpy.zeros(1)

        def step(self, key: Any, env_state: Any, action: Any) -> Any:
            del action
            wrong = jax.random.bernoulli(key, 0.005)
            reward = jax.numpy.where(wrong, jax.numpy.inf, 1.0)
            return env_state + 1, jax.numpy.zeros(1), reward, env_state == 3, jax.numpy.bool_(False)

    agent = capo.NCAPO(Unlucky(), seeds=6, log_every=16, **TINY_640)
    with pytest.warns(
        capo.CapoWarning, match="stopped at iteration .* returned a reward that is not a finite number"
    ):
        agent.learn(160, callback=lambda one, _: not one.diverged)
    assert 0 < len(agent.diverged) < 6


def test_seeds_on_the_host_go_on_without_the_one_that_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    agent = capo.NCAPO("CartPole-v1", seeds=3, out=out, log_every=32, **TINY_640)
    real = trainer.divergences

    def diverge(metrics: Any, seeds: list[int], last: int, *rest: Any) -> dict[int, Diverged]:
        if seeds == [1] and last == 4:
            return {1: Diverged(f"iteration {last}, seed 1: actor_loss nan")}
        return real(metrics, seeds, last, *rest)

    monkeypatch.setattr(trainer, "divergences", diverge)
    with pytest.warns(capo.CapoWarning, match="seed 1 diverged at iteration 4"):
        agent.learn(160)
    for one in (agent, capo.NCAPO.resume(out)):
        assert (one.frames, one.frames_left, list(one.diverged)) == (160, 0, [1])
        with pytest.warns(capo.CapoWarning, match="left out: 1"):
            assert one.evaluate(2).seeds == (0, 2)
        with pytest.raises(capo.CapoError, match="seed 1 can no longer be used: diverged at iteration 4"):
            one.use_seed(1).predict(np.zeros(4))
        assert one.use_seed(0).predict(np.zeros(4))[0].shape == ()
    assert [row["frames"] for row in metrics(out) if row["seed"] == "1"] == ["32", "64"]
    monkeypatch.undo()
    reference = capo.NCAPO("CartPole-v1", seeds=3, log_every=32, **TINY_640).learn(160)
    for index in (0, 2):
        ours, theirs = (one._states.groups[index].state for one in (agent, reference))
        for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_capo_train_ends_well_without_the_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    real = capo.NCAPO.learn

    def learn(self: Any, *arguments: Any, **options: Any) -> Any:
        poison(self, 1)
        return real(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capo.NCAPO, "learn", learn)
        with pytest.warns(capo.CapoWarning):
            status = main(["train", ENV, *SET, "--frames", "640", "--seeds", "3", "--out", str(out)])
    assert status == 0
    said = capsys.readouterr()
    assert "seed 1 diverged at iteration" in said.err
    assert "excluding seed 1, diverged" in said.out
    assert json.loads((out / "evaluation.json").read_text())["diverged"] == [1]
    shutil.rmtree(out)
