"""Reading files that somebody else may have written.

Only regular files are read, so a pipe cannot hold the program up; only up to a size, so that a small file cannot
take all memory; and JSON only up to a depth. Nothing that is read is run: there is no pickle anywhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from capo.errors import CapoError
from capo.files import open_regular

MAX_DEPTH = 32  # of lists and objects inside each other
JSON_LIMIT = 64_000_000  # bytes


class Unreadable(Exception):
    """A file that cannot be used, and why."""


@contextmanager
def read_errors(path: str | Path) -> Iterator[None]:
    """Turn an ``OSError`` about ``path`` (no permission, a name too long) into a :class:`CapoError`."""
    try:
        yield
    except OSError as error:
        raise CapoError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_bytes(path: str | Path, limit: int, *, follow: bool = False) -> bytes:
    """A regular file's content.

    Args:
        path: the file.
        limit: the most bytes that it may have.
        follow: whether ``path`` itself may be a symbolic link, as a name that the user gave may be.

    Raises:
        Unreadable: if it is missing, too large, or not a regular file; says which.
    """
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY, follow=follow), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise Unreadable(f"has {size:,} bytes; at most {limit:,} are allowed")
            return file.read(limit + 1)[:limit]
    except FileNotFoundError:
        raise Unreadable("is missing") from None
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror or error})") from None


def parse_json(data: bytes | str) -> Any:
    """JSON of a bounded depth.

    Raises:
        Unreadable: if it is not UTF-8 or not JSON, or nested too deeply.
    """
    too_deep = Unreadable(f"is nested more than {MAX_DEPTH} levels deep")
    try:
        text = data if isinstance(data, str) else data.decode()
        found = json.loads(text)
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not valid JSON: byte {error.start} is not UTF-8") from None
    except ValueError as error:
        raise Unreadable(f"is not valid JSON, perhaps truncated ({error})") from None
    except RecursionError:
        raise too_deep from None
    level: list[Any] = [found]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for one in level
            if isinstance(one, list | dict)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, list | dict)
        ]
        if not level:
            return found
    raise too_deep


def escaped(text: str) -> str:
    """Text from a file, safe to print: whatever could control the screen is spelled out."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def read_json(path: Path, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        Unreadable: if it is missing, damaged or something else; says which.
    """
    found = parse_json(read_bytes(path, limit))
    if not isinstance(found, dict):
        raise Unreadable("is not a file that capo writes")
    return found


def free_memory() -> int | None:
    """Bytes of memory that this process can still take; None if unknown."""
    free: list[int] = []
    try:
        with open("/proc/meminfo") as lines:
            free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        if not free:
            free.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError):
        pass
    limit = _limit_left()
    return min([*free, *([] if limit is None else [limit])], default=None)


def _limit_left() -> int | None:
    """What ``ulimit -v`` leaves to this process; None where there is no such limit."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError):
        return None
    return max(limit - used, 0)
