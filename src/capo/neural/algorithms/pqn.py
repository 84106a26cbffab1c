"""PQN: Q-learning on many environments in parallel, with LayerNorm instead of a replay and a target network.

    G_t  = r_t + gamma * ((1 - lambda) * max_a Q(s_t+1, a) + lambda * G_t+1)
    loss = 0.5 * mean((Q(s_t, a_t) - G_t)^2)

Every iteration plays one rollout per environment, epsilon-greedily, computes G along the rollouts with the network
that played them, and descends the loss in a few epochs of minibatches. Then the rollouts are discarded.

After *Simplifying Deep Temporal Difference Learning* (Gallici et al., 2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from capo.arrays import Array, Metrics, PyTree
from capo.neural.agent import Agent
from capo.neural.algorithms.base import Algorithm, TrainState, finite, scan_epochs
from capo.neural.algorithms.settings import (
    Count,
    EpsilonSettings,
    FinalEpsilon,
    Fraction,
    LearningRate,
    Search,
    TracedFraction,
    TracedPositive,
    check_minibatches,
    is_minatar,
)
from capo.neural.parts import networks, optimisers, policies, replay
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.networks import Params
from capo.neural.parts.onnx_graph import Graph
from capo.neural.parts.replay import Rollout
from capo.neural.parts.retrace import discounted_sums
from capo.neural.parts.schedules import Schedule


@dataclass(frozen=True)
class PQNConfig(EpsilonSettings):
    """All settings of PQN. Frames are environment steps of one seed, summed over its environments."""

    PRESETS: ClassVar[tuple[str, ...]] = ("paper", "default", "cpu")

    horizon: Count = 1_000_000
    """Frames over which epsilon and learning rate follow their schedules; then they stay constant."""
    n_envs: Count = 16
    rollout_length: Count = 32
    epochs: Count = 4
    """Passes over an iteration's transitions."""
    batch_size: Count = 128
    """Transitions per minibatch; must divide n_envs * rollout_length."""
    q_lambda: Annotated[TracedFraction, Search(0.0, 1.0)] = 0.9
    """Lambda of the returns: 0 looks one step ahead, 1 to the end of the rollout."""
    epsilon_start: TracedFraction = 1.0
    epsilon_final: FinalEpsilon = 0.05
    epsilon_fraction: Fraction = 0.1
    learning_rate: LearningRate = 1e-3
    """Learning rate of RAdam at the start of training."""
    learning_rate_schedule: Schedule = "linear"
    optimiser_epsilon: TracedPositive = 1e-8
    """Epsilon of RAdam."""
    max_grad_norm: TracedPositive = 10.0
    layer_norm: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minibatches(self.n_envs, self.rollout_length, self.batch_size)

    @classmethod
    def _preset(cls, name: str, env_name: str) -> Self:
        if name == "paper" or (name == "default" and is_minatar(env_name)):
            return cls(
                n_envs=128,  # authors, like all that follows: PQN for MinAtar
                rollout_length=32,
                epochs=2,
                batch_size=128,  # 32 minibatches per epoch
                q_lambda=0.65,
                gamma=0.99,
                epsilon_start=1.0,
                epsilon_final=0.05,
                epsilon_fraction=0.1,
                learning_rate=5e-4,
                learning_rate_schedule="linear",
                optimiser_epsilon=1e-8,
                max_grad_norm=10.0,
                network="auto",  # on grids one convolution and a dense layer
                conv_features=16,
                width=128,
                layer_norm=True,
            )
        if is_minatar(env_name):
            return cls(n_envs=64, rollout_length=16, epochs=2, batch_size=256, q_lambda=0.65, network="mlp")
        return cls()


def lambda_returns(
    *, reward: Array, terminated: Array, truncated: Array, v_next: Array, gamma: float, lam: float
) -> Array:
    """Lambda-returns of the greedy policy.

        G_t = r_t + gamma * ((1 - lambda) * V(s_t+1) + lambda * G_t+1),   V(s) = max_a Q(s, a)

    V(s_t+1) and G_t+1 count 0 where the episode terminated. Where it was truncated, and at the rollout's last
    step, there is no G_t+1 of the same episode: G_t = r_t + gamma * V(s_t+1).

    Args:
        reward: (..., T).
        terminated: (..., T) 1 where the episode terminated with step t.
        truncated: (..., T) 1 where it was truncated after step t.
        v_next: (..., T) V of the observation that step t led to, before any reset.
        gamma: the discount.
        lam: lambda.

    Returns:
        (..., T) the returns G_t.

    >>> one = jnp.ones((1, 2))
    >>> lambda_returns(reward=one, terminated=0 * one, truncated=0 * one, v_next=4 * one, gamma=0.5,
    ...                lam=0.5).tolist()  # 1 + 0.5 * (0.5 * 4 + 0.5 * 3), and 1 + 0.5 * 4
    [[2.75, 3.0]]
    """
    alive = 1.0 - terminated
    onward = gamma * lam * alive[..., :-1] * (1.0 - truncated[..., :-1])  # the weight of G_t+1
    onward = jnp.concatenate([onward, jnp.zeros_like(reward[..., :1])], axis=-1)
    return discounted_sums(reward + (gamma * alive - onward) * v_next, onward)


class PQNAlgorithm(Algorithm):
    """PQN for a learner."""

    name = "pqn"
    Config = PQNConfig
    explores = True
    on_policy = True
    samples = False
    config: PQNConfig

    # The state --------------------------------------------------------------------------------------------

    def init_params(self, rng: np.random.Generator) -> Params:
        head = networks.dense(rng, self.network.n_features, self.network.n_actions, scale=1.0)
        return {"body": networks.init_body(self.network, rng), "head": head}

    def init_optimiser(self, params: Params) -> PyTree:
        return self._optimiser().init(params)

    def _optimiser(self) -> optax.GradientTransformation:
        clip = optax.clip_by_global_norm(self.config.max_grad_norm)
        return optimisers.make("radam", clip, epsilon=self.config.optimiser_epsilon)

    # Acting -----------------------------------------------------------------------------------------------

    def acting_params(self, params: Params) -> Params:
        return params

    def exploration(self, frames: Array | np.floating[Any]) -> Array:
        return self._epsilon(frames, self.config)

    def behaviour(self, acting: Params, obs: Array, epsilon: Array) -> Array:
        """Epsilon-greedy."""
        inputs = networks.inputs(self.network, obs)
        scores = self.action_scores(acting, inputs)
        return policies.epsilon_greedy(scores, epsilon, inputs.mask, self.network.factors)

    def export(self, graph: Graph, params: Params, parts: Mapping[str, str], mask: str | None) -> tuple[str, str]:
        del mask
        q = graph.head(params["head"], graph.body(self.network, params["body"], parts))
        return q, q

    # Learning ---------------------------------------------------------------------------------------------

    def learn(
        self, state: TrainState, rollouts: Rollout, iteration: Iteration, key: Array
    ) -> tuple[TrainState, Metrics]:
        config = self.config
        steps = (rollouts.obs[:, : config.rollout_length], rollouts.action, self.returns(state.params, rollouts))
        transitions = tuple(leaf.reshape(-1, *leaf.shape[2:]) for leaf in steps)
        rate = self.learning_rate(iteration)

        def minibatch(carry: tuple[Params, PyTree], batch: tuple[Array, ...]) -> tuple[Any, Metrics]:
            params, opt_state = carry
            descent = jax.grad(lambda p: self.loss(p, *batch), has_aux=True)
            grads, metrics = descent(params)
            carry = optimisers.step(self._optimiser(), params, opt_state, grads, rate)
            return carry, metrics | {"grad_norm": optimisers.global_norm(grads)}

        carry, times = (state.params, state.optimiser), {"epochs": config.epochs, "batch_size": config.batch_size}
        (params, opt_state), metrics = scan_epochs(minibatch, carry, transitions, key, **times)
        metrics |= {"learning_rate": rate, "finite": finite(params)}
        return replace(state, params=params, optimiser=opt_state), metrics

    def returns(self, params: Params, rollouts: Rollout) -> Array:
        """The target of every step (n_envs, T)."""
        scores = self.action_scores(params, rollouts.obs)
        value = policies.taken(scores, policies.best(scores, self.network.factors))
        return lambda_returns(
            reward=rollouts.reward,
            terminated=rollouts.terminated.astype(jnp.float32),
            truncated=rollouts.truncated.astype(jnp.float32),
            v_next=replay.at_successors(value, rollouts.reward.shape[-1]),
            gamma=self.config.gamma,
            lam=self.config.q_lambda,
        )

    def loss(self, params: Params, obs: Array, action: Array, returns: Array) -> tuple[Array, Metrics]:
        """The loss to descend on a minibatch (N, ...), and what to log."""
        q = policies.taken(self.action_scores(params, obs), action)
        loss = 0.5 * jnp.mean(jnp.square(q - returns))
        return loss, {"critic_loss": loss, "value": jnp.mean(q)}

    # What a run says about itself -------------------------------------------------------------------------

    @property
    def updates_per_iteration(self) -> float:
        return float(self.config.epochs * (self.frames_per_iteration // self.config.batch_size))

    @property
    def transitions_per_update(self) -> int:
        return self.config.batch_size


class PQN(Agent):
    """Parallel Q-learning with LayerNorm: no replay, no target network.

    Its policy is greedy: ``deterministic`` makes no difference to :meth:`predict` and :meth:`evaluate`.

    >>> PQN("probe-action", n_envs=4, rollout_length=16, batch_size=32, width=16).learn(128).frames
    128
    """

    _algorithm = PQNAlgorithm
