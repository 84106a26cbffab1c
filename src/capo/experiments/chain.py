"""The chain (the paper's appendix on exploration by a coordinate generator): Algorithm 2 with true values.

Batch CAPO, Cyclic CAPO and Off-PAC with a uniform behaviour policy, on the chain with n actions (the paper's
figure), with two actions (its text), and on the stochastic chain; with the text's network and with the authors'
table of theta; at seven learning rates. Also the exact tabular algorithms, where CAPO needs no learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from capo.experiments import algorithm2, common
from capo.experiments.common import SUMMARY, Floats, Groups, Row
from capo.progress import show_progress
from capo.report import figures
from capo.tabular.mdp import MDP
from capo.tabular.mdps import chain
from capo.tabular.solver import Snapshot, solve
from capo.tabular.theory import PolicyValues
from capo.update import StepSize, log_normalise

DATA = ("curves.csv", "table.csv", "runs.csv", SUMMARY)
OPTIONS = ()
N = 10
CHAINS: dict[str, tuple[str, dict[str, Any]]] = {
    "n": ("n = 10 actions", {"up_actions": N - 1}),
    "two": ("two actions", {"up_actions": 1}),
    "n stochastic": ("n actions, stochastic", {"up_actions": N - 1, "stochastic": True}),
    "two stochastic": ("two actions, stochastic", {"up_actions": 1, "stochastic": True}),
}
METHODS: dict[str, tuple[str, dict[str, Any], algorithm2.Source]] = {
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
SIZES = algorithm2.RunSizes()
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
TEXT_RATE = 1e-3
ETAS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)  # of exact Off-PAC on a table, by plain gradient steps
OPTIMUM = 95.0  # a run is at the optimum (100) when its policy's return is above this
_CURVE_EVERY = 20  # iterations; the table uses every tenth
# The curves that are kept: the text's rate, and for the table the rates at which it moves at all.
CURVES = {("network", TEXT_RATE), ("table", 1e-2), ("table", 3e-2)}


def run(out: Path, quick: bool = False, progress: bool = True) -> None:
    """Compute everything and write curves.csv, table.csv, runs.csv and summary.json into ``out``."""
    runs = 5 if quick else 30
    rates = (TEXT_RATE, 1e-2, 3e-2) if quick else RATES
    mdps = {name: chain(N, **options) for name, (_, options) in CHAINS.items()}
    cases = {name: ([mdp] * runs, rates) for name, mdp in mdps.items()}
    methods = {
        (policy, key): (f"{title}, {policy}", {**settings, "policy": policy}, source)
        for policy in POLICIES
        for key, (title, settings, source) in METHODS.items()
    }
    ticker = show_progress(progress)
    curves: list[Row] = []
    table: list[Row] = []
    ends: list[Row] = []
    for name, (policy, method), rate, found in algorithm2.run_methods("chain", cases, methods, SIZES, ticker):
        key = {"chain": name, "policy": policy, "method": method, "rate": rate}
        table.append({**key, **_summary(found)})
        ends.append(common.last_row(key, found))
        if (policy, rate) in CURVES:
            rows = common.curve_rows(key, SIZES.points, found, digits=3)
            curves += [row for row in rows if row["iteration"] % _CURVE_EVERY == 0]
    ticker.show("chain: exact tabular algorithms")
    exact = [row for name, mdp in mdps.items() for row in _exact(name, mdp)]
    ticker.close()
    summary = {
        "experiment": "chain",
        "quick": quick,
        "n": N,
        "gamma": mdps["n"].gamma,
        "runs": runs,
        "runs_are": f"seeds 0 to {runs - 1}, for the initial parameters and the batches",
        "rates": rates,
        "optimum_above": OPTIMUM,
        "network": algorithm2.NETWORK,
        "table": "theta itself, from 0; Adam",
        "batches": "Batch and 'all pairs': every pair of a state that is not terminal. Cyclic and Off-PAC: in "
        "each iteration 16 pairs (of the cycle, or of a uniformly random walk) enter a buffer that keeps 100, and "
        "the batch is 16 drawn from it; advantages are those of the current policy",
        "return": algorithm2.RETURN,
        "iterations": SIZES.iterations,
        "batch": SIZES.batch,
        "replay": SIZES.replay,
        "spread": "low and high are the 10 % and 90 % quantiles over runs",
        "advantage_of_right_under_uniform": {
            name: PolicyValues(mdp, _uniform(mdp)).advantage[1:-1, -1].tolist() for name, mdp in mdps.items()
        },
        "exact": exact,
    }
    common.write_data(out, summary, curves=curves, table=table, runs=ends)


def _summary(found: Floats) -> Row:
    """The runs (runs, points) at one rate: mean returns, how many end at the optimum, when half are there."""
    there = found > OPTIMUM
    means = dict(zip(SIZES.points.tolist(), found.mean(axis=0).tolist(), strict=True))
    return {
        "at_200": means[200],
        "at_300": means[300],
        "final": means[SIZES.iterations],
        "at_optimum": int(there[:, -1].sum()),
        "median_first": common.median_first(SIZES.points, there),
    }


# --- exact tabular algorithms ---------------------------------------------------------------------------------


def _uniform(mdp: MDP) -> Floats:
    """(S, A) log-probabilities of the uniform policy."""
    return np.full((mdp.n_states, mdp.n_actions), -math.log(mdp.n_actions))


def _exact(name: str, mdp: MDP) -> list[Row]:
    """Iterations to the optimum: of CAPO, which needs no rate, and of Off-PAC's exact gradient at every eta."""
    rows: list[Row] = []
    for rule, limit in (("batch", SIZES.iterations), ("cyclic", 16 * SIZES.iterations)):
        first = capo_to_optimum(mdp, rule, StepSize(), limit)
        rows.append({"chain": name, "algorithm": f"{rule} capo", "eta": None, "first": first})
    for eta in ETAS:
        first, final = exact_offpac(mdp, eta, SIZES.iterations)
        rows.append({"chain": name, "algorithm": "offpac", "eta": eta, "first": first, "final": round(final, 3)})
    return rows


def capo_to_optimum(mdp: MDP, rule: str, step: StepSize, limit: int, every: int = 1) -> int | None:
    """The first iteration, of every ``every``-th, with exact CAPO at the optimum; None if beyond ``limit``."""
    first: list[int] = []

    def watch(now: Snapshot) -> bool:
        if algorithm2.plain_return(mdp, np.exp(now.log_policy)) > OPTIMUM:
            first.append(now.iteration)
        return not first

    solve(mdp, rule, step, iterations=limit, record_every=every, callback=watch)
    return first[0] if first else None


def exact_offpac(mdp: MDP, eta: float, iterations: int) -> tuple[int | None, float]:
    """Off-PAC without sampling: theta(s, a) += eta d_b(s) pi(a|s) A(s, a), d_b the uniform policy's visitation.

    Returns:
        The first iteration with a return at the optimum, or None, and the last return.
    """
    log_pi, first = _uniform(mdp), None
    visits = np.where(mdp.terminal, 0.0, PolicyValues(mdp, log_pi).visitation_from(mdp.start))
    visits /= visits.sum()
    for iteration in range(1, iterations + 1):
        now = PolicyValues(mdp, log_pi)
        log_pi = np.asarray(log_normalise(log_pi + eta * visits[:, None] * now.policy * now.advantage)[0])
        if first is None and algorithm2.plain_return(mdp, np.exp(log_pi)) > OPTIMUM:
            first = iteration
    return first, algorithm2.plain_return(mdp, np.exp(log_pi))


# --- what is printed ------------------------------------------------------------------------------------------


def report(folder: Path) -> str:
    """The tables, from the files in ``folder``."""
    summary = common.read_json(folder / SUMMARY)
    table = {(r["chain"], r["policy"], r["method"], r["rate"]): r for r in common.read_csv(folder / "table.csv")}
    parts = common.quick_note(summary["quick"], "runs and rates")
    parts += [_text_table(table, summary, pair) for pair in (("n", "two"), ("n stochastic", "two stochastic"))]
    parts += [_reason(summary), *(_sweep(table, summary, policy) for policy in POLICIES), _exact_table(summary)]
    return "\n\n".join(parts)


def _text_table(table: dict[Any, Any], summary: Row, chains: Sequence[str]) -> str:
    rows = []
    for method, (title, _, _) in METHODS.items():
        cells = []
        for name in chains:
            row = table[name, "network", method, TEXT_RATE]
            cells += [f"{row[column]:.1f}" for column in ("at_200", "at_300", "final")]
            cells += [f"{row['at_optimum']:.0f}/{summary['runs']}", common.count(row["median_first"])]
        rows.append([title, *cells])
    names = " | ".join(CHAINS[name][0] for name in chains)
    return common.text_table(
        f"Chain: {names}. The settings of the paper's text (network of 256, Adam 1e-3, {summary['runs']} runs):\n"
        f"mean return after 200, 300 and {summary['iterations']} iterations; runs that end at the optimum "
        f"(> {summary['optimum_above']:g}); median iteration that first reaches it",
        ["", *(["200", "300", "end", "optimum", "median"] * 2)],
        rows,
    )


def _reason(summary: Row) -> str:
    rows = [
        [CHAINS[name][0], *(f"{value:+.2g}" for value in values)]
        for name, values in summary["advantage_of_right_under_uniform"].items()
    ]
    return common.text_table(
        "Why the number of actions matters: the advantage of 'right' under the uniform policy",
        ["", *(f"S_{i}" for i in range(1, summary["n"]))],
        rows,
        "With two actions it is positive everywhere, so any ascent moves right from the first iteration. With n\n"
        "actions (not stochastic) it is negative near the start, where a uniform behaviour policy stays, and\n"
        "positive only near the end, which such a policy hardly ever reaches.",
    )


def _sweep(table: dict[Any, Any], summary: Row, policy: str) -> str:
    rows = []
    for name in ("n", "two"):
        for method, (title, _, _) in METHODS.items():
            cells = [table[name, policy, method, rate] for rate in summary["rates"]]
            rows.append(
                [f"{CHAINS[name][0]}: {title}"]
                + [f"{c['at_optimum']:.0f} ({common.count(c['median_first'])})" for c in cells]
            )
    what = {"network": "network of 256", "table": "table of theta (the authors' program)"}[policy]
    return common.text_table(
        f"Adam's learning rate, {what}: how many of {summary['runs']} runs are at the optimum after\n"
        f"{summary['iterations']} iterations (and the median iteration at which they first reach it)",
        ["", *(f"{rate:g}" for rate in summary["rates"])],
        rows,
    )


def _exact_table(summary: Row) -> str:
    rows = [
        [title, *(common.count(row["first"]) for row in summary["exact"] if row["chain"] == name)]
        for name, (title, _) in CHAINS.items()
    ]
    return common.text_table(
        "Exact tabular algorithms: iterations to the optimum (-: never reached). CAPO needs no rate; Off-PAC "
        "takes gradient steps of eta",
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
_FIGURE_TABLE_RATE = 3e-2  # the authors' variant: the rate closest to the paper's figure
_PANELS = (
    ("n", "network", TEXT_RATE, "n actions (the paper's figure)\nnetwork, Adam 0.001"),
    ("two", "network", TEXT_RATE, "two actions (the paper's text)\nnetwork, Adam 0.001"),
    ("n stochastic", "network", TEXT_RATE, "n actions, stochastic\nnetwork, Adam 0.001"),
    ("n", "table", _FIGURE_TABLE_RATE, "n actions, table of theta,\nAdam 0.03 (at 0.001 all stay at 0.1)"),
)


def draw(folder: Path, out: Path) -> list[Path]:
    """chain.png (returns by iteration) and rates.png (the learning rates), from the files in ``folder``."""
    summary = common.read_json(folder / SUMMARY)
    main, sweep = out / "chain.png", out / "rates.png"
    _draw_curves(main, common.read_groups(folder / "curves.csv", "chain", "policy", "method", "rate"), summary)
    _draw_rates(sweep, common.read_groups(folder / "table.csv", "chain", "policy"), summary)
    return [main, sweep]


def _draw_curves(path: Path, curves: Groups, summary: Row) -> None:
    with figures.figure(path, 1, 4, size=(13, 4.2), sharey=True) as (drawing, axes):
        for axis, (name, policy, rate, title) in zip(axes, _PANELS, strict=True):
            for method, (colour, style) in _STYLES.items():
                if rows := curves.get((name, policy, method, rate)):
                    common.draw_curve(axis, rows, colour, METHODS[method][0], style)
            axis.set(xlabel="iterations", xlim=(0, summary["iterations"]), ylim=(-3, 103))
            axis.set_xticks([0, 250, 500, 750])
            axis.set_title(title)
        axes[0].set_ylabel("return of the policy")
        figures.legend_below(drawing, axes)
        common.caption(
            drawing, f"Chain of {summary['n']}, true values: mean of {summary['runs']} runs, band 10 % to 90 %"
        )


def _draw_rates(path: Path, table: Groups, summary: Row) -> None:
    """One cell per method and rate: how many runs end at the optimum, and when half of them first reach it."""
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
                    first = common.count(cell["median_first"])
                    text = f"{cell['at_optimum']:.0f}" + (f"\n({first})" if first != "-" else "")
                    axis.text(j, i, text, ha="center", va="center", fontsize=8.5, linespacing=1.1)
            axis.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates], fontsize=9)
            axis.set_yticks(range(len(methods)), [METHODS[method][0] for method in methods])
            axis.set_xlabel("learning rate of Adam")
            axis.set_title(title)
            axis.grid(visible=False)
        common.caption(
            drawing,
            f"Runs (out of {summary['runs']}) at the optimum after {summary['iterations']} iterations, and the "
            "median iteration at which they first reach it",
        )
