"""The whole state of a run to disk and back, bit for bit.

A checkpoint is one file in the `safetensors` format: every array of the state's PyTree under its path, and
a JSON manifest (in the format's own metadata field) with the settings, the counters, every array's shape,
dtype and SHA-256, and a SHA-256 of itself. Nothing is pickled, so a file from a stranger can be refused but
can't run code. It is written whole or not at all: see :mod:`capo.files`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from capo.checks import as_path, whole
from capo.errors import CapoError
from capo.files import atomic_file, disk_errors, make_folder, open_regular
from capo.reading import Unreadable, free_memory, parse_json, read_errors
from capo.runs import schema
from capo.runs.layout import CHECKPOINTS, CONFIG
from capo.runs.reader import read_config

FORMAT = "capo-checkpoint"
VERSION = 1
SUFFIX = ".safetensors"

PyTree = Any

# safetensors' names of the dtypes a state can hold.
_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"I{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"F{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ENTRY = schema.object_of(
    "an array: dtype, shape, data_offsets",
    {
        "dtype": ("a dtype", lambda value: isinstance(value, str) and value in _DTYPES),
        "shape": schema.list_of("a shape", schema.integer(0), most=32),
        "data_offsets": schema.list_of("two offsets", schema.integer(0), least=2, most=2),
    },
    ("dtype", "shape", "data_offsets"),
)
RANDOM_KEYS = ("threefry2x32", "rbg", "unsafe_rbg")  # jax's implementations
MAX_HEADER = 16_000_000  # bytes


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory: its arrays by path in the state, and what the writer said about them."""

    path: Path
    arrays: dict[str, np.ndarray[Any, Any]]
    random_keys: dict[str, str]  # path -> implementation, for leaves that were typed random keys
    content: dict[str, Any]

    def restore(self, like: PyTree, prefix: str = "") -> PyTree:
        """The state, shaped like ``like`` (arrays or ``jax.ShapeDtypeStruct`` leaves).

        Raises:
            CapoError: if a leaf is missing, left over, or has another shape or dtype: the checkpoint
                belongs to other settings, another environment or another version of capo.
        """
        paths, structure = jax.tree_util.tree_flatten_with_path(like)
        wanted = {prefix + _name(path): leaf for path, leaf in paths}
        held = {name for name in self.arrays if name.startswith(prefix)}
        if set(wanted) != held:
            odd = sorted(set(wanted) ^ held)
            raise CapoError(
                f"{self.path}: its state does not match these settings: {odd[0]} is "
                f"{'missing' if odd[0] in wanted else 'left over'} ({len(odd)} such arrays); "
                "it was written with other settings or by another version of capo"
            )
        return jax.tree_util.tree_unflatten(structure, [self._leaf(name, leaf) for name, leaf in wanted.items()])

    def _leaf(self, name: str, like: Any) -> jax.Array:
        array = self.arrays[name]
        # A copy: jax may otherwise borrow numpy's memory, and the loop donates its input.
        value = jnp.array(array, copy=True)
        if name in self.random_keys:
            value = jax.random.wrap_key_data(value, impl=self.random_keys[name])
        if value.shape != like.shape or value.dtype != like.dtype:
            raise CapoError(
                f"{self.path}: {name} is {value.dtype}{list(value.shape)} but these settings need "
                f"{like.dtype}{list(like.shape)}: the environment or the settings changed"
            )
        return value


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _host_leaves(tree: PyTree) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, str]]:
    """Every leaf as a contiguous numpy array under its path, and which of them are typed random keys."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    random_keys: dict[str, str] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = _name(path)
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            random_keys[name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        if array.dtype not in _NAMES:
            raise CapoError(f"cannot store {name}: dtype {array.dtype} is not among {', '.join(_DTYPES)}")
        arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
    return arrays, random_keys


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8).data)


def _digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def size(tree: PyTree) -> int:
    """Bytes of a checkpoint of ``tree``, without its header."""
    return sum(int(leaf.nbytes) for leaf in jax.tree_util.tree_leaves(tree))


def write(path: Path, tree: PyTree, content: Mapping[str, Any]) -> None:
    """Write ``tree`` and the JSON-able ``content`` to ``path``, replacing what is there in one step.

    Raises:
        CapoError: if the disk is full or the folder can't be written; ``path`` is then as it was before.
    """
    arrays, random_keys = _host_leaves(tree)
    entries: dict[str, Any] = {}
    start = 0
    for name, array in arrays.items():
        offsets = [start, start + array.nbytes]
        entries[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
        start += array.nbytes
    manifest = json.dumps(
        {
            "content": dict(content),
            "random_keys": random_keys,
            "entries": entries,
            "sha256": {name: _digest(_bytes(array)) for name, array in arrays.items()},
        }
    )
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "manifest": manifest,
        "manifest_sha256": _digest(manifest.encode()),
    }
    text = json.dumps({"__metadata__": metadata, **entries}).encode()
    text += b" " * (-len(text) % 8)  # arrays start at a multiple of eight bytes
    with disk_errors(path):
        make_folder(path.parent)
    with atomic_file(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(_bytes(array))


def read(path: Path, *, follow: bool = False) -> Checkpoint:
    """Read and check a checkpoint: all that its header says, before memory is taken for its arrays.

    Args:
        path: the file.
        follow: whether ``path`` itself may be a symbolic link, as a name that the user gave may be.

    Raises:
        CapoError: if the file is absent, cut short, altered, or not a checkpoint of this version.
    """
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY, follow=follow), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            header, start = _header(path, file, size)
            manifest = _manifest(path, header.pop("__metadata__", None))
            _check_entries(path, header, manifest, size - start)
            return Checkpoint(path, _arrays(path, file, manifest), manifest["random_keys"], manifest["content"])
    except FileNotFoundError:
        raise CapoError(f"{path}: there is no such checkpoint") from None
    except OSError as error:
        raise CapoError(f"{path}: cannot be read ({error.strerror or error})") from None


def _header(path: Path, file: IO[bytes], size: int) -> tuple[dict[str, Any], int]:
    """The safetensors header, and where the arrays start."""
    first = file.read(9)
    length = int.from_bytes(first[:8], "little")
    if len(first) < 9 or first[8:] != b"{" or not 2 <= length <= MAX_HEADER:
        raise foreign(path)
    if size < 8 + length:
        raise damaged(path, "it is truncated")
    try:
        header = parse_json(first[8:] + file.read(length - 1))
    except Unreadable:
        raise damaged(path, "its header cannot be read") from None
    if not isinstance(header, dict):
        raise foreign(path)
    return header, 8 + length


def _manifest(path: Path, metadata: Any) -> dict[str, Any]:
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise foreign(path)
    if metadata.get("version") != str(VERSION):
        found = schema.shown(metadata.get("version")).strip("'")
        raise CapoError(
            f"{path}: is a checkpoint of format {found}, but this version of capo reads format {VERSION}: "
            "use the version of capo that wrote it"
        )
    text = str(metadata.get("manifest", ""))
    if _digest(text.encode(errors="replace")) != metadata.get("manifest_sha256"):
        raise damaged(path, "the checksum of its manifest does not match")
    try:
        manifest = parse_json(text)
    except Unreadable as error:
        raise damaged(path, f"its manifest {error}") from None
    parts = ("content", "random_keys", "entries", "sha256")
    if not isinstance(manifest, dict) or not all(isinstance(manifest.get(part), dict) for part in parts):
        raise damaged(path, f"its manifest must have the objects {', '.join(parts)}")
    return manifest


def _check_entries(path: Path, header: dict[str, Any], manifest: dict[str, Any], available: int) -> None:
    """Raise unless the arrays follow one another and fill the ``available`` bytes of the file exactly."""
    if header != manifest["entries"]:
        raise damaged(path, "its list of arrays does not match its manifest")
    keys = manifest["random_keys"]
    if set(manifest["sha256"]) != set(header) or not set(keys) <= set(header):
        raise damaged(path, "its manifest does not list the arrays that it contains")
    if not all(implementation in RANDOM_KEYS for implementation in map(str, keys.values())):
        raise damaged(path, f"its random keys must be among {', '.join(RANDOM_KEYS)}")
    start = 0
    for name, entry in header.items():
        if not _ENTRY[1](entry):
            raise damaged(path, f"{schema.shown(name)} is not described as {_ENTRY[0]}")
        end = start + math.prod(entry["shape"]) * _DTYPES[entry["dtype"]].itemsize
        if entry["data_offsets"] != [start, end]:
            raise damaged(path, f"{schema.shown(name)} is not at the position that its shape implies")
        start = end
    if available < start:
        raise damaged(path, "it is truncated")
    if available > start:
        raise damaged(path, f"it has {available - start} bytes too many")
    free = free_memory()
    if free is not None and start > free:
        raise CapoError(f"{path}: its arrays need {start / 1e6:,.0f} MB, but {free / 1e6:,.0f} MB are free")


def _arrays(path: Path, file: IO[bytes], manifest: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays, which follow one another in the file, each compared with its checksum."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, entry in manifest["entries"].items():
        begin, end = entry["data_offsets"]
        raw = file.read(end - begin)
        if len(raw) != end - begin or _digest(raw) != manifest["sha256"][name]:
            why = "it is truncated" if len(raw) != end - begin else f"the checksum of {name} does not match"
            raise damaged(path, why)
        arrays[name] = np.frombuffer(raw, dtype=_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def damaged(path: Path, why: str) -> CapoError:
    """The error for a checkpoint that was one and no longer is."""
    return CapoError(f"{path}: this checkpoint is damaged: {why}")


def foreign(path: Path) -> CapoError:
    """The error for a file that never was a checkpoint of ours."""
    return CapoError(f"{path} is not a capo checkpoint")


def with_suffix(path: Path) -> Path:
    """The file that a saved agent's name stands for: ``.safetensors`` is added if there is no extension."""
    return path if path.suffix else path.with_name(path.name + SUFFIX)


def find(path: str | Path) -> Checkpoint:
    """The checkpoint that ``path`` stands for: a saved agent, or the newest one of a run's folder.

    Raises:
        CapoError: if there is none, or the name stands for two.
    """
    path = as_path("load", path)
    with read_errors(path):
        return _find(path)


def _find(path: Path) -> Checkpoint:
    file = with_suffix(path)
    if not path.exists() and not file.exists():
        also = f", and no file {file}" if file != path else ""
        raise CapoError(f"{path}: no such run or saved agent{also}")
    if not path.is_dir():
        return read(path if path.exists() else file, follow=True)
    if file != path and file.exists():
        if not (path / CONFIG).exists():
            return read(file, follow=True)
        raise CapoError(
            f"{path}: there are both the run {path}{os.sep} and the saved agent {file}: load {file} "
            f"or {path / CHECKPOINTS}{os.sep}..., or move one of them"
        )
    read_config(path)  # raises if this is not a run
    saved = CheckpointStore(path / CHECKPOINTS).load()
    if saved is None:
        raise CapoError(f"{path}: the run has no checkpoint yet")
    return saved


def frames_of(path: Path) -> int:
    """The frames at which a checkpoint was made, by its name."""
    return int(path.name.removeprefix("checkpoint-").removesuffix(SUFFIX))


@dataclass(frozen=True)
class Interval:
    """How often to checkpoint: every so many seconds, or every so many frames (of one seed)."""

    seconds: float | None = None
    frames: int | None = None

    @staticmethod
    def parse(text: str | int | float | Interval) -> Interval:
        """From ``"60s"``, ``"5m"``, ``"1h"`` (time) or ``"100000"``, ``100_000`` (frames).

        >>> Interval.parse("5m")
        Interval(seconds=300.0, frames=None)
        >>> Interval.parse("100000")
        Interval(seconds=None, frames=100000)
        """
        if isinstance(text, Interval):
            return text
        match = re.fullmatch(
            r"(\d+(?:\.\d+)?(?:e\d+)?)([smh]?)", re.sub(r"(?<=\d)_(?=\d)", "", str(text).strip().lower())
        )
        number = float(match[1]) if match else 0.0
        if not match or not 0 < number < math.inf or (not match[2] and number != int(number)):
            raise CapoError(
                f"checkpoint interval {text!r}: give a time such as 60s, 5m or 1h, or a number of frames "
                "such as 100000"
            )
        if match[2]:
            return Interval(seconds=number * {"s": 1, "m": 60, "h": 3600}[match[2]])
        return Interval(frames=int(number))

    def __str__(self) -> str:
        return f"{self.seconds:g}s" if self.seconds is not None else str(self.frames)


class CheckpointStore:
    """The checkpoints of one run: ``checkpoint-<frames>.safetensors``, the last ``keep`` of them."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder = folder
        self.keep = whole("keep", keep)

    def paths(self) -> list[Path]:
        """The checkpoints there are, oldest first."""
        pattern = re.compile(r"checkpoint-\d{1,16}" + re.escape(SUFFIX), re.ASCII)
        with read_errors(self.folder):
            if self.folder.is_symlink():
                raise CapoError(f"{self.folder}: is a symbolic link; put the folder itself there")
            found = list(self.folder.iterdir()) if self.folder.is_dir() else []
        return sorted((path for path in found if pattern.fullmatch(path.name)), key=frames_of)

    def save(self, frames: int, tree: PyTree, content: Mapping[str, Any]) -> Path:
        """Write a checkpoint; only once it is safely there, drop those that are too many."""
        path = self.folder / f"checkpoint-{frames:012d}{SUFFIX}"
        write(path, tree, content)
        for old in [other for other in self.paths() if frames_of(other) <= frames][: -self.keep]:
            old.unlink(missing_ok=True)
        return path

    def load(self, use_previous: bool = False) -> Checkpoint | None:
        """The newest checkpoint, or None if there is none yet.

        Args:
            use_previous: if the newest is damaged, take the newest one that is not.
        """
        paths = self.paths()
        for index, path in reversed(list(enumerate(paths))):
            try:
                return _read_named(path)
            except CapoError as error:
                if not use_previous:
                    hint = (
                        f"; the one before it is {paths[index - 1]}: `capo resume {self.folder.parent} "
                        "--use-previous` continues from there"
                        if index
                        else "; it is the only one, so the run has to be started again"
                    )
                    raise CapoError(f"{error}{hint}") from None
        if paths:
            raise CapoError(
                f"{self.folder}: none of its {len(paths)} checkpoints is readable: start the run again"
            )
        return None

    def set_aside_after(self, path: Path) -> None:
        """Rename the checkpoints newer than ``path``: they could not be read, here and now."""
        for other in self.paths():
            if frames_of(other) > frames_of(path):
                with disk_errors(other):
                    other.replace(other.with_suffix(f"{SUFFIX}.unreadable"))

    def clean(self) -> None:
        """Remove what a killed process left half written."""
        for left in self.folder.glob(f".*{SUFFIX}.*.tmp") if not self.folder.is_symlink() else ():
            left.unlink(missing_ok=True)


def _read_named(path: Path) -> Checkpoint:
    """A checkpoint whose name says at which frame it was made; its content must say the same."""
    saved = read(path)
    inside = schema.frames_inside(saved.content)
    if inside is not None and inside != frames_of(path):
        raise CapoError(
            f"{path}: its name gives frame {frames_of(path):,}, but it contains frame {inside:,}: it was renamed"
        )
    return saved
