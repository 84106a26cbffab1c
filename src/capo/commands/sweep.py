"""``capo sweep``: many trainings from one specification, on this machine or on a Ray cluster."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capo.commands.common import Subparsers, add_allow_import, add_command, positive_integer
from capo.errors import CapoError
from capo.reading import escaped

STALE = 30.0  # seconds without a sign of life: nobody runs the sweep any more

EXAMPLES = """examples:
  capo sweep sweep.toml --out sweeps/first --plan      check the plan and print it; nothing is started
  capo sweep sweep.toml --out sweeps/first             on this machine, one job per GPU, or one at a time
  capo sweep sweep.toml --out sweeps/first --workers 4
  capo sweep sweep.toml --out sweeps/first --on auto   on the Ray cluster that this machine belongs to
  capo sweep sweep.toml --out sweeps/first --on ray://head:10001
  capo sweep status sweeps/first                       from another terminal
  capo report sweeps/first --out sweep.html            curves and table by setting

A specification:
  environments = ["minatar-breakout", "minatar-asterix"]
  algorithms = ["ncapo", "ppo:paper"]
  frames = 1_000_000
  seeds = 10              # or a list
  seeds_per_job = 5       # trained as one program
  [settings]              # every combination of the lists
  learning_rate = [1e-4, 5e-4]
  [settings.ncapo]        # for one algorithm only
  entropy = [0.003, 0.01]
  [[zipped]]              # lists varied together
  n_envs = [32, 128]
  rollout_length = [16, 4]

Repeating the command runs what is missing and leaves finished jobs alone. A changed specification adds jobs.
"""


def add_parser(subparsers: Subparsers) -> None:
    option = add_command(
        subparsers,
        "sweep",
        run,
        help="train many combinations of environments, algorithms, settings and seeds",
        description="Train every combination in a specification, on this machine or on a Ray cluster.",
        epilog=EXAMPLES,
    ).add_argument
    option(
        "spec", metavar="SPEC.toml", help="the specification; or the word status, followed by the sweep's folder"
    )
    option("folder", metavar="DIR", type=Path, nargs="?", help="after status: the sweep's folder")
    option("--out", type=Path, metavar="DIR", help="the sweep's folder, new or existing")
    where = "local, auto (this machine's Ray cluster), ray://HOST:PORT or HOST:PORT (default: local)"
    option("--on", default="local", metavar="ENGINE", help=where)
    many = "maximum number of jobs at a time (default: one per GPU, or one; on Ray as many as fit)"
    option("--workers", type=positive_integer, metavar="N", help=many)
    option("--plan", action="store_true", help="check the plan and print it; start nothing")
    copy = "on Ray: copy files back to this machine even if the workers can write to DIR"
    option("--no-shared-disk", action="store_true", help=copy)
    add_allow_import(option)


def run(arguments: argparse.Namespace) -> int:
    """Plan, run, and print the table; or show how far a sweep is."""
    if arguments.spec == "status":
        return status(arguments)
    if arguments.folder is not None:
        raise CapoError(f"{arguments.folder}: give the sweep's folder as --out {arguments.folder}")
    if arguments.out is None:
        raise CapoError("--out DIR is missing: give the sweep's folder")
    from capo.sweeps.spec import read_text
    from capo.sweeps.sweep import make_plan, run_plan

    text = read_text(Path(arguments.spec))
    plan = make_plan(text, arguments.out, arguments.on, arguments.workers, arguments.allow_import)
    print(plan.describe(), flush=True)
    if arguments.plan:
        return 0
    shared = False if arguments.no_shared_disk else None
    try:
        result = run_plan(plan, text, arguments.on, arguments.workers, shared, True)
    except KeyboardInterrupt:
        print("capo: stopped; nothing is lost: repeat the same command to continue", file=sys.stderr)
        raise
    print(escaped(show_rows(result.rows)))
    print(f"files in {result.path}: table.csv, jobs/; view it: capo report {result.path} --out sweep.html")
    for id, error in result.failed.items():
        print(escaped(f"capo: {id} failed: {error}"), file=sys.stderr)
    return 1 if result.failed else 0


def show_rows(rows: Sequence[dict[str, Any]]) -> str:
    """The table for people: the settings that vary, states and scores."""
    from capo.experiments.common import text_table

    fixed = ("planned", "state", "return", "standard_error", "seconds", "error", "id", "seeds", "frames")
    what = [name for name in rows[0] if name not in fixed] if rows else []
    varied = [name for name in what if len({str(row.get(name)) for row in rows}) > 1] or what[:2]
    lines = []
    for row in rows:
        score = "" if row["return"] is None else f"{row['return']:.4g}"
        if row["standard_error"] is not None:
            score += f" ± {row['standard_error']:.2g}"
        seeds = len(str(row["seeds"]).split())
        lines.append([*(str(row.get(name, "")) for name in varied), seeds, row["state"], score])
    return text_table("jobs", [*varied, "seeds", "state", "return"], lines)


def status(arguments: argparse.Namespace) -> int:
    """Print what is known about a sweep that runs elsewhere, or ran."""
    from capo.progress import clock
    from capo.sweeps.board import line
    from capo.sweeps.folder import JOBS, SPEC, SweepFolder, is_sweep
    from capo.sweeps.spec import Spec

    folder: Path | None = arguments.folder
    if folder is None:
        raise CapoError("capo sweep status needs the sweep's folder: capo sweep status DIR")
    if not is_sweep(folder):
        raise CapoError(f"{folder} is not the folder of a sweep (it has no {SPEC} or no {JOBS}/)")
    found = SweepFolder(folder)
    known = found.status()
    jobs = Spec.read(folder / SPEC).jobs()
    rows = [row for row in found.rows(jobs) if row["planned"]]
    states = [row["state"] for row in rows]
    runs = known.get("state") == "running" and time.time() - known.get("updated", 0.0) < STALE
    running = known["running"] if runs else []
    counts = {"done": states.count("done"), "running": len(running), "failed": states.count("failed")}
    counts["to do"] = len(rows) - sum(counts.values())
    print(f"{len(rows)} jobs: {', '.join(f'{count} {state}' for state, count in counts.items())}")
    for entry in running:
        print(f"  {escaped(line(entry))}")
    for row in rows:
        if row["state"] == "failed":
            print(escaped(f"  {row['id']} failed: {row['error']}"))
    if runs:
        left = known["seconds_left"]
        print(f"run by {escaped(str(known['by']))}" + ("" if left is None else f"; about {clock(left)} left"))
    elif counts["done"] < len(rows):
        print("it is not running now: repeat the same command to continue")
    return 0
