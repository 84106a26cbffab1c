"""``capo train``: train an agent; everything about the run goes into one folder."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capo.commands.common import Subparsers, add_command, add_log, finish, logging_to, positive_integer
from capo.errors import CapoError, unknown_name

FRAMES = 1_000_000  # by default, on environments inside jax
FRAMES_HOST = 200_000  # by default, on Gymnasium environments

# Options of their own that one may try to --set, and how they are given.
_OWN = "seed seeds preset frames out keep algo checkpoint-every log-every eval-every eval-episodes"
OPTIONS = {name.replace("-", "_"): f"--{name}" for name in _OWN.split()}
OPTIONS |= {"algorithm": "--algo", "env": "ENV, the first argument"}

EXAMPLES = """examples:
  capo train minatar-breakout --frames 1000000
  capo train minatar-breakout --preset cpu --seeds 4 --out runs/breakout
  capo train minatar-breakout --algo ppo --preset paper --seeds 10 --frames 1e7
  capo train CartPole-v1 --frames 200000 --seeds 3 --set gamma=0.98 --set width=128
  capo train minatar-asterix --preset paper --checkpoint-every 500000 --keep 2
  capo train CartPole-v1 --frames 100000 --eval-every 10000 --eval-episodes 20
  capo train minatar-breakout --preset runs/tune/preset.toml

Ctrl-C, SIGTERM or SIGHUP writes a checkpoint at the next log point and stops; 'capo resume DIR' continues.
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "train",
        run,
        help="train an agent",
        description="Train an agent. Settings, logs, checkpoints and the evaluation go into one folder.",
        epilog=EXAMPLES,
    )
    parser.set_defaults(ends_at_once=True)  # a signal outside of training: all that counts is on the disk
    option = parser.add_argument
    envs = "minatar-breakout, gymnax:CartPole-v1, a Gymnasium id, ...; 'capo envs' lists them"
    frames = f"(default: {FRAMES}; {FRAMES_HOST} on Gymnasium environments, which are slower)"
    start = "settings to start from, or a preset file (.toml) such as `capo tune` writes"
    interval = "how often to checkpoint: 60s, 5m, 1h, or a number of frames (default: 60s)"
    number = positive_integer
    option("env", metavar="ENV", help=envs)
    option("--algo", default="ncapo", help="one of {algorithms} (default: ncapo)")
    option("--preset", default="default", help=f"{start} (default: default); {{presets}}")
    option("--frames", type=number, help=f"environment steps per seed {frames}")
    option("--seeds", type=number, default=1, metavar="K", help="number of seeds to train (default: 1)")
    option("--seed", type=int, default=0, metavar="S", help="the first seed (default: 0)")
    option("--out", type=Path, metavar="DIR", help="the run's folder (default: runs/ENV-ALGO-N)")
    changed = "override a setting of the preset; may be repeated"
    option("--set", action="append", default=[], metavar="KEY=VALUE", help=changed)
    option("--checkpoint-every", default="60s", metavar="X", help=interval)
    option("--keep", type=number, default=3, metavar="K", help="how many checkpoints to keep (default: 3)")
    option("--log-every", type=number, metavar="N", help="frames between rows of metrics.csv")
    episodes = "episodes per evaluation; 0 for no evaluation (default: 100)"
    option("--eval-episodes", type=int, default=100, metavar="N", help=episodes)
    during = "also evaluate during training, every N frames (default: only at the end)"
    option("--eval-every", type=number, metavar="N", help=during)
    add_log(option)


def run(arguments: argparse.Namespace) -> int:
    """Train, evaluate, draw the curve, and print where everything is."""
    if arguments.eval_episodes < 0:
        raise CapoError(f"--eval-episodes {arguments.eval_episodes} must be 0 (no evaluation) or more")
    if arguments.eval_every and not arguments.eval_episodes:
        raise CapoError("--eval-every needs episodes, but --eval-episodes is 0: remove one of the two")
    settings = parse_settings(arguments.set)
    from capo.envs import is_jitted
    from capo.neural.algorithms.registry import find
    from capo.runs.layout import next_folder

    row = find(arguments.algo)
    check_settings(settings, [field.name for field in dataclasses.fields(row.settings)])
    agent = row.agent(
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
    if arguments.eval_episodes:
        agent.check_episodes(arguments.eval_episodes)  # now, not after the training
    agent.extra["eval_episodes"] = arguments.eval_episodes  # so that a resumed run ends in the same way
    print(f"capo: training {arguments.algo} on {arguments.env} in {agent.out}", file=sys.stderr, flush=True)
    frames = arguments.frames or (FRAMES if is_jitted(agent.env) else FRAMES_HOST)
    with logging_to(arguments.log, agent) as callback:
        return finish(agent, frames, callback=callback)


def check_settings(settings: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Raise if a key of --set is not a setting of the algorithm."""
    for name in settings:
        if name in OPTIONS:
            option = OPTIONS[name]
            raise CapoError(f"--set {name}={settings[name]}: {name} is not a setting; give it as {option}")
        if name not in allowed:
            raise unknown_name("setting", name, allowed)


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """``["gamma=0.9"]`` as ``{"gamma": "0.9"}``; the settings parse the values."""
    settings = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip():
            raise CapoError(f"--set {pair} must be KEY=VALUE, such as --set gamma=0.98")
        settings[key.strip()] = value.strip()
    return settings
