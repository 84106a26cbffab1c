"""What the critic's head means: Q itself, or a distribution over atoms whose mean is Q.

As a distribution it is learnt by cross-entropy to the Retrace return, put on the two atoms beside it: the size of
a gradient then does not grow with the size of the returns. The atoms stand close together around 0 and ever
farther apart beyond, so that one range fits games whose returns differ a hundredfold.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.neural.settings import RetraceSettings

Array = Any


def atoms(config: RetraceSettings) -> np.ndarray[Any, Any]:
    """The values that the critic tells apart, (atoms,), rising; sign(z) (e^|z| - 1) for evenly spaced z.

    >>> from capo.neural.config import preset
    >>> from capo.neural.settings import override
    >>> atoms(override(preset("cpu"), {"atoms": 5, "v_min": -8.0, "v_max": 8.0})).round(3).tolist()
    [-8.0, -2.0, 0.0, 2.0, 8.0]
    """
    low, high = (math.copysign(math.log1p(abs(end)), end) for end in (config.v_min, config.v_max))
    z = np.linspace(low, high, config.atoms)
    return (np.sign(z) * np.expm1(np.abs(z))).astype(np.float32)


def n_outputs(config: RetraceSettings, n_actions: int) -> int:
    """Numbers that the critic's head gives."""
    return n_actions * config.atoms if config.critic == "categorical" else n_actions


def initial_bias(config: RetraceSettings, n_actions: int) -> np.ndarray[Any, Any]:
    """The bias of a head (outputs,) that begins with Q near 0."""
    if config.critic != "categorical":
        return np.zeros(n_actions, np.float32)
    return np.tile(-np.minimum(np.abs(atoms(config)), 10.0), n_actions)


def values(config: RetraceSettings, numbers: Array) -> Array:
    """Q (..., A) from the head's numbers (..., outputs)."""
    if config.critic != "categorical":
        return numbers
    return jax.nn.softmax(_by_action(config, numbers)) @ atoms(config)


def loss(config: RetraceSettings, numbers: Array, action: Array, returns: Array) -> Array:
    """The critic's loss of every step, (...,): squared error, or cross-entropy.

    Args:
        numbers: (..., outputs) of its head.
        action: (...,) the taken actions.
        returns: (...,) what their Q should be.
    """
    if config.critic != "categorical":
        q = jnp.take_along_axis(numbers, action[..., None], axis=-1)[..., 0]
        return jnp.square(q - returns)
    taken = jnp.take_along_axis(_by_action(config, numbers), action[..., None, None], axis=-2)[..., 0, :]
    return -jnp.sum(two_hot(returns, atoms(config)) * jax.nn.log_softmax(taken), axis=-1)


def two_hot(x: Array, points: Array) -> Array:
    """``x`` (...,) as weights (..., M) of the two points beside it, whose mean it is; or of the outermost one.

    >>> two_hot(jnp.array([0.5, 9.0]), np.array([-1.0, 0.0, 2.0])).tolist()
    [[0.0, 0.75, 0.25], [0.0, 0.0, 1.0]]
    """
    points = jnp.asarray(points)
    gaps = jnp.diff(points, prepend=-jnp.inf, append=jnp.inf)  # before each point, and after the last one
    beyond = jnp.clip(x, points[0], points[-1])[..., None] - points
    return jnp.clip(1.0 - jnp.maximum(beyond / gaps[1:], -beyond / gaps[:-1]), 0.0, 1.0)


def _by_action(config: RetraceSettings, numbers: Array) -> Array:
    """(..., A * atoms) to (..., A, atoms)."""
    return numbers.reshape(*numbers.shape[:-1], -1, config.atoms)
