"""What a report is made of: the runs and results files under the folders that a user names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from capo.envs.minatar.games import GAMES
from capo.envs.noise import noisy_name
from capo.errors import CapoError
from capo.reading import Unreadable, read_errors
from capo.runs.layout import CONFIG, METRICS, is_run
from capo.runs.reader import salvage_config
from capo.runs.records import Record, environment_name, read_result, read_run
from capo.sweeps.folder import JOBS, SweepFolder, is_sweep


def read(paths: Sequence[Path]) -> tuple[list[Record], list[str]]:
    """Everything the folders hold.

    Args:
        paths: folders of runs, of sweeps, folders that hold runs, and results of ``capo reproduce minatar``.

    Returns:
        The records, and what could not be read, in words.

    Raises:
        CapoError: if a path is none of these, or if there is nothing to draw in any of them.
    """
    if not paths:
        raise CapoError("give at least one folder: `capo report runs/breakout`")
    records: list[Record] = []
    notes: list[str] = []
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            notes.append(f"{path} was given twice and is drawn once")
            continue
        seen.add(path.resolve())
        records += _read_one(path, notes)
    for record in records:
        notes += record.problems
    if not any(record.training or record.evaluation for record in records):
        detail = "; ".join(notes[:3]) or "nothing has been logged yet"
        raise CapoError(
            f"no seed of {', '.join(map(str, paths))} has anything to draw: {detail}. To continue a run: "
            "`capo resume DIR`"
        )
    return records, notes


def _read_one(path: Path, notes: list[str]) -> list[Record]:
    with read_errors(path):
        return _read_folder(path, notes)


def _read_folder(path: Path, notes: list[str]) -> list[Record]:
    if not path.exists():
        raise CapoError(f"{path}: no such folder; give one that `capo train ... --out` created")
    if not path.is_dir():
        raise CapoError(f"{path} is a file; give the folder that contains it")
    if is_run(path):
        return [read_run(path)]
    if is_sweep(path):
        return _read_sweep(path, notes)
    results = [file for file in sorted(path.glob("*.json")) if _is_result(file)]
    found = []
    for file in results:
        try:
            found.append(read_result(file))
        except Unreadable as error:
            notes.append(f"{file}: {error}; left out")
    below = sorted({*path.glob("*/"), *path.glob("*/*/")})
    found += [read_run(one) for one in below if is_run(one) and not _has_result(one, found)]
    if not found and not results:
        raise CapoError(
            f"{path} is not a run's folder (it has neither {CONFIG} nor {METRICS}) and contains none; "
            "give a folder that `capo train ENV --out DIR` or `capo reproduce minatar --out DIR` wrote"
        )
    return found


def holds_runs(path: Path) -> bool:
    """Whether a folder holds runs or results, besides other things."""
    below = (*path.glob("*/"), *path.glob("*/*/"))
    return is_run(path) or any(map(is_run, below)) or any(map(_is_result, path.glob("*.json")))


def _read_sweep(path: Path, notes: list[str]) -> list[Record]:
    """The jobs of a sweep, each with those of its settings that differ between jobs."""
    folders = sorted((path / JOBS).iterdir())
    for folder in folders:
        error = SweepFolder(path).error(folder.name)
        if error:
            notes.append(f"{folder}: the job failed: {error}")
    found = [read_run(folder) for folder in folders if is_run(folder)]
    if not found:
        raise CapoError(f"{path}: no job of this sweep has started; see `capo sweep status {path}`")
    alike: dict[tuple[str, str, str], list[Record]] = {}
    for record in found:
        alike.setdefault((record.env, record.algorithm, record.preset), []).append(record)
    for records in alike.values():
        names = dict.fromkeys(name for record in records for name in record.settings)
        texts = {name: {str(record.settings.get(name)) for record in records} for name in names}
        for record in records:
            record.varied = {name: record.settings.get(name) for name in names if len(texts[name]) > 1}
    return found


def _is_result(file: Path) -> bool:
    """Whether a JSON file is meant to be a results file, readable or not.

    Those are ``<game>-<algorithm>-<preset>.json``, and ``<game>-<variant>.json`` of the ablation and the noise.
    """
    game, dash, _ = file.stem.partition("-")
    return game in GAMES and bool(dash)


def _has_result(run: Path, results: Sequence[Record]) -> bool:
    """Whether a results file covers this run already, so that it is not drawn twice."""
    config, _ = salvage_config(run)
    key = (environment_name(config), *(config.get(name) for name in ("algorithm", "preset", "frames", "config")))
    return "seeds" in config and any(
        (noisy_name(one.env, one.reward_noise), one.algorithm, one.preset, one.frames, one.settings) == key
        and set(config["seeds"]) <= set(one.seeds)
        for one in results
    )
