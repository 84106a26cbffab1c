"""One self-contained HTML page from records of runs: everything is computed here, the page only draws it.

The page loads nothing: style, script, data and pictures are inside of it, and its content security policy forbids
anything else.
"""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from capo import __version__
from capo.files import write_atomically
from capo.report import figures, folders, paper, statistics
from capo.report.folders import Curve, Record

NAMES = {"ncapo": "NCAPO", "ppo": "PPO", "a2c": "A2C", "rainbow": "Rainbow", "offpac": "Off-PAC"}
# At least 4.5 to 1 against white, told apart by the colour-blind.
_COLOURS = {"ncapo": "#C04300", "ppo": "#0067A3", "a2c": "#007A5A", "rainbow": "#A2407E", "offpac": "#806000"}
_MORE_COLOURS = ("#3F3F3F", "#5B4FC4", "#00718A", "#8A1C3B", "#4F6F00", "#6B6B6B")
MAX_GIF = 4_000_000  # bytes of one embedded picture
_THRESHOLDS = 201
_SHADES = (0.0, 0.5)  # share of black in the colour of an algorithm's first and second preset

JSON = dict[str, Any]
Kind = tuple[str, str]  # algorithm and preset


@dataclass
class Series:
    """Records that are drawn as one curve: the same environment, algorithm and settings, other seeds."""

    label: str
    records: list[Record]
    colour: str = ""

    @property
    def env(self) -> str:
        return self.records[0].env

    @property
    def algorithm(self) -> str:
        return self.records[0].algorithm

    @property
    def kind(self) -> Kind:
        return self.algorithm, self.records[0].preset

    @property
    def finals(self) -> dict[int, float]:
        """Final score by seed."""
        return {seed: score for record in self.records for seed, score in record.finals.items()}


def kind_names(kinds: Iterable[Kind]) -> dict[Kind, str]:
    """Algorithms and presets in the order they are shown, and what they are called beside each other.

    The preset is part of the name if it isn't ``default``, or if the algorithm is there with several.

    >>> kind_names([("ppo", "default"), ("ncapo", "official"), ("ncapo", "default")])
    {('ncapo', 'default'): 'NCAPO (default)', ('ncapo', 'official'): 'NCAPO (official)', ('ppo', 'default'): 'PPO'}
    """
    order = list(NAMES)

    def place(kind: Kind) -> tuple[int, bool, str]:
        algorithm, preset = kind
        return order.index(algorithm) if algorithm in order else len(order), preset != "default", preset

    found = sorted(set(kinds), key=lambda kind: (*place(kind), kind[0]))
    presets = {algorithm: [p for a, p in found if a == algorithm] for algorithm, _ in found}
    plain = (["default"], ["unknown"])  # unknown: the file that says it is lost
    return {
        (algorithm, preset): NAMES.get(algorithm, algorithm)
        + ("" if presets[algorithm] in plain else f" ({preset})")
        for algorithm, preset in found
    }


def write_page(paths: Sequence[Path], out: Path) -> tuple[Path, list[str]]:
    """Read the folders and write the page.

    Returns:
        The file, and what could not be read, in words.
    """
    records, problems = folders.read(paths)
    text = render(records, problems)
    return write_atomically(out, lambda file: file.write(text.encode())), problems


def render(records: Sequence[Record], problems: Sequence[str]) -> str:
    """The page as text."""
    content = page_data(records, problems)
    part = resources.files("capo.report")
    style, script = (part.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    # In a script element only "<" could end the data early.
    data = json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    title = html.escape(str(content["title"]))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<noscript><p class="notice">The curves are drawn by a script inside this page; please allow it.</p></noscript>
<main id="page"></main>
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
        remarks.insert(0, "Results of a --quick run: far too few frames and seeds to conclude anything from.")
    if len(environments) > 1:
        remarks.insert(
            0,
            f"The runs are of {len(environments)} environments ({', '.join(environments)}). Returns are not "
            "comparable between them: each has its own chart and table.",
        )
    return {
        "title": f"capo report: {', '.join(environments)}",
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


# --- what is drawn as one curve -------------------------------------------------------------------------------


def group(records: Sequence[Record]) -> list[Series]:
    """Records as series: those that differ in their seeds alone are one; names and colours are given here."""
    found: dict[str, list[Record]] = {}
    for record in records:
        same = [record.env, record.noise, record.algorithm, record.preset, record.frames, record.settings]
        key = json.dumps(same, default=str, sort_keys=True)
        if not record.settings or any(set(one.seeds) & set(record.seeds) for one in found.get(key, ())):
            key += str(record.path)  # settings that are lost may differ; the same seed twice is no new seed
        found.setdefault(key, []).append(record)
    names = kind_names((record.algorithm, record.preset) for record in records)
    series = [Series(names[members[0].algorithm, members[0].preset], members) for members in found.values()]
    order = list(names)
    series.sort(key=lambda one: order.index(one.kind))
    _tell_apart(series)
    _colour(series)
    return series


def _tell_apart(series: Sequence[Series]) -> None:
    """Add the folder to names that occur twice in an environment, and a number where that isn't enough."""
    labels = [(one.env, one.label) for one in series]
    twice = [one for one, label in zip(series, labels, strict=True) if labels.count(label) > 1]
    for members in ([one for one in twice if one.env == env] for env in {one.env for one in twice}):
        if len({_folder(one) for one in members}) > 1:
            for one in members:
                one.label += f" ({_folder(one)})"
    for index, one in enumerate(series):
        if any((one.env, one.label) == (other.env, other.label) for other in series[:index]):
            one.label += f" #{index + 1}"


def _folder(one: Series) -> str:
    return one.records[0].path.name


def _colour(series: Sequence[Series]) -> None:
    """A colour for each: the algorithm's own, darker for its second preset, if still free in its environment."""
    shades: dict[Kind, str] = {}
    for algorithm, colour in _COLOURS.items():
        presets = dict.fromkeys(one.kind for one in series if one.algorithm == algorithm)
        shades |= {kind: figures.darker(colour, share) for kind, share in zip(presets, _SHADES, strict=False)}
    for env in {one.env for one in series}:
        taken: set[str] = set()
        for one in (one for one in series if one.env == env):
            wanted = [shades.get(one.kind, _MORE_COLOURS[0]), *_MORE_COLOURS, *_COLOURS.values()]
            one.colour = next((colour for colour in wanted if colour not in taken), wanted[0])
            taken.add(one.colour)


def _version_remarks(records: Sequence[Record]) -> list[str]:
    """Runs that are compared but were made with different versions."""
    first = next((record for record in records if record.versions), None)
    if first is None:
        return []
    differing = [
        text
        for record in records
        for text in folders.version_differences(str(record.path), record.versions, first.versions)
    ]
    return [f"{text}, compared with {first.path}" for text in differing]


def _unfinished_remarks(series: Sequence[Series]) -> list[str]:
    return [
        f"{one.label} on {one.env} has no finished seed: its curve goes as far as it got, the table has no score."
        for one in series
        if not one.finals
    ]


def _unlike_remarks(environments: Sequence[str], series: Sequence[Series]) -> list[str]:
    """Scores that stand side by side but are of trainings of another length, or were measured in another way."""
    remarks = []
    for env in environments:
        own = [one for one in series if one.env == env and one.finals]
        frames = {one.label: max(record.frames or 0 for record in one.records) for one in own}
        known = [number for number in frames.values() if number]
        if known and max(known) > 1.05 * min(known):
            lengths = ", ".join(f"{label} {number:,}" for label, number in frames.items())
            remarks.append(f"The runs on {env} are of different lengths (frames: {lengths}).")
        sampled = [
            record for one in own for record in one.records if one.algorithm != "rainbow"
        ]  # it has no other way
        ways = _unique(record.final_how for record in sampled if record.final_how)
        if len(ways) > 1:
            remarks.append(f"The final scores on {env} were measured in different ways: {'; '.join(ways)}.")
    return remarks


# --- one environment ------------------------------------------------------------------------------------------


def _environment(name: str, series: Sequence[Series]) -> JSON:
    own = [one for one in series if one.env == name]
    games = kind_names(one.kind for one in series if one.env.startswith("minatar-"))
    kinds = {one.kind for one in own}
    scored = [one for one in own if one.finals]
    return {
        "name": name,
        "series": [_series(one) for one in own],
        "missing": [games[kind] for kind in games if kind not in kinds] if name.startswith("minatar-") else [],
        "paper": [
            {
                "label": f"{NAMES[algorithm]}, paper",
                "algorithm": algorithm,
                "colour": _COLOURS[algorithm],
                "frames": _plain(frames),
                "value": _plain(returns),
            }
            for algorithm, (frames, returns) in _in_order(paper.of_environment(name))
        ],
        "improvement": _improvement(scored, [one.label for one in scored], lambda one: [_scores(one)]),
        "profile": _profile(scored),
    }


def _in_order(curves: Mapping[str, Curve]) -> list[tuple[str, Curve]]:
    return [(algorithm, curves[algorithm]) for algorithm in NAMES if algorithm in curves]


def _scores(one: Series) -> statistics.Array:
    return np.array(list(one.finals.values()))


def _series(one: Series) -> JSON:
    return {
        "label": one.label,
        "algorithm": one.algorithm,
        "colour": one.colour,
        "curves": {
            kind: summary
            for kind in ("evaluation", "training")
            if (summary := _curve(_curves(one, kind), _planned(one))) is not None
        },
        "row": _row(one),
        "runs": [_run(record) for record in one.records],
        "protocol": _unique(pair for record in one.records for pair in record.protocol),
    }


def _planned(one: Series) -> int:
    return len({seed for record in one.records for seed in record.seeds})


def _curves(one: Series, kind: str) -> dict[int, Curve]:
    found = [record.evaluation if kind == "evaluation" else record.training for record in one.records]
    return {seed: curve for curves in found for seed, curve in sorted(curves.items())}


def _curve(curves: Mapping[int, Curve], planned: int) -> JSON | None:
    """The summary of some seeds' curves, or None where there is nothing."""
    if not any((~np.isnan(values)).any() for _, values in curves.values()):
        return None
    summary = statistics.summarise_curves(list(curves.values()))
    return {
        "frames": _plain(summary.frames),
        "count": summary.count.tolist(),
        "total": max(planned, len(curves)),
        "mean": _plain(summary.mean),
        "std": _plain(summary.std),
        "iqm": _plain(summary.iqm),
        "low": _plain(summary.low),
        "high": _plain(summary.high),
        "seeds": [
            {"seed": seed, "value": _plain(values)} for seed, values in zip(curves, summary.seeds, strict=True)
        ],
    }


def _row(one: Series) -> JSON:
    """The series' line of the final table."""
    frames = {record.frames for record in one.records if record.frames}
    row: JSON = {
        "finished": len(one.finals),
        "planned": max(_planned(one), len(one.finals)),
        "frames": max(frames) if frames else None,
        "paper": paper.final(one.env, one.algorithm),
        "how": "; ".join(_unique(record.final_how for record in one.records if record.final_how)),
    }
    if one.finals:
        scores = _scores(one)
        for name, statistic in (("iqm", statistics.aggregate_iqm), ("mean", statistics.aggregate_mean)):
            row[name] = _estimate(statistics.stratified_bootstrap([scores], statistic))
        row |= {"min": _number(scores.min()), "max": _number(scores.max()), "std": _number(_std(scores))}
        row["scores"] = [{"seed": seed, "value": _number(score)} for seed, score in one.finals.items()]
    return row


def _std(scores: statistics.Array) -> float:
    return float(scores.std(ddof=1)) if len(scores) > 1 else math.nan


def _profile(series: Sequence[Series]) -> list[JSON]:
    """Share of seeds above a score, for every score there is; not for one or two seeds."""
    if max((len(one.finals) for one in series), default=0) < 3:
        return []
    every = np.concatenate([_scores(one) for one in series])
    low, high = float(every.min()), float(every.max())
    margin = 0.03 * (high - low) or 1.0
    at = np.linspace(low - margin, high + margin, _THRESHOLDS)
    found = []
    for one in series:
        shares = statistics.stratified_bootstrap(
            [_scores(one)], lambda scores: statistics.performance_profile(scores, at)
        )
        found.append(
            {
                "label": one.label,
                "colour": one.colour,
                "score": _plain(at),
                "share": _plain(shares.value),
                "low": _plain(shares.low),
                "high": _plain(shares.high),
            }
        )
    return found


def _improvement(members: Sequence[Any], labels: Sequence[str], scores: Any) -> JSON | None:
    """Chance that a seed of the row's algorithm beats one of the column's; None for fewer than two."""
    if len(members) < 2:
        return None
    cells = [
        [None if a is b else _estimate(statistics.improvement(scores(a), scores(b))) for b in members]
        for a in members
    ]
    return {"labels": list(labels), "cells": cells}


def _overall(series: Sequence[Series]) -> JSON | None:
    """The chances of improvement over all environments that every algorithm has finished seeds on."""
    tables: dict[str, dict[str, Series]] = {}
    for one in series:
        if one.finals:
            tables.setdefault(one.label, {})[one.env] = one
    shared = sorted(set.intersection(*(set(found) for found in tables.values()))) if tables else []
    if len(tables) < 2 or len(shared) < 2:
        return None
    table = _improvement(list(tables), list(tables), lambda label: [_scores(tables[label][env]) for env in shared])
    return None if table is None else {**table, "environments": shared}


def _run(record: Record) -> JSON:
    """Where a record comes from, for the part on settings and versions."""
    gifs, too_large = [], []
    for path in record.gifs:
        try:
            content = path.read_bytes()
        except OSError:  # a folder of that name, a link to nothing, or a file that is not for us
            continue
        if len(content) > MAX_GIF:
            too_large.append(path.name)
        else:
            gifs.append(
                {"name": path.name, "url": "data:image/gif;base64," + base64.b64encode(content).decode("ascii")}
            )
    return {
        "path": str(record.path),
        "preset": record.preset,
        "seeds": record.seeds,
        "frames": record.frames,
        "facts": [
            *record.facts,
            ("versions", ", ".join(f"{k} {v}" for k, v in record.versions.items()) or "unknown"),
        ],
        "settings": [[key, _text(value)] for key, value in sorted(record.settings.items())],
        "gifs": gifs,
        "gifs_left_out": too_large,
    }


# --- values for JSON ------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _number(value: Any) -> float | None:
    """To five significant digits; None for what is no finite number."""
    number = float(value)
    return float(f"{number:.5g}") if math.isfinite(number) else None


def _plain(values: ArrayLike) -> list[float | None]:
    return [_number(value) for value in np.asarray(values, np.float64)]


def _estimate(found: statistics.Estimate) -> list[float | None]:
    return [_number(found.value), _number(found.low), _number(found.high)]


def _unique(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))
