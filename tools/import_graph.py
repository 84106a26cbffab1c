"""The import graph of ``src/capo``: who imports whom, cycles, and imports that point upwards.

``python tools/import_graph.py`` prints the problems. ``make architecture`` also draws the rooms
(``docs/images/architecture.svg``). ``tests/test_architecture.py`` keeps the graph clean.

Every import counts, at the top of a module, inside a function, or under ``if TYPE_CHECKING``.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"

# The rooms from the bottom to the top. A module belongs to the longest prefix that fits it. It may import from its
# own room and from every room below. Rooms of one floor must not import each other.
FLOORS: tuple[Mapping[str, tuple[str, ...]], ...] = (
    {
        "basics": (
            "capo.arrays",
            "capo.checks",
            "capo.errors",
            "capo.files",
            "capo.gif",
            "capo.modules",
            "capo.progress",
            "capo.provenance",
            "capo.reading",
        )
    },
    {"update": ("capo.update",)},
    {"tabular": ("capo.tabular",), "envs": ("capo.envs",), "runs": ("capo.runs",)},
    {"neural": ("capo.neural",)},
    {"sweeps": ("capo.sweeps",)},
    {"capo": ("capo",)},  # the package itself: its __init__ names both halves
    {"report": ("capo.report",)},
    {"experiments": ("capo.experiments",)},
    {"commands": ("capo.commands", "capo.cli", "capo.__main__")},
)

# The same inside ``neural``. A module without a place here is bound by the rule on cycles alone.
NEURAL: tuple[Mapping[str, tuple[str, ...]], ...] = (
    {"parts": ("capo.neural.parts",)},
    {"algorithms.base": ("capo.neural.algorithms.base", "capo.neural.algorithms.settings")},
    {"learners": ("capo.neural.learners",)},
    {"trainer": ("capo.neural.trainer",)},
    {"agent": ("capo.neural.agent",)},
    {"algorithms": ("capo.neural.algorithms",)},
    {"registry": ("capo.neural.algorithms.registry",)},
)


@dataclass(frozen=True, order=True)
class Import:
    """``importer`` imports ``imported`` on a line of its file."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer} (line {self.line}) imports {self.imported}"


def modules(source: Path) -> dict[str, Path]:
    """Every module below ``source``, by its dotted name."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(source: Path) -> list[Import]:
    """Every import of one module below ``source`` by another, each pair once, in order."""
    known = modules(source)
    first: dict[tuple[str, str], int] = {}
    for name, path in known.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for target, line in _targets(ast.parse(path.read_text(encoding="utf-8")), package, known):
            if target != name:
                first.setdefault((name, target), line)
    return sorted(Import(*pair, line) for pair, line in first.items())


def _targets(tree: ast.AST, package: str, known: Iterable[str]) -> Iterator[tuple[str, int]]:
    """The modules of ``known`` that a module of ``package`` imports, with the lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                wanted = [alias.name for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                parts = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                base = ".".join([*parts, *([module] if module else [])])
                wanted = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in names]
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                args=[ast.Constant(value=str(text)), *_],
            ):
                wanted = [text]
            case _:
                continue
        for name in wanted:
            if name in known:
                yield name, node.lineno  # type: ignore[attr-defined]


def cycles(edges: Iterable[Import]) -> list[list[Import]]:
    """One shortest cycle for each knot of modules that import each other."""
    out: dict[str, list[Import]] = {}
    for edge in edges:
        out.setdefault(edge.importer, []).append(edge)
    found: list[list[Import]] = []
    explained: set[str] = set()
    for start in sorted(out):
        if start in explained:
            continue
        path = _way_back(start, out)
        if path:
            found.append(path)
            explained |= {edge.importer for edge in path}
    return found


def _way_back(start: str, out: Mapping[str, Sequence[Import]]) -> list[Import]:
    """The shortest way from a module back to itself, or nothing."""
    came: dict[str, Import] = {}
    queue = [start]
    for name in queue:
        for edge in out.get(name, ()):
            if edge.imported in came:
                continue
            came[edge.imported] = edge
            queue.append(edge.imported)
            if edge.imported == start:
                path = [edge]
                while path[-1].importer != start:
                    path.append(came[path[-1].importer])
                return path[::-1]
    return []


def place(module: str, floors: Sequence[Mapping[str, tuple[str, ...]]]) -> tuple[int, str] | None:
    """The floor and the room of a module: those of the longest prefix that fits. None: it has no place."""
    fitting = [
        (len(prefix), floor, room)
        for floor, rooms in enumerate(floors)
        for room, prefixes in rooms.items()
        for prefix in prefixes
        if module == prefix or (module.startswith(f"{prefix}.") and prefix != "capo")
    ]
    return max(fitting)[1:] if fitting else None


def upward(edges: Iterable[Import], floors: Sequence[Mapping[str, tuple[str, ...]]]) -> list[Import]:
    """The imports that point to a higher floor, or to another room of the same floor."""
    found = []
    for edge in edges:
        importer, imported = place(edge.importer, floors), place(edge.imported, floors)
        if importer is None or imported is None or importer == imported:
            continue
        if imported[0] >= importer[0]:
            found.append(edge)
    return found


def homeless(names: Iterable[str]) -> list[str]:
    """The modules that belong to no room."""
    return [name for name in names if place(name, FLOORS) is None]


def problems(source: Path) -> list[str]:
    """What is wrong with the graph, a sentence each."""
    edges = imports(source)
    return [
        *(
            f"{name} belongs to no room: add it to FLOORS in tools/import_graph.py"
            for name in homeless(modules(source))
        ),
        *(f"upward: {edge}" for edge in upward(edges, FLOORS)),
        *(f"upward inside neural: {edge}" for edge in upward(edges, NEURAL)),
        *(
            "cycle: " + " -> ".join([*(edge.importer for edge in ring), ring[0].importer])
            for ring in cycles(edges)
        ),
    ]


# The picture ------------------------------------------------------------------------------------------------

WIDTH, BOX_WIDTH, BOX_HEIGHT, GAP, MARGIN = 900, 200, 52, 58, 24


def draw(source: Path) -> str:
    """The rooms and their imports as an SVG picture, the highest floor at the top."""
    names, edges = modules(source), imports(source)
    count = {room: 0 for rooms in FLOORS for room in rooms}
    for name in names:
        at = place(name, FLOORS)
        if at is not None:
            count[at[1]] += 1
    floors = [[room for room in rooms if count[room]] for rooms in FLOORS]
    floors = [rooms for rooms in floors if rooms][::-1]
    spot = {}
    for row, rooms in enumerate(floors):
        for column, room in enumerate(rooms):
            x = WIDTH * (column + 1) / (len(rooms) + 1)
            spot[room] = (x, MARGIN + row * (BOX_HEIGHT + GAP))
    height = 2 * MARGIN + len(floors) * (BOX_HEIGHT + GAP) - GAP
    weight: dict[tuple[str, str], int] = {}
    for edge in edges:
        importer, imported = place(edge.importer, FLOORS), place(edge.imported, FLOORS)
        if importer and imported and importer != imported and imported[0] > 0:  # every room uses the lowest one
            pair = importer[1], imported[1]
            weight[pair] = weight.get(pair, 0) + 1
    return "\n".join([*_head(height), *_arrows(spot, weight), *_boxes(spot, count), "</svg>", ""])


def _head(height: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        'font-family="sans-serif" font-size="15" text-anchor="middle">',
        "<title>The rooms of capo; an arrow points from the importer to what it imports</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#5f6b7a"/></marker></defs>',
    ]


def _arrows(spot: Mapping[str, tuple[float, float]], weight: Mapping[tuple[str, str], int]) -> Iterator[str]:
    """A curve for each pair of rooms, wider where more modules import; long ones bend outwards."""
    step = BOX_HEIGHT + GAP
    for (importer, imported), number in sorted(weight.items()):
        (x, y), (to_x, to_y) = spot[importer], spot[imported]
        floors = round(abs(to_y - y) / step)
        side = 1 if (x + to_x) / 2 >= WIDTH / 2 else -1
        bend = side * 85 * (floors - 1) if floors > 1 else 0
        shift = side * min(8 * (floors - 1), BOX_WIDTH / 2 - 10)
        start, end = (x + shift, y + BOX_HEIGHT), (to_x + shift, to_y)
        reach = (end[1] - start[1]) * 0.45
        width = min(1 + number / 8, 4)
        yield (
            f'<path d="M{start[0]:.0f} {start[1]:.0f} C{start[0] + bend:.0f} {start[1] + reach:.0f} '
            f'{end[0] + bend:.0f} {end[1] - reach:.0f} {end[0]:.0f} {end[1]:.0f}" fill="none" stroke="#5f6b7a" '
            f'stroke-opacity="0.55" stroke-width="{width:.1f}" marker-end="url(#tip)">'
            f"<title>{importer} imports {imported}: {number} imports</title></path>"
        )


def _boxes(spot: Mapping[str, tuple[float, float]], count: Mapping[str, int]) -> Iterator[str]:
    for room, (x, y) in spot.items():
        modules_of = f"{count[room]} module{'s' if count[room] > 1 else ''}"
        yield (
            f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8" '
            'fill="#e8eef7" stroke="#3b5b92"/>'
        )
        yield f'<text x="{x:.0f}" y="{y + 23:.0f}" fill="#14233c" font-weight="bold">{room}</text>'
        yield f'<text x="{x:.0f}" y="{y + 42:.0f}" fill="#3c4a5e" font-size="12">{modules_of}</text>'


def main() -> int:
    """Print the problems; ``--draw`` writes the picture as well."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--draw", action="store_true", help=f"write {PICTURE.relative_to(ROOT)}")
    options = parser.parse_args()
    found = problems(ROOT / "src")
    print("\n".join(found) or "no cycles, no upward imports")
    if options.draw:
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(draw(ROOT / "src"), encoding="utf-8")
        print(f"wrote {PICTURE.relative_to(ROOT)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
