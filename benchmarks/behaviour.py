"""NCAPO learning from the actions of others: of a uniformly random policy, and of a fixed mediocre one.

    python benchmarks/behaviour.py                       # all: results/behaviour/*.json and the figure
    python benchmarks/behaviour.py --env CartPole-v1     # one environment
    python benchmarks/behaviour.py --draw                # the figure and the table alone

On each environment there are four trainings of the same length, with the presets' settings and a few seeds:

- ``random``: NCAPO never acts itself; all actions are uniformly random;
- ``mediocre``: NCAPO never acts itself; all actions are those of a fixed PPO agent that was stopped early;
- ``own``: NCAPO as it comes, acting itself;
- ``ppo``: PPO as it comes, which can't learn from others' actions.

All are evaluated without exploration, at the end and during training. A JSON file is written per environment, with
the returns of the two behaviours beside what was learned from them. The table for the docs is printed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import capo
from capo.files import write_json
from capo.provenance import provenance
from capo.report import figures
from capo.runs.layout import FRAMES, RETURN, SCORE, SEED

EPISODES = 100
POINTS = 10  # evaluations during a training
# Frames of the trainings and of the mediocre behaviour, and the presets of NCAPO and PPO.
TASKS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"frames": 40_000, "behaviour_frames": 12_000, "ncapo": "default", "ppo": "default"},
    "FrozenLake-v1,is_slippery=false": {
        "frames": 40_000,
        "behaviour_frames": 10_000,
        "ncapo": "default",
        "ppo": "default",
    },
    "minatar-breakout": {"frames": 500_000, "behaviour_frames": 100_000, "ncapo": "cpu", "ppo": "default"},
}
ARMS = {
    "random": "NCAPO from random actions",
    "mediocre": "NCAPO from the mediocre policy's actions",
    "own": "NCAPO from its own actions",
    "ppo": "PPO from its own actions",
}


def uniform(n_actions: int) -> Any:
    """A behaviour that takes every action with the same probability."""
    return lambda observations: jnp.full((len(observations), n_actions), 1.0 / n_actions)


def train(kind: Any, env: str, preset: str, frames: int, seeds: int, behaviour: Any = None) -> dict[str, Any]:
    """Curves (evaluations during training) and final returns of every seed."""
    agent = kind(env, preset, seeds=seeds, eval_every=frames // POINTS, eval_episodes=20)
    curves: dict[int, list[tuple[int, float]]] = {seed: [] for seed in agent.seeds}
    played: list[tuple[float, float]] = []  # episodes and their mean return during training

    def note(_: Any, rows: list[dict[str, float]]) -> None:
        for row in rows:
            if row["episodes"]:
                played.append((row["episodes"], row[RETURN]))
            if not np.isnan(row.get(SCORE, np.nan)):
                curves[int(row[SEED])].append((int(row[FRAMES]), row[SCORE]))

    begin = time.perf_counter()
    agent.learn(frames, callback=note, behaviour=behaviour)
    final = agent.evaluate(EPISODES)
    agent.close()
    return {
        "algorithm": agent.algorithm,
        "preset": preset,
        "frames": agent.frames,
        "seeds": list(agent.seeds),
        "curves": [[list(point) for point in curve] for curve in curves.values()],
        "returns": [float(mean) for mean in final.returns.mean(axis=1)],
        "return_during_training": float(np.average([mean for _, mean in played], weights=[n for n, _ in played])),
        "config": agent.config.to_dict(),
        "wall_seconds": round(time.perf_counter() - begin, 1),
    }


def measure(env: str, seeds: int, shrink: int, path: Path, keep: bool) -> None:
    """All trainings on one environment; the file is written after each, and with ``keep`` those in it are kept."""
    task = TASKS[env]
    frames, early = task["frames"] // shrink, task["behaviour_frames"] // shrink
    teacher = capo.PPO(env, task["ppo"], seed=1000, horizon=task["frames"]).learn(early)
    n_actions = int(teacher.env.n_actions)
    print(f"{env}: the mediocre behaviour has a return of {teacher.evaluate(EPISODES).mean:.1f}", flush=True)
    acting = {"random": uniform(n_actions), "mediocre": teacher, "own": None, "ppo": None}
    arms = kept(path) if keep and path.exists() else {}
    for name, behaviour in acting.items():
        if name in arms:
            continue
        kind, preset = (capo.PPO, task["ppo"]) if name == "ppo" else (capo.NCAPO, task["ncapo"])
        arms[name] = train(kind, env, preset, frames, seeds, behaviour) | {"made_by": provenance()}
        print(f"{env}: {name}: {np.round(arms[name]['returns'], 1).tolist()}", flush=True)
        returns = {one: arms[one]["return_during_training"] for one in ("random", "mediocre") if one in arms}
        content = {"env": env, "behaviour_frames": early, "behaviour_returns": returns, "episodes": EPISODES}
        write_json(path, {**content, "arms": arms})


def kept(path: Path) -> dict[str, Any]:
    """The trainings in a file; files used to say once for all of them by what they were made."""
    content = json.loads(path.read_text())
    return {name: {"made_by": content.get("made_by")} | arm for name, arm in content["arms"].items()}


def draw(folder: Path) -> None:
    """One panel per environment: curves of the four trainings, dotted lines for the two behaviours."""
    found, picture = finished(folder), folder / "behaviour.png"
    with figures.figure(picture, 1, len(found), size=(4.6 * len(found), 3.9), squeeze=False) as (drawing, axes):
        for axis, one in zip(axes[0], found, strict=True):
            for colour, (name, label) in zip(figures.COLOURS, ARMS.items(), strict=False):
                curves = np.array(one["arms"][name]["curves"])  # (seeds, points, 2)
                axis.plot(curves[0, :, 0], curves[:, :, 1].mean(axis=0), color=colour, label=label)
                if name in one["behaviour_returns"]:
                    axis.axhline(one["behaviour_returns"][name], color=colour, linestyle=":", linewidth=1.2)
            axis.set(title=one["env"], xlabel="frames", ylabel="return without exploration")
            axis.xaxis.set_major_formatter(figures.short_number)
        figures.legend_below(drawing, axes[0], columns=2)
    print(f"wrote {picture}")


def finished(folder: Path) -> list[dict[str, Any]]:
    """The environments of which all trainings are there."""
    read = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [one for one in read if len(one["arms"]) == len(ARMS)]


def table(folder: Path) -> str:
    """The final returns as a table in Markdown: mean over seeds, and the lowest and highest seed."""
    learned = "random actions | NCAPO from them | mediocre policy | NCAPO from it | NCAPO | PPO"
    lines = [f"| environment | frames | {learned} |", "|---" * 8 + "|"]
    for one in finished(folder):
        behaviours = {name: f"{value:.3g}" for name, value in one["behaviour_returns"].items()}
        scores = {}
        for name, arm in one["arms"].items():
            returns = arm["returns"]
            scores[name] = f"{np.mean(returns):.3g} ({min(returns):.3g} to {max(returns):.3g})"
        cells = [f"`{one['env']}`", f"{one['arms']['own']['frames']:,}"]
        for name in ("random", "mediocre"):
            cells += [behaviours[name], scores[name]]
        lines.append(f"| {' | '.join([*cells, scores['own'], scores['ppo']])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=list(TASKS), action="append", help="(default: all)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, default=Path("results/behaviour"), help="folder (default: %(default)s)"
    )
    parser.add_argument("--shrink", type=int, default=1, help="divide all frames by this, for a quick look")
    parser.add_argument("--keep", action="store_true", help="continue: keep the trainings that are in the files")
    parser.add_argument("--draw", action="store_true", help="only draw the figure from the files")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for env in [] if options.draw else options.env or TASKS:
        path = options.out / f"{env.partition(',')[0]}.json"
        measure(env, options.seeds, options.shrink, path, options.keep)
    if finished(options.out):
        draw(options.out)
        print(table(options.out))


if __name__ == "__main__":
    main()
