"""Learning from another policy: functions, agents and mixtures, on jitted and host environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers_masks import N_ACTIONS, Doors, Gates
from helpers_shell import ENV, TINY

import capo
from capo.envs.layout import Layout, Part
from capo.neural.learners.behaviours import Behaviour

SMALL: dict[str, Any] = TINY | {"horizon": 640}
OBS = np.zeros((6, 4), np.float32)


def mostly_second(obs: Any) -> Any:
    """A jax function: probabilities of CartPole's or the probe's two actions."""
    return jnp.broadcast_to(jnp.array([0.2, 0.8]), (len(obs), 2))


class Scripted:
    """A host function that takes actions itself, with its own random numbers."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.calls = 0

    def __call__(self, obs: Any) -> Any:
        self.calls += 1
        actions = (self.rng.random(len(obs)) < 0.8).astype(np.int64)
        return actions, np.where(actions == 1, 0.8, 0.2)


def stored(agent: Any) -> tuple[Any, Any]:
    """The actions and log-probabilities in the replay of the first seed that were ever written."""
    replay = agent._states.groups[0].state.replay
    written = np.asarray(replay.log_mu[0]) != 0
    return np.asarray(replay.action[0])[written], np.asarray(replay.log_mu[0])[written]


@pytest.mark.parametrize("env", ["probe-action", "CartPole-v1"])
@pytest.mark.parametrize("function", [mostly_second, Scripted()], ids=["jax", "host"])
def test_the_behaviour_acts_and_its_probabilities_are_stored(env: str, function: Any) -> None:
    agent = capo.NCAPO(env, **SMALL).learn(640, behaviour=function)
    action, log_mu = stored(agent)
    np.testing.assert_allclose(np.exp(log_mu), np.where(action == 1, 0.8, 0.2), rtol=1e-5)
    assert abs(np.mean(action) - 0.8) < 5 * np.sqrt(0.16 / len(action))


def test_a_host_function_is_called_at_every_step_of_a_jitted_environment() -> None:
    function = Scripted()
    agent = capo.NCAPO("probe-action", seeds=2, **SMALL)
    agent.learn(160, behaviour=function)
    steps = 160 // agent.config.n_envs
    assert function.calls >= 2 * steps  # of both seeds; once more to check it


def test_a_mixture_stores_what_was_drawn_from() -> None:
    agent = capo.NCAPO("probe-action", **SMALL, epsilon_start=1.0, epsilon_final=1.0)  # its own policy: uniform
    agent.learn(640, behaviour=capo.Mixture(mostly_second, share=0.5))
    action, log_mu = stored(agent)
    np.testing.assert_allclose(np.exp(log_mu), np.where(action == 1, 0.65, 0.35), rtol=1e-5)
    assert abs(np.mean(action) - 0.65) < 5 * np.sqrt(0.25 / len(action))


def test_a_mixture_with_a_function_that_draws_stores_the_probability_of_whoever_acted() -> None:
    agent = capo.NCAPO("CartPole-v1", **SMALL, epsilon_start=1.0, epsilon_final=1.0)
    agent.learn(640, behaviour=capo.Mixture(Scripted(), share=0.25))
    probability = np.exp(stored(agent)[1])
    own = np.isclose(probability, 0.5, rtol=1e-5)
    assert (own | np.isclose(probability, 0.8) | np.isclose(probability, 0.2)).all()
    assert abs(own.mean() - 0.75) < 5 * np.sqrt(0.19 / len(own))


def test_another_agent_acts_as_it_is_now() -> None:
    teacher = capo.PPO("probe-action", width=16, n_envs=4, rollout_length=16, batch_size=32).learn(128)
    agent = capo.NCAPO("probe-action", **SMALL).learn(64, behaviour=teacher)
    replay = agent._states.groups[0].state.replay
    obs, action = np.asarray(replay.obs[0])[:, : replay.action.shape[-1]], np.asarray(replay.action[0])
    expected = teacher.policy(obs.reshape(-1, 1)).probabilities.reshape(*action.shape, 2)
    written = np.asarray(replay.log_mu[0]) != 0
    taken = np.take_along_axis(expected, action[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(np.exp(replay.log_mu[0])[written], taken[written], rtol=1e-5)
    with pytest.raises(capo.CapoError, match=r"can't act on 'CartPole-v1': its observation_shape is \(1,\)"):
        capo.NCAPO("CartPole-v1", **SMALL).learn(64, behaviour=teacher)


def test_every_off_policy_algorithm_takes_it_and_learns_from_it() -> None:
    """From uniformly random actions alone, the probe's best action is found."""

    def uniform(obs: Any) -> Any:
        return jnp.full((len(obs), 2), 0.5)

    for kind in (capo.NCAPO, capo.OffPAC, capo.Rainbow):
        agent = kind("probe-action", width=16).learn(6000, behaviour=uniform)
        assert agent.evaluate(100, deterministic=True).mean > 0.9, kind


def test_on_policy_algorithms_refuse() -> None:
    for kind in (capo.PPO, capo.A2C):
        with pytest.raises(capo.CapoError, match=r"is on-policy.*needs an off-policy algorithm"):
            kind("probe-action").learn(64, behaviour=mostly_second)


def test_a_run_that_was_stopped_continues_exactly_with_the_behaviour_given_again(tmp_path: Path) -> None:
    whole = capo.NCAPO(ENV, **SMALL).learn(320, behaviour=mostly_second)
    run = capo.NCAPO(ENV, **SMALL, out=tmp_path / "run", log_every=80)
    run.learn(320, behaviour=mostly_second, callback=lambda *_: False)
    run.close()
    resumed = capo.NCAPO.resume(tmp_path / "run")
    assert resumed.frames_left
    with pytest.raises(capo.CapoError, match=r"the function mostly_second acted.*behaviour=\"own\""):
        resumed.learn(resumed.frames_left)
    resumed.learn(resumed.frames_left, behaviour=mostly_second)
    for ours, theirs in zip(jax.tree.leaves(resumed.params), jax.tree.leaves(whole.params), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    resumed.learn(64)  # the plan is done: its own policy may act from now on


def test_the_agent_may_act_itself_after_all(tmp_path: Path) -> None:
    run = capo.NCAPO("probe-action", **SMALL, out=tmp_path / "run", log_every=80)
    run.learn(320, behaviour=mostly_second, callback=lambda *_: False)
    assert run.learn(run.frames_left, behaviour="own").frames == 320


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (np.full((6, 3), 1 / 3), r"shape \(6, 3\).*6 observations and 2 actions"),
        (np.ones((6, 2)), "do not sum to 1"),
        (np.array([[-0.5, 1.5]] * 6), "negative"),
        (np.ones(6, np.int64), r"shape \(6,\) and dtype int64"),
        ((np.ones(5, np.int64), np.ones(5)), r"shapes \(5,\) and \(5,\) for 6 observations"),
        ((np.full(6, 2), np.ones(6)), "an action outside 0 to 1"),
        ((np.ones(6, np.int64), np.zeros(6)), "not above 0"),
        ((np.ones(6), np.ones(6)), "dtype float64, which are not integers"),
        (None, "an array of shape"),
        ([[0.5, 0.5], [1.0]], "rows of different lengths"),
        ((np.ones(6, np.int64), [[1.0], [1.0, 1.0]]), "rows of different lengths"),
        ((np.ones(6, np.int64), np.full(6, "half")), "probabilities of dtype <U4, which are not numbers"),
        ([np.ones(6, np.int64), np.ones(6)], r"shape \(2, 6\).*a tuple: the actions"),
    ],
)
def test_what_a_function_returns_is_checked(returned: Any, what: str) -> None:
    with pytest.raises(capo.CapoError, match=what):
        Behaviour(lambda _: returned, 1.0, 2, "f").on_host(OBS)


def test_a_list_of_two_rows_is_no_pair() -> None:
    """Only a tuple is: two environments have two rows."""
    rows = [np.array([0.2, 0.8]), np.array([0.6, 0.4])]
    found = Behaviour(lambda _: rows, 1.0, 2, "f").on_host(OBS[:2])
    np.testing.assert_allclose(np.exp(found), rows, rtol=1e-6)
    agent = capo.NCAPO("probe-action", **(SMALL | {"n_envs": 2})).learn(64, behaviour=lambda _: [[0.0, 1.0]] * 2)
    assert (stored(agent)[0] == 1).all()


def test_unsigned_actions_are_actions() -> None:
    behaviour = Behaviour(lambda _: (np.ones(6, np.uint64), np.full(6, 0.5)), 1.0, 2, "f")
    np.testing.assert_allclose(behaviour.on_host(OBS)[:, 1], np.log(0.5), rtol=1e-6)


def test_mistakes_are_told_before_anything_is_trained() -> None:
    def broken(_: Any) -> Any:
        raise KeyError("no such state")

    agent = capo.NCAPO("probe-action", **SMALL)
    with pytest.raises(capo.CapoError, match=r"the function broken\) raised KeyError"):
        agent.learn(64, behaviour=broken)
    with pytest.raises(capo.CapoError, match="must be a function of observations, an agent"):
        agent.learn(64, behaviour="random")
    with pytest.raises(capo.CapoError, match=r"share=0 .* must be a number above 0"):
        capo.Mixture(mostly_second, share=0)
    assert agent.frames == 0


def test_a_functions_form_may_not_change() -> None:
    forms = iter([np.full((6, 2), 0.5), (np.zeros(6, int), np.ones(6))])
    behaviour = Behaviour(lambda _: next(forms), 1.0, 2, "f")
    behaviour.on_host(OBS)
    with pytest.raises(capo.CapoError, match="a pair in one call and a single array in another"):
        behaviour.on_host(OBS)


def test_functions_of_numpy_are_not_taken_for_functions_of_jax() -> None:
    """One that ignores its argument could be traced, and would repeat its first result for ever."""
    host = Behaviour(Scripted(), 1.0, 2, "f")
    assert not host.is_traceable((6, 4), np.float32)
    assert Behaviour(mostly_second, 1.0, 2, "f").is_traceable((6, 4), np.float32)
    assert not Behaviour(lambda obs: np.asarray(obs)[:, :2], 1.0, 2, "f").is_traceable((6, 4), np.float32)


def test_vector_environments_take_a_behaviour_too() -> None:
    vector = gymnasium.make_vec("CartPole-v1", num_envs=3)
    agent = capo.NCAPO(vector, **(SMALL | {"n_envs": 3})).learn(120, behaviour=Scripted())
    action, log_mu = stored(agent)
    np.testing.assert_allclose(np.exp(log_mu), np.where(action == 1, 0.8, 0.2), rtol=1e-5)
    vector.close()


# Masks and factors ----------------------------------------------------------------------------------------------


def uniform_over_five(obs: Any) -> Any:
    return jnp.full((len(obs["observation"]), 5), 0.2)


@pytest.mark.parametrize("env", [Doors(), Gates], ids=["jitted", "host"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_behaviour_never_takes_what_a_mask_forbids(env: Any, share: float) -> None:
    """It pays nan there, which would end the training; what is stored is the probability among those allowed."""
    agent = capo.NCAPO(env, **SMALL, epsilon_start=1.0, epsilon_final=1.0)
    behaviour = uniform_over_five if share == 1 else capo.Mixture(uniform_over_five, share)
    agent.learn(160, behaviour=behaviour)
    replay, layout = agent._states.groups[0].state.replay, agent.learner.spec.layout
    obs, action = np.asarray(replay.obs[0])[:, : replay.action.shape[-1]], np.asarray(replay.action[0])
    written = np.asarray(replay.log_mu[0]) != 0
    allowed = layout.mask(obs)
    assert np.take_along_axis(allowed, action[..., None], axis=-1)[..., 0][written].all()
    np.testing.assert_allclose(np.exp(replay.log_mu[0])[written], 1 / allowed.sum(axis=-1)[written], rtol=1e-5)


@pytest.mark.parametrize("env", [Doors(), Gates], ids=["jitted", "host"])
def test_an_action_that_the_mask_forbids_is_an_error(env: Any) -> None:
    def first(obs: Any) -> Any:
        count = len(obs["action_mask"])
        return jnp.zeros(count, jnp.int32), jnp.ones(count)

    with pytest.raises(capo.CapoError, match="an action that the environment's action mask does not allow"):
        capo.NCAPO(env, **SMALL).learn(640, behaviour=first)


def test_probability_for_nothing_that_is_allowed_is_an_error() -> None:
    layout = Layout((Part("", (1,), "float32"),)).with_mask(2)
    rows = layout.pack({"": np.zeros((2, 1), np.float32), "action_mask": np.array([[True, True], [False, True]])})
    behaviour = Behaviour(lambda _: np.array([[1.0, 0.0]] * 2), 1.0, 2, "f", (), layout)
    with pytest.raises(capo.CapoError, match="no probability for any of the actions that the action mask allows"):
        behaviour.on_host(rows)


class OpenAtFirst(Doors):
    """Every action is allowed until the first step, so that nothing is found out before the training."""

    def action_mask(self, state: Any) -> Any:
        return state[1] | (state[0] == 0)


def test_it_is_an_error_in_a_compiled_program_too() -> None:
    def first(obs: Any) -> Any:
        return jnp.tile(jnp.eye(N_ACTIONS)[0], (len(obs["action_mask"]), 1))

    with pytest.raises(capo.CapoError, match="the behaviour gave no probability to any of the actions that"):
        capo.NCAPO(OpenAtFirst(), **SMALL).learn(640, behaviour=first)
    with pytest.raises(capo.CapoError, match="the behaviour gave no probability to any of the actions that"):
        capo.NCAPO(OpenAtFirst(), **SMALL).learn(640, behaviour=capo.Mixture(first, share=0.5))


@pytest.mark.parametrize("env", [Doors(), "probe-action"], ids=["masked", "plain"])
def test_only_another_agent_compiles_nothing_again(env: Any) -> None:
    """A function of jax may have other parameters by now, and a compiled program has those of its time."""

    def uniform(obs: Any) -> Any:
        rows = obs["action_mask"] if isinstance(obs, dict) else obs
        n_actions = N_ACTIONS if isinstance(obs, dict) else 2
        return jnp.full((len(rows), n_actions), 1 / n_actions)

    agent, other = (capo.NCAPO(env, **SMALL) for _ in range(2))
    for behaviour in (uniform, other):
        learner = agent.learn(64, behaviour=behaviour, horizon=640).learner
        again = agent.learn(64, behaviour=behaviour, horizon=640).learner
        assert (again is learner) == (behaviour is other)
    learner = again
    other.learn(64)
    assert agent.learn(64, behaviour=other, horizon=640).learner is not learner, "the policy as it is now"


class Dials:
    """A jitted environment whose actions have two factors, of 2 and 3 actions."""

    name = "dials"
    factors = (2, 3)
    n_actions = 5
    observation_shape = (1,)
    observation_dtype = np.float32

    def reset(self, _: Any) -> tuple[Any, Any]:
        return jnp.int32(0), jnp.zeros(1)

    def step(self, _: Any, state: Any, action: Any) -> tuple[Any, ...]:
        return state + 1, jnp.zeros(1), jnp.float32(action[1]), state >= 3, jnp.bool_(False)


class HostDials(gymnasium.Env[Any, Any]):
    """The same on the host, its actions counted from 4 and -1."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.MultiDiscrete([2, 3], start=[4, -1])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action.astype(self.action_space.dtype))
        self.steps += 1
        return np.zeros(1, np.float32), float(action[1]), self.steps == 4, False, {}


def of_two_factors(obs: Any) -> Any:
    return jnp.broadcast_to(jnp.array([0.3, 0.7, 0.1, 0.2, 0.7]), (len(obs), 5))


class Turner:
    """Draws actions of two factors itself, on the host."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, obs: Any) -> Any:
        first = (self.rng.random(len(obs)) < 0.7).astype(int)
        second = self.rng.choice(3, len(obs), p=[0.1, 0.2, 0.7])
        return np.stack([first, second], axis=1), np.array([0.3, 0.7])[first] * np.array([0.1, 0.2, 0.7])[second]


@pytest.mark.parametrize("env", [Dials(), HostDials], ids=["jitted", "host"])
@pytest.mark.parametrize("function", [of_two_factors, Turner()], ids=["probabilities", "actions"])
def test_actions_of_several_factors(env: Any, function: Any) -> None:
    agent = capo.NCAPO(env, **SMALL).learn(320, behaviour=function)
    action, log_mu = stored(agent)  # places among the five
    wanted = np.array([0.3, 0.7, 0.1, 0.2, 0.7])[action].prod(axis=-1)
    np.testing.assert_allclose(np.exp(log_mu), wanted, rtol=1e-5)
    assert abs(np.mean(action[:, 1] == 4) - 0.7) < 5 * np.sqrt(0.21 / len(action))


def test_a_jax_function_that_draws_actions_of_several_factors() -> None:
    def last(obs: Any) -> Any:
        return jnp.tile(jnp.array([1, 2]), (len(obs), 1)), jnp.full(len(obs), 0.5)

    agent = capo.NCAPO(Dials(), **SMALL).learn(80, behaviour=last)
    action, log_mu = stored(agent)
    assert (action == [1, 4]).all()
    np.testing.assert_allclose(np.exp(log_mu), 0.5, rtol=1e-6)


def test_another_agent_and_a_mixture_act_on_several_factors() -> None:
    teacher = capo.PPO(Dials(), width=16, n_envs=4, rollout_length=16, batch_size=32)
    agent = capo.NCAPO(Dials(), **SMALL, epsilon_start=1.0, epsilon_final=1.0)
    agent.learn(80, behaviour=capo.Mixture(teacher, 0.5))
    action, log_mu = stored(agent)
    theirs = teacher.policy(np.zeros(1)).probabilities[action].prod(axis=-1)
    found = np.exp(log_mu)
    assert (np.isclose(found, theirs, rtol=1e-4) | np.isclose(found, 1 / 6, rtol=1e-4)).all()


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (np.full((6, 5), 0.2), "do not sum to 1 for each factor"),
        ((np.ones(6, int), np.ones(6)), r"shapes \(6,\) and \(6,\)"),
        ((np.full((6, 2), 2), np.ones(6)), "an action outside 0 to 1 and 2"),
    ],
)
def test_what_a_function_returns_for_several_factors_is_checked(returned: Any, what: str) -> None:
    with pytest.raises(capo.CapoError, match=what):
        Behaviour(lambda _: returned, 1.0, 5, "f", (2, 3)).on_host(OBS)


def test_a_function_that_fails_inside_a_compiled_program_is_named() -> None:
    calls = 0

    def fails(obs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise OSError("the robot is gone")
        return np.full((len(obs), 2), 0.5)

    agent = capo.NCAPO("probe-action", **SMALL)
    with pytest.raises(capo.CapoError, match=r"the function fails\) raised OSError: the robot is gone\. The"):
        agent.learn(640, behaviour=fails)
