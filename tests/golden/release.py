"""Keep half-finished runs of this version, for all later ones: ``python tests/golden/release.py``.

To be run once for every version that is released. Later versions must load these runs, and either finish them with
the recorded numbers or refuse, since they compute something else (see ``capo.runs.semantics``).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from golden_store import FOLDER, XLA_FLAGS, describe, write

os.environ["XLA_FLAGS"] = XLA_FLAGS  # before jax is imported

RELEASED = FOLDER / "released"
ALGORITHMS = ("ncapo", "ppo", "rainbow")
STOP, FRAMES = 48, 80


def main() -> None:
    """Train half of a run for some algorithms, keep it, and record how it ends."""
    from golden_cases import agent_class, tiny

    import capo

    for algorithm in ALGORITHMS:
        folder = RELEASED / capo.__version__ / algorithm
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        make = agent_class(algorithm)
        agent = make("probe-both", seeds=2, out=folder, log_every=16, keep=1, **tiny(algorithm, "default"))
        agent.learn(FRAMES, callback=lambda one, _: one.frames < STOP)
        (folder / ".lock").unlink()
        with tempfile.TemporaryDirectory() as copy:
            write(folder / "expected.json", {"finished": describe(finish(folder, Path(copy) / "run"))})


def finish(folder: Path, copy: Path, **options: object) -> dict[str, object]:
    """What comes out if a copy of a kept run is finished."""
    from golden_cases import agent_class, metrics, state

    shutil.copytree(folder, copy)
    agent = agent_class(folder.name).resume(copy, **options)
    agent.learn(agent.frames_left)
    return metrics(copy / "metrics.csv") | state(agent.save(copy / "agent"))


if __name__ == "__main__":
    main()
