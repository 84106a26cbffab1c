"""How a command ends: whatever comes after training can't fail the run, and every signal is a clean end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers_shell import ENV, SET, checkpoint_bits

import capo
from capo.cli import main
from capo.report import run_figures
from capo.runs.layout import is_run

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and descriptors of POSIX")
FRAMES = 320
TRAIN = ["train", ENV, *SET, "--frames", str(FRAMES), "--eval-episodes", "4"]


def run(*arguments: str, shell: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """``capo ARGUMENTS`` through a shell, with redirections."""
    command = f'exec "{sys.executable}" -m capo {" ".join(arguments)} {shell}'
    environment = os.environ | {"JAX_PLATFORMS": "cpu"} | variables
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment, timeout=120)


def assert_complete(out: Path) -> None:
    agent = capo.NCAPO.resume(out)
    assert (agent.frames, agent.frames_left) == (FRAMES, 0)
    assert (out / "evaluation.json").is_file()


@pytest.mark.parametrize(
    ("shell", "variables", "status", "said"),
    [
        (">&-", {}, 0, ""),
        (">&- 2>&- <&-", {}, 0, ""),
        (">/dev/full", {}, 1, "standard output: [Errno 28] No space left on device"),
        ("2>/dev/full", {}, 0, ""),
        ("--seeds 2", {"PYTHONIOENCODING": "ascii"}, 0, ""),
    ],
)
def test_streams_that_can_not_be_written(
    shell: str, variables: dict[str, str], status: int, said: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    ended = run(*TRAIN, "--out", str(out), shell=shell, **variables)
    assert ended.returncode == status, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert_complete(out)
    if variables:
        assert "\\xb1" in ended.stdout  # the sign before the standard error


def test_a_folder_where_the_curve_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    real = run_figures.draw_training

    def draw(rows: Any, path: Path, title: str) -> Any:
        path.mkdir()
        return real(rows, path, title)

    monkeypatch.setattr(run_figures, "draw_training", draw)
    assert main([*TRAIN, "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert "training is complete and saved, but a later step failed:\n  curve.png: cannot write" in said.err
    assert "evaluation without exploration" in said.out
    assert "curve.png" not in said.out
    assert_complete(out)
    monkeypatch.undo()
    (out / "curve.png").rmdir()
    assert main(["resume", str(out)]) == 0
    assert (out / "curve.png").is_file()


@pytest.mark.parametrize("during", [[], ["--eval-every", str(FRAMES)]])
def test_an_evaluation_that_raises(
    during: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no more episodes")

    monkeypatch.setattr("capo.neural.learners.jitted.JittedLearner.evaluate", fails)
    assert main([*TRAIN, "--out", str(out), *during]) == 1
    said = capsys.readouterr().err
    assert "the evaluation: no more episodes" in said
    assert ("the last evaluation during training: no more episodes" in said) == bool(during)
    assert not (out / "evaluation.json").exists()
    monkeypatch.undo()
    assert main(["resume", str(out)]) == 0
    assert_complete(out)


def test_an_evaluation_that_raises_before_the_end_stops_the_run_with_all_it_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"

    def fails(*_: Any, **__: Any) -> Any:
        raise capo.CapoError("no more episodes")

    monkeypatch.setattr("capo.neural.learners.jitted.JittedLearner.evaluate", fails)
    assert main([*TRAIN, "--out", str(out), "--eval-every", "32", "--log-every", "16"]) == 2
    assert "error: no more episodes" in capsys.readouterr().err
    monkeypatch.undo()
    assert capo.NCAPO.resume(out).frames == 32
    assert main(["resume", str(out)]) == 0


def test_a_disk_that_is_full_for_the_last_checkpoint_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the trained state is not safe, so the run failed."""
    from capo.files import DiskError
    from capo.runs.checkpoint import CheckpointStore

    real = CheckpointStore.save

    def save(self: Any, frames: int, *rest: Any) -> Any:
        if frames == FRAMES:
            raise DiskError("the disk is full")
        return real(self, frames, *rest)

    monkeypatch.setattr(CheckpointStore, "save", save)
    assert main([*TRAIN, "--out", str(tmp_path / "run")]) == 2


# --- signals --------------------------------------------------------------------------------------------------


def begin(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-m", "capo", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=folder,
    )  # fmt: skip


def wait_until(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize(
    ("signum", "delay"),
    [(signal.SIGINT, delay) for delay in (0.0, 0.3, 1.0, 2.0)] + [(signal.SIGTERM, 0.1), (signal.SIGHUP, 1.5)],
)
def test_a_signal_at_the_start_is_one_line(signum: signal.Signals, delay: float, tmp_path: Path) -> None:
    """While modules are imported and while the program is compiled."""
    options = ["--preset", "cpu", "--frames", "1e6", "--out", "run"]
    process = begin("train", "minatar-breakout", *options, folder=tmp_path)

    def hears() -> bool:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        caught = int(next(line for line in lines if line.startswith("SigCgt")).split()[1], 16)
        return all(caught & 1 << (number - 1) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))

    if Path("/proc/self/status").exists():
        wait_until(hears)  # a few hundredths of a second after Python's own start
    time.sleep(delay)
    process.send_signal(signum)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signum, output
    assert "Traceback" not in output
    last = "interrupted" if signum == signal.SIGINT else f"stopped by {signum.name}"
    assert output.splitlines()[-1] in (f"capo: {last}", "continue with: capo resume run")
    if is_run(tmp_path / "run"):
        capo.NCAPO.resume(tmp_path / "run")


HANGS = """
import time
import gymnasium, numpy as np
class Hangs(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        Hangs.steps += 1
        if Hangs.steps > 100:
            open("hangs", "w").close()
            time.sleep(1000)
        return np.zeros(2, np.float32), 1.0, Hangs.steps % 10 == 0, False, {}
gymnasium.register("Hangs-v0", entry_point=Hangs, disable_env_checker=True)
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_environment_hangs(signum: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGS)
    process = begin("train", "hanging:Hangs-v0", *SET, "--frames", "100000", "--out", "run", folder=tmp_path)
    wait_until((tmp_path / "hangs").exists)
    process.send_signal(signum)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signum, output
    assert "Traceback" not in output
    assert f"capo: stopped by {signum.name} at frame 96; nothing is lost\ncontinue with: capo resume run" in output
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    assert newest.name == "checkpoint-000000000096.safetensors"  # six whole iterations of 16 frames
    assert checkpoint_bits(tmp_path / "run")


def test_sighup_is_answered_like_sigterm_and_nohup_is_heeded(tmp_path: Path) -> None:
    long = ["train", ENV, *SET, "--frames", "1e9", "--log-every", "1600", "--out"]
    process = begin(*long, "run", folder=tmp_path)
    wait_until((tmp_path / "run" / "metrics.csv").exists)
    process.send_signal(signal.SIGHUP)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGHUP, output
    assert "stopped by SIGHUP at frame" in output
    assert capo.NCAPO.resume(tmp_path / "run").frames > 0
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = begin(*long, "other", folder=tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_until((tmp_path / "other" / "metrics.csv").exists)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, output


@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")
def test_a_forked_child_does_not_inherit_the_handlers() -> None:
    """Such as a worker of a Gymnasium vector environment, which its owner stops with SIGTERM."""
    from capo.runs.interrupts import Interrupts

    read, write = os.pipe()
    with Interrupts() as interrupts:
        child = os.fork()
        if not child:
            os.write(write, b"!")
            time.sleep(60)
            os._exit(0)
        os.read(read, 1)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        time.sleep(0.05)
        assert interrupts.signum is None
