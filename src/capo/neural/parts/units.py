"""The unit of a critic's outputs: how large rewards are, so that a network reaches values of any size as fast.

A head with a unit gives Q / unit. The unit is the largest discounted sum of rewards within a rollout so far, at
first at least 1, and fades slowly, but never below a thousandth (without rewards it would vanish). So random heads
hope for rewards of at least about 1 until they know better: that makes them try actions that cost a little. Where
the unit changes, the head is rescaled so that Q stays what it was. It is not trained; it is a leaf of the head (0
before the first iteration, which counts as 1), so networks are saved, averaged and exported with it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, PyTree
from capo.neural.parts import layers

KEPT = 0.998  # of a unit, from one iteration to the next
FIRST = 1.0  # the least unit at the first iteration
LEAST = 1e-3  # the least unit later


def start(shapes_only: bool) -> Any:
    """The unit of a new head."""
    return layers.shapes(unit=())["unit"] if shapes_only else np.zeros((), np.float32)


def factor(unit: Array) -> Array:
    """What a head's outputs are multiplied by; no gradient reaches the unit."""
    return jax.lax.stop_gradient(jnp.where(unit > 0, unit, 1.0))


def grown(unit: Array, reward: Array, ended: Array, gamma: float | Array) -> Array:
    """The unit after more rollouts.

    Args:
        unit: () so far.
        reward: (n, T).
        ended: (n, T) whether an episode ended with a step: sums stop there.
        gamma: discount.

    >>> reward, ended = jnp.array([[1.0, -3.0, 0.5]]), jnp.array([[False, True, False]])
    >>> float(grown(jnp.float32(0.0), reward, ended, 0.5)), float(grown(jnp.float32(9.0), reward, ended, 0.5))
    (3.0, 8.982000350952148)
    >>> float(grown(jnp.float32(0.0), 0.1 * reward, ended, 0.5))
    1.0
    >>> float(grown(jnp.float32(1e-3), 0.0 * reward, ended, 0.5))
    0.0010000000474974513
    """

    def earlier(after: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, ended = step
        total = reward + gamma * jnp.where(ended, 0.0, after)
        return total, jnp.abs(total)

    steps = (reward.T, ended.T)
    sizes = jax.lax.scan(earlier, jnp.zeros(len(reward)), steps, reverse=True)[1]
    return jnp.maximum(sizes.max(), jnp.where(unit > 0, jnp.maximum(KEPT * unit, LEAST), FIRST))


def changed(tree: PyTree, unit: Array) -> PyTree:
    """Networks whose heads have another unit and give the same numbers; heads without a unit stay as they are.

    Bodies are left alone, whatever their parameters are called: they may be a user's own.
    """
    if not isinstance(tree, dict):
        return tree
    return {
        name: _rescaled(node, unit) if name == "head" else node if name == "body" else changed(node, unit)
        for name, node in tree.items()
    }


def _rescaled(head: PyTree, unit: Array) -> PyTree:
    if "unit" not in head:
        return head
    ratio = jnp.where(head["unit"] > 0, head["unit"] / unit, 1.0)
    return head | {"kernel": head["kernel"] * ratio, "bias": head["bias"] * ratio, "unit": unit}
