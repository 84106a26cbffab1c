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
