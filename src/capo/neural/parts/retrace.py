"""Off-policy returns along stored rollouts: Retrace, and V-trace.

    G_t = r_t + gamma * V(s_t+1) + gamma * lambda * c_t+1 * (G_t+1 - Q(s_t+1, a_t+1))
    c_t = min(1, pi(a_t|s_t) / mu(a_t|s_t)),   V(s) = sum over a of pi(a|s) * Q(s, a)

The first gamma is 0 where the episode terminated. The second is 0 at every episode end, truncated or not,
and at the rollout's last step: nothing that happened afterwards belongs to this return.

V-trace corrects V instead of Q:

    G_t = r_t + gamma * (V(s_t+1) + lambda * (v_t+1 - V(s_t+1)))
    v_t = V(s_t) + c_t * (r_t + gamma * V(s_t+1) - V(s_t)) + gamma * lambda * c_t * (v_t+1 - V(s_t+1))

with the same gammas, and v = V after the rollout's last step.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from capo.arrays import Array

UNROLL = 64  # a scan has a cost per step on a GPU: rollouts up to this length are unrolled


def retrace(
    *,
    reward: Array,
    terminated: Array,
    truncated: Array,
    q_taken: Array,
    v_next: Array,
    log_pi: Array,
    log_mu: Array,
    gamma: float,
    lam: float = 1.0,
) -> Array:
    """Retrace returns of the taken actions.

    Args:
        reward: (..., T) rewards r_t.
        terminated: (..., T) 1 where the episode terminated with step t.
        truncated: (..., T) 1 where it was truncated after step t.
        q_taken: (..., T) Q(s_t, a_t).
        v_next: (..., T) V of the observation that step t led to: the final one where the episode ended, not
            the one it was reset to.
        log_pi: (..., T) log-probability of a_t under the policy evaluated.
        log_mu: (..., T) log-probability of a_t when it was taken.
        gamma: the discount.
        lam: Retrace's lambda.

    Returns:
        (..., T) the returns G_t.

    >>> one = jnp.ones((1, 2))
    >>> retrace(reward=one, terminated=one == 0, truncated=one == 0, q_taken=0 * one, v_next=4 * one,
    ...         log_pi=0 * one, log_mu=0 * one, gamma=0.5).tolist()  # 1 + 0.5 * 4 + 0.5 * 3, and 1 + 0.5 * 4
    [[4.5, 3.0]]
    """
    alive = 1.0 - terminated
    delta = reward + gamma * alive * v_next - q_taken
    trace = lam * jnp.exp(jnp.minimum(log_pi - log_mu, 0.0))
    carry = gamma * alive[..., :-1] * (1.0 - truncated[..., :-1]) * trace[..., 1:]
    carry = jnp.concatenate([carry, jnp.zeros_like(delta[..., :1])], axis=-1)
    return q_taken + discounted_sums(delta, carry)


def v_trace(
    *,
    reward: Array,
    terminated: Array,
    truncated: Array,
    value: Array,
    v_next: Array,
    log_pi: Array,
    log_mu: Array,
    gamma: float,
    lam: float = 1.0,
) -> Array:
    """Returns (..., T) of the taken actions by V-trace, both of whose clipping levels are 1.

    Args:
        value: (..., T) V(s_t); the others as for :func:`retrace`.

    >>> one = jnp.ones((1, 2))
    >>> v_trace(reward=one, terminated=one == 0, truncated=one == 0, value=2 * one, v_next=4 * one,
    ...         log_pi=0 * one, log_mu=0 * one, gamma=0.5).tolist()  # v_2 = 3; 1 + 0.5 * (4 + 3 - 2), 1 + 0.5 * 4
    [[3.5, 3.0]]
    """
    alive = 1.0 - terminated
    onward = gamma * alive * (1.0 - truncated)  # of what is learned from the next step of the same episode
    onward = jnp.concatenate([onward[..., :-1], jnp.zeros_like(onward[..., :1])], axis=-1)
    ratio = jnp.exp(jnp.minimum(log_pi - log_mu, 0.0))
    target = reward + gamma * alive * v_next
    correction = discounted_sums(ratio * (target - value), lam * ratio * onward)
    after = jnp.concatenate([correction[..., 1:], jnp.zeros_like(correction[..., :1])], axis=-1)
    return target + lam * onward * after


def discounted_sums(delta: Array, carry: Array) -> Array:
    """x_t = delta_t + carry_t * x_t+1 along the last axis, x = 0 after the last step: (..., T) to (..., T)."""

    def backward(after: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        x = step[0] + step[1] * after
        return x, x

    steps = (jnp.moveaxis(delta, -1, 0), jnp.moveaxis(carry, -1, 0))
    start = jnp.zeros_like(delta[..., 0])
    _, x = jax.lax.scan(backward, start, steps, reverse=True, unroll=min(UNROLL, delta.shape[-1]))
    return jnp.moveaxis(x, 0, -1)
