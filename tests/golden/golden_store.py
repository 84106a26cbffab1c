"""What is kept of a result, and how a new result is compared with it.

A *case* yields its results by name: arrays, numbers, texts. Of each array the file keeps a digest of its bytes
and a few plain numbers (sum, sum of magnitudes, first entries, in float64).

Which of the two counts depends on where the comparison runs:

exact       the packages, the processor and XLA's flags are those of the recording: every digest has to be equal.
tolerance   any of them differs, so that rounding may: floating-point results are compared by their plain numbers,
            within the tolerance of their group; integers, truth values and texts still have to be equal.

Results whose name begins with ``bits:`` are compared in the exact mode only. They are those that a last digit can
change altogether: what a replay holds, where a round-off error was largest.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "numba", "optax", "gymnasium", "pgx")
# Without LLVM's optimiser compiling takes half the time; what is traced is the same.
XLA_FLAGS = "--xla_backend_optimization_level=0"
BITS = "bits:"
_DIGITS = 32  # of a digest, hexadecimal
_FIRST = 3  # entries of an array that are kept

Entry = Any  # a digest, or a dictionary that describes an array or holds a plain value
Case = dict[str, Entry]


@dataclass(frozen=True)
class Tolerance:
    """How far floating-point results may be off elsewhere.

    A sum may be off by ``relative`` times the sum of magnitudes, an entry by ``relative`` times itself or the mean
    magnitude, whichever is larger; both by ``absolute`` besides.
    """

    relative: float
    absolute: float


TOLERANCES = {
    # A few gradient steps in float32. Adam moves a weight whose gradient is rounding noise by a whole learning
    # rate (about 1e-3), hence the absolute part.
    "neural": Tolerance(relative=1e-3, absolute=1e-3),
    # Booleans and small integers: nothing rounds.
    "games": Tolerance(relative=0.0, absolute=0.0),
    # float64, up to some hundred updates.
    "tabular": Tolerance(relative=1e-6, absolute=1e-9),
    # Whole columns of tables after up to a thousand updates.
    "experiments": Tolerance(relative=5e-2, absolute=5e-2),
}


# --- where this runs ------------------------------------------------------------------------------------------


@cache
def environment() -> dict[str, Any]:
    """What floating-point results depend on besides the code."""
    flags = os.environ.get("XLA_FLAGS", XLA_FLAGS)  # those of the tests where nothing else is said
    return {
        "packages": {name: _version(name) for name in PACKAGES},
        "processor": _processor(),
        "xla_flags": flags,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> dict[str, str]:
    """The kind of processor: XLA, BLAS and numpy choose their kernels by it."""
    found = {"machine": platform.machine(), "name": platform.processor()}
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return found
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    told = {key.strip(): value.strip() for key, value in pairs}
    flags = " ".join(sorted(told.get("flags", told.get("Features", "")).split()))
    kind = {key: told.get(key, "") for key in ("vendor_id", "cpu family", "model", "model name")}
    return {"machine": found["machine"], **kind, "flags": _hash(flags.encode())}


def differences_of_environment(recorded: Mapping[str, Any]) -> list[str]:
    """How this place differs from that of the recording; nothing if results have to be equal bit for bit."""
    here = environment()
    packages = {
        f"{name} {recorded['packages'].get(name)} -> {version}"
        for name, version in here["packages"].items()
        if version != recorded["packages"].get(name)
    }
    others = [key for key in ("processor", "xla_flags") if here[key] != recorded[key]]
    return [*sorted(packages), *(f"another {key}" for key in others)]


def mode(recorded: Mapping[str, Any]) -> str:
    """``exact`` or ``tolerance``."""
    return "tolerance" if differences_of_environment(recorded) else "exact"


def header() -> str:
    """One line about the comparison, for the top of a test report."""
    told = []
    for group in TOLERANCES:
        if not file_of(group).exists():
            continue
        why = differences_of_environment(read(group)["environment"])
        told.append(f"{group} within a tolerance ({', '.join(why)})" if why else f"{group} exact")
    return "golden numbers: " + ("; ".join(told) or "none recorded")


# --- the files ------------------------------------------------------------------------------------------------


def file_of(group: str) -> Path:
    """The file of a group of cases."""
    return FOLDER / f"{group}.json"


def read(group: str) -> dict[str, Any]:
    """A group's file: the environment of the recording, and the cases by name."""
    return json.loads(file_of(group).read_text())


def write(path: Path, cases: Mapping[str, Case]) -> None:
    """Write a group's file, one result a line so that a change can be read."""
    body = []
    for name, case in cases.items():
        lines = ",\n".join(f"   {json.dumps(key)}: {json.dumps(entry)}" for key, entry in case.items())
        body.append(f"  {json.dumps(name)}: {{\n{lines}\n  }}")
    text = ",\n".join(body)
    path.write_text(f'{{\n "environment": {json.dumps(environment())},\n "cases": {{\n{text}\n }}\n}}\n')


# --- the semantics number -------------------------------------------------------------------------------------

# What a resumed run depends on. How a preset's values change from version to version does not concern it: a run
# records its own.
NUMBERED = ("neural", "games")
SEMANTICS_FILE = FOLDER / "semantics.json"


def digests() -> dict[str, str]:
    """A digest of every recorded case that a training depends on, by group and name."""
    found = {}
    for group in NUMBERED:
        for name, case in read(group)["cases"].items():
            if not name.startswith("settings of"):
                found[f"{group}: {name}"] = _hash(json.dumps(case, sort_keys=True).encode())
    return found


def moved(kept: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The cases whose recorded results changed; a new case is no change."""
    return [name for name in kept if name in now and kept[name] != now[name]]


def record_semantics(number: int) -> None:
    """Keep the digests under the semantics number.

    Raises:
        SystemExit: if results moved but the number did not.
    """
    now = digests()
    if SEMANTICS_FILE.exists():
        kept = json.loads(SEMANTICS_FILE.read_text())
        changed = moved(kept["digests"], now)
        if changed and kept["semantics"] == number:
            raise SystemExit(
                f"{len(changed)} results moved ({changed[0]}, ...), so runs of before would end differently: "
                "raise SEMANTICS in src/capo/runs/semantics.py, say there what changed, and run this again with "
                "--digests"
            )
    SEMANTICS_FILE.write_text(json.dumps({"semantics": number, "digests": now}, indent=1) + "\n")


# --- one case -------------------------------------------------------------------------------------------------


def describe(results: Mapping[str, Any]) -> Case:
    """What is kept of a case's results."""
    return {name: _entry(name, value) for name, value in results.items()}


def _entry(name: str, value: Any) -> Entry:
    if value is None or isinstance(value, str | bool | int | list | tuple | dict):
        return {"value": json.loads(json.dumps(value))}
    array = np.asarray(value)
    if name.startswith(BITS):
        return _digest(array)
    kept: dict[str, Any] = {"sha256": _digest(array), "dtype": str(array.dtype), "shape": list(array.shape)}
    numbers = array.astype(np.float64).ravel()
    finite = numbers[np.isfinite(numbers)]
    kept |= {"sum": float(finite.sum()), "abs_sum": float(np.abs(finite).sum())}
    kept |= {"finite": int(finite.size), "first": finite[:_FIRST].tolist()}
    return kept


def _digest(array: np.ndarray[Any, Any]) -> str:
    """Of the type, the shape and the bytes."""
    return _hash(f"{array.dtype}{array.shape}".encode() + array.tobytes())


def digest_of_texts(texts: Sequence[str]) -> str:
    """For long columns of texts, of which nothing else is kept."""
    return _hash("\0".join(texts).encode())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGITS]


def compare(recorded: Case, found: Case, how: str, tolerance: Tolerance) -> list[str]:
    """The results that differ, each as one line that begins with its name.

    Args:
        recorded: what the file has.
        found: what came out now.
        how: ``exact`` or ``tolerance``.
        tolerance: for floating-point results in the second mode.
    """
    told = [f"{name}: no longer there" for name in recorded if name not in found]
    told += [f"{name}: not recorded" for name in found if name not in recorded]
    for name in recorded:
        if name in found and not (how == "tolerance" and name.startswith(BITS)):
            why = _difference(recorded[name], found[name], how, tolerance)
            told += [f"{name}: {why}"] if why else []
    return told


def _difference(before: Entry, now: Entry, how: str, tolerance: Tolerance) -> str:
    """In words; empty where there is none."""
    if before == now:
        return ""
    if not (isinstance(before, dict) and isinstance(now, dict) and "sha256" in before and "sha256" in now):
        return f"was {_short(before)}, is {_short(now)}"
    if how == "exact" or not _is_float(before):
        if before["sha256"] != now["sha256"]:
            return f"other bits: was {_short(before)}, is {_short(now)}"
        return ""
    return _beyond(before, now, tolerance)


def _is_float(entry: dict[str, Any]) -> bool:
    return entry["dtype"].startswith(("float", "bfloat"))


def _beyond(before: dict[str, Any], now: dict[str, Any], tolerance: Tolerance) -> str:
    """Where two descriptions of floating-point arrays are further apart than the tolerance."""
    for what in ("dtype", "shape", "finite"):
        if before[what] != now[what]:
            return f"{what} was {before[what]}, is {now[what]}"
    mean = before["abs_sum"] / max(before["finite"], 1)
    total = tolerance.relative * before["abs_sum"] + tolerance.absolute * max(before["finite"], 1)
    for what in ("sum", "abs_sum"):
        if abs(before[what] - now[what]) > total:
            return f"{what} was {before[what]!r}, is {now[what]!r}, further off than {total:.3g}"
    for i, (old, new) in enumerate(zip(before["first"], now["first"], strict=True)):
        allowed = tolerance.relative * max(abs(old), mean) + tolerance.absolute
        if abs(old - new) > allowed:
            return f"entry {i} was {old!r}, is {new!r}, further off than {allowed:.3g}"
    return ""


def _short(entry: Entry) -> str:
    """A description of one entry that fits into a line."""
    if isinstance(entry, dict) and "sha256" in entry:
        size = "x".join(map(str, entry["shape"])) or "scalar"
        return f"{entry['dtype']} {size} with sum {entry['sum']!r} and first {entry['first']}"
    text = json.dumps(entry.get("value", entry) if isinstance(entry, dict) else entry)
    return text if len(text) < 200 else text[:200] + "..."
