"""All five MinAtar games on a CPU: how long NCAPO trains, and how well it plays afterwards.

    python benchmarks/cpu_table.py --out results/benchmarks/cpu_table.json
    python benchmarks/cpu_table.py --out FILE --preset default --games breakout freeway --frames 3e6 --seeds 2
    python benchmarks/cpu_table.py --out FILE --table                     only print the table of finished rows

Each run is `capo train minatar-GAME --preset cpu --frames 10e6` in its own process, one after another. Wall
seconds are from the start of the process to the end of training, imports and compiling included; frames/s are
those of the training alone. The return is the mean of 100 whole episodes at the end, with sampled actions and no
epsilon, sticky actions 0.1, and its standard error: over the episodes of one seed, or over the seeds' means.
The table also has the paper's NCAPO after the same number of frames (read off its curves; it has no Freeway)
and, where the full figure was made (--figure), the final score there.

Finished runs are kept in the file and not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from time_to_score import Clock, Results, Row, measured_here

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


def train(game: str, seed: int, options: argparse.Namespace) -> Row:
    """One run and its evaluation."""
    import capo

    clock = Clock()
    agent = capo.NCAPO(f"minatar-{game}", options.preset, seed=seed)
    agent.learn(options.frames, progress_bar=True)
    wall = clock.seconds()
    found = agent.evaluate(options.episodes)
    return {
        "frames": agent.frames,
        "wall_seconds": round(wall, 1),
        "compile_seconds": round(agent.learner.compile_seconds, 1),
        "training_seconds": round(agent.wall_seconds, 1),
        "frames_per_second": round(agent.frames / agent.wall_seconds),
        "return": round(found.mean, 3),
        "standard_error": round(found.standard_error, 3),
        "settings": agent.config.to_dict(),
    }


def paper_at(game: str, frames: int) -> float | None:
    """The return of the paper's NCAPO after so many frames; None where its curve doesn't say."""
    import numpy as np

    from capo.report import paper

    curve = paper.of_environment(f"minatar-{game}").get("ncapo")
    if curve is None or not curve[0][0] <= frames <= 10.1e6:
        return None
    if frames > curve[0][-1]:
        return paper.final(f"minatar-{game}", "ncapo")
    return float(np.interp(frames, *curve))


def figure_score(folder: Path, game: str) -> str:
    """The final score of every preset in the full figure, and what it is of; a dash where there is none."""
    from capo.runs.reader import Unreadable
    from capo.runs.records import read_result

    found = []
    for file in sorted(folder.glob(f"{game}-ncapo-*.json")):
        try:
            record = read_result(file)
        except Unreadable:
            continue
        if record.finals:
            mean, frames = sum(record.finals.values()) / len(record.finals), (record.frames or 0) / 1e6
            found.append(f"{mean:.1f} ({record.preset}, {frames:.3g} M, {len(record.finals)} seeds)")
    return "; ".join(found) or "-"


def score(rows: list[Row]) -> str:
    """Mean return and standard error."""
    import numpy as np

    returns = [row["return"] for row in rows]
    error = np.std(returns, ddof=1) / len(rows) ** 0.5 if len(rows) > 1 else rows[0]["standard_error"]
    return f"{np.mean(returns):.1f} ± {error:.1f}"


def table(rows: list[Row], figure: Path) -> str:
    """What the rows say, as Markdown."""
    header = ("game", "seeds", "frames", "wall seconds", "frames/s", "return", "the paper's NCAPO", "full figure")
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for game in GAMES:
        found = [row for row in rows if row["game"] == game]
        if not found:
            continue
        seconds, speed = (
            sum(row[key] for row in found) / len(found) for key in ("wall_seconds", "frames_per_second")
        )
        frames = found[0]["frames"]
        theirs = paper_at(game, frames)
        cells: list[Any] = [
            game.replace("_", " "),
            len(found),
            f"{frames / 1e6:.3g} M",
            f"{seconds:.0f}",
            f"{speed:,.0f}",
            score(found),
            "-" if theirs is None else f"{theirs:.1f}",
            figure_score(figure, game),
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, metavar=("GAME", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, required=True, help="JSON file; an existing one is completed")
    parser.add_argument("--games", nargs="*", default=GAMES, choices=GAMES)
    parser.add_argument("--preset", default="cpu", help="preset of NCAPO")
    parser.add_argument("--frames", type=float, default=10e6, help="frames per run, and horizon of its schedules")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=100, help="episodes of the evaluation")
    parser.add_argument("--cores", type=int, default=2, help="cores that a run may use")
    parser.add_argument("--figure", type=Path, default=Path("results/minatar"), help="folder of the full figure")
    parser.add_argument("--table", action="store_true", help="run nothing, only print the table")
    options = parser.parse_args()
    options.frames = int(options.frames)
    if options.episodes < 2:
        parser.error("--episodes: at least two, for a standard error")
    if options.one:
        game, seed = options.one[0], int(options.one[1])
        measured = measured_here(lambda: train(game, seed, options), options.cores)
        print(json.dumps({"game": game, "seed": seed} | measured))
        return
    if options.table:
        print(table(json.loads(options.out.read_text())["rows"], options.figure))
        return
    protocol = {
        "preset": options.preset,
        "frames": options.frames,
        "episodes": options.episodes,
        "cores": options.cores,
        "evaluation": "whole episodes at the end, sampled actions without epsilon, sticky actions 0.1",
    }
    results = Results(options.out, protocol)
    todo = [(game, seed) for seed in range(options.seeds) for game in options.games]
    complete = results.complete(__file__, "game", todo)
    print(table(results.rows, options.figure))
    sys.exit(int(not complete))


if __name__ == "__main__":
    main()
