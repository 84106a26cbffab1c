"""Speed of the neural learners and of what users have today, in one run on one machine.

    python benchmarks/neural.py             CPU: presets official, default and cpu; 1 and 4 seeds; peers
    python benchmarks/neural.py --gpu       the same table for 1, 8 and 64 seeds, without peers
    python benchmarks/neural.py --curves    Breakout by pgx and by the original minatar package, 300k frames
    python benchmarks/neural.py --train minatar-breakout --algo ncapo --preset default --seeds 8 --frames 3e6
                                            a learning curve with evaluation, of any algorithm
    python benchmarks/neural.py --random    uniformly random play in the five games: what a learner has to beat
    python benchmarks/neural.py --draw results/neural
                                            draw the stored curves and the paper's as a figure

Every measurement runs in its own process, so that memory and compile time are its own. It reports
frames/s and updates/s (all seeds together, compiling left out), compile seconds, the arithmetic of the matrix
products an update needs (as benchmarks/gpu.py counts it), how long it would take at the speed of a large matrix
product measured in the same run (the floor), the memory announced and the peak of the process. Peers are
Stable-Baselines3's A2C and DQN: with its defaults, and DQN also with the network, transitions per update and
updates per step of NCAPO's default.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ENV = "minatar-breakout"
SECONDS = 20.0  # to measure each case


def resident_mb() -> float:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def measure_capo(preset: str, seeds: int, settings: dict[str, str]) -> dict[str, Any]:
    """Frames/s of one preset on MinAtar Breakout."""
    from gpu import operations, timed  # beside this file

    from capo.neural.algorithms.ncapo import NCAPOConfig
    from capo.neural.algorithms.registry import learner_for
    from capo.neural.algorithms.settings import override

    config = override(NCAPOConfig.preset(preset, ENV), {"horizon": "1e7"} | settings)
    learner = learner_for(ENV, config, seeds)
    compile_seconds = learner.compile()
    before = resident_mb()
    state = learner.init(range(seeds))
    state, _ = learner.run(state, 1)
    done, spent, metrics = timed(learner, state, SECONDS, 2.0)
    updates = done * seeds * learner.updates_per_iteration
    flops = operations(learner)
    return {
        "case": f"NCAPO {preset}",
        "seeds": seeds,
        "settings": settings,
        "frames_per_second": round(done * seeds * learner.frames_per_iteration / spent),
        "updates_per_second": round(updates / spent, 1),
        "transitions_per_update": config.batch_size * config.rollout_length,
        "compile_seconds": round(compile_seconds, 1),
        "ms_per_update": round(1000 * spent / updates, 3),
        "gflop_per_update": round(flops / 1e9, 3),
        "replay_announced_mb": round(learner.replay.nbytes * seeds / 1e6, 1),
        "memory_before_mb": round(before, 1),
        "memory_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1),
        "last_return": round(float(metrics["episode_return"][-1].mean()), 2),
    }


def measure_matmul(dtype: str) -> dict[str, Any]:
    """GFLOP/s of a large matrix product: what the floor is computed from."""
    from gpu import matrix_limit

    return {"case": f"large matrix product, {dtype}", "gflop_per_second": round(matrix_limit(dtype) / 1e9)}


def measure_sb3(which: str) -> dict[str, Any]:
    """Stable-Baselines3 on the original MinAtar Breakout."""
    try:
        import minatar.gym
        import stable_baselines3 as sb3
    except ImportError as error:
        return {
            "case": f"SB3 {which}",
            "skipped": f"{error.name} is not installed: pip install 'capo-rl[peers]'",
        }
    from stable_baselines3.common.env_util import make_vec_env

    minatar.gym.register_envs()
    n_envs = 40 if which == "dqn-matched" else 8
    env = make_vec_env("MinAtar/Breakout-v1", n_envs=n_envs)
    if which == "a2c":
        model: Any = sb3.A2C("MlpPolicy", env, policy_kwargs={"net_arch": [128, 128]}, device="cpu")
    elif which == "dqn":
        kwargs = {"net_arch": [128, 128]}
        model = sb3.DQN("MlpPolicy", env, policy_kwargs=kwargs, learning_starts=1000, device="cpu")
    else:
        model = matched_dqn(sb3, env)
    model.learn(2000)
    begin, frames = time.perf_counter(), model.num_timesteps
    updates = model._n_updates
    while time.perf_counter() - begin < SECONDS:
        model.learn(2000, reset_num_timesteps=False)  # rounded up to whole rollouts
    spent = time.perf_counter() - begin
    frames = model.num_timesteps - frames
    return {
        "case": f"SB3 {which}",
        "seeds": 1,
        "frames_per_second": round(frames / spent),
        "updates_per_second": round((model._n_updates - updates) / spent, 1),
        "transitions_per_update": getattr(model, "batch_size", None) or n_envs * model.n_steps,
    }


def matched_dqn(sb3: Any, env: Any) -> Any:
    """DQN with the network, transitions an update and updates a step of NCAPO's default."""
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    from capo.neural.algorithms.ncapo import NCAPOConfig

    config = NCAPOConfig.preset("default", ENV)

    class Features(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, config.width)
            channels = space.shape[2]
            self.conv = torch.nn.Conv2d(channels, config.conv_features, 3)
            self.norm = torch.nn.LayerNorm(config.conv_features)
            self.rest = torch.nn.Sequential(
                torch.nn.Linear(64 * config.conv_features, config.width),
                torch.nn.LayerNorm(config.width),
                torch.nn.ReLU(),
            )

        def forward(self, obs: Any) -> Any:
            x = self.conv(obs.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            return self.rest(torch.relu(self.norm(x)).flatten(1))

    return sb3.DQN(
        "MlpPolicy",
        env,
        policy_kwargs={"features_extractor_class": Features, "net_arch": []},
        batch_size=config.batch_size * config.rollout_length,
        buffer_size=config.replay_rollouts * config.rollout_length,
        train_freq=config.rollout_length,
        gradient_steps=config.gradient_steps,
        learning_starts=1000,
        device="cpu",
    )


def measure_curve(
    algo: str,
    env: str,
    preset: str,
    frames: int,
    seeds: int,
    first_seed: int,
    n_points: int,
    settings: dict[str, str],
) -> dict[str, Any]:
    """Training and evaluation returns at ``n_points`` points of a run."""
    import jax
    import numpy as np

    from capo.neural.algorithms import registry as algorithms
    from capo.neural.algorithms.registry import learner_for
    from capo.neural.algorithms.settings import override

    config = override(algorithms.find(algo).settings.preset(preset, env), {"horizon": str(frames)} | settings)
    jitted = env.startswith(("minatar-", "probe-"))
    every = list(range(first_seed, first_seed + seeds))
    groups = [every] if jitted else [[seed] for seed in every]
    points: list[dict[str, Any]] = []
    begin = time.perf_counter()
    for group in groups:
        learner = learner_for(env, config, len(group))
        print(learner.describe(), file=sys.stderr, flush=True)
        state = learner.init(group)
        total = -(-frames // learner.frames_per_iteration)
        stops = sorted({round(total * i / n_points) for i in range(1, n_points + 1)} - {0})
        for previous, stop in zip([0, *stops], stops, strict=False):
            state, metrics = learner.run(state, stop - previous)
            weights = metrics["episodes"]
            with np.errstate(invalid="ignore"):
                train = np.nansum(metrics["episode_return"] * weights, axis=0) / weights.sum(axis=0)
            returns = learner.evaluate(state.params, jax.random.split(jax.random.PRNGKey(stop), len(group)), 32)
            for seed, training, evaluation in zip(group, train, returns, strict=True):
                point = {
                    "seed": seed,
                    "frames": stop * learner.frames_per_iteration,
                    "training_return": round(float(training), 3),
                    "evaluation_return": round(float(evaluation.mean()), 3),
                    "elapsed_seconds": round(time.perf_counter() - begin, 1),
                }
                points.append(point)
                print(point, file=sys.stderr, flush=True)
    last = [point["evaluation_return"] for point in points if point["frames"] == points[-1]["frames"]]
    return {
        "case": f"{algo} {env} {preset}",
        "frames": points[-1]["frames"],
        "seeds": every,
        "wall_seconds": points[-1]["elapsed_seconds"],
        "evaluation": "32 episodes a point and seed, sampled actions without epsilon, sticky actions 0.1",
        "final_mean": round(float(np.mean(last)), 2),
        "final_standard_error": round(float(np.std(last, ddof=1) / len(last) ** 0.5), 2) if seeds > 1 else None,
        "config": config.to_dict(),
        "curve": points,
    }


def measure_random(env: str) -> dict[str, Any]:
    """Returns of uniform play: networks of zeros give every action the same chance."""
    import jax
    import jax.numpy as jnp

    from capo.neural.algorithms.ncapo import NCAPOConfig
    from capo.neural.algorithms.registry import learner_for

    episodes = 1000
    learner = learner_for(env, NCAPOConfig.preset("cpu", env), 1)
    params = jax.tree.map(jnp.zeros_like, learner.policy_params(learner.init([0]), 0))
    returns = learner.evaluate(params, jax.random.PRNGKey(0), episodes)
    return {
        "case": f"uniform {env}",
        "episodes": episodes,
        "mean": round(float(returns.mean()), 3),
        "standard_error": round(float(returns.std(ddof=1) / episodes**0.5), 3),
    }


def stored_curves(folder: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Points by (game, preset), from what --train wrote."""
    curves: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*_*.json")):
        game, _, preset = path.stem.rpartition("_")
        rows = json.loads(path.read_text())["rows"]
        if len(rows) == 1 and "curve" in rows[0] and rows[0]["case"].endswith(preset):
            curves[game, preset] = rows[0]["curve"]
    return curves


def draw(folder: Path) -> Path:
    """One panel a game: mean and standard error over seeds of each preset, the paper's NCAPO dashed."""
    import csv
    from importlib.resources import files

    import numpy as np

    from capo.report.figures import COLOURS, MUTED, figure, legend_below

    curves = stored_curves(folder)
    games = sorted({game for game, _ in curves})
    source = files("capo.report").joinpath("data/minatar_curves.csv").read_text()
    paper = [row for row in csv.DictReader(source.splitlines()) if row["algo"] == "NCAPO"]
    out = folder / "curves.png"
    with figure(out, columns=len(games), size=(4.6 * len(games), 3.9), squeeze=False) as (drawing, axes):
        for axis, game in zip(axes[0], games, strict=True):
            last = 0.0
            for preset, colour in (("default", COLOURS[1]), ("official", COLOURS[0])):
                points = curves.get((game, preset), [])
                frames = sorted({point["frames"] for point in points})
                if not frames:
                    continue
                values = [[p["evaluation_return"] for p in points if p["frames"] == f] for f in frames]
                mean = np.array([np.mean(v) for v in values])
                error = np.array([np.std(v, ddof=1) / len(v) ** 0.5 for v in values])
                millions = np.array(frames) / 1e6
                axis.plot(millions, mean, color=colour, label=f"capo, preset {preset}")
                axis.fill_between(millions, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
                last = max(last, millions[-1])
            title = game.replace("_", " ").title()
            # The data call Space Invaders "SpaceInv".
            theirs = [row for row in paper if title.replace(" ", "").startswith(row["game"])]
            theirs = [row for row in theirs if float(row["env_steps_M"]) <= last + 0.01]
            axis.plot(
                [float(row["env_steps_M"]) for row in theirs],
                [float(row["mean_return"]) for row in theirs],
                color=MUTED,
                linestyle="--",
                label="the paper's NCAPO (smoothed)",
            )
            axis.set(title=title, xlabel="million frames", ylabel="return", ylim=(0, None))
        drawing.suptitle("NCAPO on MinAtar, 8 seeds: mean and standard error", x=0.01, ha="left", fontsize=11)
        legend_below(drawing, axes[0])
    return out


def in_process(*arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """One measurement in a process of its own."""
    import os

    command = [sys.executable, __file__, "--one", *arguments]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | (env or {}))
    if result.returncode:
        return {"case": " ".join(arguments), "failed": result.returncode}
    row: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    print(json.dumps({key: value for key, value in row.items() if key not in ("curve", "config")}), flush=True)
    return row


def one(arguments: list[str]) -> dict[str, Any]:
    """What a process of :func:`in_process` does."""
    kind, *rest = arguments
    if kind == "capo":
        return measure_capo(rest[0], int(rest[1]), _settings(rest[2:]))
    if kind == "matmul":
        return measure_matmul(rest[0])
    if kind == "sb3":
        return measure_sb3(rest[0])
    if kind == "curve":
        algo, env, preset, *rest = rest
        frames, seeds, first_seed, points = (int(float(number)) for number in rest[:4])
        return measure_curve(algo, env, preset, frames, seeds, first_seed, points, _settings(rest[4:]))
    if kind == "random":
        return measure_random(rest[0])
    raise SystemExit(f"unknown measurement {kind!r}")


def _settings(pairs: list[str]) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in pairs)


def speed(gpu: bool) -> list[dict[str, Any]]:
    """The speed table."""
    peak = in_process("matmul", "float32")
    rows = [peak]
    if gpu:
        rows.append(in_process("matmul", "bfloat16"))
    cases = [(preset, n) for preset in ("official", "default", "cpu") for n in ((1, 8, 64) if gpu else (1, 4))]
    for preset, seeds in cases:
        row = in_process("capo", preset, str(seeds))
        if "gflop_per_update" in row:
            floor = 1000 * row["gflop_per_update"] / peak["gflop_per_second"]
            row |= {
                "floor_ms_per_update": round(floor, 3),
                "times_the_floor": round(row["ms_per_update"] / floor, 2),
            }
        rows.append(row)
    if not gpu:
        # A replay large enough to see in the process's memory.
        rows.append(in_process("capo", "cpu", "1", "replay_rollouts=1e6"))
        rows += [in_process("sb3", which) for which in ("a2c", "dqn", "dqn-matched")]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--gpu", action="store_true", help="1, 8 and 64 seeds, no peers")
    parser.add_argument("--curves", action="store_true", help="Breakout by pgx and by the original package")
    parser.add_argument("--random", action="store_true", help="returns of uniformly random play in the five games")
    parser.add_argument("--train", metavar="ENV", help="a learning curve with evaluation")
    parser.add_argument("--draw", type=Path, metavar="DIR", help="draw the curves stored there")
    parser.add_argument("--algo", default="ncapo", help="algorithm of --train, such as ncapo or pqn")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="the first seed; the others follow it")
    parser.add_argument("--points", type=int, default=30, help="points of a learning curve")
    parser.add_argument("--frames", type=float, default=300_000)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, help="file to write (default: print)")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one)))
        return
    if options.draw:
        print(draw(options.draw))
        return
    if options.train:
        numbers = (str(options.frames), str(options.seeds), str(options.first_seed), str(options.points))
        rows = [in_process("curve", options.algo, options.train, options.preset, *numbers, *options.set)]
    elif options.random:
        from capo.envs.minatar.games import NAMES

        rows = [in_process("random", env) for env in NAMES]
    elif options.curves:
        numbers = ("300000", str(options.seeds), str(options.first_seed), str(options.points))
        rows = [in_process("curve", "ncapo", env, "cpu", *numbers) for env in (ENV, "MinAtar/Breakout-v1")]
    else:
        rows = speed(options.gpu)
    import jax  # so that the accelerator is named too

    from capo.provenance import provenance

    jax.devices()
    text = json.dumps({"made_by": provenance(), "rows": rows}, indent=1)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
