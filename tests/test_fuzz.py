"""A short run of ``benchmarks/fuzz.py``: no traceback, no hang, no damage accepted, no other file touched."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import fuzz


@pytest.mark.slow
def test_damaged_and_forged_files(tmp_path: Path) -> None:
    found = fuzz.fuzz(120, seed=11, sandbox=tmp_path / "sandbox", say=lambda _: None)
    assert found["files"] == 120
    assert {fault: found[fault] for fault in fuzz.FAULTS} == dict.fromkeys(fuzz.FAULTS, 0), found["faults"]
    assert found["refused"] > 40


def test_faults_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness can fail: a reader that raises, one that accepts everything, one that writes elsewhere."""
    sandbox = tmp_path / "sandbox"
    (sandbox / "originals" / "files").mkdir(parents=True)
    (sandbox / "originals" / "files" / "x").write_bytes(b"0123456789" * 10)
    (sandbox / "prints.json").write_text(json.dumps({"files/x": "sound"}))
    fuzz.restore_victims(sandbox)

    def raises(_: Path) -> str:
        raise KeyError("x")

    def accepts(_: Path) -> str:
        return "something else"

    def writes(path: Path) -> str:
        (path.parents[1] / "victim.txt").write_text("gone")
        return "sound"

    wanted = {raises: "tracebacks", accepts: "damaged_accepted", writes: "files_touched"}
    for reader, outcome in wanted.items():
        target = fuzz.Target("files", "x", fuzz.mutations.damage_bytes, reader, "x", checksum=True)
        monkeypatch.setattr(fuzz, "TARGETS", ((1, target),))
        assert fuzz.run_case(sandbox, 0, 1)["outcome"] == outcome
