"""Writing files so that a crash never leaves half of one, and naming what wrote them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from capo.errors import CapoError

_PACKAGES = ("capo-rl", "numpy", "scipy", "numba", "jax", "optax", "gymnasium", "pgx")


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


def provenance() -> dict[str, Any]:
    """What wrote a result: versions, commit, hardware."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {"versions": versions, "commit": _commit(), "hardware": {"cpu": _cpu(), "cores": os.cpu_count()}}


def _commit() -> str | None:
    """The checkout's commit, with ``+`` when tracked files differ from it; None outside a checkout."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        run = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True, timeout=5)
        return run.stdout.strip()

    try:
        if git("ls-files", "--error-unmatch", Path(__file__).name) == "":
            return None  # installed inside somebody else's checkout
        dirty = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if dirty else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
