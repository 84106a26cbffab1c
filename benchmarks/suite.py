"""Does an algorithm learn wherever it is pointed? Twelve small environments and two probes, defaults as they are.

    capo bench suite --algorithms random sb3-ppo sb3-dqn        the peers; what is finished is not run again
    capo bench suite --algorithms ncapo --seeds 20 21 22         NCAPO
    capo bench suite --only CartPole-v1 Taxi-v4 --frames 50000 --out runs/suite
    capo bench suite --table                                    only print the tables of what is there
    capo bench suite --table --page docs/results/suite.md       and put them into the page of the documentation

It needs Stable-Baselines3, MiniGrid and Box2D: run `make .venv-suite/.installed`, then `.venv-suite/bin/capo bench
suite`.

ncapo, ppo, pqn    capo's, preset default, as `capo train ENV --algo ALGORITHM --frames 200000` trains them
sb3-ppo, sb3-dqn   Stable-Baselines3's PPO and DQN with MlpPolicy, one environment and the settings they come with
random             uniform play, for scale

Every training is a process of its own. It ends as one line of JSON in OUT/ALGORITHM.jsonl: the mean return of 100
whole episodes (Blackjack: 1000) after training, the seconds of training by the clock and of the processor,
compiling included and evaluation left out, the machine's load before it, the settings, versions, commit and
hardware. NCAPO and PPO sample their actions in these episodes, as they do in `capo evaluate`; PQN and both peers
take the best one.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import json
import subprocess
import sys
from pathlib import Path

from suite_parts import tables
from suite_parts.lines import Lines
from suite_parts.tasks import TASKS
from suite_parts.training import ALGORITHMS, train

OUT = Path(__file__).resolve().parents[1] / "results" / "suite"


def one(env: str, algorithm: str, seed: int, frames: int) -> dict | None:
    """One training in a process of its own; None, and a word on standard error, if it fails."""
    command = [sys.executable, __file__, "--one", env, algorithm, str(seed), "--frames", str(frames)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode:
        print(f"failed (exit status {result.returncode}): {algorithm} on {env}, seed {seed}", file=sys.stderr)
        return None
    return json.loads(result.stdout.splitlines()[-1])


def complete(options: argparse.Namespace) -> bool:
    """Train what is missing; whether all of it succeeded."""
    succeeded = True
    for seed in options.seeds:
        for env in options.only:
            for algorithm in options.algorithms:
                lines = Lines(options.out / f"{algorithm}.jsonl")
                frames = min(options.frames, TASKS[env].frames)
                if lines.has(env=env, algorithm=algorithm, seed=seed, frames=frames):
                    continue
                print(f"{algorithm} on {env}, seed {seed}", file=sys.stderr, flush=True)
                row = one(env, algorithm, seed, frames)
                if row is None:
                    succeeded = False
                    continue
                lines.add(row)
                print(f"  return {row['mean']:.4g}, {row['wall_seconds']:.0f} s", file=sys.stderr, flush=True)
    return succeeded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=3, metavar=("ENV", "ALGORITHM", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the lines (default: results/suite)")
    parser.add_argument("--only", nargs="+", default=list(TASKS), choices=list(TASKS), metavar="ENV", help="tasks")
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[20, 21, 22])
    parser.add_argument("--frames", type=lambda text: int(float(text)), default=200_000, help="of each training")
    parser.add_argument("--table", action="store_true", help="train nothing, only print the tables")
    parser.add_argument("--page", type=Path, help="with --table: a Markdown page to put the tables into")
    options = parser.parse_args()
    if options.one:
        env, algorithm, seed = options.one
        print(json.dumps(train(TASKS[env], algorithm, int(seed), options.frames)))
        return
    succeeded = options.table or complete(options)
    text = tables.tables(options.out, options.frames)
    print(text)
    if options.page:
        tables.put_into(options.page, text)
    sys.exit(0 if succeeded else 1)


if __name__ == "__main__":
    main()
