"""What README and docs show works: Python blocks run as they stand, and commands have valid options."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # import-mode importlib does not find pages otherwise

from pages import PAGES, SHELL, Block, blocks, name

from capo.cli import build_parser

WITH_PYTHON = [page for page in PAGES if any(b.language == "python" for b in blocks(page.read_text("utf-8")))]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::capo.CapoWarning")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_python_blocks_run_as_they_stand(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in order in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page.read_text("utf-8")):
        if block.language == "python" and block.run:
            code = compile(
                "\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True
            )  # tracebacks show the page's lines
            exec(code, namespace)


def commands(text: str) -> Iterator[list[str]]:
    """The ``capo`` commands of a block, without comments, pipes and variables before them."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        while words and "=" in words[0]:
            words = words[1:]
        if words and words[0] == "capo":
            ends = [index for index, word in enumerate(words) if word in ("|", ">", "&&", ";", "&")]
            yield words[1 : ends[0] if ends else None]


def invalid(arguments: list[str]) -> str:
    """Why the parser refuses a command, or nothing."""
    parser = build_parser()
    for one in (parser, *_subparsers(parser)):
        one.exit_on_error = False
        one.error = _raise  # type: ignore[method-assign]
    try:
        parser.parse_args(arguments)
    except (argparse.ArgumentError, argparse.ArgumentTypeError, ValueError) as error:
        return str(error)
    except SystemExit as stopped:  # --help and --version
        return "" if stopped.code in (0, None) else f"exit {stopped.code}"
    return ""


def _subparsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def _raise(message: str) -> None:
    raise ValueError(message)


def shell_blocks() -> list[tuple[Path, Block]]:
    """Every block of commands; one without a language counts if a line of it starts with ``capo``."""
    found = [(page, block) for page in PAGES for block in blocks(page.read_text("utf-8"))]
    return [
        (page, block)
        for page, block in found
        if block.language in SHELL or (not block.language and any(commands_or_none(block.text)))
    ]


def commands_or_none(text: str) -> list[list[str]]:
    """The commands of a block that may be something else: a certificate has quotes that do not end."""
    try:
        return list(commands(text))
    except ValueError:
        return []


@pytest.mark.parametrize(
    ("page", "block"), shell_blocks(), ids=[f"{name(page)}:{block.line}" for page, block in shell_blocks()]
)
def test_commands_have_valid_options(page: Path, block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    del page
    for arguments in commands(block.text):
        assert not invalid(arguments), f"capo {shlex.join(arguments)}: {invalid(arguments)}"
    capsys.readouterr()


def test_the_checks_can_fail() -> None:
    text = "a\n\n```python\nx = 1\n```\n<!-- not run: needs a GPU -->\n```python\ny\n```\n"
    text += "\n- z\n\n    ```console\n    capo z\n    ```\n"
    assert [(b.language, b.text, b.line, b.run) for b in blocks(text)] == [
        ("python", "x = 1\n", 4, True),
        ("python", "y\n", 8, False),
        ("console", "capo z\n", 14, True),
    ]
    shell = "X=1 capo train a --seeds 2  # two\n$ capo solve b | head\nls\ncapo watch \\\n  c\n"
    assert list(commands(shell)) == [["train", "a", "--seeds", "2"], ["solve", "b"], ["watch", "c"]]
    assert invalid(["train", "minatar-breakout", "--seeds", "2"]) == ""
    assert "--sedes" in invalid(["train", "minatar-breakout", "--sedes", "2"])
    assert "zero" in invalid(["train", "minatar-breakout", "--seeds", "zero"])
    assert "tarin" in invalid(["tarin"])
