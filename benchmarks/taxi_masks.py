"""Taxi with its action mask and without it: the same algorithm, settings and seeds.

    python benchmarks/taxi_masks.py --out results/masks/taxi.json                           5 seeds, 200,000 frames
    python benchmarks/taxi_masks.py --out results/masks/taxi.json --seeds 2 --frames 60000
    python benchmarks/taxi_masks.py --out results/masks/taxi.json --table                   only print the table

Taxi's mask allows the actions that change the state. Without it, the agent has to learn which those are. Two
numbers per seed: the mean return of all episodes of the second half of training, and of 100 episodes played
afterwards with sampled actions. Each finished case is kept in the file and not run again with the same frames and
seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

TAXI, WITHOUT = "Taxi-v4", "TaxiWithoutMask-v0"
ALGORITHMS = ("ppo", "ncapo")
EPISODES = 100


class WithoutMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment without ``info["action_mask"]``."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._without(info)

    def step(self, action: Any) -> Any:
        *result, info = self.env.step(action)
        return (*result, self._without(info))

    def _without(self, info: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in info.items() if name != "action_mask"}


def run(algorithm: str, masked: bool, frames: int, seeds: int) -> dict[str, Any]:
    """One case: all seeds of an algorithm, with the mask or without it."""
    from capo.neural.algorithms import registry
    from capo.provenance import provenance

    rows: list[dict[str, float]] = []
    agent = registry.find(algorithm).agent(TAXI if masked else WITHOUT, seeds=seeds, log_every=frames // 20)
    assert getattr(agent.env, "masked", False) == masked
    begin = time.perf_counter()
    agent.learn(frames, callback=lambda _, new: rows.extend(new) is None)
    seconds = time.perf_counter() - begin
    curves = {seed: [row for row in rows if row["seed"] == seed] for seed in agent.seeds}
    return {
        "algorithm": algorithm,
        "masked": masked,
        "frames": frames,
        "seeds": list(agent.seeds),
        "late_training": [late(curve) for curve in curves.values()],
        "evaluation": [float(mean) for mean in agent.evaluate(EPISODES).returns.mean(axis=1)],
        "curve_frames": [int(row["frames"]) for row in curves[agent.seeds[0]]],
        "curves": [[row["episode_return"] for row in curve] for curve in curves.values()],
        "seconds": seconds,
        "made_by": provenance(),
    }


def late(curve: list[dict[str, float]]) -> float:
    """The mean return of the episodes of the second half of training."""
    half = [row for row in curve[len(curve) // 2 :] if row["episodes"]]
    weight = np.array([row["episodes"] for row in half])
    return float(np.array([row["episode_return"] for row in half]) @ weight / weight.sum())


def table(cases: list[dict[str, Any]]) -> str:
    """The cases as a table."""
    lines = ["| | mask | frames | seeds | late training | evaluation |", "|---|---|---|---|---|---|"]
    for case in sorted(cases, key=lambda c: (c["algorithm"], c["frames"], not c["masked"])):
        shown = [", ".join(f"{x:.1f}" for x in case[name]) for name in ("late_training", "evaluation")]
        mask = "yes" if case["masked"] else "no"
        lines.append(
            f"| {case['algorithm']} | {mask} | {case['frames']:,} | {len(case['seeds'])} | {' | '.join(shown)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--table", action="store_true", help="only print the table of finished cases")
    args = parser.parse_args()
    gymnasium.register(WITHOUT, lambda: WithoutMask(gymnasium.make(TAXI)))
    cases: list[dict[str, Any]] = json.loads(args.out.read_text()) if args.out.exists() else []
    for algorithm in () if args.table else args.algorithms:
        for masked in (True, False):
            wanted = {
                "algorithm": algorithm,
                "masked": masked,
                "frames": args.frames,
                "seeds": [*range(args.seeds)],
            }
            if any(all(case[name] == value for name, value in wanted.items()) for case in cases):
                continue
            cases.append(run(algorithm, masked, args.frames, args.seeds))
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(cases, indent=1) + "\n")
    print(table(cases))


if __name__ == "__main__":
    main()
