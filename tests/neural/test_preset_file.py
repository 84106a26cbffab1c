"""Presets in files: written, read, refused, and forgotten once they are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import capo
from capo.cli import main
from capo.neural.algorithms.ppo import PPOConfig
from capo.neural.preset_file import MAX_BYTES, read_preset, write_preset

GOOD = 'algorithm = "ppo"\npreset = "default"\n'


def test_what_is_written_is_read(tmp_path: Path) -> None:
    settings = {"gamma": 0.98, "learning_rate": 3e-05, "layer_norm": True, "width": 32, "optimiser": "rmsprop"}
    path = write_preset(
        tmp_path / "mine.toml",
        algorithm="ppo",
        preset="paper",
        environment='odd "name"\n= 1',
        settings=settings,
        comments=["two\nlines"],
    )
    found = read_preset(path, "ppo", PPOConfig)
    assert (found.name, found.settings) == ("paper", settings)


def test_an_agent_takes_it_and_remembers_the_values(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + "[settings]\ngamma = 0.5\nwidth = 8\n")
    for given in (path, str(path)):
        agent = capo.PPO("probe-action", preset=given, width=16)
        assert (agent.preset, agent.config.gamma, agent.config.width) == ("default", 0.5, 16)
    saved = capo.PPO("probe-action", preset=path, n_envs=2, rollout_length=8, batch_size=16).save(
        tmp_path / "agent"
    )
    path.unlink()
    assert capo.load(saved).config.gamma == 0.5


def test_train_takes_it(tmp_path: Path) -> None:
    path, out = tmp_path / "mine.toml", tmp_path / "run"
    path.write_text(GOOD + "[settings]\ngamma = 0.5\nn_envs = 2\nrollout_length = 8\nbatch_size = 8\nwidth = 8\n")
    command = [
        "train",
        "probe-action",
        "--algo",
        "ppo",
        "--frames",
        "16",
        "--eval-episodes",
        "0",
        "--out",
        str(out),
    ]
    assert main([*command, "--preset", str(path)]) == 0
    config = json.loads((out / "config.json").read_text())
    assert config["preset"] == "default"
    assert config["config"]["gamma"] == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'needs a line such as algorithm = "..."'),
        ('algorithm = "ncapo"\npreset = "default"\n[settings]\n', "is a preset for ncapo, not for ppo"),
        ('algorithm = "ppo"\npreset = "papr"\n[settings]\n', "did you mean 'paper'"),
        ('algorithm = "ppo"\npreset = "/etc/passwd"\n[settings]\n', "unknown preset"),
        (GOOD, r"needs a table \[settings\]"),
        (GOOD + 'settings = "x"\n', r"needs a table \[settings\]"),
        (GOOD + "run = 'rm'\n[settings]\n", "unknown entry 'run'"),
        (GOOD + "environment = 3\n[settings]\n", "environment = "),
        (GOOD + "[settings]\ngama = 0.9\n", "did you mean 'gamma'"),
        (GOOD + "[settings]\ngamma = 2\n", "gamma=2.0 must be between 0 and 1"),
        (GOOD + "[settings]\ngamma = nan\n", "gamma=nan must be between 0 and 1"),
        (GOOD + "[settings]\ngamma = '0.9'\n", "gamma='0.9' must be a number, not text"),
        (GOOD + "[settings]\ngamma = [0.9]\n", "gamma must be a single value, not list"),
        (GOOD + "[settings]\nlayer_norm = 1\n", "layer_norm=1 must be true or false"),
        (GOOD + "[settings]\nlayer_norm = 'yes'\n", "layer_norm='yes' must be a boolean"),
        (GOOD + "[settings]\nwidth = 1.5\n", "width=1.5 must be an integer"),
        (GOOD + "[settings]\nbatch_size = 100000\n", "batch_size=100000 must divide"),
        (GOOD + "[settings]\n[settings.gamma]\n", "gamma must be a single value, not dict"),
        (GOOD + "[settings\n", "is not a valid TOML file"),
        ("x = 1\n" * MAX_BYTES, "is larger than 100 kB"),
    ],
)
def test_what_does_not_belong_there_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(text)
    with pytest.raises(capo.CapoError, match=message) as caught:
        capo.PPO("probe-action", preset=path)
    assert str(path) in str(caught.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(capo.CapoError, match="is not a valid TOML file"):
        capo.PPO("probe-action", preset=tmp_path / "binary.toml")
    with pytest.raises(capo.CapoError, match="no such file; give"):
        capo.PPO("probe-action", preset="missing.toml")
    with pytest.raises(capo.CapoError, match="no such file; give"):
        capo.PPO("probe-action", preset=tmp_path)


def test_a_stored_run_cannot_name_a_preset_file(tmp_path: Path) -> None:
    """What is read must not name another file to read."""
    out = tmp_path / "run"
    small = {"n_envs": 2, "rollout_length": 8, "batch_size": 8, "width": 8}
    capo.PPO("probe-action", out=out, **small).learn(16)
    (tmp_path / "mine.toml").write_text(GOOD + "[settings]\n")
    config = json.loads((out / "config.json").read_text())
    for checkpoint in (out / "checkpoints").iterdir():
        checkpoint.unlink()
    (out / "metrics.csv").unlink(missing_ok=True)
    (out / "config.json").write_text(json.dumps(config | {"preset": str(tmp_path / "mine.toml")}))
    from capo.neural.algorithms.ppo import PPOAlgorithm
    from capo.neural.setup import Setup

    with pytest.raises(capo.CapoError, match="unknown preset"):
        Setup.from_dict(PPOAlgorithm, config | {"preset": str(tmp_path / "mine.toml")}, None, None)
