"""The tables of ``capo bench suite``, and the file that its rows are kept in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from suite_parts import tables
from suite_parts.lines import Lines
from suite_parts.tasks import TASKS, register

ROOT = Path(__file__).resolve().parents[2]


def row(env: str, algorithm: str, seed: int, mean: float, frames: int = 1000) -> dict[str, Any]:
    made_by = {"versions": {"jax": "1"}, "hardware": {"processor": "a processor", "cores": 2}}
    found = {"env": env, "algorithm": algorithm, "seed": seed, "mean": mean, "frames": frames}
    times = {"wall_seconds": 3.0 + seed, "processor_seconds": 2.0, "load_average_before": [0.5, 0, 0]}
    return found | times | {"made_by": made_by}


def write(folder: Path, means: dict[tuple[str, str], list[float]]) -> None:
    for (env, algorithm), values in means.items():
        lines = Lines(folder / f"{algorithm}.jsonl")
        for seed, mean in enumerate(values):
            lines.add(row(env, algorithm, seed, mean))


def test_lines_survive_a_kill_in_the_middle_of_one(tmp_path: Path) -> None:
    file = tmp_path / "ppo.jsonl"
    Lines(file).add(row("catch", "ppo", 0, 1.0))
    with file.open("a") as stream:
        stream.write('{"env": "catch", "algo')
    lines = Lines(file)
    assert lines.has(env="catch", seed=0)
    assert not lines.has(env="catch", seed=1)
    lines.add(row("catch", "ppo", 1, 0.5))
    assert [one["seed"] for one in Lines(file).rows] == [0, 1]


def test_the_better_peer_is_what_counts(tmp_path: Path) -> None:
    means = {
        ("catch", "random"): [-0.6, -0.6],
        ("catch", "ncapo"): [0.2, 0.3],  # below the better peer's interval, half of its gain
        ("catch", "sb3-ppo"): [-0.6, -0.5],
        ("catch", "sb3-dqn"): [1.0, 1.0],
        ("CartPole-v1", "random"): [20.0, 20.0],
        ("CartPole-v1", "ncapo"): [400.0, 500.0],  # the intervals overlap
        ("CartPole-v1", "sb3-ppo"): [440.0, 500.0],
        ("CartPole-v1", "sb3-dqn"): [20.0, 20.0],
        ("MountainCar-v0", "random"): [-200.0, -200.0],
        ("MountainCar-v0", "ncapo"): [-200.0, -200.0],  # nobody gains anything
        ("MountainCar-v0", "sb3-ppo"): [-200.0, -200.0],
        ("MountainCar-v0", "sb3-dqn"): [-200.0, -200.0],
        ("probe-both", "random"): [0.0, 0.0],  # not counted
        ("Taxi-v4", "ncapo"): [7.0, 7.0],  # no peers yet
    }
    write(tmp_path, means)
    text = tables.tables(tmp_path, 1000)
    assert "| catch | SB3 DQN | no | 0.53 |" in text
    assert "| CartPole-v1 | SB3 PPO | yes | 0.96 |" in text
    assert "| MountainCar-v0 | SB3 PPO | yes | nothing to gain |" in text
    assert "in 2 of 3 environments" in text
    assert "at least 0.53 (median 0.74); less than half in 0 of 2" in text
    assert "| Taxi-v4 | 2 |" in text
    assert "| CartPole-v1 | 2 | 20.0 (20.0 to 20.0) | 450 (400 to 500) | 470 (440 to 500) |" in text
    assert "| catch | 4 / 2 |" in text  # seconds
    assert "no finished training of 2,000 frames" in tables.tables(tmp_path, 2000)


def test_the_tables_go_between_the_marks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    tables.put_into(page, "new")
    assert page.read_text() == f"before\n{tables.BEGIN}\n\nnew\n\n{tables.END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="has no lines"):
        tables.put_into(page, "new")


def test_the_page_shows_what_the_results_say() -> None:
    folder, page = ROOT / "results" / "suite", ROOT / "docs" / "results" / "suite.md"
    changed = subprocess.run(["git", "-C", str(ROOT), "status", "--porcelain", str(folder)], capture_output=True)
    if changed.returncode or changed.stdout:
        pytest.skip("the suite is running: its results are not committed")
    inside = page.read_text().partition(tables.BEGIN)[2].partition(tables.END)[0]
    assert inside.strip() == tables.tables(folder, 200_000).strip()
    for task in TASKS.values():
        assert f"| {task.name} | {task.note} |" in page.read_text()


def test_jitted_tasks_are_the_same_environments_through_gymnasium() -> None:
    import gymnasium
    import numpy as np

    register()
    env = gymnasium.make(TASKS["catch"].gymnasium_id)
    first, _ = env.reset(seed=3)
    rewards, ended = [], False
    while not ended:
        obs, reward, ended, truncated, _ = env.step(1)
        rewards.append(reward)
        assert not truncated
    assert len(rewards) == 9
    assert rewards[-1] == (1.0 if first[0, 2] else -1.0)
    assert obs.dtype == np.float32
    np.testing.assert_array_equal(env.reset(seed=3)[0], first)
