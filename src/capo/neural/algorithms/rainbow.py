"""Rainbow: deep Q-learning with six components, each of which can be switched off.

    n-step         targets look n rewards ahead                                   (n_step = 1: off)
    distributional Q as a distribution over fixed atoms (C51), cross-entropy loss
    double         the target's action is chosen by the network being trained
    dueling        Q = V + A - mean A
    noisy          noise in the weights explores instead of epsilon
    prioritised    transitions with a large loss are drawn more often

Settings are those of *Revisiting Rainbow* (Obando-Ceron and Castro, 2021), which the paper uses.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from capo.arrays import Array, Metrics, PyTree
from capo.envs.layout import Part
from capo.envs.protocol import Env
from capo.errors import CapoError
from capo.neural.agent import Agent
from capo.neural.algorithms.base import UPDATE_METRICS, Algorithm, ReplaySize, TrainState, finite, scan_means
from capo.neural.algorithms.settings import (
    Atoms,
    Count,
    CountOrZero,
    EpsilonSettings,
    LearningRate,
    Network,
    Number,
    Period,
    Positive,
    Search,
    TracedFraction,
    TracedPositive,
    check_support,
    is_minatar,
)
from capo.neural.parts import networks, noisy, optimisers, policies, transitions
from capo.neural.parts.critic import two_hot
from capo.neural.parts.iterations import Iteration, crosses
from capo.neural.parts.networks import Inputs, NetworkSpec, Params
from capo.neural.parts.onnx_graph import Graph
from capo.neural.parts.own import NONE, OwnParts
from capo.neural.parts.policies import taken_row
from capo.neural.parts.replay import Rollout
from capo.neural.parts.transitions import NStep, Transitions


@dataclass(frozen=True)
class RainbowConfig(EpsilonSettings):
    """All settings of Rainbow. Frames are environment steps of one seed, summed over its environments."""

    PRESETS: ClassVar[tuple[str, ...]] = ("paper", "default")

    batch_size: Count = 32
    """Transitions per gradient step."""
    gradient_steps: Count = 16
    """Gradient steps per iteration."""
    replay_transitions: Count = 100_000
    """Transitions kept in the replay, rounded up to whole iterations."""
    learning_starts: CountOrZero = 1000
    """Frames before the first gradient step."""
    target_every: Period = 1000
    """Frames between two updates of the target network, rounded to whole iterations."""
    n_step: Count = 3
    """Number of rewards in a target before it bootstraps."""
    distributional: bool = True
    """Whether Q is a distribution over atoms (C51) instead of a number trained with the Huber loss."""
    double: bool = True
    """Whether the network being trained chooses the target's action."""
    dueling: bool = True
    """Whether V and A have separate heads."""
    noisy: bool = True
    """Whether dense layers are noisy; epsilon can then be 0."""
    prioritised: bool = True
    """Whether transitions are sampled by priority instead of uniformly."""
    atoms: Atoms = 51
    """Atoms of the distribution."""
    v_min: Number = -100.0
    """Lowest atom."""
    v_max: Number = 100.0
    """Highest atom."""
    noisy_sigma: Positive = 0.5
    """Initial noise of a noisy layer, times the square root of its number of inputs."""
    priority_exponent: Annotated[TracedFraction, Search(0.0, 1.0)] = 0.5
    """Priority = loss to this power; 0 samples uniformly."""
    priority_correction: Annotated[TracedFraction, Search(0.0, 1.0)] = 0.5
    """Exponent of the importance weights that correct for prioritised sampling: 0 does not correct, 1 corrects
    fully."""
    learning_rate: LearningRate = 1e-4
    """Learning rate of Adam at the start of training."""
    optimiser_epsilon: TracedPositive = 3.125e-4
    """Epsilon of Adam."""
    max_grad_norm: TracedPositive = 10.0
    network: Network = "auto"
    """mlp, conv (3x3 convolution), nature or impala (the convolutions of those papers for large images), or auto:
    nature for images of at least 36x36 pixels, conv for smaller ones, else mlp; hidden_layers dense layers
    follow."""
    hidden_layers: CountOrZero = 1
    """Dense layers between the convolution (or the observation) and the heads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_support(self.v_min, self.v_max, self.atoms)

    def value_range(self) -> tuple[float, float] | None:
        return (self.v_min, self.v_max) if self.distributional else None

    @classmethod
    def _preset(cls, name: str, env_name: str) -> Self:
        if name == "paper":
            return cls(
                n_envs=8,  # open: the original steps one environment ...
                rollout_length=8,  # ... and makes an update every 4 frames: 16 for 64 frames
                gradient_steps=16,  # see above
                batch_size=32,  # authors, like all that follows: Revisiting Rainbow for MinAtar
                replay_transitions=100_000,
                learning_starts=1000,
                target_every=1000,
                n_step=3,
                atoms=51,
                v_min=-100.0,
                v_max=100.0,
                noisy_sigma=0.1,
                priority_exponent=0.5,
                priority_correction=0.5,
                gamma=0.99,
                learning_rate=1e-4,
                optimiser_epsilon=3.125e-4,
                max_grad_norm=1e6,  # the original does not clip
                hidden_layers=0,  # one convolution, then the heads
                epsilon_start=0.01,
                epsilon_final=0.01,
            )
        if is_minatar(env_name):
            # As many transitions per frame, in larger batches; finer atoms; a hidden layer.
            return cls(
                n_envs=32,
                gradient_steps=16,
                batch_size=128,
                learning_starts=5000,
                target_every=2000,
                learning_rate=3e-4,
                optimiser_epsilon=1e-5,
                atoms=61,
                v_min=-10.0,
                v_max=50.0,
            )
        return cls(
            rollout_length=4,
            gradient_steps=8,
            batch_size=64,
            replay_transitions=20_000,
            target_every=500,
            learning_rate=1e-3,
            learning_rate_schedule="linear",
            optimiser_epsilon=1e-5,
            atoms=111,
            v_min=-110.0,  # the range of returns if rewards are between -1 and 1, at this gamma
            v_max=110.0,
            hidden_layers=2,
            width=64,
        )


def support(config: RainbowConfig) -> Array:
    """The atoms, equally spaced."""
    return jnp.linspace(config.v_min, config.v_max, config.atoms, dtype=jnp.float32)


def project(points: Array, weights: Array, atoms: Array) -> Array:
    """Move a distribution on ``points`` to the atoms: each point's mass is split between its two neighbours.

    Args:
        points: (..., N); those beyond the atoms go to the outermost atom.
        weights: (..., N) their mass.
        atoms: (M,) ascending.

    Returns:
        (..., M) the mass on the atoms, with the same mean if no point is beyond them.

    >>> project(jnp.array([0.25, 9.0]), jnp.array([0.8, 0.2]), jnp.arange(3.0)).round(3).tolist()
    [0.6000000238418579, 0.20000000298023224, 0.20000000298023224]
    """
    return jnp.sum(two_hot(points, atoms) * weights[..., None], axis=-2)


def outputs(config: RainbowConfig, spec: NetworkSpec, params: Params, obs: Array | Inputs) -> Array:
    """Logits (..., A, atoms) of the return's distribution; if not distributional, Q as (..., A, 1).

    Of actions that are not allowed they mean nothing.
    """
    n_atoms = config.atoms if config.distributional else 1
    obs = networks.inputs(spec, obs)
    features = networks.body(spec, params["body"], obs)
    advantage = networks.head(spec, params["advantage"], features)
    advantage = advantage.reshape(*advantage.shape[:-1], spec.n_actions, n_atoms)
    if not config.dueling:
        return advantage
    value = networks.head(spec, params["value"], features)[..., None, :]
    if obs.mask is None and not spec.factors:
        return value + advantage - advantage.mean(axis=-2, keepdims=True)
    mask = jnp.ones(advantage.shape[:-1], jnp.bool_) if obs.mask is None else obs.mask
    share = policies.uniform(mask, spec.factors)[..., None]
    if not spec.factors:
        return value + advantage - jnp.sum(share * advantage, axis=-2, keepdims=True)
    return value / len(spec.factors) + advantage - _of_factors(spec.factors, share * advantage)


def _of_factors(factors: tuple[int, ...], x: Array) -> Array:
    """The sum over each factor's actions, at every one of them: (..., A, M) to (..., A, M)."""

    def total(own: Array) -> Array:
        return jnp.broadcast_to(own.sum(axis=-1, keepdims=True), own.shape)

    return jnp.moveaxis(policies.each_factor(total, factors, jnp.moveaxis(x, -1, -2)), -1, -2)


def q_values(config: RainbowConfig, outputs: Array) -> Array:
    """Q (..., A) from the network's outputs."""
    return jax.nn.softmax(outputs) @ support(config) if config.distributional else outputs[..., 0]


def loss_each(
    config: RainbowConfig, spec: NetworkSpec, params: Params, slow: tuple[Params, Params], batch: NStep
) -> tuple[Array, Array]:
    """The loss of every transition (B,), and Q of the taken actions (B,).

    Args:
        params: the network to train.
        slow: the target network, and the network that chooses the target's action.
        batch: n-step transitions.
    """
    next_obs = networks.inputs(spec, batch.next_obs)
    target, chooser = (outputs(config, spec, network, next_obs) for network in slow)
    action = policies.best(policies.masked(q_values(config, chooser), next_obs.mask), spec.factors)
    beyond = taken_row(target, action)
    found = outputs(config, spec, params, batch.obs)
    chosen = taken_row(found, batch.action)
    if config.distributional:
        points = batch.returns[:, None] + batch.discount[:, None] * support(config)
        goal = jax.lax.stop_gradient(project(points, jax.nn.softmax(beyond), support(config)))
        each = -jnp.sum(goal * jax.nn.log_softmax(chosen), axis=-1)
    else:
        error = chosen[:, 0] - jax.lax.stop_gradient(batch.returns + batch.discount * beyond[:, 0])
        each = optax.losses.huber_loss(error)
    return each, q_values(config, chosen[:, None])[:, 0]


class RainbowAlgorithm(Algorithm):
    """Rainbow for a learner."""

    name = "rainbow"
    Config = RainbowConfig
    explores = True
    samples = False
    config: RainbowConfig

    def __init__(self, config: RainbowConfig, env: Env, own: OwnParts = NONE) -> None:
        super().__init__(config, env, own)
        if self.network.factors and config.distributional:
            raise CapoError(
                f"{env.name!r} has actions of {len(self.network.factors)} factors, so Q is a sum over "
                "factors, which a distribution of returns is not: set distributional=False"
            )
        self.ring = transitions.spec_for(self.rollouts, config.replay_transitions, config.n_step)

    def _network(self, seen: tuple[Part, ...], n_actions: int) -> NetworkSpec:
        spec = super()._network(seen, n_actions)
        return replace(spec, dense_layers=self.config.hidden_layers)

    # The state --------------------------------------------------------------------------------------------

    def init_params(self, rng: np.random.Generator) -> Params:
        config, spec = self.config, self.network
        n_atoms = config.atoms if config.distributional else 1
        params = {
            "body": networks.init_body(spec, rng),
            "advantage": networks.dense(rng, spec.n_features, spec.n_actions * n_atoms, scale=1.0),
        }
        if config.dueling:
            params["value"] = networks.dense(rng, spec.n_features, n_atoms, scale=1.0)
        if config.noisy:
            heads = [params[name] for name in ("advantage", "value") if name in params]
            for layer in [*params["body"]["dense"], *heads]:
                n_in, n_out = layer["kernel"].shape
                layer.update(noisy.init(rng, n_in, n_out, config.noisy_sigma))
        return params

    def init_target(self, params: Params) -> PyTree:
        return jax.tree.map(jnp.copy, params)

    def init_optimiser(self, params: Params) -> PyTree:
        return self._optimiser().init(params)

    def _optimiser(self) -> optax.GradientTransformation:
        clip = optax.clip_by_global_norm(self.config.max_grad_norm)
        return optimisers.make("adam", clip, epsilon=self.config.optimiser_epsilon)

    def init_replay(self) -> Transitions:
        return transitions.empty(self.ring)

    # Acting -----------------------------------------------------------------------------------------------

    def acting_params(self, params: Params) -> Params:
        return params

    def action_scores(self, acting: Params, obs: Array | Inputs) -> Array:
        inputs = networks.inputs(self.network, obs)
        q = q_values(self.config, outputs(self.config, self.network, acting, inputs))
        return policies.masked(q, inputs.mask)

    def export(self, graph: Graph, params: Params, parts: Mapping[str, str], mask: str | None) -> tuple[str, str]:
        config, n_actions = self.config, self.network.n_actions
        n_atoms = config.atoms if config.distributional else 1
        features = graph.body(self.network, params["body"], parts)
        found = graph.reshape(graph.head(params["advantage"], features), -1, n_actions, n_atoms)
        if config.dueling:
            value = graph.reshape(graph.head(params["value"], features), -1, 1, n_atoms)
            found = self._export_dueling(graph, value, found, mask)
        if config.distributional:
            atoms = graph.constant(np.asarray(support(config)))
            q = graph.node("MatMul", graph.node("Softmax", found, axis=-1), atoms)
        else:
            q = graph.reshape(found, -1, n_actions)
        return q, q

    def _export_dueling(self, graph: Graph, value: str, advantage: str, mask: str | None) -> str:
        """Value (N, 1, atoms) plus advantage (N, A, atoms), less its mean over each factor's allowed actions."""
        sizes = self.network.factors or (self.network.n_actions,)
        axis = graph.constant([1], np.int64)
        centred = []
        for start, end in itertools.pairwise(itertools.accumulate(sizes, initial=0)):
            own = graph.cut(advantage, start, end, axis=1)
            if mask is None:
                mean = graph.node("ReduceMean", own, axes=[1], keepdims=1)
            else:
                allowed = graph.cast(graph.cut(mask, start, end), np.float32)
                weight = graph.reshape(allowed, -1, end - start, 1)
                total = graph.node("ReduceSum", graph.node("Mul", own, weight), axis, keepdims=1)
                mean = graph.node("Div", total, graph.node("ReduceSum", weight, axis, keepdims=1))
            centred.append(graph.node("Sub", own, mean))
        share = graph.node("Div", value, graph.constant(len(sizes)))
        return graph.node("Add", share, graph.joined(centred, axis=1))

    @property
    def perturbs(self) -> bool:
        return self.config.noisy

    def noise(self, acting: Params, key: Array, steps: int) -> Array:
        return noisy.draw(acting, key, (steps,))

    def perturb(self, acting: Params, noise: Array) -> Params:
        return noisy.perturb(acting, noise)

    def exploration(self, frames: Array | np.floating[Any]) -> Array:
        return self._epsilon(frames, self.config)

    def behaviour(self, acting: Params, obs: Array, epsilon: Array) -> Array:
        """Epsilon-greedy."""
        inputs = networks.inputs(self.network, obs)
        scores = self.action_scores(acting, inputs)
        return policies.epsilon_greedy(scores, epsilon, inputs.mask, self.network.factors)

    # Learning ---------------------------------------------------------------------------------------------

    def learn(
        self, state: TrainState, rollouts: Rollout, iteration: Iteration, key: Array
    ) -> tuple[TrainState, Metrics]:
        config = self.config
        ring = transitions.add(self.ring, state.replay, rollouts, iteration)
        rate = self.learning_rate(iteration)

        def step(carry: PyTree, random: tuple[Array, PyTree]) -> tuple[PyTree, Metrics]:
            params, opt_state, priority, largest = carry
            now = ring._replace(priority=priority, largest=largest)
            params, opt_state, now, metrics = self._gradient_step(
                params, state.target, opt_state, now, rate, *random
            )
            return (params, opt_state, now.priority, now.largest), metrics

        def steps(carry: PyTree) -> tuple[PyTree, Metrics]:
            uniform = jax.random.uniform(key, (config.gradient_steps, config.batch_size))
            noise: PyTree = ()
            if config.noisy:  # for the network to train, its target, and the one that chooses
                noise = noisy.draw(state.params, jax.random.fold_in(key, 1), (config.gradient_steps, 3))
            return scan_means(step, carry, (uniform, noise))

        def nothing(carry: PyTree) -> tuple[PyTree, Metrics]:
            return carry, {name: jnp.zeros(()) for name in UPDATE_METRICS}

        waits = max(config.n_step, -(-config.learning_starts // config.n_envs))  # steps of each environment
        started = iteration.reached(waits // config.rollout_length)
        carry = (state.params, state.optimiser, ring.priority, ring.largest)
        (params, opt_state, priority, largest), metrics = jax.lax.cond(started, steps, nothing, carry)
        due = crosses(iteration, self.frames_per_iteration, config.target_every)
        target = jax.tree.map(lambda old, new: jnp.where(due, new, old), state.target, params)
        metrics |= {"learning_rate": rate, "finite": finite(params), "learned": started.astype(jnp.float32)}
        ring = ring._replace(priority=priority, largest=largest)
        return replace(state, params=params, target=target, optimiser=opt_state, replay=ring), metrics

    def end_rollouts(self, state: TrainState) -> TrainState:
        """Mark the last step as truncated, so that no return reaches across it."""
        ring: Transitions = state.replay
        last = (transitions.position(self.ring, Iteration.of(state.iteration, state.era)) - 1) % self.ring.steps
        seeds = jnp.arange(last.shape[0])
        truncated = jnp.asarray(ring.truncated).at[seeds, last].set(~jnp.asarray(ring.terminated)[seeds, last])
        return replace(state, replay=ring._replace(truncated=truncated))

    def _gradient_step(
        self,
        params: Params,
        target: Params,
        opt_state: PyTree,
        ring: Transitions,
        rate: Array,
        uniform: Array,
        noise: PyTree,
    ) -> tuple[Params, PyTree, Transitions, Metrics]:
        """One step on one batch drawn from the ring, and the batch's new priorities."""
        config = self.config
        index, probability = transitions.draw(ring.priority.reshape(-1), uniform)
        batch = transitions.take(self.ring, ring, index, config.gamma)
        weight = probability**-config.priority_correction
        weight = weight / weight.max()

        def loss(params: Params) -> tuple[Array, tuple[Array, Array]]:
            now, slow, chooser = params, target, params if config.double else target
            if config.noisy:
                now, slow, chooser = (noisy.perturb(net, noise[i]) for i, net in enumerate((now, slow, chooser)))
            fixed = jax.lax.stop_gradient((slow, chooser))
            each, q = loss_each(config, self.network, now, fixed, batch)
            return jnp.mean(weight * each), (each, q)

        grads, (each, q) = jax.grad(loss, has_aux=True)(params)
        params, opt_state = optimisers.step(self._optimiser(), params, opt_state, grads, rate)
        if config.prioritised:
            ring = transitions.prioritise(ring, index, (each + 1e-10) ** config.priority_exponent)
        metrics = {"critic_loss": jnp.mean(each), "value": jnp.mean(q), "grad_norm": optimisers.global_norm(grads)}
        return params, opt_state, ring, metrics

    # What a run says about itself -------------------------------------------------------------------------

    @property
    def updates_per_iteration(self) -> float:
        return float(self.config.gradient_steps)

    @property
    def transitions_per_update(self) -> int:
        return self.config.batch_size

    @property
    def memory(self) -> ReplaySize:
        return ReplaySize(self.ring.nbytes, "replay_transitions", self.config.replay_transitions)

    def _describe_replay(self) -> str:
        return f"{self.ring.capacity} transitions"


class Rainbow(Agent):
    """Deep Q-learning with n-step, distributional, double, dueling, noisy and prioritised parts.

    Its policy is greedy: ``deterministic`` makes no difference to :meth:`predict` and :meth:`evaluate`.

    >>> Rainbow("probe-action", width=16, learning_starts=16).learn(64).frames
    64
    """

    _algorithm = RainbowAlgorithm
