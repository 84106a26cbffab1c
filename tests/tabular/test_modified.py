"""Modified CAPO: kernels against plain versions, the theorem on random MDPs, stopping, threads, mistakes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capo
from capo import CapoError
from capo.tabular import kernels_modified as kernels
from capo.tabular import modified
from capo.tabular.engine import uniform_log_policy
from capo.tabular.modified import Rounds, Sharp, Soft
from capo.tabular.theory import modified as lines
from capo.update import MOST_MULTIPLE, coordinate_update, floor

RULES = ("cyclic", "batch")
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def made(seed, n_states=7, n_actions=3, gamma=0.9, terminal=0, ties=False, sparse=True):
    """A random MDP with few successors; with ties, rewards and probabilities are coarse."""
    rng = np.random.default_rng(seed)
    transition = rng.random((n_states, n_actions, n_states)) * (rng.random((n_states, n_actions, n_states)) < 0.4)
    transition[..., 0] += 1e-3
    transition = np.ceil(transition * 2) if ties else transition
    transition /= transition.sum(axis=2, keepdims=True)
    reward = rng.normal(size=(n_states, n_actions))
    reward = np.round(reward) if ties else reward
    ends = list(range(n_states - terminal, n_states))
    rows = sp.csr_array(transition.reshape(-1, n_states)) if sparse else transition
    return capo.MDP(rows, reward, gamma, terminal=ends or None)


def with_actions(mdp, seed=0):
    """The same MDP without some of its actions."""
    mask = np.random.default_rng(seed).random(mdp.reward.shape) < 0.6
    mask[np.arange(mdp.n_states), np.random.default_rng(seed + 1).integers(0, mdp.n_actions, mdp.n_states)] = True
    mask[mdp.terminal] = True
    ends = np.flatnonzero(mdp.terminal)
    return capo.MDP(mdp.transition, mdp.reward, mdp.gamma, terminal=ends if len(ends) else None, actions=mask)


def best_values(mdp, mask=None):
    """V* by plain value iteration, then by solving for the policy it found."""
    values = np.zeros(mdp.n_states)
    for _ in range(20_000):
        q = mdp.q_values(values)
        new = (q if mask is None else np.where(mask, q, -np.inf)).max(axis=1)
        if np.abs(new - values).max() < 1e-14 * (1 + np.abs(new).max()):
            break
        values = new
    return mdp.policy_values(
        np.eye(mdp.n_actions)[(q if mask is None else np.where(mask, q, -np.inf)).argmax(axis=1)]
    )


# --- kernels against plain versions ----------------------------------------------------------------------------


def plain_sweep(mdp, values, action, kind, blocks, backward):
    """T_pi V, state by state: jacobi, gauss-seidel, or gauss-seidel inside each block."""
    old, new = values.copy(), values.copy()
    for first, last in blocks:
        for s in reversed(range(first, last)) if backward else range(first, last):
            seen = old.copy()
            if kind != "jacobi":
                seen[first:last] = new[first:last]
            new[s] = mdp.q_values(seen)[s, action[s]]
    return new


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", ["jacobi", "gauss-seidel"])
def test_sharp_sweeps_against_a_loop(kind, threads):
    mdp = made(3, n_states=9)
    sharp = Sharp(mdp, kind == "gauss-seidel", threads)
    values = np.random.default_rng(1).normal(size=9)
    sharp._values[:] = values
    blocks, backward = sharp._blocks, kind == "gauss-seidel"
    for _ in range(3):
        expected = plain_sweep(mdp, values, sharp.action, kind, blocks, backward)
        count, low, high = sharp.sweep(1, -1.0)
        assert np.allclose(sharp.values, expected, rtol=0, atol=1e-14)
        change = expected - values
        assert (count, low, high) == pytest.approx((1, change.min(), change.max()))
        values, backward = expected, not backward and kind == "gauss-seidel"
    sharp.close()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("ties", [False, True])
def test_an_improvement_takes_the_first_best_action_and_keeps_one_that_is_as_good(masked, ties):
    mdp = made(5, n_states=40, ties=ties, terminal=2)
    mdp = with_actions(mdp) if masked else mdp
    mask = mdp.allowed
    sharp = Sharp(mdp)
    for _ in range(12):
        values, action = sharp.values.copy(), sharp.action.copy()
        q = np.where(mask, mdp.q_values(values), -np.inf)
        kept = q[np.arange(40), action]
        found = sharp.improve()
        better = q.max(axis=1) > kept + 1e-12
        assert (sharp.action[better] == q.argmax(axis=1)[better]).all() or ties
        assert (sharp.action[q.max(axis=1) == kept] == action[q.max(axis=1) == kept]).all() or not ties
        assert np.allclose(sharp.values, q.max(axis=1), rtol=0, atol=1e-13)
        residual = q.max(axis=1) - values
        assert found == pytest.approx((residual.max(), residual.min(), residual.max()), abs=1e-13)
        assert mask[np.arange(40), sharp.action].all()
    assert sharp.share < 1 or ties, "no state was settled"


def test_settled_states_do_not_change_what_an_improvement_finds():
    mdp = made(8, n_states=60, n_actions=5)
    skipping, plain = Sharp(mdp), Sharp(mdp)
    for _ in range(40):
        plain._margin[:] = -np.inf  # compare all actions everywhere
        assert skipping.improve() == plain.improve()
        assert (skipping.action == plain.action).all()
    assert skipping.share < 0.2
    assert plain.share == 1


@pytest.mark.parametrize("kind", ["jacobi", "gauss-seidel"])
def test_steps_of_the_sharp_policy_are_single_updates_with_the_largest_multiple(kind):
    mdp = made(11, n_states=12, n_actions=4)
    sharp = Sharp(mdp, kind == "gauss-seidel")
    first = modified.one_hot(sharp.action, mdp.n_actions)
    soft = Soft(mdp, first, MOST_MULTIPLE, True, 0.0, gauss_seidel=kind == "gauss-seidel")
    for _ in range(8):
        assert np.allclose(sharp.improve(), soft.improve(), rtol=0, atol=1e-12)
        assert (sharp.action == soft.log_policy.argmax(axis=1)).all()
        assert np.exp(soft.log_policy).max(axis=1).min() == 1
        sharp.sweep(2, -1.0), soft.sweep(2, -1.0)
        assert np.allclose(sharp.values, soft.values, rtol=0, atol=1e-12)


@pytest.mark.parametrize("multiple", [1.0, 2.5])
@pytest.mark.parametrize("masked", [False, True])
def test_batch_updates_against_the_written_out_update(multiple, masked):
    mdp = made(13, n_states=10, n_actions=4, ties=True)
    mdp = with_actions(mdp) if masked else mdp
    mask = mdp.allowed
    soft = Soft(mdp, np.full(mdp.reward.shape, -np.log(4)), multiple, False, 1e-12)
    for _ in range(6):
        before, values = soft.log_policy, soft.values.copy()
        q = mdp.q_values(values)
        mean = (np.exp(before) * np.where(mask, q, 0.0)).sum(axis=1)
        advantage = np.where(mask, q - mean[:, None], 0.0)
        sign = np.where(np.abs(advantage) > 1e-12, np.sign(advantage), 0)
        expected = coordinate_update(before, sign, -multiple * before)
        soft.improve()
        assert np.allclose(np.exp(soft.log_policy), np.exp(expected), rtol=0, atol=1e-12)
        assert np.exp(soft.log_policy)[~mask].sum() == 0
        assert np.allclose(soft.values, (np.exp(expected) * np.where(mask, q, 0)).sum(axis=1), rtol=0, atol=1e-12)


def test_residuals_against_plain_ones():
    mdp = with_actions(made(17, n_states=15))
    for sweeper in (Sharp(mdp), Soft(mdp, np.full(mdp.reward.shape, -np.log(3)), 1.0, False, 1e-12)):
        values = np.random.default_rng(0).normal(size=15)
        sweeper._values[:] = values
        q = np.where(mdp.actions, mdp.q_values(values), -np.inf)
        own = (np.exp(sweeper.log_policy) * np.where(mdp.actions, q, 0)).sum(axis=1) - values
        assert sweeper.residuals() == pytest.approx(((q.max(axis=1) - values).max(), own.min(), own.max()))


# --- the theorem on random MDPs -------------------------------------------------------------------------------


@quick
@given(
    seed=st.integers(0, 10_000), n_states=st.integers(1, 12), n_actions=st.integers(1, 5),
    gamma=st.sampled_from([0.1, 0.5, 0.9, 0.99]), terminal=st.integers(0, 2), ties=st.booleans(),
    sparse=st.booleans(), rule=st.sampled_from(RULES), multiple=st.sampled_from([None, 1.0, 4.0]),
    k=st.sampled_from([None, 1, 2, 7]), sweeps=st.sampled_from(modified.SWEEPS), threads=st.integers(1, 3),
)  # fmt: skip
def test_every_run_reaches_v_star_and_its_certificate_holds(
    seed, n_states, n_actions, gamma, terminal, ties, sparse, rule, multiple, k, sweeps, threads
):
    mdp = made(seed, n_states, n_actions, gamma, min(terminal, n_states - 1), ties, sparse)
    # Convergence with larger multiples is proved for one pair of a state at a time.
    multiple = None if rule == "batch" else multiple
    result = capo.solve(
        mdp, rule, critic="k-step", multiple=multiple, k=k, sweeps=sweeps, threads=threads, tol=1e-7,
        iterations=20_000,
    )  # fmt: skip
    assert result.converged, str(result)
    assert result.critic == "k-step"
    best = best_values(mdp)
    assert (best - result.values).max() <= result.gap_bound + 1e-10
    assert (result.values - best).max() <= 1e-10
    policy_values = mdp.policy_values(np.exp(result.log_policy))
    assert (best - policy_values).max() <= result.gap_bound + 1e-10
    certificate = result.certificate()
    assert certificate.held, str(certificate)


@quick
@given(n=st.integers(1, 30), gamma=st.sampled_from([0.5, 0.9, 0.99]), sweeps=st.sampled_from(modified.SWEEPS))
def test_periodic_chains(n, gamma, sweeps):
    """A ring with one reward: Jacobi's residual goes round and round, Gauss-Seidel's does not."""
    ring = np.zeros((n, 2, n))
    ring[np.arange(n), 0, (np.arange(n) + 1) % n] = 1
    ring[np.arange(n), 1, np.arange(n)] = 1
    reward = np.zeros((n, 2))
    reward[0, 0] = 1
    mdp = capo.MDP(ring, reward, gamma)
    result = capo.solve(mdp, critic="k-step", sweeps=sweeps, tol=1e-8)
    assert result.converged
    assert np.abs(result.values - gamma ** (np.arange(n)[::-1] + 1.0 - n * (np.arange(n)[::-1] == n - 1)) / (
        1 - gamma**n)).max() <= 1e-8 + 1e-12 / (1 - gamma)  # fmt: skip
    assert result.certificate().held


def test_auto_uses_gauss_seidel_where_values_flow_from_an_end_and_jacobi_where_the_chain_mixes():
    grid = capo.solve(capo.mdps.slippery_grid(30), critic="k-step", tol=1e-6)
    mixing = capo.solve(capo.mdps.garnet(900, 4, 5, gamma=0.99), critic="k-step", tol=1e-6)
    assert "Gauss-Seidel" in grid.settings["sweeps"]
    assert "Jacobi" in mixing.settings["sweeps"]
    for run in (grid, mixing):
        assert run.converged
        chosen = int(run.settings["sweeps"].split(",")[0])
        both = [capo.solve(run.mdp, critic="k-step", tol=1e-6, sweeps=sweeps) for sweeps in modified.SWEEPS[1:]]
        made = [int(other.settings["sweeps"].split(",")[0]) for other in both]
        assert chosen <= 1.5 * min(made)
        assert chosen < max(made)


def test_one_sweep_is_value_iteration_and_many_are_policy_iteration():
    mdp = made(23, n_states=20)
    sharp = Sharp(mdp)
    values = sharp.values.copy()
    rounds = Rounds(sharp, mdp.gamma, 1, choose=False)
    for _ in range(5):
        rounds.round()
        values = mdp.q_values(values).max(axis=1)
    assert np.allclose(sharp.values, values, rtol=0, atol=1e-12)
    exact = capo.solve(mdp, rule="batch", iterations=6)
    soft = Rounds(
        Soft(mdp, np.full(mdp.reward.shape, -np.log(3)), 1.0, False, 1e-13), mdp.gamma, 500, choose=False
    )
    soft.sweeper.sweep(500, -1.0)  # V of the first policy
    for _ in range(6):
        soft.round()
    assert np.allclose(np.exp(soft.sweeper.log_policy), exact.policy, rtol=0, atol=1e-9)


def test_any_sets_of_pairs():
    mdp = made(29, n_states=8, n_actions=3, terminal=1)
    pairs = [(s, a) for s in range(8) for a in range(3)]
    rng = np.random.default_rng(0)
    sets = [[pairs[i] for i in rng.choice(24, 9, replace=False)] for _ in range(400)]
    result = capo.solve(mdp, sets, critic="k-step", tol=1e-8)
    assert result.converged
    certificate = result.certificate()
    assert certificate.held, str(certificate)
    assert certificate.line(lines.UPDATE).status == "not applicable"
    short = capo.solve(mdp, sets[:3], critic="k-step", tol=1e-8)
    assert (short.iterations, short.stopped) == (3, "the iterable of coordinates ended")
    assert short.certificate().held


def test_an_action_set_is_respected():
    mdp = with_actions(made(31, n_states=30, n_actions=4))
    best = best_values(mdp, mdp.actions)
    for rule in RULES:
        result = capo.solve(mdp, rule, critic="k-step", tol=1e-9)
        assert np.exp(result.log_policy)[~mdp.actions].sum() == 0
        assert np.abs(result.values - best).max() <= 1e-9 + 1e-12


def test_a_discount_close_to_one():
    mdp = capo.mdps.garnet(300, 3, 4, gamma=0.9999)
    result = capo.solve(mdp, critic="k-step", tol=1e-6)
    assert result.converged
    assert np.abs(result.values - capo.baselines.policy_iteration(mdp).values).max() <= 2e-6
    too_fine = capo.solve(mdp, critic="k-step", tol=1e-15)
    assert not too_fine.converged
    assert too_fine.stopped.startswith("rounding keeps V* - V")


# --- threads ----------------------------------------------------------------------------------------------------


def test_threads_change_nothing_with_jacobi_and_stay_within_the_gap_with_gauss_seidel():
    mdp = capo.mdps.slippery_grid(30)
    for sweeps in ("jacobi", "gauss-seidel"):
        runs = [capo.solve(mdp, critic="k-step", tol=1e-6, sweeps=sweeps, threads=n) for n in (1, 2, 5)]
        assert all(run.converged for run in runs)
        for run in runs[1:]:
            if sweeps == "jacobi":
                assert (run.values == runs[0].values).all()
                assert (run.log_policy == runs[0].log_policy).all()
            bound = max(run.gap_bound, runs[0].gap_bound)
            assert np.abs(run.values - runs[0].values).max() <= bound + 1e-11
        again = capo.solve(mdp, critic="k-step", tol=1e-6, sweeps=sweeps, threads=2)
        assert (again.values == runs[1].values).all()


# --- stopping ---------------------------------------------------------------------------------------------------


def stopped_runs(mdp):
    def interrupt(snapshot):
        if snapshot.iteration == 4:
            raise KeyboardInterrupt

    yield "callback", capo.solve(mdp, critic="k-step", tol=1e-9, callback=lambda now: now.iteration < 4)
    yield "Ctrl-C", capo.solve(mdp, critic="k-step", tol=1e-9, callback=interrupt)
    yield "time limit", capo.solve(mdp, critic="k-step", tol=1e-9, time_limit=1e-6)
    yield "iterations", capo.solve(mdp, critic="k-step", iterations=4)


def test_a_stop_at_any_moment_returns_a_policy_with_its_certificate():
    mdp = capo.mdps.slippery_grid(20)
    best = best_values(mdp)
    for reason, result in stopped_runs(mdp):
        assert reason in result.stopped
        assert not result.converged
        assert result.iterations == (0 if reason == "time limit" else 4)
        assert (best - mdp.policy_values(result.policy)).max() <= result.gap_bound + 1e-9
        assert result.history["gap_bound"][-1] == result.gap_bound
        assert result.certificate().held


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("sweeps", ["jacobi", "gauss-seidel"])
def test_an_interrupt_in_the_middle_of_a_sweep_leaves_a_certified_policy(monkeypatch, threads, sweeps):
    mdp, calls = capo.mdps.slippery_grid(12), 0
    real = kernels.sharp_improve

    def interrupted(*arguments):
        nonlocal calls
        calls += 1
        if calls == 7:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(kernels, "sharp_improve", interrupted)
    result = capo.solve(mdp, critic="k-step", tol=1e-9, sweeps=sweeps, threads=threads)
    assert result.stopped == "stopped by Ctrl-C"
    gap = (best_values(mdp) - mdp.policy_values(result.policy)).max()
    assert gap <= result.gap_bound + 1e-9 < np.inf


def test_every_entry_of_the_history_says_what_is_certified_so_far():
    gaps = []
    capo.solve(capo.mdps.slippery_grid(20), critic="k-step", callback=lambda now: gaps.append(now.gap_bound))
    assert np.isfinite(gaps).all()
    assert gaps[-1] <= 1e-8 < gaps[0]


# --- what auto picks, and mistakes ----------------------------------------------------------------------------


def test_auto_is_exact_for_small_mdps_and_for_trajectories():
    small, large = capo.mdps.slippery_grid(10), capo.mdps.slippery_grid(71)
    assert capo.solve(small, rule="batch", tol=1e-4).critic == "direct"
    assert capo.solve(small, tol=1e-4).critic is None
    assert capo.solve(large, tol=1e-4).critic == "k-step"
    assert capo.solve(large, rule="batch", tol=1e-4).critic == "k-step"
    assert capo.solve(large, rule="batch", iterations=2).critic == "signs"
    assert capo.solve(large, rule="batch", tol=1, critic="exact").critic == "signs"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"critic": "k-steps"}, "k-step"),
        ({"k": 3}, "k: only for critic='k-step'"),
        ({"threads": 2}, "threads: only for critic='k-step'"),
        ({"critic": "k-step", "k": 0}, "k=0"),
        ({"critic": "k-step", "threads": 0}, "threads=0"),
        ({"critic": "k-step", "stepsize": "fixed"}, "stepsize='log'"),
        ({"critic": "k-step", "rule": "randomized"}, "'cyclic', 'batch'"),
        ({"critic": "k-step", "order": "permuted"}, "state-major"),
        ({"critic": "k-step", "sweeps": "sideways"}, "gauss-seidel"),
        ({"critic": "k-step", "device": "tpu"}, "device"),
        ({"critic": "k-step", "device": "gpu", "rule": "batch"}, "device='gpu' supports only Jacobi sweeps"),
        ({"critic": "k-step", "device": "gpu"}, "jax sees no GPU"),
        ({"critic": "k-step", "cycles": 3}, "iterations instead of cycles"),
        ({"time_limit": -1}, "time_limit"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(capo.CapoError, match=message):
        capo.solve(capo.mdps.chain(5), **options)


# --- broken runs ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run():
    return capo.solve(capo.mdps.garnet(40, 3, 4), rule="batch", critic="k-step", sweeps="jacobi", tol=1e-6)


def failed(result):
    return {line.statement for line in result.certificate().failed}


def test_the_untouched_run_holds_in_full(run):
    certificate = run.certificate()
    assert certificate.held
    assert all(line.status == "held" for line in certificate.lines)


def changed(run, **changes):
    return dataclasses.replace(run, rounds=dataclasses.replace(run.rounds, **changes))


def test_a_wrong_gap_fails(run):
    assert lines.GAP in failed(dataclasses.replace(run, gap_bound=run.gap_bound / 2))
    claims = dataclasses.replace(capo.solve(run.mdp, critic="k-step", iterations=2), gap_bound=1e-9)
    assert {lines.GAP, lines.TRUE_GAP, lines.TRUE_VALUES} <= failed(claims)


def test_values_above_those_of_the_policy_fail(run):
    values = run.values.copy()
    values[3] += 1e-3
    assert {lines.GAP, lines.END, lines.BELOW_POLICY, lines.BELOW_BEST} <= failed(
        dataclasses.replace(run, values=values)
    )


def test_another_final_policy_fails(run):
    log_policy = run.log_policy[:, [1, 2, 0]]
    assert {lines.SAME, lines.GAP, lines.END} <= failed(dataclasses.replace(run, log_policy=log_policy))


def test_values_that_fall_fail(run):
    values = run.rounds.values.copy()
    values[8] -= 0.5
    assert failed(changed(run, values=values)) >= {lines.MONOTONE}


def test_values_without_the_invariant_fail(run):
    values = run.rounds.values.copy()
    values[2, 5] += 0.5
    assert lines.INVARIANT in failed(changed(run, values=values))


def test_a_wrong_sign_fails(run):
    log_policies = run.rounds.log_policies.copy()
    worse = log_policies[1]
    q = run.mdp.q_values(run.rounds.values[0])
    worse[np.arange(40), q.argmin(axis=1)] = 0.0
    worse -= np.logaddexp.reduce(worse, axis=1, keepdims=True)
    assert {lines.RAISED, lines.UPDATE} <= failed(changed(run, log_policies=log_policies))


def test_half_a_step_fails(run):
    """Values still rise with steps of half log 1/pi, but they are not what was asked for."""
    half = changed(run, multiple=0.5)
    assert failed(half) == {lines.UPDATE}


def test_a_round_that_did_nothing_breaks_the_rate(run):
    rounds = run.rounds
    still = {"log_policies": np.repeat(rounds.log_policies[:1], 3, axis=0)}
    values = np.repeat(rounds.values[:1], 3, axis=0)
    broken = changed(run, values=values, jacobi=np.zeros(2, bool), **still)
    assert lines.RATE in failed(broken)


def test_the_rates_are_those_of_the_theorem(run):
    assert lines.proven_rate(run.rounds, run.mdp) == pytest.approx(1 - 0.75 * 0.05 / 3)
    sharp = capo.solve(run.mdp, critic="k-step", tol=1e-6)
    assert lines.proven_rate(sharp.rounds, run.mdp) == 0.95
    assert lines.proven_rate(capo.solve(run.mdp, critic="k-step", multiple=2.0).rounds, run.mdp) is None


@quick
@given(seed=st.integers(0, 100_000), n=st.integers(2, 8))
def test_the_constant_of_the_batch_rate(seed, n):
    """T_pi' V - T_pi V >= 3/(4 A) max(Q - T_pi V) for one state, any policy and any Q."""
    rng = np.random.default_rng(seed)
    log_policy = np.log(rng.dirichlet(np.full(n, rng.choice([0.05, 0.3, 1.0]))) + 1e-300)
    log_policy -= np.logaddexp.reduce(log_policy)
    q = np.round(rng.normal(size=n), rng.integers(0, 4))
    pi = np.exp(log_policy)
    advantage = q - pi @ q
    sign = np.where(np.abs(advantage) > 1e-13, np.sign(advantage), 0)
    new = np.exp(coordinate_update(log_policy, sign, -log_policy))
    assert new @ q - pi @ q >= 0.75 / n * advantage.max() - 1e-12


def test_the_floor_stays_finite_under_the_largest_steps():
    assert np.isfinite(floor(np.float64) * MOST_MULTIPLE)


# --- honest runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-12, 1e-14, 1e-20, 1e-200])
@pytest.mark.parametrize("rule", RULES)
def test_tiny_rewards_give_the_same_run(rule, size):
    mdp = capo.mdps.random(6, 3, gamma=0.9)
    tiny = mdp.with_reward(mdp.reward * size)
    runs = [capo.solve(of, critic="k-step", rule=rule, iterations=10) for of in (mdp, tiny)]
    np.testing.assert_allclose(runs[0].policy, runs[1].policy, atol=1e-9)
    assert runs[1].gap_bound == pytest.approx(runs[0].gap_bound * size, rel=1e-3, abs=1e-12 * size)
    assert runs[1].certificate().held


@pytest.mark.parametrize("sign_tol", [1e-3, 0.05, 1.0])
def test_the_rate_allows_for_differences_that_count_as_zero(sign_tol):
    mdp = capo.mdps.garnet(40, 3, 4)
    for options in ({"rule": "batch"}, {"rule": "cyclic", "multiple": MOST_MULTIPLE}):
        run = capo.solve(mdp, critic="k-step", iterations=80, sign_tol=sign_tol, sweeps="jacobi", **options)
        assert run.certificate().line("Theorem: ||V* - V'||").status == "held"
        assert run.certificate().held


def test_solutions_far_beyond_v_may_be_off_by_rounding_of_their_own_size(run):
    """A run that was stopped early: V is at 1, the policy is worth 1e9, and LU finds that to 16 digits."""
    own = lines._Run(run, run.mdp.with_gamma(1 - 1e-9), 1.0, 0.0)
    assert own.solved(np.array([1e9, 0.0])) == pytest.approx(1e9 * own.solved())
    assert own.solved(np.array([0.5])) == own.solved()


def test_lines_that_need_a_solution_are_skipped_where_it_has_no_correct_digit():
    mdp = made(3, gamma=1 - 2.0**-53)
    run = capo.solve(mdp, critic="k-step", rule="batch", iterations=5)
    for name in (lines.BELOW_POLICY, lines.BELOW_BEST, lines.TRUE_GAP, lines.TRUE_VALUES, lines.RATE):
        line = run.certificate().line(name)
        assert line.status == "not applicable"
        assert "no correct digit" in line.note


# --- values that are not finite -------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1 - 2.0**-53, 0.999])
def test_rewards_too_large_for_another_discount_are_refused(gamma):
    huge = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]) * 1e298
    with pytest.raises(CapoError, match=r"too large with gamma=0\.99.*would overflow"):
        capo.MDP(np.full((3, 2, 3), 1 / 3), huge, 0.5).with_gamma(gamma)
    with pytest.raises(CapoError, match="too large with gamma"):
        capo.MDP(np.full((3, 2, 3), 1 / 3), huge, 1.0).with_gamma(gamma)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("gauss_seidel", [False, True])
@pytest.mark.parametrize("kind", ["sharp", "soft"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("state", [0, 25, 39])
def test_nothing_is_certified_where_one_value_has_overflowed(kind, gauss_seidel, threads, value, state):
    mdp = capo.mdps.garnet(40, 3, 4)
    for step in ("round", "certify"):
        if kind == "sharp":
            sweeper = Sharp(mdp, gauss_seidel, threads)
        else:
            sweeper = Soft(mdp, uniform_log_policy(mdp), 1.0, False, 1e-12, None, gauss_seidel, threads)
        rounds = Rounds(sweeper, mdp.gamma, None, choose=False)
        rounds.round()
        sweeper.values[state] = value
        with pytest.raises(CapoError, match="no longer finite"):
            getattr(rounds, step)()
        sweeper.close()
