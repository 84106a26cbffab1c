"""How certain a critic is of the signs of its advantages.

The critic gives M estimates Q_1, ..., Q_M of Q (heads). Each has an advantage A_m = Q_m - V_m of its own, so they
are M draws from what the critic believes. With their mean and deviation, and a part of the noise of the returns
that they learn from, the belief about one advantage is a normal distribution, under which

    E sign(A) = P(A > 0) - P(A < 0) = erf(mean / (sqrt 2 deviation)).

It is 0 where the critic knows nothing and sign(A) where it is certain.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from capo.arrays import Array
from capo.neural.parts.policies import FORBIDDEN, Sizes, each_factor


def expected_sign(mean: Array, variance: Array) -> Array:
    """E sign(A) of normal A: (...,) and (...,) to (...,); sign(mean) where the variance is 0.

    >>> expected_sign(jnp.array([0.0, 3.0, -3.0, 1.0]), jnp.array([1.0, 0.0, 1e-6, 1e6])).round(2).tolist()
    [0.0, 1.0, -1.0, 0.0]
    """
    known = variance <= 0.0
    ratio = mean / jnp.sqrt(2.0 * jnp.where(known, 1.0, variance))
    return jnp.where(known, jnp.sign(mean), jax.scipy.special.erf(ratio))


def advantage_belief(log_pi: Array, q: Array, factors: Sizes = ()) -> tuple[Array, Array]:
    """Mean and variance over heads of the advantages, (..., A) each.

    Args:
        log_pi: (..., A) log-probabilities of the policy.
        q: (..., M, A) estimates of Q; the variance of a single one is 0.
        factors: sizes of an action's factors, whose advantages are each over the V of their own.
    """
    pi = jnp.exp(log_pi)[..., None, :]
    advantage = each_factor(lambda pi, q: q - jnp.sum(pi * q, axis=-1, keepdims=True), factors, pi, q)
    mean = advantage.mean(axis=-2)
    heads = q.shape[-2]
    return mean, jnp.square(advantage - mean[..., None, :]).sum(axis=-2) / max(heads - 1, 1)


def keep_chance(log_pi: Array, sign: Array, share: float | Array, factors: Sizes = ()) -> Array:
    """Expected signs (..., A), turned round where an action is rarer than its chance to be a good one.

    An action keeps ``share`` x P(A > 0) / n of probability, n being how many actions are allowed. Where all signs
    are certain nothing changes: what is certainly worse keeps nothing.

    Args:
        log_pi: (..., A) log-probabilities of the policy.
        sign: (..., A) expected signs, P(A > 0) - P(A < 0).
        share: what part of an action's chance it keeps.
        factors: sizes of an action's factors, each with an n of its own.

    >>> keep_chance(jnp.log(jnp.array([0.98, 0.01, 0.01])), jnp.array([0.4, -0.4, -1.0]), 0.5).tolist()
    [0.4000000059604645, 0.4000000059604645, -1.0]
    """
    allowed = (log_pi > FORBIDDEN / 2).astype(sign.dtype)
    n = each_factor(lambda own: jnp.broadcast_to(own.sum(axis=-1, keepdims=True), own.shape), factors, allowed)
    chance = allowed * 0.5 * (1.0 + sign) / jnp.maximum(n, 1.0)
    return jnp.where((sign < 0.0) & (jnp.exp(log_pi) < share * chance), -sign, sign)


def mean_certainty(log_pi: Array, sign: Array, factors: Sizes = ()) -> Array:
    """How certain the signs (..., A) of a state are, 0 to 1: the mean of |sign| over the actions not chosen.

    Actions that are not allowed do not count. With factors, one action of each is chosen.

    >>> mean_certainty(jnp.log(jnp.full(4, 0.5)), jnp.array([1.0, -1.0, 1.0, -1.0]), (2, 2)).tolist()
    1.0
    """
    allowed = log_pi > FORBIDDEN / 2
    others = jnp.where(allowed, 1.0 - jnp.exp(log_pi), 0.0)
    chosen = max(len(factors), 1)
    return jnp.sum(others * jnp.abs(sign), axis=-1) / jnp.maximum(allowed.sum(axis=-1) - chosen, 1)
