"""The cases whose results are kept: agents, games, tabular runs, experiments.

Only public interfaces are used, so that the cases outlive a move of the modules behind them: ``capo.NCAPO`` and
its kind, ``capo.envs.make``, ``capo.solve``, ``capo.baselines``, the files that they write and the command line.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from golden_store import BITS, digest_of_texts

import capo
import capo.envs

Results = dict[str, Any]
Compute = Callable[[Path], Results]  # from an empty folder to the results

# --- agents ---------------------------------------------------------------------------------------------------

CLASSES = {"ncapo": "NCAPO", "offpac": "OffPAC", "a2c": "A2C", "ppo": "PPO", "rainbow": "Rainbow", "pqn": "PQN"}
PRESETS = {
    "ncapo": ("paper", "official", "default", "sign", "cpu", "atari"),
    "offpac": ("paper", "official", "default", "cpu"),
    "a2c": ("paper", "default"),
    "ppo": ("paper", "default", "atari"),
    "rainbow": ("paper", "default"),
    "pqn": ("paper", "default", "cpu"),
}
# Sizes alone are made small: what tells one preset from another stays.
_ROLLOUTS = {"n_envs": 4, "rollout_length": 4, "batch_size": 4, "gradient_steps": 2, "replay_rollouts": 12}
SIZES: dict[str, dict[str, Any]] = {
    "ncapo": {**_ROLLOUTS, "width": 8},
    "offpac": {**_ROLLOUTS, "width": 8},
    "a2c": {"n_envs": 4, "rollout_length": 4, "width": 8},
    "ppo": {"n_envs": 4, "rollout_length": 4, "batch_size": 8, "epochs": 2, "width": 8},
    "rainbow": {
        "n_envs": 4,
        "rollout_length": 4,
        "batch_size": 8,
        "gradient_steps": 2,
        "replay_transitions": 48,
        "learning_starts": 16,
        "target_every": 32,
        "width": 8,
        "atoms": 11,
    },
    "pqn": {"n_envs": 4, "rollout_length": 4, "batch_size": 8, "epochs": 2, "width": 8},
}
# What NCAPO's default on MinAtar was before it saw two frames.
ONE_FRAME: dict[str, Any] = {
    "frame_stack": 1,
    "entropy": 0.01,
    "evaluation": "sampled",
    "actor_lambda": 0.5,
    "tau_q": 0.05,
}
# What NCAPO's default on vectors was before it had certain signs.
SAMPLED_SIGNS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "retrace_lambda": 1.0,
    "layer_norm": False,
    "advantage_weight": "none",
    "critic_heads": 1,
    "explorers": 0.0,
    "kl": "policy-to-target",
    "floor": 0.0,
    "critic_units": "rewards",
    "tau_q": 0.05,
    "clip_each_network": False,
    "chance_kept": 0.0,
}
# What it was before the critic's outputs had a unit.
NO_UNIT: dict[str, Any] = {"critic_units": "noise"}
# What it was with certain signs alone.
CERTAIN_SIGNS: dict[str, Any] = {
    **NO_UNIT,
    "learning_rate": 2e-3,
    "clip_each_network": False,
    "noise_uncertainty": 0.3,
    "noise_uncertainty_schedule": "constant",
    "chance_kept": 0.0,
}
FRAMES = 80  # five iterations: the replay goes round, the target network is copied, every second actor step
SETTINGS_FOR = ("minatar-breakout", "minatar-asterix", "probe-both", "CartPole-v1")


def agent_class(algorithm: str) -> Any:
    """``capo.NCAPO`` for ``ncapo``, and so on."""
    return getattr(capo, CLASSES[algorithm])


def tiny(algorithm: str, preset: str) -> dict[str, Any]:
    """The sizes of a case."""
    found = dict(SIZES[algorithm])
    if algorithm in ("ncapo", "offpac") and preset == "official":
        found["replay_clear_every"] = 3
    if algorithm in ("ncapo", "offpac") and preset == "paper":  # a lambda below 1, and one of the actor's own
        found |= {"retrace_lambda": 0.8, "actor_lambda": 0.5 if algorithm == "ncapo" else 1.0}
    return found


def trained(algorithm: str, preset: str, env: str, **more: Any) -> Compute:
    """A case: two seeds, trained, evaluated and asked for actions; ``more`` replaces settings of the preset."""

    def compute(folder: Path) -> Results:
        settings = tiny(algorithm, preset) | more
        agent = agent_class(algorithm)(env, preset, seeds=2, out=folder / "run", log_every=1, **settings)
        agent.learn(FRAMES)
        results = metrics(folder / "run" / "metrics.csv")
        results["evaluate"] = agent.evaluate(episodes=4, seed=3).returns
        if not env.startswith("minatar-"):  # where compiling it takes no time
            results["evaluate, deterministic"] = agent.evaluate(episodes=4, seed=4, deterministic=True).returns
        results |= predictions(agent)
        return results | state(agent.save(folder / "agent"))

    return compute


def predictions(agent: Any) -> Results:
    """Actions for observations that are always the same, of both seeds."""
    shape, dtype = agent.played_env.observation_shape, np.dtype(agent.env.observation_dtype)
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal((16, *shape))
    observations = drawn > 1 if dtype.kind == "b" else drawn.astype(dtype)
    results: Results = {}
    for seed in (0, 1):
        agent.use_seed(seed)
        sampled = [agent.predict(observations)[0] for _ in range(3)]
        results[f"predict, seed {seed}"] = np.concatenate(sampled)
        results[f"{BITS}predict, seed {seed}, deterministic"] = agent.predict(observations, deterministic=True)[0]
    return results


def metrics(path: Path) -> Results:
    """The columns of metrics.csv but for those that tell the time."""
    return {f"metrics/{name}": column for name, column in columns(path).items() if not is_timing(name)}


def is_timing(name: str) -> bool:
    """Whether a column or entry depends on the clock."""
    return "seconds" in name or "per_second" in name


def columns(path: Path) -> Results:
    """A CSV file by columns: numbers as float64, with NaN for what is empty, or a digest of texts."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    return {name: _numbers(texts) for name, texts in found.items()}


def _numbers(texts: list[str]) -> Any:
    try:
        return np.array([float(text) if text else np.nan for text in texts])
    except ValueError:
        return digest_of_texts(texts)


# The format of a saved agent is safetensors: the header's length, the header in JSON, the arrays' bytes.
_DTYPES = {"BOOL": "?", "U8": "u1", "U16": "u2", "U32": "u4", "U64": "u8", "I8": "i1", "I16": "i2", "I32": "i4"}
_DTYPES |= {"I64": "i8", "F16": "f2", "F32": "f4", "F64": "f8"}


def state(path: Path) -> Results:
    """Every array of a saved agent; all but the parameters for the exact comparison only."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    results: Results = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        array = np.frombuffer(data[start + begin : start + end], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
        kept = "params" in name.split("/")
        results[f"{'' if kept else BITS}state/{name}"] = array
    return results


def resumed(folder: Path) -> Results:
    """A case: an agent that is saved, loaded and trained on, beside one that is not interrupted."""
    env, preset = "minatar-asterix", "cpu"

    def new() -> Any:
        return capo.NCAPO(env, preset, seeds=2, horizon=FRAMES, **tiny("ncapo", preset)).learn(48)

    whole = new().learn(FRAMES - 48)
    first = new()
    second = capo.NCAPO.load(first.save(folder / "first")).learn(FRAMES - 48)
    results, again = state(whole.save(folder / "whole")), state(second.save(folder / "second"))
    differing = [name for name in results if not np.array_equal(results[name], again[name])]
    return {"differs after loading": differing, "frames": second.frames, **results}


def settings(algorithm: str) -> Compute:
    """A case: the settings of every preset, for several environments."""

    def compute(folder: Path) -> Results:  # noqa: ARG001
        results: Results = {}
        for env, preset in itertools.product(SETTINGS_FOR, PRESETS[algorithm]):
            results[f"{env}, {preset}"] = dataclasses.asdict(agent_class(algorithm)(env, preset).config)
        return results

    return compute


def neural_cases() -> Iterator[tuple[str, Compute]]:
    """Every algorithm and preset on a game; the defaults on a probe and on a Gymnasium environment."""
    for algorithm, presets in PRESETS.items():
        yield f"settings of {algorithm}", settings(algorithm)
        for preset in presets:
            game = "minatar-breakout"
            if (algorithm, preset) == ("ncapo", "default"):
                yield f"ncapo, one frame, {game}", trained("ncapo", "default", game, **ONE_FRAME)
                yield f"ncapo, two frames, {game}", trained("ncapo", "default", game)
            else:
                yield f"{algorithm}, {preset}, {game}", trained(algorithm, preset, game)
        for env in ("probe-both", "CartPole-v1"):
            if algorithm == "ncapo":
                yield f"ncapo, sampled signs, {env}", trained("ncapo", "default", env, **SAMPLED_SIGNS)
                yield f"ncapo, certain signs, {env}", trained("ncapo", "default", env, **CERTAIN_SIGNS)
                yield f"ncapo, no unit, {env}", trained("ncapo", "default", env, **NO_UNIT)
            yield f"{algorithm}, default, {env}", trained(algorithm, "default", env)
    yield "ncapo, cut rollouts, probe-both", trained("ncapo", "official", "probe-both", rollouts="cut")
    yield "ncapo, saved and loaded", resumed


# --- games ----------------------------------------------------------------------------------------------------

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
STEPS = 200


def played(name: str) -> Compute:
    """A case: observations and rewards of random actions; a finished episode is followed by a new one."""

    def compute(folder: Path) -> Results:  # noqa: ARG001
        import jax
        import jax.numpy as jnp

        env = capo.envs.make(name)

        def step(carry: Any, key: Any) -> Any:
            act_key, step_key, reset_key = jax.random.split(key, 3)
            action = jax.random.randint(act_key, (), 0, env.n_actions)
            after, obs, reward, terminated, truncated = env.step(step_key, carry, action)
            fresh, _ = env.reset(reset_key)
            ended = terminated | truncated
            carry = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, after)
            return carry, (obs, reward, terminated, truncated)

        @jax.jit
        def play(key: Any) -> Any:
            first, obs = env.reset(key)
            return obs, jax.lax.scan(step, first, jax.random.split(jax.random.fold_in(key, 1), STEPS))[1]

        first, (obs, reward, terminated, truncated) = play(jax.random.PRNGKey(0))
        return {
            "first observation": np.asarray(first),
            "observations": np.asarray(obs),
            "rewards": np.asarray(reward),
            "terminated": np.asarray(terminated),
            "truncated": np.asarray(truncated),
        }

    return compute


def game_cases() -> Iterator[tuple[str, Compute]]:
    """The five games."""
    for game in GAMES:
        yield f"minatar-{game}", played(f"minatar-{game}")


# --- tabular --------------------------------------------------------------------------------------------------

MDPS: dict[str, Callable[[], Any]] = {
    "bandit": lambda: capo.mdps.bandit(gamma=0.5),
    "chain": lambda: capo.mdps.chain(5, up_actions=2, gamma=0.9),
    "random": lambda: capo.mdps.random(6, 3, gamma=0.8, seed=1),
    "garnet": lambda: capo.mdps.garnet(8, 3, 3, gamma=0.9, seed=2),
    "forest": lambda: capo.mdps.forest(4, gamma=0.8),
}
CERTIFIED = ("chain", "random")
LOG = {"stepsize": "log"}
LOG_TWICE = {"stepsize": "log", "multiple": 2.0}
FIXED = {"stepsize": "fixed", "eta": 0.7}
CLIPPED = {"stepsize": "clipped", "clip": 1.5}
ON_POLICY = {"stepsize": "on-policy"}
RUNS: dict[str, dict[str, Any]] = {
    "cyclic, log": {"rule": "cyclic", **LOG, "cycles": 4},
    "cyclic, log twice": {"rule": "cyclic", **LOG_TWICE, "cycles": 4},
    "cyclic, fixed": {"rule": "cyclic", **FIXED, "cycles": 4},
    "cyclic, clipped": {"rule": "cyclic", **CLIPPED, "cycles": 4},
    "cyclic, to a gap": {"rule": "cyclic", **LOG, "tol": 1e-3},
    "cyclic, action-major": {"rule": "cyclic", "order": "action-major", **LOG, "cycles": 3},
    "cyclic, permuted": {"rule": "cyclic", "order": "permuted", **LOG, "cycles": 3, "seed": 1},
    "cyclic, almost-cyclic": {"rule": "cyclic", "order": "almost-cyclic", **LOG, "cycles": 3, "seed": 2},
    "randomized, log": {"rule": "randomized", **LOG, "iterations": 60},
    "randomized, fixed": {"rule": "randomized", **FIXED, "iterations": 60, "seed": 3},
    "randomized, clipped": {"rule": "randomized", **CLIPPED, "iterations": 60, "seed": 4},
    "batch, log": {"rule": "batch", **LOG, "iterations": 6},
    "batch, log twice": {"rule": "batch", **LOG_TWICE, "iterations": 5},
    "batch, fixed": {"rule": "batch", **FIXED, "iterations": 10},
    "batch, clipped": {"rule": "batch", **CLIPPED, "iterations": 10},
    "batch, by signs": {"rule": "batch", **LOG, "critic": "signs", "tol": 1e-4},
    "on-policy, on-policy": {"rule": "on-policy", **ON_POLICY, "iterations": 80},
    "on-policy, log": {"rule": "on-policy", **LOG, "iterations": 60, "horizon": 7},
    "on-policy, fixed": {"rule": "on-policy", **FIXED, "iterations": 60, "seed": 5},
    "behaviour, log": {"rule": "behaviour", **LOG, "iterations": 60},
    "behaviour, batches": {"rule": "behaviour", **LOG, "batch_size": 4, "iterations": 20, "seed": 6},
    "behaviour, clipped, epsilon-greedy": {
        "rule": "behaviour", "behaviour": "epsilon-greedy", "epsilon": 0.3, **CLIPPED, "iterations": 60, "seed": 7,
    },
}  # fmt: skip


def solved(options: dict[str, Any]) -> Compute:
    """A case: ``capo.solve`` on every MDP, and the certificates of some of these runs."""

    def compute(folder: Path) -> Results:  # noqa: ARG001
        results: Results = {}
        for name, make in MDPS.items():
            run = capo.solve(make(), **options)
            results |= under(name, run_results(run))
            results |= under(name, certificate(run)) if name in CERTIFIED else {}
        return results

    return compute


def under(name: str, results: Results) -> Results:
    """The results with ``name/`` before their names; ``bits:`` stays in front."""
    return {
        f"{BITS if key.startswith(BITS) else ''}{name}/{key.removeprefix(BITS)}": value
        for key, value in results.items()
    }


def run_results(result: Any) -> Results:
    """The trajectory and the outcome of a run."""
    found: Results = {f"history/{key}": array for key, array in result.history.items() if not is_timing(key)}
    found |= {name: getattr(result, name) for name in ("log_policy", "values", "covered", "counts")}
    found |= {"value": np.float64(result.value), "gap_bound": np.float64(result.gap_bound)}
    found |= {"iterations": int(result.iterations), "converged": bool(result.converged)}
    if result.trace is not None:
        kept = ("state", "action", "sign", "alpha", "value", "row", "log_policies", "batch")
        found |= {f"trace/{name}": getattr(result.trace, name) for name in kept}
    return {name: value for name, value in found.items() if value is not None}


def certificate(result: Any) -> Results:
    """Every line's verdict and numbers, without its words."""
    lines = result.certificate(seeds=10, max_steps=200).to_dict()["lines"]
    found: Results = {f"certificate/{line['statement']}": [line["status"], line["checks"]] for line in lines}
    numbers = [[np.nan if line[key] is None else float(line[key]) for key in ("ratio", "where")] for line in lines]
    return found | {f"{BITS}certificate, numbers": np.array(numbers)}


def given_pairs(folder: Path) -> Results:  # noqa: ARG001
    """A case: coordinates from an iterable, one by one and in lists."""
    results: Results = {}
    for name, make in MDPS.items():
        mdp = make()
        pairs = list(itertools.product(range(mdp.n_states), range(mdp.n_actions)))
        results |= under(f"{name}, pairs", run_results(capo.solve(mdp, rule=pairs * 3, iterations=2 * len(pairs))))
        lists = [pairs[i::3] or pairs for i in range(3)] * 4
        results |= under(f"{name}, lists", run_results(capo.solve(mdp, rule=lists, iterations=10)))
    return results


def sparse(folder: Path) -> Results:  # noqa: ARG001
    """A case: a sparse MDP, by both critics of the batch rule."""
    mdp = capo.mdps.slippery_grid(6, gamma=0.9)
    results: Results = {}
    for critic in ("direct", "signs"):
        run = capo.solve(mdp, rule="batch", critic=critic, tol=1e-5)
        results |= under(critic, run_results(run) | certificate(run))
    return results


def mazes(folder: Path) -> Results:  # noqa: ARG001
    """A case: the mazes themselves, and a run in each."""
    results: Results = {}
    for wall, distance, anywhere in itertools.product(("horizontal", "vertical"), (False, True), (False, True)):
        mdp = capo.mdps.grid(5, wall, distance, anywhere, seed=3)
        run = capo.solve(mdp, rule="cyclic", cycles=2)
        name = f"{wall}, {distance}, {anywhere}"
        results |= {f"{name}/start": mdp.start, f"{name}/reward": mdp.reward, f"{name}/log_policy": run.log_policy}
        results |= {f"{name}/values": run.values, f"{name}/counts": run.counts}
    return results


MANY: dict[str, dict[str, Any]] = {
    "cyclic": {"rule": "cyclic", "order": "permuted"},
    "randomized": {"rule": "randomized"},
    "on-policy": {"rule": "on-policy", "stepsize": "on-policy"},
    "behaviour": {"rule": "behaviour", "behaviour": "epsilon-greedy"},
}


def many(folder: Path) -> Results:  # noqa: ARG001
    """A case: ``capo.solve_many`` by every rule that draws, and stochastic natural policy gradient."""
    results: Results = {}
    for (name, make), (rule, options) in itertools.product(MDPS.items(), MANY.items()):
        run = capo.solve_many(make(), 3, iterations=60, record=10, track=(0, 1), **options)
        results |= under(f"{name}, {rule}", many_results(run))
    npg = capo.baselines.stochastic_npg(capo.mdps.bandit(), eta=0.05, seeds=4, iterations=200, track=(0, 0))
    return results | under("stochastic_npg", many_results(npg))


def many_results(run: Any) -> Results:
    """What a run of many seeds has in numbers."""
    arrays = {
        field.name: getattr(run, field.name)
        for field in dataclasses.fields(run)
        if isinstance(getattr(run, field.name), np.ndarray)
    }
    return arrays | {"iterations": int(run.iterations)}


BASELINES: dict[str, Callable[[Any], Any]] = {
    "policy gradient, proven step": lambda mdp: capo.baselines.policy_gradient(mdp, iterations=30),
    "policy gradient, tuned": lambda mdp: capo.baselines.policy_gradient(mdp, stepsize="tuned", iterations=15),
    "policy gradient, fixed": lambda mdp: capo.baselines.policy_gradient(mdp, eta=0.3, iterations=30),
    "natural policy gradient": lambda mdp: capo.baselines.natural_policy_gradient(mdp, eta=0.2, iterations=20),
    "policy iteration": lambda mdp: capo.baselines.policy_iteration(mdp),
    "value iteration": lambda mdp: capo.baselines.value_iteration(mdp, iterations=25),
}


def baseline(run: Callable[[Any], Any]) -> Compute:
    """A case: a baseline on every MDP."""

    def compute(folder: Path) -> Results:  # noqa: ARG001
        results: Results = {}
        for name, make in MDPS.items():
            results |= under(name, run_results(run(make())))
        return results

    return compute


def tabular_cases() -> Iterator[tuple[str, Compute]]:
    """Every rule with the step sizes that it is used with, and the baselines."""
    for name, options in RUNS.items():
        yield name, solved(options)
    yield "given pairs", given_pairs
    yield "sparse", sparse
    yield "mazes", mazes
    yield "many seeds", many
    for name, run in BASELINES.items():
        yield name, baseline(run)


# --- experiments ----------------------------------------------------------------------------------------------

_SHORT = ("--frames", "2000", "--seeds", "2", "--games", "breakout")
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "chain": ("chain",),
    "grid": ("grid", "--part", "random"),
    "bandit": ("bandit",),
    "rates": ("rates",),
    "noise, tabular": ("noise", "--part", "tabular"),
    "noise, game": ("noise", "--part", "game", "--algos", "ncapo", *_SHORT),
    "ablation, chain": ("ablation", "--part", "chain"),
    "ablation, game": ("ablation", "--part", "game", "--variants", "base", "kl-reverse", *_SHORT),
    "minatar": ("minatar", "--algos", "ncapo", "a2c", *_SHORT),
}
# Networks trained in float32 for a thousand steps: elsewhere a single run ends somewhere else, and only these
# columns, means over the runs and what does not depend on them, are compared.
TRAINED = ("chain", "grid", "ablation, chain")
STEADY = ("iteration", "rate", "mean")
# Entries of the data files that tell of the machine and not of the results.
_NOT_RESULTS = {"versions", "commit", "hardware"}
# How an experiment measures, which its results state beside what they measured; and the returns of evaluations
# during training, which depend on the episodes that are played and not on the training.
_PROTOCOL = ("evaluations", "episodes", "final_episodes", "deterministic", "evaluation/returns")


def reproduced(arguments: tuple[str, ...], steady: tuple[str, ...] | None) -> Compute:
    """A case: ``capo reproduce ... --quick``, and the numbers in the CSV and JSON files that it writes.

    Args:
        arguments: of the command.
        steady: the columns that are compared outside the exact mode too; None: all.
    """

    def compute(folder: Path) -> Results:
        out = folder / "out"
        command = [sys.executable, "-m", "capo", "reproduce", *arguments, "--quick", "--out", str(out)]
        made = subprocess.run(
            command,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{made.stderr}")
        return written(out, steady)

    return compute


def written(folder: Path, steady: tuple[str, ...] | None) -> Results:
    """The numbers of all data files in a folder; see :func:`reproduced` for ``steady``."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".csv", ".json"))
    results: Results = {"files": [path.name for path in files]}
    for path in files:
        found = columns(path) if path.suffix == ".csv" else dict(leaves(json.loads(path.read_text())))
        for name, value in found.items():
            fragile = path.suffix == ".csv" and steady is not None and name not in steady
            front = BITS if fragile and isinstance(value, np.ndarray) else ""
            left_out = (
                is_timing(name) or name.endswith(tuple(f"/{part}" for part in _PROTOCOL)) or name in _PROTOCOL
            )
            results |= {} if left_out else {f"{front}{path.name}/{name}": value}
    return results


def leaves(content: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers and truth values of a JSON file under their places; texts are no results."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key not in _NOT_RESULTS:
                yield from leaves(value, f"{name}/{key}" if name else key)
    elif isinstance(content, list):
        if content and all(isinstance(value, int | float | None) for value in content):
            yield name, np.array([np.nan if value is None else value for value in content], np.float64)
        else:
            for i, value in enumerate(content):
                yield from leaves(value, f"{name}/{i}")
    elif isinstance(content, bool | None):
        yield name, content
    elif isinstance(content, int | float):
        yield name, np.float64(content)


def experiment_cases() -> Iterator[tuple[str, Compute]]:
    """Every experiment, those with trainings on a game with few frames."""
    for name, arguments in EXPERIMENTS.items():
        yield name, reproduced(arguments, STEADY if name in TRAINED else None)


# --- all ------------------------------------------------------------------------------------------------------

GROUPS: dict[str, dict[str, Compute]] = {  # the longest first, for those who share the work
    "experiments": dict(experiment_cases()),
    "neural": dict(neural_cases()),
    "games": dict(game_cases()),
    "tabular": dict(tabular_cases()),
}
