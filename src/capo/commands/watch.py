"""``capo watch``: a GIF of a trained agent playing, with the score."""

from __future__ import annotations

import argparse
from pathlib import Path

from capo.commands.common import formatter, load_agent, positive_integer

EXAMPLES = """examples:
  capo watch runs/minatar-breakout-ncapo-1 --out play.gif
  capo watch runs/breakout --out best.gif --episodes 3 --deterministic

MinAtar's grids are drawn with a colour for each channel. A Gymnasium environment draws itself if it can
(CartPole needs pygame: pip install 'gymnasium[classic-control]'); otherwise its observation is drawn.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "watch",
        help="see a trained agent play",
        description="Make a GIF of a trained agent playing, with its score.",
        epilog=EXAMPLES,
        formatter_class=formatter,
    )
    parser.add_argument("agent", metavar="DIR", type=Path, help="the folder of a run, or a saved agent")
    parser.add_argument("--out", type=Path, default=Path("play.gif"), metavar="GIF", help="default: play.gif")
    parser.add_argument(
        "--episodes", type=positive_integer, default=1, metavar="N", help="episodes shown (default: 1)"
    )
    parser.add_argument(
        "--steps", type=positive_integer, default=1000, metavar="N", help="steps at most (default: 1000)"
    )
    parser.add_argument("--per-second", type=float, default=15.0, metavar="X", help="steps a second (default: 15)")
    parser.add_argument(
        "--deterministic", action="store_true", help="take the likeliest action instead of sampling"
    )
    parser.add_argument(
        "--train-seed", type=int, metavar="S", help="whose policy plays (default: the first seed's)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the game (default: 0)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Play, draw, write."""
    from capo.neural.play import check_film, film

    check_film(arguments.out, arguments.per_second)
    agent = load_agent(arguments.agent)
    if arguments.train_seed is not None:
        agent.use_seed(arguments.train_seed)
    scores, score, pictures = film(
        agent,
        arguments.out,
        arguments.episodes,
        arguments.steps,
        arguments.deterministic,
        arguments.seed,
        arguments.per_second,
    )
    ended = ", ".join(f"{score:g}" for score in scores) or f"{score:g} so far"
    print(f"{agent.env.name}: {pictures} frames, score {ended}; written to {arguments.out}")
    return 0
