"""Compiled kernels of :mod:`capo.tabular.sign_critic`; the tests compare each with a plain version.

With I - gamma P_pi = D - L - U the preconditioner is (E - L) E^-1 (E - U), E diagonal. E = D is symmetric
Gauss-Seidel. With fill-in lumped, E is such that it agrees with I - gamma P_pi on constants, as an incomplete
factorisation with the fill-in added to the diagonal: E(s) = D(s) - sum_t L(s, t) sum_u U(t, u) / E(t). By
induction E(s) >= sum_u U(s, u) + 1 - gamma > 0. It needs fewer steps where states lead to neighbours, and many
more where they lead anywhere.

A system is (starts, splits, targets, scaled, excess): row s has its entries of E^-1 L in ``starts[s]:splits[s]``,
those of E^-1 U in ``splits[s]:starts[s + 1]``, and ``excess`` (S,) is D / E - 2.
"""

from __future__ import annotations

import math

import numba as nb
import numpy as np

_JIT = {"cache": True, "nogil": True, "error_model": "numpy"}  # a division by 0 is not an exception
_REASSOCIATES = {"fastmath": {"reassoc", "contract", "nsz"}}  # NaN and infinity keep their meaning
_FAST = _JIT | _REASSOCIATES
_INNER = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_INNER_FAST = _INNER | _REASSOCIATES


@nb.njit(**_JIT)
def policy_system(indptr, data, reward, policy, place, pi_data, pi_reward):  # type: ignore[no-untyped-def]
    """P_pi's entries and r_pi, into a fixed pattern: ``place[k]`` is where transition entry k is added."""
    n_states, n_actions = policy.shape
    pi_data[:] = 0.0
    for s in range(n_states):
        total = 0.0
        for a in range(n_actions):
            weight = policy[s, a]
            total += weight * reward[s, a]
            pair = s * n_actions + a
            for k in range(indptr[pair], indptr[pair + 1]):
                pi_data[place[k]] += weight * data[k]
        pi_reward[s] = total


@nb.njit(**_FAST)
def bellman_residual(indptr, indices, pi_data, gamma, pi_reward, values, out):  # type: ignore[no-untyped-def]
    """out = r_pi + gamma P_pi V - V; returns its least and greatest entry, or NaN if one is not finite."""
    low, high, unknown = math.inf, -math.inf, 0.0
    for s in range(values.shape[0]):
        total = 0.0
        for k in range(indptr[s], indptr[s + 1]):
            total += pi_data[k] * values[indices[k]]
        out[s] = pi_reward[s] + gamma * total - values[s]
        low = min(low, out[s])  # which pass over NaN
        high = max(high, out[s])
        unknown += 0.0 * out[s]
    return low + unknown, high + unknown


@nb.njit(**_FAST)
def scaled_system(  # type: ignore[no-untyped-def]
    indptr, middle, indices, pi_data, gamma, least, lumped,
    starts, splits, targets, scaled, excess, diagonal, ratio,  # filled in
):  # fmt: skip
    """The system and E = ``diagonal``, from P_pi without its entries up to ``least``.

    ``middle`` is where rows reach the diagonal; ``targets`` and ``scaled`` have room for one entry more than P_pi;
    ``ratio`` (S,) is work space.
    """
    count = 0
    for s in range(diagonal.shape[0]):
        after, own, fill, above = middle[s], 0.0, 0.0, 0.0
        if after < indptr[s + 1] and indices[after] == s:
            own = gamma * pi_data[after]
            after += 1
        diagonal[s] = 1.0 - own
        if lumped:
            for k in range(indptr[s], middle[s]):
                fill += pi_data[k] * ratio[indices[k]]
            for k in range(after, indptr[s + 1]):
                above += pi_data[k]
            diagonal[s] -= gamma * fill
            ratio[s] = gamma * above / diagonal[s]
        excess[s] = (1.0 - own) / diagonal[s] - 2.0
        factor = gamma / diagonal[s]
        starts[s] = count
        for k in range(indptr[s], middle[s]):  # written in any case: a branch here costs more
            targets[count] = indices[k]
            scaled[count] = factor * pi_data[k]
            count += pi_data[k] > least
        splits[s] = count
        for k in range(after, indptr[s + 1]):
            targets[count] = indices[k]
            scaled[count] = factor * pi_data[k]
            count += pi_data[k] > least
    starts[-1] = count


@nb.njit(**_INNER_FAST)
def _dot(x, y):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(x.shape[0]):
        total += x[i] * y[i]
    return total


@nb.njit(**_INNER_FAST)
def _add_multiple(x, y, factor):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        x[i] += factor * y[i]


@nb.njit(**_INNER_FAST)
def _scale(x, factor):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        x[i] *= factor


@nb.njit(**_INNER_FAST)
def _solve_upper(system, right, x):  # type: ignore[no-untyped-def]
    """x with (I - E^-1 U) x = right."""
    starts, splits, targets, scaled, _ = system
    for s in range(x.shape[0] - 1, -1, -1):
        total = right[s]
        for k in range(splits[s], starts[s + 1]):
            total += scaled[k] * x[targets[k]]
        x[s] = total


@nb.njit(**_INNER_FAST)
def _apply(system, y, w, rest, out):  # type: ignore[no-untyped-def]
    """out = (I - E^-1 L)^-1 E^-1 (D - L - U) (I - E^-1 U)^-1 y, in one pass over the entries (Eisenstat's trick).

    That is w + (I - E^-1 L)^-1 (y + (D / E - 2) w) with w = (I - E^-1 U)^-1 y; ``w`` and ``rest`` are work space.
    """
    starts, splits, targets, scaled, excess = system
    _solve_upper(system, y, w)
    for s in range(y.shape[0]):
        total = y[s] + excess[s] * w[s]
        for k in range(starts[s], splits[s]):
            total += scaled[k] * rest[targets[k]]
        rest[s] = total
        out[s] = w[s] + total


@nb.njit(**_JIT)
def gmres_cycle(system, diagonal, residual, size, values, basis, work, reduction):  # type: ignore[no-untyped-def]
    """One cycle of preconditioned GMRES for the correction of V; V is corrected.

    ``residual`` (S,) is r_pi + gamma P_pi V - V and ``size`` that of its greatest entry: what is solved is divided
    by it, so that single precision will do. ``basis`` (m + 1, S) and ``work`` (2, S) are of the precision of
    the system. The cycle ends after m steps, when the preconditioned residual has shrunk by ``reduction``, or
    before a step of which nothing but rounding would be left. Returns the number of steps, 0 if there is no finite
    correction.
    """
    starts, splits, targets, scaled, _ = system
    m, number, eps = basis.shape[0] - 1, basis.dtype.type, 4.0 * np.finfo(basis.dtype).eps
    hessenberg = np.zeros((m + 1, m))
    cosine, sine, rotated = np.zeros(m), np.zeros(m), np.zeros(m + 1)
    first, w, rest = basis[0], work[0], work[1]
    for s in range(values.shape[0]):
        total = number(residual[s] / (size * diagonal[s]))
        for k in range(starts[s], splits[s]):
            total += scaled[k] * first[targets[k]]
        first[s] = total
    begin = math.sqrt(_dot(first, first))
    if not begin > 0.0:
        return 0
    rotated[0] = begin
    _scale(first, number(1.0 / begin))
    steps = 0
    for j in range(m):
        new = basis[j + 1]
        _apply(system, basis[j], w, rest, new)
        for i in range(j + 1):
            hessenberg[i, j] = _dot(basis[i], new)
            _add_multiple(new, basis[i], number(-hessenberg[i, j]))
        norm = math.sqrt(_dot(new, new))
        rounding = eps * math.hypot(norm, math.sqrt(_dot(hessenberg[: j + 1, j], hessenberg[: j + 1, j])))
        if not norm > rounding:
            norm = 0.0
        hessenberg[j + 1, j] = norm
        for i in range(j):
            upper, under = hessenberg[i, j], hessenberg[i + 1, j]
            hessenberg[i, j] = cosine[i] * upper + sine[i] * under
            hessenberg[i + 1, j] = cosine[i] * under - sine[i] * upper
        length = math.hypot(hessenberg[j, j], norm)
        if not length > rounding:  # or not a number
            break
        cosine[j], sine[j] = hessenberg[j, j] / length, norm / length
        hessenberg[j, j] = length
        rotated[j + 1] = -sine[j] * rotated[j]
        rotated[j] *= cosine[j]
        steps = j + 1
        if norm == 0.0 or abs(rotated[j + 1]) <= reduction * begin:
            break
        _scale(new, number(1.0 / norm))
    if steps == 0:
        return 0
    weights = np.zeros(steps)
    for i in range(steps - 1, -1, -1):
        total = rotated[i]
        for j in range(i + 1, steps):
            total -= hessenberg[i, j] * weights[j]
        weights[i] = total / hessenberg[i, i]
    rest[:] = number(0.0)
    for i in range(steps):
        _add_multiple(rest, basis[i], number(weights[i]))
    _solve_upper(system, rest, w)
    if not math.isfinite(_dot(w, w)):
        return 0
    for s in range(values.shape[0]):
        values[s] += size * w[s]
    return steps


@nb.njit(**_FAST)
def certain_signs(indptr, indices, data, reward, allowed, policy, gamma, values, spread, tol, signs, first):  # type: ignore[no-untyped-def]
    """Signs of all advantages, from values V with the span of V_pi - V at most ``spread``.

    A(s, a) = Q(s, a) - sum_b pi(b|s) Q(s, b) is then known to within gamma (1 - pi(a|s)) spread: it compares the
    successors of a with those of the other actions. An advantage greater than that in size has a certain sign; one
    that is certainly below 2 * ``tol`` counts as 0. An action that is not allowed has sign 0.

    Starts at state ``first`` and stops at a state with an undecided pair. Returns that state, or -1, and a bound
    on the greatest advantage, which holds if every pair was decided.
    """
    n_states, n_actions = reward.shape
    masked = allowed.shape[0] > 0
    q, greatest = np.empty(n_actions), 0.0
    for i in range(n_states):
        s = first + i if first + i < n_states else first + i - n_states
        top = 0
        for a in range(n_actions):
            if policy[s, a] > policy[s, top]:
                top = a
            total = 0.0
            for k in range(indptr[s * n_actions + a], indptr[s * n_actions + a + 1]):
                total += data[k] * values[indices[k]]
            q[a] = reward[s, a] + gamma * total
        mean = others = 0.0  # of Q - Q(top), and the probability of all actions but the top one
        for a in range(n_actions):
            if a != top and policy[s, a] > 0.0:
                mean += policy[s, a] * (q[a] - q[top])
                others += policy[s, a]
        for a in range(n_actions):
            if masked and not allowed[s, a]:
                signs[s, a] = 0
                continue
            advantage = (q[a] - q[top]) - mean
            slack = gamma * spread * (others if a == top else 1.0 - policy[s, a])
            greatest = max(greatest, advantage + slack)
            size = abs(advantage)
            if size > max(slack, tol):
                signs[s, a] = 1 if advantage > 0 else -1
            else:
                signs[s, a] = 0
                if not size + slack <= 2 * tol:
                    return s, greatest
    return -1, greatest
