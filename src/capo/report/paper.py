"""The paper's MinAtar curves, read off the authors' poster; see data/README.md."""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib import resources

import numpy as np

from capo.runs.records import Curve

_GAMES = {"Breakout": "breakout", "Seaquest": "seaquest", "Asterix": "asterix", "SpaceInv": "space_invaders"}

# Mean return at the very end of the curves (10 seeds), read at a larger scale than the points of the CSV.
_FINAL = {
    "ncapo": {"seaquest": 32.6, "breakout": 54.5, "asterix": 21.7, "space_invaders": 232.9},
    "rainbow": {"seaquest": 6.4, "breakout": 10.3, "asterix": 36.7, "space_invaders": 75.4},
    "ppo": {"seaquest": 15.3, "breakout": 32.4, "asterix": 14.5, "space_invaders": 112.4},
    "a2c": {"seaquest": 7.1, "breakout": 12.1, "asterix": 26.5, "space_invaders": 145.0},
    "offpac": {"seaquest": 0.0, "breakout": 5.6, "asterix": 5.1, "space_invaders": 15.2},
}


@cache
def curves() -> dict[tuple[str, str], Curve]:
    """(frames (n,), mean return (n,)) by game and algorithm, both as this package spells them.

    >>> frames, returns = curves()["breakout", "ncapo"]
    >>> float(frames[-1]), float(returns[-1])
    (9750000.0, 54.13)
    """
    text = resources.files("capo.report").joinpath("data", "minatar_curves.csv").read_text()
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        point = (1e6 * float(row["env_steps_M"]), float(row["mean_return"]))
        points.setdefault((_GAMES[row["game"]], row["algo"].lower()), []).append(point)
    ordered = {key: np.array(sorted(pairs)) for key, pairs in points.items()}
    return {key: (found[:, 0], found[:, 1]) for key, found in ordered.items()}


def of_environment(env: str) -> dict[str, Curve]:
    """The curves of an environment such as ``minatar-breakout``, by algorithm; empty for all others."""
    return {algo: curve for (game, algo), curve in curves().items() if env == f"minatar-{game}"}


def final(env: str, algorithm: str) -> float | None:
    """The paper's mean return at the end of training, or None where it reports none.

    >>> final("minatar-breakout", "ncapo"), final("minatar-freeway", "ncapo")
    (54.5, None)
    """
    return _FINAL.get(algorithm, {}).get(env.removeprefix("minatar-"))
