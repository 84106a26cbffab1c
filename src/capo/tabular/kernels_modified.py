"""Compiled kernels of modified CAPO (:mod:`capo.tabular.modified`); the tests compare each with a plain version.

Every kernel works on the states ``first <= s < last``, so that several threads can share a sweep. Where ``out`` is
another array than ``values`` the sweep is Jacobi's: it reads the old values only. Where they are the same array
it is a Gauss-Seidel sweep: it reads the new values of the states that it has passed. ``blocked`` is
Gauss-Seidel inside the block and Jacobi outside of it: the result then depends on the blocks, but not on which
thread is faster.

``allowed`` (S, A) says which actions a state has; an array without rows means all of them. A sharp policy is an
``action`` (S,) per state, of probability 1 in floating point. A soft one is ``log_policy`` and ``policy`` (S, A).

Comparisons pass over NaN, so ``unknown`` collects 0 times every residual: it is NaN if one is not finite, and then
so are the residuals that an improvement or a check of all pairs returns.

The sums over successors are written out in every kernel: calling a function for each costs more than the sum.
Successors are unsigned integers, so ``target - near < width`` asks for near <= target < near + width at once.
"""

from __future__ import annotations

import math

import numba as nb
import numpy as np

from capo.tabular.kernels import normalise_row

_JIT = {"cache": True, "nogil": True}


@nb.njit(**_JIT)
def _passed(first, last, s, backward):  # type: ignore[no-untyped-def]
    """The first of the states that a sweep over first..last - 1 has passed when it reaches s, and their number."""
    near = s + 1 if backward else first
    far = last if backward else s
    return near, far - near


@nb.njit(**_JIT)
def sharp_improve(  # type: ignore[no-untyped-def]
    indptr, indices, data, reward, gamma, allowed,  # the MDP
    values, out, action, margin, drift,  # changed in place: out, action, margin
    first, last, backward, in_place, blocked,
):  # fmt: skip
    """One improvement and one sweep: the best action of every state, and ``out`` = T_pi' V for the new policy.

    A state keeps its action if no other one is better. ``margin`` (S,) is by how much its action was better than
    every other one when all were last compared, plus ``drift`` at that time. ``drift`` is gamma times the
    span of all changes of V so far: a state whose margin exceeds it cannot have got a better action since, and
    only its own action is evaluated.

    Returns the greatest T V - V, the least and the greatest T_pi' V - V, and in how many states all actions
    were compared.
    """
    n_actions = reward.shape[1]
    masked = allowed.shape[0] > 0
    up, low, compared, moved, unknown = -math.inf, math.inf, 0, 0.0, 0.0
    near, width = indices.dtype.type(0), indices.dtype.type(0)
    for i in range(first, last):
        s = first + last - 1 - i if backward else i
        now = action[s]
        if blocked:
            passed = _passed(first, last, s, backward)
            near, width = indices.dtype.type(passed[0]), indices.dtype.type(passed[1])
        if margin[s] > drift + gamma * moved:
            row = s * n_actions + now
            total = 0.0
            if blocked:
                for k in range(indptr[row], indptr[row + 1]):
                    target = indices[k]
                    new = indices.dtype.type(target - near) < width
                    total += data[k] * (out[target] if new else values[target])
            else:
                for k in range(indptr[row], indptr[row + 1]):
                    total += data[k] * values[indices[k]]
            best = reward[s, now] + gamma * total
        else:
            compared += 1
            best = -math.inf
            second = -math.inf
            kept = -math.inf
            chosen = now
            begin = indptr[s * n_actions]
            for a in range(n_actions):
                end = indptr[s * n_actions + a + 1]
                if not (masked and not allowed[s, a]):
                    total = 0.0
                    if blocked:
                        for k in range(begin, end):
                            target = indices[k]
                            new = indices.dtype.type(target - near) < width
                            total += data[k] * (out[target] if new else values[target])
                    else:
                        for k in range(begin, end):
                            total += data[k] * values[indices[k]]
                    q = reward[s, a] + gamma * total
                    if a == now:
                        kept = q
                    if q > best:
                        second = best
                        best = q
                        chosen = a
                    elif q > second:
                        second = q
                begin = end
            if best > kept:
                action[s] = chosen
            margin[s] = best - second + drift
        change = best - values[s]
        unknown += 0.0 * change
        if change > up:
            up = change
        if change < low:
            low = change
        if (in_place or blocked) and change > moved:
            moved = change
        out[s] = best
    return up + unknown, low + unknown, up, compared


@nb.njit(**_JIT)
def sharp_sweep(  # type: ignore[no-untyped-def]
    indptr, indices, data, reward, gamma, values, out, action, first, last, backward, blocked
):
    """One sweep ``out`` = T_pi V; returns the least and the greatest change."""
    n_actions = reward.shape[1]
    low, high = math.inf, -math.inf
    for i in range(first, last):
        s = first + last - 1 - i if backward else i
        row = s * n_actions + action[s]
        total = 0.0
        if blocked:
            passed = _passed(first, last, s, backward)
            near, width = indices.dtype.type(passed[0]), indices.dtype.type(passed[1])
            for k in range(indptr[row], indptr[row + 1]):
                target = indices[k]
                new = indices.dtype.type(target - near) < width
                total += data[k] * (out[target] if new else values[target])
        else:
            for k in range(indptr[row], indptr[row + 1]):
                total += data[k] * values[indices[k]]
        result = reward[s, action[s]] + gamma * total
        change = result - values[s]
        if change < low:
            low = change
        if change > high:
            high = change
        out[s] = result
    return low, high


@nb.njit(**_JIT)
def sharp_residuals(indptr, indices, data, reward, gamma, allowed, values, action, first, last):  # type: ignore[no-untyped-def]
    """The greatest T V - V, the least and the greatest T_pi V - V, all actions compared, nothing changed."""
    n_actions = reward.shape[1]
    masked = allowed.shape[0] > 0
    up, low, high, unknown = -math.inf, math.inf, -math.inf, 0.0
    for s in range(first, last):
        for a in range(n_actions):
            if masked and not allowed[s, a]:
                continue
            row = s * n_actions + a
            total = 0.0
            for k in range(indptr[row], indptr[row + 1]):
                total += data[k] * values[indices[k]]
            residual = reward[s, a] + gamma * total - values[s]
            unknown += 0.0 * residual
            if residual > up:
                up = residual
            if a == action[s]:
                low = min(low, residual)
                high = max(high, residual)
    return up + unknown, low + unknown, high


# --- soft policies --------------------------------------------------------------------------------------------


@nb.njit(**_JIT)
def _mean(policy, q, masked, allowed, s):  # type: ignore[no-untyped-def]
    """Sum of pi(a) q(a) over the actions with a positive probability."""
    total = 0.0
    for a in range(q.shape[0]):
        if policy[s, a] > 0.0 and not (masked and not allowed[s, a]):
            total += policy[s, a] * q[a]
    return total


@nb.njit(**_JIT)
def _update_together(log_policy, policy, q, mean, chosen, s, multiple, tolerance):  # type: ignore[no-untyped-def]
    """All ``chosen`` pairs of a state at once, with the signs of Q - T_pi V before; whether any moved.

    An action that is worse and whose probability is already 0 in floating point is left alone.
    """
    moved = False
    for a in range(q.shape[0]):
        if not chosen[a]:
            continue
        if q[a] > mean + tolerance:
            log_policy[s, a] -= multiple * log_policy[s, a]
            moved = True
        elif q[a] < mean - tolerance and policy[s, a] > 0.0:
            log_policy[s, a] += multiple * log_policy[s, a]
            moved = True
    if moved:
        normalise_row(log_policy[s])
        for a in range(q.shape[0]):
            policy[s, a] = math.exp(log_policy[s, a])
    return moved


@nb.njit(**_JIT)
def _update_in_turn(log_policy, policy, q, chosen, s, multiple, tolerance, masked, allowed):  # type: ignore[no-untyped-def]
    """The ``chosen`` pairs of a state one after another, each with the sign under the policy that it meets."""
    only = np.zeros(q.shape[0], np.bool_)
    for a in range(q.shape[0]):
        if chosen[a]:
            only[a] = True
            mean = _mean(policy, q, masked, allowed, s)
            _update_together(log_policy, policy, q, mean, only, s, multiple, tolerance)
            only[a] = False


@nb.njit(**_JIT)
def soft_improve(  # type: ignore[no-untyped-def]
    indptr, indices, data, reward, gamma, allowed,  # the MDP
    values, out, log_policy, policy, pairs, multiple, in_turn, tolerance,  # changed: out, log_policy, policy
    first, last, backward, blocked,
):  # fmt: skip
    """One CAPO update with steps ``multiple`` log 1/pi and signs of Q(V) - T_pi V, and ``out`` = T_pi' V.

    ``pairs`` (S, A) says which pairs are updated; an array without rows means all of them. ``in_turn``: the pairs
    of a state one after another rather than at once. Differences up to ``tolerance`` have sign 0.

    Returns the greatest T V - V and the least and greatest T_pi' V - V.
    """
    n_actions = reward.shape[1]
    masked, given = allowed.shape[0] > 0, pairs.shape[0] > 0
    up, low, high, unknown = -math.inf, math.inf, -math.inf, 0.0
    q, chosen = np.empty(n_actions), np.empty(n_actions, np.bool_)
    near, width = indices.dtype.type(0), indices.dtype.type(0)
    for i in range(first, last):
        s = first + last - 1 - i if backward else i
        if blocked:
            passed = _passed(first, last, s, backward)
            near, width = indices.dtype.type(passed[0]), indices.dtype.type(passed[1])
        best = -math.inf
        for a in range(n_actions):
            chosen[a] = not (masked and not allowed[s, a]) and (not given or pairs[s, a])
            if masked and not allowed[s, a]:
                continue
            row = s * n_actions + a
            total = 0.0
            for k in range(indptr[row], indptr[row + 1]):
                target = indices[k]
                new = indices.dtype.type(target - near) < width
                total += data[k] * (out[target] if new else values[target])
            q[a] = reward[s, a] + gamma * total
            best = max(best, q[a])
        if in_turn:
            _update_in_turn(log_policy, policy, q, chosen, s, multiple, tolerance, masked, allowed)
        else:
            mean = _mean(policy, q, masked, allowed, s)
            _update_together(log_policy, policy, q, mean, chosen, s, multiple, tolerance)
        result = _mean(policy, q, masked, allowed, s)
        unknown += 0.0 * (best - values[s]) + 0.0 * (result - values[s])
        up = max(up, best - values[s])
        low = min(low, result - values[s])
        high = max(high, result - values[s])
        out[s] = result
    return up + unknown, low + unknown, high


@nb.njit(**_JIT)
def soft_sweep(  # type: ignore[no-untyped-def]
    indptr, indices, data, reward, gamma, values, out, policy, first, last, backward, blocked
):
    """One sweep ``out`` = T_pi V over the actions with a positive probability; the least and greatest change."""
    n_actions = reward.shape[1]
    low, high = math.inf, -math.inf
    near, width = indices.dtype.type(0), indices.dtype.type(0)
    for i in range(first, last):
        s = first + last - 1 - i if backward else i
        if blocked:
            passed = _passed(first, last, s, backward)
            near, width = indices.dtype.type(passed[0]), indices.dtype.type(passed[1])
        result = 0.0
        for a in range(n_actions):
            if policy[s, a] == 0.0:
                continue
            row = s * n_actions + a
            total = 0.0
            for k in range(indptr[row], indptr[row + 1]):
                target = indices[k]
                new = indices.dtype.type(target - near) < width
                total += data[k] * (out[target] if new else values[target])
            result += policy[s, a] * (reward[s, a] + gamma * total)
        change = result - values[s]
        low = min(low, change)
        high = max(high, change)
        out[s] = result
    return low, high


@nb.njit(**_JIT)
def soft_residuals(indptr, indices, data, reward, gamma, allowed, values, policy, first, last):  # type: ignore[no-untyped-def]
    """The greatest T V - V, the least and the greatest T_pi V - V, all actions compared, nothing changed."""
    n_actions = reward.shape[1]
    masked = allowed.shape[0] > 0
    up, low, high, unknown = -math.inf, math.inf, -math.inf, 0.0
    for s in range(first, last):
        mean = 0.0
        for a in range(n_actions):
            if masked and not allowed[s, a]:
                continue
            row = s * n_actions + a
            total = 0.0
            for k in range(indptr[row], indptr[row + 1]):
                total += data[k] * values[indices[k]]
            q = reward[s, a] + gamma * total
            unknown += 0.0 * (q - values[s])
            up = max(up, q - values[s])
            if policy[s, a] > 0.0:
                mean += policy[s, a] * q
        unknown += 0.0 * (mean - values[s])
        low = min(low, mean - values[s])
        high = max(high, mean - values[s])
    return up + unknown, low + unknown, high
