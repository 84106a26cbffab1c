"""A batch of trials: halved, diverged, continued after a loss, grouped by shapes, here or on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import capo
from capo.neural.learners.jitted import JittedLearner
from capo.sweeps import groups
from capo.sweeps.batch import Batch, Outcome, read_outcomes, write_outcomes
from capo.sweeps.trials import BatchTask, better_half, check_batch, run_batch

SMALL = {"n_envs": 4, "rollout_length": 5, "width": 8}
RATES = ({"learning_rate": 1e-5}, {"learning_rate": 0.02}, {"learning_rate": 0.03}, {"learning_rate": 1e30})
BATCH = Batch("probe-action", "a2c", "default", SMALL, RATES, (0, 1), (400, 800), 8)


def same(ours: list[Outcome], theirs: list[Outcome]) -> bool:
    """Equal but for the time it took."""
    return [replace(one, seconds=0.0) for one in ours] == [replace(one, seconds=0.0) for one in theirs]


def test_the_better_half_is_trained_to_the_end_and_a_diverged_trial_disturbs_nobody() -> None:
    said: list[str] = []
    outcomes = run_batch(BATCH, said.append)
    slow, good, better, wild = outcomes
    assert wild.diverged
    assert wild.scores == ()
    assert sorted(len(one.scores) for one in (slow, good, better)) == [1, 2, 2]
    assert len(slow.scores) == 1
    assert good.frames == (400, 800)
    assert good.scores[-1] == pytest.approx(sum(good.by_seed) / 2)
    assert good.scores[-1] > 0.9 > slow.scores[-1]
    assert "stage 1 of 2, 400 frames: 4 trials x 2 seeds, best score" in said[0]
    assert said[0].endswith("1 diverged")


def test_a_score_is_that_of_an_agent_with_these_settings() -> None:
    outcome = run_batch(BATCH)[1]
    agent = capo.A2C("probe-action", seeds=[0, 1], **SMALL, **RATES[1]).learn(800)
    assert outcome.scores[-1] == pytest.approx(agent.evaluate(8).mean, abs=0.05)


def test_a_lost_batch_continues_after_its_last_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, ran = BatchTask(BATCH), []
    run = JittedLearner.run

    def once(self: Any, state: Any, iterations: int) -> Any:
        ran.append(iterations)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return run(self, state, iterations)

    monkeypatch.setattr(JittedLearner, "run", once)
    with pytest.raises(KeyboardInterrupt):
        task.run(tmp_path, str)
    assert read_outcomes(tmp_path) is None
    task.run(tmp_path, str)
    assert ran == [20, 20, 20]  # the first stage was not trained again
    found = read_outcomes(tmp_path)
    assert found is not None
    assert same(found, run_batch(BATCH))
    task.run(tmp_path, str)  # nothing is left to do
    assert len(ran) == 5
    (tmp_path / "result.json").write_text("[{}]")
    with pytest.raises(capo.CapoError, match="is damaged"):
        read_outcomes(tmp_path)


def test_a_damaged_checkpoint_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint-000000000001.safetensors").write_bytes(b"nothing")
    BatchTask(BATCH).run(tmp_path, str)
    found = read_outcomes(tmp_path)
    assert found is not None
    assert same(found, run_batch(BATCH))


def test_trials_of_other_shapes_are_other_programs() -> None:
    trials = ({"width": 8, "gamma": 0.9}, {"width": 4, "gamma": 0.9}, {"width": 8, "gamma": 0.8})
    found = list(groups.make_groups(replace(BATCH, trials=trials)))
    assert [one.trials for one in found if isinstance(one, groups.Together)] == [[0, 2], [1]]
    outcomes = run_batch(replace(BATCH, trials=trials, seeds=(0,), stages=(20, 40), episodes=2))
    assert sorted(len(one.scores) for one in outcomes) == [1, 2, 2]


def test_trials_on_the_host(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    trials = ({"gamma": 0.9}, {"gamma": 0.5, "learning_rate": 1e30})
    batch = Batch("CartPole-v1", "a2c", "default", SMALL, trials, (0, 1), (40, 80), 2)
    first, second = run_batch(batch)
    assert second.diverged
    assert first.frames == (40, 80)
    assert len(first.by_seed) == 2
    again = run_batch(batch)
    assert same([first], again[:1])  # also though its programs were compiled for the batch before
    folder = tmp_path / "batch"
    folder.mkdir()
    write_outcomes(folder, again)
    assert read_outcomes(folder) == again


def test_what_cannot_be_trained_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(capo.CapoError, match=r"gamma=2\.0 must be between"):
        check_batch(replace(BATCH, trials=({"gamma": 2.0},)))
    with pytest.raises(capo.CapoError, match="did you mean"):
        check_batch(replace(BATCH, env="probe-actoin"))
    groups._program.cache_clear()
    monkeypatch.setattr("capo.neural.learners.protocol.available_memory", lambda *_: 1000)
    with pytest.raises(capo.CapoError, match="or fewer trials together: this is a program of 4 trials x 2 seeds"):
        check_batch(BATCH)


def test_of_equal_scores_the_earlier_is_kept() -> None:
    assert better_half([0, 2, 3], [[1.0], [9.0], [1.0], [1.0]]) == [0, 2]
    assert better_half([], []) == []
