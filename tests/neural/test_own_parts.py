"""Networks and schedules that users bring, widths and activations: trained, saved, and asked for again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers_shell import ENV, FRAMES, TINY, bits

import capo
from capo.neural.algorithms import registry
from capo.neural.algorithms.ncapo import NCAPOConfig
from capo.neural.algorithms.settings import override

SMALL: dict[str, Any] = TINY | {"horizon": 640}


class Body:
    """Two layers by hand; counts its parameters' first axis from the observation."""

    def __init__(self, width: int = 12) -> None:
        self.width = width

    def init(self, key: Any, observation: Any) -> Any:
        shape = (observation.size, self.width)
        return {"kernel": jax.random.normal(key, shape), "more": [jnp.zeros(self.width)]}

    def apply(self, params: Any, observation: Any) -> Any:
        return jnp.tanh(observation.reshape(-1) @ params["kernel"] + params["more"][0])


@pytest.mark.parametrize("name", ["ncapo", "ppo", "rainbow"])  # each of which is built in a way of its own
def test_every_algorithm_trains_a_network_of_the_users(name: str) -> None:
    settings = {"n_envs": 4, "rollout_length": 16, "batch_size": 8}
    settings |= {"learning_starts": 16} if name == "rainbow" else {}
    agent = registry.find(name).agent("probe-action", network=Body(), **settings)
    before = agent.params
    agent.learn(128)
    assert "network: own" in agent.learner.describe()
    moved = [
        (jax.tree_util.keystr(path), (old != new).any())
        for (path, old), new in zip(
            jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(agent.params), strict=True
        )
        if "own" in jax.tree_util.keystr(path)
    ]
    assert moved
    assert any(changed for path, changed in moved if "kernel" in path)
    assert agent.policy(np.ones((3, 1), np.float32)).probabilities.shape == (3, 2)


def test_the_network_sees_single_observations_as_numbers_from_0_to_1() -> None:
    seen = []

    class Looking(Body):
        def apply(self, params: Any, observation: Any) -> Any:
            seen.append((observation.shape, observation.dtype))
            return super().apply(params, observation)

    agent = capo.NCAPO("minatar-breakout", network=Looking(), **SMALL)
    agent.policy(np.zeros((2, *agent.played_env.observation_shape), bool))
    assert set(seen) == {(agent.played_env.observation_shape, jnp.dtype(jnp.float32))}


@pytest.mark.parametrize("env", ["probe-both", "CartPole-v1"])  # jitted, and on the host
def test_the_network_sees_stacked_observations(env: str, tmp_path: Path) -> None:
    agent = capo.NCAPO(env, network=Body(), frame_stack=3, **SMALL).learn(FRAMES)
    leaves = jax.tree_util.tree_leaves_with_path(agent.params)
    kernel = next(leaf for path, leaf in leaves if "['own']['kernel']" in jax.tree_util.keystr(path))
    assert kernel.shape[-2] == agent.played_env.observation_shape[-1] == 3 * agent.env.observation_shape[-1]
    again = capo.load(agent.save(tmp_path / "agent"), network=Body())
    observations = np.ones((2, *agent.played_env.observation_shape), np.float32)
    np.testing.assert_array_equal(again.policy(observations).values, agent.policy(observations).values)


def test_a_network_is_asked_for_again_and_the_run_continues_exactly(tmp_path: Path) -> None:
    network = Body()
    whole = capo.NCAPO(ENV, network=network, **SMALL).learn(2 * FRAMES)
    half = capo.NCAPO(ENV, network=network, **SMALL).learn(FRAMES)
    path = half.save(tmp_path / "half")
    with pytest.raises(capo.CapoError, match=r"trained with network .* capo.load\(path, network=\.\.\.\)"):
        capo.load(path)
    with pytest.raises(capo.CapoError, match="names or shapes of its parameters differ"):
        capo.load(path, network=Body(13))
    again = capo.load(path, network=Body()).learn(FRAMES)
    assert bits(again) == bits(whole)
    with pytest.raises(capo.CapoError, match="unknown argument of load 'width'"):
        capo.load(path, width=3)
    with pytest.raises(capo.CapoError, match="keeps its settings"):
        capo.load(path, network="mlp")
    plain = capo.NCAPO(ENV, **SMALL).save(tmp_path / "plain")
    with pytest.raises(capo.CapoError, match="trained without network"):
        capo.load(plain, network=Body())


def test_a_run_with_a_network_is_resumed_with_it(tmp_path: Path) -> None:
    capo.NCAPO(ENV, network=Body(), out=tmp_path / "run", log_every=FRAMES, **SMALL).learn(
        64, callback=lambda *_: False
    )
    with pytest.raises(capo.CapoError, match="given as Python objects"):
        capo.NCAPO.resume(tmp_path / "run")
    resumed = capo.NCAPO.resume(tmp_path / "run", network=Body())
    assert resumed.learn(resumed.frames_left).frames == 64


class Flat(Body):
    """Gives more than one row of features."""

    def apply(self, params: Any, observation: Any) -> Any:
        del params, observation
        return jnp.zeros((2, 3))


class Integers(Body):
    """Has parameters that can't be trained."""

    def init(self, key: Any, observation: Any) -> Any:
        del key, observation
        return jnp.zeros(3, jnp.int32)


class Broken(Body):
    """Raises."""

    def init(self, key: Any, observation: Any) -> Any:
        raise ZeroDivisionError(key, observation)


@pytest.mark.parametrize(
    ("network", "what"),
    [
        (object(), r"network is an object of type object; it must be 'auto', .* or an object of your own"),
        (Body, "network is the class Body, not an instance of it; .* an object of your own"),
        (Flat(), r"apply returned \(2, 3\)"),
        (Integers(), "float32 arrays only"),
        (Broken(), "raised ZeroDivisionError"),
    ],
)
def test_objects_that_are_no_networks_are_refused(network: Any, what: str) -> None:
    with pytest.raises(capo.CapoError, match=what):
        capo.NCAPO(ENV, network=network)


def test_a_network_of_ones_own_cannot_be_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    with pytest.raises(capo.CapoError, match="a network of your own can't be exported"):
        capo.NCAPO(ENV, network=Body(), **SMALL).export(tmp_path / "x.onnx")


def test_a_module_of_flax_is_a_network_as_it_is(tmp_path: Path) -> None:
    nn = pytest.importorskip("flax.linen")
    network = nn.Sequential([nn.Dense(8), nn.relu, nn.Dense(8)])
    agent = capo.NCAPO(ENV, network=network, **SMALL).learn(FRAMES)
    path = agent.save(tmp_path / "flax")
    assert bits(capo.load(path, network=network)) == bits(agent)


def test_a_module_of_equinox_needs_three_lines(tmp_path: Path) -> None:
    eqx = pytest.importorskip("equinox")

    class Equinox:
        def init(self, key: Any, observation: Any) -> Any:
            params, self.rest = eqx.partition(eqx.nn.MLP(observation.size, 8, 8, 1, key=key), eqx.is_array)
            return params

        def apply(self, params: Any, observation: Any) -> Any:
            return eqx.combine(params, self.rest)(observation)

    agent = capo.NCAPO(ENV, network=Equinox(), **SMALL).learn(FRAMES)
    path = agent.save(tmp_path / "eqx")
    assert bits(capo.load(path, network=Equinox())) == bits(agent)


# Widths and activations -----------------------------------------------------------------------------------------


def test_widths_are_a_list_in_python_and_a_text_in_files() -> None:
    agent = capo.NCAPO(ENV, widths=[24, 12], activation="silu", **SMALL)
    assert agent.config.widths == "24,12"
    kernels = [layer["kernel"].shape for layer in agent.params["body"]["dense"]]
    assert [shape[1] for shape in kernels] == [24, 12]
    assert agent.params["actor"]["head"]["kernel"].shape[0] == 12
    agent.learn(FRAMES)
    assert override(NCAPOConfig(), {"widths": "24, 12"}).widths == "24,12"
    assert NCAPOConfig.from_dict(agent.config.to_dict()) == agent.config
    for wrong in ([0], [8, -1], "a,b", [1.5], "8,,8"):
        with pytest.raises(capo.CapoError, match=r"must be positive integers, such as 256,128"):
            capo.NCAPO(ENV, widths=wrong)


# Schedules ------------------------------------------------------------------------------------------------------


def stepped(progress: float) -> float:
    """Not a function of jax: a branch, and math."""
    return 1e-3 if progress < 0.5 else 1e-3 * math.cos(progress)


def test_schedules_are_functions_of_the_progress() -> None:
    rows: list[dict[str, float]] = []
    agent = capo.NCAPO(ENV, learning_rate=stepped, epsilon=lambda p: 1 - p, log_every=FRAMES, **TINY)
    agent.learn(10 * FRAMES, callback=lambda _, new: rows.extend(new))
    agent.learn(FRAMES, callback=lambda _, new: rows.extend(new))  # beyond the horizon the last value stays
    progress = [min(i / 10, 1.0) for i in range(11)]
    np.testing.assert_allclose([row["learning_rate"] for row in rows], [stepped(p) for p in progress], rtol=1e-3)
    np.testing.assert_allclose([row["epsilon"] for row in rows], [1 - p for p in progress], atol=1e-4)


def test_an_entropy_that_is_a_function_equals_the_same_schedule_by_name() -> None:
    settings = TINY | {"horizon": 10 * FRAMES}
    named = capo.NCAPO(ENV, entropy=0.1, entropy_schedule="linear", **settings).learn(4 * FRAMES)
    given = capo.NCAPO(ENV, entropy=lambda p: 0.1 * (1 - p), **settings).learn(4 * FRAMES)
    constant = capo.NCAPO(ENV, entropy=0.1, **settings).learn(4 * FRAMES)
    for a, b in zip(jax.tree.leaves(named.params), jax.tree.leaves(given.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert bits(constant) != bits(given)


def test_a_schedule_is_asked_for_again_and_must_be_the_same(tmp_path: Path) -> None:
    whole = capo.NCAPO(ENV, learning_rate=stepped, **SMALL).learn(2 * FRAMES)
    path = capo.NCAPO(ENV, learning_rate=stepped, **SMALL).learn(FRAMES).save(tmp_path / "half")
    with pytest.raises(capo.CapoError, match=r"capo.load\(path, learning_rate=\.\.\.\)"):
        capo.load(path)
    with pytest.raises(capo.CapoError, match="not the one that the agent was trained with"):
        capo.load(path, learning_rate=lambda p: 1e-3 * (1 - p))
    assert bits(capo.load(path, learning_rate=stepped).learn(FRAMES)) == bits(whole)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"learning_rate": lambda p: -p}, "learning_rate: the function returned -0.0001 at progress 0.0001"),
        ({"learning_rate": lambda _: 0.0}, "learning_rate: the function returned 0"),
        ({"epsilon": lambda _: 2.0}, "epsilon: the function returned 2 at progress 0"),
        ({"entropy": lambda _: math.nan}, "entropy: the function returned nan"),
        ({"epsilon": lambda: 1.0}, "raised TypeError"),
        ({"gamma": lambda _: 0.9}, "gamma can't be a function; .* learning_rate, entropy, epsilon"),
    ],
)
def test_functions_that_are_no_schedules_are_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(capo.CapoError, match=what):
        capo.NCAPO(ENV, **settings)
