"""The maze: CAPO against Off-PAC and PPO, all with true values.

The paper shows it in its source's comments and on its poster, without settings. Here every method has the same
network, optimiser, exact advantages and, where it can use them, the same batches; PPO is the clipped surrogate on
those advantages, not the PPO that samples its own returns. Exact tabular CAPO is run too. Every run has its own
maze. The poster's task starts anywhere, the comment's at (1, 1): a part of the experiment each, with files of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capo.errors import unknown_name
from capo.experiments import algorithm2, common
from capo.experiments.common import SUMMARY, Floats, Groups, Row
from capo.progress import show_progress
from capo.report import figures
from capo.tabular.baselines import policy_iteration
from capo.tabular.mdp import MDP
from capo.tabular.mdps import grid
from capo.tabular.solver import Snapshot, solve

DATA = ("curves.csv", "table.csv", "runs.csv", SUMMARY)
OPTIONS = ("part",)
# The parts by where episodes start, and what the names of their files begin with.
PARTS = {"random": "", "fixed": "fixed_"}
MAZES: dict[str, tuple[str, dict[str, Any]]] = {
    "distance 5": ("5 x 5, minus the distance per step", {"size": 5, "distance_reward": True}),
    "step 5": ("5 x 5, -1 per step", {"size": 5}),
    "distance 10": ("10 x 10, minus the distance per step", {"size": 10, "distance_reward": True}),
    "step 10": ("10 x 10, -1 per step", {"size": 10}),
}
# The task of the comment in the paper's source.
FIXED_MAZES: dict[str, tuple[str, dict[str, Any]]] = {
    "step 5": ("5 x 5, -1 per step, start at (1, 1)", {"size": 5, "random_start": False}),
}
LARGE = ("distance 10", "step 10")  # ten times as slow: not in a quick run, and at one learning rate only
_OFFPAC = {"method": "offpac", "weight": "advantage"}
_PPO: dict[str, Any] = {"method": "ppo", "steps": 4}
METHODS: dict[str, tuple[str, dict[str, Any], algorithm2.Source]] = {
    "capo all": ("Batch CAPO, all pairs", {}, "all"),
    "capo cyclic": ("Cyclic CAPO, batches of the cycle", {}, "cyclic replay"),
    "capo walk": ("CAPO, uniform behaviour", {}, "walk replay"),
    "capo walk 4": ("CAPO, uniform behaviour, 4 steps", {"steps": 4}, "walk replay"),
    "capo all reverse": ("Batch CAPO, KL(target || pi)", {"kl": "target-to-policy"}, "all"),
    "capo walk reverse": ("CAPO, uniform b., KL(target || pi)", {"kl": "target-to-policy"}, "walk replay"),
    "offpac walk": ("Off-PAC with A, uniform behaviour", _OFFPAC, "walk replay"),
    "offpac q": ("Off-PAC with Q, uniform behaviour", {**_OFFPAC, "weight": "q"}, "walk replay"),
    "offpac all": ("Off-PAC, all pairs", _OFFPAC, "all"),
    "ppo walk": ("PPO, uniform behaviour, 4 steps", _PPO, "walk replay"),
    "ppo own": ("PPO, its own batches, 4 steps", {**_PPO, "own_batches": 16}, "all"),
    "ppo all": ("PPO, all pairs, 4 steps", _PPO, "all"),
}
TITLES = {
    **{method: title for method, (title, _, _) in METHODS.items()},
    "exact batch": "exact tabular Batch CAPO",
    "exact cyclic": "exact tabular Cyclic CAPO, 16 updates each",
}
SIZES = algorithm2.RunSizes()
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
MAIN_RATE = 1e-3  # the chain's; the paper gives none for the maze
NEAR = 0.05  # a run is near the optimum when at most this share of the possible gain is left
POSTER = {"CAPO": 82, "Off-PAC": 79, "PPO": 73}
_CURVE_EVERY = 20


def mazes(options: dict[str, Any], runs: int) -> list[MDP]:
    """One maze per run: seed k, the wall vertical for even k and horizontal for odd k."""
    return [grid(**options, wall="horizontal" if k % 2 else "vertical", seed=k) for k in range(runs)]


def run(out: Path, quick: bool = False, progress: bool = True, part: str | None = None) -> None:
    """Compute a part, or both, and write its curves.csv, table.csv, runs.csv and summary.json into ``out``."""
    if part is not None and part not in PARTS:
        raise unknown_name("part", part, PARTS)
    for name in PARTS if part is None else (part,):
        _run_part(out, name, quick, progress)


def _mazes_of(part: str, quick: bool) -> dict[str, tuple[str, dict[str, Any]]]:
    if part == "fixed":
        return FIXED_MAZES
    return {name: maze for name, maze in MAZES.items() if not (quick and name in LARGE)}


def _titles(part: str) -> dict[str, str]:
    return {name: title for name, (title, _) in _mazes_of(part, quick=False).items()}


def _run_part(out: Path, part: str, quick: bool, progress: bool) -> None:
    runs = 5 if quick else 30
    swept = (MAIN_RATE,) if part == "fixed" else (MAIN_RATE, 1e-2) if quick else RATES
    chosen = _mazes_of(part, quick)
    cases = {
        name: (mazes(options, runs), (MAIN_RATE,) if name in LARGE else swept)
        for name, (_, options) in chosen.items()
    }
    ticker = show_progress(progress)
    found: dict[str, list[tuple[str, float, Floats]]] = {name: [] for name in cases}
    for name, method, rate, returns in algorithm2.run_methods(f"grid ({part})", cases, METHODS, SIZES, ticker):
        found[name].append((method, rate, returns))
    curves: list[Row] = []
    table: list[Row] = []
    ends: list[Row] = []
    best: dict[str, float] = {}
    for name, (mdps, _) in cases.items():
        ticker.show(f"grid: exact tabular CAPO, {name}")
        found[name] += [(f"exact {rule}", math.nan, _exact(rule, mdps)) for rule in ("batch", "cyclic")]
        optimum = np.array([algorithm2.plain_return(mdp, policy_iteration(mdp).policy) for mdp in mdps])
        best[name] = float(optimum.mean())
        for method, rate, returns in found[name]:
            key = {"maze": name, "method": method, "rate": rate}
            table.append({**key, **_summary(returns, optimum)})
            ends.append(common.last_row(key, returns))
            if _is_main(key):
                rows = common.curve_rows(key, SIZES.points, returns)
                curves += [row for row in rows if row["iteration"] % _CURVE_EVERY == 0 or row["iteration"] < 200]
    ticker.close()
    summary = {
        "experiment": "grid",
        "quick": quick,
        "start": "uniformly over the free cells" if part == "random" else "at (1, 1), the top left",
        "mazes": {name: title for name, (title, _) in chosen.items()},
        "gamma": grid().gamma,
        "runs": runs,
        "runs_are": f"seeds 0 to {runs - 1}, for the maze (wall vertical for even seeds), the initial parameters "
        "and the batches",
        "rates": swept,
        "rates_of_large_mazes": (MAIN_RATE,),
        "optimum": best,
        "near": NEAR,
        "network": algorithm2.NETWORK,
        "batches": "as in the chain: 16 of a buffer of the last 100 pairs, which 16 enter per iteration, from the "
        "cycle over all pairs or from a uniformly random walk; 'all pairs': all; PPO's own batches: 16 pairs "
        "drawn from the discounted visits of its current policy",
        "ppo": "clipped surrogate (0.2) on exact advantages, 4 gradient steps per batch; importance weights where "
        "the batch is not its own",
        "return": algorithm2.RETURN,
        "iterations": SIZES.iterations,
        "spread": "low and high are the 10 % and 90 % quantiles over runs",
        "poster": POSTER,
    }
    front = PARTS[part]
    tables = {f"{front}curves": curves, f"{front}table": table, f"{front}runs": ends}
    common.write_data(out, summary, f"{front}{SUMMARY}", **tables)


def _parts_in(folder: Path) -> list[str]:
    """The parts that a folder has data of."""
    return [part for part, front in PARTS.items() if (folder / f"{front}{SUMMARY}").exists()]


def _exact(rule: str, mdps: Sequence[MDP]) -> Floats:
    """(runs, points) returns of exact tabular CAPO; an iteration of the cyclic rule is 16 single updates."""
    unit = 1 if rule == "batch" else SIZES.batch
    returns = []
    for mdp in mdps:
        seen: list[float] = []

        def watch(now: Snapshot, mdp: MDP = mdp, seen: list[float] = seen) -> None:
            seen.append(algorithm2.plain_return(mdp, np.exp(now.log_policy)))

        every = SIZES.record_every * unit
        solve(mdp, rule, iterations=SIZES.iterations * unit, record_every=every, callback=watch)
        # A run that cannot improve any more may stop early: it stays where it is.
        returns.append(seen + seen[-1:] * (len(SIZES.points) - len(seen)))
    return np.array(returns)


def _summary(returns: Floats, optimum: Floats) -> Row:
    """The runs (runs, points) at one rate: mean returns, how many end near the optimum, when half are there."""
    near = returns >= (optimum - NEAR * (optimum - returns[:, 0]))[:, None]
    means = dict(zip(SIZES.points.tolist(), returns.mean(axis=0).tolist(), strict=True))
    return {
        **{f"at_{point}": means[point] for point in (50, 100, 200, 500)},
        "final": means[SIZES.iterations],
        "final_low": float(np.quantile(returns[:, -1], 0.1)),
        "near_optimum": int(near[:, -1].sum()),
        "median_first": common.median_first(SIZES.points, near),
    }


# --- what is printed ------------------------------------------------------------------------------------------


def report(folder: Path) -> str:
    """The tables, from the files in ``folder``."""
    return "\n\n".join(text for part in _parts_in(folder) or ["random"] for text in _report_part(folder, part))


def _report_part(folder: Path, part: str) -> list[str]:
    summary = common.read_json(folder / f"{PARTS[part]}{SUMMARY}")
    table = common.read_csv(folder / f"{PARTS[part]}table.csv")
    parts = common.quick_note(summary["quick"], "runs, rates and mazes")
    titles = _titles(part)
    for name in summary["mazes"]:
        rows = [_report_row(row, summary) for row in table if row["maze"] == name and _is_main(row)]
        parts.append(
            common.text_table(
                f"{titles[name]}: mean return after so many iterations, {summary['runs']} runs, "
                f"Adam {MAIN_RATE:g}; the optimum is {summary['optimum'][name]:.1f}",
                ["", "0.05k", "0.1k", "0.2k", "0.5k", "1k", "worst tenth", "near", "median first"],
                rows,
            )
        )
    poster = ", ".join(f"{name} {value}" for name, value in summary["poster"].items())
    parts.append(
        f"worst tenth: 10 % quantile of the last returns. near: runs that end with at most {summary['near']:.0%} "
        f"left of the gap between\ntheir first return and the optimum; median first: the median iteration at "
        "which they first get there.\n"
        f"Poster, after 1000 iterations (its maze and settings are not given): {poster}."
    )
    return [*parts, _rates_table(table, summary, titles)] if len(summary["rates"]) > 1 else parts


def _is_main(row: Row) -> bool:
    return bool(row["rate"] == MAIN_RATE or math.isnan(row["rate"]))


def _report_row(row: Row, summary: Row) -> list[str]:
    means = [f"{row[column]:.1f}" for column in ("at_50", "at_100", "at_200", "at_500", "final", "final_low")]
    near = f"{row['near_optimum']:.0f}/{summary['runs']}"
    return [TITLES[row["method"]], *means, near, common.count(row["median_first"])]


def _rates_table(table: list[Row], summary: Row, titles: dict[str, str]) -> str:
    found = {(row["maze"], row["method"], row["rate"]): row for row in table}
    swept = [name for name in summary["mazes"] if name not in LARGE]
    columns = [(name, rate) for name in swept for rate in summary["rates"]]
    return common.text_table(
        "Mean return at the end, by learning rate; mazes: " + " | ".join(titles[name] for name in swept),
        ["", *(f"{rate:g}" for _, rate in columns)],
        [[TITLES[m], *(f"{found[name, m, rate]['final']:.1f}" for name, rate in columns)] for m in METHODS],
    )


# --- what is drawn --------------------------------------------------------------------------------------------

# One row per source of pairs: method -> (legend, colour, line).
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
    """grid.png (5 x 5), grid10.png (10 x 10) and fixed_grid.png, of what there is in ``folder``."""
    drawn = []
    for part in _parts_in(folder) or ["random"]:
        front = PARTS[part]
        summary = common.read_json(folder / f"{front}{SUMMARY}")
        curves = common.read_groups(folder / f"{front}curves.csv", "maze", "method")
        small = [name for name in summary["mazes"] if name not in LARGE]
        large = [name for name in summary["mazes"] if name in LARGE]
        summary["titles"] = _titles(part)
        drawn.append(_draw_mazes(out / f"{front}grid.png", small, curves, summary, last=600))
        drawn += [_draw_mazes(out / f"{front}grid10.png", large, curves, summary, last=1000)] if large else []
    return drawn


def _draw_mazes(path: Path, names: Sequence[str], curves: Groups, summary: Row, last: int) -> Path:
    """Returns by iteration, one column per maze and one row per source of pairs."""
    shared = {"sharex": True, "sharey": "col", "squeeze": False}
    with figures.figure(path, 2, len(names), size=(10.5, 7.2), **shared) as (drawing, axes):
        for axis_row, (source, methods) in zip(axes, _ROWS.items(), strict=True):
            for axis, name in zip(axis_row, names, strict=True):
                for method, (label, colour, style) in methods.items():
                    if rows := curves.get((name, method)):
                        common.draw_curve(axis, rows, colour, label, style, band=0)
                optimum, first = summary["optimum"][name], curves[name, "capo all"][0]["mean"]
                axis.axhline(optimum, color=figures.MUTED, lw=0.8)
                span = optimum - first
                axis.set(xlim=(0, last), ylim=(optimum - 0.8 * span, optimum + 0.04 * span))
                axis.set_title(f"{summary['titles'][name]}: {source}")
            axis_row[0].set_ylabel("return of the policy")
        for axis in axes[-1]:
            axis.set_xlabel("iterations")
        figures.legend_below(drawing, axes.flat, columns=4)
        common.caption(
            drawing,
            f"Maze, true values, network of 256, Adam {MAIN_RATE:g}: mean of {summary['runs']} runs, each in its "
            "own maze; grey: the optimum",
        )
    return path
