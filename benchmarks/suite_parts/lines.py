"""A file of rows, one line of JSON each, to which rows are only added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Lines:
    """The rows of a file. A last line that a kill has cut short is ignored, and replaced by the next row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        self._whole = 0  # bytes of complete lines
        if path.exists():
            text = path.read_bytes()
            self._whole = text.rfind(b"\n") + 1
            self.rows = [json.loads(line) for line in text[: self._whole].splitlines()]

    def has(self, **what: Any) -> bool:
        """Whether there is a row with these values."""
        return any(all(row[key] == value for key, value in what.items()) for row in self.rows)

    def add(self, row: Row) -> None:
        """Write a row at the end."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(row).encode() + b"\n"
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.truncate(self._whole)
            file.seek(self._whole)
            file.write(line)
        self._whole += len(line)
        self.rows.append(row)
