"""What the commands of the neural half share."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capo.neural.agent import Agent

formatter = argparse.RawDescriptionHelpFormatter


def positive_integer(text: str) -> int:
    """``1000000``, ``1_000_000`` or ``1e6``."""
    try:
        number = float(text.replace("_", ""))
    except ValueError:
        number = -1.0
    if not (math.isfinite(number) and number >= 1 and number == int(number)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(number)


def load_agent(path: Path) -> Agent:
    """The agent of a run's folder or of a saved file, whatever its algorithm."""
    from capo.neural.agent import load

    return load(path)


def finish(agent: Agent, frames: int, horizon: int | None = None) -> int:
    """Train to the end of the run; then evaluate, draw the curve and say where everything is.

    Args:
        frames: what is left of it.
        horizon: a new one for the schedules.

    Returns:
        0, or 128 + the signal that stopped the run.
    """
    from capo.neural.run import Interrupted

    if frames > 0:
        try:
            agent.learn(frames, progress_bar=True, horizon=horizon)
        except Interrupted as stopped:
            name = signal.Signals(stopped.signum).name
            print(
                f"capo: stopped by {name} at frame {stopped.frames:,}; nothing is lost\n"
                f"go on with: capo resume {agent.out}",
                file=sys.stderr,
            )
            return 128 + stopped.signum
    summarise(agent)
    return 0


def summarise(agent: Agent) -> None:
    """The end of a run: evaluation.json, curve.png, and a few lines for the user."""
    from capo.neural.run import CHECKPOINTS, CURVE, EVALUATION, METRICS, read_metrics, write_evaluation
    from capo.report import curve

    out = agent.out
    assert out is not None
    rows = read_metrics(out)
    files = [METRICS, "tensorboard/", f"{CHECKPOINTS}/"]
    print(f"trained {agent.algorithm} on {agent.env.name}: {agent.frames:,} frames x {len(agent.seeds)} seed(s)")
    if rows:
        seconds = max(row["elapsed_seconds"] for row in rows)
        speed = agent.frames * len(agent.seeds) / max(seconds, 1e-9)
        print(f"training took {seconds:.1f} s, {speed:,.0f} frames/s over all seeds")
    if rows and curve.available():
        curve.draw_curve(rows, out / CURVE, f"{agent.algorithm.upper()} on {agent.env.name}")
        files.append(CURVE)
    episodes = int(agent.extra.get("eval_episodes", 100))
    if episodes:
        evaluation = agent.evaluate(episodes)
        write_evaluation(out, evaluation)
        files.append(EVALUATION)
        print(f"evaluation, without exploration: {evaluation}")
        if len(agent.seeds) > 1:
            means = ", ".join(f"{mean:.4g}" for mean in evaluation.returns.mean(axis=1))
            print(f"by seed: {means}")
    print(f"files in {out}: {', '.join(files)}")
    print(f"see it play: capo watch {out} --out play.gif")
