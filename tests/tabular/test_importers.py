"""MDPs from functions, from lists of pairs and from other libraries' objects; other rewards; finite horizons."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

import capo
from capo import MDP, CapoError, mdps
from capo.tabular import importers


def same(a, b):
    left, right = (m.rows.toarray() if m.is_sparse else m.rows for m in (a, b))
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-15)
    np.testing.assert_allclose(a.reward, b.reward, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(a.terminal, b.terminal)
    np.testing.assert_array_equal(a.allowed, b.allowed)
    assert a.gamma == b.gamma


# --- from_function --------------------------------------------------------------------------------------------


def slippery_step(size, slip=0.2):
    moves = np.array([(-1, 0), (0, -1), (0, 1), (1, 0)])
    sides = np.array([(0, 1, 2), (1, 0, 3), (2, 0, 3), (3, 1, 2)])

    def step(states, actions):
        way = moves[sides[actions]]  # (n, 3, 2)
        row = np.clip(states[:, None] // size + way[..., 0], 0, size - 1)
        column = np.clip(states[:, None] % size + way[..., 1], 0, size - 1)
        chances = np.broadcast_to([1 - slip, slip / 2, slip / 2], row.shape)
        return row * size + column, chances, -1.0

    return step


@pytest.mark.parametrize("block", [None, 1, 7, 100])
def test_a_function_gives_the_same_grid_in_any_blocks(block):
    size = 9
    grid = mdps.slippery_grid(size)
    mdp = MDP.from_function(81, 4, slippery_step(size), 0.99, terminal=[80], block=block)
    assert mdp.is_sparse
    same(mdp, grid)


def test_a_function_is_asked_about_all_pairs_of_a_block_at_once():
    calls = []

    def step(states, actions):
        calls.append(len(states))
        return states, 1.0, actions

    MDP.from_function(100_000, 4, step, 0.9)
    assert sum(calls) == 400_000
    assert len(calls) == 2


def test_rewards_of_successors_are_averaged_and_successors_may_repeat():
    def step(states, actions):
        n = len(states)
        target = np.stack([states, states, (states + 1) % 5], axis=1)
        return (
            target,
            np.tile([0.25, 0.25, 0.5], (n, 1)),
            np.tile([4.0, 8.0, 1.0], (n, 1)) * (actions[:, None] + 1),
        )

    mdp = MDP.from_function(5, 2, step, 0.9)
    np.testing.assert_allclose(mdp.reward, np.tile([3.5, 7.0], (5, 1)))
    assert mdp.rows.nnz == 20
    np.testing.assert_allclose(mdp.rows.toarray()[2, [1, 2]], [0.5, 0.5])


def test_a_function_is_not_asked_about_ends_and_barred_actions():
    mask = np.ones((6, 3), bool)
    mask[1] = [False, True, False]
    mask[4, 0] = False

    def step(states, actions):
        assert not (states == 5).any()
        assert mask[states, actions].all()
        return (states + actions + 1) % 6, 1.0, states * 1.0

    mdp = MDP.from_function(6, 3, step, 0.9, terminal=[5], actions=mask, block=4)
    np.testing.assert_array_equal(mdp.actions, mask)
    asked = MDP.from_function(6, 3, step, 0.9, terminal=[5], actions=lambda states: mask[states], block=4)
    same(mdp, asked)
    result = capo.solve(mdp, rule="batch")
    assert (result.policy[~mask] == 0).all()
    assert mdp.terminal[5]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda s, _: (s, 1.0), "must return three arrays"),
        (lambda s, _: (s + 1, 1.0, 0.0), "state 3, action 0 leads to state 4, outside 0..3"),
        (lambda s, _: (s * 1.0, 1.0, 0.0), "must be integers"),
        (lambda s, _: (s, 0.7, 0.0), "state 0, action 0 sum to 0.7"),
        (lambda s, _: (s[:2], 1.0, 0.0), r"next states of shape \(2,\)"),
        (lambda s, _: (s, 1.0, np.zeros((len(s), 2))), r"rewards of shape \(8, 2\)"),
        (lambda s, _: (s, 1.0, np.where(s == 2, np.nan, 0)), r"r\(s=2, a=0\) = nan is not finite"),
        ("walk", "must be a function"),
    ],
)
def test_bad_functions_are_refused(step, words):
    with pytest.raises(CapoError, match=words):
        MDP.from_function(4, 2, step, 0.9)
    with pytest.raises(CapoError, match="must be a mask of booleans"):
        MDP.from_function(4, 2, lambda s, _: (s, 1.0, 0.0), 0.9, actions=lambda s: s > 1)


# --- pairs, quantecon, pymdptoolbox ---------------------------------------------------------------------------


def pairs_case(sparse):
    rng = np.random.default_rng(0)
    mask = rng.random((5, 3)) < 0.6
    mask[:, 1] = True
    p, r = rng.dirichlet(np.ones(5), (5, 3)), rng.normal(size=(5, 3))
    states, actions = np.nonzero(mask)
    rows = p[mask]
    return mask, p, r, states, actions, sp.csr_matrix(rows) if sparse else rows


@pytest.mark.parametrize("sparse", [False, True])
def test_pairs_in_any_order(sparse):
    mask, p, r, states, actions, rows = pairs_case(sparse)
    expected = MDP(p, r, 0.9, actions=mask)
    order = np.random.default_rng(1).permutation(len(states))
    mdp = MDP.from_pairs(states[order], actions[order], rows[order], r[mask][order], 0.9)
    assert mdp.is_sparse == sparse
    same(mdp, expected)
    full = np.random.default_rng(2).normal(size=(len(states), 5))
    each = MDP.from_pairs(states, actions, rows, sp.csr_array(full) if sparse else full, 0.9)
    np.testing.assert_allclose(each.reward[mask], (p[mask] * full).sum(axis=1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"states": [0, 0]}, "two lists of the same length"),
        ({"states": [0, 0, 1], "actions": [0, 0, 0]}, r"pair \(0, 0\) occurs more than once"),
        ({"states": [0, 1, 2]}, r"pair \(2, 0\) is outside 2 states x 2 actions"),
        ({"states": [0, 1, -1]}, "indices"),
        ({"reward": [1, 2]}, r"rewards of shape \(2,\) must be \(3,\) or \(3, 2\)"),
        ({"transition": np.eye(2)}, "there are 3 pairs"),
        ({"states": [0, 0, 0], "actions": [0, 1, 2]}, "state 1 has no action"),
    ],
)
def test_bad_pairs_are_refused(change, words):
    given = {
        "states": [0, 0, 1],
        "actions": [0, 1, 0],
        "transition": [[1, 0], [0, 1], [0, 1]],
        "reward": [1, 2, 3],
    }
    with pytest.raises(CapoError, match=words):
        MDP.from_pairs(**(given | change), gamma=0.9)


@pytest.mark.parametrize("layout", ["product", "pairs", "sparse pairs"])
def test_quantecon_problems_are_read(layout):
    mask, p, r, states, actions, rows = pairs_case("sparse" in layout)
    barred = np.where(mask, r, -np.inf)
    listed = SimpleNamespace(R=r[mask], Q=rows, beta=0.9, s_indices=states, a_indices=actions)
    product = SimpleNamespace(R=barred, Q=p, beta=0.9, s_indices=None, a_indices=None)
    problem = product if layout == "product" else listed
    try:
        from quantecon.markov import DiscreteDP
    except ImportError:
        DiscreteDP = None
    if DiscreteDP is not None:
        problem = (
            DiscreteDP(barred, p, 0.9) if layout == "product" else DiscreteDP(r[mask], rows, 0.9, states, actions)
        )
    mdp = MDP.from_quantecon(problem)
    same(mdp, MDP(p, r, 0.9, actions=mask))
    assert MDP.from_quantecon(problem, gamma=0.5).gamma == 0.5
    best = capo.baselines.policy_iteration(mdp)
    if DiscreteDP is not None:
        theirs = problem.solve(method="policy_iteration")
        np.testing.assert_allclose(best.values, theirs.v, rtol=1e-10)
        np.testing.assert_array_equal(best.policy.argmax(axis=1), theirs.sigma)
    with pytest.raises(CapoError, match="is not a quantecon DiscreteDP: it has no Q, beta"):
        MDP.from_quantecon(SimpleNamespace(R=r))


def test_a_pair_of_quantecon_with_reward_minus_infinity_is_not_allowed():
    problem = SimpleNamespace(
        R=np.array([5.0, -np.inf, 1.0]), Q=np.array([[1.0, 0], [0, 1], [0.5, 0.5]]), beta=0.9,
        s_indices=np.array([0, 0, 1]), a_indices=np.array([0, 1, 1]),
    )  # fmt: skip
    assert MDP.from_quantecon(problem).actions.tolist() == [[True, False], [False, True]]
    with pytest.raises(CapoError, match="to rule an action out, pass actions="):
        MDP(np.full((1, 2, 1), 1.0), [[1.0, -np.inf]], 0.9)


@pytest.mark.parametrize("sparse", [False, True])
def test_pymdptoolbox_solvers_are_read(sparse):
    rng = np.random.default_rng(0)
    p, r = rng.dirichlet(np.ones(4), (3, 4)), rng.normal(size=(4, 3))
    matrices = [sp.csr_matrix(m) for m in p] if sparse else p
    solver = SimpleNamespace(P=tuple(matrices), R=tuple(r.T), discount=0.9)
    same(MDP.from_mdptoolbox(solver), MDP(p.transpose(1, 0, 2), r, 0.9))
    assert MDP.from_mdptoolbox(solver, gamma=0.5).gamma == 0.5
    with pytest.raises(CapoError, match="needs rewards"):
        MDP.from_mdptoolbox(p, gamma=0.9)
    with pytest.raises(CapoError, match="needs gamma"):
        MDP.from_mdptoolbox(p, r)


# --- rewards --------------------------------------------------------------------------------------------------


def test_other_rewards_on_the_same_transitions():
    chain = mdps.chain(6)
    reward = np.random.default_rng(0).normal(size=chain.reward.shape)
    other = chain.with_reward(reward)
    np.testing.assert_array_equal(other.reward[~chain.terminal], reward[~chain.terminal])
    assert (other.reward[chain.terminal] == 0).all()  # these were named as terminal
    assert other.rows is chain.rows
    np.testing.assert_array_equal(chain.reward, mdps.chain(6).reward)
    with pytest.raises(ValueError, match="read-only"):
        other.reward[0, 0] = 1
    scaled = mdps.grid(5).rescale_rewards().with_reward(mdps.grid(5).reward)
    assert scaled.reward_map == mdps.grid(5).reward_map
    per_successor = mdps.random(5, 3).with_reward(np.ones((5, 3, 5)))
    np.testing.assert_allclose(per_successor.reward, 1)
    with pytest.raises(CapoError, match=r"rewards of shape \(3,\)"):
        chain.with_reward([1, 2, 3])


def test_states_that_only_seemed_terminal_take_new_rewards(tmp_path):
    p = np.zeros((2, 1, 2))
    p[:, 0, 1] = 1
    for mdp in (found := MDP(p, [[1.0], [0.0]], 0.5), MDP.load(found.save(tmp_path / "m"))):
        assert mdp.terminal.tolist() == [False, True]  # absorbing without reward
        paid = mdp.with_reward([[0.0], [1.0]])
        assert not paid.terminal.any()
        np.testing.assert_allclose(paid.policy_values(np.ones((2, 1))), [1.0, 2.0])
    for mdp in (named := MDP(p, [[1.0], [0.0]], 0.5, terminal=[1]), MDP.load(named.save(tmp_path / "n"))):
        assert mdp.with_reward([[0.0], [1.0]]).terminal.tolist() == [False, True]


def test_sparse_rewards_stand_beside_sparse_transitions_entry_by_entry():
    rows, columns = [0, 0, 0, 1], [0, 0, 1, 1]
    p = sp.coo_array(([0.25, 0.25, 0.5, 1.0], (rows, columns)), shape=(2, 2))
    r = sp.coo_array(([4.0, 8.0, 1.0, 2.0], (rows, columns)), shape=(2, 2))
    mdp = MDP(p, r, 0.9)
    np.testing.assert_allclose(mdp.reward, [[3.5], [2.0]])
    other = MDP(p, sp.csr_array(([6.0, 1.0, 2.0], ([0, 0, 1], [0, 1, 1])), shape=(2, 2)), 0.9)
    np.testing.assert_allclose(other.reward, mdp.reward)


# --- finite horizons ------------------------------------------------------------------------------------------


def backward(mdp, steps, final=None):
    """(H, S) optimal values by backward induction."""
    v = np.zeros(mdp.n_states) if final is None else final
    out = []
    for _ in range(steps):
        q = mdp.reward + mdp.gamma * (mdp.csr() @ v).reshape(mdp.reward.shape)
        v = np.where(mdp.allowed, q, -np.inf).max(axis=1)
        out.append(v)
    return np.stack(out[::-1])


def barred_mdp():
    rng = np.random.default_rng(3)
    mask = rng.random((5, 3)) < 0.6
    mask[:, 2] = True
    return MDP(rng.dirichlet(np.ones(5), (5, 3)), rng.normal(size=(5, 3)), 0.9, actions=mask)


@pytest.mark.parametrize("make", [barred_mdp, lambda: mdps.chain(6), lambda: mdps.slippery_grid(4)])
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("rule", ["batch", "cyclic"])
def test_a_finite_horizon_is_backward_induction(make, steps, rule):
    mdp = make()
    result = capo.solve(mdp, rule=rule, horizon=steps, tol=1e-9)
    assert result.horizon == steps
    assert result.values_by_step.shape == (steps, mdp.n_states)
    assert result.policy_by_step.shape == (steps, mdp.n_states, mdp.n_actions)
    np.testing.assert_allclose(result.values_by_step, backward(mdp, steps), atol=2e-9)
    assert (result.policy_by_step[:, ~mdp.allowed] == 0).all()
    assert result.value == pytest.approx(mdp.start @ result.values_by_step[0])
    assert result.certificate(seeds=3, max_steps=20).held
    assert f"horizon {steps}" in str(result)


@pytest.mark.parametrize("make", [barred_mdp, lambda: mdps.chain(6), lambda: mdps.slippery_grid(4)])
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
@pytest.mark.parametrize("options", [{"rule": "batch"}, {"rule": "cyclic"}, {"critic": "k-step"}])
def test_without_a_discount_it_is_backward_induction_too(make, steps, options):
    mdp = make().with_gamma(1)
    result = capo.solve(mdp, horizon=steps, tol=1e-8, **options)
    np.testing.assert_allclose(result.values_by_step, backward(mdp, steps), atol=2e-8)
    assert result.value == pytest.approx(mdp.start @ result.values_by_step[0])
    assert (result.policy_by_step[:, ~mdp.allowed] == 0).all()
    assert result.certificate(seeds=3, max_steps=20).held
    # What is unrolled has g^-h <= e times the values of step h, so its bounds hold for the MDP itself.
    unrolled = mdp.unroll(steps)
    assert unrolled.gamma**-steps < np.e
    best = backward(mdp, steps)
    scaled = (best / unrolled.gamma ** np.arange(steps)[:, None]).ravel()
    np.testing.assert_allclose(capo.baselines.policy_iteration(unrolled).values[:-1], scaled, atol=1e-11)
    gap = best - policy_by_step_is_worth(mdp, result.policy_by_step)
    assert -1e-12 < gap.max() <= result.gap_bound + 1e-12
    assert result.proof().gap_bound >= gap.max() - 1e-12


def policy_by_step_is_worth(mdp, policy):
    """(H, S) values of a policy of its own for every step, from the last step on."""
    v, out = np.zeros(mdp.n_states), []
    for step in policy[::-1]:
        q = mdp.reward + mdp.gamma * (mdp.csr() @ v).reshape(mdp.reward.shape)
        v = (step * q).sum(axis=1)
        out.append(v)
    return np.stack(out[::-1])


def test_without_a_discount_the_signs_are_those_of_the_undiscounted_advantages():
    mdp, steps = barred_mdp().with_gamma(1), 5
    result = capo.solve(mdp, rule="batch", horizon=steps, iterations=1)
    uniform = np.tile(mdp.uniform_policy, (steps, 1, 1))
    worth = policy_by_step_is_worth(mdp, uniform)
    after = np.concatenate([worth[1:], np.zeros((1, 5))])
    q = np.stack([mdp.reward + (mdp.csr() @ v).reshape(mdp.reward.shape) for v in after])
    better = mdp.allowed & (q > worth[:, :, None] + 1e-9)
    assert ((result.policy_by_step > uniform) == better).all()


@pytest.mark.parametrize(
    "use",
    [
        capo.solve,
        lambda mdp: capo.solve(mdp, rule="on-policy", horizon=5, iterations=3),
        lambda mdp: capo.solve_many(mdp, 2, iterations=3),
        capo.baselines.policy_iteration,
        capo.baselines.value_iteration,
        lambda mdp: mdp.policy_values(mdp.uniform_policy),
        lambda mdp: mdp.original_values(np.zeros(6)),
        lambda mdp: capo.theory.evaluate(mdp, mdp.uniform_policy),
        lambda mdp: capo.verify("nowhere.npz", mdp),
        lambda mdp: capo.theory.batch_rate(mdp, np.full(6, 1 / 6)),
        lambda mdp: capo.theory.cyclic_rate(mdp, np.full(6, 1 / 6)),
        lambda mdp: capo.theory.randomized_rate(mdp, np.full(6, 1 / 6), np.full((6, 2), 1 / 12)),
        lambda mdp: capo.theory.natural_gradient_rate(mdp, 1.0, 3),
        lambda mdp: capo.theory.value_rounding(mdp, 1.0),
    ],
)
def test_without_a_discount_a_horizon_is_needed(use):
    with pytest.raises(CapoError, match="gamma=1 needs a finite number of steps"):
        use(mdps.chain(5).with_gamma(1.0))


def test_an_undiscounted_mdp_is_saved_and_read(tmp_path):
    path = barred_mdp().with_gamma(1).save(tmp_path / "mdp.npz")
    assert MDP.load(path).gamma == 1.0
    with pytest.raises(CapoError, match=r"gamma=1.5 must be above 0 and below 1, or 1"):
        mdps.chain(5).with_gamma(1.5)


def test_the_value_after_the_last_step():
    mdp, final = barred_mdp(), np.arange(5.0)
    result = capo.baselines.policy_iteration(mdp.unroll(3, final))
    np.testing.assert_allclose(result.values[:-1].reshape(3, 5), backward(mdp, 3, final), atol=1e-12)
    with pytest.raises(CapoError, match=r"final of shape \(2,\)"):
        mdp.unroll(3, [1.0, 2.0])


def test_walks_keep_their_own_horizon_and_bad_ones_are_refused():
    mdp = mdps.chain(5)
    walk = capo.solve(mdp, rule="on-policy", horizon=3, iterations=50)
    assert walk.horizon is None
    assert walk.mdp is mdp
    with pytest.raises(CapoError, match="has no horizon"):
        _ = walk.values_by_step
    for bad in (0, -1, 2.5):
        with pytest.raises(CapoError, match="horizon"):
            capo.solve(mdp, horizon=bad)
    with pytest.raises(CapoError, match="give a shorter horizon"):
        mdps.chain(5).unroll(10**9)
    assert importers.MOST_UNROLLED > 1e8
