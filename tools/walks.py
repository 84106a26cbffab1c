"""Which files of capo three commands go through: an estimate of what one has to read to follow them.

``python tools/walks.py`` runs a small version of each command and lists the modules whose functions were called,
in the order of the first call. Code that only runs while a module is imported or a parser is built does not count.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"
WALKS = {
    "train": "train minatar-breakout --preset cpu --frames 1024 --eval-episodes 2 --out run --set width=8",
    "solve with a certificate": "solve chain:5 --rule cyclic --certificate",
    "reproduce": "reproduce minatar --quick --games breakout --algos ncapo --frames 2048 --seeds 1 --out figure",
}


class Visits:
    """The files of capo whose functions were called, in the order of the first call."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self._importing = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """What sys.setprofile calls."""
        code = frame.f_code
        if not code.co_filename.startswith(str(SOURCE)):
            return
        if code.co_name == "<module>":
            self._importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not self._importing and code.co_name not in ("add_parser", "build_parser"):
            self.files.setdefault(code.co_filename)


def walk(arguments: list[str]) -> list[str]:
    """The files that ``capo ARGUMENTS`` goes through, relative to src/capo."""
    from capo.cli import main

    visits = Visits()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        sys.setprofile(visits)
        threading.setprofile(visits)
        try:
            status = main(arguments)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    if status:
        sys.exit(f"capo {' '.join(arguments)} failed with status {status}")
    return [str(Path(name).relative_to(SOURCE / "capo")) for name in visits.files]


def main() -> None:
    """Walk and list."""
    os.chdir(tempfile.mkdtemp())
    for title, command in WALKS.items():
        files = walk(command.split())
        print(f"{title}: {len(files)} files (capo {command})")
        for name in files:
            print(f"  {name}")


if __name__ == "__main__":
    main()
