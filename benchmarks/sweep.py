"""What a sweep costs beside its trainings: the engines against `capo train` in a loop, in one run on one machine.

    python benchmarks/sweep.py                            the table, written to results/benchmarks/sweep.json
    python benchmarks/sweep.py --frames 1200000           jobs of about a minute on two cores
    python benchmarks/sweep.py --without-ray

Four measurements, each stored with the load of the machine:

- ``overhead``: the same trainings, one at a time, by `capo train` in a loop, by `capo sweep` on this machine, by
  `capo sweep` on a Ray cluster of one node (started before, as a cluster is), each repeated in
  turn. On a busy machine the processor time says more than the clock; that of Ray's workers cannot be seen from
  here.
- ``small jobs``: 64 trainings of well under a second with one program, two at a time. Jobs per second are counted
  from the first job that ended, when the workers are up and the program is compiled.
- ``one small job``: the processor time of such a training in one process, which does not depend on what else the
  machine is doing, and how much of it is tracing and lowering the program for jax: that limits the rate.
- ``empty jobs``: 200 tasks that do nothing, two at a time: what the engine itself can do.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENV, PRESET = "minatar-breakout", "cpu"
SMALL: dict[str, Any] = {
    "n_envs": 8,
    "rollout_length": 2,
    "width": 8,
    "shared_trunk": True,
    "batch_size": 4,
    "gradient_steps": 2,
    "replay_rollouts": 32,
}
PARTS = ("empty", "overhead", "one", "small")
OUT = Path(__file__).resolve().parents[1] / "results" / "benchmarks" / "sweep.json"


@dataclass
class Empty:
    """A task that does nothing."""

    def run(self, folder: Path) -> None:
        (folder / "done").touch()


def capo(*arguments: str) -> None:
    """A command as a user gives it."""
    command = [sys.executable, "-m", "capo", *arguments]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr[-2000:]}")


def spec(jobs: int, frames: int) -> str:
    return (
        f'environments = ["{ENV}"]\npresets = ["{PRESET}"]\nframes = {frames}\nseeds = {jobs}\nseeds_per_job = 1\n'
        "eval_episodes = 100\nkeep = 3\n"
    )


def loop(folder: Path, jobs: int, frames: int) -> None:
    """`capo train`, one after another."""
    for seed in range(jobs):
        capo(
            "train",
            ENV,
            "--preset",
            PRESET,
            "--frames",
            str(frames),
            "--seed",
            str(seed),
            "--out",
            f"{folder}/{seed}",
        )


def sweep(folder: Path, jobs: int, frames: int, on: str) -> None:
    folder.mkdir()
    (folder / "spec.toml").write_text(spec(jobs, frames))
    capo("sweep", str(folder / "spec.toml"), "--out", str(folder / "out"), "--on", on, "--workers", "1")


def same_results(one: Path, other: Path) -> bool:
    """Whether the runs of the loop and the jobs of a sweep have the same returns."""
    ours = [
        json.loads((one / str(seed) / "evaluation.json").read_text()) for seed in range(len(list(one.iterdir())))
    ]
    theirs = [json.loads(path.read_text()) for path in (other / "out" / "jobs").glob("*/evaluation.json")]
    return {(e["seeds"][0], str(e["returns"])) for e in ours} == {
        (e["seeds"][0], str(e["returns"])) for e in theirs
    }


def processor_seconds() -> float:
    """Processor time of the processes that this one started and that have ended, and of those below them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def overhead(root: Path, frames: int, jobs: int, repeats: int, address: str | None) -> dict[str, Any]:
    """Seconds on the clock and of the processors of each way, in turn."""
    ways: dict[str, Callable[[Path], None]] = {
        "capo train in a loop": lambda folder: loop(folder, jobs, frames),
        "capo sweep, local": lambda folder: sweep(folder, jobs, frames, "local"),
    }
    if address is not None:
        ways["capo sweep, Ray"] = lambda folder: sweep(folder, jobs, frames, address)
    clock: dict[str, list[float]] = {way: [] for way in ways}
    processor: dict[str, list[float]] = {way: [] for way in ways}
    equal = True
    for turn in range(repeats):
        for way, go in ways.items():
            folder = root / f"{way.replace(' ', '-')}-{turn}"
            began, used = time.perf_counter(), processor_seconds()
            go(folder)
            clock[way].append(time.perf_counter() - began)
            if way != "capo sweep, Ray":  # whose workers are not below this process
                processor[way].append(processor_seconds() - used)
            if way != "capo train in a loop":
                equal = equal and same_results(root / f"capo-train-in-a-loop-{turn}", folder)
            print(f"{way}: {clock[way][-1]:.1f} s, {jobs} jobs", flush=True)

    def relative(times: dict[str, list[float]]) -> dict[str, float]:
        middle = {way: statistics.median(own) for way, own in times.items() if own}
        return {way: seconds / middle["capo train in a loop"] - 1 for way, seconds in middle.items()}

    return {
        "jobs": jobs,
        "frames_per_job": frames,
        "clock_seconds": clock,
        "processor_seconds": processor,
        "overhead_by_the_clock": relative(clock),
        "overhead_in_processor_time": relative(processor),
        "same_results": equal,
    }


def rate(names: int, make: Callable[[], Any], on: str) -> dict[str, Any]:
    """Jobs per second of work that ``make`` returns, from the first end to the last."""
    from capo.sweeps.engine import run_all
    from capo.sweeps.work import Outcome, Watcher

    class Clock(Watcher):
        def __init__(self) -> None:
            self.ends: list[float] = []

        def ended(self, outcome: Outcome) -> None:
            if outcome.error:
                raise SystemExit(f"{outcome.name}: {outcome.error}")
            self.ends.append(time.perf_counter())

    clock, began = Clock(), time.perf_counter()
    run_all(make(), on, 2, clock)
    warm = [end for end in clock.ends if end > clock.ends[0]]
    found = {"jobs": names, "seconds_to_the_first": clock.ends[0] - began, "seconds": clock.ends[-1] - began}
    return found | {"jobs_per_second_once_warm": len(warm) / (clock.ends[-1] - clock.ends[0])}


def one_small_job(root: Path) -> dict[str, float]:
    """Processor seconds of a small job in a process that has compiled its program before; medians of five."""
    from capo.neural.learners import JittedLearner
    from capo.sweeps.work import attempt, keep_programs

    keep_programs()
    compile_program, tracing = JittedLearner.compile, []

    def timed(learner: Any, *era: int) -> float:
        began = time.process_time()
        seconds = compile_program(learner, *era)
        tracing[-1] += time.process_time() - began
        return seconds

    JittedLearner.compile = timed  # type: ignore[method-assign]
    whole = []
    for seed in range(6):
        tracing.append(0.0)
        began = time.process_time()
        if error := attempt(small_job(seed), root / str(seed)):
            raise SystemExit(error)
        whole.append(time.process_time() - began)
    JittedLearner.compile = compile_program  # type: ignore[method-assign]
    warm = {"processor_seconds": whole[1:], "of_which_tracing_and_lowering": tracing[1:]}
    return {name: statistics.median(values) for name, values in warm.items()}


def small_job(seed: int) -> Any:
    from capo.sweeps.jobs import Job

    return Job("probe-both", "ncapo", "default", 16_000, (seed,), SMALL, final_episodes=100)


def small_jobs(root: Path, on: str) -> dict[str, Any]:
    from capo.sweeps.work import Work

    jobs = [small_job(seed) for seed in range(64)]
    return rate(64, lambda: [Work(job.id, root / job.id, job) for job in jobs], on)


def empty_jobs(root: Path, on: str) -> dict[str, Any]:
    from capo.sweeps.work import Work

    sys.modules.setdefault("sweep", sys.modules[__name__])
    Empty.__module__ = "sweep"  # where workers find it: beside this file
    return rate(200, lambda: [Work(str(i), root / str(i), Empty()) for i in range(200)], on)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=400_000, help="of one job (default: 400,000, about 20 s)")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--without-ray", action="store_true")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    os.environ.setdefault(
        "RAY_worker_niceness", "0"
    )  # Ray's own is 15: on a busy machine the others' work comes first
    root = Path(tempfile.mkdtemp(prefix="capo-sweep-"))
    cluster = None
    try:
        engines = {"local": "local"}
        if not options.without_ray:
            from ray.cluster_utils import Cluster

            cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
            engines["ray"] = cluster.address
        for part in options.parts:
            if part == "one":
                store(options.out, "one small job", one_small_job(root / "one"))
            elif part == "overhead":
                address = engines.get("ray")
                store(options.out, part, overhead(root, options.frames, options.jobs, options.repeats, address))
            else:
                measure = small_jobs if part == "small" else empty_jobs
                for engine, on in engines.items():
                    store(options.out, f"{part} jobs, {engine}", measure(root / f"{part}-{engine}", on))
    finally:
        if cluster is not None:
            cluster.shutdown()
        shutil.rmtree(root, ignore_errors=True)


def store(out: Path, name: str, found: dict[str, Any]) -> None:
    """Add a measurement to the file, in the place of an older one."""
    from capo.files import write_json
    from capo.provenance import provenance

    print(f"{name}: {json.dumps(found)}", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    content = json.loads(out.read_text()) if out.exists() else {}
    load = round(os.getloadavg()[0], 1)
    write_json(out, content | {name: {**found, "load_average": load, "made_by": provenance()}})


if __name__ == "__main__":
    main()
