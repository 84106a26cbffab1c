"""Rainbow part by part: projection, priorities, noise, n-step returns, and each part switched off."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from helpers_envs import Numbered

import capo
from capo.errors import CapoError
from capo.neural.algorithms import rainbow
from capo.neural.algorithms.rainbow import RainbowConfig
from capo.neural.algorithms.registry import learner_for
from capo.neural.parts import noisy, transitions
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.replay import ReplaySpec, Rollout
from capo.neural.trainer import Plan, Trainer
from capo.progress import Ticker

# The projection -------------------------------------------------------------------------------------------


def plain_projection(points: Any, weights: Any, atoms: Any) -> Any:
    """Point by point: find its two neighbours and share its mass by nearness."""
    mass = np.zeros(len(atoms))
    for point, weight in zip(points, weights, strict=True):
        point = min(max(point, atoms[0]), atoms[-1])
        position = (point - atoms[0]) / (atoms[1] - atoms[0])
        low = min(int(position), len(atoms) - 2)
        mass[low] += weight * (1 - (position - low))
        mass[low + 1] += weight * (position - low)
    return mass


def test_projection_against_a_plain_version() -> None:
    rng = np.random.default_rng(0)
    atoms = np.linspace(-3, 5, 17)
    points = rng.normal(0, 6, (20, 17))
    points[0] = atoms  # exactly on the atoms
    weights = rng.dirichlet(np.ones(17), 20)
    found = rainbow.project(jnp.asarray(points), jnp.asarray(weights), jnp.asarray(atoms, jnp.float32))
    expected = [plain_projection(p, w, atoms) for p, w in zip(points, weights, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(found[0], weights[0], atol=1e-5)


def test_projection_keeps_the_mean_inside() -> None:
    rng = np.random.default_rng(1)
    atoms = np.linspace(-10, 10, 11)
    points, weights = rng.uniform(-10, 10, 30), rng.dirichlet(np.ones(30))
    found = rainbow.project(jnp.asarray(points), jnp.asarray(weights), jnp.asarray(atoms, jnp.float32))
    np.testing.assert_allclose(found @ atoms, points @ weights, atol=1e-4)


# Priorities -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 50, 1000])
def test_drawing_is_in_proportion_to_the_priorities(n: int) -> None:
    """Against what a plain sampler (numpy's choice) is expected to do, within five standard deviations."""
    rng = np.random.default_rng(n)
    priority = rng.exponential(size=n) ** 3
    priority[rng.random(n) < 0.3] = 0
    priority[0] = 1.0
    probability = priority / priority.sum()
    draws, batch = 2000, 32
    uniform = jax.random.uniform(jax.random.PRNGKey(0), (draws, batch))
    index, chance = jax.vmap(transitions.draw, in_axes=(None, 0))(jnp.asarray(priority, jnp.float32), uniform)
    counts = np.bincount(np.asarray(index).reshape(-1), minlength=n)
    expected = draws * batch * probability
    # Strata only make the counts steadier than independent draws are.
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected) + 1).all()
    assert (counts[priority == 0] == 0).all()
    np.testing.assert_allclose(chance, probability[np.asarray(index)], rtol=1e-4)


def test_drawing_never_ends_on_a_zero() -> None:
    """Points at the very end of the sum, where rounding could step beyond the last entry that counts."""
    priority = np.zeros(10_000, np.float32)
    priority[:7_000:3] = 1e-3
    priority[6_999] = 1e-7
    uniform = jax.random.uniform(jax.random.PRNGKey(1), (500, 64)).at[:, -1].set(1 - 2**-24)
    index, _ = jax.vmap(transitions.draw, in_axes=(None, 0))(jnp.asarray(priority), uniform)
    assert (priority[np.asarray(index)] > 0).all()


def test_drawing_covers_all_strata() -> None:
    """One draw from each of 100 equal parts of 100 equal priorities is every entry once."""
    index, _ = transitions.draw(jnp.ones(100), jax.random.uniform(jax.random.PRNGKey(0), (100,)))
    assert len(set(np.asarray(index).tolist())) >= 98  # the ends of parts may round to the neighbour


# The ring -------------------------------------------------------------------------------------------------

GAMMA, N = 0.5, 3


def play(steps: int, n_envs: int, seed: int) -> dict[str, Any]:
    """Random episodes: observations are numbered, so that every one is known; ends of both kinds."""
    rng = np.random.default_rng(seed)
    end = rng.random((steps, n_envs))
    obs = np.arange(steps * n_envs).reshape(steps, n_envs) * 1.0
    return {
        "obs": obs,
        "final": obs + 0.5,
        "reward": rng.normal(size=(steps, n_envs)),
        "action": rng.integers(0, 4, (steps, n_envs)),
        "terminated": end < 0.15,
        "truncated": (end >= 0.15) & (end < 0.3),
    }


def plain_n_step(played: dict[str, Any], t: int, e: int) -> tuple[float, float, float]:
    """Return, discount and next observation, by walking."""
    total, discount = 0.0, 1.0
    for k in range(N):
        total += discount * played["reward"][t + k, e]
        discount *= GAMMA
        if played["terminated"][t + k, e]:
            return total, 0.0, float("nan")
        if played["truncated"][t + k, e]:
            return total, discount, played["final"][t + k, e]
    return total, discount, played["obs"][t + N, e]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_n_step_returns_across_episode_ends_and_the_rings_seam(length: int) -> None:
    n_envs, iterations = 3, 40 // length
    inside = ReplaySpec(n_envs, 1, 0, length, length, (1,), np.dtype(np.float32))
    spec = transitions.spec_for(inside, 20 * n_envs, N)
    assert spec.steps == 20
    played = play(iterations * length, n_envs, length)
    ring = transitions.empty(spec)
    for i in range(iterations):
        now = slice(i * length, (i + 1) * length)
        both = np.concatenate([played["obs"][now], played["final"][now]])
        rows = {name: jnp.asarray(played[name][now].T) for name in ("action", "reward", "terminated", "truncated")}
        rollouts = Rollout(obs=jnp.asarray(both.T[..., None], jnp.float32), log_mu=rows["reward"], **rows)
        ring = transitions.add(spec, ring, rollouts, Iteration.number(i))
        end = (i + 1) * length
        # Exactly the steps whose returns are complete can be drawn.
        times = np.arange(max(0, end - spec.steps), end)
        ready = np.asarray(ring.priority)[times % spec.steps] > 0
        np.testing.assert_array_equal(ready, np.repeat((times < end - N)[:, None], n_envs, axis=1))
        assert (np.asarray(ring.priority) > 0).sum() == max(min(end, spec.steps) - N, 0) * n_envs
    checked = {"terminated": 0, "truncated": 0}
    for t in range(end - spec.steps, end - N):
        for e in range(n_envs):
            batch = transitions.take(spec, ring, jnp.array([t % spec.steps * n_envs + e]), GAMMA)
            total, discount, beyond = plain_n_step(played, t, e)
            np.testing.assert_allclose(batch.returns[0], total, atol=1e-5)
            np.testing.assert_allclose(batch.discount[0], discount, atol=1e-6)
            assert batch.obs[0, 0] == played["obs"][t, e]
            assert batch.action[0] == played["action"][t, e]
            if discount:
                assert batch.next_obs[0, 0] == beyond
            checked["terminated"] += discount == 0
            checked["truncated"] += discount != 0 and beyond % 1 == 0.5
    assert min(checked.values()) > 3


def test_new_transitions_get_the_largest_priority() -> None:
    inside = ReplaySpec(2, 1, 0, 4, 1, (1,), np.dtype(np.float32))
    spec = transitions.spec_for(inside, 24, 1)
    rows = jnp.zeros((2, 4))
    rollouts = Rollout(jnp.zeros((2, 5, 1)), rows.astype(int), rows, rows > 0, rows > 0, rows)
    ring = transitions.add(spec, transitions.empty(spec), rollouts, Iteration.number(0))
    ring = transitions.prioritise(ring, jnp.array([0, 3]), jnp.array([7.0, 0.5]))
    assert float(ring.largest) == 7
    ring = transitions.add(spec, ring, rollouts, Iteration.number(1))
    priority = np.asarray(ring.priority).reshape(-1)
    assert priority[[0, 3, 1, 2]].tolist() == [7, 0.5, 1, 1]
    assert (priority[6:14] == 7).all()  # the step that was incomplete before, and the new ones
    assert (priority[14:] == 0).all()


# Noise ----------------------------------------------------------------------------------------------------


def test_noisy_layers_have_the_right_statistics() -> None:
    """E f(e) = 0 and E f(e)^2 = E|e| = sqrt(2/pi): the deviation is sigma times that root, for the bias too."""
    layer = noisy.init(np.random.default_rng(0), 4, 3, 0.5)
    assert np.abs(layer["kernel"]).max() <= 0.5
    np.testing.assert_allclose(layer["kernel_sigma"], 0.25)
    params = {"body": {"dense": [layer]}, "plain": {"kernel": np.ones((2, 2)), "bias": np.ones(2)}}
    noise = noisy.draw(params, jax.random.PRNGKey(0), (20_000,))
    assert noise.shape == (20_000, 7)
    draws = jax.vmap(noisy.perturb, in_axes=(None, 0))(params, noise)
    drawn = draws["body"]["dense"][0]
    assert set(drawn) == {"kernel", "bias"}
    np.testing.assert_allclose(drawn["kernel"].mean(axis=0), layer["kernel"], atol=0.01)
    np.testing.assert_allclose(drawn["kernel"].std(axis=0), 0.25 * np.sqrt(2 / np.pi), rtol=0.03)
    np.testing.assert_allclose(drawn["bias"].std(axis=0), 0.25 * (2 / np.pi) ** 0.25, rtol=0.03)
    # Factorised: the noise of a kernel has rank one.
    noise = np.asarray(drawn["kernel"][0] - layer["kernel"])
    assert np.linalg.matrix_rank(noise, tol=1e-5) == 1
    np.testing.assert_array_equal(draws["plain"]["kernel"][0], np.ones((2, 2)))
    two = {"a": layer, "b": layer}
    each = noisy.perturb(two, noisy.draw(two, jax.random.PRNGKey(0), ()))
    assert not np.allclose(each["a"]["kernel"], each["b"]["kernel"])


def test_noise_explores_while_training_and_is_off_in_play() -> None:
    config = RainbowConfig(n_envs=8, rollout_length=4, width=16, learning_starts=10**6, noisy_sigma=2.0)
    learner = learner_for("probe-both", config, 1)
    state, metrics = learner.run(learner.init([0]), 5)
    actions = np.asarray(state.replay.action[0])[:20]
    assert 0.1 < actions.mean() < 0.9  # nothing was learnt, yet both actions were taken
    assert metrics["critic_loss"].max() == 0
    params = learner.policy_params(state, 0)
    obs = np.ones((50, 1), np.float32)
    taken = {tuple(learner.act(params, obs, jax.random.PRNGKey(i)).tolist()) for i in range(5)}
    assert len(taken) == 1


@pytest.mark.parametrize("given", ["id", "one environment", "SameStep", "NextStep", "Disabled"])
def test_n_step_returns_stay_within_an_episode_of_a_gymnasium_environment(given: str) -> None:
    if given == "id":
        gymnasium.register("Numbered-v0", entry_point=Numbered)
        env: Any = "Numbered-v0"
    elif given == "one environment":
        env = Numbered()
    else:
        env = gymnasium.vector.SyncVectorEnv([Numbered] * 4, autoreset_mode=AutoresetMode(given))
    config = RainbowConfig(n_envs=4, rollout_length=4, n_step=3, width=8, learning_starts=10**6)
    learner = learner_for(env, config, 1)
    state, _ = learner.run(learner.init([0]), 30)
    restarted = learner_for(env, config, 1)  # as after a resume: with new episodes
    state, _ = restarted.run(state, 30)
    ring = jax.tree.map(lambda leaf: leaf[0], state.replay)
    index = np.flatnonzero(ring.priority)
    assert len(index) == 4 * (60 * 4 - 3)
    found = transitions.take(learner.algorithm.ring, ring, index, config.gamma)
    steps = (found.next_obs - found.obs)[:, 1]
    for k in (1, 2, 3):  # rewards are the numbers of the steps
        mine = (found.discount > 0) & (steps == k)
        np.testing.assert_array_equal(found.obs[mine, 0], found.next_obs[mine, 0])
        np.testing.assert_allclose(found.discount[mine], config.gamma**k, rtol=1e-5)
        rewards = found.obs[mine, 1:] + 1 + np.arange(k)
        np.testing.assert_allclose(found.returns[mine], rewards @ config.gamma ** np.arange(k), rtol=1e-4)
    alive = found.discount > 0
    assert set(np.unique(steps[alive])) <= {1, 2, 3}
    assert np.mean(steps[alive] == 3) > (0.9 if given in ("id", "SameStep", "Disabled") else 0.4)


# The whole ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", ["n_step", "distributional", "double", "dueling", "noisy", "prioritised"])
def test_it_learns_without_any_one_part(off: str) -> None:
    """The reward comes one step after the choice that earns it."""

    class Choice:
        name, n_actions, observation_shape, observation_dtype, truncates = "choice", 2, (1,), np.float32, False

        def reset(self, key: Any) -> tuple[Any, Any]:
            del key
            return jnp.float32(0), jnp.zeros(1)

        def step(self, key: Any, env_state: Any, action: Any) -> tuple[Any, ...]:
            del key
            first = env_state == 0
            after = jnp.where(action == 1, 1.0, -1.0)
            reward = jnp.where(first, 0.0, env_state)
            return (
                jnp.where(first, after, 2.0),
                jnp.where(first, after, 2.0)[None],
                reward,
                ~first,
                jnp.bool_(False),
            )

    settings: dict[str, Any] = {off: 1 if off == "n_step" else False}
    if off == "noisy":
        settings |= {"epsilon_start": 0.2, "epsilon_final": 0.2}
    config = RainbowConfig(
        horizon=6_000, n_envs=8, rollout_length=4, gradient_steps=8, replay_transitions=2000, learning_starts=100,
        target_every=200, gamma=0.9, learning_rate=3e-3, optimiser_epsilon=1e-5, width=16, atoms=21, v_min=-2.0,
        v_max=2.0, **settings,
    )  # fmt: skip
    learner = learner_for(Choice(), config, 1)
    state, metrics = learner.run(learner.init([0]), config.horizon // learner.frames_per_iteration)
    params = learner.policy_params(state, 0)
    assert learner.evaluate(state.params, jax.random.PRNGKey(0)[None], 10).mean() == 1.0
    q = np.asarray(learner.algorithm.action_scores(params, jnp.array([[0.0], [1.0]])))
    np.testing.assert_allclose(q.max(axis=-1), [0.9, 1.0], atol=0.12)
    assert np.isfinite(metrics["critic_loss"]).all()


@pytest.mark.parametrize(
    ("value", "settings", "said"),
    [
        (0.49, {"v_min": -0.5, "v_max": 0.5}, True),
        (-0.49, {"v_min": -0.5, "v_max": 0.5}, True),
        (0.0, {"v_min": -0.5, "v_max": 0.5}, False),
        (0.0, {"v_min": 0.0, "v_max": 2.0}, False),  # nothing learnt yet, or nothing to gain
        (9.0, {"v_min": -0.5, "v_max": 0.5, "distributional": False}, False),
    ],
)
def test_values_at_the_end_of_the_atoms_are_said(value: float, settings: dict[str, Any], said: bool) -> None:
    agent = capo.Rainbow("probe-constant", width=8, **settings)
    trainer = Trainer(Plan(agent.config, 1, 1), agent.learner, agent._states, Ticker())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            trainer._warn_of_range([{"seed": 3, "value": value}])
    assert [str(warning.message).startswith("seed 3: the mean value is ") for warning in caught] == [True] * said


def test_before_learning_starts_there_is_no_loss_to_log() -> None:
    """Neither a zero, nor one in the mean of the iterations that did learn."""
    rows: list[dict[str, float]] = []
    settings: dict[str, Any] = {"n_envs": 4, "rollout_length": 4, "replay_transitions": 200, "width": 8}
    settings |= {"gradient_steps": 2, "batch_size": 8, "learning_starts": 48}
    agent = capo.Rainbow("probe-both", log_every=32, **settings)
    agent.learn(96, callback=lambda _, new: rows.extend(new))
    assert [row["frames"] for row in rows] == [32, 64, 96]
    assert [np.isfinite(row["critic_loss"]) for row in rows] == [False, True, True]
    assert rows[1]["critic_loss"] > 0.5 * rows[2]["critic_loss"]
    assert rows[1]["grad_norm"] > 0


def test_returns_far_below_zero_are_within_the_default() -> None:
    assert RainbowConfig.preset("default", "Acrobot-v1").v_min <= -100


def test_the_support_has_to_be_one() -> None:
    with pytest.raises(CapoError, match="below v_max"):
        RainbowConfig(v_min=1.0, v_max=1.0)
