"""A policy that stops exploring before it learned anything is said, once, with what to try."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import capo
from capo.errors import CapoWarning
from capo.neural.collapse import CollapseWatch
from capo.neural.trainer import Plan, Trainer
from capo.progress import Ticker

FRAMES = 20_000


def rows(entropy, returns, seed=3):
    """Log points, 1000 frames apart."""
    return [
        [{"seed": seed, "frames": 1000 * (at + 1), "entropy": e, "episode_return": r}]
        for at, (e, r) in enumerate(zip(entropy, returns, strict=True))
    ]


def heard(log_points, settings=None, frames=FRAMES, sizes=(3,)):
    watch = CollapseWatch(settings or capo.NCAPO("probe-action", width=8).config, sizes, frames)
    return [text for text in map(watch.look, log_points) if text]


EXPLORES, GONE = [1.0] * 4, [1e-4] * 12
NAN = float("nan")


def test_a_collapse_without_a_rise_is_said_once():
    texts = heard(rows(EXPLORES + GONE, [NAN] + [-500.0] * 15))
    assert len(texts) == 1
    assert texts[0].startswith("seed 3: the policy has become deterministic (entropy 0.0001 of at most 1.1)")
    assert "(-500 at first, -500 now)" in texts[0]
    assert "entropy=0.05" in texts[0]


@pytest.mark.parametrize(
    ("entropy", "returns"),
    [
        (EXPLORES + GONE, [20.0] * 4 + list(np.linspace(40, 500, 12))),  # it learned
        (EXPLORES + GONE, [0.5, 0.8, 0.93, 0.94] + [0.95] * 12),  # it learned at once
        (EXPLORES + GONE, [0.44, 0.95, 0.97, 0.97] + [0.94, 0.95] * 6),  # and then lost a little of it
        ([1.0] * 16, [-500.0] * 16),  # it explores
        ([1e-4] * 16, [-500.0] * 16),  # a resumed run: how it got there is not known
        (EXPLORES + GONE[:4], [-500.0] * 8),  # not for long
        (EXPLORES + [1e-4, 1e-4, 0.5] * 4, [-500.0] * 16),  # it comes back
        (EXPLORES + GONE, [NAN] * 16),  # no episode has ended
    ],
)
def test_nothing_is_said_otherwise(entropy, returns):
    assert heard(rows(entropy, returns)) == []


def test_not_in_the_first_tenth_of_a_run():
    assert heard(rows(EXPLORES + GONE, [-500.0] * 16), frames=1_000_000) == []


def test_a_fall_and_noise_are_no_rise():
    rng = np.random.default_rng(0)
    noisy = list(rng.normal(-200, 30, 16))
    assert len(heard(rows(EXPLORES + GONE, noisy))) == 1
    assert len(heard(rows(EXPLORES + GONE, [-200.0] * 4 + [-700.0] * 12))) == 1


def test_the_largest_entropy_is_that_of_all_factors_together():
    low = [0.1] * 12  # less than two hundredths of 8 log 2 = 5.55, but not of log 16
    (text,) = heard(rows([5.5] * 4 + low, [-500.0] * 16), sizes=(2,) * 8)
    assert "(entropy 0.1 of at most 5.5)" in text
    assert heard(rows([5.5] * 4 + [0.12] * 12, [-500.0] * 16), sizes=(2,) * 8) == []


class Switches:
    """Eight switches, none of which matters."""

    name = "switches"
    n_actions = 16
    factors = (2,) * 8
    observation_shape = (1,)
    observation_dtype = np.float32

    def reset(self, key):
        return key, jnp.zeros(1)

    def step(self, key, state, action):
        del key, action
        return state, jnp.zeros(1), jnp.float32(0), jnp.bool_(True), jnp.bool_(False)


def test_the_trainer_passes_the_factors_on():
    agent = capo.PPO(Switches(), width=8)
    trainer = Trainer(Plan(agent.config, 1, 1), agent.learner, agent._states, Ticker())
    assert trainer._collapse._most == pytest.approx(5.545, abs=1e-3)


@pytest.mark.parametrize("algorithm", ["NCAPO", "A2C", "PPO"])
def test_every_suggestion_is_a_setting_of_the_algorithm(algorithm):
    made = getattr(capo, algorithm)
    (text,) = heard(rows(EXPLORES + GONE, [0.0] * 16), made("probe-action", width=8).config)
    settings = dict(
        part.split("=") for part in text.replace(")", "").replace("(", "").replace(",", "").split() if "=" in part
    )
    assert settings
    made("probe-action", width=8, **settings)


def test_uniform_play_says_nothing_about_the_policy():
    assert heard(rows(EXPLORES + GONE, [0.0] * 16), capo.OffPAC("probe-action", width=8).config) == []


class Heard(Ticker):
    """Keeps what is said."""

    silent = False

    def __init__(self):
        self.texts = []

    def message(self, text):
        self.texts.append(text)


@pytest.mark.parametrize("shown", [Ticker(), Heard()])
def test_the_trainer_says_it_once(shown):
    agent = capo.PPO("probe-action", width=8)
    trainer = Trainer(Plan(agent.config, 1, 1), agent.learner, agent._states, shown)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for log_point in rows(EXPLORES + GONE, [0.0] * 16):
            trainer._warn_of_collapse(log_point)
    warned, said = [warning.category for warning in caught], getattr(shown, "texts", [])
    assert warned == ([CapoWarning] if shown.silent else [])
    assert len(said) == (0 if shown.silent else 1)


def test_the_returns_of_somebody_else_say_nothing_about_the_policy():
    watch = CollapseWatch(capo.NCAPO("probe-action", width=8).config, (3,), FRAMES, own=False)
    assert not any(map(watch.look, rows(EXPLORES + GONE, [-500.0] * 16)))
