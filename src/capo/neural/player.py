"""Playing with what an agent has learned: predict, evaluate, watch."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np

from capo.arrays import Array, NDArray, PyTree
from capo.checks import as_path, check_seed, whole
from capo.envs import Env, EnvSpec
from capo.envs.layout import Layout
from capo.envs.protocol import native_action
from capo.errors import CapoError, CapoWarning
from capo.neural import film
from capo.neural.algorithms.base import Algorithm
from capo.neural.algorithms.settings import CommonSettings
from capo.neural.evaluation import Evaluation
from capo.neural.export import write_onnx
from capo.neural.learners import Behaviour, Learner
from capo.neural.learners.behaviours import Mixture
from capo.neural.learners.protocol import as_batch, unpack_playable
from capo.neural.parts.iterations import fold_in
from capo.neural.seeds import SeedGroup, Seeds
from capo.runs.schema import MAX_EPISODES

PREDICT_STREAM, EVALUATE_STREAM = 2**31 - 2, 2**31 - 1  # folded into keys; training folds in its iterations


class Policy(NamedTuple):
    """What :meth:`Player.policy` returns, without the axis N for a single observation."""

    probabilities: NDArray  # (N, actions), without exploration
    values: NDArray  # (N,) V(s): the critic's, or the mean of Q under the policy where the critic gives Q


class Player(ABC):
    """The policies of an agent's seeds, to play with.

    Attributes:
        env: the environment, as :func:`capo.envs.make` made it.
        config: the settings; ``horizon`` is that of the last ``learn``.
        seeds: the seeds of the policies, in order.
    """

    _algorithm: ClassVar[type[Algorithm]]
    env: Env
    config: CommonSettings
    seeds: list[int]
    _states: Seeds
    _predictions = 0  # so far: each draws its own random numbers
    _playing = 0  # the index of the seed that predict() acts as

    @property
    @abstractmethod
    def learner(self) -> Learner:
        """The object that steps the environment and runs the compiled programs, made on first use."""

    @property
    def played_env(self) -> Any:
        """The environment as the policies see it, with the wrappers of the settings (frame_stack, time_limit)."""
        return self.learner.env

    @abstractmethod
    def close(self) -> None:
        """Close the training environments."""

    @property
    def samples(self) -> bool:
        """Whether the policy is stochastic; if not, the best action is always taken."""
        return self._algorithm.samples

    def use_seed(self, seed: int) -> Self:
        """Let :meth:`predict` act as the policy of this seed (the first one by default)."""
        if seed not in self.seeds:
            raise CapoError(f"seed {seed} is not one of this agent's: {', '.join(map(str, self.seeds))}")
        self._playing = self.seeds.index(seed)
        return self

    def _policy(self, learner: Learner) -> PyTree:
        """The parameters of the policy that :meth:`predict` acts with."""
        seed = self.seeds[self._playing]
        group, state = self._states.playable(seed, learner)
        return learner.policy_params(state, group.seeds.index(seed))

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[NDArray, Any]:
        """The action for an observation, or the actions for a batch of them.

        Signature and result are Stable-Baselines3's, so its ``evaluate_policy`` works with this agent.

        Args:
            observation: of the environment's shape, or with one leading batch axis; with ``frame_stack=k`` the
                last k of them, joined along the last axis, the oldest first.
            state: returned unchanged; the policy has no memory.
            episode_start: not used, for the same reason.
            deterministic: take the most likely action instead of sampling (the setting ``evaluation`` only affects
                evaluations).
            action_masks: (actions,) or (batch, actions), true where an action is allowed; needed if the
                environment has masks.

        Returns:
            The action as an array of shape () or (batch,), and ``state``. If actions have factors (MultiDiscrete,
            MultiBinary), it has the action space's shape.
        """
        del episode_start
        learner = self.learner
        batch, single = as_batch(learner.spec, observation)
        key = fold_in(stream_key(self.seeds[self._playing], PREDICT_STREAM), self._predictions)
        actions = learner.act(self._policy(learner), batch, key, deterministic, action_masks).astype(np.int64)
        self._predictions += 1
        actions = native_action(actions, learner.spec.first_action)  # a Discrete space may start anywhere
        return (actions[0] if single else actions), state

    def as_opponent(self) -> Callable[[Array, Array, Array], Array]:
        """The current policy, as an opponent in a two-player game.

        Returns:
            A pure function of a key, an observation and the mask (actions,) of legal actions to an action.
        """
        return self.learner.policy_function(self._policy(self.learner))

    def policy(self, observation: Any, action_masks: Any = None) -> Policy:
        """The probabilities of the actions, and the value, for an observation or a batch of them.

        Rainbow's policy is greedy: the best action has probability 1. :meth:`use_seed` chooses whose policy it is.

        Args:
            observation: of the environment's shape, or with one leading batch axis.
            action_masks: (actions,) or (batch, actions), true where an action is allowed; needed if the
                environment has masks.

        Returns:
            Probabilities (actions,) or (batch, actions), in the order of the environment's actions, and values ()
            or (batch,); both as numpy arrays.
        """
        learner = self.learner
        batch, single = as_batch(learner.spec, observation)
        probabilities, values = learner.policy(self._policy(learner), batch, action_masks)
        return Policy(probabilities[0], values[0]) if single else Policy(probabilities, values)

    @property
    def params(self) -> PyTree:
        """The networks of the policy, nested dicts and lists of numpy arrays; a copy, of the seed in use."""
        _, params = unpack_playable(self.learner.algorithm, self._policy(self.learner))
        return jax.tree.map(np.array, params)

    def export(self, path: str | Path) -> Path:
        """Write the policy of the seed in use as an ONNX file, which runs without jax; needs the extra ``onnx``.

        Inputs: ``observation`` (batch, ...) as the environment gives it, or for a Dict or Tuple one input per part
        by its key or index (``action_observation`` for a part named ``action``); and optionally ``action_mask``
        (batch, actions), true where an action is allowed.
        Outputs: ``action`` (batch, ...), the most likely one; ``probabilities`` (batch, actions), those of all
        factors side by side where actions have several; and ``value`` (batch,).

        Args:
            path: the file; ``.onnx`` is added if it has no extension.

        Returns:
            The file.
        """
        path = as_path("export", path)
        path = path if path.suffix else path.with_suffix(".onnx")
        learner = self.learner
        policy = self._policy(learner)
        algorithm, params = unpack_playable(learner.algorithm, policy)
        expected = partial(learner.policy, policy, exact=True)
        write_onnx(path, algorithm, jax.tree.map(np.array, params), learner.env, expected)
        return path

    def as_function(self) -> Callable[[Any], Array]:
        """The current policy as a jax function from observations (N, ...) to probabilities (N, actions).

        Observations must be in the form that the networks take.
        """
        algorithm, params = unpack_playable(self.learner.algorithm, self._policy(self.learner))
        return jax.jit(partial(algorithm.probabilities, params))

    def _returns(
        self, learner: Learner, key: Array, episodes: int, deterministic: bool | None, group: SeedGroup
    ) -> NDArray:
        """Returns (seeds, episodes) of a group without its diverged seeds.

        A seed's episodes don't depend on which seeds play beside it.
        """
        keys = jax.vmap(partial(jax.random.fold_in, key))(np.asarray(group.seeds))
        returns = learner.evaluate(learner.playable(group.start(learner)), keys, episodes, deterministic)
        return returns[[index for index, seed in enumerate(group.seeds) if seed not in group.diverged]]

    def takes_best(self, deterministic: bool | None) -> bool:
        """Whether an evaluation takes the best actions: as given, or by default as the settings specify."""
        if deterministic is None:
            return self.learner.algorithm.evaluates_best
        return deterministic or not self.samples

    def check_episodes(self, episodes: int) -> int:
        """The number of episodes of an evaluation, checked against the limit.

        Raises:
            CapoError: if there are too many; the message gives the limit.
        """
        episodes = whole("episodes", episodes, most=MAX_EPISODES)
        self.learner.check_evaluation(episodes)
        return episodes

    def evaluate(self, episodes: int = 100, *, deterministic: bool | None = None, seed: int = 0) -> Evaluation:
        """Play whole episodes with the policy of every seed, without exploration.

        On a jitted environment all seeds play at once, in one program that is compiled once per number of
        episodes. Seeds that diverged are left out with a warning, as are seeds whose training has not begun where
        seeds are trained one after another.

        Args:
            episodes: per trained seed.
            deterministic: take the most likely action (True) or sample (False); by default as the setting
                ``evaluation`` says.
            seed: of the evaluation itself; the same seed gives the same episodes on a jitted environment.

        Returns:
            The returns of all episodes (seeds, episodes), with their mean and its standard error.
        """
        episodes = self.check_episodes(episodes)
        check_seed(seed)
        learner = self.learner
        groups = self._states.begun()
        for group in groups:
            group.start(learner)
        seeds = tuple(seed for group in groups for seed in group.sound)
        diverged = tuple(self._states.diverged)
        untrained = [seed for seed in self.seeds if seed not in seeds and seed not in diverged]
        for left, why in ((diverged, "diverged"), (untrained, "have not been trained yet")):
            if left:
                text = f"seeds that {why} are left out: {', '.join(map(str, left))}"
                warnings.warn(text, CapoWarning, stacklevel=2)
        key = stream_key(seed, EVALUATE_STREAM)
        returns = [self._returns(learner, key, episodes, deterministic, group) for group in groups]
        frames = min(group.iteration for group in groups) * self.config.frames_per_iteration
        greedy = self.takes_best(deterministic)
        return Evaluation(np.concatenate(returns).astype(np.float64), seeds, greedy, frames, diverged)

    def watch(
        self,
        path: str | Path,
        *,
        episodes: int = 1,
        steps: int = 1000,
        deterministic: bool | None = None,
        seed: int = 0,
        per_second: float = 15.0,
    ) -> list[float]:
        """Play, and write a GIF with the score; :meth:`use_seed` chooses whose policy plays.

        Args:
            path: the GIF file.
            episodes: how many to show.
            steps: how many to show at most.
            deterministic: take the most likely action (True) or sample (False); by default as :meth:`evaluate`.
            seed: of the game.
            per_second: steps per second.

        Returns:
            The scores of the episodes that ended, before any change of rewards by wrappers of a whole vector
            environment.
        """
        path = as_path("watch", path)
        film.check_target(path, per_second)
        episodes, steps = whole("episodes", episodes), whole("steps", steps)
        return film.record(self, path, episodes, steps, self.takes_best(deterministic), seed, per_second).scores


def stream_key(seed: int, stream: int) -> Array:
    """A random key of a seed that training never uses."""
    return jax.random.fold_in(jax.random.PRNGKey(seed), stream)


def make_behaviour(given: Any, agent: Player) -> Behaviour:
    """Who acts while ``agent`` learns: a function, another agent, or a mixture.

    Raises:
        CapoError: if it is none of these, or an agent of other observations or actions.
    """
    share = 1.0
    if isinstance(given, Mixture):
        given, share = given.behaviour, float(given.share)
    spec = EnvSpec(agent.env)
    if isinstance(given, Player):
        theirs = EnvSpec(given.env)
        for name in ("n_actions", "factors", "layout", "observation_shape", "observation_dtype"):
            if getattr(theirs, name) != getattr(spec, name):
                raise CapoError(
                    f"behaviour={given!r} can't act on {spec.name!r}: its {name} is {getattr(theirs, name)}, not "
                    f"{getattr(spec, name)}"
                )
        function: Callable[[Any], Any] = _AgentPolicy(given)
        note = f"another agent ({type(given).__name__})"
    elif callable(given):
        function = _UserFunction(given, spec.layout)
        note = f"the function {getattr(given, '__name__', type(given).__name__)}"
    else:
        raise CapoError(
            f"behaviour={given!r} must be a function of observations, an agent, a capo.Mixture of one of these "
            'with the agent\'s own policy, or "own"'
        )
    if share < 1:
        note = f"a mixture: {share:g} of {note}, the rest of the agent's own policy"
    note = note if note.isprintable() else "a function"
    fixed = isinstance(function, _AgentPolicy)
    return Behaviour(function, share, spec.n_actions, note, spec.factors, spec.layout, fixed)


@dataclass(frozen=True, eq=False)
class _UserFunction:
    """A user's behaviour; if observations are packed, it gets a dict of their parts.

    One that has no name, since it is the whole observation beside an action mask, is called ``observation``.
    Two are equal if they are of the same object, whatever this object takes for equal.
    """

    function: Callable[[Any], Any]
    layout: Layout | None

    def __call__(self, observations: Any) -> Any:
        if self.layout is None:
            return self.function(observations)
        return self.function({name or "observation": x for name, x in self.layout.unpack(observations).items()})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _UserFunction) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[int, ...]:
        if isinstance(self.function, MethodType):  # every access to a method makes another object
            return id(self.function.__self__), id(self.function.__func__)
        return (id(self.function),)


class _AgentPolicy:
    """The policy that an agent has now; equal to another of the same agent and seed at the same iteration."""

    def __init__(self, agent: Player) -> None:
        self._function = agent.as_function()
        group, _ = agent._states.playable(agent.seeds[agent._playing], agent.learner)
        self._policy = (agent, group.iteration, agent._playing)

    def __call__(self, observations: Any) -> Array:
        return self._function(observations)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AgentPolicy) and self._policy == other._policy

    def __hash__(self) -> int:
        return hash(self._policy)
