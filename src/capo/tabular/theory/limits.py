"""The paper's statements about limits and events, in forms that a finite run can break.

I-, I0 and I+ are the actions of a state whose limiting advantage is negative, zero and positive, and Delta is the
least limiting advantage that is not 0, in size. By the convergence theorems the limit is V*, so that these sets
are known, I+ is empty, and what the proofs do with I- can be followed along a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln

from capo.tabular.mdp import Bools, Floats, Ints
from capo.tabular.theory.lemmas import Form, PolicyValues, Sides
from capo.update import log_normalise

__all__ = [
    "LimitSets", "above_and_below", "advantage_balance", "ignored", "ignored_bound", "limit_sets",
    "lowered_enough", "negative_weight", "raised_enough", "strict_advantages",
]  # fmt: skip


@dataclass(frozen=True)
class LimitSets:
    """The allowed actions by the sign of their limiting advantage, (S, A) each.

    Attributes:
        delta: Delta, the least limiting advantage that is not 0, in size; infinite if all are 0.
    """

    negative: Bools
    zero: Bools
    positive: Bools
    delta: float


def limit_sets(limit: PolicyValues, tolerance: float = 0.0) -> LimitSets:
    """I-, I0, I+ and Delta, from the policy in the limit: by the theorems an optimal one.

    Args:
        tolerance: advantages up to this size count as 0.
    """
    advantage, allowed = limit.advantage, limit.mdp.allowed
    negative, positive = (advantage < -tolerance) & allowed, (advantage > tolerance) & allowed
    sizes = np.abs(advantage[negative | positive])
    delta = float(sizes.min()) if sizes.size else float("inf")
    return LimitSets(negative, allowed & ~negative & ~positive, positive, delta)


def strict_advantages(advantage: Floats, sets: LimitSets) -> Sides:
    """Delta/4 <= -A on I- and Delta/4 <= A on I+, pair by pair: holds from some iteration M_1 on.

    It does as soon as the gap V* - V is below 3/4 Delta at every state, since A <= A* + (V* - V); and V never
    falls.

    Args:
        advantage: (S, A) of the policy now.
    """
    rhs = np.concatenate([-advantage[sets.negative], advantage[sets.positive]])
    return Sides(np.full(len(rhs), sets.delta / 4), rhs)


def lowered_enough(log_pi: Any, sign: Any, alpha: Any) -> Sides:
    """log 1/pi <= -sign alpha for updates (n,) of actions in I- after M_1: theta falls by at least log 1/pi.

    This makes pi(I-) -> 0 if such visits never end; on-policy it is what P(E1^c and E1,1) = 0 rests on.
    """
    return Sides(-log_pi, -sign * alpha)


def negative_weight(policy: Floats, values: Floats, best: PolicyValues, sets: LimitSets) -> Sides:
    """Delta pi(I-|s) <= V*(s) - V(s) at every state (S,): pi(I-) vanishes with the gap.

    By the performance difference lemma V* - V is the mean of -A* over the policy's visits, of which (1 - gamma)
    are to s itself at once.
    """
    weight = (policy * sets.negative).sum(axis=1)
    return Sides(sets.delta * weight if np.isfinite(sets.delta) else 0 * weight, best.values - values)


def advantage_balance(now: PolicyValues) -> Sides:
    """sum over A > 0 of pi A = sum over A < 0 of pi \\|A\\| at every state (S,).

    So the weight of I+ vanishes with that of I-, which is the step from one lemma to the next.
    """
    weighted = now.policy * now.advantage
    return Sides(np.maximum(weighted, 0.0).sum(axis=1), np.maximum(-weighted, 0.0).sum(axis=1), "=")


def above_and_below(now: PolicyValues, limit: PolicyValues, tolerance: float = 0.0) -> Sides:
    """(Q(b) - Q(worst)) pi(below b) <= (Q(c) - Q(b)) pi(above b), for every action b between others.

    Above and below are in the order of the limiting Q, and c is the next action above b. The proposition claims it
    from some iteration on where V(s) lies between the next actions below and above b; there it says that
    A(s, b) <= 0. Pairs where V is elsewhere, or where Q has another order than in the limit, are left out.

    Args:
        tolerance: limiting Q that differ by no more count as equal.
    """
    lhs, rhs = [], []
    for s in np.flatnonzero(~now.mdp.terminal).tolist():
        actions = np.flatnonzero(now.mdp.allowed[s])
        q, goal, pi = now.q[s, actions], limit.q[s, actions], now.policy[s, actions]
        for b in range(len(actions)):
            above, below = goal > goal[b] + tolerance, goal < goal[b] - tolerance
            if not above.any() or not below.any():
                continue
            after, before = q[above].min(), q[below].max()
            if before < min(q[b], now.values[s]) and max(q[b], now.values[s]) < after:
                lhs.append((q[b] - q[below].min()) * pi[below].sum())
                rhs.append((after - q[b]) * pi[above].sum())
    return Sides(np.array(lhs), np.array(rhs))


# --- on-policy: what the events rest on -----------------------------------------------------------------------


def raised_enough(alpha: Floats, visits: Ints, beta: float, zeta: float) -> Sides:
    """min{zeta log((N+1)/N), log 1/(1-beta)} <= alpha for updates (n,) with A > 0, the N-th of their pair.

    The least that a visit adds to theta of an action in I+: infinitely many of them add up to infinity, which is
    what P(E1^c and E1,2) = 0 rests on.
    """
    return Sides(np.minimum(zeta * np.log1p(1 / visits), -np.log1p(-beta)), alpha)


def ignored_bound(share: Floats, steps: Ints, form: Form = "repaired") -> Floats:
    """-log of the bound on the probability that no action of a set is picked in ``steps`` visits of a state.

    ``share`` is r = sum over the set of exp(theta) / (\\|A\\| exp(theta_max)), at the first of these visits. The
    product over m = 1..steps of 1 - r/(m+1+r) is the repaired one, of 1 - r/(m+1) the printed one. Both go to 0
    as steps grow, like steps to the power -r: so P(E4) = 0.
    """
    r, k = np.asarray(share, float), np.asarray(steps, float)
    if form == "printed":
        return np.asarray(gammaln(k + 2) - gammaln(k + 2 - r) + gammaln(2 - r))
    return np.asarray(gammaln(k + 2 + r) - gammaln(2 + r) - gammaln(k + 2))


def ignored(theta: Floats, action: Ints, which: int, form: Form = "repaired") -> tuple[Sides, Ints]:
    """Event E4 along one state's visits: every stretch in which an action is not picked, against its bound.

    In each of the first K visits of such a stretch the chance was 1 - pi(a). The left side is -log of the bound,
    the right one -log of the product of those chances.

    Args:
        theta: (n + 1, A) of the allowed actions, before and after each of n visits (:func:`theta_rows`).
        action: (n,) which of them each visit picked.
        which: the action a.

    Returns:
        The sides, one entry per visit at which ``which`` was not picked, and those visits' numbers from 0.
    """
    before = theta[:-1]
    log_pi = log_normalise(before)[0]
    others = np.delete(log_pi, which, axis=1)
    peak = others.max(axis=1)
    cost = -(peak + np.log(np.exp(others - peak[:, None]).sum(axis=1)))  # -log of 1 - pi(a)
    n, picked = len(action), np.asarray(action) == which
    begins = np.concatenate([[True], picked[:-1]]) if n else np.zeros(0, bool)
    first = np.maximum.accumulate(np.where(begins, np.arange(n), 0))
    total = np.concatenate([[0.0], np.cumsum(np.where(picked, 0.0, cost))])
    r = np.exp(before[first, which] - before[first].max(axis=1)) / theta.shape[1]
    visits = np.flatnonzero(~picked)
    bound = ignored_bound(r, np.arange(n) - first + 1, form)
    return Sides(bound[visits], (total[1:] - total[first])[visits]), visits
