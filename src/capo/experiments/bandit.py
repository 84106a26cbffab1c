"""The bandit experiments: why the step size matters (the paper's appendix on the learning rate).

The four-panel figure: on-policy and off-policy CAPO, each with the variable and with a fixed step, on
r = [10, 9.9, 9.9, 0] from a start that prefers the wrong arms. Also the claims around it: the theorem that a fixed
on-policy step gets stuck, what breaking zeta <= 1/K does, a very unbalanced generator, and stochastic natural
policy gradient.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from capo.errors import CapoWarning
from capo.experiments import common
from capo.experiments.common import SUMMARY, Groups, Row
from capo.progress import show_progress
from capo.report import figures
from capo.tabular.baselines import stochastic_npg
from capo.tabular.mdps import bandit
from capo.tabular.solver import ManyResult, solve_many
from capo.tabular.theory import stuck_probability_bound

DATA = ("curves.csv", "seeds.csv", SUMMARY)
OPTIONS = ()
REWARDS = (10.0, 9.9, 9.9, 0.0)
THETA = (0.0, 3.0, 3.0, 0.0)
ETAS = (0.01, 0.1, 0.5, 1.0, 2.0)
NPG_ETAS = (0.001, *ETAS)
CONVERGED = 0.99  # a seed has converged when pi(best arm) is above this
THEOREM_REWARDS = (1.0, 0.99, -1.0)
GENERATORS = {
    "rare best": (0.001, 0.333, 0.333, 0.333),  # the others equally often
    "one arm always": (0.001, 0.997, 0.001, 0.001),  # one wrong arm nearly always
}
PANELS = {
    "on-policy variable": "On-policy, variable step",
    "on-policy fixed": "On-policy, fixed step",
    "off-policy variable": "Off-policy (uniform), variable step",
    "off-policy fixed": "Off-policy (uniform), fixed step",
}
_POINTS = 80
Run = tuple[str, str, float, Callable[[], ManyResult]]  # part, curve, eta, how to compute it


def run(out: Path, quick: bool = False, progress: bool = True) -> None:
    """Compute everything and write curves.csv, seeds.csv and summary.json into ``out``."""
    size = {"seeds": 100, "iterations": 100_000, "theorem_seeds": 1000, "theorem_iterations": 20_000}
    if quick:
        size |= {"seeds": 20, "iterations": 10_000, "theorem_seeds": 200}
    curves: list[Row] = []
    seeds: list[Row] = []
    jobs = _jobs(size["seeds"], size["iterations"])
    ticker = show_progress(progress)
    for done, (part, label, eta, job) in enumerate(jobs):
        ticker.show(f"bandit: {done} of {len(jobs) + len(ETAS)} runs done; now {part}, {label}")
        curve, ends = _rows({"part": part, "curve": label, "eta": eta}, job())
        curves += curve
        seeds += ends
    theorem = []
    for eta in ETAS:
        ticker.show(f"bandit: the theorem's three arms, eta {eta:g}")
        theorem.append(_theorem(eta, size["theorem_seeds"], size["theorem_iterations"]))
    ticker.close()
    summary = {
        "experiment": "bandit",
        "quick": quick,
        "rewards": REWARDS,
        "theta": THETA,
        "converged_above": CONVERGED,
        "generators": GENERATORS,
        **size,
        "seeds_are": f"0 to {size['seeds'] - 1}; for the theorem 0 to {size['theorem_seeds'] - 1}",
        "spread": "low and high are the 10 % and 90 % quantiles over seeds",
        "theorem_rewards": THEOREM_REWARDS,
        "theorem": theorem,
    }
    common.write_data(out, summary, curves=curves, seeds=seeds)


def _jobs(seeds: int, iterations: int) -> list[Run]:
    """Every run, in the order of the tables."""
    mdp = bandit(REWARDS)
    shared: dict[str, Any] = {"iterations": iterations, "record": _points(iterations), "track": (0, 0)}
    shared["theta"] = [THETA]
    capo: Callable[..., ManyResult] = partial(solve_many, mdp, seeds, **shared)

    def fixed(part: str, rule: str, **options: Any) -> list[Run]:
        return [(part, f"eta {eta:g}", eta, partial(capo, rule, "fixed", eta=eta, **options)) for eta in ETAS]

    def violating() -> ManyResult:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CapoWarning)  # breaking the condition is the point here
            return capo("on-policy", "on-policy", zeta=1.0, allow_violation=True)

    jobs: list[Run] = [("on-policy variable", "zeta 1/4", math.nan, partial(capo, "on-policy", "on-policy"))]
    jobs += fixed("on-policy fixed", "on-policy")
    jobs += [("off-policy variable", "log 1/pi", math.nan, partial(capo, "randomized", "log"))]
    jobs += fixed("off-policy fixed", "randomized")
    jobs += [("zeta", "zeta 1", math.nan, violating)]
    for name, weights in GENERATORS.items():
        jobs += [(name, "log 1/pi", math.nan, partial(capo, "randomized", "log", d_gen=[weights]))]
        jobs += fixed(name, "randomized", d_gen=[weights])
    for eta in NPG_ETAS:
        jobs += [("stochastic npg", f"eta {eta:g}", eta, partial(stochastic_npg, mdp, eta, seeds, **shared))]
    return jobs


def _points(iterations: int) -> list[int]:
    """Iterations to record: evenly spaced in the logarithm, and the powers of ten."""
    spread = np.geomspace(1, iterations, _POINTS).round().astype(int)
    powers = 10 ** np.arange(int(math.log10(iterations)) + 1)
    return sorted({0, *spread.tolist(), *powers.tolist()})


def _rows(key: Row, many: ManyResult) -> tuple[list[Row], list[Row]]:
    """The curve over seeds with the share that has converged, and one row per seed with where it ended."""
    assert many.tracked is not None
    converged = many.tracked > CONVERGED
    curve = common.curve_rows(key, many.iteration, many.tracked)
    for row, share in zip(curve, converged.mean(axis=0).tolist(), strict=True):
        row["converged"] = share
    first = common.first_points(many.iteration, converged)
    best = many.policies[:, 0].argmax(axis=1)
    ends = [
        {
            **key,
            "seed": int(seed),
            "final": float(many.tracked[k, -1]),
            "first_converged": None if math.isinf(first[k]) else int(first[k]),
            "likeliest_arm": int(best[k]) + 1,
            "likeliest_probability": float(many.policies[k, 0, best[k]]),
        }
        for k, seed in enumerate(many.seeds)
    ]
    return curve, ends


def _theorem(eta: float, seeds: int, iterations: int) -> Row:
    """How many seeds end on each of the theorem's three arms, and its bound."""
    options: dict[str, Any] = {"iterations": iterations, "eta": eta, "record": [iterations]}
    many = solve_many(bandit(THEOREM_REWARDS), seeds, "on-policy", "fixed", **options)
    counts = (many.policies[:, 0] > CONVERGED).sum(axis=0).tolist()
    ends = dict(zip(("first", "second", "third"), counts, strict=True))
    return {"eta": eta, **ends, "undecided": seeds - sum(counts), "bound": stuck_probability_bound(eta)}


# --- what is printed ------------------------------------------------------------------------------------------


def report(folder: Path) -> str:
    """The tables, from the files in ``folder``."""
    summary = common.read_json(folder / SUMMARY)
    curves = common.read_groups(folder / "curves.csv", "part", "curve")
    seeds = common.read_groups(folder / "seeds.csv", "part", "curve")
    last = summary["iterations"]
    marks = [10**k for k in range(2, int(math.log10(last)) + 1)]
    quick = common.quick_note(summary["quick"], "seeds and iterations")
    names = {
        **{part: title.lower() for part, title in PANELS.items()},
        "zeta": "on-policy, variable step that breaks its condition",
        "rare best": "best arm drawn 1 in 1000, others equally",
        "one arm always": "best arm drawn 1 in 1000, one wrong arm 997",
        "stochastic npg": "stochastic natural policy gradient",
    }
    rows = []
    for (part, curve), points in curves.items():
        at = {int(point["iteration"]): point for point in points}
        counts = [f"{at[mark]['converged']:.0%}" for mark in marks]
        when = [row["first_converged"] for row in seeds[part, curve]]
        rows.append([f"{names[part]}, {curve}", *counts, f"{at[last]['mean']:.3f}", _median(when)])
    fractions = common.text_table(
        f"Bandit r = {summary['rewards']}, theta_1 = {summary['theta']}, {summary['seeds']} seeds:\n"
        f"share of seeds with pi(best arm) > {summary['converged_above']} after so many iterations",
        ["", *(f"{mark:,}" for mark in marks), "mean pi", "median first"],
        rows,
        "median first: median over seeds of the first recorded iteration above it; -: half never got there",
    )
    total, ends = summary["theorem_seeds"], ("first", "second", "undecided")
    stuck = common.text_table(
        f"On-policy CAPO, fixed step, r = {summary['theorem_rewards']}, uniform start, {total} seeds, "
        f"{summary['theorem_iterations']:,} iterations:\nwhere seeds end (pi > 0.99)",
        ["eta", "best arm", "second arm", "undecided", "theorem: second arm, at least"],
        [
            [f"{row['eta']:g}", *(f"{row[end] / total:.1%}" for end in ends), f"{row['bound']:.2g}"]
            for row in summary["theorem"]
        ],
    )
    arms = common.text_table(
        f"Stochastic natural policy gradient and on-policy CAPO from the same start, after {last:,} iterations",
        ["", "best arm", "a wrong arm", "undecided"],
        [[label, *(f"{share:.0%}" for share in ends)] for label, ends in _ends(seeds).items()],
        "an arm counts when its probability is above 0.99",
    )
    return "\n\n".join([*quick, fractions, stuck, arms])


def _median(first: list[float]) -> str:
    """The median iteration of convergence; seeds that never converged (NaN) are sorted last."""
    middle = np.sort(first)[len(first) // 2]
    return "-" if math.isnan(middle) else f"{middle:,.0f}"


def _ends(seeds: Groups) -> dict[str, tuple[float, float, float]]:
    """Shares of seeds that ended on the best arm, on a wrong one, and on none, by algorithm."""
    chosen = {"on-policy CAPO": seeds["on-policy variable", "zeta 1/4"]}
    chosen |= {f"stochastic NPG, {key[1]}": rows for key, rows in seeds.items() if key[0] == "stochastic npg"}
    shares = {}
    for label, rows in chosen.items():
        sure = [row for row in rows if row["likeliest_probability"] > CONVERGED]
        best = sum(row["likeliest_arm"] == 1 for row in sure) / len(rows)
        shares[label] = (best, len(sure) / len(rows) - best, 1 - len(sure) / len(rows))
    return shares


# --- what is drawn --------------------------------------------------------------------------------------------


def draw(folder: Path, out: Path) -> list[Path]:
    """bandit.png (the paper's four panels) and claims.png, from the files in ``folder``."""
    summary = common.read_json(folder / SUMMARY)
    curves = common.read_groups(folder / "curves.csv", "part", "curve")
    seeds = common.read_groups(folder / "seeds.csv", "part", "curve")
    panels, claims = out / "bandit.png", out / "claims.png"
    with figures.figure(panels, 2, 2, size=(9, 6.4), sharex=True, sharey=True) as (drawing, axes):
        for axis, (part, title) in zip(axes.flat, PANELS.items(), strict=True):
            _curves(axis, curves, part)
            axis.set_title(f"{title}\n{_verdict(curves, part, summary['seeds'])}")
        if max(rows[-1]["high"] for (part, _), rows in curves.items() if part == "on-policy fixed") < 0.01:
            axes[0, 1].text(1.5, 0.1, "all curves fall to 0", color=figures.MUTED)
        for axis in axes[1]:
            axis.set_xlabel("iterations")
        for axis in axes[:, 0]:
            axis.set_ylabel("probability of the best arm")
        figures.legend_below(drawing, axes.flat[:2])
        common.caption(
            drawing,
            f"CAPO on the bandit r = [10, 9.9, 9.9, 0]: mean of {summary['seeds']} seeds, band 10 % to 90 %",
        )
    with figures.figure(claims, 2, 3, size=(13, 7.4)) as (drawing, axes):
        _draw_theorem(axes[0, 0], summary)
        _draw_zeta(axes[0, 1], curves, summary["seeds"])
        _draw_ends(axes[0, 2], seeds)
        _curves(axes[1, 0], curves, "rare best")
        axes[1, 0].set_title("Best arm drawn 1 in 1000, others equally:\nlarge fixed steps are faster")
        _curves(axes[1, 1], curves, "one arm always")
        axes[1, 1].set_title("Best arm drawn 1 in 1000, one wrong arm 997:\nthe variable step is fastest")
        _curve(axes[1, 2], curves["on-policy variable", "zeta 1/4"], figures.HIGHLIGHT, "variable step", band=0)
        _curves(axes[1, 2], curves, "stochastic npg", band=0)
        axes[1, 2].set_title("The mean curves of those runs: stochastic NPG\nand on-policy CAPO (variable step)")
        for axis in (axes[0, 1], *axes[1]):
            axis.set(xlabel="iterations", ylabel="probability of the best arm")
        figures.legend_below(drawing, [axes[1, 2], axes[1, 1]], columns=8)
    return [panels, claims]


def _curves(axis: Any, curves: Groups, part: str, band: float = 0.13) -> None:
    colours = dict(zip(NPG_ETAS, figures.shades(len(NPG_ETAS)), strict=True))
    for rows in [rows for (name, _), rows in curves.items() if name == part]:
        eta = rows[0]["eta"]
        if math.isnan(eta):
            _curve(axis, rows, figures.HIGHLIGHT, "variable step", band)
        else:
            _curve(axis, rows, colours[eta], f"$\\eta$ = {eta:g}", band)
    axis.set(xscale="log", xlim=(1, None), ylim=(-0.03, 1.03))


def _curve(axis: Any, rows: list[Row], colour: Any, label: str, band: float) -> None:
    """A curve from the first update on: the axis is logarithmic."""
    common.draw_curve(axis, [row for row in rows if row["iteration"] >= 1], colour, label, band=band)


def _verdict(curves: Groups, part: str, seeds: int) -> str:
    ended = [round(rows[-1]["converged"] * seeds) for (name, _), rows in curves.items() if name == part]
    low, high = min(ended), max(ended)
    many = str(low) if low == high else f"{low} to {high}"
    whatever = ", whatever $\\eta$" if len(ended) > 1 else ""
    return f"{many} of {seeds} seeds end on the best arm{whatever}"


def _draw_zeta(axis: Any, curves: Groups, seeds: int) -> None:
    places = {
        ("on-policy variable", "zeta 1/4"): (figures.HIGHLIGHT, r"$\zeta$ = 1/K", 0.78),
        ("zeta", "zeta 1"): (figures.COLOURS[0], r"$\zeta$ = 1", 0.28),
    }
    for key, (colour, name, height) in places.items():
        rows = curves[key]
        _curve(axis, rows, colour, name, band=0)
        text = f"{name}:\n{round(rows[-1]['converged'] * seeds)} of {seeds} seeds"
        axis.text(rows[-1]["iteration"], height, text, color=colour, ha="right", va="top")
    axis.set(xscale="log", xlim=(1, None), ylim=(-0.03, 1.03))
    axis.set_title("On-policy CAPO with its theorem's condition\n" r"$\zeta \leq 1/K$, and without it")


def _draw_theorem(axis: Any, summary: Row) -> None:
    rows, total = summary["theorem"], summary["theorem_seeds"]
    x, shares = np.arange(len(rows)), [row["second"] / total for row in rows]
    axis.bar(x, shares, width=0.55, color=figures.COLOURS[5], label="measured")
    axis.axhline(0, color="black", lw=0.8)
    for i, share in enumerate(shares):
        axis.text(i, share + 0.02, f"{share:.0%}", ha="center", fontsize=9.5)
    axis.set_xticks(x, [f"{row['eta']:g}\n{_scientific(row['bound'])}" for row in rows])
    axis.set(
        ylim=(0, 1),
        xlabel=r"fixed step $\eta$, and below it the theorem's lower bound",
        ylabel="share of seeds on the second arm",
    )
    axis.set_title(
        f"K = 3, r = [1, .99, -1], on-policy, fixed step,\n{total} seeds: about half end on the wrong arm"
    )
    axis.grid(axis="x", visible=False)


def _scientific(value: float) -> str:
    digit, exponent = f"{value:.0e}".split("e")
    return f"{digit}$\\cdot$10$^{{{int(exponent)}}}$"


def _draw_ends(axis: Any, seeds: Groups) -> None:
    ends = _ends(seeds)
    left = np.zeros(len(ends))
    y = np.arange(len(ends))[::-1]
    colours = (figures.COLOURS[2], figures.COLOURS[4], "#c8c8c8")
    for i, (label, colour) in enumerate(zip(("best arm", "a wrong arm", "undecided"), colours, strict=True)):
        share = np.array([row[i] for row in ends.values()])
        axis.barh(y, share, left=left, color=colour, label=label, height=0.7)
        left += share
    axis.set_yticks(y, [label.replace("stochastic NPG, eta", r"NPG, $\eta$ =") for label in ends])
    axis.set(xlim=(0, 1), xlabel="share of seeds that end on")
    axis.grid(axis="y", visible=False)
    axis.legend(loc="upper center", bbox_to_anchor=(0.45, -0.16), ncols=3)
    axis.set_title("Stochastic NPG commits to a wrong arm\nwhere on-policy CAPO does not")
