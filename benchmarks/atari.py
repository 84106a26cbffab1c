"""Frames per second on Atari, beside Stable-Baselines3's PPO and DQN: the same game, network and updates.

    python benchmarks/atari.py --out results/benchmarks/atari.json            every case, both sides: ten minutes
    python benchmarks/atari.py --cases ppo --frames 2048 --rounds 1           a shorter look
    python benchmarks/atari.py --out results/benchmarks/atari.json --table    only print the table of that file

Needs the extra atari, torch, stable-baselines3 and opencv-python-headless in the same environment.

Both sides play Pong with 8 environments, frames of 84x84 in stacks of four, the same action for four frames of the
game, and train the convolutions of the Nature paper with a dense layer of 512.

    ppo     8 x 128 steps, 4 epochs of batches of 256: capo's preset atari and Stable-Baselines3's PPO
    dqn     one update on 32 transitions per 4 frames: capo's Rainbow with its parts switched off, and
            Stable-Baselines3's DQN
    ncapo   the same number of updates on as many transitions (8 rollouts of 4 steps): NCAPO, beside that DQN

The environments differ: capo steps ale-py's vector environment in C++ threads, Stable-Baselines3 its usual one
(make_atari_env, one Python process). Sides take turns for some rounds; the first iterations, which compile, are
not timed. A frame is one step of the agent. Ratios are those of the two medians: by the clock, and by the seconds
of the processor (all threads), which another program on the same machine disturbs less.

torch gets one thread or all of them, whichever trains the network faster here: on a busy or virtual machine its
threads can wait for each other many times longer than they compute.

The games are also stepped alone. Their share of a training's time is the most that stepping them while the device
learns could save.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GAME = "Pong"
N_ENVS = 8
HORIZON = 10_000_000
FRAMES = {"ppo": 4096, "dqn": 2048, "ncapo": 2048}  # timed, per round
PEER = {"ppo": "PPO", "dqn": "DQN", "ncapo": "DQN"}
Advance = Callable[[int], None]


def capo_side(case: str, precision: str) -> tuple[Advance, int]:
    """A function that trains for so many frames, and the number of parameters."""
    import capo

    name = f"ALE/{GAME}-v5"
    common: dict[str, Any] = {"network": "nature", "horizon": HORIZON, "n_envs": N_ENVS, "overlap": "acting"}
    common |= {"precision": precision}
    off_policy = {"rollout_length": 4, "gradient_steps": 8, "learning_rate": 1e-4, "width": 512}
    agent: Any
    if case == "ppo":
        settings = {"rollout_length": 128, "batch_size": 256, "epochs": 4, "learning_rate": 2.5e-4}
        agent = capo.PPO(name, "atari", **common, **settings)
    elif case == "ncapo":
        settings = off_policy | {"batch_size": 8, "replay_rollouts": 1024, "layer_norm": False}
        settings |= {"critic_heads": 1, "explorers": 0.0}
        agent = capo.NCAPO(name, "atari", **common, **settings)
    else:
        parts = dict.fromkeys(("distributional", "double", "dueling", "noisy", "prioritised"), False)
        settings = off_policy | parts | {"n_step": 1, "batch_size": 32, "replay_transitions": 4096}
        settings |= {"learning_starts": 256, "hidden_layers": 1, "frame_stack": 4, "reward_clip": 1.0}
        settings |= {"epsilon_start": 0.1, "epsilon_final": 0.1}
        agent = capo.Rainbow(name, **common, **settings)
    return lambda frames: agent.learn(frames), agent.learner.n_parameters


def fastest_torch_threads() -> dict[str, Any]:
    """Milliseconds of a training step of the network on 32 images, by torch's number of threads; sets the best."""
    import torch
    from torch import nn

    convolutions = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3)]
    network = nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU())
    images = torch.rand(32, 4, 84, 84)
    found: dict[int, float] = {}
    for threads in sorted({1, torch.get_num_threads()}):
        torch.set_num_threads(threads)
        seconds = []
        for _ in range(8):
            begin = time.perf_counter()
            network(images).sum().backward()
            seconds.append(time.perf_counter() - begin)
        found[threads] = round(1000 * statistics.median(seconds), 1)
    chosen = min(found, key=lambda threads: found[threads])
    torch.set_num_threads(chosen)
    return {"chosen": chosen, "milliseconds": {str(threads): took for threads, took in found.items()}}


def sb3_side(case: str) -> tuple[Advance, int]:
    """The same for Stable-Baselines3."""
    import ale_py
    import gymnasium
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gymnasium.register_envs(ale_py)
    plain = {"frameskip": 1, "repeat_action_probability": 0.0}
    env = VecFrameStack(make_atari_env(f"ALE/{GAME}-v5", N_ENVS, seed=0, env_kwargs=plain), 4)
    model: Any
    if case == "ppo":
        settings = {"n_steps": 128, "n_epochs": 4, "batch_size": 256, "learning_rate": 2.5e-4, "clip_range": 0.1}
        model = sb3.PPO("CnnPolicy", env, **settings, ent_coef=0.01, seed=0)
        trained = model.policy.parameters()
    else:
        settings = {"batch_size": 32, "train_freq": 1, "gradient_steps": 2, "buffer_size": 4096}
        model = sb3.DQN("CnnPolicy", env, **settings, learning_starts=256, learning_rate=1e-4, seed=0)
        trained = model.q_net.parameters()
    count = sum(parameter.numel() for parameter in trained)
    return lambda frames: model.learn(frames, reset_num_timesteps=False), count


def timed(advance: Advance, frames: int) -> dict[str, float]:
    """Seconds of a training by the clock and of the processor, and the machine's load."""
    wall, processor = time.perf_counter(), time.process_time()
    advance(frames)
    seconds = {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}
    return seconds | {"load": os.getloadavg()[0]}


def measure(case: str, frames: int, rounds: int, precision: str) -> dict[str, Any]:
    """The times of both sides, round by round, and the ratios of their medians (above 1: capo is faster)."""
    threads = fastest_torch_threads()
    sides = {"capo": capo_side(case, precision), "sb3": sb3_side(case)}
    times: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for advance, _ in sides.values():
        advance(1024)  # compiles, and fills the replay beyond the start of learning
    for _ in range(rounds):
        for side, (advance, _) in sides.items():
            times[side].append(timed(advance, frames))
            print(f"{case:6s} {side:5s} {frames / times[side][-1]['wall']:8.1f} frames/s", flush=True)
    return {
        "frames": frames,
        "precision": precision,
        "parameters": {side: count for side, (_, count) in sides.items()},
        "torch_threads": threads,
        "seconds": times,
        "frames_per_second": {side: round(frames / median(times[side], "wall"), 1) for side in sides},
        "ratio": {
            clock: round(median(times["sb3"], clock) / median(times["capo"], clock), 3)
            for clock in ("wall", "processor")
        },
    }


def games_alone(frames: int = 4096) -> float:
    """Frames per second of capo's environments with random actions and nothing else."""
    import numpy as np

    from capo.envs.atari import AtariEnv
    from capo.envs.wrappers import wrap

    vector = wrap(AtariEnv(f"ALE/{GAME}-v5"), 4).open(N_ENVS)
    vector.reset(0)
    actions = np.random.default_rng(0).integers(0, 6, (frames // N_ENVS, N_ENVS))
    begin = time.perf_counter()
    for action in actions:
        vector.step(action)
    speed = frames / (time.perf_counter() - begin)
    vector.close()
    return round(speed, 1)


def median(times: list[dict[str, float]], clock: str) -> float:
    return statistics.median(one[clock] for one in times)


def table(rows: dict[str, Any]) -> str:
    """The results as Markdown; cases that were not run stay empty."""
    lines = [
        "| | capo, frames/s | Stable-Baselines3, frames/s | ratio | ratio by processor time |",
        "|---|---|---|---|---|",
    ]
    for case, peer in PEER.items():
        title = {"ppo": "PPO", "dqn": "Rainbow as plain DQN", "ncapo": "NCAPO"}[case]
        if case not in rows:
            lines.append(f"| {title} beside {peer} | | | | |")
            continue
        speed, ratio = rows[case]["frames_per_second"], rows[case]["ratio"]
        numbers = f"{speed['capo']:,.0f} | {speed['sb3']:,.0f} | {ratio['wall']:.2f} | {ratio['processor']:.2f}"
        lines.append(f"| {title} beside {peer} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what was asked for, print the table, and write the file after every case."""
    parser = argparse.ArgumentParser(description="Frames per second on Atari, beside Stable-Baselines3.")
    parser.add_argument("--out", type=Path, help="file for the results; cases that it holds are kept")
    parser.add_argument("--cases", nargs="+", choices=FRAMES, default=list(FRAMES))
    parser.add_argument("--frames", type=int, help="timed frames per round (default: 4096 for PPO, else 2048)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of capo's side")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    if options.out and options.out.exists():
        rows = json.loads(options.out.read_text())["cases"]
    for case in () if options.table else options.cases:
        rows[case] = measure(case, options.frames or FRAMES[case], options.rounds, options.precision)
        if options.out:
            write(options.out, rows)
    print(table(rows))


def write(path: Path, rows: dict[str, Any]) -> None:
    """The results with hardware, versions and commit."""
    from importlib.metadata import version

    from capo.files import write_json
    from capo.provenance import provenance

    peers = {name: version(name) for name in ("ale-py", "stable-baselines3", "torch")}
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"game": GAME, "n_envs": N_ENVS, "cases": rows, "games_alone_frames_per_second": games_alone()}
    write_json(path, {**content, "peers": peers, **provenance()})


if __name__ == "__main__":
    main()
