"""Dynamic programming beyond the size where a factorisation is wise: the same answers, certified by residuals."""

from __future__ import annotations

import numpy as np
import pytest

import capo
from capo.errors import CapoError
from capo.tabular import baselines
from capo.tabular import baselines_large as large
from capo.tabular.theory import modified as lines

MDPS = {
    "grid": capo.mdps.slippery_grid(12, gamma=0.95),
    "close to one": capo.mdps.slippery_grid(9, gamma=0.9999),
    "chain": capo.MDP(capo.mdps.garnet(2100, 3, 4, gamma=0.99, seed=1).rows, np.eye(2100)[:, :3], 0.99),
}


@pytest.fixture
def always_large(monkeypatch):
    monkeypatch.setattr(large, "is_large", lambda _: True)


@pytest.mark.parametrize("mdp", MDPS.values(), ids=MDPS)
def test_the_same_values_as_with_factorisations(mdp, monkeypatch):
    exact = baselines.policy_iteration(mdp)
    monkeypatch.setattr(large, "is_large", lambda _: True)
    for result in (
        baselines.policy_iteration(mdp, tol=1e-6),
        baselines.value_iteration(mdp, tol=1e-6),
        baselines.modified_policy_iteration(mdp, tol=1e-6),
    ):
        assert result.converged, str(result)
        assert result.critic == "iterative"
        assert (exact.values - result.values).max() <= result.gap_bound + 1e-8
        assert (result.values - exact.values).max() <= 1e-8
        assert (exact.values - mdp.policy_values(result.policy)).max() <= result.gap_bound + 1e-8
        certificate = result.certificate()
        assert certificate.held, str(certificate)
        assert certificate.line(lines.GAP).status == "held"


@pytest.mark.usefixtures("always_large")
def test_policy_iteration_makes_howards_policies(monkeypatch):
    monkeypatch.setattr(large, "REDUCTION", 0.0)  # evaluate down to rounding
    mdp, policies = MDPS["grid"], []
    howard = baselines.policy_iteration(
        mdp, iterations=4, callback=lambda now: policies.append(now.log_policy.argmax(axis=1))
    )
    assert howard.iterations == 4
    action = mdp.reward.argmax(axis=1)
    for found in policies[1:]:
        values = mdp.policy_values(np.eye(4)[action])
        q = mdp.q_values(values)
        own = q[np.arange(len(q)), action]
        better = q.max(axis=1) > own + 1e-9
        assert better.any() or found is policies[-1]
        assert np.allclose(q[np.arange(len(q)), found][better], q.max(axis=1)[better], rtol=0, atol=1e-9)
        action = found


@pytest.mark.usefixtures("always_large")
def test_an_initial_policy_is_where_it_starts():
    mdp = MDPS["grid"]
    best = baselines.policy_iteration(mdp, tol=1e-8)
    again = baselines.policy_iteration(mdp, tol=1e-8, init=best.policy)
    assert again.iterations < best.iterations
    assert baselines.value_iteration(mdp, tol=1e-8, values=best.values).iterations <= 2


@pytest.mark.usefixtures("always_large")
@pytest.mark.parametrize("size", [1e14, -1e20, 1e290])
def test_bounds_include_the_rounding_of_large_initial_values(size):
    """Beside 1e20 all rewards vanish, and every policy looks optimal."""
    transition = np.zeros((6, 2, 6))
    transition[np.arange(6), 0, (np.arange(6) + 1) % 6] = transition[np.arange(6), 1, np.arange(6)] = 1
    mdp = capo.MDP(transition, np.eye(6)[:, [0, 5]], 0.9)
    best = baselines.policy_iteration(mdp).values
    for iterations in (1, 5, 50, None):
        found = baselines.value_iteration(mdp, iterations, values=np.full(6, size))
        exact = mdp.policy_values(found.policy)
        assert (best - exact).max() <= found.gap_bound * (1 + 1e-9) + 1e-12
        assert (found.values <= exact + 1e-12 * max(1, found.gap_bound)).all()
    assert found.converged
    with pytest.raises(CapoError, match=r"values of size 1\.7e\+308 are too large"):
        baselines.value_iteration(mdp, values=np.full(6, 1.7e308))


@pytest.mark.usefixtures("always_large")
def test_a_stop_by_callback_is_certified():
    mdp = MDPS["grid"]
    result = baselines.value_iteration(mdp, tol=1e-8, callback=lambda now: now.iteration < 5)
    assert (result.iterations, result.stopped) == (5, "stopped by the callback")
    best = baselines.modified_policy_iteration(mdp, tol=1e-9).values
    assert (best - mdp.policy_values(result.policy)).max() <= result.gap_bound


def test_large_sparse_mdps_are_not_factorised(monkeypatch):
    def refuse(*_):
        raise AssertionError("factorised")

    monkeypatch.setattr("scipy.sparse.linalg.splu", refuse)
    mdp = capo.mdps.slippery_grid(75)
    for run in (baselines.policy_iteration, baselines.value_iteration, baselines.modified_policy_iteration):
        assert run(mdp, tol=1e-5).converged


def test_mistakes():
    for options in ({"k": 0}, {"threads": 0}, {"tol": -1.0}, {"iterations": 0}):
        with pytest.raises(capo.CapoError, match=next(iter(options))):
            baselines.modified_policy_iteration(MDPS["grid"], **options)
