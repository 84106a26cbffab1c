"""Agents so small that the experiments on MinAtar run through in seconds, on a probe in the place of a game."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from capo.experiments.variants import VariantJob
from capo.neural import agent as agents

FRAMES = 640
TINY = {"n_envs": 8, "rollout_length": 2, "width": 8, "shared_trunk": True}
OFF_POLICY = {"batch_size": 4, "gradient_steps": 2, "replay_rollouts": 32}


@contextmanager
def compiled_once(folder: Path) -> Iterator[None]:
    """Programs are kept in ``folder``: the same training again does not compile again."""
    cache = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: getattr(jax.config, name) for name in cache}
    for name, value in cache.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


class TinyNCAPO(agents.NCAPO):
    """NCAPO that counts the frames it was asked to learn."""

    learned = 0

    def learn(self, frames: int, **options: Any) -> Any:
        type(self).learned += frames * len(self.seeds)
        return super().learn(frames, **options)


def tiny_settings(job: VariantJob) -> dict[str, Any]:
    """For ``VariantJob._settings``: small networks and batches."""
    own = OFF_POLICY if job.algorithm == "ncapo" else {"batch_size": 16, "epochs": 2}
    return TINY | own | dict(job.variant.settings)
