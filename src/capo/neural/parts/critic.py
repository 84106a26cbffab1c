"""What the numbers of a critic's head mean: Q itself, or a distribution over atoms whose mean is Q.

A distribution is learned by cross-entropy to the Retrace return, which is put on the two atoms next to it: the
size of a gradient then does not grow with the size of the returns. The atoms are close together around 0 and ever
farther apart beyond, so one range suits games whose returns differ a hundredfold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, NDArray
from capo.neural.parts.policies import taken, taken_column, taken_row


@dataclass(frozen=True)
class CriticHead:
    """How to read a critic's head and what to regress it on.

    Args:
        categorical: whether it is a distribution over atoms; if not, it gives Q and the rest is unused.
        n_atoms: how many atoms.
        v_min: the lowest.
        v_max: the highest.
        n_heads: how many estimates of Q it gives, side by side; one if it is a distribution.
    """

    categorical: bool
    n_atoms: int
    v_min: float
    v_max: float
    n_heads: int = 1

    @property
    def atoms(self) -> NDArray:
        """The atoms (n_atoms,), ascending: sign(z) (e^|z| - 1) for evenly spaced z.

        >>> CriticHead(True, 5, -8.0, 8.0).atoms.round(3).tolist()
        [-8.0, -2.0, 0.0, 2.0, 8.0]
        """
        low, high = (math.copysign(math.log1p(abs(end)), end) for end in (self.v_min, self.v_max))
        z = np.linspace(low, high, self.n_atoms)
        return (np.sign(z) * np.expm1(np.abs(z))).astype(np.float32)

    def n_outputs(self, n_actions: int) -> int:
        """Numbers that the head gives for an observation."""
        return n_actions * (self.n_atoms if self.categorical else self.n_heads)

    def initial_bias(self, n_actions: int) -> NDArray:
        """The bias (n_outputs,) of a head whose Q starts near 0."""
        if not self.categorical:
            return np.zeros(n_actions * self.n_heads, np.float32)
        return np.tile(-np.minimum(np.abs(self.atoms), 10.0), n_actions)

    def values(self, outputs: Array) -> Array:
        """Q (..., A) from the outputs (..., n_outputs); (..., n_heads, A) if there are several estimates."""
        if self.n_heads > 1:
            return outputs.reshape(*outputs.shape[:-1], self.n_heads, -1)
        if not self.categorical:
            return outputs
        return jax.nn.softmax(self._by_action(outputs)) @ self.atoms

    def loss(self, outputs: Array, action: Array, returns: Array) -> Array:
        """The loss of every step, (...,): squared error, or cross-entropy.

        Args:
            outputs: (..., n_outputs) of the head.
            action: (...,) the taken actions.
            returns: (...,) what their Q should be; (..., n_heads) if there are several estimates.
        """
        if self.n_heads > 1:
            errors = taken_column(self.values(outputs), action) - returns
            return jnp.mean(jnp.square(errors), axis=-1)
        if not self.categorical:
            return jnp.square(taken(outputs, action) - returns)
        logits = taken_row(self._by_action(outputs), action)
        return -jnp.sum(two_hot(returns, jnp.asarray(self.atoms)) * jax.nn.log_softmax(logits), axis=-1)

    def _by_action(self, outputs: Array) -> Array:
        """(..., A * n_atoms) to (..., A, n_atoms)."""
        return outputs.reshape(*outputs.shape[:-1], -1, self.n_atoms)


def two_hot(x: Array, points: Array) -> Array:
    """``x`` (...,) as weights (..., M) on the two points next to it, with mean x; or on the outermost point.

    >>> two_hot(jnp.array([0.5, 9.0]), jnp.array([-1.0, 0.0, 2.0])).tolist()
    [[0.0, 0.75, 0.25], [0.0, 0.0, 1.0]]
    """
    gaps = jnp.diff(points, prepend=-jnp.inf, append=jnp.inf)  # before each point, and after the last one
    beyond = jnp.clip(x, points[0], points[-1])[..., None] - points
    return jnp.clip(1.0 - jnp.maximum(beyond / gaps[1:], -beyond / gaps[:-1]), 0.0, 1.0)
