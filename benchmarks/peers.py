"""PPO and A2C compared with Stable-Baselines3's: same settings, same frames, many seeds.

    python benchmarks/peers.py --out results/peers                        all cases, 10 seeds
    python benchmarks/peers.py --out results/peers --cases ppo:cartpole --seeds 10 --frames 50000
    python benchmarks/peers.py --out results/peers --table                only print the table of finished rows

Both sides use Stable-Baselines3's defaults, 8 environments, its MLP (two layers of 64, tanh) and the same
Gymnasium environments (Breakout is the original MinAtar package). Two numbers per seed: the mean return of 50
episodes played at the end with sampled actions, by the same code for both, and the mean return of all
training episodes. The interval is Welch's 95 % interval of the difference of the seeds' means.

Each finished side of a case is kept as a file in the folder and not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

ENVS = {"cartpole": "CartPole-v1", "breakout": "MinAtar/Breakout-v1"}
FRAMES = {"cartpole": 50_000, "breakout": 300_000}
CASES = [f"{algo}:{env}" for env in ENVS for algo in ("ppo", "a2c")]
N_ENVS, EPISODES = 8, 50


def play(model: Any, env_name: str, seed: int) -> float:
    """Mean return of sampled play, by one loop for both libraries."""
    import gymnasium

    envs = [gymnasium.make(env_name) for _ in range(EPISODES)]
    obs = np.stack([env.reset(seed=10_000 * (seed + 1) + i)[0] for i, env in enumerate(envs)])
    total, running = np.zeros(EPISODES), np.ones(EPISODES, bool)
    while running.any():
        actions, _ = model.predict(obs, deterministic=False)
        for i in np.flatnonzero(running):
            obs[i], reward, terminated, truncated, _ = envs[i].step(int(actions[i]))
            total[i] += float(reward)
            running[i] = not (terminated or truncated)
    return float(total.mean())


def run_capo(algo: str, env_name: str, frames: int, seeds: int) -> list[dict[str, float]]:
    """Our side: one agent, its seeds one after another."""
    import capo
    from capo.neural.algorithms import registry as algorithms

    rows: list[dict[str, float]] = []
    settings: dict[str, Any] = {"network": "mlp"}
    if "MinAtar" in env_name:  # the preset for grids is not Stable-Baselines3's: its plain defaults are
        settings = algorithms.find(algo).settings.preset("default", "CartPole-v1").to_dict() | settings
        del settings["horizon"]
    agent: capo.PPO = algorithms.find(algo).agent(env_name, seeds=seeds, **settings)  # type: ignore[assignment]
    begin = time.perf_counter()
    agent.learn(frames, callback=lambda _, new: rows.extend(new) is None)
    seconds = (time.perf_counter() - begin) / seeds
    found = []
    for seed in range(seeds):
        mine = [row for row in rows if row["seed"] == seed and row["episodes"]]
        episodes = np.array([row["episodes"] for row in mine])
        training = float(np.array([row["episode_return"] for row in mine]) @ episodes / episodes.sum())
        final = play(agent.use_seed(seed), env_name, seed)
        found.append({"seed": seed, "final": final, "training": training, "seconds": seconds})
        print(algo, env_name, "capo", found[-1], flush=True)
    return found


def run_sb3(algo: str, env_name: str, frames: int, seeds: int) -> list[dict[str, float]]:
    """Stable-Baselines3's side."""
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)

    class Episodes(BaseCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.returns: list[float] = []

        def _on_step(self) -> bool:
            self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            return True

    found = []
    for seed in range(seeds):
        env = make_vec_env(env_name, n_envs=N_ENVS, seed=seed)
        more = {"n_steps": 256} if algo == "ppo" else {}
        model = getattr(sb3, algo.upper())("MlpPolicy", env, seed=seed, device="cpu", **more)
        episodes = Episodes()
        begin = time.perf_counter()
        model.learn(frames, callback=episodes)
        seconds = time.perf_counter() - begin
        final = play(model, env_name, seed)
        training = float(np.mean(episodes.returns))
        found.append({"seed": seed, "final": final, "training": training, "seconds": seconds})
        print(algo, env_name, "sb3", found[-1], flush=True)
    return found


def difference(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Difference of the means and half the width of Welch's 95 % interval."""
    from scipy import stats

    a, b = np.array(ours), np.array(theirs)
    va, vb = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    if va + vb == 0:  # every seed of both sides has the same return
        return float(a.mean() - b.mean()), 0.0
    freedom = (va + vb) ** 2 / max(va**2 / (len(a) - 1) + vb**2 / (len(b) - 1), 1e-300)
    return float(a.mean() - b.mean()), float(stats.t.ppf(0.975, freedom) * np.sqrt(va + vb))


def table(out: Path) -> dict[str, Any]:
    """What the files in ``out`` say, as rows and as Markdown."""
    rows = []
    for case in CASES:
        files = [out / f"{case.replace(':', '-')}-{side}.json" for side in ("capo", "sb3")]
        if not all(file.exists() for file in files):
            continue
        ours, theirs = (json.loads(file.read_text()) for file in files)
        for what in ("final", "training"):
            a, b = ([one[what] for one in side["runs"]] for side in (ours, theirs))
            if min(len(a), len(b)) < 2:
                continue
            shift, half = difference(a, b)
            inside = max(abs(shift - half), abs(shift + half)) <= 0.15 * abs(np.mean(b))
            rows.append(
                {
                    "case": case,
                    "return": what,
                    "frames": ours["frames"],
                    "seeds": [len(a), len(b)],
                    "capo": round(float(np.mean(a)), 2),
                    "sb3": round(float(np.mean(b)), 2),
                    "difference": round(shift, 2),
                    "interval_95": [round(shift - half, 2), round(shift + half, 2)],
                    "within_15_percent": bool(inside),
                    "capo_frames_per_second": round(ours["frames"] / ours["runs"][0]["seconds"]),
                    "sb3_frames_per_second": round(theirs["frames"] / theirs["runs"][0]["seconds"]),
                }
            )
    lines = ["| case | return | frames | seeds | capo | SB3 | difference (95 %) | within 15 % |", "|---" * 8 + "|"]
    for row in rows:
        low, high = row["interval_95"]
        lines.append(
            f"| {row['case']} | {row['return']} | {row['frames']:,} | {row['seeds'][0]} + {row['seeds'][1]} | "
            f"{row['capo']} | {row['sb3']} | {row['difference']} ({low} to {high}) | "
            f"{'yes' if row['within_15_percent'] else 'no'} |"
        )
    text = "\n".join(lines)
    (out / "table.md").write_text(text + "\n")
    (out / "table.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(text)
    return {"rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--cases", nargs="*", default=CASES, choices=CASES)
    parser.add_argument("--sides", nargs="*", default=["capo", "sb3"], choices=["capo", "sb3"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--frames", type=int, help="frames per run (default: 50,000 for CartPole, 300,000 for Breakout)"
    )
    parser.add_argument("--table", action="store_true", help="run nothing, only print the table")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.table:
        from capo.envs.ids import is_gymnasium_id
        from capo.provenance import provenance

        for case in options.cases:
            algo, env = case.split(":")
            assert is_gymnasium_id(ENVS[env])  # registers MinAtar's ids
            frames = options.frames or FRAMES[env]
            for side, run in (("capo", run_capo), ("sb3", run_sb3)):
                file = options.out / f"{algo}-{env}-{side}.json"
                if side not in options.sides or file.exists():
                    continue
                runs = run(algo, ENVS[env], frames, options.seeds)
                found = {"case": case, "side": side, "frames": frames, "runs": runs, "made_by": provenance()}
                file.write_text(json.dumps(found, indent=1) + "\n")
    table(options.out)


if __name__ == "__main__":
    main()
