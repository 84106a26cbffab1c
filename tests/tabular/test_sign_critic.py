"""The parts of the sign critic against plain versions of them."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import capo
from capo import CapoError, mdps
from capo.tabular import kernels_signs as kernels
from capo.tabular import sign_critic
from capo.tabular.critic import DirectCritic
from capo.tabular.sign_critic import Corrections, SignCritic, _policy_pattern


def sparse(mdp, gamma=None):
    return capo.MDP(mdp.csr(), mdp.reward, gamma or mdp.gamma, actions=mdp.actions)


def random_policy(mdp, rng, sharpness=1.0):
    theta = mdp.masked(sharpness * rng.normal(size=mdp.reward.shape))
    policy = np.exp(theta - theta.max(axis=1, keepdims=True))
    return policy / policy.sum(axis=1, keepdims=True)


def masked_mdp(seed=0):
    full, rng = mdps.garnet(40, 4, 5, gamma=0.95, seed=seed), np.random.default_rng(seed)
    mask = rng.random((40, 4)) < 0.6
    mask[:, 1] = True
    return capo.MDP(full.csr(), full.reward, full.gamma, actions=mask)


MDPS = {
    "grid": lambda: mdps.slippery_grid(7),
    "garnet": lambda: sparse(mdps.garnet(60, 3, 5, gamma=0.99)),
    "masked": masked_mdp,
    "chain": lambda: sparse(mdps.chain(30)),
}


@pytest.mark.parametrize("name", MDPS)
def test_the_policys_matrix_in_its_pattern(name):
    mdp = MDPS[name]()
    policy = random_policy(mdp, np.random.default_rng(0))
    pattern, place = _policy_pattern(mdp.csr(), mdp.n_states)
    assert pattern.has_sorted_indices
    assert all(
        len(set(pattern[[s]].indices.tolist())) == pattern.indptr[s + 1] - pattern.indptr[s] for s in range(9)
    )
    rewards = np.empty(mdp.n_states)
    rows = mdp.csr()
    kernels.policy_system(rows.indptr, rows.data, mdp.reward, policy, place, pattern.data, rewards)
    np.testing.assert_allclose(pattern.toarray(), mdp.policy_transition(policy).toarray(), atol=1e-15)
    np.testing.assert_allclose(rewards, (policy * mdp.reward).sum(axis=1), rtol=1e-14)
    residual, values = np.empty(mdp.n_states), np.random.default_rng(1).normal(size=mdp.n_states)
    low, high = kernels.bellman_residual(
        pattern.indptr, pattern.indices, pattern.data, mdp.gamma, rewards, values, residual
    )
    np.testing.assert_allclose(residual, rewards + mdp.gamma * pattern @ values - values, atol=1e-12)
    assert (low, high) == (residual.min(), residual.max())


def plain_preconditioner(system, lumped):
    """(E - L) E^-1 (E - U) of a dense I - gamma P_pi = D - L - U, as its docstring says."""
    lower, upper, diagonal = -np.tril(system, -1), -np.triu(system, 1), np.diag(system).copy()
    for s in range(len(system) if lumped else 0):
        diagonal[s] -= (lower[s, :s] * upper[:s].sum(axis=1) / diagonal[:s]).sum()
    return diagonal, (np.diag(diagonal) - lower) @ np.diag(1 / diagonal) @ (np.diag(diagonal) - upper)


@pytest.mark.parametrize("lumped", [False, True])
@pytest.mark.parametrize("gamma", [0.9, 0.99, 0.9999])
@pytest.mark.parametrize("name", MDPS)
def test_corrections_solve_the_policys_equation(name, gamma, lumped):
    mdp = MDPS[name]().with_gamma(gamma)
    rng = np.random.default_rng(2)
    matrix = mdp.policy_transition(random_policy(mdp, rng))
    matrix.sort_indices()
    corrections = Corrections(matrix, gamma)
    assert corrections._basis.dtype == (np.float32 if gamma <= sign_critic.SINGLE_UP_TO else np.float64)
    corrections.lumped = lumped
    corrections.follow(matrix.data)
    system = np.eye(mdp.n_states) - gamma * matrix.toarray()
    diagonal, preconditioner = plain_preconditioner(system, lumped)
    np.testing.assert_allclose(corrections._diagonal, diagonal, rtol=1e-12)
    assert (diagonal >= -np.triu(system, 1).sum(axis=1) + (1 - gamma) * (1 - 1e-9)).all()
    if lumped:  # exact on constants
        ones = np.ones(mdp.n_states)
        np.testing.assert_allclose(preconditioner @ ones, system @ ones, atol=1e-13)
    wanted, values = rng.normal(size=mdp.n_states), np.zeros(mdp.n_states)
    right = system @ wanted
    for _ in range(400):
        residual = right - system @ values
        size = float(np.abs(residual).max())
        if size < 1e-13:
            break
        corrections.correct(values, residual, size, 1e-3)
    np.testing.assert_allclose(values, wanted, atol=1e-12 / (1 - gamma))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), sharpness=st.sampled_from([0.0, 1.0, 8.0, 40.0]), masked=st.booleans())
def test_an_advantage_is_known_to_within_what_its_sign_needs(seed, sharpness, masked):
    """Signs from wrong values: never the wrong one, and none left undecided that the bound decides."""
    rng = np.random.default_rng(seed)
    mdp = masked_mdp(seed) if masked else sparse(mdps.garnet(30, 3, 4, gamma=0.9, seed=seed))
    policy = random_policy(mdp, rng, sharpness)
    exact = mdp.policy_values(policy)
    advantage = mdp.q_values(exact) - exact[:, None]
    wrong = exact + rng.uniform(-1, 1, mdp.n_states) * 10.0 ** rng.uniform(-8, 0)
    spread = float(np.ptp(exact - wrong))
    q = mdp.q_values(wrong)
    others = 1 - policy
    slack = mdp.gamma * others * spread
    around = q - (policy * mdp.masked(q, 0.0)).sum(axis=1, keepdims=True)
    assert (np.abs(around - advantage) <= slack + 1e-12)[mdp.allowed].all()
    tol, signs, rows = 1e-9, np.full(mdp.reward.shape, 9, np.int8), mdp.csr()
    allowed = np.empty((0, 0), bool) if mdp.actions is None else np.ascontiguousarray(mdp.actions)
    first = int(rng.integers(mdp.n_states))
    undecided, greatest = kernels.certain_signs(
        rows.indptr,
        rows.indices,
        rows.data,
        mdp.reward,
        allowed,
        policy,
        mdp.gamma,
        wrong,
        spread,
        tol,
        signs,
        first,
    )
    found = signs != 9
    assert (signs[found] * np.sign(mdp.masked(advantage, 0.0)[found]) >= 0).all()
    open_pairs = (np.abs(around) <= slack - 1e-11) & (np.abs(around) + slack > 2 * tol + 1e-11) & mdp.allowed
    if undecided < 0:
        assert found.all()
        assert not open_pairs.any()
        assert greatest >= advantage[mdp.allowed].max() - 1e-12
        assert (signs[~mdp.allowed] == 0).all()
    else:
        assert (np.abs(around[undecided]) <= slack[undecided] + tol + 1e-11)[mdp.allowed[undecided]].any()


@pytest.mark.parametrize("name", MDPS)
def test_v_is_known_far_better_than_the_greatest_advantage(name):
    mdp = MDPS[name]()
    critic, rng = SignCritic(mdp, 1e-9), np.random.default_rng(3)
    for sharpness in (0.0, 1.0, 5.0, 50.0, 0.5):
        policy = random_policy(mdp, rng, sharpness)
        got, want = critic.evaluate(policy), DirectCritic(mdp, 1e-9).evaluate(policy)
        error = np.abs(got.values - want.values).max()
        assert error <= got.error + 1e-11
        assert got.error <= max(sign_critic.KNOWN * got.greatest, 1e-9)
        assert want.greatest <= got.greatest + 1e-11 <= want.greatest * 1.001 + 3e-9


def test_the_second_preconditioner_is_tried_where_the_first_is_slow_and_kept_where_it_is_better():
    grid, mixing = mdps.slippery_grid(60), sparse(mdps.garnet(2000, 4, 5, gamma=0.99))
    for mdp, lumped in ((grid, True), (mixing, False)):
        critic = SignCritic(mdp, 1e-9)
        critic.evaluate(mdp.uniform_policy)
        assert critic._corrections.lumped is lumped


def test_values_that_overflow_are_refused():
    mdp = mdps.slippery_grid(5)
    critic = SignCritic(mdp, 1e-9)
    critic._values[:] = np.nan
    with pytest.raises(CapoError, match="values are no longer finite"):
        critic.evaluate(mdp.uniform_policy)


def with_constant(mdp, constant):
    return capo.MDP(mdp.csr(), mdp.reward + constant, mdp.gamma)


@pytest.mark.parametrize("constant", [-1.0, 100.0, 1e4])
@pytest.mark.parametrize("n_states", [300, 1000])
def test_a_preconditioner_that_becomes_slow_is_changed(n_states, constant):
    """The first residual of rewards with a large constant says nothing about those that follow."""
    mdp = with_constant(mdps.garnet(n_states, 3, 8, gamma=0.999), constant)
    result = capo.solve(mdp, rule="batch", critic="signs", iterations=15)
    assert result.gap_bound < 1e-7 * np.abs(result.values).max()
    again = capo.solve(mdp, rule="batch", critic="direct", iterations=15)
    np.testing.assert_allclose(result.values, again.values, rtol=1e-10)


def test_the_choice_of_the_preconditioner_follows_the_last_rates():
    mdp = mdps.slippery_grid(7)
    corrections = Corrections(_policy_pattern(mdp.csr(), mdp.n_states)[0], mdp.gamma)
    chosen = []
    for rate in (2.0, 0.5, 0.3, 0.6, 0.4, 0.55, 0.05, 0.05):
        corrections.note(corrections._pattern.data, rate)
        chosen.append(corrections.lumped)
    # fast: kept; then the other is tried; slower: back; better: kept; faster than the other's last: kept; ...
    assert chosen == [False, True, False, False, False, False, True, False]


def test_an_evaluation_that_rounding_keeps_from_its_goal_ends_where_every_sign_is_certain():
    mdp = with_constant(sparse(mdps.garnet(60, 3, 5, gamma=0.99)), 1e6)
    best = capo.solve(mdp, critic="k-step", tol=1e-4).policy.argmax(axis=1)
    found = SignCritic(mdp, 1e-9).evaluate(np.eye(3)[best])
    assert found.error > 1e-9
    assert found.greatest >= found.error
    assert (found.signs[np.arange(60), best] == 0).all()
    assert ((found.signs == -1).sum(axis=1) == 2).all()


def test_an_evaluation_that_leaves_a_sign_open_is_refused():
    one = with_constant(sparse(mdps.garnet(60, 1, 5, gamma=0.99)), 1e6)
    twins = capo.MDP(one.csr()[np.repeat(np.arange(60), 2)], np.repeat(one.reward, 2, axis=1), 0.99)
    with pytest.raises(CapoError, match="with signs undecided"):
        SignCritic(twins, 1e-9).evaluate(twins.uniform_policy)


@pytest.mark.parametrize(
    ("gamma", "rows", "rewards"),
    [
        (1 - 2.0**-53, [[0.5, 0, 0.5], [0.5, 0.5, 0], [0.5, 0.5, 0]], [1, 0, -1]),
        (1 - 2.0**-53, [[0, 0, 1], [1, 0, 0], [0, 1, 0]], [-2, -1, 2]),
        (1 - 1e-9, [[0.5, 0.5, 0], [0, 1, 0], [0, 0.5, 0.5]], [2, -1, 2]),
        (1 - 1e-9, [[1, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]], [-2, 2, 2]),
    ],
)
def test_systems_that_are_singular_in_floating_point_divide_by_nothing(gamma, rows, rewards):
    mdp = capo.MDP(sp.csr_array(np.array(rows, float)), np.array(rewards, float)[:, None], gamma)
    found = SignCritic(mdp, 1.0).evaluate(mdp.uniform_policy)
    assert np.isfinite(found.values).all()
    assert np.abs(found.values).max() * (1 - gamma) < 2.01


def test_one_value_that_is_not_finite_is_found():
    mdp = mdps.slippery_grid(5)
    for value in (np.nan, np.inf, -np.inf):
        critic = SignCritic(mdp, 1e-9)
        critic._values[7] = value
        with pytest.raises(CapoError, match="values are no longer finite"):
            critic.evaluate(mdp.uniform_policy)
