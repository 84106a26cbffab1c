"""Policies with their values, and the paper's lemmas about them as functions.

Each lemma returns the two sides of its statement (:class:`Sides`). ``old`` and ``new`` are policies with their
values (:func:`capo.theory.evaluate`), usually before and after an update. Lemmas that need rewards in
[0, 1] say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg

from capo.tabular.mdp import MDP, Floats, require_discounted
from capo.update import coordinate_update_with_shift, log_normalise

__all__ = [
    "PolicyValues", "Sides", "above_beta", "advantage", "advantage_bound", "advantage_sum", "batch_bound",
    "batch_weights", "evaluate", "exponential_bound", "fixed_step_factor", "fixed_step_improvement",
    "gap_at_rho", "gap_by_advantage", "half_bound", "improvement", "moved_weight", "one_step_bound",
    "one_step_improvement", "optimal", "performance_difference", "policy_gradient", "policy_gradient_along",
    "stuck_advantage", "stuck_path", "stuck_policy", "stuck_probability", "stuck_probability_bound",
    "stuck_theta", "theta_max_growth", "theta_rows", "value_rounding", "visitation", "visitation_bound",
    "weight_change", "weight_change_sides", "weight_distribution", "weight_range",
]  # fmt: skip

Form = Literal["printed", "repaired"]
FORMS: tuple[Form, ...] = ("repaired", "printed")
EPS = float(np.finfo(np.float64).eps)
DENSE_UP_TO = 1000


@dataclass(frozen=True)
class Sides:
    """The two sides of a statement, elementwise: ``lhs <= rhs`` or ``lhs = rhs``."""

    lhs: Floats
    rhs: Floats
    relation: Literal["<=", "="] = "<="

    def ratio(self, rounding: Any = 0.0) -> Floats:
        """At most 1 where the statement holds.

        For ``<=`` it is max(lhs, 0) / (rhs + rounding), for ``=`` it is \\|lhs - rhs\\| / rounding. A ratio
        that is not a number or divides by zero counts as infinite, unless the sides agree exactly.
        """
        lhs, rhs = np.broadcast_arrays(np.asarray(self.lhs, float), np.asarray(self.rhs, float))
        if self.relation == "=":
            top, bottom = np.abs(lhs - rhs), np.broadcast_to(rounding, lhs.shape)
        else:
            top, bottom = np.maximum(lhs, 0.0), rhs + rounding
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.where((top == 0) & (bottom >= 0), 0.0, np.where(bottom > 0, top / bottom, np.inf))
        return np.where(np.isnan(ratio) | np.isnan(lhs) | np.isnan(rhs), np.inf, ratio)

    def holds(self, rounding: Any = 0.0) -> bool:
        """Whether the statement holds everywhere, up to ``rounding``."""
        return bool((self.ratio(rounding) <= 1).all())


class PolicyValues:
    """A policy and, computed when first asked for, its values, advantages and visitation.

    Plain linear algebra: one LU factorisation per policy, nothing shared with the solver's critics.

    Args:
        mdp: the MDP.
        log_policy: (S, A).
        dense_up_to: states up to which a sparse MDP is factorised as a dense one, which is faster there.
    """

    def __init__(self, mdp: MDP, log_policy: Floats, dense_up_to: int = DENSE_UP_TO) -> None:
        require_discounted(mdp)
        self.mdp = mdp
        self.log_policy = np.asarray(log_policy, np.float64)
        self._sparse = mdp.is_sparse and mdp.n_states > dense_up_to

    def __repr__(self) -> str:
        return f"<PolicyValues on {self.mdp.label}: value {self.mdp.start @ self.values:.6g}>"

    @cached_property
    def policy(self) -> Floats:
        """(S, A)."""
        return np.exp(self.log_policy)

    @cached_property
    def rest(self) -> Floats:
        """(S, A) 1 - pi(a|s), summed from the other actions so that it is exact next to 1."""
        return others(self.policy)

    @cached_property
    def _lu(self) -> Any:
        """LU of I - gamma P_pi."""
        mdp, transition = self.mdp, self.mdp.policy_transition(self.policy)
        if self._sparse:
            return scipy.sparse.linalg.splu(sp.csc_array(sp.eye_array(mdp.n_states) - mdp.gamma * transition))
        dense = transition.toarray() if sp.issparse(transition) else transition
        return scipy.linalg.lu_factor(np.eye(mdp.n_states) - mdp.gamma * dense, check_finite=False)

    def _solve(self, right: Floats, transposed: bool = False) -> Floats:
        if self._sparse:
            return np.asarray(self._lu.solve(right, "T" if transposed else "N"))
        return np.asarray(scipy.linalg.lu_solve(self._lu, right, int(transposed), check_finite=False))

    @cached_property
    def values(self) -> Floats:
        """(S,) V."""
        return self._solve((self.policy * self.mdp.reward).sum(axis=1))

    @cached_property
    def q(self) -> Floats:
        """(S, A) Q; 0 where the action is not allowed."""
        return self.mdp.q_values(self.values)

    @cached_property
    def advantage(self) -> Floats:
        """(S, A) A = Q - V; 0 where the action is not allowed."""
        return self.mdp.masked(self.q - self.values[:, None], 0.0)

    def expected(self, function: Floats) -> Floats:
        """(S,) sum over s' of d_s(s') f(s'), for a function (S,) of the state."""
        return (1 - self.mdp.gamma) * self._solve(function)

    def visitation_to(self, state: int) -> Floats:
        """(S,) d_s(state) for every start s."""
        unit = np.zeros(self.mdp.n_states)
        unit[state] = 1.0
        return self.expected(unit)

    def visitation_from(self, mu: Floats) -> Floats:
        """(S,) d_mu."""
        return (1 - self.mdp.gamma) * self._solve(np.asarray(mu, np.float64), transposed=True)

    def visitation(self) -> Floats:
        """(S, S) d with d[s, s'] = d_s(s') = (1 - gamma) [(I - gamma P_pi)^-1][s, s']."""
        return (1 - self.mdp.gamma) * self._solve(np.eye(self.mdp.n_states))


def others(policy: Floats) -> Floats:
    """(..., A) the probability of all other actions: 1 - pi without its cancellation."""
    mask = 1.0 - np.eye(policy.shape[-1])
    return np.asarray(policy @ mask)


def evaluate(mdp: MDP, policy: Any = None, *, log_policy: Any = None, theta: Any = None) -> PolicyValues:
    """V, Q, A and d of a policy (S, A), given as probabilities, log-probabilities or softmax parameters.

    >>> import capo
    >>> uniform = evaluate(capo.mdps.bandit([1.0, 0.0]), [[0.5, 0.5]])
    >>> uniform.advantage.tolist()
    [[0.5, -0.5]]
    """
    if theta is not None:
        log_policy = log_normalise(np.asarray(theta, np.float64))[0]
    if log_policy is None:
        with np.errstate(divide="ignore"):
            log_policy = np.maximum(np.log(np.asarray(policy, np.float64)), -1e299)
    return PolicyValues(mdp, log_policy)


def optimal(mdp: MDP, *, first: Any = None, max_iterations: int = 10_000) -> PolicyValues:
    """An optimal deterministic policy and its values, by plain policy iteration.

    It starts from the actions ``first`` (S,), by default those with the greatest reward; this only affects how
    soon it ends.
    """
    size = (mdp.n_states, mdp.n_actions)
    choice = mdp.masked(mdp.reward).argmax(axis=1) if first is None else np.asarray(first)
    now = PolicyValues(mdp, _deterministic(choice, size))
    for _ in range(max_iterations):
        # Switch only to an action that is better beyond the rounding of Q, and only while the values improve:
        # ties must not cycle.
        tie = 32 * EPS * float(np.abs(now.values).max())
        kept = np.take_along_axis(now.q, choice[:, None], axis=1)[:, 0]
        q = mdp.masked(now.q)
        better = q.max(axis=1) > kept + tie
        choice = np.where(better, q.argmax(axis=1), choice)
        following = PolicyValues(mdp, _deterministic(choice, size)) if better.any() else now
        if not following.values.sum() > now.values.sum():
            return now
        now = following
    raise RuntimeError(f"policy iteration did not converge within {max_iterations} iterations")


def _deterministic(choice: Any, size: tuple[int, int]) -> Floats:
    log_policy = np.full(size, -1e299)
    log_policy[np.arange(size[0]), choice] = 0.0
    return log_policy


def value_rounding(mdp: MDP, scale: float) -> float:
    """A bound on the rounding error of V where \\|V\\| <= scale.

    The condition of I - gamma P_pi is at most 2 / (1 - gamma) in the maximum norm; the sums behind an entry
    have about A + sqrt(S) roundings.
    """
    require_discounted(mdp)
    terms = 4 * (4 + mdp.n_actions + mdp.n_states**0.5)
    return float(terms * EPS * 2 / (1 - mdp.gamma) * max(scale, 1e-300))


# --- one policy -----------------------------------------------------------------------------------------------


def advantage(mdp: MDP, policy: Floats) -> Floats:
    """(S, A) A(s, a) = Q(s, a) - V(s) of a policy (S, A); 0 where the action is not allowed."""
    values = mdp.policy_values(policy)
    return mdp.masked(mdp.q_values(values) - values[:, None], 0.0)


def visitation(mdp: MDP, policy: Floats) -> Floats:
    """(S, S) discounted visitation d[s, s'] = (1 - gamma) [(I - gamma P_pi)^-1][s, s']; rows sum to 1."""
    return evaluate(mdp, policy).visitation()


def advantage_sum(now: PolicyValues) -> Sides:
    """sum_a pi(a|s) A(s, a) = 0 at every state (S,)."""
    return Sides((now.policy * now.advantage).sum(axis=1), np.zeros(now.mdp.n_states), "=")


def policy_gradient(now: PolicyValues, mu: Floats) -> Floats:
    """(S, A) dV(mu)/dtheta(s, a) = d_mu(s) pi(a|s) A(s, a) / (1 - gamma)."""
    return now.visitation_from(mu)[:, None] * now.policy * now.advantage / (1 - now.mdp.gamma)


def policy_gradient_along(now: PolicyValues, mu: Floats, direction: Floats) -> Sides:
    """The derivative of V(mu) along a direction (S, A) in theta: by the lemma, and by a complex step.

    V is an analytic function of theta, so Im V(theta + i h direction) / h is its derivative without the
    cancellation of a difference quotient.
    """
    h = 1e-30
    weights = np.exp(now.log_policy) * np.exp(1j * h * direction)
    values = now.mdp.policy_values(weights / weights.sum(axis=1, keepdims=True))
    lhs = np.asarray((policy_gradient(now, mu) * direction).sum())
    return Sides(lhs, np.asarray(np.imag(mu @ values) / h), "=")


def advantage_bound(now: PolicyValues) -> Sides:
    """\\|A(s, a)\\| <= (1 - pi(a|s)) / (1 - gamma) for every pair (S, A). Rewards in [0, 1]."""
    return Sides(np.abs(now.advantage), now.rest / (1 - now.mdp.gamma))


def gap_by_advantage(now: PolicyValues, best: PolicyValues) -> Sides:
    """V*(s) - V(s) <= max A / (1 - gamma) at every state (S,); the paper squares both sides."""
    greatest = max(float(now.advantage.max()), 0.0)
    return Sides(best.values - now.values, np.full(now.mdp.n_states, greatest / (1 - now.mdp.gamma)))


def gap_at_rho(now: PolicyValues, best: PolicyValues, mu: Floats) -> Sides:
    """V*(rho) - V(rho) <= \\|\\|1/mu\\|\\| / (1 - gamma) * (V*(mu) - V(mu)), rho the start distribution."""
    gap = best.values - now.values
    factor = 1 / (mu.min() * (1 - now.mdp.gamma))
    return Sides(np.asarray(now.mdp.start @ gap), np.asarray(factor * (mu @ gap)))


def visitation_bound(now: PolicyValues, mu: Floats) -> Sides:
    """(1 - gamma) mu(s) <= d_mu(s) at every state (S,)."""
    return Sides((1 - now.mdp.gamma) * mu, now.visitation_from(mu))


# --- two policies ---------------------------------------------------------------------------------------------


def performance_difference(new: PolicyValues, old: PolicyValues) -> Sides:
    """V'(s) - V(s) = sum_s' d'_s(s') sum_a pi'(a|s') A(s', a) / (1 - gamma) at every state (S,)."""
    gained = ((new.policy - old.policy) * old.advantage).sum(axis=1)  # sum_a pi A = 0 subtracted: less rounding
    return Sides(new.values - old.values, new.expected(gained) / (1 - old.mdp.gamma), "=")


def improvement(new: PolicyValues, old: PolicyValues) -> Sides:
    """Lemma 1: V(s) - V'(s) <= 0 at every state (S,).

    The paper's proof writes a strict inequality; it is an equality at untouched states and where A = 0.
    """
    return Sides(old.values - new.values, np.zeros(old.mdp.n_states))


def half_bound(new: PolicyValues, old: PolicyValues, sign: Any) -> Sides:
    """pi'(a|s) <= 1/2 if A(s, a) <= 0 and the batch raised another action of s. Needs alpha >= log 1/pi.

    Args:
        sign: (S, A) the update's signs, 0 outside the batch.

    Returns:
        One entry for each pair that the proposition is about.
    """
    sign = np.asarray(sign)
    speaks = (sign <= 0) & (old.advantage <= 0) & (sign > 0).any(axis=1)[:, None]
    return Sides(new.policy[speaks], np.full(int(speaks.sum()), 0.5))


# --- the policy weights of one state after one coordinate ---------------------------------------------------


def weight_change(log_row: Floats, action: int, sign: int) -> Floats:
    """(A,) pi' - pi at the updated state for alpha = log 1/pi exactly, in closed form.

    A > 0: (1-p)^2/(2-p) for the action, -(1-p)/(2-p) pi(a) for the others.
    A < 0: -p (1-p)^2/(p^2-p+1) for the action, p (1-p)/(p^2-p+1) pi(a) for the others.

    >>> weight_change(np.log([0.5, 0.5]), 0, 1).round(4).tolist()
    [0.1667, -0.1667]
    """
    policy = np.exp(log_row)
    p, rest = float(policy[action]), float(others(policy)[action])
    if sign > 0:
        change = -policy * rest / (1 + rest)
        change[action] = rest**2 / (1 + rest)
    else:
        change = policy * p * rest / (p * p + rest)
        change[action] = -p * rest**2 / (p * p + rest)
    return change


def weight_change_sides(log_row: Floats, new_row: Floats, action: int, sign: int) -> Sides:
    """The change an update made (A,) against :func:`weight_change`."""
    return Sides(np.exp(new_row) - np.exp(log_row), weight_change(log_row, action, sign), "=")


def moved_weight(log_row: Floats, new_row: Floats, action: int) -> tuple[float, float]:
    """W = \\|pi'(a) - pi(a)\\| of the updated action, and 1 - pi(a), both without cancellation next to 1."""
    old, new = np.exp(log_row), np.exp(new_row)
    rest, new_rest = float(others(old)[action]), float(others(new)[action])
    direct = float(new[action] - old[action])
    return abs(rest - new_rest if old[action] > 0.5 else direct), rest


def weight_range(log_row: Floats, new_row: Floats, action: int, sign: int) -> Sides:
    """lower <= W <= upper (2,), for alpha >= log 1/pi.

    W+: (1-p)^2/(2-p) to 1-p.  W-: p (1-p)^2/(p^2-p+1) to p.
    """
    w, rest = moved_weight(log_row, new_row, action)
    lower = abs(float(weight_change(log_row, action, sign)[action]))
    upper = rest if sign > 0 else float(np.exp(log_row[action]))
    return Sides(np.array([lower, w]), np.array([w, upper]))


def weight_distribution(log_row: Floats, new_row: Floats, action: int, sign: int) -> Sides:
    """The other actions share W in proportion to their weights: pi' - pi = -+ W pi(a)/(1 - p) (A - 1,)."""
    w, rest = moved_weight(log_row, new_row, action)
    old = np.delete(np.exp(log_row), action)
    change = np.delete(np.exp(new_row), action) - old
    share = -sign * w * old / rest if rest > 0 else np.zeros_like(old)
    return Sides(change, share, "=")


def batch_weights(log_policy: Floats, sign: Any) -> Floats:
    """(..., A) the policy after a batch update with alpha = log 1/pi: weights 1, pi, pi^2 for A >, =, < 0.

    >>> batch_weights(np.log([[0.5, 0.5]]), np.array([[1, -1]])).tolist()
    [[0.8, 0.2]]
    """
    policy, sign = np.exp(log_policy), np.asarray(sign)
    weights = np.where(sign > 0, 1.0, np.where(sign < 0, policy**2, policy))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


# --- improvement of one update ------------------------------------------------------------------------------


def one_step_improvement(new: PolicyValues, old: PolicyValues, state: int, action: int) -> Sides:
    """V'(s) - V(s) = d'_s(s_m)/(1-gamma) * W/(1-pi) * \\|A(s_m, a_m)\\| at every s (S,).

    One coordinate, any alpha, any rewards.
    """
    w, rest = moved_weight(old.log_policy[state], new.log_policy[state], action)
    return _improvement_by(w / rest if rest > 0 else 0.0, new, old, state, action)


def _improvement_by(factor: float, new: PolicyValues, old: PolicyValues, state: int, action: int) -> Sides:
    gain = factor * abs(float(old.advantage[state, action])) / (1 - old.mdp.gamma)
    return Sides(new.values - old.values, new.visitation_to(state) * gain, "=")


def one_step_bound(new: PolicyValues, old: PolicyValues, state: int, action: int, sign: int) -> Sides:
    """d'_s(s_m)/2 A^2 (A > 0) or d'_s(s_m) pi A^2 (A < 0) <= V'(s) - V(s), every s (S,).

    One coordinate, alpha >= log 1/pi, rewards in [0, 1].
    """
    weight = 0.5 if sign > 0 else float(old.policy[state, action])
    least = weight * float(old.advantage[state, action]) ** 2
    return Sides(new.visitation_to(state) * least, new.values - old.values)


def fixed_step_factor(p: Any, alpha: Any, sign: Any) -> Floats:
    """W/(1-pi) under a fixed step.

    A > 0: (e^alpha - 1) p / ((e^alpha - 1) p + 1).  A < 0: (1 - e^-alpha) p / ((e^-alpha - 1) p + 1).

    >>> float(fixed_step_factor(0.25, np.log(4.0), 1))  # alpha = log 1/pi: (1-p)/(2-p)
    0.42857142857142855
    """
    p, alpha = np.asarray(p, float), np.asarray(alpha, float)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        raised = np.expm1(alpha) * p
        up = np.where(raised > 1, 1 / (1 + 1 / raised), raised / (1 + raised))
    lowered = -np.expm1(-alpha) * p
    return np.asarray(np.where(np.asarray(sign) > 0, up, lowered / (1 - lowered)))


def fixed_step_improvement(
    new: PolicyValues, old: PolicyValues, state: int, action: int, alpha: float, sign: int
) -> Sides:
    """The one-step improvement (S,) in terms of a fixed alpha, whatever the rewards."""
    factor = float(fixed_step_factor(old.policy[state, action], alpha, sign))
    return _improvement_by(factor, new, old, state, action)


def batch_bound(new: PolicyValues, old: PolicyValues, sign: Any, *, form: Form = "repaired") -> Sides:
    """sum_s' d_s(s') sum_{A > 0} A(s', a)^2 / |A| <= V'(s) - V(s) at every s (S,).

    Batch CAPO with alpha = log 1/pi exactly, rewards in [0, 1]. Printed with d of the old policy; the proof
    needs, and the repaired form has, d of the new one.

    Args:
        sign: (S, A) the update's signs: the sum is over the raised pairs.
    """
    squares = np.where(np.asarray(sign) > 0, old.advantage**2, 0.0).sum(axis=1)
    visited = new if form == "repaired" else old
    return Sides(visited.expected(squares) / old.mdp.max_actions, new.values - old.values)


# --- on-policy ------------------------------------------------------------------------------------------------


def above_beta(new_row: Floats, action: int, beta: float) -> Sides:
    """beta <= pi'(a): a picked action with pi < beta and A > 0 ends above beta (strictly, in exact arithmetic)."""
    return Sides(np.asarray(beta), np.exp(new_row[action]))


def theta_rows(first: Floats, sign: Any, alpha: Floats, action: Any) -> Floats:
    """(n + 1, A) theta of one state along n updates of it, from normalised rows and the shifts they removed.

    Args:
        first: (A,) log-policy of the state at the beginning, taken as theta.
        sign, alpha, action: (n,) of the updates.
    """
    row, shift = np.asarray(first, float), 0.0
    theta = [row]
    for sigma, step, a in zip(sign, alpha, action, strict=True):
        signs = np.zeros(len(row), np.int8)
        signs[a] = sigma
        row, log_z = coordinate_update_with_shift(row, signs, np.full(len(row), step))
        shift += float(log_z)
        theta.append(row + shift)
    return np.stack(theta)


def theta_max_growth(theta_max: Floats, visit: Any = None) -> Sides:
    """theta_max(t + K) - theta_max(t) <= log(K + 1) for every t < t + K: needs beta <= 1/(|A|+1), zeta <= 1/|A|.

    Args:
        theta_max: (n,) the greatest theta of a state.
        visit: (n,) how many updates of the state were made by then; by default 0, 1, ...

    Returns:
        One entry for each pair t < t + K.
    """
    visit = np.arange(len(theta_max)) if visit is None else np.asarray(visit)
    i, j = np.triu_indices(len(theta_max), 1)
    return Sides(theta_max[j] - theta_max[i], np.log(visit[j] - visit[i] + 1))


# --- on-policy with a fixed step: three arms -------------------------------------------------------------------


def stuck_path(eta: float, steps: int, rewards: Any = (1.0, 0.99, -1.0)) -> dict[str, Floats]:
    """The event of the theorem: the second of three arms is picked ``steps`` times in a row from a uniform start.

    Returns:
        ``theta`` (steps + 1, 3), ``policy`` (steps + 1, 3) and ``advantage`` (steps + 1,) of the second arm.
    """
    reward = np.asarray(rewards, float)
    theta = np.zeros((steps + 1, 3))
    advantages = np.empty(steps + 1)
    for t in range(steps + 1):
        policy = np.exp(log_normalise(theta[t])[0])
        advantages[t] = policy @ (reward[1] - reward)  # not r - pi r, which rounds to 0 when pi nears 1
        if t < steps:
            theta[t + 1] = theta[t]
            theta[t + 1, 1] += eta * np.sign(advantages[t])
    return {"theta": theta, "policy": np.exp(log_normalise(theta)[0]), "advantage": advantages}


def stuck_advantage(path: dict[str, Floats]) -> Sides:
    """0 <= A_t(a_2) along the event."""
    return Sides(-path["advantage"], np.zeros(len(path["advantage"])))


def stuck_theta(path: dict[str, Floats], eta: float) -> Sides:
    """theta_t(a_2) = theta_1(a_2) + eta (t - 1)."""
    theta = path["theta"][:, 1]
    return Sides(theta, theta[0] + eta * np.arange(len(theta)), "=")


def stuck_policy(path: dict[str, Floats]) -> Sides:
    """exp(-sum_{a != a_2} exp theta_t(a) / exp theta_t(a_2)) <= pi_t(a_2)."""
    weights = np.exp(path["theta"] - path["theta"][:, 1:2])
    return Sides(np.exp(-(weights[:, 0] + weights[:, 2])), path["policy"][:, 1])


def exponential_bound(x: Any) -> Sides:
    """exp(-x / (1 - x)) <= 1 - x for x in (0, 1)."""
    x = np.asarray(x, float)
    return Sides(np.exp(-x / (1 - x)), 1 - x)


def stuck_probability_bound(eta: float, weight_ratio: float = 2.0) -> float:
    """exp(-ratio e^eta / eta): a lower bound on the probability that only the second arm is ever picked.

    ``weight_ratio`` is sum_{a != a_2} exp theta_1(a) / exp theta_1(a_2), 2 for three arms from a uniform start.
    The paper calls it a factor b_t of the product; in fact it bounds the whole product.
    """
    with np.errstate(over="ignore"):
        return float(np.exp(-weight_ratio * np.exp(eta) / eta))


def stuck_probability(eta: float, steps: int = 10_000) -> Sides:
    """The bound against the product of pi_t(a_2) over ``steps`` picks."""
    t = np.arange(steps)
    product = float(np.exp(-np.log1p(2 * np.exp(-eta * t)).sum()))
    return Sides(np.asarray(stuck_probability_bound(eta)), np.asarray(product))
