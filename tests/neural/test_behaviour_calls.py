"""How a jitted environment's program calls a behaviour: traced or on the host, anew or again, and failing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers_shell import TINY_640, bits

import capo

ENV = "probe-action"


def stored(agent: Any) -> tuple[Any, Any]:
    """The actions and probabilities in the replay of the first seed that were ever written."""
    replay = agent._states.groups[0].state.replay
    written = np.asarray(replay.log_mu[0]) != 0
    return np.asarray(replay.action[0])[written], np.exp(np.asarray(replay.log_mu[0])[written])


# Traced or called --------------------------------------------------------------------------------------------


class Drawing:
    """Draws actions, the second with probability 0.8, and returns jax's arrays; ``draw`` gives uniform numbers."""

    def __init__(self, draw: Callable[[int], Any]) -> None:
        self.draw = draw

    def __call__(self, obs: Any) -> Any:
        actions = (self.draw(len(obs)) < 0.8).astype(jnp.int32)
        return jnp.asarray(actions), jnp.where(actions == 1, 0.8, 0.2)


class Keys:
    """Uniform numbers of jax, from a key that is kept."""

    def __init__(self) -> None:
        self.key = jax.random.PRNGKey(0)

    def __call__(self, count: int) -> Any:
        self.key, key = jax.random.split(self.key)
        return jax.random.uniform(key, (count,))


@pytest.mark.parametrize("draw", [np.random.default_rng(0).random, Keys()], ids=["numpy", "jax"])
def test_actions_of_a_jax_function_are_drawn_at_every_step(draw: Any) -> None:
    agent = capo.NCAPO(ENV, **TINY_640).learn(640, behaviour=Drawing(draw))
    action, probability = stored(agent)
    np.testing.assert_allclose(probability, np.where(action == 1, 0.8, 0.2), rtol=1e-5)
    assert abs(np.mean(action) - 0.8) < 5 * np.sqrt(0.16 / action.size)
    of_each = action.reshape(-1, agent.config.n_envs, agent.config.rollout_length)
    assert (of_each != of_each[:1, :, :1]).any(), "not the same action of an environment at every step"


def test_probabilities_that_keep_a_random_key_are_an_error_before_training() -> None:
    keys = Keys()

    def noisy(obs: Any) -> Any:
        first = keys(len(obs))
        return jnp.stack([first, 1 - first], axis=-1)

    agent = capo.NCAPO(ENV, **TINY_640)
    with pytest.raises(capo.CapoError, match=r"function noisy\) keeps a jax array.*Return numpy arrays"):
        agent.learn(64, behaviour=noisy)
    assert agent.learn(64).frames == 64


def test_as_numpy_they_are_called_at_every_step() -> None:
    keys = Keys()

    def noisy(obs: Any) -> Any:
        first = np.asarray(keys(len(obs)))
        return np.stack([first, 1 - first], axis=-1)

    _, probability = stored(capo.NCAPO(ENV, **TINY_640).learn(64, behaviour=noisy))
    assert len(np.unique(probability)) > len(probability) // 2


# Anew or again -----------------------------------------------------------------------------------------------


@dataclass
class Teacher:
    """Its parameter may change, and it compares its values."""

    probabilities: Any

    def __call__(self, obs: Any) -> Any:
        return jnp.broadcast_to(jnp.asarray(self.probabilities), (len(obs), 2))

    def act(self, obs: Any) -> Any:
        return np.asarray(self(obs))


@pytest.mark.parametrize("env", [ENV, "CartPole-v1"])
@pytest.mark.parametrize("how", ["in place", "another"])
def test_a_teacher_acts_as_it_is_at_every_call_of_learn(env: str, how: str) -> None:
    agent = capo.NCAPO(env, **TINY_640)
    teacher = Teacher(np.array([1.0, 0.0], np.float32))
    agent.learn(64, behaviour=teacher)
    if how == "another":
        teacher = Teacher(teacher.probabilities.copy())
    teacher.probabilities = np.array([0.0, 1.0], np.float32)
    agent.learn(640, behaviour=teacher)  # more than the replay holds
    replay = agent._states.groups[0].state.replay
    assert (np.asarray(replay.action) == 1).all()


@pytest.mark.parametrize(("env", "function"), [(ENV, "act"), ("CartPole-v1", "act"), ("CartPole-v1", "__call__")])
def test_what_is_called_on_the_host_compiles_nothing_again(env: str, function: str) -> None:
    agent, teacher = capo.NCAPO(env, **TINY_640), Teacher(np.array([0.5, 0.5], np.float32))
    learner = agent.learn(64, behaviour=getattr(teacher, function)).learner
    teacher.probabilities = np.array([0.0, 1.0], np.float32)
    assert agent.learn(640, behaviour=getattr(teacher, function)).learner is learner
    assert np.asarray(agent._states.groups[0].state.replay.action).mean() > 0.9, "but it acts as it is now"


# Failing -----------------------------------------------------------------------------------------------------


class Failing:
    """Uniform probabilities from the host, until a call that raises."""

    def __init__(self, good: float, error: BaseException) -> None:
        self.left, self.error = good, error

    def __call__(self, obs: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return np.full((len(obs), 2), 0.5)


def test_a_behaviour_that_fails_costs_nothing_before_its_log_point(tmp_path: Path) -> None:
    agent = capo.NCAPO(ENV, **TINY_640, out=tmp_path / "run", log_every=64)
    message = (
        r"Failing\) raised OSError: the robot is gone\. The agent keeps what it learned up to frame 128; "
        r"the newest checkpoint is"
    )
    with pytest.raises(capo.CapoError, match=message) as caught:
        agent.learn(640, behaviour=Failing(20, OSError("the robot is gone")))
    assert isinstance(caught.value.__cause__, OSError)
    assert agent.frames == 128
    agent.predict([[0.0]])
    assert bits(capo.NCAPO.load(agent.save(tmp_path / "kept"))) == bits(agent)
    reference = capo.NCAPO(ENV, **TINY_640, log_every=64).learn(128, behaviour=Failing(np.inf, OSError()))
    assert bits(agent) == bits(reference)
    assert agent.learn(agent.frames_left, behaviour=Failing(np.inf, OSError())).frames == 640


@pytest.mark.parametrize("env", [ENV, "CartPole-v1"])
def test_a_signal_in_a_behaviour_stays_a_signal(env: str) -> None:
    agent = capo.NCAPO(env, **TINY_640)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(640, behaviour=Failing(20, KeyboardInterrupt()))
    assert agent.frames <= 160
    kept = agent.frames
    assert agent.learn(64, behaviour="own").frames == kept + 64


def test_a_host_environments_behaviour_that_fails_says_what_is_kept() -> None:
    agent = capo.NCAPO("CartPole-v1", **TINY_640)
    with pytest.raises(capo.CapoError, match=r"raised OSError\. The agent keeps what it learned up to frame \d+"):
        agent.learn(640, behaviour=Failing(20, OSError()))
    assert agent.frames > 0
