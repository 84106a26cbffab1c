"""The names inside a run's folder: its files and the columns of metrics.csv.

config.json      settings, seeds, versions, commit, hardware
metrics.csv      one row per seed and log point
tensorboard/     the same as event files, one folder per seed
checkpoints/     the last few whole states
evaluation.json  the last evaluation, and the versions, commit and hardware behind it
curve.png        the training curve
"""

from __future__ import annotations

import os
import re
from pathlib import Path

CONFIG = "config.json"
METRICS = "metrics.csv"
EVALUATION = "evaluation.json"
CURVE = "curve.png"
EVENTS = "tensorboard"
EVENT_FILE = "events.out.tfevents.capo"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"

SEED, ITERATION, FRAMES = "seed", "iteration", "frames"  # the columns that say which row it is
RETURN = "episode_return"  # mean return of the episodes that ended since the last row
SCORE = "evaluation_return"  # mean return of the evaluation at this log point; empty where there was none


def is_timing(column: str) -> bool:
    """Whether a column is about time, and so differs between identical runs."""
    return column.endswith(("_seconds", "_per_second"))


def is_run(path: Path) -> bool:
    """Whether a folder is a run's."""
    return any(os.path.isfile(path / name) for name in (CONFIG, METRICS))


def next_folder(env: str, algorithm: str, root: Path = Path("runs")) -> Path:
    """``runs/<env>-<algo>-<n>`` with the first n that is free."""
    stem = re.sub(r"[^\w.-]+", "-", f"{env}-{algorithm}")
    taken = {path.name for path in root.iterdir()} if root.is_dir() else set()
    return next(root / f"{stem}-{n}" for n in range(1, len(taken) + 2) if f"{stem}-{n}" not in taken)
