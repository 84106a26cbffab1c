"""Writing files so that a crash never leaves half of one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from capo.errors import CapoError


def prepare_folder(path: str | Path) -> Path:
    """Create a folder for output and prove that it can be written to, before any long work starts."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise CapoError(f"{folder} is a file: give a folder for the output")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CapoError(f"cannot write to {folder}: {error.strerror or error}") from error
    return folder


def write_atomically(path: str | Path, write: Callable[[IO[bytes]], object]) -> Path:
    """Write a file as a whole or not at all: a temporary file beside it, flush, rename."""
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise CapoError(f"cannot write {target}: {error.strerror or error}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp's files are private; an output file is not
        os.replace(name, target)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise CapoError(f"cannot write {target}: {error.strerror or error}") from error
        raise
    return target


def write_json(path: str | Path, content: Any) -> Path:
    """Write ``content`` as indented JSON, atomically."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    return write_atomically(path, lambda file: file.write(text.encode()))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
