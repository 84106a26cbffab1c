"""The command line: parse, call the library, print. Each command is a module of :mod:`capo.commands`."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Sequence

from capo import __version__
from capo.commands import bench, evaluate, report, reproduce, resume, solve, sweep, train, tune, verify, watch
from capo.errors import CapoError

_EXAMPLES = """\
examples:
  capo train minatar-breakout --preset cpu            train an agent; Ctrl-C stops it, 'capo resume' continues
  capo solve chain:10 --rule cyclic --certificate     solve an MDP exactly and check the paper's theorems on it
  capo solve FrozenLake-v1 --gamma 0.99 --rule batch
  capo reproduce bandit --quick                       reproduce a figure of the paper: data, table, picture

'capo COMMAND --help' explains each command.
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="capo",
        description="Coordinate Ascent Policy Optimization: train agents, solve MDPs, reproduce the paper.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"capo {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (train, resume, evaluate, watch, report, sweep, tune, solve, verify, reproduce, bench):
        command.add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; a user's mistake is one line on standard error and exit status 2."""
    parser = build_parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        settings = [text for text in unknown if re.match(r"\w+=", text)] if hasattr(options, "set") else []
        each = " ".join(f"--set {text}" for text in settings)
        hint = f" (each setting needs its own --set: {each})" if settings else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if "" not in sys.path and os.curdir not in sys.path:
        sys.path.append(os.curdir)  # find modules beside the user, as a script does: environments called module:id
    try:
        return int(options.run(options))
    except CapoError as error:
        message = str(error)
    except MemoryError as error:
        message = f"out of memory: {error}"
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):  # what jax calls it on every device
            raise
        message = f"out of memory: {error}; set a smaller batch_size or train fewer seeds"
    except KeyboardInterrupt:
        print("\ncapo: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `capo ... | head`: nobody reads any more
        sys.stderr.close()
        return 141
    print(f"capo: error: {message}", file=sys.stderr)
    return 2


def entry() -> None:
    """The command ``capo``."""
    status = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if status == 130:  # the compiler's threads may still be running, and must not see Python shut down
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    entry()
