"""What A2C and PPO share: generalised advantages, an actor and a state value, batches of steps.

Everything means what it means in Stable-Baselines3, so that results can be compared number by number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from capo.arrays import Array, Metrics, PyTree
from capo.envs.layout import Part
from capo.neural.algorithms.base import Algorithm
from capo.neural.algorithms.settings import OnPolicySettings
from capo.neural.parts import networks, optimisers, policies, replay, schedules
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.networks import NetworkSpec, Params
from capo.neural.parts.replay import Rollout
from capo.neural.parts.retrace import discounted_sums


class Batch(NamedTuple):
    """Steps to train on, in no particular order."""

    obs: Array  # (N, *observation_shape)
    action: Array  # (N,) int32
    log_mu: Array  # (N,) log-probability of the action when it was taken
    advantage: Array  # (N,)
    returns: Array  # (N,) target of the value: advantage + value
    value: Array  # (N,) the critic's value at collection


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
        terminated: (..., T) 1 where the episode terminated with step t.
        truncated: (..., T) 1 where it was truncated after step t.
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
    return discounted_sums(delta, gamma * lam * (1.0 - terminated) * (1.0 - truncated))


def normalised(advantage: Array) -> Array:
    """Advantages with mean 0 and standard deviation 1; a single one unchanged."""
    if advantage.size == 1:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)


def policy_and_value(spec: NetworkSpec, params: Params, obs: Array, action: Array) -> tuple[Array, Array, Array]:
    """log pi(a|s), the entropy of pi(.|s) and V(s) of a batch, (N,) each."""
    logits, value, _ = networks.logits_and_q(spec, params, obs)
    log_pi = jax.nn.log_softmax(logits)
    return policies.taken(log_pi, action), policies.entropy(log_pi), value[..., 0]


class OnPolicy(Algorithm):
    """An actor and a state value, trained on each iteration's rollouts, which are then discarded."""

    on_policy = True
    config: OnPolicySettings

    def _network(self, seen: tuple[Part, ...], n_actions: int) -> NetworkSpec:
        return replace(super()._network(seen, n_actions), critic_outputs=1)

    def init_optimiser(self, params: Params) -> PyTree:
        return self.optimiser().init(params)

    def optimiser(self) -> optax.GradientTransformation:
        """Clip the gradient, then scale it; the learning rate is applied by :meth:`descend`."""
        config = self.config
        clip = optimisers.clip_by_norm_like_torch(config.max_grad_norm)
        return optimisers.make(
            config.optimiser, clip, epsilon=config.optimiser_epsilon, decay=config.optimiser_decay
        )

    def behaviour(self, acting: Params, obs: Array, epsilon: Array) -> Array:
        """The policy itself."""
        del epsilon
        return jax.nn.log_softmax(self.action_scores(acting, obs))

    def batch(self, params: Params, rollouts: Rollout) -> Batch:
        """All steps of the rollouts with their advantages, flattened to N = n_envs * T."""
        config, length = self.config, rollouts.action.shape[-1]
        critic = networks.select(params, "critic")
        value = networks.outputs(self.network, critic, rollouts.obs)[..., 0]
        v_next, value = replay.at_successors(value, length), value[:, :length]
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

    def progress(self, iteration: Iteration) -> Array:
        """The fraction of the horizon after this iteration: as Stable-Baselines3 counts it."""
        return super().progress(iteration + 1)

    def entropy_weight(self, iteration: Iteration) -> Array:
        """The weight of the entropy in this iteration."""
        return schedules.decay(self.config.entropy, self.config.entropy_schedule, self.progress(iteration))

    def descend(
        self, params: Params, opt_state: PyTree, learning_rate: Array, grads: Params, metrics: Metrics
    ) -> tuple[Params, PyTree, Metrics]:
        """One step of the optimiser; logs the norm of the gradient."""
        params, opt_state = optimisers.step(self.optimiser(), params, opt_state, grads, learning_rate)
        return params, opt_state, metrics | {"grad_norm": optimisers.global_norm(grads)}
