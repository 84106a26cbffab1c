"""The trainings of an experiment in processes of their own: the same results, and failures that stop nobody."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # before jax is imported: compiles faster

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sweeps"))  # for breaking_env

from capo import CapoError
from capo.cli import main
from capo.experiments import training
from capo.experiments.training import Job, Plan, Where

PLAN = Plan(640, 2, "cpu", 4, 5, 5, quick=True)
ENVIRONMENTS = {"breakout": "probe-both", "freeway": "breaking_env:Breaking-v0"}


@pytest.fixture(autouse=True)
def _probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments in the place of games."""
    monkeypatch.setattr(training, "environment", ENVIRONMENTS.__getitem__)


def seeds(folder: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((folder / "breakout-ncapo-cpu.json").read_text())["seeds"]
    return found


def test_processes_make_the_same_results_and_a_failure_stops_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    said: list[str] = []
    training.train_all([Job(here, "minatar", "breakout", "ncapo", PLAN, title="NCAPO")], said.append, False)
    assert said[1] == "1 of 1: NCAPO on breakout, seeds 0, 1"
    assert said[2].startswith("NCAPO: final return ")
    jobs = [Job(there, "minatar", game, "ncapo", PLAN, title="NCAPO") for game in ("freeway", "breakout")]
    with pytest.raises(
        CapoError, match=r"1 of 2 trainings failed: freeway-ncapo-cpu: seeds 0, 1 \(.*out of order"
    ):
        training.train_all(jobs, said.append, True, Where(workers=2))
    assert "breakout-ncapo-cpu: seeds 0, 1: done" in capsys.readouterr().err
    assert seeds(there) == seeds(here)
    assert [path.name for path in there.glob("*.json")] == ["breakout-ncapo-cpu.json"]
    assert not jobs[1].missing()


def test_an_engine_that_does_not_exist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["reproduce", "minatar", "--quick", "--on", "slurm", "--out", str(out)]) == 2
    assert "must be local, auto" in capsys.readouterr().err
    assert main(["reproduce", "noise", "--quick", "--part", "tabular", "--on", "auto", "--out", str(out)]) == 2
    assert "--on does not apply to --part tabular" in capsys.readouterr().err
    assert not out.exists()
