"""The checks of the theorems, and ``certify``, which runs all checks.

Theorems are checked on the run itself and, where they are about expectations or probabilities, on many seeds. The
checks of records, policies and updates are in :mod:`capo.tabular.theory.checks`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from capo.checks import whole
from capo.tabular.coordinates import Batch, Cyclic, OnPolicy, Randomized
from capo.tabular.critic import single_threaded_blas
from capo.tabular.engine import solve_many, uniform_log_policy
from capo.tabular.mdp import MDP, Floats, Ints
from capo.tabular.record import ManyResult, RunRecord
from capo.tabular.theory import lemmas, rates
from capo.tabular.theory.certificate import Certificate, CheckedRun, Checklist, prepare_run, spread
from capo.tabular.theory.checks import (
    below_log,
    check_final,
    check_history,
    check_records,
    check_updates,
    exactly_log,
    not_fixed_step,
    not_on_policy_step,
)
from capo.tabular.theory.lemmas import FORMS, PolicyValues, Sides
from capo.tabular.theory.limit_checks import check_events, check_limits
from capo.tabular.theory.modified import certify_modified
from capo.tabular.theory.rates import Rate
from capo.update import coordinate_update, log_normalise

THEOREM_1 = "Theorem 1 (V -> V*)"
CYCLIC, BATCH, RANDOMIZED = "Theorem 2 (cyclic)", "Theorem 3 (batch)", "Theorem 4 (randomized)"
ON_POLICY = "Theorem (on-policy CAPO converges)"
STUCK = "Theorem (fixed step on-policy gets stuck)"
PG, NPG = "Rate of policy gradient (Mei et al.)", "Rate of natural policy gradient (Agarwal et al.)"
SEEDS_ABOVE = 200  # states above which no additional seeds are run


def certify(result: RunRecord, *, mu: Any = None, seeds: int = 100, max_steps: int = 2000) -> Certificate:
    """Check the paper's statements on a run, or, with the k-step critic, those of modified CAPO.

    Everything is evaluated again by plain linear algebra and V* comes from plain policy iteration; nothing is
    taken from the engine that produced the run. Rewards outside [0, 1] are rescaled first, which changes no sign
    and no policy.

    Args:
        result: the :class:`capo.Result` of :func:`capo.solve` or of a baseline.
        mu: (S,) positive distribution for the rates; by default the run's own, or uniform.
        seeds: how many, for statements about expectations and probabilities.
        max_steps: maximum number of updates, spread evenly, that the one-step lines evaluate.

    >>> import capo
    >>> certificate = certify(capo.solve(capo.mdps.chain(10), rule="cyclic"))
    >>> certificate.held, certificate.line("Theorem 2 (cyclic), rate at rho, repaired").status
    (True, 'held')
    """
    seeds, max_steps = whole("seeds", seeds), whole("max_steps", max_steps)
    if result.critic in ("k-step", "iterative"):
        return certify_modified(result, max_steps)
    with single_threaded_blas:
        run, checks = prepare_run(result, mu, seeds, max_steps), Checklist()
        if result.baseline is not None or result.trace is None:
            _certify_without_trace(run, checks)
        else:
            _certify_capo(run, checks)
    what, mdp = f"{result.algorithm} on {result.mdp.label}", result.mdp
    title = f"Certificate: {what} ({mdp.summary}), {result.iterations} iterations"
    return Certificate(title, _header(run), checks.lines())


def _certify_capo(run: CheckedRun, checks: Checklist) -> None:
    gap, visited = check_records(run, checks)
    checks.expect(THEOREM_1)
    values = check_updates(run, checks, extra=cycle_ends(run).ravel())
    check_convergence(run, checks, values[0], gap, visited)
    check_cyclic(run, checks, values)
    check_batch(run, checks, values)
    check_randomized(run, checks)
    check_on_policy(run, checks)
    check_limits(run, checks, values)
    check_events(run, checks)


def _certify_without_trace(run: CheckedRun, checks: Checklist) -> None:
    check_final(run, checks)
    check_history(run, checks)
    if run.record.baseline is not None:
        check_baseline(run, checks)
        reason = f"{run.record.algorithm} is not a CAPO update"
    else:
        too_large = "the MDP has too many pairs to keep a trace of the updates"
        reason = too_large if run.record.iterations else "no update was made"
    checks.skip("CAPO's lemmas and rates", reason)


def _header(run: CheckedRun) -> list[str]:
    record = run.record
    header = []
    if run.mdp is not record.mdp:
        shifted = f"(r {'-' if run.low >= 0 else '+'} {abs(run.low):g})" if run.low else "r"
        header.append(f"rewards rescaled to [0, 1]: {shifted} / {run.scale:g}; signs and policies are unchanged")
    given = "uniform" if (run.mu == run.mu[0]).all() else f"min {run.mu.min():.3g}"
    header.append(f"mu {given}; values evaluated independently, accurate to {run.rounding:.1e}")
    if record.trace is not None:
        n, traced = len(run.steps), len(run.trace)
        checked = f"all {n} updates" if n == traced else f"{n} of the {traced} traced updates, evenly spread"
        rest = "" if run.whole else f"; the run made {record.iterations}"
        header.append(f"one-step lines: {checked}{rest}")
        if run.every and n < traced:
            header.append(f"directions, Lemma 1 and recorded values: all {traced} updates")
    header.append(
        "worst: lhs/(rhs + rounding) for <=, |lhs - rhs|/rounding for =; the line held if this is at most 1"
    )
    header.append("at: the number of updates made where it was worst")
    return header


# --- gaps of the run itself -----------------------------------------------------------------------------------


def gaps_rho(run: CheckedRun) -> tuple[Ints, Floats]:
    """Iterations k and V*(rho) - V(rho) after k updates: the trace's recorded values, then the history's."""
    ks, recorded, _ = run.recorded()
    return ks, run.mdp.start @ run.best.values - recorded


def partial_sums(ks: Ints, gaps: Floats) -> tuple[Ints, Floats]:
    """M and an upper bound on the sum of the first M gaps, at the known iterations.

    Between two known iterations the gap of the first counts: it is never too small, since gaps do not grow.
    """
    spans = np.diff(np.r_[ks, ks[-1] + 1])
    return ks[1:], np.cumsum(gaps * spans)[:-1]


def check_rate(
    run: CheckedRun, checks: Checklist, name: str, rate: Rate, values: dict[int, Floats], printed: bool
) -> None:
    """Rate and partial sums at mu and at rho. ``printed``: whether the printed rate differs from the repaired."""
    suffix, evaluated = f", {rate.form}", sorted(values)
    at_mu = np.array(evaluated, np.int64), run.gaps_at_mu([values[k] for k in evaluated])
    for where, (ks, gaps), gap_bound, sum_bound, rounding in (
        ("mu", at_mu, rate.gap_mu, rate.sum_mu, 2 * run.rounding),
        ("rho", gaps_rho(run), rate.gap_rho, rate.sum_rho, run.rounding + run.engine_at(run.record.gap_bound)),
    ):
        known = np.maximum(gaps - run.slack, 0.0)
        if rate.form == "repaired" or printed:
            statement = f"{name}, rate at {where}{suffix if printed else ''}"
            checks.compare(statement, Sides(known, gap_bound(ks)), rounding, ks)
        terms, sums = partial_sums(ks, known)
        statement = f"{name}, partial sums at {where}{suffix}"
        checks.compare(statement, Sides(sums, sum_bound(terms)), rounding * terms, terms)


# --- the theorems ---------------------------------------------------------------------------------------------


def check_convergence(run: CheckedRun, checks: Checklist, first: Floats, gap: float, visited: bool) -> None:
    """Theorem 1: the gap now, at the covered states."""
    if checks.skip(THEOREM_1, below_log(run)):
        return
    record = run.record
    initial = float((run.best.values - first)[record.covered].max())
    target = record.gap_bound / run.scale if record.converged else initial
    goal = "the certified tolerance was reached" if record.converged else "the run ended before the limit"
    goal += "" if visited else ", and Condition 1 is open"
    checks.expect(THEOREM_1, f"largest gap now {gap * run.scale:.3g}, initially {initial * run.scale:.3g}; {goal}")
    allowed = run.rounding + run.engine_at(record.gap_bound)
    checks.compare(THEOREM_1, Sides(np.asarray(gap), np.asarray(target)), allowed, record.iterations)
    if not record.converged:
        checks.leave_open(THEOREM_1)


def cycle_ends(run: CheckedRun) -> Ints:
    """(n, 2) beginnings and ends, in updates, of the whole cycles that are checked."""
    if not isinstance(run.record.rule, Cyclic):
        return np.empty((0, 2), np.int64)
    length = run.record.cycle_length
    starts = spread(len(run.trace) // length, len(run.steps)) * length
    return np.stack([starts, starts + length], axis=1)


def check_cyclic(run: CheckedRun, checks: Checklist, values: dict[int, Floats]) -> None:
    """Theorem 2 with both constants, and the improvement per cycle it rests on."""
    if checks.skip(CYCLIC, run.other_rule(Cyclic) or below_log(run)):
        return
    length, ends = run.record.cycle_length, cycle_ends(run)
    if len(ends) == 0:
        for what in ("improvement per cycle at s~", "recursion at mu, repaired", "recursion at mu, printed"):
            checks.skip(f"{CYCLIC}, {what}", f"the trace is shorter than a cycle of {length} updates")
    for (_, log_policy), (k, end) in zip(run.trace.policies(ends[:, 0]), ends.tolist(), strict=True):
        now = PolicyValues(run.mdp, log_policy)
        tolerance = run.slack * (1 - run.mdp.gamma)
        sides = rates.cycle_improvement(now, values[end], length=length, tolerance=tolerance)
        checks.compare(f"{CYCLIC}, improvement per cycle at s~", sides, 2 * run.rounding, k)
    both = [rates.cyclic_rate(run.mdp, run.mu, length=length, form=form) for form in FORMS]
    for rate in both:
        for k, end in ends.tolist():
            _check_recursion(run, checks, f"{CYCLIC}, recursion at mu, {rate.form}", rate, values, (k, end), k)
    for rate in both:
        check_rate(run, checks, CYCLIC, rate, values, printed=True)


def check_batch(run: CheckedRun, checks: Checklist, values: dict[int, Floats]) -> None:
    """Theorem 3. Its rate is the same printed and repaired; the partial sums are not."""
    if checks.skip(BATCH, run.other_rule(Batch) or exactly_log(run)):
        return
    both = [rates.batch_rate(run.mdp, run.mu, form=form) for form in FORMS]
    for t in run.steps.tolist():
        _check_recursion(run, checks, f"{BATCH}, recursion at mu", both[0], values, (t, t + 1), t + 1)
    for rate in both:
        check_rate(run, checks, BATCH, rate, values, printed=False)


def _check_recursion(
    run: CheckedRun, checks: Checklist, name: str, rate: Rate, values: dict[int, Floats],
    ks: tuple[int, int], where: int,
) -> None:  # fmt: skip
    """delta' + c' delta^2 <= delta at mu, from the policy after ks[0] updates to the one after ks[1]."""
    deltas = run.gaps_at_mu([values[k] for k in ks]) - run.slack
    checks.compare(name, rates.recursion(np.maximum(deltas, 0.0), rate.c_mu), 2 * run.rounding, where)


def check_randomized(run: CheckedRun, checks: Checklist) -> None:
    """Theorem 4: the expected step, exactly, at some policies; the rate on the mean over seeds."""
    rule, large = run.record.rule, run.mdp.n_states > SEEDS_ABOVE
    expectation = f"an expectation; checked up to {SEEDS_ABOVE} states only" if large else ""
    if checks.skip(RANDOMIZED, run.other_rule(Randomized) or below_log(run) or expectation):
        return
    assert isinstance(rule, Randomized)
    iterations = _seed_iterations(run, run.max_steps)
    changing = callable(rule.d_gen)
    draws = [rule.distribution(run.mdp, i) for i in range(1, (iterations if changing else 1) + 1)]
    _check_expected_step(run, checks, rule)
    both = [rates.randomized_rate(run.mdp, run.mu, np.stack(draws), form=form) for form in FORMS]
    points = np.unique(np.r_[0, np.geomspace(1, iterations, 200).round()]).astype(np.int64)
    for where, start in (("mu", run.mu), ("rho", run.mdp.start)):
        _check_seeds(run, checks, where, both, points, _seed_gaps(run, start, iterations, points))


def _check_seeds(
    run: CheckedRun, checks: Checklist, where: str, both: list[Rate], points: Ints, gaps: Floats
) -> None:
    """Rate (the same in both forms) and partial sums, on the mean of ``gaps`` (K, R) over seeds."""
    error, allowed, terms = _standard_error(gaps), run.rounding + run.engine, points[1:]
    statement = f"{RANDOMIZED}, rate at {where}, mean of seeds"
    checks.expect(statement, f"{len(gaps)} seeds, standard error at most {error.max() * run.scale:.2g}")
    bound = both[0].gap_mu(points) if where == "mu" else both[0].gap_rho(points)
    checks.compare(statement, Sides(gaps.mean(axis=0), bound), 3 * error + allowed, points)
    sums = np.array([partial_sums(points, row)[1] for row in gaps])
    for rate in both:
        bound = rate.sum_mu(terms) if where == "mu" else rate.sum_rho(terms)
        statement = f"{RANDOMIZED}, partial sums at {where}, mean of seeds, {rate.form}"
        checks.compare(
            statement, Sides(sums.mean(axis=0), bound), 3 * _standard_error(sums) + allowed * terms, terms
        )


def _standard_error(samples: Floats) -> Floats:
    if len(samples) < 2:
        return np.zeros(samples.shape[1])
    return np.asarray(samples.std(axis=0, ddof=1) / np.sqrt(len(samples)))


def _check_expected_step(run: CheckedRun, checks: Checklist, rule: Randomized) -> None:
    """c' delta^2 <= E[improvement], the expectation taken by trying every pair."""
    statement = f"{RANDOMIZED}, expected step (every pair tried)"
    pairs = run.mdp.n_states * run.mdp.n_actions
    ks = spread(len(run.trace), max(1, min(20, 4000 // pairs)))
    for k, log_policy in run.trace.policies(ks):
        now = PolicyValues(run.mdp, log_policy)
        d_gen = rule.distribution(run.mdp, k + 1)
        c_mu = rates.randomized_rate(run.mdp, run.mu, d_gen).c_mu
        gained = rates.expected_improvement(now, _successors(run, now), d_gen, run.mu)
        gap = max(float(run.mu @ (run.best.values - now.values)) - run.slack, 0.0)
        checks.compare(statement, Sides(np.asarray(c_mu * gap**2), np.asarray(gained)), 2 * run.rounding, k)


def _successors(run: CheckedRun, now: PolicyValues) -> Floats:
    """(S, A) V(mu) after the update of each pair."""
    tolerance = run.record.sign_tol / run.scale
    sign = np.where(np.abs(now.advantage) > tolerance, np.sign(now.advantage), 0).astype(np.int8)
    alpha = np.asarray(run.stepsize.alpha(now.log_policy, sign))
    out = np.full(sign.shape, float(run.mu @ now.values))
    for s, a in np.argwhere(sign).tolist():
        only = np.zeros(run.mdp.n_actions, np.int8)
        only[a] = sign[s, a]
        policy = now.policy.copy()
        policy[s] = np.exp(coordinate_update(now.log_policy[s], only, alpha[s]))
        out[s, a] = run.mu @ run.mdp.policy_values(policy)
    return out


def _seed_iterations(run: CheckedRun, most: int) -> int:
    """Iterations of the additional seeds: as many as the run made, if that takes seconds rather than minutes."""
    affordable = int(4e9 / (run.seeds * (run.mdp.n_states**2 + 50)))
    return min(run.record.iterations, most, max(200, affordable))


def _run_seeds(run: CheckedRun, mdp: MDP, iterations: int, **options: Any) -> ManyResult:
    """The same rule and step size with many seeds."""
    return solve_many(
        mdp, run.seeds, run.record.rule, run.stepsize,
        iterations=iterations, sign_tol=run.record.sign_tol, threads=2, **options,
    )  # fmt: skip


def _seed_gaps(run: CheckedRun, start: Floats, iterations: int, points: Any) -> Floats:
    """(K, R) V* - V at a start distribution, for many seeds of the same run."""
    mdp = run.record.mdp.with_start(start)
    many = _run_seeds(run, mdp, iterations, record=points, theta=run.trace.first, allow_violation=True)
    return np.asarray(start @ run.best.values - run.unit(many.value))


# --- on-policy ------------------------------------------------------------------------------------------------


def check_on_policy(run: CheckedRun, checks: Checklist) -> None:
    """The convergence theorem, on the share of seeds that came close, and its fixed-step counterpart."""
    rule = run.other_rule(OnPolicy)
    large = f"checked up to {SEEDS_ABOVE} states only" if run.mdp.n_states > SEEDS_ABOVE else ""
    if not checks.skip(ON_POLICY, rule or not_on_policy_step(run) or large):
        _check_on_policy_seeds(run, checks)
    if not checks.skip(STUCK, rule or not_fixed_step(run) or _not_three_arms(run)):
        _check_stuck(run, checks, run.stepsize.eta)


def _check_on_policy_seeds(run: CheckedRun, checks: Checklist) -> None:
    iterations = _seed_iterations(run, 10 * run.max_steps)
    gaps = _seed_gaps(run, run.mdp.start, iterations, [0, iterations])
    close = int((gaps[:, 1] <= 0.01 * gaps[:, 0] + run.rounding + run.engine).sum())
    checks.expect(
        ON_POLICY,
        f"lhs: mean gap after {iterations} iterations, rhs: initial gap; {close} of {len(gaps)} seeds within 1 % "
        "of it; the theorem is about the limit",
    )
    sides = Sides(np.asarray(gaps[:, 1].mean()), np.asarray(gaps[:, 0].mean()))
    checks.compare(ON_POLICY, sides, run.rounding + run.engine, iterations)
    if close < len(gaps):
        checks.leave_open(ON_POLICY)


def _not_three_arms(run: CheckedRun) -> str:
    reward, first = run.record.mdp.masked(run.record.mdp.reward), run.trace.first
    uniform = np.allclose(first, -np.log(first.shape[1]), rtol=0, atol=1e-12)
    if reward.shape == (1, 3) and uniform and reward[0, 0] == -reward[0, 2] and 0 < reward[0, 1] < reward[0, 0]:
        return ""
    return "it is about three arms with rewards (r, r', -r), 0 < r' < r, from a uniform policy"


def _check_stuck(run: CheckedRun, checks: Checklist, eta: float) -> None:
    steps = int(np.clip(700 / eta, 1, 100))  # then pi of the other arms is still above the least number
    path = lemmas.stuck_path(eta, steps, run.record.mdp.reward[0])
    k = np.arange(steps + 1)
    for what, sides, factor, where in (
        ("A(a2) >= 0", lemmas.stuck_advantage(path), 1, k),
        ("theta(a2) = theta_1 + eta (t-1)", lemmas.stuck_theta(path, eta), 200 * (1 + eta), k),
        ("pi(a2) >= exp(-...)", lemmas.stuck_policy(path), 1, k),
        ("prod pi(a2) >= exp(-2 e^eta/eta)", lemmas.stuck_probability(eta), 1, 0),
    ):
        checks.compare(f"{STUCK}, {what}", sides, factor * run.weight_rounding, where)
    # Long enough for a probability to pass 1/2, however short the run was.
    iterations = max(1000, _seed_iterations(run, 10 * run.max_steps))
    many = _run_seeds(run, run.record.mdp, iterations, record=[iterations], track=(0, 1))
    assert many.tracked is not None
    share = float((many.tracked[:, -1] > 0.5).mean())
    bound = float(lemmas.stuck_probability_bound(eta))
    error = float(np.sqrt(bound * (1 - bound) / run.seeds))  # of the share, if the bound were the probability
    statement = f"{STUCK}, share of seeds on a2"
    found = f"{share:.0%} of {run.seeds} seeds have pi(a2) > 1/2"
    checks.expect(statement, f"{found}; standard error at the bound {error:.1%}")
    sides = Sides(np.asarray(bound), np.asarray(share))
    checks.compare(statement, sides, 3 * error + run.weight_rounding, iterations)


# --- baselines ------------------------------------------------------------------------------------------------


def check_baseline(run: CheckedRun, checks: Checklist) -> None:
    """The rates of policy gradient and natural policy gradient, for the steps and the start they hold for."""
    baseline = run.record.baseline
    assert baseline is not None
    uniform = uniform_log_policy(run.mdp)
    at_first = run.mdp.start @ PolicyValues(run.mdp, uniform).values
    elsewhere = abs(float(run.unit(run.record.history["value"][0])) - at_first) > 2 * run.engine
    not_uniform = "the run did not start from the uniform policy" if elsewhere else ""
    other = f"this is {baseline.method}"
    if not checks.skip(NPG, not_uniform if baseline.method == "natural policy gradient" else other):
        ks, gaps = gaps_rho(run)
        # theta += eta/(1-gamma) A in the original rewards is eta * scale in rewards within [0, 1].
        bound = rates.natural_gradient_rate(run.mdp, baseline.eta * run.scale, ks[1:])
        checks.compare(NPG, Sides(gaps[1:], bound), run.rounding + run.engine, ks[1:])
    step = f"its step is {run.record.settings.get('step size')}, not (1-gamma)^3/8"
    own = not_uniform or ("" if baseline.proven_step else step)
    if not checks.skip(PG, own if baseline.method == "policy gradient" else other):
        _check_policy_gradient(run, checks, uniform)


def _check_policy_gradient(run: CheckedRun, checks: Checklist, uniform: Floats) -> None:
    ks, gaps = gaps_rho(run)
    within = ks <= run.max_steps
    ks, gaps = ks[within], gaps[within]
    least, values = _replay(run, uniform, int(ks[-1]))
    again = run.mdp.start @ run.best.values - values[ks]
    differs = np.abs(again - gaps).max() > 1e-6 * (1 + np.abs(gaps).max())
    if checks.skip(PG, "repeating its steps with this mu gives different values" if differs else ""):
        return
    checks.expect(PG, f"inf pi(a*|s) = {least:.3g} by repeating its first {int(ks[-1])} steps")
    bound = rates.policy_gradient_rate(run.mdp, run.mu, run.best, least, ks)
    checks.compare(PG, Sides(gaps, bound), run.rounding + run.engine, ks)


def _replay(run: CheckedRun, log_policy: Floats, steps: int) -> tuple[float, Floats]:
    """Policy gradient repeated: inf of pi(a*|s) along ``steps`` steps, and V(rho) after each (steps + 1,)."""
    chosen = run.best.policy > 0.5
    least, values = 1.0, np.empty(steps + 1)
    for k in range(steps + 1):
        now = PolicyValues(run.mdp, log_policy)
        least, values[k] = min(least, float(now.policy[chosen].min())), run.mdp.start @ now.values
        step = (1 - run.mdp.gamma) ** 3 / 8 * lemmas.policy_gradient(now, run.mu)
        log_policy = log_normalise(log_policy + step)[0]
    return least, values
