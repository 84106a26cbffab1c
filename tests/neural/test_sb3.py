"""A2C and PPO against Stable-Baselines3 itself: same weights, same steps, same advantages, loss and gradients."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from capo import envs
from capo.neural.algorithms import a2c, ppo
from capo.neural.algorithms.a2c import A2CAlgorithm, A2CConfig
from capo.neural.algorithms.ppo import PPOAlgorithm, PPOConfig
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.replay import Rollout

with contextlib.suppress(ImportError):  # `make oracles` installs them; elsewhere these tests are deselected
    import stable_baselines3 as sb3
    import torch

pytestmark = pytest.mark.oracle

ENVS, STEPS, WIDTH = 4, 24, 16
CLOSE: dict[str, float] = {"rtol": 1e-5, "atol": 1e-5}


class Recorder(gymnasium.Wrapper):  # type: ignore[misc]
    """Notes every step as it was, before a vector environment resets anything."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.steps: list[tuple[Any, ...]] = []

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        self.last = obs
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps.append((self.last, obs, int(action), float(reward), terminated, truncated))
        self.last = obs
        return obs, reward, terminated, truncated, info


def short_cartpole() -> Recorder:
    """Cut off after 9 steps: most episodes are truncated, some fall before that."""
    return Recorder(gymnasium.make("CartPole-v1", max_episode_steps=9))


def to_params(policy: Any) -> dict[str, Any]:
    """Stable-Baselines3's weights (or their gradients, if ``policy`` maps names to them) as our tree."""
    named = policy if isinstance(policy, dict) else dict(policy.state_dict())

    def layer(name: str) -> dict[str, Any]:
        weight, bias = named[f"{name}.weight"], named[f"{name}.bias"]
        return {"kernel": weight.detach().numpy().T.copy(), "bias": bias.detach().numpy().copy()}

    def network(kind: str, head: str) -> dict[str, Any]:
        dense = [layer(f"mlp_extractor.{kind}_net.{i}") for i in (0, 2)]
        return {"body": {"dense": dense}, "head": layer(head)}

    return {"actor": network("policy", "action_net"), "critic": network("value", "value_net")}


def rollouts_of(model: Any, recorders: list[Recorder]) -> Rollout:
    columns = [list(zip(*recorder.steps[-STEPS:], strict=True)) for recorder in recorders]
    obs, successor, action, reward, terminated, truncated = (
        np.stack([np.asarray(column[i]) for column in columns]) for i in range(6)
    )
    return Rollout(
        obs=jnp.asarray(np.concatenate([obs, successor], axis=1)),
        action=jnp.asarray(action, jnp.int32),
        reward=jnp.asarray(reward, jnp.float32),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated & ~terminated),
        log_mu=jnp.asarray(model.rollout_buffer.log_probs.T),
    )


def collect(model_class: Any, policy: dict[str, Any], **settings: Any) -> tuple[Any, Rollout]:
    """A model of Stable-Baselines3 with its buffer filled by itself, and the same steps as our rollouts."""
    vector = sb3.common.vec_env.DummyVecEnv([short_cartpole] * ENVS)
    model = model_class(
        "MlpPolicy",
        vector,
        n_steps=STEPS,
        seed=0,
        device="cpu",
        policy_kwargs={"net_arch": {"pi": [WIDTH, WIDTH], "vf": [WIDTH, WIDTH]}} | policy,
        **settings,
    )
    _, callback = model._setup_learn(10 * ENVS * STEPS)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, STEPS)
    model._update_current_progress_remaining(ENVS * STEPS, 10 * ENVS * STEPS)
    return model, rollouts_of(model, vector.envs)


def shifted(model: Any) -> None:
    """Move the weights a little, so that the ratio of new to old probability is not 1 everywhere."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def train(model: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """One pass of Stable-Baselines3's own train(): the gradients before its step, and what it logged."""
    seen: dict[str, Any] = {}
    step = model.policy.optimizer.step

    def record(*args: Any, **kwargs: Any) -> Any:
        seen.update({name: p.grad.clone() for name, p in model.policy.named_parameters()})
        return step(*args, **kwargs)

    model.policy.optimizer.step = record
    model.train()
    return to_params(seen), dict(model.logger.name_to_value)


def compare(ours: Any, theirs: Any) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(ours)
    others = jax.tree_util.tree_leaves(theirs)
    assert len(leaves) == len(others)
    for (path, mine), other in zip(leaves, others, strict=True):
        np.testing.assert_allclose(mine, other, **CLOSE, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("limit", [1e6, 0.05], ids=["whole", "clipped"])
@pytest.mark.parametrize("value_clip", [0.0, 0.05])
def test_ppo(limit: float, value_clip: float) -> None:
    size = ENVS * STEPS
    model, rollouts = collect(
        sb3.PPO,
        {},
        batch_size=size,
        n_epochs=1,
        gamma=0.97,
        gae_lambda=0.9,
        clip_range=lambda left: 0.1 * left,
        clip_range_vf=value_clip or None,
        ent_coef=0.02,
        vf_coef=0.4,
        max_grad_norm=limit,
        learning_rate=lambda left: 1e-3 * left,
    )
    assert bool(rollouts.truncated.any())
    config = PPOConfig(
        horizon=10 * size, n_envs=ENVS, rollout_length=STEPS, batch_size=size, epochs=1, gamma=0.97,
        gae_lambda=0.9, clip=0.1, clip_schedule="linear", clip_value=value_clip, entropy=0.02,
        critic_coefficient=0.4, max_grad_norm=limit, learning_rate=1e-3, learning_rate_schedule="linear",
        width=WIDTH,
    )  # fmt: skip
    algorithm: Any = PPOAlgorithm(config, envs.make("CartPole-v1"))
    batch = algorithm.batch(to_params(model.policy), rollouts)
    buffer = model.rollout_buffer
    np.testing.assert_allclose(batch.advantage, buffer.advantages.T.reshape(-1), **CLOSE)
    np.testing.assert_allclose(batch.returns, buffer.returns.T.reshape(-1), **CLOSE)
    np.testing.assert_allclose(batch.value, buffer.values.T.reshape(-1), **CLOSE)

    shifted(model)
    params = to_params(model.policy)
    clip = 0.1 * 0.9
    (loss, parts), grads = jax.value_and_grad(
        lambda p: ppo.loss(config, algorithm.network, p, batch, config.entropy, clip), has_aux=True
    )(params)
    theirs, logged = train(model)
    assert 0.1 < float(parts["clip_fraction"]) < 0.9  # both sides of the clip were taken
    np.testing.assert_allclose(loss, logged["train/loss"], **CLOSE)
    np.testing.assert_allclose(parts["actor_loss"], logged["train/policy_gradient_loss"], **CLOSE)
    np.testing.assert_allclose(parts["critic_loss"], logged["train/value_loss"], **CLOSE)
    np.testing.assert_allclose(parts["entropy"], -logged["train/entropy_loss"], **CLOSE)
    np.testing.assert_allclose(parts["clip_fraction"], logged["train/clip_fraction"], **CLOSE)
    np.testing.assert_allclose(parts["approximate_kl"], logged["train/approx_kl"], **CLOSE)
    check_step(algorithm, params, grads, theirs, model, limit)


@pytest.mark.parametrize("limit", [1e6, 0.05], ids=["whole", "clipped"])
@pytest.mark.parametrize(("normalise", "optimiser"), [(False, "rmsprop"), (True, "rmsprop-tf")])
def test_a2c(limit: float, normalise: bool, optimiser: Any) -> None:
    from stable_baselines3.common.sb2_compat import rmsprop_tf_like as compat

    tensorflow = {
        "optimizer_class": compat.RMSpropTFLike,
        "optimizer_kwargs": {"alpha": 0.99, "eps": 1e-5},
    }
    model, rollouts = collect(
        sb3.A2C,
        tensorflow if optimiser == "rmsprop-tf" else {},
        gamma=0.97,
        gae_lambda=0.9,
        ent_coef=0.02,
        vf_coef=0.4,
        max_grad_norm=limit,
        normalize_advantage=normalise,
        learning_rate=lambda left: 1e-3 * left,
    )
    config = A2CConfig(
        horizon=10 * ENVS * STEPS, n_envs=ENVS, rollout_length=STEPS, gamma=0.97, gae_lambda=0.9, entropy=0.02,
        critic_coefficient=0.4, max_grad_norm=limit, normalise_advantage=normalise, optimiser=optimiser,
        learning_rate=1e-3, learning_rate_schedule="linear", width=WIDTH,
    )  # fmt: skip
    algorithm: Any = A2CAlgorithm(config, envs.make("CartPole-v1"))
    params = to_params(model.policy)
    batch = algorithm.batch(params, rollouts)
    grads, parts = jax.grad(lambda p: a2c.loss(config, algorithm.network, p, batch, config.entropy), has_aux=True)(
        params
    )
    theirs, logged = train(model)
    np.testing.assert_allclose(parts["actor_loss"], logged["train/policy_loss"], **CLOSE)
    np.testing.assert_allclose(parts["critic_loss"], logged["train/value_loss"], **CLOSE)
    np.testing.assert_allclose(parts["entropy"], -logged["train/entropy_loss"], **CLOSE)
    check_step(algorithm, params, grads, theirs, model, limit)


def check_step(algorithm: Any, params: Any, grads: Any, theirs: Any, model: Any, limit: float) -> None:
    """The gradient that reaches the optimiser, and the weights after its step."""
    norm = float(jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads))))
    assert norm > 0.05  # so that the small limit is one
    factor = min(limit / (norm + 1e-6), 1.0)
    compare(jax.tree.map(lambda g: g * factor, grads), theirs)
    rate = algorithm.learning_rate(Iteration.number(0))
    np.testing.assert_allclose(rate, 9e-4, rtol=1e-6)
    after, _, _ = algorithm.descend(params, algorithm.init_optimiser(params), rate, grads, {})
    compare(after, to_params(model.policy))


def test_the_first_weights_have_the_same_scales() -> None:
    """Orthogonal, with the gains of Stable-Baselines3: singular values do not depend on the draw."""
    model, _ = collect(sb3.PPO, {}, batch_size=ENVS * STEPS)
    config = PPOConfig(n_envs=ENVS, rollout_length=STEPS, batch_size=ENVS * STEPS, width=WIDTH)
    ours = PPOAlgorithm(config, envs.make("CartPole-v1")).init_params(np.random.default_rng(0))
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(to_params(model.policy)), strict=True):
        assert mine.shape == other.shape
        if mine.ndim == 2:
            np.testing.assert_allclose(*(np.linalg.svd(x)[1] for x in (mine, other)), **CLOSE)
