"""``capo report``: one HTML page from the folders of runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from capo.commands.common import formatter
from capo.errors import CapoError

EXAMPLES = """examples:
  capo report runs/breakout                             one run
  capo report runs/ncapo runs/ppo --out compare.html    several, on one page
  capo report runs                                      every run in a folder
  capo report results/minatar                           what `capo reproduce minatar` wrote

The page opens from the disk, needs no network and can be sent as one file. Runs of the same algorithm and settings
are one curve over all their seeds; runs of different environments are told apart by a chooser. A GIF in a run's
folder (`capo watch DIR --out DIR/play.gif`) is shown too. What is missing or damaged is said, and the rest drawn.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "report",
        help="see runs on one page: curves, intervals, settings",
        description="Make one HTML page from the folders of runs: curves, final table with intervals, settings.",
        epilog=EXAMPLES,
        formatter_class=formatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders of runs, or of results")
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="HTML", help="the page (default: report.html)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, compute, write, say where."""
    from capo.report.page import write_page

    out: Path = arguments.out
    if out.is_dir():
        raise CapoError(f"--out {out}: is a folder; give a file such as {out / 'report.html'}")
    if not out.absolute().parent.is_dir():
        raise CapoError(f"--out {out}: there is no folder {out.parent}")
    path, problems = write_page(arguments.folders, out)
    for problem in problems:
        print(f"capo: {problem}", file=sys.stderr)
    print(f"written to {path} ({path.stat().st_size / 1e3:,.0f} kB); open it in a browser")
    return 0
