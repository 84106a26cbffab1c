"""The share of right signs: its pieces against plain code, its files, its figure from files alone."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import capo
from capo.experiments import signs
from capo.experiments.common import read_csv
from capo.neural.parts import retrace as neural
from capo.tabular.theory import PolicyValues


@pytest.fixture
def mdp():
    return capo.mdps.grid(5)


def policies(mdp, runs, seed=0):
    theta = np.random.default_rng(seed).normal(size=(runs, mdp.n_states, mdp.n_actions))
    return np.exp(theta) / np.exp(theta).sum(axis=2, keepdims=True)


def test_rollouts_follow_the_maze(mdp):
    rng = np.random.default_rng(0)
    mu = policies(mdp, 2)
    where = signs._drawn(np.cumsum(mdp.start), rng.random((2, 5)))
    fresh, after, age = signs.collect(mdp, mu, where, np.zeros_like(where), 150, 0.0, rng)
    s, a, goal = fresh.state, fresh.action, mdp.n_states - 1
    np.testing.assert_array_equal(mdp.transition[s, a].argmax(axis=-1), fresh.following)
    np.testing.assert_array_equal(fresh.reward, mdp.reward[s, a])
    np.testing.assert_array_equal(fresh.ended, fresh.following == goal)
    np.testing.assert_allclose(fresh.mu, mu[np.arange(2)[:, None, None], s, a])
    stays = (fresh.ended[..., :-1] + fresh.cut[..., :-1]) == 0
    np.testing.assert_array_equal(s[..., 1:][stays], fresh.following[..., :-1][stays])
    assert (s != goal).all()
    assert age.max() < 100
    assert after.shape == (2, 5)
    noisy, *_ = signs.collect(mdp, mu, where, np.zeros_like(where), 150, 3.0, rng)
    assert np.std(noisy.reward - mdp.reward[noisy.state, noisy.action]) == pytest.approx(3.0, rel=0.1)


def test_retrace_is_the_networks_retrace(mdp):
    rng = np.random.default_rng(1)
    pi, q = policies(mdp, 3), rng.normal(size=(3, mdp.n_states, 4))
    where = signs._drawn(np.cumsum(mdp.start), rng.random((3, 6)))
    batch, *_ = signs.collect(mdp, policies(mdp, 3, 5), where, np.full_like(where, 95), 12, 1.0, rng)
    assert batch.cut.any()
    returns, advantage = signs.retrace(0.99, pi, q, batch)
    run = np.arange(3)[:, None, None]
    v = (pi * q).sum(axis=2)
    expected = neural.retrace(
        reward=jnp.asarray(batch.reward), terminated=jnp.asarray(batch.ended), truncated=jnp.asarray(batch.cut),
        q_taken=jnp.asarray(q[run, batch.state, batch.action]), v_next=jnp.asarray(v[run, batch.following]),
        log_pi=jnp.log(pi[run, batch.state, batch.action]), log_mu=jnp.log(batch.mu), gamma=0.99,
    )  # fmt: skip
    np.testing.assert_allclose(returns, expected, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(advantage, returns - v[run, batch.state])


def test_means_by_pair(mdp):
    state, action = np.array([[[0, 0, 3]]]), np.array([[[1, 1, 2]]])
    batch = signs.Rollouts(state, action, *([np.zeros((1, 1, 3))] * 5))
    mean, seen = signs.by_pair(np.array([[[1.0, 3.0, -5.0]]]), batch, (1, mdp.n_states, 4))
    assert mean[0, 0, 1] == 2
    assert mean[0, 3, 2] == -5
    assert np.argwhere(seen).tolist() == [[0, 0, 1], [0, 3, 2]]


def test_shares_of_the_truth_of_its_opposite_and_of_nothing(mdp):
    log_pi = np.log(policies(mdp, 1)[0])
    now = PolicyValues(mdp, log_pi)
    truth = np.where(np.abs(now.advantage) > 1e-6, np.sign(now.advantage), 0)
    assert signs.shares(mdp, log_pi, now.q, truth) == {"critic": 1.0, "used": 1.0, "by_size": 1.0}
    assert signs.shares(mdp, log_pi, -now.q, -truth) == {"critic": 0.0, "used": 0.0, "by_size": 0.0}
    some = truth.copy()
    some[:, 0] *= -1
    some[:, 2:] = 0
    found, sizes = signs.shares(mdp, log_pi, now.q, some), np.abs(now.advantage) * (truth != 0)
    assert found["used"] == pytest.approx((truth[:, 1] != 0).sum() / (truth[:, :2] != 0).sum())
    assert found["by_size"] == pytest.approx(sizes[:, 1].sum() / sizes[:, :2].sum())
    assert np.isnan(signs.shares(mdp, log_pi, now.q, 0 * truth)["used"])


def test_data_table_and_figure(tmp_path, monkeypatch):
    signs.run(tmp_path, quick=True, progress=False)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {"versions", "commit", "hardware", "precision", "sizes", "score"} <= set(summary)
    rows = {(row["step"], row["noise"]): row for row in read_csv(tmp_path / "table.csv")}
    assert len(rows) == 4
    assert all(0 <= row["used_along"] <= 1 and row["score_end"] <= 1 + 1e-9 for row in rows.values())
    assert rows["fixed", 0.0]["critic_along"] > 0.6, "better than guessing"
    again = tmp_path / "again"
    again.mkdir()
    signs.run(again, quick=True, progress=False)
    assert (again / "curves.csv").read_bytes() == (tmp_path / "curves.csv").read_bytes()
    monkeypatch.setattr(signs, "train", None)
    text = signs.report(tmp_path)
    assert "QUICK" in text
    assert all(len(line) < 150 for line in text.splitlines())
    (path,) = signs.draw(tmp_path, tmp_path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
