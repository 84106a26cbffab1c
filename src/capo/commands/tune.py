"""``capo tune``: search good settings of an algorithm for an environment."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from capo.commands.common import Subparsers, add_command, positive_integer
from capo.commands.train import check_settings, parse_settings
from capo.reading import escaped

if TYPE_CHECKING:
    from capo.sweeps.tuning_folder import Tuning

EXAMPLES = """examples:
  capo tune minatar-breakout --frames 1e6 --trials 64 --out runs/tune
  capo train minatar-breakout --preset runs/tune/preset.toml --seed 100 --seeds 10
  capo tune minatar-breakout --algo ppo --frames 1e6 --out runs/tune-ppo --space space.toml
  capo tune CartPole-v1 --frames 50000 --trials 24 --out runs/tune-cartpole --workers 2
  capo tune minatar-asterix --frames 5e6 --out runs/tune-asterix --on auto --workers 4 --gpus 1
  capo report runs/tune --out tune.html

A space file has a table per setting; without one, the ranges of the settings reference are searched:
  [learning_rate]
  low = 1e-4
  high = 1e-2
  scale = "log"            # or linear, or log-from-one (for discounts)
  [width]
  choices = [64, 128]      # changes a shape: these trials run as a separate program

Repeating the command runs what is missing; a larger --trials adds more. Needs the extra: capo-rl[tune].
"""


def add_parser(subparsers: Subparsers) -> None:
    option = add_command(
        subparsers,
        "tune",
        run,
        help="search for good settings for an environment",
        description="Search for good settings: trials train as one program, the worse half stops early, fresh "
        "seeds confirm the best.",
        epilog=EXAMPLES,
    ).add_argument
    number = positive_integer
    option("env", metavar="ENV", help="the environment, as for capo train")
    option("--algo", default="ncapo", help="one of {algorithms} (default: ncapo)")
    option(
        "--frames",
        type=number,
        required=True,
        metavar="F",
        help="environment steps of a full training run, per seed",
    )
    option(
        "--trials",
        type=number,
        default=32,
        metavar="N",
        help="settings to try, including those of earlier calls (default: 32)",
    )
    option("--out", type=Path, required=True, metavar="DIR", help="the tuning's folder, new or existing")
    option(
        "--space", type=Path, metavar="FILE", help="what to search (default: the ranges of the settings reference)"
    )
    option("--preset", default="default", help="settings to start from, or a preset file (default: default)")
    option(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting for all trials; may be repeated"
    )
    option("--seeds", type=number, default=2, metavar="K", help="seeds per trial (default: 2)")
    option(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="the first training seed, and the seed of the search (default: 0)",
    )
    fresh = "fresh seeds to retrain the best settings and the preset with at the end; 0 for none (default: 5)"
    option("--fresh-seeds", type=int, default=5, metavar="K", help=fresh)
    option(
        "--episodes",
        type=number,
        default=32,
        metavar="N",
        help="evaluation episodes per seed and score (default: 32)",
    )
    halvings = (
        "how many times the worse half of a batch is stopped; 2: after 1/4 and 1/2 of the frames (default: 2)"
    )
    option("--halvings", type=int, default=2, metavar="N", help=halvings)
    together = (
        "trials per batch; on jitted environments they run as one program (default: 16; 8 on Gymnasium "
        "environments)"
    )
    option("--together", type=number, metavar="K", help=together)
    where = "local, auto (this machine's Ray cluster), ray://HOST:PORT or HOST:PORT (default: local)"
    option("--on", default="local", metavar="ENGINE", help=where)
    option("--workers", type=number, metavar="N", help="batches at a time (default: one, in this process)")
    option("--cpus", type=float, default=1.0, metavar="X", help="on Ray: CPUs per batch (default: 1)")
    option(
        "--gpus",
        type=float,
        default=0.0,
        metavar="X",
        help="on Ray: GPUs per batch; a fraction shares one GPU (default: 0)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Search, and print what was found."""
    settings = parse_settings(arguments.set)
    from capo.neural.algorithms.registry import find
    from capo.neural.algorithms.settings import check_value
    from capo.sweeps.tuning import tune

    kind = find(arguments.algo).settings
    check_settings(settings, [field.name for field in dataclasses.fields(kind)])
    try:
        tuning = tune(
            arguments.env,
            arguments.algo,
            frames=arguments.frames,
            out=arguments.out,
            trials=arguments.trials,
            preset=arguments.preset,
            settings={name: check_value(kind, name, value) for name, value in settings.items()},
            space=arguments.space,
            seeds=arguments.seeds,
            seed=arguments.seed,
            fresh_seeds=arguments.fresh_seeds,
            episodes=arguments.episodes,
            halvings=arguments.halvings,
            together=arguments.together,
            workers=arguments.workers,
            on=arguments.on,
            cpus=arguments.cpus,
            gpus=arguments.gpus,
            progress_bar=True,
        )
    except KeyboardInterrupt:
        print("\ncapo: stopped; repeat the same command to continue", file=sys.stderr)
        return 130
    print(escaped("\n".join(summary(tuning))))
    return 0


def summary(tuning: Tuning) -> list[str]:
    """What was found, in a few lines."""
    from capo.report.tuning_page import fresh_scores
    from capo.sweeps.tuning_folder import PRESET, TRIALS, in_words

    asked, best = tuning.asked, tuning.best_trial
    states = [one.state(len(tuning.stages)) for one in tuning.trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    lines = [
        f"tuned {asked['algorithm']} on {asked['env']}: {len(tuning.trials)} trials ({counts})",
        f"best: trial {best.number}, score {best.score:.4g} with {in_words(asked['seeds'])}, used to select it",
        *(f"  {name} = {value}" for name, value in best.settings.items()),
    ]
    if tuning.fresh:
        lines.append(f"retrained with {in_words(asked['fresh_seeds'])}, not used for selection:")
        lines += [f"  {label}: {text}" for label, text in fresh_scores(tuning)]
    files = f"files in {tuning.folder}: {PRESET}, {TRIALS}, study.db (optuna-dashboard opens it)"
    use = f"use it: capo train {asked['env']} --algo {asked['algorithm']} --preset {tuning.preset}"
    return [*lines, files, use, f"plots: capo report {tuning.folder} --out tune.html"]
