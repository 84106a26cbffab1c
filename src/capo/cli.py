"""The command line: parses, calls the library, prints. Each command is a module of :mod:`capo.commands`."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Sequence

from capo import __version__
from capo.commands import bench, evaluate, report, reproduce, resume, solve, train, watch
from capo.errors import CapoError

_EXAMPLES = """\
examples:
  capo train minatar-breakout --preset cpu            train an agent; Ctrl-C stops it, 'capo resume' goes on
  capo solve chain:10 --rule cyclic --certificate     an exact solution, with the paper's theorems checked on it
  capo solve FrozenLake-v1 --gamma 0.99 --rule batch
  capo reproduce bandit --quick                       a figure of the paper: data, table, picture

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
    for command in (train, resume, evaluate, watch, report, solve, reproduce, bench):
        command.add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; a user's mistake is one line on standard error and exit status 2."""
    parser = build_parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        settings = [text for text in unknown if re.match(r"\w+=", text)] if hasattr(options, "set") else []
        hint = f" (for each setting a --set: {' '.join(f'--set {text}' for text in settings)})" if settings else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if "" not in sys.path and os.curdir not in sys.path:
        sys.path.append(os.curdir)  # a script finds the modules beside it, for environments called module:id
    try:
        return int(options.run(options))
    except CapoError as error:
        print(f"capo: error: {error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"capo: error: out of memory: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):  # jax's word for it, on every device
            raise
        print(
            f"capo: error: out of memory: {error}; set a smaller batch_size, or run fewer seeds", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        print("\ncapo: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `capo ... | head`: the reader has left
        sys.stderr.close()
        return 141


def entry() -> None:
    """The command ``capo``."""
    status = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if status == 130:  # a compiler's threads may still be at work, and must not see Python go
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    entry()
