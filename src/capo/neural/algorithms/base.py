"""What a learner needs to know about an algorithm, and the state of a run.

The learner steps environments, counts episodes, vmaps over seeds and keeps time; an :class:`Algorithm` says how to
act and how to learn from the rollouts of an iteration. Its methods are pure functions of their arguments, written
for one seed.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, Metrics, PyTree
from capo.envs.layout import Part
from capo.envs.protocol import Env, EnvSpec
from capo.envs.wrappers import wrap
from capo.errors import CapoError
from capo.neural.algorithms.settings import CommonSettings, EpsilonSettings
from capo.neural.parts import networks, policies, replay, schedules
from capo.neural.parts.iterations import ERA, Iteration
from capo.neural.parts.networks import Inputs, NetworkSpec, Params
from capo.neural.parts.onnx_graph import Graph
from capo.neural.parts.own import NONE, OwnParts
from capo.neural.parts.replay import ReplaySpec, Rollout

# Metrics of the gradient steps: there are none before an algorithm starts to learn.
UPDATE_METRICS = ("critic_loss", "value", "grad_norm")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The whole state of a run, with a leading axis of K seeds on every leaf."""

    params: PyTree
    target: PyTree  # target networks; empty if the algorithm has none
    optimiser: PyTree
    replay: PyTree  # what is kept of earlier iterations; empty if the algorithm is on-policy
    env_state: PyTree  # (K, n_envs, ...); empty if the host steps the environment
    observation: Array  # (K, n_envs, *observation_shape)
    episode_return: Array  # (K, n_envs) of the current episodes so far
    episode_length: Array  # (K, n_envs)
    iteration: Array  # (K,) int32 below ERA, the same for all seeds: see :attr:`reached`
    key: Array  # (K, 2) uint32, the seed's key; never changes
    era: int = field(default=0, metadata={"static": True})  # how often ``iteration`` went round
    normaliser: PyTree = ()  # running statistics of the observations; empty if they are not normalised

    @property
    def reached(self) -> int:
        """The number of iterations behind every seed."""
        return self.era * ERA + int(np.asarray(self.iteration)[0])

    def in_era(self, era: int) -> TrainState:
        """The same state at the first iteration of an era, where ``iteration`` has gone round."""
        return replace(self, iteration=jnp.zeros_like(self.iteration), era=era)


class ReplaySize(NamedTuple):
    """How large a replay is, and the setting that decides it."""

    nbytes: int  # per seed
    setting: str
    value: int


class Algorithm(ABC):
    """One algorithm with its settings, on one environment.

    Attributes:
        config: the settings; a subclass annotates their type.
        own: network and schedules that the user brought.
        network: what the networks look like.
        rollouts: shapes of an iteration's rollouts, and of the replay if whole rollouts are kept.
        frames_per_iteration: environment steps per iteration and seed.
    """

    name: ClassVar[str]
    Config: ClassVar[type[CommonSettings]]
    explores: ClassVar[bool] = False  # whether exploration follows a schedule, logged as "epsilon"
    on_policy: ClassVar[bool] = False  # whether it learns only from steps of the current policy
    samples: ClassVar[bool] = True  # whether the policy is stochastic; if not, the best action is always taken
    config: CommonSettings

    def __init__(self, config: CommonSettings, env: Env, own: OwnParts = NONE) -> None:
        self.config, self.own = config, own
        spec = EnvSpec(wrap(env, config.frame_stack, config.time_limit))
        self.network = replace(
            self._network(spec.seen, spec.n_actions),
            precision=networks.precision(config.precision, spec.seen),
            layout=spec.layout,
            factors=spec.factors,
        )
        if own.network is not None:
            self.network = replace(self.network, kind="own", own=own.network, precision="float32", encoders=())
        self.rollouts: ReplaySpec = replay.spec_for(
            spec.observation_shape,
            spec.observation_dtype,
            spec.truncates,
            n_envs=config.n_envs,
            length=config.rollout_length,
            n_factors=len(spec.factors),
            frames=spec.frame_stack,
            **self._replay_options(),
        )
        self.frames_per_iteration = config.frames_per_iteration

    def seeing(self, normaliser: PyTree) -> Self:
        """This algorithm with networks that see observations normalised by a state's statistics, if it has any."""
        if not normaliser:
            return self
        made = copy.copy(self)
        made.network = replace(self.network, normaliser=normaliser)
        return made

    def exact(self) -> Self:
        """This algorithm with networks that compute in float32."""
        made = copy.copy(self)
        made.network = replace(self.network, precision="float32")
        return made

    def _network(self, seen: tuple[Part, ...], n_actions: int) -> NetworkSpec:
        """What the networks look like that see these parts of an observation."""
        return networks.spec_for(self.config, seen, n_actions)

    def _replay_options(self) -> dict[str, int]:
        """Capacity and clearing of a replay of whole rollouts; by default one iteration is kept."""
        return {}

    @property
    def cuts_rollouts(self) -> bool:
        """Whether a rollout stops at the end of an episode: see :func:`capo.neural.parts.replay.filled`."""
        return False

    # The state --------------------------------------------------------------------------------------------

    def init_params(self, rng: np.random.Generator) -> Params:
        """Networks of one seed, as numpy arrays."""
        return networks.init(self.network, rng)

    def init_target(self, params: Params) -> PyTree:
        """Target networks."""
        del params
        return ()

    def played(self, state: TrainState) -> Params:
        """The networks that evaluate, predict and are exported."""
        params: Params = state.params
        return params

    @abstractmethod
    def init_optimiser(self, params: Params) -> PyTree:
        """The optimiser's state."""

    def init_replay(self) -> PyTree:
        """An empty replay."""
        return ()

    def end_rollouts(self, state: TrainState) -> TrainState:
        """The state of all seeds (K, ...) if the next rollouts do not continue the last ones."""
        return state

    # Acting -----------------------------------------------------------------------------------------------

    @property
    def evaluates_best(self) -> bool:
        """Whether an evaluation takes the best actions if it is not told what to take."""
        return not self.samples or getattr(self.config, "evaluation", "sampled") == "best"

    def acting_params(self, params: Params) -> Params:
        """The networks that :meth:`action_scores` and :meth:`behaviour` need."""
        return networks.select(params, "actor")

    def action_scores(self, acting: Params, obs: Array | Inputs) -> Array:
        """Scores (..., A) of the actions, the largest is the best: logits if the policy is stochastic, else Q.

        Actions that are not allowed have the score :data:`capo.neural.parts.policies.FORBIDDEN`.
        """
        return networks.policy_logits(self.network, acting, obs)

    def probabilities(self, params: Params, obs: Array, mask: Array | None = None) -> Array:
        """pi (..., A) without exploration: of the best action alone if the policy is not stochastic.

        Args:
            params: all networks of a seed.
            obs: (..., *observation_shape).
            mask: (..., A), true where an action is allowed.
        """
        scores = self.action_scores(self.acting_params(params), obs)
        scores, factors = policies.masked(scores, mask), self.network.factors
        if self.samples:
            return jnp.exp(policies.log_softmax(scores, factors))
        best = policies.is_taken(policies.best(scores, factors), scores.shape[-1], factors)
        return best.astype(jnp.float32)

    def state_values(self, params: Params, obs: Array, pi: Array) -> Array:
        """V (...,): the critic's, or the mean of Q under ``pi`` (..., A) where the critic gives Q."""
        if self.samples:
            q = self.critic_values(networks.outputs(self.network, networks.select(params, "critic"), obs))
        else:
            q = self.action_scores(self.acting_params(params), obs)
        return q[..., 0] if q.shape[-1] == 1 else jnp.sum(pi * q, axis=-1)

    def critic_values(self, outputs: Array) -> Array:
        """Q (..., A), or V (..., 1), from the outputs of the critic's head."""
        return outputs

    def export(self, graph: Graph, params: Params, parts: Mapping[str, str], mask: str | None) -> tuple[str, str]:
        """Add the networks to an ONNX graph.

        Args:
            graph: to add to.
            params: of one seed.
            parts: what holds each part (N, *part.shape) of the observations, as the networks take them.
            mask: what holds the action masks (N, A); None if the environment has none.

        Returns:
            The names of the scores (N, A) of the actions, and of Q (N, A) or V (N, 1).
        """
        del mask
        if "actor" not in params:
            raise CapoError(f"policies of {self.name} can't be exported")
        actor, critic = networks.select(params, "actor"), networks.select(params, "critic")
        features = graph.body(self.network, critic["body"], parts)
        shared = self.network.shared_trunk
        policy_features = features if shared else graph.body(self.network, actor["body"], parts)
        values = self.export_values(graph, graph.head(critic["head"], features))
        return graph.head(actor["head"], policy_features), values

    def export_values(self, graph: Graph, outputs: str) -> str:
        """As :meth:`critic_values`, in an ONNX graph."""
        del graph
        return outputs

    @property
    def perturbs(self) -> bool:
        """Whether noise is added to the networks at every step."""
        return False

    def noise(self, acting: Params, key: Array, steps: int) -> Array:
        """Noise (steps, ...) of ``steps`` steps, for :meth:`perturb`."""
        raise NotImplementedError

    def perturb(self, acting: Params, noise: Array) -> Params:
        """The networks with the noise of one step."""
        raise NotImplementedError

    def exploration(self, frames: Array | np.floating[Any]) -> Array:
        """Epsilon after ``frames``."""
        del frames
        return jnp.zeros(())

    def _epsilon(self, frames: Array | np.floating[Any], settings: EpsilonSettings) -> Array:
        """Epsilon after ``frames``: the user's schedule if there is one, else that of the settings."""
        own = self.own.schedule("epsilon", jnp.asarray(frames) / float(settings.horizon))
        return settings.epsilon(frames) if own is None else own

    @abstractmethod
    def behaviour(self, acting: Params, obs: Array, epsilon: Array) -> Array:
        """Log-probabilities (..., A) of the actions during training; minus infinity if one is not allowed."""

    # Learning ---------------------------------------------------------------------------------------------

    @abstractmethod
    def learn(
        self, state: TrainState, rollouts: Rollout, iteration: Iteration, key: Array
    ) -> tuple[TrainState, Metrics]:
        """What follows the collection of an iteration's rollouts, for one seed.

        Args:
            state: of one seed, after its environments were stepped.
            rollouts: (n_envs, T) of this iteration, observations as the environment gives them.
            iteration: of this iteration, the same for all seeds (so a branch on it remains a branch).
            key: random, of this iteration.

        Returns:
            The state with new networks, optimiser and replay, and scalars to log; among them ``grad_norm``,
            ``critic_loss`` and ``finite``; and ``learned``, 1 or 0, if some iterations learn nothing.
        """

    def progress(self, iteration: Iteration) -> Array:
        """The fraction of the horizon before this iteration."""
        return self.frames_before(iteration) / float(self.config.horizon)

    def learning_rate(self, iteration: Iteration) -> Array:
        """The learning rate of this iteration."""
        config = self.config
        own = self.own.schedule("learning_rate", self.progress(iteration))
        if own is not None:
            return own
        return schedules.decay(config.learning_rate, config.learning_rate_schedule, self.progress(iteration))

    def frames_before(self, iteration: Iteration) -> Array:
        """Frames of one seed before this iteration, as float32."""
        return iteration.as_float() * self.frames_per_iteration

    # What a run says about itself -------------------------------------------------------------------------

    @property
    @abstractmethod
    def updates_per_iteration(self) -> float:
        """Gradient steps per iteration, on average."""

    @property
    @abstractmethod
    def transitions_per_update(self) -> int:
        """Transitions per gradient step."""

    @property
    def memory(self) -> ReplaySize:
        """The replay's size."""
        return ReplaySize(0, "", 0)

    def describe_learning(self, n_seeds: int) -> list[str]:
        """One or two lines: batches, updates, memory."""
        updates, frames = self.updates_per_iteration, self.frames_per_iteration
        ratio = f"{updates * self.transitions_per_update / frames:.3g}"
        times = "once" if ratio == "1" else f"{ratio} times"
        learning = (
            f"learning: {updates:g} updates per iteration, each on {self._describe_batch()}; "
            f"{updates / frames:.4g} updates per frame"
        )
        if self.on_policy:
            return [f"{learning}; each transition is trained on {times}, then discarded"]
        megabytes = self.memory.nbytes / 1e6
        return [
            f"{learning}, replay ratio {ratio} (each frame is trained on {times})",
            f"replay: {self._describe_replay()} per seed{' as bits' if self.rollouts.packed else ''}, "
            f"{megabytes:.1f} MB per seed, {megabytes * n_seeds:.1f} MB in total",
        ]

    def _describe_batch(self) -> str:
        return f"{self.transitions_per_update} transitions"

    def _describe_replay(self) -> str:
        """What one seed's replay holds; only off-policy algorithms have one."""
        raise NotImplementedError


def finite(params: Params) -> Array:
    """1.0 if every parameter is finite, else 0.0: training stops on 0."""
    each = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]
    return jnp.stack(each).all().astype(jnp.float32)


def scan_means(
    step: Callable[[PyTree, PyTree], tuple[PyTree, Metrics]], carry: PyTree, xs: PyTree
) -> tuple[PyTree, Metrics]:
    """``jax.lax.scan`` over a step that returns scalars to log: the last carry and the scalars' means.

    The scalars leave the loop as one array: on a GPU, one array each would be one kernel each, at every step.
    """
    names: list[str] = []

    def stacked(carry: PyTree, x: PyTree) -> tuple[PyTree, Array]:
        carry, metrics = step(carry, x)
        names[:] = metrics
        return carry, jnp.stack(list(metrics.values()))

    carry, rows = jax.lax.scan(stacked, carry, xs)
    return carry, dict(zip(names, rows.mean(axis=0), strict=True))


def scan_epochs(
    step: Callable[[PyTree, PyTree], tuple[PyTree, Metrics]],
    carry: PyTree,
    transitions: PyTree,
    key: Array,
    *,
    epochs: int,
    batch_size: int,
) -> tuple[PyTree, Metrics]:
    """Go through transitions in random minibatches, a few times: the last carry and the scalars' means.

    Args:
        step: from a carry and a minibatch, leaves (batch_size, ...), to a carry and scalars to log.
        transitions: leaves (n, ...), n a multiple of ``batch_size``.
    """
    count = len(jax.tree.leaves(transitions)[0])

    def epoch(carry: PyTree, key: Array) -> tuple[PyTree, Metrics]:
        order = jax.random.permutation(key, count).reshape(-1, batch_size)
        # Gathered once: in every minibatch it would be a kernel for each array.
        return scan_means(step, carry, jax.tree.map(lambda leaf: leaf[order], transitions))

    return scan_means(epoch, carry, jax.random.split(key, epochs))


def means(each: Metrics) -> Metrics:
    """The mean of every array, all of one shape, in a single reduction."""
    arrays = jnp.stack(list(each.values()))
    return dict(zip(each, arrays.mean(axis=tuple(range(1, arrays.ndim))), strict=True))
