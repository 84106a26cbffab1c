"""``capo reproduce``: run an experiment of the paper, print its tables, draw its figures."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import time
from pathlib import Path
from typing import Any, cast

from capo.commands.common import positive_integer
from capo.errors import CapoError, unknown_name
from capo.experiments.common import Experiment, content_of
from capo.files import prepare_folder
from capo.report import figures

# name -> (module, what it shows); an experiment is one line here.
EXPERIMENTS: dict[str, tuple[str, str]] = {
    "bandit": ("capo.experiments.bandit", "variable against fixed steps, on- and off-policy (about 1.5 minutes)"),
    "rates": ("capo.experiments.rates", "the gap of every algorithm and its theorem's bound (about 3 minutes)"),
    "chain": ("capo.experiments.chain", "CAPO and Off-PAC with true values on the chain (about 6 minutes)"),
    "grid": ("capo.experiments.grid", "CAPO, Off-PAC and PPO with true values in the maze (about 30 minutes)"),
    "noise": (
        "capo.experiments.noise",
        "wrong signs or sizes (5 minutes), noisy rewards on a game (hours, or a GPU)",
    ),
    "ablation": ("capo.experiments.ablation", "what carries NCAPO: the chain (minutes), a game (hours, or a GPU)"),
    "minatar": ("capo.experiments.minatar", "the main figure: five games, five algorithms (hours, or a GPU)"),
}
# Options that only some experiments take: those with trainings on MinAtar.
_OWN_OPTIONS = {
    "minatar": ("games", "algos", "frames", "seeds", "preset", "workers"),
    "noise": ("part", "games", "algos", "frames", "seeds", "preset", "workers"),
    "ablation": ("part", "games", "variants", "frames", "seeds", "preset", "workers"),
}
_EXAMPLES = """\
examples:
  capo reproduce bandit --quick          a smaller version, in seconds
  capo reproduce rates --out rates       the full experiment, into the folder rates
  capo reproduce bandit --draw-only      the figures again, from data that are there already
  capo reproduce minatar --quick --games breakout
  capo reproduce minatar --games breakout asterix --algos ncapo ppo --frames 1e6 --seeds 5
  capo reproduce minatar --algos ncapo:official ncapo:default ppo    two presets of one algorithm, in one figure
  capo reproduce minatar --workers 3     three trainings at a time on one GPU
  capo reproduce ablation --part chain   one part alone; the other one is --part game

Every experiment writes its data first (CSV and JSON, with settings, seeds, versions and commit), then prints its
tables and draws its figures from those files alone.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    names = "\n".join(f"  {name:<8} {what}" for name, (_, what) in EXPERIMENTS.items())
    parser = subparsers.add_parser(
        "reproduce",
        help="run an experiment of the paper: data, tables, figures",
        description=f"Run an experiment of the paper: data, then tables and figures.\n\nexperiments:\n{names}",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help=f"one of {', '.join(EXPERIMENTS)}")
    parser.add_argument(
        "--quick", action="store_true", help="fewer seeds and iterations: ends within a minute or two"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="for data and figures (default runs/reproduce/EXPERIMENT, with --quick EXPERIMENT-quick)",
    )
    parser.add_argument(
        "--draw-only",
        action="store_true",
        help="compute nothing: tables and figures from the data in --out, or else in results/EXPERIMENT",
    )
    own = parser.add_argument_group(
        "minatar, noise and ablation", "Training goes on where it was stopped if the same command is given again."
    )
    own.add_argument(
        "--games", nargs="+", metavar="GAME", help="default: all five; breakout in noise and ablation"
    )
    own.add_argument(
        "--algos",
        nargs="+",
        metavar="ALGO[:PRESET]",
        help="ncapo, ppo, a2c, rainbow, offpac, with or without a preset; in noise ncapo, ncapo-sign, ppo "
        "(default: all)",
    )
    own.add_argument(
        "--frames",
        type=positive_integer,
        metavar="N",
        help="of each seed (default: 10,000,000; ablation 2,000,000)",
    )
    own.add_argument(
        "--seeds", type=positive_integer, metavar="K", help="of each training (default: 10; ablation 8)"
    )
    own.add_argument(
        "--variants",
        nargs="+",
        metavar="NAME",
        help="of the ablation's part on a game: base, alpha-1, kl-reverse ... (default: all)",
    )
    own.add_argument("--preset", metavar="P", help="settings of the algorithms that name none (default: default)")
    own.add_argument(
        "--workers",
        type=positive_integer,
        metavar="N",
        help="trainings at a time, each a process of its own: ends sooner on a GPU, whose memory they share "
        "(default: 1)",
    )
    own.add_argument(
        "--part", metavar="PART", help="noise: tabular or game; ablation: chain or game (default: both parts)"
    )
    parser.set_defaults(run=reproduce)


def reproduce(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    experiment = find(options.experiment)
    if options.quick and options.draw_only:
        raise CapoError("--quick and --draw-only exclude each other: drawing computes nothing")
    own = _own_options(options)
    out = options.out or Path("runs", "reproduce", options.experiment + ("-quick" if options.quick else ""))
    if options.quick:
        _refuse_full_data(out)
    source = _data_folder(experiment, options.experiment, options.out) if options.draw_only else out
    _refuse_another(source, options.experiment)
    figures.matplotlib()  # without it nothing could be drawn: better said before minutes of work than after
    new = not out.exists()
    prepare_folder(out)
    started = time.perf_counter()
    if not options.draw_only:
        try:
            experiment.run(out, options.quick, progress=True, **own)
        except CapoError:
            if new:  # a mistake leaves no folder behind, unless there is something in it
                with contextlib.suppress(OSError):
                    out.rmdir()
            raise
        print(f"computed in {time.perf_counter() - started:.0f} s; data in {out}/: {', '.join(experiment.DATA)}\n")
    print(experiment.report(source))
    drawn = experiment.draw(source, out)
    print("\nfigures: " + ", ".join(map(str, drawn)))
    return 0


def _refuse_full_data(out: Path) -> None:
    """Raise if ``out`` holds data of a full run, which a quick one would replace."""
    for file in sorted(out.glob("*.json")):
        if content_of(file).get("quick") is False:
            raise CapoError(f"{file} is of a full run, which --quick would replace: give another folder as --out")


def _refuse_another(folder: Path, name: str) -> None:
    """Raise if the folder holds another experiment's data: some of their files have the same names."""
    for file in sorted(folder.glob("*.json")):
        found = _whose(content_of(file))
        if found in EXPERIMENTS and found != name:
            raise CapoError(
                f"{file} is of the experiment {found!r}, not of {name!r}: give another folder as --out"
            )


def _whose(content: dict[str, Any]) -> str:
    """The experiment that a file is of; those that train on games have one format."""
    if "variant" in content:
        return "noise" if "-noise-" in str(content["variant"]) else "ablation"
    return str(content.get("experiment")).partition(",")[0]


def _own_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options given that only some experiments take; refused where they mean nothing."""
    names = dict.fromkeys(name for own in _OWN_OPTIONS.values() for name in own)
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if given and options.draw_only:
        raise CapoError(f"--{next(iter(given))} is no option of --draw-only, which draws everything there is")
    for name in given:
        if name not in _OWN_OPTIONS.get(options.experiment, ()):
            raise CapoError(f"--{name} is no option of {options.experiment}")
    return given


def find(name: str) -> Experiment:
    """The experiment's module."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return cast(Experiment, importlib.import_module(EXPERIMENTS[name][0]))


def _data_folder(experiment: Experiment, name: str, given: Path | None) -> Path:
    """Where finished data lie: the given folder, or the last run's, or the repository's own results."""
    places = [given] if given is not None else [Path("runs", "reproduce", name), Path("results", name)]
    for place in places:
        if all(any(place.glob(file)) for file in experiment.DATA):
            return place
    where = " or ".join(f"{place}/" for place in places)
    raise CapoError(f"--draw-only needs {', '.join(experiment.DATA)} in {where}: run without --draw-only first")
