"""Five environments so small that the right answer is known: a learner that fails one has a bug there.

Each adds one thing to the one before it: a value to learn, a value that depends on the observation, a reward
that comes later, an action that matters, an action whose merit depends on the observation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, PyTree

FLOAT = np.dtype(np.float32)


@dataclass(eq=False)
class OneStep:
    """Episodes of one step; the observation is one number, +1 or -1."""

    name: str
    reward: Callable[[Array, Array], Array]  # of the observation () and the action ()
    jitted: bool = True
    truncates: bool = False
    n_actions: int = 2
    observation_shape: tuple[int, ...] = (1,)
    observation_dtype: Any = FLOAT

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        sign = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        return sign, sign[None]

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        del key
        reward = self.reward(env_state, action)
        return env_state, env_state[None], reward, jnp.bool_(True), jnp.bool_(False)


class TwoSteps(OneStep):
    """Episodes of two steps; the observation counts them, and the reward is paid for what it has become."""

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        del key
        return jnp.float32(0.0), jnp.zeros(1)

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        del key
        after = env_state + 1.0
        return after, after[None], self.reward(after, action), after > 1, jnp.bool_(False)


def _gain(good: Array) -> Array:
    return jnp.where(good, 1.0, -1.0)


PROBES = {
    probe.name: probe
    for probe in (
        OneStep("probe-constant", lambda sign, _: jnp.ones_like(sign)),  # the critic learns 1
        OneStep("probe-observation", lambda sign, _: sign),  # the critic learns +1 and -1
        TwoSteps("probe-delayed", lambda count, _: jnp.where(count > 1, 1.0, 0.0)),  # learns gamma and 1
        OneStep("probe-action", lambda _, action: _gain(action == 0)),  # the policy takes action 0
        OneStep("probe-both", lambda sign, action: _gain((action == 1) == (sign > 0))),  # the action has to fit
    )
}
