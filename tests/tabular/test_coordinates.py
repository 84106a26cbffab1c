"""Coordinate rules: which pairs they give, in which order, with which frequencies."""

import itertools

import numpy as np
import pytest

import capo
from capo import CapoError, mdps
from capo.tabular.coordinates import Behaviour, Cyclic, OnPolicy, Randomized, make_rule

MDP = mdps.garnet(4, 3, 2)
EVERY = list(itertools.product(range(4), range(3)))


def take(rule, n, mdp=MDP, seed=0):
    return [tuple(pair) for pair in rule.source(mdp, np.random.default_rng(seed)).take(n).tolist()]


def test_state_major_and_action_major():
    assert take(Cyclic(), 24) == EVERY * 2
    assert take(Cyclic("action-major"), 12) == [(s, a) for a in range(3) for s in range(4)]


def test_permuted_cycles_hold_every_pair_once_in_a_new_order():
    pairs = take(Cyclic("permuted"), 36)
    cycles = [pairs[i : i + 12] for i in (0, 12, 24)]
    assert all(sorted(cycle) == EVERY for cycle in cycles)
    assert cycles[0] != cycles[1] != cycles[2]


def test_almost_cyclic_cycles_hold_every_pair_at_least_once():
    rule = Cyclic("almost-cyclic")
    length = rule.cycle_length(MDP)
    assert length == 18
    pairs = take(rule, 3 * length)
    for i in range(3):
        assert set(pairs[i * length : (i + 1) * length]) == set(EVERY)


def test_a_given_order_is_repeated_and_must_be_complete():
    order = EVERY[::-1]
    assert take(Cyclic(order), 24) == order * 2
    longer = [*EVERY, (0, 0)]
    assert Cyclic(longer).cycle_length(MDP) == 13
    with pytest.raises(CapoError, match=r"pair \(3, 2\) is missing"):
        capo.solve(MDP, order=EVERY[:-1])
    with pytest.raises(CapoError, match=r"pair \(4, 0\) is outside"):
        capo.solve(MDP, order=[*EVERY, (4, 0)])


def test_the_stream_does_not_depend_on_how_it_is_cut():
    for rule in (Cyclic("permuted"), Randomized(), Cyclic("almost-cyclic")):
        source = rule.source(MDP, np.random.default_rng(3))
        cut = np.concatenate([source.take(n) for n in (1, 7, 30, 2)])
        np.testing.assert_array_equal(cut, rule.source(MDP, np.random.default_rng(3)).take(40))


def test_randomized_draws_follow_d_gen():
    d_gen = np.arange(1, 13, dtype=float).reshape(4, 3)
    d_gen /= d_gen.sum()
    pairs = Randomized(d_gen).source(MDP, np.random.default_rng(0)).take(200_000)
    counts = np.zeros((4, 3))
    np.add.at(counts, tuple(pairs.T), 1)
    spread = np.sqrt(d_gen * (1 - d_gen) / 200_000)
    assert (np.abs(counts / 200_000 - d_gen) < 5 * spread).all()


def test_d_gen_may_change_over_time():
    def d_gen(iteration):
        weights = np.full((4, 3), 1e-9)
        weights[EVERY[iteration % 12]] = 1
        return weights / weights.sum()

    assert take(Randomized(d_gen), 24) == [EVERY[m % 12] for m in range(1, 25)]


@pytest.mark.parametrize(
    ("d_gen", "words"),
    [
        (np.eye(4, 3) / 3, r"d_gen\(0, 1\) = 0"),
        (np.full((4, 3), 0.1), "d_gen: sums to 1.2"),
        (np.full((3, 3), 1 / 9), r"must be \(S, A\) = \(4, 3\)"),
    ],
)
def test_bad_generators_are_refused(d_gen, words):
    with pytest.raises(CapoError, match=words):
        capo.solve(MDP, rule="randomized", d_gen=d_gen)


# --- walks -----------------------------------------------------------------------------------------------------


def plain_walk(mdp, policy_at, restart, horizon, first, uniforms):
    """A walk written plainly: (n, 2) pairs from (n, 3) uniform numbers."""
    pairs, state, steps = [], first, 0
    for u in uniforms:
        action = int(np.searchsorted(policy_at(state).cumsum(), u[0], side="right"))
        pairs.append((state, action))
        state = int(np.searchsorted(mdp.transition[state, action].cumsum(), u[1], side="right"))
        steps += 1
        if mdp.terminal[state] or steps >= horizon:
            state, steps = int(np.searchsorted(restart.cumsum(), u[2], side="right")), 0
    return pairs


def test_a_fixed_behaviour_policy_is_followed():
    mdp = mdps.chain(6)
    behaviour = np.tile([0.2, 0.8], (7, 1))
    run = capo.solve(mdp, rule="behaviour", behaviour=behaviour, horizon=4, iterations=500, seed=7)
    rng = np.random.default_rng(7)
    rng.random()  # the first state
    expected = plain_walk(mdp, lambda s: behaviour[s], mdp.start, 4, 1, rng.random((500, 3)))
    assert list(zip(run.trace.state.tolist(), run.trace.action.tolist(), strict=True)) == expected


def test_on_policy_follows_the_policy_in_force():
    mdp = mdps.garnet(5, 3, 3, seed=2)
    run = capo.solve(mdp, rule="on-policy", stepsize="on-policy", iterations=300, seed=1)
    rng = np.random.default_rng(1)
    first = int(np.searchsorted(mdp.start.cumsum(), rng.random(), side="right"))
    uniforms = rng.random((300, 3))
    trace = run.trace
    log_policy = trace.first.copy()
    state, steps = first, 0
    for i, u in enumerate(uniforms):
        assert trace.state[i] == state
        action = int(np.searchsorted(np.exp(log_policy[state]).cumsum(), u[0], side="right"))
        assert trace.action[i] == action
        log_policy[state] = trace.row[i]
        state = int(np.searchsorted(mdp.transition[state, action].cumsum(), u[1], side="right"))
        steps += 1
        if steps >= 20:
            state, steps = int(np.searchsorted(mdp.start.cumsum(), u[2], side="right")), 0


def test_walks_restart_at_ends_and_after_the_horizon():
    mdp = mdps.chain(10)
    run = capo.solve(mdp, rule="on-policy", stepsize="on-policy", iterations=5000)
    assert run.counts[mdp.terminal].sum() == 0
    assert run.counts.sum() == 5000
    # Going right forever keeps a walk alive for 9 steps; a horizon of 2 keeps it in the first two states.
    short = capo.solve(mdp, rule="behaviour", behaviour=np.tile([0.0, 1.0], (11, 1)), horizon=2, iterations=100)
    assert short.counts[:, 1].nonzero()[0].tolist() == [1, 2]


def test_an_absorbing_state_with_reward_does_not_hold_a_walk():
    stuck = np.zeros((2, 1, 2))
    stuck[:, 0, 1] = 1
    mdp = capo.MDP(stuck, [[0.0], [1.0]], 0.5, start=[1.0, 0.0])
    run = capo.solve(mdp, rule="behaviour", horizon=5, iterations=100)
    assert run.counts[0, 0] == 20


def test_epsilon_greedy_mixes_the_policy_with_uniform_actions():
    mdp = mdps.bandit([1.0, 0.0])
    run = capo.solve(mdp, rule="behaviour", behaviour="epsilon-greedy", epsilon=0.4, iterations=40_000)
    # Once pi(best) is 1 the other arm is picked with probability epsilon / 2.
    assert abs(run.counts[0, 1] / 40_000 - 0.2) < 0.01


def test_mini_batches_hold_distinct_pairs_with_one_set_of_advantages():
    mdp = mdps.garnet(6, 3, 3, seed=4)
    run = capo.solve(mdp, rule="behaviour", batch_size=8, iterations=40, seed=3)
    trace = run.trace
    log_policy = trace.first
    for t in range(40):
        assert 1 <= trace.batch[t].sum() <= 8
        v = mdp.policy_values(np.exp(log_policy))
        advantage = mdp.q_values(v) - v[:, None]
        clear = np.abs(advantage) > 1e-10
        np.testing.assert_array_equal(
            trace.sign[t][clear & trace.batch[t]], np.sign(advantage)[clear & trace.batch[t]]
        )
        assert (trace.sign[t][~trace.batch[t]] == 0).all()
        log_policy = trace.log_policies[t]
    assert run.counts.sum() == trace.batch.sum()


def test_users_may_pass_pairs_or_lists_of_pairs():
    pairs = EVERY * 3
    given = capo.solve(MDP, rule=iter(pairs), iterations=100)
    assert given.stopped == "the iterable of coordinates ended"
    assert given.iterations == 36
    np.testing.assert_allclose(given.log_policy, capo.solve(MDP, iterations=36).log_policy, rtol=1e-12)
    lists = capo.solve(MDP, rule=[EVERY] * 5, iterations=5)
    np.testing.assert_allclose(lists.policy, capo.solve(MDP, rule="batch", iterations=5).policy, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rule": "cylic"}, "did you mean 'cyclic'"),
        ({"rule": "cyclic", "order": "state"}, "did you mean 'state-major'"),
        ({"rule": "cyclic", "epsilon": 0.1}, "does not take epsilon"),
        ({"rule": 5}, "must be one of"),
        ({"rule": []}, "empty"),
        ({"rule": [(0, 0), (0, 9)]}, r"pair \(0, 9\) is outside"),
        ({"rule": [[(0, 0)], "nonsense"]}, "must be integer pairs"),
        ({"rule": "behaviour", "epsilon": 1.5}, "epsilon=1.5 must be between 0 and 1"),
        ({"rule": "behaviour", "batch_size": 0}, "batch_size=0"),
        ({"rule": "behaviour", "horizon": 0}, "horizon=0"),
        ({"rule": "behaviour", "behaviour": "greedy"}, "epsilon-greedy"),
        ({"rule": "behaviour", "behaviour": np.ones((4, 3))}, "behaviour policy, state 0: sums to 3"),
        ({"rule": "on-policy", "restart": [1.0]}, "restart distribution: shape"),
        ({"rule": OnPolicy(), "horizon": 3}, "is given as an object"),
        ({"rule": iter(EVERY), "horizon": 3}, "an iterable of coordinates does not take"),
    ],
)
def test_bad_rules_are_refused(options, words):
    with pytest.raises(CapoError, match=words):
        capo.solve(MDP, iterations=10, **options)


def test_a_walk_that_could_only_start_at_an_end_is_refused():
    with pytest.raises(CapoError, match="only in terminal states"):
        capo.solve(mdps.chain(4), rule="on-policy", restart=[1, 0, 0, 0, 0])


def test_rules_can_be_built_by_hand():
    rule = make_rule("behaviour", batch_size=4)
    assert rule == Behaviour(batch_size=4)
    assert make_rule(rule) is rule
