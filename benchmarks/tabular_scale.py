"""Modified CAPO on large sparse MDPs beside its peers: quantecon's modified policy iteration, mdpsolver, MDPax.

    python benchmarks/tabular_scale.py [--quick] [--huge] [--out FILE]
    python benchmarks/tabular_scale.py --draw [--out FILE]     # the chart, from the file

Every row is a process of its own, so that its peak memory is its own. Peers and capo take turns. On a busy
machine seconds on the clock say little, so the seconds of the processor are recorded too, and the ratio for one
thread is theirs; the ratio for two threads is that of the clock, with the machine's load beside it. Conversions
that a peer needs from the MDP's arrays are part of its time for quantecon, whose object is made from the same
arrays, and not for mdpsolver, which takes Python lists. mdpsolver keeps what it solved: it gets a new model for
every turn.

MDPax is made for GPUs; here it runs on the CPU, compiled, with its arrays made beforehand. It needs ``pip
install --no-deps mdpax``, which leaves its CUDA packages out, and chex, hydra-core, jaxtyping, loguru, numpyro
and orbax-checkpoint.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is loaded

import argparse
import importlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp

import capo
from capo import mdps
from capo.files import write_json
from capo.provenance import provenance
from capo.tabular.proof import prove

TOL = 1e-6
# kind, states, gamma, turns; the exact batch and mdpsolver where they take seconds rather than minutes
FULL = [
    ("grid", 10_000, 0.99, 9),
    ("grid", 100_000, 0.99, 5),
    ("random", 10_000, 0.99, 9),
    ("random", 100_000, 0.99, 5),
    ("random", 1_000_000, 0.99, 2),
    ("grid", 1_000_000, 0.99, 1),
    ("grid", 100_000, 0.95, 3),
    ("grid", 100_000, 0.999, 3),
    ("random", 100_000, 0.95, 5),
    ("random", 100_000, 0.999, 5),
    ("random", 100_000, 0.9999, 3),
]
HUGE = [("random", 10_000_000, 0.99, 1)]  # takes about 10 GB, most of it to build the MDP
EXACT_UP_TO = 100_000
LISTS_UP_TO = {"grid": 10_000, "random": 100_000}  # on grids mdpsolver takes minutes beyond
MDPAX_UP_TO = {"grid": 10_000, "random": 100_000}
PEER_UP_TO = 1_000_000


def random_mdp(n_states: int, gamma: float, n_actions: int = 4, branching: int = 5, seed: int = 0) -> capo.MDP:
    """Each pair leads to 5 random states with random probabilities; rewards uniform in [0, 1)."""
    rng, pairs = np.random.default_rng(seed), n_states * n_actions
    targets = rng.integers(0, n_states, (pairs, branching), dtype=np.int32)
    weights = rng.random((pairs, branching))
    weights /= weights.sum(axis=1, keepdims=True)
    ends = np.arange(0, pairs * branching + 1, branching)
    rows = sp.csr_array((weights.ravel(), targets.ravel(), ends), shape=(pairs, n_states))
    del weights, targets
    return capo.MDP(rows, rng.random((n_states, n_actions)), gamma)


def make(kind: str, n_states: int, gamma: float) -> capo.MDP:
    return mdps.slippery_grid(round(n_states**0.5), gamma=gamma) if kind == "grid" else random_mdp(n_states, gamma)


# --- peers ---


def quantecon_solver(mdp: capo.MDP) -> Callable[[], Any]:
    from quantecon.markov import DiscreteDP

    states = np.repeat(np.arange(mdp.n_states), mdp.n_actions)
    actions = np.tile(np.arange(mdp.n_actions), mdp.n_states)

    def solve() -> Any:
        problem = DiscreteDP(mdp.reward.ravel(), sp.csr_matrix(mdp.rows), mdp.gamma, states, actions)
        # Its limit of 250 iterations is too low for some of these.
        return problem.solve(method="modified_policy_iteration", epsilon=TOL, max_iter=10**6).v

    return solve


def mdpsolver_solver(mdp: capo.MDP) -> Callable[[], Callable[[], Any]]:
    """What makes a new model that is ready to be solved."""
    import mdpsolver

    rows = mdp.csr()
    starts = rows.indptr[:-1].reshape(mdp.n_states, mdp.n_actions).tolist()
    ends = rows.indptr[1:].reshape(mdp.n_states, mdp.n_actions).tolist()
    data, indices = rows.data.tolist(), rows.indices.tolist()
    both = [list(zip(*pair, strict=True)) for pair in zip(starts, ends, strict=True)]
    probabilities = [[data[a:b] for a, b in pairs] for pairs in both]
    columns = [[indices[a:b] for a, b in pairs] for pairs in both]
    rewards = mdp.reward.tolist()

    def new() -> Callable[[], Any]:
        model = mdpsolver.model()
        model.mdp(discount=mdp.gamma, rewards=rewards, tranMatProbs=probabilities, tranMatColumns=columns)

        def solve() -> Any:
            model.solve(algorithm="mpi", tolerance=TOL, parallel=False)
            return np.array(model.getValueVector())

        return solve

    return new


def mdpax_solver(mdp: capo.MDP) -> Callable[[], Any]:
    """MDPax's value iteration in float64, compiled; transitions are functions there, here they look up arrays."""
    import jax
    import jax.numpy as jnp
    from loguru import logger
    from mdpax.core.problem import Problem
    from mdpax.solvers.value_iteration import ValueIteration

    logger.remove()
    jax.config.update("jax_enable_x64", True)
    shape, rows = (mdp.n_states, mdp.n_actions), mdp.csr()
    length = np.diff(rows.indptr)
    row, place = np.repeat(np.arange(len(length)), length), np.arange(rows.nnz)
    successors, probabilities = np.zeros((2, len(length), length.max()))
    successors[row, place - rows.indptr[row]] = rows.indices
    probabilities[row, place - rows.indptr[row]] = rows.data
    to = jnp.asarray(successors.reshape(*shape, -1), jnp.int32)
    chance, reward = jnp.asarray(probabilities.reshape(*shape, -1)), jnp.asarray(mdp.reward)

    class Arrays(Problem):
        name = "arrays"

        def _construct_state_space(self) -> Any:
            return jnp.arange(mdp.n_states, dtype=jnp.int32)

        def _construct_action_space(self) -> Any:
            return jnp.arange(mdp.n_actions, dtype=jnp.int32)

        def _construct_random_event_space(self) -> Any:
            return jnp.arange(to.shape[2], dtype=jnp.int32)

        def state_to_index(self, state: Any) -> Any:
            return state[0]

        def random_event_probability(self, state: Any, action: Any, event: Any) -> Any:
            return chance[state[0], action[0], event[0]]

        def transition(self, state: Any, action: Any, event: Any) -> Any:
            return to[state[0], action[0], event[0]][None], reward[state[0], action[0]]

    solver = ValueIteration(Arrays(), gamma=mdp.gamma, epsilon=TOL, max_batch_size=mdp.n_states, verbose=0)
    solver.solve(max_iterations=1)  # compiles

    def solve() -> Any:
        solver.values, solver.iteration = jnp.zeros(mdp.n_states), 0
        solver.solve(max_iterations=10**6)
        return np.asarray(solver.policy)[:, 0]

    return solve


def importable(package: str) -> bool:
    """Whether a peer is there; if not, it is left out."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        print(f"without {package}: {error}", file=sys.stderr)
        return False
    return True


def ours(mdp: capo.MDP, threads: int) -> Callable[[], Any]:
    return lambda: capo.solve(mdp, critic="k-step", tol=TOL, threads=threads, device="cpu")


def measure(kind: str, n_states: int, gamma: float, turns: int) -> dict[str, Any]:
    """One row."""
    small, mdp = make(kind, 400, gamma), make(kind, n_states, gamma)
    built = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    first = clocked(ours(small, 1))[0]  # loads the compiled kernels, or compiles them
    works = {"capo, 1 thread": ours(mdp, 1), "capo, 2 threads": ours(mdp, 2)}
    ours(small, 2)()
    if n_states <= PEER_UP_TO and importable("quantecon"):
        quantecon_solver(small)()
        works["quantecon"] = quantecon_solver(mdp)
    if n_states <= LISTS_UP_TO[kind] and importable("mdpsolver"):
        works["mdpsolver"] = mdpsolver_solver(mdp)
    if n_states <= MDPAX_UP_TO[kind] and gamma == 0.99 and importable("mdpax"):
        works["MDPax"] = mdpax_solver(mdp)
    if n_states <= EXACT_UP_TO and gamma == 0.99:
        capo.solve(small, rule="batch", critic="signs", iterations=2)
        works["capo, exact batch"] = lambda: capo.solve(mdp, rule="batch", critic="signs", tol=TOL)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    results: dict[str, Any] = {}
    for turn in range(turns):
        for name, work in works.items():
            if turn == 0 or name not in ("mdpsolver", "MDPax", "capo, exact batch"):  # slow: once
                *spent, results[name] = clocked(work() if name == "mdpsolver" else work)
                times[name].append((spent[0], spent[1]))
    run = results["capo, 1 thread"]
    row: dict[str, Any] = {"MDP": kind, "states": mdp.n_states, "gamma": gamma, "turns": turns}
    for name, pairs in times.items():
        row[f"{name}, s"] = median(pair[0] for pair in pairs)
        row[f"{name}, processor s"] = median(pair[1] for pair in pairs)
    if "quantecon" in works:
        row["ratio to quantecon, 1 thread"] = row["capo, 1 thread, processor s"] / row["quantecon, processor s"]
        row["ratio to quantecon, 2 threads, by the clock"] = row["capo, 2 threads, s"] / row["quantecon, s"]
        row["ratio to quantecon, 2 threads, half the processor s"] = (
            row["capo, 2 threads, processor s"] / 2 / row["quantecon, processor s"]
        )
        row["largest difference of values"] = float(np.abs(results["quantecon"] - run.values).max())
    if "MDPax" in results:
        chosen = np.zeros(mdp.reward.shape)
        np.put_along_axis(chosen, results["MDPax"][:, None], 1.0, axis=1)
        row["MDPax, proven gap of its policy"] = prove(mdp, chosen, run.values).gap_bound
    row |= {
        "rounds": run.iterations,
        "sweeps": run.settings["sweeps"],
        "certified gap": run.gap_bound,
        "first small solve in this process, s": first,
        "MDP built, GB": built,
        "peak memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "load of the machine": os.getloadavg()[0],
        "processors": os.cpu_count(),
    }
    return row


def clocked(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds on the clock and of the processor, and what came out."""
    started, spent = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - started, time.process_time() - spent, result


def first_calls() -> dict[str, dict[str, dict[str, float]]]:
    """``capo solve`` in a new process, with nothing compiled yet and with all compiled: clock and processor."""
    found = {}
    for name, options in {"chain:10": [], "slippery:72": ["--tol", "1e-6"]}.items():
        command = [sys.executable, "-m", "capo", "solve", name, *options]
        fresh, again = [], []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as cache:
                spent = [_spent(command, os.environ | {"NUMBA_CACHE_DIR": cache}) for _ in range(3)]
            fresh, again = [*fresh, spent[0]], [*again, *spent[1:]]
        found[name] = {
            what: {"s": median(one[0] for one in runs), "processor s": median(one[1] for one in runs)}
            for what, runs in {"nothing compiled yet": fresh, "compiled": again}.items()
        }
    return found


def _spent(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=env, capture_output=True, check=True)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# --- the program ---


def draw(path: Path) -> Path:
    """A chart of processor seconds against states, from the file that a run wrote."""
    from matplotlib.figure import Figure

    rows = json.loads(path.read_text())["rows"]
    names = ["capo, 1 thread", "quantecon", "mdpsolver", "MDPax", "capo, exact batch"]
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (kind, title) in zip(
        axes, (("grid", "slippery grid"), ("random", "random, 5 successors")), strict=True
    ):
        chosen = sorted((r for r in rows if r["MDP"] == kind and r["gamma"] == 0.99), key=lambda r: r["states"])
        for name, marker in zip(names, "osdv^", strict=True):
            points = [(r["states"], r[f"{name}, processor s"]) for r in chosen if f"{name}, processor s" in r]
            if points:
                label = "modified CAPO" if name == "capo, 1 thread" else name
                ax.loglog(*zip(*points, strict=True), marker=marker, label=label)
        ax.set(title=f"{title}, gamma .99, gap 1e-6", xlabel="states")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("seconds of one processor")
    axes[0].legend()
    target = path.with_suffix(".png")
    figure.savefig(target, dpi=110)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--huge", action="store_true", help="ten million states as well")
    parser.add_argument("--quick", action="store_true", help="up to 100,000 states, one turn")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/tabular_scale.json"))
    parser.add_argument("--draw", action="store_true", help="only draw the chart, from the file")
    parser.add_argument("--first", action="store_true", help="only measure the first calls again, into the file")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        kind, n_states, gamma, turns = options.row.split(",")
        print(json.dumps(measure(kind, int(n_states), float(gamma), int(turns))))
        return
    if options.first:
        kept = json.loads(options.out.read_text())
        write_json(options.out, kept | {"first calls": first_calls()})
        return
    if not options.draw:
        plan = [(*row[:3], 1) for row in FULL if row[1] <= 100_000] if options.quick else FULL
        plan = plan + (HUGE if options.huge else [])
        report: dict[str, Any] = {"quick": options.quick, "tol": TOL, **provenance(), "rows": []}
        report["first calls"] = first_calls()
        options.out.parent.mkdir(parents=True, exist_ok=True)
        for row in plan:
            command = [sys.executable, __file__, "--row", ",".join(map(str, row))]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode:
                print(ran.stderr, file=sys.stderr)
                report["rows"].append(
                    {"MDP": row[0], "states": row[1], "gamma": row[2], "failed": ran.stderr[-300:]}
                )
            else:
                report["rows"].append(json.loads(ran.stdout))
            print(json.dumps(report["rows"][-1]), flush=True)
            write_json(options.out, report)
    print(f"written to {options.out} and {draw(options.out)}")


if __name__ == "__main__":
    main()
