"""What NCAPO and Off-PAC share: a replay of rollouts, a Retrace critic, target networks, gradient steps.

A subclass gives the actor's loss: :meth:`OffPolicy.losses`, from the :class:`Targets` of a batch.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from capo.arrays import Array, Metrics, PyTree
from capo.envs.layout import Part
from capo.envs.protocol import Env
from capo.errors import CapoError
from capo.neural.algorithms.base import Algorithm, ReplaySize, TrainState, finite, means, scan_means
from capo.neural.algorithms.settings import RetraceSettings
from capo.neural.parts import networks, optimisers, policies, replay, schedules
from capo.neural.parts.critic import CriticHead
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.networks import Inputs, NetworkSpec, Params
from capo.neural.parts.onnx_graph import Graph
from capo.neural.parts.own import NONE, OwnParts
from capo.neural.parts.policies import taken
from capo.neural.parts.replay import Rollout
from capo.neural.parts.retrace import retrace, v_trace

Trained = Literal["both", "critic", "actor"]
Carry = tuple[Params, PyTree]  # the networks and the optimiser's state


class Targets(NamedTuple):
    """What actor and critic are regressed on, without gradient."""

    log_pi: Array  # (B, T, A) the policy pi_m that the actor's update starts from
    returns: Array  # (B, T) Retrace returns of the taken actions
    advantage: Array  # (B, T) of the taken actions: Retrace returns (with the actor's lambda) - V(s)
    q: Array  # (B, T, A) Q' of all actions
    # Where the critic has M heads, the last three are (B, T, M), (B, T, M) and (B, T, M, A).


def retrace_targets(config: RetraceSettings, batch: Rollout, log_pi: Array, q: Array) -> Targets:
    """Retrace's or V-trace's returns and the advantages of a batch.

    Args:
        config: gamma, returns, retrace_lambda and actor_lambda.
        batch: (B, T) rollouts.
        log_pi: (B, T + S, A) log pi_m of every row of ``batch.obs``.
        q: (B, T + S, A) Q' of every row.
    """
    length = batch.reward.shape[-1]
    value = jnp.sum(jnp.exp(log_pi) * q, axis=-1)
    v_next = replay.at_successors(value, length)

    steps: dict[str, Array] = {
        "reward": batch.reward,
        "terminated": batch.terminated.astype(jnp.float32),
        "truncated": batch.truncated.astype(jnp.float32),
        "v_next": v_next,
        "log_pi": taken(log_pi[:, :length], batch.action),
        "log_mu": batch.log_mu,
    }

    def returns(lam: float) -> Array:
        if config.returns == "v-trace":
            return v_trace(**steps, value=value[:, :length], gamma=config.gamma, lam=lam)
        return retrace(**steps, q_taken=taken(q[:, :length], batch.action), gamma=config.gamma, lam=lam)

    advantage = returns(config.retrace_lambda * config.actor_lambda) - value[:, :length]
    targets = Targets(log_pi[:, :length], returns(config.retrace_lambda), advantage, q[:, :length])
    return jax.lax.stop_gradient(targets)


def ensemble_targets(config: RetraceSettings, batch: Rollout, log_pi: Array, q: Array) -> Targets:
    """:func:`retrace_targets` of every head of a critic, each from its own Q' (B, T + S, M, A)."""
    by_head = jax.vmap(
        partial(retrace_targets, config, batch, log_pi),
        in_axes=2,
        out_axes=Targets(log_pi=None, returns=2, advantage=2, q=2),  # type: ignore[arg-type]
    )
    targets: Targets = by_head(q)
    return targets


def weigh_steps(filled: Array, each: Metrics) -> Metrics:
    """Arrays (B, T) whose means are those over the filled steps: padding is 0, the rest scaled up accordingly.

    Args:
        filled: (B, T) 1 for the steps that count, 0 for padding.
        each: arrays (B, T) by name.
    """
    weight = filled / filled.mean()
    return {name: weight * x for name, x in each.items()}


class OffPolicy(Algorithm):
    """Gradient steps on batches from a replay of rollouts, with a Retrace critic and target networks."""

    explores = True
    config: RetraceSettings

    def __init__(self, config: RetraceSettings, env: Env, own: OwnParts = NONE) -> None:
        super().__init__(config, env, own)
        if self.network.factors and config.critic == "categorical":
            raise CapoError(
                f"{env.name!r} has actions of {len(self.network.factors)} factors, so Q is a sum over "
                "factors, which a distribution of returns is not: leave critic='categorical' out"
            )

    def _network(self, seen: tuple[Part, ...], n_actions: int) -> NetworkSpec:
        spec = super()._network(seen, n_actions)
        return replace(spec, critic_outputs=self.critic.n_outputs(n_actions))

    def _replay_options(self) -> dict[str, int]:
        return {"capacity": self.config.replay_rollouts, "clear_every": self.config.replay_clear_every}

    @property
    def cuts_rollouts(self) -> bool:
        return self.config.rollouts == "cut"

    @property
    def critic(self) -> CriticHead:
        """What the critic's outputs mean."""
        config = self.config
        return CriticHead(config.critic == "categorical", config.atoms, config.v_min, config.v_max)

    def optimiser(self) -> optax.GradientTransformation:
        """One optimiser for actor and critic together."""
        config = self.config
        each = config.clip_each_network and not config.shared_trunk
        clip = (optimisers.clip_each_by_norm if each else optax.clip_by_global_norm)(config.max_grad_norm)
        return optimisers.make(
            config.optimiser, clip, epsilon=config.optimiser_epsilon, decay=config.optimiser_decay
        )

    # The state --------------------------------------------------------------------------------------------

    def init_params(self, rng: np.random.Generator) -> Params:
        params = super().init_params(rng)
        if not isinstance(rng, networks.ShapesOnly):
            params["critic"]["head"]["bias"] = self.critic.initial_bias(self.network.n_actions)
        return params

    def init_target(self, params: Params) -> Params:
        """Copies of the critic (or its head), of the policy if the config has a target network for it, and the
        running average of all networks if there is one."""
        target = {"critic": self._target_critic(params)}
        if self.config.tau_average < 1:
            target["average"] = params
        if self.config.target_from == "target-network":
            target["actor"] = networks.select(params, "actor")
        return jax.tree.map(jnp.copy, target)

    def played(self, state: TrainState) -> Params:
        average: Params = state.target.get("average", state.params)
        return average

    def init_optimiser(self, params: Params) -> PyTree:
        return self.optimiser().init(params)

    def init_replay(self) -> Rollout:
        return replay.empty(self.rollouts)

    # Acting -----------------------------------------------------------------------------------------------

    def exploration(self, frames: Array | np.floating[Any]) -> Array:
        return self._epsilon(frames, self.config)

    def behaviour(self, acting: Params, obs: Array, epsilon: Array) -> Array:
        """mu = (1 - epsilon) pi + epsilon / A, where A counts the actions allowed."""
        inputs = networks.inputs(self.network, obs)
        factors = self.network.factors
        pi = policies.each_factor(jax.nn.softmax, factors, self.action_scores(acting, inputs))
        return policies.mix_uniform(pi, epsilon, inputs.mask, factors)

    def critic_values(self, outputs: Array) -> Array:
        values = self.critic.values(outputs)
        return values.mean(axis=-2) if self.critic.n_heads > 1 else values

    def export_values(self, graph: Graph, outputs: str) -> str:
        if self.critic.n_heads > 1:
            each = graph.reshape(outputs, -1, self.critic.n_heads, self.network.n_actions)
            return graph.node("ReduceMean", each, axes=[1], keepdims=0)
        if not self.critic.categorical:
            return outputs
        logits = graph.reshape(outputs, -1, self.network.n_actions, self.critic.n_atoms)
        return graph.node("MatMul", graph.node("Softmax", logits, axis=-1), graph.constant(self.critic.atoms))

    # Learning ---------------------------------------------------------------------------------------------

    @abstractmethod
    def losses(self, log_pi: Array, batch: Rollout, targets: Targets) -> Metrics:
        """The actor's loss of every step, ``actor_loss`` (B, T), and other arrays (B, T) to log.

        Args:
            log_pi: (B, T, A) of the policy that is trained.
            batch: (B, T) rollouts.
            targets: see :class:`Targets`.
        """

    def learn(
        self, state: TrainState, rollouts: Rollout, iteration: Iteration, key: Array
    ) -> tuple[TrainState, Metrics]:
        config = self.config
        packed = replay.pack_rollouts(self.rollouts, rollouts)
        stored = replay.add(self.rollouts, state.replay, packed, iteration)
        rate = self.learning_rate(iteration)
        entropy = self.own.schedule("entropy", self.progress(iteration))
        if entropy is None:
            entropy = schedules.decay(config.entropy, config.entropy_schedule, self.progress(iteration))
        used = {name: network for name, network in state.target.items() if name != "average"}
        target = networks.prepare(self.network, used)

        def steps(train: Trained, key: Array, carry: Carry) -> tuple[Carry, Metrics]:
            def step(carry: Carry, index: Array) -> tuple[Carry, Metrics]:
                batch = replay.take(self.rollouts, stored, index)
                params, opt_state, metrics = self.gradient_step(*carry, target, batch, rate, entropy, train)
                return (params, opt_state), metrics

            shape = (config.gradient_steps, config.batch_size)
            return scan_means(step, carry, self.draw(key, iteration, shape))

        carry = (state.params, state.optimiser)
        if config.updates == "joint":
            carry, metrics = steps("both", key, carry)
        else:
            carry, metrics = steps("critic", jax.random.fold_in(key, 0), carry)
            carry = jax.lax.cond(
                iteration % config.actor_every == 0,
                lambda c: steps("actor", jax.random.fold_in(key, 1), c)[0],
                lambda c: c,
                carry,
            )
        params, opt_state = carry
        metrics |= {"learning_rate": rate, "finite": finite(params)}
        if self.cuts_rollouts:
            metrics["filled"] = replay.filled(rollouts).mean()
        moved = self.update_target(params, state.target)
        return replace(state, params=params, target=moved, optimiser=opt_state, replay=stored), metrics

    def draw(self, key: Array, iteration: Iteration, shape: tuple[int, ...]) -> Array:
        """Indices of the stored rollouts to learn from."""
        return replay.draw(self.rollouts, key, iteration, shape)

    def gradient_step(
        self,
        params: Params,
        opt_state: PyTree,
        target: Params,
        batch: Rollout,
        learning_rate: Array,
        entropy: Array,
        train: Trained,
    ) -> tuple[Params, PyTree, Metrics]:
        """One step on one batch; see :meth:`loss` for the arguments."""
        grads, metrics = jax.grad(self.loss, has_aux=True)(params, target, batch, entropy, train)
        metrics["grad_norm"] = optimisers.global_norm(grads)
        new_params, new_opt_state = optimisers.step(self.optimiser(), params, opt_state, grads, learning_rate)
        if train != "both":
            frozen = "actor" if train == "critic" else "critic"
            new_params = _freeze(frozen, params, new_params)
            new_opt_state = _freeze(frozen, opt_state, new_opt_state)
        return new_params, new_opt_state, metrics

    def loss(
        self, params: Params, target: Params, batch: Rollout, entropy: Array, train: Trained
    ) -> tuple[Array, Metrics]:
        """The loss to descend and the means to log.

        Args:
            params: the networks to train.
            target: target networks, see :meth:`init_target`.
            batch: rollouts with unpacked observations.
            entropy: weight of the entropy.
            train: the loss has only these terms, the metrics have all.
        """
        length = batch.reward.shape[-1]
        inputs = networks.inputs(self.network, batch.obs)
        first = inputs.steps(0, self._rows_at_once(batch))
        logits, outputs, features = networks.logits_and_q(self.network, params, first)
        log_pi_m, q = self.slow_policy_and_q(params, target, inputs, logits, features)
        make_targets = ensemble_targets if self.critic.n_heads > 1 else retrace_targets
        targets = make_targets(self.config, batch, log_pi_m, q)
        log_pi = policies.log_softmax(logits[:, :length], self.network.factors)
        own = self.losses(log_pi, batch, targets)
        each = {
            "actor_loss": own.pop("actor_loss"),
            "critic_loss": self.critic_losses(outputs[:, :length], batch, targets),
            "entropy": policies.entropy(log_pi),
            "value": self.over_heads(targets.returns),
            "advantage_abs": jnp.abs(self.over_heads(targets.advantage)),
            **own,
        }
        if self.cuts_rollouts:
            each = weigh_steps(replay.filled(batch), each)
        weights: dict[str, float | Array] = {}
        if train in ("both", "critic"):
            weights |= {
                "critic_loss": self.config.critic_coefficient * self.critic_unit(params, each["critic_loss"])
            }
        if train in ("both", "actor"):
            weights |= {"actor_loss": 1.0, "entropy": -entropy}
        # A term without a weight gets no backward pass at all, not one of zeros.
        terms = means({name: x if name in weights else jax.lax.stop_gradient(x) for name, x in each.items()})
        return jnp.asarray(sum(weight * terms[name] for name, weight in weights.items())), terms

    def critic_losses(self, outputs: Array, batch: Rollout, targets: Targets) -> Array:
        """The critic's loss of every step (B, T), from the outputs (B, T, n_outputs) of its head."""
        return self.critic.loss(outputs, batch.action, targets.returns)

    def critic_unit(self, params: Params, losses: Array) -> Array | float:
        """A factor on the critic's loss, from its losses (B, T) of a batch."""
        del params, losses
        return 1.0

    def over_heads(self, x: Array) -> Array:
        """The mean over the critic's heads, if there are several: (B, T, M) to (B, T)."""
        return x.mean(axis=-1) if self.critic.n_heads > 1 else x

    # Target networks --------------------------------------------------------------------------------------

    def slow_policy_and_q(
        self, params: Params, target: Params, inputs: Inputs, logits: Array, features: Array
    ) -> tuple[Array, Array]:
        """log pi_m and Q' of every row, (B, T + S, A) each, reusing what the current networks gave already.

        Args:
            params: the networks to train.
            target: target networks, see :meth:`init_target`.
            inputs: (B, T + S, ...) of every row of the batch's observations.
            logits: (B, rows at once, A) of the current actor.
            features: (B, rows at once, width) of the current critic.
        """
        spec = self.network
        params, logits, features = jax.lax.stop_gradient((params, logits, features))
        done = logits.shape[1]
        if self._needs_current and done < inputs.n_steps:
            more_logits, _, more_features = networks.logits_and_q(spec, params, inputs.steps(done, None))
            logits = jnp.concatenate([logits, more_logits], axis=1)
            features = jnp.concatenate([features, more_features], axis=1)
        if self.config.target_from == "target-network":
            logits = networks.policy_logits(spec, target["actor"], inputs)
        if self.config.target_critic == "head":
            outputs = networks.head(spec, target["critic"]["head"], features)
        else:
            outputs = networks.outputs(spec, target["critic"], inputs)
        return policies.log_softmax(logits, spec.factors), self.critic.values(outputs)

    def update_target(self, params: Params, target: Params) -> Params:
        """Move the target networks towards the trained ones (once per iteration)."""
        moved = {"critic": _polyak(target["critic"], self._target_critic(params), self.config.tau_q)}
        if "actor" in target:
            moved["actor"] = _polyak(target["actor"], networks.select(params, "actor"), self.config.tau_policy)
        if "average" in target:
            moved["average"] = _polyak(target["average"], params, self.config.tau_average)
        return moved

    def _target_critic(self, params: Params) -> Params:
        network = networks.select(params, "critic")
        return {"head": network["head"]} if self.config.target_critic == "head" else network

    @property
    def _needs_current(self) -> bool:
        """Whether the current networks are evaluated beyond the steps trained on."""
        return self.config.target_from == "current" or self.config.target_critic == "head"

    def _rows_at_once(self, batch: Rollout) -> int:
        """Rows of ``batch.obs`` to give to the trained networks in one pass.

        The T steps; and the row after them if it is the only one and needed anyway: one more row with a gradient
        of 0 costs less than a second pass.
        """
        length, rows = int(batch.reward.shape[-1]), int(batch.obs.shape[1])
        return rows if self._needs_current and rows == length + 1 else length

    # What a run says about itself -------------------------------------------------------------------------

    @property
    def updates_per_iteration(self) -> float:
        turns = 1.0 if self.config.updates == "joint" else 1.0 + 1.0 / self.config.actor_every
        return float(self.config.gradient_steps * turns)

    @property
    def transitions_per_update(self) -> int:
        return self.config.batch_size * self.config.rollout_length

    @property
    def memory(self) -> ReplaySize:
        return ReplaySize(self.rollouts.nbytes, "replay_rollouts", self.config.replay_rollouts)

    def _describe_batch(self) -> str:
        upto = "up to " if self.cuts_rollouts else ""
        return f"{self.config.batch_size} rollouts = {upto}{self.transitions_per_update} transitions"

    def _describe_replay(self) -> str:
        return f"{self.rollouts.capacity} rollouts"


def _polyak(slow: Params, fast: Params, tau: float) -> Params:
    return jax.tree.map(lambda s, f: (1 - tau) * s + tau * f, slow, fast)


def _freeze(name: str, old: PyTree, new: PyTree) -> PyTree:
    """``new``, but ``old`` in the subtree ``name``: momentum must not move a network that is not trained."""

    def choose(path: tuple[jax.tree_util.DictKey, ...], before: Array, after: Array) -> Array:
        return before if any(getattr(key, "key", None) == name for key in path) else after

    return jax.tree_util.tree_map_with_path(choose, old, new)
