"""The chain (the paper's appendix on exploration by a coordinate generator): Algorithm 2 with true values.

Batch CAPO, Cyclic CAPO and Off-PAC with a uniform behaviour policy, on the chain with n actions (the paper's
figure), with two actions (its text), and on the stochastic chain; with the text's network and with its authors'
table of theta; at seven learning rates. Beside them the exact tabular algorithms, where CAPO has no rate at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from capo.experiments.batch_neural import (
    NETWORK,
    Learner,
    Sizes,
    Source,
    batches_from,
    plain_return,
    run_all,
)
from capo.experiments.common import groups, read_csv, read_json, text_table, write_csv
from capo.files import write_json
from capo.progress import Ticker
from capo.provenance import provenance
from capo.report import figures
from capo.tabular.baselines import Evaluation
from capo.tabular.mdp import MDP
from capo.tabular.mdps import chain
from capo.tabular.solver import Snapshot, solve
from capo.update import log_normalise

Floats = npt.NDArray[np.float64]

DATA = ("curves.csv", "table.csv", "runs.csv", "summary.json")
N = 10
CHAINS: dict[str, tuple[str, dict[str, Any]]] = {
    "n": ("n = 10 actions", {"up_actions": N - 1}),
    "two": ("two actions", {"up_actions": 1}),
    "n stochastic": ("n actions, stochastic", {"up_actions": N - 1, "stochastic": True}),
    "two stochastic": ("two actions, stochastic", {"up_actions": 1, "stochastic": True}),
}
METHODS: dict[str, tuple[str, dict[str, Any], Source]] = {
    "batch": ("Batch CAPO", {}, "all"),
    "cyclic": ("Cyclic CAPO", {}, "cyclic replay"),
    "cyclic fresh": ("Cyclic CAPO without replay", {}, "cyclic"),
    "batch reverse": ("Batch CAPO, KL(target || pi)", {"kl": "target-to-policy"}, "all"),
    "cyclic reverse": ("Cyclic CAPO, KL(target || pi)", {"kl": "target-to-policy"}, "cyclic replay"),
    "offpac q": ("Off-PAC with Q", {"method": "offpac", "weight": "q"}, "walk replay"),
    "offpac a": ("Off-PAC with A", {"method": "offpac", "weight": "advantage"}, "walk replay"),
    "offpac all": ("Off-PAC, all pairs", {"method": "offpac", "weight": "advantage"}, "all"),
}
POLICIES: tuple[Literal["network", "table"], ...] = ("network", "table")
SIZES = Sizes(iterations=1000, batch=16, replay=100, record_every=10, horizon=100)
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
TEXT_RATE = 1e-3
ETAS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)  # of exact Off-PAC on a table, by plain gradient steps
OPTIMUM = 95.0  # a run is at the optimum, 100, when its policy's return is above this
_CURVE_EVERY = 20  # iterations; the table is made from every tenth
# Whose curves are kept: the text's rate everywhere, and for the table those that make it move.
CURVES = {("network", TEXT_RATE), ("table", 1e-2), ("table", 3e-2)}


def run(out: Path, quick: bool = False, progress: bool = True) -> None:
    """Compute everything and write curves.csv, table.csv, runs.csv and summary.json into ``out``."""
    runs = 5 if quick else 30
    rates = (TEXT_RATE, 1e-2, 3e-2) if quick else RATES
    sizes = SIZES
    ticker = Ticker(progress)
    curves: list[dict[str, Any]] = []
    table: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    total, done = len(CHAINS) * len(POLICIES) * len(METHODS), 0
    for name, (_, options) in CHAINS.items():
        mdps = [chain(N, **options)] * runs
        batches = {source: batches_from(source, mdps, sizes) for _, _, source in METHODS.values()}
        for policy in POLICIES:
            for method, (title, settings, source) in METHODS.items():
                ticker.show(f"chain: {done} of {total} done, now {title}, {policy}, chain {name}")
                learner = Learner(policy=policy, **settings)
                points, returns = run_all(learner, mdps, batches[source], rates, sizes)
                for rate, found in zip(rates, returns, strict=True):
                    key = {"chain": name, "policy": policy, "method": method, "rate": rate}
                    table.append({**key, **_summary(points, found)})
                    ends.append({**key, **{f"run_{k}": float(found[k, -1].round(3)) for k in range(runs)}})
                    if (policy, rate) in CURVES:
                        curves += _curve_rows(key, points, found)
                done += 1
    exact = []
    for name, (_, options) in CHAINS.items():
        ticker.show(f"chain: exact tabular algorithms, chain {name}")
        exact += _exact(name, chain(N, **options), sizes)
    ticker.close()
    summary = {
        "experiment": "chain",
        "quick": quick,
        "n": N,
        "gamma": chain(N).gamma,
        "runs": runs,
        "runs_are": f"seeds 0 to {runs - 1}, of the first parameters and of the batches",
        "rates": rates,
        "optimum_above": OPTIMUM,
        "network": NETWORK,
        "table": "theta itself, from 0; Adam",
        "batches": "Batch and 'all pairs': every pair of a state that is not an end. Cyclic and Off-PAC: each "
        "iteration 16 pairs (of the cycle, or of a uniformly random walk) enter a buffer that keeps 100, and 16 "
        "drawn from it are the batch; advantages are those of the current policy",
        "return": "undiscounted, expected under the policy (nothing sampled), episodes cut at 100 steps",
        "iterations": sizes.iterations,
        "batch": sizes.batch,
        "replay": sizes.replay,
        "spread": "low and high are the 10 % and 90 % quantiles over runs",
        "advantage_of_right_under_uniform": {
            name: _right_advantage(chain(N, **options)) for name, (_, options) in CHAINS.items()
        },
        "exact": exact,
        **provenance(),
    }
    write_csv(out / "curves.csv", curves)
    write_csv(out / "table.csv", table)
    write_csv(out / "runs.csv", ends)
    write_json(out / "summary.json", summary)


def _summary(points: npt.NDArray[np.int64], found: Floats) -> dict[str, Any]:
    """Of the runs (runs, points) at one rate: mean returns, how many end at the optimum, when half are there."""
    there = found > OPTIMUM
    first = np.where(there.any(axis=1), points[there.argmax(axis=1)].astype(float), np.inf)
    median = float(np.median(first))
    at = {int(point): i for i, point in enumerate(points)}
    return {
        "at_200": float(found[:, at[200]].mean()),
        "at_300": float(found[:, at[300]].mean()),
        "final": float(found[:, -1].mean()),
        "at_optimum": int(there[:, -1].sum()),
        "median_first": None if math.isinf(median) else median,
    }


def _curve_rows(key: dict[str, Any], points: npt.NDArray[np.int64], found: Floats) -> list[dict[str, Any]]:
    low, high = np.quantile(found, [0.1, 0.9], axis=0)
    return [
        {**key, "iteration": int(point), "mean": round(mean, 3), "low": round(below, 3), "high": round(above, 3)}
        for point, mean, below, above in np.stack([points, found.mean(axis=0), low, high], axis=1).tolist()
        if point % _CURVE_EVERY == 0
    ]


def _right_advantage(mdp: MDP) -> list[float]:
    """A(S_i, right) under the uniform policy, i = 1 to n - 1."""
    uniform = np.full((mdp.n_states, mdp.n_actions), -math.log(mdp.n_actions))
    return [float(a) for a in Evaluation(mdp, uniform).advantage[1:-1, -1]]


# --- exact tabular algorithms ---------------------------------------------------------------------------------


def _exact(name: str, mdp: MDP, sizes: Sizes) -> list[dict[str, Any]]:
    """Iterations to the optimum of CAPO, which has no rate, and of Off-PAC's exact gradient at every eta."""
    rows: list[dict[str, Any]] = []
    for rule, limit in (("batch", sizes.iterations), ("cyclic", 16 * sizes.iterations)):
        first: list[int] = []

        def watch(now: Snapshot, first: list[int] = first) -> bool:
            if plain_return(mdp, np.exp(now.log_policy), sizes.horizon) > OPTIMUM:
                first.append(now.iteration)
            return not first

        solve(mdp, rule, iterations=limit, record_every=1, callback=watch)
        rows.append(
            {"chain": name, "algorithm": f"{rule} capo", "eta": None, "first": first[0] if first else None}
        )
    for eta in ETAS:
        first_iteration, final = exact_offpac(mdp, eta, sizes)
        rows.append(
            {"chain": name, "algorithm": "offpac", "eta": eta, "first": first_iteration, "final": round(final, 3)}
        )
    return rows


def exact_offpac(mdp: MDP, eta: float, sizes: Sizes) -> tuple[int | None, float]:
    """Off-PAC without sampling: theta(s, a) += eta d_b(s) pi(a|s) A(s, a), d_b the uniform policy's visitation.

    Returns:
        the first iteration with a return at the optimum, or None, and the last return.
    """
    uniform = np.full((mdp.n_states, mdp.n_actions), -math.log(mdp.n_actions))
    visits = np.where(mdp.terminal, 0.0, Evaluation(mdp, uniform).visitation(mdp.start))
    visits /= visits.sum()
    log_pi, first = uniform, None
    for iteration in range(sizes.iterations):
        now = Evaluation(mdp, log_pi)
        log_pi = np.asarray(log_normalise(log_pi + eta * visits[:, None] * now.policy * now.advantage)[0])
        if first is None and plain_return(mdp, np.exp(log_pi), sizes.horizon) > OPTIMUM:
            first = iteration + 1
    return first, plain_return(mdp, np.exp(log_pi), sizes.horizon)


# --- what is printed ------------------------------------------------------------------------------------------


def report(folder: Path) -> str:
    """The tables, from the files in ``folder``."""
    summary = read_json(folder / "summary.json")
    table = {(r["chain"], r["policy"], r["method"], r["rate"]): r for r in read_csv(folder / "table.csv")}
    parts = ["QUICK run: fewer runs and rates than the full one."] if summary["quick"] else []
    parts += [_text_table(table, summary, pair) for pair in (("n", "two"), ("n stochastic", "two stochastic"))]
    parts += [_reason(summary), *(_sweep(table, summary, policy) for policy in POLICIES), _exact_table(summary)]
    return "\n\n".join(parts)


def _text_table(table: dict[Any, Any], summary: dict[str, Any], chains: Sequence[str]) -> str:
    rows = []
    for method, (title, _, _) in METHODS.items():
        cells = []
        for name in chains:
            row = table[name, "network", method, TEXT_RATE]
            cells += [_short(row["at_200"]), _short(row["at_300"]), _short(row["final"])]
            cells += [f"{row['at_optimum']:.0f}/{summary['runs']}", _count(row["median_first"])]
        rows.append([title, *cells])
    names = " | ".join(CHAINS[name][0] for name in chains)
    return text_table(
        f"The text's settings (network of 256, Adam 1e-3, {summary['runs']} runs): mean return after 200, 300, "
        f"{summary['iterations']} iterations;\nruns that end at the optimum (> {summary['optimum_above']:g}); "
        f"when half are first there. Chain: {names}",
        ["", *(["200", "300", "end", "optimum", "median"] * 2)],
        rows,
    )


def _short(value: float) -> str:
    return f"{value:.1f}"


def _count(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0f}"


def _reason(summary: dict[str, Any]) -> str:
    rows = [
        [CHAINS[name][0], *(f"{value:+.2g}" for value in values)]
        for name, values in summary["advantage_of_right_under_uniform"].items()
    ]
    return text_table(
        "Why the number of actions matters: the advantage of 'right' under the uniform policy",
        ["", *(f"S_{i}" for i in range(1, summary["n"]))],
        rows,
        "With two actions it is positive everywhere: any ascent goes right from the first iteration. With n\n"
        "actions (not stochastic) it is negative at the start, where a uniform behaviour policy stays, and\n"
        "positive only near the end, where it hardly ever comes.",
    )


def _sweep(table: dict[Any, Any], summary: dict[str, Any], policy: str) -> str:
    rows = []
    for name in ("n", "two"):
        for method, (title, _, _) in METHODS.items():
            cells = [table[name, policy, method, rate] for rate in summary["rates"]]
            rows.append(
                [f"{CHAINS[name][0]}: {title}"]
                + [f"{c['at_optimum']:.0f} ({_count(c['median_first'])})" for c in cells]
            )
    what = {"network": "network of 256", "table": "table of theta (the authors' program)"}[policy]
    return text_table(
        f"Learning rates of Adam, {what}: of {summary['runs']} runs, those at the optimum after "
        f"{summary['iterations']} iterations (median first)",
        ["", *(f"{rate:g}" for rate in summary["rates"])],
        rows,
    )


def _exact_table(summary: dict[str, Any]) -> str:
    rows = []
    for name, (title, _) in CHAINS.items():
        found = [row for row in summary["exact"] if row["chain"] == name]
        firsts = ["-" if row["first"] is None else f"{row['first']}" for row in found]
        rows.append([title, *firsts])
    return text_table(
        "Exact tabular algorithms: iterations to the optimum (-: not reached). CAPO has no rate; Off-PAC by "
        "gradient steps eta",
        ["", "Batch CAPO", "Cyclic (1 pair)", *(f"eta {eta:g}" for eta in ETAS)],
        rows,
    )


# --- what is drawn --------------------------------------------------------------------------------------------

_STYLES = {
    "batch": (figures.COLOURS[0], "-"),
    "cyclic": (figures.COLOURS[2], "-"),
    "offpac q": (figures.COLOURS[4], "--"),
    "offpac a": (figures.COLOURS[1], "--"),
    "offpac all": (figures.COLOURS[6], ":"),
}
_FIGURE_TABLE_RATE = 3e-2  # the authors' variant: the rate that comes nearest to the paper's figure
_PANELS = (
    ("n", "network", TEXT_RATE, "n actions (the paper's figure)\nnetwork, Adam 0.001"),
    ("two", "network", TEXT_RATE, "two actions (the paper's text)\nnetwork, Adam 0.001"),
    ("n stochastic", "network", TEXT_RATE, "n actions, stochastic\nnetwork, Adam 0.001"),
    ("n", "table", _FIGURE_TABLE_RATE, "n actions, table of theta,\nAdam 0.03 (at 0.001 all stay at 0.1)"),
)


def draw(folder: Path, out: Path) -> list[Path]:
    """chain.png (returns by iteration) and rates.png (the learning rates), from the files in ``folder``."""
    summary = read_json(folder / "summary.json")
    main, sweep = out / "chain.png", out / "rates.png"
    _draw_curves(main, groups(read_csv(folder / "curves.csv"), "chain", "policy", "method", "rate"), summary)
    _draw_rates(sweep, groups(read_csv(folder / "table.csv"), "chain", "policy"), summary)
    return [main, sweep]


def _draw_curves(path: Path, curves: dict[tuple[Any, ...], list[dict[str, Any]]], summary: dict[str, Any]) -> None:
    with figures.figure(path, 1, 4, size=(13, 4.2), sharey=True) as (drawing, axes):
        for axis, (name, policy, rate, title) in zip(axes, _PANELS, strict=True):
            for method, (colour, style) in _STYLES.items():
                if (name, policy, method, rate) not in curves:
                    continue
                rows = curves[name, policy, method, rate]
                x = [row["iteration"] for row in rows]
                axis.plot(x, [row["mean"] for row in rows], color=colour, ls=style, label=METHODS[method][0])
                low, high = [row["low"] for row in rows], [row["high"] for row in rows]
                axis.fill_between(x, low, high, color=colour, alpha=0.12, lw=0)
            axis.set(xlabel="iterations", xlim=(0, summary["iterations"]), ylim=(-3, 103))
            axis.set_xticks([0, 250, 500, 750])
            axis.set_title(title)
        axes[0].set_ylabel("return of the policy")
        figures.legend_below(drawing, axes)
        drawing.suptitle(
            f"Chain of {summary['n']}, true values: mean of {summary['runs']} runs, band 10 % to 90 %",
            x=0.01,
            ha="left",
        )


def _draw_rates(path: Path, table: dict[tuple[Any, ...], list[dict[str, Any]]], summary: dict[str, Any]) -> None:
    """A cell a method and rate: how many runs end at the optimum, and when half of them are first there."""
    panels = {("n", "network"): "n actions, network", ("n", "table"): "n actions, table of theta"}
    panels[("two", "network")] = "two actions, network"
    methods, rates = list(METHODS), summary["rates"]
    with figures.figure(path, 1, 3, size=(13, 4.3), sharey=True) as (drawing, axes):
        for axis, (key, title) in zip(axes, panels.items(), strict=True):
            cells = {(row["method"], row["rate"]): row for row in table[key]}
            share = np.array([[cells[m, r]["at_optimum"] / summary["runs"] for r in rates] for m in methods])
            axis.imshow(share, cmap="Blues", vmin=0, vmax=2, aspect="auto")
            for i, method in enumerate(methods):
                for j, rate in enumerate(rates):
                    cell = cells[method, rate]
                    first = _count(cell["median_first"])
                    text = f"{cell['at_optimum']:.0f}" + (f"\n({first})" if first != "-" else "")
                    axis.text(j, i, text, ha="center", va="center", fontsize=8.5, linespacing=1.1)
            axis.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates], fontsize=9)
            axis.set_yticks(range(len(methods)), [METHODS[method][0] for method in methods])
            axis.set_xlabel("learning rate of Adam")
            axis.set_title(title)
            axis.grid(visible=False)
        drawing.suptitle(
            f"Runs of {summary['runs']} at the optimum after {summary['iterations']} iterations (median iteration "
            "they are first there)",
            x=0.01,
            ha="left",
        )
