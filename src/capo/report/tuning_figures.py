"""The pictures of a tuning as SVG, in the look of the report page: history, importance, parallel coordinates.

They are made here rather than in the browser, so that they need no script. A pointer that rests on a mark shows
the trial.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from capo.sweeps.tuning_folder import Trial, Tuning

WIDTH, INK, SOFT, LINE, ACCENT, WARM = 1080, "#444444", "#8a8a8a", "#e7e7e7", "#0067a3", "#C04300"
_LOW, _HIGH = (0xD5, 0xDD, 0xE3), (0x00, 0x4F, 0x7D)  # the colours of the worst and of the best score


def history(tuning: Tuning) -> str:
    """Every trial's last score, in the order they were tried, and the best complete one so far."""
    trials = [one for one in tuning.trials if one.outcome is not None]
    scores = [one.score for one in trials if one.score is not None]
    height, left, right, top, bottom = 340, 70, 20, 16, 44
    low, high = _extent(scores)
    last = max([one.number for one in trials], default=0)

    def at(number: float, score: float) -> tuple[float, float]:
        x = left + 8 + (WIDTH - left - right - 16) * number / max(last, 1)
        return x, top + (height - top - bottom) * (1 - (score - low) / (high - low))

    marks = [*_y_axis(low, high, left, right, lambda value: at(0, value)[1])]
    for number in _ticks(0, max(last, 1), 10):
        if number == int(number):
            marks.append(_text(at(number, low)[0], height - 24, f"{number:g}", "middle"))
    marks.append(_text((left + WIDTH - right) / 2, height - 4, "trial", "middle"))
    marks.append(_step_line(_best_so_far(tuning), at, last))
    for one in trials:
        state = one.state(len(tuning.stages))
        title = _title(tuning, one)
        if one.score is None:
            x, y = at(one.number, low)
            marks.append(
                f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="{WARM}" stroke-width="2">{title}</path>'
            )
        else:
            x, y = at(one.number, one.score)
            fill = ACCENT if state == "complete" else "#ffffff"
            edge = {"complete": ACCENT, "diverged": WARM}.get(state, SOFT)
            marks.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if state == "complete" else 4}" fill="{fill}" '
                f'stroke="{edge}" stroke-width="1.5">{title}</circle>'
            )
    return _svg(height, "Score of every trial", marks)


def importance(tuning: Tuning) -> str:
    """A bar for each setting: its share in the difference between good and other trials."""
    shares = tuning.importance
    left, row, top = 190, 26, 8
    height = top + row * len(shares) + 8
    longest = max(shares.values(), default=1.0) or 1.0
    marks = []
    for index, (name, share) in enumerate(shares.items()):
        y = top + row * index
        width = (WIDTH - left - 90) * share / longest
        marks.append(_text(left - 10, y + 17, name, "end"))
        marks.append(
            f'<rect x="{left}" y="{y + 4}" width="{max(width, 1):.1f}" height="{row - 8}" fill="{ACCENT}"/>'
        )
        marks.append(_text(left + width + 8, y + 17, f"{share:.0%}", "start"))
    return _svg(height, "Importance of the settings", marks)


def parallel(tuning: Tuning) -> str:
    """A line for every trial through its settings and its score after the first stage; good ones are dark."""
    trials = [one for one in tuning.trials if one.outcome is not None and one.outcome.scores]
    order = [name for name in tuning.importance if name in tuning.asked["space"]]
    names = [*order, *(name for name in tuning.asked["space"] if name not in order)]
    height, margin, top, bottom = 420, 70, 62, 34
    first = {one.number: one.outcome.scores[0] for one in trials if one.outcome is not None}
    low, high = _extent(list(first.values()), margin=0.0)
    step = (WIDTH - 2 * margin) / max(len(names), 1)

    def y(share: float) -> float:
        return top + (height - top - bottom) * (1 - share)

    marks = []
    ranks = {number: rank for rank, number in enumerate(sorted(first, key=first.__getitem__))}
    for one in sorted(trials, key=lambda trial: ranks[trial.number]):  # the best on top
        shares = [_share(tuning.asked["space"][name], one.settings[name]) for name in names]
        shares.append((first[one.number] - low) / (high - low))
        points = " ".join(f"{margin + step * i:.1f},{y(share):.1f}" for i, share in enumerate(shares))
        shade = ranks[one.number] / max(len(trials) - 1, 1)
        width = 2.2 if one.state(len(tuning.stages)) == "complete" else 1.2
        marks.append(
            f'<polyline points="{points}" fill="none" stroke="{_mix(shade)}" stroke-width="{width}" '
            f'stroke-opacity="0.85">{_title(tuning, one)}</polyline>'
        )
    for index, name in enumerate([*names, "score"]):
        x = margin + step * index
        table = tuning.asked["space"].get(name)
        ends = (_short(low), _short(high)) if table is None else _ends(table)
        marks.append(f'<path d="M{x:.1f} {y(0):.1f}V{y(1):.1f}" stroke="{SOFT}"/>')
        up = 0 if index % 2 else 14  # neighbours' names on two lines
        marks.append(_text(x, top - 42 + up, name, "middle", bold=True))
        marks.append(_text(x, top - 8, ends[1], "middle"))
        marks.append(_text(x, height - bottom + 16, ends[0], "middle"))
    return _svg(height, "Settings and score of every trial", marks)


def _best_so_far(tuning: Tuning) -> list[tuple[int, float]]:
    """(trial, score) whenever a complete trial was better than all before."""
    found: list[tuple[int, float]] = []
    for one in tuning.trials:
        score = one.score
        if (
            one.state(len(tuning.stages)) == "complete"
            and score is not None
            and (not found or score > found[-1][1])
        ):
            found.append((one.number, score))
    return found


def _step_line(best: Sequence[tuple[int, float]], at: Any, last: int) -> str:
    if not best:
        return ""
    x, y = at(*best[0])
    path = f"M{x:.1f} {y:.1f}"
    for number, score in best[1:]:
        x, y = at(number, score)
        path += f"H{x:.1f}V{y:.1f}"
    return f'<path d="{path}H{at(last, best[-1][1])[0]:.1f}" fill="none" stroke="{WARM}" stroke-width="2"/>'


def _share(table: Mapping[str, Any], value: Any) -> float:
    """Where a value lies on its axis, from 0 to 1."""
    if "choices" in table:
        return float(table["choices"].index(value)) / max(len(table["choices"]) - 1, 1)
    low, high, at = (_scaled(table["scale"], float(x)) for x in (table["low"], table["high"], value))
    return min(max((at - low) / (high - low), 0.0), 1.0)


def _scaled(scale: str, value: float) -> float:
    if scale == "log":
        return math.log(value)
    return -math.log(1 - value) if scale == "log-from-one" else value


def _ends(table: Mapping[str, Any]) -> tuple[str, str]:
    if "choices" in table:
        return str(table["choices"][0]), str(table["choices"][-1])
    return _short(table["low"]), _short(table["high"])


def _title(tuning: Tuning, one: Trial) -> str:
    """What a pointer that rests on a mark sees."""
    assert one.outcome is not None
    stages = ", ".join(
        f"{score:.4g} at {frames:,}" for frames, score in zip(one.outcome.frames, one.outcome.scores, strict=True)
    )
    settings = "\n".join(f"{name} = {value}" for name, value in one.settings.items())
    state = one.state(len(tuning.stages))
    text = f"trial {one.number}, {state}\nscore: {stages or 'none'}\n{settings}"
    return f"<title>{html.escape(text)}</title>"


# --- small things ---------------------------------------------------------------------------------------------


def _svg(height: int, label: str, marks: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{html.escape(label)}" font-family="system-ui, sans-serif" font-size="13">'
        + "".join(marks)
        + "</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}"{weight}>{html.escape(text)}</text>'


def _y_axis(low: float, high: float, left: float, right: float, y: Any) -> Iterable[str]:
    for value in _ticks(low, high, 5):
        yield f'<path d="M{left} {y(value):.1f}H{WIDTH - right}" stroke="{LINE}"/>'
        yield _text(left - 8, y(value) + 4, _short(value), "end")


def _extent(values: Sequence[float], margin: float = 0.04) -> tuple[float, float]:
    """The range of an axis for these values, never empty."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    room = margin * (high - low)
    return low - room, high + room


def _ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round numbers in a range, about as many as wanted.

    >>> _ticks(0, 10, 5)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{index * step:.10g}") for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _short(value: float) -> str:
    return f"{value:.3g}"


def _mix(share: float) -> str:
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(_LOW, _HIGH, strict=True))
