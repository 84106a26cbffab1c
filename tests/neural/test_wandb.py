"""Weights & Biases: what is logged under which name, a resumed run, and the real package offline."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers_shell import ENV, FRAMES, SET, TINY

import capo
from capo.cli import main
from capo.runs.wandb_log import WandbCallback


class FakeRun:
    """Remembers what it is told."""

    def __init__(self, **options: Any) -> None:
        self.options, self.rows, self.finished = options, [], False
        self.steps: list[Any] = []

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.steps.append((name, step_metric))

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    made: list[FakeRun] = []
    fake = ModuleType("wandb")

    def init(**options: Any) -> FakeRun:
        made.append(FakeRun(**options))
        return made[-1]

    fake.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return made


def test_rows_are_logged_by_frames_and_seed(runs: list[FakeRun]) -> None:
    callback = WandbCallback("games", mode="offline")
    agent = capo.NCAPO(ENV, seeds=2, log_every=FRAMES, **TINY).learn(2 * FRAMES, callback=callback)
    callback.close()
    (run,) = runs
    assert run.options["project"] == "games"
    assert run.options["mode"] == "offline"
    assert run.options["config"]["env"] == ENV
    assert run.options["config"]["gamma"] == agent.config.gamma
    assert ("*", "frames") in run.steps
    assert [row["frames"] for row in run.rows] == [FRAMES, FRAMES, 2 * FRAMES, 2 * FRAMES]
    assert {"seed-0/train/critic_loss", "seed-0/time/frames_per_second"} <= set(run.rows[0])
    assert run.finished


def test_the_command_logs_and_a_resumed_run_continues_the_same_curves(runs: list[FakeRun], tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    common = ["--eval-episodes", "0", "--log", "wandb"]
    assert main(["train", ENV, "--frames", str(2 * FRAMES), "--out", out, *SET, *common]) == 0
    assert main(["resume", out, "--frames", str(4 * FRAMES), "--log", "wandb"]) == 0
    first, second = runs
    assert first.options["id"] == second.options["id"]
    assert second.options["resume"] == "allow"
    assert second.rows[-1]["frames"] == 4 * FRAMES
    assert "train/critic_loss" in first.rows[0]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["extra"]["wandb_id"] == first.options["id"]


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(capo.CapoError, match=r"pip install 'capo-rl\[wandb\]'"):
        WandbCallback()


def test_the_real_package_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    callback = WandbCallback()
    agent = capo.NCAPO(ENV, out=tmp_path / "run", log_every=FRAMES, **TINY).learn(2 * FRAMES, callback=callback)
    callback.close()
    files = list((tmp_path / "run" / "wandb").glob(f"offline-run-*-{agent.extra['wandb_id']}/*.wandb"))
    assert len(files) == 1
    assert b"critic_loss" in files[0].read_bytes()
