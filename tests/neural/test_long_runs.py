"""Runs of more than 2**31 and 2**32 frames and iterations, started just before."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers_shell import ENV, TINY, bits, metrics

import capo
from capo.neural.algorithms import registry
from capo.neural.algorithms.settings import override
from capo.neural.learners import host
from capo.neural.parts.iterations import ERA, Iteration, crosses, fold_in
from capo.runs.checkpoint import CheckpointStore

NUMBERS = [0, 1, 7, 2**24 + 1, ERA - 2, ERA - 1, ERA, ERA + 1, 2 * ERA - 1, 2 * ERA, 5 * ERA + 12345]
RNG = random.Random(0)
NUMBERS += [RNG.randrange(4 * ERA) for _ in range(20)]


def split(number: int) -> Iteration:
    return Iteration.number(number)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_are_pythons(number: int) -> None:
    iteration = split(number)
    for period in (1, 2, 3, 12, 1000, 2**16 + 1, ERA - 1):
        assert int(iteration % period) == number % period
        assert int((iteration + 1) % period) == (number + 1) % period
    for bound in (0, 5, ERA - 1):
        assert int(iteration.at_most(bound)) == min(number, bound)
    for first in (0, number - 1, number, number + 1, number + ERA, 10 * ERA):
        assert bool(iteration.reached(max(first, 0))) == (number >= max(first, 0))
    np.testing.assert_allclose(float(iteration.as_float()), number, rtol=1e-7)
    if number < ERA:
        assert iteration.as_float() == jnp.int32(number).astype(jnp.float32)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    ("step", "period"), [(16, 40), (16, 16), (64, 16), (512, 2**31 - 1), (1, 7), (800, 999_983)]
)
def test_what_is_due_every_so_many_frames(number: int, step: int, period: int) -> None:
    expected = (number + 1) * step // period > number * step // period
    assert bool(crosses(split(number), step, period)) == expected


def test_no_two_iterations_share_a_key() -> None:
    key = jax.random.PRNGKey(3)
    numbers = sorted({*NUMBERS, *range(20), *range(ERA, ERA + 20), *range(2 * ERA, 2 * ERA + 20)})
    keys = {tuple(np.asarray(split(number).fold_into(key)).tolist()) for number in numbers}
    assert len(keys) == len(numbers)
    np.testing.assert_array_equal(split(9).fold_into(key), jax.random.fold_in(key, 9))
    np.testing.assert_array_equal(fold_in(key, 9), jax.random.fold_in(key, 9))
    assert len({tuple(np.asarray(fold_in(key, n)).tolist()) for n in (0, 1, 2**32, 2**32 + 1, 2**33)}) == 5


# --- whole learners -------------------------------------------------------------------------------------------

COMMON: dict[str, Any] = {"n_envs": 4, "rollout_length": 2, "width": 8}
ROLLOUTS = COMMON | {"batch_size": 4, "gradient_steps": 1, "replay_rollouts": 12, "epsilon_start": 0.1}
ROLLOUTS |= {"epsilon_final": 0.1, "replay_clear_every": 5, "updates": "separate", "actor_every": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "ncapo": ROLLOUTS,
    "offpac": ROLLOUTS,
    "a2c": COMMON,
    "pqn": COMMON | {"batch_size": 8, "epochs": 1, "learning_rate_schedule": "constant", "epsilon_start": 0.05},
    "ppo": COMMON | {"batch_size": 8, "epochs": 1},
    "rainbow": COMMON
    | {"batch_size": 8, "gradient_steps": 1, "replay_transitions": 24, "learning_starts": 16, "target_every": 20}
    | {"atoms": 11, "hidden_layers": 1},
}
PERIOD = 60  # iterations after which replay, clearing, target network and actor are where they were
assert set(SETTINGS) == set(registry.ROWS)


def settings(algorithm: str, **more: Any) -> Any:
    return override(registry.find(algorithm).settings(), {**SETTINGS[algorithm], **more})


def moved(state: Any, iteration: int) -> Any:
    """The state as if so many iterations were behind it."""
    low = jnp.full_like(state.iteration, iteration % ERA)
    return replace(state, iteration=low, era=iteration // ERA)


@pytest.mark.parametrize("env", [ENV, "CartPole-v1"])
@pytest.mark.parametrize("algorithm", SETTINGS)
def test_crossing_changes_nothing_but_the_random_numbers(
    algorithm: str, env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same random numbers, a run across 2**31 iterations is that across 120, bit for bit."""
    monkeypatch.setattr(
        Iteration, "fold_into", lambda self, key: jax.random.fold_in(key, self % PERIOD), raising=True
    )
    if env != ENV:  # new episodes are seeded by where a run stands
        monkeypatch.setattr(host, "_position", lambda state: (1, state.reached % PERIOD))
        begin = host._begin_jitted  # jax keeps what it traced of a function: another one is traced anew
        monkeypatch.setattr(host, "_begin_jitted", lambda *given: begin(*given))
    learner = registry.learner_for(env, settings(algorithm), 1)
    first = PERIOD + (ERA - 3) % PERIOD
    found = []
    for start in (first, ERA - 3):
        learner.close()
        state, rows = learner.run(moved(learner.init([0]), start), 3)
        state, more = learner.run(state, 4)
        assert state.reached == start + 7
        found.append((jax.tree.leaves(moved(state, 0)), rows, more))
    for one, other in zip(*(leaves for leaves, _, _ in found), strict=True):
        np.testing.assert_array_equal(one, other)
    for part in (1, 2):
        assert found[0][part].keys() == found[1][part].keys()
        for name in found[0][part]:
            np.testing.assert_array_equal(found[0][part][name], found[1][part][name], err_msg=name)
    assert (found[1][2]["finite"] == 1).all()


@pytest.mark.parametrize("frames", [2**31, 2**32])
@pytest.mark.parametrize("algorithm", SETTINGS)
def test_schedules_past_a_word(algorithm: str, frames: int) -> None:
    config = settings(algorithm, horizon=2 * frames, learning_rate_schedule="linear")
    if hasattr(config, "epsilon_start"):
        config = override(config, {"epsilon_start": 0.9, "epsilon_final": 0.1, "epsilon_fraction": 1.0})
    learner = registry.learner_for(ENV, config, 1)
    start = frames // learner.frames_per_iteration - 2
    state, rows = learner.run(moved(learner.init([0]), start), 4)
    assert state.reached == start + 4
    assert (rows["finite"] == 1).all()
    np.testing.assert_allclose(rows["learning_rate"][:, 0], config.learning_rate / 2, rtol=1e-6)
    if "epsilon" in rows:
        np.testing.assert_allclose(rows["epsilon"][:, 0], 0.5, rtol=1e-6)
    if "learned" in rows:
        assert (rows["learned"] == 1).all()


@pytest.mark.parametrize("env", [ENV, "CartPole-v1"])
@pytest.mark.parametrize("frames", [2**31, 2**32])
def test_a_run_past_a_word_is_logged_checkpointed_and_resumed(env: str, frames: int, tmp_path: Path) -> None:
    def stop_after(frames: int) -> Any:
        return lambda _, rows: rows[0]["frames"] < frames

    def begin(out: Path) -> capo.NCAPO:
        single = TINY | {"n_envs": 1, "rollout_length": 1, "horizon": 9 * ERA}
        agent = capo.NCAPO(env, out=out, log_every=32, **single)
        agent._states.start(agent.learner)
        group = agent._states.groups[0]
        group.iteration = frames - 64
        group.state = moved(group.state, frames - 64)
        return agent

    out, reference = tmp_path / "run", tmp_path / "reference"
    begin(out).learn(128, callback=stop_after(frames))
    agent = capo.NCAPO.resume(out)
    assert (agent.frames, agent.frames_left) == (frames, 64)
    assert agent._states.groups[0].state.era == frames // ERA  # type: ignore[union-attr]
    agent.learn(64)
    assert [row["frames"] for row in metrics(out)] == [str(frames + step) for step in (-32, 0, 32, 64)]
    assert (out / "checkpoints" / f"checkpoint-{frames + 64:012d}.safetensors").exists()
    whole = begin(reference).learn(128)
    if env == ENV:
        assert bits(agent) == bits(whole)
        assert metrics(out) == metrics(reference)
    assert whole.evaluate(2).frames == frames + 64


@pytest.mark.parametrize("frames", [2_200_000_000, 5_000_000_000])
def test_more_frames_than_a_word_holds_can_be_asked_for(frames: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    agent = capo.NCAPO(ENV, out=out, log_every=160, **TINY)
    agent.learn(frames, callback=lambda *_: False)
    assert agent.config.horizon >= frames
    resumed = capo.NCAPO.resume(out)
    assert resumed.frames_left >= frames - 160
    resumed.learn(resumed.frames_left, callback=lambda *_: False)
    assert resumed.frames == 320


def test_checkpoints_are_ordered_by_their_frames(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for frames in (10**12 - 1, 10**12, 10**13):
        store.save(frames, {"x": np.zeros(1)}, {})
    assert [path.name for path in store.paths()] == [
        "checkpoint-1000000000000.safetensors",
        "checkpoint-10000000000000.safetensors",
    ]
    found = store.load()
    assert found is not None
    assert found.path.name == "checkpoint-10000000000000.safetensors"


@pytest.mark.parametrize(("algorithm", "name"), [("rainbow", "target_every"), ("ncapo", "actor_every")])
def test_periods_have_a_bound(algorithm: str, name: str) -> None:
    with pytest.raises(capo.CapoError, match=f"{name}=2147483648 must be between 1 and 2147483647"):
        settings(algorithm, **{name: 2**31})
    with pytest.raises(capo.CapoError, match=r"horizon=1000.* must be at least 1"):
        settings(algorithm, horizon=10**400)
    assert math.isfinite(settings(algorithm, horizon=10**30).horizon)
