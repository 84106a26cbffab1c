"""Wrong arguments and odd environments: one sentence each, no traceback, and nothing done before it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from helpers_envs import Blind, Board, Coin, Counting, Unpaid
from helpers_shell import ENV, FRAMES, SET, TINY_640

import capo
from capo import envs
from capo.cli import main
from capo.commands import train
from capo.neural.algorithms.registry import ROWS, learner_for, load
from capo.neural.learners import host, jitted, protocol
from capo.neural.parts import layers


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capo.NCAPO(ENV, **TINY_640).save(tmp_path_factory.mktemp("saved") / "agent")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", ENV, "--set", "seed=3"], "give it as --seed"),
        (["train", ENV, "--set", "preset=paper"], "give it as --preset"),
        (["train", ENV, "--set", "keep=3"], "give it as --keep"),
        (["train", ENV, "--set", "checkpoint_every=9"], "give it as --checkpoint-every"),
        (["train", ENV, "--eval-every", "9", "--eval-episodes", "0"], "--eval-every needs episodes"),
        (["train", ENV, "--set", "env=x"], "give it as ENV"),
        (["train", ENV, "--set", "self=1"], "unknown setting 'self'"),
        (["train", ENV, "--checkpoint-every", "_"], "60s, 5m or 1h"),
        (["train", ENV, "--set", "width=1e9"], "set a smaller width than 1000000000"),
        (["watch", "AGENT", "--out", "AGENT/play.gif"], "is a file, so nothing can be written"),
        (["watch", "AGENT", "--seed", "-1"], "seed=-1 must be an integer from 0"),
        (["evaluate", "AGENT", "--seed", "-1"], "seed=-1 must be an integer from 0"),
        (["evaluate", "AGENT", "--seed", "99999999999999999999999"], "must be an integer from 0"),
    ],
)
def test_wrong_options(
    arguments: list[str],
    message: str,
    untrained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([part.replace("AGENT", str(untrained)) for part in arguments]) == 2
    *before, shown = capsys.readouterr().err.splitlines()
    assert all(line.startswith("capo: training ncapo") for line in before)
    assert shown.startswith("capo: error: ")
    assert message in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("frames", ["inf", "nan", "1e400", "0", "x"])
def test_frames_that_are_no_number(frames: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", ENV, "--frames", frames])
    assert caught.value.code == 2
    assert "must be a positive integer" in capsys.readouterr().err


def test_a_folder_that_can_not_be_written_is_known_before_playing(
    untrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capo.gif.os.access", lambda *_: False)
    monkeypatch.setattr("capo.neural.film.play", lambda *_, **__: pytest.fail("it played"))
    assert main(["watch", str(untrained), "--out", str(tmp_path / "new" / "play.gif")]) == 2
    assert "read-only" in capsys.readouterr().err


def test_the_default_number_of_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(train, "finish", lambda _, frames, **__: asked.append(frames) or 0)
    for index, env in enumerate(("minatar-breakout", "CartPole-v1")):
        assert main(["train", env, "--out", str(tmp_path / str(index)), *SET]) == 0
    assert main(["train", "CartPole-v1", "--out", str(tmp_path / "2"), "--frames", "7"]) == 0
    assert asked == [1_000_000, 200_000, 7]


@pytest.mark.parametrize("frames", [float("inf"), float("nan"), "8", None])
def test_learn_wants_a_number(frames: Any) -> None:
    with pytest.raises(capo.CapoError, match="positive integer"):
        capo.NCAPO(ENV, **TINY_640).learn(frames)


@pytest.mark.parametrize("horizon", ["x", 2.5, 0, float("inf"), True])
def test_a_horizon_is_a_number(horizon: Any) -> None:
    agent = capo.NCAPO(ENV, **TINY_640)
    with pytest.raises(capo.CapoError, match=r"horizon=.* must be a positive integer"):
        agent.learn(8, horizon=horizon)
    assert agent.config.horizon == 640


@pytest.mark.parametrize("observation", ["abc", ["a", "b"], [[1.0], [1.0, 2.0]], None, [[None]]])
def test_observations_that_are_no_arrays(observation: Any) -> None:
    with pytest.raises(capo.CapoError, match="an observation must be an array of numbers"):
        capo.NCAPO(ENV, **TINY_640).predict(observation)


def test_an_empty_batch_has_no_actions() -> None:
    actions, _ = capo.NCAPO(ENV, **TINY_640).predict(np.zeros((0, 1)))
    assert actions.shape == (0,)
    assert actions.dtype == np.int64


def test_discrete_observations_are_checked() -> None:
    agent = capo.NCAPO("FrozenLake-v1", **TINY_640)
    assert agent.predict(15)[0].shape == ()
    assert agent.predict([0, 3.0])[0].shape == (2,)
    for wrong in (16, -1, 2.5, [0, 99], float("nan")):
        with pytest.raises(capo.CapoError, match=r"of 'FrozenLake-v1' must be an integer from 0 to 15"):
            agent.predict(wrong)


def test_rewards_that_are_nan_are_named(tmp_path: Path) -> None:
    named = (
        r"stopped at iteration 2, seed 0: the environment 'unpaid' returned a reward that is not a finite number"
    )
    with pytest.raises(capo.CapoError, match=named + r".*No checkpoint was kept.*\(out=\): correct the env"):
        capo.NCAPO(Unpaid(), **TINY_640).learn(10 * FRAMES)
    with pytest.raises(capo.CapoError, match=named + r".*last good checkpoint is .*same result, so correct"):
        capo.NCAPO(Unpaid(), out=tmp_path / "run", **TINY_640).learn(10 * FRAMES)


def test_observations_that_are_nan_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        capo.CapoError, match=r"'blind' returned an observation that is not a finite .*correct the env"
    ):
        capo.NCAPO(Blind(), out=tmp_path / "run", **TINY_640).learn(640)


@pytest.mark.parametrize(
    "arguments",
    [
        {"seeds": 2.5},
        {"seeds": "2"},
        {"seed": "1", "seeds": 2},
        {"keep": "3"},
        {"log_every": "3"},
        {"log_every": 0},
        {"eval_every": 0},
        {"eval_every": 16, "eval_episodes": 0},
        {"out": 5},
        {"out": ""},
    ],
)
def test_wrong_arguments_of_an_agent(arguments: dict[str, Any]) -> None:
    with pytest.raises(capo.CapoError, match="|".join(arguments)):
        capo.NCAPO(ENV, **TINY_640 | arguments)


@pytest.mark.parametrize("path", [5, "", None])
def test_wrong_names_of_files(path: Any) -> None:
    agent = capo.NCAPO(ENV, **TINY_640)
    for call in (agent.save, agent.watch, load, capo.NCAPO.load, capo.NCAPO.resume):
        with pytest.raises(capo.CapoError, match="is not the name of a file or folder"):
            call(path)


def test_a_mask_with_rows_of_different_lengths() -> None:
    with pytest.raises(capo.CapoError, match="rows of different lengths"):
        capo.NCAPO(ENV, **TINY_640).predict([1.0], action_masks=[[True], [True, False]])


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    settings = TINY_640 | {"width": np.int64(8), "gamma": np.float32(0.5), "layer_norm": np.bool_(True)}
    agent = capo.NCAPO(ENV, seeds=np.int64(2), out=tmp_path / "run", **settings).learn(FRAMES)
    assert (agent.config.width, agent.config.gamma, agent.config.layer_norm) == (8, 0.5, True)
    assert capo.NCAPO.resume(tmp_path / "run").seeds == [0, 1]


@pytest.mark.parametrize(("wrong", "value"), [("observation_shape", 5), ("observation_dtype", "foo"), ("name", 3)])
def test_an_environment_of_odd_parts(wrong: str, value: Any) -> None:
    env = Coin()
    setattr(env, wrong, value)
    with pytest.raises(capo.CapoError, match=f"{wrong}={value!r}"):
        capo.NCAPO(env)


def test_channels_that_come_first_are_said() -> None:
    env = Board()
    env.observation_space = spaces.Box(0, 255, (4, 12, 12), np.float32)
    with pytest.warns(capo.CapoWarning, match=r"\(4, 12, 12\) look like \(channels, height, width\)"):
        capo.NCAPO(env)
    for shape, dtype in (((12, 12, 4), np.float32), ((12, 12, 4), np.uint8), ((4, 12, 12), np.uint8)):
        env.observation_space = spaces.Box(0, 255, shape, dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert capo.NCAPO(env).env.observation_shape == (12, 12, 4)


@pytest.mark.parametrize("high", [1, 4, 255])
def test_bytes_are_divided_by_their_largest_value(high: int) -> None:
    assert envs.make(Board(high)).observation_high == high
    for agent in (capo.NCAPO(Board(high)), capo.Rainbow(Board(high))):
        spec = agent.learner.network
        seen = layers.as_float(spec, jnp.array([0, high], jnp.uint8), spec.byte_high)
        np.testing.assert_array_equal(np.asarray(seen), [0.0, 1.0])


def test_an_evaluation_that_is_cut_starts_new_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MAX_EVALUATION_STEPS", 4)
    agent = capo.NCAPO(Board(), **TINY_640)
    learner = agent.learner
    params = agent._policy(learner)
    for copies in (True, False):
        if not copies:
            monkeypatch.setattr(learner.env, "open_for_evaluation", lambda _: None)
        returns = learner.evaluate(jax.tree.map(lambda x: x[None], params), jax.random.PRNGKey(0)[None], 34)[
            0
        ]  # 2 copies, or the one there is
        np.testing.assert_array_equal(returns, [1.0 + 2 + 3 + 4] * 34)


class Endless(Counting):
    """Its episodes never end."""

    name = "endless"

    def outcome(self, state: Any, action: Any) -> tuple[Any, Any]:
        del state, action
        return jnp.float32(1), jnp.bool_(False)


@pytest.mark.parametrize("env", [Board(), Endless()], ids=["host", "jitted"])
def test_an_evaluation_that_is_cut_says_so(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (host, jitted, protocol):
        monkeypatch.setattr(module, "MAX_EVALUATION_STEPS", 16)
    with pytest.warns(capo.CapoWarning, match="3 of 3 evaluation episodes had not ended after 16 steps"):
        capo.NCAPO(env, **TINY_640).evaluate(episodes=3)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_networks_are_counted_without_being_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = ROWS[name].agent(ENV, width=8, layer_norm=True)
    learner = agent.learner
    made = learner.algorithm.init_params(np.random.default_rng(0))
    counted = learner.algorithm.init_params(layers.ShapesOnly())
    assert jax.tree.map(np.shape, made) == jax.tree.map(lambda leaf: leaf.shape, counted)
    assert learner.n_parameters == sum(leaf.size for leaf in jax.tree.leaves(made))
    monkeypatch.setattr(np.linalg, "qr", lambda _: pytest.fail("a network was made"))
    for width in (10**9, 10**15):
        with pytest.raises(capo.CapoError, match=rf"need .* MB .* smaller width than {width}"):
            learner_for(ENV, type(agent.config)(width=width), 1)
