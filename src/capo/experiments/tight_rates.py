"""Where the rate theorems could fail: MDPs so small that their bounds say something.

A bound above 1/(1 - gamma), the largest gap that any policy can have, excludes nothing. Here it falls below that
while CAPO is still far from the optimum, and a run with a tenth of the step breaks it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from capo.errors import CapoWarning
from capo.experiments import common
from capo.experiments.common import Row
from capo.report import figures
from capo.tabular.mdp import MDP, Floats
from capo.tabular.solver import solve, solve_many
from capo.tabular.theory import PolicyValues, Rate, batch_rate, cyclic_rate, optimal, randomized_rate

FILE = "tight.csv"
SIZES = [(1, 0.01), (1, 0.1), (1, 0.5), (2, 0.1), (2, 0.5)]  # states, gamma
SPEEDS = (1.0, 0.1)  # the step, as a share of log 1/pi: CAPO, and a run too slow for its theorem
SEEDS = 200  # of the randomized rule
_START = 3.0  # theta of the worse action; the better one has its negative
_MOST = 20_000  # iterations
_RULES = {"cyclic": "Cyclic", "randomized": "Randomized", "batch": "Batch"}


def small_mdp(n_states: int, gamma: float) -> MDP:
    """Two actions with rewards 1 and 0; every state leads to every state alike."""
    return MDP(
        np.full((n_states, 2, n_states), 1 / n_states), np.tile([1.0, 0.0], (n_states, 1)), gamma,
        name=f"small:{n_states},{gamma:g}",
    )  # fmt: skip


def rows() -> list[Row]:
    """The gap and the bound of every rule, MDP and speed, after every iteration of interest."""
    return [row for size in SIZES for rule in _RULES for speed in SPEEDS for row in _rows(*size, rule, speed)]


def _rows(n_states: int, gamma: float, rule: str, speed: float) -> Iterator[Row]:
    mdp = small_mdp(n_states, gamma)
    rate = _rate(mdp, rule)
    first = int(rate.length * np.ceil(rate.ratio / rate.c_mu * (1 - gamma)))  # where the bound meets 1/(1-gamma)
    iterations = min(4 * first, _MOST)
    ks = np.unique(np.r_[np.arange(min(20, iterations)), np.geomspace(1, iterations, 60).round()]).astype(int)
    gaps, bounds = _gaps(mdp, rule, speed, ks), rate.gap_rho(ks)
    for k, gap, bound in zip(ks.tolist(), gaps.tolist(), bounds.tolist(), strict=True):
        yield {
            "states": n_states, "gamma": gamma, "rule": rule, "speed": speed, "m": k + 1, "gap": max(gap, 0.0),
            "bound": bound, "says_something": int(bound < 1 / (1 - gamma)),
        }  # fmt: skip


def _rate(mdp: MDP, rule: str) -> Rate:
    mu = np.full(mdp.n_states, 1 / mdp.n_states)
    if rule == "randomized":
        return randomized_rate(mdp, mu, np.full(mdp.reward.shape, 1 / mdp.reward.size))
    return cyclic_rate(mdp, mu) if rule == "cyclic" else batch_rate(mdp, mu)


def _gaps(mdp: MDP, rule: str, speed: float, ks: Any) -> Floats:
    """V*(rho) - V(rho) after each of ``ks`` iterations; for the randomized rule the mean over seeds."""
    best: PolicyValues = optimal(mdp)
    theta = np.tile([-_START, _START], (mdp.n_states, 1))
    options: dict[str, Any] = {"multiple": speed, "allow_violation": True, "theta": theta}
    goal, last = float(mdp.start @ best.values), int(ks[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CapoWarning)  # that a tenth of the step is outside the theorems
        return goal - _values(mdp, rule, ks, last, options)


def _values(mdp: MDP, rule: str, ks: Any, last: int, options: dict[str, Any]) -> Floats:
    if rule == "randomized":
        many = solve_many(mdp, SEEDS, rule, iterations=last, record=ks, **options)
        return np.asarray(many.value.mean(axis=0))
    result = solve(mdp, rule, iterations=last, record_every=1, **options)
    values = np.full(last + 1, result.value)  # a run that has nothing left to change ends early
    values[: len(result.history["value"])] = result.history["value"]
    return np.asarray(values[ks])


def report(folder: Path) -> str:
    """The table, from the file in ``folder``."""
    found = common.read_groups(folder / FILE, "states", "gamma", "rule", "speed")
    table = []
    for states, gamma in SIZES:
        for rule, name in _RULES.items():
            capo, slow = (found[states, gamma, rule, speed] for speed in SPEEDS)
            telling = [row for row in capo if row["says_something"]]
            table.append(
                [
                    f"{name}, {states} state{'s' * (states > 1)}, gamma {gamma:g}",
                    f"{telling[0]['m']:.0f}" if telling else "-",
                    f"{_worst(telling):.2g}",
                    f"{_worst(capo):.2g}",
                    f"{_worst(row for row in slow if row['says_something']):.3g}",
                ]
            )
    header = [
        "",
        "bound < 1/(1-gamma) from m",
        "worst there",
        "worst anywhere",
        "a tenth of the step, worst there",
    ]
    note = (
        "Two actions, rewards 1 and 0, the policy starts at pi(better) = "
        f"{1 / (1 + np.exp(2 * _START)):.2g}. worst: largest gap/bound; above 1, the bound is broken.\n"
        "The last column is not CAPO: its step is too small for the theorems, which it may break."
    )
    return common.text_table("Where the bounds could fail", header, table, note)


def _worst(found: Any) -> float:
    return max((row["gap"] / row["bound"] for row in found), default=0.0)


def draw(folder: Path, out: Path) -> Path:
    """bounds.png: gaps and bounds of the batch rule and of the cyclic rule, where they are vacuous shaded."""
    found = common.read_groups(folder / FILE, "rule", "states", "gamma", "speed")
    path = out / "bounds.png"
    shown = [(rule, 1, gamma) for rule in ("batch", "cyclic") for gamma in (0.01, 0.1)]
    with figures.figure(path, 1, len(shown), size=(13, 3.6), sharey=True) as (drawing, axes):
        for axis, (rule, states, gamma) in zip(np.ravel(axes), shown, strict=True):
            for speed, colour, label in (
                (1.0, figures.HIGHLIGHT, "CAPO"),
                (0.1, figures.MUTED, "a tenth of the step"),
            ):
                points = found[rule, states, gamma, speed]
                m = [row["m"] for row in points]
                axis.plot(m, [max(row["gap"], 1e-6) for row in points], color=colour, label=label)
            axis.plot(m, [row["bound"] for row in points], color="black", ls="--", lw=1.3, label="bound")
            telling = next((row["m"] for row in points if row["says_something"]), m[-1])
            axis.axvspan(1, telling, color="#eeeeee", lw=0, label="bound above 1/(1-gamma): excludes nothing")
            axis.set(xscale="log", yscale="log", xlabel="m (iterations + 1)", ylim=(1e-4, 10), xlim=(1, m[-1]))
            axis.set_title(f"{_RULES[rule]}, 1 state, gamma {gamma:g}")
        np.ravel(axes)[0].set_ylabel("V* - V")
        figures.legend_below(drawing, [np.ravel(axes)[0]], columns=4)
        common.caption(drawing, "MDPs small enough for the bounds to say something", fontsize=11.5)
    return path
