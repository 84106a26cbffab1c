"""Lines about the run's own books: what it recorded against plain arithmetic and plain evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np

from capo.tabular.coordinates import Batch, Cyclic
from capo.tabular.mdp import Floats
from capo.tabular.result import Trace
from capo.tabular.theory.certificate import Book
from capo.tabular.theory.evaluation import EPS, Evaluated, Sides
from capo.tabular.theory.run import Ints, Run
from capo.update import coordinate_update

STEP = "Step size: recorded alpha = the rule's formula"
ARITHMETIC = "Update: recorded new policy = log softmax(log pi + alpha sign)"
DIRECTION = "Update direction = sign(A)"
VALUE = "Recorded V(rho) = independent evaluation"
FINAL = "Final policy and V = last update, independent evaluation"
VISITS = "Visit counts add up to the iterations"
CONDITION = "Condition 1 (every pair is visited)"
GAP = "Certified gap >= V* - V, final policy"
GAP_HISTORY = "Certified gap >= V* - V at rho, history"
MONOTONE_HISTORY = "Recorded V(rho) never decreases"
CYCLES = "Cyclic rule: every pair in every cycle"


def check_step_sizes(run: Run, book: Book) -> None:
    """Recorded step sizes against :meth:`StepSize.alpha`, counts recounted from the trace."""
    step = run.result.stepsize
    assert step is not None
    step = step.with_defaults(run.mdp.n_actions)
    trace = run.trace
    before, counts, taken = _before(trace)
    alpha = _taken(trace, trace.alpha)
    log_pi, sign = before[taken], _taken(trace, trace.sign)
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
    book.add(STEP, Sides(ratio, np.zeros_like(ratio), "="), 1.0, _when(trace, taken))


def check_arithmetic(run: Run, book: Book) -> None:
    """Recorded policies against :func:`capo.update.coordinate_update` of the ones before, every traced update."""
    trace = run.trace
    before, _, taken = _before(trace)
    if trace.single:
        assert trace.row is not None
        sign, alpha = np.zeros(before.shape, np.int8), np.zeros(before.shape)
        sign[taken], alpha[taken] = trace.sign, trace.alpha
        after = trace.row
    else:
        assert trace.log_policies is not None
        sign, alpha, after = trace.sign, trace.alpha, trace.log_policies
    still = (sign == 0).all(axis=-1, keepdims=True)
    expected = np.where(still, before, coordinate_update(before, sign, alpha))
    when = np.arange(1, len(trace) + 1).reshape((-1,) + (1,) * (after.ndim - 1))
    allowed = run.log_rounding * np.abs(expected) + 1e-300
    book.add(ARITHMETIC, Sides(after, expected, "="), allowed, np.broadcast_to(when, after.shape))


def _before(trace: Trace) -> tuple[Floats, Ints, tuple[Ints, ...]]:
    """Log-rows before each update, the visits of what was taken (that one included), and its index in the rows.

    Single coordinates: (T, A) and (T,); otherwise (T, S, A) and one entry for each pair taken.
    """
    if not trace.single:
        assert trace.log_policies is not None
        assert trace.batch is not None
        before = np.concatenate([trace.first[None], trace.log_policies[:-1]])
        counts = np.cumsum(trace.batch, axis=0, dtype=np.int64)
        taken = np.nonzero(trace.batch)
        return before, counts[taken], taken
    assert trace.state is not None
    assert trace.action is not None
    assert trace.row is not None
    n = len(trace)
    flat = trace.state * trace.first.shape[1] + trace.action
    before = trace.first[trace.state]
    order = np.argsort(trace.state, kind="stable")
    again = trace.state[order[1:]] == trace.state[order[:-1]]
    before[order[1:][again]] = trace.row[order[:-1][again]]
    return before, _occurrence(flat), (np.arange(n), trace.action)


def _occurrence(keys: Ints) -> Ints:
    """(n,) how often each key has come up so far, this time included."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.r_[0, np.flatnonzero(np.diff(ordered)) + 1]
    lengths = np.diff(np.r_[starts, len(keys)])
    rank = np.arange(len(keys)) - np.repeat(starts, lengths) + 1
    out = np.empty(len(keys), np.int64)
    out[order] = rank
    return out


def _taken(trace: Trace, array: Any) -> Any:
    return array if trace.batch is None else array[np.nonzero(trace.batch)]


def _when(trace: Trace, taken: tuple[Ints, ...]) -> Ints:
    return np.asarray(taken[0] + 1) if not trace.single else np.arange(1, len(trace) + 1)


def check_recorded_values(run: Run, book: Book, values: dict[int, Floats]) -> None:
    """The run's V(rho) against the independent one, at every policy that was evaluated and along the history."""
    history = run.result.history
    iteration = history["iteration"].astype(np.int64)
    recorded = run.unit(history["value"])
    gaps = np.interp(
        np.arange(len(run.trace) + 1), iteration, np.maximum.accumulate(history["gap_bound"][::-1])[::-1]
    )
    ks = np.array([k for k in values if k > 0], np.int64)
    mine = np.array([run.mdp.start @ values[k] for k in ks])
    book.add(VALUE, Sides(run.unit(run.trace.value[ks - 1]), mine, "="), run.engine_at(gaps[ks]), ks)
    inside = (iteration > 0) & (iteration <= len(run.trace))
    traced = run.unit(run.trace.value[iteration[inside] - 1])
    allowed = 2 * run.engine_at(history["gap_bound"][inside])
    book.add(VALUE, Sides(recorded[inside], traced, "="), allowed, iteration[inside])
    if 0 in values and iteration[0] == 0:
        start = Sides(recorded[:1], run.mdp.start @ values[0], "=")
        book.add(VALUE, start, run.engine_at(history["gap_bound"][0]), 0)


def check_history(run: Run, book: Book) -> None:
    """Lines on the whole history: V(rho) never falls, and the certified gap is never below the true one."""
    history = run.result.history
    iteration = history["iteration"].astype(np.int64)
    value, gap_bound = run.unit(history["value"]), history["gap_bound"] / run.scale
    allowed = run.engine_at(history["gap_bound"])
    if run.result.rule is not None or run.result.algorithm in ("natural policy gradient", "policy iteration"):
        drop = Sides(value[:-1] - value[1:], np.zeros(len(value) - 1))
        book.add(MONOTONE_HISTORY, drop, 2 * np.broadcast_to(allowed, value.shape)[:-1] + run.slack, iteration[1:])
    else:
        book.skip(MONOTONE_HISTORY, f"{run.result.algorithm} does not promise it")
    if run.result.covered[run.mdp.start > 0].all():
        true = run.mdp.start @ run.best.values - value
        book.add(GAP_HISTORY, Sides(true, gap_bound), run.rounding + allowed, iteration)
    else:
        book.skip(GAP_HISTORY, "the certified gap does not cover the start distribution")


def check_final(run: Run, book: Book) -> float:
    """The result's policy, values and gap bound; returns the true gap over the covered states."""
    result = run.result
    final = Evaluated(run.mdp, result.log_policy)
    allowed = run.engine_at(result.gap_bound)
    book.add(FINAL, Sides(run.unit(result.values), final.values, "="), allowed, result.iterations)
    if run.whole and result.trace is not None:
        log_policy = _last(result.trace)
        rounding = run.log_rounding * np.abs(log_policy) + 1e-300
        book.add(FINAL, Sides(result.log_policy, log_policy, "="), rounding, result.iterations)
    gap = (run.best.values - final.values)[result.covered]
    bound = np.full(gap.shape, result.gap_bound / run.scale)
    book.add(GAP, Sides(gap, bound), run.rounding + allowed, result.iterations)
    return float(gap.max())


def _last(trace: Trace) -> Floats:
    if trace.log_policies is not None:
        return np.asarray(trace.log_policies[-1])
    assert trace.state is not None
    assert trace.row is not None
    log_policy = trace.first.copy()
    log_policy[trace.state] = trace.row
    return log_policy


def check_visits(run: Run, book: Book) -> bool:
    """Visit counts; returns whether every pair that the rule can meet was visited."""
    result = run.result
    assert result.counts is not None
    counts, k = result.counts.astype(np.float64), result.iterations
    if run.trace.single:
        book.add(VISITS, Sides(np.asarray(counts.sum()), np.asarray(k), "="), 0.0, k)
    elif isinstance(result.rule, Batch):
        book.add(VISITS, Sides(counts, np.full(counts.shape, k), "="), 0.0, k)
    elif run.whole:
        assert run.trace.batch is not None
        book.add(VISITS, Sides(counts, run.trace.batch.sum(axis=0).astype(np.float64), "="), 0.0, k)
    else:
        book.skip(VISITS, "the trace is shorter than the run")
    if isinstance(result.rule, Cyclic):
        _check_cycles(run, book)
    live = counts[result.covered & ~run.result.mdp.terminal]
    never = int((live == 0).sum())
    if never:
        book.skip(
            CONDITION, f"{never} pairs were never visited in {k} iterations; it asks for infinitely many visits"
        )
        return False
    if live.size:
        least = int(live.min())
        book.expect(CONDITION, f"at least {least} visits a pair so far; it asks for infinitely many")
        book.add(CONDITION, Sides(np.asarray(1.0), np.asarray(float(least))), 0.0, k)
    return True


def _check_cycles(run: Run, book: Book) -> None:
    length, trace = run.result.cycle_length, run.trace
    assert trace.state is not None
    assert trace.action is not None
    cycles = len(trace) // length
    if cycles == 0:
        book.skip(CYCLES, f"the run is shorter than a cycle of {length} updates")
        return
    pairs = trace.first.size
    flat = (trace.state * trace.first.shape[1] + trace.action)[: cycles * length]
    keys = np.repeat(np.arange(cycles), length) * pairs + flat
    visits = np.bincount(keys, minlength=cycles * pairs).reshape(cycles, pairs).min(axis=1)
    ends = np.arange(1, cycles + 1) * length
    book.add(CYCLES, Sides(np.ones(cycles), visits.astype(float)), 0.0, ends)
