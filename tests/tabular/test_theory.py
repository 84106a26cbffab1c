"""Every statement as a function: it holds where it should, and is violated by what should violate it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

import capo
from capo.tabular import baselines, theory
from capo.tabular.theory import evaluate
from capo.update import StepSize, coordinate_update

ROUNDING = 1e-11  # values of these MDPs are at most 10 and gamma at most 0.9: rounding is below 1e-13


def random_mdp(seed: int, n_states: int = 4, n_actions: int = 3, gamma: float = 0.9) -> capo.MDP:
    rng = np.random.default_rng(seed)
    transition = rng.dirichlet(np.full(n_states, 0.3), (n_states, n_actions))
    start = rng.dirichlet(np.ones(n_states))
    return capo.MDP(transition, rng.random((n_states, n_actions)), gamma, start)


def random_policy(mdp: capo.MDP, seed: int, spread: float = 2.0) -> theory.PolicyValues:
    theta = spread * np.random.default_rng(seed).standard_normal((mdp.n_states, mdp.n_actions))
    return evaluate(mdp, theta=theta)


def one_update(old, state, action, *, multiple=1.0, flip=False):
    """The policy after one coordinate with alpha = multiple * log 1/pi, and the sign taken."""
    signs = np.zeros(old.policy.shape, np.int8)
    signs[state, action] = np.sign(old.advantage[state, action]) * (-1 if flip else 1)
    new = coordinate_update(old.log_policy, signs, -multiple * old.log_policy)
    return evaluate(old.mdp, log_policy=new), int(signs[state, action])


def batch_update(old, multiple=1.0):
    signs = np.sign(old.advantage).astype(np.int8)
    return evaluate(
        old.mdp, log_policy=coordinate_update(old.log_policy, signs, -multiple * old.log_policy)
    ), signs


def every_pair(seed=0):
    mdp = random_mdp(seed)
    old = random_policy(mdp, seed)
    return [(old, s, a) for s in range(mdp.n_states) for a in range(mdp.n_actions)]


# --- sides ------------------------------------------------------------------------------------------------------


def test_sides_hold_up_to_rounding_and_never_on_nan():
    assert theory.Sides(np.array([1.0, 2.0]), np.array([1.0, 2.0])).holds()
    assert not theory.Sides(np.array([1.1]), np.array([1.0])).holds(0.05)
    assert theory.Sides(np.array([1.1]), np.array([1.0])).holds(0.2)
    assert theory.Sides(np.array([-3.0]), np.array([0.0])).holds()
    assert not theory.Sides(np.array([0.0]), np.array([-1.0])).holds(0.5)
    assert theory.Sides(np.array([2.0]), np.array([2.0]), "=").holds()
    assert not theory.Sides(np.array([2.0]), np.array([2.1]), "=").holds(0.05)
    for bad in (np.nan, np.inf):
        assert not theory.Sides(np.array([bad]), np.array([1.0])).holds(1.0)
        assert not theory.Sides(np.array([bad]), np.array([1.0]), "=").holds(1.0)
    assert not theory.Sides(np.array([1.0]), np.array([np.nan])).holds(1.0)


# --- one policy -------------------------------------------------------------------------------------------------


def test_visitation_is_the_discounted_sum_over_time():
    mdp = random_mdp(0)
    now = random_policy(mdp, 0)
    d = theory.visitation(mdp, now.policy)
    assert d.shape == (4, 4)
    np.testing.assert_allclose(d.sum(axis=1), 1)
    transition, power, total = mdp.policy_transition(now.policy), np.eye(4), np.zeros((4, 4))
    for t in range(600):
        total += (1 - mdp.gamma) * mdp.gamma**t * power
        power = power @ transition
    np.testing.assert_allclose(d, total, atol=1e-12)
    mu = np.array([0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(now.visitation_from(mu), mu @ d)
    np.testing.assert_allclose(now.visitation_to(2), d[:, 2])
    np.testing.assert_allclose(now.expected(np.arange(4.0)), d @ np.arange(4.0))


def test_advantage_and_its_mean_under_the_policy():
    mdp = random_mdp(1)
    now = random_policy(mdp, 1)
    np.testing.assert_allclose(theory.advantage(mdp, now.policy), now.advantage, atol=1e-13)
    assert theory.advantage_sum(now).holds(ROUNDING)
    now.advantage = now.advantage + 1e-6
    assert not theory.advantage_sum(now).holds(ROUNDING)


def test_policy_gradient_equals_finite_differences():
    mdp = random_mdp(2)
    theta = np.random.default_rng(2).standard_normal((4, 3))
    mu = np.array([0.1, 0.2, 0.3, 0.4])
    gradient = theory.policy_gradient(evaluate(mdp, theta=theta), mu)
    for s, a in np.ndindex(4, 3):
        step = np.zeros((4, 3))
        step[s, a] = 1e-5
        up, down = (mu @ evaluate(mdp, theta=theta + sign * step).values for sign in (1, -1))
        assert (up - down) / 2e-5 == pytest.approx(gradient[s, a], abs=1e-8)


def test_policy_gradient_along_a_direction_and_a_wrong_one():
    now = random_policy(random_mdp(3), 3)
    mu = np.full(4, 0.25)
    direction = np.random.default_rng(3).standard_normal((4, 3))
    assert theory.policy_gradient_along(now, mu, direction).holds(1e-12)
    now.advantage = 1.001 * now.advantage
    assert not theory.policy_gradient_along(now, mu, direction).holds(1e-12)


def test_advantage_bound_needs_rewards_in_the_unit_interval():
    for seed in range(5):
        assert theory.advantage_bound(random_policy(random_mdp(seed), seed)).holds(ROUNDING)
    assert not theory.advantage_bound(evaluate(capo.mdps.bandit([10.0, 0.0]), [[0.5, 0.5]])).holds(ROUNDING)


def test_gap_by_the_greatest_advantage():
    for seed in range(5):
        mdp = random_mdp(seed)
        assert theory.gap_by_advantage(random_policy(mdp, seed), theory.optimal(mdp)).holds(ROUNDING)
    bandit = capo.mdps.bandit([1.0, 0.0])  # there it is an equality
    now = evaluate(bandit, [[0.3, 0.7]])
    assert theory.gap_by_advantage(now, theory.optimal(bandit)).holds(ROUNDING)
    now.advantage = 0.999 * now.advantage
    assert not theory.gap_by_advantage(now, theory.optimal(bandit)).holds(ROUNDING)


def test_gap_at_rho_against_mu_is_tight_up_to_the_discount():
    for seed in range(5):
        mdp = random_mdp(seed)
        now, best = random_policy(mdp, seed), theory.optimal(mdp)
        assert theory.gap_at_rho(now, best, np.array([0.1, 0.2, 0.3, 0.4])).holds(ROUNDING)
    apart = capo.MDP(np.eye(2)[:, None].repeat(2, axis=1), [[1.0, 1.0], [0.0, 1.0]], 0.5, [0.0, 1.0])
    now, best = evaluate(apart, np.full((2, 2), 0.5)), theory.optimal(apart)
    sides = theory.gap_at_rho(now, best, np.array([0.9, 0.1]))
    assert sides.holds(ROUNDING)
    assert not theory.Sides(sides.lhs, 0.49 * sides.rhs).holds(ROUNDING)  # without 1/(1-gamma) it would be equal


def test_visitation_bound_is_tight_at_a_state_that_is_left_for_ever():
    mdp = capo.mdps.chain(4)
    mu = np.full(5, 0.2)
    sides = theory.visitation_bound(evaluate(mdp, np.full((5, 2), 0.5)), mu)
    assert sides.holds(1e-14)
    assert sides.ratio(0.0)[1] == pytest.approx(1)
    assert not theory.Sides(1.01 * sides.lhs, sides.rhs).holds(1e-14)


def test_optimal_is_value_iteration_and_ends_on_ties():
    for seed in range(5):
        mdp = random_mdp(seed)
        values = np.zeros(4)
        for _ in range(500):
            values = mdp.q_values(values).max(axis=1)
        for first in (None, np.zeros(4, int)):
            np.testing.assert_allclose(theory.optimal(mdp, first=first).values, values, atol=1e-12)
    tied = capo.MDP(np.full((3, 4, 3), 1 / 3), np.full((3, 4), 0.1), 0.99)
    np.testing.assert_allclose(theory.optimal(tied).values, 10)


def test_sparse_evaluation_equals_dense():
    sparse = capo.mdps.slippery_grid(40)  # 1600 states: factorised as a sparse matrix
    assert sparse.is_sparse
    dense = capo.MDP(sparse.rows.toarray().reshape(1600, 4, 1600), sparse.reward, sparse.gamma, sparse.start)
    policy = np.random.default_rng(0).dirichlet(np.ones(4), 1600)
    ours, plain = evaluate(sparse, policy), evaluate(dense, policy)
    np.testing.assert_allclose(ours.values, plain.values, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ours.visitation_from(sparse.start), plain.visitation_from(sparse.start), atol=1e-12)


# --- two policies -----------------------------------------------------------------------------------------------


def test_performance_difference_of_any_two_policies():
    mdp = random_mdp(4)
    new, old = random_policy(mdp, 4), random_policy(mdp, 5)
    assert theory.performance_difference(new, old).holds(ROUNDING)
    new.values = new.values + 1e-6
    assert not theory.performance_difference(new, old).holds(ROUNDING)


@pytest.mark.parametrize("multiple", [0.01, 1.0, 7.0])
def test_lemma_1_for_any_step_size_and_not_for_the_wrong_sign(multiple):
    for old, s, a in every_pair():
        new, _ = one_update(old, s, a, multiple=multiple)
        assert theory.improvement(new, old).holds(ROUNDING)
        worse, _ = one_update(old, s, a, multiple=multiple, flip=True)
        assert not theory.improvement(worse, old).holds(ROUNDING)
    assert theory.improvement(batch_update(old, multiple)[0], old).holds(ROUNDING)


def test_lemma_1_is_an_equality_at_states_that_never_meet_the_update():
    mdp = capo.mdps.chain(4)
    old = evaluate(mdp, np.full((5, 2), 0.5))
    new, _ = one_update(old, 1, 1)
    gained = new.values - old.values
    assert gained[1] > 0.1
    np.testing.assert_allclose(
        gained[2:], 0, atol=1e-12
    )  # so the strict inequality of the printed proof cannot hold


def test_half_bound_and_its_need_of_large_steps():
    for seed in range(5):
        old = random_policy(random_mdp(seed), seed)
        new, signs = batch_update(old)
        assert theory.half_bound(new, old, signs).holds(1e-14)
    bandit = evaluate(capo.mdps.bandit([1.0, 0.0]), [[0.1, 0.9]])
    signs = np.array([[1, 0]])
    small = coordinate_update(bandit.log_policy, signs, -0.1 * bandit.log_policy)
    assert not theory.half_bound(evaluate(bandit.mdp, log_policy=small), bandit, signs).holds(1e-14)


# --- policy weights ---------------------------------------------------------------------------------------------


def test_weight_change_for_the_exact_step_only():
    for old, s, a in every_pair():
        new, sign = one_update(old, s, a)
        row, after = old.log_policy[s], new.log_policy[s]
        assert theory.weight_change_sides(row, after, a, sign).holds(1e-14)
        assert theory.weight_change(row, a, sign).sum() == pytest.approx(0, abs=1e-15)
        other, _ = one_update(old, s, a, multiple=1.01)
        assert not theory.weight_change_sides(row, other.log_policy[s], a, sign).holds(1e-14)


@pytest.mark.parametrize(("multiple", "holds"), [(1.0, True), (1.5, True), (20.0, True), (0.5, False)])
def test_weight_ranges_from_the_log_step_upwards(multiple, holds):
    for old, s, a in every_pair():
        new, sign = one_update(old, s, a, multiple=multiple)
        assert theory.weight_range(old.log_policy[s], new.log_policy[s], a, sign).holds(1e-14) == holds


def test_others_share_what_the_action_gives_or_takes():
    for old, s, a in every_pair():
        new, sign = one_update(old, s, a, multiple=1.7)
        assert theory.weight_distribution(old.log_policy[s], new.log_policy[s], a, sign).holds(1e-14)
        tampered = new.log_policy[s].copy()
        tampered[(a + 1) % 3] += 1e-9
        assert not theory.weight_distribution(old.log_policy[s], tampered, a, sign).holds(1e-14)


def test_moved_weight_is_exact_next_to_one():
    row = np.array([-1e-20, np.log(1e-20)])
    after = coordinate_update(row, np.array([-1, 0]), -row)
    w, rest = theory.moved_weight(row, after, 0)
    assert rest == pytest.approx(1e-20, rel=1e-12)
    assert w < 1e-30
    assert theory.weight_range(row, after, 0, -1).holds(1e-15)


def test_batch_weights_against_the_update():
    for seed in range(5):
        old = random_policy(random_mdp(seed), seed)
        new, signs = batch_update(old)
        np.testing.assert_allclose(theory.batch_weights(old.log_policy, signs), new.policy, atol=1e-15)
        assert np.abs(theory.batch_weights(old.log_policy, signs) - batch_update(old, 1.01)[0].policy).max() > 1e-6


# --- improvement of an update ---------------------------------------------------------------------------------


@pytest.mark.parametrize("multiple", [0.3, 1.0, 3.0])
def test_one_step_improvement_is_an_equality(multiple):
    for old, s, a in every_pair():
        new, _ = one_update(old, s, a, multiple=multiple)
        assert theory.one_step_improvement(new, old, s, a).holds(ROUNDING)
        old_advantage, old.advantage = old.advantage, 1.001 * old.advantage
        assert not theory.one_step_improvement(new, old, s, a).holds(ROUNDING)
        old.advantage = old_advantage


def test_one_step_bound_from_the_log_step_upwards():
    violated = 0
    for old, s, a in every_pair():
        for multiple in (1.0, 2.0):
            new, sign = one_update(old, s, a, multiple=multiple)
            assert theory.one_step_bound(new, old, s, a, sign).holds(ROUNDING)
        timid, sign = one_update(old, s, a, multiple=1e-4)
        violated += not theory.one_step_bound(timid, old, s, a, sign).holds(ROUNDING)
    assert violated > 0


def test_fixed_step_improvement_formula():
    for old, s, a in every_pair():
        signs = np.zeros(old.policy.shape, np.int8)
        signs[s, a] = sign = int(np.sign(old.advantage[s, a]))
        new = evaluate(old.mdp, log_policy=coordinate_update(old.log_policy, signs, np.full((4, 3), 0.7)))
        assert theory.fixed_step_improvement(new, old, s, a, 0.7, sign).holds(ROUNDING)
        assert not theory.fixed_step_improvement(new, old, s, a, 0.71, sign).holds(ROUNDING)


def test_fixed_step_factor_of_huge_and_tiny_steps():
    assert theory.fixed_step_factor(0.5, 1000.0, 1) == 1
    assert theory.fixed_step_factor(0.0, 1.0, 1) == 0
    assert theory.fixed_step_factor(0.25, 1000.0, -1) == pytest.approx(1 / 3)  # all of pi is given away
    assert theory.fixed_step_factor(0.25, 1e-9, 1) == pytest.approx(0.25e-9)


def test_batch_bound_with_the_new_visitation_and_not_with_the_old():
    for seed in range(5):
        old = random_policy(random_mdp(seed), seed)
        new, signs = batch_update(old)
        assert theory.batch_bound(new, old, signs).holds(ROUNDING)
        bold = evaluate(old.mdp, log_policy=coordinate_update(old.log_policy, signs, 1e-3 * signs * signs))
        assert not theory.batch_bound(bold, old, signs).holds(ROUNDING)
    # State 0 leads to 1 (action 0) or to the end with 0.05 (action 1); state 1 pays 1 for its action 1. The old
    # policy nearly always misses that, so A(1, 1) is large; the new one hardly goes to state 1 at all.
    transition = np.zeros((3, 2, 3))
    transition[0, 0, 1] = transition[0, 1, 2] = 1
    transition[1:, :, 2] = 1
    mdp = capo.MDP(transition, [[0, 0.05], [0, 1], [0, 0]], 0.5)
    old = evaluate(mdp, [[0.1, 0.9], [0.99, 0.01], [0.5, 0.5]])
    new, signs = batch_update(old)
    assert theory.batch_bound(new, old, signs).holds(1e-14)
    assert theory.batch_bound(new, old, signs, form="printed").ratio(1e-14)[0] > 1.8


# --- induction and rates ----------------------------------------------------------------------------------------


def test_induction_lemma_on_the_slowest_sequence():
    gamma, c = 0.5, 0.2
    deltas = [2.0]
    for _ in range(3000):
        deltas.append(deltas[-1] - c * deltas[-1] ** 2)
    deltas, m = np.array(deltas), np.arange(1, 3002)
    assert theory.recursion(deltas, c).holds(1e-12)
    assert theory.Sides(deltas, theory.induction_rate(c, m)).holds()
    assert theory.Sides(np.cumsum(deltas), theory.induction_sum(c, m, gamma)).holds()
    assert not theory.recursion(deltas, 1.01 * c).holds(1e-12)
    assert not theory.Sides(deltas, theory.induction_rate(1.2 * c, m)).holds()
    assert not theory.Sides(np.cumsum(deltas), theory.induction_sum(4 * c, m, gamma)).holds()
    assert not theory.recursion(np.array([1.0, 1.0]), c).holds()


def test_rate_constants_by_hand():
    mdp, mu = random_mdp(0, 2, 3, gamma=0.5), np.array([0.25, 0.75])
    printed, repaired = (theory.cyclic_rate(mdp, mu, form=form) for form in ("printed", "repaired"))
    assert printed.c_mu == pytest.approx(0.125 / 2 * min(0.125, 0.5 / 6))
    assert repaired.c_mu == pytest.approx(0.125 / 2 * 0.25 * min(0.5, 0.5 / 6))
    assert repaired.c_mu < printed.c_mu
    assert printed.ratio == pytest.approx(8)
    assert printed.c == pytest.approx(printed.c_mu / 8)
    assert theory.cyclic_rate(mdp, mu, length=9).c_mu == pytest.approx(0.125 / 2 * 0.25 * 0.5 / 9)
    assert theory.batch_rate(mdp, mu).c_mu == pytest.approx(0.125 / 3 * 0.25)
    d_gen = np.array([[0.1, 0.2, 0.3], [0.02, 0.18, 0.2]])
    assert theory.randomized_rate(mdp, mu, d_gen).c_mu == pytest.approx(0.125 / 2 * 0.02 * 0.75)


def test_rate_bounds_printed_and_repaired():
    mdp, mu, k = random_mdp(0, 2, 3, gamma=0.5), np.array([0.25, 0.75]), np.arange(100)
    printed, repaired = (theory.cyclic_rate(mdp, mu, form=form) for form in ("printed", "repaired"))
    np.testing.assert_allclose(printed.gap_mu(k), 6 / (printed.c_mu * (k + 1)))
    np.testing.assert_allclose(repaired.gap_mu(k), 1 / (repaired.c_mu * (k // 6 + 1)))
    # The repaired count of cycles is never worse than N/m, which the printed step through max{floor(m/N), 1} is.
    assert (repaired.gap_mu(k) * repaired.c_mu <= 6 / (k + 1) + 1e-12).all()
    m = np.arange(1, 100)
    assert (1 / np.maximum(m // 6, 1) > 6 / m).any()
    np.testing.assert_allclose(repaired.gap_rho(k), repaired.ratio * repaired.gap_mu(k))
    # In the square-root branch the printed sum at rho is too small by sqrt(K).
    same = dataclasses.replace(repaired, form="printed")
    assert repaired.sum_rho(2) / same.sum_rho(2) == pytest.approx(np.sqrt(repaired.ratio))
    batch = theory.batch_rate(mdp, mu, form="printed")
    assert batch.sum_mu(2) / theory.batch_rate(mdp, mu).sum_mu(2) == pytest.approx(np.sqrt(batch.ratio))


def test_improvement_of_a_cycle_at_the_state_of_the_greatest_advantage():
    mdp = random_mdp(3)
    result = capo.solve(
        mdp, iterations=12, order="permuted", theta=3 * np.random.default_rng(0).standard_normal((4, 3))
    )
    before, after = (evaluate(mdp, log_policy=row) for _, row in result.trace.policies([0, 12]))
    assert theory.cycle_improvement(before, after.values, length=12).holds(ROUNDING)
    assert not theory.cycle_improvement(before, before.values, length=12).holds(ROUNDING)


def test_fixed_cycle_bound_printed_is_the_weaker_one():
    probabilities, visits, signs = np.array([0.3, 0.6, 0.2]), np.array([0.4, 0.1]), np.array([1, -1])
    bound = {
        form: theory.fixed_cycle_bound(probabilities, 1 - probabilities, visits, signs, 0.5, 0.9, form=form)
        for form in ("printed", "repaired")
    }
    raised = np.expm1(0.5) * 0.2
    w = 0.4 * np.expm1(0.5) * 0.3 * 0.7 / (np.expm1(0.5) * 0.3 + 1)
    assert bound["repaired"] == pytest.approx(0.005 * min(0.1 * raised / (0.8 * (raised + 1)), 0.01 / (2 * w)))
    assert bound["printed"] == pytest.approx(0.005 * min(0.1 * raised / (0.8 * raised + 1), 0.01 / (2 * w)))
    assert bound["printed"] < bound["repaired"]
    alone = theory.fixed_cycle_bound(np.array([0.2]), np.array([0.8]), np.empty(0), np.empty(0), 0.5, 0.9)
    assert alone == pytest.approx(0.005 * 0.1 * raised / (0.8 * (raised + 1)))


def test_expected_improvement_against_drawing_pairs():
    mdp, mu = random_mdp(5), np.full(4, 0.25)
    now = random_policy(mdp, 5)
    after = np.array([[mu @ one_update(now, s, a)[0].values for a in range(3)] for s in range(4)])
    d_gen = np.random.default_rng(5).dirichlet(np.ones(12)).reshape(4, 3)
    exact = theory.expected_improvement(now, after, d_gen, mu)
    drawn = np.random.default_rng(6).choice(12, 40_000, p=d_gen.ravel())
    sample = after.ravel()[drawn] - mu @ now.values
    assert exact == pytest.approx(sample.mean(), abs=5 * sample.std() / 200)
    gap = mu @ (theory.optimal(mdp).values - now.values)
    assert theory.randomized_rate(mdp, mu, d_gen).c_mu * gap**2 <= exact


def test_rates_of_the_gradient_methods_hold_and_have_the_printed_constants():
    mdp = random_mdp(6, gamma=0.5)
    mu, best = np.full(4, 0.25), theory.optimal(mdp)
    k = np.arange(1, 41)
    npg = baselines.natural_policy_gradient(mdp, eta=0.5, iterations=40, record_every=1)
    gaps = mdp.start @ best.values - npg.history["value"]
    bound = theory.natural_gradient_rate(mdp, 0.5, k)
    assert bound[0] == pytest.approx(np.log(3) / 0.5 + 4)
    assert theory.Sides(gaps[1:], bound).holds(ROUNDING)
    assert not theory.Sides(gaps[1:], 1e-3 * bound).holds(ROUNDING)
    pg = baselines.policy_gradient(mdp, iterations=40, record_every=1)
    gaps = mdp.start @ best.values - pg.history["value"]
    bound = theory.policy_gradient_rate(mdp, mu, best, 0.3, np.arange(41))
    mismatch = (best.visitation_from(mu) / mu).max()
    assert bound[0] == pytest.approx(16 * 4 / (0.09 * 0.5**6) * mismatch**2 * 4)
    assert theory.Sides(gaps, bound).holds(ROUNDING)
    assert not theory.Sides(gaps, 1e-8 * bound).holds(ROUNDING)


# --- on-policy --------------------------------------------------------------------------------------------------


def test_a_picked_action_below_beta_ends_above_it():
    beta = 0.25
    for p in (1e-12, 0.01, 0.249):
        row = np.log([p, (1 - p) / 2, (1 - p) / 2])
        sign = np.array([1, 0, 0])
        alpha = StepSize("on-policy", beta=beta, zeta=1 / 3).alpha(row, sign, np.ones(3))
        after = coordinate_update(row, sign, alpha)
        assert theory.above_beta(after, 0, beta).holds(1e-15)
        assert np.exp(after[0]) == pytest.approx(beta / (1 - beta) / (beta / (1 - beta) + 1 - p))
        assert not theory.above_beta(row, 0, beta).holds(1e-4)


def test_theta_is_recovered_from_the_shifts():
    result = capo.solve(capo.mdps.bandit(), "on-policy", "on-policy", iterations=200, theta=[[0.0, 3.0, 3.0, 0.0]])
    trace = result.trace
    theta = theory.theta_rows(trace.first[0], trace.sign, trace.alpha, trace.action)
    plain = trace.first[0].copy()
    for t in range(200):
        plain[trace.action[t]] += trace.sign[t] * trace.alpha[t]
    np.testing.assert_allclose(theta[-1], plain, rtol=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_theta_max_grows_slowly_where_beta_is_small_enough(seed):
    def growth(**options):
        result = capo.solve(
            capo.mdps.bandit(), "on-policy", "on-policy", iterations=300, seed=seed,
            theta=[[0.0, 3.0, 3.0, 0.0]], **options,
        )  # fmt: skip
        trace = result.trace
        theta = theory.theta_rows(trace.first[0], trace.sign, trace.alpha, trace.action)
        return theory.theta_max_growth(theta.max(axis=1))

    assert growth().holds(1e-10)
    with pytest.warns(capo.CapoWarning):
        assert not growth(beta=0.9, allow_violation=True).holds(1e-10)


def test_theta_max_growth_counts_the_updates_between():
    assert theory.theta_max_growth(np.array([0.0, np.log(2)])).holds(1e-15)
    assert not theory.theta_max_growth(np.array([0.0, 1.0])).holds(1e-15)
    assert theory.theta_max_growth(np.array([0.0, 1.0]), [0, 3]).holds(1e-15)


def test_on_policy_converges_on_most_seeds_and_a_fixed_step_does_not():
    mdp, theta = capo.mdps.bandit(), [[0.0, 3.0, 3.0, 0.0]]
    share = {}
    for stepsize in ("on-policy", "fixed"):
        many = capo.solve_many(
            mdp, 100, "on-policy", stepsize, iterations=1000, record=[1000], track=(0, 0), theta=theta
        )
        share[stepsize] = (many.tracked[:, -1] > 0.99).mean()
    assert share["on-policy"] >= 0.95
    assert share["fixed"] <= 0.1


# --- on-policy with a fixed step --------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [0.1, 1.0, 3.0])
def test_the_event_that_the_second_arm_is_always_picked(eta):
    path = theory.stuck_path(eta, 100)
    assert theory.stuck_advantage(path).holds()
    assert theory.stuck_theta(path, eta).holds(1e-10)
    assert not theory.stuck_theta(path, 1.01 * eta).holds(1e-10)
    assert theory.stuck_policy(path).holds(1e-15)
    sides = theory.stuck_policy(path)
    assert not theory.Sides(sides.lhs, 0.4 * sides.rhs).holds(1e-15)
    other = theory.stuck_path(eta, 100, (1.0, -0.5, -1.0))  # a second arm worth less than the mean
    assert not theory.stuck_advantage(other).holds()
    assert not theory.stuck_theta(other, eta).holds(1e-10)


def test_exponential_bound_on_the_unit_interval():
    x = np.linspace(1e-3, 0.999, 500)
    assert theory.exponential_bound(x).holds()
    assert not theory.Sides(np.exp(-x), 1 - x).holds()  # without the division it is the other way round


@pytest.mark.parametrize("eta", [0.1, 0.5, 1.0, 2.0])
def test_stuck_probability_is_bounded_below(eta):
    bound = theory.stuck_probability_bound(eta)
    assert bound == pytest.approx(np.exp(-2 * np.exp(eta) / eta))
    assert theory.stuck_probability(eta).holds()
    path = theory.stuck_path(eta, 200)
    assert bound <= path["policy"][:, 1].prod()
    sides = theory.stuck_probability(eta)
    assert not theory.Sides(sides.lhs**0.1, sides.rhs).holds()


def test_the_table_in_the_docs_names_what_exists():
    root = Path(__file__).parents[2]
    text = (root / "docs" / "explanation" / "theory.md").read_text()
    table = [line for line in text.splitlines() if line.startswith("|") and "`test_" in line]
    assert len(table) > 25
    tests = "".join(
        (root / "tests" / "tabular" / f"test_{name}.py").read_text()
        for name in ("theory", "certificate", "limits")
    )
    named = set()
    for line in table:
        for word in re.findall(r"`(\w+)`", line):
            assert f"def {word}(" in tests if word.startswith("test_") else hasattr(theory, word), word
            named.add(word)
    not_statements = {
        "Certificate",
        "LimitSets",
        "Line",
        "PolicyValues",
        "Rate",
        "Sides",
        "optimal",
        "value_rounding",
    }
    assert set(theory.__all__) <= named | not_statements
