"""The command line: thin, it parses, calls the library and prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from capo import __version__
from capo.commands import evaluate, resume, train, watch
from capo.errors import CapoError


def parser() -> argparse.ArgumentParser:
    """The parser of ``capo`` with all its sub-commands."""
    top = argparse.ArgumentParser(
        prog="capo", description="Coordinate Ascent Policy Optimization: train agents, solve MDPs."
    )
    top.add_argument("--version", action="version", version=f"capo {__version__}")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (train, resume, evaluate, watch):
        command.add_parser(subparsers)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake is one line on standard error and exit code 2."""
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except CapoError as error:
        print(f"capo: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        return 1
    except KeyboardInterrupt:
        print("capo: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
