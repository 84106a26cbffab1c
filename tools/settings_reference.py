"""The reference of all settings, in Markdown, from the sentences under their fields: a page of the docs."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from typing import Any, get_args, get_type_hints

from capo.neural.algorithms.registry import ROWS, find
from capo.neural.algorithms.settings import Kind, Settings, field_kinds

_GAME, _OTHER = "minatar-breakout", "CartPole-v1"


def sentences(cls: type[Settings]) -> dict[str, str]:
    """The sentence under each field; a class's own sentence comes before those of its parents."""
    found: dict[str, str] = {}
    for parent in cls.__mro__:
        if not (dataclasses.is_dataclass(parent) and issubclass(parent, Settings)):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found.setdefault(name, " ".join(text.split()))
    return found


def table(name: str) -> str:
    """The settings of one algorithm as a table in Markdown."""
    config = find(name).settings
    presets = config.PRESETS
    words, hints, kinds = sentences(config), get_type_hints(config), field_kinds(config)
    lines = [
        f"| setting | {' | '.join(f'`{name}`' for name in presets)} | `default` elsewhere | tuning | meaning |",
        "|---" * (len(presets) + 4) + "|",
    ]
    games = [config.preset(preset, _GAME) for preset in presets]
    other = config.preset("default", _OTHER)
    for field in dataclasses.fields(config):
        values = [getattr(game, field.name) for game in games]
        elsewhere = getattr(other, field.name)
        differs = elsewhere != values[presets.index("default")]
        cells = [*(_show(value) for value in values), _show(elsewhere) if differs else "-"]
        allowed = "" if not get_args(hints[field.name]) else f" One of {', '.join(get_args(hints[field.name]))}."
        cells.append(_tuning(kinds[field.name]))
        lines.append(f"| `{field.name}` | {' | '.join(cells)} | {_escape(words[field.name])}{allowed} |")
    return "\n".join(lines)


def _tuning(kind: Kind) -> str:
    """How `capo tune` treats a setting: the range it searches, and whether its trials are one program."""
    range_ = "" if kind.search is None else str(kind.search)
    if not kind.traced:
        return range_ or "-"
    return f"{range_}; one program" if range_ else "one program"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def page() -> str:
    """The whole page."""
    parts = []
    for row in ROWS.values():
        agent = f"`capo.{row.agent.__name__}`, `--algo {row.name}`"
        parts.append(f"\n## {row.title}\n\n{agent}.\n\n{table(row.name)}\n")
    return "".join(parts)
