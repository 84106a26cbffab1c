"""The bandit experiment: its numbers against plain ones, its files, its figures from files alone, its command."""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from capo.cli import main
from capo.commands import reproduce
from capo.errors import CapoError
from capo.experiments import bandit
from capo.experiments.common import read_csv, text_table, write_csv


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("bandit")
    bandit.run(out, quick=True, progress=False)
    return out


def parse(*arguments):
    parser = argparse.ArgumentParser()
    reproduce.add_parser(parser.add_subparsers())
    return parser.parse_args(["reproduce", *arguments])


def final(folder, part):
    rows = [row for row in read_csv(folder / "curves.csv") if row["part"] == part]
    last = max(row["iteration"] for row in rows)
    return {row["curve"]: row["converged"] for row in rows if row["iteration"] == last}


def test_the_papers_four_panels(folder):
    assert final(folder, "on-policy variable") == {"zeta 1/4": 1.0}
    assert max(final(folder, "on-policy fixed").values()) <= 0.05
    assert final(folder, "off-policy variable") == {"log 1/pi": 1.0}
    assert set(final(folder, "off-policy fixed").values()) == {1.0}
    by_hundred = [
        row["converged"]
        for row in read_csv(folder / "curves.csv")
        if row["part"] == "off-policy variable" and row["iteration"] == 100
    ]
    assert by_hundred == [1.0]


def test_the_claims_beside_them(folder):
    assert final(folder, "zeta")["zeta 1"] < 0.8
    unbalanced = final(folder, "one arm always")
    assert unbalanced["log 1/pi"] == 1.0
    assert all(share < 1 for curve, share in unbalanced.items() if curve != "log 1/pi")
    assert max(final(folder, "stochastic npg").values()) < 0.6
    summary = json.loads((folder / "summary.json").read_text())
    for row in summary["theorem"]:
        assert 0.35 < row["second"] / summary["theorem_seeds"] < 0.65
        assert row["second"] / summary["theorem_seeds"] >= row["bound"]
        assert row["bound"] == pytest.approx(math.exp(-2 * math.exp(row["eta"]) / row["eta"]))
        assert row["first"] + row["second"] + row["third"] + row["undecided"] == summary["theorem_seeds"]


def test_on_policy_fixed_curve_against_a_plain_loop(folder):
    rewards, eta, steps = np.array(bandit.REWARDS), 0.5, 100
    ended = []
    for seed in range(json.loads((folder / "summary.json").read_text())["seeds"]):
        rng, theta = np.random.default_rng(seed), np.array(bandit.THETA)
        rng.random()  # the walk's first state
        for uniform, *_ in rng.random((steps, 3)):
            pi = np.exp(theta) / np.exp(theta).sum()
            arm = int(np.searchsorted(pi.cumsum(), uniform, side="right"))
            theta[arm] += eta * np.sign(rewards[arm] - pi @ rewards)
        ended.append((np.exp(theta) / np.exp(theta).sum())[0])
    mine = {
        row["iteration"]: row
        for row in read_csv(folder / "curves.csv")
        if (row["part"], row["curve"]) == ("on-policy fixed", "eta 0.5")
    }
    assert mine[0]["mean"] == pytest.approx(1 / (2 + 2 * np.exp(3)), rel=1e-5)
    assert mine[steps]["mean"] == pytest.approx(np.mean(ended), rel=1e-4)
    assert mine[steps]["high"] == pytest.approx(np.quantile(ended, 0.9), rel=1e-4)


def test_data_say_where_they_come_from(folder):
    summary = json.loads((folder / "summary.json").read_text())
    assert {"versions", "commit", "hardware", "seeds", "iterations", "quick"} <= set(summary)
    assert summary["quick"] is True
    seeds = read_csv(folder / "seeds.csv")
    assert {row["seed"] for row in seeds} == set(range(summary["seeds"]))
    assert all((folder / name).stat().st_size < 300_000 for name in bandit.DATA)


def test_report_and_figures_need_the_files_only(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(bandit, "solve_many", None)
    text = bandit.report(folder)
    assert "QUICK" in text
    assert "on-policy, variable step" in text
    assert all(len(line) < 140 for line in text.splitlines())
    drawn = bandit.draw(folder, tmp_path)
    assert [path.name for path in drawn] == ["bandit.png", "claims.png"]
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 30_000 for path in drawn)


def test_command_draws_only(folder, capsys):
    options = parse("bandit", "--draw-only", "--out", str(folder))
    assert options.run(options) == 0
    printed = capsys.readouterr().out
    assert "bandit.png" in printed
    assert "second arm" in printed


def test_draw_only_falls_back_to_the_committed_results(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "bandit").symlink_to(folder)
    before = set(folder.iterdir())
    options = parse("bandit", "--draw-only")
    assert options.run(options) == 0
    assert (tmp_path / "runs" / "reproduce" / "bandit" / "claims.png").exists()
    assert set(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bandits"], "did you mean 'bandit'"),
        (["bandit", "--draw-only", "--out", "nowhere"], "run without --draw-only first"),
        (["bandit", "--draw-only", "--quick"], "cannot be combined"),
    ],
)
def test_mistakes_on_the_command_line(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = parse(*arguments)
    with pytest.raises(CapoError, match=words):
        options.run(options)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_matplotlib_is_said_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    options = parse("bandit", "--quick", "--out", str(tmp_path))
    with pytest.raises(CapoError, match=r"pip install 'capo-rl\[report\]'"):
        options.run(options)
    assert list(tmp_path.iterdir()) == []


def test_csv_round_trip(tmp_path):
    rows = [{"name": "a", "x": 1.25, "y": None}, {"name": "b", "x": float("nan"), "y": 3}]
    back = read_csv(write_csv(tmp_path / "t.csv", rows))
    assert back[0]["x"] == 1.25
    assert math.isnan(back[0]["y"])
    assert math.isnan(back[1]["x"])
    assert back[1]["y"] == 3.0
    assert back[1]["name"] == "b"


def test_text_table_lines_up():
    lines = text_table("title", ["", "n"], [["one", 1], ["three", 333]]).splitlines()
    assert lines[2:] == ["         n", "-" * 10, "one      1", "three  333", "-" * 10]


def test_a_quick_run_never_replaces_a_full_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bandit, "run", lambda out, *_, **__: wrote.append(out))
    monkeypatch.setattr(bandit, "report", lambda _: "")
    monkeypatch.setattr(bandit, "draw", lambda *_: [])
    wrote = []
    assert main(["reproduce", "bandit", "--quick"]) == 0
    assert wrote == [Path("runs/reproduce/bandit-quick")]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "summary.json").write_text('{"quick": false}')
    assert main(["reproduce", "bandit", "--quick", "--out", "full"]) == 2
    assert "summary.json is from a full run, which --quick would overwrite" in capsys.readouterr().err
    assert main(["reproduce", "bandit", "--out", "full"]) == 0
    assert len(wrote) == 2


def test_a_mistake_leaves_no_folder(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["reproduce", "minatar", "--games", "breakot", "--out", str(out)]) == 2
    assert "did you mean 'breakout'" in capsys.readouterr().err
    assert not out.exists()
