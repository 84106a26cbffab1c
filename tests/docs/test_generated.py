"""The generated reference pages name every option and every setting."""

from __future__ import annotations

import argparse
import dataclasses

import generated
import pytest

import capo
from capo.cli import build_parser


def test_every_option_of_every_command_is_in_the_reference() -> None:
    text = generated.cli()
    (commands,) = (one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    sections = dict(zip(commands.choices, text.split("## capo ")[1:], strict=True))
    for name, parser in commands.choices.items():
        assert sections[name].startswith(name)
        for action in parser._actions:
            for option in action.option_strings:
                assert option in ("-h", "--help") or f"| `{option}" in sections[name]


@pytest.mark.parametrize("agent", [capo.NCAPO, capo.OffPAC, capo.A2C, capo.PPO, capo.Rainbow, capo.PQN])
def test_every_setting_of_every_algorithm_is_in_the_reference(agent: type[capo.NCAPO]) -> None:
    sections = generated.settings().split("\n## ")
    (section,) = [text for text in sections if f"`--algo {agent.algorithm}`" in text]
    config = agent("probe-action").config
    for field in dataclasses.fields(config):
        row = next(line for line in section.splitlines() if line.startswith(f"| `{field.name}` |"))
        assert len(row.rstrip("|").split("|")[-1].strip()) > 5  # a sentence
