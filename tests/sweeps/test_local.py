"""Work in processes on this machine: how many at a time, logs, failures, lost workers, and being stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from slow_tasks import Slow

from capo import CapoError
from capo.sweeps import local
from capo.sweeps.engine import choose, run_all
from capo.sweeps.work import MAX_LOSSES, Outcome, Watcher, Work


def work(folder: Path, *tasks: Slow) -> list[Work]:
    return [Work(task.label, folder / task.label, task) for task in tasks]


def at(folder: Path, name: str) -> float:
    return float((folder / name).read_text())


def runs(pid: str) -> bool:
    try:
        return "zombie" not in Path("/proc", pid, "status").read_text()
    except OSError:
        return False


class Told(Watcher):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def started(self, name: str, where: str) -> None:
        assert str(os.getpid()) not in where
        self.lines.append(f"started {name}")

    def lost(self, name: str, why: str) -> None:
        self.lines.append(f"lost {name}: {why}")

    def ended(self, outcome: Outcome) -> None:
        self.lines.append(f"ended {outcome.name}")


def test_so_many_at_a_time_and_a_log_each(tmp_path: Path) -> None:
    tasks = Slow("a", 1.0, meets="b"), Slow("b", 1.0, meets="a"), Slow("c")
    found = run_all(work(tmp_path, *tasks), workers=2)
    first_end = min(at(tmp_path, "a/ended"), at(tmp_path, "b/ended"))
    assert max(at(tmp_path, "a/began"), at(tmp_path, "b/began")) < first_end, "two at a time"
    assert at(tmp_path, "c/began") > first_end, "not three"
    for name in "abc":
        assert (tmp_path / name / "log.txt").read_text().splitlines()[1:] == [f"this is {name}"]
    assert list(found) == ["a", "b", "c"]
    assert not any(one.error for one in found.values())
    assert (tmp_path / "c" / "pid").read_text() in {(tmp_path / n / "pid").read_text() for n in "ab"}, "used again"


def test_a_failure_does_not_stop_the_others(tmp_path: Path) -> None:
    found = run_all(work(tmp_path, Slow("bad", error="no such thing"), Slow("good")), workers=1)
    assert found["bad"].error == "no such thing"
    assert not found["good"].error
    assert (tmp_path / "good" / "ended").exists()
    assert "no such thing" in (tmp_path / "bad" / "log.txt").read_text()


def test_a_lost_worker_is_replaced(tmp_path: Path) -> None:
    told = Told()
    found = run_all(work(tmp_path, Slow("weak", deaths=2), Slow("next")), workers=1, watcher=told)
    assert [one.error for one in found.values()] == ["", ""]
    assert found["weak"].attempts == 3
    died = "lost weak: it was killed by SIGKILL"
    assert told.lines[:6] == ["started weak", died, "started weak", died, "started weak", "ended weak"]


def test_work_that_kills_every_worker_is_given_up(tmp_path: Path) -> None:
    found = run_all(work(tmp_path, Slow("deadly", deaths=99), Slow("next")), workers=1)
    assert f"lost {MAX_LOSSES} times without making progress" in found["deadly"].error
    assert not found["next"].error


def test_in_this_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_all(work(tmp_path, Slow("a"), Slow("b", error="broken")), "inline", quiet=False)
    assert found["b"].error == "broken"
    assert "this is a" in capsys.readouterr().out
    assert (tmp_path / "a" / "pid").read_text() == str(os.getpid())


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(CapoError, match="must be local, auto"):
        choose("slurm")
    with pytest.raises(CapoError, match="same name"):
        run_all(work(tmp_path, Slow("a"), Slow("a")))
    with pytest.raises(CapoError, match="workers"):
        run_all([], workers=0)


def test_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert local.gpus() == ["2", "5"]
    assert local.engine().workers == 2
    assert local.engine(3).workers == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert local.engine().workers == 1


@pytest.fixture
def _hears_interrupts() -> Iterator[None]:
    """Whoever started the tests may ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_hears_interrupts")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_passed_on(signum: signal.Signals, tmp_path: Path) -> None:
    def interrupt() -> None:
        while not (tmp_path / "long" / "began").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signum)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=interrupt, daemon=True).start()
    began = time.time()
    with pytest.raises(KeyboardInterrupt):
        run_all(work(tmp_path, Slow("long", 60.0), Slow("next")), workers=1)
    assert time.time() - began < 30
    assert not (tmp_path / "long" / "ended").exists()
    assert not (tmp_path / "next" / "began").exists()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for the process there")
@pytest.mark.parametrize("handler", ["default_int_handler", "SIG_IGN"])
def test_nothing_outlives_a_parent_that_is_killed(handler: str, tmp_path: Path) -> None:
    """Also if the parent ignores SIGINT, as what a script puts into the background does.

    The script has no main guard: workers do not run it again.
    """
    program = f"""
import signal, sys, pathlib
signal.signal(signal.SIGINT, signal.{handler})
sys.path.insert(0, {str(Path(__file__).parent)!r})
from slow_tasks import Slow
from capo.sweeps.engine import run_all
from capo.sweeps.work import Work
run_all([Work("long", pathlib.Path({str(tmp_path / "long")!r}), Slow("long", 60.0))], workers=2)
"""
    script = tmp_path / "parent.py"
    script.write_text(program)
    parent = subprocess.Popen([sys.executable, str(script)])
    deadline = time.time() + 40
    while not (tmp_path / "long" / "began").exists() and time.time() < deadline:
        time.sleep(0.05)
    child = (tmp_path / "long" / "pid").read_text()
    assert runs(child)
    parent.kill()
    parent.wait()
    while runs(child) and time.time() < deadline:
        time.sleep(0.1)
    assert not runs(child)
    assert not (tmp_path / "long" / "ended").exists()
