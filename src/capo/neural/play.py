"""Episodes of an agent, step by step, for people to look at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.envs import is_jitted
from capo.envs.gym import blame, naming
from capo.errors import CapoError
from capo.neural.evaluation import check_seed

if TYPE_CHECKING:
    from capo.neural.agent import Agent


@dataclass(frozen=True)
class Frame:
    """What is to be seen after a step."""

    observation: Any
    picture: np.ndarray[Any, np.dtype[np.uint8]] | None  # the environment's own, (H, W, 3)
    step: int
    score: float
    last: bool


def play(agent: Agent, episodes: int, steps: int, *, deterministic: bool, seed: int) -> Iterator[Frame]:
    """The frames of ``episodes`` whole episodes, or of the first ``steps`` steps of them."""
    check_seed(seed)
    player = _play_jitted if is_jitted(agent.env) else _play_gymnasium
    left = steps
    for episode in range(episodes):
        for frame in player(agent, deterministic, seed + episode):
            yield frame
            left -= 1
            if left <= 0:
                return


def _play_jitted(agent: Agent, deterministic: bool, seed: int) -> Iterator[Frame]:
    reset, advance = jax.jit(agent.env.reset), jax.jit(agent.env.step)
    key = jax.random.PRNGKey(seed)
    env_state, observation = reset(jax.random.fold_in(key, 0))
    step, score, last = 0, 0.0, False
    yield Frame(np.asarray(observation), None, step, score, last)
    while not last:
        step += 1
        action, _ = agent.predict(np.asarray(observation), deterministic=deterministic)
        env_state, observation, reward, terminated, truncated = advance(
            jax.random.fold_in(key, step), env_state, jnp.int32(action)
        )
        score += float(reward)
        last = bool(terminated) or bool(truncated)
        yield Frame(np.asarray(observation), None, step, score, last)


def _play_gymnasium(agent: Agent, deterministic: bool, seed: int) -> Iterator[Frame]:
    env = _drawable(agent.env.name)
    step, score, last = 0, 0.0, False

    def seen() -> Frame:
        with naming(f"{agent.env.name}, at step {step:,}"), blame("render"):
            return Frame(observation, _render(env), step, score, last)

    try:
        with naming(agent.env.name), blame("reset"):
            observation, _ = env.reset(seed=seed)
        yield seen()
        while not last:
            step += 1
            action, _ = agent.predict(observation, deterministic=deterministic)
            with naming(f"{agent.env.name}, at step {step:,}"), blame("step"):
                observation, reward, terminated, truncated, _ = env.step(int(action))
                score += float(reward)
                last = bool(terminated or truncated)
            yield seen()
    finally:
        with contextlib.suppress(Exception):  # an environment that failed may fail here too
            env.close()


def _drawable(name: str) -> Any:
    """The environment with its own picture if it can draw one here, else without."""
    import gymnasium

    try:
        env = gymnasium.make(name, render_mode="rgb_array")
        env.reset(seed=0)
        if _render(env) is not None:
            return env
        env.close()
    except Exception:  # a missing drawing library may surface as anything; the observation is drawn then
        pass
    try:
        return gymnasium.make(name)
    except Exception as error:  # also what the environment's own constructor raises
        raise CapoError(f"Gymnasium can't make {name!r} to watch it: {error}") from error


def _render(env: Any) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    if env.render_mode != "rgb_array":
        return None
    picture = np.asarray(env.render())
    return picture if picture.ndim == 3 and picture.shape[2] == 3 and picture.dtype == np.uint8 else None
