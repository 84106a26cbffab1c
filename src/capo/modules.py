"""Where modules are imported from."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def without_current_folder() -> Iterator[None]:
    """Nothing is imported from the current folder, unless PYTHONPATH has its absolute path."""
    before = list(sys.path)
    wanted = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(one)]
    here = Path.cwd()
    if not any(Path(one).resolve() == here.resolve() for one in wanted):
        sys.path[:] = [one for one in before if one and Path(one).resolve() != here.resolve()]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
