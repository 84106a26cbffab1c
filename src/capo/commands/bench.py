"""``capo bench``: run a script of a checkout's benchmarks folder."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from capo.commands.common import Subparsers, add_command
from capo.errors import CapoError, unknown_name

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "bench",
        run,
        help="compare speed with other implementations (needs a checkout)",
        description="Run one of the scripts in benchmarks/. Arguments after its name are passed to it.",
        epilog="examples:\n  capo bench tabular --quick\n  capo bench tabular --out results/benchmarks\n"
        "  capo bench gpu --cases official:64 default:10\n  capo bench suite --table\n"
        "  capo bench time-to-score --help",
    )
    parser.add_argument("benchmark", metavar="BENCHMARK", help="name of the script, such as tabular")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the script's exit status."""
    if not FOLDER.is_dir():
        raise CapoError("the installed package has no benchmarks: run 'capo bench' in a checkout of the project")
    scripts = {path.stem.replace("_", "-"): path for path in FOLDER.glob("*.py")}
    if options.benchmark not in scripts:
        raise unknown_name("benchmark", options.benchmark, scripts)
    return subprocess.run([sys.executable, str(scripts[options.benchmark]), *options.arguments]).returncode
