"""Writing files: whole or not at all, and with an error that says what to do when the disk refuses.

A write goes to a temporary file in the same folder, is flushed to the disk, and is then renamed. At any moment a
reader (or a process that starts after a ``kill -9``) sees the old file or the new one, never a part of either.
"""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from capo.errors import CapoError


class DiskError(CapoError):
    """A write failed; the existing files are intact."""


@contextmanager
def disk_errors(path: str | Path) -> Iterator[None]:
    """Turn an ``OSError`` about ``path`` into a :class:`DiskError` that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskError(f"{path}: the disk is full; free some space") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise DiskError(f"cannot write {path} ({error.strerror}); choose another folder") from error
        raise DiskError(f"cannot write {path} ({error.strerror or error})") from error


def open_regular(path: str | Path, flags: int, *, follow: bool = False, mode: int = 0o666) -> int:
    """A descriptor of a regular file: a link, a pipe or a device is refused, and nothing waits.

    Args:
        path: the file.
        flags: of ``os.open``.
        follow: whether ``path`` itself may be a symbolic link, as a name that the user gave may be.
        mode: of a new file, before the umask.

    Raises:
        OSError: if it cannot be opened, or is something else than a regular file.
    """
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags | (0 if follow else getattr(os, "O_NOFOLLOW", 0)), mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK) and os.path.islink(path):
            raise OSError(error.errno, "it is a symbolic link; put a file in its place", str(path)) from None
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, or a socket
            raise OSError(error.errno, "it is not a regular file", str(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_folder(path: str | Path) -> Path:
    """Create a folder and those above it, so that they survive a power cut; returns the path."""
    folder = Path(path)
    missing = [one for one in (folder, *folder.absolute().parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync_folder(one.absolute().parent)
    return folder


def prepare_folder(path: str | Path) -> Path:
    """Create a folder for output and check that it can be written to, before any long work starts."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise CapoError(f"{folder} is a file: give a folder for the output")
    with disk_errors(folder):
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    return folder


class _Writer(io.RawIOBase):
    """A file on an open descriptor, without a buffer: every byte goes through ``os.write``."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._descriptor, offset, whence)

    def write(self, data: Any) -> int:
        """Write all of ``data``; ``os.write`` may take only a part of it at a time."""
        view = memoryview(data)
        total = len(view)
        while len(view):
            view = view[os.write(self._descriptor, view[: 1 << 24]) :]
        return total


@contextmanager
def atomic_file(path: str | Path) -> Iterator[IO[bytes]]:
    """A binary file that appears at ``path`` complete and on the disk, or not at all.

    Raises:
        DiskError: if the disk is full or the folder cannot be written; ``path`` is then as it was before.
    """
    target = Path(path)
    with disk_errors(target):
        # A name that nobody can guess, and O_EXCL: a file or link that somebody put there is never written to.
        temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        descriptor = open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            try:
                yield cast(IO[bytes], _Writer(descriptor))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make new names in ``folder`` survive a power cut; does nothing where folders cannot be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write ``data`` atomically; returns the path."""
    with atomic_file(path) as file:
        file.write(data)
    return Path(path)


def write_text(path: str | Path, text: str) -> Path:
    """Write ``text`` as UTF-8, atomically; returns the path."""
    return write_bytes(path, text.encode())


def write_json(path: str | Path, content: Any, *, allow_nan: bool = False) -> Path:
    """Write ``content`` as indented JSON, atomically; returns the path.

    Args:
        path: the file.
        content: what ``json.dumps`` takes.
        allow_nan: write NaN and infinity as JavaScript spells them, which strict JSON has no word for.
    """
    return write_text(path, json.dumps(content, indent=2, allow_nan=allow_nan) + "\n")
