"""A certificate holds on what CAPO does, says why a line does not apply, and fails on what CAPO does not do."""

from __future__ import annotations

import copy
import dataclasses
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capo
from capo.tabular import baselines, theory
from capo.tabular.theory import checks, limit_checks, theorems
from capo.update import StepSize, coordinate_update


@pytest.fixture(scope="module")
def chain():
    return capo.solve(capo.mdps.chain(10), rule="cyclic")


@pytest.fixture(scope="module")
def batch_chain():
    return capo.solve(capo.mdps.chain(10, 9), rule="batch")


def failed(result, **options):
    return {line.statement for line in result.certificate(seeds=20, **options).failed}


def evaluated(certificate):
    return {line.statement for line in certificate.lines if line.status != "not applicable"}


# --- the two runs that must be evaluated in full ---------------------------------------------------------------


def test_cyclic_chain_is_evaluated_in_full(chain):
    certificate = chain.certificate()
    assert certificate.held, str(certificate)
    names = evaluated(certificate)
    for statement in (
        checks.STEP, checks.ARITHMETIC, checks.DIRECTION, checks.VALUE, checks.FINAL, checks.VISITS,
        checks.CONDITION, checks.GAP, checks.GAP_HISTORY, checks.CYCLES, theorems.THEOREM_1,
        checks.LEMMA_1, checks.HALF, checks.SUM, checks.ADVANTAGE, checks.BY_ADVANTAGE, checks.AT_RHO,
        checks.VISITATION, checks.DIFFERENCE, checks.GRADIENT, checks.CHANGE_UP, checks.CHANGE_DOWN,
        checks.RANGE_UP, checks.RANGE_DOWN, checks.SHARE, checks.ONE_STEP, checks.ONE_STEP_BOUND,
        f"{theorems.CYCLIC}, improvement per cycle at s~",
    ):  # fmt: skip
        assert statement in names
    for form in ("printed", "repaired"):
        assert f"{theorems.CYCLIC}, recursion at mu, {form}" in names
        for where in ("mu", "rho"):
            assert f"{theorems.CYCLIC}, rate at {where}, {form}" in names
            assert f"{theorems.CYCLIC}, partial sums at {where}, {form}" in names
    assert any("rescaled" in text for text in certificate.header)
    assert certificate.line(checks.LEMMA_1).checks == 132 * 11
    assert certificate.line(f"{theorems.CYCLIC}, rate at rho, repaired").checks == 133


def test_batch_chain_is_evaluated_in_full(batch_chain):
    certificate = batch_chain.certificate()
    assert certificate.held, str(certificate)
    names = evaluated(certificate)
    for statement in (
        checks.LEMMA_1, checks.HALF, checks.BATCH_WEIGHTS, checks.BATCH_BOUND, theorems.THEOREM_1,
        f"{theorems.BATCH}, recursion at mu", f"{theorems.BATCH}, rate at mu", f"{theorems.BATCH}, rate at rho",
    ):  # fmt: skip
        assert statement in names
    for where in ("mu", "rho"):
        for form in ("printed", "repaired"):
            assert f"{theorems.BATCH}, partial sums at {where}, {form}" in names
    assert certificate.line(theorems.CYCLIC).note == "the rule is not cyclic"


def test_it_prints_within_110_columns_and_goes_to_json(chain):
    certificate = chain.certificate(max_steps=50)
    text = str(certificate)
    assert max(map(len, text.splitlines())) <= 110
    assert "one-step lines: 50 of the 132 traced updates" in text
    assert "not applicable" in text
    assert repr(certificate).splitlines()[0].startswith("Certificate: cyclic CAPO on chain:10,1 (11 states")
    assert "held" in repr(certificate)
    assert len(repr(certificate).splitlines()) == 2
    again = json.loads(json.dumps(certificate.to_dict()))
    assert again["held"] is True
    assert len(again["lines"]) == len(certificate.lines)
    with pytest.raises(KeyError):
        certificate.line("Theorem 99")


def test_bad_arguments_are_named(chain):
    with pytest.raises(capo.CapoError, match="seeds=0"):
        chain.certificate(seeds=0)
    with pytest.raises(capo.CapoError, match="mu"):
        chain.certificate(mu=np.ones(11))


# --- what the random rules, the on-policy lines and the baselines say ------------------------------------------


def test_randomized_rate_is_checked_on_the_mean_of_seeds():
    mdp = capo.mdps.random(4, 3, gamma=0.8)
    d_gen = np.random.default_rng(0).dirichlet(np.ones(12))
    certificate = capo.solve(mdp, "randomized", iterations=150, d_gen=d_gen).certificate(seeds=30)
    assert certificate.held, str(certificate)
    line = certificate.line(f"{theorems.RANDOMIZED}, rate at rho, mean of seeds")
    assert "30 seeds, standard error" in line.note
    assert certificate.line(f"{theorems.RANDOMIZED}, expected step").checks == 20


def test_randomized_with_a_changing_generator():
    mdp = capo.mdps.random(3, 2, gamma=0.8)
    weights = np.arange(1.0, 7.0)
    result = capo.solve(mdp, "randomized", iterations=60, d_gen=lambda i: np.roll(weights, i) / 21)
    assert result.certificate(seeds=10).held


def test_a_randomized_run_that_barely_moves_fails_the_expected_step(monkeypatch):
    result = capo.solve(capo.mdps.random(4, 3, gamma=0.5), "randomized", iterations=20)
    monkeypatch.setattr(theorems, "coordinate_update", lambda row, sign, alpha: row + 0 * alpha * sign)
    assert f"{theorems.RANDOMIZED}, expected step (every pair tried)" in failed(result)


def test_on_policy_lines():
    result = capo.solve(
        capo.mdps.bandit(), "on-policy", "on-policy", iterations=400, theta=[[-3.0, 3.0, 3.0, 0.0]], seed=3
    )
    certificate = result.certificate(seeds=50)
    assert certificate.held, str(certificate)
    assert checks.THETA_MAX in evaluated(certificate)
    assert "of 50 seeds" in certificate.line(theorems.ON_POLICY).note
    assert certificate.line("Theorem 1").status == "not applicable"
    below = capo.solve(capo.mdps.bandit(), [(0, 0)] * 3, "on-policy", theta=[[-3.0, 3.0, 3.0, 0.0]])
    assert checks.ABOVE_BETA in evaluated(below.certificate())


def test_on_policy_with_a_broken_condition_is_not_promised():
    with pytest.warns(capo.CapoWarning):
        result = capo.solve(
            capo.mdps.bandit(), "on-policy", "on-policy", iterations=50, zeta=1.0, allow_violation=True
        )
    line = result.certificate().line(checks.THETA_MAX)
    assert line.status == "not applicable"
    assert "zeta=1" in line.note


def test_a_fixed_step_gets_stuck_on_the_second_of_three_arms():
    result = capo.solve(capo.mdps.bandit([1, 0.99, -1]), "on-policy", "fixed", iterations=300, eta=1.0)
    certificate = result.certificate()
    assert certificate.held, str(certificate)
    assert "seeds have pi(a2) > 1/2" in certificate.line(f"{theorems.STUCK}, share of seeds").note
    assert "three arms" in capo.solve(
        capo.mdps.bandit(), "on-policy", "fixed", iterations=10
    ).certificate().line(theorems.STUCK).note  # fmt: skip


@pytest.mark.parametrize(
    ("eta", "iterations", "seeds"), [(0.1, 5, 100), (0.5, 1, 100), (1.0, 2, 1), (1.0, 1, 2000)]
)
def test_a_short_run_does_not_fail_the_share_of_stuck_seeds(eta, iterations, seeds):
    mdp = capo.mdps.bandit([1, 0.99, -1])
    certificate = capo.solve(mdp, "on-policy", "fixed", iterations=iterations, eta=eta).certificate(seeds=seeds)
    assert certificate.line(f"{theorems.STUCK}, share of seeds").status == "held", str(certificate)


def test_seeds_that_never_get_stuck_fail_the_share(monkeypatch):
    """A learner that always finds the best arm cannot have the paper's probability of missing it."""
    monkeypatch.setattr(theorems.lemmas, "stuck_probability_bound", lambda _eta: 0.9)
    result = capo.solve(capo.mdps.bandit([1, 0.99, -1]), "on-policy", "fixed", iterations=300, eta=0.1)
    line = result.certificate().line(f"{theorems.STUCK}, share of seeds")
    assert line.status == "FAILED"


def test_further_seeds_run_on_the_run_s_own_mdp():
    """Terminal states of a rescaled MDP pay the shifted reward; other seeds at mu must have it too."""
    mdp = capo.mdps.grid(4).rescale_rewards()
    result = capo.solve(mdp, "randomized", iterations=2000)
    run = theory.certificate.prepare_run(result, None, 3, 10)
    gaps = theorems._seed_gaps(run, run.mu, 2000, [2000])
    np.testing.assert_allclose(gaps, 0, atol=1e-9)


def test_a_run_without_a_trace_says_why(monkeypatch):
    monkeypatch.setattr("capo.tabular.engine.TRACE_BYTES", 0)
    notes = [line.note for line in capo.solve(capo.mdps.chain(4), "batch", iterations=3).certificate().lines]
    assert any("too many pairs" in note for note in notes)
    assert not any("no update" in note for note in notes)


def test_fixed_step_lines_on_a_cyclic_run():
    mdp = capo.mdps.random(4, 3, gamma=0.8, seed=2)
    certificate = capo.solve(mdp, "cyclic", "fixed", iterations=120, eta=0.5).certificate()
    assert certificate.held, str(certificate)
    for statement in (checks.FIXED, f"{checks.FIXED_CYCLE}, printed", f"{checks.FIXED_CYCLE}, repaired"):
        assert statement in evaluated(certificate)
    assert "not >= log 1/pi" in certificate.line(theorems.CYCLIC).note


@pytest.mark.parametrize("eta", [1e-3, 1000.0])
def test_fixed_steps_of_extreme_size(eta):
    assert (
        capo.solve(capo.mdps.random(3, 2, gamma=0.8), "cyclic", "fixed", iterations=60, eta=eta).certificate().held
    )
    bandit = capo.mdps.bandit([1, 0.99, -1])
    assert capo.solve(bandit, "on-policy", "fixed", iterations=60, eta=eta).certificate(seeds=20).held


def test_batch_rate_only_for_exactly_the_log_step():
    mdp = capo.mdps.random(4, 3, gamma=0.8)
    certificate = capo.solve(mdp, "batch", multiple=2.0, iterations=5).certificate()
    assert certificate.held
    assert certificate.line(theorems.BATCH).note == "alpha = 2 log 1/pi is not exactly log 1/pi"
    cyclic = capo.solve(mdp, "cyclic", multiple=2.0, iterations=48).certificate()
    assert cyclic.held
    assert cyclic.line(f"{theorems.CYCLIC}, rate at mu, repaired").status == "held"


def test_clipping_that_bites_takes_the_rates_away():
    mdp = capo.mdps.random(4, 3, gamma=0.8)
    never = capo.solve(mdp, "cyclic", "clipped", iterations=12, clip=1e6).certificate()
    assert never.held
    assert never.line(f"{theorems.CYCLIC}, rate at mu").status == "held"
    often = capo.solve(mdp, "cyclic", "clipped", iterations=120, clip=1.0).certificate()
    assert often.held
    assert "clipped at 1" in often.line(theorems.CYCLIC).note


def test_a_run_longer_than_its_trace_uses_its_history():
    result = capo.solve(capo.mdps.random(3, 2, gamma=0.9), iterations=30_000)
    certificate = result.certificate(max_steps=200)
    assert certificate.held, str(certificate)
    assert any("the run made 30000" in text for text in certificate.header)
    assert certificate.line(f"{theorems.CYCLIC}, rate at rho, repaired").checks > 20_001


def test_pairs_never_visited_are_said():
    line = capo.solve(capo.mdps.random(4, 3), "behaviour", iterations=3).certificate().line(checks.CONDITION)
    assert line.status == "not decided"
    assert "not been visited" in line.note


def test_mu_is_the_run_s_own_or_the_given_one():
    mu = np.array([0.7, 0.2, 0.1])
    mdp = capo.mdps.random(3, 2, gamma=0.8)
    own = capo.solve(mdp, iterations=30, mu=mu).certificate()
    given_one = capo.solve(mdp, iterations=30).certificate(mu=mu)
    assert own.held
    assert own.to_dict() == given_one.to_dict()
    assert any("min 0.1" in text for text in own.header)


def test_a_large_sparse_run_whose_critic_goes_only_as_far_as_the_signs_need():
    result = capo.solve(capo.mdps.slippery_grid(72), rule="batch", critic="signs", tol=1e-4)
    certificate = result.certificate()
    assert result.mdp.n_states > 5000
    assert certificate.held, str(certificate)
    assert checks.BATCH_BOUND in evaluated(certificate)


def test_baselines_get_the_lines_that_apply():
    mdp = capo.mdps.random(4, 3, gamma=0.5)
    npg = baselines.natural_policy_gradient(mdp, iterations=30).certificate()
    assert npg.held
    assert npg.line(theorems.NPG).status == "held"
    exact = baselines.natural_policy_gradient(mdp, eta=0.123456789, iterations=30)
    assert exact.baseline.eta == 0.123456789  # what the rate uses; the display rounds it
    scaled = baselines.natural_policy_gradient(capo.mdps.chain(5), eta=0.01, iterations=30).certificate()
    assert scaled.line(theorems.NPG).status == "held"
    pg = baselines.policy_gradient(mdp, iterations=60).certificate()
    assert pg.held
    assert "60 steps" in pg.line(theorems.PG).note
    tuned = baselines.policy_gradient(mdp, "tuned", iterations=20).certificate()
    assert "tuned" in tuned.line(theorems.PG).note
    elsewhere = baselines.policy_gradient(mdp, iterations=20, mu=[0.7, 0.1, 0.1, 0.1])
    assert elsewhere.certificate().line(theorems.PG).status == "held"
    assert "different values" in elsewhere.certificate(mu=np.full(4, 0.25)).line(theorems.PG).note
    biased = baselines.natural_policy_gradient(mdp, iterations=5, init=np.full((4, 3), [0.2, 0.3, 0.5]))
    assert "uniform" in biased.certificate().line(theorems.NPG).note
    for result in (baselines.policy_iteration(mdp), baselines.value_iteration(mdp)):
        assert result.certificate().held


def test_a_baseline_that_claims_too_much_fails():
    result = baselines.natural_policy_gradient(capo.mdps.random(4, 3, gamma=0.5), iterations=30)
    result.history["value"][-1] = result.history["value"][0] - 5
    names = failed(result)
    assert {theorems.NPG, checks.MONOTONE, checks.GAP_HISTORY} <= names
    result = baselines.policy_iteration(capo.mdps.random(4, 3, gamma=0.5))
    assert failed(dataclasses.replace(result, values=result.values + 1e-6)) == {checks.FINAL}
    worst = np.where(np.eye(3)[result.q.argmin(axis=1)] > 0, 0.0, -1e299)
    values = result.mdp.policy_values(np.exp(worst))
    names = failed(dataclasses.replace(result, log_policy=worst, values=values))
    assert names == {checks.GAP}


# --- a certificate can fail: one record of a good run corrupted ------------------------------------------------


def corrupted(result, **changes):
    """A copy of a run whose trace is changed: name=(index, function of the old entry)."""
    copied = dataclasses.replace(result, trace=copy.deepcopy(result.trace))
    for name, (index, change) in changes.items():
        array = getattr(copied.trace, name)
        array[index] = change(array[index])
    return copied


def moving(result, sign=None):
    """An update early in the run that moved, with an advantage well above rounding."""
    candidates = np.flatnonzero(result.trace.sign != 0 if sign is None else result.trace.sign == sign)
    return int(candidates[len(candidates) // 3])


def test_a_wrong_sign_in_the_books_fails_the_direction(chain):
    names = failed(corrupted(chain, sign=(moving(chain), lambda s: -s)))
    assert checks.DIRECTION in names
    assert checks.ARITHMETIC in names  # the new row is not what that sign gives
    assert checks.STEP not in names
    assert checks.VALUE not in names


def test_a_sign_counted_as_zero_fails_the_direction(chain):
    names = failed(corrupted(chain, sign=(moving(chain), lambda s: 0 * s)))
    assert checks.DIRECTION in names


def test_a_halved_alpha_in_the_books_fails_the_step_size(chain):
    t = moving(chain)
    names = failed(corrupted(chain, alpha=(t, lambda a: a / 2)))
    assert names == {checks.STEP, checks.ARITHMETIC}


def test_a_decreased_recorded_value_fails(chain):
    t = moving(chain)
    names = failed(corrupted(chain, value=(t, lambda v: v - 1e-6)))
    assert names == {checks.VALUE}


def test_a_decreased_history_fails(chain):
    copied = dataclasses.replace(chain, history=copy.deepcopy(chain.history))
    copied.history["value"][3] = copied.history["value"][2] - 1e-3
    names = failed(copied)
    assert {checks.MONOTONE, checks.VALUE} <= names
    assert checks.LEMMA_1 not in names


def test_a_tampered_policy_row_fails_the_arithmetic(chain):
    names = failed(corrupted(chain, row=(moving(chain, 1), lambda _: np.log([0.5, 0.5]))))
    assert checks.ARITHMETIC in names
    assert {checks.CHANGE_UP, checks.VALUE} <= names
    assert checks.ARITHMETIC in failed(corrupted(chain, row=(131, lambda row: row + 1e-9)))


def test_a_tampered_final_policy_fails(chain):
    assert failed(dataclasses.replace(chain, log_policy=chain.trace.first)) >= {checks.FINAL, checks.GAP}
    moved = chain.log_policy.copy()
    moved[3] = np.log([0.25, 0.75])
    assert checks.FINAL in failed(dataclasses.replace(chain, log_policy=moved))


def test_too_many_iterations_claimed_fail_the_counts(chain, batch_chain):
    assert failed(dataclasses.replace(chain, iterations=1000)) == {checks.VISITS}
    assert failed(dataclasses.replace(batch_chain, iterations=9)) == {checks.VISITS}


def test_a_cycle_that_leaves_a_pair_out_fails():
    mdp = capo.mdps.random(3, 2, gamma=0.8)
    pairs = [(s, a) for s in range(3) for a in range(2)] * 4
    pairs[7] = (0, 0)
    result = capo.solve(mdp, pairs)
    claimed = dataclasses.replace(result, rule=capo.tabular.coordinates.Cyclic(), cycle_length=6)
    assert failed(claimed) == {checks.CYCLES}


def test_a_gap_bound_that_is_too_small_fails():
    early = capo.solve(capo.mdps.chain(10), iterations=30)
    assert failed(dataclasses.replace(early, gap_bound=early.gap_bound / 1e6)) == {checks.GAP}


def test_a_batch_policy_tampered_with_fails(batch_chain):
    def spoil(policy):
        changed = policy.copy()
        changed[2] = np.log(np.full(10, 0.1))
        return changed

    names = failed(corrupted(batch_chain, log_policies=(2, spoil)))
    assert {checks.ARITHMETIC, checks.BATCH_WEIGHTS} <= names
    names = failed(corrupted(batch_chain, sign=((1, 3, 2), lambda s: -s)))
    assert {checks.DIRECTION, checks.ARITHMETIC, checks.BATCH_WEIGHTS} <= names


def test_a_row_that_moves_an_action_nobody_picked_fails_the_shares():
    result = capo.solve(capo.mdps.random(4, 3, gamma=0.8), iterations=24)

    def shift(row):
        weights = np.exp(row) + np.array([0.0, 0.01, 0.0])
        return np.log(weights / weights.sum())

    names = failed(corrupted(result, row=(0, shift)))
    assert {checks.ARITHMETIC, checks.SHARE} <= names


def test_corrupted_on_policy_steps_fail_their_lemmas():
    options = {"theta": [[-3.0, 3.0, 3.0, 0.0]]}
    picked = capo.solve(capo.mdps.bandit(), [(0, 0)] * 3, "on-policy", **options)
    names = failed(corrupted(picked, row=(0, lambda _: picked.trace.first[0])))
    assert {checks.ABOVE_BETA, checks.ARITHMETIC} <= names
    names = failed(corrupted(picked, alpha=(1, lambda a: a + 3.0)))
    assert {checks.THETA_MAX, checks.STEP, checks.ARITHMETIC} <= names


def test_a_claim_of_convergence_that_is_not_so_fails_theorem_1():
    early = capo.solve(capo.mdps.chain(10), iterations=30)
    claimed = dataclasses.replace(early, gap_bound=1e-9, converged=True)
    assert failed(claimed) == {checks.GAP, theorems.THEOREM_1, limit_checks.NEGATIVE}


@pytest.fixture(scope="module")
def long_run():
    """10,000 updates, all of which move: a step so small that the policy is still far from optimal at the end."""
    result = capo.solve(
        capo.mdps.random(4, 2, gamma=0.8, seed=3), stepsize="fixed", eta=2e-3, iterations=10_000, tol=None
    )
    assert len(result.trace) == 10_000
    return result


def places(result, n=2):
    """Updates at random that moved, anywhere in the run."""
    moved = np.flatnonzero(result.trace.sign)
    return np.random.default_rng(0).choice(moved, n, replace=False).tolist()


@pytest.mark.slow
def test_a_long_run_holds_and_says_what_was_looked_at(long_run):
    certificate = long_run.certificate(max_steps=50)
    assert certificate.held, str(certificate)
    assert "directions, Lemma 1 and recorded values: all 10000 updates" in certificate.header
    assert certificate.line(checks.LEMMA_1).checks == 10_000 * 4
    assert certificate.line(checks.SUM).checks < 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("sign", lambda s: -s),
        ("sign", lambda s: 0 * s),
        ("alpha", lambda a: a * (1 + 1e-9)),
        ("row", lambda row: row + 1e-9),
        ("value", lambda v: v + 1e-9),
        ("value", lambda v: v - 1e-9),
    ],
)
def test_any_corrupted_entry_anywhere_in_a_long_run_fails(long_run, name, change):
    for t in places(long_run):
        assert failed(corrupted(long_run, **{name: (t, change)}), max_steps=50), f"update {t}"


@pytest.mark.slow
def test_one_wrong_step_anywhere_in_a_long_run_fails():
    """The books are right; the algorithm went the wrong way once, between the updates looked at closely."""
    mdp, step = capo.mdps.random(4, 2, gamma=0.8, seed=3), StepSize("fixed", eta=2e-3)
    for t in (1237, 6051):
        names = failed(run_by_hand(mdp, step, cycles=1000, flip={t}), max_steps=10)
        assert {checks.DIRECTION, checks.LEMMA_1, checks.MONOTONE} <= names
        assert not names & {checks.ARITHMETIC, checks.STEP, checks.VALUE}


# --- not decided ----------------------------------------------------------------------------------------------


def test_a_limit_that_was_not_reached_is_not_decided(chain):
    assert chain.certificate().line(theorems.THEOREM_1).status == "held"
    early = capo.solve(capo.mdps.chain(10), iterations=60).certificate()
    assert early.line(theorems.THEOREM_1).status == "not decided"
    names = {line.statement for line in early.undecided}
    assert names == {theorems.THEOREM_1, limit_checks.NEGATIVE, limit_checks.ORDER}
    assert early.held
    assert "3 not decided" in repr(early)


def test_a_frozen_policy_is_not_decided():
    """It visits every pair again and again and hardly moves."""
    mdp = capo.mdps.random(3, 2, gamma=0.5, seed=4)
    frozen = capo.solve(mdp, iterations=12, init=np.eye(2)[[0, 0, 0]], rule="on-policy", stepsize="on-policy")
    assert frozen.certificate(seeds=8).line(theorems.ON_POLICY).status == "not decided"


def test_on_policy_seeds_that_arrive_hold():
    result = capo.solve(capo.mdps.bandit(), rule="on-policy", stepsize="on-policy", iterations=2000)
    assert result.certificate(seeds=10).line(theorems.ON_POLICY).status == "held"


def test_nan_fails(chain):
    names = failed(corrupted(chain, value=(5, lambda _: np.nan)))
    assert checks.VALUE in names


# --- a certificate can fail: a corrupted algorithm whose books are right ---------------------------------------


def run_by_hand(mdp, step, *, cycles=4, flip=(), shrink=1.0, frozen=None, theta=None):
    """Cyclic CAPO written plainly, with mistakes: signs flipped at some updates, alpha shrunk, a pair frozen."""
    pairs = [(s, a) for s in range(mdp.n_states) for a in range(mdp.n_actions)] * cycles
    good = capo.solve(mdp, iterations=len(pairs), stepsize=step, theta=theta)
    trace = copy.deepcopy(good.trace)
    log_policy = trace.first.copy()
    for t, (s, a) in enumerate(pairs):
        advantage = theory.advantage(mdp, np.exp(log_policy))[s, a]
        sign = 0 if abs(advantage) <= good.sign_tol else int(np.sign(advantage)) * (-1 if t in flip else 1)
        sign = 0 if (s, a) == frozen else sign
        alpha = shrink * float(step.alpha(log_policy[s], np.full(mdp.n_actions, sign))[a])
        signs = np.zeros(mdp.n_actions, np.int8)
        signs[a] = sign
        log_policy[s] = coordinate_update(log_policy[s], signs, np.full(mdp.n_actions, alpha))
        trace.sign[t], trace.alpha[t], trace.row[t] = sign, alpha, log_policy[s]
        trace.value[t] = mdp.start @ mdp.policy_values(np.exp(log_policy))
    values = mdp.policy_values(np.exp(log_policy))
    gap = max(0.0, float((mdp.q_values(values) - values[:, None]).max())) / (1 - mdp.gamma)
    history = {
        "iteration": np.arange(len(pairs) + 1),
        "value": np.r_[mdp.start @ mdp.policy_values(np.exp(trace.first)), trace.value],
        "gap_bound": np.full(len(pairs) + 1, 1e9),
    }
    return dataclasses.replace(
        good, trace=trace, log_policy=log_policy, values=values, gap_bound=gap, history=history, converged=False
    )


def test_the_plain_algorithm_itself_holds():
    mdp = capo.mdps.random(4, 3, gamma=0.8, seed=1)
    assert failed(run_by_hand(mdp, StepSize())) == set()


def test_an_update_with_the_wrong_sign_fails_lemma_1():
    mdp = capo.mdps.random(4, 3, gamma=0.8, seed=1)
    names = failed(run_by_hand(mdp, StepSize(), flip={4}))
    assert {checks.DIRECTION, checks.LEMMA_1} <= names
    assert not names & {checks.STEP, checks.ARITHMETIC, checks.VALUE, checks.FINAL, checks.DIFFERENCE}


def test_an_algorithm_with_half_the_step_fails_the_weight_lemmas():
    mdp = capo.mdps.random(4, 3, gamma=0.8, seed=1)
    names = failed(run_by_hand(mdp, StepSize(), shrink=0.5))
    assert {checks.STEP, checks.CHANGE_UP, checks.CHANGE_DOWN, checks.RANGE_UP, checks.RANGE_DOWN} <= names
    assert not names & {checks.DIRECTION, checks.ARITHMETIC, checks.LEMMA_1, checks.VALUE, checks.ONE_STEP}


def test_an_algorithm_that_hardly_moves_fails_the_bounds_it_would_have_to_keep():
    mdp = capo.mdps.random(3, 2, gamma=0.1, seed=4)
    names = failed(run_by_hand(mdp, StepSize(), shrink=1e-9))
    assert {checks.ONE_STEP_BOUND, f"{theorems.CYCLIC}, improvement per cycle at s~"} <= names
    assert {f"{theorems.CYCLIC}, recursion at mu, {form}" for form in ("printed", "repaired")} <= names
    assert checks.LEMMA_1 not in names


@pytest.mark.parametrize("mistake", [{"shrink": 0.1}, {"frozen": (0, 0)}])
def test_a_run_that_is_too_slow_breaks_the_rate(mistake):
    """One state and a small gamma: the bound falls below what any policy reaches, and slow runs stay above it."""
    mdp = capo.MDP(np.ones((1, 2, 1)), [[1.0, 0.0]], 0.01)
    bad_start = {"theta": np.array([[-3.0, 3.0]])}
    rate = f"{theorems.CYCLIC}, rate at rho, repaired"
    assert failed(run_by_hand(mdp, StepSize(), cycles=20, **bad_start)) == set()
    assert rate in failed(run_by_hand(mdp, StepSize(), cycles=20, **bad_start, **mistake))


def test_a_fixed_step_run_with_another_step_fails_its_formula():
    mdp = capo.mdps.random(3, 2, gamma=0.5, seed=4)
    good = run_by_hand(mdp, StepSize("fixed", eta=0.5))
    assert failed(good) == set()
    names = failed(dataclasses.replace(good, stepsize=StepSize("fixed", eta=0.6)))
    assert checks.STEP in names
    spoiled = corrupted(good, alpha=(0, lambda a: 2 * a))
    assert {checks.FIXED, checks.STEP, checks.ARITHMETIC} <= failed(spoiled)


@pytest.mark.parametrize("rule", ["cyclic", "batch"])
def test_too_small_a_bound_fails_the_rate_line(monkeypatch, rule):
    result = capo.solve(capo.mdps.random(3, 2, gamma=0.5), rule=rule, iterations=12)
    assert failed(result) == set()
    name = f"{rule}_rate"
    real = getattr(theory.rates, name)

    def boastful(*arguments, **options):
        rate = real(*arguments, **options)
        return dataclasses.replace(rate, c_mu=1e6 * rate.c_mu, sum_c=1e12 * rate.sum_c)

    monkeypatch.setattr(theory.rates, name, boastful)
    theorem = {"cyclic": theorems.CYCLIC, "batch": theorems.BATCH}[rule]
    names = failed(result)
    assert names
    assert all(statement.startswith(theorem) for statement in names)
    for what in ("recursion at mu", "rate at mu", "rate at rho", "partial sums at mu", "partial sums at rho"):
        assert any(what in statement for statement in names), what


def test_too_small_a_bound_fails_the_randomized_rate(monkeypatch):
    result = capo.solve(capo.mdps.random(3, 2, gamma=0.5), "randomized", iterations=12)
    real = theory.rates.randomized_rate

    def boastful(*arguments, **options):
        rate = real(*arguments, **options)
        return dataclasses.replace(rate, c_mu=1e6 * rate.c_mu, sum_c=1e12 * rate.sum_c)

    monkeypatch.setattr(theory.rates, "randomized_rate", boastful)
    names = failed(result)
    for what in ("expected step", "rate at mu", "rate at rho", "partial sums at mu", "partial sums at rho"):
        assert any(what in statement for statement in names), what


LEMMAS = {
    "advantage_sum": checks.SUM,
    "advantage_bound": checks.ADVANTAGE,
    "gap_by_advantage": checks.BY_ADVANTAGE,
    "gap_at_rho": checks.AT_RHO,
    "visitation_bound": checks.VISITATION,
    "performance_difference": checks.DIFFERENCE,
    "policy_gradient_along": checks.GRADIENT,
    "improvement": checks.LEMMA_1,
    "half_bound": checks.HALF,
    "weight_distribution": checks.SHARE,
    "one_step_improvement": checks.ONE_STEP,
    "one_step_bound": checks.ONE_STEP_BOUND,
    "batch_bound": checks.BATCH_BOUND,
}


@pytest.mark.parametrize("name", LEMMAS)
def test_a_lemma_that_is_violated_fails_its_line_and_no_other(monkeypatch, chain, batch_chain, name):
    result = batch_chain if name == "batch_bound" else chain
    violated = theory.Sides(np.array([2.0]), np.array([1.0]))
    monkeypatch.setattr(theory.lemmas, name, lambda *_, **__: violated)
    assert failed(result) == {LEMMAS[name]}


def test_a_run_that_starts_at_the_optimum_has_nothing_to_check():
    certificate = capo.solve(capo.MDP(np.full((2, 2, 2), 0.5), np.ones((2, 2)), 0.9)).certificate()
    assert certificate.held
    assert certificate.line("CAPO's lemmas").note == "no update was made"


def test_one_action_and_a_large_offset_are_no_trouble():
    alone = capo.MDP(np.full((2, 1, 2), 0.5), np.array([[0.0], [1.0]]), 0.9)
    assert capo.solve(alone, iterations=4).certificate().held
    mdp = capo.mdps.random(4, 3, gamma=0.99)
    offset = capo.MDP(mdp.transition, 1e-3 * mdp.reward - 1e6, mdp.gamma)
    assert capo.solve(offset, iterations=60).certificate().held


# --- properties over random MDPs -------------------------------------------------------------------------------

RULES = st.sampled_from(
    [
        {"rule": "cyclic"},
        {"rule": "cyclic", "order": "action-major"},
        {"rule": "cyclic", "order": "permuted"},
        {"rule": "cyclic", "order": "almost-cyclic"},
        {"rule": "randomized"},
        {"rule": "batch"},
        {"rule": "on-policy"},
        {"rule": "behaviour"},
        {"rule": "behaviour", "batch_size": 4},
        {"rule": "behaviour", "behaviour": "epsilon-greedy", "epsilon": 0.3},
    ]
)
STEPS = st.sampled_from(
    [
        {},
        {"multiple": 2.5},
        {"stepsize": "fixed", "eta": 0.4},
        {"stepsize": "clipped", "clip": 3.0},
        {"stepsize": "clipped", "clip": 50.0},
        {"stepsize": "on-policy"},
    ]
)


STARTS = st.sampled_from(["uniform", "theta", "deterministic", "coarse"])


@st.composite
def mdps(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    n_states, n_actions = draw(st.integers(2, 6)), draw(st.integers(2, 4))
    concentration = draw(st.sampled_from([0.05, 1.0]))
    transition = rng.dirichlet(np.full(n_states, concentration), (n_states, n_actions))
    transition /= transition.sum(axis=-1, keepdims=True)
    reward = draw(st.sampled_from([0.3, 1.0, 50.0])) * rng.random((n_states, n_actions))
    if draw(st.booleans()):
        reward = np.round(reward)  # ties
    reward -= draw(st.sampled_from([0.0, 20.0]))
    terminal = [0] if n_states > 2 and draw(st.booleans()) else None
    gamma = draw(st.sampled_from([0.2, 0.9, 0.99]))
    return capo.MDP(transition, reward, gamma, rng.dirichlet(np.ones(n_states)), terminal=terminal)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(mdps(), RULES, STEPS, STARTS, st.sampled_from([2, 40, 150]), st.integers(0, 1000))
def test_the_certificate_holds_whatever_the_rule_and_the_step(mdp, rule, step, start, iterations, seed):
    rng, shape = np.random.default_rng(seed), (mdp.n_states, mdp.n_actions)
    options = {
        "uniform": {},
        "theta": {"theta": 3 * rng.standard_normal(shape)},
        "deterministic": {"init": np.eye(shape[1])[rng.integers(0, shape[1], shape[0])]},
        "coarse": {"sign_tol": 0.02},
    }[start]
    result = capo.solve(mdp, iterations=iterations, seed=seed, **rule, **step, **options)
    certificate = result.certificate(seeds=8, max_steps=60)
    assert certificate.held, str(certificate)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(mdps(), st.sampled_from(["cyclic", "randomized"]), st.integers(0, 1000))
def test_a_flipped_sign_never_passes(mdp, rule, seed):
    result = capo.solve(mdp, rule=rule, iterations=40, seed=seed)
    moved = np.flatnonzero(result.trace.sign)
    if moved.size == 0:
        return
    spoiled = corrupted(result, sign=(int(moved[0]), lambda s: -s))
    assert {checks.DIRECTION, checks.ARITHMETIC} <= failed(spoiled)
