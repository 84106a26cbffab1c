"""``capo report``: one HTML page from the folders of runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from capo.commands.common import Subparsers, add_command
from capo.errors import CapoError
from capo.reading import escaped

EXAMPLES = """examples:
  capo report runs/breakout                             one run
  capo report runs/ncapo runs/ppo --out compare.html    several, on one page
  capo report runs                                      every run in a folder
  capo report results/minatar                           what `capo reproduce minatar` wrote
  capo report runs/tune                                 what `capo tune` found: history, importance, settings

The page is one file: it opens offline and is easy to share. Runs with the same algorithm and settings
become one curve over all their seeds; with several environments, the page lets you choose one. A GIF in a run's
folder (`capo watch DIR --out DIR/play.gif`) is shown too. Missing or damaged files are listed; the rest is drawn.
"""


def add_parser(subparsers: Subparsers) -> None:
    option = add_command(
        subparsers,
        "report",
        run,
        opens_runs=True,
        help="compare runs on one page: curves, intervals, settings",
        description="Make one HTML page from run folders: curves, final scores with intervals, settings.",
        epilog=EXAMPLES,
    ).add_argument
    option("folders", nargs="+", type=Path, metavar="DIR", help="folders of runs, sweeps, tunings or results")
    option("--out", type=Path, default=Path("report.html"), metavar="HTML", help="the page (default: report.html)")


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print where it is."""
    from capo.report.page import write_page

    out: Path = arguments.out
    if out.is_dir():
        raise CapoError(f"--out {out} is a folder; give a file such as {out / 'report.html'}")
    if not out.absolute().parent.is_dir():
        raise CapoError(f"--out {out}: there is no folder {out.parent}; create it first")
    path, problems = write_page(arguments.folders, out)
    for problem in problems:
        print(f"capo: {escaped(problem)}", file=sys.stderr)
    print(f"written to {path} ({path.stat().st_size / 1e3:,.0f} kB); open it in a browser")
    return 0
