"""capo report: what it reads, what it does with damage, and what stands on the page."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_runs import FRAMES, VERSIONS, make_gif, make_result, make_run

from capo import CapoError
from capo.cli import main
from capo.report import page, paper, sources, wording
from capo.report.run_figures import draw_training
from capo.runs import records
from capo.runs.reader import read_metrics

IN_THE_PAPER = {"ncapo", "ppo", "a2c", "rainbow", "offpac"}


def shown(html: str) -> dict[str, Any]:
    """The data inside a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert found is not None
    return dict(json.loads(found[1]))


def make_page(*paths: Path) -> dict[str, Any]:
    return shown(page.render(*sources.read(list(paths))))


def test_the_command_writes_one_file_that_needs_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_gif(make_run(tmp_path / "run") / "play.gif")
    out = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "run"), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    html = out.read_text()
    assert "default-src 'none'" in html
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", html)
    addresses = set(re.findall(r"https?://[^\"' )]+", html))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of SVG, which is never fetched"
    (run,) = shown(html)["environments"][0]["series"][0]["runs"]
    assert run["gifs"][0]["url"].startswith("data:image/gif;base64,R0lGOD")
    assert dict(run["facts"])["commit"] == "0123456789abcdef"
    assert ["gamma", "0.99"] in run["settings"]


def test_the_numbers_are_those_of_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    scores = json.loads((run / "evaluation.json").read_text())["mean_by_seed"]
    (environment,) = make_page(run)["environments"]
    (series,) = environment["series"]
    row, curve = series["row"], series["curves"]["training"]
    assert row["mean"][0] == pytest.approx(np.mean(scores), rel=1e-4)
    assert row["iqm"][0] == pytest.approx(np.mean(sorted(scores)[1:4]), rel=1e-4)
    assert row["mean"][1] < row["mean"][0] < row["mean"][2]
    assert (row["finished"], row["planned"], row["frames"]) == (5, 5, FRAMES)
    assert row["paper"] == 54.5
    assert len(curve["seeds"]) == 5
    last = [seed["value"][-1] for seed in curve["seeds"]]
    assert curve["mean"][-1] == pytest.approx(np.mean(last), rel=1e-4)
    assert curve["std"][-1] == pytest.approx(np.std(last, ddof=1), rel=1e-3)
    assert curve["frames"][0] == 20_000, "no episode had ended at the first log point"
    protocol = dict(series["protocol"])
    assert "epsilon 0.3 to 0.05" in protocol["Training curve"]
    assert protocol["Final score"] == "100 full episodes per seed, actions sampled from the policy, no epsilon"
    assert "probability 0.1" in protocol["Sticky actions"]


def test_without_an_evaluation_the_end_of_training_counts_and_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", evaluated=False)
    row = make_page(run)["environments"][0]["series"][0]["row"]
    assert "training episodes in the last 10%" in row["how"]
    rows = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()[1:]]
    ends = [float(cells[4]) for cells in rows if int(cells[2]) > 0.9 * FRAMES]
    assert row["mean"][0] == pytest.approx(np.mean(ends), rel=1e-4)


def test_runs_that_differ_in_seeds_alone_are_one_curve(tmp_path: Path) -> None:
    make_run(tmp_path / "a", seeds=(0, 1))
    make_run(tmp_path / "b", seeds=(2, 3))
    make_run(tmp_path / "c", seeds=(0, 1), config={"gamma": 0.9})
    make_run(tmp_path / "d", seeds=(0, 1), algorithm="ppo")
    series = make_page(tmp_path)["environments"][0]["series"]
    assert [(one["label"], one["row"]["finished"]) for one in series] == [
        ("NCAPO (a)", 4),
        ("NCAPO (c)", 2),
        ("PPO", 2),
    ]
    assert len({one["colour"] for one in series}) == 3


def test_the_same_seed_twice_is_not_two_seeds(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    series = make_page(tmp_path)["environments"][0]["series"]
    assert [(one["label"], one["row"]["finished"]) for one in series] == [("NCAPO (a)", 5), ("NCAPO (b)", 5)]


def test_two_presets_are_two_curves_under_the_same_names_everywhere(tmp_path: Path) -> None:
    for game in ("breakout", "seaquest"):
        make_result(tmp_path, game, "ncapo", 40.0, preset="official")
        make_result(tmp_path, game, "ppo", 20.0, preset="paper")
    make_result(tmp_path, "breakout", "ncapo", 50.0)
    # Runs that the results tell of are not drawn again; the same seeds with another preset are.
    make_run(tmp_path / "runs" / "told", preset="official", config={"gamma": 0.99}, frames=10_000_000)
    make_run(tmp_path / "runs" / "apart", "minatar-seaquest", "ppo", top=9)
    breakout, seaquest = make_page(tmp_path)["environments"]
    labels = [[one["label"] for one in environment["series"]] for environment in (breakout, seaquest)]
    assert labels == [
        ["NCAPO (default)", "NCAPO (official)", "PPO (paper)"],
        ["NCAPO (official)", "PPO (default)", "PPO (paper)"],
    ]
    assert [breakout["missing"], seaquest["missing"]] == [["PPO (default)"], ["NCAPO (default)"]]
    assert [one["row"]["mean"][0] for one in breakout["series"]] == [50.0, 40.0, 20.0]
    colours = [{one["label"]: one["colour"] for one in each["series"]} for each in (breakout, seaquest)]
    assert len(set(colours[0].values())) == 3
    assert colours[0]["NCAPO (official)"] == colours[1]["NCAPO (official)"]
    assert len(breakout["paper"]) == len(IN_THE_PAPER), "once for each algorithm"


def test_different_environments_are_kept_apart_and_said(tmp_path: Path) -> None:
    for env in ("minatar-breakout", "minatar-seaquest", "CartPole-v1"):
        for algorithm in ("ncapo", "ppo"):
            if (env, algorithm) != ("minatar-seaquest", "ppo"):
                make_run(tmp_path / f"{env}-{algorithm}", env, algorithm, top=30 if algorithm == "ncapo" else 5)
    content = make_page(tmp_path)
    names = [one["name"] for one in content["environments"]]
    assert names == ["CartPole-v1", "minatar-breakout", "minatar-seaquest"]
    assert "not comparable" in content["remarks"][0]
    assert [one["missing"] for one in content["environments"]] == [[], [], ["PPO"]]
    assert content["environments"][0]["paper"] == []
    breakout = content["environments"][1]
    assert breakout["improvement"]["cells"][0][1][0] == 1.0, "every seed of NCAPO beats every seed of PPO"
    assert breakout["improvement"]["cells"][1][0][0] == 0.0
    shares = breakout["profile"][0]["share"]
    assert (shares[0], shares[-1]) == (1.0, 0.0)
    assert content["overall"]["environments"] == names[:2], "those that both have scores on"


def test_all_environments_together(tmp_path: Path) -> None:
    for env in ("minatar-breakout", "minatar-seaquest"):
        make_run(tmp_path / f"{env}-ncapo", env, "ncapo", top=30)
        make_run(tmp_path / f"{env}-ppo", env, "ppo", top=30 if env == "minatar-breakout" else 1)
    overall = make_page(tmp_path)["overall"]
    assert overall["environments"] == ["minatar-breakout", "minatar-seaquest"]
    value, low, high = overall["cells"][0][1]
    assert 0.5 <= low <= value <= high <= 1.0, "always better on one of the two"


# --- damage ---------------------------------------------------------------------------------------------------


def test_a_seed_that_stopped_is_drawn_as_far_as_it_goes(tmp_path: Path) -> None:
    make_run(tmp_path / "run", stops={3: 40})
    content = make_page(tmp_path / "run")
    assert any("seed 3 stops at frame 400,000 of 1,000,000" in problem for problem in content["problems"])
    (series,) = content["environments"][0]["series"]
    assert (series["row"]["finished"], series["row"]["planned"]) == (4, 5)
    curve = series["curves"]["training"]
    assert curve["total"] == 5
    assert {5, 4} == set(curve["count"])
    later = [count for frame, count in zip(curve["frames"], curve["count"], strict=True) if frame > 410_000]
    assert set(later) == {4}


def test_no_finished_seed_draws_and_says_so(tmp_path: Path) -> None:
    make_run(tmp_path / "run", stops=dict.fromkeys(range(5), 30))
    content = make_page(tmp_path / "run")
    assert any("no finished seed" in remark for remark in content["remarks"])
    (environment,) = content["environments"]
    assert environment["series"][0]["row"]["finished"] == 0
    assert "iqm" not in environment["series"][0]["row"]
    assert environment["profile"] == []
    assert environment["series"][0]["curves"]["training"]["frames"][-1] == 300_000


def _truncate(file: Path, keep: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content))])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: _truncate(run / "metrics.csv", 0.93), r"metrics.csv: line \d+ cannot be read \(truncated"),
        (lambda run: _truncate(run / "config.json", 0.5), "config.json: is not valid JSON, perhaps truncated"),
        (lambda run: (run / "config.json").unlink(), "config.json: is missing"),
        (lambda run: (run / "config.json").write_text("[]"), "config.json: is not a file that capo writes"),
        (
            lambda run: (run / "config.json").write_text("{}"),
            "config.json: was written by another version of capo",
        ),
        (lambda run: _truncate(run / "evaluation.json", 0.5), "evaluation.json: is not valid JSON"),
        (
            lambda run: (run / "evaluation.json").write_text("{}"),
            "evaluation.json: was written by another version",
        ),
        (
            lambda run: (run / "metrics.csv").write_bytes(
                (run / "metrics.csv").read_bytes() + b"\x00\xff\xfe,,\n" + b"4,1\n"
            ),
            "metrics.csv: 2 lines from line 502 cannot be read",
        ),
    ],
)
def test_damage_is_named_and_the_rest_is_drawn(tmp_path: Path, damage: Any, message: str) -> None:
    damage(make_run(tmp_path / "damaged", algorithm="ppo"))
    make_run(tmp_path / "whole")
    content = make_page(tmp_path / "damaged", tmp_path / "whole")
    assert any(re.search(message, problem) for problem in content["problems"]), content["problems"]
    drawn = [one for environment in content["environments"] for one in environment["series"] if one["curves"]]
    assert len(drawn) == 2


@pytest.mark.parametrize("text", [None, "", "a,b\n1,2\n", "seed,frames,episode_return\n"])
def test_a_run_without_curves_leaves_the_others(tmp_path: Path, text: str | None) -> None:
    run = make_run(tmp_path / "empty", algorithm="ppo", evaluated=False)
    (run / "metrics.csv").unlink()
    if text is not None:
        (run / "metrics.csv").write_text(text)
    make_run(tmp_path / "whole")
    content = make_page(tmp_path / "empty", tmp_path / "whole")
    assert any("metrics.csv" in problem for problem in content["problems"])
    curves = {one["label"]: bool(one["curves"]) for one in content["environments"][0]["series"]}
    assert curves == {"NCAPO": True, "PPO": False}
    with pytest.raises(CapoError, match="has anything to draw"):
        sources.read([tmp_path / "empty"])


@pytest.mark.parametrize(
    "changes",
    [{"seeds": None}, {"seeds": ["x"]}, {"env": None, "environment": None}],
    ids=lambda c: str(sorted(c)),
)
def test_odd_settings_leave_a_page(tmp_path: Path, changes: dict[str, Any]) -> None:
    make_result(tmp_path, "breakout", "ncapo", 40.0)
    run = make_run(tmp_path / "runs" / "odd", algorithm="ppo")
    config = json.loads((run / "config.json").read_text()) | changes
    (run / "config.json").write_text(json.dumps(config))
    (run / "play.gif").symlink_to(tmp_path / "gone.gif")
    (run / "folder.gif").mkdir()
    content = make_page(tmp_path)
    labels = [one["label"] for environment in content["environments"] for one in environment["series"]]
    assert sorted(labels) == ["NCAPO", "PPO"]


def test_rewards_of_different_noise_are_different_curves(tmp_path: Path) -> None:
    for noise, first in ((0.0, 0), (10.0, 5)):
        file = make_result(tmp_path / str(noise), "breakout", "ncapo", 40.0, reward_noise=noise)
        content = json.loads(file.read_text())
        for seed in content["seeds"]:
            seed["seed"] += first
        file.write_text(json.dumps(content))
    assert len(make_page(tmp_path / "0.0", tmp_path / "10.0")["environments"][0]["series"]) == 2


def test_mixed_versions_are_said(tmp_path: Path) -> None:
    make_run(tmp_path / "a", seeds=(0, 1))
    make_run(tmp_path / "b", seeds=(2, 3), versions=VERSIONS | {"capo-rl": "0.2.0"})
    remarks = make_page(tmp_path)["remarks"]
    assert any("capo-rl 0.2.0 instead of 0.1.0" in remark and str(tmp_path / "b") in remark for remark in remarks)


def test_an_evaluation_of_an_earlier_frame_is_not_the_final_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    evaluation = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").write_text(json.dumps(evaluation | {"frames": 500}))
    content = make_page(run)
    assert any("is from frame 500, not from the end of the run" in problem for problem in content["problems"])
    assert "training episodes" in content["environments"][0]["series"][0]["row"]["how"]


def test_an_evaluation_without_every_seed_is_not_the_final_one(tmp_path: Path) -> None:
    """Of a run whose seeds train one after another, evaluated while it trained."""
    run = make_run(tmp_path / "run", seeds=(0, 1))
    evaluation = json.loads((run / "evaluation.json").read_text())
    first = {"seeds": [0], "mean_by_seed": evaluation["mean_by_seed"][:1]}
    (run / "evaluation.json").write_text(json.dumps(evaluation | first))
    content = make_page(run)
    assert any("lacks seed 1, so it is not used; `capo evaluate" in problem for problem in content["problems"])
    row = content["environments"][0]["series"][0]["row"]
    assert "training episodes" in row["how"]
    assert row["finished"] == 2


def test_names_can_not_break_out_of_the_data(tmp_path: Path) -> None:
    nasty = "<!--<script>&lt;img src=x>"
    make_run(tmp_path / nasty, env="</script><script>alert(1)</script>")
    html = page.render(*sources.read([tmp_path / nasty]))
    assert html.count("<script") == 2, "the data and the page's own"
    assert shown(html)["environments"][0]["name"] == "</script><script>alert(1)</script>"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["file"], "file is a file; give the folder that contains it"),
        (["empty"], "empty is not a run's folder"),
        (["run", "--out", "empty"], "is a folder; give a file such as empty/report.html"),
        (["run", "--out", "no/where.html"], "there is no folder no"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "package-lock.json").write_text("{}")
    (tmp_path / "file").touch()
    make_run(tmp_path / "run")
    assert main(["report", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_given_twice_is_drawn_once(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    content = make_page(run, tmp_path / "." / "run")
    assert len(content["environments"][0]["series"]) == 1
    assert any("given twice" in problem for problem in content["problems"])


def test_a_run_is_left_out_only_for_a_result_of_the_same_training(tmp_path: Path) -> None:
    frames, settings = 10_000_000, {"gamma": 0.99}
    make_result(tmp_path, "breakout", "ncapo", 40.0, reward_noise=3.0)
    same: dict[str, Any] = {"config": settings, "frames": frames}
    noisy: dict[str, Any] = {"env": "minatar-breakout, reward noise 3"}
    make_run(tmp_path / "runs" / "same", **same, **noisy)
    make_run(tmp_path / "runs" / "unlike", config={"gamma": 0.5}, frames=frames, **noisy)
    make_run(tmp_path / "runs" / "shorter", config=settings, frames=1000, **noisy)
    make_run(tmp_path / "runs" / "quiet", **same)
    found = sources.read([tmp_path])[0]
    names = sorted(record.path.name for record in found)
    assert names == ["breakout-ncapo-default.json", "quiet", "shorter", "unlike"]


def test_evaluations_during_training_are_a_curve_and_the_last_one_the_score(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=[0, 1], rows=4, evaluated=False, eval_every=500_000, eval_episodes=7)
    header, *lines = (run / "metrics.csv").read_text().splitlines()
    scores = ["", "10", "", "20", "", "30", "", "50"]
    lines = [f"{line},{score}" for line, score in zip(lines, scores, strict=True)]
    (run / "metrics.csv").write_text("\n".join([f"{header},evaluation_return", *lines]) + "\n")
    record = records.read_run(run)
    assert {seed: [list(part) for part in curve] for seed, curve in record.evaluation.items()} == {
        0: [[500_000, 1_000_000], [10, 20]],
        1: [[500_000, 1_000_000], [30, 50]],
    }
    assert record.finals == {0: 20.0, 1: 50.0}
    assert wording.final_score(record) == "7 full episodes per seed, actions sampled from the policy, no epsilon"
    assert "evaluation" in make_page(run)["environments"][0]["series"][0]["curves"]
    rows = read_metrics(run)
    assert draw_training(rows, tmp_path / "curve.png", "").stat().st_size > 10_000
    alone = [row for row in rows if row["seed"] == 0 or row["frames"] < 500_000]  # no evaluation of both seeds
    assert draw_training(alone, tmp_path / "curve.png", "").stat().st_size > 10_000


def test_runs_that_are_not_alike_are_said(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_result(tmp_path / "b", "breakout", "ppo", 30.0)
    make_run(tmp_path / "c", algorithm="a2c", evaluated=False)
    remarks = "\n".join(make_page(tmp_path / "a", tmp_path / "b", tmp_path / "c")["remarks"])
    assert "different lengths (frames: NCAPO 1,000,000, PPO 10,000,000, A2C 1,000,000)" in remarks
    assert "measured in different ways: 100 " in remarks
    assert "; training episodes in the last 10%" in remarks
    assert "different lengths" not in "\n".join(make_page(tmp_path / "a")["remarks"])


def test_a_curve_of_uniform_play_is_called_so(tmp_path: Path) -> None:
    settings = {"gamma": 0.99, "behaviour": "uniform", "epsilon_start": 0.0, "epsilon_final": 0.0}
    make_run(tmp_path / "run", algorithm="offpac", config=settings)
    protocol = dict(make_page(tmp_path / "run")["environments"][0]["series"][0]["protocol"])
    assert "all actions are uniformly random, so this is not the learned policy" in protocol["Training curve"]


def test_a_large_picture_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_gif(make_run(tmp_path / "run") / "play.gif")
    monkeypatch.setattr(page, "MAX_GIF", 10)
    run = make_page(tmp_path / "run")["environments"][0]["series"][0]["runs"][0]
    assert (run["gifs"], run["gifs_left_out"]) == ([], ["play.gif"])


def test_the_papers_numbers_are_there() -> None:
    assert len(paper.curves()) == 20
    assert set(paper.of_environment("minatar-breakout")) == IN_THE_PAPER
    assert paper.of_environment("minatar-freeway") == {}
    for (game, algorithm), (frames, returns) in paper.curves().items():
        assert (np.diff(frames) > 0).all()
        end = paper.final(f"minatar-{game}", algorithm)
        assert end == pytest.approx(returns[-1], abs=0.5), (game, algorithm)


def make_sweep(path: Path) -> Path:
    """Two settings with two values each; the seeds of each combination in two jobs."""
    for rate in (1e-3, 3e-4):
        for clip in (1.0, 5.0):
            for seeds in ((0, 1), (2, 3)):
                settings = {"gamma": 0.99, "learning_rate": rate, "clip": clip}
                make_run(
                    path / "jobs" / f"job-{rate}-{clip}-{seeds[0]}",
                    seeds=seeds,
                    config=settings,
                    top=1e4 * rate + clip,
                )
    (path / "sweep.toml").write_text("")
    return path


def test_a_sweep_is_named_and_chosen_by_its_settings(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    (sweep / "jobs" / "bad").mkdir()
    (sweep / "jobs" / "bad" / "failed.txt").write_text("no such thing\n")
    found = make_page(sweep)
    (environment,) = found["environments"]
    assert environment["choices"] == [
        {"name": "learning_rate", "values": ["0.0003", "0.001"]},
        {"name": "clip", "values": ["1.0", "5.0"]},
    ]
    assert {one["label"] for one in environment["series"]} == {
        f"NCAPO, learning_rate={rate}, clip={clip}" for rate in ("0.0003", "0.001") for clip in ("1.0", "5.0")
    }
    assert all(one["row"]["finished"] == 4 for one in environment["series"]), "the seeds of two jobs"
    assert all(one["values"]["algorithm"] == "NCAPO" for one in environment["series"])
    assert any("the job failed: no such thing" in text for text in found["problems"])
    assert make_page(make_run(tmp_path / "run"))["environments"][0]["choices"] == []


def test_a_sweep_that_has_not_begun_is_said(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "sweep.toml").write_text("")
    with pytest.raises(CapoError, match="no job of this sweep has started"):
        sources.read([tmp_path])


def test_many_combinations_are_not_compared_pair_by_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_PAIRS", 3)
    (environment,) = make_page(make_sweep(tmp_path))["environments"]
    assert environment["improvement"] is None
    assert len(environment["series"]) == 4
