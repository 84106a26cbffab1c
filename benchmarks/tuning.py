"""Trials of a tuning as one program, against the same trials one after another.

    python benchmarks/tuning.py --out results/benchmarks/tuning.json
    python benchmarks/tuning.py --out results/benchmarks/tuning.json --algo ppo --preset default
    python benchmarks/tuning.py --out results/benchmarks/tuning_gpu.json --preset default --frames 100000 --own 1

Three ways to train the same trials, which differ in the numbers of the algorithm's default search space, with one
seed each:

- ``one program``: all trials are rows of one compiled program (what ``capo tune`` does);
- ``one after another, one program``: a program for a single trial, compiled once, whose numbers are arguments;
- ``one after another``: a training of its own for each, with its numbers compiled in (what a loop over
  ``capo train`` does, less the start of each process).

The last is measured before the second. Compiling counts, with an empty compilation cache (set
JAX_COMPILATION_CACHE_DIR to a new folder, or not at all). On a GPU the last way compiles for minutes: --own N
trains only N of the trials that way, and its times are those N trials' times as many as there are. Ratios are of
the clock, with and without compiling, and of processor time over all threads, which a busy machine changes least.
Rows are added to an existing file, one per environment, algorithm, preset and size.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from capo import envs
from capo.files import write_json
from capo.neural.algorithms.registry import find
from capo.neural.algorithms.settings import override
from capo.neural.learners import make_learner
from capo.neural.learners.trials import TrialsLearner
from capo.provenance import provenance
from capo.sweeps.space import default_space


def random_trials(space: Any, count: int) -> list[dict[str, float]]:
    """Settings drawn evenly from the space."""
    import optuna

    rng = np.random.RandomState(0)
    drawn = []
    for _ in range(count):
        trial = {}
        for name, one in space.items():
            ends = one.distribution(optuna)
            low, high = np.log([ends.low, ends.high]) if ends.log else (ends.low, ends.high)
            number = rng.uniform(low, high)
            trial[name] = one.from_search(float(np.exp(number)) if ends.log else float(number))
        drawn.append(trial)
    return drawn


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The seconds of the ways that are measured so far: again after each of them."""
    row, env = find(options.algo), envs.make(options.env)
    space = default_space(row.settings)
    config = override(row.settings.preset(options.preset, env.name), {"horizon": options.frames})
    iterations = -(-options.frames // config.frames_per_iteration)
    trials = random_trials(space, options.trials)
    names = sorted(space)
    found: dict[str, Times] = {}

    def row_so_far() -> dict[str, Any]:
        fast = found["one program"]
        return {
            "env": options.env,
            "algorithm": options.algo,
            "preset": options.preset,
            "trials": len(trials),
            "frames_per_trial": iterations * config.frames_per_iteration,
            "ways": {way: one.to_dict() for way, one in found.items()},
            "trials_with_a_program_of_their_own": own,
            "one_program_is_faster": {way: one.over(fast) for way, one in found.items() if one is not fast},
            "load_average": os.getloadavg(),
            "made_by": provenance(),
        }

    own = min(options.own, len(trials))
    one = found["one program"] = Times()
    whole = TrialsLearner(row.algorithm(config, env), env, names, len(trials))
    with one.compiling():
        whole.compile()
    with one.training():
        whole.run(whole.start(trials, [0]), iterations)
    yield row_so_far()
    if own:
        one = Times()
        for trial in trials[:own]:
            with one.compiling():
                learner = make_learner(row.algorithm(override(config, trial), env), env)
                learner.compile()
            with one.training():
                learner.run(learner.init([0]), iterations)
        found["one after another"] = one.scaled(len(trials) / own)
        yield row_so_far()
    one = found["one after another, one program"] = Times()
    single = TrialsLearner(row.algorithm(config, env), env, names, 1)
    with one.compiling():
        single.compile()
    for trial in trials:
        with one.training():
            single.run(single.start([trial], [0]), iterations)
    yield row_so_far()


class Times:
    """Seconds of compiling and of training: processor time over all threads, and wall time."""

    def __init__(self) -> None:
        self.parts = {part: [0.0, 0.0] for part in ("compiling", "training")}

    def scaled(self, factor: float) -> Times:
        """The times of ``factor`` times as many trials."""
        made = Times()
        made.parts = {name: [factor * value for value in part] for name, part in self.parts.items()}
        return made

    def over(self, other: Times) -> dict[str, float]:
        """How many times more it took than another way."""
        (cpu, wall), (other_cpu, other_wall) = (np.sum(list(one.parts.values()), axis=0) for one in (self, other))
        training = self.parts["training"][1] / other.parts["training"][1]
        return {
            "times_wall": round(float(wall / other_wall), 2),
            "times_wall_without_compiling": round(training, 2),
            "times_processor": round(float(cpu / other_cpu), 2),
        }

    @contextmanager
    def _measured(self, name: str) -> Iterator[None]:
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.parts[name][0] += time.process_time() - cpu
        self.parts[name][1] += time.perf_counter() - wall

    def compiling(self) -> AbstractContextManager[None]:
        return self._measured("compiling")

    def training(self) -> AbstractContextManager[None]:
        return self._measured("training")

    def to_dict(self) -> dict[str, float]:
        return {
            f"{name}_{kind}_seconds": round(value, 2)
            for name, part in self.parts.items()
            for kind, value in zip(("cpu", "wall"), part, strict=True)
        }

    def __repr__(self) -> str:
        return str(self.to_dict())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file; an existing one is completed")
    parser.add_argument("--env", default="minatar-breakout")
    parser.add_argument("--algo", default="ncapo")
    parser.add_argument("--preset", default="cpu")
    parser.add_argument("--frames", type=float, default=10_000, help="per trial")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--own", type=int, default=32, help="trials to train with a program of their own")
    options = parser.parse_args()
    options.frames = int(options.frames)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    keys = ("env", "algorithm", "preset", "trials", "frames_per_trial")
    for found in measure(options):
        rows = [row for row in before if any(row[key] != found[key] for key in keys)] + [found]
        write_json(options.out, {"rows": rows})
        print(json.dumps({key: found[key] for key in ("ways", "one_program_is_faster")}, indent=2), flush=True)


if __name__ == "__main__":
    main()
