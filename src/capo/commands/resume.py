"""``capo resume``: continue a run that was stopped or killed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capo.commands.common import (
    Subparsers,
    add_allow_import,
    add_command,
    add_log,
    finish,
    logging_to,
    positive_integer,
)
from capo.errors import CapoError
from capo.provenance import provenance
from capo.reading import escaped

if TYPE_CHECKING:
    from capo.neural.agent import Agent

EXAMPLES = """examples:
  capo resume runs/minatar-breakout-ncapo-1
  capo resume runs/breakout --use-previous      if the newest checkpoint is damaged
  capo resume runs/breakout --frames 3e6        train longer than planned, even after the end
  capo resume runs/old --anyway                 a run from a version of capo with different results

On jitted environments (MinAtar) the result is bit-for-bit that of an uninterrupted run. The state of a
Gymnasium environment cannot be saved: unfinished episodes are lost and new ones start.
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "resume",
        run,
        opens_runs=True,
        help="continue a run",
        description="Continue a run that was stopped or killed, as if it had never stopped.",
        epilog=EXAMPLES,
    )
    parser.set_defaults(ends_at_once=True)  # a signal outside of training: all that counts is on the disk
    option = parser.add_argument
    option("run_folder", metavar="DIR", type=Path, help="the run's folder")
    older = "if the newest checkpoint is damaged, resume from the newest intact one"
    option("--use-previous", action="store_true", help=older)
    longer = (
        "train to N frames in total, with the schedules spread over them (default: as planned when the run "
        "started)"
    )
    option("--frames", type=positive_integer, metavar="N", help=longer)
    different = "continue a run from a version of capo whose results differ from this version's"
    option("--anyway", action="store_true", help=different)
    add_log(option)
    add_allow_import(option)


def run(arguments: argparse.Namespace) -> int:
    """Load the newest checkpoint and finish what is left of the run."""
    from capo.neural.algorithms.registry import find
    from capo.runs.reader import read_config

    config = read_config(arguments.run_folder)
    kind = find(str(config["algorithm"])).agent
    agent = kind.resume(
        arguments.run_folder,
        use_previous=arguments.use_previous,
        trust=arguments.allow_import,
        anyway=arguments.anyway,
    )
    with closing(agent):
        return _continue(agent, arguments, config)


def _continue(agent: Agent, arguments: argparse.Namespace, config: Mapping[str, Any]) -> int:
    """Train the rest of a run that is resumed."""
    left, total = agent.frames_left, agent.frames + agent.frames_left
    wanted = total if arguments.frames is None else agent.whole_iterations(arguments.frames)
    if wanted != total:
        if wanted <= agent.frames:
            raise CapoError(
                f"--frames {wanted:,} must be more than the {agent.frames:,} frames the run already has"
            )
        if agent.uneven:
            raise CapoError(
                f"the seeds are at different frames: first finish the run with capo resume {arguments.run_folder}"
            )
        left, total = wanted - agent.frames, wanted
    more = f"; to train longer: capo resume {arguments.run_folder} --frames N"
    where = f"resuming at frame {agent.frames:,} of {total:,}" if left else f"the run is complete{more}"
    print(f"capo: {where}", file=sys.stderr, flush=True)
    for note in differences(agent, config) if left else ():
        print(f"capo: note: {escaped(note)}", file=sys.stderr, flush=True)
    horizon = None if left == agent.frames_left else total
    with logging_to(arguments.log, agent) as callback:
        return finish(agent, left, horizon, callback)


def differences(agent: Agent, config: Mapping[str, Any]) -> Iterator[str]:
    """How the resumed run may differ from the one that ``config`` started."""
    from capo.envs import is_jitted

    if config.get("diverged"):
        yield (
            f"continuing from the last good checkpoint, at frame {agent.frames:,}, because {config['diverged']}"
        )
    for seed, why in agent.diverged.items():
        yield f"seed {seed} {why}; it is no longer trained"
    if not is_jitted(agent.env):
        yield (
            f"{agent.env.name} runs on the host, where its state cannot be saved: episodes and rollouts in "
            "progress are lost and new episodes start; everything else is restored exactly"
        )
    now = provenance()
    for package in ("jax", "jaxlib", "pgx", "gymnasium"):
        then, here = config["versions"].get(package), now["versions"].get(package)
        if then != here:
            yield (
                f"{package} was {then} when the run started and is {here} now: results may differ in the last "
                "digits"
            )
    then, here = config.get("precision"), agent.precision
    if then not in (None, here):
        yield f"matrix products used {then} and use {here} on this machine (the setting precision chooses)"
    if config["hardware"] != now["hardware"]:
        yield "this is not the hardware the run started on: results may differ in the last digits"
