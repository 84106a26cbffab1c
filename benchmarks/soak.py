"""Kill trainings with SIGKILL, again and again, and compare what comes out with a training that was left alone.

    python benchmarks/soak.py --kills 200 --out results/reliability/soak.json

Three algorithms train on a jitted and on a Gymnasium environment. A training is killed several times: at its
start, while its program is compiled, in training, while a log or a checkpoint is written, in the evaluation, and
while the last files are written. Half of the kills wait for one of these phases, the others come at any moment.
`capo resume` continues it each time. Once it is complete, every array of its last checkpoint, every row of
metrics.csv (but for the time columns) and every return of evaluation.json must be the reference's, bit for bit:

- jitted: the same command, never killed;
- Gymnasium, whose inner state can't be saved: a training that was stopped and resumed at the checkpoints that the
  killed one continued from.

"lost" counts resumes that failed or did not continue from the newest checkpoint. Most trainings are forks of this
process, which has imported everything but not started jax, and most of those take their compiled program from a
file; some are new processes, killed during their imports.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

CACHE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
PHASES = ("start", "compile", "training", "log", "checkpoint", "evaluation", "summary")
WRITES = ("log", "checkpoint")  # phases of a few milliseconds
KILLS_OF_A_RUN = 12  # then it may finish
TRACED = 0.15  # share of trainings that trace and compile their program themselves
_SIZES: dict[str, dict[str, Any]] = {
    "ncapo": {"n_envs": 4, "rollout_length": 4, "batch_size": 4, "gradient_steps": 2, "replay_rollouts": 32},
    "ppo": {"n_envs": 4, "rollout_length": 8, "batch_size": 8, "epochs": 1},
    "rainbow": {"n_envs": 4, "rollout_length": 4, "batch_size": 8, "gradient_steps": 2, "replay_transitions": 96}
    | {"learning_starts": 32, "target_every": 64, "atoms": 11},
}


@dataclass(frozen=True)
class Case:
    """One algorithm on one environment; the training takes a few seconds."""

    algorithm: str
    env: str
    seeds: int
    log_points: int

    def __str__(self) -> str:
        return f"{self.algorithm} on {self.env}"

    def command(self, out: Path) -> list[str]:
        """The arguments of ``capo`` that start it."""
        sizes = _SIZES[self.algorithm] | {"width": 8}
        per_iteration = sizes["n_envs"] * sizes["rollout_length"]
        every = 2 * per_iteration
        options: dict[str, Any] = {"algo": self.algorithm, "seeds": self.seeds, "frames": every * self.log_points}
        options |= {"log-every": every, "checkpoint-every": 5 * every, "eval-episodes": 16, "out": out}
        given = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        return ["train", self.env, *given, *(t for k, v in sizes.items() for t in ("--set", f"{k}={v}"))]


CASES = [
    Case("ncapo", "probe-both", 2, 80),
    Case("ncapo", "CartPole-v1", 1, 30),
    Case("ppo", "probe-both", 2, 80),
    Case("ppo", "CartPole-v1", 1, 30),
    Case("rainbow", "probe-both", 2, 80),
    Case("rainbow", "CartPole-v1", 1, 30),
]


# --- one training in a process --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """When a training kills itself: seconds of processor time after a phase has begun for the n-th time.

    The process does it itself, in a thread: a signal from outside would miss what takes a millisecond.
    """

    phase: str
    entry: int
    delay: float

    @staticmethod
    def choose(rng: random.Random, duration: float) -> Moment:
        """In a phase that is chosen first, or at any moment of a training that takes ``duration`` seconds."""
        if rng.random() < 0.5:
            return Moment("start", 1, rng.uniform(0, duration))
        phase = rng.choice((*PHASES, "log", "checkpoint", "checkpoint"))
        if phase in WRITES:
            return Moment(phase, rng.randint(1, 4), rng.uniform(0, 0.004))
        return Moment(phase, rng.randint(1, 6) if phase == "training" else 1, rng.uniform(0, 0.3))

    def kill(self) -> None:
        """Wait for it, then end the process."""
        if self.phase in WRITES:  # waits for the disk rather than the processor
            time.sleep(self.delay)
        else:
            end = time.process_time() + self.delay
            while time.process_time() < end:
                time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)


class Phase:
    """What a forked training is doing, in memory that this process can read."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 8)
        self._kill_at: Moment | None = None
        self._entries = 0

    def get(self) -> str:
        """The phase now."""
        return PHASES[self._shared[0]]

    def set(self, name: str) -> None:
        """Say that a phase has begun."""
        self._shared[0] = PHASES.index(name)
        moment = self._kill_at
        if moment is not None and moment.phase == name:
            self._entries += 1
            if self._entries == moment.entry:
                threading.Thread(target=moment.kill, daemon=True).start()

    def during(self, owner: Any, name: str, phase: str) -> None:
        """Let a function say that it runs."""
        real = getattr(owner, name)

        def wrapper(*arguments: Any, **options: Any) -> Any:
            before = self.get()
            self.set(phase)
            try:
                return real(*arguments, **options)
            finally:
                self.set(before)

        setattr(owner, name, wrapper)

    def watch(self, kill_at: Moment | None) -> None:
        """In the child: follow the phases of a training, and kill it at one of them."""
        from capo.commands import common
        from capo.neural.agent import Agent
        from capo.neural.trainer import Trainer
        from capo.runs.checkpoint import CheckpointStore
        from capo.runs.writer import RunWriter

        self.during(Trainer, "_compile", "compile")
        self.during(Trainer, "_chunk", "training")
        self.during(RunWriter, "log", "log")
        self.during(CheckpointStore, "save", "checkpoint")
        self.during(common, "summarise", "summary")
        self.during(Agent, "evaluate", "evaluation")
        self._kill_at = kill_at
        self.set("start")


PHASE = Phase()


class Programs:
    """The compiled program of a case in a file: most trainings take it from there instead of tracing it again."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def keep(self) -> None:
        """In the child of the reference: write what its learner compiles."""
        for owner, programs in self._learners():
            real = owner.compile

            def compile(learner: Any, era: int = 0, real: Any = real, programs: str = programs) -> float:
                from jax.experimental import serialize_executable

                seconds: float = real(learner, era)
                if not self.file.exists():
                    program = serialize_executable.serialize(getattr(learner, programs)[0])
                    self.file.write_bytes(pickle.dumps((program, learner.shapes(range(learner.n_seeds)))))
                return seconds

            owner.compile = compile

    def use(self) -> None:
        """In a child: take the program from the file."""
        from jax.experimental import serialize_executable

        for owner, programs in self._learners():

            def compile(learner: Any, era: int = 0, programs: str = programs) -> float:
                if not getattr(learner, programs):
                    program, _ = pickle.loads(self.file.read_bytes())
                    getattr(learner, programs)[era] = serialize_executable.deserialize_and_load(*program)
                    learner.compile_seconds = 0.0
                return 0.0

            owner.compile = compile
            owner.shapes = lambda *_: pickle.loads(self.file.read_bytes())[1]

    def _learners(self) -> list[tuple[Any, str]]:
        from capo.neural.learners.host import HostLearner
        from capo.neural.learners.jitted import JittedLearner

        return [(JittedLearner, "_compiled"), (HostLearner, "_steps")]


def forked(action: Callable[[], int], log: Path) -> int:
    """Run ``action`` in a fork whose output goes to ``log``; returns its process id."""
    PHASE.set("start")
    child = os.fork()
    if child:
        return child
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        status = action()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # the parent reads it in the log
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        status = 70
    os._exit(status)


def capo_process(
    arguments: list[str], log: Path, kill_at: Moment | None = None, before: Callable[[], None] | None = None
) -> int:
    """``capo ARGUMENTS`` in a fork that tells its phase, and kills itself at a moment; ``before`` runs first."""

    def action() -> int:
        from capo.cli import main

        if before is not None:
            before()
        PHASE.watch(kill_at)
        return main(arguments)

    return forked(action, log)


def ending_of(child: int) -> tuple[int, float]:
    """Wait for a child; its exit status, or minus the signal that ended it, and its seconds of processor time."""
    _, status, usage = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


def status_of(child: int) -> int:
    """Wait for a child; its exit status."""
    return ending_of(child)[0]


# --- kills ----------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What happened so far."""

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    lost: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    bits: int = 0
    tracebacks: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # of processor time that a training takes

    def add(self, other: Tally) -> None:
        """Add what another process counted."""
        self.kills.update(other.kills)
        self.lost += other.lost
        self.differing += other.differing
        self.runs, self.bits = self.runs + other.runs, self.bits + other.bits
        self.tracebacks += other.tracebacks


def kill_while_importing(arguments: list[str], log: Path, rng: random.Random) -> str:
    """Start a new process and kill it within its first second and a half."""
    with log.open("ab") as output:
        process = subprocess.Popen([sys.executable, "-m", "capo", *arguments], stdout=output, stderr=output)
        time.sleep(rng.uniform(0.02, 1.5))
        process.kill()
        process.wait()
    return "new process"


def newest(out: Path) -> int | None:
    """The frames of the newest checkpoint, which must be whole; None if there is none."""
    from capo.runs import checkpoint

    paths = checkpoint.CheckpointStore(out / "checkpoints").paths()
    if not paths:
        return None
    checkpoint.read(paths[-1])
    return checkpoint.frames_of(paths[-1])


def harass(case: Case, out: Path, tally: Tally, rng: random.Random, kills: int, programs: Programs) -> list[int]:
    """Train to the end with ``kills`` kills on the way; returns the frames that it continued from."""
    log = out.with_suffix(".log")
    cuts: list[int] = []
    while True:
        begun = (out / "config.json").exists()
        arguments = ["resume", str(out)] if begun else case.command(out)
        before = newest(out) if begun else None
        length = log.stat().st_size if log.exists() else 0
        if kills and rng.random() < 0.1:
            phase: str | None = kill_while_importing(arguments, log, rng)
            status = 0
        else:
            moment = Moment.choose(rng, tally.seconds[str(case)]) if kills else None
            traced = rng.random() < TRACED
            status, seconds = ending_of(capo_process(arguments, log, moment, None if traced else programs.use))
            phase = PHASE.get() if status == -signal.SIGKILL else None
            status = 0 if phase else status
            if phase is None:
                tally.seconds[str(case)] = min(tally.seconds[str(case)], seconds)
        said = log.read_bytes()[length:].decode(errors="replace")
        tally.tracebacks += said.count("Traceback")
        if begun and not continued(said, before):
            tally.lost.append(f"{out.name}: from {before}: {said[-300:]}")
        if before:
            cuts.append(before)
        if status:
            tally.lost.append(f"{out.name}: exit status {status}: {said[-300:]}")
            return cuts
        if phase is None:
            return cuts
        tally.kills[phase] += 1
        kills -= 1


def continued(said: str, before: int | None) -> bool:
    """Whether a resume continued from the checkpoint it should have, as far as it got."""
    where = f"resuming at frame {before or 0:,} of"
    return where in said or "the run is complete" in said or "resuming at" not in said


# --- comparing ------------------------------------------------------------------------------------------------


def results(out: Path) -> dict[str, bytes]:
    """All that must be equal: arrays, rows, returns."""
    import csv

    from capo.runs import checkpoint
    from capo.runs.layout import is_timing

    last = checkpoint.read(checkpoint.CheckpointStore(out / "checkpoints").paths()[-1])
    found = {f"{last.path.name}: {name}": array.tobytes() for name, array in last.arrays.items()}
    with (out / "metrics.csv").open(newline="") as file:
        rows = [[value for key, value in row.items() if not is_timing(key)] for row in csv.DictReader(file)]
    found["metrics.csv"] = json.dumps(rows).encode()
    found["evaluation.json"] = json.dumps(json.loads((out / "evaluation.json").read_text())["returns"]).encode()
    return found


def compare(out: Path, reference: Path, tally: Tally) -> None:
    """Count the bits that differ."""
    ours, theirs = results(out), results(reference)
    for name in sorted({*ours, *theirs}):
        mine, other = ours.get(name, b""), theirs.get(name, b"")
        if mine != other:
            size = max(len(mine), len(other))
            one, two = (int.from_bytes(text.ljust(size, b"\0"), "little") for text in (mine, other))
            tally.bits += (one ^ two).bit_count()
            tally.differing.append(f"{out.name}: {name}")


def train_in_pieces(case: Case, out: Path, cuts: list[int]) -> int:
    """The reference of a Gymnasium environment: stopped and resumed where the killed one was. Runs in a fork."""
    from capo.cli import main
    from capo.neural.agent import Agent

    learn, stops = Agent.learn, sorted(set(cuts))

    def in_pieces(self: Any, frames: int, **options: Any) -> Any:
        left = [stop for stop in stops if stop > self.frames]
        options["callback"] = lambda _, rows: not left or rows[0]["frames"] < left[0]
        learn(self, frames, **options)
        if self.frames_left:
            self.close()
            resumed = type(self).resume(self.out)
            self.__dict__.update(resumed.__dict__)
            in_pieces(self, self.frames_left)
        return self

    Agent.learn = in_pieces  # type: ignore[method-assign]
    return main(case.command(out))


# --- all of it ------------------------------------------------------------------------------------------------


def prepare_fork() -> None:
    """Import all that a training needs, and no more: a started jax can't be forked."""
    import gymnasium.envs.classic_control
    import jax
    import matplotlib.pyplot

    import capo.cli
    import capo.commands.common
    import capo.neural.algorithms.registry
    import capo.report.run_figures

    del gymnasium, matplotlib, capo
    assert not jax._src.xla_bridge._backends, "jax has started: its threads don't survive a fork"


def soak(cases: list[Case], kills: int, seed: int, folder: Path, say: Callable[[str], None]) -> Tally:
    """Kill until there were so many kills; every training is finished and compared."""
    rng, tally = random.Random(seed), Tally()
    references, programs = {}, {}
    for case in cases:
        name = f"{case.algorithm}-{case.env}"
        references[case] = folder / f"{name}-reference"
        shutil.rmtree(references[case], ignore_errors=True)
        log = folder / f"{name}-reference.log"
        programs[case] = Programs(folder / f"{name}.program")
        programs[case].file.unlink(missing_ok=True)
        child = capo_process(case.command(references[case]), log, before=programs[case].keep)
        status, seconds = ending_of(child)
        if status:
            raise SystemExit(f"{name}: failed without any kill:\n{log.read_text()[-2000:]}")
        tally.seconds[str(case)] = seconds / 4  # the others don't compile; whoever ends says how long it took
        say(f"{name}: {seconds:.1f} s of processor time, undisturbed")
    while sum(tally.kills.values()) < kills:
        case = cases[tally.runs % len(cases)]
        left = kills - sum(tally.kills.values())
        out = folder / f"{tally.runs:03d}-{case.algorithm}-{case.env}"
        cuts = harass(case, out, tally, rng, min(KILLS_OF_A_RUN, left), programs[case])
        reference = references[case]
        if case.env == "CartPole-v1" and cuts:
            reference = out.with_name(f"{out.name}-reference")
            pieces = partial(train_in_pieces, case, reference, cuts)
            status_of(forked(pieces, Path(f"{reference}.log")))
        try:
            compare(out, reference, tally)
        except Exception as error:  # whatever is wrong with the files of a killed run
            tally.lost.append(f"{out.name}: cannot be compared: {type(error).__name__}: {error}")
        tally.runs += 1
        told = f"{sum(tally.kills.values())} kills, {len(tally.lost)} lost, {tally.bits} bits differ"
        say(f"{out.name}: continued from {sorted(set(cuts))}; {told}")
        if not tally.lost and not tally.differing:
            for path in (out, *([reference] if reference not in references.values() else [])):
                shutil.rmtree(path)
    return tally


def soak_together(cases: list[Case], kills: int, seed: int, folder: Path, workers: int) -> Tally:
    """Share the cases among processes that soak at the same time, each with its own random numbers."""
    global PHASE
    parts = [part for index in range(workers) if (part := cases[index::workers])]
    children = []
    for index, part in enumerate(parts):
        own = folder / f"worker-{index}"
        own.mkdir(exist_ok=True)
        child = os.fork()
        if not child:
            PHASE = Phase()  # memory of its own
            share = kills // len(parts) + (index < kills % len(parts))
            found = soak(part, share, seed + index, own, lambda text: print(text, flush=True))
            (own / "tally.json").write_text(json.dumps(vars(found)))
            os._exit(0)
        children.append((child, own))
    total = Tally()
    for child, own in children:
        if status_of(child):
            raise SystemExit(f"{own}: the worker failed")
        total.add(Tally(**json.loads((own / "tally.json").read_text())))
    return total


def main() -> int:
    """Soak, write the file, and fail if anything was lost or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes that share the cases")
    parser.add_argument("--cases", nargs="+", choices=list(map(str, CASES)), default=list(map(str, CASES)))
    parser.add_argument("--out", type=Path, default=Path("results/reliability/soak.json"))
    parser.add_argument("--folder", type=Path, help="where the runs go (default: a temporary folder)")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="capo-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= CACHE | {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    prepare_fork()
    begin = time.monotonic()
    cases = [case for case in CASES if str(case) in options.cases]
    tally = soak_together(cases, options.kills, options.seed, folder, options.workers)
    from capo.files import write_json
    from capo.provenance import provenance

    content = {
        "kills": sum(tally.kills.values()),
        "kills_by_phase": dict(sorted(tally.kills.items())),
        "runs_compared": tally.runs,
        "cases": list(map(str, cases)),
        "lost": len(tally.lost),
        "differing_bits": tally.bits,
        "tracebacks": tally.tracebacks,
        "problems": tally.lost + tally.differing,
        "seed": options.seed,
        "minutes": round((time.monotonic() - begin) / 60, 1),
        **provenance(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, content)
    told = f"{content['kills']} kills, {content['lost']} lost, {content['differing_bits']} bits differ"
    print(f"{told}: {options.out}")
    if content["lost"] or content["differing_bits"] or content["tracebacks"]:
        return 1
    if options.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
