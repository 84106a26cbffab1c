"""Which part of NCAPO matters? One thing changed at a time.

Two parts. ``game``: NCAPO on a MinAtar game, from a preset; every variant changes one of its settings. ``chain``:
the chain with true values (Algorithm 2), where neither a critic nor exploration stands between the update and its
result; only what belongs to the update can be changed there. Also exact tabular CAPO with the same step sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capo.errors import CapoError
from capo.experiments import algorithm2, common, results, training
from capo.experiments.chain import OPTIMUM, SIZES, TEXT_RATE, N, capo_to_optimum
from capo.experiments.common import Floats, Groups, Row
from capo.experiments.results import difference, finals, interval, mean
from capo.experiments.training import QUICK, Job, Plan
from capo.neural.algorithms import registry
from capo.neural.algorithms.settings import override
from capo.progress import show_progress
from capo.report import figures, wording
from capo.runs.records import Record
from capo.tabular.mdps import chain
from capo.update import StepSize

DATA = ("*.json",)  # of either part; the chain has two CSV files beside its own
OPTIONS = ("part", *training.OPTIONS, "variants")
CHAIN_SUMMARY, CHAIN_RUNS = "chain.json", "chain_runs.csv"

# --- what is changed ------------------------------------------------------------------------------------------

BASE = "base"
# name -> (title, settings). Both values of a switch are here; those that the preset has already are left out.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    BASE: ("base: the preset", {}),
    "alpha-log": ("alpha = log 1/pi", {"step_size": "log"}),
    "alpha-0.3": ("alpha = 0.3", {"step_size": "fixed", "fixed_alpha": 0.3}),
    "alpha-1": ("alpha = 1", {"step_size": "fixed", "fixed_alpha": 1.0}),
    "alpha-3": ("alpha = 3", {"step_size": "fixed", "fixed_alpha": 3.0}),
    "clip-1": ("clip 1", {"clip": 1.0}),
    "clip-5": ("clip 5", {"clip": 5.0}),
    "kl-paper": ("KL(pi || target)", {"kl": "policy-to-target"}),
    "kl-reverse": ("KL(target || pi)", {"kl": "target-to-policy"}),
    "weight-none": ("sign of A only", {"advantage_weight": "none"}),
    "weight-normalised": ("alpha times |A| / mean |A|", {"advantage_weight": "normalised"}),
    "epsilon-0": ("no epsilon", {"epsilon_start": 0.0, "epsilon_final": 0.0}),
    "epsilon-0.05": ("epsilon 0.05 in the end", {"epsilon_final": 0.05}),
    "epsilon-0.3": ("epsilon 0.3 to the end", {"epsilon_start": 0.3, "epsilon_final": 0.3}),
    "replay-last": ("no replay: the last rollouts", {"replay_rollouts": 1}),
    "replay-1600": ("replay of 1600 rollouts", {"replay_rollouts": 1600}),
    "replay-6400": ("replay of 6400 rollouts", {"replay_rollouts": 6400}),
    "replay-25600": ("replay of 25,600 rollouts", {"replay_rollouts": 25_600}),
    "lambda-0": ("Retrace lambda 0", {"retrace_lambda": 0.0}),
    "lambda-0.5": ("Retrace lambda 0.5", {"retrace_lambda": 0.5}),
    "lambda-0.9": ("Retrace lambda 0.9", {"retrace_lambda": 0.9}),
    "lambda-1": ("Retrace lambda 1", {"retrace_lambda": 1.0}),
    "actor-lambda-0.5": ("half of it for the actor", {"actor_lambda": 0.5}),
    "actor-lambda-1": ("one lambda for both", {"actor_lambda": 1.0}),
    "critic-categorical": ("critic over atoms", {"critic": "categorical"}),
    "norm-off": ("no LayerNorm", {"layer_norm": False}),
    "norm-on": ("LayerNorm", {"layer_norm": True}),
    "entropy-0": ("no entropy bonus", {"entropy": 0.0}),
    "entropy-0.01": ("entropy bonus 0.01", {"entropy": 0.01}),
}
QUICK_VARIANTS = ("base", "alpha-1", "kl-reverse")
PLAN = Plan(frames=2_000_000, seeds=8, evaluations=10)
QUICK_NOTE = "QUICK run: a few variants, far too few frames, seeds and runs to conclude anything."


FRESH = "fresh"
_REVERSE = {"kl": "target-to-policy"}
RULES: dict[str, tuple[str, algorithm2.Source]] = {
    "batch": ("Batch CAPO", "all"),
    "cyclic": ("Cyclic CAPO", "cyclic replay"),
}
# name -> (title, settings of Algorithm 2)
CHAIN_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("base: log 1/pi, KL(pi || target)", {}),
    "alpha 0.1": ("alpha = 0.1", {"step": StepSize("fixed", eta=0.1)}),
    "alpha 1": ("alpha = 1", {"step": StepSize("fixed", eta=1.0)}),
    "alpha 3": ("alpha = 3", {"step": StepSize("fixed", eta=3.0)}),
    "alpha 10": ("alpha = 10", {"step": StepSize("fixed", eta=10.0)}),
    "clip 1": ("clip 1", {"step": StepSize("clipped", clip=1.0)}),
    "clip 5": ("clip 5", {"step": StepSize("clipped", clip=5.0)}),
    "reverse": ("KL(target || pi)", _REVERSE),
    # Two things changed: with Adam the size of alpha matters only in this direction, not in the paper's.
    "reverse 0.1": ("KL(target || pi), alpha = 0.1", {**_REVERSE, "step": StepSize("fixed", eta=0.1)}),
    "reverse 1": ("KL(target || pi), alpha = 1", {**_REVERSE, "step": StepSize("fixed", eta=1.0)}),
    "reverse 10": ("KL(target || pi), alpha = 10", {**_REVERSE, "step": StepSize("fixed", eta=10.0)}),
    "weight": ("alpha times |A| / mean |A|", {"by_advantage": True}),
    "steps 4": ("4 gradient steps per batch", {"steps": 4}),
    FRESH: ("no replay", {}),
}
QUICK_CHAIN = ("base", "alpha 1", "reverse")
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
TABLE_RATES = (TEXT_RATE, 1e-2)  # the paper's text's, and one that is too high for its loss
DRAWN = (("batch", TEXT_RATE), ("cyclic", TEXT_RATE), ("cyclic", 1e-2))  # with Batch at 0.01 nothing differs
EXACT_LIMIT = {"batch": 10_000, "cyclic": 100_000}


def run(out: Path, quick: bool = False, progress: bool = True, **options: Any) -> None:
    """Compute what is missing of both parts, or of the one that is asked for, and write its files into ``out``.

    Args:
        **options: of :func:`training.run_parts`; ``variants`` are those on the game, all if none is given.
    """
    training.run_parts("ablation", CHAIN, QUICK if quick else PLAN, game_jobs, out, progress, **options)


def game_jobs(out: Path, games: Sequence[str], plan: Plan, variants: Sequence[str] | None = None) -> list[Job]:
    """The trainings, each of which writes ``<game>-<variant>.json`` into ``out``."""

    def job(game: str, name: str) -> Job:
        title, settings = VARIANTS[name]
        return Job(out, "ablation", game, "ncapo", plan, name, title, settings)

    chosen = training.choose("variant", variants, VARIANTS)
    for game in games:
        job(game, BASE).missing()  # refuses a base with other settings: the others are compared with it
    return [job(game, name) for game in games for name in differing(game, plan, chosen)]


def differing(game: str, plan: Plan, names: Sequence[str] = ()) -> list[str]:
    """The variants (those of ``names``, if any) that are not what the preset is already."""
    base = registry.find("ncapo").settings.preset(plan.preset, training.environment(game))
    kept = [name for name, (_, changed) in VARIANTS.items() if name == BASE or override(base, changed) != base]
    same = [name for name in names if name not in kept]
    if same:
        raise CapoError(
            f"{', '.join(same)}: the preset {plan.preset} has these settings already; this is the variant {BASE}"
        )
    wanted = names or (QUICK_VARIANTS if plan.quick else kept)
    return [name for name in kept if name in wanted]


# --- the chain ------------------------------------------------------------------------------------------------


def run_chain(out: Path, quick: bool, progress: bool) -> None:
    """Write chain_runs.csv, chain_curves.csv and chain.json: the chain with n actions, true values."""
    runs, rates = (5, TABLE_RATES) if quick else (30, RATES)
    names = QUICK_CHAIN if quick else tuple(CHAIN_VARIANTS)
    mdp = chain(N, up_actions=N - 1)
    methods: dict[tuple[str, str], tuple[str, dict[str, Any], algorithm2.Source]] = {
        (rule, name): (f"{title}, {CHAIN_VARIANTS[name][0]}", CHAIN_VARIANTS[name][1], source)
        for rule, (title, source) in RULES.items()
        for name in names
        if name != FRESH
    }
    if FRESH in names:  # of Batch CAPO, which has all pairs every time, there is no replay to leave out
        methods["cyclic", FRESH] = ("Cyclic CAPO, no replay", {}, "cyclic")
    ticker = show_progress(progress)
    rows: list[Row] = []
    curves: list[Row] = []
    cases = {"chain": ([mdp] * runs, rates)}
    for _, (rule, name), rate, found in algorithm2.run_methods("ablation", cases, methods, SIZES, ticker):
        key = {"rule": rule, "variant": name, "rate": rate}
        rows += [{**key, "run": k, **_measures(one)} for k, one in enumerate(found)]
        if rate in TABLE_RATES:
            means = zip(SIZES.points.tolist(), found.mean(axis=0).round(3).tolist(), strict=True)
            curves += [{**key, "iteration": i, "mean": value} for i, value in means if i % 20 == 0]
    ticker.show("ablation: exact tabular CAPO")
    own = {name: settings for name, (_, settings) in CHAIN_VARIANTS.items() if name in names and name != FRESH}
    steps = {name: settings.get("step", StepSize()) for name, settings in own.items() if set(settings) <= {"step"}}
    exact = {
        rule: {name: capo_to_optimum(mdp, rule, step, limit, every) for name, step in steps.items()}
        for rule, limit, every in (("batch", EXACT_LIMIT["batch"], 1), ("cyclic", EXACT_LIMIT["cyclic"], 10))
    }
    ticker.close()
    summary = {
        "experiment": "ablation",
        "part": "chain",
        "quick": quick,
        "n": N,
        "actions": N,
        "gamma": mdp.gamma,
        "runs": runs,
        "runs_are": f"seeds 0 to {runs - 1}, for the initial parameters and the batches",
        "rates": rates,
        "iterations": SIZES.iterations,
        "network": algorithm2.NETWORK,
        "base": "alpha = log 1/pi, KL(pi || target), one gradient step per batch; Batch: all pairs; Cyclic: "
        "16 pairs of the cycle enter a buffer of 100 per iteration, and the batch is 16 drawn from it",
        "variants": {name: title for name, (title, _) in CHAIN_VARIANTS.items()},
        "return": f"{algorithm2.RETURN}; 100 is the best",
        "mean": f"of the return, at every tenth of the {SIZES.iterations} iterations",
        "first": f"iteration at which the return was first seen above {OPTIMUM:g}; empty: never",
        "exact": exact,
        "exact_is": "iterations of exact tabular CAPO (Cyclic: single updates, checked at every tenth) to a "
        f"return above {OPTIMUM:g}; null: more than {EXACT_LIMIT}",
    }
    common.write_data(out, summary, CHAIN_SUMMARY, chain_runs=rows, chain_curves=curves)


CHAIN = training.ExactPart("chain", (CHAIN_SUMMARY, CHAIN_RUNS, "chain_curves.csv"), run_chain)


def _measures(returns: Floats) -> Row:
    """One run's (points,) returns: the last, their mean, and when they first reach the optimum."""
    first = common.median_first(SIZES.points, returns[None] > OPTIMUM)
    final, mean = round(float(returns[-1]), 3), round(float(returns.mean()), 3)
    return {"final": final, "mean": mean, "first": None if first is None else int(first)}


# --- what is printed ------------------------------------------------------------------------------------------


def report(folder: Path) -> str:
    """The tables of the parts that are there, from the files in ``folder``."""
    found, notes = results.read_variants(folder, list(VARIANTS))
    records = [record for own in found.values() for record in own.values()]
    has_chain = (folder / CHAIN_SUMMARY).exists()
    if not records and not has_chain:
        raise CapoError(f"{folder}: contains neither part of the ablation; run without --draw-only first")
    quick = any(record.quick for record in records)
    quick |= has_chain and common.read_json(folder / CHAIN_SUMMARY)["quick"]
    parts = [QUICK_NOTE] if quick else []
    parts += [_game_table(game, own) for game, own in found.items()]
    if records:
        parts.append(
            f"Scores: {wording.final_score(records[0])}. training: mean of the evaluations during training.\n"
            f"{results.INTERVALS}; base and variant are resampled independently."
        )
    else:
        notes.append("the game has not been run (--part game)")
    parts += _chain_tables(folder) if has_chain else ["Note: the chain has not been run (--part chain)"]
    return "\n\n".join([*parts, *(f"Note: {note}" for note in notes)])


def _game_table(game: str, own: dict[str, Record]) -> str:
    """One row per variant, in the order of VARIANTS."""
    base = own.get(BASE)
    rows = []
    for name, record in own.items():
        scores = finals(record)
        apart = "-" if base is None or name == BASE else interval(difference(scores, finals(base)), "+")
        during = [np.nanmean(returns) for _, returns in record.evaluation.values()]
        shown = f"{np.mean(during):.2f}" if during else "-"
        rows.append([VARIANTS[name][0], len(scores), interval(mean(scores)), apart, shown])
    first = next(iter(own.values()))
    return common.text_table(
        f"{game}, NCAPO, preset {first.preset}, {first.frames:,} frames",
        ["", "seeds", "final return [95 %]", "difference from the base [95 %]", "training"],
        rows,
    )


def _chain_tables(folder: Path) -> list[str]:
    summary = common.read_json(folder / CHAIN_SUMMARY)
    rows = common.read_groups(folder / CHAIN_RUNS, "rule", "variant", "rate")
    parts = [_chain_table(rows, summary, rule, rate) for rule in RULES for rate in TABLE_RATES]
    return [*parts, _rates_table(rows, summary), _exact_table(summary)]


def _chain_table(rows: Groups, summary: Row, rule: str, rate: float) -> str:
    base = _column(rows[rule, "base", rate], "mean")
    lines = []
    for name in _names(rows, rule):
        own = rows[rule, name, rate]
        scores = _column(own, "mean")
        apart = "-" if name == "base" else interval(difference(scores, base), "+", 1)
        final = interval(mean(_column(own, "final")), digits=1)
        title = CHAIN_VARIANTS[name][0]
        lines.append([title, interval(mean(scores), digits=1), apart, final, _there(own), _median_first(own)])
    header = ["", "mean return [95 %]", "difference from the base", "final return [95 %]", "at optimum"]
    return common.text_table(
        f"Chain, true values, {RULES[rule][0]}, Adam {rate:g}, {summary['runs']} runs, {summary['iterations']} "
        "iterations",
        [*header, "median first"],
        lines,
    )


def _rates_table(rows: Groups, summary: Row) -> str:
    lines = []
    for rule, (title, _) in RULES.items():
        for name in _names(rows, rule):
            own = [rows[rule, name, rate] for rate in summary["rates"]]
            cells = [f"{_there(one)} ({_median_first(one)})" for one in own]
            lines.append([f"{title}: {CHAIN_VARIANTS[name][0]}", *cells])
    return common.text_table(
        f"Adam's learning rate: runs that end above {OPTIMUM:g} (and the median iteration that first gets there)",
        ["", *(f"{rate:g}" for rate in summary["rates"])],
        lines,
    )


def _exact_table(summary: Row) -> str:
    exact = summary["exact"]
    lines = [
        [CHAIN_VARIANTS[name][0], *(common.count(exact[rule][name]) for rule in RULES)] for name in exact["batch"]
    ]
    return common.text_table(
        f"Exact tabular CAPO on the chain: iterations (Cyclic: single updates) to a return above {OPTIMUM:g}",
        ["", "Batch", "Cyclic"],
        lines,
        f"-: more than {EXACT_LIMIT['batch']:,} and {EXACT_LIMIT['cyclic']:,}.",
    )


def _names(rows: Groups, rule: str) -> list[str]:
    return list(dict.fromkeys(name for own, name, _ in rows if own == rule))


def _column(rows: Sequence[Row], name: str) -> Floats:
    return np.array([row[name] for row in rows], np.float64)


def _there(rows: Sequence[Row]) -> str:
    return f"{int((_column(rows, 'final') > OPTIMUM).sum())}/{len(rows)}"


def _median_first(rows: Sequence[Row]) -> str:
    first = _column(rows, "first")
    return common.count(float(np.median(np.where(np.isnan(first), np.inf, first))))


# --- what is drawn --------------------------------------------------------------------------------------------


def draw(folder: Path, out: Path) -> list[Path]:
    """ablation.png (the game) and chain.png, of the parts that are there, from the files in ``folder``."""
    found, _ = results.read_variants(folder, list(VARIANTS))
    drawn = [_draw_games(out / "ablation.png", found)] if found else []
    if (folder / CHAIN_SUMMARY).exists():
        drawn.append(_draw_chain(out / "chain.png", folder))
    return drawn


def _draw_games(path: Path, games: dict[str, dict[str, Record]]) -> Path:
    """One column per game: every variant's final return with its interval, and every seed's."""
    names = [name for name in VARIANTS if any(name in own for own in games.values())]
    size = (2.6 + 4.6 * len(games), 1.6 + 0.33 * len(names))
    with figures.figure(path, 1, len(games), size, squeeze=False, sharey=True) as (drawing, axes):
        for axis, (game, own) in zip(axes[0], games.items(), strict=True):
            _dots(axis, names, {name: finals(record) for name, record in own.items()})
            record = next(iter(own.values()))
            axis.set_title(f"{game.replace('_', ' ').title()}, preset {record.preset}, {record.frames:,} frames")
            axis.set_xlabel("final return")
        axes[0, 0].set_yticks(range(len(names)), [VARIANTS[name][0] for name in names])
        quick = any(record.quick for own in games.values() for record in own.values())
        text = "NCAPO, one thing changed at a time:\nmean, 95 % interval, small dots: seeds"
        common.caption(drawing, text, quick, fontsize=10.5)
    return path


def _draw_chain(path: Path, folder: Path) -> Path:
    """One column per rule and learning rate, each on its own scale: the return averaged over the iterations."""
    summary = common.read_json(folder / CHAIN_SUMMARY)
    rows = common.read_groups(folder / CHAIN_RUNS, "rule", "variant", "rate")
    names = _names(rows, "cyclic")
    with figures.figure(path, 1, 3, (12, 1.6 + 0.33 * len(names)), sharey=True) as (drawing, axes):
        for axis, (rule, rate) in zip(axes, DRAWN, strict=True):
            _dots(axis, names, {name: _column(rows[rule, name, rate], "mean") for name in _names(rows, rule)})
            axis.set(title=f"{RULES[rule][0]}, Adam {rate:g}", xlabel="mean return over the run")
        axes[0].set_yticks(range(len(names)), [CHAIN_VARIANTS[name][0] for name in names])
        common.caption(
            drawing,
            f"Chain of {summary['n']} with n actions, true values, one thing changed at a time: mean over "
            f"{summary['iterations']} iterations, 95 % interval; small dots: runs",
            summary["quick"],
            fontsize=10.5,
        )
    return path


def _dots(axis: Any, names: Sequence[str], scores: dict[str, Floats]) -> None:
    """Dots with horizontal intervals, one row per name from the top; a line marks the base."""
    for name, own in scores.items():
        row, found = names.index(name), mean(own)
        base = name == BASE
        colour = figures.HIGHLIGHT if base else figures.COLOURS[0]
        if base:
            axis.axvline(found.value, color=figures.HIGHLIGHT, lw=0.9, ls="--", zorder=1)
        axis.plot(own, np.full(len(own), row), ".", color=colour, alpha=0.25, ms=5, mew=0)
        axis.plot([found.low, found.high], [row, row], color=colour, lw=2.2)
        axis.plot(found.value, row, "o", color=colour, ms=6)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
