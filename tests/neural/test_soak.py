"""The short version of benchmarks/soak.py: a handful of kills, nothing lost, no bit changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"


@pytest.mark.skipif(os.name != "posix", reason="forks")
def test_a_handful_of_kills(tmp_path: Path) -> None:
    found = tmp_path / "soak.json"
    options = [
        "--kills",
        "5",
        "--cases",
        "ppo on probe-both",
        "--folder",
        str(tmp_path / "runs"),
        "--out",
        str(found),
    ]
    ended = subprocess.run([sys.executable, str(SOAK), *options], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(found.read_text())
    assert (told["lost"], told["differing_bits"], told["tracebacks"], told["problems"]) == (0, 0, 0, [])
    assert told["kills"] == sum(told["kills_by_phase"].values()) == 5


def test_a_changed_bit_and_a_missing_row_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SOAK.parent))
    import soak

    one = {"params": b"\0\0", "metrics.csv": b"[1]"}
    for other, bits in (({**one, "params": b"\0\5"}, 2), ({"params": b"\0\0"}, None), (dict(one), 0)):
        tally = soak.Tally()
        monkeypatch.setattr(soak, "results", lambda path, other=other: one if path.name == "one" else other)
        soak.compare(tmp_path / "one", tmp_path / "other", tally)
        assert bool(tally.differing) == (other != one)
        assert bits is None or tally.bits == bits
    assert soak.continued("capo: resuming at frame 1,600 of 3,200", 1600)
    assert not soak.continued("capo: resuming at frame 0 of 3,200", 1600)
