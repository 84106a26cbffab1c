"""``capo train``: train an agent in a folder of its own."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capo.commands.common import finish, formatter, positive_integer
from capo.errors import CapoError, unknown_name

if TYPE_CHECKING:
    from capo.neural.agent import Agent

FRAMES = 1_000_000  # unless told, on environments inside jax
FRAMES_HOST = 200_000  # the same where Gymnasium steps the environment

# Arguments that are options of their own, by the name that one may try to --set.
OPTIONS = {
    **{name: f"--{name}" for name in ("seed", "seeds", "preset", "frames", "out", "keep", "algo")},
    **{
        name: f"--{name.replace('_', '-')}"
        for name in ("checkpoint_every", "log_every", "eval_every", "eval_episodes")
    },
    "algorithm": "--algo",
    "env": "ENV, the first argument",
}

EXAMPLES = """examples:
  capo train minatar-breakout --frames 1000000
  capo train minatar-breakout --preset cpu --seeds 4 --out runs/breakout
  capo train minatar-breakout --algo ppo --preset paper --seeds 10 --frames 1e7
  capo train CartPole-v1 --frames 200000 --seeds 3 --set gamma=0.98 --set width=128
  capo train minatar-asterix --preset paper --checkpoint-every 500000 --keep 2
  capo train CartPole-v1 --frames 100000 --eval-every 10000 --eval-episodes 20

Ctrl-C (or SIGTERM) stops at the next log point with a checkpoint; `capo resume DIR` goes on from there.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "train",
        help="train an agent",
        description="Train an agent in a folder of its own.",
        epilog=EXAMPLES,
        formatter_class=formatter,
    )
    parser.add_argument("env", metavar="ENV", help="minatar-breakout, ... or a Gymnasium id with discrete actions")
    parser.add_argument("--algo", default="ncapo", help="ncapo, offpac, a2c, ppo or rainbow (default: ncapo)")
    parser.add_argument(
        "--preset",
        default="default",
        help="settings: default, paper; ncapo and offpac also have cpu and official (default: default)",
    )
    parser.add_argument(
        "--frames",
        type=positive_integer,
        help=f"environment steps of each seed (default: {FRAMES}; {FRAMES_HOST} on Gymnasium environments, "
        "which are slower)",
    )
    parser.add_argument(
        "--seeds", type=positive_integer, default=1, metavar="K", help="train K seeds (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the first seed (default: 0)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the run's folder (default: runs/ENV-ALGO-N)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting that replaces the preset's; repeatable",
    )
    parser.add_argument(
        "--checkpoint-every", default="60s", metavar="X", help="60s, 5m, or a number of frames (default: 60s)"
    )
    parser.add_argument(
        "--keep", type=positive_integer, default=3, metavar="K", help="checkpoints kept (default: 3)"
    )
    parser.add_argument(
        "--log-every", type=positive_integer, metavar="N", help="frames between two rows of metrics.csv"
    )
    parser.add_argument(
        "--eval-episodes",
        type=int,
        default=100,
        metavar="N",
        help="episodes of an evaluation (default: 100; 0: none)",
    )
    parser.add_argument(
        "--eval-every",
        type=positive_integer,
        metavar="N",
        help="evaluate on the way too, every N frames (default: at the end only)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train, evaluate, draw the curve, say where everything is."""
    if arguments.eval_episodes < 0:
        raise CapoError(f"--eval-episodes {arguments.eval_episodes}: give 0 (no evaluation) or more")
    if arguments.eval_every and not arguments.eval_episodes:
        raise CapoError("--eval-every needs episodes: --eval-episodes 0 is no evaluation at all")
    settings = parse_settings(arguments.set)
    from capo.envs import is_jitted
    from capo.neural.agent import algorithm
    from capo.neural.run import next_folder

    agent_class: type[Agent] = algorithm(arguments.algo)
    check_settings(settings, [field.name for field in dataclasses.fields(agent_class._settings())])
    agent = agent_class(
        arguments.env,
        arguments.preset,
        seed=arguments.seed,
        seeds=arguments.seeds,
        out=arguments.out or next_folder(arguments.env, arguments.algo),
        checkpoint_every=arguments.checkpoint_every,
        keep=arguments.keep,
        log_every=arguments.log_every,
        eval_every=arguments.eval_every,
        eval_episodes=arguments.eval_episodes or 100,
        **settings,
    )
    agent.extra["eval_episodes"] = arguments.eval_episodes  # a resumed run ends in the same way
    print(f"capo: training {arguments.algo} on {arguments.env} in {agent.out}", file=sys.stderr, flush=True)
    return finish(agent, arguments.frames or (FRAMES if is_jitted(agent.env) else FRAMES_HOST))


def check_settings(settings: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Raise where a key of --set is none of the algorithm's settings."""
    for name in settings:
        if name in OPTIONS:
            option = OPTIONS[name]
            raise CapoError(f"--set {name}={settings[name]}: {name} is no setting, give it as {option}")
        if name not in allowed:
            raise unknown_name("setting", name, allowed)


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """``["gamma=0.9"]`` as ``{"gamma": "0.9"}``; the values are read by the settings themselves."""
    settings = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip():
            raise CapoError(f"--set {pair}: has to be KEY=VALUE, such as --set gamma=0.98")
        settings[key.strip()] = value.strip()
    return settings
