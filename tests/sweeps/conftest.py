"""Most of these tests' time is compiling: machine code is not optimised, and kept in a shared cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # before jax is imported

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for small and slow_tasks


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """jax's own cache of compiled programs, for the processes that these tests start."""
    base = tmp_path_factory.getbasetemp()
    # Under pytest-xdist every worker has a folder of its own inside the session's.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "jax-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
        yield
