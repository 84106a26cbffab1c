"""One look for all figures: sizes, a palette that colour-blind readers can distinguish, legends below the panels.

matplotlib is an optional extra and is imported only when something is drawn.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from capo.errors import CapoError
from capo.files import atomic_file

# Okabe and Ito's palette, ordered so that neighbours differ in lightness too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
HIGHLIGHT = "#D55E00"  # what a figure is about
MUTED = "#6b6b6b"
_STYLE = {
    "figure.dpi": 100,
    "savefig.dpi": 125,
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.8,
}


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def matplotlib() -> Any:
    """The matplotlib package with a backend that needs no display, or an error that says how to install it."""
    try:
        import matplotlib as package
    except ImportError:
        raise CapoError("figures need matplotlib, which is not installed: pip install 'capo-rl[report]'") from None
    package.use("Agg")
    return package


def shades(n: int) -> list[Any]:
    """n colours from dark to light for values of one ordered quantity; they differ in greyscale too."""
    matplotlib()
    from matplotlib import colormaps

    return [colormaps["viridis"](0.05 + 0.82 * i / max(n - 1, 1)) for i in range(n)]


def short_number(value: float, _: object = None) -> str:
    """A number for an axis of frames.

    >>> short_number(1_500_000), short_number(20_000), short_number(500)
    ('1.5M', '20k', '500')
    """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def darker(colour: str, share: float) -> str:
    """A colour ``#rrggbb`` with ``share`` of black in it.

    >>> darker("#D55E00", 0.5)
    '#6a2f00'
    """
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{int(part * (1 - share)):02x}" for part in parts)


@contextmanager
def figure(
    path: Path, rows: int = 1, columns: int = 1, size: tuple[float, float] = (7.0, 4.5), **options: Any
) -> Iterator[tuple[Any, Any]]:
    """A figure with a grid of axes, written to ``path`` (PNG) when the block ends.

    Args:
        path: of the file, which appears whole or not at all.
        rows, columns: of axes.
        size: in inches, at 125 dots each.
        **options: for ``plt.subplots``.
    """
    package = matplotlib()
    import matplotlib.pyplot as plt

    with package.rc_context(_STYLE):
        drawing, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", **options)
        try:
            yield drawing, axes
            # Without the version of matplotlib in it, the same data give the same file.
            with atomic_file(path) as file:
                drawing.savefig(file, format="png", metadata={"Software": None})
        finally:
            plt.close(drawing)


def legend_below(drawing: Any, axes: Sequence[Any], columns: int = 7, **options: Any) -> None:
    """One legend for all panels, below them, where it covers no curve; it shows the first line of each name."""
    found: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    drawing.legend(
        found.values(), found.keys(), loc="outside lower center", ncols=min(columns, len(found)), **options
    )
