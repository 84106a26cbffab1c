"""A tuning on the report page: what was found, on which seeds, and the three pictures."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from capo.errors import CapoError
from capo.neural.algorithms import registry
from capo.report import statistics, tuning_figures
from capo.report.series import title
from capo.report.sources import holds_runs
from capo.report.statistics import Estimate
from capo.sweeps.tuning_folder import Tuning, in_words, is_tuning, read_tuning


def read_tunings(paths: Sequence[Path]) -> tuple[list[Tuning], list[Path], list[str]]:
    """The tunings among the paths and directly below them.

    Returns:
        The tunings, the paths that may hold something else too, and what could not be read, in words.
    """
    tunings, rest, problems = [], [], []
    for path in dict.fromkeys(paths):
        if is_tuning(path):
            tunings.append(read_tuning(path))
            continue
        below = [one for one in sorted(path.iterdir()) if is_tuning(one)] if path.is_dir() else []
        for one in below:
            try:
                tunings.append(read_tuning(one))
            except CapoError as error:
                problems.append(f"{error}; left out")
        if not below or holds_runs(path):
            rest.append(path)
    return tunings, rest, problems


def section(tuning: Tuning) -> str:
    """The part of the page about one tuning, in HTML."""
    asked = tuning.asked
    states = [one.state(len(tuning.stages)) for one in tuning.trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    parts = [
        f"<h2>Tuning of {_safe(title(asked['algorithm']))} on {_safe(asked['env'])}</h2>",
        f'<p class="soft">{_safe(tuning.folder)}: {len(tuning.trials)} trials ({counts}), '
        f"{tuning.stages[-1]:,} frames, {in_words(asked['seeds'])}, {asked['episodes']} episodes per seed and "
        "score</p>",
    ]
    if tuning.best is not None:
        parts += [*_fresh(tuning), *_best(tuning)]
    parts += [
        "<h3>History</h3>",
        '<p class="soft">The last score of every trial. Filled: trained to the end. Hollow: stopped after '
        "an earlier stage, so its score is after fewer frames. Cross: diverged. Line: best full trial so far.</p>",
        f'<div class="chart">{tuning_figures.history(tuning)}</div>',
    ]
    if tuning.importance:
        parts += [
            "<h3>Importance</h3>",
            '<p class="soft">How well each setting separates the best trials from the others (PED-ANOVA), '
            f"by the score after the first stage ({tuning.stages[0]:,} frames), which every trial has.</p>",
            f'<div class="chart">{tuning_figures.importance(tuning)}</div>',
        ]
    parts += [
        "<h3>Settings and score</h3>",
        '<p class="soft">One line per trial, darker for a better score after the first stage; trials with thick '
        "lines were trained to the end.</p>",
        f'<div class="chart">{tuning_figures.parallel(tuning)}</div>',
    ]
    return f'<section class="tuning">{"".join(parts)}</section>'


def fresh_scores(tuning: Tuning) -> list[tuple[str, str]]:
    """The scores on fresh seeds in words: tuned, preset, and the chance that one beats the other."""
    found, known = [], {}
    names = {"tuned": "tuned", "preset": f"preset {tuning.asked['preset']}"}
    for name, scores in tuning.fresh.items():
        known[name] = [score for score in scores if score is not None]
        if not known[name]:
            found.append((names.get(name, name), "diverged"))
            continue
        estimate = statistics.stratified_bootstrap([known[name]], statistics.aggregate_mean)
        each = ", ".join(f"{score:.4g}" for score in known[name])
        found.append((names.get(name, name), f"{_interval(estimate)}; by seed: {each}"))
    if all(known.get(name) for name in names):
        chance = statistics.improvement([known["tuned"]], [known["preset"]])
        found.append(("probability that a tuned seed beats a preset seed", _interval(chance)))
    return found


def _interval(estimate: Estimate) -> str:
    return f"{estimate.value:.4g} ({statistics.LEVEL:.0%} interval {estimate.low:.4g} to {estimate.high:.4g})"


def _fresh(tuning: Tuning) -> Iterable[str]:
    if not tuning.fresh:
        return
    seeds = in_words(tuning.asked["fresh_seeds"])
    yield f"<h3>Fresh {seeds}</h3>"
    yield (
        f'<p class="soft">The settings were selected by their score with {in_words(tuning.asked["seeds"])}, so '
        f"that score is biased upwards. The best settings and the preset were retrained with {seeds}.</p>"
    )
    yield '<dl class="facts">'
    for label, text in fresh_scores(tuning):
        yield f"<dt>{_safe(label)}</dt><dd>{_safe(text)}</dd>"
    yield "</dl>"


def _best(tuning: Tuning) -> Iterable[str]:
    asked, best = tuning.asked, tuning.best_trial
    usual = {}
    row = registry.ROWS.get(asked["algorithm"])
    if row is not None and asked["preset"] in row.settings.PRESETS:
        usual = row.settings.preset(asked["preset"], asked["env"]).to_dict() | asked["settings"]
    yield f"<h3>Best settings: trial {best.number}, score {best.score:.4g}</h3>"
    heads = "".join(f"<th>{head}</th>" for head in ("setting", "tuned", "preset", "searched"))
    yield f'<div class="scroll"><table class="data"><thead><tr>{heads}</tr></thead><tbody>'
    for name, value in best.settings.items():
        table = asked["space"][name]
        searched = (
            ", ".join(map(str, table["choices"]))
            if "choices" in table
            else f"{table['low']:g} to {table['high']:g}, {table['scale']}"
        )
        before = usual.get(name, "-")
        cells = "".join(f"<td>{_safe(cell)}</td>" for cell in (value, before, searched))
        yield f"<tr><th>{_safe(name)}</th>{cells}</tr>"
    yield "</tbody></table></div>"


def _safe(value: object) -> str:
    return html.escape(str(value))
