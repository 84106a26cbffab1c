"""Gaussian noise on the rewards of a jitted environment."""

from __future__ import annotations

from typing import Any

import jax

from capo.envs.protocol import Array, PyTree, is_jitted, may_truncate
from capo.errors import CapoError


class NoisyReward:
    """A jitted environment whose every reward has Gaussian noise of one standard deviation added to it.

    Everything else is passed through. The returns of its episodes are noisy too: to know how well a policy does,
    play the environment inside (``env.inner``).

    >>> from capo import envs
    >>> env = NoisyReward(envs.make("probe-constant"), 3.0)
    >>> env.name, env.n_actions
    ('probe-constant, reward noise 3', 2)
    """

    jitted = True

    def __init__(self, inner: Any, deviation: float) -> None:
        if isinstance(inner, str) or not is_jitted(inner):
            raise CapoError(f"reward noise needs a jitted environment (an object), which {inner!r} is not")
        number = isinstance(deviation, int | float) and not isinstance(deviation, bool)
        if not number or not 0 < deviation < float("inf"):
            raise CapoError(f"reward noise {deviation!r}: the standard deviation has to be a positive number")
        self.inner, self.deviation = inner, float(deviation)
        self.name = f"{inner.name}, reward noise {deviation!r}".removesuffix(".0")
        self.n_actions = int(inner.n_actions)
        self.observation_shape = tuple(inner.observation_shape)
        self.observation_dtype = inner.observation_dtype
        self.truncates = may_truncate(inner)

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        env_state, observation = self.inner.reset(key)
        return env_state, observation

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        env_key, noise_key = jax.random.split(key)
        env_state, observation, reward, *ends = self.inner.step(env_key, env_state, action)
        reward = reward + self.deviation * jax.random.normal(noise_key)
        return env_state, observation, reward, ends[0], ends[1]
