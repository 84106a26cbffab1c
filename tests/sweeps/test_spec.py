"""What a specification stands for: jobs, their ids, and mistakes that are found before anything starts."""

from __future__ import annotations

import os
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small import SPEC, TINY

import capo
from capo import CapoError
from capo.cli import main
from capo.neural.algorithms import registry
from capo.sweeps import plan
from capo.sweeps.folder import SweepFolder
from capo.sweeps.jobs import Job, titles
from capo.sweeps.spec import Spec


def jobs(**given: Any) -> list[Job]:
    return Spec.from_dict({"environments": "probe-both", "frames": 640} | given).jobs()


def test_grids_zipped_lists_and_settings_of_one_algorithm() -> None:
    found = jobs(
        algorithms=["ncapo", "ppo"],
        settings={"gamma": [0.9, 0.99], "batch_size": 8, "ppo": {"epochs": [1, 2]}},
        zipped=[{"n_envs": [4, 8], "rollout_length": [8, 4]}, {"algorithm": "ncapo", "clip": [1.0, 2.0]}],
    )
    own = {name: [job.settings for job in found if job.algorithm == name] for name in ("ncapo", "ppo")}
    assert len(own["ncapo"]) == len(own["ppo"]) == 2 * 2 * 2
    assert {(one["n_envs"], one["rollout_length"]) for one in own["ppo"]} == {(4, 8), (8, 4)}
    assert {one["epochs"] for one in own["ppo"]} == {1, 2}
    assert {one["clip"] for one in own["ncapo"]} == {1.0, 2.0}
    assert all("epochs" not in one for one in own["ncapo"])
    assert len({job.id for job in found}) == len(found)


def test_seeds_are_shared_out() -> None:
    assert [job.seeds for job in jobs(seeds=5, seeds_per_job=2)] == [(0, 1), (2, 3), (4,)]
    assert [job.seeds for job in jobs(seeds=[7, 9])] == [(7, 9)], "one program on a jitted environment"
    assert [job.seeds for job in jobs(environments="CartPole-v1", seeds=2)] == [(0,), (1,)]


def test_presets() -> None:
    kinds = [
        (job.algorithm, job.preset) for job in jobs(algorithms=["ncapo", "ppo:paper"], presets=["default", "cpu"])
    ]
    assert kinds == [("ncapo", "default"), ("ncapo", "cpu"), ("ppo", "paper")]


def test_the_same_content_is_the_same_job() -> None:
    (job,) = jobs(settings=TINY)
    assert jobs(settings=TINY, keep=7, checkpoint_every="5m")[0].id == job.id, "changes nothing about the result"
    assert jobs(settings=dict(reversed(TINY.items())))[0].id == job.id
    assert len(jobs(settings=TINY | {"gamma": [0.5, 0.5]})) == 1
    usual = registry.find("ncapo").settings.preset("default", "probe-both").gamma
    assert jobs(settings=TINY | {"gamma": usual})[0].id == job.id
    others = [
        {"settings": TINY | {"gamma": 0.5}},
        {"settings": TINY, "frames": 1280},
        {"settings": TINY, "seeds": [1]},
        {"settings": TINY, "presets": "cpu"},
        {"settings": TINY, "eval_every": 160},
        {"settings": TINY, "eval_episodes": 7},
        {"settings": TINY, "environments": "probe-action"},
        {"settings": TINY | {"horizon": 640}},
    ]
    ids = {jobs(**other)[0].id for other in others}
    assert len(ids) == len(others)
    assert job.id not in ids


def test_titles_name_what_differs() -> None:
    found = jobs(settings=TINY | {"gamma": [0.5, 0.9]}, seeds=4)
    assert list(titles(found).values()) == [
        "ncapo (default) on probe-both, gamma=0.5, seeds 0 to 3",
        "ncapo (default) on probe-both, gamma=0.9, seeds 0 to 3",
    ]


def test_a_specification_as_a_file(tmp_path: Path) -> None:
    spec = Spec.from_dict(
        {
            "environments": ["probe-both", 'Gym-v1,name="x"'],
            "frames": 1000,
            "gpus": 0.5,
            "seeds": [3, 4],
            "settings": {"gamma": [0.9, 1.0], "layer_norm": True, "kl": "policy-to-target", "ppo": {"epochs": 2}},
            "zipped": [{"algorithm": "ncapo", "n_envs": [1, 2], "width": [3, 4]}],
        }
    )
    (tmp_path / "spec.toml").write_text(spec.to_toml())
    again = Spec.read(tmp_path / "spec.toml")
    assert again.to_toml() == spec.to_toml()
    assert again.environments == spec.environments
    assert again.settings == spec.settings
    assert again.gpus == 0.5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"algorithms": "ncap"}, "unknown algorithm 'ncap': did you mean 'ncapo'"),
        ({"algorithms": "ncapo:fast"}, "unknown preset of ncapo 'fast'"),
        (
            {"settings": {"gama": 1}},
            "the job ncapo .default. on probe-both, gama=1, seed 0: unknown setting 'gama'",
        ),
        ({"settings": {"gamma": [0.9, 2]}}, "gamma=2, seed 0: gamma=2.0 must be between 0 and 1"),
        ({"settings": {"gamma": []}}, "gamma has an empty list"),
        ({"settings": {"gamma": {"a": 1}}}, "unknown algorithm 'gamma'"),
        ({"settings": [1]}, "must be a table"),
        ({"settings": {"gamma": 0.5}, "zipped": [{"gamma": [0.1]}]}, "gamma is given twice"),
        ({"zipped": [{"gamma": [0.1, 0.2], "width": [8]}]}, "gamma has 2, width has 1"),
        ({"zipped": {"gamma": 1}}, "must be a list of tables"),
        ({"seeds": 0}, "seeds=0 must be a positive integer"),
        ({"seeds": [1, 1]}, "no duplicates"),
        ({"frames": -1}, "frames=-1 must be a positive integer"),
        ({"gpus": 1.5}, "gpus=1.5 must be an integer if it is above 1"),
        ({"cpus": "two"}, "cpus='two' must be a number"),
        ({"checkpoint_every": "often"}, "checkpoint interval 'often'"),
        ({"frame": 3}, "unknown entry of the sweep 'frame': did you mean 'frames'"),
        ({"environments": []}, "must be a name or a list of names"),
        ({"settings": {"gamma": [0.5] * 2000, "width": [8] * 2000}}, "up to 4,000,000 jobs; at most 1,000,000"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(CapoError, match=message):
        jobs(**given)


def test_what_is_missing_or_unreadable(tmp_path: Path) -> None:
    with pytest.raises(CapoError, match="has no environments"):
        Spec.from_dict({"frames": 3})
    with pytest.raises(CapoError, match="no such file; give"):
        Spec.read(tmp_path / "none.toml")
    with pytest.raises(CapoError, match="is not valid TOML"):
        Spec.parse("frames = ", "x.toml")


def test_an_unknown_environment_is_found_while_planning(tmp_path: Path) -> None:
    spec = Spec.from_dict(SPEC | {"environments": ["probe-both", "prob-both"]})
    with pytest.raises(CapoError, match="the jobs on prob-both: unknown environment 'prob-both': did you mean"):
        plan.make(spec, SweepFolder(tmp_path), "auto", 1)


def test_a_file_cannot_import_a_module_without_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sly.py").write_text("import pathlib\npathlib.Path('imported').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("sly:Sly-v0", "CartPole-v1,x=sly:Sly-v0"):
        text = Spec.from_dict(SPEC | {"environments": [name]}).to_toml()
        (tmp_path / "spec.toml").write_text(text)
        with pytest.raises(CapoError, match=r"the jobs on .* which can run any code.*--allow-import"):
            capo.sweep(tmp_path / "spec.toml", out=tmp_path / "new")
        sweep = tmp_path / "sweep"
        (sweep / "jobs").mkdir(parents=True, exist_ok=True)
        (sweep / "sweep.toml").write_text(text)
        assert main(["sweep", "status", str(sweep)]) == 0
        assert not (tmp_path / "imported").exists()
    with pytest.raises(CapoError, match="unknown environment 'sly:Sly-v0'"):  # allowed, imported, has no such id
        capo.sweep(SPEC | {"environments": ["sly:Sly-v0"]}, out=tmp_path / "new")
    assert (tmp_path / "imported").exists()


def test_a_specification_that_is_not_a_small_file(tmp_path: Path) -> None:
    pipe, huge = tmp_path / "pipe.toml", tmp_path / "huge.toml"
    os.mkfifo(pipe)
    huge.write_bytes(b"#" * 2_000_000)
    with pytest.raises(CapoError, match="not a regular file"):
        Spec.read(pipe)
    with pytest.raises(CapoError, match="has 2,000,000 bytes; at most 1,000,000 are allowed"):
        Spec.read(huge)
    with pytest.raises(CapoError, match="is not valid TOML"):
        Spec.parse(f"frames = {'[' * 100_000}", "deep.toml")


def test_memory_and_disk_are_checked_for_all_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, folder = Spec.from_dict(SPEC | {"seeds": 4, "seeds_per_job": 1}), SweepFolder(tmp_path)
    made = plan.make(spec, folder, "local", 2)
    (size,) = set(made.sizes.values())
    assert "4 jobs, 0 already finished; 2,560 frames" in made.describe()
    monkeypatch.setattr(plan, "available_memory", lambda _: 2 * size)
    with pytest.raises(CapoError, match=r"largest is ncapo \(default\) on probe-both.* use fewer --workers"):
        plan.make(spec, folder, "local", 2)
    plan.make(spec, folder, "local", 1)
    plan.make(spec, folder, "auto", 2)  # the cluster's machines are not this one
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda _: usage(5 * size - 1))
    with pytest.raises(CapoError, match="the checkpoints of 4 jobs need"):
        plan.make(spec, folder, "auto", 1)
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda _: usage(5 * size))
    plan.make(spec, folder, "auto", 1)
    large = replace(spec, settings=TINY | {"replay_rollouts": [32, 10**12]})
    with pytest.raises(CapoError, match="replay_rollouts=1000000000000, seed 0: the replay needs"):
        plan.make(large, folder, "local", 1)
    assert list(tmp_path.iterdir()) == [], "before anything is written"
