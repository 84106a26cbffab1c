"""Lines about the theorems: convergence and the 1/m rates, on the run itself and on the mean of many seeds."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from capo.tabular.coordinates import Batch, Cyclic, OnPolicy, Randomized
from capo.tabular.mdp import Floats
from capo.tabular.theory import lemmas
from capo.tabular.theory.certificate import Book
from capo.tabular.theory.evaluation import Evaluated, Sides
from capo.tabular.theory.rates import (
    Rate,
    batch_rate,
    cycle_improvement,
    cyclic_rate,
    expected_improvement,
    natural_gradient_rate,
    policy_gradient_rate,
    randomized_rate,
    recursion,
)
from capo.tabular.theory.run import Ints, Run, policies, spread
from capo.tabular.theory.steps import below_log, exactly_log
from capo.update import coordinate_update, log_normalise

THEOREM_1 = "Theorem 1 (V -> V*)"
CYCLIC, BATCH, RANDOMIZED = "Theorem 2 (cyclic)", "Theorem 3 (batch)", "Theorem 4 (randomized)"
ON_POLICY = "Theorem (on-policy CAPO converges)"
STUCK = "Theorem (fixed step on-policy gets stuck)"
PG, NPG = "Rate of policy gradient (Mei et al.)", "Rate of natural policy gradient (Agarwal et al.)"
SEEDS_ABOVE = 200  # states above which no further seeds are run


# --- gaps of the run itself -----------------------------------------------------------------------------------


def gaps_mu(run: Run, values: dict[int, Floats]) -> tuple[Ints, Floats]:
    """Iterations k and V*(mu) - V(mu) after k updates, evaluated independently."""
    ks = np.array(sorted(values), np.int64)
    return ks, np.array([run.mu @ (run.best.values - values[k]) for k in ks.tolist()])


def gaps_rho(run: Run) -> tuple[Ints, Floats]:
    """Iterations k and V*(rho) - V(rho) after k updates: the trace's recorded values, then the history's."""
    history = run.result.history
    ks, recorded = history["iteration"].astype(np.int64), history["value"]
    if run.result.trace is not None:
        n = len(run.trace)
        beyond = ks > n
        ks = np.concatenate([ks[:1], np.arange(1, n + 1), ks[beyond]])
        recorded = np.concatenate([recorded[:1], run.trace.value, recorded[beyond]])
    return ks, run.mdp.start @ run.best.values - run.unit(recorded)


def partial_sums(ks: Ints, gaps: Floats) -> tuple[Ints, Floats]:
    """M and at least the sum of the first M gaps, at the known iterations: between them the last known one stands
    in, which is never too small since gaps do not grow."""
    spans = np.diff(np.r_[ks, ks[-1] + 1])
    return ks[1:], np.cumsum(gaps * spans)[:-1]


def check_rate(run: Run, book: Book, name: str, rate: Rate, values: dict[int, Floats], printed: bool) -> None:
    """Rate and partial sums at mu and at rho. ``printed``: whether the printed rate differs from the repaired."""
    suffix = f", {rate.form}"
    for where, (ks, gaps), gap_bound, sum_bound, rounding in (
        ("mu", gaps_mu(run, values), rate.gap_mu, rate.sum_mu, 2 * run.rounding),
        ("rho", gaps_rho(run), rate.gap_rho, rate.sum_rho, run.rounding + run.engine_at(run.result.gap_bound)),
    ):
        known = np.maximum(gaps - run.slack, 0.0)
        if rate.form == "repaired" or printed:
            statement = f"{name}, rate at {where}{suffix if printed else ''}"
            book.add(statement, Sides(known, gap_bound(ks)), rounding, ks)
        terms, sums = partial_sums(ks, known)
        statement = f"{name}, partial sums at {where}{suffix}"
        book.add(statement, Sides(sums, sum_bound(terms)), rounding * terms, terms)


# --- the theorems ---------------------------------------------------------------------------------------------


def check_convergence(run: Run, book: Book, first: Floats, gap: float, visited: bool) -> None:
    """Theorem 1: the gap now, at the covered states."""
    reason = below_log(run) or ("" if visited else "Condition 1 is not met so far")
    if reason:
        book.skip(THEOREM_1, reason)
        return
    result = run.result
    initial = float((run.best.values - first)[result.covered].max())
    target = result.gap_bound / run.scale if result.converged else initial
    goal = "the certified tolerance was reached" if result.converged else "the limit is not reached yet"
    book.expect(THEOREM_1, f"largest gap now {gap * run.scale:.3g}, at first {initial * run.scale:.3g}; {goal}")
    allowed = run.rounding + run.engine_at(result.gap_bound)
    book.add(THEOREM_1, Sides(np.asarray(gap), np.asarray(target)), allowed, result.iterations)


def cycle_ends(run: Run) -> Ints:
    """(n, 2) beginnings and ends, in updates, of the whole cycles that are checked."""
    if not isinstance(run.result.rule, Cyclic):
        return np.empty((0, 2), np.int64)
    length = run.result.cycle_length
    starts = spread(len(run.trace) // length, len(run.steps)) * length
    return np.stack([starts, starts + length], axis=1)


def check_cyclic(run: Run, book: Book, values: dict[int, Floats]) -> None:
    """Theorem 2 with both constants, and the improvement per cycle it rests on."""
    reason = "" if isinstance(run.result.rule, Cyclic) else "the rule is not cyclic"
    reason = reason or below_log(run)
    if reason:
        book.skip(CYCLIC, reason)
        return
    length, ends = run.result.cycle_length, cycle_ends(run)
    if len(ends) == 0:
        for what in ("improvement per cycle at s~", "recursion at mu, repaired", "recursion at mu, printed"):
            book.skip(f"{CYCLIC}, {what}", f"the trace is shorter than a cycle of {length} updates")
    for (_, log_policy), (k, end) in zip(policies(run.trace, ends[:, 0]), ends.tolist(), strict=True):
        now = Evaluated(run.mdp, log_policy)
        tolerance = run.slack * (1 - run.mdp.gamma)
        sides = cycle_improvement(now, values[end], length=length, tolerance=tolerance)
        book.add(f"{CYCLIC}, improvement per cycle at s~", sides, 2 * run.rounding, k)
    forms: tuple[lemmas.Form, ...] = ("repaired", "printed")
    rates = [cyclic_rate(run.mdp, run.mu, length=length, form=form) for form in forms]
    for rate in rates:
        for k, end in ends.tolist():
            deltas = np.array([run.mu @ (run.best.values - values[i]) for i in (k, end)]) - run.slack
            sides = recursion(np.maximum(deltas, 0.0), rate.c_mu)
            book.add(f"{CYCLIC}, recursion at mu, {rate.form}", sides, 2 * run.rounding, k)
    for rate in rates:
        check_rate(run, book, CYCLIC, rate, values, printed=True)


def check_batch(run: Run, book: Book, values: dict[int, Floats]) -> None:
    """Theorem 3. Its rate is the same printed and repaired; the partial sums are not."""
    reason = "" if isinstance(run.result.rule, Batch) else "the rule is not batch"
    reason = reason or exactly_log(run)
    if reason:
        book.skip(BATCH, reason)
        return
    for t in run.steps.tolist():
        deltas = np.array([run.mu @ (run.best.values - values[k]) for k in (t, t + 1)]) - run.slack
        sides = recursion(np.maximum(deltas, 0.0), batch_rate(run.mdp, run.mu).c_mu)
        book.add(f"{BATCH}, recursion at mu", sides, 2 * run.rounding, t + 1)
    for form in ("repaired", "printed"):
        check_rate(run, book, BATCH, batch_rate(run.mdp, run.mu, form=form), values, printed=False)


def check_randomized(run: Run, book: Book) -> None:
    """Theorem 4: the expected step exactly at some policies, the rate on the mean over seeds."""
    rule = run.result.rule
    reason = "" if isinstance(rule, Randomized) else "the rule is not randomized"
    reason = reason or below_log(run)
    if reason:
        book.skip(RANDOMIZED, reason)
        return
    assert isinstance(rule, Randomized)
    if run.mdp.n_states > SEEDS_ABOVE:
        book.skip(RANDOMIZED, f"an expectation, which is checked up to {SEEDS_ABOVE} states")
        return
    iterations = _seed_iterations(run, run.max_steps)
    changing = callable(rule.d_gen)
    draws = [rule.distribution(run.mdp, i) for i in range(1, (iterations if changing else 1) + 1)]
    _check_expected_step(run, book, rule)
    forms: tuple[lemmas.Form, ...] = ("repaired", "printed")
    rates = [randomized_rate(run.mdp, run.mu, np.stack(draws), form=form) for form in forms]
    points = np.unique(np.r_[0, np.geomspace(1, iterations, 200).round()]).astype(np.int64)
    for where, start in (("mu", run.mu), ("rho", run.mdp.start)):
        _check_seeds(run, book, where, rates, points, _seed_gaps(run, start, iterations, points))


def _check_seeds(run: Run, book: Book, where: str, rates: list[Rate], points: Ints, gaps: Floats) -> None:
    """Rate (the same in both forms) and partial sums, on the mean of ``gaps`` (K, R) over seeds."""
    error, allowed, terms = _standard_error(gaps), run.rounding + run.engine, points[1:]
    statement = f"{RANDOMIZED}, rate at {where}, mean of seeds"
    book.expect(statement, f"{len(gaps)} seeds, standard error at most {error.max() * run.scale:.2g}")
    bound = rates[0].gap_mu(points) if where == "mu" else rates[0].gap_rho(points)
    book.add(statement, Sides(gaps.mean(axis=0), bound), 3 * error + allowed, points)
    sums = np.array([partial_sums(points, row)[1] for row in gaps])
    for rate in rates:
        bound = rate.sum_mu(terms) if where == "mu" else rate.sum_rho(terms)
        statement = f"{RANDOMIZED}, partial sums at {where}, mean of seeds, {rate.form}"
        book.add(statement, Sides(sums.mean(axis=0), bound), 3 * _standard_error(sums) + allowed * terms, terms)


def _standard_error(samples: Floats) -> Floats:
    if len(samples) < 2:
        return np.zeros(samples.shape[1])
    return np.asarray(samples.std(axis=0, ddof=1) / np.sqrt(len(samples)))


def _check_expected_step(run: Run, book: Book, rule: Randomized) -> None:
    """c' delta^2 <= E[improvement], the expectation taken by trying every pair."""
    statement = f"{RANDOMIZED}, expected step (every pair tried)"
    pairs = run.mdp.n_states * run.mdp.n_actions
    ks = spread(len(run.trace), max(1, min(20, 4000 // pairs)))
    for k, log_policy in policies(run.trace, ks):
        now = Evaluated(run.mdp, log_policy)
        d_gen = rule.distribution(run.mdp, k + 1)
        c_mu = randomized_rate(run.mdp, run.mu, d_gen).c_mu
        gained = expected_improvement(now, _successors(run, now), d_gen, run.mu)
        gap = max(float(run.mu @ (run.best.values - now.values)) - run.slack, 0.0)
        book.add(statement, Sides(np.asarray(c_mu * gap**2), np.asarray(gained)), 2 * run.rounding, k)


def _successors(run: Run, now: Evaluated) -> Floats:
    """(S, A) V(mu) after the update of each pair."""
    step = run.result.stepsize
    assert step is not None
    tolerance = run.result.sign_tol / run.scale
    sign = np.where(np.abs(now.advantage) > tolerance, np.sign(now.advantage), 0).astype(np.int8)
    alpha = np.asarray(step.alpha(now.log_policy, sign))
    out = np.full(sign.shape, float(run.mu @ now.values))
    for s, a in np.argwhere(sign).tolist():
        only = np.zeros(run.mdp.n_actions, np.int8)
        only[a] = sign[s, a]
        policy = now.policy.copy()
        policy[s] = np.exp(coordinate_update(now.log_policy[s], only, alpha[s]))
        out[s, a] = run.mu @ run.mdp.policy_values(policy)
    return out


def _seed_iterations(run: Run, most: int) -> int:
    """Iterations of the further seeds: those of the run, or what takes seconds rather than minutes."""
    affordable = int(4e9 / (run.seeds * (run.mdp.n_states**2 + 50)))
    return min(run.result.iterations, most, max(200, affordable))


def _seed_gaps(run: Run, start: Floats, iterations: int, points: Any) -> Floats:
    """(K, R) V* - V at a start distribution, for many seeds of the same run."""
    from capo.tabular.solver import solve_many

    original, result = run.result.mdp, run.result
    assert result.stepsize is not None
    many = solve_many(
        original.with_start(start), run.seeds, result.rule, result.stepsize, iterations=iterations, record=points,
        theta=run.trace.first, sign_tol=result.sign_tol, allow_violation=True, threads=2,
    )  # fmt: skip
    return np.asarray(start @ run.best.values - run.unit(many.value))


# --- on-policy ------------------------------------------------------------------------------------------------


def check_on_policy(run: Run, book: Book) -> None:
    """The convergence theorem, as the share of seeds that have come close, and its fixed-step counterpart."""
    step, rule = run.result.stepsize, run.result.rule
    assert step is not None
    reason = "" if isinstance(rule, OnPolicy) else "the rule is not on-policy"
    wrong = "" if step.kind == "on-policy" else "the step size is not the on-policy one"
    broken = "; ".join(step.violations(run.mdp.n_actions)) if step.kind == "on-policy" else ""
    large = f"checked up to {SEEDS_ABOVE} states" if run.mdp.n_states > SEEDS_ABOVE else ""
    if reason or wrong or broken or large:
        book.skip(ON_POLICY, reason or wrong or broken or large)
    else:
        _check_on_policy_seeds(run, book)
    bandit = "" if step.kind == "fixed" else "the step size is not fixed"
    bandit = reason or bandit or _not_three_arms(run)
    if bandit:
        book.skip(STUCK, bandit)
    else:
        _check_stuck(run, book, step.eta)


def _check_on_policy_seeds(run: Run, book: Book) -> None:
    iterations = _seed_iterations(run, 10 * run.max_steps)
    gaps = _seed_gaps(run, run.mdp.start, iterations, [0, iterations])
    close = int((gaps[:, 1] <= 0.01 * gaps[:, 0] + run.rounding + run.engine).sum())
    book.expect(
        ON_POLICY,
        f"lhs: mean gap after {iterations} iterations, rhs: gap at first; {close} of {len(gaps)} seeds within 1 % "
        "of it; the theorem speaks of the limit",
    )
    sides = Sides(np.asarray(gaps[:, 1].mean()), np.asarray(gaps[:, 0].mean()))
    book.add(ON_POLICY, sides, run.rounding + run.engine, iterations)


def _not_three_arms(run: Run) -> str:
    reward, first = run.result.mdp.reward, run.trace.first
    uniform = np.allclose(first, -np.log(first.shape[1]), rtol=0, atol=1e-12)
    if reward.shape == (1, 3) and uniform and reward[0, 0] == -reward[0, 2] and 0 < reward[0, 1] < reward[0, 0]:
        return ""
    return "it speaks of three arms with rewards (r, r', -r), 0 < r' < r, from a uniform policy"


def _check_stuck(run: Run, book: Book, eta: float) -> None:
    from capo.tabular.solver import solve_many

    assert run.result.stepsize is not None
    steps = int(np.clip(700 / eta, 1, 100))  # then pi of the other arms is still above the least number
    path = lemmas.stuck_path(eta, steps, run.result.mdp.reward[0])
    k = np.arange(steps + 1)
    book.add(f"{STUCK}, A(a2) >= 0", lemmas.stuck_advantage(path), run.weight_rounding, k)
    rounding = 200 * (1 + eta) * run.weight_rounding
    book.add(f"{STUCK}, theta(a2) = theta_1 + eta (t-1)", lemmas.stuck_theta(path, eta), rounding, k)
    book.add(f"{STUCK}, pi(a2) >= exp(-...)", lemmas.stuck_policy(path), run.weight_rounding, k)
    book.add(f"{STUCK}, prod pi(a2) >= exp(-2 e^eta/eta)", lemmas.stuck_probability(eta), run.weight_rounding, 0)
    # Long enough for a probability to pass 1/2, however short the run was.
    iterations = max(1000, _seed_iterations(run, 10 * run.max_steps))
    many = solve_many(
        run.result.mdp, run.seeds, run.result.rule, run.result.stepsize, iterations=iterations,
        record=[iterations], track=(0, 1), sign_tol=run.result.sign_tol, threads=2,
    )  # fmt: skip
    assert many.tracked is not None
    share = float((many.tracked[:, -1] > 0.5).mean())
    bound = float(lemmas.stuck_probability_bound(eta))
    error = float(np.sqrt(bound * (1 - bound) / run.seeds))  # of the share, if the bound were the probability
    statement = f"{STUCK}, share of seeds on a2"
    book.expect(
        statement, f"{share:.0%} of {run.seeds} seeds have pi(a2) > 1/2; standard error at the bound {error:.1%}"
    )
    sides = Sides(np.asarray(bound), np.asarray(share))
    book.add(statement, sides, 3 * error + run.weight_rounding, iterations)


# --- baselines ------------------------------------------------------------------------------------------------


def check_baseline(run: Run, book: Book) -> None:
    """The rates of policy gradient and natural policy gradient where the settings say that they apply."""
    name, step = run.result.algorithm, str(run.result.settings.get("step size", ""))
    uniform = np.full((run.mdp.n_states, run.mdp.n_actions), -np.log(run.mdp.n_actions))
    history = run.result.history
    at_first = run.mdp.start @ Evaluated(run.mdp, uniform).values
    elsewhere = abs(float(run.unit(history["value"][0])) - at_first) > 2 * run.engine
    not_uniform = "it did not start from the uniform policy" if elsewhere else ""
    ks, gaps = gaps_rho(run)
    eta = re.search(r"eta=([0-9.e+-]+)", step)
    if name == "natural policy gradient" and eta is not None and not not_uniform:
        # theta += eta/(1-gamma) A in the original rewards is eta * scale in rewards within [0, 1].
        bound = natural_gradient_rate(run.mdp, float(eta[1]) * run.scale, ks[1:])
        book.add(NPG, Sides(gaps[1:], bound), run.rounding + run.engine, ks[1:])
    else:
        book.skip(NPG, not_uniform if name == "natural policy gradient" else f"this is {name}")
    if name == "policy gradient" and step.startswith("(1-gamma)^3/8") and not not_uniform:
        _check_policy_gradient(run, book, uniform)
    elif name == "policy gradient":
        book.skip(PG, not_uniform or f"its step is {step}, not (1-gamma)^3/8")
    else:
        book.skip(PG, f"this is {name}")


def _check_policy_gradient(run: Run, book: Book, uniform: Floats) -> None:
    ks, gaps = gaps_rho(run)
    within = ks <= run.max_steps
    ks, gaps = ks[within], gaps[within]
    least, values = _replay(run, uniform, int(ks[-1]))
    again = run.mdp.start @ run.best.values - values[ks]
    if np.abs(again - gaps).max() > 1e-6 * (1 + np.abs(gaps).max()):
        book.skip(PG, "making its steps again with this mu gives other values")
        return
    book.expect(PG, f"inf pi(a*|s) = {least:.3g} by making its first {int(ks[-1])} steps again")
    bound = policy_gradient_rate(run.mdp, run.mu, run.best, least, ks)
    book.add(PG, Sides(gaps, bound), run.rounding + run.engine, ks)


def _replay(run: Run, log_policy: Floats, steps: int) -> tuple[float, Floats]:
    """Policy gradient made again: inf of pi(a*|s) along ``steps`` steps, and V(rho) after each (steps + 1,)."""
    chosen = run.best.policy > 0.5
    least, values = 1.0, np.empty(steps + 1)
    for k in range(steps + 1):
        now = Evaluated(run.mdp, log_policy)
        least, values[k] = min(least, float(now.policy[chosen].min())), run.mdp.start @ now.values
        step = (1 - run.mdp.gamma) ** 3 / 8 * lemmas.policy_gradient(now, run.mu)
        log_policy = log_normalise(log_policy + step)[0]
    return least, values
