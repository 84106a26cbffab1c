"""The constants and bounds of the rate theorems, as printed and as repaired.

Counting: pi_1 is the initial policy, so the policy after k updates is pi_m with m = k + 1. Bounds take k.
Rewards lie in [0, 1]; mu is positive everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from capo.tabular.mdp import MDP, Floats, require_discounted
from capo.tabular.theory.lemmas import Form, PolicyValues, Sides, fixed_step_factor

__all__ = [
    "Rate", "batch_rate", "cycle_improvement", "cyclic_rate", "expected_improvement", "fixed_cycle_bound",
    "induction_rate", "induction_sum", "natural_gradient_rate", "policy_gradient_rate", "randomized_rate",
    "recursion",
]  # fmt: skip

# --- the induction lemma --------------------------------------------------------------------------------------


def recursion(deltas: Floats, c: float) -> Sides:
    """delta_{m+1} + c delta_m^2 <= delta_m along a sequence (M,) of gaps: (M - 1,)."""
    deltas = np.asarray(deltas, float)
    return Sides(deltas[1:] + c * deltas[:-1] ** 2, deltas[:-1])


def induction_rate(c: float, m: Any) -> Floats:
    """1/(c m): what the recursion gives for delta_m, where delta <= 1/(1-gamma) and c <= (1-gamma)/2.

    >>> float(induction_rate(0.1, 5))
    2.0
    """
    return np.asarray(1 / (c * np.asarray(m, float)))


def induction_sum(c: float, terms: Any, gamma: float) -> Floats:
    """min{sqrt(M / (c (1-gamma))), (log M + 1)/c}: what the recursion gives for the sum of the first M gaps."""
    terms = np.asarray(terms, float)
    return np.asarray(np.minimum(np.sqrt(terms / (c * (1 - gamma))), (np.log(terms) + 1) / c))


# --- Theorems 2-4 ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rate:
    """A 1/m rate: its constants and the bounds that follow.

    Attributes:
        c_mu: c' of the recursion at mu.
        length: updates in a cycle (S*A or longer for cyclic rules, 1 otherwise).
        ratio: K = \\|\\|1/mu\\|\\| / (1 - gamma), what moving from mu to rho costs.
        sum_c: the constant in the square root of the partial sums at mu.
    """

    name: str
    form: Form
    gamma: float
    c_mu: float
    length: int
    ratio: float
    sum_c: float

    @property
    def c(self) -> float:
        """c = c'/K, the constant at rho."""
        return self.c_mu / self.ratio

    def gap_mu(self, k: Any) -> Floats:
        """Bound on V*(mu) - V(mu) after k updates.

        Printed: length/(c' m). Repaired: 1/(c' (floor(k/length) + 1)), which is never larger for the same c'.
        """
        k = np.asarray(k)
        if self.form == "printed":
            return np.asarray(self.length / (self.c_mu * (k + 1)))
        return induction_rate(self.c_mu, k // self.length + 1)

    def gap_rho(self, k: Any) -> Floats:
        """Bound on V*(rho) - V(rho) after k updates: K times the one at mu."""
        return np.asarray(self.ratio * self.gap_mu(k))

    def sum_mu(self, terms: Any) -> Floats:
        """Bound on the sum of the first M gaps at mu (the initial policy's is the first)."""
        terms = np.asarray(terms, float)
        root = np.sqrt(terms / (self.sum_c * (1 - self.gamma)))
        return np.asarray(self.length * np.minimum(root, (np.log(terms) + 1) / self.c_mu))

    def sum_rho(self, terms: Any) -> Floats:
        """Bound on the sum of the first M gaps at rho.

        Printed: the formula at mu with c in the place of c', too small by sqrt(K) in the square root. Repaired:
        K times the bound at mu.
        """
        if self.form == "repaired":
            return np.asarray(self.ratio * self.sum_mu(terms))
        return np.asarray(self.length * induction_sum(self.c, terms, self.gamma))


def _rate(name: str, form: Form, mdp: MDP, mu: Floats, c_mu: float, length: int) -> Rate:
    require_discounted(mdp)
    ratio = 1 / (float(mu.min()) * (1 - mdp.gamma))
    # Batch at mu is printed with c where c' is derived; the other theorems have c' there.
    sum_c = c_mu / ratio if (name, form) == ("batch", "printed") else c_mu
    return Rate(name, form, mdp.gamma, c_mu, length, ratio, sum_c)


def cyclic_rate(mdp: MDP, mu: Floats, *, length: int | None = None, form: Form = "repaired") -> Rate:
    """Theorem 2. Printed c' = (1-g)^3/2 min{min mu / 2, (1-g)/N}; repaired (1-g)^3/2 min mu min{1/2, (1-g)/N}.

    The printed proof compares the greatest advantage, at s~, with values at a generic s. At s~ itself, where
    d_s~(s~) >= 1 - gamma, both terms of the minimum carry mu(s~).

    Args:
        length: N, updates in a cycle; by default the number of pairs, more for an almost-cyclic rule.
    """
    n = mdp.n_pairs if length is None else length
    g, least = 1 - mdp.gamma, float(mu.min())
    inner = min(least / 2, g / n) if form == "printed" else least * min(0.5, g / n)
    return _rate("cyclic", form, mdp, mu, g**3 / 2 * inner, n)


def batch_rate(mdp: MDP, mu: Floats, *, form: Form = "repaired") -> Rate:
    """Theorem 3. c' = (1-g)^3/|A| min mu, for alpha = log 1/pi exactly."""
    return _rate("batch", form, mdp, mu, (1 - mdp.gamma) ** 3 / mdp.max_actions * float(mu.min()), 1)


def randomized_rate(mdp: MDP, mu: Floats, d_gen: Floats, *, form: Form = "repaired") -> Rate:
    """Theorem 4. c' = (1-g)^3/2 min d_gen(s, a) mu(s); the gaps are expectations over the whole history.

    Args:
        d_gen: (S, A), or (n, S, A) over n iterations, of which the smallest counts.
    """
    least = float((np.asarray(d_gen) * mu[:, None])[..., mdp.allowed].min())
    return _rate("randomized", form, mdp, mu, (1 - mdp.gamma) ** 3 / 2 * least, 1)


# --- a cycle and an expected step -------------------------------------------------------------------------------


def cycle_improvement(now: PolicyValues, after: Floats, *, length: int, tolerance: float = 0.0) -> Sides:
    """min{(1-g)/2, (1-g)^2/N}/2 * max A^2 <= V(s~) after one whole cycle - V(s~) before it.

    s~ is the state of the greatest advantage. Cyclic CAPO with alpha >= log 1/pi, rewards in [0, 1]. ``after``
    (S,) are the values a cycle of N = ``length`` updates later. Where advantages up to ``tolerance`` counted as 0,
    max A - tolerance takes the place of max A.
    """
    g = 1 - now.mdp.gamma
    state = int(now.advantage.max(axis=1).argmax())
    greatest = max(float(now.advantage[state].max()) - tolerance, 0.0)
    least = min(g / 2, g**2 / length) / 2 * greatest**2
    return Sides(np.asarray(least), np.asarray(after[state] - now.values[state]))


def fixed_cycle_bound(
    probabilities: Floats,
    rests: Floats,
    visits: Floats,
    signs: Any,
    alpha: float,
    gamma: float,
    *,
    form: Form = "repaired",
) -> float:
    """The factor before (V* - V)^2 in the improvement at s~ over a cycle with a fixed step alpha.

    (1-g)^2/2 * min{X, (1-g)^2/(c_m T)} for the T updates before the turn of (s~, a~), whose probability is p then:

    X printed:   (1-g)(e^a - 1) p / ((1-p)(e^a - 1) p + 1)
    X repaired:  (1-g)(e^a - 1) p / ((1-p)((e^a - 1) p + 1))

    and c_m the greatest d_s~(s_k) W_k among those updates. (Printed, the second W has pi_{m+T} for pi_k.)

    Args:
        probabilities: (T + 1,) pi_k(a_k|s_k) of the updates m, ..., m + T; the last is that of (s~, a~).
        rests: (T + 1,) 1 minus these, without cancellation next to 1.
        visits: (T,) d_s~(s_k) under the policy after update k.
        signs: (T,) signs of these updates.
    """
    g, rest = 1 - gamma, float(rests[-1])
    with np.errstate(over="ignore", divide="ignore"):
        inverse = float(1 / (np.expm1(alpha) * np.asarray(probabilities[-1], float)))
    bottom = rest + inverse if form == "printed" else rest * (1 + inverse)
    first = g / bottom if bottom > 0 else np.inf
    earlier = np.asarray(probabilities[:-1], float)
    moved = fixed_step_factor(earlier, alpha, signs) * rests[:-1] * (np.asarray(signs) != 0)
    weight = float((visits * moved).max()) * len(earlier) if len(earlier) else 0.0
    second = g**2 / weight if weight > 0 else np.inf
    return float(g**2 / 2 * min(first, second))


def expected_improvement(now: PolicyValues, successors: Floats, d_gen: Floats, mu: Floats) -> float:
    """E[V'(mu) - V(mu)] over a pair drawn from d_gen (S, A), exactly.

    Args:
        successors: (S, A) V(mu) after the update of each pair.
    """
    return float((d_gen * (successors - mu @ now.values)).sum())


# --- the rates the paper compares with ----------------------------------------------------------------------


def policy_gradient_rate(mdp: MDP, mu: Floats, best: PolicyValues, least_probability: float, k: Any) -> Floats:
    """Mei et al.: V*(rho) - V(rho) after k steps of size (1-gamma)^3/8 on V(mu).

    16 S / (inf pi(a*|s)^2 (1-gamma)^6) * \\|\\|d*_mu/mu\\|\\|^2 * \\|\\|1/mu\\|\\| / m.

    Args:
        least_probability: inf over iterations and states of pi_m(a*(s)|s).
    """
    mismatch = float((best.visitation_from(mu) / mu).max())
    front = 16 * mdp.n_states / (least_probability**2 * (1 - mdp.gamma) ** 6)
    return np.asarray(front * mismatch**2 / float(mu.min()) / (np.asarray(k) + 1))


def natural_gradient_rate(mdp: MDP, eta: float, k: Any) -> Floats:
    """Agarwal et al.: V* - V after k steps of theta += eta/(1-gamma) A from a uniform policy, at any distribution.

    log|A|/(eta k) + 1/((1-gamma)^2 k); infinite before the first step.
    """
    require_discounted(mdp)
    with np.errstate(divide="ignore"):
        return np.asarray((np.log(mdp.max_actions) / eta + 1 / (1 - mdp.gamma) ** 2) / np.asarray(k, float))
