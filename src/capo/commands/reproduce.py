"""``capo reproduce``: run an experiment of the paper, print its tables, draw its figures."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from capo.commands.common import formatter, positive_integer
from capo.errors import CapoError, unknown_name
from capo.experiments.common import Experiment, content_of, experiment_of
from capo.files import prepare_folder
from capo.report import figures

# One line per experiment, whose module says the rest (see capo.experiments.common).
EXPERIMENTS = {
    "bandit": "variable and fixed steps, on- and off-policy (about 1.5 minutes)",
    "rates": "every algorithm's gap and its theorem's bound (about 3 minutes)",
    "chain": "CAPO and Off-PAC with true values on the chain (about 6 minutes)",
    "grid": "CAPO, Off-PAC and PPO with true values in the maze (about 40 minutes)",
    "directions": "gradient steps and CAPO steps compared with the true gradient (about 3 minutes)",
    "signs": "how often a learned critic gets the sign right, and the score (about a minute)",
    "noise": "wrong signs and sizes (5 minutes), noisy rewards on a game (hours without a GPU)",
    "ablation": "what matters in NCAPO: the chain (minutes), a game (hours without a GPU)",
    "minatar": "the main figure: five games, all algorithms (hours without a GPU)",
}
# Options that only some experiments accept: name -> arguments of add_argument.
_OWN_OPTIONS: dict[str, dict[str, Any]] = {
    "part": {
        "metavar": "PART",
        "help": "noise: tabular or game; ablation: chain or game; grid: random or fixed (start); default: both",
    },
    "games": {"nargs": "+", "metavar": "GAME", "help": "default: all five; in noise and ablation breakout"},
    "algos": {
        "nargs": "+",
        "metavar": "ALGO[:PRESET]",
        "help": "minatar: {algorithms}, with or without a preset; noise: ncapo-paper, ncapo-sign, ncapo, ppo "
        "(default: all)",
    },
    "levels": {"nargs": "+", "metavar": "SD", "help": "noise: standard deviations of the noise (default: 0 3 10)"},
    "together": {
        "action": "store_const",
        "const": True,
        "help": "noise: all levels of an algorithm as one program: much faster on a GPU, but an interrupted "
        "run starts over",
    },
    "seconds": {
        "type": float,
        "metavar": "S",
        "help": "minatar, noise --together: stop each training run after this long, compilation included; results "
        "are of the frames reached by then (no checkpoints: an interrupted run starts over)",
    },
    "settings": {
        "metavar": "NAME",
        "help": "minatar: best (default), paper (the paper's presets on its four games) or causes (possible "
        "causes of a difference, changed one at a time)",
    },
    "variants": {
        "nargs": "+",
        "metavar": "NAME",
        "help": "ablation: what to change on the game, such as base, alpha-1, kl-reverse (default: all)",
    },
    "frames": {
        "type": positive_integer,
        "metavar": "N",
        "help": "per seed (default: 10,000,000; ablation 2,000,000)",
    },
    "seeds": {"type": positive_integer, "metavar": "K", "help": "per training run (default: 10; ablation 8)"},
    "first_seed": {
        "type": positive_integer,
        "metavar": "S",
        "help": "minatar: first seed (default: 0); choose settings on seeds other than those you report",
    },
    "preset": {"metavar": "P", "help": "preset of algorithms given without one (default: default)"},
    "workers": {
        "type": positive_integer,
        "metavar": "N",
        "help": "training runs at a time, each in its own process; they share the GPU's memory (default: 1)",
    },
    "on": {"metavar": "ENGINE", "help": "local, auto (this machine's Ray cluster), ray://HOST:PORT or HOST:PORT"},
    "gpus": {"type": float, "metavar": "G", "help": "on Ray: GPUs per training run, such as 0.33 (default: 0)"},
}
_EXAMPLES = """\
examples:
  capo reproduce bandit --quick          a smaller version, in seconds
  capo reproduce rates --out rates       the full experiment, into the folder rates
  capo reproduce bandit --draw-only      the figures again, from existing data
  capo reproduce minatar --quick --games breakout
  capo reproduce minatar --games breakout asterix --algos ncapo ppo --frames 1e6 --seeds 5
  capo reproduce minatar --algos ncapo:official ncapo:default ppo    two presets of one algorithm in one figure
  capo reproduce minatar --settings paper    every curve of the paper's figure, with the paper's settings
  capo reproduce minatar --workers 3     three training runs at a time on one GPU
  capo reproduce minatar --on auto --gpus 0.33    on a Ray cluster, three training runs per GPU
  capo reproduce ablation --part chain   only one part; the other one is --part game

Every experiment first writes its data (CSV and JSON, with settings, seeds, versions and commit), then prints its
tables and draws its figures from those files alone.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    names = "\n".join(f"  {name:<10} {what}" for name, what in EXPERIMENTS.items())
    parser = subparsers.add_parser(
        "reproduce",
        help="run an experiment of the paper: data, tables, figures",
        description=f"Run an experiment of the paper: data, then tables and figures.\n\nexperiments:\n{names}",
        epilog=_EXAMPLES,
        formatter_class=formatter,
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help=f"one of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--quick", action="store_true", help="a small version that takes a minute or two")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for data and figures (default: runs/reproduce/EXPERIMENT, with --quick EXPERIMENT-quick)",
    )
    parser.add_argument(
        "--draw-only",
        action="store_true",
        help="compute nothing: make tables and figures from the data in --out, or else in results/EXPERIMENT",
    )
    own = parser.add_argument_group(
        "minatar, noise, ablation and grid", "Repeat the same command to continue after an interruption."
    )
    for name, arguments in _OWN_OPTIONS.items():
        own.add_argument(_flag(name), **arguments)
    parser.set_defaults(run=reproduce)


def reproduce(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    experiment = find(options.experiment)
    if options.quick and options.draw_only:
        raise CapoError("--quick and --draw-only cannot be combined: drawing computes nothing")
    own = _own_options(options, experiment)
    out = options.out or Path("runs", "reproduce", options.experiment + ("-quick" if options.quick else ""))
    source = _data_folder(experiment, options.experiment, options.out) if options.draw_only else out
    _refuse_another(source, options.experiment, options.quick)
    figures.matplotlib()  # a missing one is better reported before minutes of work than after
    if not options.draw_only:
        _compute(experiment, out, options.quick, own)
    prepare_folder(out)
    with _data_errors(source) if options.draw_only else contextlib.nullcontext():
        print(experiment.report(source))
        drawn = experiment.draw(source, out)
    print("\nfigures: " + ", ".join(map(str, drawn)))
    return 0


@contextlib.contextmanager
def _data_errors(folder: Path) -> Iterator[None]:
    """Data that were not computed just now may be anything: what trips over them is one line."""
    try:
        yield
    except CapoError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CapoError(
            f"{folder}: its data cannot be drawn: it was changed, or written by another version of capo "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
        ) from error


def _compute(experiment: Experiment, out: Path, quick: bool, options: dict[str, Any]) -> None:
    """Run the experiment; a mistake leaves no new folder behind, unless there is something in it."""
    new = not out.exists()
    prepare_folder(out)
    started = time.perf_counter()
    try:
        experiment.run(out, quick, progress=True, **options)
    except CapoError:
        if new:
            with contextlib.suppress(OSError):
                out.rmdir()
        raise
    print(f"computed in {time.perf_counter() - started:.0f} s; data in {out}/: {', '.join(experiment.DATA)}\n")


def _refuse_another(folder: Path, name: str, quick: bool = False) -> None:
    """Raise if the folder holds a full run's data, which a quick one would replace, or another experiment's."""
    for file in sorted(folder.glob("*.json")):
        content = content_of(file)
        if quick and content.get("quick") is False:
            raise CapoError(
                f"{file} is from a full run, which --quick would overwrite: choose another folder with --out"
            )
        found = experiment_of(content)
        if found in EXPERIMENTS and found != name:
            raise CapoError(f"{file} is from the experiment {found}, not {name}: choose another folder with --out")


def _own_options(options: argparse.Namespace, experiment: Experiment) -> dict[str, Any]:
    """The options given that only some experiments accept; refused where they do not apply."""
    given = {name: getattr(options, name) for name in _OWN_OPTIONS if getattr(options, name) is not None}
    if given and options.draw_only:
        first = _flag(next(iter(given)))
        raise CapoError(f"{first} does not apply to --draw-only, which draws all existing data")
    for name in given:
        if name not in experiment.OPTIONS:
            raise CapoError(f"{_flag(name)} does not apply to {options.experiment}")
    return given


def _flag(name: str) -> str:
    """An option as it is typed."""
    return "--" + name.replace("_", "-")


def find(name: str) -> Experiment:
    """The experiment's module."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return cast(Experiment, importlib.import_module(f"capo.experiments.{name}"))


def _data_folder(experiment: Experiment, name: str, given: Path | None) -> Path:
    """Where finished data is: the given folder, or the last run's, or the repository's own results."""
    places = [given] if given is not None else [Path("runs", "reproduce", name), Path("results", name)]
    for place in places:
        if all(any(place.glob(file)) for file in experiment.DATA):
            return place
    where = " or ".join(f"{place}/" for place in places)
    raise CapoError(f"--draw-only needs {', '.join(experiment.DATA)} in {where}: run without --draw-only first")
