"""``capo evaluate``: play whole episodes with a trained agent, without exploration."""

from __future__ import annotations

import argparse
from pathlib import Path

from capo.commands.common import Subparsers, add_action_rule, add_allow_import, add_command, positive_integer

EXAMPLES = """examples:
  capo evaluate runs/minatar-breakout-ncapo-1
  capo evaluate runs/breakout --episodes 1000 --deterministic
  capo evaluate breakout.safetensors            a file written by agent.save

Actions are chosen by the run's setting `evaluation` (sampled from the policy, or the most likely ones) unless
--sampled or --deterministic is given. There is no epsilon-exploration, so the result is usually better than the
training curve. For a run's folder, it is saved as evaluation.json.
"""


def add_parser(subparsers: Subparsers) -> None:
    option = add_command(
        subparsers,
        "evaluate",
        run,
        opens_runs=True,
        help="evaluate a trained agent",
        description="Play whole episodes with a trained agent, without exploration.",
        epilog=EXAMPLES,
    ).add_argument
    option("agent", metavar="DIR", type=Path, help="a run's folder, or a saved agent")
    option("--episodes", type=positive_integer, default=100, metavar="N", help="episodes per seed (default: 100)")
    add_action_rule(option)
    option("--seed", type=int, default=0, help="seed of the evaluation (default: 0)")
    add_allow_import(option)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print; replace evaluation.json in a run's folder."""
    from capo.neural.algorithms.registry import load

    agent = load(arguments.agent, trust=arguments.allow_import)
    evaluation = agent.evaluate(arguments.episodes, deterministic=arguments.deterministic, seed=arguments.seed)
    print(f"{agent.algorithm} on {agent.env.name} after {evaluation.frames:,} frames: {evaluation}")
    if len(agent.seeds) > 1:
        for seed, mean in zip(evaluation.seeds, evaluation.returns.mean(axis=1), strict=True):
            print(f"  seed {seed}: {mean:.4g}")
    if arguments.agent.is_dir():
        from capo.runs.layout import EVALUATION
        from capo.runs.writer import write_evaluation

        write_evaluation(arguments.agent, evaluation.to_dict())
        print(f"written to {arguments.agent / EVALUATION}")
    return 0
