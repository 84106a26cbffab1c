"""Ready-made MDPs: what each is, checked by hand."""

import numpy as np
import pytest

from capo import CapoError, mdps
from capo.tabular.mdps import parse


def test_the_chain_is_the_papers():
    mdp = mdps.chain(10)
    assert (mdp.n_states, mdp.n_actions) == (11, 2)
    right, up = np.tile([0.0, 1.0], (11, 1)), np.tile([1.0, 0.0], (11, 1))
    np.testing.assert_allclose(mdp.policy_values(right)[1], 100 * 0.99**8)
    np.testing.assert_allclose(mdp.policy_values(up)[1:10], 0.1)
    assert mdp.start[1] == 1


def test_the_chain_with_many_ups_differs_in_its_actions_only():
    few, many = mdps.chain(10), mdps.chain(10, up_actions=9)
    assert many.n_actions == 10
    np.testing.assert_array_equal(many.transition[:, -1], few.transition[:, -1])
    for action in range(9):
        np.testing.assert_array_equal(many.transition[:, action], few.transition[:, 0])
        np.testing.assert_array_equal(many.reward[:, action], few.reward[:, 0])


def test_the_stochastic_chain_moves_zero_to_three():
    mdp = mdps.chain(10, stochastic=True)
    np.testing.assert_array_equal(mdp.transition[4, 1, 4:8], 0.25)
    np.testing.assert_array_equal(mdp.transition[8, 1, 8:], [0.25, 0.25, 0.5])
    assert mdp.reward[8, 1] == 50
    assert mdp.reward[6, 1] == 0


def test_a_bandits_advantages_do_not_depend_on_gamma():
    policy = np.array([[0.1, 0.2, 0.3, 0.4]])
    for gamma in (0.1, 0.9):
        mdp = mdps.bandit(gamma=gamma)
        v = mdp.policy_values(policy)
        np.testing.assert_allclose(
            mdp.q_values(v) - v[:, None], mdp.reward - (policy * mdp.reward).sum(), atol=1e-12
        )


@pytest.mark.parametrize("wall", ["horizontal", "vertical"])
@pytest.mark.parametrize("seed", range(4))
def test_the_maze_has_one_gap_and_can_be_solved(wall, seed):
    size = 6
    mdp = mdps.grid(size, wall=wall, seed=seed)
    assert mdp.n_states == size * size - (size - 1)
    assert mdp.reachable(np.eye(mdp.n_states)[0]).all()
    assert mdp.terminal.nonzero()[0].tolist() == [mdp.n_states - 1]
    assert set(np.unique(mdp.reward[:-1])) == {-1.0, 100.0}
    far = mdps.grid(size, wall=wall, seed=seed, distance_reward=True)
    assert far.reward.min() == -(2 * (size - 1))


def test_the_slippery_grid_slips_to_the_sides():
    mdp = mdps.slippery_grid(4, slip=0.2)
    assert mdp.is_sparse
    centre = 1 * 4 + 1
    row = mdp.rows[[centre * 4 + 2]].toarray()[0]  # right
    np.testing.assert_allclose(row[[centre + 1, centre - 4, centre + 4]], [0.8, 0.1, 0.1])
    corner = mdp.rows[[0 * 4 + 0]].toarray()[0]  # top, from the top left corner
    np.testing.assert_allclose(corner[[0, 1]], [0.9, 0.1])
    assert mdp.terminal.sum() == 1


def test_garnet_has_its_branching():
    mdp = mdps.garnet(30, 3, 4, seed=1)
    assert ((mdp.rows > 0).sum(axis=1) == 4).all()
    assert mdp.has_unit_rewards
    np.testing.assert_array_equal(mdp.rows, mdps.garnet(30, 3, 4, seed=1).rows)
    assert (mdp.rows != mdps.garnet(30, 3, 4, seed=2).rows).any()


@pytest.mark.parametrize(
    "branching", [5, 40, 60]
)  # of 2500 states: draws with a number twice are rare, common, most
def test_large_garnet_has_its_branching(branching):
    mdp = mdps.garnet(2500, 2, branching, seed=1)
    rows = mdp.csr()
    np.testing.assert_array_equal(np.diff(rows.indptr), branching)  # all successors of a pair differ
    np.testing.assert_allclose(rows.sum(axis=1), 1.0)
    share = np.bincount(rows.indices, minlength=2500) / rows.nnz * 2500
    assert abs(share.reshape(50, 50).mean(axis=1) - 1).max() < 6 * (2500 / rows.nnz / 50) ** 0.5
    assert (rows != mdps.garnet(2500, 2, branching, seed=1).csr()).nnz == 0


def test_the_forest_is_the_known_one():
    mdp = mdps.forest()
    np.testing.assert_array_equal(mdp.reward, [[0, 0], [0, 1], [4, 2]])
    np.testing.assert_allclose(mdp.transition[:, 0], [[0.1, 0.9, 0], [0.1, 0, 0.9], [0.1, 0, 0.9]])


@pytest.mark.parametrize(
    ("text", "states", "actions"),
    [
        ("chain:10", 11, 2),
        ("chain:10,9", 11, 10),
        ("garnet:20,4,5", 20, 4),
        ("random:5,3", 5, 3),
        ("forest", 3, 2),
        ("bandit:1,2,3", 1, 3),
        ("slippery:5", 25, 4),
        ("grid:5", 21, 4),
        ("FrozenLake-v1", 16, 4),
    ],
)
def test_names_are_parsed(text, states, actions):
    mdp = parse(text, gamma=0.9)
    assert (mdp.n_states, mdp.n_actions, mdp.gamma) == (states, actions, 0.9)


@pytest.mark.parametrize(
    "mdp",
    [
        mdps.chain(6, 2, True),
        mdps.grid(5, "horizontal", True, False, seed=3),
        mdps.slippery_grid(4, 0.35),
        mdps.garnet(8, 2, 3, seed=7),
        mdps.random(4, 2, seed=5),
        mdps.forest(4, 0.2, 5.0, 2.5),
        mdps.bandit([1.0, 0.25]),
        mdps.bandit([1 / 3, 0.1 + 0.2, 1e22]),
        mdps.random(3, 2, seed=2**53 + 1),
    ],
    ids=lambda mdp: mdp.name,
)
def test_a_name_says_all_that_it_was_made_of(mdp):
    again = parse(mdp.name, mdp.gamma)
    assert again.name == mdp.name
    np.testing.assert_array_equal(again.csr().toarray(), mdp.csr().toarray())
    np.testing.assert_array_equal(again.reward, mdp.reward)
    np.testing.assert_array_equal(again.start, mdp.start)


def test_usual_arguments_are_left_out_of_a_name():
    assert [mdps.chain().name, mdps.grid().name, mdps.garnet().name] == ["chain:10,1", "grid:5", "garnet:100,4,5"]


def test_files_are_parsed_and_gamma_can_be_changed(tmp_path):
    mdps.chain(4).save(tmp_path / "c.npz")
    assert parse(str(tmp_path / "c.npz")).gamma == 0.99
    other = parse(str(tmp_path / "c.npz"), gamma=0.5)
    assert other.gamma == 0.5
    np.testing.assert_array_equal(other.terminal, mdps.chain(4).terminal)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("chian:10", "did you mean 'chain'"),
        ("chain:ten", "must be numbers"),
        ("chain:10,9,1,3", "at most 3 numbers"),
        ("chain:1", "n=1 must be an integer of at least 2"),
        ("chain:1e10", "does not fit in memory"),
        ("chain:" + 400 * "9", "must be finite"),
        ("bandit:1," + 5000 * "9", "must be finite"),
        ("grid:5,diagonal", "unknown wall"),
        ("grid:5,vertical,2", "distance_reward must be 0 or 1"),
        ("garnet:3,2,9", "branching=9 must be at most"),
        ("garnet:2.5", "n_states=2.5"),
        ("nothing.npz", "does not exist"),
        ("FrozenLaek-v1", "FrozenLake-v1"),
    ],
)
def test_bad_names_are_refused(text, words):
    with pytest.raises(CapoError, match=words):
        parse(text)
