"""One training of one algorithm on one task, and what there is to store of it."""

from __future__ import annotations

import os
import sys
import time
from importlib import metadata
from typing import Any

import numpy as np

from suite_parts.tasks import Task, register

Row = dict[str, Any]
OURS = ("ncapo", "ppo", "pqn")
PEERS = ("sb3-ppo", "sb3-dqn")
ALGORITHMS = ("random", *PEERS, *OURS)
TITLES = {
    "random": "random",
    "ncapo": "NCAPO",
    "ppo": "PPO",
    "pqn": "PQN",
    "sb3-ppo": "SB3 PPO",
    "sb3-dqn": "SB3 DQN",
}
MOST_STEPS = 1000  # of an evaluated episode: every task ends earlier by itself


def train(task: Task, algorithm: str, seed: int, frames: int) -> Row:
    """Train, evaluate, and measure; the clocks run over training alone, compiling included."""
    register()
    frames = min(frames, task.frames)
    load = os.getloadavg()
    wall, processor = time.perf_counter(), time.process_time()
    if algorithm == "random":
        model, settings = None, {}
    elif algorithm in OURS:
        model, settings = train_ours(task, algorithm, seed, frames)
    else:
        model, settings = train_peer(task, algorithm, seed, frames)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    returns, deterministic = evaluate(task, model, seed, algorithm)
    return {
        "env": task.name,
        "algorithm": algorithm,
        "seed": seed,
        "frames": frames,
        "mean": float(returns.mean()),
        "deterministic": deterministic,
        "episodes": len(returns),
        "lowest": float(returns.min()),
        "highest": float(returns.max()),
        "std": float(returns.std()),
        "wall_seconds": round(wall, 2),
        "processor_seconds": round(processor, 2),
        "load_average_before": [round(one, 2) for one in load],
        "settings": settings,
        "made_by": made_by(),
    }


def train_ours(task: Task, algorithm: str, seed: int, frames: int) -> tuple[Any, Row]:
    """An agent of capo with its default, by the calls of ``capo train``."""
    from capo.neural.algorithms import registry

    agent = registry.find(algorithm).agent(task.capo_env, seed=seed)
    agent.learn(frames)
    return agent, {"preset": "default", **agent.config.to_dict()}


def train_peer(task: Task, algorithm: str, seed: int, frames: int) -> tuple[Any, Row]:
    """Stable-Baselines3's side: one environment and no setting but the policy's kind, as its guide begins."""
    import gymnasium
    import stable_baselines3 as sb3
    import torch

    torch.set_num_threads(1)
    kind = {"sb3-ppo": sb3.PPO, "sb3-dqn": sb3.DQN}[algorithm]
    model = kind("MlpPolicy", gymnasium.make(task.gymnasium_id), seed=seed, device="cpu")
    model.learn(frames)
    return model, {"policy": "MlpPolicy", "n_envs": 1, "otherwise": "the defaults of this version"}


def evaluate(task: Task, model: Any, seed: int, algorithm: str) -> tuple[Any, bool]:
    """Returns (episodes,) of whole episodes, and whether the best actions were taken instead of sampled ones."""
    if algorithm in OURS:
        found = model.evaluate(task.episodes, seed=seed)
        return found.returns[0], found.deterministic
    return play(task, model, seed), model is not None


def play(task: Task, model: Any, seed: int) -> Any:
    """Returns of whole episodes side by side: the model's best actions, or uniform ones without a model."""
    import gymnasium

    envs = [gymnasium.make(task.gymnasium_id) for _ in range(task.episodes)]
    rng = np.random.default_rng(seed)
    first = 1_000_000 + 10_000 * seed
    obs = np.stack([np.asarray(env.reset(seed=first + i)[0]) for i, env in enumerate(envs)])
    total, running = np.zeros(task.episodes), np.arange(task.episodes)
    for _ in range(MOST_STEPS):
        if model is None:
            actions = rng.integers(0, envs[0].action_space.n, len(running))
        else:
            actions, _ = model.predict(obs[running], deterministic=True)
        ended = np.zeros(len(running), bool)
        for k, (i, action) in enumerate(zip(running, actions, strict=True)):
            obs[i], reward, terminated, truncated, _ = envs[i].step(int(action))
            total[i] += float(reward)
            ended[k] = terminated or truncated
        running = running[~ended]
        if not len(running):
            return total
    raise SystemExit(f"{task.name}: an episode did not end within {MOST_STEPS} steps")


def made_by() -> Row:
    """Versions, commit and hardware."""
    from capo.provenance import provenance

    found = provenance()
    for package in ("stable-baselines3", "torch", "minigrid"):
        if package.replace("-", "_") in sys.modules:
            found["versions"][package] = metadata.version(package)
    return found
