"""What the tests of agents, runs and commands share: a training so small that it takes a second."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from capo.runs import checkpoint
from capo.runs.layout import is_timing

ENV = "probe-both"
TINY: dict[str, Any] = {
    "n_envs": 8,
    "rollout_length": 2,
    "width": 8,
    "shared_trunk": True,
    "batch_size": 4,
    "gradient_steps": 2,
    "replay_rollouts": 32,
}
SET = [part for key, value in TINY.items() for part in ("--set", f"{key}={value}")]
# The horizon is compiled in: one for all tests lets them share compiled programs.
TINY_640: dict[str, Any] = TINY | {"horizon": 640}
FRAMES = 16  # of an iteration


def bits(agent: Any) -> dict[str, bytes]:
    """The whole training state of an agent."""
    leaves = jax.tree_util.tree_flatten_with_path(agent._states.tree())[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in leaves}


def uses(agent: Any, path: Path) -> tuple[Callable[[], object], ...]:
    """All that would act on an agent's state, go on from it or save it."""
    return (
        lambda: agent.predict([1.0]),
        lambda: agent.evaluate(2),
        lambda: agent.save(path),
        lambda: agent.learn(FRAMES),
    )


def checkpoint_bits(folder: Path) -> dict[str, bytes]:
    """The arrays of the newest checkpoint of a run."""
    newest = max((folder / "checkpoints").glob("*.safetensors"))
    return {name: array.tobytes() for name, array in checkpoint.read(newest).arrays.items()}


def metrics(folder: Path) -> list[dict[str, str]]:
    """metrics.csv as text, without the columns that are about time."""
    with open(folder / "metrics.csv", newline="") as file:
        return [{k: v for k, v in row.items() if not is_timing(k)} for row in csv.DictReader(file)]


def start(*arguments: str, before: str = "") -> subprocess.Popen[str]:
    """``capo ARGUMENTS`` in a process of its own; ``before`` is Python code that runs first."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)  # the code that users run, not the quickly compiled one of the tests
    code = f"{before}\nimport sys\nfrom capo.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
