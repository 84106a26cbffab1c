"""Trainings in processes of their own: order, logs, failures, and being stopped."""

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

from slow_jobs import Job

from capo import CapoError
from capo.experiments import processes


def runs(pid: str) -> bool:
    try:
        return "zombie" not in Path("/proc", pid, "status").read_text()
    except OSError:
        return False


def at(folder: Path, name: str) -> float:
    return float((folder / name).read_text())


def test_so_many_at_a_time_and_a_log_each(tmp_path: Path) -> None:
    said: list[str] = []
    processes.finish_all([Job(tmp_path, name, 1.0) for name in "abc"], 2, said.append)
    first_end = min(at(tmp_path, "a.ended"), at(tmp_path, "b.ended"))
    assert max(at(tmp_path, "a.began"), at(tmp_path, "b.began")) < first_end, "two at a time"
    assert at(tmp_path, "c.began") > first_end, "not three"
    for name in "abc":
        assert (tmp_path / "logs" / f"{name}.log").read_text() == f"this is {name}\n"
    assert sum("finished" in line for line in said) == 3
    assert said[-1].endswith("0 left")


def test_a_failure_does_not_stop_the_others(tmp_path: Path) -> None:
    said: list[str] = []
    jobs = [Job(tmp_path, "bad", error="no such thing"), Job(tmp_path, "good")]
    with pytest.raises(CapoError, match=r"1 of 2 trainings failed; see .*bad\.log"):
        processes.finish_all(jobs, 1, said.append)
    assert (tmp_path / "good.ended").exists()
    assert "bad: capo: no such thing" in said


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
        while not (tmp_path / "long.began").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signum)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=interrupt, daemon=True).start()
    began = time.time()
    with pytest.raises(KeyboardInterrupt):
        processes.finish_all([Job(tmp_path, "long", 60.0), Job(tmp_path, "next")], 1, lambda _: None)
    assert time.time() - began < 30
    assert not (tmp_path / "long.ended").exists()
    assert not (tmp_path / "next.began").exists()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for the process there")
@pytest.mark.parametrize("handler", ["default_int_handler", "SIG_IGN"])
def test_nothing_outlives_a_parent_that_is_killed(handler: str, tmp_path: Path) -> None:
    """Also if the parent ignores SIGINT, as what a script puts into the background does."""
    program = f"""
if __name__ == "__main__":
    import signal, sys, pathlib
    signal.signal(signal.SIGINT, signal.{handler})
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    from slow_jobs import Job
    from capo.experiments import processes
    processes.finish_all([Job(pathlib.Path({str(tmp_path)!r}), "long", 60.0)], 2, print)
"""
    script = tmp_path / "parent.py"
    script.write_text(program)
    parent = subprocess.Popen([sys.executable, str(script)])
    deadline = time.time() + 30
    while not (tmp_path / "long.began").exists() and time.time() < deadline:
        time.sleep(0.05)
    child = (tmp_path / "long.pid").read_text()
    assert runs(child)
    parent.kill()
    parent.wait()
    while runs(child) and time.time() < deadline:
        time.sleep(0.1)
    assert not runs(child)
    assert not (tmp_path / "long.ended").exists()
