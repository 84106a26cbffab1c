"""What the commands share."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from capo.neural.agent import Agent

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class formatter(argparse.RawDescriptionHelpFormatter):
    """Help texts with ``{algorithms}`` and ``{presets}``, filled in from the registry once help is shown.

    The registry brings jax, which would slow down every command.
    """

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        if text is None or ("{algorithms}" not in text and "{presets}" not in text):
            return text
        from capo.neural.algorithms.registry import ROWS

        presets = (f"{name} has {', '.join(row.settings.PRESETS)}" for name, row in ROWS.items())
        return text.replace("{algorithms}", ", ".join(ROWS)).replace("{presets}", "; ".join(presets))


def add_command(
    subparsers: Subparsers, name: str, run: Callable[..., int], **texts: Any
) -> argparse.ArgumentParser:
    """The parser of a new command: ``run`` takes the parsed options and returns the exit status."""
    parser = subparsers.add_parser(name, formatter_class=formatter, **texts)
    parser.set_defaults(run=run)
    return parser


def add_allow_import(option: Callable[..., Any]) -> None:
    """The option for environments that a file names as ``module:id``."""
    text = "import the module of an environment that the file calls module:id; this runs the module's code"
    option("--allow-import", action="store_true", help=text)


def positive_integer(text: str) -> int:
    """``1000000``, ``1_000_000`` or ``1e6``."""
    try:
        number = float(text.replace("_", ""))
    except ValueError:
        number = -1.0
    if not (math.isfinite(number) and number >= 1 and number == int(number)):
        raise argparse.ArgumentTypeError(f"{text!r} must be a positive integer, such as 1000000 or 1e6")
    return int(number)


def finish(agent: Agent, frames: int, horizon: int | None = None) -> int:
    """Train to the end of the run, evaluate, draw the curve and print where everything is.

    Args:
        agent: with a folder.
        frames: how many are left.
        horizon: frames that the schedules are spread over, if that changes.

    Returns:
        0, or 128 + the signal that stopped the run.
    """
    from capo.runs.interrupts import Interrupted

    if frames > 0:
        try:
            agent.learn(frames, progress_bar=True, horizon=horizon)
        except Interrupted as stopped:
            name = signal.Signals(stopped.signum).name
            print(
                f"capo: stopped by {name} at frame {stopped.frames:,}; nothing is lost\n"
                f"continue with: capo resume {agent.out}",
                file=sys.stderr,
            )
            return 128 + stopped.signum
    summarise(agent)
    return 0


def summarise(agent: Agent) -> None:
    """Write evaluation.json and curve.png, and print a summary of the run."""
    from capo.report import figures
    from capo.report.run_figures import draw_training
    from capo.runs.layout import CHECKPOINTS, CURVE, EVALUATION, METRICS
    from capo.runs.reader import read_metrics
    from capo.runs.writer import write_evaluation

    out = agent.out
    assert out is not None
    rows = read_metrics(out)
    files = [METRICS, "tensorboard/", f"{CHECKPOINTS}/"]
    several = f" per seed, {len(agent.seeds)} seeds" if len(agent.seeds) > 1 else ""
    print(f"trained {agent.algorithm} on {agent.env.name}: {agent.frames:,} frames{several}")
    if rows:
        seconds = max(row["elapsed_seconds"] for row in rows)
        speed = agent.frames * len(agent.seeds) / max(seconds, 1e-9)
        print(f"training took {seconds:.1f} s, {speed:,.0f} frames per second over all seeds")
    if rows and figures.available():
        draw_training(rows, out / CURVE, f"{agent.algorithm.upper()} on {agent.env.name}")
        files.append(CURVE)
    episodes = int(agent.extra.get("eval_episodes", 100))
    if episodes:
        evaluation = agent.evaluate(episodes)
        write_evaluation(out, evaluation.to_dict())
        files.append(EVALUATION)
        print(f"evaluation without exploration: {evaluation}")
        if len(agent.seeds) > 1:
            means = ", ".join(f"{mean:.4g}" for mean in evaluation.returns.mean(axis=1))
            print(f"per seed: {means}")
    print(f"files in {out}: {', '.join(files)}")
    print(f"watch it play: capo watch {out} --out play.gif")
