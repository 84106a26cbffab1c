"""The checks along a run: what it recorded, each policy it went through, each update it made.

Every function compares one group of statements and enters them in the checklist.
"""

from __future__ import annotations

import numpy as np

from capo.tabular.coordinates import Batch, Cyclic
from capo.tabular.mdp import Bools, Floats, Ints
from capo.tabular.record import Trace
from capo.tabular.theory import lemmas
from capo.tabular.theory.certificate import LOG_ROUNDING, CheckedRun, Checklist, spread
from capo.tabular.theory.lemmas import EPS, FORMS, PolicyValues, Sides
from capo.tabular.theory.rates import fixed_cycle_bound
from capo.update import coordinate_update

STEP = "Step size: recorded alpha = the rule's formula"
ARITHMETIC = "Update: recorded new policy = log softmax(log pi + alpha sign)"
DIRECTION = "Update direction = sign(A)"
VALUE = "Recorded V(rho) = independent evaluation"
FINAL = "Final policy and V = last update, independent evaluation"
ACTIONS = "Action sets: other actions have no visits and no probability"
VISITS = "Visit counts add up to the iterations"
CONDITION = "Condition 1 (every pair is visited)"
GAP = "Certified gap >= V* - V, final policy"
GAP_HISTORY = "Certified gap >= V* - V at rho, history"
MONOTONE = "Recorded V(rho) never decreases"
CYCLES = "Cyclic rule: every pair in every cycle"

LEMMA_1 = "Lemma 1 (V never decreases, at any state)"
HALF = "Proposition: pi' <= 1/2 beside a raised action"
SUM = "sum_a pi A = 0"
ADVANTAGE = "Lemma: |A| <= (1-pi)/(1-gamma)"
BY_ADVANTAGE = "Lemma: V* - V <= max A/(1-gamma)"
AT_RHO = "Lemma: gap at rho <= ||1/mu||/(1-gamma) gap at mu"
VISITATION = "Lemma: d_mu >= (1-gamma) mu"
DIFFERENCE = "Performance difference lemma"
GRADIENT = "Policy gradient lemma"
CHANGE_UP = "Lemma: weight change for alpha = log 1/pi, A > 0"
CHANGE_DOWN = "Lemma: weight change for alpha = log 1/pi, A < 0"
RANGE_UP = "Lemma: range of W+ for alpha >= log 1/pi"
RANGE_DOWN = "Lemma: range of W- for alpha >= log 1/pi"
SHARE = "Lemma: the other actions share W by weight"
ONE_STEP = "Lemma: one-step improvement, equality"
ONE_STEP_BOUND = "Lemma: one-step improvement, lower bound"
FIXED = "Fixed step: one-step improvement formula"
FIXED_CYCLE = "Fixed step: improvement per cycle at s~"
FIXED_CYCLES = tuple(f"{FIXED_CYCLE}, {form}" for form in FORMS)
BATCH_WEIGHTS = "Lemma: batch weights 1, pi, pi^2"
BATCH_BOUND = "Lemma: batch one-step lower bound (d of the new policy)"
ABOVE_BETA = "On-policy lemma: a picked action below beta ends above it"
THETA_MAX = "On-policy lemma: theta_max grows by <= log(K+1) in K steps"


# --- what the run recorded -------------------------------------------------------------------------------------


def check_records(run: CheckedRun, checks: Checklist) -> tuple[float, bool]:
    """All of these; the true gap at the end, and whether every pair that the rule can reach was visited."""
    _check_step_sizes(run, checks)
    _check_arithmetic(run, checks)
    checks.expect(DIRECTION)
    checks.expect(VALUE, relation="=")
    gap = check_final(run, checks)
    visited = _check_visits(run, checks)
    check_history(run, checks)
    return gap, visited


def _check_step_sizes(run: CheckedRun, checks: Checklist) -> None:
    """Recorded step sizes against :meth:`StepSize.alpha`, counts recounted from the trace."""
    step = run.stepsize.with_defaults(run.mdp.max_actions)
    trace = run.trace
    before, counts, taken = rows_before(trace)
    recorded = ... if trace.single else taken
    log_pi, sign, alpha = before[taken], trace.sign[recorded], trace.alpha[recorded]
    expected = np.asarray(step.alpha(log_pi, sign, counts))
    allowed = 16 * EPS * (np.abs(alpha) + (np.abs(log_pi) + 1 if step.kind == "on-policy" else 0)) + 1e-300
    ratio = np.abs(alpha - expected) / allowed
    if step.kind == "on-policy":
        assert step.beta is not None
        # pi next to beta may fall on either branch: the better fit counts.
        edge = np.abs(log_pi - np.log(step.beta)) <= 8 * EPS * (1 + np.abs(log_pi))
        other = np.where(
            log_pi < np.log(step.beta),
            step.zeta * np.log1p(1 / counts),
            np.log(step.beta / (1 - step.beta)) - log_pi,
        )
        ratio = np.where(edge & (sign > 0), np.minimum(ratio, np.abs(alpha - other) / allowed), ratio)
    checks.compare(STEP, Sides(ratio, np.zeros_like(ratio), "="), 1.0, taken[0] + 1)


def _check_arithmetic(run: CheckedRun, checks: Checklist) -> None:
    """Recorded policies against :func:`capo.update.coordinate_update` of the ones before, every traced update."""
    trace = run.trace
    before, _, taken = rows_before(trace)
    if trace.single:
        sign, alpha = np.zeros(before.shape, np.int8), np.zeros(before.shape)
        sign[taken], alpha[taken] = trace.sign, trace.alpha
        after = trace.coordinates[2]
    else:
        sign, alpha, after = trace.sign, trace.alpha, trace.batches[1]
    still = (sign == 0).all(axis=-1, keepdims=True)
    expected = np.where(still, before, coordinate_update(before, sign, alpha))
    when = np.arange(1, len(trace) + 1).reshape((-1,) + (1,) * (after.ndim - 1))
    allowed = LOG_ROUNDING * np.abs(expected) + 1e-300
    checks.compare(ARITHMETIC, Sides(after, expected, "="), allowed, np.broadcast_to(when, after.shape))


def rows_before(trace: Trace) -> tuple[Floats, Ints, tuple[Ints, ...]]:
    """Log-rows before each update, the visits of each updated pair so far, and its index in the rows.

    Single coordinates: (T, A) and (T,); otherwise (T, S, A) and one entry per updated pair.
    """
    if not trace.single:
        batch, log_policies = trace.batches
        before = np.concatenate([trace.first[None], log_policies[:-1]])
        counts = np.cumsum(batch, axis=0, dtype=np.int64)
        taken = np.nonzero(batch)
        return before, counts[taken], taken
    state, action, row = trace.coordinates
    before = trace.first[state]
    order = np.argsort(state, kind="stable")
    again = state[order[1:]] == state[order[:-1]]
    before[order[1:][again]] = row[order[:-1][again]]
    return before, _occurrence(state * trace.first.shape[1] + action), (np.arange(len(trace)), action)


def _occurrence(keys: Ints) -> Ints:
    """(n,) how often each key has occurred so far, this time included."""
    order = np.argsort(keys, kind="stable")
    ordered, out = keys[order], np.empty(len(keys), np.int64)
    out[order] = np.arange(1, len(keys) + 1) - np.searchsorted(ordered, ordered)
    return out


def _check_recorded_values(run: CheckedRun, checks: Checklist, values: dict[int, Floats]) -> None:
    """The run's V(rho) against the independent one, at every policy that was evaluated and along the history."""
    _, recorded, off = run.recorded()
    ks = np.array(sorted(values), np.int64)
    mine = np.array([run.mdp.start @ values[k] for k in ks])
    checks.compare(VALUE, Sides(recorded[ks], mine, "="), off[ks], ks)
    history = run.record.history
    iteration = history["iteration"].astype(np.int64)
    inside = (iteration > 0) & (iteration <= len(run.trace))
    allowed = 2 * run.engine_at(history["gap_bound"][inside])
    sides = Sides(run.unit(history["value"][inside]), recorded[iteration[inside]], "=")
    checks.compare(VALUE, sides, allowed, iteration[inside])


def check_history(run: CheckedRun, checks: Checklist) -> None:
    """V(rho) never decreases, at any traced update nor beyond; the certified gap is never below the true one."""
    history = run.record.history
    iteration, value = history["iteration"].astype(np.int64), run.unit(history["value"])
    allowed = np.broadcast_to(run.engine_at(history["gap_bound"]), value.shape)
    monotone = run.record.baseline is None or run.record.baseline.monotone
    checks.skip(MONOTONE, "" if monotone else f"{run.record.algorithm} does not guarantee it")
    for ks, values, off in ((iteration, value, allowed), run.recorded()):
        drop = Sides(values[:-1] - values[1:], np.zeros(len(values) - 1))
        checks.compare(MONOTONE, drop, 2 * off[:-1] + run.slack, ks[1:])
    covered = run.record.covered[run.mdp.start > 0].all()
    checks.skip(GAP_HISTORY, "" if covered else "the certified gap does not cover the start distribution")
    true = run.mdp.start @ run.best.values - value
    sides = Sides(true, history["gap_bound"] / run.scale)
    checks.compare(GAP_HISTORY, sides, run.rounding + allowed, iteration)


def check_final(run: CheckedRun, checks: Checklist) -> float:
    """The final policy, values and gap bound; returns the true gap over the covered states."""
    record = run.record
    final = PolicyValues(run.mdp, record.log_policy)
    allowed = run.engine_at(record.gap_bound)
    checks.compare(FINAL, Sides(run.unit(record.values), final.values, "="), allowed, record.iterations)
    if run.whole:
        _, log_policy = next(run.trace.policies([record.iterations]))
        rounding = LOG_ROUNDING * np.abs(log_policy) + 1e-300
        checks.compare(FINAL, Sides(record.log_policy, log_policy, "="), rounding, record.iterations)
    if run.mdp.actions is not None:
        _check_actions(run, checks, ~run.mdp.actions)
    gap = (run.best.values - final.values)[record.covered]
    bound = np.full(gap.shape, record.gap_bound / run.scale)
    checks.compare(GAP, Sides(gap, bound), run.rounding + allowed, record.iterations)
    return float(gap.max())


def _check_actions(run: CheckedRun, checks: Checklist, barred: Bools) -> None:
    """Pairs that are not allowed: their visits and probabilities, in the end and along the trace."""
    record, trace = run.record, run.record.trace
    found = [record.policy[barred]]
    if record.counts is not None:
        found.append(record.counts[barred].astype(np.float64))
    if trace is not None and trace.single:
        state, action, row = trace.coordinates
        found += [barred[state, action].astype(np.float64), np.exp(row)[barred[state]]]
    elif trace is not None:
        batch, log_policies = trace.batches
        found += [batch[:, barred].ravel().astype(np.float64), np.exp(log_policies[:, barred]).ravel()]
    every = np.concatenate(found)
    checks.compare(ACTIONS, Sides(every, np.zeros_like(every), "="), 0.0, record.iterations)


def _check_visits(run: CheckedRun, checks: Checklist) -> bool:
    """Visit counts; returns whether every pair that the rule can reach was visited."""
    record = run.record
    assert record.counts is not None
    counts, k = record.counts.astype(np.float64), record.iterations
    known = run.trace.single or isinstance(record.rule, Batch)
    checks.skip(VISITS, "" if known or run.whole else "the trace is shorter than the run")
    every = k * run.mdp.allowed if isinstance(record.rule, Batch) else k
    recounted = np.asarray(every if known else run.trace.batches[0].sum(axis=0), np.float64)
    visits = np.asarray(counts.sum()) if run.trace.single else counts
    checks.compare(VISITS, Sides(visits, recounted, "="), 0.0, k)
    if isinstance(record.rule, Cyclic):
        _check_cycles(run, checks)
    live = counts[run.mdp.allowed & (record.covered & ~record.mdp.terminal)[:, None]]
    never = int((live == 0).sum())
    if never:
        unmet = f"{never} pairs have not been visited in {k} iterations; it requires infinitely many visits"
        checks.expect(CONDITION, unmet)
        checks.leave_open(CONDITION)
        return False
    if live.size:
        least = int(live.min())
        checks.expect(CONDITION, f"at least {least} visits per pair so far; it requires infinitely many")
        checks.compare(CONDITION, Sides(np.asarray(1.0), np.asarray(float(least))), 0.0, k)
    return True


def _check_cycles(run: CheckedRun, checks: Checklist) -> None:
    length, trace = run.record.cycle_length, run.trace
    state, action, _ = trace.coordinates
    cycles = len(trace) // length
    if checks.skip(CYCLES, "" if cycles else f"the run is shorter than a cycle of {length} updates"):
        return
    pairs = trace.first.size
    flat = (state * trace.first.shape[1] + action)[: cycles * length]
    keys = np.repeat(np.arange(cycles), length) * pairs + flat
    counted = np.bincount(keys, minlength=cycles * pairs).reshape(cycles, pairs)
    visits = counted[:, run.mdp.allowed.ravel()].min(axis=1)
    ends = np.arange(1, cycles + 1) * length
    checks.compare(CYCLES, Sides(np.ones(cycles), visits.astype(float)), 0.0, ends)


# --- single policies and single updates -----------------------------------------------------------------------


def below_log(run: CheckedRun) -> str:
    """Why alpha >= log 1/pi does not hold along the run; empty where it does."""
    step = run.stepsize
    if step.kind == "log":
        return "" if step.multiple >= 1 else f"alpha = {step.multiple:g} log 1/pi is below log 1/pi"
    if step.kind == "fixed":
        return f"a fixed step, eta = {step.eta:g}, is not >= log 1/pi"
    if step.kind == "on-policy":
        return "the on-policy step size is below log 1/pi where A > 0"
    moved = run.trace.sign != 0
    if not run.whole:
        return f"alpha is clipped at {step.clip:g} and the trace is shorter than the run"
    if (run.trace.alpha[moved] >= step.clip).any():
        return f"alpha was clipped at {step.clip:g}, below log 1/pi, at some updates"
    return ""


def exactly_log(run: CheckedRun) -> str:
    """Why alpha = log 1/pi does not hold; empty where it does."""
    step = run.stepsize
    if step.kind == "log" and step.multiple > 1:
        return f"alpha = {step.multiple:g} log 1/pi is not exactly log 1/pi"
    return below_log(run)


def not_fixed_step(run: CheckedRun) -> str:
    """Why the step size is not a fixed one; empty where it is."""
    return "" if run.stepsize.kind == "fixed" else "the step size is not fixed"


def not_on_policy_step(run: CheckedRun) -> str:
    """Why the step size is not the on-policy one, within the theorem's bounds; empty where it is."""
    if run.stepsize.kind != "on-policy":
        return "the step size is not the on-policy one"
    return "; ".join(run.stepsize.violations(run.mdp.max_actions))


def check_updates(run: CheckedRun, checks: Checklist, extra: Ints) -> dict[int, Floats]:
    """All of these; V (S,) after k updates, for the checked updates and for every k in ``extra``."""
    _announce(run, checks)
    values = _check_policies(run, checks, extra)
    _check_recorded_values(run, checks, values)
    _check_theta_max(run, checks)
    _check_fixed_cycles(run, checks)
    return values


def _announce(run: CheckedRun, checks: Checklist) -> None:
    """Announce the statements below in order, each with the reason if it does not apply."""
    below, inexact, no_fixed = below_log(run), exactly_log(run), not_fixed_step(run)
    several = "" if run.trace.single else "an update changes more than one coordinate"
    on_policy = "" if run.stepsize.kind == "on-policy" else not_on_policy_step(run)
    for statements, unless in (
        ((LEMMA_1,), ""),
        ((HALF,), below),
        ((SUM, ADVANTAGE, BY_ADVANTAGE, AT_RHO, VISITATION, DIFFERENCE), ""),
        ((GRADIENT,), "" if run.mdp.n_states <= 2000 else "checked up to 2000 states only"),
        ((CHANGE_UP, CHANGE_DOWN), several or inexact),
        ((RANGE_UP, RANGE_DOWN), several or below),
        ((SHARE, ONE_STEP), several),
        ((ONE_STEP_BOUND,), several or below),
        ((FIXED,), several or no_fixed),
        (FIXED_CYCLES, no_fixed or run.other_rule(Cyclic)),
        ((BATCH_WEIGHTS, BATCH_BOUND), run.other_rule(Batch) or inexact),
        ((ABOVE_BETA,), on_policy or several),
        ((THETA_MAX,), on_policy or several or not_on_policy_step(run)),
    ):
        for statement in statements:
            checks.expect(statement, unless=unless)
    checks.expect(GRADIENT, "against complex-step derivatives at three policies")


def _check_policies(run: CheckedRun, checks: Checklist, extra: Ints) -> dict[int, Floats]:
    """Evaluate and check the policies before and after each chosen update, and those after ``extra`` updates.

    Returns:
        V (S,) after k updates, for every k that was evaluated.
    """
    chosen = set(run.steps.tolist())
    close = sorted(chosen | {t + 1 for t in chosen} | {0, len(run.trace)} | set(extra.tolist()))
    looked_at, gradients = set(close), {close[0], close[len(close) // 2], close[-1]}
    values: dict[int, Floats] = {}
    old: PolicyValues | None = None
    last = -1
    for k, log_policy in run.trace.policies(np.arange(len(run.trace) + 1) if run.every else close):
        new = PolicyValues(run.mdp, log_policy)
        values[k] = new.values
        if k in looked_at:
            _check_policy(run, checks, new, k)
        if k in gradients and checks.applies(GRADIENT):
            _check_gradient(run, checks, new, k)
        if old is not None and last == k - 1:
            _check_direction(run, checks, new, old, last)
            if last in chosen:
                _check_update(run, checks, new, old, last)
        old, last = new, k
    return values


def _check_policy(run: CheckedRun, checks: Checklist, now: PolicyValues, k: int) -> None:
    """The lemmas on one policy."""
    of_advantage = 2 * (1 + run.mdp.gamma) * run.rounding
    checks.compare(SUM, lemmas.advantage_sum(now), of_advantage, k)
    checks.compare(ADVANTAGE, lemmas.advantage_bound(now), of_advantage, k)
    checks.compare(BY_ADVANTAGE, lemmas.gap_by_advantage(now, run.best), 2 * run.step_rounding, k)
    factor = 1 / (run.mu.min() * (1 - run.mdp.gamma))
    checks.compare(AT_RHO, lemmas.gap_at_rho(now, run.best, run.mu), 2 * (1 + factor) * run.rounding, k)
    checks.compare(VISITATION, lemmas.visitation_bound(now, run.mu), run.weight_rounding / (1 - run.mdp.gamma), k)


def _check_gradient(run: CheckedRun, checks: Checklist, now: PolicyValues, k: int) -> None:
    direction = np.random.default_rng(k).standard_normal(now.policy.shape)
    sides = lemmas.policy_gradient_along(now, run.mu, direction)
    checks.compare(GRADIENT, sides, 8 * np.abs(direction).max() * run.step_rounding, k)


def _check_direction(run: CheckedRun, checks: Checklist, new: PolicyValues, old: PolicyValues, t: int) -> None:
    """Update t, from policy ``old`` to policy ``new``, went where A says, and V fell nowhere."""
    sign, batch = run.trace.update(t)
    wrong = np.where(sign == 0, np.abs(old.advantage), -sign * old.advantage)[batch]
    checks.compare(DIRECTION, Sides(wrong, np.zeros_like(wrong)), run.ambiguous, t + 1)
    if not run.trace.single:
        outside = np.abs(sign[~batch]).astype(float)
        checks.compare(DIRECTION, Sides(outside, np.zeros_like(outside)), run.ambiguous, t + 1)
    # An update whose advantage is within rounding of 0 may go either way, and costs at most that much.
    unsure = bool((np.abs(old.advantage[sign != 0]) <= run.ambiguous).any())
    allowed = 2 * run.rounding + (run.ambiguous / (1 - run.mdp.gamma) if unsure else 0.0)
    checks.compare(LEMMA_1, lemmas.improvement(new, old), allowed, t + 1)


def _check_update(run: CheckedRun, checks: Checklist, new: PolicyValues, old: PolicyValues, t: int) -> None:
    """The other lemmas on update t."""
    trace, k = run.trace, t + 1
    sign, _ = trace.update(t)
    checks.compare(DIFFERENCE, lemmas.performance_difference(new, old), run.step_rounding, k)
    if checks.applies(HALF):
        checks.compare(HALF, lemmas.half_bound(new, old, sign), run.weight_rounding, k)
    if trace.single and trace.sign[t] != 0:
        _check_coordinate(run, checks, new, old, t)
    if checks.applies(BATCH_WEIGHTS):
        weights = lemmas.batch_weights(old.log_policy, sign)
        checks.compare(BATCH_WEIGHTS, Sides(new.policy, weights, "="), run.weight_rounding, k)
        checks.compare(BATCH_BOUND, lemmas.batch_bound(new, old, sign), run.step_rounding, k)


def _check_coordinate(run: CheckedRun, checks: Checklist, new: PolicyValues, old: PolicyValues, t: int) -> None:
    trace, k = run.trace, t + 1
    states, actions, _ = trace.coordinates
    s, a, sign, alpha = int(states[t]), int(actions[t]), int(trace.sign[t]), float(trace.alpha[t])
    before, after = old.log_policy[s], new.log_policy[s]
    exact, ranges = (CHANGE_UP, RANGE_UP) if sign > 0 else (CHANGE_DOWN, RANGE_DOWN)
    if checks.applies(exact):
        checks.compare(exact, lemmas.weight_change_sides(before, after, a, sign), run.weight_rounding, k)
    if checks.applies(ranges):
        checks.compare(ranges, lemmas.weight_range(before, after, a, sign), run.weight_rounding, k)
    checks.compare(SHARE, lemmas.weight_distribution(before, after, a, sign), run.weight_rounding, k)
    if abs(old.advantage[s, a]) > run.ambiguous:
        checks.compare(ONE_STEP, lemmas.one_step_improvement(new, old, s, a), run.step_rounding, k)
        if checks.applies(ONE_STEP_BOUND):
            checks.compare(ONE_STEP_BOUND, lemmas.one_step_bound(new, old, s, a, sign), run.step_rounding, k)
        if checks.applies(FIXED):
            sides = lemmas.fixed_step_improvement(new, old, s, a, alpha, sign)
            checks.compare(FIXED, sides, run.step_rounding, k)
    beta = run.stepsize.beta
    if beta is not None and sign > 0 and before[a] < np.log(beta) * (1 + 8 * EPS):
        checks.compare(ABOVE_BETA, lemmas.above_beta(after, a, beta), run.weight_rounding, k)


def _check_theta_max(run: CheckedRun, checks: Checklist) -> None:
    """theta_max of every state, recovered from the shifts that normalising removed."""
    if not checks.applies(THETA_MAX):
        return
    trace = run.trace
    states, actions, _ = trace.coordinates
    for s in np.unique(states).tolist():
        when = np.flatnonzero(states == s)
        theta = lemmas.theta_rows(trace.first[s], trace.sign[when], trace.alpha[when], actions[when])
        highest = theta.max(axis=1)
        visits = spread(len(highest), max(60, int(1000 / run.mdp.n_states**0.5)))
        sides = lemmas.theta_max_growth(highest[visits], visits)
        rounding = 16 * EPS * len(highest) * (1 + np.abs(highest).max())
        _, later = np.triu_indices(len(visits), 1)
        checks.compare(THETA_MAX, sides, rounding, when[visits[later] - 1] + 1)


def _check_fixed_cycles(run: CheckedRun, checks: Checklist) -> None:
    """The inequality for a cycle with a fixed step, at s~, on whole cycles spread over the trace."""
    if not checks.applies(FIXED_CYCLES[0]):
        return
    length = run.record.cycle_length
    cycles = spread(len(run.trace) // length, max(1, len(run.steps) // length))
    reason = "evaluating a cycle takes too long" if length * run.mdp.n_states**2 > 2e7 else ""
    reason = reason if len(cycles) else "the run is shorter than a cycle"
    skipped = [checks.skip(statement, reason) for statement in FIXED_CYCLES]
    for cycle in [] if any(skipped) else cycles.tolist():
        _check_fixed_cycle(run, checks, cycle * length)


def _check_fixed_cycle(run: CheckedRun, checks: Checklist, m: int) -> None:
    trace, length, step = run.trace, run.record.cycle_length, run.stepsize
    states, actions = (array[m : m + length] for array in trace.coordinates[:2])
    along = [PolicyValues(run.mdp, row) for _, row in trace.policies(np.arange(m, m + length + 1))]
    advantage = run.mdp.masked(along[0].advantage)
    peak, action = np.unravel_index(int(advantage.argmax()), advantage.shape)
    turn = int(np.flatnonzero((states == peak) & (actions == action))[0])
    taken = [(int(states[i]), int(actions[i])) for i in range(turn + 1)]
    probabilities = np.array([along[i].policy[pair] for i, pair in enumerate(taken)])
    rests = np.array([along[i].rest[pair] for i, pair in enumerate(taken)])
    visits = np.array([along[i + 1].visitation_to(taken[i][0])[peak] for i in range(turn)])
    gap = max(float((run.best.values - along[0].values).max()) - run.slack, 0.0)
    gained = np.asarray(along[-1].values[peak] - along[0].values[peak])
    for form, statement in zip(FORMS, FIXED_CYCLES, strict=True):
        factor = fixed_cycle_bound(
            probabilities, rests, visits, trace.sign[m : m + turn], step.eta, run.mdp.gamma, form=form
        )
        least = factor * gap**2 if gap > 0 else 0.0  # the factor is infinite where pi = 1 and nothing is left
        rounding = 2 * run.rounding * (1 + (least / gap if gap > 0 else 0.0))
        checks.compare(statement, Sides(np.asarray(least), gained), rounding, m)
