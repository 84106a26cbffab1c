"""Reading what somebody else wrote: bounded, regular, and in words if it cannot be used."""

import io
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from capo import MDP, CapoError, reading
from capo.reading import MAX_DEPTH, Unreadable


def test_a_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert reading.read_bytes(path, 5) == b"12345"
    with pytest.raises(Unreadable, match="has 5 bytes; at most 4 are allowed"):
        reading.read_bytes(path, 4)
    with path.open("wb") as file:
        file.truncate(2**41)  # takes no room on the disk
    with pytest.raises(Unreadable, match=r"has 2,199,023,255,552 bytes; at most 100 are allowed"):
        reading.read_bytes(path, 100)


def test_a_link_is_followed_only_where_the_user_gave_it(tmp_path):
    (tmp_path / "x").write_bytes(b"1")
    (tmp_path / "link").symlink_to("x")
    assert reading.read_bytes(tmp_path / "link", 5, follow=True) == b"1"
    with pytest.raises(Unreadable, match="symbolic link"):
        reading.read_bytes(tmp_path / "link", 5)
    with pytest.raises(Unreadable, match="is missing"):
        reading.read_bytes(tmp_path / "none", 5)


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 2, 500, 10**5])
def test_json_is_nested_up_to_a_depth(depth):
    text = '{"a": ' * depth + "1" + "}" * depth
    if depth <= MAX_DEPTH:
        assert reading.parse_json(text)
    else:
        with pytest.raises(Unreadable, match=f"nested more than {MAX_DEPTH} levels deep"):
            reading.parse_json(text)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b'{"a": "\xff"}', "byte 7 is not UTF-8"), (b'{"a": ', "perhaps truncated"), (b"", "JSON")],
)
def test_what_is_not_json_is_said(data, message):
    with pytest.raises(Unreadable, match=message):
        reading.parse_json(data)


def test_json_that_is_not_an_object(tmp_path):
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(Unreadable, match="not a file that capo writes"):
        reading.read_json(tmp_path / "x.json")


@pytest.mark.parametrize("shape", [(2**40,), (10**5, 10**5), (2**62, 4)])
def test_an_archive_that_claims_more_than_it_has(tmp_path, shape):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": shape})
        archive.writestr("transition.npy", header.getvalue() + bytes(10**6))
    with pytest.raises(CapoError, match="damaged"):
        MDP.load(path)


def test_an_archive_that_holds_more_than_fits(tmp_path):
    """A zip bomb: a MB that becomes a GB, in a process that may not have them."""
    pytest.importorskip("resource")
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        header = io.BytesIO()
        shape = (2**27,)  # 1 GiB
        np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": shape})
        with archive.open("transition.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            for _ in range(2**6):
                member.write(bytes(2**24))
    code = "import resource, sys, capo; limit = 5 << 28; resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
    code += f"try: capo.MDP.load({str(path)!r})\nexcept capo.CapoError as error: print(error); sys.exit(3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 3, done.stderr
    assert str(path) in done.stdout


def test_free_memory_heeds_the_limit_of_the_process(monkeypatch):
    resource = pytest.importorskip("resource")
    machine = reading.free_memory()
    assert machine is None or machine > 0
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("needs /proc")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 1000))
    assert reading.free_memory() == 0


def test_text_from_a_file_cannot_control_the_screen():
    from capo.reading import escaped

    assert escaped("\x1b[2Jé\n\tx\r\ud800") == "\\x1b[2Jé\n\tx\\r\\ud800"
