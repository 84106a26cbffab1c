"""Speed of the tabular half compared with its peers, in one run, on one thread.

    python benchmarks/tabular.py [--quick] [--out DIR]

These are the exact algorithms; ``benchmarks/tabular_scale.py`` measures modified CAPO on large MDPs.

Machines are shared and noisy: peer and capo take turns, each entry is the median of several turns, and what counts
is the ratio.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is loaded

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import capo
from capo import mdps
from capo.files import prepare_folder, write_json
from capo.provenance import provenance
from capo.tabular.coordinates import Cyclic
from capo.tabular.critic import Coordinates, DenseCritic
from capo.update import LOG


def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def take_turns(works: list[Callable[[], Any]], turns: int) -> list[float]:
    """Median seconds of each of several works, run in turns so that noise meets all alike."""
    times = [[seconds(work) for work in works] for _ in range(turns)]
    return [median(column) for column in zip(*times, strict=True)]


# --- coordinate updates against a linear solve at every update ---


def solve_every_update(mdp: capo.MDP, pairs: np.ndarray) -> None:
    """What one writes first: evaluate by a linear solve, update one coordinate, and again.

    Only the changed row of I - gamma P_pi is rebuilt, so that the solve is what is measured.
    """
    step = capo.StepSize()
    log_policy = np.full((mdp.n_states, mdp.n_actions), -np.log(mdp.n_actions))
    policy = np.exp(log_policy)
    transition = mdp.transition
    system = np.eye(mdp.n_states) - mdp.gamma * mdp.policy_transition(policy)
    reward = (policy * mdp.reward).sum(axis=1)
    signs = np.zeros(mdp.n_actions)
    for s, a in pairs:
        values = np.linalg.solve(system, reward)
        advantage = mdp.reward[s, a] + mdp.gamma * transition[s, a] @ values - values[s]
        signs[:] = 0
        signs[a] = np.sign(advantage)
        log_policy[s] = capo.update.coordinate_update(log_policy[s], signs, step.alpha(log_policy[s], signs))
        policy[s] = np.exp(log_policy[s])
        system[s] = -mdp.gamma * policy[s] @ transition[s]
        system[s, s] += 1
        reward[s] = policy[s] @ mdp.reward[s]


def updates(quick: bool) -> list[dict[str, Any]]:
    rows = []
    plan = [(10, "state-major", 20), (100, "state-major", 50), (1000, "state-major", 800), (1000, "permuted", 200)]
    for kind, (n_states, order, aim) in [("garnet", entry) for entry in plan] + [
        ("dense", entry) for entry in plan
    ]:
        mdp = mdps.garnet(n_states, 4, 5, gamma=0.95) if kind == "garnet" else mdps.random(n_states, 4, gamma=0.95)
        plain_count, fast_count = {10: (4000, 400_000), 100: (800, 80_000), 1000: (12, 20_000)}[n_states]
        if quick:
            plain_count, fast_count = max(4, plain_count // 4), fast_count // 4
        pairs = Cyclic(order).source(mdp, np.random.default_rng(0)).take(fast_count)
        log_policy = np.full((n_states, 4), -np.log(4))
        DenseCritic(mdp, log_policy, 1e-12).run(Coordinates(pairs[:9]), LOG, 0)
        plain_times, fast_times = [], []
        for _ in range(3 if quick else 7):
            plain_times.append(seconds(lambda mdp=mdp, few=pairs[:plain_count]: solve_every_update(mdp, few)))
            # The first factorisation is left out on both sides: these are rates of updates.
            critic = DenseCritic(mdp, log_policy, 1e-12)
            coordinates = Coordinates(pairs)
            fast_times.append(seconds(lambda critic=critic, all=coordinates: critic.run(all, LOG, 0)))
        slow_rate, fast_rate = plain_count / median(plain_times), fast_count / median(fast_times)
        rows.append(
            {
                "MDP": kind,
                "states": n_states,
                "order": order,
                "solve every update, updates/s": slow_rate,
                "capo, updates/s": fast_rate,
                "ratio": fast_rate / slow_rate,
                "aim": aim,
            }
        )
        show(rows[-1:], header=len(rows) == 1)
    return rows


# --- a large sparse grid against quantecon's modified policy iteration ---


def grid_once(side: int, turns: int) -> dict[str, Any]:
    """One size, in a process of its own so that its peak memory is its own."""
    import scipy.sparse as sp

    mdp = mdps.slippery_grid(side, gamma=0.99)
    memory_of_mdp = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    small = mdps.slippery_grid(10)
    capo.solve(small, rule="batch", tol=1e-6, critic="signs")  # compiles
    results: dict[str, Any] = {}

    def ours() -> None:
        results["capo"] = capo.solve(mdp, rule="batch", tol=1e-6, critic="signs")

    works: list[Callable[[], Any]] = [ours]
    try:
        from quantecon.markov import DiscreteDP
    except ImportError:
        peer = None
    else:

        def discrete_dp(of: capo.MDP) -> Any:
            states = np.repeat(np.arange(of.n_states), of.n_actions)
            actions = np.tile(np.arange(of.n_actions), of.n_states)
            return DiscreteDP(of.reward.ravel(), sp.csr_matrix(of.rows), of.gamma, states, actions)

        discrete_dp(small).solve(method="modified_policy_iteration", epsilon=1e-6)

        def peer() -> None:
            results["peer"] = discrete_dp(mdp).solve(method="modified_policy_iteration", epsilon=1e-6)

        works.append(peer)
    times = take_turns(works, turns)
    run = results["capo"]
    row = {
        "states": side * side,
        "capo batch, s": times[0],
        "iterations": run.iterations,
        "certified gap": run.gap_bound,
        "quantecon MPI, s": times[1] if peer is not None else None,
        "ratio capo / MPI": times[0] / times[1] if peer is not None else None,
        "largest difference of values": (
            float(np.abs(results["peer"].v - run.values).max()) if peer is not None else None
        ),
        "MDP built, GB": memory_of_mdp,
        "peak memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    return row


def grids(quick: bool) -> list[dict[str, Any]]:
    rows = []
    for side, turns in ((100, 5), (316, 1 if quick else 3)) if quick else ((100, 5), (316, 3), (1000, 1)):
        command = [sys.executable, __file__, "--one-grid", str(side), "--turns", str(turns)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows.append(json.loads(answer))
        show(rows[-1:], header=len(rows) == 1)
    return rows


# --- many seeds, and how time grows ---


def bandit(quick: bool) -> list[dict[str, Any]]:
    iterations = 10_000 if quick else 100_000
    theta = [[0.0, 3.0, 3.0, 0.0]]
    options: dict[str, Any] = {"rule": "on-policy", "stepsize": "on-policy", "theta": theta, "threads": 1}
    capo.solve_many(mdps.bandit(), 2, iterations=100, **options)  # compiles
    run = capo.solve_many(mdps.bandit(), 100, iterations=iterations, record=200, track=(0, 0), **options)
    assert run.tracked is not None
    rows = [
        {
            "seeds": 100,
            "iterations": iterations,
            "seconds": run.seconds,
            "updates/s": run.updates_per_second,
            "seeds with pi(best) > 0.99": int((run.tracked[:, -1] > 0.99).sum()),
        }
    ]
    show(rows)
    return rows


def growth(quick: bool) -> list[dict[str, Any]]:
    sizes = [(10, 4), (30, 4), (100, 4), (300, 4), (1000, 4), (100, 2), (100, 16), (100, 64)]
    rows = []
    for n_states, n_actions in sizes[:4] if quick else sizes:
        mdp = mdps.garnet(n_states, n_actions, 5, gamma=0.95)
        row: dict[str, Any] = {"states": n_states, "actions": n_actions}
        for rule in ("cyclic", "randomized", "batch"):
            capo.solve(mdp, rule=rule, iterations=2)
            runs: list[capo.Result] = []
            [row[f"{rule}, s"]] = take_turns(
                [lambda mdp=mdp, rule=rule, runs=runs: runs.append(capo.solve(mdp, rule=rule, tol=1e-6))],
                1 if quick else 3,
            )
            row[f"{rule}, cycles"] = runs[-1].cycles
        rows.append(row)
        show(rows[-1:], header=len(rows) == 1)
    return rows


# --- the program ---


def show(rows: list[dict[str, Any]], header: bool = True) -> None:
    def cell(value: Any) -> str:
        if value is None:
            return "-"
        return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1e3 else (
            f"{value:,.0f}" if isinstance(value, float) else str(value)
        )  # fmt: skip

    widths = [max(len(key), 10) for key in rows[0]]
    if header:
        print("  ".join(key.rjust(width) for key, width in zip(rows[0], widths, strict=True)))
    for row in rows:
        cells = (cell(value).rjust(width) for value, width in zip(row.values(), widths, strict=True))
        print("  ".join(cells), flush=True)


PARTS: dict[str, tuple[str, Callable[[bool], list[dict[str, Any]]]]] = {
    "updates": (
        "coordinate updates a second, 4 actions, gamma .95; garnet: 5 successors a pair, dense: all",
        updates,
    ),
    "grids": ("slippery grid, gamma .99, to a certified gap of 1e-6", grids),
    "bandit": ("on-policy bandit, many seeds, one thread", bandit),
    "growth": ("seconds and cycles to a certified gap of 1e-6 on Garnet MDPs, branching 5, gamma .95", growth),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer turns")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="folder for tabular.json")
    parser.add_argument("--only", choices=PARTS, help="measure only this part")
    parser.add_argument("--one-grid", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_grid:
        print(json.dumps(grid_once(options.one_grid, options.turns)))
        return
    prepare_folder(options.out)
    report: dict[str, Any] = {"quick": options.quick, "threads": 1, **provenance()}
    for name, (title, measure) in PARTS.items():
        if options.only in (None, name):
            print(f"\n{title}", flush=True)
            report[name] = measure(options.quick)
    print(f"\nwritten to {write_json(options.out / 'tabular.json', report)}")


if __name__ == "__main__":
    main()
