"""From a learner's metrics to the rows of metrics.csv, and the check that training is still sound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import NDArray, PyTree
from capo.errors import CapoError
from capo.neural.algorithms.base import UPDATE_METRICS
from capo.runs.layout import FRAMES, ITERATION, SEED, is_timing

Rows = list[dict[str, float]]

_FIRST = ("episode_return", "episode_length", "actor_loss", "critic_loss", "entropy", "grad_norm")
_LOSSES = ("actor_loss", "critic_loss", "grad_norm")  # those that an algorithm has
_NOT_FINITE = "that is not a finite number (nan or infinite)"
_GUARDS = {  # what ended the training; a mask comes first, since what is not allowed may be paid anything
    "masks_sound": "the environment {env!r} returned an action mask that allows no action at all",
    "behaviour_sound": "the behaviour gave no probability to any of the actions that {env!r} allows",
    "rewards_finite": f"the environment {{env!r}} returned a reward {_NOT_FINITE}",
    "observations_finite": f"the environment {{env!r}} returned an observation {_NOT_FINITE}",
}


class Diverged(CapoError):
    """A loss or a parameter is no longer a finite number."""


class BadEnvironment(Diverged):
    """A reward or an observation is not a finite number, or nothing is left to do: see ``_GUARDS``."""


def rows(metrics: Mapping[str, NDArray], seeds: Sequence[int], iteration: int, frames_per_iteration: int) -> Rows:
    """One row per seed: counts summed, episode statistics weighted by episodes, the rest averaged.

    Metrics of learning are averaged over the iterations that learned: before Rainbow begins there are none.

    Args:
        metrics: arrays (iterations, K) from :meth:`Learner.run`.
        seeds: K of them.
        iteration: the last one of these.
        frames_per_iteration: of one seed.
    """
    columns = {name: np.asarray(values, np.float64) for name, values in metrics.items()}
    episodes = columns.pop("episodes")
    learned = columns.pop("learned", np.ones_like(episodes))
    for guard in ("finite", *_GUARDS):  # always 1 in a row that is written
        columns.pop(guard, None)
    found: Rows = []
    for index, seed in enumerate(seeds):
        count = episodes[:, index]
        row: dict[str, float] = {
            SEED: seed,
            ITERATION: iteration,
            FRAMES: iteration * frames_per_iteration,
            "episodes": int(count.sum()),
        }
        for name in sorted(columns, key=_order):
            values = columns[name][:, index]
            if name.startswith("episode_"):
                row[name] = _weighted(values, count)
            elif name in UPDATE_METRICS:
                row[name] = _weighted(values, learned[:, index])
            else:
                row[name] = float(values.mean())
        found.append(row)
    return found


def blank(row: Mapping[str, float]) -> dict[str, float]:
    """The row of a seed that diverged: where it was, and nothing else."""
    kept = (SEED, ITERATION, FRAMES)
    return {name: value if name in kept or is_timing(name) else math.nan for name, value in row.items()}


def _weighted(values: NDArray, weight: NDArray) -> float:
    """The weighted mean of (n,) values; nan where all weights are 0, whose values may be nan."""
    total = np.where(weight > 0, values, 0.0) @ weight
    return float(total / weight.sum()) if weight.any() else math.nan


def _order(column: str) -> tuple[int, str]:
    """Where a column stands in metrics.csv: what people look at first comes first."""
    return (_FIRST.index(column) if column in _FIRST else len(_FIRST), column)


def divergences(
    metrics: Mapping[str, NDArray], seeds: Sequence[int], last: int, env: str, params: PyTree
) -> dict[int, Diverged]:
    """The seeds with a reward, observation, loss or parameter that is not finite, and what it was.

    Args:
        metrics: arrays (iterations, K).
        seeds: K of them.
        last: the number of the last of these iterations.
        env: the environment's name.
        params: networks of all seeds after the last iteration.

    Returns:
        The first such thing of each seed, the earliest of them first.
    """
    watched = {name: np.asarray(metrics[name]) for name in _LOSSES if name in metrics}
    bad = np.asarray(metrics["finite"]) == 0
    for values in watched.values():
        bad = bad | ~np.isfinite(values)
    guards = {what: np.asarray(metrics[name]) == 0 for name, what in _GUARDS.items() if name in metrics}
    first = last + 1 - len(bad)
    found: dict[int, Diverged] = {}
    for at, index in np.argwhere(np.logical_or.reduce([bad, *guards.values()])).tolist():
        if seeds[index] in found:
            continue
        wrong = next((what for what, wrong in guards.items() if wrong[:, index].any()), None)
        if wrong is not None:
            found[seeds[index]] = BadEnvironment(
                f"iteration {first + at}, seed {seeds[index]}: {wrong.format(env=env)}"
            )
            continue
        shown = ", ".join(f"{name} {value[at, index]:g}" for name, value in watched.items())
        broken = _broken(jax.tree.map(lambda leaf, row=index: leaf[row], params))
        found[seeds[index]] = Diverged(
            f"iteration {first + at}, seed {seeds[index]}: {shown}"
            + (f"; not finite by iteration {last}: {broken}" if broken else "")
        )
    return found


def broken(metrics: Mapping[str, NDArray], env: str) -> NDArray:
    """Which of K seeds diverged, (K,) booleans, where the others continue.

    Args:
        metrics: arrays (iterations, K).
        env: the environment's name.

    Raises:
        BadEnvironment: if what the environment or a behaviour gave is not sound.
    """
    for guard, what in _GUARDS.items():
        if (np.asarray(metrics.get(guard, 1.0)) == 0).any():
            raise BadEnvironment(what.format(env=env))
    bad = np.asarray(metrics["finite"]) == 0
    for name in _LOSSES:
        if name in metrics:
            bad = bad | ~np.isfinite(np.asarray(metrics[name]))
    return np.asarray(bad.any(axis=0))


def _broken(params: PyTree) -> str:
    """The parameters of one seed that are not finite, in words."""
    broken = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        wrong = int((~jnp.isfinite(leaf)).sum())
        if wrong:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            broken.append(f"{name} ({wrong} of {leaf.size})")
    return ", ".join(broken[:3]) + (f" and {len(broken) - 3} more" if len(broken) > 3 else "")


def is_finite(params: PyTree) -> bool:
    """Whether every parameter is a finite number."""
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(params))
