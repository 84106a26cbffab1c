"""MDPs in rational arithmetic: values and residuals without a rounding error."""

from fractions import Fraction

import numpy as np


class ExactMDP:
    """An MDP as the doubles say: weights divided by their exact sum, for the MDP and for policies."""

    def __init__(self, mdp):
        self.gamma = Fraction(mdp.gamma)
        self.n = mdp.n_states
        rows = mdp.rows.toarray() if mdp.is_sparse else mdp.rows
        self.actions = [np.flatnonzero(mdp.allowed[s]).tolist() for s in range(self.n)]
        self.reward = [[Fraction(x) for x in row] for row in mdp.reward.tolist()]
        self.p = {}
        for s in range(self.n):
            for a in self.actions[s]:
                weights = [Fraction(x) for x in rows[s * mdp.n_actions + a].tolist()]
                total = sum(weights)
                self.p[s, a] = [weight / total for weight in weights]

    def q(self, v, s, a):
        onward = sum(p * x for p, x in zip(self.p[s, a], v, strict=True) if p)
        return self.reward[s][a] + self.gamma * onward

    def policy(self, weights):
        rows = [[Fraction(float(x)) for x in row] for row in weights]
        return [[x / sum(row) for x in row] for row in rows]

    def values(self, policy):
        """V of an exact policy, by Gaussian elimination."""
        system = []
        for s in range(self.n):
            row = [Fraction(int(s == t)) for t in range(self.n)]
            right = Fraction(0)
            for a in self.actions[s]:
                right += policy[s][a] * self.reward[s][a]
                for t in range(self.n):
                    row[t] -= self.gamma * policy[s][a] * self.p[s, a][t]
            system.append([*row, right])
        for i in range(self.n):
            pivot = next(j for j in range(i, self.n) if system[j][i] != 0)
            system[i], system[pivot] = system[pivot], system[i]
            system[i] = [x / system[i][i] for x in system[i]]
            for j in range(self.n):
                if j != i and system[j][i] != 0:
                    system[j] = [x - system[j][i] * y for x, y in zip(system[j], system[i], strict=True)]
        return [row[-1] for row in system]

    def optimal(self):
        """V*, by policy iteration without rounding."""
        choice = [actions[0] for actions in self.actions]
        while True:
            width = len(self.reward[0])
            v = self.values([[Fraction(int(a == choice[s])) for a in range(width)] for s in range(self.n)])
            better = [max(self.actions[s], key=lambda a, s=s: self.q(v, s, a)) for s in range(self.n)]
            moved = [
                b if self.q(v, s, b) > v[s] else c for s, (b, c) in enumerate(zip(better, choice, strict=True))
            ]
            if moved == choice:
                return v
            choice = moved

    def residuals(self, policy, v, covered):
        """min (T_pi v - v) and max A over the covered states."""
        low, high = [], []
        for s in np.flatnonzero(covered).tolist():
            advantage = {a: self.q(v, s, a) - v[s] for a in self.actions[s]}
            high.append(max(advantage.values()))
            low.append(sum(policy[s][a] * x for a, x in advantage.items()))
        return min(low), max(high)
