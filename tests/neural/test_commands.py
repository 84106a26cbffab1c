"""The commands train, resume, evaluate and watch, their files and their messages."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers_events import decode
from helpers_shell import ENV, SET, TINY, checkpoint_bits, metrics

import capo
from capo import gif, progress
from capo.cli import main
from capo.neural.trainer import status
from capo.report.run_figures import draw_training
from capo.runs import events as tensorboard
from capo.runs.layout import is_timing
from capo.runs.reader import read_config, read_metrics
from capo.runs.records import training_curves

TRAIN = [
    "train",
    ENV,
    *SET,
    "--set",
    "horizon=640",
    "--frames",
    "640",
    "--log-every",
    "80",
    "--eval-episodes",
    "5",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    assert main([*TRAIN, "--seeds", "2", "--out", str(out)]) == 0
    return out


def test_train_says_what_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TRAIN, "--frames", "630"]) == 0
    shown = capsys.readouterr()
    out = Path("runs/probe-both-ncapo-1")
    for text in (
        "updates per frame",
        "replay ratio",
        "compiling",
        "compiled in",
        "MB, including its state",
        "rounded up to 640 frames",
    ):
        assert text in shown.err
    assert re.search(r"100%  frames 640/640  [\d,]+ frames/s  return \S+  left 0:00", shown.err)
    for text in (
        "640 frames",
        "evaluation without exploration: return",
        str(out),
        f"capo watch {out}",
    ):
        assert text in shown.out
    evaluation = json.loads((out / "evaluation.json").read_text())
    assert np.mean(evaluation["returns"]) == pytest.approx(evaluation["mean"])
    assert evaluation["episodes_per_seed"] == 5
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_leaves_what_a_reader_needs(trained: Path) -> None:
    config = read_config(trained)
    assert config["config"]["horizon"] == 640
    assert config["seeds"] == [0, 1]
    assert {"jax", "numpy", "python"} <= set(config["versions"])
    assert config["hardware"]["cores"] >= 1
    names = {path.name for path in trained.iterdir()}
    assert {"config.json", "metrics.csv", "tensorboard", "checkpoints", "evaluation.json"} <= names
    header = (trained / "metrics.csv").read_text().splitlines()[0].split(",")
    assert header[:3] == ["seed", "iteration", "frames"]
    assert [column for column in header if is_timing(column)] == ["elapsed_seconds", "frames_per_second"]


def test_metrics_and_tensorboard_hold_the_same(trained: Path) -> None:
    rows = [row for row in read_metrics(trained) if row["seed"] == 1]
    events = list(decode((trained / "tensorboard/seed-1/events.out.tfevents.capo").read_bytes()))
    assert [step for step, _ in events] == [row["frames"] for row in rows] == list(range(80, 641, 80))
    for (_, values), row in zip(events, rows, strict=True):
        assert values["train/critic_loss"] == pytest.approx(row["critic_loss"])
        assert values["train/episode_return"] == pytest.approx(row["episode_return"])
        assert values["time/elapsed_seconds"] == pytest.approx(row["elapsed_seconds"])


def test_event_files_are_what_tensorboard_reads() -> None:
    """Against bytes worked out by hand from the format's definition, and against damage."""
    assert tensorboard.crc32c(b"123456789") == 0xE3069283  # the checksum's published check value
    record = tensorboard.scalars(0.0, 300, {"a": 1.0})
    body = (
        b"\x09" + bytes(8) + b"\x10\xac\x02" + b"\x2a\x0a" + b"\x0a\x08" + b"\x0a\x01a" + b"\x15\x00\x00\x80\x3f"
    )
    assert record[12:-4] == body
    assert int.from_bytes(record[:8], "little") == len(body)
    assert list(decode(tensorboard.file_start(0.0) + record)) == [(300, {"a": 1.0})]
    for position in range(len(record)):
        broken = bytearray(record)
        broken[position] ^= 4
        with pytest.raises(ValueError, match="damaged"):
            list(decode(bytes(broken)))


@pytest.mark.oracle
def test_tensorboard_itself(trained: Path) -> None:
    from tensorboard.backend.event_processing import event_file_loader as loader

    path = trained / "tensorboard/seed-0/events.out.tfevents.capo"
    assert len(list(loader.EventFileLoader(str(path)).Load())) == 9


def test_resume_of_a_finished_run_changes_nothing(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = checkpoint_bits(trained), metrics(trained), (trained / "evaluation.json").read_text()
    assert main(["resume", str(trained)]) == 0
    assert "the run is complete" in capsys.readouterr().err
    assert (checkpoint_bits(trained), metrics(trained), (trained / "evaluation.json").read_text()) == before


def test_a_finished_run_can_be_made_longer(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    assert main(["resume", str(out), "--frames", "320"]) == 2
    assert "must be more than the 640 frames the run already has" in capsys.readouterr().err
    assert main(["resume", str(out), "--frames", "800"]) == 0
    assert "resuming at frame 640 of 800" in capsys.readouterr().err
    assert [row["frames"] for row in read_metrics(out) if row["seed"] == 0][-3:] == [640, 720, 800]
    config = read_config(out)
    assert (config["frames"], config["config"]["horizon"]) == (800, 800)


def test_a_longer_run_is_of_whole_iterations_and_even_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main([*TRAIN, "--frames", "630", "--out", str(out)]) == 0  # rounded up to 640
    assert main(["resume", str(out), "--frames", "630"]) == 0
    assert "the run is complete; to train longer: capo resume" in capsys.readouterr().err
    settings: dict[str, Any] = TINY | {"horizon": 640, "log_every": 32}
    uneven = capo.NCAPO("CartPole-v1", seeds=2, out=tmp_path / "uneven", **settings)
    uneven.learn(64, callback=lambda _, rows: rows[0]["frames"] < 64)
    assert main(["resume", str(tmp_path / "uneven"), "--frames", "128"]) == 2
    assert "seeds are at different frames: first finish" in capsys.readouterr().err


def test_a_module_of_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("raise RuntimeError('beside was found')\n")
    command = [
        sys.executable,
        "-c",
        "import sys; sys.path.remove(''); from capo.cli import main; main(sys.argv[1:])",
    ]
    done = subprocess.run(
        [*command, "train", "beside:X-v0"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "importing beside raised RuntimeError: beside was found" in done.stderr


def test_a_module_that_registers_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    register = "gymnasium.register('Own-v0', Fragile, disable_env_checker=True)"
    text = f"import gymnasium\nfrom helpers_envs import Fragile\n{register}\n"
    (tmp_path / "own_games.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    out = str(tmp_path / "run")
    assert main(["train", "own_games:Own-v0", *SET, "--frames", "32", "--eval-episodes", "1", "--out", out]) == 0
    assert main(["evaluate", out, "--episodes", "2"]) == 0
    assert "own_games:Own-v0 after 32 frames: return 3" in capsys.readouterr().out
    assert main(["train", "no_such_module:Own-v0", "--frames", "32"]) == 2
    assert "importing no_such_module raised ModuleNotFoundError" in capsys.readouterr().err
    assert main(["train", "own_games:Other-v0", "--frames", "32"]) == 2
    assert "unknown environment 'own_games:Other-v0'" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_stepped_over_only_if_asked(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    max((out / "checkpoints").iterdir()).write_bytes(b"nothing of use")
    assert main(["resume", str(out)]) == 2
    assert "--use-previous" in capsys.readouterr().err
    assert main(["resume", str(out), "--use-previous"]) == 0
    assert "resuming at frame 0 of 640" in capsys.readouterr().err
    assert checkpoint_bits(out) == checkpoint_bits(trained)
    assert metrics(out) == metrics(trained)


def test_evaluate_a_run_whose_last_seeds_have_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    agent = capo.NCAPO("CartPole-v1", seeds=3, out=out, **TINY | {"horizon": 640, "log_every": 32})
    agent.learn(64, callback=lambda _, rows: rows[0]["frames"] < 64)
    with pytest.warns(capo.CapoWarning, match="left out: 1, 2"):
        assert main(["evaluate", str(out), "--episodes", "2"]) == 0
    shown = capsys.readouterr().out
    assert "after 64 frames" in shown
    assert "seed 0:" in shown
    assert "seed 1:" not in shown
    assert json.loads((out / "evaluation.json").read_text())["seeds"] == [0]


def test_evaluate(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(trained), "--episodes", "7", "--deterministic"]) == 0
    shown = capsys.readouterr().out
    assert "(7 episodes x 2 seeds, most likely actions)" in shown
    assert "seed 1:" in shown
    evaluation = json.loads((trained / "evaluation.json").read_text())
    assert evaluation["deterministic"] is True
    assert np.shape(evaluation["returns"]) == (2, 7)
    assert {"versions", "commit", "hardware"} == set(evaluation["made_by"])
    saved = capo.NCAPO.load(trained).save(tmp_path / "agent")
    assert main(["evaluate", str(saved), "--episodes", "7"]) == 0
    assert not (tmp_path / "evaluation.json").exists()


def test_watch_a_grid_and_a_vector(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    target = tmp_path / "deep" / "play.gif"
    assert main(["watch", str(trained), "--out", str(target), "--episodes", "3", "--train-seed", "1"]) == 0
    assert re.search(r"score -?1, -?1, -?1; written to", capsys.readouterr().out)
    assert image.open(target).n_frames == 6  # three episodes of one step, the start shown too
    game = capo.NCAPO("minatar-breakout", "cpu", width=8).save(tmp_path / "game")
    assert main(["watch", str(game), "--out", str(tmp_path / "game.gif"), "--steps", "5"]) == 0
    assert image.open(tmp_path / "game.gif").size == (240, 240 + gif.STRIP)


def test_watch_gymnasium(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    saved = capo.NCAPO("CartPole-v1", width=8).save(tmp_path / "pole")
    assert main(["watch", str(saved), "--out", str(tmp_path / "pole.gif"), "--steps", "4"]) == 0
    assert image.open(tmp_path / "pole.gif").n_frames == 4


def test_a_grid_has_a_colour_for_each_channel() -> None:
    grid = np.zeros((3, 4, 2), bool)
    grid[0, 1, 0] = grid[2, 3, 1] = grid[1, 1, 0] = grid[1, 1, 1] = True
    picture = gif.draw_grid(grid)
    middle = picture[gif.CELL // 2 :: gif.CELL, gif.CELL // 2 :: gif.CELL]
    first, second = gif.palette(2)
    assert middle.shape == (3, 4, 3)
    assert (middle[0, 1] == first).all()
    assert (middle[2, 3] == second).all()
    assert (middle[1, 1] == second).all()
    assert (middle[0, 0] == gif.BACKGROUND).all()
    assert len({tuple(colour) for colour in gif.palette(10)}) == 10


def test_the_curve_smooths_what_exists() -> None:
    rows = [
        {"seed": seed, "frames": frame, "episode_return": math.nan if frame < 3 else frame + seed}
        for frame in range(100)
        for seed in (0, 5)
    ]
    curves = training_curves(rows)
    assert len(curves[0][0]) == 100
    assert math.isnan(curves[0][1][2])
    assert curves[0][1][3] == 3
    assert curves[5][1][50] == pytest.approx((49 + 50) / 2 + 5)  # a window of two log points
    with pytest.raises(capo.CapoError, match="nothing to draw"):
        draw_training([], Path("x.png"), "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "minatar-brekout"], "minatar-breakout"),
        (["train", ENV, "--algo", "ncap"], "ncapo"),
        (["train", ENV, "--set", "gamma"], "KEY=VALUE"),
        (["train", ENV, "--set", "gama=1"], "'gamma'"),
        (["train", ENV, "--set", "width=2.5"], "must be an integer"),
        (["train", ENV, "--checkpoint-every", "often"], "60s, 5m or 1h"),
        (["train", ENV, "--eval-episodes", "-1"], "0 (no evaluation)"),
        (["resume", "nowhere"], "no such folder"),
        (["evaluate", "nowhere"], "no such run or saved agent, and no file nowhere.safetensors"),
        (["watch", "nowhere", "--out", "play.png"], "end in .gif"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("capo: error: ")
    assert message in shown
    assert len(shown.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "resume", "evaluate", "watch"])
def test_every_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert f"examples:\n  capo {command} " in capsys.readouterr().out


def test_progress_in_a_log_file_is_whole_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    shown = progress.show_progress(True, stream, final=True)
    assert isinstance(shown, progress.Lines)
    for frames in range(100, 1001, 100):
        now[0] += 4
        text = status(frames, 1000, 25.0, math.nan if frames < 300 else 1.5, (1000 - frames) / 25)
        shown.show(text, frames / 1000)
    shown.close()
    shown.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "30%  frames 300/1,000  25 frames/s  return 1.5  left 0:28"
    assert [line.split()[2] for line in lines] == ["300/1,000", "600/1,000", "900/1,000", "1,000/1,000"]


def test_progress_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    shown = progress.show_progress(True, stream, final=True)
    assert isinstance(shown, progress.Live)
    shown.message("compiled in 1.0 s")
    shown.show(status(500, 1000, 25.0, 3.5, 20.0), 0.5)
    shown.close()
    for text in ("compiled in 1.0 s", "50%", "500/1,000", "25 frames/s", "return 3.5", "left 0:20"):
        assert text in stream.getvalue()
