"""``capo evaluate``: play whole episodes with a trained agent, without exploration."""

from __future__ import annotations

import argparse
from pathlib import Path

from capo.commands.common import formatter, load_agent, positive_integer

EXAMPLES = """examples:
  capo evaluate runs/minatar-breakout-ncapo-1
  capo evaluate runs/breakout --episodes 1000 --deterministic
  capo evaluate breakout.safetensors            what agent.save wrote

Actions are sampled from the policy unless --deterministic is given; epsilon is off. The training curve has
epsilon in it, so it is usually lower. A run's folder keeps the result in evaluation.json.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "evaluate",
        help="measure a trained agent",
        description="Play whole episodes with a trained agent, without exploration.",
        epilog=EXAMPLES,
        formatter_class=formatter,
    )
    parser.add_argument("agent", metavar="DIR", type=Path, help="the folder of a run, or a saved agent")
    parser.add_argument(
        "--episodes",
        type=positive_integer,
        default=100,
        metavar="N",
        help="episodes of each seed (default: 100)",
    )
    parser.add_argument(
        "--deterministic", action="store_true", help="take the likeliest action instead of sampling"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the evaluation (default: 0)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print; in a run's folder, evaluation.json is replaced."""
    agent = load_agent(arguments.agent)
    evaluation = agent.evaluate(arguments.episodes, deterministic=arguments.deterministic, seed=arguments.seed)
    print(f"{agent.algorithm} on {agent.env.name} after {evaluation.frames:,} frames: {evaluation}")
    if len(agent.seeds) > 1:
        for seed, mean in zip(evaluation.seeds, evaluation.returns.mean(axis=1), strict=True):
            print(f"  seed {seed}: {mean:.4g}")
    if arguments.agent.is_dir():
        from capo.neural.run import EVALUATION, write_evaluation

        write_evaluation(arguments.agent, evaluation)
        print(f"written to {arguments.agent / EVALUATION}")
    return 0
