"""The study of update directions: its formulas against plain ones, its files, its figure from files alone."""

import json

import numpy as np
import pytest

import capo
from capo.experiments import directions
from capo.experiments.algorithm2 import stack
from capo.experiments.common import read_csv
from capo.tabular.theory import PolicyValues, policy_gradient


def random_log_policy(shape, seed=0):
    theta = np.random.default_rng(seed).normal(size=shape)
    return theta - np.log(np.exp(theta).sum(axis=-1, keepdims=True))


def test_values_and_the_true_gradient_are_the_lemmas():
    mdps = [directions._maze("random", 0), directions._maze("random", 1)]
    log_pi = random_log_policy((2, mdps[0].n_states, 4))
    found = directions.evaluate(stack(mdps), log_pi)
    for k, mdp in enumerate(mdps):
        now = PolicyValues(mdp, log_pi[k])
        assert found.v[k] == pytest.approx(mdp.start @ now.values, rel=1e-12)
        np.testing.assert_allclose(found.advantage[k], now.advantage, atol=1e-9)
        live = ~mdp.terminal[:, None]
        np.testing.assert_allclose(found.gradient[k], policy_gradient(now, mdp.start) * live, atol=1e-9)
        assert found.visits[k].sum() == pytest.approx(1)
        assert found.visits[k][mdp.terminal] == 0


def test_empirical_gradients_are_unbiased_and_capo_takes_the_sign():
    """The mean over every pair, weighted by its chance, is the true gradient up to a factor."""
    mdp = directions._maze("fixed", 3)
    log_pi = random_log_policy((1, mdp.n_states, 4), 2)
    now = directions.evaluate(stack([mdp]), log_pi)
    pi, shape = np.exp(log_pi), (mdp.n_states, 4)
    uniform = directions.evaluate(stack([mdp]), np.full((1, *shape), -np.log(4))).visits
    for method, chances in (
        ("actor-critic", now.visits[..., None] * pi),
        ("offpac", uniform[..., None] * np.full((1, *shape), 0.25)),
    ):
        mean = np.zeros((1, *shape))
        for s, a in np.ndindex(shape):
            counts = np.zeros((1, *shape), int)
            counts[0, s, a] = 1
            step = directions.direction(method, log_pi, now.advantage, counts)
            expected = (
                now.advantage[0, s, a] * (np.eye(4)[a] - pi[0, s]) * (4 * pi[0, s, a] if method == "offpac" else 1)
            )
            np.testing.assert_allclose(step[0, s], expected, atol=1e-12)
            assert not np.delete(step[0], s, axis=0).any()
            mean += chances[0, s, a] * step
        weights = now.visits if method == "actor-critic" else uniform
        np.testing.assert_allclose(mean[0], (weights[..., None] * pi * now.advantage)[0], atol=1e-10)
    counts = np.zeros((1, *shape), int)
    counts[0, 2, 1] = 3
    step = directions.direction("capo", log_pi, now.advantage, counts)
    assert step[0, 2, 1] == -log_pi[0, 2, 1] * np.sign(now.advantage[0, 2, 1])
    assert np.count_nonzero(step) == 1


def test_drawn_pairs_follow_their_weights():
    counts = directions.pick(np.array([[1.0, 0.0], [3.0, 4.0]]), 8000, np.random.default_rng(0))
    assert counts.sum() == 8000
    assert counts[0, 1] == 0
    np.testing.assert_allclose(counts / 8000, [[1 / 8, 0], [3 / 8, 4 / 8]], atol=0.02)


def test_capo_never_points_downhill_nor_falls_and_one_sampled_gradient_does():
    mdps = [directions._maze("fixed", k) for k in range(3)]
    found = {method: directions.train(mdps, method, 1, 60) for method in directions.METHODS}
    assert np.nanmax(found["capo"]["downhill"]) == 0  # every coordinate has the sign of the gradient's
    assert not found["capo"]["fell"].any()
    assert np.nanmean(found["actor-critic"]["downhill"]) > 0
    assert found["actor-critic"]["fell"].any()
    assert all(np.nanmax(np.abs(one["cosine"])) <= 1 + 1e-12 for one in found.values())
    many = directions.train(mdps, "actor-critic", 256, 20)
    few = found["actor-critic"]["cosine"][:, :20]
    assert np.nanmean(many["cosine"]) > 2 * np.nanmean(few)


def test_data_tables_and_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(directions, "METHODS", {"capo": "CAPO", "actor-critic": "on-policy actor-critic"})
    directions.run(tmp_path, quick=True, progress=False)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {"versions", "commit", "hardware", "runs", "eta", "pairs"} <= set(summary)
    rows = read_csv(tmp_path / "table.csv")
    assert len(rows) == 2 * 2 * 2
    assert all(row["fell"] == row["downhill"] == 0 for row in rows if row["method"] == "capo")
    monkeypatch.setattr(directions, "train", None)
    text = directions.report(tmp_path)
    assert "QUICK" in text
    assert "start at (1, 1)" in text
    assert all(len(line) < 140 for line in text.splitlines())
    (path,) = directions.draw(tmp_path, tmp_path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    best = capo.baselines.policy_iteration(directions._maze("fixed", 0)).value
    assert all(row["value"] <= best + 6 for row in rows if row["start"] == "fixed")
