"""The code blocks of README, CONTRIBUTING and the pages in docs/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = ("bash", "console", "sh", "shell")
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```\s*$", re.MULTILINE | re.DOTALL
)
NOT_RUN = re.compile(r"<!-- not run: \S.*-->\s*$")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line of the page it starts on, and whether it is to be run."""

    language: str
    text: str
    line: int
    run: bool


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order.

    A comment ``<!-- not run: reason -->`` before a block excludes it.
    """
    for found in FENCE.finditer(text):
        indent = len(found["indent"])
        body = "".join(line[indent:] if line.strip() else line for line in found["text"].splitlines(keepends=True))
        run = NOT_RUN.search(text[: found.start()]) is None
        yield Block(found["language"].strip(), body, text[: found.start("text")].count("\n") + 1, run)


def name(page: Path) -> str:
    """A page as tests are called: its path in the repository."""
    return page.relative_to(ROOT).as_posix()
