"""Versions are told apart: golden numbers do not move under one semantics number, kept runs end as they did."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from golden_store import (
    SEMANTICS_FILE,
    TOLERANCES,
    compare,
    describe,
    digests,
    mode,
    moved,
    read,
    record_semantics,
)
from release import RELEASED, finish

import capo
from capo.runs import semantics

KEPT = sorted(path.parent for path in RELEASED.glob("*/*/config.json"))


def test_golden_numbers_do_not_move_without_the_semantics_number() -> None:
    kept, now = json.loads(SEMANTICS_FILE.read_text()), digests()
    assert kept["semantics"] == semantics.SEMANTICS, "run: python tests/golden/record.py --digests"
    assert moved(kept["digests"], now) == [], "results moved: raise SEMANTICS in src/capo/runs/semantics.py"
    assert set(now) == set(kept["digests"]), "run: python tests/golden/record.py --digests"


def test_every_number_says_what_changed() -> None:
    assert list(semantics.CHANGES) == list(range(1, semantics.SEMANTICS + 1))


def test_a_number_that_moves_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The check above can fail, and recording refuses to paper over it."""
    neural = read("neural")
    changed = copy.deepcopy(neural)
    case = changed["cases"]["ncapo, certain signs, probe-both"]
    entry = next(one for one in case.values() if isinstance(one, dict) and "sha256" in one)
    entry["sha256"] = "0" * 32
    before = digests()
    monkeypatch.setattr("golden_store.read", lambda group: changed if group == "neural" else {"cases": {}})
    assert moved(before, digests()) == ["neural: ncapo, certain signs, probe-both"]
    kept = tmp_path / "semantics.json"
    kept.write_text(SEMANTICS_FILE.read_text())
    monkeypatch.setattr("golden_store.SEMANTICS_FILE", kept)
    with pytest.raises(SystemExit, match="raise SEMANTICS"):
        record_semantics(semantics.SEMANTICS)
    record_semantics(semantics.SEMANTICS + 1)
    assert json.loads(kept.read_text())["semantics"] == semantics.SEMANTICS + 1


@pytest.mark.parametrize("folder", KEPT, ids=lambda path: f"{path.parent.name}, {path.name}")
def test_a_kept_run_loads_and_ends_with_the_recorded_numbers(folder: Path, tmp_path: Path) -> None:
    assert sum(file.stat().st_size for file in folder.rglob("*")) < 100_000
    config = json.loads((folder / "config.json").read_text())
    same = config["semantics"] == semantics.SEMANTICS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", capo.CapoWarning)  # settings that are new since then
        assert capo.load(folder).frames == 48
    if not same:
        with pytest.raises(capo.CapoError, match=f"number {config['semantics']}"):
            finish(folder, tmp_path / "refused")
        finish(folder, tmp_path / "anyway", anyway=True)
        return
    expected = json.loads((folder / "expected.json").read_text())
    found = describe(finish(folder, tmp_path / "run"))
    how = mode(expected["environment"])
    assert compare(expected["cases"]["finished"], found, how, TOLERANCES["neural"]) == []


def test_there_are_kept_runs() -> None:
    assert {path.name for path in KEPT} >= {"ncapo", "ppo", "rainbow"}


# --- a run of another version ---------------------------------------------------------------------------------


def other_version(folder: Path, copied: Path, monkeypatch: pytest.MonkeyPatch, number: int, **changes: Any) -> Any:
    """Resume a kept run as a capo with another semantics number would."""
    monkeypatch.setattr(semantics, "SEMANTICS", number)
    monkeypatch.setattr(semantics, "CHANGES", {**semantics.CHANGES, number: "the critic is updated twice"})
    return finish(folder, copied, **changes)


def test_a_run_of_other_semantics_is_refused_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = KEPT[0]
    number = json.loads((folder / "config.json").read_text())["semantics"] + 1
    with pytest.raises(capo.CapoError, match=rf"number {number}.*critic is updated twice.*--anyway") as error:
        other_version(folder, tmp_path / "refused", monkeypatch, number)
    assert "\n" not in str(error.value)
    metrics = (folder / "metrics.csv").read_bytes()
    assert (tmp_path / "refused" / "metrics.csv").read_bytes() == metrics, "nothing was changed"
    with pytest.warns(capo.CapoWarning, match="critic is updated twice"):
        assert other_version(folder, tmp_path / "anyway", monkeypatch, number, anyway=True)
