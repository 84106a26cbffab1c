"""Record the golden numbers anew: ``python tests/golden/record.py [GROUP ...] [--out FOLDER]``.

If results of trainings moved, ``SEMANTICS`` in ``src/capo/runs/semantics.py`` has to be raised.

To be run only where results are meant to change, and the change in the JSON files is to be read before it is kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from golden_store import FOLDER, XLA_FLAGS, describe, record_semantics, write

os.environ["XLA_FLAGS"] = XLA_FLAGS  # before jax is imported


def main() -> None:
    """Compute the cases of the groups asked for, and write their files."""
    from golden_cases import GROUPS

    from capo.runs.semantics import SEMANTICS

    parser = argparse.ArgumentParser(description="Record the golden numbers anew.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the files (default: beside this one)")
    parser.add_argument("--digests", action="store_true", help="record only which semantics number they belong to")
    options = parser.parse_args()
    for group in () if options.digests else options.groups or GROUPS:
        cases = {}
        for name, compute in GROUPS[group].items():
            started = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                cases[name] = describe(compute(Path(folder)))
            print(f"{group}: {name} ({time.perf_counter() - started:.1f} s)", flush=True)
        write(options.out / f"{group}.json", cases)
    if options.out == FOLDER:
        record_semantics(SEMANTICS)


if __name__ == "__main__":
    main()
