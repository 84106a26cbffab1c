"""MDPs: validation, importers, exporters, rescaling."""

import contextlib
import json
import math

import gymnasium
import numpy as np
import pytest
import scipy.sparse as sp

import capo
from capo import MDP, CapoError, mdps
from capo.tabular import mdp_files


def dense(n_states=3, n_actions=2, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.random((n_states, n_actions, n_states))
    return p / p.sum(axis=2, keepdims=True), rng.normal(size=(n_states, n_actions))


def same(a, b):
    left, right = (m.rows.toarray() if m.is_sparse else m.rows for m in (a, b))
    np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(a.reward, b.reward)
    np.testing.assert_array_equal(a.start, b.start)
    np.testing.assert_array_equal(a.terminal, b.terminal)
    assert a.gamma == b.gamma


def test_sparse_and_dense_are_the_same_mdp():
    p, r = dense()
    policy = np.random.default_rng(1).dirichlet([1, 1], 3)
    one, other = MDP(p, r, 0.9), MDP(sp.csr_matrix(p.reshape(6, 3)), r, 0.9)
    assert other.is_sparse
    np.testing.assert_allclose(one.policy_values(policy), other.policy_values(policy), rtol=1e-13)
    v = np.arange(3.0)
    np.testing.assert_allclose(one.q_values(v), other.q_values(v), rtol=1e-14)
    np.testing.assert_allclose(one.policy_transition(policy), other.policy_transition(policy).toarray())


def test_policy_values_solve_bellmans_equation():
    p, r = dense(5, 3)
    policy = np.random.default_rng(1).dirichlet([1, 1, 1], 5)
    v = np.zeros(5)
    for _ in range(3000):
        v = (policy * (r + 0.9 * p @ v)).sum(axis=1)
    np.testing.assert_allclose(MDP(p, r, 0.9).policy_values(policy), v, rtol=1e-12)


def test_rewards_of_transitions_are_averaged():
    p, _ = dense()
    full = np.random.default_rng(3).normal(size=(3, 2, 3))
    expected = (p * full).sum(axis=2)
    np.testing.assert_allclose(MDP(p, full, 0.9).reward, expected)
    rows = sp.csr_array(p.reshape(6, 3))
    np.testing.assert_allclose(MDP(rows, full, 0.9).reward, expected)
    np.testing.assert_allclose(MDP(rows, sp.csr_array(full.reshape(6, 3)), 0.9).reward, expected)


def test_duplicate_sparse_entries_are_added_up():
    rows, columns, data = [0, 0, 1, 1, 2, 3], [0, 0, 1, 0, 1, 1], [0.25, 0.75, 0.5, 0.5, 1, 1]
    mdp = MDP(sp.coo_array((data, (rows, columns)), shape=(4, 2)), np.zeros((2, 2)), 0.9)
    np.testing.assert_array_equal(mdp.rows.toarray(), [[1, 0], [0.5, 0.5], [0, 1], [0, 1]])


@pytest.mark.parametrize("sparse", [False, True])
def test_terminal_states_absorb_with_reward_zero_whatever_their_rows_said(sparse):
    p, r = dense()
    p[2] = np.nan
    mdp = MDP(sp.csr_array(p.reshape(6, 3)) if sparse else p, r, 0.9, terminal=[2])
    rows = mdp.rows.toarray() if sparse else mdp.rows
    np.testing.assert_array_equal(rows[4:], [[0, 0, 1], [0, 0, 1]])
    np.testing.assert_array_equal(mdp.reward[2], 0)
    np.testing.assert_array_equal(mdp.terminal, [False, False, True])
    assert mdp.policy_values(np.full((3, 2), 0.5))[2] == 0


def test_absorbing_states_without_reward_are_found():
    assert mdps.chain(4).terminal.tolist() == [True, False, False, False, True]
    p = np.ones((1, 2, 1))
    assert not MDP(p, [[1.0, 0.0]], 0.9).terminal.any()


def test_rescaling_maps_values_back():
    mdp = mdps.grid(5)
    small = mdp.rescale_rewards()
    assert small.reward.min() == 0
    assert small.reward.max() == 1
    policy = np.random.default_rng(0).dirichlet(np.ones(4), mdp.n_states)
    np.testing.assert_allclose(
        small.original_values(small.policy_values(policy)), mdp.policy_values(policy), rtol=1e-10
    )
    # The reward of the absorbing goal is shifted like all others; it still counts as an end.
    assert small.reward[mdp.terminal].min() > 0
    np.testing.assert_array_equal(small.terminal, mdp.terminal)
    twice = small.rescale_rewards()
    np.testing.assert_allclose(twice.original_values(twice.policy_values(policy)), mdp.policy_values(policy))


def test_reachable_states_are_those_some_policy_meets():
    assert mdps.chain(5).reachable().all()
    assert mdps.chain(5).reachable(np.eye(6)[3]).tolist() == [True, False, False, True, True, True]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p, r: (p * 1.1, r, 0.9), r"state 0, action 0 sum to 1\.1.*off by \+0\.1"),
        (lambda p, r: (np.where(np.arange(3) == 1, -p, p), r, 0.9), "negative"),
        (lambda p, r: (np.where(p == p[1, 1, 2], np.nan, p), r, 0.9), r"s'=2 \| s=1, a=1\) = nan is not finite"),
        (lambda p, r: (p[:, :, :2], r, 0.9), r"shape \(3, 2, 2\) must be \(S, A, S\)"),
        (lambda p, r: (p.reshape(6, 3), r, 0.9), r"shape \(6, 3\) must be"),
        (lambda p, r: (p[:, :0], r[:, :0], 0.9), "at least one state and one action"),
        (lambda p, r: (p, r.T, 0.9), r"rewards of shape \(2, 3\)"),
        (lambda p, r: (p, r / 0, 0.9), "is not finite"),
        (lambda p, r: (p, r, 1.5), "gamma=1.5 must be above 0 and below 1, or 1 for a finite"),
        (lambda p, r: (p, r, 0.0), "gamma=0.0"),
        (lambda p, r: (p, r, "high"), "gamma='high'"),
        (lambda p, r: (p, r, 0.9, [0.5, 0.5]), r"start distribution: shape \(2,\)"),
        (lambda p, r: (p, r, 0.9, [0.5, 0.6, 0.0]), "start distribution: sums to 1.1"),
        (lambda p, r: (p, r, 0.9, [1.5, -0.5, 0.0]), "entry 1 is -0.5"),
        (lambda _, r: ("nonsense", r, 0.9), "not an array of numbers"),
        (lambda p, r: (sp.csr_array(p.reshape(6, 3))[:5], r, 0.9), "5 rows is not a positive multiple"),
        (lambda p, r: (sp.csr_array(p.reshape(6, 3) * 0.5), r, 0.9), "5 other rows do not either"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_bad_mdps_are_refused_with_the_place_and_the_value(change, words):
    with pytest.raises(CapoError, match=words):
        MDP(*change(*dense()))


def test_terminal_must_name_states():
    p, r = dense()
    with pytest.raises(CapoError, match=r"outside 0\.\.2"):
        MDP(p, r, 0.9, terminal=[3])
    with pytest.raises(CapoError, match="mask"):
        MDP(p, r, 0.9, terminal=[True, False])


def test_rows_off_by_rounding_are_scaled_to_one():
    p, r = dense()
    mdp = MDP(p * (1 + 5e-9), r, 0.9)
    np.testing.assert_allclose(mdp.rows.sum(axis=1), 1, atol=1e-15)


@pytest.mark.parametrize(
    "mdp",
    [mdps.chain(5), mdps.garnet(20, 3, 4), mdps.slippery_grid(6), mdps.grid(5).rescale_rewards()],
    ids=lambda m: m.name,
)
def test_npz_round_trip(mdp, tmp_path):
    path = mdp.save(tmp_path / "it")
    assert path.name == "it.npz"
    back = MDP.load(path)
    same(mdp, back)
    assert back.reward_map == mdp.reward_map
    assert back.name == mdp.name


def test_plain_npz_files_are_read(tmp_path):
    p, r = dense()
    np.savez(tmp_path / "own.npz", transition=p, reward=r, gamma=0.8)
    same(MDP.load(tmp_path / "own.npz"), MDP(p, r, 0.8))
    np.savez(tmp_path / "less.npz", transition=p)
    with pytest.raises(CapoError, match="has no reward, gamma"):
        MDP.load(tmp_path / "less.npz")


def test_damaged_files_are_refused(tmp_path):
    path = mdps.garnet(20, 3, 4).save(tmp_path / "m.npz")
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:size])
        with pytest.raises(CapoError, match=r"damaged|not an \.npz"):
            MDP.load(path)
    rng = np.random.default_rng(0)
    refused = 0
    for place in rng.integers(0, len(whole), 40):
        broken = bytearray(whole)
        broken[place] ^= 0xFF
        path.write_bytes(bytes(broken))
        try:
            same(MDP.load(path), mdps.garnet(20, 3, 4))  # a flipped byte of padding may leave the content whole
        except CapoError:
            refused += 1
    assert refused > 20
    with pytest.raises(CapoError, match="does not exist"):
        MDP.load(tmp_path / "none.npz")


def test_a_pickled_array_is_never_loaded(tmp_path):
    np.savez(tmp_path / "p.npz", transition=np.array([object()], dtype=object), reward=1, gamma=1)
    with pytest.raises(CapoError, match="damaged"):
        MDP.load(tmp_path / "p.npz")


def test_a_checksum_finds_a_changed_array(tmp_path):
    path = mdps.chain(5).save(tmp_path / "m.npz")
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["reward"] = arrays["reward"] + 1
    np.savez(path, **arrays)
    with pytest.raises(CapoError, match="checksum"):
        MDP.load(path)


def test_an_interrupted_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = mdps.chain(5).save(tmp_path / "m.npz")
    before = path.read_bytes()

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(CapoError, match="the disk is full"):
        mdps.chain(6).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.npz"]


# --- importers -------------------------------------------------------------------------------------------------


def table_values(env, gamma):
    """Optimal values straight from Gymnasium's table, an ended episode worth nothing more."""
    table = env.unwrapped.P
    v = np.zeros(len(table))
    for _ in range(5000):
        new = np.array(
            [
                max(sum(p * (r + gamma * v[t] * (not end)) for p, t, r, end in table[s][a]) for a in table[s])
                for s in table
            ]
        )
        if np.abs(new - v).max() < 1e-13:
            break
        v = new
    return v


@pytest.mark.parametrize("name", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"])
def test_toy_text_environments_keep_their_optimal_values(name):
    env = gymnasium.make(name)
    mdp = MDP.from_gymnasium(env, gamma=0.95)
    assert mdp.n_states == env.observation_space.n
    best = capo.solve(mdp, rule="batch", tol=1e-8)
    alive = mdp.reachable() & ~mdp.terminal
    np.testing.assert_allclose(best.values[alive], table_values(env, 0.95)[alive], atol=1e-8)
    np.testing.assert_allclose(mdp.start, env.unwrapped.initial_state_distrib, atol=1e-12)


def test_options_reach_gymnasium():
    mdp = MDP.from_gymnasium("FrozenLake-v1", 0.9, map_name="8x8", is_slippery=False)
    assert mdp.n_states == 64
    assert set(np.unique(mdp.rows)) == {0.0, 1.0}


class Table:
    """An environment in toy-text's format."""

    spec = None

    def __init__(self, table, start):
        self.P, self.initial_state_distrib = table, start

    @property
    def unwrapped(self):
        return self


def test_an_ending_that_can_be_met_alive_gets_a_state_of_its_own():
    # Action 0 moves 0 <-> 1 and goes on; action 1 ends the episode, in state 1 too.
    table = {
        0: {0: [(1.0, 1, 0.0, False)], 1: [(1.0, 1, 5.0, True)]},
        1: {0: [(1.0, 0, 1.0, False)], 1: [(0.5, 1, 0.0, True), (0.5, 0, 0.0, False)]},
    }
    mdp = MDP.from_gymnasium(Table(table, [1.0, 0.0]), gamma=0.5)
    assert mdp.n_states == 3
    assert mdp.terminal.tolist() == [False, False, True]
    ends = np.array([[0.0, 1.0], [0.0, 1.0], [0.5, 0.5]])
    # V(0) = 5; V(1) = 0.5 * 0.5 * V(0)
    np.testing.assert_allclose(mdp.policy_values(ends)[:2], [5, 1.25])


def test_unknown_and_unsuitable_environments():
    with pytest.raises(CapoError, match="FrozenLake-v1"):
        MDP.from_gymnasium("FrozenLak-v1", 0.9)
    with pytest.raises(CapoError, match="no transition table"):
        MDP.from_gymnasium("CartPole-v1", 0.9)


def test_mdptoolbox_layouts_agree():
    p, r = dense(4, 3)
    by_action = p.transpose(1, 0, 2)
    expected = MDP(p, r, 0.9)
    same(MDP.from_mdptoolbox(by_action, r, 0.9), expected)
    sparse = MDP.from_mdptoolbox([sp.csr_matrix(m) for m in by_action], r, 0.9)
    assert sparse.is_sparse
    np.testing.assert_array_equal(sparse.rows.toarray(), expected.rows)
    full = np.random.default_rng(5).normal(size=(3, 4, 4))
    averaged = (by_action * full).sum(axis=2).T
    np.testing.assert_allclose(MDP.from_mdptoolbox(by_action, full, 0.9).reward, averaged)
    listed = MDP.from_mdptoolbox(list(by_action), [sp.csr_matrix(m) for m in full], 0.9)
    np.testing.assert_allclose(listed.reward, averaged)
    state_only = MDP.from_mdptoolbox(by_action, np.arange(4.0), 0.9)
    np.testing.assert_array_equal(state_only.reward, np.arange(4.0)[:, None] * np.ones(3))
    with pytest.raises(CapoError, match="no actions"):
        MDP.from_mdptoolbox([], r, 0.9)
    with pytest.raises(CapoError, match="action 1 has shape"):
        MDP.from_mdptoolbox([np.eye(2), np.eye(3)], r, 0.9)


def test_another_discount_keeps_the_rescaled_rewards(tmp_path):
    small = mdps.slippery_grid(5).rescale_rewards()
    other = mdps.parse(str(small.save(tmp_path / "s.npz")), gamma=0.9)
    assert other.gamma == 0.9
    np.testing.assert_array_equal(other.reward, small.reward)
    assert other.reward_map == small.reward_map


def test_masks_of_integers_and_repeated_states_are_refused():
    p, r = dense()
    with pytest.raises(CapoError, match="repeats states"):
        MDP(p, r, 0.9, terminal=np.array([0, 0, 1]))


def test_rewards_of_terminal_states_may_be_anything():
    p, r = dense()
    r[2] = np.nan
    assert MDP(p, r, 0.9, terminal=[2]).reward[2].tolist() == [0, 0]
    with pytest.raises(CapoError, match="not finite"):
        MDP(p, r, 0.9)


def test_single_precision_is_accepted_and_complex_is_not():
    p, r = dense()
    mdp = MDP(p.astype(np.float32), r, 0.9)
    np.testing.assert_allclose(mdp.rows.sum(axis=1), 1, atol=1e-15)
    with pytest.raises(CapoError, match="complex"):
        MDP(p.astype(complex), r, 0.9)


def test_what_was_checked_cannot_be_changed():
    p, r = dense()
    for mdp in (MDP(p, r, 0.9), MDP(sp.csr_array(p.reshape(6, 3)), r, 0.9)):
        with pytest.raises(ValueError, match="read-only"):
            (mdp.rows.data if mdp.is_sparse else mdp.rows)[0] = 7


def test_load_finds_what_save_named(tmp_path):
    mdps.chain(4).save(tmp_path / "c")
    same(MDP.load(tmp_path / "c"), mdps.chain(4))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "empty"),
        ({0: {}}, "empty"),
        ({0: {0: [(1.0, 1, 0.0, False)]}, 1: {0: [(1.0, 0, 0.0, False)], 1: []}}, "at state 1"),
        ({0: {0: [(1.0, 5, 0.0, False)]}}, "leads to state 5"),
    ],
)
def test_broken_tables_are_refused(table, words):
    with pytest.raises(CapoError, match=words):
        MDP.from_gymnasium(Table(table, [1.0]), 0.9)


def test_mdptoolbox_rewards_must_match_the_actions():
    p, _ = dense(4, 3)
    sparse = [sp.csr_matrix(m) for m in p.transpose(1, 0, 2)]
    with pytest.raises(CapoError, match="4 matrices"):
        MDP.from_mdptoolbox(sparse, [*sparse, sparse[0]], 0.9)
    lists = MDP.from_mdptoolbox(sparse, [[1.0, 2.0, 3.0]] * 4, 0.9)
    np.testing.assert_array_equal(lists.reward, [[1.0, 2.0, 3.0]] * 4)


@pytest.mark.parametrize(
    ("name", "kind"), [("indptr", "int8"), ("indices", "uint32"), ("indices", ">i4"), ("data", "float32")]
)
def test_a_sparse_file_of_odd_types_is_refused(tmp_path, name, kind):
    """scipy's compiled code would trust them, and read and write foreign memory."""
    transition, reward = dense()
    path = MDP(sp.csr_array(transition.reshape(-1, 3)), reward, 0.9).save(tmp_path / "mdp")
    with np.load(path) as archive:
        arrays = {key: archive[key] for key in archive.files if key != "manifest"}
        facts = json.loads(archive["manifest"].tobytes())
    arrays[name] = arrays[name].astype(kind)
    mdp_files.write(path, arrays, {key: facts[key] for key in ("name", "gamma", "reward_map")})
    with pytest.raises(capo.CapoError, match="damaged: ValueError: transitions of types"):
        capo.MDP.load(path)


@pytest.mark.parametrize("given", [np.eye(2, dtype=int), [[1, 0], [0, 1]], np.ones((2, 2), np.uint8)])
def test_a_mask_of_integers_that_could_be_pairs_is_refused(given):
    transition = np.full((2, 2, 2), 0.5)
    with pytest.raises(CapoError, match="give a mask as booleans"):
        MDP(transition, np.eye(2), 0.9, actions=given)
    with pytest.raises(CapoError, match="give a mask as booleans"):
        MDP.from_function(2, 2, lambda states, _: (states, 1.0, 0.0), 0.9, actions=given)
    pairs = MDP(transition, np.eye(2), 0.9, actions=[(0, 1), (1, 0)])
    assert pairs.actions.tolist() == [[False, True], [True, False]]
    listed = MDP.from_pairs([0, 1], [1, 0], [[0, 1], [1, 0]], [5, 10], 0.9)
    assert listed.actions.tolist() == [[False, True], [True, False]]
    more = MDP(transition, np.eye(2), 0.9, actions=np.array([(0, 1), (1, 0), (1, 1)]))
    assert more.actions.tolist() == [[False, True], [True, True]]


@pytest.mark.parametrize("path", [None, 5, b"x", ["a"]])
def test_what_is_not_a_path_or_a_name_is_refused(path):
    with pytest.raises(CapoError, match="is not the name of a file or folder"):
        MDP.load(path)
    with pytest.raises(CapoError, match="is not the name of a file or folder"):
        mdps.chain(3).save(path)
    with pytest.raises(CapoError, match="is not text; give a name such as 'chain:10'"):
        mdps.parse(path)


@pytest.mark.parametrize("option", ["transition", "reward", "start"])
def test_integers_beyond_floating_point_are_refused(option):
    given = {"transition": np.full((2, 2, 2), 0.5), "reward": np.eye(2), "gamma": 0.9, "start": None}
    with pytest.raises(CapoError, match="too large"):
        MDP(**given | {option: [10**400, 0]})


def test_states_to_start_from_must_fit():
    for origin in ("abc", [1.0], np.ones((4, 1))):
        with pytest.raises(CapoError, match="origin"):
            mdps.chain(3).reachable(origin)


@pytest.mark.parametrize("name", ["\x1b[2J", "two\nlines", None])
def test_names_must_be_printable(name):
    with pytest.raises(CapoError, match="must be printable text"):
        MDP(np.full((2, 2, 2), 0.5), np.eye(2), 0.9, name=name)


def change_file(path, arrays=(), **facts):
    """Change arrays and the manifest of a saved MDP, with a checksum that fits."""
    with np.load(path) as archive:
        content = dict(archive) | dict(arrays)
    said = json.loads(content.pop("manifest").tobytes())
    kept = {key: said[key] for key in ("name", "gamma", "reward_map")}
    mdp_files.write(path, content, kept | facts)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"ends": np.zeros((3, 3), bool)}, "ends of type bool and shape"),
        ({"ends": np.zeros(6)}, "ends of type float64"),
        ({"ends": np.array(True)}, "ends of type bool and shape"),
        ({"ends": np.ones(6, bool)}, "state 1 is marked as terminal"),
        ({"terminal": np.ones(6, bool)}, "state 1 is marked as terminal"),
        ({"terminal": np.zeros(6, bool)}, "state [05] is marked as terminal"),
        ({"actions": np.ones((6, 2), int)}, "actions of type int64"),
    ],
)
def test_masks_of_a_file_must_fit_its_transitions(tmp_path, arrays, words):
    chain = mdps.chain(5)
    path = MDP(chain.transition, chain.reward, chain.gamma, terminal=chain.terminal).save(tmp_path / "m.npz")
    assert MDP.load(path).terminal.tolist() == chain.terminal.tolist()
    change_file(path, arrays)
    with pytest.raises(CapoError, match=f"damaged: .*{words}"):
        MDP.load(path)


def test_a_terminal_state_of_a_file_has_nothing_to_choose(tmp_path):
    stay = np.zeros((2, 2, 2))
    stay[0, :, 0] = stay[1, :, 1] = 1
    path = MDP(stay, [[0.0, 1.0], [0.0, 0.0]], 0.9).save(tmp_path / "m.npz")
    change_file(path, {"terminal": np.ones(2, bool)})
    with pytest.raises(CapoError, match="state 0 is marked as terminal, but"):
        MDP.load(path)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"name": "\x1b[2J"}, "printable"),
        ({"name": ["a"]}, "printable"),
        ({"reward_map": [1e308, 1e308]}, "map"),
        ({"reward_map": [0, 0]}, "map"),
    ],
)
def test_the_manifest_of_a_file_is_checked(tmp_path, facts, words):
    path = mdps.chain(5).save(tmp_path / "m.npz")
    change_file(path, **facts)
    with pytest.raises(CapoError, match=f"damaged: .*{words}") as raised:
        MDP.load(path)
    assert str(raised.value).isprintable()


def test_a_single_number_of_numpy_is_no_list_of_matrices():
    with pytest.raises(CapoError, match="transitions: the matrix of action 0"):
        MDP.from_mdptoolbox(np.array(1.0), np.ones((2, 2)), 0.9)


def sparse_steps(form, column=3, row=3):
    """Four states, one action, each to itself; the last entry altered to (row, column) behind scipy's back."""
    matrix = sp.eye_array(4, format=form)
    if form == "coo":
        matrix.coords[0][3], matrix.coords[1][3] = row, column
    else:
        matrix.indices[3] = column
    return matrix


@pytest.mark.parametrize("column", [-1, 4, 10**9])
@pytest.mark.parametrize("form", ["csr", "coo"])
def test_a_successor_outside_the_states_is_refused(form, column):
    reward, words = np.ones((4, 1)), f"row 3 has an entry for state {column}, outside a matrix of 4 rows"
    bad, good = sparse_steps(form, column), sparse_steps(form)
    every = np.arange(4), np.zeros(4, int)
    for make in (
        lambda: MDP(bad, reward, 0.9),
        lambda: MDP.from_pairs(*every, bad, np.ones(4), 0.9),
        lambda: MDP.from_mdptoolbox([bad, good], np.ones(4), 0.9),
    ):
        with pytest.raises(CapoError, match=f"transitions: {words}"):
            make()
    for make in (
        lambda: MDP(good, bad, 0.9),
        lambda: MDP(good, reward, 0.9).with_reward(bad),
        lambda: MDP.from_pairs(*every, good, bad, 0.9),
        lambda: MDP.from_mdptoolbox([good], [bad], 0.9),
    ):
        with pytest.raises(CapoError, match=f"rewards: {words}"):
            make()


@pytest.mark.parametrize("number", [-1, 4, 10**9])
def test_other_sparse_formats_are_checked_too(number):
    for bad, words in (
        (sparse_steps("csc", number), f"row {number} has an entry for state 3, outside"),
        (sparse_steps("coo", 3, number), f"row {number} has an entry for state 3, outside"),
        (sparse_steps("bsr", number), f"not a valid sparse matrix of numbers: .*{number}"),
    ):
        with pytest.raises(CapoError, match=f"transitions: {words}"):
            MDP(bad, np.ones((4, 1)), 0.9)


@pytest.mark.parametrize("form", ["csr", "csc", "bsr"])
@pytest.mark.parametrize(
    "pointers", [[0, 1, 2, 3, 9], [0, 3, 1, 3, 4], [1, 1, 2, 3, 4], [0, 1, 4], [0, 1, 2, 3, -4]]
)
def test_pointers_that_split_no_rows_are_refused(form, pointers):
    bad = sp.eye_array(4, format=form)
    bad.indptr = np.array(pointers, bad.indptr.dtype)
    with pytest.raises(CapoError, match="transitions: not a valid sparse matrix of numbers: indptr"):
        MDP(bad, np.ones((4, 1)), 0.9)


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo", "lil", "dok", "dia"])
def test_every_sparse_format_is_read_and_complex_numbers_are_not(form):
    p, r = dense()
    rows = sp.csr_array(p.reshape(6, 3))
    np.testing.assert_array_equal(MDP(rows.asformat(form), r, 0.9).rows.toarray(), p.reshape(6, 3))
    for transition, reward in ((rows * (1 + 5j), r), (rows, rows * 1j)):
        with pytest.raises(CapoError, match="complex"):
            MDP(transition.asformat(form), reward.asformat(form) if sp.issparse(reward) else reward, 0.9)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("off", [9e-13, -9e-13, 3e-15, -3e-15, 4e-9])
@pytest.mark.parametrize("n", [3, 2000])
def test_every_row_sums_to_one_except_for_rounding(n, off, sparse):
    """Row by row, and once only: an MDP that is read again has the same digest."""
    rng = np.random.default_rng(n)
    p = rng.random((n, 2, n)) ** 6 if n < 10 else np.zeros((n, 2, n))
    if n > 10:
        p[:, 1] = np.eye(n)
        p[0, 0], p[1:, 0, 0] = rng.random(n), 1
    p /= p.sum(axis=2, keepdims=True)
    p[0, 0] *= 1 + off
    mdp = MDP(sp.csr_array(p.reshape(2 * n, n)) if sparse else p, np.ones((n, 2)), 0.9)
    rows = mdp.rows.toarray() if sparse else mdp.rows
    assert max(abs(math.fsum([*row, -1.0])) for row in rows) <= 4 * 2.0**-52
    assert (rows[1:] == p.reshape(2 * n, n)[1:]).all()
    assert (rows[0] != p[0, 0]).any()
    again = MDP(mdp.transition, mdp.reward, 0.9)
    assert (again.rows != mdp.rows).sum() == 0


def test_rows_that_nearly_sum_to_one_keep_the_gap_honest():
    gamma, off = 0.999, 9e-13
    worth = 1 / (1 - gamma)
    p = np.array([[[1 - off, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
    mdp = MDP(p, [[1.0, 1 - 0.5 * off * gamma * worth], [1.0, 1.0]], gamma)
    for critic, rule, tol in (("k-step", "cyclic", 1e-8), ("direct", "batch", 1e-5), ("signs", "batch", 1e-5)):
        result = capo.solve(mdp, critic=critic, rule=rule, tol=tol)
        own = (result.policy[0] * mdp.reward[0]).sum() * worth  # both actions stay in the state
        assert worth - own <= result.gap_bound + 2e-9, (critic, rule)


@pytest.mark.parametrize("sparse", [False, True])
def test_equations_that_are_singular_in_floating_point_are_refused(sparse):
    """As some of these are; which ones depends on how LAPACK rounds."""
    for seed in range(230, 290):
        p = np.random.default_rng(seed).dirichlet(np.ones(4), 4)
        mdp = MDP(sp.csr_array(p) if sparse else p[:, None], np.ones((4, 1)), 1 - 2.0**-53)
        for evaluate in (lambda of: of.policy_values(of.uniform_policy), lambda of: capo.solve(of, iterations=1)):
            with contextlib.suppress(CapoError):
                evaluate(mdp)
