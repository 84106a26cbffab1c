"""The table of rates in numbers: how fast each algorithm closes the gap, and what its theorem promises.

V*(rho) - V(rho) against iterations for cyclic, randomized and batch CAPO, for policy gradient (with the proven
step and with a tuned one) and natural policy gradient, on random MDPs with rewards in [0, 1]; mu is uniform.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from capo.experiments import common, tight_rates
from capo.experiments.common import SUMMARY, Row
from capo.progress import show_progress
from capo.report import figures
from capo.tabular import mdps
from capo.tabular.baselines import natural_policy_gradient, policy_gradient
from capo.tabular.mdp import MDP, Floats
from capo.tabular.solver import Snapshot, solve, solve_many
from capo.tabular.theory import (
    PolicyValues,
    batch_rate,
    cyclic_rate,
    natural_gradient_rate,
    optimal,
    policy_gradient_rate,
    randomized_rate,
)

DATA = ("curves.csv", "table.csv", tight_rates.FILE, SUMMARY)
OPTIONS = ()
FAMILIES: dict[str, tuple[str, Callable[[int], MDP]]] = {
    "garnet .9": ("Garnet: 20 states, 4 actions, gamma .9", lambda seed: mdps.garnet(20, 4, 3, 0.9, seed)),
    "random .9": ("Random: 10 states, 3 actions, gamma .9", lambda seed: mdps.random(10, 3, 0.9, seed)),
    "random .5": ("Random: 5 states, 3 actions, gamma .5", lambda seed: mdps.random(5, 3, 0.5, seed)),
}
TARGET = 1e-6
NPG_ETA = 1.0
ROUNDING = 1e-13  # a gap below this is round-off, and the curve ends there
_CURVE_POINTS = 45
_NAMES = {
    "cyclic": "Cyclic CAPO",
    "randomized": "Randomized CAPO",
    "batch": "Batch CAPO",
    "pg mei": "Policy gradient, proven step",
    "pg tuned": "Policy gradient, tuned step",
    "npg": f"Natural policy gradient, eta {NPG_ETA:g}",
}


@dataclass
class Curve:
    """One algorithm on one MDP: gaps after ``iteration`` updates, and its theorem's bound there.

    Attributes:
        sweep: iterations that update as many pairs as the MDP has: S*A, or 1 if each updates all of them.
        constant: C of the bound C/m; None where there is no theorem.
        printed: constant and bound as printed in the paper, where the proven ones differ.
    """

    algorithm: str
    iteration: npt.NDArray[Any]
    gap: Floats
    sweep: int
    bound: Floats | None = None
    constant: float | None = None
    printed: tuple[float, Floats] | None = None


def run(out: Path, quick: bool = False, progress: bool = True) -> None:
    """Compute everything and write curves.csv, table.csv and summary.json into ``out``."""
    size = {"instances": 5, "seeds": 100, "sweeps": 60, "pg_iterations": 100_000, "npg_iterations": 3000}
    if quick:
        size = {"instances": 2, "seeds": 20, "sweeps": 40, "pg_iterations": 2000, "npg_iterations": 1000}
    ticker = show_progress(progress)
    curves: list[Row] = []
    table: list[Row] = []
    total = len(FAMILIES) * size["instances"] * len(_NAMES)
    for family, (_, make) in FAMILIES.items():
        for instance in range(size["instances"]):
            for curve in _curves(make(instance), size):
                key = {"family": family, "instance": instance, "algorithm": curve.algorithm}
                curves += _curve_rows(key, curve)
                table.append({**key, **_table_row(curve)})
                last = f"{curve.algorithm} on {family}"
                ticker.show(f"rates: {len(table)} of {total} curves done; the last was {last}")
    ticker.close()
    summary = {
        "experiment": "rates",
        "quick": quick,
        "families": {key: title for key, (title, _) in FAMILIES.items()},
        **size,
        "instances_are": f"MDP seeds 0 to {size['instances'] - 1}",
        "seeds_are": f"0 to {size['seeds'] - 1}, for the randomized rule, whose gap is their mean",
        "npg_eta": NPG_ETA,
        "target": TARGET,
        "mu": "uniform",
        "bounds": "the repaired forms of capo.tabular.theory; for cyclic also as printed",
    }
    common.write_data(out, summary, curves=curves, table=table, tight=tight_rates.rows())


def _curves(mdp: MDP, size: dict[str, int]) -> Iterator[Curve]:
    mu = np.full(mdp.n_states, 1 / mdp.n_states)
    best = optimal(mdp)
    goal = float(mdp.start @ best.values)
    yield from _single(mdp, mu, goal, size)
    yield from _whole(mdp, mu, best, goal, size)


def _single(mdp: MDP, mu: Floats, goal: float, size: dict[str, int]) -> Iterator[Curve]:
    """The rules that update one pair per iteration."""
    pairs = mdp.n_states * mdp.n_actions
    updates = size["sweeps"] * pairs
    result = solve(mdp, "cyclic", iterations=updates, record_every=updates)
    assert result.trace is not None
    k = np.arange(len(result.trace) + 1)
    gap = goal - np.concatenate([result.history["value"][:1], result.trace.value])
    rate, printed = cyclic_rate(mdp, mu), cyclic_rate(mdp, mu, form="printed")
    yield Curve("cyclic", k, gap, pairs, rate.gap_rho(k), pairs / rate.c, (pairs / printed.c, printed.gap_rho(k)))
    points = sorted({*range(50), *np.geomspace(1, updates, 300).round().astype(int).tolist()})
    many = solve_many(mdp, size["seeds"], "randomized", iterations=updates, record=points)
    uniform = np.full((mdp.n_states, mdp.n_actions), 1 / pairs)
    drawn = randomized_rate(mdp, mu, uniform)
    bound = drawn.gap_rho(many.iteration)
    yield Curve("randomized", many.iteration, goal - many.value.mean(axis=0), pairs, bound, 1 / drawn.c)


def _whole(mdp: MDP, mu: Floats, best: PolicyValues, goal: float, size: dict[str, int]) -> Iterator[Curve]:
    """The algorithms that update all pairs in every iteration."""
    result = solve(mdp, "batch", iterations=size["sweeps"], record_every=1)
    rate = batch_rate(mdp, mu)
    k = result.history["iteration"]
    yield Curve("batch", k, goal - result.history["value"], 1, rate.gap_rho(k), 1 / rate.c)

    least = 1.0  # inf of pi_m(a*|s) along this run, which policy gradient's bound depends on
    optimal_actions = best.policy.argmax(axis=1)

    def watch(now: Snapshot) -> None:
        nonlocal least
        least = min(least, float(np.exp(now.log_policy[np.arange(mdp.n_states), optimal_actions]).min()))

    result = policy_gradient(mdp, "mei", iterations=size["pg_iterations"], callback=watch)
    k = result.history["iteration"]
    bound = policy_gradient_rate(mdp, mu, best, least, k)
    yield Curve("pg mei", k, goal - result.history["value"], 1, bound, float(bound[0]))

    result = policy_gradient(mdp, "tuned", iterations=size["npg_iterations"], record_every=1)
    yield Curve("pg tuned", result.history["iteration"], goal - result.history["value"], 1)

    result = natural_policy_gradient(mdp, NPG_ETA, iterations=size["npg_iterations"], record_every=1)
    k = result.history["iteration"]
    bound = natural_gradient_rate(mdp, NPG_ETA, k)
    yield Curve("npg", k, goal - result.history["value"], 1, bound, float(bound[1]))


def _table_row(curve: Curve) -> Row:
    there = curve.gap <= TARGET
    first = int(curve.iteration[there.argmax()]) if there.any() else None
    printed = curve.printed
    return {
        "sweep": curve.sweep,
        "constant": curve.constant,
        "worst_ratio": None if curve.bound is None else _worst(curve.gap, curve.bound),
        "printed_constant": None if printed is None else printed[0],
        "printed_worst_ratio": None if printed is None else _worst(curve.gap, printed[1]),
        "iterations_to_target": first,
        "sweeps_to_target": None if first is None else first / curve.sweep,
        "first_gap": float(curve.gap[0]),
        "last_iteration": int(curve.iteration[-1]),
        "last_gap": max(float(curve.gap[-1]), 0.0),
    }


def _worst(gap: Floats, bound: Floats) -> float:
    return float((np.maximum(gap, 0) / bound).max())


def _curve_rows(key: Row, curve: Curve) -> list[Row]:
    """The curve at points evenly spaced in the logarithm, up to where it reaches round-off."""
    below = curve.gap < ROUNDING
    end = int(below.argmax()) if below.any() else len(curve.gap) - 1
    wanted = np.geomspace(1, curve.iteration[end] + 1, _CURVE_POINTS) - 1
    index = np.unique(np.searchsorted(curve.iteration, wanted.round()).clip(max=end))
    return [
        {
            **key,
            "iteration": int(curve.iteration[i]),
            "gap": max(float(curve.gap[i]), ROUNDING),
            "bound": None if curve.bound is None or np.isinf(curve.bound[i]) else float(curve.bound[i]),
        }
        for i in index
    ]


# --- what is printed ------------------------------------------------------------------------------------------


def report(folder: Path) -> str:
    """The paper's table of rates in numbers, from the files in ``folder``."""
    summary = common.read_json(folder / SUMMARY)
    table = common.read_groups(folder / "table.csv", "family", "algorithm")
    header = ["", "bound x m", "worst gap/bound", f"iterations to {summary['target']:g}", "in sweeps", "last gap"]
    parts = []
    for family, title in summary["families"].items():
        rows: list[list[str]] = []
        for algorithm, name in _NAMES.items():
            found = table[family, algorithm]
            rows.append(_report_row(name, found, "constant", "worst_ratio"))
            if algorithm == "cyclic":
                printed = _report_row("  its bound as printed", found, "printed_constant", "printed_worst_ratio")
                rows.append([*printed[:3], "", "", ""])
        parts.append(common.text_table(f"{title}; {summary['instances']} instances", header, rows))
    note = (
        "gap: V* - V at the uniform start distribution; randomized: mean of "
        f"{summary['seeds']} seeds.\nbound x m: the theorem's constant (median over instances). worst gap/bound: "
        "largest over iterations and instances;\nat most 1 means that the bound holds. iterations: median over "
        "instances (fewest to most); > n: more than n.\nsweep: S*A single updates, or one iteration that updates "
        "all pairs. last gap: the largest at the end of a run."
    )
    quick = common.quick_note(summary["quick"], "instances, seeds and iterations")
    return "\n\n".join([*quick, *parts, note, tight_rates.report(folder)])


def _report_row(label: str, rows: list[Row], constant: str, ratio: str) -> list[str]:
    constants = [row[constant] for row in rows]
    known = not np.isnan(constants).any()
    gap = max(row["last_gap"] for row in rows)
    return [
        label,
        f"{np.median(constants):.2g}" if known else "no theorem",
        f"{max(row[ratio] for row in rows):.2g}" if known else "",
        _range(rows, "iterations_to_target", 1),
        _range(rows, "sweeps_to_target", rows[0]["sweep"]),
        f"{gap:.1g}" if gap > 1e-12 else "< 1e-12",
    ]


def _range(rows: list[Row], column: str, unit: float) -> str:
    """Median and range over instances, in units of ``unit`` iterations; whoever never got there is last."""
    needed = [math.inf if math.isnan(row[column]) else row[column] for row in rows]
    last = min(row["last_iteration"] for row in rows) / unit

    def show(x: float) -> str:
        return f"> {last:.0f}" if math.isinf(x) else (f"{x:.0f}" if unit == 1 else f"{x:.1f}")

    if math.isinf(min(needed)):
        return show(math.inf)
    return f"{show(float(np.median(needed)))} ({show(min(needed))} to {show(max(needed))})"


# --- what is drawn --------------------------------------------------------------------------------------------


def draw(folder: Path, out: Path) -> list[Path]:
    """rates.png from the files in ``folder``: gaps and bounds by iteration above, gaps by sweep below."""
    summary = common.read_json(folder / SUMMARY)
    curves = common.read_groups(folder / "curves.csv", "family", "algorithm", "instance")
    table = common.read_csv(folder / "table.csv")
    sweeps = {(row["family"], row["algorithm"]): row["sweep"] for row in table}
    colours = dict(zip(_NAMES, figures.COLOURS, strict=False))
    path = out / "rates.png"
    with figures.figure(path, 2, 3, size=(13, 8.2), sharey="row") as (drawing, axes):
        for column, (family, title) in enumerate(summary["families"].items()):
            above, below = axes[:, column]
            for (name, algorithm, instance), rows in curves.items():
                if name != family:
                    continue
                label = _NAMES[algorithm] if instance == 0 else None
                style = {"color": colours[algorithm], "lw": 1.3, "alpha": 0.75}
                k = np.array([row["iteration"] for row in rows])
                gap = [row["gap"] for row in rows]
                above.plot(k + 1, gap, label=label, **style)
                below.plot(k / sweeps[family, algorithm], gap, **style)
                if instance == 0:
                    bound = [row["bound"] for row in rows]
                    above.plot(k + 1, bound, ls=(0, (4, 2)), color=colours[algorithm], lw=1.3)
            above.set_title(title)
            above.set(xscale="log", yscale="log", xlabel="m (iterations + 1)", ylim=(1e-12, None))
            below.set(xscale="symlog", yscale="log", xlabel="sweeps over all pairs", ylim=(1e-12, 30))
            below.set_xlim(0, None)
        axes[0, 0].set_ylabel("V* - V, and its bound (dashed)")
        axes[1, 0].set_ylabel("V* - V")
        figures.legend_below(drawing, [axes[0, 0]], columns=6)
        worst = max(row["worst_ratio"] for row in table if not math.isnan(row["worst_ratio"]))
        common.caption(
            drawing,
            f"V* - V (solid, {summary['instances']} instances per panel) is at most {worst:.2g} times its "
            "theorem's bound (dashed). Lower row: the same against sweeps.\nAbove 1/(1-gamma) a bound excludes "
            "nothing, which is so for every CAPO bound here: see bounds.png for smaller MDPs",
            fontsize=11.5,
        )
    return [path, tight_rates.draw(folder, out)]
