"""A trial that is a row of one program is the training that its settings alone would give."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers_envs import Counting

import capo
from capo import envs
from capo.neural.algorithms import registry
from capo.neural.algorithms.settings import field_kinds, override
from capo.neural.learners.trials import HostTrialsLearner, TrialsLearner

SMALL: dict[str, Any] = {"n_envs": 4, "rollout_length": 8, "width": 8}
OWN: dict[str, dict[str, Any]] = {
    "ppo": {"batch_size": 16, "epochs": 2},
    "pqn": {"batch_size": 16, "epochs": 2},
    "rainbow": {"learning_starts": 32, "atoms": 11},
    "ncapo": {"gradient_steps": 2, "optimiser": "rmsprop"},  # so that optimiser_decay matters
}
ITERATIONS = 8
# Rounding alone: a constant is folded by the compiler (gamma * lambda in double precision), an argument is not.
TOLERANCE = 5e-6
FAR = 1e-3  # what other settings make of the same seed differs by more


def traced_names(algorithm: str) -> list[str]:
    return [name for name, kind in field_kinds(registry.find(algorithm).settings).items() if kind.traced]


def largest_difference(ours: Any, theirs: Any) -> float:
    leaves = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in leaves)


def rows(state: Any, first: int, last: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[first:last], state.params)


class Walk(Counting):
    """Three steps, and action 1 pays one step later: discount, lambdas and actions all matter."""

    name = "walk"

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, ...]:
        del key
        step, last = state // 2, state % 2
        after = 2 * (step + 1) + action
        return after, jnp.stack([step + 1.0, action * 1.0]), last * 1.0, step >= 2, jnp.bool_(False)

    def reset(self, key: Any) -> tuple[Any, Any]:
        del key
        return jnp.int32(0), jnp.zeros(2)

    observation_shape = (2,)


# Numbers that the algorithm's default settings do not use.
UNUSED = {
    # step_size is log; the policy has no target network; certain signs need no sampled advantage
    "ncapo": {"fixed_alpha", "tau_policy", "actor_lambda"},
    "offpac": {"optimiser_decay", "epsilon_start", "epsilon_final", "tau_policy"},  # adam; mu is uniform
    "ppo": {"optimiser_decay"},  # adam
}


@pytest.mark.parametrize("algorithm", list(registry.ROWS))
def test_a_row_equals_the_training_alone(algorithm: str) -> None:
    row, env = registry.find(algorithm), envs.make(Walk())
    small = SMALL | OWN.get(algorithm, {})
    frames = ITERATIONS * SMALL["n_envs"] * SMALL["rollout_length"]
    config = override(row.settings.preset("default", env.name), small | {"horizon": frames})
    names = traced_names(algorithm)
    everything = {name: 0.7 * (getattr(config, name) or 0.02) for name in names}
    # So that something is clipped, and the nearly uniform policies of two iterations are below what is kept.
    factors = {"max_grad_norm": 1e-3, "clip": 1e-3, "chance_kept": 10.0}
    singles = [{name: factors.get(name, 0.4) * (getattr(config, name) or 1.0)} for name in names]
    learner = TrialsLearner(row.algorithm(config, env), env, names, 2 + len(names))
    state, _ = learner.run(learner.start([{}, everything, *singles], [3]), ITERATIONS)

    agent = row.agent(Walk(), seed=3, **small, **everything).learn(frames)
    alone = agent._states.groups[0].state
    assert alone is not None
    assert largest_difference(rows(state, 1, 2), alone.params) < TOLERANCE
    assert largest_difference(rows(state, 0, 1), alone.params) > FAR
    # A number that the program ignored would look tuned: each must change what is learned, unless it is unused.
    for index, name in enumerate(names, start=2):
        moved = largest_difference(rows(state, index, index + 1), rows(state, 0, 1))
        assert (moved > 0) == (name not in UNUSED.get(algorithm, set())), name


def test_numbers_need_no_new_program() -> None:
    env = envs.make("probe-action")
    row = registry.find("a2c")
    config = override(row.settings.preset("default", env.name), SMALL)
    learner = TrialsLearner(row.algorithm(config, env), env, ["gamma"], 2)
    first, _ = learner.run(learner.start([{"gamma": 0.5}, {"gamma": 0.9}], [0]), 2)
    program = learner._compiled
    again, _ = learner.run(learner.start([{"gamma": 0.9}, {"gamma": 0.5}], [0]), 2)
    assert learner._compiled is program
    assert largest_difference(rows(first, 0, 1), rows(again, 1, 2)) == 0  # where it stands changes nothing


def test_a_setting_that_changes_the_program_is_refused() -> None:
    env = envs.make("probe-action")
    row = registry.find("ppo")
    algorithm = row.algorithm(row.settings(), env)
    with pytest.raises(capo.CapoError, match="width can't be an argument of the compiled program"):
        TrialsLearner(algorithm, env, ["width"], 1)
    learner = TrialsLearner(algorithm, env, ["gamma"], 4)
    with pytest.raises(capo.CapoError, match="2 trials x 1 seeds do not fit a program of 4 rows"):
        learner.start([{}, {}], [0])


def test_a_trial_on_the_host_equals_the_training_alone() -> None:
    pytest.importorskip("gymnasium")
    row = registry.find("ncapo")
    env = envs.make("CartPole-v1")
    frames = 4 * 32
    small = SMALL | {"gradient_steps": 2, "replay_rollouts": 64}
    config = override(row.settings.preset("default", env.name), small | {"horizon": frames})
    program = HostTrialsLearner(row.algorithm(config, env), env, ["gamma", "learning_rate", "epsilon_start"])
    other = {"gamma": 0.8, "learning_rate": 5e-3, "epsilon_start": 0.9}
    states = []
    for trial in ({}, other):
        learner = program.fork()
        states.append(learner.run(learner.start(trial, 3), 4)[0])
        learner.close()
    agent = row.agent("CartPole-v1", seed=3, **small, **other).learn(frames)
    alone = agent._states.groups[0].state
    agent.close()
    assert alone is not None
    assert largest_difference(states[1].params, alone.params) < TOLERANCE
    assert largest_difference(states[0].params, alone.params) > FAR
