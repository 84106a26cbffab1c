"""The checks of statements about limits and events: what they say of the policies and updates of a finite run.

A line is *not decided* as long as the run has not come far enough for its statement to say anything.
"""

from __future__ import annotations

import numpy as np

from capo.tabular.coordinates import OnPolicy
from capo.tabular.mdp import Bools, Floats, Ints
from capo.tabular.theory import limits
from capo.tabular.theory.certificate import LOG_ROUNDING, CheckedRun, Checklist, spread
from capo.tabular.theory.checks import below_log, not_on_policy_step, rows_before
from capo.tabular.theory.lemmas import EPS, FORMS, PolicyValues, Sides, theta_rows
from capo.tabular.theory.limits import LimitSets

STRICT = "Lemma: A < -Delta/4 on I- from M_1 on"
LOWERED = "Lemma: pi(I-) -> 0, step: a visit to I- after M_1 lowers theta by log 1/pi"
NEGATIVE = "Lemma: pi(I-) -> 0, size: Delta pi(I-) <= V* - V"
BALANCE = "Lemma: pi(I+) -> 0 with pi(I-): sum pi A over A > 0 = over A < 0"
ORDER = "Proposition: weight above and below an action, at the end"
RAISED = "On-policy, event E1,2: a visit with A > 0 raises theta enough"
ABOVE = "On-policy, events E2 and E3: pi >= beta after every visit with A > 0"
IGNORED = "On-policy, event E4: an action ignored for K visits"
IGNORED_FORMS = tuple(f"{IGNORED}, {form}" for form in FORMS)
POLICIES = 2000  # at most, for the lines that read whole policies


def check_limits(run: CheckedRun, checks: Checklist, values: dict[int, Floats]) -> None:
    """What the proof of convergence says of I-, I0 and I+, which are those of V* where a theorem says V -> V*.

    Args:
        values: V (S,) after k updates, for the policies that were evaluated.
    """
    on_policy = run.other_rule(OnPolicy) or not_on_policy_step(run)
    reason = below_log(run) if on_policy else ""
    sets = _sets(run)
    if not np.isfinite(sets.delta):
        reason = reason or "every allowed action is optimal: I- is empty"
    for statement in (STRICT, LOWERED, NEGATIVE, BALANCE, ORDER):
        checks.expect(statement, unless=reason)
    if reason:
        return
    ks = np.array(sorted(values), np.int64)
    first = _check_strict(run, checks, sets, ks, values)
    _check_lowered(run, checks, sets, first)
    _check_weights(run, checks, sets, ks[spread(len(ks), POLICIES)], values)
    _check_order(run, checks)


def _sets(run: CheckedRun) -> LimitSets:
    """Those of V*, at the states that the rule reaches; elsewhere nothing has to converge.

    Advantages whose quarter has no reliable sign count as 0.
    """
    sets = limits.limit_sets(run.best, 4 * run.ambiguous)
    live = (run.record.covered & ~run.record.mdp.terminal)[:, None]
    sizes = np.abs(run.best.advantage[(sets.negative | sets.positive) & live])
    delta = float(sizes.min()) if sizes.size else float("inf")
    return LimitSets(sets.negative & live, sets.zero & live, sets.positive & live, delta)


def _check_strict(
    run: CheckedRun, checks: Checklist, sets: LimitSets, ks: Ints, values: dict[int, Floats]
) -> int | None:
    """From the first policy with a gap below 3/4 Delta on; returns how many updates had been made then."""
    goal = 0.75 * sets.delta - 2 * run.rounding
    covered = run.record.covered
    reached = [k for k in ks.tolist() if (run.best.values - values[k])[covered].max() < goal]
    delta = f"Delta {sets.delta * run.scale:.3g}"
    if not reached:
        checks.expect(STRICT, f"{delta}; the gap has not come below 3/4 of it yet")
        checks.leave_open(STRICT)
        return None
    violated = 0
    for k in ks.tolist():
        advantage = run.mdp.q_values(values[k]) - values[k][:, None]
        sides = limits.strict_advantages(advantage, sets)
        if k >= reached[0]:
            checks.compare(STRICT, sides, (1 + run.mdp.gamma) * run.rounding, k)
        elif not sides.holds():
            violated = k + 1
    checks.expect(STRICT, f"{delta}; M_1 = {violated} here, {reached[0]} by the gap")
    return int(reached[0])


def _check_lowered(run: CheckedRun, checks: Checklist, sets: LimitSets, first: int | None) -> None:
    """Every traced update of a pair of I- after M_1."""
    if first is None:
        checks.expect(LOWERED, "M_1 has not been reached")
        checks.leave_open(LOWERED)
        return
    before, _, taken = rows_before(run.trace)
    when, pair = taken[0], _pairs(run, taken)
    recorded = ... if run.trace.single else taken
    chosen = sets.negative[pair] & (when >= first)
    log_pi, sign, alpha = (x[chosen] for x in (before[taken], run.trace.sign[recorded], run.trace.alpha[recorded]))
    checks.expect(LOWERED, f"{int(chosen.sum())} such visits")
    checks.compare(
        LOWERED,
        limits.lowered_enough(log_pi, sign, alpha),
        LOG_ROUNDING * np.abs(log_pi) + 1e-300,
        when[chosen] + 1,
    )


def _pairs(run: CheckedRun, taken: tuple[Ints, ...]) -> tuple[Ints, Ints]:
    """State and action of each updated pair."""
    if run.trace.single:
        return run.trace.coordinates[0], run.trace.coordinates[1]
    return taken[1], taken[2]


def _check_weights(
    run: CheckedRun, checks: Checklist, sets: LimitSets, ks: Ints, values: dict[int, Floats]
) -> None:
    weights: list[float] = []
    of_advantage = 2 * (1 + run.mdp.gamma) * run.rounding
    for k, log_policy in run.trace.policies(ks):
        policy = np.exp(log_policy)
        weights.append(float((policy * sets.negative).sum(axis=1).max()))
        rounding = 2 * run.rounding + sets.delta * run.weight_rounding
        checks.compare(NEGATIVE, limits.negative_weight(policy, values[k], run.best, sets), rounding, k)
    for k, log_policy in run.trace.policies(ks[spread(len(ks), 200)]):
        checks.compare(BALANCE, limits.advantage_balance(PolicyValues(run.mdp, log_policy)), of_advantage, k)
    record = run.record
    end = float((record.policy * sets.negative).sum(axis=1).max())
    if record.converged:  # then the certified gap bounds what is left of I-
        bound = record.gap_bound / run.scale
        allowed = run.rounding + run.engine_at(record.gap_bound)
        checks.compare(
            NEGATIVE, Sides(np.asarray(sets.delta * end), np.asarray(bound)), allowed, record.iterations
        )
    else:
        checks.leave_open(NEGATIVE)
    checks.expect(NEGATIVE, f"largest pi(I-|s) now {end:.3g}, initially {weights[0]:.3g}")


def _check_order(run: CheckedRun, checks: Checklist) -> None:
    """At the final policy of a run that has converged: the proposition speaks of late iterations only."""
    if not run.record.converged:
        checks.expect(ORDER, "the run ended before the limit")
        checks.leave_open(ORDER)
        return
    now = PolicyValues(run.mdp, run.record.log_policy)
    sides = limits.above_and_below(now, run.best, 4 * run.ambiguous)
    checks.compare(ORDER, sides, 4 * run.rounding, run.record.iterations)
    if sides.lhs.size == 0:
        checks.skip(ORDER, "no V lies between the Q of two actions with a third between them")


# --- on-policy ------------------------------------------------------------------------------------------------


def check_events(run: CheckedRun, checks: Checklist) -> None:
    """The path-wise steps of the on-policy proof, at every traced update."""
    reason = run.other_rule(OnPolicy) or not_on_policy_step(run)
    for statement in (RAISED, ABOVE, *IGNORED_FORMS):
        checks.expect(statement, unless=reason)
    if reason:
        return
    sets = _sets(run)
    state, action, row = run.trace.coordinates
    _, counts, _ = rows_before(run.trace)
    step = run.stepsize.with_defaults(run.mdp.max_actions)
    assert step.beta is not None
    assert step.zeta is not None
    up = run.trace.sign > 0
    when = np.flatnonzero(up) + 1
    alpha = run.trace.alpha[up]
    sides = limits.raised_enough(alpha, counts[up], step.beta, step.zeta)
    checks.compare(RAISED, sides, 16 * EPS * (1 + alpha), when)
    after = np.exp(row[np.flatnonzero(up), action[up]])
    checks.compare(ABOVE, Sides(np.full(after.shape, step.beta), after), run.weight_rounding, when)
    checks.expect(ABOVE, _visits(sets, state, action))
    for s in np.unique(state).tolist():
        _check_ignored(run, checks, s, np.flatnonzero(state == s))


def _visits(sets: LimitSets, state: Ints, action: Ints) -> str:
    """How often the actions of I-, I0 and I+ were picked so far."""
    named: dict[str, Bools] = {"I-": sets.negative, "I0": sets.zero, "I+": sets.positive}
    return "visits so far: " + ", ".join(f"{name} {int(one[state, action].sum())}" for name, one in named.items())


def _check_ignored(run: CheckedRun, checks: Checklist, s: int, when: Ints) -> None:
    """Event E4 at one state, each action a set of its own."""
    trace, allowed = run.trace, np.flatnonzero(run.mdp.allowed[s])
    if len(allowed) < 2:
        return
    action = trace.coordinates[1][when]
    theta = theta_rows(trace.first[s], trace.sign[when], trace.alpha[when], action)[:, allowed]
    picked = np.searchsorted(allowed, action)
    for form, statement in zip(FORMS, IGNORED_FORMS, strict=True):
        for which in range(len(allowed)):
            sides, visits = limits.ignored(theta, picked, which, form)
            rounding = 64 * EPS * (1 + len(action)) * (1 + np.abs(sides.lhs))
            checks.compare(statement, sides, rounding, when[visits] + 1)
