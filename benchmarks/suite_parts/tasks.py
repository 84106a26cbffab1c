"""The environments of the suite, each under one name for every library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

PREFIX = "capo-suite/"  # of the ids that are registered here


@dataclass(frozen=True)
class Task:
    """One environment.

    Attributes:
        name: Gymnasium's id, or the name of one of capo's jitted environments.
        note: what was changed, and the limit of an episode.
        changed: whether it is Gymnasium's with a wrapper or another limit.
        counts: whether it is one of the twelve that the summary counts.
        frames: at most so many are trained.
        episodes: of the evaluation.
    """

    name: str
    note: str
    changed: bool = False
    counts: bool = True
    frames: int = 10**12
    episodes: int = 100

    @property
    def jitted(self) -> bool:
        """Whether capo runs it inside its compiled program; others step the same environment through Gymnasium."""
        return self.name in _jitted_names()

    @property
    def capo_env(self) -> str:
        """What capo's agents are given."""
        return self.name if self.jitted else self.gymnasium_id

    @property
    def gymnasium_id(self) -> str:
        """What other libraries are given."""
        return PREFIX + self.name if self.jitted or self.changed else self.name


# The cheapest for the peers first.
TASKS = {
    task.name: task
    for task in (
        Task("probe-action", "one step; one action is right", counts=False, frames=20_000),
        Task("probe-both", "one step; the action has to match the observation", counts=False, frames=20_000),
        Task("Blackjack-v1", "the three observed numbers one-hot; one to a few steps", True, episodes=1000),
        Task("catch", "9 steps"),
        Task("deep-sea-10", "10 steps"),
        Task("FrozenLake-v1", "4x4, slippery; at most 100 steps"),
        Task("CartPole-v1", "at most 500 steps"),
        Task("MountainCar-v0", "at most 200 steps"),
        Task("Acrobot-v1", "at most 500 steps"),
        Task("Taxi-v4", "at most 200 steps"),
        Task("CliffWalking-v1", "cut off after 200 steps; it has no time limit of its own", True),
        Task("MiniGrid-Empty-8x8-v0", "only the image, 7x7x3; at most 256 steps", True),
        Task("MiniGrid-DoorKey-5x5-v0", "only the image, 7x7x3; at most 250 steps", True),
        Task("LunarLander-v3", "at most 1000 steps"),
    )
}


def register() -> None:
    """Register the tasks that Gymnasium does not have."""
    for task in TASKS.values():
        if task.gymnasium_id not in gymnasium.registry and task.gymnasium_id.startswith(PREFIX):
            gymnasium.register(task.gymnasium_id, entry_point=_Maker(task), disable_env_checker=True)


class _Maker:
    """Makes one environment of a task; Gymnasium calls it."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __call__(self, render_mode: str | None = None) -> gymnasium.Env:
        source = self.task.name
        if self.task.jitted:
            return Stepped(source)
        if source.startswith("MiniGrid"):
            import minigrid  # registers its environments

            return minigrid.wrappers.ImgObsWrapper(gymnasium.make(source, render_mode=render_mode))
        if source.startswith("CliffWalking"):
            return gymnasium.make(source, render_mode=render_mode, max_episode_steps=200)
        return gymnasium.wrappers.FlattenObservation(gymnasium.make(source, render_mode=render_mode))  # Blackjack


class Stepped(gymnasium.Env):
    """One of capo's jitted environments, stepped from Python."""

    def __init__(self, name: str) -> None:
        import jax

        from capo import envs

        inner: Any = envs.make(name)
        self._reset, self._step = jax.jit(inner.reset), jax.jit(inner.step)
        self._split = jax.jit(jax.random.split)
        self._jax, self._state, self._key = jax, None, jax.random.PRNGKey(0)
        self.observation_space = gymnasium.spaces.Box(-10, 10, inner.observation_shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(inner.n_actions)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        del options
        if seed is not None:
            self._key = self._jax.random.PRNGKey(seed)
        self._key, key = self._split(self._key)
        self._state, obs = self._reset(key)
        return np.asarray(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._key, key = self._split(self._key)
        self._state, obs, reward, terminated, truncated = self._step(key, self._state, int(action))
        return np.asarray(obs), float(reward), bool(terminated), bool(truncated), {}


def _jitted_names() -> set[str]:
    from capo.envs.probes import PROBES
    from capo.envs.small import SMALL

    return {*PROBES, *SMALL}
