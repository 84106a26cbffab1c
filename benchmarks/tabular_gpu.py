"""Modified CAPO on the GPUs of this machine: time to a certified gap of 1e-6, and bytes per second of a sweep.

    python benchmarks/tabular_gpu.py [--states N ...] [--bandwidth GB_PER_S] [--out FILE]

Random MDPs with 4 actions and 3 or 5 successors per pair, and slippery grids, gamma .99. The arrays are made on
the host first; ``to device`` is how long it takes to bring them over, ``solve`` begins when they are there. The
bytes of a sweep are those it has to read and write at least once: of every row its successors and probabilities,
the rewards and the values. ``--bandwidth`` is what the memory could do, 4,800 GB/s on an H200; the fraction of it
is reported. 100 million states fit into one H200's memory: ``--states 100000000``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
from tabular_scale import TOL, random_mdp

import capo
from capo import mdps
from capo.files import write_json
from capo.provenance import provenance
from capo.tabular.modified import Rounds, Sweeper
from capo.tabular.modified_device import Device, gpu_devices


def cases(n_states: int) -> list[tuple[str, Any]]:
    return [
        ("grid", lambda: mdps.slippery_grid(round(n_states**0.5), gamma=0.99)),
        ("random, 3 successors", lambda: random_mdp(n_states, 0.99, branching=3)),
        ("random, 5 successors", lambda: random_mdp(n_states, 0.99, branching=5)),
    ]


def solve(mdp: capo.MDP, sweeper: Sweeper) -> tuple[Rounds, float]:
    """To the certified gap; the rounds and the seconds."""
    started = time.perf_counter()
    rounds = Rounds(sweeper, mdp.gamma, None, choose=False)
    while not (rounds.gap_bound <= TOL and rounds.certify() <= TOL):
        rounds.round()
    return rounds, time.perf_counter() - started


def bytes_of(mdp: capo.MDP) -> tuple[int, int]:
    """Of an improvement and of a policy's own sweep, with rows padded to the longest."""
    width = int((mdp.csr().indptr[1:] - mdp.csr().indptr[:-1]).max())
    pairs = mdp.n_states * mdp.n_actions
    return pairs * (width * 12 + 8) + 16 * mdp.n_states, mdp.n_states * (width * 12 + 8) + 16 * mdp.n_states


def rate(work: Any, size: int, times: int) -> float:
    """Bytes per second of the fastest of several calls."""
    best = min(_seconds(work) for _ in range(times))
    return size / best


def _seconds(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(name: str, make: Any, bandwidth: float | None) -> dict[str, Any]:
    mdp = make()
    started = time.perf_counter()
    device = Device(mdp)
    device.wait()
    moved = time.perf_counter() - started
    solve(mdp, device)  # compiles
    fresh = Device(mdp)
    fresh._improve, fresh._sweep, fresh._residuals = device._improve, device._sweep, device._residuals
    del device
    fresh.wait()
    rounds, seconds = solve(mdp, fresh)
    full, own = bytes_of(mdp)
    row: dict[str, Any] = {
        "MDP": name,
        "states": mdp.n_states,
        "to device, s": moved,
        "solve, s": seconds,
        "rounds": rounds.rounds,
        "sweeps": rounds.sweeps,
        "certified gap": rounds.gap_bound,
        "improvement, GB/s": rate(fresh.improve, full, 5) / 1e9,
        "sweep, GB/s": rate(lambda: fresh.sweep(20, -1.0), 20 * own, 5) / 1e9,
    }
    if bandwidth is not None:
        row["improvement, fraction of the memory's limit"] = row["improvement, GB/s"] / bandwidth
        row["sweep, fraction of the memory's limit"] = row["sweep, GB/s"] / bandwidth
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--bandwidth", type=float, help="of the memory, in GB/s")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/tabular_gpu.json"))
    options = parser.parse_args()
    devices = gpu_devices()
    report: dict[str, Any] = {
        "devices": [str(device) for device in devices],
        "jax": jax.__version__,
        **provenance(),
    }
    report["rows"] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for n_states in options.states:
        for name, make in cases(n_states):
            report["rows"].append(measure(name, make, options.bandwidth))
            print(report["rows"][-1], flush=True)
            write_json(options.out, report)


if __name__ == "__main__":
    main()
