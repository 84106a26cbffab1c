"""Compiled kernels of the tabular engine; the tests compare each with a plain version.

One coordinate changes the policy at one state only. With M = (I - gamma P_pi)^-1, changing row s of the policy
by d gives, with x = M[:, s], g = gamma P[s] x (A,) and the advantages adv (A,) of that row,

    V' = V + x * c,    Q'(s, .) = Q(s, .) + g * c,    c = (d . adv) / (1 - d . g),
    M' = (I + u w^T) M,    u = x / (1 - d . g),    w = gamma d^T P[s].

So once x, Q(s, .) and g are known, every further update of the same state costs O(A): consecutive updates of a
state are merged into one rank-1 change, committed when the walk leaves the state. Changes are applied to M at once
when S is small (``depth`` None), and otherwise kept as up to ``depth`` pending pairs (u, w) until
:func:`capo.tabular.critic.DenseCritic.flush` multiplies them in.
"""

from __future__ import annotations

import math

import numba as nb
import numpy as np

from capo.update import KINDS, floor

FLOOR = floor(np.float64)
NOTHING = -746.0  # exp of this and of all below is 0
LOG, FIXED, CLIPPED, ON_POLICY = (KINDS.index(kind) for kind in ("log", "fixed", "clipped", "on-policy"))
_JIT = {"cache": True, "nogil": True, "no_cfunc_wrapper": True}
_REASSOCIATES = {"fastmath": {"reassoc", "contract", "nsz"}}  # NaN and infinity keep their meaning
_FAST = _JIT | _REASSOCIATES
# Functions that only kernels call: not callable from Python and not cached by themselves, which compiles faster.
_INNER = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# Those a kernel calls in one place become part of it, which compiles faster still. Not those with fast sums: the
# order of their sums must not depend on the code around them.
_PART = _INNER | {"inline": "always"}
_INNER_FAST = _INNER | _REASSOCIATES


@nb.njit(**_PART)
def step_size(kind, first, second, log_p, sign, count):  # type: ignore[no-untyped-def]
    """Twin of :meth:`capo.update.StepSize.alpha` for one entry."""
    if kind == FIXED:
        return first
    if kind == CLIPPED:
        return first if first < -log_p else -log_p
    if kind == LOG:
        return -first * log_p
    if sign <= 0:
        return -log_p
    if log_p < math.log(first):
        return math.log(first / (1 - first)) - log_p
    return second * math.log1p(1.0 / count)


@nb.njit(**_INNER)
def normalise_row(row):  # type: ignore[no-untyped-def]
    """Twin of :func:`capo.update.log_normalise` for one row (A,), in place."""
    top = 0
    for a in range(1, row.shape[0]):
        if row[a] > row[top]:
            top = a
    peak = row[top]
    rest = 0.0
    for a in range(row.shape[0]):
        if a != top and row[a] - peak > NOTHING:
            rest += math.exp(row[a] - peak)
    shift = math.log1p(rest)
    for a in range(row.shape[0]):
        value = (row[a] - peak) - shift
        row[a] = FLOOR if value < FLOOR else value


@nb.njit(**_INNER_FAST)
def dot(x, y):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(x.shape[0]):
        total += x[i] * y[i]
    return total


@nb.njit(**_INNER_FAST)
def _add_multiple(x, u, factor):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        x[i] += u[i] * factor


@nb.njit(**_PART)
def add_rows(weights, matrix, out):  # type: ignore[no-untyped-def]
    """out += weights^T matrix, passing over the weights that are 0: few successors make few rows."""
    for t in range(weights.shape[0]):
        if weights[t] != 0.0:
            _add_multiple(out, matrix[t], weights[t])


@nb.njit(**_JIT)
def left_product(w, matrix, out):  # type: ignore[no-untyped-def]
    """out (K, S) = W M for rows w[k] with few entries."""
    out[:] = 0.0
    for k in range(w.shape[0]):
        add_rows(w[k], matrix, out[k])


@nb.njit(**_INNER_FAST)
def sparse_dot(indptr, indices, data, row, x):  # type: ignore[no-untyped-def]
    total = 0.0
    for k in range(indptr[row], indptr[row + 1]):
        total += data[k] * x[indices[k]]
    return total


@nb.njit(**_PART)
def column(inverse, u, w, pending, depth, s, x):  # type: ignore[no-untyped-def]
    """x = M[:, s] with the pending changes applied, in the order they came."""
    for i in range(x.shape[0]):
        x[i] = inverse[i, s]
    if depth is not None:
        for k in range(pending):
            _add_multiple(x, u[k], dot(w[k], x))


@nb.njit(**_PART)
def commit(csr, gamma, n_actions, inverse, u, w, pending, depth, s, change, x, scale, left):  # type: ignore[no-untyped-def]
    """Enter the policy change (A,) at state s into M; returns how many are pending. ``left`` (S,) is scratch."""
    indptr, indices, data = csr
    slot = 0 if depth is None else pending
    row = w[slot]
    for i in range(row.shape[0]):
        row[i] = 0.0
    for a in range(n_actions):
        if change[a] != 0.0:
            pair = s * n_actions + a
            for k in range(indptr[pair], indptr[pair + 1]):
                row[indices[k]] += gamma * change[a] * data[k]
    for i in range(x.shape[0]):
        u[slot, i] = x[i] * scale
    if depth is not None:
        return pending + 1
    for i in range(x.shape[0]):
        left[i] = 0.0
    add_rows(row, inverse, left)
    for i in range(x.shape[0]):
        _add_multiple(inverse[i], left, u[0, i])
    return 0


@nb.njit(**_INNER)
def draw(probabilities, uniform):  # type: ignore[no-untyped-def]
    """The index that a uniform number picks from a distribution; never one of probability 0."""
    total = 0.0
    last = 0
    for i in range(probabilities.shape[0]):
        if probabilities[i] > 0.0:
            last = i
            total += probabilities[i]
            if uniform < total:
                return i
    return last


@nb.njit(**_INNER)
def draw_action(behaviour, row, mix, uniform):  # type: ignore[no-untyped-def]
    """An action from mix * pi + (1 - mix) * behaviour, pi given as log-probabilities."""
    total = 0.0
    last = 0
    for a in range(row.shape[0]):
        probability = mix * math.exp(row[a]) + (1 - mix) * behaviour[a]
        if probability > 0.0:
            last = a
            total += probability
            if uniform < total:
                return a
    return last


@nb.njit(**_INNER)
def advance(csr, n_actions, terminal, restart, horizon, walker, action, uniforms):  # type: ignore[no-untyped-def]
    """Move the walker [state, steps in this walk] one step; restart at an end or after the horizon."""
    indptr, indices, data = csr
    pair = walker[0] * n_actions + action
    successors = slice(indptr[pair], indptr[pair + 1])
    target = indices[successors][draw(data[successors], uniforms[1])]
    walker[1] += 1
    if terminal[target] or walker[1] >= horizon:
        walker[0] = draw(restart, uniforms[2])
        walker[1] = 0
    else:
        walker[0] = target


@nb.njit(**_JIT)
def run(  # type: ignore[no-untyped-def]
    csr, reward, gamma, rho, sign_tol,  # the MDP
    kind, first, second,  # the step size
    log_policy, policy, values, counts, inverse, u, w, pending, depth,  # the engine's state, changed in place
    scratch,  # (S,), (S,), (A,), (A,), (A,): given, since np.empty takes a while to compile
    pairs, walk_of,  # where coordinates come from
    out_state, out_action, out_sign, out_alpha, out_value, out_row, traced,  # what happened
    begin,
):  # fmt: skip
    """Single-coordinate updates ``begin``, ``begin + 1``, ... until all are done or ``depth`` is full.

    Coordinates come from ``pairs`` (n, 2); or, unless it is None, from a walk ``walk_of`` = (behaviour, mix,
    terminal, restart, horizon, walker, uniforms (n, 3)). Numba leaves the code for walks out where it is None.
    Returns the index of the next update and the number of pending changes.
    """
    indptr, indices, data = csr
    n_actions = policy.shape[1]
    if walk_of is not None:
        behaviour, mix, terminal, restart, horizon, walker, uniforms = walk_of
        n = uniforms.shape[0]
    else:
        n = pairs.shape[0]
    x, left, base_q, g, change = scratch
    i = begin
    while i < n and (depth is None or pending < depth):
        s = pairs[i, 0] if walk_of is None else walker[0]
        column(inverse, u, w, pending, depth, s, x)
        for a in range(n_actions):
            pair = s * n_actions + a
            base_q[a] = reward[s, a] + gamma * sparse_dot(indptr, indices, data, pair, values)
            g[a] = gamma * sparse_dot(indptr, indices, data, pair, x)
        at_start = dot(rho, values)
        start_x = dot(rho, x)
        row = log_policy[s]
        c = 0.0
        scale = 1.0
        changed = False
        while i < n and (pairs[i, 0] if walk_of is None else walker[0]) == s:
            a = pairs[i, 1] if walk_of is None else draw_action(behaviour[s], row, mix, uniforms[i, 0])
            advantage = (base_q[a] + g[a] * c) - (values[s] + x[s] * c)
            sign = 1 if advantage > sign_tol else (-1 if advantage < -sign_tol else 0)
            counts[s, a] += 1
            alpha = step_size(kind, first, second, row[a], sign, counts[s, a])
            if sign != 0:
                row[a] += sign * alpha
                normalise_row(row)
                against = 0.0
                along = 0.0
                for b in range(n_actions):
                    change[b] = math.exp(row[b]) - policy[s, b]
                    along += change[b] * (base_q[b] - values[s])
                    against += change[b] * g[b]
                scale = 1.0 / (1.0 - against)
                c = along * scale
                changed = True
            out_value[i] = at_start + start_x * c
            if i < traced:
                out_state[i] = s
                out_action[i] = a
                out_sign[i] = sign
                out_alpha[i] = alpha
                for b in range(n_actions):  # assigning the row would compile a check of shapes, for a second
                    out_row[i, b] = row[b]
            i += 1
            if walk_of is not None:
                advance(csr, n_actions, terminal, restart, horizon, walker, a, uniforms[i - 1])
        if changed:
            _add_multiple(values, x, c)
            for b in range(n_actions):
                policy[s, b] = math.exp(row[b])
            pending = commit(csr, gamma, n_actions, inverse, u, w, pending, depth, s, change, x, scale, left)
    return i, pending


@nb.njit(**_JIT)
def commit_rows(  # type: ignore[no-untyped-def]
    csr, reward, gamma, log_policy, policy, values, inverse, u, w, pending, depth, states, rows, begin,
):  # fmt: skip
    """Replace the policy at ``states[begin:]`` by ``rows`` (log-probabilities), one rank-1 change each.

    Returns the index of the next state and the number of pending changes; stops when ``depth`` is full.
    """
    indptr, indices, data = csr
    n_states, n_actions = policy.shape
    x, left = np.empty(n_states), np.empty(n_states)
    change = np.empty(n_actions)
    i = begin
    while i < states.shape[0] and (depth is None or pending < depth):
        s = states[i]
        column(inverse, u, w, pending, depth, s, x)
        along = 0.0
        against = 0.0
        for a in range(n_actions):
            pair = s * n_actions + a
            probability = math.exp(rows[i, a])
            change[a] = probability - policy[s, a]
            q = reward[s, a] + gamma * sparse_dot(indptr, indices, data, pair, values)
            along += change[a] * (q - values[s])
            against += change[a] * gamma * sparse_dot(indptr, indices, data, pair, x)
            policy[s, a] = probability
            log_policy[s, a] = rows[i, a]
        scale = 1.0 / (1.0 - against)
        _add_multiple(values, x, along * scale)
        pending = commit(csr, gamma, n_actions, inverse, u, w, pending, depth, s, change, x, scale, left)
        i += 1
    return i, pending


@nb.njit(**_JIT)
def q_rows(csr, reward, gamma, values, states, out):  # type: ignore[no-untyped-def]
    """out (n, A) = Q at ``states`` (n,)."""
    indptr, indices, data = csr
    for i in range(states.shape[0]):
        for a in range(reward.shape[1]):
            pair = states[i] * reward.shape[1] + a
            out[i, a] = reward[states[i], a] + gamma * sparse_dot(indptr, indices, data, pair, values)


@nb.njit(**_JIT)
def walk(csr, log_policy, behaviour, mix, terminal, restart, horizon, walker, uniforms, out):  # type: ignore[no-untyped-def]
    """Fill ``out`` (n, 2) with the pairs met by following mix * pi + (1 - mix) * behaviour; nothing is updated."""
    n_actions = log_policy.shape[1]
    for i in range(out.shape[0]):
        s = walker[0]
        a = draw_action(behaviour[s], log_policy[s], mix, uniforms[i, 0])
        out[i, 0] = s
        out[i, 1] = a
        advance(csr, n_actions, terminal, restart, horizon, walker, a, uniforms[i])


@nb.njit(**_JIT)
def update_all(kind, first, second, log_policy, signs, counts, alpha, policy):  # type: ignore[no-untyped-def]
    """Twin of :func:`capo.update.coordinate_update` on all rows, in place; fills ``alpha`` and ``policy``."""
    n_states, n_actions = log_policy.shape
    for s in range(n_states):
        moved = False
        for a in range(n_actions):
            sign = signs[s, a]
            alpha[s, a] = step_size(kind, first, second, log_policy[s, a], sign, counts[s, a])
            moved = moved or sign != 0
        if moved:
            for a in range(n_actions):
                if signs[s, a] != 0:
                    log_policy[s, a] += signs[s, a] * alpha[s, a]
            normalise_row(log_policy[s])
            for a in range(n_actions):
                policy[s, a] = math.exp(log_policy[s, a]) if log_policy[s, a] > NOTHING else 0.0
