"""The progress bar of notebooks."""

from __future__ import annotations

import io
import sys
from types import ModuleType
from typing import Any

import pytest

from capo.progress import Lines, Notebook, show_progress


class Handle:
    """What IPython's display returns: remembers what is drawn."""

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def __call__(self, drawn: str, display_id: bool) -> Handle:
        assert display_id
        self.drawn.append(drawn)
        return self

    def update(self, drawn: str) -> None:
        self.drawn.append(drawn)


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Handle:
    handle = Handle()
    module = ModuleType("IPython.display")
    module.HTML, module.display = str, handle  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return handle


def notebook_stream() -> Any:
    return type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()


def test_a_notebook_gets_a_bar_that_is_redrawn_in_place(handle: Handle) -> None:
    stream = notebook_stream()
    shown = show_progress(True, stream, final=True)
    assert isinstance(shown, Notebook)
    shown.message("compiled in 3 s <done>")
    shown.show("return 7 & more", 0.256)
    shown.close()
    last = handle.drawn[-1]
    assert "compiled in 3 s &lt;done&gt;" in last
    assert 'value="0.2560"' in last
    assert "25%  return 7 &amp; more" in last
    assert not stream.getvalue()


def test_a_quick_computation_leaves_no_bar_behind(handle: Handle) -> None:
    shown = show_progress(True, notebook_stream())
    shown.show("half", 0.5)
    assert "<progress" in handle.drawn[-1]
    shown.close()
    assert handle.drawn[-1] == ""


def test_other_streams_get_lines() -> None:
    assert isinstance(show_progress(True, io.StringIO()), Lines)
