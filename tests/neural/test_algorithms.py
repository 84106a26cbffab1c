"""Every algorithm on the shared loop: settings, probes with known answers, cutting, seeds, exact resume."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers_shell import bits, checkpoint_bits, metrics

import capo
from capo.cli import main
from capo.neural.algorithms import registry as algorithms
from capo.neural.algorithms import settings
from capo.neural.algorithms.registry import learner_for
from capo.neural.algorithms.settings import Settings, override
from capo.neural.parts import networks
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.replay import Rollout

NAMES = tuple(algorithms.ROWS)
NEW = tuple(name for name in NAMES if name != "ncapo")
GAMMA = 0.9
# Settings so small that a training takes a second; episodes of the probes end within every rollout.
SMALL: dict[str, dict[str, Any]] = {
    "offpac": {"n_envs": 16, "rollout_length": 4, "gradient_steps": 8, "replay_rollouts": 256, "tau_q": 0.2},
    "a2c": {"n_envs": 16, "rollout_length": 4, "optimiser": "adam"},
    "ppo": {"n_envs": 16, "rollout_length": 16, "batch_size": 64, "epochs": 4},
    "rainbow": {
        "n_envs": 16,
        "rollout_length": 4,
        "gradient_steps": 8,
        "replay_transitions": 2000,
        "learning_starts": 200,
        "target_every": 200,
        "v_min": -5.0,
        "v_max": 15.0,
        "atoms": 41,
        "optimiser_epsilon": 1e-5,
    },
    "pqn": {"n_envs": 16, "rollout_length": 16, "batch_size": 64, "epochs": 4},
}
HORIZON = {"offpac": 20_000, "a2c": 40_000, "ppo": 20_000, "rainbow": 10_000, "pqn": 20_000}
ON_POLICY = ("a2c", "ppo")


def small(name: str, **more: Any) -> Any:
    chosen = {"horizon": HORIZON[name], "gamma": GAMMA, "learning_rate": 3e-3, "width": 32} | SMALL[name]
    return override(algorithms.find(name).settings(), chosen | more)


def trained(env: Any, config: Any) -> tuple[Any, Any, Any]:
    learner = learner_for(env, config, 1)
    state, metrics = learner.run(learner.init([0]), config.horizon // learner.frames_per_iteration)
    return learner, learner.policy_params(state, 0), metrics


def evaluate(learner: Any, params: Any, episodes: int) -> Any:
    """Returns (episodes,) of one seed's policy."""
    return learner.evaluate(jax.tree.map(lambda x: x[None], params), jax.random.PRNGKey(0)[None], episodes)[0]


def value_of(learner: Any, params: Any, *observations: float) -> Any:
    """V(s) of the on-policy algorithms, max over Q otherwise."""
    obs = jnp.array(observations, jnp.float32)[:, None]
    if learner.algorithm.name in ON_POLICY or learner.algorithm.name == "offpac":
        logits, value, _ = networks.logits_and_q(learner.network, params, obs)
        pi = jax.nn.softmax(logits)
        return np.asarray(value[:, 0] if value.shape[1] == 1 else jnp.sum(pi * value, axis=-1))
    return np.asarray(learner.algorithm.action_scores(learner.algorithm.acting_params(params), obs).max(axis=-1))


# Settings -------------------------------------------------------------------------------------------------


def configs() -> list[type[Settings]]:
    return [row.settings for row in algorithms.ROWS.values()]


def sentences(config: type[Settings]) -> dict[str, str]:
    """The sentence under each field: the class's own, or that of the nearest class it derives from."""
    found: dict[str, str] = {}
    for base in reversed([each for each in config.__mro__ if issubclass(each, Settings)]):
        definition = ast.parse(inspect.getsource(base)).body[0]
        assert isinstance(definition, ast.ClassDef)
        for field, below in itertools.pairwise(definition.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = text
    return found


@pytest.mark.parametrize("config", configs(), ids=NAMES)
def test_every_field_has_a_sentence_and_a_range(config: Any) -> None:
    known = sentences(config)
    for field in dataclasses.fields(config):
        assert known[field.name].endswith("."), field.name
        kind = settings.field_kinds(config)[field.name]
        checked = kind.choices or kind.type is bool or kind.allowed.low > -math.inf
        assert checked or field.type in ("Number", "Widths")  # any number; a list that the settings check


def test_a_field_that_means_something_else_has_its_own_sentence() -> None:
    a2c, ppo = (sentences(algorithms.find(name).settings) for name in ("a2c", "ppo"))
    assert "clip follow their schedules" in ppo["horizon"]
    assert "clip" not in a2c["horizon"]
    assert a2c["learning_rate"] == ppo["learning_rate"] == "Learning rate at the start of training."


@pytest.mark.parametrize("config", configs(), ids=NAMES)
@pytest.mark.parametrize("env", ["minatar-breakout", "minatar-asterix", "CartPole-v1"])
def test_presets_go_to_a_dict_and_back(config: Any, env: str) -> None:
    assert {"paper", "default"} <= set(config.PRESETS)
    for name in config.PRESETS:
        preset = config.preset(name, env)
        assert config.from_dict(preset.to_dict()) == preset
    with pytest.raises(capo.CapoError, match="did you mean 'paper'"):
        config.preset("papr", env)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        (
            "ppo",
            {
                "batch_size": 16,
                "learning_rate": 2.5e-4,
                "critic_coefficient": 0.38,
                "max_grad_norm": 0.5,
                "rollout_length": 256,
                "gamma": 0.98,
            },
        ),
        (
            "a2c",
            {
                "learning_rate": 7e-4,
                "critic_coefficient": 0.25,
                "max_grad_norm": 0.5,
                "gamma": 0.99,
                "entropy": 4.04e-6,
            },
        ),
        (
            "offpac",
            {
                "batch_size": 32,
                "learning_rate": 5e-4,
                "epsilon_start": 0.0,
                "epsilon_final": 0.0,
                "critic_coefficient": 1.0,
                "max_grad_norm": 0.8,
                "gradient_steps": 30,
                "tau_q": 0.05,
                "tau_policy": 1.0,
                "gamma": 0.99,
                "replay_rollouts": 6400,
                "entropy": 0.0,
            },
        ),
    ],
)
def test_the_paper_presets_are_the_papers_table(name: str, table: dict[str, Any]) -> None:
    paper = algorithms.find(name).settings.preset("paper", "minatar-breakout")
    assert {key: getattr(paper, key) for key in table} == table


def test_minibatches_have_to_fit() -> None:
    with pytest.raises(capo.CapoError, match=r"8 \* 10 = 80: 80 does"):
        capo.PPO("probe-both", n_envs=8, rollout_length=10, batch_size=64)


def test_unknown_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "probe-both", "--algo", "pp0"]) == 2
    assert "did you mean 'ppo'" in capsys.readouterr().err


def test_agents_and_algorithms_have_the_same_names() -> None:
    for name, row in algorithms.ROWS.items():
        assert getattr(capo, row.agent.__name__) is row.agent
        assert row.agent.__name__ in dir(capo)
        assert row.name == row.algorithm.name == row.agent.algorithm == name
        assert row.settings is row.algorithm.Config


# Probes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NEW)
def test_the_critic_learns_a_reward_that_comes_later(name: str) -> None:
    found = value_of(*trained("probe-delayed", small(name))[:2], 0.0, 1.0)
    np.testing.assert_allclose(found, [GAMMA, 1.0], atol=0.1)


@pytest.mark.parametrize("name", NEW)
def test_the_policy_learns_what_fits_the_observation(name: str) -> None:
    learner, params, _ = trained("probe-both", small(name))
    np.testing.assert_allclose(value_of(learner, params, -1.0, 1.0), 1.0, atol=0.2)
    actions = learner.act(params, np.array([[-1.0], [1.0]], np.float32), deterministic=True)
    assert actions.tolist() == [0, 1]
    assert evaluate(learner, params, 200).mean() > 0.9


class Endless:
    """Reward 1 at every step, cut off after 3: the true value is 1 / (1 - gamma) = 10, and not 2.7."""

    name, n_actions, observation_shape, observation_dtype = "endless", 2, (1,), np.float32

    def reset(self, key: Any) -> tuple[Any, Any]:
        del key
        return jnp.int32(0), jnp.ones(1)

    def step(self, key: Any, env_state: Any, action: Any) -> tuple[Any, ...]:
        del key, action
        after = env_state + 1
        return after, jnp.ones(1), jnp.float32(1), jnp.bool_(False), after == 3


@pytest.mark.parametrize("name", NEW)
def test_truncation_bootstraps(name: str) -> None:
    found = value_of(*trained(Endless(), small(name))[:2], 1.0)
    np.testing.assert_allclose(found, 10.0, rtol=0.15)


# The loop -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NEW)
def test_runs_can_be_cut_and_seeds_do_not_know_of_each_other(name: str) -> None:
    config = small(name, width=8)
    learner = learner_for("probe-both", config, 2)
    whole, metrics = learner.run(learner.init([3, 4]), 7)
    assert np.isfinite(metrics["critic_loss"]).all()
    assert (metrics["finite"] == 1).all()
    cut = learner.init([3, 4])
    for iterations in (1, 4, 2):
        cut = jax.tree.map(np.asarray, learner.run(cut, iterations)[0])
    swapped, _ = learner.run(learner.init([4, 3]), 7)
    leaves = [jax.tree.leaves(state) for state in (whole, cut, swapped)]
    for a, b, c in zip(*leaves, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.asarray(a)[0], np.asarray(c)[1])
    assert "frames per iteration" in learner.describe()


@pytest.mark.parametrize("name", NEW)
def test_resumed_runs_end_bit_for_bit_as_if_never_stopped(name: str, tmp_path: Path) -> None:
    config = small(name, width=8, horizon=2560).to_dict()
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    make: Any = algorithms.find(name).agent
    full = make("probe-both", seeds=2, out=whole, log_every=256, **config).learn(2560)
    half = make("probe-both", seeds=2, out=stopped, log_every=256, checkpoint_every=256, **config)
    half.learn(2560, callback=lambda _, rows: rows[0]["frames"] < 1024)
    assert half.frames_left
    resumed = make.resume(stopped)
    resumed.learn(resumed.frames_left)
    assert bits(resumed) == bits(full)
    assert checkpoint_bits(stopped) == checkpoint_bits(whole)
    assert metrics(stopped) == metrics(whole)
    with pytest.raises(capo.CapoError, match=f"a run of {name}, not of ncapo"):
        capo.NCAPO.load(whole)


@pytest.mark.parametrize("name", ["ppo", "rainbow", "pqn"])
def test_a_non_finite_reward_ends_the_run(name: str) -> None:
    class Broken(Endless):
        def step(self, key: Any, env_state: Any, action: Any) -> tuple[Any, ...]:
            after, obs, _, terminated, truncated = super().step(key, env_state, action)
            return after, obs, jnp.float32(jnp.nan), terminated, truncated

    with pytest.raises(capo.CapoError, match="returned a reward that is not a finite number"):
        algorithms.find(name).agent(Broken(), **small(name, width=8, horizon=2560).to_dict()).learn(2560)


def test_the_command_line_takes_algorithms(tmp_path: Path) -> None:
    for name in ("a2c", "rainbow", "pqn"):
        out = tmp_path / name
        pairs = [f"{key}={value}" for key, value in (SMALL[name] | {"width": 8}).items()]
        chosen = [part for pair in pairs for part in ("--set", pair)]
        arguments = ["train", "probe-both", "--algo", name, "--frames", "512", "--out", str(out), *chosen]
        assert main([*arguments, "--eval-episodes", "4"]) == 0
        assert main(["evaluate", str(out), "--episodes", "2"]) == 0


# One by one -----------------------------------------------------------------------------------------------


def test_ppo_solves_cartpole() -> None:
    """On Gymnasium: mean return of the last episodes above 150 within 20,000 steps (random: about 20)."""
    agent = capo.PPO("CartPole-v1", seed=0, learning_rate=1e-3, rollout_length=128, batch_size=128).learn(20_480)
    assert agent.evaluate(10).mean > 150
    assert agent.predict(np.zeros(4), deterministic=True)[0] in (0, 1)


def test_offpac_acts_uniformly_and_learns_off_policy() -> None:
    learner, params, metrics = trained("probe-action", small("offpac", weight="q"))
    assert abs(np.nanmean(metrics["episode_return"])) < 0.05  # training stays at random play ...
    assert evaluate(learner, params, 200).mean() > 0.9  # ... while the policy is learned
    on_policy = trained("probe-action", small("offpac", behaviour="policy", epsilon_start=0.1))[2]
    assert on_policy["episode_return"][-20:].mean() > 0.8


def test_offpac_gradient_is_the_papers() -> None:
    """On tabular logits: grad = - mean(ratio * Q * (e_a - pi)), Q without gradient."""
    config = small("offpac", weight="q", width=8, retrace_lambda=0.0, gamma=0.0)
    learner = learner_for("probe-both", config, 1)
    params = learner.algorithm.init_params(np.random.default_rng(0))
    params["actor"]["head"]["kernel"][:] = np.random.default_rng(1).normal(size=(8, 2))
    rng = np.random.default_rng(2)
    shape = (5, 1)
    batch = Rollout(
        obs=jnp.asarray(rng.normal(size=(5, 2, 1)), jnp.float32),
        action=jnp.asarray(rng.integers(0, 2, shape), jnp.int32),
        reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
        terminated=jnp.ones(shape, bool),
        truncated=jnp.zeros(shape, bool),
        log_mu=jnp.log(jnp.full(shape, 0.5)),
    )
    target = learner.algorithm.init_target(params)
    grads: Any = jax.grad(lambda p: learner.algorithm.loss(p, target, batch, 0.0, "actor")[0])(params)
    pi = np.asarray(jax.nn.softmax(networks.outputs(learner.network, params["actor"], batch.obs[:, 0])))
    action, reward = np.asarray(batch.action[:, 0]), np.asarray(batch.reward[:, 0])  # gamma = 0: Q is the reward
    ratio = pi[np.arange(5), action] / 0.5
    expected = -(ratio * reward)[:, None] * (np.eye(2)[action] - pi) / 5
    np.testing.assert_allclose(grads["actor"]["head"]["bias"], expected.sum(axis=0), rtol=1e-5)


def test_schedules_count_the_rollout_just_collected() -> None:
    config = small("ppo", clip=0.2, clip_schedule="linear", learning_rate_schedule="linear", horizon=2560)
    learner = learner_for("probe-both", config, 1)
    _, metrics = learner.run(learner.init([0]), 10)
    left = 1 - np.arange(1, 11) / 10
    np.testing.assert_allclose(metrics["clip"][:, 0], 0.2 * left, atol=1e-6)
    np.testing.assert_allclose(metrics["learning_rate"][:, 0], 3e-3 * left, atol=1e-8)


@pytest.mark.parametrize("name", ["ncapo", "offpac", "a2c", "ppo"])
def test_a_falling_entropy_weight_is_half_of_it_halfway_and_gone_in_the_end(name: str) -> None:
    """An update halfway to the horizon equals one with half the weight, an update after it one with none."""
    own: dict[str, Any] = {"a2c": {}, "ppo": {"batch_size": 4, "epochs": 1}}.get(
        name, {"batch_size": 16, "gradient_steps": 4}
    )
    base = algorithms.find(name).settings(n_envs=4, rollout_length=4, width=8, **own)
    frames = 16
    counted = 1 if name in ON_POLICY else 0  # those count the rollout just collected

    def after(iteration: int, **changes: Any) -> Any:
        config = dataclasses.replace(base, horizon=4 * frames, **changes)
        learner = learner_for("probe-both", config, 1)
        algorithm = learner.algorithm
        state = jax.tree.map(lambda leaf: leaf[0], learner.init([0]))
        rng = np.random.default_rng(0)
        batch = Rollout(
            obs=jnp.asarray(rng.normal(size=(4, 4 + algorithm.rollouts.successors, 1)), jnp.float32),
            action=jnp.asarray(rng.integers(0, 2, (4, 4)), jnp.int32),
            reward=jnp.asarray(rng.normal(size=(4, 4)), jnp.float32),
            terminated=jnp.zeros((4, 4), bool),
            truncated=jnp.zeros((4, 4), bool),
            log_mu=jnp.log(jnp.full((4, 4), 0.5)),
        )
        learnt, _ = algorithm.learn(state, batch, Iteration.number(iteration - counted), jax.random.PRNGKey(1))
        return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(learnt.params)]

    def falling(iteration: int) -> Any:
        return after(iteration, entropy=0.5, entropy_schedule="linear")

    assert falling(2) == after(2, entropy=0.25)
    assert falling(4) == after(4, entropy=0.0)
    assert falling(6) == after(6, entropy=0.0)
    assert falling(2) != falling(4)
