"""How a file is damaged or forged: bytes, JSON values, manifests with correct checksums, pipes and links."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import random
import socket
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Random = random.Random
Mutate = Callable[[Path, Random], str]  # changes the file; returns what was done, in a word or two

# --- bytes ----------------------------------------------------------------------------------------------------


def damage_bytes(path: Path, rng: Random) -> str:
    """Accidents: flipped bits, lost, doubled or foreign bytes, a file that was cut short."""
    data = bytearray(path.read_bytes())
    kind = rng.choice(
        ("flip", "flip", "byte", "cut", "lose", "double", "insert", "zero", "append", "empty", "utf8")
    )
    at = rng.randrange(len(data)) if data else 0
    span = min(len(data) - at, rng.choice((1, 2, 8, 64, 1000)))
    if kind == "flip":
        for _ in range(rng.choice((1, 1, 1, 5))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        data[at] = rng.randrange(256)
    elif kind == "cut":
        del data[at:]
    elif kind == "lose":
        del data[at : at + span]
    elif kind == "double":
        data[at:at] = data[at : at + span]
    elif kind == "insert":
        data[at:at] = rng.randbytes(span)
    elif kind == "zero":
        data[at : at + span] = bytes(span)
    elif kind == "append":
        data += rng.randbytes(span)
    elif kind == "empty":
        data.clear()
    else:
        data[at : at + 1] = rng.choice((b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\0"))
    path.write_bytes(data)
    return kind


# --- JSON -----------------------------------------------------------------------------------------------------


def odd_value(rng: Random) -> Any:
    """A value that does not belong where it is put."""
    values: tuple[Any, ...] = (
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**32,
        2**63,
        10**30,
        -(2**70),
        0.5,
        1e308,
        -1e308,
    )
    values += (
        float("nan"),
        float("inf"),
        "",
        "x",
        "1",
        "\ud800",
        "\0",
        "a" * 100_000,
        "../../victim.txt",
        "/etc/passwd",
    )
    values += (
        "evil:X-v0",
        "CartPole-v1",
        "CartPole-v1,x=1",
        "GymV21Environment-v0,env_id=evil:X-v0",
        "minatar-breakout",
    )
    values += (
        [],
        {},
        [None],
        [[]],
        {"a": None},
        list(range(1000)),
        {"x" * 2000: 1},
        [2**40],
        ["seed"],
        "60s",
        "1e999s",
    )
    values += ("probe-action", "ppo", "rainbow", "cpu", "threefry2x32", "BF16", [1, -1], [10**9, 10**9])
    if rng.random() < 0.05:
        return deep(rng.choice((20, 40, 900, 5000)))
    return rng.choice(values)


def deep(levels: int) -> Any:
    """Lists inside each other."""
    return _Raw("[" * levels + "]" * levels)


class _Raw(str):
    """Text that stands in JSON as it is."""


def mutate_tree(tree: Any, rng: Random) -> str:
    """Change one place of a JSON value, in place: another value, a key less, more, or under another name."""
    places = list(_places(tree))
    if not places:
        return "nothing"
    holder, key = rng.choice(places)
    kind = rng.choice(("replace", "replace", "replace", "delete", "add", "rename", "swap"))
    if kind == "delete":
        del holder[key]
    elif kind == "add" and isinstance(holder, dict):
        holder[rng.choice(("extra", "../x", "", "seeds", "logs", "era"))] = odd_value(rng)
    elif kind == "rename" and isinstance(holder, dict):
        holder[rng.choice(("renamed", "../victim.txt", "/abs", "metrics.csv"))] = holder.pop(key)
    elif kind == "swap":
        other_holder, other = rng.choice(places)
        holder[key], other_holder[other] = copy.deepcopy(other_holder[other]), copy.deepcopy(holder[key])
    else:
        holder[key] = odd_value(rng)
    return kind


def _places(tree: Any) -> Any:
    keys: Any = tree.keys() if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in list(keys)[:200]:
        yield tree, key
        yield from _places(tree[key])


def dump(tree: Any) -> str:
    """JSON with :class:`_Raw` text as it is."""
    marks: dict[str, str] = {}

    def marked(value: Any) -> Any:
        if isinstance(value, _Raw):
            mark = f"@raw{len(marks)}@"
            marks[json.dumps(mark)] = str(value)
            return mark
        if isinstance(value, dict):
            return {name: marked(one) for name, one in value.items()}
        return [marked(one) for one in value] if isinstance(value, list) else value

    text = json.dumps(marked(tree))
    for mark, raw in marks.items():
        text = text.replace(mark, raw)
    return text


def mutate_json(path: Path, rng: Random) -> str:
    """A JSON file with one or a few odd places."""
    tree = json.loads(path.read_text())
    kinds = [mutate_tree(tree, rng) for _ in range(rng.choice((1, 1, 2, 4)))]
    path.write_text(dump(tree))
    return "json " + kinds[0]


def mutate_toml(path: Path, rng: Random) -> str:
    """A TOML file with one or a few odd places."""
    tree = tomllib.loads(path.read_text())
    kinds = [mutate_tree(tree, rng) for _ in range(rng.choice((1, 1, 2, 4)))]
    text = "\n".join(f"{json.dumps(name)} = {_toml(value)}" for name, value in tree.items())
    path.write_text(text, errors="surrogatepass" if rng.random() < 0.5 else "replace")
    return "toml " + kinds[0]


def _toml(value: Any) -> str:
    """A value in TOML; some of what JSON has is not valid there, and stays so."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(name)} = {_toml(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return str(value)
    return str(value) if isinstance(value, _Raw) else json.dumps(value, ensure_ascii=False)


def mutate_csv(path: Path, rng: Random) -> str:
    """A CSV file with an odd cell, column or line."""
    lines = path.read_text().split("\n")
    row = rng.randrange(len(lines))
    cells = lines[row].split(",")
    kind = rng.choice(("cell", "cell", "column", "line", "quote", "header"))
    if kind == "cell":
        odd = ("", "x", "nan", "inf", "-1", "1e400", "2147483648", '"', "\r", "0x10", "1_0", "9" * 5000)
        cells[rng.randrange(len(cells))] = rng.choice(odd)
        lines[row] = ",".join(cells)
    elif kind == "column":
        lines[row] = ",".join(cells[:-1] if rng.random() < 0.5 else [*cells, "7"])
    elif kind == "line":
        lines[row : row + 1] = [] if rng.random() < 0.5 else [lines[row], lines[row]]
    elif kind == "quote":
        lines[row] = '"' + lines[row]
    else:
        lines[0] = lines[0].replace(
            rng.choice(lines[0].split(",")), rng.choice(("seed", "frames", "", "x" * 200_000))
        )
    path.write_text("\n".join(lines))
    return "csv " + kind


# --- forgeries: the checksums are right -----------------------------------------------------------------------


def forge_checkpoint(path: Path, rng: Random) -> str:
    """A checkpoint with another manifest, whose checksums are computed anew, as an attacker would."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__")
    manifest = json.loads(metadata["manifest"])
    where = rng.choice(("content", "content", "content", "training", "logs", "all", "entries"))
    parts = {"training": manifest["content"]["training"], "logs": manifest["content"].get("logs", {})}
    parts |= {"content": manifest["content"], "all": manifest, "entries": manifest["entries"]}
    kind = mutate_tree(parts[where], rng)
    text = dump(manifest)
    entries = manifest.get("entries", header) if rng.random() < 0.8 else header
    metadata |= {"manifest": text, "manifest_sha256": hashlib.sha256(text.encode(errors="replace")).hexdigest()}
    whole = {"__metadata__": metadata, **(entries if isinstance(entries, dict) else header)}
    encoded = dump(whole).encode(errors="replace")
    length = len(encoded) if rng.random() < 0.95 else rng.choice((0, 2**31, 2**63, 10**8))
    path.write_bytes(length.to_bytes(8, "little") + encoded + data[start:])
    return f"forged {where} {kind}"


def forge_npz(path: Path, rng: Random) -> str:
    """An .npz with other members, shapes, types or numbers; a manifest's checksum is left as it is."""
    with np.load(path) as archive:
        arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
    name = rng.choice(list(arrays))
    kind = rng.choice(("drop", "type", "shape", "value", "extra", "claim", "object", "gamma", "index", "bomb"))
    array = arrays[name]
    claimed: tuple[int, ...] | None = None
    if kind == "drop":
        del arrays[name]
    elif kind == "type":
        arrays[name] = array.astype(rng.choice(("U3", "i1", "c16", "f2", "?", "V8")))
    elif kind == "shape":
        arrays[name] = rng.choice((array.reshape(-1), array[..., None], array.reshape(-1)[:0], np.zeros(())))
    elif kind == "value" and array.dtype.kind == "f":
        arrays[name] = array * rng.choice((np.nan, np.inf, -1.0, 1e300, 0.0))
    elif kind == "extra":
        arrays["extra"] = np.zeros(3)
    elif kind == "gamma":
        arrays["gamma"] = rng.choice((np.array(["x"]), np.array([0.5, 0.5]), np.array(np.nan), np.array(2.0)))
    elif kind == "index" and "indices" in arrays:
        arrays["indices"] = arrays["indices"] + rng.choice((10**6, -5))
    elif kind in ("claim", "bomb"):
        claimed = rng.choice(((2**40,), (10**5, 10**5), (2**62, 4)))
    write_npz(path, arrays, name if claimed and name in arrays else "", claimed, kind == "object")
    if "manifest" in arrays and kind in ("type", "shape", "index") and rng.random() < 0.7:
        with contextlib.suppress(ValueError):  # it was the manifest itself that was changed
            _resign(path)
    return f"forged {kind}"


def write_npz(
    path: Path,
    arrays: dict[str, Any],
    claiming: str = "",
    shape: tuple[int, ...] | None = None,
    pickled: bool = False,
) -> None:
    """An archive in which one member's header may claim another shape, or that holds a pickle."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            if name == claiming and shape is not None:
                header = {"descr": "<f8", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(buffer, header)
                buffer.write(bytes(1_000_000))
            else:
                np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=True)
            archive.writestr(f"{name}.npy", buffer.getvalue())
        if pickled:
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.array([Pickled()], object), allow_pickle=True)
            archive.writestr("start.npy" if "start" not in arrays else "more.npy", buffer.getvalue())


class Pickled:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (Path("pwned"), "unpickled"))


def _resign(path: Path) -> None:
    """Compute the checksum in an MDP's manifest anew."""
    from capo.tabular import mdp as module

    checksum = getattr(module, "_checksum", None)
    if checksum is None:  # it has moved
        from capo.tabular.mdp_files import checksum  # type: ignore[no-redef]
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    manifest = json.loads(arrays.pop("manifest").tobytes())
    manifest["sha256"] = checksum(arrays)
    write_npz(path, {"manifest": np.frombuffer(json.dumps(manifest).encode(), np.uint8), **arrays})


# --- what is no regular file ----------------------------------------------------------------------------------


def odd_file(path: Path, rng: Random) -> str:
    """Something else under the file's name; ``victim.txt`` lies in a folder above."""
    victim = next(folder / "victim.txt" for folder in path.parents if (folder / "victim.txt").exists())
    kind = rng.choice(("pipe", "folder", "link", "loop", "zero", "hard", "missing", "huge", "socket", "dangling"))
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(victim)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "hard":
        os.link(victim, path)
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(2**40)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))
    elif kind == "dangling":
        path.symlink_to("nowhere")
    return kind
