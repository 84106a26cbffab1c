"""An agent at play, step by step, as a GIF for people to look at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from capo import gif
from capo.arrays import NDArray
from capo.checks import check_seed, positive
from capo.envs import is_jitted
from capo.envs.failures import environment_call, failure_context
from capo.envs.protocol import one_action
from capo.envs.spaces import drawable
from capo.errors import CapoError


class Playable(Protocol):
    """What a film needs of an agent."""

    @property
    def played_env(self) -> Any: ...
    def predict(
        self, observation: Any, *, deterministic: bool = False, action_masks: Any = None
    ) -> tuple[NDArray, Any]: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Frame:
    """What is to be seen after a step."""

    observation: Any
    picture: NDArray | None  # bytes, the environment's own, (H, W, 3)
    step: int
    score: float
    last: bool


class Film(NamedTuple):
    """What a GIF shows."""

    scores: list[float]  # of the episodes that ended
    last_score: float  # the score last shown
    frames: int


def record(
    agent: Playable, path: Path, episodes: int, steps: int, deterministic: bool, seed: int, per_second: float
) -> Film:
    """Play and write a GIF to ``path``, which :func:`check_target` has checked."""
    pictures, scores = [], []
    for frame in play(agent, episodes, steps, deterministic=deterministic, seed=seed):
        picture = gif.draw_observation(frame.observation) if frame.picture is None else frame.picture
        pictures.append(
            gif.with_caption(picture, f"{agent.played_env.name}   step {frame.step}   score {frame.score:g}")
        )
        if frame.last:
            scores.append(frame.score)
    gif.write_gif(path, pictures, per_second)
    return Film(scores, frame.score, len(pictures))


def check_target(path: Path, per_second: Any) -> None:
    """Raise if no GIF can be written to ``path``, or not at that speed."""
    gif.check_target(path)
    if not positive("per_second", per_second) <= 100:
        raise CapoError(f"per_second={per_second:g} must be above 0 and at most 100")


def play(agent: Playable, episodes: int, steps: int, *, deterministic: bool, seed: int) -> Iterator[Frame]:
    """The frames of ``episodes`` whole episodes, or of the first ``steps`` steps of them."""
    check_seed(seed)
    player = _play_jitted if is_jitted(agent.played_env) else _play_gymnasium
    left = steps
    for episode in range(episodes):
        for frame in player(agent, deterministic, seed + episode):
            yield frame
            left -= 1
            if left <= 0:
                return


def _play_jitted(agent: Playable, deterministic: bool, seed: int) -> Iterator[Frame]:
    env = agent.played_env
    reset, advance = jax.jit(env.reset), jax.jit(env.step)
    draw = jax.jit(env.picture) if hasattr(env, "picture") else None
    masks = jax.jit(getattr(env, "action_mask", lambda _: None))
    key = jax.random.PRNGKey(seed)
    env_state, observation = reset(jax.random.fold_in(key, 0))
    step, score, last = 0, 0.0, False

    def seen() -> Frame:
        picture = None if draw is None else np.asarray(draw(env_state))
        return Frame(_drawable(env, observation), picture, step, score, last)

    yield seen()
    while not last:
        step += 1
        action, _ = agent.predict(
            np.asarray(observation), deterministic=deterministic, action_masks=masks(env_state)
        )
        env_state, observation, reward, terminated, truncated = advance(
            jax.random.fold_in(key, step), env_state, jnp.asarray(action, jnp.int32)
        )
        score += float(reward)
        last = bool(terminated) or bool(truncated)
        yield seen()


def _drawable(env: Any, observation: Any) -> NDArray:
    """An array of an observation for people to look at, a copy of its own."""
    layout = getattr(env, "layout", None)
    if hasattr(env, "drawable"):
        array: NDArray = env.drawable(observation)
        return array
    return np.array(observation) if layout is None else drawable(layout, np.asarray(observation))


def _play_gymnasium(agent: Playable, deterministic: bool, seed: int) -> Iterator[Frame]:
    watched = agent.played_env.open_to_watch()
    env = watched.env
    if not watched.owned:
        agent.close()  # training continues with new episodes
    step, score, last, mask = 0, 0.0, False, None

    def seen() -> Frame:
        with failure_context(f"{agent.played_env.name}, at step {step:,}"), environment_call("render"):
            return Frame(_drawable(agent.played_env, observation), watched.picture(), step, score, last)

    try:
        with failure_context(agent.played_env.name), environment_call("reset"):
            observation, info = env.reset(seed=seed)
            mask = watched.mask("reset", info)
        yield seen()
        while not last:
            step += 1
            action, _ = agent.predict(observation, deterministic=deterministic, action_masks=mask)
            with failure_context(f"{agent.played_env.name}, at step {step:,}"), environment_call("step"):
                observation, reward, terminated, truncated, info = env.step(one_action(action))
                mask = watched.mask("step", info)
                score += float(reward)
                last = bool(terminated or truncated)
            yield seen()
    finally:
        if watched.owned:
            with contextlib.suppress(Exception):  # an environment that failed may fail here too
                env.close()
