"""Lines about single policies and single updates, along the trace."""

from __future__ import annotations

from typing import Any

import numpy as np

from capo.tabular.coordinates import Batch, Cyclic
from capo.tabular.mdp import Floats
from capo.tabular.theory import lemmas
from capo.tabular.theory.certificate import Book
from capo.tabular.theory.evaluation import EPS, Evaluated, Sides
from capo.tabular.theory.rates import fixed_cycle_bound
from capo.tabular.theory.records import DIRECTION
from capo.tabular.theory.run import Run, batch_of, policies, signs_of, spread

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
BATCH_WEIGHTS = "Lemma: batch weights 1, pi, pi^2"
BATCH_BOUND = "Lemma: batch one-step lower bound (d of the new policy)"
ABOVE_BETA = "On-policy lemma: a picked action below beta ends above it"
THETA_MAX = "On-policy lemma: theta_max grows by <= log(K+1) in K steps"


def below_log(run: Run) -> str:
    """Why alpha >= log 1/pi does not hold along the run; empty where it does."""
    step = run.result.stepsize
    assert step is not None
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


def exactly_log(run: Run) -> str:
    """Why alpha = log 1/pi does not hold; empty where it does."""
    step = run.result.stepsize
    assert step is not None
    if step.kind == "log" and step.multiple > 1:
        return f"alpha = {step.multiple:g} log 1/pi is not exactly log 1/pi"
    return below_log(run)


def announce(run: Run, book: Book) -> None:
    """All lines of this file, in order, each to be checked or with the reason why not."""
    single, below, inexact = run.trace.single, below_log(run), exactly_log(run)
    step, rule = run.result.stepsize, run.result.rule
    assert step is not None
    not_single = "" if single else "an update takes more than one coordinate"
    book.expect(LEMMA_1)
    _announce(book, HALF, below)
    for statement in (SUM, ADVANTAGE, BY_ADVANTAGE, AT_RHO, VISITATION, DIFFERENCE):
        book.expect(statement)
    if run.mdp.n_states <= 2000:
        book.expect(GRADIENT, "against complex-step derivatives at three policies")
    else:
        book.skip(GRADIENT, "checked up to 2000 states")
    for statement in (CHANGE_UP, CHANGE_DOWN):
        _announce(book, statement, not_single or inexact)
    for statement in (RANGE_UP, RANGE_DOWN):
        _announce(book, statement, not_single or below)
    _announce(book, SHARE, not_single)
    _announce(book, ONE_STEP, not_single)
    _announce(book, ONE_STEP_BOUND, not_single or below)
    no_fixed = "" if step.kind == "fixed" else "the step size is not fixed"
    _announce(book, FIXED, not_single or no_fixed)
    not_cyclic = "" if isinstance(rule, Cyclic) else "the rule is not cyclic"
    for form in ("repaired", "printed"):
        _announce(book, f"{FIXED_CYCLE}, {form}", no_fixed or not_cyclic)
    not_batch = "" if isinstance(rule, Batch) else "the rule is not batch"
    for statement in (BATCH_WEIGHTS, BATCH_BOUND):
        _announce(book, statement, not_batch or inexact)
    not_on = "" if step.kind == "on-policy" else "the step size is not the on-policy one"
    _announce(book, ABOVE_BETA, not_on or not_single)
    broken = "; ".join(step.violations(run.mdp.n_actions)) if step.kind == "on-policy" else ""
    _announce(book, THETA_MAX, not_on or not_single or broken)


def _announce(book: Book, statement: str, reason: str) -> None:
    if reason:
        book.skip(statement, reason)
    else:
        book.expect(statement)


def applies(book: Book, statement: str) -> bool:
    return statement in book.entries and not book.entries[statement].reason


def walk(run: Run, book: Book, extra: Any = ()) -> dict[int, Floats]:
    """Evaluate the policies of the checked updates (and those in ``extra``) once each, and check them.

    Returns:
        V (S,) after k updates, for every k that was evaluated.
    """
    chosen = set(run.steps.tolist())
    wanted = sorted(chosen | {t + 1 for t in chosen} | {0, len(run.trace)} | {int(k) for k in extra})
    gradients = {wanted[0], wanted[len(wanted) // 2], wanted[-1]}
    values: dict[int, Floats] = {}
    old: Evaluated | None = None
    last = -1
    for k, log_policy in policies(run.trace, wanted):
        new = Evaluated(run.mdp, log_policy)
        values[k] = new.values
        check_policy(run, book, new, k)
        if k in gradients and applies(book, GRADIENT):
            _check_gradient(run, book, new, k)
        if old is not None and last == k - 1 and last in chosen:
            check_update(run, book, new, old, last)
        old, last = new, k
    return values


def check_policy(run: Run, book: Book, now: Evaluated, k: int) -> None:
    """The lemmas on one policy."""
    of_advantage = 2 * (1 + run.mdp.gamma) * run.rounding
    book.add(SUM, lemmas.advantage_sum(now), of_advantage, k)
    book.add(ADVANTAGE, lemmas.advantage_bound(now), of_advantage, k)
    book.add(BY_ADVANTAGE, lemmas.gap_by_advantage(now, run.best), 2 * run.step_rounding, k)
    factor = 1 / (run.mu.min() * (1 - run.mdp.gamma))
    book.add(AT_RHO, lemmas.gap_at_rho(now, run.best, run.mu), 2 * (1 + factor) * run.rounding, k)
    book.add(VISITATION, lemmas.visitation_bound(now, run.mu), run.weight_rounding / (1 - run.mdp.gamma), k)


def _check_gradient(run: Run, book: Book, now: Evaluated, k: int) -> None:
    direction = np.random.default_rng(k).standard_normal(now.policy.shape)
    sides = lemmas.policy_gradient_along(now, run.mu, direction)
    book.add(GRADIENT, sides, 8 * np.abs(direction).max() * run.step_rounding, k)


def check_update(run: Run, book: Book, new: Evaluated, old: Evaluated, t: int) -> None:
    """The lemmas on update t, from policy ``old`` to policy ``new``."""
    trace, k = run.trace, t + 1
    sign, batch = signs_of(trace, t), batch_of(trace, t)
    wrong = np.where(sign == 0, np.abs(old.advantage), -sign * old.advantage)[batch]
    book.add(DIRECTION, Sides(wrong, np.zeros_like(wrong)), run.ambiguous, k)
    if not trace.single:
        outside = np.abs(sign[~batch]).astype(float)
        book.add(DIRECTION, Sides(outside, np.zeros_like(outside)), run.ambiguous, k)
    book.add(DIFFERENCE, lemmas.performance_difference(new, old), run.step_rounding, k)
    # An update whose advantage is within rounding of 0 may go either way, and costs at most that much.
    unsure = bool((np.abs(old.advantage[sign != 0]) <= run.ambiguous).any())
    allowed = 2 * run.rounding + (run.ambiguous / (1 - run.mdp.gamma) if unsure else 0.0)
    book.add(LEMMA_1, lemmas.improvement(new, old), allowed, k)
    if applies(book, HALF):
        book.add(HALF, lemmas.half_bound(new, old, sign), run.weight_rounding, k)
    if trace.single and trace.sign[t] != 0:
        _check_coordinate(run, book, new, old, t)
    if applies(book, BATCH_WEIGHTS):
        weights = lemmas.batch_weights(old.log_policy, sign)
        book.add(BATCH_WEIGHTS, Sides(new.policy, weights, "="), run.weight_rounding, k)
        book.add(BATCH_BOUND, lemmas.batch_bound(new, old, sign), run.step_rounding, k)


def _check_coordinate(run: Run, book: Book, new: Evaluated, old: Evaluated, t: int) -> None:
    trace, k = run.trace, t + 1
    assert trace.state is not None
    assert trace.action is not None
    s, a, sign, alpha = int(trace.state[t]), int(trace.action[t]), int(trace.sign[t]), float(trace.alpha[t])
    before, after = old.log_policy[s], new.log_policy[s]
    exact, ranges = (CHANGE_UP, RANGE_UP) if sign > 0 else (CHANGE_DOWN, RANGE_DOWN)
    if applies(book, exact):
        book.add(exact, lemmas.weight_change_sides(before, after, a, sign), run.weight_rounding, k)
    if applies(book, ranges):
        book.add(ranges, lemmas.weight_range(before, after, a, sign), run.weight_rounding, k)
    book.add(SHARE, lemmas.weight_distribution(before, after, a, sign), run.weight_rounding, k)
    if abs(old.advantage[s, a]) > run.ambiguous:
        book.add(ONE_STEP, lemmas.one_step_improvement(new, old, s, a), run.step_rounding, k)
        if applies(book, ONE_STEP_BOUND):
            bound = lemmas.one_step_bound(new, old, s, a, sign)
            book.add(ONE_STEP_BOUND, bound, run.step_rounding, k)
        if applies(book, FIXED):
            sides = lemmas.fixed_step_improvement(new, old, s, a, alpha, sign)
            book.add(FIXED, sides, run.step_rounding, k)
    if applies(book, ABOVE_BETA) and sign > 0:
        assert run.result.stepsize is not None
        beta = run.result.stepsize.beta
        assert beta is not None
        if before[a] < np.log(beta) * (1 + 8 * EPS):
            book.add(ABOVE_BETA, lemmas.above_beta(after, a, beta), run.weight_rounding, k)


def check_theta_max(run: Run, book: Book) -> None:
    """theta_max of every state, recovered from the shifts that normalising removed."""
    if not applies(book, THETA_MAX):
        return
    trace = run.trace
    assert trace.state is not None
    assert trace.action is not None
    for s in np.unique(trace.state).tolist():
        when = np.flatnonzero(trace.state == s)
        theta = lemmas.theta_rows(trace.first[s], trace.sign[when], trace.alpha[when], trace.action[when])
        highest = theta.max(axis=1)
        visits = spread(len(highest), max(60, int(1000 / run.mdp.n_states**0.5)))
        sides = lemmas.theta_max_growth(highest[visits], visits)
        rounding = 16 * EPS * len(highest) * (1 + np.abs(highest).max())
        _, later = np.triu_indices(len(visits), 1)
        book.add(THETA_MAX, sides, rounding, when[visits[later] - 1] + 1)


def check_fixed_cycles(run: Run, book: Book) -> None:
    """The inequality for a cycle with a fixed step, at s~, on whole cycles spread over the trace."""
    if not applies(book, f"{FIXED_CYCLE}, repaired"):
        return
    length, trace = run.result.cycle_length, run.trace
    cycles = spread(len(trace) // length, max(1, len(run.steps) // length))
    if len(cycles) == 0 or length * run.mdp.n_states**2 > 2e7:
        for form in ("repaired", "printed"):
            reason = (
                "the run is shorter than a cycle" if len(cycles) == 0 else "a cycle of evaluations is too large"
            )
            book.skip(f"{FIXED_CYCLE}, {form}", reason)
        return
    for cycle in cycles.tolist():
        _check_fixed_cycle(run, book, cycle * length)


def _check_fixed_cycle(run: Run, book: Book, m: int) -> None:
    trace, length, step = run.trace, run.result.cycle_length, run.result.stepsize
    assert trace.state is not None
    assert trace.action is not None
    assert step is not None
    states, actions = trace.state[m : m + length], trace.action[m : m + length]
    along = [Evaluated(run.mdp, row) for _, row in policies(trace, np.arange(m, m + length + 1))]
    peak, action = np.unravel_index(int(along[0].advantage.argmax()), along[0].advantage.shape)
    turn = int(np.flatnonzero((states == peak) & (actions == action))[0])
    taken = [(int(states[i]), int(actions[i])) for i in range(turn + 1)]
    probabilities = np.array([along[i].policy[pair] for i, pair in enumerate(taken)])
    rests = np.array([along[i].rest[pair] for i, pair in enumerate(taken)])
    visits = np.array([along[i + 1].visitation_to(taken[i][0])[peak] for i in range(turn)])
    gap = max(float((run.best.values - along[0].values).max()) - run.slack, 0.0)
    gained = np.asarray(along[-1].values[peak] - along[0].values[peak])
    forms: tuple[lemmas.Form, ...] = ("repaired", "printed")
    for form in forms:
        factor = fixed_cycle_bound(
            probabilities, rests, visits, trace.sign[m : m + turn], step.eta, run.mdp.gamma, form=form
        )
        least = factor * gap**2 if gap > 0 else 0.0  # the factor is infinite where pi = 1 and nothing is left
        rounding = 2 * run.rounding * (1 + (least / gap if gap > 0 else 0.0))
        book.add(f"{FIXED_CYCLE}, {form}", Sides(np.asarray(least), gained), rounding, m)
