"""Statistics against their plain definitions, and against rliable where it is installed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from capo import CapoError
from capo.report import statistics as s

scores_lists = st.lists(st.floats(-50, 50), min_size=1, max_size=13)


@given(scores_lists)
def test_interquartile_mean_is_the_trimmed_mean(values: list[float]) -> None:
    assert float(s.interquartile_mean(values)) == pytest.approx(stats.trim_mean(values, 0.25), abs=1e-9)


def test_interquartile_mean_works_on_leading_axes() -> None:
    values = np.random.default_rng(0).normal(size=(3, 4, 10))
    expected = [[stats.trim_mean(row, 0.25) for row in block] for block in values]
    np.testing.assert_allclose(s.interquartile_mean(values), expected)


@given(scores_lists, scores_lists)
@settings(max_examples=50)
def test_probability_of_improvement_counts_pairs(x: list[float], y: list[float]) -> None:
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(x, y)]
    ours = float(s.probability_of_improvement([np.array(x)], [np.array(y)]))
    assert ours == pytest.approx(np.mean(wins))
    back = float(s.probability_of_improvement([np.array(y)], [np.array(x)]))
    assert ours + back == pytest.approx(1.0)


def test_probability_of_improvement_averages_tasks() -> None:
    x, y = [np.array([1.0]), np.array([0.0, 1.0])], [np.array([0.0]), np.array([2.0])]
    assert float(s.probability_of_improvement(x, y)) == 0.5
    with pytest.raises(CapoError, match="same tasks"):
        s.probability_of_improvement(x, y[:1])
    with pytest.raises(CapoError, match="same tasks"):
        s.improvement(x, y[:1])


def test_performance_profile_counts_runs() -> None:
    tasks = [np.array([1.0, 2.0, 3.0, 3.0]), np.array([0.0, 5.0])]
    at = [-1.0, 1.0, 3.0, 9.0]
    expected = [np.mean([np.mean(one > t) for one in tasks]) for t in at]
    np.testing.assert_allclose(s.performance_profile(tasks, at), expected)


def test_bootstrap_draws_each_task_on_its_own() -> None:
    """With one run a task nothing can vary; pooling the tasks would."""
    found = s.stratified_bootstrap([[1.0], [100.0]], s.aggregate_mean)
    assert (found.value, found.low, found.high) == (50.5, 50.5, 50.5)


def test_bootstrap_matches_a_plain_loop() -> None:
    rng = np.random.default_rng(3)
    tasks = [rng.normal(size=8), rng.normal(2, 3, size=5)]
    found = s.stratified_bootstrap(tasks, s.aggregate_iqm, resamples=4000, seed=1)
    again = np.random.default_rng(9)
    drawn = [
        stats.trim_mean(np.concatenate([again.choice(one, len(one)) for one in tasks]), 0.25) for _ in range(4000)
    ]
    assert float(found.value) == pytest.approx(stats.trim_mean(np.concatenate(tasks), 0.25))
    np.testing.assert_allclose([found.low, found.high], np.quantile(drawn, [0.025, 0.975]), atol=0.12)


def test_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    """The interval of the mean of 20 normal values: a 90 % interval holds 0 in 80 to 97 % of 200 cases."""
    rng = np.random.default_rng(0)
    found = [
        s.stratified_bootstrap([rng.normal(size=20)], s.aggregate_mean, resamples=500, level=0.9, seed=k)
        for k in range(200)
    ]
    assert 0.80 <= np.mean([one.low <= 0 <= one.high for one in found]) <= 0.97


def test_bootstrap_is_seeded_and_does_not_depend_on_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [np.arange(6.0), np.arange(4.0)]
    first = s.stratified_bootstrap(tasks, s.aggregate_mean, seed=5)
    assert s.stratified_bootstrap(tasks, s.aggregate_mean, seed=5) == first
    assert s.stratified_bootstrap(tasks, s.aggregate_mean, seed=6) != first
    curves = [(np.arange(5), np.random.default_rng(k).normal(size=5)) for k in range(4)]
    whole = s.summarise_curves(curves)
    monkeypatch.setattr(s, "_BLOCK", 100)
    np.testing.assert_array_equal(s.summarise_curves(curves).low, whole.low)


@pytest.mark.parametrize(
    ("scores", "message"),
    [([], "at least one run"), ([[]], "at least one run"), ([[1.0, np.nan]], "finite"), ([[[1.0]]], "runs")],
)
def test_bad_scores_are_named(scores: list[list[float]], message: str) -> None:
    with pytest.raises(CapoError, match=message):
        s.stratified_bootstrap(scores, s.aggregate_mean)


def test_curves_meet_on_one_grid() -> None:
    """Straight lines logged at different frames: interpolation is exact."""
    frames = [np.linspace(0, 100, 11), np.linspace(0, 100, 26), np.array([0.0, 37.0, 100.0])]
    found = s.summarise_curves([(at, slope * at) for slope, at in enumerate(frames, 1)], points=50)
    np.testing.assert_allclose(found.seeds, np.outer([1, 2, 3], found.frames))
    np.testing.assert_allclose(found.mean, 2 * found.frames)
    np.testing.assert_allclose(found.std, found.frames)
    np.testing.assert_allclose(found.iqm, 2 * found.frames)
    assert (found.low <= found.iqm + 1e-9).all()
    assert (found.high >= found.iqm - 1e-9).all()


def test_curves_of_equal_frames_stay_as_they_are() -> None:
    at = np.array([10.0, 20.0, 50.0])
    found = s.summarise_curves([(at, at), (at, at)])
    np.testing.assert_array_equal(found.frames, at)


def test_a_short_curve_leaves_a_gap_and_not_a_guess() -> None:
    long, short = (np.arange(0.0, 11.0), np.zeros(11)), (np.arange(0.0, 6.0), np.ones(6))
    found = s.summarise_curves([long, short], points=11)
    np.testing.assert_array_equal(found.count, [2] * 6 + [1] * 5)
    np.testing.assert_array_equal(found.mean, [0.5] * 6 + [0.0] * 5)
    assert np.isnan(found.seeds[1, 6:]).all()


def test_curve_interval_is_the_bootstrap_of_each_point() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(size=(12, 3)).cumsum(axis=1)
    found = s.summarise_curves([(np.arange(3), row) for row in values], resamples=4000)
    for point in range(3):
        plain = s.stratified_bootstrap([values[:, point]], s.aggregate_iqm, resamples=4000, seed=7)
        np.testing.assert_allclose([found.low[point], found.high[point]], [plain.low, plain.high], atol=0.15)


@pytest.mark.oracle
def test_agrees_with_rliable() -> None:
    from rliable import library, metrics

    rng = np.random.default_rng(0)
    x, y = rng.normal(0.5, 1, size=(10, 4)), rng.normal(size=(9, 4))
    ours_x, ours_y = list(x.T), list(y.T)
    assert float(s.aggregate_iqm(ours_x)) == pytest.approx(metrics.aggregate_iqm(x))
    assert float(s.aggregate_mean(ours_x)) == pytest.approx(metrics.aggregate_mean(x))
    assert float(s.probability_of_improvement(ours_x, ours_y)) == pytest.approx(
        metrics.probability_of_improvement(x, y)
    )
    at = np.linspace(-2, 2, 9)
    theirs, intervals = library.create_performance_profile({"x": x}, at, reps=500)
    np.testing.assert_allclose(s.performance_profile(ours_x, at), theirs["x"])
    ours = s.stratified_bootstrap(ours_x, lambda one: s.performance_profile(one, at))
    np.testing.assert_allclose([ours.low, ours.high], intervals["x"], atol=0.06)
    _, bounds = library.get_interval_estimates(
        {"x": x}, lambda one: np.array([metrics.aggregate_iqm(one)]), reps=2000
    )
    mine = s.stratified_bootstrap(ours_x, s.aggregate_iqm)
    np.testing.assert_allclose([mine.low, mine.high], bounds["x"][:, 0], atol=0.05)
