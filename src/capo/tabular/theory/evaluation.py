"""Plain evaluation for the theory: one LU factorisation a policy, nothing shared with the solver's engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg

from capo.tabular.mdp import MDP, Floats
from capo.update import log_normalise

EPS = float(np.finfo(np.float64).eps)
DENSE_UP_TO = 1000  # states up to which a sparse MDP is factorised as a dense one, which is faster there


@dataclass(frozen=True)
class Sides:
    """The two sides of a statement, elementwise: ``lhs <= rhs`` or ``lhs = rhs``."""

    lhs: Floats
    rhs: Floats
    relation: Literal["<=", "="] = "<="

    def ratio(self, rounding: Any = 0.0) -> Floats:
        """At most 1 where the statement holds.

        For ``<=`` it is max(lhs, 0) / (rhs + rounding), for ``=`` it is \\|lhs - rhs\\| / rounding. What is not a
        number, or divides by nothing, counts as infinite unless the sides agree exactly.
        """
        lhs, rhs = np.broadcast_arrays(np.asarray(self.lhs, float), np.asarray(self.rhs, float))
        if self.relation == "=":
            top, bottom = np.abs(lhs - rhs), np.broadcast_to(rounding, lhs.shape)
        else:
            top, bottom = np.maximum(lhs, 0.0), rhs + rounding
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where((top == 0) & (bottom >= 0), 0.0, np.where(bottom > 0, top / bottom, np.inf))
        return np.where(np.isnan(ratio) | np.isnan(lhs) | np.isnan(rhs), np.inf, ratio)

    def holds(self, rounding: Any = 0.0) -> bool:
        """Whether the statement holds everywhere, up to ``rounding``."""
        return bool((self.ratio(rounding) <= 1).all())


class Evaluated:
    """A policy with everything the statements speak of.

    Attributes:
        log_policy, policy: (S, A).
        rest: (S, A) 1 - pi(a|s), summed from the other actions so that it is exact next to 1.
        values: (S,) V.
        q, advantage: (S, A).
    """

    def __init__(self, mdp: MDP, log_policy: Floats) -> None:
        self.mdp = mdp
        self.log_policy = np.asarray(log_policy, np.float64)
        self.policy = np.exp(self.log_policy)
        self.rest = others(self.policy)
        transition = mdp.policy_transition(self.policy)
        reward = (self.policy * mdp.reward).sum(axis=1)
        self._lu: Any
        self._sparse = mdp.is_sparse and mdp.n_states > DENSE_UP_TO
        if self._sparse:
            self._lu = scipy.sparse.linalg.splu(sp.csc_array(sp.eye_array(mdp.n_states) - mdp.gamma * transition))
        else:
            dense = transition.toarray() if sp.issparse(transition) else transition
            self._lu = scipy.linalg.lu_factor(np.eye(mdp.n_states) - mdp.gamma * dense, check_finite=False)
        self.values = self._solve(reward)
        self.q = mdp.q_values(self.values)
        self.advantage = self.q - self.values[:, None]

    def _solve(self, right: Floats, transposed: bool = False) -> Floats:
        if self._sparse:
            return np.asarray(self._lu.solve(right, "T" if transposed else "N"))
        return np.asarray(scipy.linalg.lu_solve(self._lu, right, int(transposed), check_finite=False))

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


def evaluate(mdp: MDP, policy: Any = None, *, log_policy: Any = None, theta: Any = None) -> Evaluated:
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
    return Evaluated(mdp, log_policy)


def optimal(mdp: MDP, *, first: Any = None, max_iterations: int = 10_000) -> Evaluated:
    """An optimal deterministic policy and its values, by plain policy iteration.

    It starts from the actions ``first`` (S,), or from those with the greatest reward, which decides only how soon
    it ends.
    """
    size = (mdp.n_states, mdp.n_actions)
    choice = mdp.reward.argmax(axis=1) if first is None else np.asarray(first)
    now = Evaluated(mdp, _deterministic(choice, size))
    for _ in range(max_iterations):
        # An action is changed only for one that is better beyond the rounding of Q, and only as long as that pays:
        # ties must not go round in circles.
        tie = 32 * EPS * float(np.abs(now.values).max())
        kept = np.take_along_axis(now.q, choice[:, None], axis=1)[:, 0]
        better = now.q.max(axis=1) > kept + tie
        choice = np.where(better, now.q.argmax(axis=1), choice)
        following = Evaluated(mdp, _deterministic(choice, size)) if better.any() else now
        if not following.values.sum() > now.values.sum():
            return now
        now = following
    raise RuntimeError(f"policy iteration did not end within {max_iterations} iterations")


def _deterministic(choice: Any, size: tuple[int, int]) -> Floats:
    log_policy = np.full(size, -1e299)
    log_policy[np.arange(size[0]), choice] = 0.0
    return log_policy


def value_rounding(mdp: MDP, scale: float) -> float:
    """A bound on the rounding error of V where \\|V\\| <= scale.

    The condition of I - gamma P_pi is at most 2 / (1 - gamma) in the maximum norm; the sums behind an entry
    have about A + sqrt(S) roundings.
    """
    terms = 4 * (4 + mdp.n_actions + mdp.n_states**0.5)
    return float(terms * EPS * 2 / (1 - mdp.gamma) * max(scale, 1e-300))
