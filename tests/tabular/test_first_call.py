"""What the first ``capo solve`` of a small MDP loads and compiles: this is what makes it slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
from numba.core import event
from capo.cli import main

class Names(event.Listener):
    def __init__(self): self.names = []
    def on_start(self, happened): self.names.append(happened.data["dispatcher"].py_func)
    def on_end(self, happened): pass

compiled = Names()
event.register("numba:compile", compiled)
main(["solve", *sys.argv[1:]])
ours = sorted(f.__name__ for f in compiled.names if f.__module__.startswith("capo"))
heavy = [name for name in ("jax", "optax", "matplotlib", "rich") if name in sys.modules]
print(json.dumps({"ours": ours, "numba": len(compiled.names) - len(ours), "heavy": heavy}))
"""
UPDATE = ["_add_multiple", "dot", "normalise_row", "run", "sparse_dot"]  # the others are parts of run
WALK = ["advance", "draw", "draw_action"]


def first_solve(cache: Path, *arguments: str) -> dict[str, object]:
    command = [sys.executable, "-c", SCRIPT, *arguments]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("arguments", "kernels"),
    [
        (["chain:10"], UPDATE),
        (["chain:10", "--rule", "on-policy", "--iterations", "50"], sorted(UPDATE + WALK)),
        (["chain:10", "--rule", "batch"], ["normalise_row", "update_all"]),
    ],
    ids=["cyclic", "on-policy", "batch"],
)
def test_a_small_solve_compiles_only_what_it_runs(
    arguments: list[str], kernels: list[str], tmp_path: Path
) -> None:
    first = first_solve(tmp_path, *arguments)
    assert sorted(set(first["ours"])) == kernels  # type: ignore[call-overload]
    # np.empty would compile two of numba's own functions; assigning a row of an array some thirty, for a message.
    assert first["numba"] == 0
    assert first["heavy"] == []
    again = first_solve(tmp_path, *arguments)
    assert (again["ours"], again["numba"]) == ([], 0), "the second time everything comes from the cache"
