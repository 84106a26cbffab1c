"""Rollouts whose frames stay on the device, beside the collector that keeps whole stacks on the host."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers_envs import Numbered

import capo
from capo import envs
from capo.envs.wrappers import wrap
from capo.errors import CapoError
from capo.neural.learners.frames import FrameCollector, next_stack
from capo.neural.learners.host import Collector
from capo.neural.parts import replay

N, T = 3, 16
TINY: dict[str, Any] = {"n_envs": N, "rollout_length": 8, "width": 8, "batch_size": 12, "epochs": 1}


def spec_of(env: Any, frames: int) -> replay.ReplaySpec:
    shape, dtype = env.observation_shape, env.observation_dtype
    return replay.spec_for(shape, dtype, True, n_envs=N, length=T, frames=frames)


def chosen(obs: Any, step: int) -> tuple[np.ndarray, np.ndarray]:
    """An action that depends on the whole stack, and something else that does."""
    weights = np.arange(1, obs.shape[-1] + 1)
    total = np.asarray(obs, np.float64) @ weights + step
    return (np.floor(np.abs(total) * 8) % 2).astype(np.int32), np.sin(total).astype(np.float32)


def on_frames(spec: replay.ReplaySpec, groups: int = 1) -> Any:
    def act(stack: Any, frame: Any, fresh: Any, turn: int) -> Any:
        stack = next_stack(spec, stack, frame, fresh)
        action, log_mu = chosen(np.asarray(stack), turn // groups)
        return stack, jnp.asarray(action), jnp.asarray(log_mu)

    return act


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("limit", [0, 7])
@pytest.mark.parametrize("name", ["Numbered-v0", "CartPole-v1", "FrozenLake-v1"])  # the last one's are bits
def test_the_same_rollouts_as_on_the_host(name: str, frames: int, limit: int) -> None:
    if "Numbered-v0" not in gymnasium.registry:
        gymnasium.register("Numbered-v0", Numbered)
    env = wrap(envs.make(name), 1, limit)
    stacked = wrap(envs.make(name), frames, limit)
    spec = spec_of(stacked, frames)
    Numbered.begun = 0
    collector = Collector(stacked.open(N), spec, seed=3)
    slow = [collector.collect(chosen, N) for _ in range(3)]
    Numbered.begun = 0
    ours = FrameCollector([env.open(N)], spec, seed=3)
    ended = 0.0
    for rollouts, episodes in slow:
        found, count = ours.collect(on_frames(spec))
        packed = replay.pack_rollouts(spec, rollouts)
        for field in packed._fields:
            np.testing.assert_array_equal(getattr(found, field), getattr(packed, field), err_msg=field)
        np.testing.assert_equal(count, episodes)
        ended += episodes["episodes"]
    assert ended > 1
    assert ours.steps == N * T


def test_groups_that_take_turns_give_the_rollouts_of_one_group() -> None:
    env = wrap(envs.make("CartPole-v1"), 1)
    spec = spec_of(wrap(env, 2), 2)
    one = FrameCollector([env.open(N)], spec, seed=3)
    two = FrameCollector([env.open(2), env.open(1)], spec, seed=3)
    for _ in range(2):
        (first, count), (second, other) = one.collect(on_frames(spec)), two.collect(on_frames(spec, 2))
        for field in first._fields:
            np.testing.assert_array_equal(getattr(first, field), getattr(second, field), err_msg=field)
        assert count["episodes"] == other["episodes"] > 0


def params_of(agent: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(agent._states.groups[0].state.params)]


def assert_same(ours: list[np.ndarray], others: list[np.ndarray]) -> None:
    for one, other in zip(ours, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("stack", [1, 2])
def test_acting_changes_nothing_where_python_steps_the_environments(stack: int) -> None:
    waits, acts = (
        capo.PPO("CartPole-v1", horizon=10_000, frame_stack=stack, overlap=overlap, **TINY).learn(2 * 8 * N)
        for overlap in ("none", "acting")
    )
    assert_same(params_of(waits), params_of(acts))


def test_overlap_is_checked() -> None:
    with pytest.raises(CapoError, match="unknown value of overlap 'learning'"):
        capo.PPO("CartPole-v1", overlap="learning")
