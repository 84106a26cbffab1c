"""Reading .npz files that a stranger may have made: no pickle, and every size checked before memory is taken.

An .npz is a zip of .npy members. Each member's header is read first; its shape and type must be what the caller
expects, and must agree with the size that the zip says the member has.
"""

from __future__ import annotations

import ast
import json
import math
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from capo.errors import CapoError
from capo.reading import Unreadable, free_memory, parse_json

MOST_HEADER = 1 << 16  # bytes of a member's header
MOST_MANIFEST = 1 << 20
_MAGIC = b"\x93NUMPY"

Rule = tuple[str, tuple[int, ...] | None]
Wanted = Mapping[str, Rule]


def memory_limit() -> int:
    """The most bytes that the arrays of a file may take: half of the free memory, since checking takes copies."""
    return (free_memory() or 1 << 37) // 2


def read_arrays(path: Path, wanted: Wanted | None = None, limit: int | None = None) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz, after all their sizes have been checked.

    Args:
        path: the file.
        wanted: the names that are read, each with the kinds of numbers allowed (numpy's letters, such as ``"f"``)
            and the shape, or None for any shape. Other members are left alone. By default everything is read:
            real numbers and booleans.
        limit: the most bytes of all arrays together; by default half of the free memory.
    """
    if not path.is_file():
        raise CapoError(f"{path} does not exist")
    limit = memory_limit() if limit is None else limit
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            names = [name for name in members if wanted is None or name in wanted]
            if len(members) != len(archive.infolist()):
                raise CapoError(f"{path} is damaged: it has two arrays of the same name")
            total = 0
            for name in names:
                rule: Rule = ("biuf", None) if wanted is None else wanted[name]
                total += _check_member(path, archive, members[name], name, rule)
            if total > limit:
                gigabytes = f"{total / 2**30:.3g} GB of arrays; at most {limit / 2**30:.3g} GB are allowed"
                raise CapoError(f"{path} holds {gigabytes}")
            arrays = {}
            for name in names:
                with archive.open(members[name]) as file:
                    arrays[name] = np.lib.format.read_array(file, allow_pickle=False, max_header_size=MOST_HEADER)
            return arrays
    except CapoError:
        raise
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError) as error:
        raise CapoError(f"{path} is damaged or not an .npz file: {error}") from error
    except OSError as error:
        raise CapoError(f"{path} cannot be read: {error}") from error
    except Exception as error:  # zlib.error, NotImplementedError and others: damaged archives raise various types
        raise CapoError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _check_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, rule: Rule) -> int:
    """The bytes that a member's array takes; an error if its header, its size and the rule do not agree."""
    kinds, shape = rule
    with archive.open(info) as file:
        found, dtype, header = _header(file)
    if dtype.hasobject or dtype.kind not in kinds:
        raise CapoError(f"{path} is damaged: array {name} has type {dtype}, which is not allowed here")
    if shape is not None and found != shape:
        raise CapoError(f"{path}: array {name} has shape {found}, it must be {shape}")
    size = math.prod(found) * dtype.itemsize
    if header + size != info.file_size:
        raise CapoError(
            f"{path} is damaged: array {name} of shape {found} takes {size} bytes, the file has "
            f"{info.file_size - header}"
        )
    return size


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape and type of an .npy member, and the bytes before its numbers."""
    start = file.read(8)
    if start[:6] != _MAGIC or start[6] not in (1, 2, 3):
        raise ValueError("not an array of numpy")
    width = 2 if start[6] == 1 else 4
    (length,) = struct.unpack("<H" if width == 2 else "<I", file.read(width))
    if length > MOST_HEADER:
        raise ValueError(f"a header of {length} bytes")
    fields = ast.literal_eval(file.read(length).decode("utf-8"))
    shape = tuple(fields["shape"])
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"shape {shape}")
    return shape, np.dtype(fields["descr"]), 8 + width + length


def read_manifest(path: Path, encoded: npt.NDArray[Any], formats: tuple[str, ...]) -> dict[str, Any]:
    """The JSON object in a file's array ``manifest``, of one of the given formats."""
    if encoded.dtype != np.uint8 or encoded.ndim != 1 or encoded.size > MOST_MANIFEST:
        raise CapoError(f"{path} is damaged: its manifest is not text of at most {MOST_MANIFEST} bytes")
    try:
        manifest = parse_json(encoded.tobytes())
    except Unreadable as error:
        raise CapoError(f"{path} is damaged: its manifest {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") not in formats:
        given = manifest.get("format") if isinstance(manifest, dict) else None
        raise CapoError(
            f"{path} has format {given!r}; this version of capo reads {' and '.join(map(repr, formats))}"
        )
    return manifest


def manifest_bytes(manifest: dict[str, Any]) -> npt.NDArray[np.uint8]:
    """A manifest as the array that :func:`read_manifest` reads."""
    return np.frombuffer(json.dumps(manifest).encode(), np.uint8)
