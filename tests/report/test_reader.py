"""A run's files by one schema: strict for whoever continues a run, tolerant for reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_runs import make_result, make_run

from capo import CapoError
from capo.report import series, sources, wording
from capo.runs import reader, records

RESUMED: dict[str, Any] = {"log_every": 1000, "checkpoint_every": "5m", "keep": 2, "extra": {}}


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_whole_run_is_the_same_both_ways(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", **RESUMED)
    assert reader.salvage_config(run) == (reader.read_config(run), [])
    assert str(reader.salvage_metrics(run)) == str((reader.read_metrics(run), []))  # as text: nan is not nan
    assert len(reader.read_metrics(run)) == 500


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("seeds", ["x"], "seeds must be a list of integers, not ['x']"),
        ("frames", True, "frames must be a positive integer, not True"),
        ("config", None, "config must be an object of numbers, strings, true, false and null, not None"),
    ],
)
def test_a_field_that_breaks_its_rule_is_an_error_or_left_out(
    tmp_path: Path, field: str, value: Any, rule: str
) -> None:
    run = make_run(tmp_path / "run", **RESUMED)
    change(run / "config.json", **{field: value})
    with pytest.raises(CapoError) as error:
        reader.read_config(run)
    assert str(error.value) == f"{run / 'config.json'}: {rule}"
    config, problems = reader.salvage_config(run)
    assert problems == [rule]
    assert field not in config


def test_a_missing_field_matters_to_whoever_needs_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(CapoError, match=r"this version of capo \(no log_every, checkpoint_every, keep"):
        reader.read_config(run)
    assert reader.salvage_config(run)[1] == [], "a report does not need these"


def test_damaged_metrics_are_an_error_or_the_whole_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with (run / "metrics.csv").open("a") as file:
        file.write("4,1\n")
    with pytest.raises(CapoError, match=r"metrics.csv: line 502 cannot be read \(truncated or damaged\)"):
        reader.read_metrics(run)
    rows, (problem,) = reader.salvage_metrics(run)
    assert (len(rows), problem.partition(" ")[0]) == (500, "line")
    (run / "metrics.csv").write_text("")
    assert reader.read_metrics(run) == []
    (run / "metrics.csv").unlink()
    assert reader.read_metrics(run) == []


def test_how_a_run_was_measured_is_data(tmp_path: Path) -> None:
    record = records.read_run(make_run(tmp_path / "run", eval_every=500_000, eval_episodes=7))
    measured = (record.scored_by, record.episodes, record.final_episodes, record.deterministic)
    assert measured == ("final evaluation", 7, 100, False)
    greedy = records.read_run(make_run(tmp_path / "greedy", algorithm="rainbow", eval_every=1, eval_episodes=7))
    assert wording.protocol(greedy)["Evaluation curve"] == "7 full episodes per seed, greedy actions, no epsilon"


def test_a_results_files_numbers_come_before_its_sentences(tmp_path: Path) -> None:
    older = records.read_result(make_result(tmp_path / "old", "breakout", "ncapo", 40.0))
    assert wording.final_score(older) == "100 whole episodes of each seed", "as that file says it"
    numbers = {"episodes": 10, "final_episodes": 50, "deterministic": True}
    newer = records.read_result(make_result(tmp_path / "new", "breakout", "ncapo", 40.0, **numbers))
    assert (newer.episodes, newer.final_episodes, newer.deterministic) == (10, 50, True)
    assert wording.final_score(newer) == "50 full episodes per seed, greedy actions, no epsilon"


def test_an_algorithm_of_somebody_else_has_its_own_name_and_a_grey(tmp_path: Path) -> None:
    make_run(tmp_path / "run", algorithm="dreamer")
    (one,) = series.group(sources.read([tmp_path])[0])
    assert one.label == "dreamer"
    red, green, blue = one.colour[1:3], one.colour[3:5], one.colour[5:7]
    assert red == green == blue
