"""What the tests of sweeps share: trainings so small that they take seconds, and what they leave."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from capo.runs import checkpoint
from capo.runs.layout import is_timing

TINY: dict[str, Any] = {
    "n_envs": 8,
    "rollout_length": 2,
    "width": 8,
    "shared_trunk": True,
    "batch_size": 4,
    "gradient_steps": 2,
    "replay_rollouts": 32,
}
SPEC: dict[str, Any] = {"environments": ["probe-both"], "frames": 640, "eval_episodes": 5, "settings": TINY}


def result(folder: Path) -> dict[str, Any]:
    """All that a run's folder holds but for times and machines: rows, arrays of the last checkpoint, returns."""
    newest = max((folder / "checkpoints").glob("*.safetensors"))
    with open(folder / "metrics.csv", newline="") as file:
        rows = [{key: cell for key, cell in row.items() if not is_timing(key)} for row in csv.DictReader(file)]
    return {
        "rows": rows,
        "arrays": {name: array.tobytes() for name, array in checkpoint.read(newest).arrays.items()},
        "returns": json.loads((folder / "evaluation.json").read_text())["returns"],
        "newest": newest.name,
    }


def results(sweep: Path) -> dict[str, dict[str, Any]]:
    """The same of every job of a sweep, by id."""
    return {folder.name: result(folder) for folder in sorted((sweep / "jobs").iterdir())}


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """When each file of a folder was changed last, and its inode: equal only if nothing was touched."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in files}


def attempts(folder: Path) -> int:
    """How often a job was begun, by its log."""
    return sum(line.startswith("-- ") for line in (folder / "log.txt").read_text().splitlines())
