"""Settings: presets, overrides, and clear errors for both."""

from __future__ import annotations

import dataclasses

import pytest

from capo.errors import CapoError
from capo.neural.algorithms.ncapo import NCAPOConfig
from capo.neural.algorithms.offpac import OffPACConfig
from capo.neural.algorithms.settings import RetraceSettings, override


@pytest.mark.parametrize("name", NCAPOConfig.PRESETS)
@pytest.mark.parametrize("env", ["minatar-breakout", "minatar-asterix", "CartPole-v1"])
def test_presets_go_to_a_dict_and_back(name, env):
    config = NCAPOConfig.preset(name, env)
    assert NCAPOConfig.from_dict(config.to_dict()) == config


def test_the_paper_preset_is_the_papers_table():
    paper = NCAPOConfig.preset("paper", "minatar-breakout")
    table = {
        "batch_size": 32,
        "learning_rate": 5e-4,
        "epsilon_fraction": 0.1,
        "epsilon_start": 0.3,
        "epsilon_final": 0.05,
        "critic_coefficient": 1.0,
        "max_grad_norm": 0.8,
        "gradient_steps": 30,
        "tau_q": 0.05,
        "tau_policy": 1.0,
        "gamma": 0.99,
        "replay_rollouts": 6400,
        "clip": 50.0,
        "entropy": 0.0,
    }
    assert {name: getattr(paper, name) for name in table} == table
    assert paper.rollout_length == 64  # train frequency (64, steps)


def test_asterix_has_its_own_values_in_the_authors_presets():
    for name in ("paper", "official"):
        own = NCAPOConfig.preset(name, "minatar-asterix")
        assert (own.critic_coefficient, own.epsilon_start) == (0.25, 0.8)
        others = dataclasses.replace(own, critic_coefficient=1.0, epsilon_start=0.3)
        assert others == NCAPOConfig.preset(name, "minatar-seaquest")


@pytest.mark.parametrize("name", ["default", "cpu"])
def test_offpac_on_atari_has_ncapos_values_but_for_its_own(name):
    config, like = OffPACConfig.preset(name, "ALE/Pong-v5"), NCAPOConfig.preset("atari")
    shared = {field.name for field in dataclasses.fields(RetraceSettings)}
    differing = {field for field in shared if getattr(config, field) != getattr(like, field)}
    assert differing == {"tau_q", "epsilon_start", "epsilon_final"}
    assert (config.tau_q, config.epsilon_start, config.epsilon_final) == (0.05, 0.0, 0.0)
    assert (config.width, config.layer_norm, config.learning_rate, config.retrace_lambda) == (512, True, 5e-4, 0.8)
    assert (config.behaviour, config.weight) == ("uniform", "advantage")


def test_offpac_on_small_vectors_has_a_small_network():
    config = OffPACConfig.preset("default", "CartPole-v1")
    assert (config.width, config.layer_norm, config.learning_rate, config.retrace_lambda) == (64, False, 1e-3, 1.0)
    assert (config.tau_q, config.frame_stack) == (0.05, 1)


def test_override_parses_strings():
    config = override(
        NCAPOConfig(),
        {"gamma": "0.9", "horizon": "1e6", "n_envs": "1_6", "layer_norm": "yes", "kl": "target-to-policy"},
    )
    assert (config.gamma, config.horizon, config.n_envs, config.layer_norm) == (0.9, 1_000_000, 16, True)
    assert config.kl == "target-to-policy"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gama": "0.9"}, "did you mean 'gamma'"),
        ({"gamma": "1.5"}, "between 0 and 1"),
        ({"gamma": "high"}, "a number"),
        ({"gamma": "nan"}, "between 0 and 1"),
        ({"n_envs": "2.5"}, "an integer"),
        ({"n_envs": 0}, "at least 1"),
        ({"n_envs": True}, "an integer"),
        ({"layer_norm": "maybe"}, "true or false"),
        ({"layer_norm": 1}, "true or false"),
        ({"optimiser": "adamw"}, "did you mean 'adam'"),
        ({"learning_rate": -1.0}, "positive"),
    ],
)
def test_mistakes_are_named(values, message):
    with pytest.raises(CapoError, match=message):
        override(NCAPOConfig(), values)


def test_unknown_preset():
    with pytest.raises(CapoError, match="did you mean 'paper'"):
        NCAPOConfig.preset("papr")
