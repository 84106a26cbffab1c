"""capo reproduce ablation: what is trained and what is not, the chain's part, tables and figures from files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # before jax is imported: compiles faster

import jax
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tiny_agents import FRAMES, PLAN, TinyNCAPO, tiny_trainings

from capo import CapoError
from capo.cli import main
from capo.experiments import ablation
from capo.experiments import algorithm2 as a2
from capo.experiments.common import read_csv
from capo.experiments.training import Plan
from capo.neural import ascent
from capo.neural.algorithms.ncapo import NCAPOConfig
from capo.neural.algorithms.settings import override
from capo.update import StepSize

NAMES = ("base", "alpha-1")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[type[TinyNCAPO]]:
    monkeypatch.setattr(ablation, "QUICK", PLAN)
    monkeypatch.setattr(ablation, "QUICK_VARIANTS", NAMES)
    with tiny_trainings(monkeypatch, tmp_path_factory.getbasetemp() / "ablation-jax-cache", "ncapo"):
        yield TinyNCAPO


def quick(out: Path, *more: str) -> int:
    return main(["reproduce", "ablation", "--quick", "--out", str(out), *more])


@pytest.fixture(scope="module")
def chain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("chain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablation, "QUICK_CHAIN", ("base", "alpha 1"))
        patch.setattr(ablation, "SIZES", replace(ablation.SIZES, iterations=300))
        ablation.run(out, quick=True, progress=False, part="chain")
    return out


def test_every_variant_changes_one_thing_that_the_presets_know() -> None:
    for name in NCAPOConfig.PRESETS:
        plan = Plan(preset=name)
        base = NCAPOConfig.preset(name, "minatar-breakout")
        kept = ablation.differing("breakout", plan)
        assert kept[0] == ablation.BASE
        for variant in kept[1:]:
            settings = ablation.VARIANTS[variant][1]
            changed = override(base, settings)
            assert changed != base
            assert set(settings) >= {k for k, v in changed.to_dict().items() if v != getattr(base, k)}
    names = ablation.differing("breakout", ablation.PLAN)
    assert len(names) == len(set(names)) == 24
    assert "kl-paper" not in names, "the default has it already"


def test_game_part_trains_what_is_missing_and_goes_on(
    tiny: type[TinyNCAPO], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "whole"
    assert quick(out, "--part", "game") == 0
    shown = capsys.readouterr()
    assert "1 of 2: base" in shown.err
    assert "alpha = 1: final return" in shown.err
    assert "QUICK" in shown.out
    assert "the chain has not been run" in shown.out
    assert (out / "ablation.png").read_bytes().startswith(b"\x89PNG")
    content = {name: json.loads((out / f"breakout-{name}.json").read_text()) for name in NAMES}
    assert content["alpha-1"]["experiment"] == "ablation"
    assert content["alpha-1"]["changed"] == {"step_size": "fixed", "fixed_alpha": 1.0}
    assert content["alpha-1"]["config"]["step_size"] == "fixed"
    assert content["base"]["config"]["step_size"] == "log"
    for entry in content["base"]["seeds"]:
        assert len(entry["evaluation"]["returns"]) == 4
        assert len(entry["final_returns"]) == 5
    assert tiny.learned == 2 * 2 * FRAMES
    # Finished variants are not repeated; other settings do not fit into the same files.
    assert quick(out, "--part", "game") == 0
    assert tiny.learned == 2 * 2 * FRAMES
    assert "2 already finished" in capsys.readouterr().err
    assert quick(out, "--part", "game", "--frames", "1280") == 2
    assert "frames 640, not 1280" in capsys.readouterr().err
    # A base of other settings is refused even if it is not asked for, and the report says what does not fit.
    assert "more than it should" not in ablation.report(out)
    base = out / "breakout-base.json"
    base.write_text(base.read_text().replace('"gamma": 0.99', '"gamma": 0.5'))
    assert quick(out, "--part", "game", "--variants", "alpha-1") == 2
    assert "gamma 0.5, not 0.99" in capsys.readouterr().err
    assert "differs from base in more than it should (gamma 0.99 instead of 0.5)" in ablation.report(out)
    # A run that was stopped goes on to the same end.
    broken = tmp_path / "broken"
    monkeypatch.setattr(ablation, "QUICK_VARIANTS", ("alpha-1",))
    with monkeypatch.context() as patch:
        patch.setattr(TinyNCAPO, "stop_at", 320)
        assert quick(broken, "--part", "game") == 130
    assert "repeat the same command to continue" in capsys.readouterr().err
    assert quick(broken, "--part", "game") == 0
    assert "continuing" in capsys.readouterr().err
    assert json.loads((broken / "breakout-alpha-1.json").read_text())["seeds"] == content["alpha-1"]["seeds"]


def test_the_chains_part(chain_folder: Path) -> None:
    rows = read_csv(chain_folder / ablation.CHAIN_RUNS)
    assert {(row["rule"], row["variant"]) for row in rows} == {
        (rule, name) for rule in ("batch", "cyclic") for name in ("base", "alpha 1")
    }
    base = [row for row in rows if (row["rule"], row["variant"], row["rate"]) == ("batch", "base", 1e-3)]
    assert len(base) == 5
    assert all(row["final"] > 95 and row["first"] <= 300 for row in base)
    summary = json.loads((chain_folder / ablation.CHAIN_SUMMARY).read_text())
    assert {"versions", "commit", "hardware", "runs", "rates"} <= set(summary)
    assert summary["exact"]["batch"]["base"] == 5, "as capo reproduce chain has it"


def test_tables_and_figure_need_the_files_only(
    chain_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(a2, "run_all", None)
    monkeypatch.setattr(ablation, "capo_to_optimum", None)
    assert main(["reproduce", "ablation", "--draw-only", "--out", str(chain_folder)]) == 0
    text = capsys.readouterr().out
    assert "QUICK" in text
    assert "has not been run (--part game)" in text
    assert all(len(line) < 140 for line in text.splitlines())
    assert (chain_folder / "chain.png").stat().st_size > 10_000
    with pytest.raises(CapoError, match="neither part"):
        ablation.report(tmp_path)


def test_a_finished_chain_is_not_repeated(
    tiny: type[TinyNCAPO], chain_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del tiny
    monkeypatch.setattr(a2, "run_all", None)
    monkeypatch.setattr(ablation, "QUICK_VARIANTS", ("base",))
    ablation.run(chain_folder, quick=True)
    assert "the part chain is already finished" in capsys.readouterr().err
    assert not ablation.CHAIN.is_there(chain_folder, quick=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--part", "chian"], "did you mean 'chain'"),
        (["--variants", "alpha1"], "did you mean 'alpha-1'"),
        (["--part", "game", "--variants", "kl-paper"], "has these settings already"),
        (["--games", "brekout"], "did you mean 'breakout'"),
        (["--algos", "ppo"], "--algos does not apply to ablation"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "ablation", "--out", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_steps_and_weights_of_the_target() -> None:
    """The target of Algorithm 2 with another alpha, against plain numpy."""
    rng = np.random.default_rng(0)
    log_pi = np.log(rng.dirichlet(np.ones(3), 4))
    advantage = rng.normal(size=(4, 3))
    batch = np.array([0, 4, 4, 11])
    chosen = np.zeros(12)
    chosen[batch] = 1
    chosen = chosen.reshape(4, 3)
    for step, alpha in (
        (StepSize("fixed", eta=0.3), np.full((4, 3), 0.3)),
        (StepSize("clipped", clip=0.5), np.minimum(-log_pi, 0.5)),
        (StepSize(), -log_pi),
    ):
        for weighted in (False, True):
            size = np.abs(advantage) / np.abs(advantage)[chosen > 0].mean() if weighted else 1.0
            theta = log_pi + alpha * size * chosen * np.sign(advantage)
            expected = theta - np.log(np.exp(theta).sum(axis=1, keepdims=True))
            with jax.enable_x64(True):
                rule = a2.UpdateRule(step=step, by_advantage=weighted).ascent
                pairs = a2.pairs_chosen(jax.numpy.asarray(log_pi), batch)
                found = ascent.target_distribution(jax.numpy.asarray(log_pi), advantage, pairs, rule)
                np.testing.assert_allclose(found, expected, atol=1e-12)
                np.testing.assert_array_equal(pairs, chosen)
