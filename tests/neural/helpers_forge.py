"""Checkpoints as an attacker would write them: another manifest, with checksums that are right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def newest(run: Path) -> Path:
    """The newest checkpoint of a run."""
    return max((run / "checkpoints").glob("*.safetensors"))


def forge(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Change the manifest of a checkpoint and compute its checksum anew."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    manifest = json.loads(header["__metadata__"]["manifest"])
    change(manifest)
    text = json.dumps(manifest)
    header["__metadata__"] |= {"manifest": text, "manifest_sha256": hashlib.sha256(text.encode()).hexdigest()}
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data[start:])
    return path


def forge_content(path: Path, **changes: Any) -> Path:
    """Change what a checkpoint says besides its arrays."""
    return forge(path, lambda manifest: manifest["content"].update(changes))


def change_config(run: Path, **changes: Any) -> None:
    """Change entries of config.json."""
    file = run / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
