"""Folders of runs as `capo train` leaves them, made without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capo.experiments.results import write_result
from capo.runs.records import FORMAT

FRAMES = 1_000_000
VERSIONS = {"python": "3.11.9", "capo-rl": "0.1.0", "numpy": "2.4.0", "jax": "0.10.2", "pgx": "2.6.0"}


def config(env: str, algorithm: str, seeds: Sequence[int], **changes: Any) -> dict[str, Any]:
    """The config.json of a run."""
    return {
        "algorithm": algorithm,
        "env": env,
        "environment": {"name": env},
        "preset": "default",
        "overrides": {},
        "config": {"gamma": 0.99, "n_envs": 64, "epsilon_start": 0.3, "epsilon_final": 0.05},
        "seeds": list(seeds),
        "frames": FRAMES,
        "versions": dict(VERSIONS),
        "commit": "0123456789abcdef",
        "hardware": {"processor": "A processor", "cores": 2, "backend": "cpu", "devices": ["cpu"]},
        "started": "2026-01-01T00:00:00+00:00",
    } | changes


def make_run(
    path: Path,
    env: str = "minatar-breakout",
    algorithm: str = "ncapo",
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    top: float = 40.0,
    stops: dict[int, int] | None = None,
    evaluated: bool = True,
    rows: int = 100,
    **changes: Any,
) -> Path:
    """A folder with config.json, metrics.csv and evaluation.json.

    Args:
        top: about the return at the end.
        stops: log points that a seed has, if not all.
    """
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config(env, algorithm, seeds, **changes)))
    lines = ["seed,iteration,frames,episodes,episode_return,elapsed_seconds,frames_per_second"]
    finals = []
    for seed in seeds:
        rng = np.random.default_rng([seed, len(algorithm), len(env)])
        reach = top * rng.uniform(0.75, 1.2)
        for point in range(1, rows + 1):
            value = reach * (1 - np.exp(-4 * point / rows)) + rng.normal(0, 0.03 * top)
            if point <= (stops or {}).get(seed, rows):
                cell = "" if point == 1 else f"{value:.5g}"  # no episode had ended at the first log point
                lines.append(f"{seed},{point},{point * FRAMES // rows},5,{cell},{point:.1f},12000")
        finals.append(float(reach))
    (path / "metrics.csv").write_text("\n".join(lines) + "\n")
    if evaluated and not stops:
        evaluation = {
            "mean": float(np.mean(finals)),
            "episodes_per_seed": 100,
            "deterministic": False,
            "frames": FRAMES,
            "seeds": list(seeds),
            "mean_by_seed": finals,
        }
        (path / "evaluation.json").write_text(json.dumps(evaluation))
    return path


def make_result(folder: Path, game: str, algorithm: str, top: float, **changes: Any) -> Path:
    """A results file of `capo reproduce minatar`, made without training."""
    folder.mkdir(exist_ok=True)
    frames = list(range(500_000, 10_000_001, 500_000))
    seeds = [
        {
            "seed": seed,
            "training": {"frames": frames, "returns": [None] + [top * (i + seed) / 20 for i in range(1, 20)]},
            "evaluation": {"frames": frames, "returns": [top * (i + seed) / 20 for i in range(20)]},
            "final_returns": [top + seed, top - seed],
        }
        for seed in range(5)
    ]
    content = {
        "experiment": "minatar",
        "format": FORMAT,
        "game": game,
        "env": f"minatar-{game}",
        "algorithm": algorithm,
        "preset": "default",
        "frames": 10_000_000,
        "frames_trained": 10_000_000,
        "quick": False,
        "protocol": {"Final score": "100 whole episodes of each seed"},
        "config": {"gamma": 0.99},
        "programs": [
            {
                "seeds": list(range(5)),
                "wall_seconds": 60.0,
                "started": "2026-01-01T00:00:00+00:00",
                "versions": {"jax": "0.10"},
                "hardware": {"processor": "A processor", "cores": 2},
            }
        ],
        "seeds": seeds,
    }
    content |= changes
    file = folder / f"{game}-{algorithm}-{content['preset']}.json"
    write_result(file, content)
    return file


def make_gif(path: Path) -> Path:
    """A small animated picture."""
    from PIL import Image

    pictures = [Image.new("RGB", (100, 100), colour) for colour in ("#204060", "#a04020")]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=400, loop=0)
    return path
