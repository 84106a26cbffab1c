"""One self-contained HTML page from records of runs: everything is computed here, the page only draws it.

The page loads nothing: style, script, data and pictures are inside it, and its content security policy forbids
anything else.
"""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from capo import __version__
from capo.files import write_text
from capo.neural.algorithms import registry
from capo.reading import Unreadable, read_bytes
from capo.report import paper, sources, statistics, tuning_page, wording
from capo.report.series import Series, colour, group, kind_names, samples, shown, title
from capo.report.statistics import Array
from capo.runs.records import Record, version_differences
from capo.sweeps.tuning_folder import Tuning

MAX_GIF = 4_000_000  # bytes of one embedded picture
MOST_PAIRS = 16  # series of an environment that are compared pair by pair
_THRESHOLDS = 201  # points of a performance profile
_NOSCRIPT = (
    '<noscript><p class="notice">This page draws its curves with JavaScript; please enable it.</p></noscript>'
)

JSON = dict[str, Any]


def write_page(paths: Sequence[Path], out: Path) -> tuple[Path, list[str]]:
    """Read the folders and write the page.

    Returns:
        The file, and what could not be read, in words.
    """
    tunings, rest, problems = tuning_page.read_tunings(paths)
    records, more = sources.read(rest) if rest or not tunings else ([], [])
    problems += more
    return write_text(out, render(records, problems, tunings)), problems


def render(records: Sequence[Record], problems: Sequence[str], tunings: Sequence[Tuning] = ()) -> str:
    """The page as text: what the script draws of the records, then the tunings, which need no script."""
    content = page_data(records, problems)
    folder = resources.files("capo.report")
    names = ("page.css", "tuning.css", "page.js")
    style, more, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in names)
    sections = "".join(map(tuning_page.section, tunings))
    after = "div" if records else "main"
    if not records:
        about = ", ".join(dict.fromkeys(f"{one.asked['env']}" for one in tunings))
        content["title"] = f"capo report: tuning on {about}"
        made = f'<p class="soft">made {content["made"]} with capo {__version__}</p>'
        sections, script = f"<h1>{html.escape(content['title'])}</h1>{made}{sections}", ""
    # In a script element only "<" could end the data early.
    data = json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<title>{html.escape(content["title"])}</title>
<link rel="icon" href="data:,">
<style>
{style}{more}</style>
</head>
<body>
{_NOSCRIPT if records else ""}
{'<main id="page"></main>' if records else ""}
{f'<{after} class="wide">{sections}</{after}>' if tunings else ""}
<script type="application/json" id="data">{data}</script>
<script>
{script}</script>
</body>
</html>
"""


def page_data(records: Sequence[Record], problems: Sequence[str]) -> JSON:
    """What the page shows, as plain values."""
    series = group(records)
    environments = sorted({one.env for one in series})
    remarks = [*_version_remarks(records), *_unfinished_remarks(series), *_unlike_remarks(environments, series)]
    if any(record.quick for record in records):
        remarks.insert(0, "These are results of a --quick run: far too few frames and seeds to draw conclusions.")
    if len(environments) > 1:
        remarks.insert(0, "Returns are not comparable between environments: each has its own chart and tables.")
    about = ", ".join(environments) if len(environments) < 3 else f"{len(environments)} environments"
    return {
        "title": f"capo report: {about}",
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "capo": __version__,
        "runs": len(records),
        "seeds": sum(len(record.seeds) for record in records),
        "problems": list(problems),
        "remarks": remarks,
        "level": statistics.LEVEL,
        "resamples": statistics.RESAMPLES,
        "environments": [_environment(name, series) for name in environments],
        "overall": _overall(series),
    }


# --- what a reader should know before comparing ----------------------------------------------------------------


def _version_remarks(records: Sequence[Record]) -> list[str]:
    """Runs that are compared but were made with different versions."""
    first = next((record for record in records if record.versions), None)
    return [
        f"{text}, compared with {first.path}"
        for record in records
        if first is not None
        for text in version_differences(str(record.path), record.versions, first.versions)
    ]


def _unfinished_remarks(series: Sequence[Series]) -> list[str]:
    return [
        f"{one.label} on {one.env} has no finished seed: its curve ends where training stopped, without a score."
        for one in series
        if not one.finals
    ]


def _unlike_remarks(environments: Sequence[str], series: Sequence[Series]) -> list[str]:
    """Scores side by side that come from trainings of different lengths, or were measured in different ways."""
    remarks = []
    for env in environments:
        own = [one for one in series if one.env == env and one.finals]
        frames = {one.label: max(record.frames or 0 for record in one.records) for one in own}
        known = [number for number in frames.values() if number]
        if known and max(known) > 1.05 * min(known):
            lengths = ", ".join(f"{label} {number:,}" for label, number in frames.items())
            remarks.append(f"The runs on {env} have different lengths (frames: {lengths}).")
        # An algorithm whose policy does not sample can be measured in one way only.
        choosing = [record for one in own for record in one.records if samples(one.algorithm, {})]
        ways = {_way(record): text for record in choosing if (text := wording.final_score(record))}
        if len(ways) > 1:
            remarks.append(
                f"The final scores on {env} were measured in different ways: {'; '.join(ways.values())}."
            )
    return remarks


def _way(record: Record) -> tuple[Any, ...]:
    """How a record's scores were measured: equal for equal ways. An older file has a sentence only."""
    if record.final_episodes is None:
        return record.scored_by, record.protocol.get("Final score")
    return record.final_episodes, bool(record.deterministic)


# --- one environment ------------------------------------------------------------------------------------------


def _environment(name: str, series: Sequence[Series]) -> JSON:
    own = [one for one in series if one.env == name]
    games = kind_names(one.kind for one in series if one.env.startswith("minatar-"))
    kinds = {one.kind for one in own}
    scored = [one for one in own if one.finals]
    curves = paper.of_environment(name)
    return {
        "name": name,
        "series": [_series(one) for one in own],
        "choices": _choices(own),
        "missing": [games[kind] for kind in games if kind not in kinds] if name.startswith("minatar-") else [],
        "paper": [
            {
                "label": f"{title(algorithm)}, paper",
                "algorithm": algorithm,
                "colour": colour(algorithm),
                "frames": _plain(curves[algorithm][0]),
                "value": _plain(curves[algorithm][1]),
            }
            for algorithm in registry.ROWS
            if algorithm in curves
        ],
        "improvement": _improvement({one.label: [one.scores] for one in scored})
        if len(scored) <= MOST_PAIRS
        else None,
        "profile": _profile(scored),
    }


def _values(one: Series) -> dict[str, str]:
    """What tells a sweep's series apart, in words."""
    record = one.records[0]
    settings = {name: shown(value) for name, value in record.varied.items()}
    return {"algorithm": title(one.algorithm), "preset": record.preset, **settings} if record.varied else {}


def _choices(series: Sequence[Series]) -> list[JSON]:
    """The settings of a sweep that a reader can choose by, each with its values in order; none without a sweep."""
    values: dict[str, dict[str, Any]] = {}
    for one in series:
        order = one.records[0].varied
        for name, text in _values(one).items():
            values.setdefault(name, {})[text] = order.get(name, text)
    found = []
    for name, texts in values.items():
        numbers = all(isinstance(value, int | float) for value in texts.values())
        ordered = sorted(texts, key=lambda text: texts[text]) if numbers else list(texts)
        if len(texts) > 1:
            found.append({"name": name, "values": ordered})
    return found


def _series(one: Series) -> JSON:
    return {
        "label": one.label,
        "values": _values(one),
        "algorithm": one.algorithm,
        "colour": one.colour,
        "curves": {kind: found for kind in ("evaluation", "training") if (found := _curve(one, kind))},
        "row": _row(one),
        "runs": [_run(record) for record in one.records],
        "protocol": _unique(pair for record in one.records for pair in wording.protocol(record).items()),
    }


def _curve(one: Series, kind: str) -> JSON | None:
    """The summary of the seeds' curves of a kind, or None where there is nothing."""
    curves = {seed: curve for record in one.records for seed, curve in sorted(getattr(record, kind).items())}
    if not any((~np.isnan(values)).any() for _, values in curves.values()):
        return None
    summary = statistics.summarise_curves(list(curves.values()))
    return {
        **{name: _plain(getattr(summary, name)) for name in ("frames", "mean", "std", "iqm", "low", "high")},
        "count": summary.count.tolist(),
        "total": max(one.seeds, len(curves)),
        "seeds": [{"value": _plain(values)} for values in summary.seeds],
    }


def _row(one: Series) -> JSON:
    """The series' line of the final table."""
    frames = {record.frames for record in one.records if record.frames}
    row: JSON = {
        "finished": len(one.finals),
        "planned": max(one.seeds, len(one.finals)),
        "frames": max(frames) if frames else None,
        "paper": paper.final(one.env, one.algorithm),
        "how": "; ".join(_unique(filter(None, map(wording.final_score, one.records)))),
    }
    if one.finals:
        scores = one.scores
        for name, statistic in (("iqm", statistics.aggregate_iqm), ("mean", statistics.aggregate_mean)):
            row[name] = _estimate(statistics.stratified_bootstrap([scores], statistic))
        std = scores.std(ddof=1) if len(scores) > 1 else math.nan
        row |= {"min": _number(scores.min()), "max": _number(scores.max()), "std": _number(std)}
    return row


def _profile(series: Sequence[Series]) -> list[JSON]:
    """Share of seeds above a score, for every score there is; not for one or two seeds."""
    if max((len(one.finals) for one in series), default=0) < 3:
        return []
    every = np.concatenate([one.scores for one in series])
    low, high = float(every.min()), float(every.max())
    margin = 0.03 * (high - low) or 1.0
    at = np.linspace(low - margin, high + margin, _THRESHOLDS)
    found = []
    for one in series:
        shares = statistics.stratified_bootstrap(
            [one.scores], lambda scores: statistics.performance_profile(scores, at)
        )
        bounds = {"share": _plain(shares.value), "low": _plain(shares.low), "high": _plain(shares.high)}
        found.append({"label": one.label, "colour": one.colour, "score": _plain(at), **bounds})
    return found


def _improvement(scores: Mapping[str, Sequence[Array]]) -> JSON | None:
    """Probability that a seed of the row's algorithm beats one of the column's; None for fewer than two."""
    if len(scores) < 2:
        return None
    cells = [
        [None if a is b else _estimate(statistics.improvement(a, b)) for b in scores.values()]
        for a in scores.values()
    ]
    return {"labels": list(scores), "cells": cells}


def _overall(series: Sequence[Series]) -> JSON | None:
    """The same over all environments that every algorithm has finished seeds on; None for fewer than two."""
    found: dict[str, dict[str, Array]] = {}
    for one in series:
        if one.finals:
            found.setdefault(one.label, {})[one.env] = one.scores
    shared = sorted(set.intersection(*map(set, found.values()))) if found else []
    few = shared if len(found) <= MOST_PAIRS else []
    table = _improvement({label: [own[env] for env in few] for label, own in found.items()} if few else {})
    return {**table, "environments": shared} if table and len(shared) > 1 else None


def _run(record: Record) -> JSON:
    """Where a record comes from, for the part on settings and versions."""
    gifs, too_large = [], []
    for path in record.gifs:
        try:
            content = read_bytes(path, MAX_GIF)
        except Unreadable:  # a folder of that name, a link, or a file without permission
            if path.is_file() and path.stat().st_size > MAX_GIF:
                too_large.append(path.name)
            continue
        if content.startswith(b"GIF8"):
            url = f"data:image/gif;base64,{base64.b64encode(content).decode('ascii')}"
            gifs.append({"name": path.name, "url": url})
    return {
        "path": str(record.path),
        "preset": record.preset,
        "seeds": record.seeds,
        "frames": record.frames,
        "facts": wording.facts(record),
        "settings": [
            [key, value if isinstance(value, str) else json.dumps(value, default=str)]
            for key, value in sorted(record.settings.items())
        ],
        "gifs": gifs,
        "gifs_left_out": too_large,
    }


# --- values for JSON ------------------------------------------------------------------------------------------


def _number(value: Any) -> float | None:
    """To five significant digits; None for what is not a finite number."""
    number = float(value)
    return float(f"{number:.5g}") if math.isfinite(number) else None


def _plain(values: ArrayLike) -> list[float | None]:
    return [_number(value) for value in np.asarray(values, np.float64)]


def _estimate(found: statistics.Estimate) -> list[float | None]:
    return [_number(found.value), _number(found.low), _number(found.high)]


def _unique(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))
