"""The noise experiment, tabular part: without noise it is the solver, with noise the noise is what it says."""

import json
import math

import numpy as np
import pytest

import capo
from capo.experiments import noise
from capo.experiments.common import read_csv

SWEEPS = 12


def clean(mdp, key, kind="flip"):
    """Scores without noise at the recorded sweeps."""
    points, scores = noise.learn(mdp, noise.ALGORITHMS[key], kind, (0.0,), 2, SWEEPS)
    return points, scores[0]


def scaled(mdp, value):
    uniform = np.full((mdp.n_states, mdp.n_actions), 1 / mdp.n_actions)
    low = mdp.start @ mdp.policy_values(uniform)
    return (value - low) / (capo.baselines.policy_iteration(mdp).value - low)


@pytest.mark.parametrize("mdp", [capo.mdps.random(6, 3, 0.9, seed=1), capo.mdps.garnet(8, 3, 2, seed=2)])
@pytest.mark.parametrize(
    ("key", "rule", "options"),
    [("batch", "batch", {}), ("cyclic", "cyclic", {}), ("batch 1", "batch", {"stepsize": "fixed", "eta": 1.0})],
)
def test_without_noise_it_is_the_solver(mdp, key, rule, options):
    unit = 1 if rule == "batch" else mdp.n_states * mdp.n_actions
    points, scores = clean(mdp, key)
    result = capo.solve(mdp, rule, iterations=SWEEPS * unit, record_every=unit, **options)
    value = dict(zip(result.history["iteration"], result.history["value"], strict=True))
    expected = [scaled(mdp, value[point * unit]) for point in points]
    np.testing.assert_allclose(scores, [expected, expected], atol=1e-9)


def test_gradients_without_noise_are_the_baselines():
    mdp = capo.mdps.random(6, 3, 0.9, seed=1)
    _, size = noise._unit(mdp, np.full((6, 3), -math.log(3)))
    points, scores = clean(mdp, "npg 1")
    result = capo.baselines.natural_policy_gradient(mdp, 0.1 / size, iterations=SWEEPS, record_every=1)
    np.testing.assert_allclose(scores[0], scaled(mdp, result.history["value"][points]), atol=1e-9)
    points, scores = clean(mdp, "pg 1")
    result = capo.baselines.policy_gradient(mdp, eta=6 / size, iterations=SWEEPS, record_every=1)
    np.testing.assert_allclose(scores[0], scaled(mdp, result.history["value"][points]), atol=1e-9)


def test_what_the_critics_do():
    rng = np.random.default_rng(0)
    advantage = np.tile([1.0, -2.0, 0.0], (2, 40_000, 1))
    level = np.array([0.0, 0.3])
    flipped = noise.Critic("flip", level, 1.0, rng).corrupt(advantage)
    assert (flipped[0] == advantage[0]).all()
    assert (np.abs(flipped) == np.abs(advantage)).all()
    assert (flipped[1, :, :2] != advantage[1, :, :2]).mean() == pytest.approx(0.3, abs=0.01)
    sized = noise.Critic("sign", level, 1.0, rng).corrupt(advantage)
    assert (np.sign(sized) == np.sign(advantage)).all()
    assert np.log(sized[1, :, 0]).std() == pytest.approx(0.3, rel=0.02)
    noisy = noise.Critic("gauss", level, 5.0, rng).corrupt(advantage)
    assert (noisy[1] - advantage[1]).std() == pytest.approx(1.5, rel=0.02)
    assert (noisy[1] - advantage[1]).mean() == pytest.approx(0, abs=0.02)


def test_capo_does_not_see_sizes_and_gradients_do():
    mdp = capo.mdps.random(6, 3, 0.9, seed=1)
    for key, same in (("batch", True), ("randomized", True), ("npg 1", False)):
        _, scores = noise.learn(mdp, noise.ALGORITHMS[key], "sign", (0.0, 2.0), 3, SWEEPS)
        if key == "randomized":  # runs draw their own pairs: only the end is the same
            assert scores[:, :, -1].min() > 0.99
        else:
            assert (np.abs(scores[0] - scores[1]).max() < 1e-12) == same


def test_single_updates_follow_the_values_exactly():
    mdp = capo.mdps.grid(4)
    rng = np.random.default_rng(0)
    log_pi = np.tile(np.full((mdp.n_states, 4), -math.log(4)), (5, 1, 1))
    step = capo.update.StepSize()
    level = np.full(5, 0.2)
    critic = noise.Critic("flip", level, 1.0, rng, tol=1e-10)
    found = noise._single_sweep(mdp, "cyclic", step, critic, log_pi)
    rng, expected = np.random.default_rng(0), log_pi.copy()
    for s in np.flatnonzero(~mdp.terminal):
        for a in range(4):
            flips = rng.random(5) < 0.2
            for k in range(5):
                pi = np.exp(expected[k])
                values = mdp.policy_values(pi)
                advantage = mdp.q_values(values)[s, a] - values[s]
                sign = np.zeros(4)
                sign[a] = 0 if abs(advantage) < 1e-10 else np.sign(advantage) * (-1 if flips[k] else 1)
                expected[k, s] = capo.update.coordinate_update(expected[k, s], sign, -expected[k, s])
    np.testing.assert_allclose(np.exp(found), np.exp(expected), atol=1e-8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("noise")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "MDPS", {name: noise.MDPS[name] for name in ("random", "chain")})
        noise.run(out, quick=True, progress=False, part="tabular")
    return out


def test_wrong_signs_hurt_the_log_step_more_than_a_fixed_one(folder):
    late = {
        (row["mdp"], row["noise"], row["algorithm"], row["level"]): row["late"]
        for row in read_csv(folder / "tabular.csv")
    }
    for key in ("batch", "cyclic", "randomized"):
        scores = [late["random", "flip", key, level] for level in noise.LEVELS["flip"]]
        assert scores[0] == pytest.approx(1, abs=1e-6)
        assert scores == sorted(scores, reverse=True)
        assert scores[2] < late["random", "flip", "batch 1", 0.1]
        assert late["random", "sign", key, 2.0] == pytest.approx(1, abs=1e-6)


def test_a_tabular_part_that_is_not_whole_is_computed_again(folder, tmp_path):
    assert noise.TABULAR.is_there(folder, quick=True)
    assert not noise.TABULAR.is_there(folder, quick=False)
    for name in noise.TABULAR.files:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    for damaged in ('{"experiment": "noi', '{"experiment": "noise"}', "[]"):
        (tmp_path / "summary.json").write_text(damaged)
        assert not noise.TABULAR.is_there(tmp_path, quick=True)
    (tmp_path / noise.TABULAR.files[1]).unlink()
    assert not noise.TABULAR.is_there(tmp_path, quick=True)


def test_report_and_figures_need_the_files_only(folder, tmp_path, monkeypatch):
    summary = json.loads((folder / "summary.json").read_text())
    assert {"versions", "commit", "hardware", "quick", "tabular"} <= set(summary)
    monkeypatch.setattr(noise, "learn", None)
    text = noise.report(folder)
    assert "QUICK" in text
    assert all(len(line) < 145 for line in text.splitlines())
    drawn = noise.draw(folder, tmp_path)
    assert [path.name for path in drawn] == ["tabular.png", "tabular_time.png"]
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 30_000 for path in drawn)
    assert all((folder / name).stat().st_size < 300_000 for name in noise.TABULAR.files)


def test_the_same_again(folder):
    mdp = noise.MDPS["random"][1]()
    points, scores = noise.learn(mdp, noise.ALGORITHMS["randomized"], "flip", noise.LEVELS["flip"], 5, 40)
    mine = [
        row["late"]
        for row in read_csv(folder / "tabular.csv")
        if (row["mdp"], row["noise"], row["algorithm"]) == ("random", "flip", "randomized")
    ]
    np.testing.assert_allclose(mine, scores[:, :, points >= points[-1] / 2].mean(axis=(1, 2)), rtol=1e-5)
