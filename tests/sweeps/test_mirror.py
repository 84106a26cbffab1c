"""A folder's copy on another machine: what has arrived can always be continued."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from capo import CapoError
from capo.sweeps import mirror
from capo.sweeps.mirror import Mirror, Update


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def fill(folder: Path, frames: int, log: str) -> None:
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "metrics.csv").write_text(log)
    for old in (folder / "checkpoints").iterdir():
        old.unlink()
    (folder / "checkpoints" / f"checkpoint-{frames:012d}.safetensors").write_bytes(b"state %d" % frames)


def test_a_copy_follows(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    fill(theirs, 0, "a\n")
    (theirs / ".lock").touch()
    (theirs / "checkpoints" / ".half.tmp").touch()
    seen: dict[str, mirror.Stamp] = {}
    mirror.read(theirs, seen).write(ours)
    assert set(content(ours)) == {"metrics.csv", "checkpoints/checkpoint-000000000000.safetensors"}
    fill(theirs, 16, "a\nb\n")
    update = mirror.read(theirs, seen)
    update.write(ours)
    assert content(ours)["metrics.csv"] == b"a\nb\n"
    assert [path.name for path in (ours / "checkpoints").iterdir()] == ["checkpoint-000000000016.safetensors"]
    assert mirror.read(theirs, seen).files == {}


def test_updates_that_wait_are_merged(tmp_path: Path) -> None:
    first, second = Update({"checkpoints/1": b"x", "a": b"1"}, ["checkpoints/1"]), Update({}, ["checkpoints/2"])
    second.files = {"checkpoints/2": b"y", "b": b"2"}
    first.merge(second)
    assert first == Update({"checkpoints/2": b"y", "a": b"1", "b": b"2"}, ["checkpoints/2"])
    first.write(tmp_path)
    assert set(content(tmp_path)) == {"checkpoints/2", "a", "b"}


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", ".lock"])
def test_an_update_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(CapoError, match="is not the name of a file"):
        Update({name: b""}, []).write(tmp_path / "folder")


def test_checkpoints_are_sent_as_they_come_and_the_end_is_not(tmp_path: Path) -> None:
    """evaluation.json says that a run is done: it must not arrive before the last state does."""
    sent: list[Update] = []
    with Mirror(tmp_path, lambda update: bool(sent.append(update)) or True):
        fill(tmp_path, 16, "a\n")
        (tmp_path / "evaluation.json").write_text("{}")
        until = time.monotonic() + 10
        while not sent and time.monotonic() < until:
            time.sleep(0.05)
    assert set(sent[0].files) == {"metrics.csv", "checkpoints/checkpoint-000000000016.safetensors"}
    assert "evaluation.json" in mirror.read(tmp_path).files
