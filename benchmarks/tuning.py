"""Trials of a tuning as one program, against the same trials one after another.

    python benchmarks/tuning.py --out results/benchmarks/tuning.json
    python benchmarks/tuning.py --out results/benchmarks/tuning.json --algo ppo --preset default

Three ways to train the same trials, which differ in the numbers of the algorithm's default search space, with one
seed each:

- ``one program``: all trials are rows of one compiled program (what ``capo tune`` does);
- ``one after another, one program``: a program for a single trial, compiled once, whose numbers are arguments;
- ``one after another``: a training of its own for each, with its numbers compiled in (what a loop over
  ``capo train`` does, less the start of each process).

The seconds are those of compiling and training. The last two ways take turns, a share of the trials at a time, so
that a busy machine slows both down alike. Rows are added to an existing file, one per environment, algorithm and
preset.
"""

from __future__ import annotations

import argparse
import json
import time
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

SHARES = 4  # turns of the ways that train one after another


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


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The seconds of all three ways."""
    row, env = find(options.algo), envs.make(options.env)
    space = default_space(row.settings)
    config = override(row.settings.preset(options.preset, env.name), {"horizon": options.frames})
    iterations = -(-options.frames // config.frames_per_iteration)
    trials = random_trials(space, options.trials)
    names = sorted(space)
    seconds = {"one program": 0.0, "one after another, one program": 0.0, "one after another": 0.0}
    compiling = dict.fromkeys(seconds, 0.0)

    whole = TrialsLearner(row.algorithm(config, env), env, names, len(trials))
    single = TrialsLearner(row.algorithm(config, env), env, names, 1)
    begin = time.perf_counter()
    compiling["one program"] = whole.compile()
    whole.run(whole.start(trials, [0]), iterations)
    seconds["one program"] = time.perf_counter() - begin
    for share in np.array_split(np.arange(len(trials)), SHARES):
        begin = time.perf_counter()
        if single.compile_seconds is None:
            compiling["one after another, one program"] = single.compile()
        for index in share:
            single.run(single.start([trials[index]], [0]), iterations)
        seconds["one after another, one program"] += time.perf_counter() - begin
        begin = time.perf_counter()
        for index in share:
            learner = make_learner(row.algorithm(override(config, trials[index]), env), env)
            compiling["one after another"] += learner.compile()
            learner.run(learner.init([0]), iterations)
        seconds["one after another"] += time.perf_counter() - begin
        print(f"{share[-1] + 1} of {len(trials)} trials: {seconds}", flush=True)
    return {
        "env": options.env,
        "algorithm": options.algo,
        "preset": options.preset,
        "trials": len(trials),
        "frames_per_trial": iterations * config.frames_per_iteration,
        "seconds": {way: round(value, 2) for way, value in seconds.items()},
        "of_which_compiling_seconds": {way: round(value, 2) for way, value in compiling.items()},
        "times_faster_than_one_after_another": {
            way: round(seconds["one after another"] / value, 2) for way, value in seconds.items()
        },
        "made_by": provenance(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file; an existing one is completed")
    parser.add_argument("--env", default="minatar-breakout")
    parser.add_argument("--algo", default="ncapo")
    parser.add_argument("--preset", default="cpu")
    parser.add_argument("--frames", type=float, default=50_000, help="per trial")
    parser.add_argument("--trials", type=int, default=32)
    options = parser.parse_args()
    options.frames = int(options.frames)
    found = measure(options)
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    keys = ("env", "algorithm", "preset", "trials", "frames_per_trial")
    rows = [row for row in rows if any(row[key] != found[key] for key in keys)] + [found]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, {"rows": rows})
    print(json.dumps({key: found[key] for key in ("seconds", "times_faster_than_one_after_another")}, indent=2))


if __name__ == "__main__":
    main()
