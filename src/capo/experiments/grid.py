"""The maze: CAPO against Off-PAC and PPO, all with true values.

The paper has it in its source's comments and on its poster, without settings. Here every method has the same
network, optimiser, exact advantages and, where it can use them, the same batches; PPO is the clipped surrogate on
those advantages, not the PPO that samples its own returns. Beside them exact tabular CAPO. Every run has a maze of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from capo.experiments.batch_neural import NETWORK, Learner, Sizes, Source, batches_from, plain_return, run_all
from capo.experiments.common import groups, read_csv, read_json, text_table, write_csv
from capo.files import write_json
from capo.progress import Ticker
from capo.provenance import provenance
from capo.report import figures
from capo.tabular.baselines import policy_iteration
from capo.tabular.mdp import MDP
from capo.tabular.mdps import grid
from capo.tabular.solver import Snapshot, solve

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

DATA = ("curves.csv", "table.csv", "runs.csv", "summary.json")
MAZES: dict[str, tuple[str, dict[str, Any]]] = {
    "distance 5": ("5 x 5, minus the distance a step", {"size": 5, "distance_reward": True}),
    "step 5": ("5 x 5, -1 a step", {"size": 5}),
    "distance 10": ("10 x 10, minus the distance a step", {"size": 10, "distance_reward": True}),
    "step 10": ("10 x 10, -1 a step", {"size": 10}),
}
LARGE = (
    "distance 10",
    "step 10",
)  # left out of a quick run, and of the sweep over rates: they take ten times as long
_PPO: dict[str, Any] = {"method": "ppo", "steps": 4}
METHODS: dict[str, tuple[str, dict[str, Any], Source]] = {
    "capo all": ("Batch CAPO, all pairs", {}, "all"),
    "capo cyclic": ("Cyclic CAPO, batches of the cycle", {}, "cyclic replay"),
    "capo walk": ("CAPO, uniform behaviour", {}, "walk replay"),
    "capo walk 4": ("CAPO, uniform behaviour, 4 steps", {"steps": 4}, "walk replay"),
    "capo all reverse": ("Batch CAPO, KL(target || pi)", {"kl": "target-to-policy"}, "all"),
    "capo walk reverse": ("CAPO, uniform b., KL(target || pi)", {"kl": "target-to-policy"}, "walk replay"),
    "offpac walk": (
        "Off-PAC with A, uniform behaviour",
        {"method": "offpac", "weight": "advantage"},
        "walk replay",
    ),
    "offpac q": ("Off-PAC with Q, uniform behaviour", {"method": "offpac", "weight": "q"}, "walk replay"),
    "offpac all": ("Off-PAC, all pairs", {"method": "offpac", "weight": "advantage"}, "all"),
    "ppo walk": ("PPO, uniform behaviour, 4 steps", _PPO, "walk replay"),
    "ppo own": ("PPO, its own batches, 4 steps", {**_PPO, "own_batches": 16}, "all"),
    "ppo all": ("PPO, all pairs, 4 steps", _PPO, "all"),
}
EXACT = {"exact batch": "exact tabular Batch CAPO", "exact cyclic": "exact tabular Cyclic CAPO, 16 updates each"}
SIZES = Sizes(iterations=1000, batch=16, replay=100, record_every=10, horizon=100)
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
MAIN_RATE = 1e-3  # the chain's; the grid's is not given
NEAR = 0.05  # a run is near the optimum when this share of what there was to gain is left
POSTER = {"CAPO": 82, "Off-PAC": 79, "PPO": 73}
_CURVE_EVERY = 20


def mazes(options: dict[str, Any], runs: int) -> list[MDP]:
    """One maze a run: seed k, the wall vertical for even k and horizontal for odd k."""
    return [grid(**options, wall="horizontal" if k % 2 else "vertical", seed=k) for k in range(runs)]


def run(out: Path, quick: bool = False, progress: bool = True) -> None:
    """Compute everything and write curves.csv, table.csv, runs.csv and summary.json into ``out``."""
    runs = 5 if quick else 30
    swept = (MAIN_RATE, 1e-2) if quick else RATES
    sizes = SIZES
    chosen = {name: maze for name, maze in MAZES.items() if not (quick and name in LARGE)}
    ticker = Ticker(progress)
    curves: list[dict[str, Any]] = []
    table: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    best: dict[str, float] = {}
    total, done = len(chosen) * len(METHODS), 0
    for name, (_, options) in chosen.items():
        rates = (MAIN_RATE,) if name in LARGE else swept
        mdps = mazes(options, runs)
        optimum = np.array([plain_return(mdp, policy_iteration(mdp).policy, sizes.horizon) for mdp in mdps])
        best[name] = float(optimum.mean())
        batches = {source: batches_from(source, mdps, sizes) for _, _, source in METHODS.values()}
        found: list[tuple[str, float, Ints, Floats]] = []
        for method, (title, settings, source) in METHODS.items():
            ticker.show(f"grid: {done} of {total} done, now {title}, {name}")
            points, returns = run_all(Learner(**settings), mdps, batches[source], rates, sizes)
            found += [(method, rate, points, kept) for rate, kept in zip(rates, returns, strict=True)]
            done += 1
        for rule in ("batch", "cyclic"):
            ticker.show(f"grid: exact tabular CAPO, {rule}, {name}")
            found.append((f"exact {rule}", math.nan, points, _exact(rule, mdps, points, sizes)))
        for method, rate, points, returns in found:
            key = {"maze": name, "method": method, "rate": rate}
            table.append({**key, **_summary(points, returns, optimum)})
            ends.append({**key, **{f"run_{k}": float(last.round(3)) for k, last in enumerate(returns[:, -1])}})
            if rate == MAIN_RATE or math.isnan(rate):
                curves += _curve_rows(key, points, returns)
    ticker.close()
    summary = {
        "experiment": "grid",
        "quick": quick,
        "mazes": {name: title for name, (title, _) in chosen.items()},
        "gamma": grid().gamma,
        "runs": runs,
        "runs_are": f"seeds 0 to {runs - 1}: of the maze (wall vertical for even seeds), of the first parameters "
        "and of the batches",
        "rates": swept,
        "rates_of_large_mazes": (MAIN_RATE,),
        "optimum": best,
        "near": NEAR,
        "network": NETWORK,
        "batches": "as in the chain: 16 of a buffer of the last 100 pairs, into which 16 enter an iteration, from "
        "the cycle over all pairs or from a uniformly random walk; 'all pairs': all; PPO's own batches: 16 pairs "
        "drawn from the discounted visits of its current policy",
        "ppo": "clipped surrogate (0.2) on exact advantages, 4 gradient steps a batch; importance weights where "
        "the batch is not its own",
        "return": "undiscounted, expected under the policy (nothing sampled), episodes cut at 100 steps",
        "iterations": sizes.iterations,
        "spread": "low and high are the 10 % and 90 % quantiles over runs",
        "poster": POSTER,
        **provenance(),
    }
    write_csv(out / "curves.csv", curves)
    write_csv(out / "table.csv", table)
    write_csv(out / "runs.csv", ends)
    write_json(out / "summary.json", summary)


def _exact(rule: str, mdps: Sequence[MDP], points: Ints, sizes: Sizes) -> Floats:
    """(runs, points) returns of exact tabular CAPO; an iteration of the cyclic rule is 16 single updates."""
    unit = 1 if rule == "batch" else sizes.batch
    returns = np.empty((len(mdps), len(points)))
    for k, mdp in enumerate(mdps):
        seen: dict[int, float] = {}

        def watch(now: Snapshot, mdp: MDP = mdp, seen: dict[int, float] = seen) -> None:
            seen[now.iteration] = plain_return(mdp, np.exp(now.log_policy), sizes.horizon)

        last = int(points[-1]) * unit
        solve(mdp, rule, iterations=last, record_every=sizes.record_every * unit, callback=watch)
        ends = max(seen)  # a run that nothing can improve any more may stop early
        returns[k] = [seen[min(int(point) * unit, ends)] for point in points]
    return returns


def _summary(points: Ints, returns: Floats, optimum: Floats) -> dict[str, Any]:
    """Of the runs (runs, points) at one rate."""
    near = returns >= (optimum - NEAR * (optimum - returns[:, 0]))[:, None]
    first = np.where(near.any(axis=1), points[near.argmax(axis=1)].astype(float), np.inf)
    median = float(np.median(first))
    at = {int(point): i for i, point in enumerate(points)}
    means = returns.mean(axis=0)
    return {
        **{f"at_{point}": float(means[at[point]]) for point in (50, 100, 200, 500)},
        "final": float(means[-1]),
        "final_low": float(np.quantile(returns[:, -1], 0.1)),
        "near_optimum": int(near[:, -1].sum()),
        "median_first": None if math.isinf(median) else median,
    }


def _curve_rows(key: dict[str, Any], points: Ints, returns: Floats) -> list[dict[str, Any]]:
    low, high = np.quantile(returns, [0.1, 0.9], axis=0)
    return [
        {**key, "iteration": int(point), "mean": float(mean), "low": float(below), "high": float(above)}
        for point, mean, below, above in zip(points, returns.mean(axis=0), low, high, strict=True)
        if point % _CURVE_EVERY == 0 or point < 200
    ]


# --- what is printed ------------------------------------------------------------------------------------------


def report(folder: Path) -> str:
    """The tables, from the files in ``folder``."""
    summary = read_json(folder / "summary.json")
    table = read_csv(folder / "table.csv")
    parts = ["QUICK run: fewer runs, rates and mazes than the full one."] if summary["quick"] else []
    for name, title in summary["mazes"].items():
        rows = [_report_row(row, summary) for row in table if row["maze"] == name and _is_main(row)]
        parts.append(
            text_table(
                f"{title}: mean return after so many iterations, {summary['runs']} runs, Adam {MAIN_RATE:g}; "
                f"the optimum is {summary['optimum'][name]:.1f}",
                ["", "0.05k", "0.1k", "0.2k", "0.5k", "1k", "worst tenth", "near", "median first"],
                rows,
            )
        )
    poster = ", ".join(f"{name} {value}" for name, value in summary["poster"].items())
    parts.append(
        f"worst tenth: 10 % quantile of the last returns. near: runs that end within {summary['near']:.0%} of the "
        f"optimum,\ncounted from their first return; median first: when half of them are first there.\n"
        f"Poster, after 1000 iterations (its maze and settings are not given): {poster}."
    )
    parts.append(_rates_table(table, summary))
    return "\n\n".join(parts)


def _is_main(row: dict[str, Any]) -> bool:
    return bool(row["rate"] == MAIN_RATE or math.isnan(row["rate"]))


def _title(method: str) -> str:
    return METHODS[method][0] if method in METHODS else EXACT[method]


def _report_row(row: dict[str, Any], summary: dict[str, Any]) -> list[str]:
    means = [f"{row[column]:.1f}" for column in ("at_50", "at_100", "at_200", "at_500", "final", "final_low")]
    near = f"{row['near_optimum']:.0f}/{summary['runs']}"
    return [_title(row["method"]), *means, near, _count(row["median_first"])]


def _count(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0f}"


def _rates_table(table: list[dict[str, Any]], summary: dict[str, Any]) -> str:
    found = {(row["maze"], row["method"], row["rate"]): row for row in table}
    swept = {name: title for name, title in summary["mazes"].items() if name not in LARGE}
    rows = []
    for method in METHODS:
        cells = [f"{found[name, method, rate]['final']:.1f}" for name in swept for rate in summary["rates"]]
        rows.append([_title(method), *cells])
    return text_table(
        "Mean return at the end, by learning rate; mazes in turn: " + " | ".join(swept.values()),
        ["", *(f"{rate:g}" for _ in swept for rate in summary["rates"])],
        rows,
    )


# --- what is drawn --------------------------------------------------------------------------------------------

# A row a source of pairs: method -> (legend, colour, line).
_ROWS: dict[str, dict[str, tuple[str, str, str]]] = {
    "all pairs": {
        "capo all": ("CAPO, KL(pi || target), the paper's", figures.COLOURS[0], "-"),
        "capo all reverse": ("CAPO, KL(target || pi)", figures.COLOURS[5], "-"),
        "offpac all": ("Off-PAC with A", figures.COLOURS[1], "--"),
        "ppo all": ("PPO, 4 steps", figures.COLOURS[3], "-."),
        "exact batch": ("exact tabular Batch CAPO", figures.COLOURS[6], ":"),
    },
    "uniform behaviour": {
        "capo walk": ("CAPO, KL(pi || target), the paper's", figures.COLOURS[0], "-"),
        "capo walk reverse": ("CAPO, KL(target || pi)", figures.COLOURS[5], "-"),
        "offpac walk": ("Off-PAC with A", figures.COLOURS[1], "--"),
        "offpac q": ("Off-PAC with Q", figures.COLOURS[4], "--"),
        "ppo walk": ("PPO, 4 steps", figures.COLOURS[3], "-."),
        "ppo own": ("PPO, 4 steps, its own batches", figures.COLOURS[2], "-."),
    },
}


def draw(folder: Path, out: Path) -> list[Path]:
    """grid.png (5 x 5) and grid10.png (10 x 10, where there are such runs), from the files in ``folder``."""
    summary = read_json(folder / "summary.json")
    curves = groups(read_csv(folder / "curves.csv"), "maze", "method")
    small = [name for name in summary["mazes"] if name not in LARGE]
    large = [name for name in summary["mazes"] if name in LARGE]
    drawn = [_draw_mazes(out / "grid.png", small, curves, summary, last=600)]
    return drawn + ([_draw_mazes(out / "grid10.png", large, curves, summary, last=1000)] if large else [])


def _draw_mazes(
    path: Path,
    names: Sequence[str],
    curves: dict[tuple[Any, ...], list[dict[str, Any]]],
    summary: dict[str, Any],
    last: int,
) -> Path:
    """Returns by iteration, a column a maze and a row a source of pairs."""
    shared = {"sharex": True, "sharey": "col", "squeeze": False}
    with figures.figure(path, 2, len(names), size=(10.5, 7.2), **shared) as (drawing, axes):
        for axis_row, (source, methods) in zip(axes, _ROWS.items(), strict=True):
            for axis, name in zip(axis_row, names, strict=True):
                for method, (label, colour, style) in methods.items():
                    if (name, method) not in curves:
                        continue
                    rows = curves[name, method]
                    x = [row["iteration"] for row in rows]
                    axis.plot(x, [row["mean"] for row in rows], color=colour, ls=style, label=label)
                optimum, first = summary["optimum"][name], curves[name, "capo all"][0]["mean"]
                axis.axhline(optimum, color=figures.MUTED, lw=0.8)
                span = optimum - first
                axis.set(xlim=(0, last), ylim=(optimum - 0.8 * span, optimum + 0.04 * span))
                axis.set_title(f"{summary['mazes'][name]}: {source}")
            axis_row[0].set_ylabel("return of the policy")
        for axis in axes[-1]:
            axis.set_xlabel("iterations")
        figures.legend_below(drawing, axes.flat, columns=4)
        drawing.suptitle(
            f"Maze, true values, network of 256, Adam {MAIN_RATE:g}: mean of {summary['runs']} runs, each in its "
            "own maze; grey: the optimum",
            x=0.01,
            ha="left",
        )
    return path
