"""The head of a test report says how the golden numbers are compared: bit for bit or within a tolerance."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "golden"))  # for golden_store and golden_cases

import golden_store


def pytest_report_header() -> str:
    """One line; the numbers themselves are in tests/golden."""
    return golden_store.header()
