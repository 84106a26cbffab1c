"""The command line: parse, call the library, print. Each command is a module of :mod:`capo.commands`."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from capo import __version__
from capo.errors import CapoError
from capo.modules import without_current_folder
from capo.reading import escaped
from capo.runs.interrupts import EndsAtOnce

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
    from capo.commands import (
        bench,
        envs,
        evaluate,
        report,
        reproduce,
        resume,
        solve,
        sweep,
        train,
        tune,
        verify,
        watch,
    )

    parser = argparse.ArgumentParser(
        prog="capo",
        description="Coordinate Ascent Policy Optimization: train agents, solve MDPs, reproduce the paper.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"capo {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (train, resume, evaluate, watch, envs, report, sweep, tune, solve, verify, reproduce, bench):
        command.add_parser(subparsers)
    return parser


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a command line; ``run`` among them is the command."""
    parser = build_parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        settings = [text for text in unknown if re.match(r"\w+=", text)] if hasattr(options, "set") else []
        each = " ".join(f"--set {text}" for text in settings)
        hint = f" (each setting needs its own --set: {each})" if settings else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; a user's mistake is one line on standard error and exit status 2."""
    return run(parse(arguments))


def _module_path(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """Where a command finds modules: ``capo train module:id``, which the user types, also in the current folder.

    Commands that open the files of a run, which may be a stranger's, never look there.
    """
    if getattr(options, "opens_runs", False):
        return without_current_folder()
    if "" not in sys.path and os.curdir not in sys.path:
        sys.path.append(os.curdir)
    return contextlib.nullcontext()


def run(options: argparse.Namespace) -> int:
    """Run a command that was parsed."""
    try:
        with _module_path(options):
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
    except OSError as error:  # what nobody below has turned into a sentence
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    print(f"capo: error: {escaped(message)}", file=sys.stderr)  # it may quote a file of a stranger
    return 2


def entry() -> None:
    """The command ``capo``."""
    _mend_streams()
    ending = EndsAtOnce()
    with ending:
        options = parse()
        if not getattr(options, "ends_at_once", False):
            ending.__exit__()  # a command that cleans up after itself: KeyboardInterrupt, as in any program
        status = run(options)
    status = _flush(status)
    if status >= 128:  # the compiler's threads may still be running, and must not see Python shut down
        os._exit(status)
    sys.exit(status)


def _mend_streams() -> None:
    """Make the standard streams safe to use.

    A closed one is opened on nothing: the next file would take its place. Letters that an encoding lacks are
    escaped. Standard error never fails: it tells of the work, and is no reason to stop it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    raw = io.BufferedWriter(_Forgiving(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(raw, sys.stderr.encoding, "backslashreplace", line_buffering=True)


class _Forgiving(io.FileIO):
    """A file that drops what can't be written: the terminal was closed, the disk is full."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes


def _flush(status: int) -> int:
    """Write what is left; the exit status, 1 instead of 0 if that was not possible."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would try again, and complain
        if not isinstance(error, BrokenPipeError):
            print(f"capo: cannot write to standard output ({error})", file=sys.stderr)
            return status or 1
    return status


if __name__ == "__main__":
    entry()
