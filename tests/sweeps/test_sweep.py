"""Sweeps from end to end on this machine: continued, changed, failing, interrupted, looked at from outside."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from small import SPEC, TINY, results, stamps

import capo
from capo import CapoError
from capo.cli import main
from capo.sweeps import jobs as sweep_jobs
from capo.sweeps.board import Board
from capo.sweeps.folder import SweepFolder, last_row, progress
from capo.sweeps.jobs import Job
from capo.sweeps.spec import Spec
from capo.sweeps.work import Outcome, Work

GRID = SPEC | {"settings": TINY | {"gamma": [0.5, 0.9]}}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two jobs, done."""
    out = tmp_path_factory.mktemp("swept")
    found = capo.sweep(GRID, out=out, progress=False)
    assert [row["state"] for row in found.rows] == ["done", "done"]
    return out


def table(out: Path) -> list[dict[str, str]]:
    with open(out / "table.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_job_is_the_run_that_capo_train_makes(swept: Path, tmp_path: Path) -> None:
    settings = [part for key, value in (TINY | {"gamma": 0.5}).items() for part in ("--set", f"{key}={value}")]
    command = [
        "train",
        "probe-both",
        "--frames",
        "640",
        "--eval-episodes",
        "5",
        "--out",
        str(tmp_path / "jobs" / "a"),
    ]
    assert main([*command, *settings]) == 0
    (alone,) = results(tmp_path).values()
    row = next(row for row in table(swept) if row["gamma"] == "0.5")
    assert results(swept)[row["id"]] == alone, "bit for bit"
    assert float(row["return"]) == pytest.approx(sum(alone["returns"][0]) / 5)


def test_again_touches_nothing_and_a_change_adds_jobs(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = stamps(swept / "jobs")
    capo.sweep(GRID, out=swept)
    assert "2 jobs, 2 already finished" in capsys.readouterr().err
    assert stamps(swept / "jobs") == before
    more = capo.sweep(SPEC | {"settings": TINY | {"gamma": [0.9, 0.99]}}, out=swept, progress=False)
    after = stamps(swept / "jobs")
    assert {name: after[name] for name in before} == before
    assert [(row["gamma"], row["planned"], row["state"]) for row in more.rows] == [
        (0.9, True, "done"),
        (0.99, True, "done"),
        (0.5, False, "done"),
    ]
    assert [row["gamma"] for row in table(swept)] == ["0.9", "0.99", "0.5"]
    assert len(after) == 3 * len(before) // 2


def test_a_job_that_fails_by_itself_stops_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.toml"
    given = SPEC | {"environments": ["breaking_env:Breaking-v0", "probe-both"]}
    spec.write_text(Spec.from_dict(given).to_toml())
    out = tmp_path / "out"
    assert main(["sweep", str(spec), "--out", str(out), "--allow-import"]) == 1
    shown = capsys.readouterr()
    assert "FAILED: " in shown.err
    assert "out of order" in shown.err
    assert [row["state"] for row in table(out)] == ["failed", "done"]
    assert "out of order" in table(out)[0]["error"]
    assert main(["sweep", "status", str(out)]) == 0
    assert "2 jobs: 1 done, 0 running, 1 failed, 0 to do" in capsys.readouterr().out
    # What failed is tried again by the same command: the environment may have been mended.
    assert main(["sweep", str(spec), "--out", str(out), "--allow-import"]) == 1
    assert "1 already finished" in capsys.readouterr().out


def test_an_interrupted_sweep_continues_to_the_same_end(tmp_path: Path) -> None:
    """SIGTERM, then the same command; SIGKILL of the driver, then the same command."""
    given = SPEC | {
        "frames": 320_000,
        "log_every": 8000,
        "checkpoint_every": "16000",
        "seeds": 2,
        "seeds_per_job": 1,
    }
    spec, whole, broken = tmp_path / "spec.toml", tmp_path / "whole", tmp_path / "broken"
    spec.write_text(Spec.from_dict(given).to_toml())
    assert not capo.sweep(spec, out=whole, workers=2, progress=False).failed

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "capo", "sweep", str(spec), "--out", str(broken), "--workers", "2"]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def begun(process: subprocess.Popen[str], frames: int) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and process.poll() is None:
            reached = [path.stem for path in broken.glob("jobs/*/checkpoints/checkpoint-*.safetensors")]
            if any(int(name.rpartition("-")[2]) >= frames for name in reached):
                return
            time.sleep(0.02)
        raise AssertionError("the sweep ended before it could be stopped")

    first = start()
    begun(first, 16_000)
    os.kill(first.pid, signal.SIGTERM)  # as Ctrl-C; what a script starts with & ignores that
    assert "repeat the same command to continue" in first.communicate(timeout=60)[1]
    assert first.returncode == 130
    assert json.loads((broken / "status.json").read_text())["state"] == "stopped"
    reached = max(int(path.stem.rpartition("-")[2]) for path in broken.glob("jobs/*/checkpoints/checkpoint-*"))
    second = start()
    begun(second, reached + 16_000)
    second.kill()
    second.communicate()
    third = start()
    assert "done after" in third.communicate(timeout=120)[1]
    assert third.returncode == 0
    assert results(broken) == results(whole)


def test_one_process_at_a_time(swept: Path) -> None:
    from capo.runs.lock import Lock

    lock = Lock(swept)
    try:
        with pytest.raises(CapoError, match="another process"):
            capo.sweep(GRID, out=swept, progress=False)
    finally:
        lock.release()


def test_a_folder_with_another_version_s_default_is_refused(swept: Path, tmp_path: Path) -> None:
    job = Spec.from_dict(GRID).jobs()[0]
    folder = swept / "jobs" / job.id
    assert job.done(folder)
    config = json.loads((folder / "config.json").read_text())
    config["config"]["entropy"] = 0.5
    copy = tmp_path / "jobs" / job.id
    copy.mkdir(parents=True)
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "evaluation.json").write_text((folder / "evaluation.json").read_text())
    assert not job.done(copy)
    with pytest.raises(CapoError, match=r"the job ncapo .* contains a run with other settings \(entropy 0.5, not"):
        capo.sweep(GRID, out=tmp_path, progress=False)


def test_the_plan_alone_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, out = tmp_path / "spec.toml", tmp_path / "out"
    spec.write_text(Spec.from_dict(GRID).to_toml())
    assert main(["sweep", str(spec), "--out", str(out), "--plan"]) == 0
    shown = capsys.readouterr().out
    assert "2 jobs, 0 already finished" in shown
    assert "to do   ncapo (default) on probe-both, gamma=0.5, seed 0: 640 frames" in shown
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep", "none.toml", "--out", "x"], "no such file; give"),
        (["sweep", "SPEC"], "--out DIR is missing"),
        (["sweep", "SPEC", "x"], "as --out x"),
        (["sweep", "SPEC", "--out", "SPEC"], "is a file; give a folder"),
        (["sweep", "SPEC", "--out", "x", "--on", "slurm"], "must be local, auto"),
        (["sweep", "status"], "needs the sweep's folder"),
        (["sweep", "status", "HERE"], "is not the folder of a sweep"),
    ],
)
def test_mistakes_on_the_command_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(Spec.from_dict(GRID).to_toml())
    given = [{"SPEC": str(spec), "HERE": str(tmp_path)}.get(one, one) for one in arguments]
    assert main(given) == 2
    assert message in capsys.readouterr().err


def test_a_file_and_entries_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(CapoError, match="frames is given alongside the file"):
        capo.sweep(tmp_path / "spec.toml", out=tmp_path, frames=3)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "capo.sweeps.ray", raising=False)
    with pytest.raises(CapoError, match=r"pip install 'capo-rl\[cluster\]'"):
        capo.sweep(GRID, out=tmp_path, on="auto", progress=False)
    assert list(tmp_path.iterdir()) == []


# --- what is shown ----------------------------------------------------------------------------------------------


def test_progress_is_read_from_the_folder(swept: Path, tmp_path: Path) -> None:
    assert progress(tmp_path).total == 0
    folder = next((swept / "jobs").iterdir())
    found = progress(folder)
    assert (found.frames, found.total) == (640, 640)
    assert found.speed > 0
    text = (folder / "metrics.csv").read_text()
    (tmp_path / "metrics.csv").write_text(text + "0,1")  # half a row
    assert last_row(tmp_path) == last_row(folder)


class Screen:
    """A terminal that keeps what is written to it."""

    def __init__(self, tty: bool) -> None:
        self.text, self.tty = "", tty

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return self.tty


@pytest.mark.parametrize("tty", [True, False])
def test_the_board_says_what_happens(
    tty: bool, swept: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("capo.sweeps.board.LINE_EVERY", 0.0)
    screen: Any = Screen(tty)
    first, second = (folder.name for folder in list((swept / "jobs").iterdir())[:2])
    work = [
        Work(name, SweepFolder(swept).job(name), Job("probe-both", "ncapo", "default", 640, (0,)))
        for name in (first, second)
    ]
    titles = {first: "the first", second: "the second"}
    board = Board(
        work, titles=titles, frames={first: 640}, finished=3, stream=screen, status=tmp_path / "status.json"
    )
    board.started(first, "node/1")
    board.tick()
    board.lost(first, "its machine is gone")
    board.started(first, "node/2")
    board.tick()
    board.ended(Outcome(first, "", "node/2", 2, 1.0))
    board.ended(Outcome(second, "no good", "node/1"))
    board.close()
    for text in ("the first", "node/1", "node/2", "lost", "no good", "4 done"):
        assert text in screen.text
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["counts"] == {"done": 4, "running": 0, "waiting": 0, "failed": 1}
    assert status["failed"] == {second: "no good"}
    assert status["lost"] == {first: 1}


def test_status_from_another_terminal(swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = sweep_jobs.Job("probe-both", "ncapo", "default", 640, (0,))
    entry = {"name": job.id, "title": "a job", "where": "node/7", "losses": 1, "frames": 320, "total": 640}
    entry |= {"frames_per_second": 1000, "seconds_left": 65}
    known = {"state": "running", "by": "head/3", "updated": time.time(), "seconds_left": 130, "running": [entry]}
    (tmp_path / "jobs").mkdir()
    (tmp_path / "sweep.toml").write_text(Spec.from_dict(SPEC).to_toml())
    (tmp_path / "status.json").write_text(json.dumps(known))
    assert main(["sweep", "status", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "1 jobs: 0 done, 1 running, 0 failed, 0 to do" in shown
    assert "a job  node/7 (lost 1x)  50%  1,000 frames/s  1:05 left" in shown
    assert "run by head/3; about 2:10 left" in shown
    (tmp_path / "status.json").write_text(json.dumps(known | {"updated": time.time() - 3600}))
    assert main(["sweep", "status", str(tmp_path)]) == 0
    assert "it is not running now" in capsys.readouterr().out
    assert main(["sweep", "status", str(swept)]) == 0
    assert "2 done" in capsys.readouterr().out
