"""Agents so small that the experiments on MinAtar run through in seconds, on a probe in the place of a game."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

import capo
from capo.experiments import training
from capo.experiments.training import Plan
from capo.neural.algorithms import registry
from capo.neural.algorithms.settings import override

FRAMES = 640
PLAN = Plan(FRAMES, 2, "cpu", 4, 5, 5, quick=True)
TINY = {"n_envs": 8, "rollout_length": 2, "width": 8, "shared_trunk": True}
OWN = {
    "ncapo": {"batch_size": 4, "gradient_steps": 2, "replay_rollouts": 32},
    "ppo": {"batch_size": 16, "epochs": 2},
}


class TinyNCAPO(capo.NCAPO):
    """NCAPO that counts the frames it was asked to learn, and can be stopped."""

    learned = 0
    stop_at = math.inf  # frames

    def learn(self, frames: int, **options: Any) -> Any:
        def stop(_: object, rows: Any) -> None:
            if rows[0]["frames"] >= self.stop_at:
                raise KeyboardInterrupt

        type(self).learned += frames * len(self.seeds)
        return super().learn(frames, callback=stop, **options)


def change_presets(patch: pytest.MonkeyPatch, algorithm: str, **settings: Any) -> None:
    """Other settings in all presets of an algorithm."""
    kind = registry.ROWS[algorithm].settings
    preset = kind.preset
    changed = classmethod(lambda _, name, env="": override(preset(name, env), settings))
    patch.setattr(kind, "preset", changed)


@contextmanager
def tiny_trainings(patch: pytest.MonkeyPatch, cache: Path, *algorithms: str) -> Iterator[None]:
    """Only these algorithms, with small presets, on a probe; programs are kept in ``cache``, compiled once."""
    rows = {name: registry.ROWS[name] for name in algorithms}
    rows["ncapo"] = replace(rows["ncapo"], agent=TinyNCAPO)
    patch.setattr(registry, "ROWS", rows)
    patch.setattr(training, "environment", lambda _: "probe-both")
    patch.setattr(TinyNCAPO, "learned", 0)
    for name in algorithms:
        change_presets(patch, name, **TINY, **OWN[name])
    options = {
        "jax_compilation_cache_dir": str(cache),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
