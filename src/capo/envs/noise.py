"""Gaussian noise on the rewards of a jitted environment."""

from __future__ import annotations

from typing import Any

import jax

from capo.arrays import Array, PyTree
from capo.checks import positive
from capo.envs.protocol import EnvSpec, is_jitted
from capo.errors import CapoError


def noisy_name(name: str, deviation: float) -> str:
    """The name of an environment with noise of this standard deviation on its rewards; its own for 0.

    >>> noisy_name("probe-constant", 3.0)
    'probe-constant, reward noise 3'
    """
    return f"{name}, reward noise {deviation!r}".removesuffix(".0") if deviation else name


class NoisyReward:
    """A jitted environment with Gaussian noise, of the given standard deviation, added to every reward.

    Everything else is passed through. The returns of its episodes are noisy too: to measure a policy, play the
    environment inside (``env.inner``).

    >>> from capo import envs
    >>> env = NoisyReward(envs.make("probe-constant"), 3.0)
    >>> env.name, env.n_actions
    ('probe-constant, reward noise 3', 2)
    """

    jitted = True

    def __init__(self, inner: Any, deviation: float) -> None:
        if isinstance(inner, str) or not is_jitted(inner):
            raise CapoError(f"reward noise needs an object of the jitted protocol, which {inner!r} is not")
        self.inner, self.deviation = inner, positive("reward noise deviation", deviation)
        self.name = noisy_name(inner.name, self.deviation)
        self.n_actions = int(inner.n_actions)
        self.observation_shape = tuple(inner.observation_shape)
        self.observation_dtype = inner.observation_dtype
        self.truncates = EnvSpec(inner).truncates
        for optional in ("observation_high", "layout", "action_mask", "factors", "costly_reset"):
            if hasattr(inner, optional):
                setattr(self, optional, getattr(inner, optional))

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        env_state, observation = self.inner.reset(key)
        return env_state, observation

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        env_key, noise_key = jax.random.split(key)
        env_state, observation, reward, *ends = self.inner.step(env_key, env_state, action)
        reward = reward + self.deviation * jax.random.normal(noise_key)
        return env_state, observation, reward, ends[0], ends[1]
