"""Build the wheel, install it in a venv of its own, and use it from a folder outside the checkout.

It finds what tests in a checkout cannot: files missing from the wheel and undeclared dependencies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = (
    ("capo", "--version"),
    ("capo", "solve", "chain:10", "--rule", "cyclic", "--certificate"),
    ("capo", "train", "CartPole-v1", "--frames", "512", "--eval-episodes", "2", "--out", "cartpole"),
    ("capo", "report", "cartpole", "--out", "report.html"),
    ("capo", "reproduce", "bandit", "--quick", "--out", "bandit"),
    ("python", "-c", "import capo; print(capo.__file__, capo.__version__)"),
)


def run(*command: str | Path, cwd: Path) -> None:
    """Run a command, shown first; a failure ends the script."""
    print("$", *command, flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([str(part) for part in command], cwd=cwd, env=environment, check=True)


def main() -> None:
    """Build, install, use."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        programs = folder / "venv" / "bin"
        run(programs / "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
        (wheel,) = folder.glob("*.whl")
        run(programs / "pip", "install", "--quiet", f"{wheel}[gym,report]", cwd=folder)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        for program, *arguments in COMMANDS:
            run(programs / program, *arguments, cwd=elsewhere)
    print(f"{wheel.name}: built, installed and used")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"make wheel-check: {' '.join(error.cmd)} failed with status {error.returncode}")
