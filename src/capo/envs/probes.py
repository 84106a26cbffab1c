"""Five environments so small that the right answer is known: a learner that fails one has a bug there.

Each adds one thing to the one before it: a value to learn, a value that depends on the observation, a reward
that comes later, an action that matters, an action whose merit depends on the observation.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.envs.protocol import Array, PyTree


class _Probe:
    """Episodes of one step; the observation is one number, +1 or -1."""

    jitted = True
    truncates = False
    name = ""
    best_return = 1.0
    n_actions = 2
    observation_shape: tuple[int, ...] = (1,)
    observation_dtype: Any = np.dtype(np.float32)

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        sign = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        return sign, sign[None]

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        del key
        reward = self.reward(env_state, action)
        return env_state, env_state[None], reward, jnp.bool_(True), jnp.bool_(False)

    def reward(self, sign: Array, action: Array) -> Array:
        raise NotImplementedError


class ConstantReward(_Probe):
    """Reward 1 whatever happens: the critic learns 1."""

    name = "probe-constant"

    def reward(self, sign: Array, action: Array) -> Array:
        del action
        return jnp.ones_like(sign)


class ObservationReward(_Probe):
    """The reward is the observation: the critic learns +1 and -1."""

    name = "probe-observation"
    best_return = 0.0

    def reward(self, sign: Array, action: Array) -> Array:
        del action
        return sign


class DelayedReward(_Probe):
    """Two steps, the observation counts them, reward 1 at the end: the critic learns gamma and 1."""

    name = "probe-delayed"

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        del key
        return jnp.float32(0.0), jnp.zeros(1)

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        del key, action
        after = env_state + 1.0
        return after, after[None], jnp.where(after > 1, 1.0, 0.0), after > 1, jnp.bool_(False)


class ActionReward(_Probe):
    """Action 0 pays +1, action 1 pays -1: the policy learns to take action 0."""

    name = "probe-action"

    def reward(self, sign: Array, action: Array) -> Array:
        del sign
        return jnp.where(action == 0, 1.0, -1.0)


class ObservationActionReward(_Probe):
    """The action has to fit the observation: +1 if it does, -1 if not."""

    name = "probe-both"

    def reward(self, sign: Array, action: Array) -> Array:
        return jnp.where((action == 1) == (sign > 0), 1.0, -1.0)


PROBES: dict[str, type[_Probe]] = {
    probe.name: probe
    for probe in (ConstantReward, ObservationReward, DelayedReward, ActionReward, ObservationActionReward)
}
