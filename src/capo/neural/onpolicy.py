"""What A2C and PPO share: generalised advantages, the actor-critic pair with a state value, batches of steps.

The meaning of every piece is Stable-Baselines3's, so that results can be compared with it number by number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from capo.neural import networks
from capo.neural.algorithm import Algorithm, At, Metrics, global_norm, linear
from capo.neural.networks import NetworkSpec, Params
from capo.neural.replay import Rollout

Array = Any
PyTree = Any
UNROLL = 64  # a scan pays for every step on a GPU


class Batch(NamedTuple):
    """Steps to learn from, in no particular order."""

    obs: Array  # (N, *observation_shape)
    action: Array  # (N,) int32
    log_mu: Array  # (N,) log-probability of the action when it was taken
    advantage: Array  # (N,)
    returns: Array  # (N,) what the value is regressed on: advantage + value
    value: Array  # (N,) the critic's value when the batch was made


def gae(
    *,
    reward: Array,
    terminated: Array,
    truncated: Array,
    value: Array,
    v_next: Array,
    gamma: float,
    lam: float,
) -> Array:
    """Generalised advantage estimates.

        delta_t = r_t + gamma * V(s_t+1) - V(s_t),   A_t = delta_t + gamma * lambda * A_t+1

    V(s_t+1) is 0 where the episode terminated, and the value of its final observation where it was truncated;
    A_t+1 is 0 at every episode end and after the last step.

    Args:
        reward: (..., T).
        terminated: (..., T) 1 where the episode ended for good with step t.
        truncated: (..., T) 1 where it was cut off after step t.
        value: (..., T) V(s_t).
        v_next: (..., T) V of the observation that step t led to, before any reset.
        gamma: the discount.
        lam: lambda; 1 gives returns minus values, 0 one-step advantages.

    Returns:
        (..., T) the advantages A_t.

    >>> one = jnp.ones((1, 2))
    >>> gae(reward=one, terminated=0 * one, truncated=0 * one, value=0 * one, v_next=2 * one, gamma=0.5,
    ...     lam=0.5).tolist()  # delta = 2 twice; 2 + 0.25 * 2
    [[2.5, 2.0]]
    """
    delta = reward + gamma * (1.0 - terminated) * v_next - value
    carry = gamma * lam * (1.0 - terminated) * (1.0 - truncated)

    def backward(after: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        advantage = step[0] + step[1] * after
        return advantage, advantage

    steps = (jnp.moveaxis(delta, -1, 0), jnp.moveaxis(carry, -1, 0))
    start = jnp.zeros_like(delta[..., 0])
    _, advantage = jax.lax.scan(backward, start, steps, reverse=True, unroll=min(UNROLL, delta.shape[-1]))
    return jnp.moveaxis(advantage, 0, -1)


def normalised(advantage: Array) -> Array:
    """Advantages of mean 0 and deviation 1; a single one as it is."""
    if advantage.size == 1:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)


def policy_and_value(spec: NetworkSpec, params: Params, obs: Array, action: Array) -> tuple[Array, Array, Array]:
    """log pi(a|s), the entropy of pi(.|s) and V(s) of a batch, (N,) each."""
    logits, value, _ = networks.logits_and_q(spec, params, obs)
    log_pi = jax.nn.log_softmax(logits)
    taken = jnp.take_along_axis(log_pi, action[..., None], axis=-1)[..., 0]
    return taken, -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1), value[..., 0]


class OnPolicy(Algorithm):
    """An actor and a state value that learn from each iteration's rollouts and then forget them."""

    on_policy = True

    def _network(self, observation_shape: tuple[int, ...], n_actions: int) -> NetworkSpec:
        return replace(super()._network(observation_shape, n_actions), critic_outputs=1)

    def init_optimiser(self, params: Params) -> PyTree:
        return self.optimiser().init(params)

    def optimiser(self) -> optax.GradientTransformation:
        """Clip the gradient's length, then scale; the learning rate is applied by :meth:`descend`."""
        config = self.config
        if config.optimiser == "adam":
            scale = optax.scale_by_adam(eps=config.optimiser_epsilon)
        elif config.optimiser == "rmsprop":  # torch's
            scale = optax.scale_by_rms(config.optimiser_decay, config.optimiser_epsilon, eps_in_sqrt=False)
        else:  # TensorFlow's: the moment starts at 1, epsilon is inside the root
            scale = optax.scale_by_rms(config.optimiser_decay, config.optimiser_epsilon, initial_scale=1.0)
        return optax.chain(clip_by_norm(config.max_grad_norm), scale)

    def behaviour(self, acting: Params, obs: Array, epsilon: Array) -> Array:
        """The policy itself."""
        del epsilon
        return jax.nn.log_softmax(self.scores(acting, obs))

    def batch(self, params: Params, rollouts: Rollout) -> Batch:
        """All steps of the rollouts with their advantages, flattened to N = n_envs * T."""
        config, length = self.config, rollouts.action.shape[-1]
        critic = networks.part(params, "critic")
        value = networks.outputs(self.network, critic, rollouts.obs)[..., 0]
        v_next = value[:, length:] if value.shape[-1] == 2 * length else value[:, 1:]
        value = value[:, :length]
        advantage = gae(
            reward=rollouts.reward,
            terminated=rollouts.terminated.astype(jnp.float32),
            truncated=rollouts.truncated.astype(jnp.float32),
            value=value,
            v_next=v_next,
            gamma=config.gamma,
            lam=config.gae_lambda,
        )
        steps = Batch(
            rollouts.obs[:, :length], rollouts.action, rollouts.log_mu, advantage, advantage + value, value
        )
        return Batch(*(leaf.reshape(-1, *leaf.shape[2:]) for leaf in steps))

    def learning_rate(self, iteration: Array) -> Array:
        """Stable-Baselines3 counts the rollout just collected as progress, so the first update is below 1."""
        return linear(self.config.learning_rate, self.config.learning_rate_schedule, self.progress(iteration))

    def settings_at(self, iteration: Array) -> Any:
        """The settings, with the entropy's weight of this iteration."""
        config = self.config
        return At(config, entropy=linear(config.entropy, config.entropy_schedule, self.progress(iteration)))

    def progress(self, iteration: Array) -> Array:
        """Part of the horizon that is over once this iteration's frames are counted."""
        return self._frames(iteration + 1) / self.config.horizon

    def descend(
        self, params: Params, opt_state: PyTree, learning_rate: Array, grads: Params, metrics: Metrics
    ) -> tuple[Params, PyTree, Metrics]:
        """One step of the optimiser."""
        updates, opt_state = self.optimiser().update(grads, opt_state)
        params = jax.tree.map(lambda p, u: p - learning_rate * u, params, updates)
        return params, opt_state, metrics | {"grad_norm": global_norm(grads)}

    def describe_learning(self, n_seeds: int) -> list[str]:
        del n_seeds
        updates, size, frames = self.updates_per_iteration, self.transitions_per_update, self.frames_per_iteration
        return [
            f"learning: {updates:g} updates an iteration, each on {size} transitions; {updates / frames:.4g} "
            f"updates a frame; a transition is learnt from {updates * size / frames:.3g} times, then forgotten"
        ]


def clip_by_norm(limit: float) -> optax.GradientTransformation:
    """Gradients longer than ``limit`` scaled to it as torch does, which adds 1e-6 to the length."""

    def update(grads: PyTree, state: Any, params: Any = None) -> tuple[PyTree, Any]:
        del params
        factor = jnp.minimum(limit / (global_norm(grads) + 1e-6), 1.0)
        return jax.tree.map(lambda g: g * factor, grads), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)
