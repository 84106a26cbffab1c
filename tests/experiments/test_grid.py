"""The maze experiment: mazes, PPO's own batches, its files, its figure from files alone."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

import capo
from capo.experiments import algorithm2 as a2
from capo.experiments import grid
from capo.experiments.common import read_csv

FEW = {key: grid.METHODS[key] for key in ("capo all", "offpac walk", "ppo own")}  # compiling is what takes time


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("grid")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "METHODS", FEW)
        patch.setattr(grid, "SIZES", replace(grid.SIZES, iterations=500))
        grid.run(out, quick=True, progress=False, part="random")
    return out


def test_every_run_has_a_maze_of_its_own():
    mdps = grid.mazes({"size": 5}, 4)
    assert len({mdp.transition.tobytes() for mdp in mdps}) == 4
    again = capo.mdps.grid(5, wall="horizontal", seed=3)
    np.testing.assert_array_equal(mdps[3].transition, again.transition)


def test_the_large_mazes_are_run_at_one_rate_and_drawn_apart(tmp_path, monkeypatch):
    maze = {"distance 5": grid.MAZES["distance 5"], "step 10": grid.MAZES["step 10"]}
    monkeypatch.setattr(grid, "METHODS", {"capo all": FEW["capo all"]})
    monkeypatch.setattr(grid, "MAZES", maze)
    few = grid.mazes
    monkeypatch.setattr(grid, "mazes", lambda options, _: few(options, 2))
    monkeypatch.setattr(grid, "SIZES", replace(grid.SIZES, iterations=500, record_every=50))
    grid.run(tmp_path, progress=False, part="random")
    rates = [row["rate"] for row in read_csv(tmp_path / "table.csv") if row["method"] == "capo all"]
    assert rates == [*grid.RATES, grid.MAIN_RATE]
    assert grid.report(tmp_path).count("10 x 10") == 1
    assert [path.name for path in grid.draw(tmp_path, tmp_path)] == ["grid.png", "grid10.png"]


def test_return_of_a_policy_that_never_arrives():
    mdp = capo.mdps.grid(5)
    policy = np.eye(4)[np.zeros(mdp.n_states, int)]  # always up
    stacked = jax.tree.map(lambda leaf: leaf[0], a2.stack([mdp]))
    with jax.enable_x64(True):
        assert float(a2.expected_return(stacked, policy, 100)) == pytest.approx(-100)


def test_own_batches_follow_the_visits():
    weights = np.array([[1.0, 0.0], [3.0, 4.0]])
    chances = (np.arange(8000) + 0.5) / 8000
    with jax.enable_x64(True):
        drawn = np.asarray(a2._draw(jax.numpy.asarray(weights), chances))
    assert np.bincount(drawn, minlength=4).tolist() == [1000, 0, 3000, 4000]


def test_all_learn_and_exact_capo_is_first(folder):
    summary = json.loads((folder / "summary.json").read_text())
    table = {(row["maze"], row["method"], row["rate"]): row for row in read_csv(folder / "table.csv")}
    best = summary["optimum"]["step 5"]
    # The optimum against plain value iteration's number of steps.
    returns = []
    for mdp in grid.mazes({"size": 5}, 5):
        far = np.where(mdp.terminal, 0.0, np.inf)
        for _ in range(50):
            reached = np.where(mdp.transition > 0, far, np.inf).min(axis=2).min(axis=1)
            far = np.where(mdp.terminal, 0.0, 1 + reached)
        returns.append(mdp.start @ (101 - far))
    assert best == pytest.approx(np.mean(returns))
    for method in ("capo all", "offpac walk", "ppo own"):
        assert table["step 5", method, 1e-3]["final"] > best - 1
    exact = [row for row in table.values() if row["method"] == "exact batch"]
    assert all(row["near_optimum"] == 5 and row["median_first"] <= 10 for row in exact)
    assert all(row["final"] <= summary["optimum"][row["maze"]] + 1e-3 for row in table.values())


def test_report_and_figure_need_the_files_only(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "METHODS", FEW)
    monkeypatch.setattr(a2, "run_all", None)
    monkeypatch.setattr(grid, "solve", None)
    text = grid.report(folder)
    assert "QUICK" in text
    assert "Poster" in text
    assert all(len(line) < 140 for line in text.splitlines())
    (path,) = grid.draw(folder, tmp_path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 30_000
    assert all((folder / name).stat().st_size < 300_000 for name in grid.DATA)


def test_the_fixed_start_is_a_part_with_files_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "METHODS", {"capo all": FEW["capo all"]})
    monkeypatch.setattr(grid, "FIXED_MAZES", {"step 5": grid.FIXED_MAZES["step 5"]})
    monkeypatch.setattr(grid, "SIZES", replace(grid.SIZES, iterations=500, record_every=50))
    grid.run(tmp_path, quick=True, progress=False, part="fixed")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fixed_curves.csv",
        "fixed_runs.csv",
        "fixed_summary.json",
        "fixed_table.csv",
    ]
    mdps = grid.mazes(grid.FIXED_MAZES["step 5"][1], 3)
    assert all(mdp.start[0] == 1 for mdp in mdps)
    row = next(row for row in read_csv(tmp_path / "fixed_table.csv") if row["method"] == "exact batch")
    summary = json.loads((tmp_path / "fixed_summary.json").read_text())
    # From the top left the goal is at least eight steps away: the return is at most 100 - 7.
    assert row["final"] == pytest.approx(summary["optimum"]["step 5"])
    assert summary["optimum"]["step 5"] <= 93
    assert "start at (1, 1)" in grid.report(tmp_path)
    assert [path.name for path in grid.draw(tmp_path, tmp_path)] == ["fixed_grid.png"]
    with pytest.raises(capo.CapoError, match="part"):
        grid.run(tmp_path, part="elsewhere")
