"""What produced a result: versions, commit and hardware. Every results file records them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("capo-rl", "numpy", "scipy", "numba", "jax", "jaxlib", "optax", "pgx", "gymnasium")


def versions() -> dict[str, str]:
    """The versions of Python and of the installed packages that results depend on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of capo's own source, with ``+changes`` if it has any.

    The environment variable ``CAPO_COMMIT`` overrides it: a copy on another machine has no history, or the wrong
    one. None if this is not a git checkout.
    """
    if os.environ.get("CAPO_COMMIT"):
        return os.environ["CAPO_COMMIT"]
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # An installed copy may lie inside somebody else's checkout: it counts only if git tracks this file.
        git("ls-files", "--error-unmatch", here.name)
        changes = git("status", "--porcelain", "--untracked-files=no", "--", str(here.parent))
        return git("rev-parse", "HEAD") + ("+changes" if changes else "")
    except (OSError, subprocess.SubprocessError):
        return None


def usable_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def hardware() -> dict[str, Any]:
    """The machine: processor, cores this process may use, and the accelerator where jax is in use."""
    found: dict[str, Any] = {"system": platform.platform(), "processor": _processor(), "cores": usable_cores()}
    if "jax" in sys.modules:  # the tabular half does not import it
        jax = sys.modules["jax"]
        found |= {"backend": jax.default_backend(), "devices": [device.device_kind for device in jax.devices()]}
    return found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def provenance() -> dict[str, Any]:
    """Versions, commit and hardware as one dictionary for JSON."""
    return {"versions": versions(), "commit": commit(), "hardware": hardware()}
