"""The one atomic writer: whole or not at all, the usual permissions, an error that says what to do."""

import json
import os
import stat

import numpy as np
import pytest

from capo import CapoError, files


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = files.write_text(tmp_path / "x.txt", "old")

    def fails_half_way():
        with files.atomic_file(path) as file:
            file.write(b"new")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fails_half_way()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.txt"]


def test_the_umask_decides_who_may_read(tmp_path):
    for mask in (0o022, 0o077, 0o002):
        before = os.umask(mask)
        try:
            path = files.write_bytes(tmp_path / "x", b"1")
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_what_seeks_can_be_written(tmp_path):
    with files.atomic_file(tmp_path / "x.npz") as file:
        np.savez_compressed(file, a=np.arange(1000), empty=np.zeros(0))
    with np.load(tmp_path / "x.npz") as read:
        assert read["a"].tolist() == list(range(1000))
        assert read["empty"].shape == (0,)


def test_json_is_strict_unless_told(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_json(tmp_path / "x.json", {"a": float("nan")})
    assert not (tmp_path / "x.json").exists()
    files.write_json(tmp_path / "x.json", {"a": float("inf")}, allow_nan=True)
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": float("inf")}


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(CapoError, match=r"cannot write .*none/x \(No such file or directory\)"):
        files.write_bytes(tmp_path / "none" / "x", b"")
    (tmp_path / "file").write_text("")
    with pytest.raises(CapoError, match="is a file: give a folder"):
        files.prepare_folder(tmp_path / "file")


def test_a_planted_link_is_never_written_through(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    names = iter(["first", "second"])
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: next(names))
    planted = tmp_path / f".x.{os.getpid()}-first.tmp"
    planted.symlink_to(victim)
    with pytest.raises(CapoError, match="cannot write"):
        files.write_text(tmp_path / "x", "new")  # even if somebody guessed the name
    assert victim.read_text() == "precious"
    assert planted.is_symlink(), "what is not ours is not removed either"
    files.write_text(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "new"


def test_a_target_that_is_a_link_is_replaced_and_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "x").symlink_to(victim)
    files.write_text(tmp_path / "x", "new")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "x").is_symlink()


def test_new_names_are_flushed_to_the_disk_with_their_folders(tmp_path, monkeypatch):
    flushed = []
    real = os.fsync

    def note(descriptor):
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("needs /proc")
    monkeypatch.setattr(files.os, "fsync", note)
    files.make_folder(tmp_path / "a" / "b" / "c")
    assert set(flushed) == {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")}
    flushed.clear()
    files.make_folder(tmp_path / "a" / "b" / "c")
    assert flushed == [], "what was there already is on the disk"
    files.write_text(tmp_path / "a" / "x", "1")
    assert flushed[-1] == str(tmp_path / "a")


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "device"])
def test_only_regular_files_are_opened(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else tmp_path / "other")
        (tmp_path / "other").write_text("1")
    for flags in (os.O_RDONLY, os.O_WRONLY):
        with pytest.raises(OSError, match=r"not a regular file|symbolic link|Is a directory"):
            files.open_regular(path, flags)
