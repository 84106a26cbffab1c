"""The contract between a training and whatever steps the environment: collect -> store -> learn.

A :class:`Learner` is an algorithm on one environment. Its state is an explicit :class:`TrainState`, handed in and
out: a learner owns compiled programs and open environments, never what was learned. ``JittedLearner`` runs the
environment inside the compiled program, many seeds at once; ``HostLearner`` steps Gymnasium's, one seed at a time.
"""

from __future__ import annotations

import itertools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, Metrics, NDArray, PyTree
from capo.envs.protocol import EnvSpec
from capo.envs.wrappers import wrap
from capo.errors import CapoError, CapoWarning
from capo.neural.algorithms.base import Algorithm, TrainState
from capo.neural.learners.behaviours import Behaviour
from capo.neural.parts import networks, normaliser, policies, replay
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.networks import NetworkSpec, ShapesOnly
from capo.neural.parts.replay import ReplaySpec, Rollout
from capo.reading import free_memory

MAX_EVALUATION_STEPS = 50_000  # an agent that never loses must not play for ever


class Playable(NamedTuple):
    """Networks with the statistics that their observations are normalised by."""

    params: PyTree
    normaliser: normaliser.ByPart


class Learner(ABC):
    """An algorithm on an environment, for ``n_seeds`` seeds that advance together.

    Args:
        algorithm: with its settings.
        env: to train on, made by :func:`capo.envs.make`.
        n_seeds: K, the leading axis of every leaf of the state.
        eval_env: to evaluate on; the training environment if None.

    Attributes:
        env: with the wrappers that the settings ask for (frame_stack, time_limit); ``eval_env`` likewise.
        frames_per_iteration: environment steps of one iteration of one seed.
        compile_seconds: what compiling took; None before it is done.
        behaviour: who acts during training; the agent's own policy if None.

    Raises:
        CapoError: if the networks or the replay do not fit into memory. Nothing large is allocated here.
    """

    behaviour: Behaviour | None = None

    def __init__(self, algorithm: Algorithm, env: Any, n_seeds: int, eval_env: Any = None) -> None:
        if n_seeds < 1:
            raise CapoError(f"n_seeds={n_seeds} must be at least 1")
        self.config = config = algorithm.config
        self.algorithm, self.n_seeds = algorithm, n_seeds
        self.env = wrap(env, config.frame_stack, config.time_limit)
        self.spec = EnvSpec(self.env)
        self.eval_env = self.env if eval_env is None else wrap(eval_env, config.frame_stack, config.time_limit)
        self.frames_per_iteration = algorithm.frames_per_iteration
        self.compile_seconds: float | None = None
        if config.normalise_observations:
            normaliser.check(self.spec.name, self.spec.seen)
        self._check_memory()
        self._act = jax.jit(partial(_act, algorithm), static_argnames="deterministic")
        self._policy = jax.jit(partial(_policy, algorithm))

    # What a training calls --------------------------------------------------------------------------------

    @abstractmethod
    def init(self, seeds: Sequence[int]) -> TrainState:
        """The state before the first iteration, one row per seed."""

    @abstractmethod
    def shapes(self, seeds: Sequence[int]) -> TrainState:
        """Shapes and dtypes of that state; nothing is allocated."""

    @abstractmethod
    def compile(self, era: int = 0) -> float:
        """Compile the training program of an era (once) and return the seconds that the first one took."""

    @abstractmethod
    def run(self, state: TrainState, iterations: int) -> tuple[TrainState, dict[str, NDArray]]:
        """Train for ``iterations`` iterations. The state given is used up: its buffers are donated.

        Returns:
            The state after them, and the metrics as arrays (iterations, K).
        """

    @abstractmethod
    def evaluate(self, params: PyTree, keys: Array, episodes: int, deterministic: bool | None = None) -> NDArray:
        """Play whole episodes with the policies of all seeds, without exploration.

        Args:
            params: from :meth:`playable`, networks of all seeds, each leaf with the leading axis K.
            keys: (K, 2) raw random keys, one per seed.
            episodes: per seed.
            deterministic: take the most likely action (True) or sample (False); by default as the settings say.

        Returns:
            (K, episodes) undiscounted returns.
        """

    def check_evaluation(self, episodes: int) -> None:  # noqa: B027 - most play a few episodes at a time
        """Raise if memory has no room for the episodes that are played at once.

        Raises:
            CapoError: says how many there is room for.
        """

    def restart(self, state: TrainState, seeds: Sequence[int], which: Sequence[int]) -> TrainState:
        """The state with some seeds back at their beginning; nothing else in it changes.

        It is used up, as by :meth:`run`.

        Args:
            state: of all seeds.
            seeds: K of them.
            which: the indices of those to put back.
        """
        raise NotImplementedError  # a learner of one seed has no others to continue with

    def compiled_memory(self) -> int | None:
        """Bytes that the compiled program needs, its state included; None where that is unknown."""
        return None

    def recover(self) -> TrainState | None:
        """After a :meth:`run` that raised: the last complete state, if there is one."""
        return None

    def place(self, state: PyTree) -> PyTree:
        """A state, or part of one, on the devices its seeds run on."""
        return to_device(state)

    def close(self) -> None:  # noqa: B027 - most learners hold nothing open
        """Close open environments; the next :meth:`run` opens new ones, with new episodes."""

    # Acting -----------------------------------------------------------------------------------------------

    def playable(self, state: TrainState) -> PyTree:
        """What :meth:`evaluate` needs of a state: the networks, and how observations are normalised."""
        params = self.algorithm.played(state)
        return Playable(params, state.normaliser) if self.config.normalise_observations else params

    def policy_params(self, state: TrainState, seed_index: int) -> PyTree:
        """The same of one seed, for :meth:`act`."""
        return jax.tree.map(lambda leaf: leaf[seed_index], self.playable(state))

    def act(
        self,
        params: PyTree,
        observations: Any,
        key: Array | None = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> NDArray:
        """Actions (N,), or coordinates (N, F), for a batch of the environment's own observations (N, ...).

        Args:
            params: from :meth:`policy_params`.
            observations: (N, ...) as the environment gives them.
            key: raw random key; not needed if deterministic.
            deterministic: take the most likely action instead of sampling.
            action_masks: (N, A) or (A,), true where an action is allowed; needed if the environment has masks.

        Raises:
            CapoError: if observations or masks have another shape, a mask allows nothing, or there is none.
        """
        obs, mask = self._encoded(observations, action_masks)
        if key is None:
            if not deterministic:
                raise CapoError("act needs a key unless deterministic=True")
            key = jax.random.PRNGKey(0)
        if not len(obs):
            return np.zeros((0, *self.replay.action_shape), np.int32)
        return np.asarray(self._act(params, obs, key, mask, deterministic=deterministic))

    def policy_function(self, params: PyTree) -> Callable[[Array, Array, Array], Array]:
        """The policy as a pure function of a key, one observation and its action mask (A,), to use inside jax.

        Args:
            params: from :meth:`policy_params`.
        """

        def policy(key: Array, observation: Array, mask: Array) -> Array:
            if self.spec.masked:
                observation = self.spec.with_masks(observation, mask)
            return _act(self.algorithm, params, observation[None], key, mask, deterministic=False)[0]

        return policy

    def policy(
        self, params: PyTree, observations: Any, action_masks: Any = None, exact: bool = False
    ) -> tuple[NDArray, NDArray]:
        """Probabilities (N, A) of the actions and values (N,) of a batch; see :meth:`act` for the arguments.

        With ``exact``, all products are those of float32, whatever the setting ``precision`` and the device.
        """
        obs, mask = self._encoded(observations, action_masks)
        if not len(obs):
            return np.zeros((0, mask.shape[1]), np.float32), np.zeros(0, np.float32)
        if exact:
            given = jnp.asarray(obs), jnp.asarray(mask)
            with jax.default_matmul_precision("highest"):
                probabilities, values = _policy(self.algorithm.exact(), params, *given)
        else:
            probabilities, values = self._policy(params, obs, mask)
        return np.asarray(probabilities), np.asarray(values)

    def _encoded(self, observations: Any, action_masks: Any) -> tuple[NDArray, NDArray]:
        """Observations (N, ...) as the networks take them, packed with their masks if there are any; masks (N, A).

        Raises:
            CapoError: if one of them has another shape, a mask allows nothing, or there is none.
        """
        obs = self.spec.encode(observations)
        if obs.shape[1:] != tuple(self.env.observation_shape):
            raise CapoError(
                f"{self.env.name!r} was given observations of shape {obs.shape}; it expects "
                f"{('n', *self.env.observation_shape)}, where the first axis is the batch"
            )
        if self.spec.masked and action_masks is None:
            raise CapoError(
                f"{self.env.name!r} has action masks, and the policy was trained with them: give the "
                "observation's mask as action_masks= (all true to allow everything)"
            )
        mask = check_masks(action_masks, len(obs), self.spec.n_actions, self.spec.factors)
        return (self.spec.with_masks(obs, mask) if self.spec.masked and len(obs) else obs), mask

    # What a run says about itself -------------------------------------------------------------------------

    def describe(self) -> str:
        """What a run will do, in a few lines: frames, updates, replay ratio, memory."""
        config = self.config
        single = self.spec.fixed_copies == 1 and config.n_envs > 1
        rollouts = f"{config.n_envs} rollouts of one environment" if single else f"{config.n_envs} environments"
        learning, *more = self.algorithm.describe_learning(self.n_seeds)
        spread = f", spread over {self.n_devices} devices" if self.n_devices > 1 else ""
        seeds = "1 seed" if self.n_seeds == 1 else f"{self.n_seeds} seeds"
        return "\n".join(
            (
                f"{self.env.name}: {seeds}, {rollouts} x {config.rollout_length} steps = "
                f"{self.frames_per_iteration} frames per iteration per seed{spread}",
                *self._describe_actions(),
                learning,
                f"network: {self.network.describe()}, {self.n_parameters:,} parameters",
                *more,
            )
        )

    def _describe_actions(self) -> list[str]:
        """One line if actions are masked or have factors."""
        factors = self.spec.factors
        told = [f"{len(factors)} factors with {self.spec.n_actions} choices in all"] if factors else []
        told += ["those that the environment's mask allows"] if self.spec.masked else []
        return [f"actions: {', '.join(told)}"] if told else []

    @property
    def network(self) -> NetworkSpec:
        """What the networks look like."""
        return self.algorithm.network

    @property
    def replay(self) -> ReplaySpec:
        """Shapes of the rollouts, and of the replay where whole rollouts are kept."""
        return self.algorithm.rollouts

    @property
    def updates_per_iteration(self) -> float:
        """Gradient steps per iteration, on average."""
        return self.algorithm.updates_per_iteration

    @property
    def n_parameters(self) -> int:
        """Numbers in the networks of one seed, not counting target networks."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.algorithm.init_params(ShapesOnly())))

    @property
    def n_devices(self) -> int:
        """Devices that the seeds are spread over."""
        return 1

    # What the two kinds share -----------------------------------------------------------------------------

    def _learn(
        self, state: TrainState, rollouts: Rollout, iteration: Iteration, key: Array
    ) -> tuple[TrainState, Metrics]:
        """Learn from the rollouts of one seed, with rewards and observations as the settings want them seen.

        An iteration acts and learns with the statistics of all earlier ones, so that a policy is trained on the
        very inputs on which it acted; then its own observations are added to them.
        """
        config, statistics = self.config, state.normaliser
        if config.reward_scale != 1.0:
            rollouts = rollouts._replace(reward=rollouts.reward * config.reward_scale)
        if config.reward_clip:
            rollouts = rollouts._replace(reward=rollouts.reward.clip(-config.reward_clip, config.reward_clip))
        state, metrics = self.algorithm.seeing(statistics).learn(state, rollouts, iteration, key)
        if config.normalise_observations:
            rows = rollouts.obs[:, : config.rollout_length]
            values = networks.values_of(self.network, rows.reshape(-1, *rows.shape[2:]))
            counted = replay.filled(rollouts).reshape(-1) if self.algorithm.cuts_rollouts else None
            state = replace(state, normaliser=normaliser.update(statistics, values, counted))
        return state, metrics

    def _init_params(self, seeds: Sequence[int]) -> PyTree:
        """Parameters of all seeds, with the leading axis K."""
        each = [self.algorithm.init_params(np.random.default_rng(seed)) for seed in seeds]
        # On the host where it can be: the device would compile a program for every shape.
        plain = all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(each))
        return jax.tree.map(lambda *leaves: (np if plain else jnp).stack(leaves), *each)

    def _init_seed(self, params: PyTree, key: Array) -> TrainState:
        """The state of one seed, but for its environments."""
        config = self.config
        return TrainState(
            params=params,
            target=self.algorithm.init_target(params),
            optimiser=self.algorithm.init_optimiser(params),
            replay=self.algorithm.init_replay(),
            env_state=(),
            observation=jnp.zeros((0,)),
            episode_return=jnp.zeros(config.n_envs),
            episode_length=jnp.zeros(config.n_envs, jnp.int32),
            iteration=jnp.int32(0),
            key=key,
            normaliser=normaliser.start(self.spec.seen) if config.normalise_observations else (),
        )

    def _check_memory(self) -> None:
        """Raise if the networks or the replay of all seeds do not fit."""
        free = available_memory(self.n_devices)
        if free is None:
            return
        networks = self._network_bytes(free)
        if networks > 0.8 * free:
            raise CapoError(
                f"the networks and their optimiser need {networks / 1e6:,.0f} MB ({self.n_parameters:,} "
                f"parameters x {self.n_seeds} seed(s)) but {free / 1e6:,.0f} MB are free: set a smaller width "
                f"than {self.config.width}, or run fewer seeds"
            )
        one, setting, value = self.algorithm.memory
        if self.config.n_envs > value:  # at least one rollout of each is kept
            setting, value = "n_envs", self.config.n_envs
        needed = one * self.n_seeds
        if needed > 0.8 * free:
            raise CapoError(
                f"the replay needs {needed / 1e6:,.0f} MB ({setting}={value} x {self.n_seeds} seeds) but "
                f"{free / 1e6:,.0f} MB are free: set {setting} to {int(value * 0.8 * free / needed)} or less, "
                "or run fewer seeds"
            )

    def _network_bytes(self, enough: int) -> int:
        """Bytes of parameters, gradients, target networks and optimiser of all seeds; none of them is made.

        Args:
            enough: if parameters and gradients take more than this, nothing else is counted.
        """
        params = self.algorithm.init_params(ShapesOnly())
        total = 2 * _bytes(params) * self.n_seeds
        if total > enough:  # shapes that jax itself may not be able to count
            return total
        rest = jax.eval_shape(lambda p: (self.algorithm.init_target(p), self.algorithm.init_optimiser(p)), params)
        return total + _bytes(rest) * self.n_seeds


def warn_of_endless(name: str, cut: int, episodes: int) -> None:
    """Warn of episodes of an evaluation that were still running after the most steps, if there are any."""
    if cut:
        text = (
            f"{name}: {cut:,} of {episodes:,} evaluation episodes had not ended after "
            f"{MAX_EVALUATION_STEPS:,} steps and were cut off there; their returns count only these "
            "steps. Set time_limit if the environment has no limit of its own"
        )
        warnings.warn(text, CapoWarning, stacklevel=2)


def as_batch(env: EnvSpec, observation: Any) -> tuple[Any, bool]:
    """An environment's own observations with a batch axis, and whether a single one was given without it.

    Those of a Dict or Tuple space have it on every part.

    Raises:
        CapoError: if they are not numbers, or of another shape.
    """
    if env.batched is not None:
        return env.batched(observation)
    shape = env.raw_shape
    try:
        array = np.asarray(observation)
    except ValueError:  # rows of different lengths
        array = np.empty((), object)
    expected = f"{env.name} has observations of shape {shape}, or {('n', *shape)} for a batch"
    if env.frame_stack > 1:
        expected += f": the last {env.frame_stack} joined along the last axis, oldest first (frame_stack)"
    if array.dtype.kind not in "biuf":
        raise CapoError(
            f"an observation must be an array of numbers, not {type(observation).__name__}; {expected}"
        )
    single = array.shape == shape
    if not single and (array.ndim == 0 or array.shape[1:] != shape):
        raise CapoError(f"an observation of shape {array.shape} was given; {expected}")
    return (array[None] if single else array), single


def check_masks(action_masks: Any, batch: int, n_actions: int, factors: policies.Sizes = ()) -> NDArray:
    """Masks of actions as booleans (batch, n_actions); everything is allowed if there are none.

    Raises:
        CapoError: if it has another shape, or allows no action (of some factor) for some observation.
    """
    if action_masks is None:
        return np.ones((batch, n_actions), np.bool_)
    if factors and isinstance(action_masks, tuple) and len(action_masks) == len(factors):
        action_masks = _joined(action_masks, batch, factors)
    try:
        mask = np.asarray(action_masks, bool)
    except ValueError:  # rows of different lengths
        raise CapoError(f"action_masks has rows of different lengths; each must have {n_actions}") from None
    if mask.shape not in ((n_actions,), (batch, n_actions)):
        raise CapoError(f"action_masks has shape {mask.shape}; it must be {(n_actions,)} or {(batch, n_actions)}")
    mask = np.broadcast_to(mask, (batch, n_actions))
    for index, (start, end) in enumerate(
        itertools.pairwise(itertools.accumulate(factors or (n_actions,), initial=0))
    ):
        if not mask[:, start:end].any(axis=1).all():
            which = f"action of factor {index}" if factors else "action at all"
            raise CapoError(f"action_masks allows no {which} for some observation")
    return mask


def _joined(each: tuple[Any, ...], batch: int, factors: policies.Sizes) -> NDArray:
    """Masks (A,) or (batch, A) of all factors, from one array per factor, as infos may have it."""
    singly, together = [(size,) for size in factors], [(batch, size) for size in factors]
    try:
        arrays = [np.atleast_1d(np.asarray(own, bool)) for own in each]
    except ValueError:  # rows of different lengths
        arrays = []
    shapes = [own.shape for own in arrays]
    if shapes not in (singly, together):
        given = f"shapes {_listed(shapes)}" if arrays else "rows of different lengths"
        raise CapoError(
            f"action_masks has one array per factor with {given}; their shapes must be {_listed(singly)}, or "
            f"{_listed(together)}"
        )
    return np.concatenate(arrays, axis=-1)


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes))


def seed_keys(seeds: Sequence[int], n_seeds: int) -> Array:
    """Raw random keys (K, 2) of the seeds; everything a seed does follows from its own key."""
    if len(seeds) != n_seeds:
        raise CapoError(f"{len(seeds)} seeds were given to a learner made for {n_seeds}")
    for seed in seeds:
        if not 0 <= seed < 2**31:
            raise CapoError(f"seed {seed} must be between 0 and 2**31 - 1")
    return jnp.stack([jax.random.PRNGKey(int(seed)) for seed in seeds])


def to_device(state: PyTree) -> PyTree:
    """The state with numpy leaves (as a checkpoint has them) copied to the device."""
    return jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jnp.array(x), state)


def available_memory(n_devices: int = 1) -> int | None:
    """Bytes free on so many devices that share evenly (or on this machine, for CPUs); None if unknown."""
    try:
        every = [device.memory_stats() for device in jax.local_devices()[:n_devices]]
        if all(stats and "bytes_limit" in stats for stats in every):
            return n_devices * min(int(s["bytes_limit"]) - int(s.get("bytes_in_use", 0)) for s in every)
    except (RuntimeError, NotImplementedError):
        pass
    return free_memory()


def unpack_playable(algorithm: Algorithm, played: PyTree) -> tuple[Algorithm, PyTree]:
    """The algorithm that sees what it saw in training, and the networks, of what :meth:`Learner.playable` gave."""
    if isinstance(played, Playable):
        return algorithm.seeing(played.normaliser), played.params
    return algorithm, played


def _act(algorithm: Algorithm, params: PyTree, obs: Array, key: Array, mask: Array, deterministic: bool) -> Array:
    algorithm, params = unpack_playable(algorithm, params)
    scores = algorithm.action_scores(algorithm.acting_params(params), obs)
    scores = policies.masked(scores, mask)
    best = deterministic or not algorithm.samples
    factors = algorithm.network.factors
    return policies.best(scores, factors) if best else policies.sample(key, scores, factors)


def _policy(algorithm: Algorithm, params: PyTree, obs: Array, mask: Array) -> tuple[Array, Array]:
    algorithm, params = unpack_playable(algorithm, params)
    pi = algorithm.probabilities(params, obs, mask)
    return pi, algorithm.state_values(params, obs, pi)


def _bytes(shapes: PyTree) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
