"""Small functions of discrete policies: the taken action's entry, the entropy, exploration, action masks, factors.

Arrays (..., A) have one entry per action. Where actions have several *factors* (MultiDiscrete), A counts the
actions of all factors, side by side. pi is then a product of one distribution per factor; an action is a row of
*coordinates* (..., F), the places of its factors' actions among the A; and log pi, Q and the entropy are sums over
the factors. ``factors`` are their sizes, which add up to A; () if an action is a single number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from capo.arrays import Array

Sizes = tuple[int, ...]  # of the factors; () if an action is a single number

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


def uniform(mask: Array, factors: Sizes = ()) -> Array:
    """The uniform distribution over the actions that a mask allows, (..., A) both; all 0 if it allows nothing.

    >>> uniform(jnp.array([True, False, True, False])).tolist()
    [0.5, 0.0, 0.5, 0.0]
    """
    return each_factor(lambda own: own / jnp.maximum(own.sum(axis=-1, keepdims=True), 1), factors, mask)


def each_factor(function: Callable[..., Array], factors: Sizes, *arrays: Array) -> Array:
    """A function of the entries (..., A) of arrays, applied to those of each factor; the results side by side.

    >>> each_factor(lambda x: x.sum(axis=-1, keepdims=True), (2, 1), jnp.array([1.0, 2.0, 5.0])).tolist()
    [3.0, 5.0]
    """
    if not factors:
        return function(*arrays)
    ends = itertools.accumulate(factors, initial=0)
    parts = [function(*(x[..., start:end] for x in arrays)) for start, end in itertools.pairwise(ends)]
    return jnp.concatenate(parts, axis=-1)


def log_softmax(logits: Array, factors: Sizes = ()) -> Array:
    """Log-probabilities (..., A) from logits (..., A), of each factor."""
    return each_factor(jax.nn.log_softmax, factors, logits)


def best(scores: Array, factors: Sizes = ()) -> Array:
    """The actions (...,) of the largest scores (..., A); with factors, their coordinates (..., F).

    >>> best(jnp.array([1.0, 2.0, 5.0, 4.0]), (2, 2)).tolist()
    [1, 2]
    """
    if not factors:
        return scores.argmax(-1)
    within = each_factor(lambda own: own.argmax(axis=-1, keepdims=True), factors, scores)
    return within + jnp.array([0, *itertools.accumulate(factors[:-1])])


def sample(key: Array, logits: Array, factors: Sizes = ()) -> Array:
    """Actions drawn from the softmax of logits (..., A): see :func:`best`."""
    if not factors:
        return jax.random.categorical(key, logits)
    return best(logits + jax.random.gumbel(key, logits.shape), factors)


def taken(x: Array, action: Array) -> Array:
    """The entry of each taken action: (..., A) and actions (...,) to (...,). With factors, the sum of theirs.

    >>> taken(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1, 0])).tolist()
    [2.0, 3.0]
    """
    if action.ndim == x.ndim:
        return jnp.take_along_axis(x, action, axis=-1).sum(axis=-1)
    return jnp.take_along_axis(x, action[..., None], axis=-1)[..., 0]


def taken_row(x: Array, action: Array) -> Array:
    """The row of each taken action: (..., A, M) and actions (...,) to (..., M); with factors, their sum."""
    if action.ndim == x.ndim - 1:
        return jnp.take_along_axis(x, action[..., None], axis=-2).sum(axis=-2)
    return jnp.take_along_axis(x, action[..., None, None], axis=-2)[..., 0, :]


def taken_column(x: Array, action: Array) -> Array:
    """The column of each taken action: (..., M, A) and actions (...,) to (..., M); with factors, their sum."""
    if action.ndim == x.ndim - 1:
        return jnp.take_along_axis(x, action[..., None, :], axis=-1).sum(axis=-1)
    return jnp.take_along_axis(x, action[..., None, None], axis=-1)[..., 0]


def entropy(log_pi: Array) -> Array:
    """Entropy in nats of log-probabilities: (..., A) to (...,)."""
    return -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1)


def is_taken(action: Array, n_actions: int, factors: Sizes = ()) -> Array:
    """Whether each of A actions was taken: (...,), or with factors (..., F), to booleans (..., A)."""
    found = jnp.arange(n_actions) == action[..., None]
    return found.any(axis=-2) if factors else found


def mix_uniform(pi: Array, epsilon: Array, mask: Array | None = None, factors: Sizes = ()) -> Array:
    """Log-probabilities of (1 - epsilon) pi + epsilon / A, from probabilities (..., A).

    With a mask (..., A), A counts the actions allowed, and the others keep probability 0. With factors, each
    explores by itself.
    """
    if mask is None and not factors:
        return jnp.log((1 - epsilon) * pi + epsilon / pi.shape[-1])
    if mask is None:
        mask = jnp.ones_like(pi, jnp.bool_)
    return jnp.log((1 - epsilon) * jnp.where(mask, pi, 0.0) + epsilon * uniform(mask, factors))


def epsilon_greedy(scores: Array, epsilon: Array, mask: Array | None = None, factors: Sizes = ()) -> Array:
    """Log-probabilities (..., A): the action with the best score (..., A), but a uniform one with chance epsilon.

    See :func:`mix_uniform` for mask and factors.

    >>> jnp.exp(epsilon_greedy(jnp.array([1.0, 3.0]), jnp.float32(0.5))).tolist()
    [0.25, 0.75]
    """
    greedy = is_taken(best(scores, factors), scores.shape[-1], factors).astype(jnp.float32)
    return mix_uniform(greedy, epsilon, mask, factors)
