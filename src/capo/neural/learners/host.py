"""Learning on environments that only the host can step (Gymnasium): the same jitted learning, K = 1."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, Metrics, NDArray, PyTree
from capo.envs.failures import EnvironmentFailed, failure_context
from capo.envs.protocol import HostEnv, HostVector
from capo.errors import CapoError
from capo.neural.algorithms.base import Algorithm, TrainState
from capo.neural.learners.frames import EpisodeCount, FrameCollector, next_stack
from capo.neural.learners.protocol import MAX_EVALUATION_STEPS, Learner, seed_keys, to_device, warn_of_endless
from capo.neural.parts import policies, replay
from capo.neural.parts.iterations import ERA, Iteration, fold_in
from capo.neural.parts.replay import Rollout

Behave = Callable[[NDArray, int], tuple[NDArray, NDArray]]


class Collector:
    """Steps the environments and cuts what happens into rollouts of T valid steps.

    Every environment fills its own rollout, since in the next-step autoreset mode some calls are no steps;
    an iteration takes the oldest complete rollouts and leaves the rest for the next one. A single
    environment simply gives its rollouts one after another. In both cases a rollout is not continued by the
    one in its place in the next iteration, and ends as if truncated.

    Args:
        envs: to step.
        spec: shapes of the rollouts.
        seed: of the environments.
        fresh: whether what is left is forgotten instead, since an earlier policy took it.
        cut: whether a rollout is complete at the end of an episode; it is padded to T steps.
    """

    def __init__(
        self, envs: HostVector, spec: replay.ReplaySpec, seed: int, fresh: bool = False, cut: bool = False
    ) -> None:
        self._envs, self._spec, self._fresh, self._cut = envs, spec, fresh, cut
        n = envs.n
        self._continued = n == spec.n_envs and not envs.skips and not cut
        self.steps = 0  # of all environments, since the last complete iteration
        self._obs = envs.reset(seed)
        self._rows = _blank(spec, n, np)
        self._filled = np.zeros(n, np.int64)
        self._complete: list[Rollout] = []
        self._count = EpisodeCount(n)

    def collect(self, behave: Behave, n_rollouts: int) -> tuple[Rollout, dict[str, float]]:
        """``n_rollouts`` rollouts of ``behave(obs, step) -> (actions, log_mu)``, and the episodes' ends."""
        if self._fresh:
            self._filled[:] = 0
            self._complete = []
        step = self.steps = 0
        while len(self._complete) < n_rollouts:
            action, log_mu = behave(self._obs, step)
            self._step(action, log_mu)
            step += 1
        taken, self._complete = self._complete[:n_rollouts], self._complete[n_rollouts:]
        stacked: list[Any] = [np.stack(leaves) for leaves in zip(*taken, strict=True)]
        rollouts = Rollout(*stacked)
        if not self._continued:
            rollouts.truncated[:, -1] = ~rollouts.terminated[:, -1]
        return rollouts, self._count.take()

    def _step(self, action: NDArray, log_mu: NDArray) -> None:
        moved = self._envs.step(action)
        who = np.flatnonzero(moved.valid)
        self.steps += len(who)
        at = self._filled[who]
        rows = self._rows
        rows.obs[who, at] = self._obs[who]
        rows.obs[who, self._spec.length + at] = moved.successor[who]
        for leaf, new in (
            (rows.action, action),
            (rows.reward, moved.reward),
            (rows.terminated, moved.terminated),
            (rows.truncated, moved.truncated),
            (rows.log_mu, log_mu),
        ):
            leaf[who, at] = new[who]
        self._filled[who] += 1
        complete = self._filled == self._spec.length
        if self._cut:
            complete |= moved.valid & (moved.terminated | moved.truncated)
        for i in np.flatnonzero(complete):
            rollout = Rollout(*(leaf[i].copy() for leaf in rows))
            _pad(rollout, self._filled[i])
            self._complete.append(rollout)
            self._filled[i] = 0
        self._obs = moved.obs
        self._count.add(0, moved)


def _pad(rollout: Rollout, filled: int) -> None:
    """Fill the rest of a rollout of ``filled`` steps: its last step again, but with no reward and no end."""
    length = rollout.reward.shape[0]
    rollout.obs[filled:length] = rollout.obs[filled - 1]
    rollout.obs[length + filled :] = rollout.obs[length + filled - 1]
    for leaf in (rollout.action, rollout.log_mu):
        leaf[filled:] = leaf[filled - 1]
    for leaf in (rollout.reward, rollout.terminated, rollout.truncated):
        leaf[filled:] = 0


def _blank(spec: replay.ReplaySpec, n: int, xp: Any) -> Rollout:
    """``n`` rollouts before packing, all zero, as numpy or jax arrays."""
    steps = (n, spec.length)
    return Rollout(
        obs=xp.zeros((n, spec.length + spec.successors, *spec.observation_shape), spec.observation_dtype),
        action=xp.zeros((*steps, *spec.action_shape), np.int32),
        reward=xp.zeros(steps, np.float32),
        terminated=xp.zeros(steps, np.bool_),
        truncated=xp.zeros(steps, np.bool_),
        log_mu=xp.zeros(steps, np.float32),
    )


class HostLearner(Learner):
    """The learner's interface on a Gymnasium environment.

    What a checkpoint of its state cannot hold: the environments' inner state and the rollouts that were
    under way. A learner that gets a state it did not end with itself starts new episodes.
    """

    def __init__(self, algorithm: Algorithm, env: HostEnv, n_seeds: int, eval_env: HostEnv | None = None) -> None:
        if n_seeds != 1:
            raise CapoError(
                f"{env.name!r} is stepped on the host, one seed at a time: make one learner per seed "
                f"(n_seeds=1, not {n_seeds})"
            )
        super().__init__(algorithm, env, n_seeds, eval_env)
        self._collector: Collector | FrameCollector | None = None
        self._closing: weakref.finalize[[], HostLearner] | None = None
        self._expected: tuple[int, int] | None = None  # key and iteration that the collector stands at
        self._behave = jax.jit(self._behave_jitted)
        self._begin = jax.jit(_begin_jitted)
        self._act_on_frames = jax.jit(self._act_on_frames_jitted)
        self._steps: dict[int, Any] = {}  # compiled, by era
        self._kept: TrainState | None = None

    def init(self, seeds: Sequence[int]) -> TrainState:
        keys = seed_keys(seeds, 1)
        state: TrainState = jax.jit(jax.vmap(self._init_seed))(self._init_params(seeds), keys)
        return state

    def shapes(self, seeds: Sequence[int]) -> TrainState:
        shapes: TrainState = jax.eval_shape(lambda: self.init(seeds))
        return shapes

    def compile(self, era: int = 0) -> float:
        if era not in self._steps:
            begin = time.perf_counter()
            shapes = replace(self.shapes([0]), era=era)
            rollouts = jax.eval_shape(lambda: self._packed(_blank(self.replay, self.replay.n_envs, jnp)))
            lowered = jax.jit(self._learn_iteration, donate_argnums=0).lower(shapes, rollouts)
            self._steps[era] = lowered.compile()
            self.compile_seconds = self.compile_seconds or time.perf_counter() - begin
        assert self.compile_seconds is not None
        return self.compile_seconds

    def run(self, state: TrainState, iterations: int) -> tuple[TrainState, dict[str, NDArray]]:
        self._kept = state
        self.compile(state.era)
        self._kept = state = to_device(state)
        rows: list[dict[str, Any]] = []
        if self._collector is None or self._expected != _position(state):
            self._kept = state = self.algorithm.end_rollouts(state)
            self._open_collector(_position(state))
        collector = self._collector
        assert collector is not None
        first = state.reached
        for now in range(first, first + iterations):
            epsilon = self.algorithm.exploration(np.float32(now * self.frames_per_iteration))
            args = (*self._begin(self._acting(state), state.key, _iteration(now)), epsilon)
            try:
                rollouts, episodes = self._collect(collector, args)
            except EnvironmentFailed as error:
                frame = now * self.frames_per_iteration + collector.steps
                raise EnvironmentFailed(f"{self.env.name}, after frame {frame:,}: {error}") from error.__cause__
            self._kept = None  # the step takes its memory
            state, metrics = self._steps[state.era](state, rollouts)
            if (now + 1) % ERA == 0:
                state = state.in_era((now + 1) // ERA)
                self.compile(state.era)
            self._kept = state
            rows.append(metrics | episodes | ({"epsilon": epsilon} if self.algorithm.explores else {}))
        self._expected, self._kept = _position(state), None
        if not rows:
            return state, {}
        return state, {name: np.array([row[name] for row in rows], np.float32).reshape(-1, 1) for name in rows[0]}

    def _collect(self, collector: Collector | FrameCollector, args: Any) -> tuple[Rollout, dict[str, float]]:
        """The rollouts of an iteration: acting networks, normaliser, key and epsilon are ``args``."""
        if isinstance(collector, FrameCollector):
            return collector.collect(lambda *seen: self._act_on_frames(*args, *seen))

        def behave(obs: NDArray, step: int) -> Any:
            given = None if self.behaviour is None else self.behaviour.on_host(obs)
            action, log_mu = self._behave(*args, obs, step, given)
            return np.asarray(action), np.asarray(log_mu)

        return collector.collect(behave, self.config.n_envs)

    def _acting(self, state: TrainState) -> tuple[PyTree, PyTree]:
        """What actions are chosen by: networks and normaliser."""
        return self.algorithm.acting_params(state.params), state.normaliser

    @property
    def _by_frames(self) -> bool:
        """Whether observations stay on the device: see :mod:`capo.neural.learners.frames`."""
        stacked = self.spec.frame_stack > 1 or self._in_turns
        plain = self.spec.fixed_copies is None and self.spec.vector_copies is None and not self.spec.masked
        return stacked and plain and self.behaviour is None and not self.algorithm.cuts_rollouts

    @property
    def _in_turns(self) -> bool:
        """Whether the environments are stepped in two groups, each in threads of its own."""
        return self.config.overlap == "acting" and bool(getattr(self.env, "splits", False))

    def _packed(self, rollouts: Rollout) -> Rollout:
        """Rollouts as :meth:`_learn_iteration` takes them."""
        return replay.pack_rollouts(self.replay, rollouts) if self._by_frames else rollouts

    def recover(self) -> TrainState | None:
        """The state after the last complete iteration of a :meth:`run` that raised; new episodes follow."""
        kept, self._kept, self._expected = self._kept, None, None
        return kept

    def evaluate(self, params: PyTree, keys: Array, episodes: int, deterministic: bool | None = None) -> NDArray:
        """See :class:`Learner`; every copy of the environment plays the same number of episodes.

        Fresh copies are played where they can be made; otherwise the training environments are, and training
        continues with new episodes.
        """
        n = max(d for d in range(1, min(episodes, 16) + 1) if episodes % d == 0)
        envs = self.eval_env.open_for_evaluation(n)
        if envs is None:
            self.close()
            envs = self.eval_env.open(n)
        policy = jax.tree.map(lambda leaf: leaf[0], params)
        best = self.algorithm.evaluates_best if deterministic is None else deterministic
        try:
            with failure_context(f"{self.eval_env.name}, in the evaluation", "The agent is unchanged"):
                return self._play(envs, policy, keys[0], episodes, best)[None]
        finally:
            envs.close()

    def _play(self, envs: HostVector, params: PyTree, key: Array, episodes: int, deterministic: bool) -> NDArray:
        n = envs.n
        everything = np.ones((n, self.env.n_actions), np.bool_)  # no action is masked
        share = -(-episodes // n)
        returns: list[list[float]] = [[] for _ in range(n)]
        total, steps = np.zeros(n), np.zeros(n, np.int64)
        obs = envs.reset(int(np.asarray(jax.random.randint(key, (), 0, 2**30))))
        count = cut = 0
        while min(map(len, returns)) < share:
            action = np.asarray(
                self._act(params, obs, fold_in(key, count), everything, deterministic=deterministic)
            )
            moved = envs.step(action)
            obs, count = moved.obs, count + 1
            total[moved.valid] += moved.reward[moved.valid]
            steps[moved.valid] += 1
            ended = moved.ended
            capped = moved.valid & ~ended & (steps >= MAX_EVALUATION_STEPS)
            for i in np.flatnonzero((moved.valid & ended) | capped):
                cut += bool(capped[i]) and len(returns[i]) < share
                returns[i].append(total[i])
                total[i], steps[i] = 0.0, 0
            if capped.any():  # what follows is another episode, not the rest of this one
                obs = obs.copy()
                obs[capped] = envs.restart(capped)
        warn_of_endless(self.eval_env.name, cut, episodes)
        return np.array([value for mine in returns for value in mine[:share]], np.float32)[:episodes]

    def _behave_jitted(
        self,
        acting: PyTree,
        normaliser: PyTree,
        key: Array,
        epsilon: Array,
        obs: Array,
        step: Array,
        given: Array | None,
    ) -> tuple[Array, Array]:
        algorithm = self.algorithm.seeing(normaliser)
        key = jax.random.fold_in(key, step)
        if algorithm.perturbs:
            acting = algorithm.perturb(acting, algorithm.noise(acting, jax.random.fold_in(key, 1), 1)[0])
        log_mu = algorithm.behaviour(acting, obs, epsilon)
        if self.behaviour is not None:
            assert given is not None
            log_mu = self.behaviour.mix(log_mu, given, jax.random.fold_in(key, 2))
        action = policies.sample(key, log_mu, self.network.factors)
        return action.astype(jnp.int32), policies.taken(log_mu, action)

    def _act_on_frames_jitted(
        self,
        acting: PyTree,
        normaliser: PyTree,
        key: Array,
        epsilon: Array,
        stack: Array,
        frame: Array,
        fresh: Array,
        turn: Array,
    ) -> tuple[Array, Array, Array]:
        stack = next_stack(self.replay, stack, frame, fresh)
        return stack, *self._behave_jitted(acting, normaliser, key, epsilon, stack, turn, None)

    def _learn_iteration(self, state: TrainState, rollouts: Rollout) -> tuple[TrainState, Metrics]:
        iteration = Iteration.of(state.iteration[0], state.era)
        if self._by_frames:
            rollouts = replay.unpack_rollouts(self.replay, rollouts)

        def one(state: TrainState) -> tuple[TrainState, Metrics]:
            learn_key = jax.random.split(iteration.fold_into(state.key))[1]
            state, metrics = self._learn(state, rollouts, iteration, learn_key)
            return replace(state, iteration=state.iteration + 1), metrics

        return jax.vmap(one)(state)

    def _open_collector(self, position: tuple[int, int]) -> None:
        """A new collector, with new episodes."""
        self.close()
        # A seed that depends on where the run stands: a resumed run must not replay its first episodes.
        seed = int(np.random.SeedSequence(position).generate_state(1)[0]) % 2**30
        with failure_context(self.env.name):
            if self._by_frames:
                groups = self._open_groups()
                self._closing = weakref.finalize(self, partial(_close, groups))
                self._collector = FrameCollector(groups, self.replay, seed)
                return
            envs = self.env.open(self.config.n_envs)
            self._closing = weakref.finalize(self, envs.close)  # also when nobody wants the learner any more
            self._collector = Collector(
                envs, self.replay, seed, self.algorithm.on_policy, self.algorithm.cuts_rollouts
            )

    def _open_groups(self) -> list[HostVector]:
        """The environments in two groups if they take turns, else in one; observations are single frames."""
        n = self.config.n_envs
        halves = self._in_turns and n > 1
        single = self.env.inner if self.spec.frame_stack > 1 else self.env
        groups: list[HostVector] = []
        try:
            groups.extend(single.open(size) for size in ((n // 2, n - n // 2) if halves else (n,)))
        except BaseException:
            _close(groups)
            raise
        return groups

    def close(self) -> None:
        """Close the environments that were opened for training; another :meth:`run` opens new ones."""
        self._collector = None
        if self._closing is not None:
            self._closing()


def _begin_jitted(acting: PyTree, keys: Array, iteration: Iteration) -> tuple[PyTree, PyTree, Array]:
    """Acting networks and normaliser of the only seed, and the key of an iteration's actions."""
    params, normaliser = jax.tree.map(lambda leaf: leaf[0], acting)
    return params, normaliser, jax.random.split(iteration.fold_into(keys[0]))[0]


def _iteration(number: int) -> Iteration:
    """As :meth:`Iteration.number`, but on the host: the device would compile a program for it."""
    low: Any = np.uint32(number % ERA)
    return Iteration(low, number // ERA)


def _close(groups: Sequence[HostVector]) -> None:
    for group in groups:
        group.close()


def _position(state: TrainState) -> tuple[int, int]:
    high, low = (int(part) for part in np.asarray(state.key[0]))
    return (high << 32) | low, state.reached
