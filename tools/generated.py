"""The parts of pages that are made from the program itself: its commands, its settings, its checker."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from settings_reference import page as settings

from capo.cli import build_parser


def cli() -> str:
    """Every command with its options, from the parsers."""
    parser = build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return "\n".join(_command(name, command) for name, command in commands.choices.items())


def _command(name: str, parser: argparse.ArgumentParser) -> str:
    usage = parser.format_usage().removeprefix("usage: ").strip()
    lines = [f"## capo {name}", "", parser.description or "", "", "```text", usage, "```", ""]
    lines += ["| argument | meaning |", "|---|---|"]
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or "--help" in action.option_strings:
            continue
        value = parser._get_formatter()._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
        names = [f"{option} {value}".strip() for option in action.option_strings] or [value]
        help_text = parser._get_formatter()._expand_help(action) if action.help else ""
        lines.append(f"| {', '.join(f'`{_cell(text)}`' for text in names)} | {_cell(help_text)} |")
    if parser.epilog:
        lines += ["", "```text", parser.epilog.strip("\n"), "```"]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def checker() -> str:
    """The stand-alone checker of proofs, as it is."""
    source = Path(__file__).with_name("check_proof.py").read_text("utf-8")
    return f"```python\n{source}```\n"


GENERATED: dict[str, Callable[[], str]] = {"cli": cli, "settings": settings, "checker": checker}
