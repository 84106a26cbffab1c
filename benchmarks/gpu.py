"""Speed of NCAPO on an accelerator: frames/s, updates/s, how far from the limit, and where the time goes.

    python benchmarks/gpu.py --out results/gpu/speed.json          the whole table
    python benchmarks/gpu.py --cases official:64 default:10        some of it
    python benchmarks/gpu.py --games asterix seaquest --cases default:10
    python benchmarks/gpu.py --profile official:64 default:64      kernels by time, and launches per iteration
    python benchmarks/gpu.py --envs                                the games alone, with loops and without
    python benchmarks/gpu.py --out results/gpu/speed.json --table  only print the table of finished rows

A case is ``NAME:SEEDS``, or ``NAME:SEEDS:key=value,key=value`` with settings changed. Names are NCAPO's presets,
and ``ALGORITHM/PRESET`` for another algorithm. Preset ``default`` trains on each frame 6.4 times (32
rollouts of 20 steps, 8 updates per iteration of 800 frames). With ``gradient_steps=30`` it is 24 times, the
replay ratio of the paper's table. Frames are summed over seeds; compile time is reported separately.
Rows that are already in the file are not measured again.

Two limits stand beside every case, both measured in the same run. *Operations*: multiply-adds of the matrix
products that the algorithm needs (a 3x3 convolution counted as such, however it is computed), at the rate of a
large product of the same number format. *Bytes*: what the steps of a gradient step read and write, each array once
per step (:func:`traffic`), at the rate of a large copy. What is left is mostly *launches*: with --profile, kernels
per iteration; small ones take a few microseconds each whatever they do.

--ahead N compiles N cases at a time beforehand, each in a process of its own: the table takes half as long, but
the compile times are then those of processes that share the machine. With --compiled FOLDER the programs stay
there for a later run, and --compile-only stops when they are there: compiling can share the machine with other
work, measuring needs the device alone.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

GAMES = ("breakout", "space_invaders", "asterix", "freeway", "seaquest")
SEEDS = (1, 8, 10, 64, 256)
FULL = "gradient_steps=30,replay_rollouts=6400"  # 24 replayed transitions a frame
CASES = [case for seeds in SEEDS for case in (f"official:{seeds}", f"default:{seeds}:{FULL}", f"default:{seeds}")]
# Those 24 transitions in other shapes: no neighbour should be a cliff.
SHAPES = [f"default:64:batch_size={960 // steps},gradient_steps={steps}" for steps in (60, 40, 24, 15, 8, 4)]
OTHER_GAMES = ("official:10", f"default:64:{FULL}", f"default:10:{FULL}", "default:10")


def learner_of(game: str, case: str) -> Any:
    """The learner that a case names."""
    from capo.neural.algorithms import registry as algorithms
    from capo.neural.algorithms.registry import learner_for
    from capo.neural.algorithms.settings import override

    name, seeds, *more = case.split(":")
    env = f"minatar-{game}"
    settings = {"horizon": "1e7"} | dict(pair.split("=", 1) for pair in ",".join(more).split(",") if pair)
    algorithm, _, preset = name.rpartition("/")
    config = algorithms.find(algorithm or "ncapo").settings.preset(preset, env)
    return learner_for(env, override(config, settings), int(seeds))


def fingerprint(learner: Any) -> str:
    """Of the settings and the device: rows with another one are of something else."""
    import jax

    what = json.dumps([learner.config.to_dict(), jax.devices()[0].device_kind], sort_keys=True)
    return hashlib.sha256(what.encode()).hexdigest()[:12]


def operations(learner: Any) -> float | None:
    """Operations (two a multiply-add) of the matrix products of one gradient step of one seed of NCAPO."""
    spec, config = learner.network, learner.config
    if learner.algorithm.name != "ncapo":
        return None
    height, width, channels = spec.observation_shape
    conv = 2 * 9 * channels * spec.conv_features * (height - 2) * (width - 2) if spec.kind == "conv" else 0
    dense = 2 * spec.n_flat * spec.width + 2 * spec.width * spec.width * (spec.n_dense - 1)
    head = 2 * spec.width * spec.n_actions
    critic_head = 2 * spec.width * (spec.critic_outputs or spec.n_actions)
    trunks = 1 if spec.shared_trunk else 2
    rows = config.batch_size * config.rollout_length
    more_rows = config.batch_size * (config.rollout_length + 1)
    # Forward; backward to weights and, beyond the first layer, to inputs.
    first = conv or 2 * spec.n_flat * spec.width
    learnt = 3 * (trunks * (conv + dense) + head + critic_head) - trunks * first
    evaluated = conv + dense + critic_head if config.target_critic == "full" else critic_head
    if config.target_from == "target-network":
        evaluated += conv + dense + head
    else:  # the rows after the last step
        evaluated += (conv + dense + head) / (config.rollout_length + 1)
    return float(rows * learnt + more_rows * evaluated)


def traffic(learner: Any) -> float | None:
    """Bytes that a gradient step of one seed of NCAPO reads and writes, if every array is touched once a step.

    Steps are: unpack, put lines side by side, product, bias and norm and activation, and so on back; parameters,
    gradients and Adam's two averages are float32. What the heads give is left out: little, unless the critic is
    categorical.
    """
    spec, config = learner.network, learner.config
    if learner.algorithm.name != "ncapo":
        return None
    number = 2 if spec.precision == "bfloat16" else 4
    size = math.prod(spec.observation_shape)
    height, width, channels = spec.observation_shape
    layers = list(itertools.pairwise([spec.n_flat, *(spec.width,) * spec.n_dense]))
    inputs = size / 8 + number * size  # once for all networks
    if spec.kind == "conv":
        lines = 3 * (height - 2) * width * channels
        inputs += number * (size + lines)
        layers = [(lines, spec.n_flat), *layers]
    # product: read, write; activation: read, write
    forward = number * sum(i + 3 * o for i, o in layers)
    # activation: read two, write; weights: read two; inputs (but for the first layer): read, write
    backward = number * (sum(3 * o + o + i for i, o in layers) + sum(o + i for i, o in layers[1:]))
    trunks = 1 if spec.shared_trunk else 2
    passes = trunks + (1 if config.target_critic == "full" else 0) + (config.target_from == "target-network")
    rows = config.batch_size * (config.rollout_length + 1)
    moments = 2 if config.optimiser == "adam" else 1
    # gradient: written, read; parameter and averages: read, written; copy in the products' format: written, read
    each = 8 + 8 * (1 + moments) + 2 * number
    return float(rows * (inputs + passes * forward + trunks * backward) + learner.n_parameters * each)


def best_seconds(function: Any, *arguments: Any, calls: int = 10) -> float:
    """Of some calls after a first one."""
    import jax

    best = math.inf
    jax.block_until_ready(function(*arguments))
    for _ in range(calls):
        begin = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        best = min(best, time.perf_counter() - begin)
    return best


def matrix_limit(precision: str) -> float:
    """Operations a second of a large matrix product."""
    import jax
    import jax.numpy as jnp

    n = 2048 if jax.default_backend() == "cpu" else 8192
    a = jax.random.normal(jax.random.PRNGKey(0), (n, n), jnp.dtype(precision))
    return float(2 * n**3 / best_seconds(jax.jit(lambda a: a @ a), a))


def memory_limit() -> float:
    """Bytes a second of a large copy, read and written."""
    import jax
    import jax.numpy as jnp

    n = 2**24 if jax.default_backend() == "cpu" else 2**28
    return 8 * n / best_seconds(jax.jit(lambda a: a + 1), jnp.zeros(n, jnp.float32))


def timed(learner: Any, state: Any, seconds: float, call: float) -> tuple[int, float, Any]:
    """Iterations done in about ``seconds``, the seconds spent, and the last metrics.

    Args:
        state: used up.
        call: seconds of one call: long enough to hide the call, short enough to stop in time.
    """
    import jax

    iterations, done, spent, metrics = 1, 0, 0.0, None
    while spent < seconds:
        begin = time.perf_counter()
        state, metrics = learner.run(state, iterations)
        jax.block_until_ready(state)
        took = time.perf_counter() - begin
        done, spent = done + iterations, spent + took
        iterations = max(1, min(1000, round(iterations * call / took)))
    return done, spent, metrics


def measure(game: str, case: str, seconds: float, limits: dict[str, float]) -> dict[str, Any]:
    """One row of the table."""
    learner = learner_of(game, case)
    seeds = learner.n_seeds
    compile_seconds = learner.compile()
    memory = learner.compiled_memory()
    state = learner.init(range(seeds))
    state, _ = learner.run(state, 2)
    done, spent, _ = timed(learner, state, seconds, seconds / 4)
    updates = done * seeds * learner.updates_per_iteration
    precision = learner.network.precision
    if precision not in limits:
        limits[precision] = matrix_limit(precision)
    if "bytes" not in limits:
        limits["bytes"] = memory_limit()
    needed, moved = operations(learner), traffic(learner)
    rate = None if needed is None else needed * updates / spent
    bandwidth = None if moved is None else moved * updates / spent
    return {
        "game": game,
        "case": case,
        "settings": fingerprint(learner),
        "seeds": seeds,
        "precision": precision,
        "frames_per_second": round(done * seeds * learner.frames_per_iteration / spent),
        "updates_per_second": round(updates / spent),
        "ms_per_iteration": round(1000 * spent / done, 2),
        "tflop_per_second": None if rate is None else round(rate / 1e12, 2),
        "fraction_of_limit": None if rate is None else round(rate / limits[precision] / learner.n_devices, 4),
        "gb_per_second": None if bandwidth is None else round(bandwidth / 1e9),
        "fraction_of_bandwidth": None
        if bandwidth is None
        else round(bandwidth / limits["bytes"] / learner.n_devices, 4),
        "minutes_for_10M_frames_a_seed": round(1e7 / learner.frames_per_iteration * spent / done / 60, 2),
        "compile_seconds": round(compile_seconds, 1),
        "memory_gb": None if memory is None else round(memory / 1e9, 2),
    }


def compile_ahead(wanted: list[tuple[str, str]], workers: int, folder: Path) -> None:
    """Compile into jax's cache in ``folder``, ``workers`` cases at a time."""
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder)}

    def one(what: tuple[str, str]) -> None:
        command = [sys.executable, __file__, "--compile-one", str(folder), "--games", what[0], "--cases", what[1]]
        subprocess.run(command, env=environment, check=False)  # one that fails says why, and again when measured

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, wanted))


def compile_one(game: str, case: str, folder: Path) -> None:
    """Compile a case and note how long it took."""
    from capo.files import write_json

    learner = learner_of(game, case)
    seconds = round(learner.compile(), 1)
    write_json(
        compile_note(folder, game, learner.n_seeds, fingerprint(learner)),
        {"compile_seconds": seconds, "compiled_beside_others": True},
    )
    print(f"compiled {game} {case}: {seconds} s, sharing the machine", file=sys.stderr, flush=True)


def compile_note(folder: Path, game: str, seeds: int, settings: str) -> Path:
    """Where the compile time of a case is noted."""
    return folder / f"{game}-{seeds}-{settings}.json"


def profile(game: str, case: str, iterations: int = 2) -> dict[str, Any]:
    """Kernels of an iteration by time, from jax's profiler."""
    import jax

    learner = learner_of(game, case)
    state = learner.init(range(learner.n_seeds))
    state, _ = learner.run(state, 10)
    jax.block_until_ready(state)
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, create_perfetto_trace=True)
        begin = time.perf_counter()
        state, _ = learner.run(state, iterations)
        jax.block_until_ready(state)
        wall = time.perf_counter() - begin
        jax.profiler.stop_trace()
        (path,) = Path(folder).rglob("perfetto_trace.json.gz")
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    kernels: dict[str, list[float]] = collections.defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and "device:GPU" in names.get(event["pid"], ""):
            kernels[event["name"]].append(event["dur"])
    rows = sorted(
        (
            {"kernel": k, "launches": len(v) / iterations, "us": round(sum(v) / iterations, 1)}
            for k, v in kernels.items()
        ),
        key=lambda row: -float(row["us"]),
    )
    needed, moved = operations(learner), traffic(learner)
    updates = learner.updates_per_iteration * learner.n_seeds
    return {
        "game": game,
        "case": case,
        "gflop_per_iteration": None if needed is None else round(needed * updates / 1e9, 2),
        "gb_per_iteration": None if moved is None else round(moved * updates / 1e9, 3),
        "ms_per_iteration": round(1000 * wall / iterations, 2),
        "kernel_ms_per_iteration": round(sum(row["us"] for row in rows) / 1000, 2),
        "launches_per_iteration": sum(row["launches"] for row in rows),
        "kernels": rows[:60],
    }


def measure_game(game: str, copies: int, written_out: bool) -> dict[str, Any]:
    """Microseconds of a step of all copies of a game together, uniform actions, resets included."""
    import jax

    from capo.envs.minatar.games import LOOP_ITERATIONS, MinAtar
    from capo.envs.minatar.unrolled import unroll_loops
    from capo.neural.learners.jitted import _step_and_reset

    env = MinAtar(f"minatar-{game}")
    reset, step = type(env).reset.__get__(env), type(env).step.__get__(env)  # not yet written out, on any device
    if not written_out:
        env._start, env._play = env._game.init, env._game.step  # pgx's, also where there are some of our own
    else:
        reset, step = (unroll_loops(function, LOOP_ITERATIONS.get(env.name, 25)) for function in (reset, step))
    env.reset, env.step = reset, step  # type: ignore[method-assign]
    steps = 200

    def move(state: Any, key: Any) -> tuple[Any, Any]:
        keys = jax.random.split(key, (copies, 2))
        moved = _step_and_reset(env, keys, state, jax.random.randint(key, (copies,), 0, env.n_actions))
        return moved.env_state, moved.reward.sum()

    def play(state: Any, key: Any) -> Any:
        return jax.lax.scan(move, state, jax.random.split(key, steps))

    state, _ = jax.vmap(env.reset)(jax.random.split(jax.random.PRNGKey(0), copies))
    begin = time.perf_counter()
    program = jax.jit(play).lower(state, jax.random.PRNGKey(1)).compile()
    compile_seconds = time.perf_counter() - begin
    best = best_seconds(program, state, jax.random.PRNGKey(1), calls=3)
    return {
        "game": game,
        "copies": copies,
        "loops": "written out" if written_out else "as they are",
        "microseconds_per_step": round(1e6 * best / steps, 1),
        "steps_per_second": round(copies * steps / best),
        "compile_seconds": round(compile_seconds, 1),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Rows for a terminal or a log."""
    keys = ("game", "case", "frames_per_second", "updates_per_second", "tflop_per_second", "fraction_of_limit")
    keys += ("fraction_of_bandwidth", "minutes_for_10M_frames_a_seed", "compile_seconds", "memory_gb")
    lines = ["| " + " | ".join(key.replace("_", " ") for key in keys) + " |", "|---" * len(keys) + "|"]
    for row in rows:
        if "frames_per_second" not in row:
            continue
        cells = (f"{row[key]:,}" if isinstance(row[key], int) else str(row[key]) for key in keys)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", choices=GAMES, help="games for --cases (default: Breakout)")
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="measure these instead of the whole table")
    parser.add_argument("--profile", nargs="+", metavar="CASE", help="profile these instead of measuring speed")
    parser.add_argument("--envs", action="store_true", help="measure the games alone")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long to measure each case")
    parser.add_argument("--limit", type=float, default=math.inf, help="start no new case after this many seconds")
    parser.add_argument("--ahead", type=int, default=0, metavar="N", help="compile N cases at a time beforehand")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER", help="keep compiled programs here")
    parser.add_argument("--compile-only", action="store_true", help="with --ahead and --compiled: measure nothing")
    parser.add_argument("--compile-one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="JSON file, updated after every row")
    parser.add_argument("--table", action="store_true", help="measure nothing, only print the table of --out")
    options = parser.parse_args()
    import jax

    from capo.files import write_json
    from capo.provenance import provenance

    if options.compile_one:
        compile_one(options.games[0], options.cases[0], options.compile_one)
        return
    if options.compile_only and not (options.ahead and options.compiled):
        parser.error("--compile-only needs --ahead N and --compiled FOLDER")
    if options.ahead or options.compiled:  # before anything is compiled, or takes all of the memory
        temporary = tempfile.TemporaryDirectory(prefix="capo-compiled-")  # until this function ends
        compiled = options.compiled or Path(temporary.name)
        compiled.mkdir(parents=True, exist_ok=True)
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        jax.config.update("jax_compilation_cache_dir", str(compiled))
    device = jax.devices()[0].device_kind  # looked at first, so that provenance names the accelerator
    begin = time.perf_counter()
    games = options.games or GAMES[:1]
    wanted = [(game, case) for game in games for case in options.profile or options.cases or [*CASES, *SHAPES]]
    if options.envs:
        wanted = [(game, way) for game in options.games or GAMES for way in ("as they are", "written out")]
    elif not (options.games or options.cases or options.profile):
        wanted += [(game, case) for game in GAMES[1:] for case in OTHER_GAMES]
    stored = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    rows: list[dict[str, Any]] = stored.get("rows", [])
    limits: dict[str, float] = {}  # operations a second by number format; bytes a second; of this run
    made = stored.get("made_by", [])
    makers: list[dict[str, Any]] = made if isinstance(made, list) else [made]
    measured_on = sorted({kind for maker in makers for kind in maker["hardware"]["devices"]})
    if options.table:
        print(table(rows))
        print(f"\nmeasured on: {', '.join(measured_on)}")
        return
    if measured_on and measured_on != [device]:
        sys.exit(f"{options.out} is of {', '.join(measured_on)}, this is {device}: give another file as --out")
    if options.ahead and not (options.profile or options.envs):
        there = {(row["game"], row.get("case"), row.get("settings")) for row in rows}
        new = [
            (game, case) for game, case in wanted if (game, case, fingerprint(learner_of(game, case))) not in there
        ]
        compile_ahead(new, options.ahead, compiled)
    if options.compile_only:
        return
    for game, case in wanted:
        same = [row for row in rows if (row["game"], row.get("case", row.get("loops"))) == (game, case)]
        plain = options.profile or options.envs
        if same and (plain or same[0].get("settings") == fingerprint(learner_of(game, case))):
            continue
        rows = [row for row in rows if row not in same]  # of other settings, or of another device
        if time.perf_counter() - begin > options.limit:
            print(f"not measured, out of time: {game} {case}", file=sys.stderr, flush=True)
            continue
        if options.profile:
            row = profile(game, case)
            head = {key: value for key, value in row.items() if key != "kernels"}
            print(json.dumps(head), file=sys.stderr)
            for kernel in row["kernels"][:25]:
                text = f"  {kernel['us']:10.1f} us {kernel['launches']:8.1f} x {kernel['kernel'][:100]}"
                print(text, file=sys.stderr)
            sys.stderr.flush()
        else:
            if options.envs:
                row = measure_game(game, 400, case == "written out")
            else:
                row = measure(game, case, options.seconds, limits)
                if options.ahead or options.compiled:
                    note = compile_note(compiled, game, row["seeds"], row["settings"])
                    row |= json.loads(note.read_text()) if note.exists() else {}
            print(json.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            made_by = provenance()
            row["commit"] = made_by["commit"]
            makers = [*(made for made in makers if made["commit"] != made_by["commit"]), made_by]
            found = {"made_by": makers, "limits": limits, "rows": rows}
            write_json(options.out, found)
    if not (options.profile or options.envs):
        print(table(rows))


if __name__ == "__main__":
    main()
