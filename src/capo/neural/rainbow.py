"""Rainbow: deep Q-learning with six parts that can be switched off one by one.

    n-step         targets look n rewards ahead                                   (n_step = 1: off)
    distributional Q as a distribution over fixed atoms (C51), cross-entropy loss
    double         the action of the target is chosen by the network that learns
    dueling        Q = V + A - mean A
    noisy          noise in the weights explores, instead of epsilon
    prioritised    transitions with a large loss are drawn more often

Settings are those of *Revisiting Rainbow* (Obando-Ceron and Castro, 2021), which the paper uses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from capo.neural import networks, noisy, transitions
from capo.neural.algorithm import (
    OF_LEARNING,
    Algorithm,
    Metrics,
    TrainState,
    finite,
    global_norm,
    linear,
    scan_means,
)
from capo.neural.critic import two_hot
from capo.neural.networks import Inputs, NetworkSpec, Params
from capo.neural.replay import Rollout
from capo.neural.settings import EpsilonSettings, Network, check_support, is_minatar
from capo.neural.transitions import NStep, Transitions

Array = Any
PyTree = Any


@dataclass(frozen=True)
class RainbowConfig(EpsilonSettings):
    """All settings of Rainbow. Frames are environment steps of one seed, over all its environments."""

    PRESETS: ClassVar[tuple[str, ...]] = ("paper", "default")

    batch_size: int = 32
    """Transitions in the batch of one gradient step."""
    gradient_steps: int = 16
    """Gradient steps an iteration."""
    replay_transitions: int = 100_000
    """Transitions kept in the replay; rounded up to whole iterations."""
    learning_starts: int = 1000
    """Frames before the first gradient step."""
    target_every: int = 1000
    """Frames between two copies of the network to its target, rounded to whole iterations."""
    n_step: int = 3
    """Rewards that a target looks ahead."""
    distributional: bool = True
    """Whether Q is a distribution over atoms (C51) rather than a number with Huber's loss."""
    double: bool = True
    """Whether the network that learns chooses the target's action."""
    dueling: bool = True
    """Whether there are separate heads for V and for A."""
    noisy: bool = True
    """Whether dense layers are noisy; epsilon may then be 0."""
    prioritised: bool = True
    """Whether transitions are drawn by priority rather than uniformly."""
    atoms: int = 51
    """Atoms of the distribution."""
    v_min: float = -100.0
    """Lowest atom."""
    v_max: float = 100.0
    """Highest atom."""
    noisy_sigma: float = 0.5
    """Noise of a noisy layer at the start, times the root of its inputs."""
    priority_exponent: float = 0.5
    """Priority = loss to this power; 0 draws uniformly."""
    priority_correction: float = 0.5
    """Exponent of the weights that correct for uneven drawing; 0 does not, 1 does in full."""
    learning_rate: float = 1e-4
    """Learning rate at the start (Adam)."""
    optimiser_epsilon: float = 3.125e-4
    """Epsilon of Adam."""
    max_grad_norm: float = 10.0
    network: Network = "auto"
    """mlp, conv (16 filters of 3x3), or auto: conv for image grids; hidden_layers dense layers follow."""
    hidden_layers: int = 1
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
                rollout_length=8,  # ... and makes an update every 4 frames: 16 for these 64
                gradient_steps=16,  # see above
                batch_size=32,  # authors, as all that follows: Revisiting Rainbow for MinAtar
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
            # The same transitions a frame, in larger batches; finer atoms; a hidden layer.
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
            v_min=-110.0,  # all that rewards between -1 and 1 can come to at this gamma
            v_max=110.0,
            hidden_layers=2,
            width=64,
        )


def support(config: RainbowConfig) -> Array:
    """The atoms, equally spaced."""
    return jnp.linspace(config.v_min, config.v_max, config.atoms, dtype=jnp.float32)


def project(points: Array, weights: Array, atoms: Array) -> Array:
    """A distribution on ``points`` moved to the atoms, each point shared by its two neighbours.

    Args:
        points: (..., N) where the mass is; beyond the atoms it goes to the outermost one.
        weights: (..., N) the mass.
        atoms: (M,) where it shall be.

    Returns:
        (..., M) the mass on the atoms; its mean is kept if no point lies beyond them.

    >>> project(jnp.array([0.25, 9.0]), jnp.array([0.8, 0.2]), jnp.arange(3.0)).round(3).tolist()
    [0.6000000238418579, 0.20000000298023224, 0.20000000298023224]
    """
    return jnp.sum(two_hot(points, atoms) * weights[..., None], axis=-2)


def outputs(config: RainbowConfig, spec: NetworkSpec, params: Params, obs: Array | Inputs) -> Array:
    """Logits (..., A, atoms) of the return's distribution; Q itself as (..., A, 1) if not distributional."""
    n_atoms = config.atoms if config.distributional else 1
    features = networks.body(spec, params["body"], obs)
    advantage = networks.head(spec, params["advantage"], features)
    advantage = advantage.reshape(*advantage.shape[:-1], spec.n_actions, n_atoms)
    if not config.dueling:
        return advantage
    value = networks.head(spec, params["value"], features)[..., None, :]
    return value + advantage - advantage.mean(axis=-2, keepdims=True)


def q_values(config: RainbowConfig, outputs: Array) -> Array:
    """Q (..., A) from the network's outputs."""
    return jax.nn.softmax(outputs) @ support(config) if config.distributional else outputs[..., 0]


def loss_each(
    config: RainbowConfig, spec: NetworkSpec, params: Params, slow: tuple[Params, Params], batch: NStep
) -> tuple[Array, Array]:
    """The loss of every transition (B,), and Q of the taken actions (B,).

    Args:
        params: the network that learns.
        slow: the target network, and the one that chooses the target's action.
        batch: n-step transitions.
    """

    def pick(x: Array, action: Array) -> Array:
        return jnp.take_along_axis(x, action[:, None, None], axis=1)[:, 0]

    next_obs = networks.inputs(spec, batch.next_obs)
    target, chooser = (outputs(config, spec, network, next_obs) for network in slow)
    action = q_values(config, chooser).argmax(axis=-1)
    beyond = pick(target, action)
    found = outputs(config, spec, params, batch.obs)
    taken = pick(found, batch.action)
    if config.distributional:
        points = batch.returns[:, None] + batch.discount[:, None] * support(config)
        goal = jax.lax.stop_gradient(project(points, jax.nn.softmax(beyond), support(config)))
        each = -jnp.sum(goal * jax.nn.log_softmax(taken), axis=-1)
    else:
        error = taken[:, 0] - jax.lax.stop_gradient(batch.returns + batch.discount * beyond[:, 0])
        each = optax.losses.huber_loss(error)
    return each, q_values(config, taken[:, None])[:, 0]


class RainbowAlgorithm(Algorithm):
    """Rainbow for the loop."""

    name = "rainbow"
    Config = RainbowConfig
    explores = True
    samples = False

    def __init__(self, config: RainbowConfig, env: Any) -> None:
        super().__init__(config, env)
        self.ring = transitions.spec_for(self.rollouts, config.replay_transitions, config.n_step)

    def _network(self, observation_shape: tuple[int, ...], n_actions: int) -> NetworkSpec:
        spec = super()._network(observation_shape, n_actions)
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
        return optax.chain(
            optax.clip_by_global_norm(self.config.max_grad_norm),
            optax.scale_by_adam(eps=self.config.optimiser_epsilon),
        )

    def init_replay(self) -> Transitions:
        return transitions.empty(self.ring)

    # Acting -----------------------------------------------------------------------------------------------

    def acting(self, params: Params) -> Params:
        return params

    def scores(self, acting: Params, obs: Array) -> Array:
        return q_values(self.config, outputs(self.config, self.network, acting, obs))

    @property
    def perturbs(self) -> bool:
        return bool(self.config.noisy)

    def noise(self, acting: Params, key: Array, steps: int) -> Array:
        return noisy.draw(acting, key, (steps,))

    def perturb(self, acting: Params, noise: Array) -> Params:
        return noisy.perturb(acting, noise)

    def exploration(self, frames: Array) -> Array:
        config = self.config
        progress = jnp.minimum(frames / max(config.epsilon_fraction * config.horizon, 1.0), 1.0)
        return config.epsilon_start + (config.epsilon_final - config.epsilon_start) * progress

    def behaviour(self, acting: Params, obs: Array, epsilon: Array) -> Array:
        """Epsilon-greedy."""
        scores = self.scores(acting, obs)
        best = jax.nn.one_hot(scores.argmax(axis=-1), scores.shape[-1])
        return jnp.log((1 - epsilon) * best + epsilon / scores.shape[-1])

    # Learning ---------------------------------------------------------------------------------------------

    def learn(
        self, state: TrainState, rollouts: Rollout, iteration: Array, key: Array
    ) -> tuple[TrainState, Metrics]:
        config = self.config
        ring = transitions.add(self.ring, state.replay, rollouts, iteration)
        progress = self._frames(iteration) / config.horizon
        rate = linear(config.learning_rate, config.learning_rate_schedule, progress)

        def step(carry: tuple[Params, PyTree, Array, Array], random: tuple[Array, Any]) -> tuple[Any, Metrics]:
            params, opt_state, priority, largest = carry
            now = ring._replace(priority=priority, largest=largest)
            params, opt_state, now, metrics = self._gradient_step(
                params, state.target, opt_state, now, rate, *random
            )
            return (params, opt_state, now.priority, now.largest), metrics

        def steps(carry: Any) -> tuple[Any, Metrics]:
            uniform = jax.random.uniform(key, (config.gradient_steps, config.batch_size))
            noise: Any = ()
            if config.noisy:  # of the network that learns, of its target, and of the one that chooses
                noise = noisy.draw(state.params, jax.random.fold_in(key, 1), (config.gradient_steps, 3))
            return scan_means(step, carry, (uniform, noise))

        def nothing(carry: Any) -> tuple[Any, Metrics]:
            return carry, {name: jnp.zeros(()) for name in OF_LEARNING}

        started = self._steps_so_far(iteration) > max(config.n_step, -(-config.learning_starts // config.n_envs))
        carry = (state.params, state.optimiser, ring.priority, ring.largest)
        (params, opt_state, priority, largest), metrics = jax.lax.cond(started, steps, nothing, carry)
        before, after = (self._steps_so_far(iteration - i) * config.n_envs // config.target_every for i in (1, 0))
        target = jax.tree.map(lambda old, new: jnp.where(after > before, new, old), state.target, params)
        metrics |= {"learning_rate": rate, "finite": finite(params), "learnt": started.astype(jnp.float32)}
        ring = ring._replace(priority=priority, largest=largest)
        return replace(state, params=params, target=target, optimiser=opt_state, replay=ring), metrics

    def cut(self, state: TrainState) -> TrainState:
        """The last step as one where episodes were cut short: no return reaches across."""
        ring: Transitions = state.replay
        last = (self._steps_so_far(state.iteration - 1) - 1) % self.ring.steps  # (K,)
        seeds = jnp.arange(last.shape[0])
        truncated = jnp.asarray(ring.truncated).at[seeds, last].set(~jnp.asarray(ring.terminated)[seeds, last])
        return replace(state, replay=ring._replace(truncated=truncated))

    def _steps_so_far(self, iteration: Array) -> Array:
        return (iteration + 1) * self.config.rollout_length

    def _gradient_step(
        self,
        params: Params,
        target: Params,
        opt_state: PyTree,
        ring: Transitions,
        rate: Array,
        uniform: Array,
        noise: Any,
    ) -> tuple[Params, PyTree, Transitions, Metrics]:
        """One step on one batch drawn from the ring, whose priorities change."""
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
        updates, opt_state = self._optimiser().update(grads, opt_state)
        params = jax.tree.map(lambda p, u: p - rate * u, params, updates)
        if config.prioritised:
            ring = transitions.prioritise(ring, index, (each + 1e-10) ** config.priority_exponent)
        metrics = {"critic_loss": jnp.mean(each), "value": jnp.mean(q), "grad_norm": global_norm(grads)}
        return params, opt_state, ring, metrics

    # What a run says about itself -------------------------------------------------------------------------

    @property
    def updates_per_iteration(self) -> float:
        return float(self.config.gradient_steps)

    @property
    def transitions_per_update(self) -> int:
        return int(self.config.batch_size)

    @property
    def memory(self) -> tuple[int, str, int]:
        return self.ring.nbytes, "replay_transitions", self.config.replay_transitions

    def describe_learning(self, n_seeds: int) -> list[str]:
        updates, size, frames = self.updates_per_iteration, self.transitions_per_update, self.frames_per_iteration
        megabytes = self.ring.nbytes / 1e6
        return [
            f"learning: {updates:g} updates an iteration, each on {size} transitions; {updates / frames:.4g} "
            f"updates a frame, replay ratio {updates * size / frames:.3g} (transitions learnt from a frame)",
            f"replay: {self.ring.capacity} transitions a seed{' as bits' if self.rollouts.packed else ''}, "
            f"{megabytes:.1f} MB a seed, {megabytes * n_seeds:.1f} MB in all",
        ]
