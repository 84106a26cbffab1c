"""Agents so small that the experiments on MinAtar run through in seconds, on a probe in the place of a game."""

from __future__ import annotations

from typing import Any

from capo.neural import agent as agents

FRAMES = 640
TINY = {"n_envs": 8, "rollout_length": 2, "width": 8, "shared_trunk": True}
OFF_POLICY = {"batch_size": 4, "gradient_steps": 2, "replay_rollouts": 32}


class TinyNCAPO(agents.NCAPO):
    """NCAPO that counts the frames it was asked to learn."""

    learned = 0

    def __init__(self, env: Any, preset: str = "default", **settings: Any) -> None:
        super().__init__(env, preset, **(TINY | OFF_POLICY | settings))

    def learn(self, frames: int, **options: Any) -> Any:
        type(self).learned += frames * len(self.seeds)
        return super().learn(frames, **options)


class TinyPPO(agents.PPO):
    """PPO with small batches."""

    def __init__(self, env: Any, preset: str = "default", **settings: Any) -> None:
        super().__init__(env, preset, **(TINY | {"batch_size": 16, "epochs": 2} | settings))
