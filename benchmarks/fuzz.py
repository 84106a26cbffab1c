"""Thousands of damaged and forged files over everything that reads one.

    python benchmarks/fuzz.py --files 6000 --out results/reliability/fuzz.json
    python benchmarks/fuzz.py --files 300 --seed 7             another seed, only printed
    python benchmarks/fuzz.py --only 1234                      one case again, with its traceback

Every case takes a sound run, saved agent, MDP or results file, changes one file of it (bytes, JSON values, a
forged manifest with correct checksums, a pipe or link in its place), and lets one reader open it. Cases run in
child processes with a memory limit; a child that says nothing for a while is killed and counts as hanging. Counted
are

tracebacks          anything but a CapoError, or a result; for a command: anything but one line and an exit status
hangs               no answer within the time limit
damaged_accepted    a file with a checksum whose bytes changed, and that loaded as something else
files_touched       a file outside the run's folder that was changed, or code of a stranger that ran

All four must be 0: otherwise the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import queue
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fuzzing import mutations

FAULTS = ("tracebacks", "hangs", "damaged_accepted", "files_touched")
SECONDS = 30  # of processor time that a case may take
WALL_SECONDS = 240  # by the clock: other programs may be running
MEMORY = 8  # GiB of address space that a child may take
ROOT = Path(__file__).resolve().parents[1]
TINY = {"n_envs": 4, "rollout_length": 2, "width": 4, "batch_size": 2, "gradient_steps": 1, "replay_rollouts": 8}
EVIL = "from pathlib import Path\nPath('pwned').write_text('imported')\n"

Row = dict[str, Any]


# --- the sound files ------------------------------------------------------------------------------------------


def make_originals(folder: Path) -> None:
    """A run that is nearly finished, a finished one, a saved agent, MDPs, a results file, a sweep, a tuning."""
    import capo

    def agent(out: Path | None, **more: Any) -> Any:
        return capo.NCAPO("probe-both", seeds=2, out=out, log_every=8, checkpoint_every=16, **TINY, **more)

    stopped = agent(folder / "run")
    stopped.extra["eval_episodes"] = 2
    stopped.learn(48, callback=lambda one, _: one.frames < 40)
    whole = agent(folder / "finished").learn(48)
    from capo.runs.writer import write_evaluation

    write_evaluation(folder / "finished", whole.evaluate(2).to_dict())
    (folder / "finished" / "play.gif").write_bytes(b"GIF89a" + bytes(100))
    files = folder / "files"
    files.mkdir()
    whole.save(files / "agent")
    capo.mdps.parse("garnet:6,3,2").save(files / "dense.npz")
    capo.mdps.parse("slippery:4").save(files / "sparse.npz")
    mdp = capo.mdps.parse("chain:4")
    mutations.write_npz(
        files / "foreign.npz", {"transition": mdp.transition, "reward": mdp.reward, "gamma": mdp.gamma}
    )
    make_specs(folder / "specs")
    make_tuning(folder / "tuning")
    (folder / "bandit").mkdir()
    for name in ("summary.json", "curves.csv", "seeds.csv"):
        shutil.copy(ROOT / "results" / "bandit" / name, folder / "bandit")
    results = folder / "results"
    results.mkdir()
    content = json.loads((ROOT / "results" / "noise" / "breakout-ppo-noise-3.json").read_text())
    (results / "breakout-ppo-default.json").write_text(json.dumps(content))


def make_specs(folder: Path) -> None:
    """A sweep with its folder, a preset and a space to search."""
    import capo

    folder.mkdir()
    spec = {"environments": ["probe-both"], "frames": 16, "seeds": 1, "eval_episodes": 2, "algorithms": ["ncapo"]}
    spec["settings"] = {**TINY, "learning_rate": [0.001, 0.01], "ncapo": {"clip": [1.0, 2.0]}}
    capo.sweep(spec, out=folder / "sweep", progress=False)
    shutil.copy(folder / "sweep" / "sweep.toml", folder / "sweep.toml")
    (folder / "preset.toml").write_text(
        'algorithm = "ncapo"\npreset = "default"\nenvironment = "probe-both"\n'
        "[settings]\ngamma = 0.9\nlearning_rate = 1e-3\nwidth = 4\n"
    )
    (folder / "space.toml").write_text(
        '[learning_rate]\nlow = 1e-4\nhigh = 1e-2\nscale = "log"\n[width]\nchoices = [4, 8]\n'
    )


def make_tuning(folder: Path) -> None:
    """The folder of a tuning; what Optuna keeps in it is not read by the report."""
    shutil.copytree(ROOT / "results" / "tune", folder)


# --- the readers ----------------------------------------------------------------------------------------------


def _agent_print(agent: Any) -> str:
    """What an agent is, as a digest."""
    import jax
    import numpy as np

    leaves = jax.tree_util.tree_flatten_with_path(agent._states.tree())[0]
    digest = hashlib.sha256(f"{agent.config}{agent.seeds}{agent.frames}{agent._predictions}".encode())
    for path, leaf in leaves:
        digest.update(jax.tree_util.keystr(path).encode() + np.asarray(leaf).tobytes())
    return digest.hexdigest()


def _load(path: Path) -> str:
    import capo

    return _agent_print(capo.load(path))


def _resume(path: Path) -> str:
    import capo

    agent = capo.NCAPO.resume(path)
    with contextlib.closing(agent):
        return _agent_print(agent)


def _resume_previous(path: Path) -> str:
    import capo

    with contextlib.closing(capo.NCAPO.resume(path, use_previous=True)):
        return ""


def _mdp(path: Path) -> str:
    import numpy as np

    import capo

    mdp = capo.MDP.load(path)
    dense = np.asarray(mdp.csr().todense()).tobytes()
    return hashlib.sha256(f"{mdp!r}{mdp.reward_map}".encode() + dense + mdp.reward.tobytes()).hexdigest()


def _read_run(path: Path) -> str:
    from capo.report import page, sources

    records, problems = sources.read([path])
    page.render(records, problems).encode()
    return ""


def _read_strictly(path: Path) -> str:
    from capo.runs.reader import read_config, read_metrics

    read_config(path)
    read_metrics(path)
    return ""


def _preset(path: Path) -> str:
    from capo.neural.algorithms.ncapo import NCAPOConfig
    from capo.neural.preset_file import read_preset

    read_preset(path, "ncapo", NCAPOConfig)
    return ""


def _space(path: Path) -> str:
    from capo.neural.algorithms.ncapo import NCAPOConfig
    from capo.sweeps.space import read_space

    read_space(path, NCAPOConfig)
    return ""


def _command(*arguments: str) -> Callable[[Path], str]:
    """``capo ARGUMENTS`` with DIR for the path: an exit status, at most a line of error, never a traceback."""

    def run(path: Path) -> str:
        from capo.cli import main

        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            status = main([one.replace("DIR", str(path)) for one in arguments])
        if "Traceback" in output.getvalue():
            raise AssertionError(output.getvalue())
        if status == 2:
            from capo.errors import CapoError

            raise CapoError(output.getvalue().strip().splitlines()[-1])
        return ""

    return run


class Target(NamedTuple):
    """A file and what may be done to it."""

    original: str  # the folder that is copied
    file: str  # a pattern: the newest file that fits is changed
    mutate: mutations.Mutate
    reader: Callable[[Path], str]
    opened: str = ""  # what the reader is given, below the folder
    checksum: bool = False  # whether other bytes must be noticed


_CHECKPOINT, _AGENT = "checkpoints/*.safetensors", "agent.safetensors"
_BYTES, _JSON, _CSV, _ODD = mutations.damage_bytes, mutations.mutate_json, mutations.mutate_csv, mutations.odd_file
_FORGED, _NPZ = mutations.forge_checkpoint, mutations.forge_npz
_REPORT = _command("report", "DIR", "--out", "DIR/report.html")
_EVALUATE, _WATCH = (
    _command("evaluate", "DIR", "--episodes", "2"),
    _command("watch", "DIR", "--out", "DIR.gif", "--steps", "2"),
)
_DRAW = _command("reproduce", "bandit", "--draw-only", "--out", "DIR")
_TOML = mutations.mutate_toml
_PLAN = _command("sweep", "DIR", "--out", "new", "--plan")
_STATUS = _command("sweep", "status", "DIR")
_SOLVE = _command("solve", "DIR", "--iterations", "20")

# A kind of case, and how often it is drawn.
TARGETS: tuple[tuple[int, Target], ...] = (
    (10, Target("run", "config.json", _JSON, _resume)),
    (3, Target("run", "config.json", _BYTES, _resume)),
    (5, Target("run", "config.json", _JSON, _read_strictly)),
    (2, Target("run", "metrics.csv", _CSV, _resume)),
    (3, Target("run", "metrics.csv", _CSV, _read_strictly)),
    (2, Target("run", "metrics.csv", _BYTES, _read_strictly)),
    (10, Target("run", _CHECKPOINT, _BYTES, _resume, checksum=True)),
    (6, Target("run", _CHECKPOINT, _BYTES, _load, checksum=True)),
    (3, Target("run", _CHECKPOINT, _BYTES, _resume_previous)),
    (14, Target("run", _CHECKPOINT, _FORGED, _resume)),
    (5, Target("run", _CHECKPOINT, _FORGED, _load)),
    (10, Target("files", _AGENT, _BYTES, _load, "agent.safetensors", checksum=True)),
    (10, Target("files", _AGENT, _FORGED, _load, "agent.safetensors")),
    (8, Target("files", "dense.npz", _BYTES, _mdp, "dense.npz", checksum=True)),
    (8, Target("files", "sparse.npz", _BYTES, _mdp, "sparse.npz", checksum=True)),
    (4, Target("files", "dense.npz", _NPZ, _mdp, "dense.npz")),
    (4, Target("files", "sparse.npz", _NPZ, _mdp, "sparse.npz")),
    (3, Target("files", "foreign.npz", _BYTES, _mdp, "foreign.npz")),
    (5, Target("files", "foreign.npz", _NPZ, _mdp, "foreign.npz")),
    (2, Target("finished", "config.json", _JSON, _read_run)),
    (2, Target("finished", "metrics.csv", _CSV, _read_run)),
    (2, Target("finished", "evaluation.json", _JSON, _read_run)),
    (1, Target("finished", "evaluation.json", _BYTES, _read_run)),
    (3, Target("results", "*.json", _JSON, _read_run)),
    (1, Target("results", "*.json", _BYTES, _read_run)),
    # Links, pipes and the like instead of every file there is.
    (2, Target("run", "config.json", _ODD, _resume)),
    (2, Target("run", "metrics.csv", _ODD, _resume)),
    (2, Target("run", _CHECKPOINT, _ODD, _resume)),
    (1, Target("run", "tensorboard/seed-0/*", _ODD, _resume)),
    (1, Target("run", ".lock", _ODD, _resume)),
    (1, Target("files", _AGENT, _ODD, _load, "agent.safetensors")),
    (1, Target("files", "dense.npz", _ODD, _mdp, "dense.npz")),
    (1, Target("finished", "config.json", _ODD, _read_run)),
    (1, Target("finished", "metrics.csv", _ODD, _read_run)),
    (1, Target("finished", "evaluation.json", _ODD, _read_run)),
    (1, Target("finished", "play.gif", _ODD, _read_run)),
    (1, Target("results", "*.json", _ODD, _read_run)),
    # The commands.
    (2, Target("run", "config.json", _JSON, _command("resume", "DIR"))),
    (2, Target("run", "metrics.csv", _CSV, _command("resume", "DIR"))),
    (1, Target("run", "metrics.csv", _ODD, _command("resume", "DIR"))),
    (2, Target("run", _CHECKPOINT, _FORGED, _command("resume", "DIR"))),
    (1, Target("run", _CHECKPOINT, _BYTES, _command("resume", "DIR", "--use-previous"))),
    (1, Target("finished", "config.json", _JSON, _EVALUATE)),
    (2, Target("files", _AGENT, _FORGED, _EVALUATE, "agent.safetensors")),
    (2, Target("files", _AGENT, _FORGED, _WATCH, "agent.safetensors")),
    (1, Target("bandit", "summary.json", _JSON, _DRAW)),
    (1, Target("bandit", "*.csv", _CSV, _DRAW)),
    (1, Target("bandit", "*s*", _ODD, _DRAW)),
    (1, Target("finished", "metrics.csv", _BYTES, _REPORT)),
    (1, Target("finished", "config.json", _JSON, _REPORT)),
    (2, Target("files", "dense.npz", _NPZ, _SOLVE, "dense.npz")),
    (1, Target("files", "foreign.npz", _NPZ, _SOLVE, "foreign.npz")),
    (1, Target("files", "foreign.npz", _BYTES, _SOLVE, "foreign.npz")),
    # Sweeps, presets and tunings.
    (6, Target("specs", "sweep.toml", _TOML, _PLAN, "sweep.toml")),
    (2, Target("specs", "sweep.toml", _BYTES, _PLAN, "sweep.toml")),
    (1, Target("specs", "sweep.toml", _ODD, _PLAN, "sweep.toml")),
    (4, Target("specs", "sweep/sweep.toml", _TOML, _STATUS, "sweep")),
    (2, Target("specs", "sweep/status.json", _JSON, _STATUS, "sweep")),
    (1, Target("specs", "sweep/jobs/*/config.json", _JSON, _STATUS, "sweep")),
    (1, Target("specs", "sweep/jobs/*/config.json", _ODD, _STATUS, "sweep")),
    (1, Target("specs", "sweep/jobs/*/metrics.csv", _ODD, _STATUS, "sweep")),
    (1, Target("specs", "sweep/jobs/*/evaluation.json", _JSON, _STATUS, "sweep")),
    (2, Target("specs", "sweep/sweep.toml", _TOML, _REPORT, "sweep")),
    (5, Target("specs", "preset.toml", _TOML, _preset, "preset.toml")),
    (2, Target("specs", "preset.toml", _BYTES, _preset, "preset.toml")),
    (1, Target("specs", "preset.toml", _ODD, _preset, "preset.toml")),
    (5, Target("specs", "space.toml", _TOML, _space, "space.toml")),
    (1, Target("specs", "space.toml", _BYTES, _space, "space.toml")),
    (3, Target("tuning", "*.json", _JSON, _REPORT)),
    (1, Target("tuning", "tuning.json", _JSON, _REPORT)),
    (1, Target("tuning", "batches/*/*.json", _JSON, _REPORT)),
    (1, Target("tuning", "*.json", _ODD, _REPORT)),
)


# --- one case -------------------------------------------------------------------------------------------------


class Hang(BaseException):
    """The time is over."""


def _alarm(*_: object) -> None:
    raise Hang


def catch_alarms() -> None:
    """Let a case end when its time is over."""
    signal.signal(signal.SIGALRM, _alarm)
    signal.signal(signal.SIGPROF, _alarm)


def run_case(sandbox: Path, seed: int, number: int, show: bool = False) -> Row:
    """Change a file, let its reader open it, and say what happened."""
    from capo.errors import CapoError

    rng = random.Random(f"{seed}/{number}")
    weights = [weight for weight, _ in TARGETS]
    target = rng.choices([one for _, one in TARGETS], weights)[0]
    folder = sandbox / "case"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sandbox / "originals" / target.original, folder)
    file = max(folder.glob(target.file))
    changed = target.mutate(file, rng)
    opened = folder / target.opened if target.opened else folder
    name = f"{target.original}/{target.file}, {changed}, {_reader_name(target)}"
    row: Row = {"case": number, "what": name, "outcome": "accepted"}
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        found = target.reader(opened)
        sound = json.loads((sandbox / "prints.json").read_text()).get(_print_name(target))
        if target.checksum and found != sound:
            row |= {"outcome": "damaged_accepted"}
    except CapoError as error:
        row |= {"outcome": "refused", "message": str(error)[:300]}
        if "\n" in str(error):
            row |= {"outcome": "tracebacks", "message": f"more than one line: {error}"}
    except Hang:
        row |= {"outcome": "hangs"}
    except (KeyboardInterrupt, SystemExit, Exception) as error:
        row |= {"outcome": "tracebacks", "message": f"{type(error).__name__}: {error}"[:300]}
        row["where"] = traceback.format_exc()[-1500:]
        if show:
            traceback.print_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    if touched := touched_files(sandbox):
        row |= {"outcome": "files_touched", "message": ", ".join(touched)}
        restore_victims(sandbox)
    return row


def _reader_name(target: Target) -> str:
    return target.reader.__qualname__.partition(".")[0].strip("_")


def _print_name(target: Target) -> str:
    return f"{target.original}/{target.opened}"


def restore_victims(sandbox: Path) -> None:
    """The files that nobody may touch, and a module that nobody may import."""
    (sandbox / "victim.txt").write_text("precious\n" * 100)
    here = sandbox / "here"
    here.mkdir(exist_ok=True)
    (here / "evil.py").write_text(EVIL)
    (here / "pwned").unlink(missing_ok=True)
    for other in ("metrics.csv", "shimmy.py", "mujoco.py"):
        (here / other).write_text(EVIL)


def touched_files(sandbox: Path) -> list[str]:
    """What was changed outside the case's own folder."""
    found = [] if (sandbox / "victim.txt").read_text() == "precious\n" * 100 else ["victim.txt"]
    wanted = {"evil.py", "metrics.csv", "shimmy.py", "mujoco.py"}
    for path in (sandbox / "here").iterdir():
        if path.name not in wanted or path.read_text() != EVIL:
            found.append(path.name)
    return found


# --- the child and its keeper ---------------------------------------------------------------------------------


def work(sandbox: Path, seed: int, numbers: range) -> None:
    """Run cases in this process, one line of JSON each, with a line before it begins."""
    sys.path[:] = [path for path in sys.path if path]
    warnings.simplefilter("ignore")
    catch_alarms()
    restore_victims(sandbox)
    os.chdir(sandbox / "here")
    import capo.neural.algorithms.registry  # noqa: F401 - before memory is limited

    originals = sandbox / "originals"
    prints = {
        "run/": _load(originals / "run"),
        "files/agent.safetensors": _load(originals / "files" / "agent.safetensors"),
        "files/dense.npz": _mdp(originals / "files" / "dense.npz"),
        "files/sparse.npz": _mdp(originals / "files" / "sparse.npz"),
    }
    (sandbox / "prints.json").write_text(json.dumps(prints))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY << 30, MEMORY << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    said = os.fdopen(os.dup(1), "w")
    for number in numbers:
        print(json.dumps({"begins": number}), file=said, flush=True)
        print(json.dumps(run_case(sandbox, seed, number)), file=said, flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"peak_megabytes": peak}), file=said, flush=True)


def lines_of(child: subprocess.Popen[str]) -> Iterator[Row | None]:
    """What the child says; None if it says nothing for too long."""
    said: queue.Queue[str | None] = queue.Queue()

    def listen() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            said.put(line)
        said.put(None)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        try:
            line = said.get(timeout=2 * WALL_SECONDS)
        except queue.Empty:
            yield None
            return
        if line is None:
            return
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def keep(sandbox: Path, seed: int, numbers: range) -> Iterator[Row]:
    """Run cases in children; a new one follows where one crashed or hung."""
    at = numbers.start
    while at < numbers.stop:
        command = [sys.executable, __file__, "--work", str(sandbox), str(seed), str(at), str(numbers.stop)]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
        environment |= {"JAX_COMPILATION_CACHE_DIR": str(sandbox / "cache"), "PYTHONFAULTHANDLER": "1"}
        environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        errors = (sandbox / "stderr.txt").open("w")
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        begun, done = at, False
        for row in lines_of(child):
            if row is None:
                child.kill()
                yield {"case": begun, "what": "?", "outcome": "hangs"}
                at = begun + 1
                done = True
                break
            if "begins" in row:
                begun = at = row["begins"]
            else:
                yield row
                at = begun + 1
        status = child.wait()
        errors.close()
        if not done and status != 0:
            tail = (sandbox / "stderr.txt").read_text()[-1500:]
            yield {"case": begun, "what": f"exit status {status}", "outcome": "tracebacks", "where": tail}
            at = begun + 1


def together(sandbox: Path, seed: int, files: int, workers: int) -> Iterator[Row]:
    """Run the cases in several children at a time, each with a copy of the sound files."""
    said: queue.Queue[Row | None] = queue.Queue()

    def run(index: int) -> None:
        own = sandbox / str(index)
        shutil.copytree(sandbox / "originals", own / "originals")
        for row in keep(own, seed, range(files * index // workers, files * (index + 1) // workers)):
            said.put(row)
        said.put(None)

    for index in range(workers):
        threading.Thread(target=run, args=(index,), daemon=True).start()
    running = workers
    while running:
        row = said.get()
        if row is None:
            running -= 1
        else:
            yield row


def fuzz(files: int, seed: int, sandbox: Path, say: Callable[[str], None] = print, workers: int = 1) -> Row:
    """Run ``files`` cases; the counts, and the cases that went wrong."""
    (sandbox / "originals").mkdir(parents=True)
    make_originals(sandbox / "originals")
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    faults: list[Row] = []
    peak, begin = 0, time.perf_counter()
    for row in together(sandbox, seed, files, workers):
        if "peak_megabytes" in row:
            peak = max(peak, row["peak_megabytes"])
            continue
        counts[row["outcome"]] += 1
        kinds[row["what"].split(", ")[0]] += 1
        if row["outcome"] in FAULTS:
            faults.append(row)
            say(json.dumps(row))
        if sum(counts.values()) % 500 == 0:
            say(f"{sum(counts.values())} files, {time.perf_counter() - begin:.0f} s: {dict(counts)}")
    return {
        "files": sum(counts.values()),
        "seed": seed,
        "seconds": round(time.perf_counter() - begin, 1),
        "memory_limit_gib": MEMORY,
        "processor_seconds_limit": SECONDS,
        "wall_seconds_limit": WALL_SECONDS,
        "peak_megabytes": peak,
        "refused": counts["refused"],
        "accepted": counts["accepted"],  # changes that matter to nobody, or to no checksum
        **{fault: counts[fault] for fault in FAULTS},
        "by_file": dict(sorted(kinds.items())),
        "faults": faults,
    }


def main() -> int:
    """Run the cases, print the counts and write the file."""
    parser = argparse.ArgumentParser(description="Damaged and forged files over every reader.")
    parser.add_argument("--files", type=int, default=6000, help="how many (default: 6000)")
    parser.add_argument("--seed", type=int, default=0, help="of the changes (default: 0)")
    parser.add_argument("--workers", type=int, default=1, help="children at a time (default: 1)")
    parser.add_argument("--out", type=Path, help="JSON file for the counts")
    parser.add_argument("--only", type=int, metavar="CASE", help="run one case here, with its traceback")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        folder, seed, first, last = options.work
        work(Path(folder), int(seed), range(int(first), int(last)))
        return 0
    from capo.files import write_json
    from capo.provenance import provenance

    made_by = provenance()  # of the code that is tested, whatever changes meanwhile
    with tempfile.TemporaryDirectory(prefix="capo-fuzz-") as folder:
        sandbox = Path(folder) / "sandbox"
        if options.only is not None:
            (sandbox / "originals").mkdir(parents=True)
            make_originals(sandbox / "originals")
            (sandbox / "prints.json").write_text("{}")
            restore_victims(sandbox)
            catch_alarms()
            os.chdir(sandbox / "here")
            print(json.dumps(run_case(sandbox, options.seed, options.only, show=True), indent=1))
            return 0
        found = fuzz(options.files, options.seed, sandbox, lambda text: print(text, flush=True), options.workers)
    print(json.dumps({key: value for key, value in found.items() if key not in ("by_file", "faults")}, indent=1))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.out, {"what": "damaged and forged files over every reader", **found, **made_by})
    return 1 if any(found[fault] for fault in FAULTS) else 0


if __name__ == "__main__":
    sys.exit(main())
