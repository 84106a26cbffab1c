"""``capo resume``: go on with a run that was stopped or killed, as if it never had been."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from capo.commands.common import finish, formatter, positive_integer
from capo.errors import CapoError

EXAMPLES = """examples:
  capo resume runs/minatar-breakout-ncapo-1
  capo resume runs/breakout --use-previous      the newest checkpoint is damaged: go back one
  capo resume runs/breakout --frames 3e6        a longer run than was planned, finished or not

On jitted environments the run ends bit for bit as if it had not been stopped. On Gymnasium environments the
episodes that were under way are lost: they can't be saved, and new ones are started.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "resume",
        help="go on with a run",
        description="Go on with a run that was stopped or killed, as if it never had been.",
        epilog=EXAMPLES,
        formatter_class=formatter,
    )
    parser.add_argument("run_folder", metavar="DIR", type=Path, help="the folder of a run")
    parser.add_argument(
        "--use-previous",
        action="store_true",
        help="if the newest checkpoint is damaged, go back to one that is not",
    )
    parser.add_argument(
        "--frames",
        type=positive_integer,
        metavar="N",
        help="go on to so many frames in all, with the schedules spread over them (default: the run's own)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Load the newest checkpoint and finish what is left of the run."""
    from capo.neural.agent import algorithm
    from capo.neural.run import read_config

    config = read_config(arguments.run_folder)
    agent = algorithm(str(config["algorithm"])).resume(arguments.run_folder, use_previous=arguments.use_previous)
    left, total = agent.frames_left, agent.frames + agent.frames_left
    wanted = total if arguments.frames is None else agent.whole_iterations(arguments.frames)
    if wanted != total:
        if wanted <= agent.frames:
            raise CapoError(f"--frames {wanted:,}: the run has {agent.frames:,} frames behind it already")
        if agent.uneven:
            raise CapoError(
                f"its seeds are at different frames: first finish it, capo resume {arguments.run_folder}"
            )
        left, total = wanted - agent.frames, wanted
    more = f"; capo resume {arguments.run_folder} --frames N makes it longer"
    where = f"going on at frame {agent.frames:,} of {total:,}" if left else f"the run is complete{more}"
    print(f"capo: {where}", file=sys.stderr, flush=True)
    for note in agent.resume_notes(config) if left else ():
        print(f"capo: note: {note}", file=sys.stderr, flush=True)
    return finish(agent, left, horizon=None if left == agent.frames_left else total)
