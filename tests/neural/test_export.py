"""Policies as ONNX files: played by onnxruntime, they are the agent's to 1e-5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from helpers_envs import Counting, Everything
from helpers_masks import Doors

import capo
from capo.envs.layout import Layout, Part
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
    observations = np.random.default_rng(0).random((5, *agent.played_env.observation_shape)) < 0.3
    check(agent, tmp_path, observations)


def test_numbered_states_and_bytes(tmp_path: Path) -> None:
    check(capo.NCAPO("FrozenLake-v1", width=16), tmp_path, np.array([0, 3, 15]))
    from helpers_envs import Board

    check(capo.NCAPO(Board(high=4), width=16), tmp_path, np.array([[0, 4], [3, 1]], np.uint8))


def test_the_file_is_that_of_the_seed_in_use(tmp_path: Path) -> None:
    agent = capo.NCAPO("CartPole-v1", seeds=2, width=16, n_envs=2, rollout_length=4).learn(16)
    check(agent.use_seed(1), tmp_path, np.ones((2, 4), np.float32))


class Stacked(gymnasium.Env[Any, Any]):
    """Observes whatever it is told to; episodes of three steps."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 3, False, {}


THREE = spaces.Discrete(3)
PICTURE = spaces.Box(0, 255, (3, 40, 40), np.uint8)


@pytest.mark.parametrize("name", ["ncapo", "rainbow"])
def test_observations_of_several_parts_have_an_input_each(name: str, tmp_path: Path) -> None:
    """Pictures with channels first, bits, numbers of several formats, categories one-hot and embedded, nested."""
    agent = registry.find(name).agent(Everything(), width=16, normalise_observations=True).learn(16)
    file = agent.export(tmp_path / "policy")
    space = agent.env.observation_space
    drawn = [space.sample() for _ in range(4)]
    batch = gymnasium.vector.utils.concatenate(space, drawn, gymnasium.vector.utils.create_empty_array(space, 4))
    inputs = {key: value for key, value in batch.items() if key != "pair"}
    inputs |= {"pair.0": batch["pair"][0], "pair.1.a": batch["pair"][1]["a"]}
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert {one.name for one in session.get_inputs()} == set(inputs)
    found, wanted = played(file, **inputs), agent.policy(batch)
    np.testing.assert_allclose(found["probabilities"], wanted.probabilities, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["value"], wanted.values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("network", "layer_norm"), [("conv", False), ("nature", False), ("nature", True), ("impala", True)]
)
def test_networks_for_pictures(network: str, layer_norm: bool, tmp_path: Path) -> None:
    agent = capo.PPO(
        Stacked(PICTURE, THREE),
        width=16,
        conv_features=2,
        network=network,
        layer_norm=layer_norm,
        activation="tanh",
    )
    check(agent, tmp_path, np.stack([PICTURE.sample() for _ in range(3)]))


def test_an_odd_picture_through_impala(tmp_path: Path) -> None:
    space = spaces.Box(0, 255, (37, 43, 1), np.uint8)
    agent = capo.NCAPO(Stacked(space, THREE), width=16, network="impala")
    check(agent, tmp_path, np.stack([space.sample() for _ in range(3)]))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1.0, 1.0, (2,), np.float64),
        spaces.Box(0, 255, (3, 40, 40), np.uint8),
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([3, 2000], start=[1, -5]),
    ],
    ids=["vector", "picture", "numbered", "several"],
)
def test_stacks_of_frames(space: Any, tmp_path: Path) -> None:
    """The input is what ``predict`` takes: the last frames side by side, as the environment gives them."""
    stack = 1 if isinstance(space, spaces.MultiDiscrete) else 3  # embedded entries can't be stacked
    agent = capo.NCAPO(Stacked(space, THREE), width=16, frame_stack=stack)
    drawn = [np.concatenate([np.atleast_1d(space.sample()) for _ in range(stack)], axis=-1) for _ in range(4)]
    check(agent, tmp_path, np.stack(drawn))


@pytest.mark.parametrize(
    ("name", "action", "settings"),
    [
        ("ncapo", spaces.MultiDiscrete([2, 3], start=[-1, 5]), {}),
        ("ppo", spaces.MultiDiscrete([[2, 3], [4, 2]]), {}),
        ("pqn", spaces.MultiBinary(3), {}),
        ("rainbow", spaces.MultiDiscrete([[2, 3], [4, 2]]), {"distributional": False}),
    ],
)
def test_actions_of_several_factors(name: str, action: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    agent = registry.find(name).agent(Stacked(spaces.Box(-1.0, 1.0, (2,)), action), width=16, **settings)
    file = agent.export(tmp_path / "policy")
    observations = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    found, wanted = played(file, observation=observations), agent.policy(observations)
    np.testing.assert_allclose(found["probabilities"], wanted.probabilities, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["value"], wanted.values, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found["action"], agent.predict(observations, deterministic=True)[0])
    assert all(action.contains(one.astype(action.dtype)) for one in found["action"])


@pytest.mark.parametrize("name", ["ncapo", "ppo", "pqn", "rainbow"])
def test_masks_of_the_environment(name: str, tmp_path: Path) -> None:
    """Rainbow's dueling network takes the mean over the actions allowed, so its values depend on the mask."""
    agent = registry.find(name).agent(Doors(), width=16)
    observations = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    mask = np.random.default_rng(1).random((6, 5)) < 0.5
    mask[:, 2] = True
    file = agent.export(tmp_path / "policy")
    found = played(file, observation=observations, action_mask=mask)
    wanted = agent.policy(observations, action_masks=mask)
    np.testing.assert_allclose(found["probabilities"], wanted.probabilities, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["value"], wanted.values, rtol=1e-5, atol=1e-5)


class Packed(Counting):
    """A jitted environment that observes two parts, one of them a category."""

    layout = Layout((Part("at", (1,), "int32", classes=50), Part("grid", (3, 3, 2), "bool")))
    observation_shape = (layout.n_bytes,)
    observation_dtype = np.uint8

    def reset(self, key: Any) -> tuple[Any, Any]:
        state, _ = super().reset(key)
        return state, self._seen(state)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, ...]:
        state, _, *rest = super().step(key, state, action)
        return state, self._seen(state), *rest

    def _seen(self, state: Any) -> Any:
        grid = jnp.arange(18).reshape(3, 3, 2) < state
        return self.layout.pack({"at": state.reshape(1), "grid": grid})


def test_a_jitted_environment_of_several_parts(tmp_path: Path) -> None:
    agent = capo.NCAPO(Packed(), width=16)
    file = agent.export(tmp_path / "policy")
    at, grid = np.array([[3], [49]], np.int32), np.random.default_rng(0).random((2, 3, 3, 2)) < 0.5
    found, wanted = played(file, at=at, grid=grid), agent.policy(Packed.layout.pack({"at": at, "grid": grid}))
    np.testing.assert_allclose(found["probabilities"], wanted.probabilities, rtol=1e-5, atol=1e-5)


class Named(gymnasium.Env[Any, Any]):
    """Parts of the observation have the names of the file's outputs, and of its nodes."""

    observation_space = spaces.Dict({name: spaces.Box(-1, 1, (2,)) for name in ("action", "add_3", "value")})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 1.0, True, False, {}


def test_parts_may_have_any_name(tmp_path: Path) -> None:
    agent = capo.NCAPO(Named(), width=16)
    batch = {name: np.random.default_rng(0).random((3, 2), np.float32) for name in Named.observation_space}
    inputs = {"action_observation": batch["action"], "add_3": batch["add_3"], "value_observation": batch["value"]}
    found, wanted = played(agent.export(tmp_path / "policy"), **inputs), agent.policy(batch)
    np.testing.assert_allclose(found["probabilities"], wanted.probabilities, rtol=1e-5, atol=1e-5)


def test_a_policy_of_half_precision_is_exported_in_float32(tmp_path: Path) -> None:
    """What a GPU computes is less exact than the file, which is no reason to refuse."""
    agent = capo.NCAPO("minatar-breakout", width=16, precision="bfloat16")
    single = capo.NCAPO("minatar-breakout", width=16, precision="float32")
    observations = np.random.default_rng(0).random((5, *agent.played_env.observation_shape)) < 0.3
    found = played(agent.export(tmp_path / "policy"), observation=observations)
    np.testing.assert_allclose(found["value"], single.policy(observations).values, rtol=1e-5, atol=1e-5)
    assert abs(found["value"] - agent.policy(observations).values).max() > 1e-4


def test_what_cannot_be_written_is_said_and_no_file_is_left(tmp_path: Path) -> None:
    with pytest.raises(capo.CapoError, match="cannot write"):
        capo.NCAPO("CartPole-v1", width=16).export(tmp_path / "missing" / "policy.onnx")
    assert not list(tmp_path.iterdir())


def test_a_graph_that_differs_from_the_agent_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = capo.NCAPO("CartPole-v1", width=16)
    wanted = agent.learner.policy

    def other(params: Any, observations: Any, action_masks: Any = None, exact: bool = False) -> Any:
        return wanted(params, np.asarray(observations) / 2 + 1, action_masks, exact)

    monkeypatch.setattr(agent.learner, "policy", other)
    with pytest.raises(capo.CapoError, match="does not reproduce the agent"):
        agent.export(tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())
