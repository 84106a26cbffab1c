"""Sweeps on a real Ray cluster of three nodes on this machine: workers, a node and the driver are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # before jax is imported: compiles faster

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from small import SPEC, TINY, attempts, results, stamps

import capo
from capo.sweeps.spec import Spec
from capo.sweeps.sweep import SweepResult

pytestmark = pytest.mark.cluster

JOBS = 12
# Long enough to be killed in the middle: some seconds each, with a checkpoint every half second or so.
LONG: dict[str, Any] = {
    **SPEC,
    "frames": 640_000,
    "log_every": 16_000,
    "checkpoint_every": "16000",
    "settings": TINY | {"learning_rate": [1e-3, 3e-4]},
    "seeds": JOBS // 2,
    "seeds_per_job": 1,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and two more nodes, with a processor each."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own is 15: it would wait for other tests
    fast = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": fast})
    for _ in range(2):
        made.add_node(num_cpus=1)
    yield made
    made.shutdown()


def raylets(cluster: Any) -> dict[int, Any]:
    """The nodes besides the head, by the process whose children are their workers."""
    return {node.all_processes["raylet"][0].process.pid: node for node in cluster.worker_nodes}


def parent(pid: int) -> int:
    try:
        return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def kill_node(raylet: int) -> None:
    """All of a node's processes at once, as when its machine is lost."""
    workers = [int(path.name) for path in Path("/proc").glob("[0-9]*") if parent(int(path.name)) == raylet]
    for pid in (raylet, *workers):
        os.kill(pid, signal.SIGKILL)


def start(spec: Path, out: Path, address: str) -> subprocess.Popen[bytes]:
    """``capo sweep`` as a user starts it."""
    command = [sys.executable, "-m", "capo", "sweep", str(spec), "--out", str(out), "--on", address]
    return subprocess.Popen([*command, "--no-shared-disk"], start_new_session=True)


def status(out: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((out / "status.json").read_text())
    except (OSError, ValueError):
        return {"running": [], "lost": {}}
    return found


def in_the_middle(out: Path) -> list[int]:
    """The processes of running jobs whose folder here holds a checkpoint after the first."""
    found = []
    for entry in status(out)["running"]:
        newest = max((path.stem for path in (out / "jobs" / entry["name"] / "checkpoints").glob("*")), default="")
        if newest > "checkpoint-000000000000":
            found.append(int(entry["where"].partition("/")[2]))
    return found


def wait_for(what: Callable[[], Any], driver: subprocess.Popen[bytes], seconds: float = 300.0) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = what()
        if found:
            return found
        assert driver.poll() is None, "the sweep ended before anything could be killed: make the jobs longer"
        time.sleep(0.1)
    raise AssertionError("nothing to be killed came up")


def done(out: Path) -> set[str]:
    return {path.parent.name for path in out.glob("jobs/*/evaluation.json")}


def test_lost_workers_nodes_and_drivers_change_nothing(cluster: Any, tmp_path: Path) -> None:
    spec, whole, broken = tmp_path / "spec.toml", tmp_path / "whole", tmp_path / "broken"
    spec.write_text(Spec.from_dict(LONG).to_toml())
    expected = capo.sweep(spec, out=whole, workers=2)
    assert len(expected.rows) == JOBS
    assert not expected.failed

    driver = start(spec, broken, cluster.address)
    try:
        os.kill(wait_for(lambda: in_the_middle(broken), driver)[0], signal.SIGKILL)  # a worker
        first = wait_for(lambda: status(broken)["lost"], driver)

        def occupied() -> set[int]:
            return {parent(pid) for pid in in_the_middle(broken)} & set(raylets(cluster))

        kill_node(wait_for(occupied, driver).pop())
        lost = wait_for(lambda: [found for found in [status(broken)["lost"]] if found != first], driver)[0]
        wait_for(lambda: len(done(broken)) >= 5 and in_the_middle(broken), driver)
        finished = done(broken)
        before = {name: stamps(broken / "jobs" / name) for name in finished}
    finally:
        driver.kill()  # the driver, without a word
        driver.wait()
    assert len(finished) < JOBS

    again = start(spec, broken, cluster.address)
    assert again.wait(timeout=600) == 0
    assert results(broken) == results(whole), "bit for bit"
    assert {name: stamps(broken / "jobs" / name) for name in finished} == before, "nothing finished was touched"
    assert sum(lost.values()) >= 2
    assert all(attempts(broken / "jobs" / name) >= 2 for name in lost)
    table = (broken / "table.csv").read_text().splitlines()
    assert len(table) == JOBS + 1
    assert all(",done," in row for row in table[1:])


def test_with_a_shared_disk_workers_write_there(cluster: Any, tmp_path: Path) -> None:
    given = {**SPEC, "seeds": 2, "seeds_per_job": 1}
    here = capo.sweep(given, out=tmp_path / "here")
    there = capo.sweep(given, out=tmp_path / "there", on=cluster.address)
    assert isinstance(there, SweepResult)
    assert results(tmp_path / "there") == results(tmp_path / "here")
    assert [row["return"] for row in there.rows] == [row["return"] for row in here.rows]
    inodes = stamps(tmp_path / "there")
    capo.sweep(given, out=tmp_path / "there", on=cluster.address)
    changed = {name for name, stamp in stamps(tmp_path / "there").items() if inodes.get(name) != stamp}
    assert {Path(name).name for name in changed} <= {"table.csv", "status.json"}


def test_a_job_that_fails_by_itself_stops_nobody(cluster: Any, tmp_path: Path) -> None:
    given = {**SPEC, "environments": ["breaking_env:Breaking-v0", "probe-both"]}
    found = capo.sweep(given, out=tmp_path, on=cluster.address, shared_disk=False)
    states = {row["environment"]: row["state"] for row in found.rows}
    assert states == {"breaking_env:Breaking-v0": "failed", "probe-both": "done"}
    (error,) = found.failed.values()
    assert "out of order" in error
