"""docs/reproduction.md: what it names exists, and its table of curves is what the data say."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # import-mode importlib does not find pages otherwise

from pages import ROOT
from test_examples import invalid

from capo.experiments import minatar, paper_figure
from capo.neural.algorithms.ncapo import NCAPOConfig
from capo.neural.algorithms.settings import override

PAGE = ROOT / "docs" / "reproduction.md"
CODE = re.findall(r"`([^`\n]+)`", PAGE.read_text("utf-8"))
TESTS = {
    name
    for file in (ROOT / "tests").rglob("*.py")
    for name in re.findall(r"def (test_\w+)", file.read_text("utf-8"))
}


def resolve(name: str) -> object:
    """The object of a dotted name."""
    module, *rest = name.split(".")
    found: object = importlib.import_module(module)
    for part in rest:
        module = f"{module}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(module)
    return found


def exists(code: str) -> bool:
    """Whether a piece of code on the page is a name, command, test, file or setting that there is."""
    if code.startswith("capo "):
        return not invalid(code.split()[1:])
    if re.fullmatch(r"capo(\.\w+)+", code):
        try:
            return resolve(code) is not None
        except (ImportError, AttributeError):
            return False
    if code.startswith("test_"):
        return code in TESTS
    if "/" in code:
        return (ROOT / code).exists()
    if "=" in code:
        name, _, value = code.partition("=")
        typed = int(value) if value.isdigit() and name != "critic_coefficient" else value
        override(NCAPOConfig(), {name: float(value) if name in ("critic_coefficient", "epsilon_start") else typed})
        return True
    if code.startswith("minatar-"):
        from capo.envs.minatar.games import FULL_NAMES, NAMES

        return code in (*NAMES, *FULL_NAMES)
    algorithm, _, preset = code.rpartition(":")
    return algorithm in ("", "ncapo") and preset in NCAPOConfig.PRESETS


@pytest.mark.parametrize("code", sorted(set(CODE)))
def test_what_the_page_names_exists(code: str) -> None:
    assert exists(code), f"docs/reproduction.md names {code!r}"


@pytest.mark.parametrize(
    "code", ["capo.theory.nothing", "test_nothing_at_all", "results/nothing", "capo reproduce --nothing", "cheap"]
)
def test_what_does_not_exist_is_noticed(code: str) -> None:
    assert not exists(code)


def test_the_experiments_of_the_commands_exist() -> None:
    from capo.commands.reproduce import EXPERIMENTS

    named = {code.split()[2] for code in CODE if code.startswith("capo reproduce ")}
    assert named <= set(EXPERIMENTS)
    assert set(EXPERIMENTS) - named == {"ablation"}, "an experiment of the paper is not on the page"


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", PAGE.read_text("utf-8")):
        assert (PAGE.parent / target).exists(), target


def verdicts() -> str:
    """The table of curves, from results/minatar."""
    lines = paper_figure.line_by_line(minatar.read(ROOT / "results" / "minatar").records)
    rows = [paper_figure.HEADER, ["---"] * len(paper_figure.HEADER), *(line.row for line in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def test_the_table_of_curves_is_what_the_data_say() -> None:
    assert verdicts() in PAGE.read_text("utf-8"), f"it should be\n{verdicts()}"
