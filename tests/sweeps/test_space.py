"""What a tuning searches: by default, from a file, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

import capo
from capo.neural.algorithms import registry
from capo.neural.algorithms.ncapo import NCAPOConfig
from capo.neural.algorithms.settings import check_value, field_kinds
from capo.sweeps.space import default_space, read_space, space_from


@pytest.mark.parametrize("algorithm", list(registry.ROWS))
def test_every_algorithm_brings_a_space(algorithm: str) -> None:
    kind = registry.find(algorithm).settings
    space = default_space(kind)
    assert {"gamma", "learning_rate"} <= set(space)
    for name, one in space.items():
        assert one.traced  # so that the trials of the default space are one program
        for end in (one.low, one.high):
            assert check_value(kind, name, end) == end
            assert one.from_search(one.to_search(end)) == end
        for env in ("minatar-breakout", "CartPole-v1"):
            usual = getattr(kind.preset("default", env), name)
            assert one.low <= one.nearest(usual) <= one.high
            distribution = one.distribution(optuna)
            assert distribution.low <= one.to_search(one.nearest(usual)) <= distribution.high


def test_traced_settings_are_numbers() -> None:
    for row in registry.ROWS.values():
        for kind in field_kinds(row.settings).values():
            assert not kind.traced or kind.type is float
            assert (
                kind.search is None or kind.allowed.low <= kind.search.low < kind.search.high <= kind.allowed.high
            )


def test_a_file_lists_what_is_searched(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(
        '[gamma]\nlow = 0.9\nhigh = 0.99\nscale = "log-from-one"\n'
        "[width]\nchoices = [8, 16]\n[gradient_steps]\nlow = 1\nhigh = 8\n[layer_norm]\nchoices = [true, false]\n"
        '[kl]\nchoices = ["policy-to-target", "target-to-policy"]\n'
    )
    space = read_space(path, NCAPOConfig)
    assert {name: one.traced for name, one in space.items()} == {
        "gamma": True,
        "width": False,
        "gradient_steps": False,
        "layer_norm": False,
        "kl": False,
    }
    found = space["gamma"].distribution(optuna)
    assert (found.low, found.high, found.log) == (0.01, 0.1, True)
    assert space["gamma"].from_search(0.0123456789) == 0.987654
    assert space["gradient_steps"].distribution(optuna).high == 8
    assert space["gradient_steps"].nearest(30) == 8
    assert space["width"].nearest(100) == 16
    assert space["layer_norm"].nearest(True) is True
    assert {
        name: one.to_dict()
        for name, one in space_from({n: o.to_dict() for n, o in space.items()}, NCAPOConfig).items()
    } == {name: one.to_dict() for name, one in space.items()}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({}, "at least one table"),
        ({"gama": {"low": 0.1, "high": 0.2}}, "did you mean 'gamma'"),
        ({"horizon": {"low": 1, "high": 2}}, "horizon can't be searched"),
        ({"gamma": 0.9}, "gamma must be a table"),
        ({"gamma": {"low": 0.1}}, "needs low and high"),
        ({"gamma": {"low": 0.5, "high": 0.4}}, "low=0.5 must be below high=0.4"),
        ({"gamma": {"low": 0.5, "high": 2}}, "gamma=2.0 must be between 0 and 1"),
        ({"gamma": {"low": 0.5, "high": 0.6, "step": 1}}, r"unknown entry of \[gamma\] 'step'"),
        ({"gamma": {"low": 0.5, "high": 0.6, "scale": "lin"}}, "did you mean 'linear'"),
        ({"gamma": {"low": 0.5, "high": 1.0, "scale": "log-from-one"}}, "high must be below 1"),
        ({"entropy": {"low": 0.0, "high": 1.0, "scale": "log"}}, "low must be above 0"),
        ({"width": {"low": 8, "high": 16, "scale": "log-from-one"}}, "below 1|is an integer"),
        ({"layer_norm": {"low": 0, "high": 1}}, "needs a list of choices"),
        ({"width": {"choices": [8]}}, "at least two choices"),
        ({"width": {"choices": [8, 8]}}, "has a choice twice"),
        ({"width": {"choices": [8, 1.5]}}, "width=1.5 must be an integer"),
        ({"width": {"choices": [8, 16], "low": 8}}, "nothing else"),
    ],
)
def test_a_wrong_space_is_refused(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(capo.CapoError, match=message):
        space_from(tables, NCAPOConfig)


def test_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text("[gamma]\nlow = 1\n")
    with pytest.raises(capo.CapoError, match=r"space\.toml: .*needs low and high"):
        read_space(path, NCAPOConfig)
    with pytest.raises(capo.CapoError, match="no such file; give"):
        read_space(tmp_path / "none.toml", NCAPOConfig)
