"""Modified CAPO on a GPU: seconds to a certified gap of 1e-6, and the share of the memory's bandwidth of a sweep.

    python benchmarks/tabular_gpu.py [--states N ...] [--seconds LIMIT] [--out FILE]

Random MDPs with 4 actions and 3 or 5 successors per pair, and slippery grids of 4 actions, gamma .99, in float64.
The MDPs are made on the device. ``solve`` begins when the arrays are there and everything is compiled. Nothing is
started after the time limit; every row is printed and written when it is there.

Two ceilings are measured in the same run: that of a copy, and how many numbers at random places of a vector
as long as V the memory delivers. ``at least`` counts the bytes that a sweep cannot do without: of every row
its successors and probabilities, the rewards, V once, and what it writes. Where V does not fit the cache a
random successor costs 32 bytes, the least that the memory hands over, rather than 8: ``moved`` counts those,
for random MDPs.

First, at ``--check`` states, what the device solves is brought to the host: the certified gap is computed again
with outward rounding from a :class:`capo.MDP`, and V is compared with a solve on the CPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import capo
from capo import mdps
from capo.files import write_json
from capo.provenance import provenance
from capo.tabular.modified import Rounds, Sharp
from capo.tabular.modified_device import Device, Padded, Problem
from capo.tabular.proof import prove

TOL, GAMMA, ACTIONS, SECTOR = 1e-6, 0.99, 4, 32
SLIP = 0.2
TURNS = 5


# --- MDPs on the device ---


def random_problem(n_states: int, branching: int, seed: int = 0) -> Problem:
    """Each pair leads to random states with random probabilities; rewards uniform in [0, 1)."""

    @jax.jit
    def make() -> Problem:
        keys = jax.random.split(jax.random.key(seed), 3)

        def slices(draw: Callable[[Any], Any], key: Any) -> Any:
            """(A, K, n), one (n,) at a time: what drawing needs beside them stays small."""
            drawn = jax.lax.map(draw, jax.random.split(key, ACTIONS * branching))
            return drawn.reshape(ACTIONS, branching, n_states)

        successors = slices(lambda key: jax.random.randint(key, n_states, 0, n_states, np.int32), keys[0])
        weights = slices(lambda key: jax.random.uniform(key, n_states, np.float64), keys[1])
        reward = jax.random.uniform(keys[2], (ACTIONS, n_states), np.float64)
        return Problem(Padded(successors, weights / weights.sum(axis=1, keepdims=True)), reward)

    return make()


def grid_problem(n_states: int) -> Problem:
    """The MDP of :func:`capo.mdps.slippery_grid`."""
    size = round(n_states**0.5)

    @jax.jit
    def make() -> Problem:
        state = jnp.arange(size * size, dtype=np.int32)
        row, column = state // size, state % size
        to = lambda r, c: jnp.clip(row + r, 0, size - 1) * size + jnp.clip(column + c, 0, size - 1)
        terminal = state == size * size - 1
        up, left, right, down = to(-1, 0), to(0, -1), to(0, 1), to(1, 0)
        led = [(up, left, right), (left, up, down), (right, up, down), (down, left, right)]
        successors = jnp.where(terminal, state, jnp.stack([jnp.stack(ways) for ways in led]))
        chances = jnp.array([1 - SLIP, SLIP / 2, SLIP / 2])[None, :, None]
        probabilities = jnp.broadcast_to(chances, successors.shape) + 0.0
        reward = jnp.broadcast_to(jnp.where(terminal, 0.0, -1.0), (4, size * size)) + 0.0
        return Problem(Padded(successors, probabilities), reward, terminal=terminal)

    return make()


CASES: dict[str, Callable[[int], Problem]] = {
    "random, 5 successors": partial(random_problem, branching=5),
    "random, 3 successors": partial(random_problem, branching=3),
    "grid": grid_problem,
}


def on_host(problem: Problem) -> capo.MDP:
    """The same MDP on the host."""
    successors, probabilities = (np.asarray(part).transpose(2, 0, 1) for part in problem.transitions)
    n_states, n_actions, width = successors.shape
    ends = np.arange(0, successors.size + 1, width)
    shape = (n_states * n_actions, n_states)
    rows = sp.csr_array((probabilities.ravel(), successors.ravel(), ends), shape=shape)
    terminal = None if problem.terminal is None else np.flatnonzero(problem.terminal)
    return capo.MDP(rows, np.asarray(problem.reward).T, GAMMA, terminal=terminal)


# --- measuring ---


def fastest(work: Callable[[], Any], turns: int = TURNS) -> float:
    """Seconds of the fastest of several calls; the first compiles and does not count."""
    work()
    best = np.inf
    for _ in range(turns):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return float(best)


def copy_ceiling(n_bytes: int) -> float:
    """Bytes per second of reading one array and writing another, the best of three ways."""
    rates = []
    for kind, work in ((np.float64, jnp.negative), (np.float32, jnp.negative), (np.float32, jnp.copy)):
        source, compiled = jnp.zeros(n_bytes // np.dtype(kind).itemsize, kind), jax.jit(work)
        rates.append(2 * source.nbytes / fastest(lambda work=compiled, x=source: work(x).block_until_ready()))
    return max(rates)


def random_ceiling(n_values: int, n_numbers: int) -> float:
    """Numbers per second from random places of a vector, added up."""
    places = jax.random.randint(jax.random.key(1), n_numbers, 0, n_values, np.int32)
    values = jnp.zeros(n_values)
    add = jax.jit(lambda places, values: values.at[places].get(mode="promise_in_bounds").sum())
    return n_numbers / fastest(lambda: add(places, values).block_until_ready())


def solve(device: Device) -> tuple[Rounds, float]:
    """From the first policy to the certified gap; the rounds and the seconds."""
    device.wait()
    started = time.perf_counter()
    rounds = Rounds(device, GAMMA, None, choose=False)
    while not (rounds.gap_bound <= TOL and rounds.certify() <= TOL):
        rounds.round()
    return rounds, time.perf_counter() - started


def measure(name: str, n_states: int, copy: float, gpu: Any) -> dict[str, Any]:
    """One row."""
    started = time.perf_counter()
    problem = jax.block_until_ready(CASES[name](n_states))
    made = time.perf_counter() - started
    actions, width, n_states = problem.transitions.successors.shape
    device = Device(problem, GAMMA, n_states, [gpu])
    solve(device)  # compiles
    device.restart()
    rounds, seconds = solve(device)
    improvement = fastest(device.improve)
    sweep = (fastest(lambda: device.sweep(41, -1.0)) - fastest(lambda: device.sweep(1, -1.0))) / 40
    pairs = n_states * actions
    row: dict[str, Any] = {
        "MDP": name,
        "states": n_states,
        "made on the device, s": made,
        "solve, s": seconds,
        "rounds": rounds.rounds,
        "sweeps": rounds.sweeps,
        "certified gap": rounds.gap_bound,
        "improvement, ms": improvement * 1e3,
        "sweep, ms": sweep * 1e3,
        "bytes of the MDP": sum(part.nbytes for part in jax.tree.leaves(problem)),
    }
    # What is read and written at least: rows, rewards, V, the actions before; T V, the actions after.
    sizes = {"improvement": pairs * (12 * width + 8) + 24 * n_states, "sweep": n_states * (12 * width + 24)}
    for what, (spent, entries) in {
        "improvement": (improvement, pairs * width),
        "sweep": (sweep, n_states * width),
    }.items():
        row[f"{what}, at least, share of the copy's bandwidth"] = sizes[what] / spent / copy
        if name != "grid":
            moved = sizes[what] + SECTOR * entries
            row[f"{what}, moved, share of the copy's bandwidth"] = moved / spent / copy
            row[f"{what}, successors per second"] = entries / spent
    if name != "grid":
        row["random numbers per second"] = random_ceiling(n_states, min(n_states * width, 10**8))
    row["peak memory, GB"] = (gpu.memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30
    return row


def check(name: str, n_states: int, gpu: Any) -> dict[str, Any]:
    """The same certificate on the host, and the same solution by the CPU's sweeps."""
    problem = CASES[name](n_states)
    device = Device(problem, GAMMA, problem.reward.shape[1], [gpu])
    rounds, _ = solve(device)
    mdp = on_host(problem)
    proof = prove(mdp, np.exp(device.log_policy), rounds.values)
    started = time.perf_counter()
    on_cpu = Rounds(Sharp(mdp), GAMMA, None, choose=True)
    while not (on_cpu.gap_bound <= TOL and on_cpu.certify() <= TOL):
        on_cpu.round()
    row = {
        "MDP": name,
        "states": mdp.n_states,
        "certified gap": rounds.gap_bound,
        "the same, on the host, rounded outward": proof.gap_bound,
        "largest difference of V to the CPU's": float(np.abs(on_cpu.values - rounds.values).max()),
        "CPU, one thread, s": time.perf_counter() - started,
    }
    if name == "grid":
        same = mdps.slippery_grid(round(n_states**0.5), slip=SLIP, gamma=GAMMA)
        row["the same MDP as capo.mdps.slippery_grid"] = bool(
            abs(same.csr() - mdp.csr()).max() == 0 and (same.reward == mdp.reward).all()
        )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, nargs="+", default=[10_000_000, 100_000_000, 1_000_000])
    parser.add_argument("--mdps", nargs="+", choices=CASES, default=list(CASES), help="only these")
    parser.add_argument("--check", type=int, default=100_000, help="states at which the host checks")
    parser.add_argument("--seconds", type=float, default=600.0, help="nothing more is started after these")
    parser.add_argument("--copy", type=int, default=4 * 10**9, help="bytes copied to measure the ceiling")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/tabular_gpu.json"))
    options = parser.parse_args()
    started = time.perf_counter()
    jax.config.update("jax_enable_x64", True)
    device = jax.devices()[0]
    copy = copy_ceiling(options.copy)
    report: dict[str, Any] = {"tol": TOL, "gamma": GAMMA, **provenance(), "copy, GB/s": copy / 1e9}
    report |= {"checks": [], "rows": []}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{device.device_kind}, jax {jax.__version__}, copy {copy / 1e9:,.0f} GB/s", flush=True)
    plan: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("checks", partial(check, name, options.check, device)) for name in options.mdps
    ]
    for n_states in options.states:
        plan += [("rows", partial(measure, name, n_states, copy, device)) for name in options.mdps]
    for part, work in plan:
        if time.perf_counter() - started > options.seconds:
            print("out of time", flush=True)
            break
        row = work()
        report[part].append(row)
        print(f"{time.perf_counter() - started:.1f} s", row, flush=True)
        write_json(options.out, report)


if __name__ == "__main__":
    main()
