"""The head of a test report says how the golden numbers are compared; no test leaves an algorithm behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "golden"))  # for golden_store and golden_cases

import golden_store


@pytest.fixture(autouse=True)
def no_algorithm_left_behind() -> Iterator[None]:
    """What a test or a page of the docs registers is gone after it."""
    yield
    registry = sys.modules.get("capo.neural.algorithms.registry")  # a test without it need not import jax
    for row in [*registry.ROWS.values()] if registry else ():
        if not row.algorithm.__module__.startswith("capo."):
            del registry.ROWS[row.name]


def pytest_report_header() -> str:
    """One line; the numbers themselves are in tests/golden."""
    return golden_store.header()
