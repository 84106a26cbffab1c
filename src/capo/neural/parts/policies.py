"""Small functions of discrete policies: the taken action's entry, the entropy, exploration."""

from __future__ import annotations

import jax.numpy as jnp

from capo.arrays import Array


def taken(x: Array, action: Array) -> Array:
    """The entry of each taken action: (..., A) and actions (...,) to (...,).

    >>> taken(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1, 0])).tolist()
    [2.0, 3.0]
    """
    return jnp.take_along_axis(x, action[..., None], axis=-1)[..., 0]


def taken_row(x: Array, action: Array) -> Array:
    """The row of each taken action: (..., A, M) and actions (...,) to (..., M)."""
    return jnp.take_along_axis(x, action[..., None, None], axis=-2)[..., 0, :]


def taken_column(x: Array, action: Array) -> Array:
    """The column of each taken action: (..., M, A) and actions (...,) to (..., M)."""
    return jnp.take_along_axis(x, action[..., None, None], axis=-1)[..., 0]


def entropy(log_pi: Array) -> Array:
    """Entropy in nats of log-probabilities: (..., A) to (...,)."""
    return -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1)


def mix_uniform(pi: Array, epsilon: Array) -> Array:
    """Log-probabilities of (1 - epsilon) pi + epsilon / A, from probabilities (..., A)."""
    return jnp.log((1 - epsilon) * pi + epsilon / pi.shape[-1])
