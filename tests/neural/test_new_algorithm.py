"""A new algorithm is one file and one row: everything else finds it there."""

from __future__ import annotations

from pathlib import Path

import generated
import numpy as np
import pytest
from toy_algorithm import ROW, Toy

import capo
from capo.cli import main
from capo.neural.algorithms import registry


@pytest.fixture(autouse=True)
def _registered() -> None:
    registry.register(ROW)


def test_it_learns() -> None:
    agent = Toy("probe-action", n_envs=32, rollout_length=8).learn(32 * 8 * 40)
    actions, _ = agent.predict(np.array([[1.0], [-1.0]]), deterministic=True)
    assert agent.evaluate(50).mean > 0.8
    assert actions.shape == (2,)


def test_it_is_found_by_its_name(tmp_path: Path) -> None:
    assert capo.Toy is Toy
    assert capo.load(Toy("probe-action", n_envs=4).learn(32).save(tmp_path / "toy")).frames == 32
    with pytest.raises(capo.CapoError, match="already registered"):
        registry.register(ROW)


def test_train_resume_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "run", tmp_path / "page.html"
    train = ["train", "probe-action", "--algo", "toy", "--frames", "640", "--seeds", "2", "--eval-episodes", "4"]
    assert main([*train, "--out", str(out), "--set", "n_envs=4"]) == 0
    assert main(["resume", str(out), "--frames", "1280"]) == 0
    assert main(["report", str(out), "--out", str(page)]) == 0
    text = page.read_text()
    assert "Toy" in text
    assert ROW.colour.lower() in text.lower()
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "toy" in capsys.readouterr().out


def test_reproduce(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--quick", "--games", "breakout", "--algos", "toy", "--frames", "1280", "--seeds", "2"]
    assert main(["reproduce", "minatar", *options, "--out", str(tmp_path / "out")]) == 0
    assert "Toy" in capsys.readouterr().out
    assert (tmp_path / "out" / "breakout-toy-default.json").exists()
    assert (tmp_path / "out" / "minatar.png").exists()


def test_the_settings_reference_has_it() -> None:
    page = generated.settings()
    assert "## Toy" in page
    assert "Step size of the gradient descent." in page
