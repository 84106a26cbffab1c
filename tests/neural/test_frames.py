"""Rollouts whose frames stay on the device, beside the collector that keeps whole stacks on the host."""

from __future__ import annotations

from pathlib import Path
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
from capo.neural.learners.host import Collector, HostLearner
from capo.neural.parts import replay

N, T = 3, 16
TINY = {"n_envs": N, "rollout_length": 8, "width": 8, "batch_size": 12, "epochs": 1}


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


def params_of(agent: Any, name: str = "params") -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(getattr(agent._states.groups[0].state, name))]


def assert_same(ours: list[np.ndarray], others: list[np.ndarray]) -> None:
    for one, other in zip(ours, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("stack", [1, 2])
def test_actions_one_iteration_behind(stack: int, tmp_path: Path) -> None:
    """The first iteration is as without; the second acts with the networks from before the first."""

    def new(**more: Any) -> Any:
        return capo.PPO("CartPole-v1", horizon=10_000, frame_stack=stack, **TINY, **more)

    length = 8 * N
    usual, behind = new(), new(overlap="learning")
    assert isinstance(behind.learner, HostLearner)
    usual.learn(length)
    first = params_of(usual)
    behind.learn(length)
    assert_same(params_of(behind), first)
    again = new(overlap="learning")
    again.learn(2 * length)
    acting = params_of(again, "behind")
    assert acting
    # What acts next is the policy after the first iteration, not after the second.
    before = behind.learner.algorithm.acting_params(behind._states.groups[0].state.params)
    assert_same(acting, [np.asarray(leaf) for leaf in jax.tree.leaves(before)])
    usual.learn(length)
    assert any((one != other).any() for one, other in zip(params_of(usual), params_of(again), strict=True))
    loaded = capo.PPO.load(again.save(tmp_path / "agent"))
    assert_same(params_of(loaded, "behind"), acting)
    assert loaded.config.overlap == "learning"


def test_a_run_that_is_behind_does_not_depend_on_when_it_pauses() -> None:
    settings: dict[str, Any] = TINY | {"overlap": "learning", "horizon": 10_000}
    twice = capo.PPO("CartPole-v1", **settings)
    twice.learn(8 * N)
    twice.learn(8 * N)
    once = capo.PPO("CartPole-v1", **settings).learn(16 * N)
    for name in ("params", "behind"):
        assert_same(params_of(twice, name), params_of(once, name))


def test_overlap_is_checked() -> None:
    with pytest.raises(CapoError, match="unknown value of overlap 'both'"):
        capo.PPO("CartPole-v1", overlap="both")
