"""A stranger's run: it names no other file to write, runs no code, takes no memory unasked, and has one owner."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers_forge import change_config, forge, forge_content, newest
from helpers_shell import ENV, TINY_640, checkpoint_bits, metrics

import capo
from capo.cli import main
from capo.envs.spaces import observation_encoding
from capo.errors import CapoError
from capo.runs.lock import Lock

VICTIM = "precious\n" * 1000


def stop_at(frames: int) -> Callable[..., bool]:
    return lambda agent, _: agent.frames < frames


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run at frame 64 of 160; every test takes a copy."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    agent = capo.NCAPO(ENV, out=out, log_every=16, checkpoint_every=32, **TINY_640)
    agent.extra["eval_episodes"] = 2
    agent.learn(160, callback=stop_at(64))
    return out


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim.txt"
    path.write_text(VICTIM)
    return path


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but its lock."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


# --- files that a run names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ABSOLUTE", "../victim.txt", "tensorboard/seed-0/../../../victim.txt", "x.csv"])
def test_a_checkpoint_names_no_file_but_its_logs(run: Path, victim: Path, name: str) -> None:
    name = str(victim) if name == "ABSOLUTE" else name
    forge(newest(run), lambda manifest: manifest["content"]["logs"].update({name: 0}))
    before = files(run)
    with pytest.raises(CapoError, match="is not a log of this run"):
        capo.NCAPO.resume(run)
    assert victim.read_text() == VICTIM
    assert files(run) == before


def test_the_events_of_another_seed_are_not_a_log_of_the_run(run: Path) -> None:
    name = "tensorboard/seed-9/events.out.tfevents.capo"
    forge(newest(run), lambda manifest: manifest["content"]["logs"].update({name: 0}))
    with pytest.raises(CapoError, match="is not a log of this run"):
        capo.NCAPO.resume(run)


@pytest.mark.parametrize("name", ["metrics.csv", "tensorboard/seed-0/events.out.tfevents.capo"])
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_log_that_lies_elsewhere_is_not_cut(
    run: Path, victim: Path, name: str, link: Callable[..., None]
) -> None:
    (run / name).unlink()
    link(victim, run / name)
    with pytest.raises(CapoError, match=r"symbolic link|second name"):
        capo.NCAPO.resume(run)
    assert victim.read_text() == VICTIM


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_a_folder_of_a_run_that_is_a_link_is_not_written_to(run: Path, tmp_path: Path, name: str) -> None:
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    before = files(tmp_path / "elsewhere")
    with pytest.raises(CapoError, match="symbolic link"):
        capo.NCAPO.resume(run)
    assert files(tmp_path / "elsewhere") == before


def test_a_picture_that_lies_elsewhere_is_not_embedded(run: Path, tmp_path: Path) -> None:
    secret = b"GIF89a" + b"secret" * 20
    (tmp_path / "secret.gif").write_bytes(secret)
    (run / "own.gif").write_bytes(b"GIF89a" + b"shown!" * 20)
    (run / "linked.gif").symlink_to(tmp_path / "secret.gif")
    (run / "text.gif").write_text("secret" * 20)
    os.mkfifo(run / "pipe.gif")
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert base64.b64encode(b"GIF89a" + b"shown!" * 20).decode() in page
    assert base64.b64encode(b"secret" * 10).decode()[:20] not in page
    assert base64.b64encode(secret).decode() not in page


# --- code -----------------------------------------------------------------------------------------------------

EVIL = "from pathlib import Path\nPath('pwned').write_text('x')\n"
REGISTERS = "import gymnasium\ngymnasium.register('Own-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"


def capo_command(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python -m capo``, which has the current folder first in its path."""
    return subprocess.run(
        [sys.executable, "-m", "capo", *arguments],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def evil(run: Path, tmp_path: Path) -> Path:
    """A run whose environment is in a module of the current folder, which leaves a file when it is imported."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "evilmod.py").write_text(EVIL + REGISTERS)
    forge_content(newest(run), env="evilmod:Own-v0")
    change_config(run, env="evilmod:Own-v0")
    return here


@pytest.mark.parametrize("command", ["evaluate", "resume", "watch"])
@pytest.mark.parametrize("allowed", [[], ["--allow-import"]])
def test_a_run_imports_nothing_from_the_current_folder(
    run: Path, evil: Path, command: str, allowed: list[str]
) -> None:
    done = capo_command(command, str(run), *allowed, cwd=evil)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    expected = "current folder is not searched" if allowed else "allow it with --allow-import"
    assert expected in done.stderr
    assert not (evil / "pwned").exists()


def test_a_report_imports_nothing(run: Path, evil: Path) -> None:
    assert capo_command("report", str(run), cwd=evil).returncode == 0
    assert not (evil / "pwned").exists()


def test_a_module_is_imported_with_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    modules, here = tmp_path / "modules", tmp_path / "here"
    modules.mkdir(), here.mkdir()
    (modules / "own_module_x.py").write_text(REGISTERS)
    monkeypatch.syspath_prepend(modules)
    monkeypatch.chdir(here)
    path = capo.NCAPO("own_module_x:Own-v0", **TINY_640).learn(16).save(tmp_path / "agent")
    assert capo.load(path).frames == 16, "the program itself has imported it: nothing is run"
    del sys.modules["own_module_x"]
    for load in (capo.load, capo.NCAPO.load):
        with pytest.raises(CapoError, match=r"imports the module 'own_module_x'.*trust=True"):
            load(path)
    assert "own_module_x" not in sys.modules
    assert capo.load(path, trust=True).frames == 16


@pytest.mark.parametrize(
    "name",
    ["evilmod:Own-v0", "CartPole-v1,x=evilmod:X", "CartPole-v1,x=../y", "a.b:c", "CartPole-v1,x=/etc/passwd"],
)
@pytest.mark.parametrize("field", ["env", "eval_env"])
def test_names_that_need_consent(run: Path, name: str, field: str) -> None:
    forge_content(newest(run), **{field: name})
    with pytest.raises(CapoError, match=r"can run any code.*--allow-import"):
        capo.load(run)


def test_pythonpath_in_words_is_consent(run: Path, evil: Path) -> None:
    done = capo_command("evaluate", str(run), "--allow-import", cwd=evil, PYTHONPATH=str(evil))
    assert "environment changed" in done.stderr, "it was imported, and is not what the run was trained on"
    assert (evil / "pwned").exists()


# --- memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", ENV, "--seeds", "2000000000"], "seeds=2000000000 must be a positive integer of at most 10,000"),
        (["train", ENV, "--eval-episodes", "1000000000"], "must be a positive integer of at most 1,000,000"),
        (["evaluate", "RUN", "--episodes", "1e12"], "must be a positive integer of at most 1,000,000"),
    ],
)
def test_numbers_that_no_memory_holds(
    run: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(run.parent)
    assert main([one.replace("RUN", str(run)) for one in arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (run.parent / "runs").exists()


def test_episodes_that_do_not_fit(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = capo.load(run)
    monkeypatch.setattr("capo.neural.learners.jitted.available_memory", lambda _: 1_000_000)
    with pytest.raises(CapoError, match=r"500,000 episodes .* but 1 MB are free: at most [\d,]+ episodes fit"):
        agent.evaluate(500_000)
    with pytest.raises(CapoError, match="episodes fit"):
        capo.NCAPO(ENV, eval_every=16, eval_episodes=500_000, **TINY_640).learn(32)


def test_many_different_observations_are_numbers_and_bounded() -> None:
    encoding = observation_encoding("few", gymnasium.spaces.Discrete(1000, start=3))
    encoded = encoding.encode(np.array([3, 1002]))
    assert encoded.shape == (2, 1000)
    assert encoded[0, 0]
    assert encoded[1, -1]
    assert encoded.sum() == 2
    encoding = observation_encoding("many", gymnasium.spaces.Discrete(100_000, start=3))
    assert encoding.encode(np.array([3, 100_002])).view(np.int32).tolist() == [[0], [99_999]]
    with pytest.raises(CapoError, match=r"1,000,000,000 different .*at most 10,000,000"):
        observation_encoding("too many", gymnasium.spaces.Discrete(10**9))


def test_copies_of_a_host_environment_are_bounded() -> None:
    env = capo.envs.make("CartPole-v1")
    with pytest.raises(CapoError, match="at most 10,000"):
        env.open(10**9)


# --- one owner ------------------------------------------------------------------------------------------------


def test_a_resumed_run_has_one_owner(run: Path) -> None:
    first = capo.NCAPO.resume(run)
    with pytest.raises(CapoError, match="another agent in this process has resumed it"):
        capo.NCAPO.resume(run)
    first.learn(first.frames_left)
    rows = [(row["seed"], row["frames"]) for row in metrics(run)]
    assert len(rows) == len(set(rows)) == 10
    second = capo.NCAPO.resume(run)
    second.close()
    third = capo.NCAPO.resume(run)
    del third
    capo.NCAPO.resume(run).close()


def test_an_agent_does_not_write_where_somebody_else_went_on(run: Path) -> None:
    first = capo.NCAPO.resume(run)
    first.learn(first.frames_left)
    second = capo.NCAPO.resume(run)
    second.learn(32)
    with pytest.raises(CapoError, match=r"continued or changed by another agent.*NCAPO.resume"):
        first.learn(32)
    second.learn(32)
    rows = [(row["seed"], row["frames"]) for row in metrics(run)]
    assert len(rows) == len(set(rows))


HOLDER = """
import os, sys, time
from pathlib import Path
from capo.runs.lock import Lock
lock = Lock(Path(sys.argv[1]))
if os.fork() == 0:
    time.sleep(60)  # as the process of an environment would
    os._exit(0)
print("held", flush=True)
time.sleep(60)
"""


def test_a_forked_child_does_not_keep_the_lock(run: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(run)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(CapoError, match="another process is training"):
        Lock(run)
    holder.kill()
    holder.wait()
    deadline = time.monotonic() + 5
    while True:  # the child that was forked still sleeps
        try:
            Lock(run).release()
            return
        except CapoError:
            assert time.monotonic() < deadline, "the child keeps the folder locked"
            time.sleep(0.05)


# --- names against contents -----------------------------------------------------------------------------------


def test_a_renamed_checkpoint_is_noticed(run: Path, stopped: Path, tmp_path: Path) -> None:
    file = newest(run)
    file.rename(file.with_name("checkpoint-000000000160.safetensors"))
    with pytest.raises(CapoError, match=r"name gives frame 160, but it contains frame 64.*--use-previous"):
        capo.NCAPO.resume(run)
    agent = capo.NCAPO.resume(run, use_previous=True)
    agent.learn(agent.frames_left)
    whole = tmp_path / "whole"
    shutil.copytree(stopped, whole)
    capo.NCAPO.resume(whole).learn(96)
    assert checkpoint_bits(run) == checkpoint_bits(whole)


def test_a_checkpoint_of_another_run_is_noticed(run: Path, tmp_path: Path) -> None:
    other = capo.NCAPO(ENV, seed=7, out=tmp_path / "other", log_every=16, **TINY_640)
    other.learn(160, callback=stop_at(64))
    shutil.copy(newest(tmp_path / "other"), newest(run))
    with pytest.raises(CapoError, match=r"of another run: seeds \[7\], but config.json has seeds \[0\]"):
        capo.NCAPO.resume(run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": [3]}, "groups of seeds do not match its list"),
        ({"training": {"parts": []}}, "training must be an object with valid"),
        ({"predictions": -1}, "predictions must be"),
        ({"seeds": None}, "seeds must be a list of integers, not None"),
        ({"algorithm": "../x"}, "algorithm must be a name"),
        ({"config": {"gamma": [0.5]}}, "config must be an object of numbers"),
    ],
)
def test_a_checkpoint_that_contradicts_itself(run: Path, change: dict[str, Any], message: str) -> None:
    forge_content(newest(run), **change)
    with pytest.raises(CapoError, match=message):
        capo.load(run)


def test_an_iteration_that_its_state_has_not_reached(run: Path, tmp_path: Path) -> None:
    saved = capo.load(run).save(tmp_path / "agent")
    forge(saved, lambda manifest: manifest["content"]["training"]["parts"][0].update(iteration=9))
    with pytest.raises(CapoError, match=r"at iteration 9, but their state is from iteration 4"):
        capo.load(saved)


def test_a_missing_setting_whose_default_does_not_fit_is_one_line(run: Path) -> None:
    forge(newest(run), lambda manifest: manifest["content"]["config"].pop("n_envs"))
    with pytest.warns(capo.CapoWarning, match="n_envs=40"), pytest.raises(CapoError, match="frames per iteration"):
        capo.load(newest(run))


def test_recorded_settings_are_used_and_missing_ones_are_said(run: Path) -> None:
    def drop(manifest: dict[str, Any]) -> None:
        manifest["content"]["config"].pop("tau_q")
        manifest["content"]["config"]["gamma"] = 0.5

    forge(newest(run), drop)
    config = json.loads((run / "config.json").read_text())["config"]
    config.pop("tau_q")
    change_config(run, config=config | {"gamma": 0.5})
    with pytest.warns(
        capo.CapoWarning, match=r"not record these settings, so they take their defaults tau_q=0.05"
    ):
        agent = capo.NCAPO.resume(run)
    assert agent.config.gamma == 0.5


@pytest.mark.parametrize("number", [None, 999])
def test_a_run_without_a_known_semantics_number(
    run: Path, number: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["content"].pop("semantics")
        if number is not None:
            manifest["content"]["semantics"] = number

    forge(newest(run), change)
    before = files(run)
    assert main(["resume", str(run)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert ("did not yet number its results" if number is None else "from a newer version of capo") in said[0]
    assert files(run) == before
    with pytest.warns(capo.CapoWarning, match="number"):
        assert main(["resume", str(run), "--anyway"]) == 0


# --- files that are odd ---------------------------------------------------------------------------------------


def odd(path: Path, kind: str) -> None:
    """Put something else in a file's place."""
    data = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "not UTF-8":
        path.write_bytes(data[:30] + b"\xff" + data[30:])
    elif kind == "deep":
        path.write_text("[" * 100_000)
    elif kind == "null":
        path.write_text("null")
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(2**41)


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "device", "not UTF-8", "deep", "null", "huge"])
@pytest.mark.parametrize("name", ["config.json", "metrics.csv", "checkpoint"])
def test_an_odd_file_is_one_line(run: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    odd(newest(run) if name == "checkpoint" else run / name, kind)
    if (name, kind) != ("metrics.csv", "not UTF-8"):  # a byte in its header is a column that nobody needs
        assert main(["resume", str(run)]) == 2
        said = capsys.readouterr().err.strip()
        assert len(said.splitlines()) == 1, said
    assert main(["report", str(run), "--out", str(run / "report.html")]) in (0, 2)
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": None}, "keep must be"),
        ({"frames": -1}, "frames must be"),
        ({"checkpoint_every": "soon"}, "checkpoint interval"),
        ({"extra": {"eval_episodes": "x"}}, "extra must be"),
        ({"seeds": [0, 0]}, "seeds must be"),
        ({"preset": "../x"}, "preset must be"),
        ({"versions": {"jax": 7}}, "versions must be"),
        ({"config": {"epsilon_start": "x"}}, "must be a number"),
    ],
)
def test_config_json_by_its_schema(
    run: Path, changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change_config(run, **changes)
    assert main(["resume", str(run)]) == 2
    assert message in capsys.readouterr().err
    assert main(["report", str(run), "--out", str(run / "report.html")]) == 0


def test_a_folder_without_permission_is_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = os.stat

    def refuse(path: Any, *arguments: Any, **options: Any) -> Any:  # chmod does not stop root, who may run this
        if str(path).startswith(str(run)):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    for command in (["resume"], ["evaluate"], ["report"], ["watch", "--out", str(run.parent / "x.gif")]):
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", refuse)
            assert main([command[0], str(run), *command[1:]]) == 2
        said = capsys.readouterr().err.strip()
        assert "Permission denied" in said
        assert len(said.splitlines()) == 1


# --- while it trains ------------------------------------------------------------------------------------------


def during(out: Path, act: Callable[[], object]) -> str:
    """Train, and let something happen to the folder at frame 64; the error of the run."""
    agent = capo.NCAPO(ENV, out=out, log_every=16, checkpoint_every=32, **TINY_640)
    with pytest.raises(CapoError) as error:
        agent.learn(160, callback=lambda one, _: act() if one.frames == 64 else None)  # type: ignore[arg-type, return-value, func-returns-value]
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_folder_that_moves_during_the_run(tmp_path: Path, stopped: Path) -> None:
    out, moved = tmp_path / "run", tmp_path / "moved"
    said = during(out, lambda: out.rename(moved) and None)
    assert "moved, deleted or replaced during the run; put it back, then `capo resume" in said
    assert not out.exists(), "it is not made anew beside the old one"
    moved.rename(out)
    agent = capo.NCAPO.resume(out)
    agent.learn(agent.frames_left)
    whole = tmp_path / "whole"
    shutil.copytree(stopped, whole)
    capo.NCAPO.resume(whole).learn(96)
    assert metrics(out) == metrics(whole)
    assert checkpoint_bits(out) == checkpoint_bits(whole)


def test_a_folder_that_is_deleted_during_the_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert "moved, deleted or replaced" in during(out, lambda: shutil.rmtree(out))
    assert not out.exists()


def test_a_log_that_is_deleted_during_the_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = during(out, (out / "metrics.csv").unlink)
    assert "metrics.csv was moved, deleted or replaced during the run" in said
    assert "capo resume" in said
    with pytest.warns(capo.CapoWarning, match=r"rows are missing from metrics.csv"):
        agent = capo.NCAPO.resume(out)
    assert agent.learn(agent.frames_left).frames == 160


def test_a_log_without_its_time_column_does_not_fail_a_resume(run: Path) -> None:
    header, *rows = (run / "metrics.csv").read_text().splitlines(keepends=True)
    (run / "metrics.csv").write_text("".join([header.replace("elapsed_seconds", "elapsed_second_"), *rows]))
    assert main(["resume", str(run)]) == 0
