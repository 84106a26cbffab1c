"""Statements about limits and events: their functions against plain code, their lines, what breaks them."""

import copy
import dataclasses
import math

import numpy as np
import pytest

import capo
from capo.tabular import theory
from capo.tabular.theory import limit_checks, limits
from capo.tabular.theory.lemmas import PolicyValues, optimal, theta_rows
from capo.update import StepSize

EVENTS = (limit_checks.RAISED, limit_checks.ABOVE, *limit_checks.IGNORED_FORMS)


@pytest.fixture(scope="module")
def mdp():
    return capo.mdps.random(4, 3, gamma=0.8, seed=1)


@pytest.fixture(scope="module")
def cyclic(mdp):
    return capo.solve(mdp, "cyclic")


@pytest.fixture(scope="module")
def on_policy():
    return capo.solve(capo.mdps.bandit(gamma=0.5), "on-policy", "on-policy", iterations=3000)


def log_policy(mdp, seed=0):
    theta = np.random.default_rng(seed).normal(size=(mdp.n_states, mdp.n_actions))
    return theta - np.log(np.exp(theta).sum(axis=1, keepdims=True))


def corrupted(result, **changes):
    """A copy of a run whose trace is changed: name=(index, new entry)."""
    copied = dataclasses.replace(result, trace=copy.deepcopy(result.trace))
    for name, (index, entry) in changes.items():
        getattr(copied.trace, name)[index] = entry
    return copied


def statuses(result):
    return {line.statement: line.status for line in result.certificate(seeds=5).lines}


# --- the functions --------------------------------------------------------------------------------------------


def test_sets_and_delta_by_hand():
    mdp = capo.MDP(np.ones((1, 4, 1)), [[1.0, 1.0, 0.75, 0.0]], 0.5)
    best = PolicyValues(mdp, np.log([[0.5, 0.5, 1e-300, 1e-300]]))
    sets = limits.limit_sets(best, 1e-12)
    assert sets.negative.tolist() == [[False, False, True, True]]
    assert sets.zero.tolist() == [[True, True, False, False]]
    assert not sets.positive.any()
    assert sets.delta == pytest.approx(0.25)
    stuck = limits.limit_sets(PolicyValues(mdp, np.log([[1e-300, 1e-300, 1.0, 1e-300]])), 1e-12)
    assert stuck.positive.tolist() == [[True, True, False, False]]
    everything = limits.limit_sets(
        PolicyValues(capo.MDP(np.ones((1, 2, 1)), [[1.0, 1.0]], 0.5), np.log([[0.5, 0.5]]))
    )
    assert math.isinf(everything.delta)


def test_strict_advantages_hold_once_the_gap_is_small_and_not_before(mdp):
    best = optimal(mdp)
    sets = limits.limit_sets(best, 1e-10)
    near = PolicyValues(mdp, np.log(0.999 * best.policy + 0.001 / 3))
    assert (best.values - near.values).max() < 0.75 * sets.delta
    assert limits.strict_advantages(near.advantage, sets).holds()
    worst = PolicyValues(mdp, np.log(np.where(np.eye(3)[best.q.argmin(axis=1)] > 0, 1 - 2e-9, 1e-9)))
    assert not limits.strict_advantages(worst.advantage, sets).holds()


def test_the_weight_of_the_worse_actions_is_bounded_by_the_gap_and_by_no_less(mdp):
    best = optimal(mdp)
    sets = limits.limit_sets(best, 1e-10)
    for seed in range(20):
        now = PolicyValues(mdp, log_policy(mdp, seed))
        assert limits.negative_weight(now.policy, now.values, best, sets).holds()
    one = capo.MDP(np.ones((1, 3, 1)), [[1.0, 0.75, 0.75]], 0.1)  # here it is off by a factor 1 - gamma only
    best, now = optimal(one), PolicyValues(one, np.log([[0.2, 0.5, 0.3]]))
    sets = limits.limit_sets(best, 1e-10)
    assert limits.negative_weight(now.policy, now.values, best, sets).ratio() == pytest.approx(0.9)
    almost = best.values - 0.8 * (best.values - now.values)
    assert not limits.negative_weight(now.policy, almost, best, sets).holds()


def test_positive_and_negative_advantages_balance_under_their_own_policy_only(mdp):
    now = PolicyValues(mdp, log_policy(mdp))
    assert limits.advantage_balance(now).holds(1e-12)
    other = PolicyValues(mdp, log_policy(mdp, 1))
    now.__dict__["policy"] = other.policy
    assert not limits.advantage_balance(now).holds(1e-12)


def test_weights_above_and_below_by_hand():
    mdp = capo.MDP(np.ones((1, 3, 1)), [[1.0, 0.5, 0.0]], 0.5)
    best = optimal(mdp)
    # The mean reward, 0.9 + 0.04, lies between 0.5 and 1, and (0.5 - 0) 0.02 <= (1 - 0.5) 0.9.
    good = limits.above_and_below(PolicyValues(mdp, np.log([[0.9, 0.08, 0.02]])), best)
    np.testing.assert_allclose([good.lhs[0], good.rhs[0]], [0.01, 0.45])
    assert good.holds()
    # The mean reward is 0.35: the weight below is larger, and A(b) = 0.15 > 0.
    bad = limits.above_and_below(PolicyValues(mdp, np.log([[0.2, 0.3, 0.5]])), best)
    assert bad.lhs.size == 1
    assert not bad.holds()


def test_the_bound_of_event_e4_is_the_product():
    for r in (0.05, 0.5, 1.0):
        m = np.arange(1, 8)
        for form, factors in (("repaired", (m + 1) / (m + 1 + r)), ("printed", 1 - r / (m + 1))):
            np.testing.assert_allclose(
                np.exp(-limits.ignored_bound(np.full(7, r), m, form)), np.cumprod(factors), rtol=1e-12
            )
        assert limits.ignored_bound(r, 10**12) > 20 * r  # without end: P(E4) = 0


def test_the_printed_inequality_of_event_e4_is_reversed():
    """a/(a+b) <= 1 - b/a is false; the product survives, since the line before it spends one visit too many."""
    a, b = 3.0, 1.0
    assert a / (a + b) > 1 - b / a
    r, k = np.linspace(0.01, 1, 50)[:, None], np.arange(1, 200)
    exact = np.cumsum(np.log1p(r / k), axis=1)  # theta_max grows by log(k) in k - 1 visits: k = 1 is the first
    assert (limits.ignored_bound(r, k, "printed") <= exact + 1e-12).all()
    assert (limits.ignored_bound(r, k, "repaired") <= limits.ignored_bound(r, k, "printed") + 1e-12).all()


def test_ignored_stretches_against_a_plain_loop():
    rng = np.random.default_rng(0)
    theta, action = rng.normal(size=(31, 3)), rng.integers(3, size=30)
    for which in range(3):
        sides, visits = limits.ignored(theta, action, which)
        expected, at, since, cost = [], [], 0, 0.0
        for j in range(30):
            if action[j] == which:
                since, cost = j + 1, 0.0
                continue
            pi = np.exp(theta[j]) / np.exp(theta[j]).sum()
            cost -= math.log(1 - pi[which])
            r = math.exp(theta[since, which] - theta[since].max()) / 3
            bound = sum(math.log((m + 1 + r) / (m + 1)) for m in range(1, j - since + 2))
            expected.append((bound, cost))
            at.append(j)
        assert visits.tolist() == at
        np.testing.assert_allclose(np.stack([sides.lhs, sides.rhs], axis=1), expected, rtol=1e-10)


def test_an_action_can_be_ignored_for_too_long_where_theta_max_grows_too_fast():
    """A fixed step breaks theta_max <= log(K+1), and with it the bound of event E4."""
    n, eta = 40, 1.0
    picked = np.zeros(n, int)
    fast = theta_rows(np.log(np.full(2, 0.5)), np.ones(n, int), np.full(n, eta), picked)
    sides, _ = limits.ignored(fast, picked, 1)
    assert not sides.holds(1e-9)
    step = StepSize("on-policy").with_defaults(2)
    alpha = step.zeta * np.log1p(1 / np.arange(1, n + 1))
    slow = theta_rows(np.log(np.full(2, 0.5)), np.ones(n, int), alpha, picked)
    assert limits.ignored(slow, picked, 1)[0].holds(1e-9)


def test_the_least_step_of_a_raised_action():
    beta, zeta, visits = 0.2, 0.25, np.array([1, 2, 50])
    assert limits.raised_enough(zeta * np.log1p(1 / visits), visits, beta, zeta).holds(1e-15)
    assert limits.raised_enough(np.full(3, np.log(1 / (1 - beta))), visits, beta, zeta).holds(1e-15)
    assert not limits.raised_enough(0.9 * zeta * np.log1p(1 / visits), visits, beta, zeta).holds(1e-15)


# --- along runs -----------------------------------------------------------------------------------------------


def test_a_run_to_the_end_holds_and_says_m1(cyclic):
    certificate = cyclic.certificate(seeds=5)
    assert certificate.held, str(certificate)
    strict = certificate.line(limit_checks.STRICT)
    assert strict.status == "held"
    # M_1 again, plainly: after the last policy at which an action of I- has A >= -Delta/4.
    best = optimal(cyclic.mdp)
    sets = limits.limit_sets(best, 1e-9)
    last = 0
    for k, row in cyclic.trace.policies(np.arange(len(cyclic.trace) + 1)):
        now = PolicyValues(cyclic.mdp, row)
        last = k + 1 if (now.advantage[sets.negative] >= -sets.delta / 4).any() else last
    assert f"M_1 = {last} " in strict.note
    for statement in (limit_checks.LOWERED, limit_checks.NEGATIVE, limit_checks.BALANCE):
        assert certificate.line(statement).status == "held"
    assert all(certificate.line(statement).status == "not applicable" for statement in EVENTS)


def test_a_run_that_has_just_begun_is_not_decided(mdp):
    found = statuses(capo.solve(mdp, "cyclic", iterations=2))
    assert found[limit_checks.STRICT] == found[limit_checks.NEGATIVE] == found[limit_checks.ORDER] == "not decided"
    assert found[limit_checks.LOWERED] == "not decided"


def test_a_fixed_step_has_no_such_lines(mdp):
    line = capo.solve(mdp, "cyclic", "fixed", eta=0.5, cycles=3).certificate(seeds=5).line(limit_checks.STRICT)
    assert line.status == "not applicable"
    assert "fixed step" in line.note


def test_on_policy_runs_hold_and_say_what_was_visited(on_policy):
    certificate = on_policy.certificate(seeds=5)
    assert certificate.held, str(certificate)
    for statement in EVENTS:
        assert certificate.line(statement).status == "held"
    note = certificate.line(limit_checks.ABOVE).note
    assert note.startswith("visits so far: I- ")
    assert sum(int(part.split()[1]) for part in note.partition(": ")[2].split(", ")) == 3000


@pytest.mark.parametrize("rule", ["cyclic", "batch", "randomized"])
def test_every_rule_keeps_them(mdp, rule):
    result = capo.solve(mdp, rule, iterations=3000 if rule == "randomized" else None)
    assert result.certificate(seeds=5).held


def test_a_late_policy_that_is_worse_breaks_a_strict(cyclic):
    spoiled = corrupted(cyclic, row=(len(cyclic.trace) - 1, np.log([0.05, 0.05, 0.9])))
    state = int(cyclic.trace.state[-1])
    best = int(optimal(cyclic.mdp).policy[state].argmax())
    spoiled.trace.row[-1] = np.log(np.where(np.arange(3) == best, 1e-3, (1 - 1e-3) / 2))
    assert statuses(spoiled)[limit_checks.STRICT] == "FAILED"


def test_a_late_visit_that_raises_a_worse_action_breaks_its_line(cyclic):
    sets = limits.limit_sets(optimal(cyclic.mdp), 1e-9)
    late = np.flatnonzero(sets.negative[cyclic.trace.state, cyclic.trace.action])[-1]
    assert cyclic.trace.sign[late] == -1
    assert statuses(corrupted(cyclic, sign=(late, 1)))[limit_checks.LOWERED] == "FAILED"
    half = corrupted(cyclic, alpha=(late, cyclic.trace.alpha[late] / 2))
    assert statuses(half)[limit_checks.LOWERED] == "FAILED"


def test_a_false_claim_of_convergence_breaks_the_weight(mdp):
    early = capo.solve(mdp, "cyclic", iterations=5)
    claimed = dataclasses.replace(early, gap_bound=1e-9, converged=True)
    assert statuses(claimed)[limit_checks.NEGATIVE] == "FAILED"


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("strict_advantages", limit_checks.STRICT),
        ("lowered_enough", limit_checks.LOWERED),
        ("negative_weight", limit_checks.NEGATIVE),
        ("advantage_balance", limit_checks.BALANCE),
        ("above_and_below", limit_checks.ORDER),
    ],
)
def test_a_statement_that_is_violated_fails_its_line_and_no_other(monkeypatch, cyclic, name, statement):
    violated = theory.Sides(np.array([2.0]), np.array([1.0]))
    monkeypatch.setattr(limits, name, lambda *_, **__: violated)
    monkeypatch.setattr(limit_checks, "spread", lambda total, _: np.arange(min(total, 3)))
    found = cyclic.certificate(seeds=5)
    assert {line.statement for line in found.failed} == {statement}


def test_corrupted_on_policy_records_break_the_events(on_policy):
    up = np.flatnonzero(on_policy.trace.sign > 0)
    late = int(up[len(up) // 2])
    small = corrupted(on_policy, alpha=(late, 0.5 * on_policy.trace.alpha[late]))
    assert statuses(small)[limit_checks.RAISED] == "FAILED"
    action = int(on_policy.trace.action[late])
    row = np.where(np.arange(4) == action, 1e-4, (1 - 1e-4) / 3)
    assert statuses(corrupted(on_policy, row=(late, np.log(row))))[limit_checks.ABOVE] == "FAILED"
    # A jump of theta_max: the other actions are ignored for longer than they may be.
    jump = corrupted(on_policy, alpha=(int(up[0]), 60.0))
    assert all(statuses(jump)[statement] == "FAILED" for statement in limit_checks.IGNORED_FORMS)
