"""The import graph has no cycles and no import that points upwards, and the finder sees both."""

from __future__ import annotations

from pathlib import Path

import import_graph
import pytest

SOURCE = import_graph.ROOT / "src"


def package(folder: Path, **files: str) -> Path:
    """A package ``capo`` of the given modules, ``tabular__mdp`` standing for tabular/mdp.py."""
    for name, text in files.items():
        path = folder / "capo" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def found(folder: Path) -> list[str]:
    return import_graph.problems(folder)


def test_capo_has_no_cycles_and_no_upward_imports() -> None:
    problems = import_graph.problems(SOURCE)
    assert not problems, "\n".join(["", *problems])


def test_the_picture_in_the_docs_is_up_to_date() -> None:
    assert import_graph.PICTURE.read_text(encoding="utf-8") == import_graph.draw(SOURCE), "run: make architecture"


def test_a_clean_package_has_no_problems(tmp_path: Path) -> None:
    clean = {"errors": "", "update": "from capo.errors import x", "tabular__mdp": "from capo import update"}
    assert found(package(tmp_path, **clean)) == []


@pytest.mark.parametrize(
    "text",
    [
        "from capo.neural import agent",
        "import capo.neural.agent",
        "def f():\n    from capo.neural.agent import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from capo.neural.agent import x",
        "from ..neural import agent",
        "import importlib\nimportlib.import_module('capo.neural.agent')",
    ],
)
def test_an_upward_import_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    folder = package(tmp_path, runs__layout=text, neural__agent="")
    line = 1 + text[: text.index("neural")].count("\n")
    assert found(folder) == [f"upward: capo.runs.layout (line {line}) imports capo.neural.agent"]


def test_rooms_of_one_floor_do_not_import_each_other(tmp_path: Path) -> None:
    folder = package(tmp_path, runs__layout="", envs__probes="from capo.runs import layout")
    assert found(folder) == ["upward: capo.envs.probes (line 1) imports capo.runs.layout"]


def test_the_order_inside_neural(tmp_path: Path) -> None:
    folder = package(
        tmp_path,
        neural__parts__critic="from capo.neural.algorithms.settings import x",
        neural__algorithms__settings="",
        neural__algorithms__ppo="from capo.neural import agent",
        neural__agent="",
    )
    assert found(folder) == [
        "upward inside neural: capo.neural.parts.critic (line 1) imports capo.neural.algorithms.settings"
    ]


def test_a_cycle_is_shown_whole(tmp_path: Path) -> None:
    folder = package(
        tmp_path,
        tabular__a="def f():\n    from capo.tabular import b",
        tabular__b="from capo.tabular.c import x",
        tabular__c="from . import a",
        tabular__d="from . import a, b, c",
    )
    assert found(folder) == ["cycle: capo.tabular.a -> capo.tabular.b -> capo.tabular.c -> capo.tabular.a"]


def test_a_module_outside_of_every_room_is_named(tmp_path: Path) -> None:
    (problem,) = found(package(tmp_path, attic=""))
    assert problem.startswith("capo.attic belongs to no room")
