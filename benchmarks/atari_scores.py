"""Scores on Atari from one preset: a training with its curve and a final evaluation, written as one file.

    python benchmarks/atari_scores.py --game Pong --algorithm ncapo --frames 3000000 --seed 1 --out results/atari
    python benchmarks/atari_scores.py --game Pong --frames 20000 --episodes 2 --out /tmp/atari      a short look
    python benchmarks/atari_scores.py --out results/atari --table         only print the table of the files there

Needs the extra atari. A frame is one step of the agent: four frames of the game. The file
(``pong-ncapo-1.json``) is written again at every log point, so a run that is killed leaves its curve. With
--seconds the training stops at the first log point after so many seconds, and what was reached is evaluated.

The returns of the curve are those of whole games during training, explored actions included; the evaluation plays
whole games with sampled actions and no exploration, by the game's own rewards.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

# What the papers report, in the agent's own steps: DQN after 50 M (Mnih et al. 2015), PPO after 10 M (Schulman et
# al. 2017: the mean of the last 100 training episodes).
PUBLISHED = {"Pong": "DQN 18.9 (50 M), PPO 20.7 (10 M)", "Breakout": "DQN 401.2 (50 M), PPO 274.8 (10 M)"}
ALGORITHMS = ("ncapo", "ppo", "pqn")


def train(options: argparse.Namespace) -> None:
    """Train, evaluate, and write the file."""
    import capo
    from capo.files import write_json
    from capo.provenance import provenance

    path = options.out / f"{options.game.lower()}-{options.algorithm}-{options.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {"ncapo": capo.NCAPO, "ppo": capo.PPO, "pqn": capo.PQN}[options.algorithm]
    overrides = dict(pair.split("=", 1) for pair in options.set)
    preset = "default" if options.algorithm == "pqn" else "atari"
    begin = time.perf_counter()
    agent: Any = made(
        f"ALE/{options.game}-v5", preset, seed=options.seed, log_every=options.log_every, **overrides
    )
    content: dict[str, Any] = {
        "game": options.game,
        "algorithm": options.algorithm,
        "preset": preset,
        "overrides": overrides,
        "config": agent.config.to_dict(),
        "seed": options.seed,
        "parameters": agent.learner.n_parameters,
        "asked_frames": options.frames,
        "frames": 0,
        "training_seconds": 0.0,
        "curve": [],
        "evaluation": None,
        "peers": {"ale-py": _version("ale-py")},
        **provenance(),
    }

    def on_log(_: Any, rows: list[dict[str, float]]) -> bool:
        row = rows[0]
        seconds = time.perf_counter() - begin
        point = {name: _rounded(row.get(name)) for name in _LOGGED}
        content["curve"].append({"frames": int(row["frames"]), "seconds": round(seconds, 1), **point})
        content["frames"], content["training_seconds"] = int(row["frames"]), round(seconds, 1)
        write_json(path, content)
        print(json.dumps(content["curve"][-1]), flush=True)
        return options.seconds is None or seconds < options.seconds

    agent.learn(options.frames, callback=on_log, horizon=options.horizon or options.frames)
    if options.episodes:
        started = time.perf_counter()
        evaluation = agent.evaluate(episodes=options.episodes)
        content["evaluation"] = {**evaluation.to_dict(), "seconds": round(time.perf_counter() - started, 1)}
        write_json(path, content)
        print(evaluation, flush=True)
    agent.close()


def _name(run: dict[str, Any]) -> str:
    """The algorithm; of NCAPO also how advantages are weighted, and which loss its actor has."""
    config = run["config"]
    if run["algorithm"] != "ncapo":
        return str(run["algorithm"])
    return f"ncapo, {config['advantage_weight']}, {config['kl']}"


_LOGGED = ("episodes", "episode_return", "episode_length", "entropy", "value", "critic_loss", "frames_per_second")


def _rounded(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(float(value), 4)


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def table(folder: Path) -> str:
    """All runs in a folder as Markdown."""
    lines = [
        "| game | algorithm | seed | frames | minutes | frames/s | evaluation | last 100,000 frames of training |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob("*.json")):
        run = json.loads(path.read_text())
        curve, score = run["curve"], run["evaluation"]
        recent = [p for p in curve if p["frames"] > run["frames"] - 100_000 and p["episodes"]]
        count = sum(p["episodes"] for p in recent)
        mean = sum(p["episodes"] * p["episode_return"] for p in recent) / count if count else math.nan
        seconds = run["training_seconds"]
        said = "-" if score is None else f"{score['mean']:.1f} ({score['episodes_per_seed']} games)"
        lines.append(
            f"| {run['game']} | {_name(run)} | {run['seed']} | {run['frames']:,} | {seconds / 60:.1f} | "
            f"{run['frames'] / seconds:,.0f} | {said} | {mean:.1f} |"
        )
    games = sorted(PUBLISHED)
    published = "; ".join(f"{game}: {PUBLISHED[game]}" for game in games)
    return "\n".join([*lines, "", f"Published, with the agent's steps: {published}."])


def main() -> None:
    """Train what was asked for, or print the table."""
    parser = argparse.ArgumentParser(description="Scores on Atari from one preset.")
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="ncapo")
    parser.add_argument("--frames", type=int, default=3_000_000, help="steps of the agent")
    parser.add_argument("--horizon", type=int, help="frames over which the schedules run (default: --frames)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="stop training after so many seconds")
    parser.add_argument("--episodes", type=int, default=30, help="of the final evaluation; 0 for none")
    parser.add_argument("--log-every", type=int, default=50_000, help="frames between two points of the curve")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings beside the preset's")
    parser.add_argument("--out", type=Path, default=Path("results/atari"), help="folder for the file")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    if options.table:
        print(table(options.out))
    else:
        train(options)


if __name__ == "__main__":
    main()
