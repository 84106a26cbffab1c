"""Action sets that depend on the state: the same as the MDP without the other actions, under every rule."""

import numpy as np
import pytest
import scipy.sparse as sp

import capo
from capo import MDP, CapoError, baselines
from capo.tabular import engine
from capo.tabular.coordinates import Randomized
from capo.tabular.critic import DirectCritic
from capo.tabular.sign_critic import SignCritic
from capo.tabular.theory import lemmas

S, A = 6, 3


def parts(seed=0, n_states=S, n_actions=A):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(n_states), (n_states, n_actions))
    return p, rng.normal(size=(n_states, n_actions))


def widened(p, r, places, seed=1):
    """The same MDP with actions put in at ``places`` that would be the best ones, were they allowed."""
    rng = np.random.default_rng(seed)
    n_states, n_actions = r.shape
    width = n_actions + len(places)
    real = np.setdiff1d(np.arange(width), places)
    wide_p = rng.dirichlet(np.ones(n_states), (n_states, width))
    wide_r = np.full((n_states, width), 100.0)
    wide_p[:, real], wide_r[:, real] = p, r
    mask = np.zeros((n_states, width), bool)
    mask[:, real] = True
    return wide_p, wide_r, mask, real


def random_sets(seed=0, n_states=S, n_actions=A):
    """An MDP with random action sets, and the same one with each barred action a copy of an allowed one."""
    p, r = parts(seed, n_states, n_actions)
    rng = np.random.default_rng(seed + 100)
    mask = rng.random((n_states, n_actions)) < 0.6
    mask[np.arange(n_states), rng.integers(n_actions, size=n_states)] = True
    mask[0, 0], mask[0, 1] = False, True  # at least one barred pair, in front of an allowed one
    first = mask.argmax(axis=1)
    copy_p, copy_r = p.copy(), r.copy()
    for s, a in np.argwhere(~mask):
        copy_p[s, a], copy_r[s, a] = p[s, first[s]], r[s, first[s]]
    bad_p, bad_r = p.copy(), r.copy()
    bad_p[~mask], bad_r[~mask] = np.nan, np.inf
    return MDP(bad_p, bad_r, 0.9, actions=mask), MDP(copy_p, copy_r, 0.9)


RUNS = [
    {"rule": "cyclic"},
    {"rule": "cyclic", "order": "permuted"},
    {"rule": "cyclic", "order": "almost-cyclic"},
    {"rule": "cyclic", "order": "action-major"},
    {"rule": "randomized", "iterations": 400},
    {"rule": "batch", "critic": "direct"},
    {"rule": "on-policy", "stepsize": "on-policy", "iterations": 300},
    {"rule": "behaviour", "iterations": 300},
    {"rule": "behaviour", "behaviour": "epsilon-greedy", "batch_size": 4, "iterations": 100},
    {"rule": "cyclic", "stepsize": "fixed", "eta": 0.5, "cycles": 20},
]


@pytest.mark.parametrize("options", RUNS, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("sparse", [False, True])
def test_a_run_is_the_one_on_the_mdp_without_the_barred_actions(options, sparse):
    p, r = parts()
    wide_p, wide_r, mask, real = widened(p, r, [0, 2])
    transition = sp.csr_array(wide_p.reshape(-1, S)) if sparse else wide_p
    narrow = capo.solve(MDP(p, r, 0.9), **options, seed=3)
    wide = capo.solve(MDP(transition, wide_r, 0.9, actions=mask), **options, seed=3)
    assert wide.iterations == narrow.iterations
    np.testing.assert_allclose(wide.log_policy[:, real], narrow.log_policy, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(wide.values, narrow.values, rtol=1e-11)
    assert (wide.policy[~mask] == 0).all()
    assert (wide.counts[~mask] == 0).all()
    np.testing.assert_array_equal(wide.counts[:, real], narrow.counts)
    np.testing.assert_allclose(wide.gap_bound, narrow.gap_bound, rtol=1e-6, atol=1e-12)
    assert (wide.q[~mask] == -np.inf).all()
    assert wide.cycles == narrow.cycles


@pytest.mark.parametrize("options", RUNS, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("seed", range(3))
def test_random_action_sets_are_never_left(options, seed):
    mdp, copy = random_sets(seed)
    result = capo.solve(mdp, **options)
    assert (result.policy[~mdp.actions] == 0).all()
    assert (result.counts[~mdp.actions] == 0).all()
    np.testing.assert_allclose(result.policy.sum(axis=1), 1, rtol=1e-12)
    best = lemmas.optimal(copy).values
    gap = (best - result.values)[result.covered].max()
    assert gap <= result.gap_bound + 1e-10
    if options["rule"] in ("cyclic", "batch") and "eta" not in options:
        np.testing.assert_allclose(result.values, best, atol=2e-8)
    certificate = result.certificate(seeds=5, max_steps=60)
    assert certificate.held, str(certificate)


@pytest.mark.parametrize("rule", ["cyclic", "batch"])
@pytest.mark.parametrize("what", ["counts", "final policy", "trace"])
def test_a_certificate_finds_a_barred_action(rule, what):
    mdp, _ = random_sets()
    result = capo.solve(mdp, rule=rule, iterations=40)
    name = "Action sets"
    assert result.certificate().line(name).status == "held"
    s, a = np.argwhere(~mdp.actions)[0]
    if what == "counts":
        result.counts[s, a] = 1
    elif what == "final policy":
        result.log_policy[s, a] = -1.0
        result.__dict__.pop("policy", None)
    elif rule == "cyclic":
        result.trace.row[np.flatnonzero(result.trace.state == s)[0], a] = -1.0
    else:
        result.trace.batch[3, s, a] = True
    assert result.certificate().line(name).status == "FAILED"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "solve",
    [
        baselines.policy_iteration,
        baselines.value_iteration,
        lambda mdp: baselines.natural_policy_gradient(mdp, iterations=300),
        lambda mdp: baselines.policy_gradient(mdp, "tuned", iterations=300),
        lambda mdp: baselines.policy_gradient(mdp, iterations=30),
    ],
)
def test_baselines_stay_within_the_action_sets(solve, seed):
    mdp, copy = random_sets(seed)
    result = solve(mdp)
    assert (result.policy[~mdp.actions] == 0).all()
    best = lemmas.optimal(copy).values
    assert (best - result.values).max() <= result.gap_bound + 1e-10
    assert result.certificate(max_steps=60).held
    if result.converged:
        np.testing.assert_allclose(result.values, best, atol=2e-8)


@pytest.mark.parametrize("seed", range(4))
def test_both_batch_critics_give_barred_pairs_the_sign_0(seed):
    dense, _ = random_sets(seed, 40, 5)
    mdp = MDP(sp.csr_array(dense.rows), dense.reward, 0.9, actions=dense.actions)
    policy = np.random.default_rng(seed).random((40, 5)) * mdp.actions
    policy /= policy.sum(axis=1, keepdims=True)
    exact = DirectCritic(mdp, 1e-10).evaluate(policy)
    signs = SignCritic(mdp, 1e-10).evaluate(policy)
    np.testing.assert_array_equal(exact.signs, signs.signs)
    assert (exact.signs[~mdp.actions] == 0).all()
    v = mdp.policy_values(policy)
    advantage = np.where(mdp.actions, mdp.reward + 0.9 * (mdp.rows @ v).reshape(40, 5) - v[:, None], -np.inf)
    clear = mdp.actions & (np.abs(advantage) > 1e-9)  # a state with one action has no advantage but rounding
    np.testing.assert_array_equal(exact.signs[clear], np.sign(advantage)[clear])
    assert advantage.max() <= signs.greatest <= advantage.max() + 4 * signs.error


def test_large_sparse_mdps_with_action_sets():
    grid = capo.mdps.slippery_grid(80)
    rng = np.random.default_rng(0)
    mask = rng.random(grid.reward.shape) < 0.7
    mask[:, 3] = True
    mdp = MDP(grid.rows, grid.reward, 0.99, actions=mask, terminal=[grid.n_states - 1])
    result = capo.solve(mdp, rule="batch", critic="signs", tol=1e-5)
    assert result.converged
    assert (result.policy[~mdp.allowed] == 0).all()
    v = np.zeros(mdp.n_states)
    for _ in range(3000):
        v = np.where(mdp.allowed, mdp.reward + 0.99 * (mdp.rows @ v).reshape(-1, 4), -np.inf).max(axis=1)
    np.testing.assert_allclose(result.values, v, atol=2e-5)


def test_an_mdp_with_all_actions_allowed_has_no_mask():
    p, r = parts()
    mdp = MDP(p, r, 0.9, actions=np.ones((S, A), bool))
    assert mdp.actions is None
    assert mdp.n_pairs == S * A
    plain = capo.solve(MDP(p, r, 0.9))
    np.testing.assert_array_equal(capo.solve(mdp).log_policy, plain.log_policy)


def test_pairs_and_mask_say_the_same():
    mdp, _ = random_sets()
    p = np.where(mdp.actions[..., None], mdp.transition, 1 / S)
    listed = MDP(p, mdp.reward, 0.9, actions=np.argwhere(mdp.actions))
    np.testing.assert_array_equal(listed.actions, mdp.actions)
    np.testing.assert_array_equal(listed.rows, mdp.rows)
    assert listed.n_pairs == mdp.actions.sum()
    assert "up to 3 actions" in repr(listed)


def test_barred_pairs_keep_nothing_of_what_they_were_given():
    mdp, _ = random_sets()
    assert (mdp.transition[~mdp.actions] == 0).all()
    assert (mdp.reward[~mdp.actions] == 0).all()
    scaled = mdp.rescale_rewards()
    assert (scaled.reward[~mdp.actions] == 0).all()
    assert scaled.reward_range == (0.0, 1.0)
    np.testing.assert_allclose(scaled.uniform_policy.sum(axis=1), 1)


@pytest.mark.parametrize("sparse", [False, True])
def test_saving_keeps_the_action_sets(tmp_path, sparse):
    mdp, _ = random_sets()
    if sparse:
        mdp = MDP(sp.csr_array(mdp.rows), mdp.reward, 0.9, actions=mdp.actions, terminal=[4])
    back = MDP.load(mdp.save(tmp_path / "m.npz"))
    np.testing.assert_array_equal(back.actions, mdp.actions)
    np.testing.assert_array_equal(back.reward, mdp.reward)
    np.testing.assert_array_equal(back.terminal, mdp.terminal)
    np.savez(tmp_path / "own.npz", transition=np.full((2, 2, 2), 0.5), reward=np.eye(2), gamma=0.5,
             actions=[[True, True], [False, True]])  # fmt: skip
    assert MDP.load(tmp_path / "own.npz").n_pairs == 3


def test_reachable_states_follow_allowed_actions_only():
    p = np.zeros((3, 2, 3))
    p[0, 0, 1] = p[0, 1, 2] = p[1, :, 1] = p[2, :, 2] = 1
    r = np.ones((3, 2))
    assert MDP(p, r, 0.9, [1, 0, 0]).reachable().all()
    barred = MDP(p, r, 0.9, [1, 0, 0], actions=[(0, 0), (1, 0), (1, 1), (2, 0)])
    assert barred.reachable().tolist() == [True, True, False]


def test_a_terminal_state_needs_no_action():
    p, r = parts()
    mask = np.ones((S, A), bool)
    mask[2] = False
    mdp = MDP(p, r, 0.9, actions=mask, terminal=[2])
    assert mdp.terminal[2]
    assert abs(capo.solve(mdp).values[2]) < 1e-14


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (np.arange(S)[:, None] != np.full(A, 3), "state 3 has no action; allow at least one"),
        (np.zeros((S, A), bool), "state 0 has no action, and neither do 5 others"),
        ([(0, 0), (1, 0)], "state 2 has no action, and neither do 3 others"),
        (np.ones((A, S), bool), r"mask of shape \(3, 6\) must be \(S, A\) = \(6, 3\)"),
        ([(0, 7)], r"pair \(0, 7\) is outside 6 states x 3 actions"),
        (np.ones((S, A)), "mask of booleans"),
        ([[0], [1, 2]], "must be an"),
    ],
)
def test_bad_action_sets_are_refused(actions, words):
    with pytest.raises(CapoError, match=words):
        MDP(*parts(), 0.9, actions=actions)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rule": [(0, 0)]}, "coordinate: action 0 is not allowed in state 0; allowed: 1"),
        ({"rule": [[(0, 1), (0, 0)]]}, "action 0 is not allowed in state 0"),
        ({"init": np.full((S, A), 1 / A)}, r"init.*\(0, 0\) = 0\.333333: action 0 is not allowed in state 0"),
        ({"rule": "behaviour", "behaviour": np.full((S, A), 1 / A)}, "behaviour policy.*not allowed"),
        ({"rule": "randomized", "d_gen": np.full((S, A), 1 / (S * A))}, "d_gen.*not allowed in state 0"),
        ({"order": [(s, a) for s in range(S) for a in range(A)]}, "order: action 0 is not allowed"),
    ],
)
def test_runs_that_would_use_a_barred_action_are_refused(options, words):
    mdp, _ = random_sets()
    with pytest.raises(CapoError, match=words):
        capo.solve(mdp, iterations=5, **options)
    with pytest.raises(CapoError, match="action 0 is not allowed"):
        capo.solve_many(mdp, 2, iterations=3, track=(0, 0))


def test_the_last_barred_pair_is_never_drawn():
    mdp, _ = random_sets()
    mask = mdp.actions.copy()
    mask[-1] = [True, False, False]
    barred = MDP(*parts(), 0.9, actions=mask)
    d = Randomized().distribution(barred)
    assert d[~mask].sum() == 0
    np.testing.assert_allclose(d[mask], 1 / mask.sum())
    source = Randomized().source(barred, np.random.default_rng(0))
    drawn = np.zeros((S, A), int)
    np.add.at(drawn, tuple(source.take(20_000).T), 1)
    assert (drawn[~mask] == 0).all()
    assert drawn[mask].min() > 20_000 / mask.sum() * 0.8


def test_theta_of_barred_actions_does_not_matter():
    mdp, _ = random_sets()
    theta = np.random.default_rng(0).normal(size=(S, A))
    other = np.where(mdp.actions, theta, np.nan)
    one, two = (capo.solve(mdp, theta=t, iterations=20) for t in (theta, other))
    np.testing.assert_array_equal(one.log_policy, two.log_policy)


def test_many_seeds_and_a_stochastic_bandit_respect_the_action_set():
    mdp, _ = random_sets()
    many = capo.solve_many(mdp, 3, iterations=200)
    assert (many.counts[:, ~mdp.actions] == 0).all()
    assert (many.policies[:, ~mdp.actions] == 0).all()
    arms = MDP(np.ones((1, 3, 1)), [[1.0, 50.0, 0.5]], 0.5, actions=[(0, 0), (0, 2)])
    runs = baselines.stochastic_npg(arms, 0.1, seeds=3, iterations=200)
    assert (runs.counts[:, 0, 1] == 0).all()
    assert runs.gap_bound.max() <= 1.0


@pytest.mark.skipif("k-step" not in engine.CRITICS, reason="there is no k-step critic")
@pytest.mark.parametrize("options", [{}, {"rule": "batch"}, {"multiple": 2.0}, {"sweeps": "gauss-seidel"}])
@pytest.mark.parametrize("seed", range(3))
def test_modified_capo_stays_within_the_action_sets(options, seed):
    dense, copy = random_sets(seed, 30, 4)
    mdp = MDP(sp.csr_array(dense.rows), dense.reward, 0.9, actions=dense.actions)
    result = capo.solve(mdp, critic="k-step", tol=1e-7, **options)
    assert result.converged
    assert (result.policy[~mdp.actions] == 0).all()
    np.testing.assert_allclose(result.values, lemmas.optimal(copy).values, atol=2e-7)
    assert result.certificate().held
    assert result.proof().gap_bound <= 1.01e-7
