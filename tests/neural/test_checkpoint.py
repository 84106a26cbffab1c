"""The checkpoint file: every dtype round-trips, every damage is seen, a failed write leaves the old file."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capo import CapoError, files
from capo.runs import checkpoint
from capo.runs.checkpoint import CheckpointStore


class State(NamedTuple):
    params: dict[str, Any]
    key: Any
    typed_key: Any
    counter: Any


def make_state(seed: int = 0) -> State:
    key = jax.random.PRNGKey(seed)
    return State(
        params={
            "w": jax.random.normal(key, (3, 4)),
            "half": jax.random.normal(key, (5,), jnp.bfloat16),
            "flags": jax.random.bernoulli(key, shape=(2, 7)),
            "bits": jnp.arange(11, dtype=jnp.uint8),
            "empty": jnp.zeros((0, 3)),
            "special": jnp.array([jnp.nan, -0.0, jnp.inf, 1e-45]),
        },
        key=key,
        typed_key=jax.random.split(jax.random.key(seed), 3),
        counter=jnp.int32(-7),
    )


def bits(tree: Any) -> list[bytes]:
    leaves = [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in jax.tree.leaves(tree)
    ]
    return [np.asarray(leaf).tobytes() for leaf in leaves]


def test_round_trip_is_exact_for_every_dtype(tmp_path: Path) -> None:
    state = make_state()
    checkpoint.write(tmp_path / "x.safetensors", state, {"frames": 3, "name": "ä"})
    read = checkpoint.read(tmp_path / "x.safetensors")
    restored = read.restore(jax.eval_shape(lambda: state))
    assert read.content == {"frames": 3, "name": "ä"}
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert [x.dtype for x in jax.tree.leaves(restored)] == [x.dtype for x in jax.tree.leaves(state)]
    assert bits(restored) == bits(state)


def test_the_file_is_plain_safetensors(tmp_path: Path) -> None:
    """Read by the format's definition, not by our reader."""
    state = make_state()
    checkpoint.write(tmp_path / "x.safetensors", state, {})
    data = (tmp_path / "x.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    entry = header["params/w"]
    begin, end = entry["data_offsets"]
    found = np.frombuffer(data[8 + length + begin : 8 + length + end], np.float32).reshape(entry["shape"])
    np.testing.assert_array_equal(found, state.params["w"])
    assert (entry["dtype"], header["params/half"]["dtype"]) == ("F32", "BF16")
    assert (8 + length) % 8 == 0


def test_every_flipped_byte_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    checkpoint.write(path, make_state(), {"frames": 3})
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in [0, 3, 8, 9, len(good) - 1, *rng.integers(0, len(good), 60)]:
        broken = bytearray(good)
        broken[position] ^= 0x10
        path.write_bytes(broken)
        try:
            # Padding and JSON's own blanks may change without changing what is read.
            read = checkpoint.read(path)
        except CapoError:
            continue
        assert bits(read.restore(make_state())) == bits(make_state()), f"byte {position}"


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 300, -1])
def test_a_cut_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "x.safetensors"
    checkpoint.write(path, make_state(), {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CapoError, match=r"damaged|not a capo checkpoint"):
        checkpoint.read(path)


def test_foreign_and_future_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_text("seed,frames\n0,1\n" * 20)
    with pytest.raises(CapoError, match="is not a capo checkpoint"):
        checkpoint.read(path)
    header = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CapoError, match="is not a capo checkpoint"):
        checkpoint.read(path)
    checkpoint.write(path, make_state(), {})
    path.write_bytes(path.read_bytes().replace(b'"version": "1"', b'"version": "9"'))
    with pytest.raises(CapoError, match="format 9"):
        checkpoint.read(path)
    with pytest.raises(CapoError, match="no such checkpoint"):
        checkpoint.read(tmp_path / "none")


def test_a_state_of_other_settings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    checkpoint.write(path, {"w": jnp.zeros(3)}, {})
    read = checkpoint.read(path)
    with pytest.raises(CapoError, match=r"float32\[3\].*need float32\[4\]"):
        read.restore({"w": jnp.zeros(4)})
    with pytest.raises(CapoError, match="b is missing"):
        read.restore({"w": jnp.zeros(3), "b": jnp.zeros(3)})
    with pytest.raises(CapoError, match="w is left over"):
        read.restore({})


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    checkpoint.write(path, make_state(0), {})
    before = path.read_bytes()
    real, calls = os.write, []

    def full(descriptor: int, data: Any) -> int:
        calls.append(len(data))
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(files.os, "write", full)
    with pytest.raises(CapoError, match="disk is full"):
        checkpoint.write(path, make_state(1), {})
    assert len(calls) == 4
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(files.os, "write", lambda fd, data: real(fd, bytes(data[:5])))
    checkpoint.write(tmp_path / "x.safetensors", make_state(), {})
    assert bits(checkpoint.read(tmp_path / "x.safetensors").restore(make_state())) == bits(make_state())


def test_the_store_keeps_the_last_and_asks_before_it_steps_back(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    assert store.load() is None
    for frames in (100, 200, 1000):
        store.save(frames, make_state(frames), {"frames": frames})
    assert [p.name for p in store.paths()] == [
        "checkpoint-000000000200.safetensors",
        "checkpoint-000000001000.safetensors",
    ]
    newest = store.load()
    assert newest is not None
    assert newest.content["frames"] == 1000
    assert checkpoint.frames_of(newest.path) == 1000
    store.paths()[-1].write_bytes(b"rubbish")
    with pytest.raises(CapoError, match=r"not a capo checkpoint.*checkpoint-000000000200.*--use-previous"):
        store.load()
    previous = store.load(use_previous=True)
    assert previous is not None
    assert bits(previous.restore(make_state())) == bits(make_state(200))
    store.set_aside_after(previous.path)
    assert (store.folder / "checkpoint-000000001000.safetensors.unreadable").read_bytes() == b"rubbish"
    store.paths()[0].write_bytes(b"")
    with pytest.raises(CapoError, match="only one"):
        store.load()
    with pytest.raises(CapoError, match="none of its 1"):
        store.load(use_previous=True)


def test_the_store_ignores_and_cleans_half_written_files(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(100, make_state(), {})
    left = tmp_path / ".checkpoint-000000000200.safetensors.77.tmp"
    left.write_bytes(b"half")
    assert len(store.paths()) == 1
    store.clean()
    assert not left.exists()
