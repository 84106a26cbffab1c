"""Try many settings of NCAPO side by side: every setting and seed is one "seed" of a single compiled program.

    python benchmarks/tune.py --out results/tuning/NAME.json --games breakout asterix --frames 2.5e6 --seeds 2 \\
        --base batch_size=32,gradient_steps=30 --settings - retrace_lambda=0.8 gamma=0.995,learning_rate=1e-3
    python benchmarks/tune.py --out results/tuning/NAME.json --table     only print the table of finished rows

--base changes a preset for all of them; each of --settings is compared on top of it (``-`` changes nothing). They
may change what the program takes as arguments: learning rate, discount, lambda, epsilon ... (*one program* in
the settings reference). Whatever changes a shape belongs to --base. ``capo tune`` searches by itself; this program
compares settings that somebody chose, on several games.

A row has the mean return of the episodes of training in each quarter of the run, and of 32 whole episodes per
seed after it, with sampled actions and no epsilon (and with the best actions, which the table leaves out). The
table's score is the mean over games of the logarithm of both, against the first setting's: 0.1 is about 10 %
better. Two or three seeds show only big effects: report what you choose on other seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo import envs
from capo.experiments.results import write_result
from capo.neural.algorithms.ncapo import NCAPOAlgorithm, NCAPOConfig
from capo.neural.algorithms.settings import field_kinds, override
from capo.neural.learners.trials import TrialsLearner
from capo.provenance import provenance

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
NUMBERS = [name for name, kind in field_kinds(NCAPOConfig).items() if kind.traced]
EPISODES = 32

Row = dict[str, Any]


def changes(text: str) -> dict[str, str]:
    """``a=1,b=2`` as a dictionary."""
    return dict(pair.split("=", 1) for pair in text.split(",") if pair not in ("", "-"))


def compare(game: str, options: argparse.Namespace) -> list[Row]:
    """All settings on one game."""
    env = envs.make(f"minatar-{game}")
    config = NCAPOConfig.preset(options.preset, env.name)
    config = override(config, {"horizon": str(options.frames)} | changes(options.base))
    settings = [changes(text) for text in options.settings]
    unknown = {name for setting in settings for name in setting} - set(NUMBERS)
    if unknown:
        raise SystemExit(
            f"not a number of the program: {', '.join(sorted(unknown))}; there are {', '.join(NUMBERS)}"
        )

    used = sorted({name for setting in settings for name in setting})
    trials = [{name: float(value) for name, value in setting.items()} for setting in settings]
    for trial in trials:
        override(config, trial)  # checks the values
    chosen = range(options.first_seed, options.first_seed + options.seeds)
    learner = TrialsLearner(NCAPOAlgorithm(config, env), env, used, len(trials) * options.seeds)
    seeds = list(chosen) * len(trials)
    compile_seconds = learner.compile()
    print(f"{game}: compiled in {compile_seconds:.0f} s", file=sys.stderr, flush=True)
    state: Any = learner.start(trials, chosen)
    iterations, quarters, begin = options.frames // learner.frames_per_iteration, [], time.perf_counter()
    for quarter in range(4):
        count = iterations * (quarter + 1) // 4 - iterations * quarter // 4
        state, metrics = learner.run(state, count)
        episodes = metrics["episodes"]
        total = np.nansum(np.nan_to_num(metrics["episode_return"]) * episodes, axis=0)
        quarters.append(total / np.maximum(episodes.sum(axis=0), 1))
        spent = time.perf_counter() - begin
        best = quarters[-1].reshape(len(settings), -1).mean(axis=1).max()
        print(f"{game}: quarter {quarter + 1}, {spent:.0f} s, best {best:.2f}", file=sys.stderr, flush=True)
    keys = jnp.stack([jax.random.PRNGKey(9000 + seed) for seed in seeds])
    returns = learner.evaluate(state.params, keys, EPISODES).mean(axis=1)
    best_actions = learner.evaluate(state.params, keys, EPISODES, deterministic=True).mean(axis=1)

    def row(index: int) -> Row:
        own = slice(index * options.seeds, (index + 1) * options.seeds)
        return {
            "game": game,
            "preset": options.preset,
            "base": options.base,
            "setting": options.settings[index],
            "frames": options.frames,
            "seeds": seeds[own],
            "training_return_by_quarter": [round(float(q[own].mean()), 2) for q in quarters],
            "evaluation_by_seed": [round(float(x), 2) for x in returns[own]],
            "best_actions_by_seed": [round(float(x), 2) for x in best_actions[own]],
        }

    about = {"training_seconds": round(spent, 1), "config": config.to_dict(), "made_by": provenance()}
    return [row(index) | (about if index == 0 else {}) for index in range(len(settings))]


def table(rows: list[Row]) -> str:
    """Settings from best to worst: the score, and in each game the last quarter's return and the evaluation.

    Rows that differ in their seeds alone are put together.
    """
    games = list(dict.fromkeys(row["game"] for row in rows))
    several = len({row["frames"] for row in rows}) > 1
    found: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        frames = f"{row['frames']:,} frames" if several else ""
        base = " ".join(part for part in (row["preset"], row["base"], frames) if part)
        found.setdefault((base, row["setting"]), {}).setdefault(row["game"], []).append(row)
    first = next(iter(found.values()))

    def pair(same: list[Row]) -> tuple[float, float]:
        seeds = [len(row["seeds"]) for row in same]
        training = np.average([row["training_return_by_quarter"][-1] for row in same], weights=seeds)
        return float(training), float(np.mean([x for row in same for x in row["evaluation_by_seed"]]))

    def score(own: dict[str, list[Row]]) -> float:
        logs = [
            math.log(max(mine, 0.01) / max(theirs, 0.01))
            for game in own
            if game in first
            for mine, theirs in zip(pair(own[game]), pair(first[game]), strict=True)
        ]
        return sum(logs) / len(logs) if logs else math.nan

    lines = ["| score | base | setting | " + " | ".join(games) + " |", "|---" * (3 + len(games)) + "|"]
    for (base, setting), own in sorted(found.items(), key=lambda item: -score(item[1])):
        cells = ("{:.1f}, {:.1f}".format(*pair(own[game])) if game in own else "-" for game in games)
        lines.append(f"| {score(own):+.2f} | {base} | {setting} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file; an existing one is completed")
    parser.add_argument("--games", nargs="+", default=GAMES, choices=GAMES)
    parser.add_argument("--preset", default="default", help="preset of NCAPO")
    parser.add_argument("--base", default="", help="changes to the preset for all settings")
    parser.add_argument("--settings", nargs="+", default=["-"], help="changes on top, each compared")
    parser.add_argument("--frames", type=float, default=2.5e6, help="frames per run, and horizon of its schedules")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--table", action="store_true", help="run nothing, only print the table")
    options = parser.parse_args()
    options.frames = int(options.frames)

    def stored() -> list[Row]:
        return json.loads(options.out.read_text())["rows"] if options.out.exists() else []

    settings = options.settings
    for game in () if options.table else options.games:
        wanted = {"game": game, "preset": options.preset, "base": options.base, "frames": options.frames}
        wanted["seeds"] = list(range(options.first_seed, options.first_seed + options.seeds))
        there = [row["setting"] for row in stored() if all(row[key] == value for key, value in wanted.items())]
        options.settings = [setting for setting in settings if setting not in there]
        if options.settings:
            new = compare(game, options)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            write_result(options.out, {"rows": stored() + new})  # as it is now: others may have written meanwhile
    print(table(stored()))


if __name__ == "__main__":
    main()
