"""Fast evaluation against a plain linear solve at every update."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capo
from capo import CapoError, StepSize, mdps
from capo.tabular.critic import Coordinates, DenseCritic, DirectCritic, single_threaded_blas
from capo.tabular.sign_critic import SignCritic
from capo.update import coordinate_update


def plain_run(mdp, log_policy, pairs, step, sign_tol):
    """CAPO written plainly: one linear solve an update."""
    log_policy = log_policy.copy()
    counts = np.zeros(log_policy.shape, int)
    values, signs = [], []
    for s, a in pairs:
        v = mdp.policy_values(np.exp(log_policy))
        advantage = (mdp.q_values(v) - v[:, None])[s, a]
        sign = np.zeros(mdp.n_actions, int)
        sign[a] = 0 if abs(advantage) <= sign_tol else np.sign(advantage)
        counts[s, a] += 1
        alpha = step.alpha(log_policy[s], sign, counts[s])
        log_policy[s] = coordinate_update(log_policy[s], sign, alpha)
        values.append(mdp.start @ mdp.policy_values(np.exp(log_policy)))
        signs.append(sign[a])
    return log_policy, np.array(values), np.array(signs)


def fast_run(mdp, log_policy, pairs, step, sign_tol, depth):
    critic = DenseCritic(mdp, log_policy, sign_tol, depth=depth)
    coordinates = Coordinates(np.asarray(pairs, np.int64))
    return critic, critic.run(coordinates, step, len(pairs))


@pytest.mark.parametrize("depth", [0, 1, 3, 64])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_the_engine_follows_a_plain_solve_at_every_update(depth, data):
    n_states, n_actions = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    seed = data.draw(st.integers(0, 10_000))
    gamma = data.draw(st.sampled_from([0.3, 0.9, 0.99]))
    step = data.draw(
        st.sampled_from([StepSize(), StepSize(multiple=2.0), StepSize("fixed", eta=0.5), StepSize("on-policy")])
    )
    mdp = mdps.random(n_states, n_actions, gamma=gamma, seed=seed)
    rng = np.random.default_rng(seed)
    pairs = np.stack([rng.integers(0, n_states, 40), rng.integers(0, n_actions, 40)], axis=1)
    if data.draw(st.booleans()):
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]  # long runs of one state: the merged path
    first = np.log(rng.dirichlet(np.ones(n_actions), n_states))
    sign_tol = 1e-11 / (1 - gamma)
    expected, values, signs = plain_run(mdp, first, pairs, step, sign_tol)
    critic, steps = fast_run(mdp, first, pairs, step, sign_tol, depth)
    np.testing.assert_array_equal(steps.sign, signs)
    np.testing.assert_allclose(np.exp(critic.log_policy), np.exp(expected), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(steps.value, values, rtol=1e-10)
    np.testing.assert_allclose(critic.values, mdp.policy_values(np.exp(expected)), rtol=1e-10)
    assert critic.counts.sum() == 40


@pytest.mark.parametrize("branching", [2, 40], ids=["few successors", "many successors"])
def test_flushing_multiplies_the_pending_changes_in(branching):
    mdp = mdps.garnet(120, 3, branching)
    rng = np.random.default_rng(0)
    pairs = np.stack([rng.integers(0, 120, 90), rng.integers(0, 3, 90)], axis=1)
    first = np.full((120, 3), -np.log(3))
    critic, _ = fast_run(mdp, first, pairs, StepSize(), 1e-12, depth=200)
    assert critic._pending > 40
    assert (np.count_nonzero(critic._w[: critic._pending]) < critic._w[: critic._pending].size / 8) == (
        branching == 2
    )
    critic.flush()
    system = np.eye(120) - mdp.gamma * mdp.policy_transition(critic.policy)
    np.testing.assert_allclose(critic._inverse @ system, np.eye(120), atol=1e-11)


@pytest.mark.parametrize("n_states", [60, 200])
def test_drift_stays_at_rounding_over_many_updates(n_states):
    mdp = mdps.garnet(n_states, 4, 5, gamma=0.99, seed=1)
    run = capo.solve(mdp, rule="on-policy", stepsize="on-policy", iterations=30_000)
    exact = mdp.policy_values(run.policy)
    assert np.abs(run.values - exact).max() < 1e-11 * np.abs(exact).max()


def test_drift_is_found_and_mended():
    mdp = mdps.garnet(20, 3, 4)
    critic = DenseCritic(mdp, np.full((20, 3), -np.log(3)), 1e-12)
    exact = critic.values.copy()
    critic.values += 1e-6
    q = critic.checked_q()
    assert critic.refactorisations == 1
    np.testing.assert_allclose(critic.values, exact, rtol=1e-13)
    np.testing.assert_allclose(q, mdp.q_values(exact), rtol=1e-13)


def test_replacing_rows_follows_the_policy():
    mdp = mdps.garnet(40, 3, 4, seed=5)
    for depth in (0, 4):
        critic = DenseCritic(mdp, np.full((40, 3), -np.log(3)), 1e-12, depth=depth)
        rng = np.random.default_rng(depth)
        for _ in range(5):
            states = rng.choice(40, 7, replace=False)
            rows = np.log(rng.dirichlet(np.ones(3), 7))
            critic.replace_rows(states, rows)
            np.testing.assert_allclose(critic.values, mdp.policy_values(critic.policy), rtol=1e-11)


# --- signs only as far as needed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mdp",
    [
        mdps.slippery_grid(15),
        mdps.slippery_grid(30, gamma=0.995),
        capo.MDP(mdps.garnet(300, 4, 5).csr(), mdps.garnet(300, 4, 5).reward, 0.99),
        capo.MDP(mdps.random(80, 3).csr(), mdps.random(80, 3).reward, 0.95),
    ],
    ids=["grid", "grid .995", "garnet", "random"],
)
@pytest.mark.parametrize("sign_tol", [1e-4, 1e-7, 1e-10])
def test_signs_are_the_exact_ones_above_twice_the_tolerance(mdp, sign_tol):
    signs, exact = SignCritic(mdp, sign_tol), DirectCritic(mdp, sign_tol)
    rng = np.random.default_rng(0)
    sharpness = [
        np.zeros(mdp.reward.shape),
        rng.normal(size=mdp.reward.shape),
        30 * rng.normal(size=mdp.reward.shape),
    ]
    for theta in sharpness:
        policy = np.exp(theta - np.log(np.exp(theta).sum(axis=1, keepdims=True)))
        got, want = signs.evaluate(policy), exact.evaluate(policy)
        advantage = mdp.q_values(want.values) - want.values[:, None]
        assert np.abs(got.values - want.values).max() <= got.error * 1.001 + 1e-11
        clear = np.abs(advantage) > 2 * sign_tol
        np.testing.assert_array_equal(got.signs[clear], want.signs[clear])
        # Where it is not clear the sign may be 0, but never the wrong one.
        assert (got.signs * np.sign(advantage) >= 0).all()
        assert got.greatest >= want.greatest - 1e-11


def test_a_coarse_tolerance_stops_earlier():
    steps = []
    for sign_tol in (1e-2, 1e-9):
        critic = SignCritic(mdps.slippery_grid(40), sign_tol)
        critic.evaluate(np.full((1600, 4), 0.25))
        steps.append(critic.solver_steps)
    assert steps[0] < steps[1]


@pytest.mark.parametrize(("n_states", "seed"), [(50, 0), (50, 1), (50, 2), (500, 3), (500, 4), (2000, 5)])
def test_both_engines_end_in_the_same_policy(n_states, seed):
    dense = mdps.garnet(n_states, 4, 5, gamma=0.95, seed=seed)
    sparse = capo.MDP(dense.csr(), dense.reward, dense.gamma)
    runs = [
        capo.solve(mdp, rule="batch", iterations=20, critic=critic, sign_tol=1e-10)
        for mdp, critic in ((dense, "direct"), (sparse, "signs"))
    ]
    np.testing.assert_allclose(runs[0].policy, runs[1].policy, atol=1e-10)
    assert runs[0].policy.max(axis=1).min() > 1 - 1e-10


def test_an_evaluation_that_cannot_go_further_says_so():
    critic = SignCritic(mdps.slippery_grid(20), 1e-25)
    with pytest.raises(CapoError, match="stalled at an error"):
        critic.evaluate(np.full((400, 4), 0.25))


def test_a_dense_inverse_that_would_not_fit_is_refused_before_allocation():
    with pytest.raises(CapoError, match=r"20000 states would take 8\.9 GB.*critic='k-step' or rule='batch'"):
        DenseCritic(_Large(), np.zeros((1, 1)), 1e-12)
    with pytest.raises(CapoError, match="use critic='k-step' or rule='batch'"):
        capo.solve(mdps.slippery_grid(200), rule="cyclic", critic="exact")


class _Large:
    n_states = 20_000


def test_blas_has_its_threads_back_when_the_last_is_through():
    """Overlapping users: the second must not take the first one's limit for what there was."""

    class Controller:
        threads = 2

        def limit(self, limits, user_api):
            assert user_api == "blas"
            before, self.threads = self.threads, limits
            return SimpleNamespace(restore_original_limits=lambda: setattr(self, "threads", before))

    blas = type(single_threaded_blas)()
    blas._controller = controller = Controller()
    blas.__enter__()
    blas.__enter__()
    assert controller.threads == 1
    blas.__exit__()
    assert controller.threads == 1
    blas.__exit__()
    assert controller.threads == 2


def test_solve_many_leaves_blas_as_it_was():
    code = """
import capo
from capo.tabular import engine
from threadpoolctl import threadpool_info, threadpool_limits
threadpool_limits(3, user_api="blas")
inside, real = set(), engine.CoordinateRunner
def runner(*given):
    inside.add(engine.single_threaded_blas._inside > 0)  # before its critic enters
    return real(*given)
engine.CoordinateRunner = runner
capo.solve_many(capo.mdps.chain(200), 12, "randomized", iterations=5, record=[5], threads=4)
print(inside, {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{True} {3}"
