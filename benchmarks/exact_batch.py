"""Rule ``batch`` by exact evaluation on large sparse MDPs, of two checkouts of this repository in one run.

    git worktree add OLD COMMIT
    python benchmarks/exact_batch.py --old OLD [--states N ...] [--turns N] [--out FILE]

Both solve the same MDPs to a certified gap of 1e-6, on one thread, in turns, each in a process of its own that has
compiled before. The ratio is that of the processor's seconds, new to old, medians of all turns; the clock's are
recorded too. What they did is compared: the number of iterations and the policies, whose logarithms are the same
to the last bit where every sign was, and V.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is loaded

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tabular_scale import TOL, clocked, make

import capo
from capo.files import write_json
from capo.provenance import provenance


def solve_once(kind: str, n_states: int, gamma: float, to: Path) -> None:
    """One solve by the capo that is on the path; what it did goes to a file."""
    capo.solve(make(kind, 400, gamma), rule="batch", critic="signs", iterations=2)  # compiles
    mdp = make(kind, n_states, gamma)
    seconds, processor, run = clocked(lambda: capo.solve(mdp, rule="batch", critic="signs", tol=TOL))
    np.savez(to, log_policy=run.log_policy, values=run.values)
    found = {"s": seconds, "processor s": processor, "iterations": run.iterations, "gap": run.gap_bound}
    print(json.dumps(found | {"commit": provenance()["commit"]}))


def run(source: Path, kind: str, n_states: int, gamma: float, to: Path) -> dict[str, Any]:
    case = [kind, str(n_states), str(gamma), str(to)]
    environment = os.environ | {"PYTHONPATH": str(source)}
    command = [sys.executable, __file__, "--once", *case]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return dict(json.loads(answer))


def compare(sources: dict[str, Path], kind: str, n_states: int, gamma: float, turns: int) -> dict[str, Any]:
    """One row."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.npz" for name in sources}
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
        for _ in range(turns):
            for name, source in sources.items():
                runs[name].append(run(source, kind, n_states, gamma, files[name]))
        old, new = (np.load(files[name]) for name in sources)
        row: dict[str, Any] = {"MDP": kind, "states": n_states, "gamma": gamma, "turns": turns}
        for name, several in runs.items():
            row[f"{name}, s"] = median(one["s"] for one in several)
            row[f"{name}, processor s"] = median(one["processor s"] for one in several)
            row[f"{name}, iterations"] = several[0]["iterations"]
            row[f"{name}, certified gap"] = several[0]["gap"]
            row[f"{name}, commit"] = several[0]["commit"]
        row["ratio new / old, processor"] = row["new, processor s"] / row["old, processor s"]
        row["ratio new / old, clock"] = row["new, s"] / row["old, s"]
        row["log-policies the same to the last bit"] = bool((old["log_policy"] == new["log_policy"]).all())
        policies = np.exp(old["log_policy"]), np.exp(new["log_policy"])
        row["largest difference of policies"] = float(np.abs(policies[0] - policies[1]).max())
        row["largest difference of V"] = float(np.abs(old["values"] - new["values"]).max())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="the other checkout")
    parser.add_argument("--states", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/exact_batch.json"))
    parser.add_argument("--once", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        kind, n_states, gamma, to = options.once
        solve_once(kind, int(n_states), float(gamma), Path(to))
        return
    if options.old is None:
        parser.error("give the other checkout: --old DIR")
    sources = {"old": options.old / "src", "new": Path(capo.__file__).parents[1]}
    report: dict[str, Any] = {"tol": TOL, **provenance(), "rows": []}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for n_states in options.states:
        for kind in ("grid", "random"):
            row = compare(sources, kind, n_states, options.gamma, 1 if n_states >= 1_000_000 else options.turns)
            report["rows"].append(row)
            print(json.dumps(row), flush=True)
            write_json(options.out, report)


if __name__ == "__main__":
    main()
