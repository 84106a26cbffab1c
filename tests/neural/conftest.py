"""Most of these tests' time is compiling: machine code is not optimised, and kept in a shared cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # before jax is imported

import jax
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for helpers_shell, which import-mode importlib does not find


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """jax's own cache of compiled programs, for the tests and the processes they start."""
    base = tmp_path_factory.getbasetemp()
    # Under pytest-xdist every worker has a folder of its own inside the session's.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "jax-cache"
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            jax.config.update(name, value)
            patch.setenv(name.upper(), str(value))
        yield
