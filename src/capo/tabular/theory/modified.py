"""The certificate of modified CAPO: its theorem, line by line, along the rounds of a run.

``docs/explanation/modified-capo.md`` states and proves the theorem. Everything is computed again with the MDP's
matrices: backups by one product, V_pi by LU, V* by policy iteration. The last two need a small MDP; the lines
about the final policy and values alone do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capo.tabular.mdp import MDP, Bools, Floats
from capo.tabular.record import RoundTrace, RunRecord
from capo.tabular.theory.certificate import LOG_ROUNDING, Certificate, Checklist, spread
from capo.tabular.theory.lemmas import EPS, PolicyValues, Sides, optimal, value_rounding
from capo.update import MOST_MULTIPLE, coordinate_update

GAP = "Certified gap = (max(TV - V) - min(T_pi V - V))/(1-gamma), recomputed"
END = "T_pi V >= V, in the end"
SAME = "Final policy and V = the last round's"
INVARIANT = "T_pi V >= V, every round"
UPDATE = "Update: new policy = the rule's, from the signs of Q(V) - T_pi V"
RAISED = "Lemma: T_pi' V >= T_pi V"
MONOTONE = "Theorem: V never falls"
BELOW_POLICY = "Theorem: V_pi >= V"
BELOW_BEST = "Theorem: V* >= V"
RATE = "Theorem: ||V* - V'|| <= rate ||V* - V||"
TRUE_GAP = "Certified gap >= V* - V_pi"
TRUE_VALUES = "Certified gap >= V* - V"
LU_UP_TO = 2000  # states
NO_DIGIT = 0.5  # relative error of a solution beyond which its bound, of first order, no longer holds


@dataclass
class _Run:
    """A run to check: its MDP, the size of its values, and what rounding may add to a backup."""

    record: RunRecord
    mdp: MDP
    scale: float
    backup: float

    def solved(self, *solutions: Floats) -> float:
        """What rounding may add where V is compared with solutions (S,) of linear equations.

        Their error grows with their own size, and V may be far smaller: a run that was stopped early.
        """
        scale = max(self.scale, *(float(np.abs(values).max()) for values in solutions), 0.0)
        return value_rounding(self.mdp, scale) + self.backup / (1 - self.mdp.gamma)

    def residual(self, log_policy: Floats, values: Floats) -> tuple[Floats, Floats]:
        """(S,) T V - V and T_pi V - V."""
        q = _q(self.mdp, values)
        return q.max(axis=1) - values, _mean(log_policy, q) - values


def certify_modified(record: RunRecord, max_steps: int = 2000) -> Certificate:
    """Check the theorem of modified CAPO along a run of :func:`capo.solve` with ``critic="k-step"``.

    >>> import capo
    >>> certificate = capo.solve(capo.mdps.chain(10), critic="k-step").certificate()
    >>> certificate.held, certificate.line("Theorem: V never falls").status
    (True, 'held')
    """
    mdp = record.mdp
    scale = max(float(np.abs(record.values).max()), float(np.abs(mdp.reward).max()))
    if record.rounds is not None:
        scale = max(scale, float(np.abs(record.rounds.values).max()))
    terms = 8 + mdp.n_actions + int(np.diff(mdp.csr().indptr).max())  # additions in a backup
    run = _Run(record, mdp, scale, 4 * terms * EPS * scale)
    checks = Checklist()
    _check_end(run, checks)
    rounds = record.rounds
    if rounds is None:
        reason = "the MDP has too many pairs to keep the rounds" if record.iterations else "no round was made"
        for statement in (SAME, INVARIANT, UPDATE, RAISED, MONOTONE, RATE):
            checks.skip(statement, reason)
    else:
        _check_rounds(run, rounds, checks, spread(len(rounds.jacobi), max_steps).tolist())
    _check_true_values(run, checks, max_steps)
    title = f"Certificate: {record.algorithm} on {mdp.label} ({mdp.summary}), {record.iterations} rounds"
    return Certificate(title, _header(run), checks.lines())


def _header(run: _Run) -> list[str]:
    return [
        f"backups computed again, accurate to {run.backup:.1e}; values by LU and V* (up to {LU_UP_TO} states), "
        f"accurate to {run.solved():.1e}",
        "worst: lhs/(rhs + rounding) for <=, |lhs - rhs|/rounding for =; the line held if this is at most 1",
        "at: the number of rounds made where it was worst",
    ]


def _q(mdp: MDP, values: Floats) -> Floats:
    """(S, A) Q(V), minus infinity for actions that a state does not have."""
    mask = getattr(mdp, "actions", None)
    q = mdp.q_values(values)
    return q if mask is None else np.where(mask, q, -np.inf)


def _mean(log_policy: Floats, q: Floats) -> Floats:
    """(S,) sum of pi Q; actions without probability do not count, whatever their Q."""
    policy = np.exp(log_policy)
    return np.asarray(np.where(policy > 0, policy * np.where(policy > 0, q, 0.0), 0.0).sum(axis=1))


# --- the final policy and values ------------------------------------------------------------------------------


def _check_end(run: _Run, checks: Checklist) -> None:
    record, where = run.record, run.record.iterations
    best, own = run.residual(record.log_policy, record.values)
    gap = (best.max() - own.min()) / (1 - run.mdp.gamma)
    allowed = 2 * run.backup / (1 - run.mdp.gamma)
    checks.compare(GAP, Sides(np.asarray(record.gap_bound), gap, "="), allowed, where)
    checks.compare(END, Sides(-own, np.zeros_like(own)), run.backup, where)


# --- the rounds -----------------------------------------------------------------------------------------------


def _check_rounds(run: _Run, rounds: RoundTrace, checks: Checklist, which: list[int]) -> None:
    values, whole = rounds.values, len(rounds.jacobi) == run.record.iterations
    shifted = run.backup / (1 - run.mdp.gamma)  # MacQueen's shift is a residual over 1 - gamma
    if not checks.skip(SAME, "" if whole else "the run made more rounds than are kept"):
        same = np.abs(np.exp(rounds.log_policies[-1]) - np.exp(run.record.log_policy)).max()
        checks.compare(SAME, Sides(np.asarray(same), np.asarray(0.0)), 64 * EPS, run.record.iterations)
        # The last shift may still have lifted V.
        falls = (values[-1] - run.record.values).max()
        checks.compare(SAME, Sides(falls, np.asarray(0.0)), shifted, run.record.iterations)
    for t in [*which, len(rounds.jacobi)]:
        own = run.residual(rounds.log_policies[t], values[t])[1]
        checks.compare(INVARIANT, Sides(-own, np.zeros_like(own)), run.backup, t)
    sets = "" if rounds.all_pairs else "which pairs a round updated is not kept"
    for t in which:
        checks.compare(MONOTONE, Sides(values[t] - values[t + 1], np.zeros_like(values[t])), shifted, t + 1)
        if not rounds.jacobi[t]:
            continue
        q = _q(run.mdp, values[t])
        before, after = (_mean(rounds.log_policies[i], q) for i in (t, t + 1))
        checks.compare(RAISED, Sides(before - after, np.zeros_like(after)), 2 * run.backup, t + 1)
        if not checks.skip(UPDATE, sets):
            _check_update(run, rounds, checks, t, q)
    for statement in (UPDATE, RAISED):
        if not rounds.jacobi.any():
            checks.skip(statement, "Gauss-Seidel sweeps use values that are renewed during the sweep")


def _check_update(run: _Run, rounds: RoundTrace, checks: Checklist, t: int, q: Floats) -> None:
    """The new policy against the update written out; where a sign is ambiguous, only what it is worth."""
    before, after = rounds.log_policies[t], rounds.log_policies[t + 1]
    expected, ambiguous = _updated(run, rounds, before, q)
    worth = _mean(after, q) - _mean(expected, q)
    allowed = 2 * run.backup + run.mdp.n_actions * rounds.tolerance
    checks.compare(UPDATE, Sides(worth, np.zeros_like(worth), "="), allowed, t + 1)
    change = (np.exp(after) - np.exp(expected))[~ambiguous]
    checks.compare(UPDATE, Sides(change, np.zeros_like(change), "="), LOG_ROUNDING, t + 1)


def _updated(run: _Run, rounds: RoundTrace, log_policy: Floats, q: Floats) -> tuple[Floats, Bools]:
    """(S, A) the policy after an update of all pairs, and (S,) where a sign may be rounding."""
    log_policy, ambiguous = log_policy.copy(), np.zeros(len(q), bool)
    actions = range(q.shape[1])
    batches = [[a] for a in actions] if rounds.in_turn else [list(actions)]
    for batch in batches:
        advantage = np.where(np.isfinite(q), q - _mean(log_policy, q)[:, None], 0.0)
        sign = np.zeros(q.shape)
        sign[:, batch] = np.where(np.abs(advantage) > rounds.tolerance, np.sign(advantage), 0)[:, batch]
        ambiguous |= (np.abs(advantage)[:, batch] <= rounds.tolerance + 2 * run.backup).any(axis=1)
        moved = (sign != 0).any(axis=1)
        new = coordinate_update(log_policy, sign, -rounds.multiple * log_policy)
        log_policy = np.where(moved[:, None], new, log_policy)
    return log_policy, ambiguous


# --- against V_pi and V* --------------------------------------------------------------------------------------


def _check_true_values(run: _Run, checks: Checklist, max_steps: int) -> None:
    record, mdp, rounds = run.record, run.mdp, run.record.rounds
    reason = f"needs an LU factorisation; done up to {LU_UP_TO} states" if mdp.n_states > LU_UP_TO else ""
    if not reason and value_rounding(mdp, 1.0) > NO_DIGIT:
        reason = f"with gamma={mdp.gamma!r} an LU factorisation may have no correct digit"
    skipped = [checks.skip(name, reason) for name in (BELOW_POLICY, BELOW_BEST, TRUE_GAP, TRUE_VALUES, RATE)]
    if any(skipped):
        return
    best = optimal(mdp, first=record.log_policy.argmax(axis=1))
    last, bound = PolicyValues(mdp, record.log_policy).values, np.asarray(record.gap_bound)
    unsure = run.solved(best.values, last) + max(float(best.advantage.max()), 0.0) / (1 - mdp.gamma)
    checks.compare(
        BELOW_POLICY, Sides(record.values - last, np.zeros_like(last)), run.solved(last), record.iterations
    )
    checks.compare(BELOW_BEST, Sides(record.values - best.values, np.zeros_like(last)), unsure, record.iterations)
    checks.compare(TRUE_GAP, Sides(best.values - last, bound), unsure, record.iterations)
    checks.compare(TRUE_VALUES, Sides(best.values - record.values, bound), unsure, record.iterations)
    if rounds is None:
        return
    affordable = int(max(5, 3e9 / mdp.n_states**3))
    for t in spread(len(rounds.values), min(max_steps, affordable)).tolist():
        policy = PolicyValues(mdp, rounds.log_policies[t]).values
        checks.compare(
            BELOW_POLICY, Sides(rounds.values[t] - policy, np.zeros_like(policy)), run.solved(policy), t
        )
        checks.compare(BELOW_BEST, Sides(rounds.values[t] - best.values, np.zeros_like(policy)), unsure, t)
    _check_rate(run, rounds, checks, best, unsure)


def _check_rate(run: _Run, rounds: RoundTrace, checks: Checklist, best: PolicyValues, unsure: float) -> None:
    """gamma where an update is greedy; 1 - 3 (1 - gamma)/(4 A) for all pairs at once with alpha = log 1/pi.

    Advantages up to the tolerance have sign 0. Leaving them out lowers T_pi' V by at most the tolerance.
    """
    rate = proven_rate(rounds, run.mdp)
    if rate is None:
        checks.skip(RATE, "proven for the largest steps (cyclic) and for all pairs with log 1/pi (batch)")
        return
    distance = np.abs(best.values - rounds.values).max(axis=1)
    checks.expect(RATE, f"rate {rate:.6g}")
    checks.compare(
        RATE, Sides(distance[1:], rate * distance[:-1] + rounds.tolerance), 2 * unsure, np.arange(1, len(distance))
    )


def proven_rate(rounds: RoundTrace, mdp: MDP) -> float | None:
    """The factor by which every round shrinks the greatest V* - V at least; None where none is proven."""
    if rounds.all_pairs and rounds.in_turn and rounds.multiple >= MOST_MULTIPLE:
        return mdp.gamma
    if rounds.all_pairs and not rounds.in_turn and rounds.multiple == 1:
        return 1 - 0.75 * (1 - mdp.gamma) / mdp.n_actions
    return None
