"""The NCAPO update (Algorithm 3 of the paper): critic by Retrace, actor by coordinate ascent.

One batch of rollouts goes through these steps, in the paper's order:

1. pi_m and Q' of every observation (:func:`evaluate`), Retrace returns and advantages of the taken actions;
2. the critic's loss: squared distance of Q to the Retrace return;
3. the actor's target pi~ = softmax(f + alpha * sign(A)) at the taken action, alpha = min(log 1/pi, clip);
4. the actor's loss: KL between pi and pi~.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from capo.neural import critic, networks, replay
from capo.neural.algorithm import (
    Algorithm,
    At,
    Metrics,
    TrainState,
    finite,
    global_norm,
    linear,
    means,
    scan_means,
)
from capo.neural.config import KL, NCAPOConfig
from capo.neural.networks import Inputs, NetworkSpec, Params
from capo.neural.replay import Rollout
from capo.neural.retrace import retrace
from capo.neural.settings import Settings
from capo.update import StepSize, coordinate_update

Array = Any
PyTree = Any
Losses = Callable[[Any, NetworkSpec, Params, Params, Rollout, str], tuple[Array, Metrics]]


class Evaluation(NamedTuple):
    """What is regressed on, without gradient."""

    log_pi: Array  # (B, T, A) the policy pi_m that the actor's target starts from
    returns: Array  # (B, T) Retrace returns of the taken actions
    advantage: Array  # (B, T) of the taken actions: such returns (by the actor's lambda) - V(s)


def actor_target(log_pi: Array, advantage: Array, config: NCAPOConfig) -> Array:
    """The coordinate-ascent target distribution pi~.

    Args:
        log_pi: (..., A) log-probabilities of pi_m.
        advantage: (..., A) advantages of the pairs in the batch, 0 for those that are not in it.
        config: step_size, fixed_alpha, clip, alpha_bonus and advantage_weight.

    Returns:
        (..., A) log-probabilities of pi~.
    """
    sign = jnp.sign(advantage)
    fixed = config.step_size == "fixed"
    step = StepSize("fixed", eta=config.fixed_alpha) if fixed else StepSize("clipped", clip=config.clip)
    alpha = step.alpha(log_pi, sign) + config.alpha_bonus
    if config.advantage_weight != "none":
        alpha = alpha * jnp.abs(advantage)
    return coordinate_update(log_pi, sign, alpha)


def actor_loss(log_pi: Array, target: Array, kl: KL) -> Array:
    """KL(pi || target), or KL(target || pi), over the last axis: (..., A) to (...,)."""
    if kl == "policy-to-target":
        return jnp.sum(jnp.exp(log_pi) * (log_pi - target), axis=-1)
    return jnp.sum(jnp.exp(target) * (target - log_pi), axis=-1)


def evaluate(
    config: NCAPOConfig, batch: Rollout, log_pi: Array, q: Array, taken: Callable[[Array], Array]
) -> Evaluation:
    """Retrace returns and advantages of a batch.

    Args:
        config: gamma, retrace_lambda and actor_lambda.
        batch: (B, T) rollouts.
        log_pi: (B, T + S, A) log pi_m of every row of ``batch.obs``.
        q: (B, T + S, A) Q' of every row.
        taken: picks the entries of the taken actions, (B, T, A) to (B, T).
    """
    length = batch.action.shape[-1]
    value = jnp.sum(jnp.exp(log_pi) * q, axis=-1)
    v_next = value[:, length:] if value.shape[-1] == 2 * length else value[:, 1:]

    def returns(lam: float) -> Array:
        return retrace(
            reward=batch.reward,
            terminated=batch.terminated.astype(jnp.float32),
            truncated=batch.truncated.astype(jnp.float32),
            q_taken=taken(q[:, :length]),
            v_next=v_next,
            log_pi=taken(log_pi[:, :length]),
            log_mu=batch.log_mu,
            gamma=config.gamma,
            lam=lam,
        )

    advantage = returns(config.retrace_lambda * config.actor_lambda) - value[:, :length]
    evaluation = Evaluation(log_pi[:, :length], returns(config.retrace_lambda), advantage)
    return jax.lax.stop_gradient(evaluation)


def losses(
    config: NCAPOConfig, spec: NetworkSpec, params: Params, target: Params, batch: Rollout, train: str
) -> tuple[Array, Metrics]:
    """The loss to descend and what to log.

    Args:
        params: the networks that learn.
        target: slow copies, see :func:`init_target`.
        batch: rollouts with unpacked observations.
        train: "both", "critic" or "actor"; the loss has only those parts, the metrics have all.
    """
    length = batch.action.shape[-1]

    inputs = networks.inputs(spec, batch.obs)
    logits, numbers, features = networks.logits_and_q(spec, params, inputs.steps(0, rows_at_once(config, batch)))
    evaluation = evaluate_by_slow_networks(config, spec, params, target, batch, inputs, logits, features)
    log_pi = jax.nn.log_softmax(logits[:, :length])

    in_batch = jnp.arange(spec.n_actions) == batch.action[..., None]
    advantage = jnp.where(in_batch, evaluation.advantage[..., None], 0.0)
    if config.advantage_weight == "normalised":
        # Not the sign: only how much the batch's advantages weigh against each other.
        advantage = advantage / (jnp.mean(jnp.abs(evaluation.advantage)) + 1e-8)
    pi_tilde = actor_target(evaluation.log_pi, advantage, config)
    each = {
        "actor_loss": actor_loss(log_pi, pi_tilde, config.kl),
        "critic_loss": critic.loss(config, numbers[:, :length], batch.action, evaluation.returns),
        "entropy": -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1),
        "value": evaluation.returns,
        "advantage_abs": jnp.abs(evaluation.advantage),
    }
    return loss_and_metrics(config, each, train)


def loss_and_metrics(config: Any, each: Metrics, train: str) -> tuple[Array, Metrics]:
    """The loss to descend, with the parts that ``train`` names, and the means of everything.

    Args:
        each: arrays (B, T); among them actor_loss, critic_loss and entropy.
        train: "both", "critic" or "actor".
    """
    weights: dict[str, Any] = {}
    if train in ("both", "critic"):
        weights |= {"critic_loss": config.critic_coefficient}
    if train in ("both", "actor"):
        weights |= {"actor_loss": 1.0, "entropy": -config.entropy}
    # What has no weight has no way back either, not one of zeros.
    parts = means({name: x if name in weights else jax.lax.stop_gradient(x) for name, x in each.items()})
    return sum(weight * parts[name] for name, weight in weights.items()), parts


def rows_at_once(config: Any, batch: Rollout) -> int:
    """Rows of ``batch.obs`` to give to the networks that learn in one go.

    The T steps learnt from; and the one row after them, if it is only one and needed anyway: one more row with a
    gradient that is 0 costs less than a second pass.
    """
    length, rows = int(batch.action.shape[-1]), int(batch.obs.shape[1])
    return rows if _needs_current(config) and rows == length + 1 else length


def _needs_current(config: Any) -> bool:
    """Whether the networks that learn are evaluated beyond the steps learnt from."""
    return bool(config.target_from == "current" or config.target_critic == "head")


def evaluate_by_slow_networks(
    config: Any,
    spec: NetworkSpec,
    params: Params,
    target: Params,
    batch: Rollout,
    inputs: Inputs,
    logits: Array,
    features: Array,
) -> Evaluation:
    """:func:`evaluate` with the pi_m and Q' that the config asks for.

    Args:
        params: the networks that learn.
        target: slow copies, see :func:`init_target`.
        batch: (B, T) rollouts.
        inputs: (B, T + S, ...) of every row of ``batch.obs``.
        logits: (B, rows_at_once, A) of the networks that learn.
        features: (B, rows_at_once, width) of their critic.
    """

    def taken(x: Array) -> Array:
        return jnp.take_along_axis(x, batch.action[..., None], axis=-1)[..., 0]

    slow = _slow_networks(config, spec, params, target, inputs, logits, features)
    return evaluate(config, batch, *slow, taken)


def _slow_networks(
    config: NCAPOConfig,
    spec: NetworkSpec,
    params: Params,
    target: Params,
    inputs: Inputs,
    logits: Array,
    features: Array,
) -> tuple[Array, Array]:
    """log pi_m and Q' of every row, (B, T + S, A) each, reusing what the current networks gave already."""
    params, logits, features = jax.lax.stop_gradient((params, logits, features))
    done = logits.shape[1]
    if _needs_current(config) and done < inputs.x.shape[1]:
        more_logits, _, more_features = networks.logits_and_q(spec, params, inputs.steps(done, None))
        logits = jnp.concatenate([logits, more_logits], axis=1)
        features = jnp.concatenate([features, more_features], axis=1)
    if config.target_from == "target-network":
        logits = networks.outputs(spec, target["actor"], inputs)
    if config.target_critic == "head":
        numbers = networks.head(spec, target["critic"]["head"], features)
    else:
        numbers = networks.outputs(spec, target["critic"], inputs)
    return jax.nn.log_softmax(logits), critic.values(config, numbers)


def init_target(config: NCAPOConfig, params: Params) -> Params:
    """The slow copies that the config needs: the critic (or its head), and the policy where it has one."""
    target = {"critic": _target_critic(config, params)}
    if config.target_from == "target-network":
        target["actor"] = networks.part(params, "actor")
    return jax.tree.map(jnp.copy, target)


def update_target(config: NCAPOConfig, params: Params, target: Params) -> Params:
    """Move the slow copies towards the networks that learn (once an iteration)."""
    moved = {"critic": _polyak(target["critic"], _target_critic(config, params), config.tau_q)}
    if "actor" in target:
        moved["actor"] = _polyak(target["actor"], networks.part(params, "actor"), config.tau_policy)
    return moved


def _target_critic(config: NCAPOConfig, params: Params) -> Params:
    network = networks.part(params, "critic")
    return {"head": network["head"]} if config.target_critic == "head" else network


def _polyak(slow: Params, fast: Params, tau: float) -> Params:
    return jax.tree.map(lambda s, f: (1 - tau) * s + tau * f, slow, fast)


def optimiser(config: NCAPOConfig) -> optax.GradientTransformation:
    """Clip, then Adam or RMSprop; the learning rate is applied by :func:`gradient_step`."""
    if config.optimiser == "adam":
        scale = optax.scale_by_adam(eps=config.optimiser_epsilon)
    else:
        scale = optax.scale_by_rms(
            config.optimiser_decay, eps=config.optimiser_epsilon, eps_in_sqrt=False, bias_correction=False
        )
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), scale)


def gradient_step(
    config: Any,
    spec: NetworkSpec,
    params: Params,
    target: Params,
    opt_state: Any,
    batch: Rollout,
    learning_rate: Array,
    train: str,
    loss: Losses = losses,
) -> tuple[Params, Any, Metrics]:
    """One step on one batch, with the settings of this moment; see :func:`losses` for the arguments."""
    grads, metrics = jax.grad(lambda p: loss(config, spec, p, target, batch, train), has_aux=True)(params)
    metrics["grad_norm"] = global_norm(grads)
    updates, new_opt_state = optimiser(config).update(grads, opt_state)
    new_params = jax.tree.map(lambda p, u: p - learning_rate * u, params, updates)
    if train != "both":
        resting = "actor" if train == "critic" else "critic"
        new_params = _rest(resting, params, new_params)
        new_opt_state = _rest(resting, opt_state, new_opt_state)
    return new_params, new_opt_state, metrics


def _rest(name: str, old: PyTree, new: PyTree) -> PyTree:
    """``new``, but ``old`` in the part called ``name``: its momentum must not move it while it rests."""

    def choose(path: tuple[Any, ...], before: Array, after: Array) -> Array:
        return before if any(getattr(key, "key", None) == name for key in path) else after

    return jax.tree_util.tree_map_with_path(choose, old, new)


def epsilon_at(config: NCAPOConfig, frames: Array) -> Array:
    """Exploration after ``frames``: linear over the first part of the horizon, then constant."""
    progress = jnp.minimum(frames / max(config.epsilon_fraction * config.horizon, 1.0), 1.0)
    return config.epsilon_start + (config.epsilon_final - config.epsilon_start) * progress


def learning_rate_at(config: NCAPOConfig, frames: Array) -> Array:
    """Learning rate after ``frames``."""
    return linear(config.learning_rate, config.learning_rate_schedule, frames / config.horizon)


def entropy_at(config: NCAPOConfig, frames: Array) -> Array:
    """Weight of the entropy after ``frames``."""
    return linear(config.entropy, config.entropy_schedule, frames / config.horizon)


def behaviour(logits: Array, epsilon: Array) -> Array:
    """Log-probabilities of mu = (1 - epsilon) pi + epsilon / A, from logits (..., A)."""
    return jnp.log((1 - epsilon) * jax.nn.softmax(logits) + epsilon / logits.shape[-1])


class NCAPOAlgorithm(Algorithm):
    """NCAPO for the loop: a replay of rollouts, gradient steps on batches of them, slow target networks."""

    name = "ncapo"
    Config: ClassVar[type[Settings]] = NCAPOConfig
    explores = True
    losses: Losses = staticmethod(losses)

    def _network(self, observation_shape: tuple[int, ...], n_actions: int) -> NetworkSpec:
        spec = super()._network(observation_shape, n_actions)
        return replace(spec, critic_outputs=critic.n_outputs(self.config, n_actions))

    def init_params(self, rng: np.random.Generator) -> Params:
        params = super().init_params(rng)
        if not isinstance(rng, networks.ShapesOnly):
            params["critic"]["head"]["bias"] = critic.initial_bias(self.config, self.network.n_actions)
        return params

    def init_target(self, params: Params) -> PyTree:
        return init_target(self.config, params)

    def init_optimiser(self, params: Params) -> PyTree:
        return optimiser(self.config).init(params)

    def init_replay(self) -> Rollout:
        return replay.empty(self.rollouts)

    def exploration(self, frames: Array) -> Array:
        return epsilon_at(self.config, frames)

    def behaviour(self, acting: Params, obs: Array, epsilon: Array) -> Array:
        return behaviour(self.scores(acting, obs), epsilon)

    def learn(
        self, state: TrainState, rollouts: Rollout, iteration: Array, key: Array
    ) -> tuple[TrainState, Metrics]:
        config = self.config
        packed = rollouts._replace(obs=replay.pack(self.rollouts, rollouts.obs))
        stored = replay.add(self.rollouts, state.replay, packed, iteration)
        learning_rate = learning_rate_at(config, self._frames(iteration))
        now = At(config, entropy=entropy_at(config, self._frames(iteration)))
        slow = networks.ready(self.network, state.target)

        def steps(train: str, key: Array, carry: tuple[PyTree, PyTree]) -> tuple[tuple[PyTree, PyTree], Metrics]:
            def step(carry: tuple[PyTree, PyTree], index: Array) -> tuple[tuple[PyTree, PyTree], Metrics]:
                batch = replay.take(self.rollouts, stored, index)
                params, opt_state, metrics = gradient_step(
                    now,
                    self.network,
                    carry[0],
                    slow,
                    carry[1],
                    batch,
                    learning_rate,
                    train,
                    self.losses,
                )
                return (params, opt_state), metrics

            shape = (config.gradient_steps, config.batch_size)
            return scan_means(step, carry, replay.draw(self.rollouts, key, iteration, shape))

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
        metrics |= {"learning_rate": learning_rate, "finite": finite(params)}
        target = update_target(config, params, state.target)
        return replace(state, params=params, target=target, optimiser=opt_state, replay=stored), metrics

    @property
    def updates_per_iteration(self) -> float:
        turns = 1.0 if self.config.updates == "joint" else 1.0 + 1.0 / self.config.actor_every
        return float(self.config.gradient_steps * turns)

    @property
    def transitions_per_update(self) -> int:
        return int(self.config.batch_size * self.config.rollout_length)

    @property
    def memory(self) -> tuple[int, str, int]:
        return self.rollouts.nbytes, "replay_rollouts", self.config.replay_rollouts

    def describe_learning(self, n_seeds: int) -> list[str]:
        learnt = self.updates_per_iteration * self.transitions_per_update
        megabytes = self.rollouts.nbytes / 1e6
        return [
            f"learning: {self.updates_per_iteration:g} updates an iteration, each on {self.config.batch_size} "
            f"rollouts = {self.transitions_per_update} transitions; "
            f"{self.updates_per_iteration / self.frames_per_iteration:.4g} updates a frame, "
            f"replay ratio {learnt / self.frames_per_iteration:.3g} (transitions learnt from a frame)",
            f"replay: {self.rollouts.capacity} rollouts a seed"
            f"{' as bits' if self.rollouts.packed else ''}, {megabytes:.1f} MB a seed, "
            f"{megabytes * n_seeds:.1f} MB in all",
        ]
