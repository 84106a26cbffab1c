"""``capo bench``: run one of the scripts in benchmarks/ of a checkout."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from capo.errors import CapoError, unknown_name

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "bench",
        help="measure speed side by side with peers (needs a checkout)",
        description="Run one of the scripts in benchmarks/; what follows its name is passed on.",
        epilog="examples:\n  capo bench tabular --quick\n  capo bench tabular --out results/benchmarks\n"
        "  capo bench gpu --cases official:64 default:10\n  capo bench time-to-score --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benchmark", metavar="BENCHMARK", help="the script's name, such as tabular")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on to it")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the script's exit status."""
    if not FOLDER.is_dir():
        raise CapoError(
            "benchmarks are not part of the installed package: run this from a checkout of the project"
        )
    scripts = {path.stem.replace("_", "-"): path for path in FOLDER.glob("*.py")}
    if options.benchmark not in scripts:
        raise unknown_name("benchmark", options.benchmark, scripts)
    return subprocess.run([sys.executable, str(scripts[options.benchmark]), *options.arguments]).returncode
