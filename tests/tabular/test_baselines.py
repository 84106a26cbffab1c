"""The baselines against each other, against plain loops and against what is proven about them."""

import numpy as np
import pytest
import scipy.sparse as sp

import capo
from capo.errors import CapoError
from capo.tabular import baselines
from capo.update import log_normalise

MDPS = {
    "garnet": capo.mdps.garnet(30, 4, 3, gamma=0.9, seed=3),
    "random": capo.mdps.random(10, 3, gamma=0.8, seed=1),
    "chain": capo.mdps.chain(10),
    "sparse": capo.mdps.slippery_grid(6, gamma=0.9),
}


def sparse_twin(mdp):
    return capo.MDP(sp.csr_array(mdp.rows), mdp.reward, mdp.gamma, mdp.start)


@pytest.mark.parametrize("mdp", MDPS.values(), ids=MDPS)
def test_policy_and_value_iteration_agree_with_capo(mdp):
    best = capo.solve(mdp, rule="batch", tol=1e-9)
    howard = baselines.policy_iteration(mdp)
    sweeps = baselines.value_iteration(mdp, tol=1e-9)
    assert howard.converged
    assert sweeps.converged
    assert howard.stopped.startswith(("V* - V", "no further"))
    np.testing.assert_allclose(howard.values, best.values, atol=2e-9)
    np.testing.assert_allclose(sweeps.values, best.values, atol=2e-9)
    assert howard.iterations < 30


def test_policy_iteration_ends_in_an_optimal_policy_although_values_tie():
    mdp = capo.mdps.bandit([1.0, 1.0, 1.0 - 1e-16, 0.0])
    result = baselines.policy_iteration(mdp, init=[[0.25] * 4], tol=1e-12)
    assert result.converged
    assert result.iterations == 1
    assert result.gap_bound <= 1e-12


def test_sparse_and_dense_mdps_give_the_same():
    dense = MDPS["garnet"]
    sparse = sparse_twin(dense)
    assert sparse.is_sparse
    for run in (
        lambda m: baselines.policy_gradient(m, iterations=20),
        lambda m: baselines.policy_gradient(m, "tuned", iterations=20),
        lambda m: baselines.natural_policy_gradient(m, iterations=20),
        lambda m: baselines.policy_iteration(m),
        lambda m: baselines.value_iteration(m, iterations=20),
    ):
        np.testing.assert_allclose(run(dense).policy, run(sparse).policy, atol=1e-9)


def test_gradient_against_finite_differences():
    mdp = MDPS["random"]
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(mdp.n_states, mdp.n_actions))
    mu = rng.dirichlet(np.ones(mdp.n_states))

    def objective(parameters):
        return mu @ mdp.policy_values(np.exp(log_normalise(parameters)[0]))

    gradient = baselines.softmax_gradient(baselines.PolicyValues(mdp, log_normalise(theta)[0]), mu)
    for s in range(mdp.n_states):
        for a in range(mdp.n_actions):
            step = np.zeros_like(theta)
            step[s, a] = 1e-5
            numeric = (objective(theta + step) - objective(theta - step)) / 2e-5
            assert gradient[s, a] == pytest.approx(numeric, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("stepsize", ["mei", "tuned"])
@pytest.mark.parametrize("name", ["garnet", "random"])
def test_policy_gradient_never_decreases_the_value_it_climbs(stepsize, name):
    mdp = MDPS[name]  # start and mu are both uniform
    result = baselines.policy_gradient(mdp, stepsize, iterations=300, record_every=1)
    gains = np.diff(result.history["value"])
    assert (gains >= -1e-13).all()
    assert gains[0] > 0
    assert len(gains) == 300 or result.stopped == "no further improvement"


def test_meis_step_on_other_rewards_is_the_same_run_as_on_rescaled_ones():
    mdp = MDPS["random"]
    scaled = capo.MDP(mdp.transition, 7 * mdp.reward - 3, mdp.gamma, mdp.start)
    plain = baselines.policy_gradient(scaled.rescale_rewards(), iterations=50)
    other = baselines.policy_gradient(scaled, iterations=50)
    np.testing.assert_allclose(plain.policy, other.policy, atol=1e-12)
    assert "scaled to [0, 1]" in other.settings["step size"]
    assert "scaled" not in plain.settings["step size"]


def test_tuned_policy_gradient_beats_the_proven_step_by_far():
    mdp = MDPS["random"]
    best = baselines.policy_iteration(mdp).value
    proven = best - baselines.policy_gradient(mdp, iterations=200).value
    tuned = best - baselines.policy_gradient(mdp, "tuned", iterations=200).value
    assert tuned < 1e-3 * proven


@pytest.mark.parametrize("eta", [0.1, 1.0, 50.0])
@pytest.mark.parametrize("name", ["garnet", "random"])
def test_natural_policy_gradient_is_monotone_and_within_its_rate(name, eta):
    mdp = MDPS[name]
    best = baselines.policy_iteration(mdp).value
    result = baselines.natural_policy_gradient(mdp, eta, iterations=100, record_every=1)
    value, m = result.history["value"], result.history["iteration"]
    assert (np.diff(value) >= -1e-12).all()
    bound = np.log(mdp.n_actions) / (eta * m[1:]) + 1 / ((1 - mdp.gamma) ** 2 * m[1:])
    assert (best - value[1:] <= bound).all()


def test_one_step_of_natural_policy_gradient_by_hand():
    mdp = capo.mdps.bandit([1.0, 0.0], gamma=0.5)
    result = baselines.natural_policy_gradient(mdp, eta=0.3, iterations=1)
    weights = np.exp(0.3 / 0.5 * np.array([0.5, -0.5]))
    np.testing.assert_allclose(result.policy[0], weights / weights.sum())


def test_results_are_complete_and_print():
    result = baselines.natural_policy_gradient(MDPS["random"], tol=1e-6)
    assert set(result.history) == {"iteration", "value", "gap_bound", "seconds"}
    assert result.rule is None
    assert result.counts is None
    assert result.converged
    assert result.gap_bound <= 1e-6
    best = baselines.policy_iteration(MDPS["random"])
    assert (best.values - result.values <= result.gap_bound + 1e-12).all()
    assert "natural policy gradient" in str(result)


def test_the_callback_stops_a_run():
    seen = []
    result = baselines.natural_policy_gradient(
        MDPS["random"], iterations=50, callback=lambda now: seen.append(now.iteration) or now.iteration < 3
    )
    assert seen == [0, 1, 2, 3]
    assert result.iterations == 3
    assert result.stopped == "stopped by the callback"


def plain_stochastic_npg(rewards, eta, theta, seed, iterations):
    """The update as it is written, one arm at a time."""
    rng, theta = np.random.default_rng(seed), np.array(theta, float)
    for _ in range(iterations):
        pi = np.exp(theta - theta.max())
        pi /= pi.sum()
        arm = min(int(np.searchsorted(pi.cumsum(), rng.random(), side="right")), len(pi) - 1)
        theta[arm] += eta * rewards[arm] / pi[arm]
    pi = np.exp(theta - theta.max())
    return pi / pi.sum()


@pytest.mark.parametrize("eta", [0.001, 0.01])
def test_stochastic_npg_against_a_plain_loop(eta):
    mdp, start = capo.mdps.bandit(), [0.0, 3.0, 3.0, 0.0]
    many = baselines.stochastic_npg(mdp, eta, seeds=[0, 5, 9], iterations=60, theta=[start], track=(0, 0))
    for k, seed in enumerate(many.seeds):
        plain = plain_stochastic_npg(mdp.reward[0], eta, start, seed, 60)
        np.testing.assert_allclose(many.policies[k, 0], plain, atol=1e-9)
    assert many.counts.sum() == 3 * 60
    np.testing.assert_allclose(many.tracked[:, -1], many.policies[:, 0, 0])


def test_stochastic_npg_stays_finite_where_probabilities_underflow():
    mdp = capo.mdps.bandit([10.0, 9.9, -5.0, 0.0])
    many = baselines.stochastic_npg(mdp, 100.0, seeds=50, iterations=2000, theta=[[0, 600.0, 0, -600.0]])
    assert np.isfinite(many.value).all()
    np.testing.assert_allclose(many.policies.sum(axis=2), 1.0)


def test_stochastic_npg_commits_to_a_wrong_arm_where_on_policy_capo_does_not():
    mdp, start = capo.mdps.bandit(), [[0, 3, 3, 0]]
    npg = baselines.stochastic_npg(mdp, 0.1, seeds=30, iterations=5000, theta=start)
    ours = capo.solve_many(mdp, 30, "on-policy", "on-policy", iterations=5000, theta=start)
    assert (npg.policies[:, 0, 0] > 0.99).mean() < 0.5
    assert (ours.policies[:, 0, 0] > 0.99).mean() == 1.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: baselines.policy_gradient(m, "tunned"), "did you mean 'tuned'"),
        (lambda m: baselines.policy_gradient(m, "mei", eta=0.1), "eta=0.1"),
        (lambda m: baselines.policy_gradient(m, "fixed"), "needs eta"),
        (lambda m: baselines.policy_gradient(m, eta=-1.0), "eta=-1.0"),
        (lambda m: baselines.policy_gradient(m, mu=np.eye(10)[0]), "mu"),
        (lambda m: baselines.natural_policy_gradient(m, eta=float("nan")), "eta=nan"),
        (lambda m: baselines.natural_policy_gradient(m, iterations=0), "iterations=0"),
        (lambda m: baselines.natural_policy_gradient(m, tol=1e-18), "tol=1e-18"),
        (lambda m: baselines.value_iteration(m, tol=-1.0), "tol=-1.0"),
        (lambda m: baselines.value_iteration(m, values=[1.0, 2.0]), r"values of shape \(2,\)"),
        (lambda m: baselines.value_iteration(m, values=np.full(m.n_states, -1.7e308)), "values of size 1.7e"),
        (lambda m: baselines.policy_iteration(m, init=[[1.0]]), "init"),
        (lambda m: baselines.stochastic_npg(m, 0.1, 5, iterations=10), "one state"),
        (lambda _: baselines.stochastic_npg(capo.mdps.bandit(), 0.1, 0, iterations=10), "seeds"),
        (lambda _: baselines.stochastic_npg(capo.mdps.bandit(), 1e300, 5, iterations=10), "eta=1e.300 is too"),
        (lambda _: baselines.stochastic_npg(capo.mdps.bandit(), 0.1, 1, iterations=10, track=(0, 4)), "track"),
    ],
)
def test_bad_input_is_refused_by_name(call, words):
    with pytest.raises(CapoError, match=words):
        call(MDPS["random"])


@pytest.mark.parametrize(
    "call",
    [
        baselines.policy_iteration,
        baselines.value_iteration,
        baselines.policy_gradient,
        lambda mdp: baselines.natural_policy_gradient(mdp, 0.1),
        lambda mdp: baselines.stochastic_npg(mdp, 0.1, iterations=5),
    ],
)
def test_a_name_is_no_mdp(call):
    with pytest.raises(CapoError, match="is not a capo"):
        call("chain:10")


@pytest.mark.parametrize("track", [(0, 1.0), (0, 9), (1, 0), 3])
def test_a_tracked_arm_that_is_none_is_refused(track):
    with pytest.raises(CapoError, match="track"):
        baselines.stochastic_npg(capo.mdps.bandit(), 0.1, 2, iterations=5, track=track)
