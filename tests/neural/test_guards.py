"""What can go wrong is said clearly, before work starts where it can be known, and nothing is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import json
import os
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from helpers_envs import Fragile, Numbered
from helpers_shell import ENV, TINY, TINY_640, metrics, uses

import capo
from capo import files
from capo.cli import main
from capo.neural import trainer
from capo.runs import checkpoint
from capo.runs import writer as run
from capo.runs.checkpoint import Interval
from capo.runs.layout import next_folder
from capo.runs.writer import RunWriter

DIVERGES: dict[str, Any] = TINY | {"log_every": 160, "learning_rate": 1e25}


def test_a_run_that_diverges_stops_and_names_what_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    saved = capo.NCAPO(ENV, **DIVERGES).save(tmp_path / "saved")
    before = saved.read_bytes()
    agent = capo.NCAPO(ENV, out=out, checkpoint_every=160, **DIVERGES)
    with pytest.raises(capo.CapoError) as caught:
        agent.learn(3200)
    text = str(caught.value)
    assert "diverged at iteration" in text
    assert "seed 0: actor_loss" in text
    assert "critic_loss" in text
    kept = sorted((out / "checkpoints").iterdir())
    assert str(kept[-1]) in text
    good = checkpoint.read(kept[-1])
    assert all((array == array).all() for array in good.arrays.values()), "a state with nan was checkpointed"
    # The agent is of no use, says so, and harms no file.
    files = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for use in uses(agent, saved):
        with pytest.raises(capo.CapoError, match="can no longer be used: training diverged at iteration") as again:
            use()
        assert str(kept[-1]) in str(again.value)
    assert files == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert saved.read_bytes() == before
    # Its last good checkpoint is an agent, and what the run goes on from.
    loaded = capo.NCAPO.load(kept[-1])
    assert loaded.predict([1.0])[0].shape == ()
    assert main(["resume", str(out)]) == 2
    said = capsys.readouterr().err
    assert f"from the last good checkpoint, at frame {loaded.frames:,}, because training diverged at iter" in said
    assert "error: training diverged at iteration" in said
    assert capo.runs.reader.read_config(out)["diverged"].startswith("training diverged")
    assert sorted((out / "checkpoints").iterdir()) == kept


def test_diverging_without_a_folder(tmp_path: Path) -> None:
    agent = capo.NCAPO(ENV, **DIVERGES)
    with pytest.raises(capo.CapoError, match="No checkpoint was kept"):
        agent.learn(3200)
    for use in uses(agent, tmp_path / "saved"):
        with pytest.raises(capo.CapoError, match=r"can no longer be used.*No checkpoint was kept"):
            use()
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_is_not_finite_is_never_kept_or_written(tmp_path: Path) -> None:
    agent = capo.NCAPO(Fragile(breaks_at=70), log_every=160, **TINY_640).learn(16)
    part = agent._states.groups[0]
    broken = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), part.state.params)  # type: ignore[union-attr]
    part.state = dataclasses.replace(part.state, params=broken)
    with pytest.raises(capo.CapoError, match="not a finite number, so nothing is saved"):
        agent.save(tmp_path / "agent")
    # The environment raises before the log point at which the loss would have been looked at.
    with pytest.raises(capo.CapoError, match=r"the simulator is gone. A parameter had already become"):
        agent.learn(640)
    for use in (lambda: agent.predict([0.0]), lambda: agent.save(tmp_path / "agent")):
        with pytest.raises(capo.CapoError, match="training state was lost"):
            use()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 15:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    agent = capo.NCAPO(ENV, out=out, log_every=80, checkpoint_every=80, **TINY_640)
    with pytest.raises(capo.CapoError, match=rf"disk is full.*capo resume {out}` continues from checkpoint-0000"):
        agent.learn(640)
    monkeypatch.setattr(files.os, "fsync", real)
    resumed = capo.NCAPO.resume(out)
    assert 0 < resumed.frames < 640
    resumed.learn(resumed.frames_left)
    reference = tmp_path / "reference"
    capo.NCAPO(ENV, out=reference, log_every=80, **TINY_640).learn(640)
    assert metrics(out) == metrics(reference)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_is_full_for_the_log_is_said_and_keeps_no_folder_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    capo.NCAPO(ENV, out=out, log_every=80, **TINY_640).learn(160, horizon=640)
    agent = capo.NCAPO.resume(out)
    with monkeypatch.context() as patch, open("/dev/full", "ab") as full:
        patch.setattr(RunWriter, "_append", lambda *_: full)
        with pytest.raises(capo.CapoError, match="disk is full"):
            agent.learn(480)
        with contextlib.suppress(OSError):
            full.close()
    assert capo.NCAPO.resume(out).learn(80).frames >= 240


def test_a_program_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "available_memory", lambda _: 1000)
    with pytest.raises(
        capo.CapoError, match=r"needs [\d,]+ MB in addition to its state, but 0 MB are free: set a smaller"
    ):
        capo.NCAPO(ENV, **TINY_640).learn(64)


def test_what_does_not_fit_leaves_no_run_behind_and_is_refused_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    agent = capo.NCAPO(ENV, out=out, **TINY_640)
    with monkeypatch.context() as full:
        full.setattr(trainer, "available_memory", lambda _: 1000)
        for _ in range(2):
            with pytest.raises(capo.CapoError, match="MB are free"):
                agent.learn(64)
            assert not out.exists()
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with monkeypatch.context() as full:
        full.setattr(trainer, "available_memory", lambda _: 1000)
        with pytest.raises(capo.CapoError, match="MB are free"):
            agent.learn(64)
    assert {path.name for path in out.iterdir()} == {"notes.txt"}
    assert agent.learn(64).frames == 64


def test_what_does_not_fit_leaves_the_plan_of_a_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    agent = capo.NCAPO(ENV, out=out, log_every=80, **TINY_640)
    agent.learn(640, callback=lambda one, _: one.frames < 320)
    kept = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for make in (lambda: agent, lambda: capo.NCAPO.resume(out)):
        refused = make()
        with monkeypatch.context() as full:
            full.setattr(trainer, "available_memory", lambda _: 1000)
            with pytest.raises(capo.CapoError, match="MB are free"):
                refused.learn(6400, horizon=99_999)
        assert {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()} == kept

    def killed(*_: Any) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        agent.learn(320, callback=killed)
    resumed = capo.NCAPO.resume(out)
    assert (resumed.frames_left, resumed.config.horizon) == (320, 640)


def test_jax_out_of_memory_is_an_error_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exhausted(*_: Any, **__: Any) -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")

    monkeypatch.setattr(capo.NCAPO, "learn", exhausted)
    assert main(["train", ENV, "--frames", "64", "--out", str(tmp_path / "run")]) == 2
    assert "\ncapo: error: out of memory: RESOURCE_EXHAUSTED" in capsys.readouterr().err


def test_a_disk_that_is_full_at_the_start_keeps_no_folder_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    agent = capo.NCAPO(ENV, out=tmp_path / "run", **TINY_640)
    for frames in (64, 128):  # a new folder, then the same one again
        monkeypatch.setattr(files.os, "fsync", full)
        with pytest.raises(capo.CapoError, match="disk is full"):
            agent.learn(64)
        monkeypatch.setattr(files.os, "fsync", real)
        assert agent.learn(64).frames == frames


def test_a_run_whose_checkpoints_are_gone_is_not_begun_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    capo.NCAPO(ENV, out=out, log_every=80, **TINY_640).learn(640)
    shutil.rmtree(out / "checkpoints")
    before = (out / "metrics.csv").read_bytes()
    with pytest.raises(capo.CapoError, match=r"metrics.csv has rows, but the checkpoints are gone"):
        capo.NCAPO.resume(out)
    assert (out / "metrics.csv").read_bytes() == before


@pytest.mark.parametrize("episodes", [0, 1.5, True, "5"])
def test_episodes_are_counted(episodes: Any) -> None:
    agent = capo.NCAPO(ENV, **TINY_640)
    with pytest.raises(capo.CapoError, match=r"episodes=.* must be a positive integer"):
        agent.evaluate(episodes)


def test_what_is_no_callback_changes_nothing() -> None:
    agent = capo.NCAPO(ENV, **TINY_640)
    with pytest.raises(capo.CapoError, match="callback=3 must be a function"):
        agent.learn(64, callback=3)  # type: ignore[arg-type]
    with pytest.raises(capo.CapoError, match=r"save: None is not the name of a file or folder"):
        agent.save(None)  # type: ignore[arg-type]
    assert agent.frames_left == 0


def test_more_environments_than_fit_are_named() -> None:
    with pytest.raises(capo.CapoError, match=r"replay needs .* set n_envs to"):
        capo.NCAPO("minatar-breakout", "cpu", n_envs=10**10).learn(512)


def test_a_setting_without_its_option_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", ENV, "--set", "gamma=0.9", "width=64"])
    shown = "unrecognized arguments: width=64 (each setting needs its own --set: --set width=64)"
    assert shown in capsys.readouterr().err


def test_environments_that_were_opened_are_closed() -> None:
    made, closed = [], []

    class Closing(Numbered):
        def __init__(self) -> None:
            made.append(id(self))

        def close(self) -> None:
            closed.append(id(self))

    gymnasium.register("Closing-v0", entry_point=Closing)
    agent = capo.NCAPO("Closing-v0", **TINY_640)
    agent.learn(64)
    agent.learn(64, horizon=1000)  # another program, with environments of its own
    agent.evaluate(4)
    assert len(made) - len(closed) == agent.config.n_envs
    del agent
    gc.collect()
    assert len(made) == len(closed)


def test_too_little_space_is_known_before_work_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(trainer.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    agent = capo.NCAPO(ENV, out=tmp_path / "run", **TINY_640)
    with pytest.raises(capo.CapoError, match=r"3 checkpoints and one being written need .* MB"):
        agent.learn(640)
    assert agent.frames == 0


CONFIG: dict[str, Any] = {
    **dict.fromkeys(("algorithm", "env", "preset", "checkpoint_every"), "3"),
    **dict.fromkeys(("frames", "log_every", "keep"), 3),
    **{name: {} for name in ("environment", "overrides", "config", "extra", "versions", "hardware")},
    "seeds": [3],
}


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "run", CONFIG).close()
    with pytest.raises(capo.CapoError, match=r"already contains a run.*capo resume .*another --out"):
        capo.NCAPO(ENV, out=tmp_path / "run")


def test_an_output_that_is_a_file_or_below_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(capo.CapoError, match="is a file"):
        capo.NCAPO(ENV, out=tmp_path / "file")
    with pytest.raises(capo.CapoError, match="is a file, so no folder"):
        capo.NCAPO(ENV, out=tmp_path / "file" / "run")


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.os, "access", lambda *_: False)  # chmod does not stop root, who may run this
    with pytest.raises(capo.CapoError, match="read-only"):
        capo.NCAPO(ENV, out=tmp_path / "run")


def test_two_processes_can_not_train_in_one_folder(tmp_path: Path) -> None:
    first = RunWriter.create(tmp_path / "run", CONFIG)
    with pytest.raises(capo.CapoError, match="another process is training"):
        RunWriter.open(tmp_path / "run")
    first.close()
    RunWriter.open(tmp_path / "run").close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env": "minatar-brekout"}, "minatar-breakout"),
        ({"env": "Pendulum-v1"}, "finite number of actions"),
        ({"preset": "papr"}, "paper"),
        ({"lerning_rate": 1}, "learning_rate"),
        ({"gamma": 1.5}, "between 0 and 1"),
        ({"seeds": 0}, "seeds=0 must be a positive integer"),
        ({"seeds": [1, 1]}, "no duplicates"),
        ({"seed": -1}, "from 0 to"),
        ({"keep": 0}, "keep=0 must be a positive integer"),
        ({"log_every": 0}, "log_every=0 must be a positive integer"),
        ({"checkpoint_every": "often"}, "60s"),
    ],
)
def test_mistakes_are_known_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(capo.CapoError, match=message):
        capo.NCAPO(**({"env": ENV} | options))


def test_several_seeds_need_a_name() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    with pytest.raises(capo.CapoError, match="environment's id"):
        capo.NCAPO(gymnasium.make("CartPole-v1"), seeds=2)


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5", "5 days", "nan", "infs", "s", "1e400s"])
def test_intervals_that_make_no_sense(text: str) -> None:
    with pytest.raises(capo.CapoError, match="60s, 5m or 1h"):
        Interval.parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", Interval(90.0)),
        ("0.5m", Interval(30.0)),
        ("2h", Interval(7200.0)),
        ("1e5", Interval(frames=100_000)),
    ],
)
def test_intervals(text: str, expected: Interval) -> None:
    assert Interval.parse(text) == expected
    assert Interval.parse(str(expected)) == expected


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    capo.NCAPO(ENV, out=out, **TINY_640).learn(320)
    return out


def test_resuming_what_was_changed(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    config = json.loads((out / "config.json").read_text())
    changed = config | {"config": config["config"] | {"gamma": 0.5}}
    (out / "config.json").write_text(json.dumps(changed))
    with pytest.raises(capo.CapoError, match=r"config.json has changed .*\(gamma\)"):
        capo.NCAPO.resume(out)
    # One that is not there, as in a run of an older version, is what it is when nothing is said.
    older = {key: value for key, value in config["config"].items() if key not in ("actor_lambda", "critic")}
    (out / "config.json").write_text(json.dumps(config | {"config": older}))
    assert capo.NCAPO.resume(out).config.to_dict() == config["config"]
    (out / "config.json").write_text(json.dumps(config))
    from capo.envs.probes import PROBES

    monkeypatch.setattr(PROBES["probe-both"], "n_actions", 3)
    with pytest.raises(capo.CapoError, match=r"environment changed: n_actions was 2 .* is 3 now"):
        capo.NCAPO.resume(out)


def test_logs_that_lost_rows_are_noticed(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    text = (out / "metrics.csv").read_text().splitlines(keepends=True)
    (out / "metrics.csv").write_text("".join(text[:-2]))
    with pytest.warns(capo.CapoWarning, match=r"rows are missing from metrics.csv"):
        capo.NCAPO.resume(out)


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(capo.CapoError, match="no such folder"):
        capo.NCAPO.resume(tmp_path / "none")
    with pytest.raises(capo.CapoError, match="not a run's folder"):
        capo.NCAPO.resume(tmp_path)
    with pytest.raises(capo.CapoError, match="not a run's folder"):
        capo.NCAPO.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(capo.CapoError, match="not written by this version of capo \\(no algorithm"):
        capo.NCAPO.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(capo.CapoError, match="is not valid JSON"):
        capo.NCAPO.load(tmp_path)
    with pytest.raises(capo.CapoError, match="no such run or saved agent"):
        capo.NCAPO.load(tmp_path / "agent")


def test_the_default_folder_is_the_first_free_one(tmp_path: Path) -> None:
    assert next_folder("MinAtar/Breakout-v1", "ncapo", tmp_path).name == "MinAtar-Breakout-v1-ncapo-1"
    (tmp_path / "x-ncapo-1").mkdir()
    (tmp_path / "x-ncapo-3").mkdir()
    assert next_folder("x", "ncapo", tmp_path).name == "x-ncapo-2"


def test_a_single_advantage_is_not_normalised() -> None:
    agent = capo.A2C(ENV, n_envs=1, rollout_length=1, width=8, normalise_advantage=True)
    assert agent.learn(4).frames == 4
