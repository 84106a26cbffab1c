"""Policies as ONNX files: played by onnxruntime, they are the agent's to 1e-5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capo
from capo.neural.algorithms import registry

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def played(path: Path, **inputs: Any) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def check(agent: Any, path: Path, observations: Any) -> None:
    file = agent.export(path / "policy")
    assert file.name == "policy.onnx"
    found, wanted = played(file, observation=observations), agent.policy(observations)
    np.testing.assert_allclose(found["probabilities"], wanted.probabilities, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["value"], wanted.values, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found["action"], agent.predict(observations, deterministic=True)[0])
    mask = np.zeros((len(observations), agent.env.n_actions), bool)
    mask[np.arange(len(mask)), np.arange(len(mask)) % agent.env.n_actions] = True
    masked = played(file, observation=observations, action_mask=mask)
    np.testing.assert_array_equal(masked["probabilities"], mask)
    np.testing.assert_array_equal(masked["action"] - agent.learner.spec.first_action, mask.argmax(axis=1))
    one = played(file, observation=observations[:1], action_mask=mask[:1])
    np.testing.assert_array_equal(one["probabilities"], mask[:1])


@pytest.mark.parametrize("name", list(registry.ROWS))
def test_vectors(name: str, tmp_path: Path) -> None:
    agent = registry.find(name).agent("CartPole-v1", width=16, layer_norm=True)
    check(agent, tmp_path, np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ncapo", {"layer_norm": True, "critic": "categorical"}),
        ("ncapo", {"shared_trunk": False, "layer_norm": False}),
        ("rainbow", {}),
        ("rainbow", {"distributional": False, "dueling": False, "noisy": False}),
        ("ppo", {"network": "mlp"}),
    ],
)
def test_grids(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    agent = registry.find(name).agent("minatar-breakout", width=16, **settings)
    observations = np.random.default_rng(0).random((5, *agent.env.observation_shape)) < 0.3
    check(agent, tmp_path, observations)


def test_numbered_states_and_bytes(tmp_path: Path) -> None:
    check(capo.NCAPO("FrozenLake-v1", width=16), tmp_path, np.array([0, 3, 15]))
    from helpers_envs import Board

    check(capo.NCAPO(Board(high=4), width=16), tmp_path, np.array([[0, 4], [3, 1]], np.uint8))


def test_the_file_is_that_of_the_seed_in_use(tmp_path: Path) -> None:
    agent = capo.NCAPO("CartPole-v1", seeds=2, width=16, n_envs=2, rollout_length=4).learn(16)
    check(agent.use_seed(1), tmp_path, np.ones((2, 4), np.float32))


def test_what_cannot_be_exported_is_refused_and_no_file_is_left(tmp_path: Path) -> None:
    agent = capo.NCAPO("CartPole-v1", width=16)
    agent.env.observation_shape = (2, 2)  # as if something unknown happened to the observations
    with pytest.raises(capo.CapoError, match="encoded before the networks see them"):
        agent.export(tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())
    with pytest.raises(capo.CapoError, match="cannot write"):
        capo.NCAPO("CartPole-v1", width=16).export(tmp_path / "missing" / "policy.onnx")


def test_a_graph_that_differs_from_the_agent_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = capo.NCAPO("CartPole-v1", width=16)
    wanted = agent.policy

    def other(observations: Any, action_masks: Any = None) -> Any:
        del action_masks
        return wanted(np.asarray(observations) / 2 + 1)

    monkeypatch.setattr(agent, "policy", other)
    with pytest.raises(capo.CapoError, match="does not compute what the agent does"):
        agent.export(tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())
