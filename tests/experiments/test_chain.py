"""The chain experiment: Algorithm 2 against plain formulas, its files, its figures from files alone."""

import json
import math
from dataclasses import replace

import jax
import numpy as np
import pytest

import capo
from capo.experiments import algorithm2 as a2
from capo.experiments import chain
from capo.experiments.common import read_csv
from capo.neural import ascent
from capo.tabular.theory import PolicyValues

TABLE = a2.UpdateRule(policy="table")
FEW = {key: chain.METHODS[key] for key in ("batch", "cyclic", "offpac a", "offpac all")}
SIZES = a2.RunSizes(iterations=40, batch=16, replay=100, record_every=10, horizon=100)


def single(mdp):
    """The problem of one MDP, without the axis of runs."""
    return jax.tree.map(lambda leaf: leaf[0], a2.stack([mdp]))


def random_policy(mdp, seed=0):
    theta = np.random.default_rng(seed).normal(size=(mdp.n_states, mdp.n_actions))
    return theta, np.exp(theta) / np.exp(theta).sum(axis=1, keepdims=True)


# --- the evaluator --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"up_actions": 9}, {"up_actions": 1, "stochastic": True}])
def test_values_against_the_tabular_half(options):
    mdp = capo.mdps.chain(10, **options)
    _, pi = random_policy(mdp)
    with jax.enable_x64(True):
        values = jax.tree.map(np.asarray, a2.evaluate(single(mdp), pi))
        again = jax.tree.map(np.asarray, a2.evaluate(single(mdp), pi, visits=True))
    expected = PolicyValues(mdp, np.log(pi))
    np.testing.assert_allclose(values.v, mdp.policy_values(pi), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(values.advantage, expected.advantage, atol=1e-10)
    np.testing.assert_allclose(again.advantage, expected.advantage, atol=1e-10)
    visits = expected.visitation_from(mdp.start)[1:-1] / (1 - mdp.gamma)
    np.testing.assert_allclose(again.visits[1:-1], visits, rtol=1e-10, atol=1e-14)
    assert again.visits[0] == again.visits[-1] == 0


def test_return_against_the_product_of_probabilities():
    mdp = capo.mdps.chain(10, 9)
    _, pi = random_policy(mdp, 3)
    there = pi[1:10, -1].prod()
    with jax.enable_x64(True):
        found = float(a2.expected_return(single(mdp), pi, 100))
    assert found == pytest.approx(100 * there + 0.1 * (1 - there), rel=1e-12)
    assert a2.plain_return(mdp, pi, 100) == pytest.approx(found, rel=1e-12)


# --- the updates ----------------------------------------------------------------------------------------------


def test_batch_target_is_the_closed_form():
    mdp = capo.mdps.chain(10, 3)
    _, pi = random_policy(mdp)
    advantage = PolicyValues(mdp, np.log(pi)).advantage
    with jax.enable_x64(True):
        log_pi = jax.numpy.log(pi)
        chosen, few = (a2.pairs_chosen(log_pi, batch) for batch in (a2.live_pairs(mdp), np.array([5, 5, 7])))
        target, partial = (ascent.target_distribution(log_pi, advantage, batch) for batch in (chosen, few))
        visited, only = chosen.max(axis=1), few.max(axis=1)
    weights = np.where(advantage > 0, 1.0, pi**2)[1:-1]
    np.testing.assert_allclose(np.exp(target)[1:-1], weights / weights.sum(axis=1, keepdims=True), rtol=1e-10)
    assert visited.tolist() == [0.0, *[1.0] * 9, 0.0]
    assert only.tolist() == [0.0, 1.0, *[0.0] * 9]
    one = pi[1].copy()
    for action in (1, 3):
        one[action] = 1.0 if advantage[1, action] > 0 else one[action] ** 2
    np.testing.assert_allclose(np.exp(partial)[1], one / one.sum(), rtol=1e-10)
    np.testing.assert_allclose(np.exp(partial)[2:], pi[2:], rtol=1e-12)


def gradient(learner, theta, mdp, batch, params=None):
    with jax.enable_x64(True):
        old = jax.nn.log_softmax(jax.numpy.asarray(theta))
        values = a2.evaluate(single(mdp), jax.numpy.exp(old))
        at = {"theta": jax.numpy.asarray(theta if params is None else params)}
        return np.asarray(jax.grad(lambda p: a2.loss(learner, p, old, values, np.array(batch)))(at)["theta"])


@pytest.mark.parametrize("kl", ["policy-to-target", "target-to-policy"])
def test_capo_gradient_of_one_pair(kl):
    mdp = capo.mdps.chain(10, 3)
    theta, pi = random_policy(mdp)
    s, a = 4, 3
    advantage = PolicyValues(mdp, np.log(pi)).advantage[s, a]
    found = gradient(replace(TABLE, kl=kl), theta, mdp, [s * 4 + a])
    unit = np.eye(4)[a]
    if kl == "policy-to-target":  # -alpha sign(A) pi_a (e_a - pi)
        row = np.log(pi[s, a]) * np.sign(advantage) * pi[s, a] * (unit - pi[s])
    else:  # pi - pi~
        raised = pi[s] * np.exp(-np.log(pi[s, a]) * np.sign(advantage) * unit)
        row = pi[s] - raised / raised.sum()
    expected = np.zeros_like(theta)
    expected[s] = row
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("weight", ["q", "advantage"])
def test_offpac_gradient_against_the_formula(weight):
    mdp = capo.mdps.chain(10, 3)
    theta, pi = random_policy(mdp)
    now = PolicyValues(mdp, np.log(pi))
    gain = mdp.q_values(now.values) if weight == "q" else now.advantage
    pairs = [(1, 0), (1, 3), (5, 3), (1, 0)]
    expected = np.zeros_like(theta)
    for s, a in pairs:
        expected[s] -= pi[s, a] * 4 * gain[s, a] * (np.eye(4)[a] - pi[s]) / len(pairs)
    found = gradient(replace(TABLE, method="offpac", weight=weight), theta, mdp, [s * 4 + a for s, a in pairs])
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_ppo_starts_as_offpac_and_stops_where_it_is_clipped():
    mdp = capo.mdps.chain(10, 3)
    theta, pi = random_policy(mdp)
    ppo, offpac = replace(TABLE, method="ppo"), replace(TABLE, method="offpac", weight="advantage")
    batch = [4, 7, 23]
    np.testing.assert_allclose(gradient(ppo, theta, mdp, batch), gradient(offpac, theta, mdp, batch), atol=1e-10)
    s, a = 9, 3  # the step to 100
    assert PolicyValues(mdp, np.log(pi)).advantage[s, a] > 0
    far = theta.copy()
    far[s, a] += 2.0
    assert not gradient(ppo, theta, mdp, [s * 4 + a], far).any()
    near = theta.copy()
    near[s, a] -= 2.0
    assert gradient(ppo, theta, mdp, [s * 4 + a], near)[s, a] < 0


def test_training_against_a_plain_loop():
    mdp, rate = capo.mdps.chain(10, 9), 0.05
    pairs = a2.batches_from("all", [mdp], SIZES)
    points, found = a2.run_all(TABLE, [mdp], pairs, [rate], SIZES)
    theta = np.zeros((11, 10))
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    returns = []
    for i in range(SIZES.iterations + 1):
        pi = np.exp(theta) / np.exp(theta).sum(axis=1, keepdims=True)
        if i in points:
            returns.append(a2.plain_return(mdp, pi, 100))
        advantage = PolicyValues(mdp, np.log(pi)).advantage
        sign = np.where(np.abs(advantage) > 1e-9, np.sign(advantage), 0)
        target = capo.update.coordinate_update(np.log(pi), sign, -np.log(pi))
        difference = np.log(pi) - target
        slope = pi * (difference - (pi * difference).sum(axis=1, keepdims=True))
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        step = first / (1 - 0.9 ** (i + 1)) / (np.sqrt(second / (1 - 0.999 ** (i + 1))) + 1e-8)
        theta = theta - rate * step
    np.testing.assert_allclose(found[0, 0], returns, rtol=2e-3)
    assert returns[-1] > 1.1 * returns[0]


def test_runs_depend_on_their_own_seed_only():
    mdp, learner = capo.mdps.chain(10, 1), a2.UpdateRule("offpac")

    def train(runs, rates):
        batches = a2.batches_from("walk replay", [mdp] * runs, SIZES)
        return a2.run_all(learner, [mdp] * runs, batches, rates, SIZES)[1]

    three = train(3, [1e-3, 1e-2])
    np.testing.assert_array_equal(three, train(3, [1e-3, 1e-2]))
    np.testing.assert_allclose(three[:1, :2], train(2, [1e-3]), rtol=1e-4)
    assert len(np.unique(three[0, :, -1])) == 3


# --- where the pairs come from --------------------------------------------------------------------------------


def test_streams():
    mdp = capo.mdps.chain(10, 9)
    cycle = a2.cyclic_stream(mdp, 180)
    assert sorted(cycle[:90]) == a2.live_pairs(mdp).tolist()
    assert (cycle[90:] == cycle[:90]).all()
    easy = capo.mdps.chain(10, 1)
    walk = a2.walk_stream(easy, 4000, 100, np.random.default_rng(0))
    state, action = np.divmod(walk, 2)
    follows = np.where(action[:-1] == 0, 1, np.where(state[:-1] == 9, 1, state[:-1] + 1))
    assert (state[1:] == follows).all()
    assert abs(action.mean() - 0.5) < 0.03
    short = a2.walk_stream(easy, 100, 1, np.random.default_rng(0))
    assert set(short // 2) == {1}


def test_replay_holds_the_last_pairs_only():
    stream = np.arange(50 * 16)
    batches = a2.replayed(stream, 16, 100, np.random.default_rng(0))
    assert sorted(batches[0]) == list(range(16))
    for i, batch in enumerate(batches):
        assert len(set(batch.tolist())) == 16
        assert batch.max() < (i + 1) * 16
        assert batch.min() >= (i + 1) * 16 - 100
    assert batches[-1].min() < 50 * 16 - 60  # not only the newest


# --- the experiment -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("chain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "METHODS", FEW)
        patch.setattr(chain, "SIZES", replace(chain.SIZES, iterations=400))
        chain.run(out, quick=True, progress=False)
    return out


def test_the_papers_figure_and_what_two_actions_change(folder):
    table = {
        (row["chain"], row["policy"], row["method"], row["rate"]): row for row in read_csv(folder / "table.csv")
    }
    assert table["n", "network", "batch", 1e-3]["at_200"] > 95
    assert table["n", "network", "cyclic", 1e-3]["at_300"] > 95
    assert table["n", "network", "offpac a", 1e-3]["final"] < 0.11
    assert table["n", "network", "offpac all", 1e-3]["at_optimum"] == 5  # what it lacks is the generator
    assert table["two", "network", "offpac a", 1e-3]["at_optimum"] == 5
    assert table["n", "table", "batch", 1e-3]["final"] < 0.2  # the authors' variant at the text's rate
    assert table["n", "table", "batch", 3e-2]["at_optimum"] == 5


def test_data_say_where_they_come_from(folder):
    summary = json.loads((folder / "summary.json").read_text())
    assert {"versions", "commit", "hardware", "runs", "iterations", "quick", "batches"} <= set(summary)
    right = summary["advantage_of_right_under_uniform"]
    assert right["n"][0] < 0 < right["two"][0]
    exact = {
        row["algorithm"]: row["first"] for row in summary["exact"] if (row["chain"], row["eta"]) == ("n", None)
    }
    assert exact["batch capo"] <= 10
    assert all(row["first"] is None for row in summary["exact"] if (row["chain"], row["eta"]) == ("n", 1.0))
    ends = read_csv(folder / "runs.csv")
    table = read_csv(folder / "table.csv")
    for one, row in zip(ends, table, strict=True):
        assert row["final"] == pytest.approx(np.mean([one[f"run_{k}"] for k in range(5)]), abs=2e-3)
    assert all((folder / name).stat().st_size < 300_000 for name in chain.DATA)


def test_report_and_figures_need_the_files_only(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(chain, "METHODS", FEW)
    monkeypatch.setattr(a2, "run_all", None)
    text = chain.report(folder)
    assert "QUICK" in text
    assert "Why the number of actions matters" in text
    assert all(len(line) < 140 for line in text.splitlines())
    drawn = chain.draw(folder, tmp_path)
    assert [path.name for path in drawn] == ["chain.png", "rates.png"]
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 30_000 for path in drawn)


def test_exact_offpac_by_hand():
    mdp = capo.mdps.chain(4, 1)
    _, final = chain.exact_offpac(mdp, 0.5, iterations=1)
    uniform = np.full((5, 2), 0.5)
    visits = np.array([0, 1, 0.99 / 2, (0.99 / 2) ** 2, 0])
    advantage = PolicyValues(mdp, np.log(uniform)).advantage
    theta = 0.5 * (visits / visits.sum())[:, None] * uniform * advantage
    pi = np.exp(theta) / np.exp(theta).sum(axis=1, keepdims=True)
    there = math.prod(pi[1:4, 1])
    assert final == pytest.approx(100 * there + 0.1 * (1 - there), rel=1e-9)
