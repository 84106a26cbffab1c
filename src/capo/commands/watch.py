"""``capo watch``: a GIF of a trained agent playing."""

from __future__ import annotations

import argparse
from pathlib import Path

from capo.commands.common import Subparsers, add_action_rule, add_allow_import, add_command, positive_integer

EXAMPLES = """examples:
  capo watch runs/minatar-breakout-ncapo-1 --out play.gif
  capo watch runs/breakout --out best.gif --episodes 3 --deterministic

MinAtar's grids are drawn with one colour per channel; Craftax and navix draw themselves. A Gymnasium environment
draws itself if it can (CartPole needs pygame: pip install 'gymnasium[classic-control]'). Otherwise the
observations are drawn.
"""


def add_parser(subparsers: Subparsers) -> None:
    option = add_command(
        subparsers,
        "watch",
        run,
        opens_runs=True,
        help="watch a trained agent play",
        description="Make a GIF of a trained agent playing, with its score.",
        epilog=EXAMPLES,
    ).add_argument
    option("agent", metavar="DIR", type=Path, help="a run's folder, or a saved agent")
    option("--out", type=Path, default=Path("play.gif"), metavar="GIF", help="file to write (default: play.gif)")
    option("--episodes", type=positive_integer, default=1, metavar="N", help="episodes to show (default: 1)")
    option("--steps", type=positive_integer, default=1000, metavar="N", help="stop after N steps (default: 1000)")
    option("--per-second", type=float, default=15.0, metavar="X", help="steps per second (default: 15)")
    add_action_rule(option)
    option("--train-seed", type=int, metavar="S", help="training seed whose policy plays (default: the first)")
    option("--seed", type=int, default=0, help="seed of the environment (default: 0)")
    add_allow_import(option)


def run(arguments: argparse.Namespace) -> int:
    """Play, draw and write the GIF."""
    from capo.neural import film
    from capo.neural.algorithms.registry import load

    film.check_target(arguments.out, arguments.per_second)
    agent = load(arguments.agent, trust=arguments.allow_import)
    if arguments.train_seed is not None:
        agent.use_seed(arguments.train_seed)
    shown = film.record(
        agent,
        arguments.out,
        arguments.episodes,
        arguments.steps,
        agent.takes_best(arguments.deterministic),
        arguments.seed,
        arguments.per_second,
    )
    ended = ", ".join(f"{score:g}" for score in shown.scores) or f"{shown.last_score:g} so far"
    print(f"{agent.env.name}: {shown.frames} frames, score {ended}; written to {arguments.out}")
    return 0
