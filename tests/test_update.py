"""update.py against plain softmax arithmetic at 50 digits."""

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from capo import CapoError, StepSize
from capo.tabular import kernels
from capo.tabular.critic import encode
from capo.update import (
    coordinate_update,
    coordinate_update_with_shift,
    floor,
    log_normalise,
)

STEP_SIZES = [
    StepSize("log"),
    StepSize("log", multiple=2.5),
    StepSize("fixed", eta=0.7),
    StepSize("clipped", clip=1.5),
    StepSize("on-policy"),
]


def exact_alpha(step, pi, sign, count, n_actions):
    """The paper's step sizes in mpmath."""
    if step.kind == "fixed":
        return mpmath.mpf(step.eta)
    if step.kind == "log":
        return step.multiple * mpmath.log(1 / pi)
    if step.kind == "clipped":
        return min(mpmath.log(1 / pi), mpmath.mpf(step.clip))
    beta, zeta = mpmath.mpf(1 / (n_actions + 1)), mpmath.mpf(1 / n_actions)
    if sign <= 0:
        return mpmath.log(1 / pi)
    if pi < beta:
        return mpmath.log(beta / (1 - beta) / pi)
    return zeta * mpmath.log(mpmath.mpf(count + 1) / count)


def exact_update(theta, actions, signs, step, counts):
    """One update of softmax parameters in mpmath: theta -> theta + alpha * sign on the batch."""
    total = mpmath.fsum(mpmath.exp(t) for t in theta)
    new = list(theta)
    for a, sign in zip(actions, signs, strict=True):
        pi = mpmath.exp(theta[a]) / total
        if sign != 0:
            new[a] = theta[a] + sign * exact_alpha(step, pi, sign, counts[a], len(theta))
    return new


def exact_log_policy(theta):
    total = mpmath.log(mpmath.fsum(mpmath.exp(t) for t in theta))
    return np.array([float(t - total) for t in theta])


@pytest.mark.parametrize("step", STEP_SIZES, ids=lambda s: f"{s.kind}-{s.multiple}")
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_run_of_updates_follows_exact_arithmetic(step, data):
    n = data.draw(st.integers(2, 5))
    theta = [mpmath.mpf(x) for x in data.draw(st.lists(st.floats(-30, 30), min_size=n, max_size=n))]
    updates = data.draw(st.lists(st.tuples(st.integers(0, n - 1), st.sampled_from([-1, 0, 1])), max_size=8))
    log_pi = log_normalise(np.array([float(t) for t in theta]))[0]
    counts = np.zeros(n)
    with mpmath.workdps(50):
        for action, sign in updates:
            counts[action] += 1
            signs = np.zeros(n, int)
            signs[action] = sign
            if step.kind == "on-policy":  # it jumps where pi = beta, and an update from next to nothing ends there
                assume(abs(log_pi[action] + np.log(n + 1)) > 1e-9)
            theta = exact_update(theta, [action], [sign], step, counts)
            log_pi = coordinate_update(log_pi, signs, step.alpha(log_pi, signs, counts))
            expected = exact_log_policy(theta)
            np.testing.assert_allclose(log_pi, expected, rtol=1e-11, atol=1e-14)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_batch_weights_are_one_pi_and_pi_squared(data):
    n = data.draw(st.integers(2, 6))
    pi = np.array(data.draw(st.lists(st.floats(0.01, 1), min_size=n, max_size=n)))
    pi /= pi.sum()
    signs = np.array(data.draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=n, max_size=n)))
    weights = np.where(signs > 0, 1, np.where(signs == 0, pi, pi**2))
    updated = coordinate_update(np.log(pi), signs, StepSize().alpha(np.log(pi), signs))
    np.testing.assert_allclose(np.exp(updated), weights / weights.sum(), rtol=1e-12)


@pytest.mark.parametrize("times", [10, 11, 1023, 1024, 1025, 5000])
def test_a_positive_update_brings_an_action_back_from_the_floor(times):
    """Thousands of negative updates square pi each time; exp-based code gives NaN after 11, theta after 1024."""
    log_pi = np.log(np.array([0.3, 0.5, 0.2]))
    down, up = np.array([-1, 0, 0]), np.array([1, 0, 0])
    for _ in range(times):
        log_pi = coordinate_update(log_pi, down, StepSize().alpha(log_pi, down))
    assert np.isfinite(log_pi).all()
    assert log_pi[0] >= floor(np.float64)
    before = np.exp(log_pi)
    np.testing.assert_allclose(before.sum(), 1, rtol=1e-14)
    with mpmath.workdps(50):
        # 0.3^(2^times) is beyond any float, yet log pi of the other two stays exact.
        rest = mpmath.log(mpmath.mpf("0.5") / mpmath.mpf("0.7"))
        np.testing.assert_allclose(log_pi[1], float(rest), rtol=1e-12)
    log_pi = coordinate_update(log_pi, up, StepSize().alpha(log_pi, up))
    np.testing.assert_allclose(np.exp(log_pi[0]), 1 / (2 - before[0]), rtol=1e-14)
    np.testing.assert_allclose(np.exp(log_pi[1:]), before[1:] / (2 - before[0]), rtol=1e-14)


@pytest.mark.parametrize("multiple", [1.0, 2.0, 10.0])
def test_multiples_of_the_log_step_stay_finite(multiple):
    step = StepSize("log", multiple=multiple)
    log_pi = np.log(np.full(4, 0.25))
    for turn in range(3000):
        signs = np.zeros(4, int)
        signs[turn % 4] = -1 if turn % 7 else 1
        log_pi = coordinate_update(log_pi, signs, step.alpha(log_pi, signs))
        assert np.isfinite(log_pi).all()
        np.testing.assert_allclose(np.exp(log_pi).sum(), 1, rtol=1e-12)


def test_an_action_next_to_certainty_keeps_its_step_size():
    log_pi, _ = log_normalise(np.array([0.0, -50.0]))
    np.testing.assert_allclose(log_pi[0], -np.exp(-50.0), rtol=1e-12)
    assert StepSize().alpha(log_pi, np.array([1, 0]))[0] > 0


def test_shifts_turn_log_pi_back_into_theta():
    theta = np.array([[0.3, -1.0, 2.0]])
    log_pi, total = log_normalise(theta)
    signs = np.array([[1, 0, -1]])
    for _ in range(5):
        alpha = StepSize("fixed", eta=0.5).alpha(log_pi, signs)
        theta = theta + signs * alpha
        log_pi, shift = coordinate_update_with_shift(log_pi, signs, alpha)
        total = total + shift
    np.testing.assert_allclose(log_pi + total[:, None], theta, rtol=1e-13)


@pytest.mark.parametrize("step", STEP_SIZES, ids=lambda s: f"{s.kind}-{s.multiple}")
def test_jax_arrays_give_the_same_within_float32(step):
    rng = np.random.default_rng(1)
    log_pi = log_normalise(rng.normal(size=(50, 4)) * 3)[0]
    signs = rng.integers(-1, 2, (50, 4))
    counts = rng.integers(1, 9, (50, 4))
    expected = coordinate_update(log_pi, signs, step.alpha(log_pi, signs, counts))
    small = jnp.asarray(log_pi, jnp.float32)
    got = coordinate_update(small, jnp.asarray(signs), step.alpha(small, jnp.asarray(signs), jnp.asarray(counts)))
    assert isinstance(got, jnp.ndarray)
    np.testing.assert_allclose(np.exp(got), np.exp(expected), atol=2e-6)


def test_the_floor_of_float32_lets_an_action_come_back_too():
    log_pi = jnp.log(jnp.array([0.5, 0.5], jnp.float32))
    down, up = jnp.array([-1, 0]), jnp.array([1, 0])
    for _ in range(300):
        log_pi = coordinate_update(log_pi, down, StepSize().alpha(log_pi, down))
    assert bool(jnp.isfinite(log_pi).all())
    log_pi = coordinate_update(log_pi, up, StepSize().alpha(log_pi, up))
    np.testing.assert_allclose(np.exp(log_pi), [0.5, 0.5], atol=1e-6)


@pytest.mark.parametrize("step", STEP_SIZES, ids=lambda s: f"{s.kind}-{s.multiple}")
def test_the_compiled_twin_agrees(step):
    rng = np.random.default_rng(2)
    log_pi = log_normalise(rng.normal(size=(200, 4)) * 5)[0]
    signs = rng.integers(-1, 2, (200, 4)).astype(np.int8)
    counts = rng.integers(1, 9, (200, 4))
    alpha = step.alpha(log_pi, signs, counts)
    expected = coordinate_update(log_pi, signs, alpha)
    rows, alphas, policy = log_pi.copy(), np.empty_like(log_pi), np.exp(log_pi)
    kernels.update_all(*encode(step, 4), rows, signs, counts, alphas, policy)
    np.testing.assert_allclose(alphas, alpha, rtol=1e-13)
    np.testing.assert_allclose(rows, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(policy, np.exp(expected), rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "lgo"}, "did you mean 'log'"),
        ({"kind": "fixed", "eta": 0.0}, "eta=0.0 must be positive"),
        ({"kind": "fixed", "eta": float("nan")}, "finite"),
        ({"kind": "log", "multiple": 1e9}, "multiple=1e\\+09 must be at most"),
        ({"kind": "clipped", "clip": -1.0}, "clip=-1.0"),
        ({"kind": "on-policy", "beta": 1.5}, "beta=1.5 must be between 0 and 1"),
        ({"kind": "log", "multiple": "two"}, "multiple='two'"),
    ],
)
def test_bad_step_sizes_are_named(options, words):
    with pytest.raises(CapoError, match=words):
        StepSize(**options)


def test_the_on_policy_step_size_needs_counts():
    with pytest.raises(CapoError, match="visit counts"):
        StepSize("on-policy").alpha(np.log([0.5, 0.5]), np.array([1, 0]))
