"""Small functions of discrete policies: the taken action's entry, the entropy, exploration, action masks."""

from __future__ import annotations

import jax.numpy as jnp

from capo.arrays import Array

# The score of an action that is not allowed: its probability is exactly 0, as it would be with minus infinity, but
# 0 * log 0 and its gradient are 0 rather than nan.
FORBIDDEN = -1e9


def masked(scores: Array, mask: Array | None) -> Array:
    """Logits or Q (..., A), with the score FORBIDDEN and no gradient where the mask (..., A) is false.

    Where it allows nothing, as it may after the end of an episode, all have the same score.

    >>> masked(jnp.array([1.0, 2.0]), jnp.array([True, False])).tolist()
    [1.0, -1000000000.0]
    """
    return scores if mask is None else jnp.where(mask, scores, FORBIDDEN)


def uniform(mask: Array) -> Array:
    """The uniform distribution over the actions that a mask allows, (..., A) both; all 0 if it allows nothing.

    >>> uniform(jnp.array([True, False, True, False])).tolist()
    [0.5, 0.0, 0.5, 0.0]
    """
    return mask / jnp.maximum(mask.sum(axis=-1, keepdims=True), 1)


def taken(x: Array, action: Array) -> Array:
    """The entry of each taken action: (..., A) and actions (...,) to (...,).

    >>> taken(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1, 0])).tolist()
    [2.0, 3.0]
    """
    return jnp.take_along_axis(x, action[..., None], axis=-1)[..., 0]


def taken_row(x: Array, action: Array) -> Array:
    """The row of each taken action: (..., A, M) and actions (...,) to (..., M)."""
    return jnp.take_along_axis(x, action[..., None, None], axis=-2)[..., 0, :]


def entropy(log_pi: Array) -> Array:
    """Entropy in nats of log-probabilities: (..., A) to (...,)."""
    return -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1)


def mix_uniform(pi: Array, epsilon: Array, mask: Array | None = None) -> Array:
    """Log-probabilities of (1 - epsilon) pi + epsilon / A, from probabilities (..., A).

    With a mask (..., A), A counts the actions allowed, and the others keep probability 0.
    """
    if mask is None:
        return jnp.log((1 - epsilon) * pi + epsilon / pi.shape[-1])
    return jnp.log((1 - epsilon) * jnp.where(mask, pi, 0.0) + epsilon * uniform(mask))
