"""Which part of NCAPO carries it? One thing changed at a time.

Two parts. ``game``: NCAPO on a MinAtar game, from a preset; every variant changes one of its settings. ``chain``:
the chain with true values (Algorithm 2), where neither a critic nor exploration stands between the update and its
result; only what belongs to the update can be changed there. Beside it exact tabular CAPO with the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from capo.errors import CapoError, unknown_name
from capo.experiments import minatar, side_by_side
from capo.experiments import variants as training
from capo.experiments.batch_neural import NETWORK, Learner, Source, batches_from, plain_return, run_all
from capo.experiments.chain import OPTIMUM, SIZES, TEXT_RATE, N
from capo.experiments.common import content_of, groups, read_csv, read_json, text_table, write_csv
from capo.experiments.minatar import Plan
from capo.experiments.variants import Variant, VariantJob, difference, finals, interval, mean
from capo.files import write_json
from capo.progress import Ticker
from capo.provenance import provenance
from capo.report import figures, statistics
from capo.report.folders import Record
from capo.tabular.mdp import MDP
from capo.tabular.mdps import chain
from capo.tabular.solver import Snapshot, solve
from capo.update import StepSize

Floats = npt.NDArray[np.float64]
Part = Literal["game", "chain"]
PARTS: tuple[str, ...] = get_args(Part)

DATA = ("*.json",)  # of either part; the chain has two CSV files beside its own
CHAIN_SUMMARY, CHAIN_RUNS, CHAIN_CURVES = "chain.json", "chain_runs.csv", "chain_curves.csv"

# --- what is changed ------------------------------------------------------------------------------------------

BASE = Variant("base", "base: the preset")
GAME = "breakout"
# Both values of a switch are here; what the preset has already is left out.
VARIANTS: tuple[Variant, ...] = (
    BASE,
    Variant("alpha-log", "alpha = log 1/pi", {"step_size": "log"}),
    Variant("alpha-0.3", "alpha = 0.3", {"step_size": "fixed", "fixed_alpha": 0.3}),
    Variant("alpha-1", "alpha = 1", {"step_size": "fixed", "fixed_alpha": 1.0}),
    Variant("alpha-3", "alpha = 3", {"step_size": "fixed", "fixed_alpha": 3.0}),
    Variant("clip-1", "clip 1", {"clip": 1.0}),
    Variant("clip-5", "clip 5", {"clip": 5.0}),
    Variant("kl-paper", "KL(pi || target)", {"kl": "policy-to-target"}),
    Variant("kl-reverse", "KL(target || pi)", {"kl": "target-to-policy"}),
    Variant("weight-none", "sign of A only", {"advantage_weight": "none"}),
    Variant("weight-normalised", "alpha times |A| / mean |A|", {"advantage_weight": "normalised"}),
    Variant("epsilon-0", "no epsilon", {"epsilon_start": 0.0, "epsilon_final": 0.0}),
    Variant("epsilon-0.05", "epsilon 0.05 in the end", {"epsilon_final": 0.05}),
    Variant("epsilon-0.3", "epsilon 0.3 to the end", {"epsilon_start": 0.3, "epsilon_final": 0.3}),
    Variant("replay-last", "no replay: the last rollouts", {"replay_rollouts": 1}),
    Variant("replay-1600", "replay of 1600 rollouts", {"replay_rollouts": 1600}),
    Variant("replay-6400", "replay of 6400 rollouts", {"replay_rollouts": 6400}),
    Variant("replay-25600", "replay of 25,600 rollouts", {"replay_rollouts": 25_600}),
    Variant("lambda-0", "Retrace lambda 0", {"retrace_lambda": 0.0}),
    Variant("lambda-0.5", "Retrace lambda 0.5", {"retrace_lambda": 0.5}),
    Variant("lambda-0.9", "Retrace lambda 0.9", {"retrace_lambda": 0.9}),
    Variant("lambda-1", "Retrace lambda 1", {"retrace_lambda": 1.0}),
    Variant("actor-lambda-0.5", "half of it for the actor", {"actor_lambda": 0.5}),
    Variant("actor-lambda-1", "one lambda for both", {"actor_lambda": 1.0}),
    Variant("critic-categorical", "critic over atoms", {"critic": "categorical"}),
    Variant("norm-off", "no LayerNorm", {"layer_norm": False}),
    Variant("norm-on", "LayerNorm", {"layer_norm": True}),
    Variant("entropy-0", "no entropy bonus", {"entropy": 0.0}),
    Variant("entropy-0.01", "entropy bonus 0.01", {"entropy": 0.01}),
)
QUICK_VARIANTS = ("base", "alpha-1", "kl-reverse")
PLAN = Plan(frames=2_000_000, seeds=8, evaluations=10)
QUICK = Plan(frames=10_000, seeds=2, preset="cpu", evaluations=4, episodes=10, final_episodes=10, quick=True)
QUICK_NOTE = "QUICK run: a few variants, far too few frames, seeds and runs to conclude anything."


@dataclass(frozen=True)
class ChainVariant:
    """One change of Algorithm 2 on the chain."""

    title: str
    settings: dict[str, Any] = field(default_factory=dict)
    source: Source | None = None  # of the pairs, if not the rule's own


_REVERSE = {"kl": "target-to-policy"}
RULES: dict[str, tuple[str, Source]] = {"batch": ("Batch CAPO", "all"), "cyclic": ("Cyclic CAPO", "cyclic replay")}
CHAIN_VARIANTS: dict[str, ChainVariant] = {
    "base": ChainVariant("base: log 1/pi, KL(pi || target)"),
    "alpha 0.1": ChainVariant("alpha = 0.1", {"step": StepSize("fixed", eta=0.1)}),
    "alpha 1": ChainVariant("alpha = 1", {"step": StepSize("fixed", eta=1.0)}),
    "alpha 3": ChainVariant("alpha = 3", {"step": StepSize("fixed", eta=3.0)}),
    "alpha 10": ChainVariant("alpha = 10", {"step": StepSize("fixed", eta=10.0)}),
    "clip 1": ChainVariant("clip 1", {"step": StepSize("clipped", clip=1.0)}),
    "clip 5": ChainVariant("clip 5", {"step": StepSize("clipped", clip=5.0)}),
    "reverse": ChainVariant("KL(target || pi)", _REVERSE),
    # Two things changed: to Adam the size of alpha is nothing in the paper's direction, but not in the other one.
    "reverse 0.1": ChainVariant("KL(target || pi), alpha = 0.1", {**_REVERSE, "step": StepSize("fixed", eta=0.1)}),
    "reverse 1": ChainVariant("KL(target || pi), alpha = 1", {**_REVERSE, "step": StepSize("fixed", eta=1.0)}),
    "reverse 10": ChainVariant("KL(target || pi), alpha = 10", {**_REVERSE, "step": StepSize("fixed", eta=10.0)}),
    "weight": ChainVariant("alpha times |A| / mean |A|", {"by_advantage": True}),
    "steps 4": ChainVariant("4 gradient steps a batch", {"steps": 4}),
    "fresh": ChainVariant("no replay", source="cyclic"),
}
QUICK_CHAIN = ("base", "alpha 1", "reverse")
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
TABLE_RATES = (TEXT_RATE, 1e-2)  # the text's, and one that is too high for the paper's loss
DRAWN = (("batch", TEXT_RATE), ("cyclic", TEXT_RATE), ("cyclic", 1e-2))  # Batch at 0.01: nothing differs
EXACT_LIMIT = {"batch": 10_000, "cyclic": 100_000}


def run(
    out: Path,
    quick: bool = False,
    progress: bool = True,
    *,
    part: str | None = None,
    games: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    frames: int | None = None,
    seeds: int | None = None,
    preset: str | None = None,
    workers: int | None = None,
) -> None:
    """Compute what is missing of both parts, or of the one that is asked for, and write its files into ``out``.

    ``variants`` are names of those on the game; all if none is given.
    The chain takes minutes: it is computed again if it is asked for by name, and otherwise if it is missing.
    """
    if part is not None and part not in PARTS:
        raise unknown_name("part", part, PARTS)
    say = minatar.teller("ablation", progress)
    own = {
        "games": games,
        "variants": variants,
        "frames": frames,
        "seeds": seeds,
        "preset": preset,
        "workers": workers,
    }
    training.refuse_with(part, "chain", **own)
    plan = minatar.chosen_plan(QUICK if quick else PLAN, frames, seeds, preset)
    chosen = minatar.choose_games(games or [GAME])
    only = choose_variants(variants)
    jobs = [VariantJob(out, game, variant, plan) for game in chosen for variant in differing(game, plan, only)]
    if part != "chain":
        bases = [VariantJob(out, game, BASE, plan) for game in chosen]  # what the others are compared with
        training.check([*jobs, *bases])
    if workers is not None and workers > 1:
        side_by_side.share_device()
    if part == "chain" or (part is None and not _has_chain(out, quick)):
        run_chain(out, quick, progress)
    elif part is None:
        say(f"the chain is finished already ({out / CHAIN_SUMMARY}; --part chain computes it again)")
    if part != "chain":
        minatar.train_all(jobs, "trainings on MinAtar", say, progress, workers or 1)


def choose_variants(given: Sequence[str] | None) -> list[str]:
    """Names of variants; empty if none is given."""
    known = [variant.name for variant in VARIANTS]
    names = [name.lower() for part in given or () for name in part.split(",") if name]
    for name in names:
        if name not in known:
            raise unknown_name("variant", name, known)
    return names


def differing(game: str, plan: Plan, names: Sequence[str] = ()) -> list[Variant]:
    """The variants (those of ``names``, if any) that are not what the preset is already."""
    from capo.neural.config import override, preset

    base = preset(plan.preset, minatar.environment(game))
    kept = [variant for variant in VARIANTS if variant is BASE or override(base, variant.settings) != base]
    wanted = names or (QUICK_VARIANTS if plan.quick else [variant.name for variant in kept])
    found = [variant for variant in kept if variant.name in wanted]
    same = [name for name in names if name not in [variant.name for variant in found]]
    if same:
        raise CapoError(
            f"{', '.join(same)}: the preset {plan.preset} has these settings already; it is the variant base"
        )
    return found


# --- the chain ------------------------------------------------------------------------------------------------


def _has_chain(out: Path, quick: bool) -> bool:
    """Whether the chain's part is there, whole and of this size."""
    whole = all((out / name).exists() for name in (CHAIN_SUMMARY, CHAIN_RUNS, CHAIN_CURVES))
    return whole and content_of(out / CHAIN_SUMMARY).get("quick") is quick


def run_chain(out: Path, quick: bool, progress: bool) -> None:
    """Write chain_runs.csv, chain_curves.csv and chain.json: n actions, true values."""
    runs, rates = (5, TABLE_RATES) if quick else (30, RATES)
    mdp = chain(N, up_actions=N - 1)
    mdps = [mdp] * runs
    ticker = Ticker(progress)
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    todo = [
        (rule, name)
        for rule in RULES
        for name in (QUICK_CHAIN if quick else CHAIN_VARIANTS)
        if not (rule == "batch" and name == "fresh")  # all pairs every time: there is no replay to leave out
    ]
    for done, (rule, name) in enumerate(todo):
        variant = CHAIN_VARIANTS[name]
        ticker.show(f"ablation: chain, {done} of {len(todo)} done, now {RULES[rule][0]}, {variant.title}")
        batches = batches_from(variant.source or RULES[rule][1], mdps, SIZES)
        points, returns = run_all(Learner(**variant.settings), mdps, batches, rates, SIZES)
        for rate, found in zip(rates, returns, strict=True):
            key = {"rule": rule, "variant": name, "rate": rate}
            rows += [{**key, "run": k, **_measures(points, one)} for k, one in enumerate(found)]
            if rate in TABLE_RATES:
                means = zip(points.tolist(), found.mean(axis=0).round(3).tolist(), strict=True)
                curves += [{**key, "iteration": i, "mean": value} for i, value in means if i % 20 == 0]
    ticker.show("ablation: exact tabular CAPO")
    exact = {rule: {name: _exact_first(mdp, rule, name) for name in _exact_variants(quick)} for rule in RULES}
    ticker.close()
    write_csv(out / CHAIN_RUNS, rows)
    write_csv(out / CHAIN_CURVES, curves)
    write_json(
        out / CHAIN_SUMMARY,
        {
            "experiment": "ablation, chain",
            "quick": quick,
            "n": N,
            "actions": N,
            "gamma": mdp.gamma,
            "runs": runs,
            "runs_are": f"seeds 0 to {runs - 1}, of the first parameters and of the batches",
            "rates": rates,
            "iterations": SIZES.iterations,
            "network": NETWORK,
            "base": "alpha = log 1/pi, KL(pi || target), one gradient step a batch; Batch: all pairs; Cyclic: 16 "
            "pairs of the cycle enter a buffer of 100 an iteration, and 16 drawn from it are the batch",
            "variants": {name: variant.title for name, variant in CHAIN_VARIANTS.items()},
            "return": "undiscounted, expected under the policy (nothing sampled), episodes cut at 100 steps; "
            "100 is the best",
            "mean": f"of the return at every tenth of the {SIZES.iterations} iterations",
            "first": f"iteration at which the return was first seen above {OPTIMUM:g}; empty: never",
            "exact": exact,
            "exact_is": "iterations of exact tabular CAPO (Cyclic: single updates, looked at every tenth) to a "
            f"return above {OPTIMUM:g}; null: not within {EXACT_LIMIT}",
            **provenance(),
        },
    )


def _measures(points: npt.NDArray[np.int64], returns: Floats) -> dict[str, Any]:
    """Of one run: (points,) returns."""
    there = returns > OPTIMUM
    first = int(points[there.argmax()]) if there.any() else None
    return {"final": round(float(returns[-1]), 3), "mean": round(float(returns.mean()), 3), "first": first}


def _exact_variants(quick: bool) -> list[str]:
    """The variants that exact tabular CAPO knows: those of the step size."""
    names = QUICK_CHAIN if quick else tuple(CHAIN_VARIANTS)
    return [name for name in names if not set(CHAIN_VARIANTS[name].settings) - {"step"} and name != "fresh"]


def _exact_first(mdp: MDP, rule: str, name: str) -> int | None:
    """When exact tabular CAPO with this step is first seen at the optimum."""
    step: StepSize = CHAIN_VARIANTS[name].settings.get("step", StepSize())
    first: list[int] = []

    def watch(now: Snapshot) -> bool:
        if plain_return(mdp, np.exp(now.log_policy), SIZES.horizon) > OPTIMUM:
            first.append(now.iteration)
        return not first

    every = 1 if rule == "batch" else 10
    solve(mdp, rule, step, iterations=EXACT_LIMIT[rule], record_every=every, callback=watch)
    return first[0] if first else None


# --- what is printed ------------------------------------------------------------------------------------------


def report(folder: Path) -> str:
    """The tables of the parts that are there, from the files in ``folder``."""
    found, notes = training.read(folder, [variant.name for variant in VARIANTS])
    has_chain = (folder / CHAIN_SUMMARY).exists()
    if not found and not has_chain:
        raise CapoError(f"{folder}: neither part of the ablation is there; run without --draw-only first")
    parts = []
    if any(record.quick for record in found.values()) or (
        has_chain and read_json(folder / CHAIN_SUMMARY)["quick"]
    ):
        parts.append(QUICK_NOTE)
    parts += [_game_table(game, own) for game, own in _by_game(found).items()]
    if found:
        first = next(iter(found.values()))
        parts.append(
            f"Scores: {first.protocol_line('Final score')}. training: mean of the evaluations on the way.\n"
            "Intervals: percentile bootstrap over seeds, 95 %; base and variant are drawn again independently."
        )
    else:
        notes.append("the part on a game has not been run (--part game)")
    parts += _chain_tables(folder) if has_chain else ["Note: the chain has not been run (--part chain)"]
    return "\n\n".join([*parts, *(f"Note: {note}" for note in notes)])


def _by_game(found: dict[tuple[str, str], Record]) -> dict[str, dict[str, Record]]:
    games: dict[str, dict[str, Record]] = {}
    for (game, name), record in found.items():
        games.setdefault(game, {})[name] = record
    return games


def _game_table(game: str, own: dict[str, Record]) -> str:
    """One row a variant, in the order of VARIANTS."""
    titles = {variant.name: variant.title for variant in VARIANTS}
    base = own.get(BASE.name)
    rows = []
    for name, record in own.items():
        scores = finals(record)
        apart = "-" if base is None or name == BASE.name else interval(difference(scores, finals(base)), "+")
        on_the_way = [np.nanmean(returns) for _, returns in record.evaluation.values()]
        training = f"{np.mean(on_the_way):.2f}" if on_the_way else "-"
        rows.append([titles[name], len(scores), interval(mean(scores)), apart, training])
    first = next(iter(own.values()))
    return text_table(
        f"{game}, NCAPO, preset {first.preset}, {first.frames:,} frames",
        ["", "seeds", "final return [95 %]", "difference to the base [95 %]", "training"],
        rows,
    )


def _chain_tables(folder: Path) -> list[str]:
    summary = read_json(folder / CHAIN_SUMMARY)
    rows = groups(read_csv(folder / CHAIN_RUNS), "rule", "variant", "rate")
    parts = [_chain_table(rows, summary, rule, rate) for rule in RULES for rate in TABLE_RATES]
    return [*parts, _rates_table(rows, summary), _exact_table(summary)]


def _chain_table(rows: dict[tuple[Any, ...], Any], summary: dict[str, Any], rule: str, rate: float) -> str:
    base = _column(rows[rule, "base", rate], "mean")
    lines = []
    for name in _names(rows, rule):
        own = rows[rule, name, rate]
        scores = _column(own, "mean")
        apart = "-" if name == "base" else interval(difference(scores, base), "+", 1)
        final = interval(mean(_column(own, "final")), digits=1)
        title = summary["variants"][name]
        lines.append([title, interval(mean(scores), digits=1), apart, final, _there(own), _median_first(own)])
    return text_table(
        f"Chain, true values, {RULES[rule][0]}, Adam {rate:g}, {summary['runs']} runs, {summary['iterations']} "
        "iterations",
        ["", "mean return [95 %]", "difference to the base", "final return [95 %]", "at optimum", "median first"],
        lines,
    )


def _rates_table(rows: dict[tuple[Any, ...], Any], summary: dict[str, Any]) -> str:
    lines = []
    for rule, (title, _) in RULES.items():
        for name in _names(rows, rule):
            own = [rows[rule, name, rate] for rate in summary["rates"]]
            cells = [f"{_there(one)} ({_median_first(one)})" for one in own]
            lines.append([f"{title}: {summary['variants'][name]}", *cells])
    return text_table(
        f"Learning rates of Adam: runs that end above {OPTIMUM:g} (median of the first iteration there)",
        ["", *(f"{rate:g}" for rate in summary["rates"])],
        lines,
    )


def _exact_table(summary: dict[str, Any]) -> str:
    exact = summary["exact"]
    lines = [
        [summary["variants"][name], *("-" if exact[rule][name] is None else exact[rule][name] for rule in RULES)]
        for name in exact["batch"]
    ]
    return text_table(
        f"Exact tabular CAPO on the chain: iterations (Cyclic: single updates) to a return above {OPTIMUM:g}",
        ["", "Batch", "Cyclic"],
        lines,
        f"-: not within {EXACT_LIMIT['batch']:,} and {EXACT_LIMIT['cyclic']:,}.",
    )


def _names(rows: dict[tuple[Any, ...], Any], rule: str) -> list[str]:
    return list(dict.fromkeys(name for own, name, _ in rows if own == rule))


def _column(rows: Sequence[dict[str, Any]], name: str) -> Floats:
    return np.array([row[name] for row in rows], np.float64)


def _there(rows: Sequence[dict[str, Any]]) -> str:
    return f"{int((_column(rows, 'final') > OPTIMUM).sum())}/{len(rows)}"


def _median_first(rows: Sequence[dict[str, Any]]) -> str:
    first = _column(rows, "first")
    median = float(np.median(np.where(np.isnan(first), np.inf, first)))
    return "-" if math.isinf(median) else f"{median:.0f}"


# --- what is drawn --------------------------------------------------------------------------------------------


def draw(folder: Path, out: Path) -> list[Path]:
    """ablation.png (the game) and chain.png, of the parts that are there, from the files in ``folder``."""
    found, _ = training.read(folder, [variant.name for variant in VARIANTS])
    drawn = [_draw_games(out / "ablation.png", _by_game(found))] if found else []
    if (folder / CHAIN_SUMMARY).exists():
        drawn.append(_draw_chain(out / "chain.png", folder))
    return drawn


def _draw_games(path: Path, games: dict[str, dict[str, Record]]) -> Path:
    """A column a game: every variant's final return with its interval, and every seed's."""
    titles = {variant.name: variant.title for variant in VARIANTS}
    names = [name for name in titles if any(name in own for own in games.values())]
    size = (2.6 + 4.6 * len(games), 1.6 + 0.33 * len(names))
    with figures.figure(path, 1, len(games), size, squeeze=False, sharey=True) as (drawing, axes):
        for axis, (game, own) in zip(axes[0], games.items(), strict=True):
            _dots(axis, {name: finals(own[name]) if name in own else None for name in names})
            record = next(iter(own.values()))
            axis.set_title(f"{game.replace('_', ' ').title()}, preset {record.preset}, {record.frames:,} frames")
            axis.set_xlabel("final return")
        axes[0, 0].set_yticks(range(len(names)), [titles[name] for name in names])
        quick = _quick(any(record.quick for own in games.values() for record in own.values()))
        text = f"{quick}NCAPO, one thing changed at a time:\nmean, 95 % interval, small dots: seeds"
        drawing.suptitle(text, x=0.01, ha="left", fontsize=10.5)
    return path


def _draw_chain(path: Path, folder: Path) -> Path:
    """A column a rule and learning rate, each on its own scale: the return averaged over the iterations."""
    summary = read_json(folder / CHAIN_SUMMARY)
    rows = groups(read_csv(folder / CHAIN_RUNS), "rule", "variant", "rate")
    names = _names(rows, "cyclic")
    with figures.figure(path, 1, 3, (12, 1.6 + 0.33 * len(names)), sharey=True) as (drawing, axes):
        for axis, (rule, rate) in zip(axes, DRAWN, strict=True):
            own = {name: rows.get((rule, name, rate)) for name in names}
            _dots(axis, {name: None if found is None else _column(found, "mean") for name, found in own.items()})
            axis.set(title=f"{RULES[rule][0]}, Adam {rate:g}", xlabel="mean return over the run")
        axes[0].set_yticks(range(len(names)), [summary["variants"][name] for name in names])
        drawing.suptitle(
            f"{_quick(summary['quick'])}Chain of {summary['n']} with n actions, true values, one thing changed at "
            f"a time: mean of {summary['iterations']} iterations, 95 % interval; small dots: runs",
            x=0.01,
            ha="left",
            fontsize=10.5,
        )
    return path


def _quick(quick: bool) -> str:
    return "QUICK run; " if quick else ""


def _dots(axis: Any, scores: dict[str, Floats | None]) -> None:
    """Horizontal dots and intervals, one row a variant from above; the first one is the base, marked by a line."""
    for row, (name, own) in enumerate(scores.items()):
        if own is None:
            continue
        found: statistics.Estimate = mean(own)
        base = name == "base"
        colour = figures.HIGHLIGHT if base else figures.COLOURS[0]
        if base:
            axis.axvline(found.value, color=figures.HIGHLIGHT, lw=0.9, ls="--", zorder=1)
        axis.plot(own, np.full(len(own), row), ".", color=colour, alpha=0.25, ms=5, mew=0)
        axis.plot([found.low, found.high], [row, row], color=colour, lw=2.2)
        axis.plot(found.value, row, "o", color=colour, ms=6)
    axis.set_ylim(len(scores) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
