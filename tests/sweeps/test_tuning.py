"""A tuning: resumed exactly, extended, confirmed with fresh seeds, and what it leaves in its folder."""

from __future__ import annotations

import builtins
import csv
import json
from pathlib import Path
from typing import Any

import pytest

import capo
from capo.cli import main
from capo.report.page import write_page
from capo.report.tuning_page import fresh_scores
from capo.sweeps import trials, tuning
from capo.sweeps.tuning_folder import Tuning, read_tuning

SMALL = {"n_envs": 4, "rollout_length": 5, "width": 8}
ASKED: dict[str, Any] = {
    "frames": 200,
    "trials": 7,
    "settings": SMALL,
    "seeds": 1,
    "fresh_seeds": 2,
    "episodes": 4,
    "halvings": 1,
    "together": 3,
}


def tune(out: Path, **changes: Any) -> Tuning:
    return capo.tune("probe-action", "a2c", out=out, **ASKED | changes)


def outcome_of(found: Tuning) -> list[Any]:
    """Everything but times."""
    return [
        (one.number, one.settings, one.outcome and (one.outcome.scores, one.outcome.diverged))
        for one in found.trials
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    return tune(tmp_path_factory.mktemp("tuning") / "whole")


def test_what_it_finds(whole: Tuning) -> None:
    assert [one.number for one in whole.trials] == list(range(7))
    preset = capo.A2C("probe-action").config
    assert whole.trials[0].settings["gamma"] == preset.gamma
    assert whole.trials[0].settings["entropy"] == 1e-4  # 0 lies outside the space, on a log scale
    complete = [one for one in whole.trials if one.state(2) == "complete"]
    assert whole.best_trial.score == max(one.score or 0 for one in complete)
    assert len(complete) == 2 + 2 + 1
    assert sum(whole.importance.values()) == pytest.approx(1.0)
    assert set(whole.fresh) == {"tuned", "preset"}
    assert whole.asked["seeds"] == [0]
    assert whole.asked["fresh_seeds"] == [1, 2]  # not those that chose
    assert "best score" in repr(whole)


def test_the_files_it_leaves(whole: Tuning) -> None:
    agent = capo.A2C("probe-action", preset=whole.preset)
    for name, value in (SMALL | whole.best_trial.settings).items():
        assert getattr(agent.config, name) == value
    with (whole.folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == [one.state(2) for one in whole.trials]
    asked = json.loads((whole.folder / "tuning.json").read_text())
    assert asked["made_by"]["versions"]["jax"]
    assert not list(whole.folder.glob("batches/*/checkpoints"))


def test_fresh_seeds_are_trained_like_any_others(whole: Tuning) -> None:
    agent = capo.A2C("probe-action", preset=whole.preset, seeds=[1, 2]).learn(200)
    by_seed = agent.evaluate(100).returns.mean(axis=1)
    assert whole.fresh["tuned"] == pytest.approx(list(by_seed), abs=0.03)


@pytest.mark.parametrize("lost_in", ["training", "telling", "asking"])
def test_the_same_call_again_finishes_what_is_missing(
    whole: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost_in: str
) -> None:
    target, name = {
        "training": (trials, "run_batch"),
        "telling": (tuning.Study, "tell"),
        "asking": (tuning.Study, "_ask"),
    }[lost_in]
    usual, calls = getattr(target, name), []

    def lost(*given: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == {"training": 2, "telling": 5, "asking": 5}[lost_in]:
            raise KeyboardInterrupt
        return usual(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(target, name, lost)
        with pytest.raises(KeyboardInterrupt):
            tune(tmp_path / "lost")
    ran: list[Any] = []
    run_batch = trials.run_batch
    monkeypatch.setattr(trials, "run_batch", lambda *given: ran.append(given) or run_batch(*given))
    found = tune(tmp_path / "lost")
    assert outcome_of(found) == outcome_of(whole)
    assert (found.best, found.fresh, found.importance) == (whole.best, whole.fresh, whole.importance)
    assert len(ran) == {"training": 3, "telling": 2, "asking": 3}[lost_in]  # batches, and the fresh seeds
    ran.clear()
    assert outcome_of(tune(tmp_path / "lost")) == outcome_of(whole)
    assert ran == []


def test_more_trials_can_be_added(whole: Tuning, tmp_path: Path) -> None:
    fewer = tune(tmp_path / "more", trials=6)
    more = tune(tmp_path / "more", trials=7)
    assert outcome_of(more)[:6] == outcome_of(fewer)
    assert outcome_of(more) == outcome_of(whole)  # 6 are two full batches
    assert len(tune(tmp_path / "more", trials=3).trials) == 7  # fewer: there is nothing to do


def test_a_folder_belongs_to_one_tuning(whole: Tuning, tmp_path: Path) -> None:
    with pytest.raises(capo.CapoError, match=r"was started with stages=\[100, 200\], not \[200, 400\]"):
        tune(whole.folder, frames=400)
    (tmp_path / "file").touch()
    with pytest.raises(capo.CapoError, match="is not empty and not the folder of a tuning"):
        tune(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frames": 0}, "frames=0 must be a positive integer"),
        ({"frames": 20}, "20 frames are too few for 1 halvings"),
        ({"trials": 0}, "trials=0"),
        ({"halvings": -1}, "halvings=-1"),
        ({"settings": {"gama": 1}}, "did you mean 'gamma'"),
        ({"settings": {"horizon": 5}}, "horizon can't be set in a tuning"),
        ({"settings": {"gamma": 0.9}, "space": {"gamma": {"low": 0.5, "high": 0.9}}}, "both set and searched"),
        ({"space": "missing.toml"}, "no such file; give"),
        ({"preset": "papr"}, "did you mean 'paper'"),
        ({"on": "nowhere"}, "needs workers"),
        ({"on": "nowhere", "workers": 2}, "must be local, auto"),
        ({"seeds": [1, 1]}, "no duplicates"),
    ],
)
def test_mistakes_are_found_before_anything_starts(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(capo.CapoError, match=message):
        tune(tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_without_optuna_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return usual(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(capo.CapoError, match=r"pip install 'capo-rl\[tune\]'"):
        tune(tmp_path / "out")


def test_all_trials_diverged(tmp_path: Path) -> None:
    space = {"learning_rate": {"low": 1e28, "high": 1e29}}
    with pytest.raises(capo.CapoError, match="every trial diverged"):
        tune(tmp_path / "out", space=space, trials=2)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "out", tmp_path / "page.html"
    command = "tune probe-action --algo a2c --frames 200 --trials 3 --seeds 1 --fresh-seeds 2 --episodes 4"
    options = ["--halvings", "1", "--together", "3", "--out", str(out)]
    settings = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]
    assert main([*command.split(), *options, *settings]) == 0
    text = capsys.readouterr().out
    assert "retrained with seeds 1, 2, not used for selection" in text
    assert f"--preset {out / 'preset.toml'}" in text
    assert main([*command.split(), *options, "--set", "gama=1"]) == 2
    assert main(["report", str(out), "--out", str(page)]) == 0
    shown = page.read_text()
    assert shown.count("<svg") >= 2
    assert "<h3>Fresh seeds 1, 2</h3>" in shown


def test_the_page_shows_tunings_beside_runs_and_escapes_names(whole: Tuning, tmp_path: Path) -> None:
    small = {"n_envs": 4, "rollout_length": 5, "width": 8}
    folder = tmp_path / "runs"
    capo.A2C("probe-action", out=folder / "run", **small).learn(100)
    (folder / "tuning").symlink_to(whole.folder)
    path, problems = write_page([folder], tmp_path / "page.html")
    shown = path.read_text()
    assert problems == []
    assert 'id="page"' in shown
    assert shown.count("<h3>History</h3>") == 1
    assert shown.count("<polyline") == len(whole.trials)
    odd = Tuning(whole.folder, whole.asked | {"env": "<script>"}, whole.trials, whole.best, {}, {})
    from capo.report.tuning_page import section

    assert "<script>" not in section(odd)


def test_fresh_scores_in_words(whole: Tuning) -> None:
    made = Tuning(whole.folder, whole.asked, whole.trials, 0, {}, {"tuned": [2.0, 4.0], "preset": [1.0, 1.0]})
    tuned, usual, chance = fresh_scores(made)
    assert tuned == ("tuned", "3 (95% interval 2 to 4); by seed: 2, 4")
    assert usual[0] == "preset default"
    assert chance[1].startswith("1 (")
    assert fresh_scores(Tuning(whole.folder, whole.asked, [], None, {}, {"tuned": [None]})) == [
        ("tuned", "diverged")
    ]


def test_a_damaged_folder_is_a_clear_error(whole: Tuning, tmp_path: Path) -> None:
    with pytest.raises(capo.CapoError, match="is not the folder of a tuning"):
        read_tuning(tmp_path)
    (tmp_path / "tuning.json").write_text('{"format": 1}')
    with pytest.raises(capo.CapoError, match="env must be a str"):
        read_tuning(tmp_path)
    (tmp_path / "tuning.json").write_text(json.dumps(whole.asked | {"format": 2}))
    with pytest.raises(capo.CapoError, match="has format 2"):
        read_tuning(tmp_path)
    (tmp_path / "tuning.json").write_text(json.dumps(whole.asked))
    (tmp_path / "result.json").write_text('{"best": 3}')
    with pytest.raises(capo.CapoError, match="is damaged"):
        read_tuning(tmp_path)


@pytest.mark.cluster
def test_batches_on_a_ray_cluster_come_to_the_same(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        found = tune(tmp_path / "ray", trials=6, workers=2, on=cluster.address)
    finally:
        cluster.shutdown()
    here = tune(tmp_path / "here", trials=6, workers=2)
    assert outcome_of(found) == outcome_of(here)
    assert found.fresh == here.fresh


@pytest.mark.slow
def test_batches_in_processes_come_to_the_same(tmp_path: Path) -> None:
    found = tune(tmp_path / "two", trials=6, workers=2, fresh_seeds=0)
    alone = tune(tmp_path / "one", trials=3, fresh_seeds=0)
    assert outcome_of(found)[:3] == outcome_of(alone)
    assert found.fresh == {}
    assert (tmp_path / "two" / "batches" / "00003" / "log.txt").exists()
