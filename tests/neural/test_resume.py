"""A run that is stopped or killed at any moment, and resumed, ends as if it never had been."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers_shell import ENV, SET, TINY_640, bits, checkpoint_bits, metrics, start

import capo
from capo.runs import checkpoint
from capo.runs.interrupts import Interrupts

# A hundred log points, with a checkpoint at every fourth.
LENGTH = ["--frames", "160000", "--log-every", "1600", "--checkpoint-every", "6400", "--eval-episodes", "4"]
TRAIN = ["train", ENV, *SET, *LENGTH, "--seeds", "2"]


def train(out: Path) -> list[str]:
    return [*TRAIN, "--out", str(out)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    process = start(*train(out))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "replay ratio" in output
    assert "compiled in" in output
    return out


# The process sends itself a signal, from another thread, some milliseconds after so many log points: a signal
# from outside would come too late on a busy machine.
SIGNAL = """
import os, threading
from capo.runs.writer import RunWriter
log, calls = RunWriter.log, []
def wrapper(self, rows):
    calls.append(1)
    if len(calls) == {count}:
        threading.Timer({delay}, os.kill, (os.getpid(), {signum})).start()
    return log(self, rows)
RunWriter.log = wrapper
"""


def assert_same_run(out: Path, reference: Path) -> None:
    assert metrics(out) == metrics(reference)
    assert checkpoint_bits(out) == checkpoint_bits(reference)
    assert (out / "evaluation.json").read_text() == (reference / "evaluation.json").read_text()


def test_killed_and_stopped_at_random_moments(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    rng = random.Random()
    interruptions = [signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGTERM]
    for number, signum in enumerate(interruptions):
        command = train(out) if number == 0 else ["resume", str(out)]
        moment = {"count": rng.randint(2, 15), "delay": rng.uniform(0, 0.04), "signum": int(signum)}
        process = start(*command, before=SIGNAL.format(**moment))
        output, _ = process.communicate(timeout=100)
        if signum == signal.SIGKILL:
            assert process.returncode == -signal.SIGKILL, output
        else:
            assert process.returncode == 128 + signum, output
            assert f"capo resume {out}" in output
    process = start("resume", str(out))
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    assert_same_run(out, uninterrupted)
    assert len(metrics(out)) == 200  # a hundred log points of two seeds, none twice


KILLER = """
import os, signal
from capo import files
from capo.runs.interrupts import Interrupts
def kill_at(module, name, count):
    real, calls = getattr(module, name), []
    def wrapper(*arguments, **options):
        calls.append(1)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    setattr(module, name, wrapper)
"""


def test_killed_while_a_checkpoint_is_written(uninterrupted: Path, tmp_path: Path) -> None:
    """In the middle of the file, before the rename, and between the rename and what follows it."""
    out = tmp_path / "run"
    arrays = len(checkpoint_bits(uninterrupted)) + 1  # writes of one checkpoint, its header included
    moments = [f"'write', {arrays * 5 - 3}", "'replace', 5", "'fsync', 40"]
    for number, moment in enumerate(moments):
        command = train(out) if number == 0 else ["resume", str(out)]
        before = sorted(path.name for path in (out / "checkpoints").glob("*")) if number else []
        process = start(*command, before=f"{KILLER}\nkill_at(files.os, {moment})")
        output, _ = process.communicate(timeout=100)
        assert process.returncode == -signal.SIGKILL, output
        names = sorted(path.name for path in (out / "checkpoints").glob("*"))
        assert names != before
        if number == 0:
            assert any(name.endswith(".tmp") for name in names), names
        for name in names:
            if not name.endswith(".tmp"):
                checkpoint.read(out / "checkpoints" / name)  # raises if it is not whole
    process = start("resume", str(out))
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    assert_same_run(out, uninterrupted)
    assert not list((out / "checkpoints").glob("*.tmp"))


def test_save_and_load_go_on_as_if_never_stopped(tmp_path: Path) -> None:
    whole = capo.NCAPO(ENV, seeds=2, **TINY_640).learn(640)
    first = capo.NCAPO(ENV, seeds=2, **TINY_640).learn(240)
    path = first.save(tmp_path / "agent")
    assert path == tmp_path / "agent.safetensors"
    loaded = capo.NCAPO.load(tmp_path / "agent")
    assert loaded.frames == 240
    loaded.learn(400)
    first.learn(400)
    assert bits(loaded) == bits(whole)
    assert bits(first) == bits(whole)
    # The comparison can fail: another seed is another state.
    assert bits(capo.NCAPO(ENV, seeds=[0, 2], **TINY_640).learn(640)) != bits(whole)


def test_averaged_networks_are_saved_and_training_does_not_see_them(tmp_path: Path) -> None:
    plain = capo.NCAPO(ENV, seeds=2, **TINY_640).learn(640)
    whole = capo.NCAPO(ENV, seeds=2, tau_average=0.1, **TINY_640).learn(640)
    first = capo.NCAPO(ENV, seeds=2, tau_average=0.1, **TINY_640).learn(240)
    first.save(tmp_path / "agent")
    loaded = capo.NCAPO.load(tmp_path / "agent").learn(400)
    assert bits(loaded) == bits(whole)
    kernels = [agent.params["actor"]["head"]["kernel"] for agent in (plain, whole, loaded)]
    np.testing.assert_array_equal(kernels[1], kernels[2])
    assert (kernels[0] != kernels[1]).any()
    trained = [agent._states.groups[0].state.params for agent in (plain, whole)]
    jax.tree.map(np.testing.assert_array_equal, *trained)


def test_a_seed_does_not_depend_on_its_neighbours() -> None:
    alone = capo.NCAPO(ENV, seed=1, **TINY_640).learn(320).evaluate(8)
    beside = capo.NCAPO(ENV, seeds=[0, 1], **TINY_640).learn(320).evaluate(8)
    assert alone.returns[0].tolist() == beside.returns[1].tolist()


def test_previous_checkpoint_only_if_asked(tmp_path: Path) -> None:
    out, reference = tmp_path / "run", tmp_path / "reference"
    options = {"checkpoint_every": 160, "log_every": 80, **TINY_640}
    capo.NCAPO(ENV, out=reference, **options).learn(640)
    capo.NCAPO(ENV, out=out, **options).learn(640)
    newest = max((out / "checkpoints").iterdir())
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    with pytest.raises(capo.CapoError, match=r"damaged: the checksum of .* --use-previous"):
        capo.NCAPO.resume(out)
    agent = capo.NCAPO.resume(out, use_previous=True)
    assert agent.frames == 480
    assert len(metrics(out)) == 6
    agent.learn(agent.frames_left)
    assert checkpoint_bits(out) == checkpoint_bits(reference)
    assert metrics(out) == metrics(reference)


def test_killed_before_the_first_checkpoint(tmp_path: Path) -> None:
    """config.json is all there is: the run starts from its beginning."""
    out, reference = tmp_path / "run", tmp_path / "reference"
    capo.NCAPO(ENV, out=reference, log_every=80, **TINY_640).learn(640)
    capo.NCAPO(ENV, out=out, log_every=80, **TINY_640).learn(640)
    for path in out.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "config.json":
            path.unlink()
    agent = capo.NCAPO.resume(out)
    assert (agent.frames, agent.frames_left) == (0, 640)
    agent.learn(agent.frames_left)
    assert checkpoint_bits(out) == checkpoint_bits(reference)
    assert metrics(out) == metrics(reference)


def test_learning_more_in_the_same_folder(tmp_path: Path) -> None:
    """A second learn() is in a checkpoint from its start, so that resuming finishes it."""
    out = tmp_path / "run"
    agent = capo.NCAPO(ENV, out=out, log_every=80, **TINY_640)
    agent.learn(320)

    def stop(_: object, rows: list[dict[str, float]]) -> bool:
        return rows[0]["frames"] < 480

    agent.learn(320, callback=stop)
    assert (agent.frames, agent.frames_left) == (480, 160)
    resumed = capo.NCAPO.resume(out)
    assert resumed.frames_left == 160
    resumed.learn(resumed.frames_left)
    agent.out = None  # the folder is the resumed one's now
    agent.learn(160)
    assert bits(resumed) == bits(agent)
    assert [row["frames"] for row in metrics(out)] == [str(frames) for frames in range(80, 641, 80)]


def test_signals_leave_the_agent_in_order() -> None:
    """Also without a folder: the chunk is finished, the agent is whole, and can go on."""
    before = signal.getsignal(signal.SIGINT)

    def stop(_: object, rows: list[dict[str, float]]) -> None:
        if rows[0]["frames"] == 240:
            signal.raise_signal(signal.SIGINT)

    agent = capo.NCAPO(ENV, log_every=80, **TINY_640)
    with pytest.raises(KeyboardInterrupt, match="stopped by SIGINT at frame 240"):
        agent.learn(640, callback=stop)
    assert signal.getsignal(signal.SIGINT) is before
    assert (agent.frames, agent.frames_left) == (240, 400)
    agent.learn(agent.frames_left)
    assert bits(agent) == bits(capo.NCAPO(ENV, **TINY_640).learn(640))


def test_a_second_interrupt_ends_at_once() -> None:
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.signum == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("moment", "total"), [(1, 640), (2, 6400)])
def test_a_longer_plan_is_in_the_checkpoint_and_in_config_json_or_in_neither(
    moment: int, total: int, tmp_path: Path
) -> None:
    """Killed before the checkpoint of the new plan, and between it and config.json."""
    out = tmp_path / "run"
    capo.NCAPO(ENV, out=out, log_every=80, **TINY_640).learn(640)
    killed = start(
        "resume", str(out), "--frames", "6400", before=f"{KILLER}\nkill_at(files.os, 'replace', {moment})"
    )
    output, _ = killed.communicate(timeout=100)
    assert killed.returncode == -signal.SIGKILL, output
    assert [path.name for path in (out / "checkpoints").iterdir() if path.suffix == ".safetensors"] == [
        "checkpoint-000000000000.safetensors",
        "checkpoint-000000000640.safetensors",
    ]
    agent = capo.NCAPO.resume(out)
    assert agent.frames + agent.frames_left == total
    config = json.loads((out / "config.json").read_text())
    assert (config["frames"], config["config"]) == (total, agent.config.to_dict())
