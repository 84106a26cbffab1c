"""Seconds until MinAtar Breakout's return reaches 8 and 20, compared with peers, on two CPU cores or a GPU.

    python benchmarks/time_to_score.py --out results/benchmarks/time_to_score.json
    python benchmarks/time_to_score.py --out FILE --cases ncapo sb3-dqn --seeds 1 --limit 120
    python benchmarks/time_to_score.py --out FILE --gpu --cases ncapo pqn --targets 20 100 --frames 1e7
    python benchmarks/time_to_score.py --out FILE --table                 only print the table of finished rows

ncapo         preset cpu as `capo train minatar-breakout --preset cpu --frames FRAMES` trains it, on pgx's game;
              with --gpu preset default
pqn           capo's PQN with the preset of the same name, on pgx's game (only if asked for)
sb3-ppo       Stable-Baselines3's PPO, 8 environments, MLP 128x128, otherwise its defaults
sb3-dqn       its DQN, 8 environments, MLP 128x128, buffer of 100,000, learning starts at 1,000, otherwise its
              defaults: one update every 4 steps of the 8 environments, i.e. every 32 frames
sb3-dqn-1env  the same with one environment: one update every 4 frames (only if asked for)

The peers play the original minatar package through Gymnasium. Both versions of the game have sticky actions
(0.1), the minimal action set and no time limit.

The clock starts with the process, so imports and compiling count on both sides; it is stopped during
evaluations. These are due every second of training or 5 % of the time so far, whichever is longer, and happen at
the next log point (ncapo, 10,000 frames) or after the next update (peers). A score is reached at the first
evaluation whose mean over 100 whole episodes is at least that: with sampled actions and no epsilon for PPO and
NCAPO's preset cpu, with greedy ones for DQN and PQN, which have no other policy, and for NCAPO's preset default.

FRAMES (5 M) is the horizon of every schedule: NCAPO's learning rate falls to 0 there, where its run ends, and
epsilon falls over the first tenth of it, NCAPO's as well as DQN's; PPO's settings are constant. A run also ends at
the last score, or after --limit seconds of training: then its best mean is recorded.

Every measurement is a process of its own, one after another, on --cores cores. What is finished is in the file and
is not run again. The ratio is the best peer's median time over ours.
"""

from __future__ import annotations

import time

BEGAN = time.perf_counter()  # before anything large is imported: imports count

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

PGX, ORIGINAL = "minatar-breakout", "MinAtar/Breakout-v1"
OURS, PEERS = "ncapo", ("sb3-ppo", "sb3-dqn")
CASES = (OURS, *PEERS, "sb3-dqn-1env", "pqn")
LEAST_SECONDS, LEAST_FRACTION = 1.0, 0.05  # between two evaluations
EPISODE_LIMIT = 10_000  # a greedy policy may keep the ball in play for ever without a point
BEYOND = 100  # a peer's learn() is asked for so many horizons: the clock ends it

Row = dict[str, Any]


class Clock:
    """Seconds since the process began, pauses left out."""

    def __init__(self, began: float = BEGAN) -> None:
        self._began, self.paused = began, 0.0

    def seconds(self) -> float:
        return time.perf_counter() - self._began - self.paused

    @contextmanager
    def pause(self) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.paused += time.perf_counter() - begin


class Course:
    """The evaluations of one run, and which scores they reached.

    Args:
        targets: the scores.
        limit: seconds of training.
        evaluate: returns a policy's mean over whole episodes, given a number that no other evaluation has.
        clock: of the training.
    """

    def __init__(self, targets: list[float], limit: float, evaluate: Callable[[int], float], clock: Clock) -> None:
        self._evaluate, self._limit, self.clock = evaluate, limit, clock
        self.reached: dict[float, Row | None] = dict.fromkeys(targets)
        self.curve: list[Row] = []

    @property
    def over(self) -> bool:
        """Whether there is no reason to go on."""
        return all(self.reached.values()) or self.clock.seconds() >= self._limit

    @property
    def due(self) -> bool:
        last = self.curve[-1]["seconds"] if self.curve else 0.0
        return self.clock.seconds() >= max(last + LEAST_SECONDS, last * (1 + LEAST_FRACTION))

    def look(self, frames: int) -> None:
        """Evaluate the policy of this moment."""
        seconds = self.clock.seconds()
        with self.clock.pause():
            score = self._evaluate(len(self.curve))
            point = {"seconds": round(seconds, 2), "frames": frames, "return": round(score, 3)}
            self.curve.append(point)
            for target, earlier in self.reached.items():
                if earlier is None and score >= target:
                    self.reached[target] = point
            print(f"  {seconds:7.1f} s {frames:>11,} frames: return {score:.2f}", file=sys.stderr, flush=True)

    def end(self, frames: int) -> Row:
        """What there is to write, after a last evaluation where one is still missing."""
        if not all(self.reached.values()) and (not self.curve or self.curve[-1]["frames"] != frames):
            self.look(frames)
        return {
            "reached": [{"target": target, "at": at} for target, at in self.reached.items()],
            "best": max(self.curve, key=lambda point: point["return"]),
            "seconds": round(self.clock.seconds(), 2),
            "frames": frames,
            "evaluation_seconds": round(self.clock.paused, 1),
            "curve": self.curve,
        }


def run_capo(case: str, seed: int, options: argparse.Namespace) -> Row:
    """NCAPO or PQN, by the calls of `capo train`."""
    import capo

    kind = capo.NCAPO if case == OURS else capo.PQN
    agent: Any = kind(PGX, "default" if options.gpu else "cpu", seed=seed)
    course = Course(
        options.targets, options.limit, lambda i: agent.evaluate(options.episodes, seed=i).mean, Clock()
    )

    def at_log_point(agent: Any, _: Any) -> bool:
        if course.due:
            course.look(agent.frames)
        return not course.over

    agent.learn(options.frames, callback=at_log_point)
    compiling = round(agent.learner.compile_seconds, 1)
    return course.end(agent.frames) | {"compile_seconds": compiling, "settings": agent.config.to_dict()}


def run_sb3(case: str, seed: int, options: argparse.Namespace) -> Row:
    """A peer's side."""
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    from capo.envs.ids import is_gymnasium_id

    assert is_gymnasium_id(ORIGINAL)  # registers MinAtar's ids
    torch.set_num_threads(options.torch_threads)
    greedy = case != "sb3-ppo"
    n_envs = 1 if case == "sb3-dqn-1env" else 8
    settings: dict[str, Any] = {"policy_kwargs": {"net_arch": [128, 128]}}
    if greedy:
        settings |= {"buffer_size": 100_000, "learning_starts": 1000, "exploration_fraction": 0.1 / BEYOND}
    kind = sb3.DQN if greedy else sb3.PPO
    env = make_vec_env(ORIGINAL, n_envs=n_envs, seed=seed)
    model = kind("MlpPolicy", env, seed=seed, device="cpu", **settings)
    player = Player(model, options.episodes, greedy, seed)
    course = Course(options.targets, options.limit, player.mean_return, Clock())

    class AfterUpdates(BaseCallback):
        def _on_rollout_start(self) -> None:  # both algorithms have just trained
            if course.due and not course.over:
                course.look(self.num_timesteps)

        def _on_step(self) -> bool:
            return not course.over

    model.learn(BEYOND * options.frames, callback=AfterUpdates())
    settings |= {"n_envs": n_envs}
    return course.end(model.num_timesteps) | {"settings": settings}


class Player:
    """Plays whole episodes of the original game with a model, all of them side by side."""

    def __init__(self, model: Any, episodes: int, greedy: bool, seed: int) -> None:
        self._model, self._episodes, self._greedy, self._seed = model, episodes, greedy, seed
        self._envs: list[Any] = []

    def mean_return(self, evaluation: int) -> float:
        """Mean over episodes that no other evaluation plays."""
        import gymnasium
        import numpy as np

        if not self._envs:
            self._envs = [gymnasium.make(ORIGINAL, disable_env_checker=True) for _ in range(self._episodes)]
        first = (10_000 * (self._seed + 1) + evaluation) * self._episodes
        obs = np.stack([env.reset(seed=first + i)[0] for i, env in enumerate(self._envs)])
        total, running = np.zeros(self._episodes), np.arange(self._episodes)
        for _ in range(EPISODE_LIMIT):
            actions, _ = self._model.predict(obs[running], deterministic=self._greedy)
            ended = np.zeros(len(running), bool)
            for k, (i, action) in enumerate(zip(running, actions, strict=True)):
                obs[i], reward, terminated, truncated, _ = self._envs[i].step(int(action))
                total[i] += float(reward)
                ended[k] = terminated or truncated
            running = running[~ended]
            if not len(running):
                break
        return float(total.mean())


# --- one process a measurement, one file for all of them ------------------------------------------------------


def measured_here(measure: Callable[[], Row], cores: int) -> Row:
    """A measurement in this process, with where and beside what it was made."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    busy = os.getloadavg()[0]  # of the minute before: what else this machine was doing
    row = measure()
    from capo.provenance import provenance

    made_by = provenance()
    for package in ("stable-baselines3", "torch", "minatar"):
        if package.replace("-", "_") in sys.modules:
            made_by["versions"][package] = metadata.version(package)
    return row | {"load_average_before": round(busy, 2), "made_by": made_by}


def in_process(script: str, *arguments: str) -> Row | None:
    """The row that a process of its own prints last; None, and a word on standard error, if it fails."""
    command = [sys.executable, script, *arguments]
    environment = dict(os.environ) if "--gpu" in arguments else os.environ | {"JAX_PLATFORMS": "cpu"}
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if result.returncode:
        print(f"failed (exit status {result.returncode}): {' '.join(arguments)}", file=sys.stderr, flush=True)
        return None
    row: Row = json.loads(result.stdout.splitlines()[-1])
    return row


class Results:
    """A file of rows, written anew after each, of one protocol."""

    def __init__(self, path: Path, protocol: Row) -> None:
        self.path, self.protocol = path, protocol
        self.rows: list[Row] = []
        if not path.exists():
            return
        stored = json.loads(path.read_text())
        if stored["protocol"] != protocol:
            changed = [key for key in protocol if stored["protocol"].get(key) != protocol[key]]
            raise SystemExit(f"{path} holds results of other settings ({', '.join(changed)}): give another --out")
        self.rows = stored["rows"]

    def has(self, **what: Any) -> bool:
        return any(all(row[key] == value for key, value in what.items()) for row in self.rows)

    def add(self, row: Row) -> None:
        from capo.experiments.results import write_result

        self.rows.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_result(self.path, {"protocol": self.protocol, "rows": self.rows})

    def complete(self, script: str, key: str, todo: list[tuple[str, int]]) -> bool:
        """Measure what is missing of ``todo`` (values of ``key`` and seeds), each in a process of its own.

        Returns:
            Whether all of it succeeded.
        """
        failed = False
        for value, seed in todo:
            if self.has(**{key: value}, seed=seed):
                continue
            print(f"{value}, seed {seed}", file=sys.stderr, flush=True)
            row = in_process(script, *sys.argv[1:], "--one", value, str(seed))
            if row is None:
                failed = True
            else:
                self.add(row)
        return not failed


# --- the table ------------------------------------------------------------------------------------------------


def median_time(rows: list[Row], target: float) -> tuple[float, bool]:
    """Median over seeds of the seconds to a score, and whether it was reached at all.

    A seed that did not reach it counts with the seconds it spent: where the median is not reached, the number is
    what it is at least.
    """
    at = [next(one["at"] for one in row["reached"] if one["target"] == target) for row in rows]
    spent = [found["seconds"] if found else row["seconds"] for found, row in zip(at, rows, strict=True)]
    reached = statistics.median(found["seconds"] if found else float("inf") for found in at)
    return (reached, True) if reached < float("inf") else (statistics.median(spent), False)


def ratio(rows: dict[str, list[Row]], target: float) -> str:
    """The best peer's median time over ours, in words."""
    peers = [median_time(found, target) for case, found in rows.items() if case != OURS]
    if OURS not in rows or not peers:
        return "-"
    ours, reached = median_time(rows[OURS], target)
    if not reached:
        return "ncapo did not reach it"
    theirs, exact = min(peers)
    return f"{'' if exact else 'more than '}{theirs / ours:.1f}"


def cell(rows: list[Row], target: float) -> str:
    """One case and score: the median, and every seed."""
    each = []
    for row in rows:
        at = next(one["at"] for one in row["reached"] if one["target"] == target)
        if at:
            each.append(f"{at['seconds']:.0f} s ({at['frames'] / 1e6:.2g} M)")
        else:
            each.append(
                f"not in {row['seconds']:.0f} s ({row['frames'] / 1e6:.2g} M): {row['best']['return']:.1f}"
            )
    seconds, reached = median_time(rows, target)
    return f"**{f'{seconds:.0f} s' if reached else 'not reached'}**; " + ", ".join(each)


def table(rows: list[Row], targets: list[float]) -> str:
    """What the rows say, as Markdown."""
    cases = {case: [row for row in rows if row["case"] == case] for case in CASES}
    cases = {case: sorted(found, key=lambda row: row["seed"]) for case, found in cases.items() if found}
    lines = [
        "| | seeds | frames/s, start included | "
        + " | ".join(f"return {target:g}: median; each seed" for target in targets)
        + " |",
        "|---" * (3 + len(targets)) + "|",
    ]
    for case, found in cases.items():
        speed = statistics.median(row["frames"] / row["seconds"] for row in found)
        cells = " | ".join(cell(found, target) for target in targets)
        lines.append(f"| {case} | {len(found)} | {speed:,.0f} | {cells} |")
    ratios = " | ".join(ratio(cases, target) for target in targets)
    lines.append(f"| best peer / ncapo | | | {ratios} |")
    makers = [row["made_by"]["hardware"] for row in rows]
    machines = sorted(
        {", ".join([maker["processor"], f"{maker['cores']} cores", *_devices(maker)]) for maker in makers}
    )
    lines.append(f"\nmeasured on: {'; '.join(machines)}")
    return "\n".join(lines)


def _devices(hardware: Row) -> list[str]:
    return [device for device in hardware.get("devices", []) if device != "cpu"]


def protocol(options: argparse.Namespace) -> Row:
    """What has to be the same for rows to stand in one table."""
    ours, greedy = ("", "NCAPO, PQN, DQN") if options.gpu else (", NCAPO", "PQN, DQN")
    return {
        "targets": options.targets,
        "episodes": options.episodes,
        "frames": options.frames,
        "limit_seconds": options.limit,
        "cores": options.cores,
        "device": "gpu" if options.gpu else "cpu",
        "torch_threads": options.torch_threads,
        "evaluation": f"whole episodes; sampled actions without epsilon (PPO{ours}), greedy actions ({greedy})",
        "games": f"ncapo, pqn: {PGX} (pgx); others: {ORIGINAL} (minatar); sticky actions 0.1 in both",
        "evaluations_every": f"{LEAST_SECONDS:g} s or {LEAST_FRACTION:.0%} of the time so far",
        "clock": "from the start of the process, compiling included, evaluations left out",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, metavar=("CASE", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, required=True, help="JSON file; an existing one is completed")
    parser.add_argument("--cases", nargs="*", default=[OURS, *PEERS], choices=CASES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--targets", nargs="*", type=float, default=[8.0, 20.0], help="returns to reach")
    parser.add_argument("--frames", type=float, default=5e6, help="horizon of the schedules, end of NCAPO's run")
    parser.add_argument("--limit", type=float, default=600.0, help="most seconds of training per run")
    parser.add_argument("--episodes", type=int, default=100, help="episodes per evaluation")
    parser.add_argument("--cores", type=int, default=2, help="cores that a run may use; 0: all")
    parser.add_argument(
        "--torch-threads", type=int, default=1, help="threads of the peers; 1 is best for nets this small"
    )
    parser.add_argument("--gpu", action="store_true", help="ncapo and pqn on a GPU, with their preset default")
    parser.add_argument("--table", action="store_true", help="run nothing, only print the table")
    options = parser.parse_args()
    options.frames = int(options.frames)
    if options.one:
        case, seed = options.one[0], int(options.one[1])
        one = run_sb3 if case.startswith("sb3") else run_capo
        run = partial(one, case, seed, options)
        print(json.dumps({"case": case, "seed": seed} | measured_here(run, options.cores)))
        return
    if options.table:
        stored = json.loads(options.out.read_text())
        print(table(stored["rows"], stored["protocol"]["targets"]))
        return
    results = Results(options.out, protocol(options))
    todo = [(case, options.first_seed + i) for i in range(options.seeds) for case in options.cases]
    complete = results.complete(__file__, "case", todo)
    print(table(results.rows, options.targets))
    sys.exit(int(not complete))


if __name__ == "__main__":
    main()
