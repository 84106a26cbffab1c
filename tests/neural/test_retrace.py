"""Retrace and V-trace against their definitions, written out over the rollout."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from capo.neural.parts.retrace import UNROLL, retrace, v_trace


def by_definition(reward, terminated, truncated, q, v_next, log_pi, log_mu, gamma, lam):
    """G_t = Q_t + sum over j >= t of gamma^(j-t) * (prod over t < i <= j of lam c_i) * delta_j, to an end."""
    length = len(reward)
    returns = np.zeros(length)
    for t in range(length):
        total, weight = q[t], 1.0
        for j in range(t, length):
            if j > t:
                weight *= gamma * lam * min(1.0, np.exp(log_pi[j] - log_mu[j]))
            bootstrap = 0.0 if terminated[j] else gamma * v_next[j]
            total += weight * (reward[j] + bootstrap - q[j])
            if terminated[j] or truncated[j]:
                break
        returns[t] = total
    return returns


def v_trace_by_definition(reward, terminated, truncated, q, v_next, log_pi, log_mu, gamma, lam):
    """G_t = r_t + gamma (V + lam (v - V))_t+1, v_t = V_t + sum_j gamma^(j-t) (prod_{i<j} lam c_i) c_j delta_j.

    ``q`` holds V(s_t).
    """
    length = len(reward)
    c = np.minimum(1.0, np.exp(log_pi - log_mu))
    bootstrap = np.where(terminated, 0.0, gamma * v_next)
    ended = (terminated + truncated) > 0

    def correction(t):
        total, weight = 0.0, 1.0
        for j in range(t, length):
            total += weight * c[j] * (reward[j] + bootstrap[j] - q[j])
            if ended[j]:
                break
            weight *= gamma * lam * c[j]
        return total

    more = [gamma * lam * correction(t + 1) if t + 1 < length and not ended[t] else 0.0 for t in range(length)]
    return reward + bootstrap + np.array(more)


def random_rollout(rng, length):
    ends = rng.integers(0, 6, length)
    return {
        "reward": rng.normal(size=length),
        "terminated": (ends == 0).astype(float),
        "truncated": (ends == 1).astype(float),
        "q": rng.normal(size=length),
        "v_next": rng.normal(size=length),
        "log_pi": -rng.exponential(size=length),
        "log_mu": -rng.exponential(size=length),
    }


@pytest.mark.parametrize(
    ("fast", "slow", "value"), [(retrace, by_definition, "q_taken"), (v_trace, v_trace_by_definition, "value")]
)
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("length", [1, 2, 20, UNROLL + 9])
def test_equals_its_definition(fast, slow, value, lam, length):
    rng = np.random.default_rng(length)
    rollouts = [random_rollout(rng, length) for _ in range(30)]
    expected = np.array([slow(**r, gamma=0.97, lam=lam) for r in rollouts])
    batch = {name: np.stack([r[name] for r in rollouts]) for name in rollouts[0]}
    batch[value] = batch.pop("q")
    got = jax.jit(fast, static_argnames=("gamma", "lam"))(**batch, gamma=0.97, lam=lam)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_on_policy_with_lambda_one_is_the_discounted_return():
    reward = np.array([[1.0, 2.0, 3.0]])
    zero, one = np.zeros((1, 3)), np.ones((1, 3))
    got = retrace(
        reward=reward, terminated=np.array([[0.0, 0.0, 1.0]]), truncated=zero, q_taken=one, v_next=5 * one,
        log_pi=zero, log_mu=zero, gamma=0.5,
    )  # fmt: skip
    # q = 1 and V = 5 disagree, so the off-policy correction of the first two steps shows up
    expected_last = 3.0
    expected_mid = 2 + 0.5 * 5 + 0.5 * (expected_last - 1)
    expected = [1 + 0.5 * 5 + 0.5 * (expected_mid - 1), expected_mid, expected_last]
    np.testing.assert_allclose(got[0], expected, rtol=1e-6)


def test_nothing_leaks_across_an_episode_end():
    rng = np.random.default_rng(0)
    first = random_rollout(rng, 6)
    for end in ("terminated", "truncated"):
        first |= {"terminated": np.zeros(6), "truncated": np.zeros(6)}
        first[end][2] = 1.0
        second = {k: v.copy() for k, v in first.items()}
        for name in ("reward", "q", "v_next", "log_pi", "log_mu"):
            second[name][3:] += 7.0
        got = []
        for r in (first, second):
            args = {("q_taken" if k == "q" else k): v[None] for k, v in r.items()}
            got.append(np.asarray(retrace(**args, gamma=0.9))[0])
        np.testing.assert_array_equal(got[0][:3], got[1][:3])
        assert np.abs(got[0][3:] - got[1][3:]).min() > 0.1


@pytest.mark.oracle
def test_against_rlax():
    import rlax

    rng = np.random.default_rng(3)
    length, n_actions = 12, 4
    q, pi = rng.normal(size=(length + 1, n_actions)), rng.dirichlet(np.ones(n_actions), size=length + 1)
    action, mu = rng.integers(0, n_actions, length + 1), rng.uniform(0.1, 1, length + 1)
    reward, alive = rng.normal(size=length), (rng.uniform(size=length) > 0.2).astype(float)
    q, pi, mu, reward, alive = (x.astype(np.float32) for x in (q, pi, mu, reward, alive))
    # rlax gives the error of Q at time t, from Q and pi at t + 1
    error = rlax.retrace(
        q[:-1], q[1:], action[:-1], action[1:], reward, np.float32(0.9) * alive, pi[1:], mu[1:], 0.8
    )
    taken = np.arange(length + 1), action
    got = retrace(
        reward=reward[None],
        terminated=1 - alive[None],
        truncated=0 * reward[None],
        q_taken=q[taken][None, :-1],
        v_next=(pi * q).sum(-1)[None, 1:],
        log_pi=np.log(pi[taken])[None, :-1],
        log_mu=np.log(mu)[None, :-1],
        gamma=0.9,
        lam=0.8,
    )
    np.testing.assert_allclose(np.asarray(got)[0] - q[taken][:-1], error, rtol=1e-3, atol=1e-4)


@pytest.mark.oracle
def test_v_trace_against_rlax():
    import rlax

    rng = np.random.default_rng(4)
    length = 12
    value, reward, log_pi = (rng.normal(size=n).astype(np.float32) for n in (length + 1, length, length))
    log_mu = rng.normal(size=length).astype(np.float32)
    alive = (rng.uniform(size=length) > 0.2).astype(np.float32)
    found = rlax.vtrace_td_error_and_advantage(
        value[:-1], value[1:], reward, np.float32(0.9) * alive, np.exp(log_pi - log_mu), 0.8
    )
    got = v_trace(
        reward=reward[None],
        terminated=1 - alive[None],
        truncated=0 * reward[None],
        value=value[None, :-1],
        v_next=value[None, 1:],
        log_pi=log_pi[None],
        log_mu=log_mu[None],
        gamma=0.9,
        lam=0.8,
    )
    np.testing.assert_allclose(np.asarray(got)[0], found.q_estimate, rtol=1e-3, atol=1e-4)
