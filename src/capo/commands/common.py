"""What the commands share."""

from __future__ import annotations

import argparse
import contextlib
import math
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from capo.neural.agent import Agent

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Rows: TypeAlias = list[dict[str, float]]


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
    subparsers: Subparsers, name: str, run: Callable[..., int], opens_runs: bool = False, **texts: Any
) -> argparse.ArgumentParser:
    """The parser of a new command.

    Args:
        subparsers: where it is added.
        name: the command's.
        run: takes the parsed options and returns the exit status.
        opens_runs: whether it opens files that may be a stranger's; no module of the current folder is imported.
        **texts: help, description, epilog.
    """
    parser = subparsers.add_parser(name, formatter_class=formatter, **texts)
    parser.set_defaults(run=run, **({"opens_runs": True} if opens_runs else {}))
    return parser


def add_action_rule(option: Callable[..., Any]) -> None:
    """The options for how an evaluation chooses actions; the default is the setting ``evaluation``."""
    shared = {"action": "store_const", "dest": "deterministic"}
    option("--deterministic", **shared, const=True, help="take the most likely actions")
    option("--sampled", **shared, const=False, help="sample the actions from the policy")


def add_allow_import(option: Callable[..., Any]) -> None:
    """The option for environments that a file names as ``module:id``."""
    text = "import the module of an environment that the file names as module:id; this runs the module's code"
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


class AfterTraining:
    """The steps after training. None of them may fail the run: problems are reported at the end."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Note an error instead of raising it; ``what`` names what is attempted."""
        try:
            yield
        except BrokenPipeError:  # the reader closed the pipe, which is its right
            pass
        except Exception as error:  # also a user's environment, matplotlib, a full device
            self.problems.append(f"{what}: {str(error) or type(error).__name__}")

    def say(self, text: str) -> None:
        """A line on standard output."""
        with self.attempt("standard output"):
            print(text, flush=True)


def add_log(option: Any) -> None:
    """The option --log."""
    more = "also log to Weights & Biases (needs the extra wandb; WANDB_MODE=offline keeps it on this machine)"
    option("--log", choices=["wandb"], help=more)


@contextlib.contextmanager
def logging_to(where: str | None, agent: Agent) -> Iterator[Any]:
    """The callback that --log asks for, closed at the end."""
    if where is None:
        yield None
        return
    from capo.runs.wandb_log import WandbCallback

    callback = WandbCallback()
    callback.prepare(agent)
    try:
        yield callback
    finally:
        callback.close()


def finish(agent: Agent, frames: int, horizon: int | None = None, callback: Any = None) -> int:
    """Train to the end of the run, evaluate, draw the curve and print where everything is.

    Args:
        agent: with a folder.
        frames: how many are left.
        horizon: frames that the schedules are spread over, if that changes.
        callback: for ``learn``.

    Returns:
        0; 1 if the training is complete but something after it failed; 128 + the signal that stopped the run.
    """
    from capo.runs.interrupts import Interrupted

    after = AfterTraining()
    if frames > 0:
        try:
            agent.learn(frames, progress_bar=True, horizon=horizon, callback=callback)
        except Interrupted as stopped:
            name = signal.Signals(stopped.signum).name
            print(
                f"capo: stopped by {name} at frame {stopped.frames:,}; nothing is lost\n"
                f"continue with: capo resume {agent.out}",
                file=sys.stderr,
            )
            return 128 + stopped.signum
        except Exception as error:
            if agent.frames_left or not agent.saved:
                raise
            after.problems.append(f"the last evaluation during training: {error}")
    summarise(agent, after)
    if not after.problems:
        return 0
    problems = "".join(f"\n  {text}" for text in dict.fromkeys(after.problems))
    again = f"to retry the evaluation and the curve: capo resume {agent.out}"
    told = f"training is complete and saved, but a later step failed:{problems}"
    print(f"capo: {told}\n{again}", file=sys.stderr)
    return 1


def summarise(agent: Agent, after: AfterTraining) -> None:
    """Write evaluation.json and curve.png, and print a summary of the run."""
    from capo.runs.layout import CHECKPOINTS, METRICS
    from capo.runs.reader import read_metrics

    out = agent.out
    assert out is not None
    rows: Rows = []
    with after.attempt(METRICS):
        rows = read_metrics(out)
    files = [METRICS, "tensorboard/", f"{CHECKPOINTS}/"]
    several = f" per seed, {len(agent.seeds)} seeds" if len(agent.seeds) > 1 else ""
    after.say(f"trained {agent.algorithm} on {agent.env.name}: {agent.frames:,} frames{several}")
    seconds = agent.wall_seconds
    if seconds:
        speed = agent.frames * len(agent.seeds) / seconds
        after.say(f"training took {seconds:.1f} s, {speed:,.0f} frames per second over all seeds")
    files += [*_draw(agent, out, rows, after), *_evaluate(agent, out, after)]
    after.say(f"files in {out}: {', '.join(files)}")
    after.say(f"watch it play: capo watch {out} --out play.gif")


def _draw(agent: Agent, out: Path, rows: Rows, after: AfterTraining) -> Iterator[str]:
    """Draw the training curve; yields the name of its file."""
    from capo.runs.layout import CURVE

    with after.attempt(CURVE):
        from capo.report import figures
        from capo.report.run_figures import draw_training

        if rows and figures.available():
            draw_training(rows, out / CURVE, f"{agent.algorithm.upper()} on {agent.env.name}")
            yield CURVE


def _evaluate(agent: Agent, out: Path, after: AfterTraining) -> Iterator[str]:
    """Evaluate, write it and print it; yields the name of the file."""
    from capo.runs.layout import EVALUATION
    from capo.runs.writer import write_evaluation

    episodes = int(agent.extra.get("eval_episodes", 100))
    if not episodes:
        return
    with after.attempt("the evaluation"):
        evaluation = agent.evaluate(episodes)
        with after.attempt(EVALUATION):
            write_evaluation(out, evaluation.to_dict())
            yield EVALUATION
        after.say(f"evaluation without exploration: {evaluation}")
        if len(evaluation.seeds) > 1:
            means = ", ".join(f"{mean:.4g}" for mean in evaluation.returns.mean(axis=1))
            after.say(f"per seed: {means}")
