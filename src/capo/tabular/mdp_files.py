"""MDPs as .npz files: plain arrays and a JSON manifest with a checksum, no pickle."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from capo.checks import as_path
from capo.errors import CapoError
from capo.files import atomic_file
from capo.tabular.archive import manifest_bytes, read_arrays, read_manifest

FORMAT, WITH_ACTIONS = "capo-mdp-1", "capo-mdp-2"  # the second has action sets, which older versions cannot read
FOREIGN = ("transition", "reward", "gamma", "start", "terminal", "actions")


def checksum(arrays: Mapping[str, Any]) -> str:
    """SHA-256 of names, types, shapes and contents."""
    digest = hashlib.sha256()
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        digest.update(f"{key}:{array.dtype.str}:{array.shape};".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def with_suffix(path: str | Path) -> Path:
    """The path with .npz at its end."""
    target = as_path("save(path)", path)
    return target if target.suffix == ".npz" else target.with_name(target.name + ".npz")


def write(path: str | Path, arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> Path:
    """Write an MDP's arrays and its name, gamma and reward map."""
    target = with_suffix(path)
    name = WITH_ACTIONS if "actions" in arrays else FORMAT
    manifest = {"format": name, **facts, "sha256": checksum(arrays)}
    with atomic_file(target) as file:
        np.savez_compressed(file, manifest=manifest_bytes(manifest), **arrays)
    return target


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of an MDP, and what its constructor cannot be told: ``terminal`` and ``reward_map``.

    The second is empty for files that :func:`write` did not write.
    """
    target = Path(path)
    if not target.exists():
        target = with_suffix(target) if with_suffix(target).exists() else target  # the name `write` gave it
    arrays = read_arrays(target)
    if "manifest" in arrays:
        return _saved(target, arrays)
    missing = [key for key in FOREIGN[:3] if key not in arrays]
    if missing:
        raise CapoError(
            f"{target} has no {', '.join(missing)}: an .npz needs arrays transition (S, A, S), reward "
            f"(S, A) or (S, A, S) and gamma, and optionally start, terminal and actions; it has {sorted(arrays)}"
        )
    name = "".join(letter for letter in target.stem if letter.isprintable())
    return {key: arrays[key] for key in FOREIGN if key in arrays} | {"name": name}, {}


def _saved(target: Path, arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    manifest = read_manifest(target, arrays.pop("manifest"), (FORMAT, WITH_ACTIONS))
    if manifest.get("sha256") != checksum(arrays):
        raise CapoError(f"{target} is damaged: its checksum does not match its arrays")
    try:
        reward, start = arrays["reward"], arrays["start"]
        scale, shift = (float(number) for number in manifest["reward_map"])
        if reward.ndim != 2 or start.shape != reward.shape[:1]:
            raise ValueError(f"rewards of shape {reward.shape}, a start distribution of shape {start.shape}")
        if not (scale > 0 and math.isfinite(scale + shift)):
            raise ValueError(f"a reward map with scale {scale} and shift {shift}")
        transition = arrays.get("transition")
        if transition is None:
            transition = _sparse(arrays, (reward.size, len(start)))
        for key, shape in (("terminal", start.shape), ("ends", start.shape), ("actions", reward.shape)):
            mask = arrays[key] if key == "terminal" else arrays.get(key, np.zeros(shape, bool))
            if mask.dtype != np.bool_ or mask.shape != shape:
                raise ValueError(f"{key} of type {mask.dtype} and shape {mask.shape}")
        name = manifest["name"]
        if not isinstance(name, str) or not name.isprintable():
            raise ValueError(f"the name {name!a} is not printable text")
        arguments = {"gamma": manifest["gamma"], "name": name, "actions": arrays.get("actions")}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CapoError(f"{target} is damaged: {type(error).__name__}: {error}") from error
    arguments |= {"transition": transition, "reward": reward, "start": start}
    return arguments, {"terminal": arrays["terminal"], "ends": arrays.get("ends"), "reward_map": (scale, shift)}


def _sparse(arrays: Mapping[str, Any], shape: tuple[int, int]) -> sp.csr_array:
    """The transitions (S*A, S); scipy's compiled code trusts their types and indices, so they are checked here."""
    data, indices, indptr = (arrays[name] for name in ("data", "indices", "indptr"))
    native = [np.dtype(np.int32), np.dtype(np.int64)]  # neither unsigned nor of another byte order
    if data.dtype != np.float64 or indices.dtype not in native or indptr.dtype != indices.dtype:
        raise ValueError(f"transitions of types {data.dtype}, {indices.dtype} and {indptr.dtype}")
    transition = sp.csr_array((data, indices, indptr), shape=shape)
    transition.check_format(full_check=True)  # an index outside the matrix would read foreign memory
    return transition
