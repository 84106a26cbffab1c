"""capo reproduce minatar: what is trained and what is not, the results files, the table, the figure."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # before jax is imported: compiles faster

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

import made_runs
from tiny_agents import PLAN, TinyNCAPO, change_presets, tiny_trainings

from capo import CapoError
from capo.cli import main
from capo.envs.minatar.games import GAMES
from capo.experiments import minatar, paper_figure, training
from capo.experiments.training import Plan
from capo.neural.algorithms import registry


def make_result(folder: Path, game: str, algorithm: str, top: float, **changes: Any) -> Path:
    """A results file with the settings that its preset has now."""
    settings = registry.find(algorithm).settings.preset(changes.get("preset", "default"), f"minatar-{game}")
    return made_runs.make_result(folder, game, algorithm, top, **({"config": settings.to_dict()} | changes))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[type[TinyNCAPO]]:
    monkeypatch.setattr(minatar, "QUICK", replace(PLAN, final_episodes=7))
    with tiny_trainings(monkeypatch, tmp_path_factory.getbasetemp() / "minatar-jax-cache", "ncapo"):
        yield TinyNCAPO


def quick(out: Path, *more: str) -> int:
    return main(["reproduce", "minatar", "--quick", "--games", "breakout", "--out", str(out), *more])


def test_a_quick_run_leaves_results_table_and_figure(
    tiny: type[TinyNCAPO], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quick(tmp_path) == 0
    shown = capsys.readouterr()
    assert "QUICK" in shown.out
    assert "54.5" in shown.out, "the paper's number"
    assert "7 full episodes per seed, actions sampled" in shown.out
    assert (tmp_path / "minatar.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((tmp_path / "breakout-ncapo-cpu.json").read_text())
    assert {"versions", "commit", "hardware", "wall_seconds"} <= set(content["programs"][0])
    assert set(content["protocol"]) == {"Evaluation curve", "Final score", "Training curve", "Sticky actions"}
    numbers = {
        "experiment": "minatar",
        "evaluations": 4,
        "episodes": 5,
        "final_episodes": 7,
        "deterministic": False,
    }
    assert content | numbers == content
    for seed, entry in enumerate(content["seeds"]):
        assert entry["seed"] == seed
        assert entry["evaluation"]["frames"] == [160, 320, 480, 640]
        assert len(entry["evaluation"]["returns"]) == 4
        assert len(entry["final_returns"]) == 7
    # A second run finds nothing to do, draws the same, and the report page reads the folder.
    learned = tiny.learned
    assert quick(tmp_path) == 0
    assert tiny.learned == learned == 2 * 640
    assert "1 already finished" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    assert "--quick run" in (tmp_path / "page.html").read_text()
    # More seeds: those that are there stay as they are.
    assert quick(tmp_path, "--seeds", "3") == 0
    more = json.loads((tmp_path / "breakout-ncapo-cpu.json").read_text())
    assert tiny.learned == learned + 640
    assert more["seeds"][:2] == content["seeds"]
    assert [program["seeds"] for program in more["programs"]] == [[0, 1], [2]]
    # Other settings do not fit into the same file.
    capsys.readouterr()
    assert quick(tmp_path, "--frames", "1280") == 2
    assert "frames 640, not 1280" in capsys.readouterr().err
    # Nor do those of a preset that has changed since.
    with monkeypatch.context() as patch:
        change_presets(patch, "ncapo", gamma=0.5)
        assert quick(tmp_path) == 2
    assert "contains results with other settings (gamma 0.99, not 0.5)" in capsys.readouterr().err
    # A file from before there was a setting has the value of saying nothing.
    del more["config"]["actor_lambda"]
    (tmp_path / "breakout-ncapo-cpu.json").write_text(json.dumps(more))
    with monkeypatch.context() as patch:
        change_presets(patch, "ncapo", actor_lambda=0.25)
        assert quick(tmp_path) == 2
    assert "contains results with other settings (actor_lambda 1.0, not 0.25)" in capsys.readouterr().err
    # Nor other evaluations.
    monkeypatch.setattr(minatar, "QUICK", replace(PLAN, episodes=6, final_episodes=7))
    assert quick(tmp_path) == 2
    assert "contains results with other settings (episodes 5, not 6)" in capsys.readouterr().err
    # A file from before the numbers were stored can be drawn, but nothing can be added to it.
    del more["episodes"]
    (tmp_path / "breakout-ncapo-cpu.json").write_text(json.dumps(more))
    assert quick(tmp_path) == 2
    assert "does not record how it was evaluated (episodes missing)" in capsys.readouterr().err
    assert main(["reproduce", "minatar", "--draw-only", "--out", str(tmp_path)]) == 0


def test_an_interrupted_run_goes_on_to_the_same_end(
    tiny: type[TinyNCAPO], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert quick(whole) == 0
    with monkeypatch.context() as patch:
        patch.setattr(tiny, "stop_at", 320)
        assert quick(broken) == 130
    assert "repeat the same command to continue" in capsys.readouterr().err
    assert not (broken / "breakout-ncapo-cpu.json").exists()
    with monkeypatch.context() as patch:  # a preset that has changed since
        change_presets(patch, "ncapo", gamma=0.5)
        assert quick(broken) == 2
        assert "is a run with other settings (gamma 0.99, not 0.5)" in capsys.readouterr().err
    with monkeypatch.context() as patch:  # or other evaluations
        patch.setattr(minatar, "QUICK", replace(PLAN, evaluations=2, final_episodes=7))
        assert quick(broken) == 2
        assert "is a run with other settings (eval_every 160, not 320)" in capsys.readouterr().err
    assert quick(broken) == 0
    assert "continuing" in capsys.readouterr().err
    ours, theirs = (json.loads((one / "breakout-ncapo-cpu.json").read_text()) for one in (broken, whole))
    assert ours["seeds"] == theirs["seeds"]
    # A damaged results file is made again from the run's folder, without training.
    (broken / "breakout-ncapo-cpu.json").write_text('{"experiment": "mina')
    learned = tiny.learned
    assert quick(broken) == 0
    assert tiny.learned == learned
    assert json.loads((broken / "breakout-ncapo-cpu.json").read_text())["seeds"] == theirs["seeds"]


def test_drawing_marks_what_is_missing_or_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    make_result(data, "breakout", "ncapo", 54.0)
    make_result(data, "breakout", "ppo", 30.0)
    make_result(data, "seaquest", "ncapo", 32.0)
    cut = make_result(data, "seaquest", "ppo", 15.0)
    cut.write_text(cut.read_text()[:700])
    make_result(data, "asterix", "ncapo", 20.0, format=99)
    assert main(["reproduce", "minatar", "--draw-only", "--out", str(data)]) == 0
    shown = capsys.readouterr().out
    assert "seaquest-ppo-default.json: is not valid JSON, perhaps truncated" in shown
    assert "asterix-ncapo-default.json: was written by another version of capo (format 99" in shown
    assert "no results of PPO on seaquest" in shown
    assert "54.00 [54.00, 54.00]" in shown
    overview = shown[: shown.index("\n\n")].splitlines()
    assert overview[2].split() == ["breakout", "seaquest"]
    assert [line.split()[-2:] for line in overview[4:8]] == [
        ["54.0", "32.0"],  # NCAPO
        ["30.0", "-"],  # PPO
        ["54.5", "32.6"],  # the paper's NCAPO
        ["32.4", "15.3"],  # its best other one
    ]
    assert "all seeds trained in" in shown
    assert "Trained on: A processor; 2 cores." in shown
    assert "Trained in 60 s; trainings that overlap count once (3 min one after another)." in shown
    assert (data / "minatar.png").stat().st_size > 10_000
    assert main(["report", str(data), "--out", str(tmp_path / "page.html")]) == 0
    captured = capsys.readouterr()
    assert "seaquest-ppo-default.json" in captured.err
    assert "asterix-ncapo-default.json" in captured.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": []}, "no finished seed"),
        ({"programs": []}, "programs must be a list of programs"),
        ({"seeds": [{"seed": 0}]}, "seeds must be a list of seeds with their curves"),
        ({"experiment": "other"}, "is not a results file"),
    ],
)
def test_a_folder_without_a_finished_seed_is_an_error(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    make_result(tmp_path, "breakout", "ncapo", 54.0, **change)
    with pytest.raises(CapoError, match=message) as caught:
        minatar.report(tmp_path)
    assert "no finished seed" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--games", "brekout"], "did you mean 'breakout'"),
        (["--algos", "pp"], "did you mean 'ppo'"),
        (["--algos", "ncapo", "ncap:official"], "did you mean 'ncapo'"),
        (["--algos", "ppo", "ncapo:offical"], "unknown preset of ncapo 'offical': did you mean 'official'"),
        (["--algos", "ncapo", "ppo", "--preset", "official"], "unknown preset of ppo 'official'"),
        (["--quick", "--algos", "ppo:cpu"], "unknown preset of ppo 'cpu': allowed: atari, default, paper"),
        (["--quick", "--algos", "ppo", "--preset", "fast"], "unknown preset of ppo 'fast'"),
        (["--algos", "ncapo:"], "unknown preset of ncapo ''"),
        (["--draw-only", "--games", "breakout"], "--games does not apply to --draw-only"),
        (["--draw-only", "--quick"], "cannot be combined"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "minatar", "--out", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "before any work"


def test_options_of_minatar_are_refused_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "bandit", "--seeds", "3", "--out", str(tmp_path)]) == 2
    assert "--seeds does not apply to bandit" in capsys.readouterr().err


def test_names_are_read_as_people_write_them() -> None:
    assert training.choose_games(["minatar-breakout,Space-Invaders"]) == ["breakout", "space_invaders"]
    assert training.choose_games(None) == list(GAMES)


def test_algorithms_with_and_without_a_preset() -> None:
    def chosen(*given: str, **plan: Any) -> list[tuple[str, str]]:
        return training.choose_kinds(given, Plan(**plan))

    assert chosen("ncapo:official", "ncapo,Off-PAC:cpu", "ncapo:default", "ncapo") == [
        ("ncapo", "official"),
        ("ncapo", "default"),
        ("offpac", "cpu"),
    ]
    assert chosen("ncapo", "ppo:default", preset="official") == [("ncapo", "official"), ("ppo", "default")]
    assert chosen() == [(name, "default") for name in registry.ROWS]
    assert chosen("ncapo", "ppo", preset="cpu", quick=True) == [("ncapo", "cpu"), ("ppo", "default")]


def test_two_presets_of_one_algorithm_share_a_folder(
    tiny: type[TinyNCAPO], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quick(tmp_path, "--algos", "ncapo") == 0
    assert quick(tmp_path, "--algos", "ncapo:default", "ncapo", "ncapo:cpu") == 0
    shown = capsys.readouterr()
    assert "2 trainings, 2 seeds of 640 frames each; 1 already finished" in shown.err
    assert "1 of 1: ncapo (default) on breakout, seeds 0, 1" in shown.err
    assert {file.name for file in tmp_path.glob("*.json")} == {
        "breakout-ncapo-cpu.json",
        "breakout-ncapo-default.json",
    }
    rows = [line.split("  ")[0].strip() for line in shown.out.splitlines() if line.strip().startswith("NCAPO")]
    assert rows[-2:] == ["NCAPO (default)", "NCAPO (cpu)"]
    assert tiny.learned == 4 * 640


def test_presets_are_told_apart(tmp_path: Path) -> None:
    for game in ("breakout", "seaquest"):
        make_result(tmp_path, game, "ncapo", 50.0)
        make_result(tmp_path, game, "ppo", 30.0)
        make_result(tmp_path, game, "offpac", 5.0, preset="cpu")
    make_result(tmp_path, "breakout", "ncapo", 54.0, preset="official")
    make_result(tmp_path, "breakout", "ncapo", 1.0, preset="default").rename(tmp_path / "breakout-ppo-paper.json")
    make_result(tmp_path, "breakout", "ncapo", 50.0)
    (tmp_path / "breakout-ppo-noise-10.json").write_text("of the noise experiment")
    found = minatar.read(tmp_path)
    assert found.names == {
        ("ncapo", "default"): "NCAPO (default)",
        ("ncapo", "official"): "NCAPO (official)",
        ("ppo", "default"): "PPO",
        ("offpac", "cpu"): "Off-PAC (cpu)",
    }
    wrong, gap = found.notes
    assert "breakout-ppo-paper.json: contains ncapo with preset default" in wrong
    assert gap == "no results of NCAPO (official) on seaquest"
    table = minatar.report(tmp_path)
    overview, official = [line for line in table.splitlines() if line.strip().startswith("NCAPO (official)")]
    assert overview.split()[-2:] == ["54.0", "-"]
    assert "54.00 [54.00, 54.00]" in official
    assert official.split()[-3:] == ["54.5", "60", "s"], "the paper's, and the time"


def test_the_figure_has_one_colour_for_an_algorithm_and_draws_the_paper_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for preset in ("default", "cpu"):
        make_result(tmp_path, "breakout", "ncapo", 50.0, preset=preset)
    make_result(tmp_path, "breakout", "ppo", 30.0)
    drawn: list[Any] = []
    legend = minatar._legend
    monkeypatch.setattr(minatar, "_legend", lambda drawing, *rest: (drawn.append(drawing), legend(drawing, *rest)))
    assert minatar.draw(tmp_path, tmp_path) == [tmp_path / "minatar.png"]
    (drawing,) = drawn
    lines = drawing.axes[0].get_lines()
    assert sum(line.get_linestyle() == "--" for line in lines) == 2, "NCAPO's and PPO's"
    looks = {
        line.get_label(): (line.get_color(), line.get_marker()) for line in lines if line.get_linestyle() == "-"
    }
    assert list(looks) == ["PPO", "NCAPO (cpu)", "NCAPO (default)"], "NCAPO above the others"
    assert looks["NCAPO (default)"] == (registry.ROWS["ncapo"].colour.lower(), "")
    assert looks["NCAPO (cpu)"][1] == "o"
    assert len(set(looks.values())) == 3
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == [*reversed(looks), minatar.PAPER]


def test_a_registered_algorithm_is_chosen_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(registry.ROWS["ppo"], name="toy", title="Toy", colour="#123456")
    monkeypatch.setattr(registry, "ROWS", {**registry.ROWS, "toy": row})
    assert training.choose_kinds(["toy"], Plan()) == [("toy", "default")]
    assert training.choose_kinds(None, Plan())[-1] == ("toy", "default")
    make_result(tmp_path, "breakout", "toy", 30.0)
    assert minatar._styles([("toy", "default")])["toy", "default"]["color"] == "#123456"
    assert "\nToy " in minatar.report(tmp_path)
    assert minatar.draw(tmp_path, tmp_path)[0].exists()


# --- the paper's settings -------------------------------------------------------------------------------------


def test_the_papers_settings_are_a_figure_and_a_table_of_their_own(tmp_path: Path) -> None:
    make_result(tmp_path, "breakout", "ncapo", 150.0)
    make_result(tmp_path, "breakout", "ncapo", 54.5, preset="paper")
    make_result(tmp_path, "breakout", "ncapo", 20.0, preset="official")
    make_result(tmp_path, "asterix", "ncapo", 21.7, preset="official")
    make_result(tmp_path, "breakout", "ppo", 32.0, preset="paper", config={"gamma": 0.5})
    make_result(tmp_path, "asterix", "a2c", 20.0, preset="paper", frames_trained=5_000_000)
    assert [path.name for path in minatar.draw(tmp_path, tmp_path)] == ["minatar.png", "paper_settings.png"]
    found = minatar.read(tmp_path)
    assert found.names["ppo", "paper"] == "PPO (paper), earlier settings"
    lines = {(one.game, one.kind): one for one in paper_figure.line_by_line(found.records)}
    assert len(lines) == 4 * 6
    assert lines["breakout", ("ncapo", "paper")].verdict == "reproduced"
    assert lines["breakout", ("ncapo", "official")].verdict == "not: lower"
    assert lines["asterix", ("ncapo", "official")].verdict == "reproduced"
    assert lines["breakout", ("ppo", "paper")].verdict.startswith("not run with these settings; with others 32.0")
    assert lines["seaquest", ("a2c", "paper")].verdict == paper_figure.NOT_RUN
    short = lines["asterix", ("a2c", "paper")]
    assert (short.ours, short.verdict.split("]")[1]) == ("-", " after 5.0 M frames, theirs 18.8")
    table = minatar.report(tmp_path)
    assert "Every curve of the paper's figure" in table
    assert "Matrix products: not recorded" in table


def test_which_trainings_the_papers_settings_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[training.Job] = []
    monkeypatch.setattr(training, "train_all", lambda jobs, *_: asked.extend(jobs))
    minatar.run(tmp_path, progress=False, settings="paper")
    assert {(job.game, job.algorithm, job.preset) for job in asked} == {
        (game, *kind) for game in paper_figure.GAMES for kind in paper_figure.KINDS
    }
    assert all(job.plan.frames == 10_000_000 and job.plan.seeds == 10 for job in asked)
    paper = registry.find("ncapo").settings.preset("paper", "minatar-breakout")
    assert (paper.retrace_lambda, paper.actor_lambda, paper.precision) == (1.0, 1.0, "float32")
    asked.clear()
    minatar.run(tmp_path, progress=False, settings="causes", games=["asterix"])
    jobs = {job.variant: job for job in asked}
    assert set(jobs) == {name for name, cause in paper_figure.CAUSES.items() if cause.game == "asterix"}
    assert jobs["official-full-actions"].env == "minatar-asterix-full"
    for job in asked:  # every setting exists, and changes something
        base = registry.find("ncapo").settings.preset(job.preset, job.env)
        assert all(getattr(base, key) != value for key, value in job.settings.items())
        assert job.missing() == list(range(10))
    for options in ({"settings": "worst"}, {"settings": "paper", "preset": "default"}):
        with pytest.raises(CapoError, match="settings"):
            minatar.run(tmp_path, progress=False, **options)


def test_causes_have_a_table(tmp_path: Path) -> None:
    for name in ("official-base", "official-no-footnote"):
        make_result(tmp_path, "asterix", "ncapo", 9.0, preset="official").rename(tmp_path / f"asterix-{name}.json")
    table = minatar.report(tmp_path)
    assert "official without the table's footnote" in table
    assert "21.7" in table
    assert minatar.draw(tmp_path, tmp_path) == []


@pytest.mark.usefixtures("tiny")
def test_a_training_with_a_time_limit_is_a_result_of_fewer_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, short = tmp_path / "whole", tmp_path / "short"
    assert quick(whole, "--algos", "ncapo") == 0
    assert quick(short, "--algos", "ncapo", "--seconds", "1e-9") == 0
    assert "the time limit was reached" in capsys.readouterr().err
    ours, theirs = (json.loads((one / "breakout-ncapo-cpu.json").read_text()) for one in (short, whole))
    assert ours["frames"] < theirs["frames"]
    assert ours["config"] == theirs["config"], "the schedules are those of the whole"
    assert quick(tmp_path / "again", "--algos", "ncapo", "--seconds", "1e9") == 0
    again = json.loads((tmp_path / "again" / "breakout-ncapo-cpu.json").read_text())
    assert again["seeds"] == theirs["seeds"]


@pytest.mark.usefixtures("tiny")
def test_a_time_limit_costs_no_finished_seed_and_trains_those_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limited = ("--algos", "ncapo", "--first-seed", "100", "--seconds")
    assert quick(tmp_path, *limited, "1e-9") == 0
    file = tmp_path / "breakout-ncapo-cpu.json"
    stopped = file.read_bytes()
    assert [entry["seed"] for entry in json.loads(stopped)["seeds"]] == [100, 101]
    assert quick(tmp_path, *limited, "1e-9") == 0
    assert file.read_bytes() == stopped, "the same command finds it finished"
    file.unlink()
    assert quick(tmp_path, *limited, "1e9") == 0
    whole = json.loads(file.read_text())
    capsys.readouterr()
    assert quick(tmp_path, *limited, "1e-9", "--seeds", "3") == 2, (
        "what was stopped is not put beside what is whole"
    )
    assert "nothing was added" in capsys.readouterr().err
    assert json.loads(file.read_text()) == whole
    assert quick(tmp_path, *limited, "1e9", "--seeds", "3") == 0
    more = json.loads(file.read_text())
    assert more["seeds"][:2] == whole["seeds"]
    assert [program["seeds"] for program in more["programs"]] == [[100, 101], [102]]
    assert quick(tmp_path, *limited, "0") == 2
