"""Collect -> store -> learn as one jitted function of an explicit state, vmapped over seeds.

Everything a seed does is a function of its seed and the iteration: the random key of an iteration is the
seed's key folded with the iteration's number, so it does not matter how a run is cut into calls or which
other seeds run beside it. What all seeds have in common (the iteration, hence the ring position, epsilon and
the learning rate) stays outside the vmap: a branch on it is a branch and not a select, and a write to the
replay is a slice and not a scatter.

Where there are several devices, each runs the same program on its part of the seeds; they never wait for each
other. Matrix products of fewer seeds may be rounded differently: results agree with one device's up to that.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from capo.arrays import Array, Metrics, NDArray, PyTree
from capo.envs.layout import MASK, Layout
from capo.envs.masks import steppable
from capo.errors import CapoError
from capo.neural.algorithms.base import Algorithm, TrainState
from capo.neural.learners.protocol import (
    MAX_EVALUATION_STEPS,
    Learner,
    available_memory,
    seed_keys,
    to_device,
    unpack_playable,
    warn_of_endless,
)
from capo.neural.parts import policies, replay
from capo.neural.parts.iterations import ERA, Iteration
from capo.neural.parts.networks import prepare
from capo.neural.parts.replay import Rollout

# How arrays are split among devices: by seed on the first axis, on the second (metrics), or not at all.
_SEEDS, _ROWS, _WHOLE = (PartitionSpec(*axes) for axes in (("seeds",), (None, "seeds"), ()))  # type: ignore[no-untyped-call]
_LONGEST = 2**31 - 1  # length of an episode that is counted: one that never ends stays at it
CHUNK = 1024  # rows of the metrics buffer: the most iterations of one compiled call
RESET_BATCHES = 16  # where new episodes are costly, a sixteenth of the environments begins one at a time
EVALUATION_CHUNK = 16  # steps between two looks at who still plays; divides MAX_EVALUATION_STEPS


class JittedLearner(Learner):
    """An algorithm on a jitted environment: K seeds are one program."""

    def __init__(self, algorithm: Algorithm, env: Any, n_seeds: int, eval_env: Any = None) -> None:
        self.mesh = _seeds_mesh(n_seeds)
        super().__init__(algorithm, env, n_seeds, eval_env)
        self._steppable, self._eval_steppable = steppable(self.env), steppable(self.eval_env)
        self._compiled: dict[int, Any] = {}  # by era
        self._kept: TrainState | None = None
        self._evaluate = jax.jit(self._evaluate_on_devices, static_argnames=("episodes", "deterministic"))

    @property
    def n_devices(self) -> int:
        return 1 if self.mesh is None else int(self.mesh.size)

    def _spread(self, function: Callable[..., Any], given: Any, result: Any) -> Callable[..., Any]:
        """``function`` of some seeds as one of all seeds, each device doing its part.

        Args:
            given: how each argument is split, a PartitionSpec each.
            result: the same for what is returned.
        """
        if self.mesh is None:
            return function
        spread: Callable[..., Any] = jax.shard_map(
            function, mesh=self.mesh, in_specs=given, out_specs=result, check_vma=False
        )
        return spread

    def place(self, state: PyTree) -> PyTree:
        return to_device(state) if self.mesh is None else jax.device_put(state, NamedSharding(self.mesh, _SEEDS))

    def init(self, seeds: Sequence[int]) -> TrainState:
        keys = seed_keys(seeds, self.n_seeds)
        made = None if self.mesh is None else NamedSharding(self.mesh, _SEEDS)  # where it is to be, at once
        begin = jax.jit(self._begin, out_shardings=made, compiler_options=_compiler_options(level=0))
        state: TrainState = begin(self._init_params(seeds), keys)
        return state

    def shapes(self, seeds: Sequence[int]) -> TrainState:
        keys = seed_keys(seeds, self.n_seeds)
        shapes: TrainState = jax.eval_shape(lambda: self._begin(self._init_params(seeds), keys))
        return shapes

    def _begin(self, params: PyTree, keys: Array) -> TrainState:
        """The state before the first iteration, for networks and keys of all seeds."""

        def one(params: PyTree, key: Array) -> TrainState:
            state_key, reset_key = jax.random.split(key)
            env_state, obs = jax.vmap(self._steppable.reset)(jax.random.split(reset_key, self.config.n_envs))
            return replace(self._init_seed(params, state_key), env_state=env_state, observation=obs)

        return jax.vmap(one)(params, keys)

    def restart(self, state: TrainState, seeds: Sequence[int], which: Sequence[int]) -> TrainState:
        chosen = [seeds[index] for index in which]
        fresh = self._begin(self._init_params(chosen), seed_keys(chosen, len(chosen)))
        fresh = replace(fresh, iteration=jnp.full(len(chosen), state.reached % ERA, jnp.int32), era=state.era)
        result: TrainState = _put_rows(state, fresh, jnp.array(which))
        return result

    def compile(self, era: int = 0) -> float:
        if era not in self._compiled:
            begin = time.perf_counter()
            if self.behaviour is not None:  # what it returns is checked here, on real observations
                keys = jax.random.split(jax.random.PRNGKey(0), self.config.n_envs)
                self.behaviour.check(np.asarray(jax.vmap(self._steppable.reset)(keys)[1]))
            shapes = replace(self.shapes(range(self.n_seeds)), era=era)
            if self.mesh is not None:
                shapes = jax.tree.map(partial(_placed, sharding=NamedSharding(self.mesh, _SEEDS)), shapes)
            run = self._spread(self._run, (_SEEDS, _WHOLE), (_SEEDS, _ROWS))
            lowered = jax.jit(run, donate_argnums=() if self._calls_host else 0).lower(shapes, jnp.int32(0))
            self._compiled[era] = lowered.compile(compiler_options=_compiler_options())
            self.compile_seconds = self.compile_seconds or time.perf_counter() - begin
        assert self.compile_seconds is not None
        return self.compile_seconds

    def compiled_memory(self) -> int | None:
        if not self._compiled:
            self.compile()
        plan = next(iter(self._compiled.values())).memory_analysis()
        if plan is None:
            return None
        needed = plan.argument_size_in_bytes + plan.temp_size_in_bytes
        if self._calls_host:  # the result does not take the place of the state
            needed += plan.output_size_in_bytes
        return self.n_devices * int(needed)

    @property
    def _calls_host(self) -> bool:
        """Whether the compiled program calls a behaviour, which may fail: it leaves the state that it is given."""
        return self.behaviour is not None and not self.behaviour.traceable

    def run(self, state: TrainState, iterations: int) -> tuple[TrainState, dict[str, NDArray]]:
        self._kept = state = self.place(state)
        at = state.reached
        end = at + iterations
        rows: list[dict[str, NDArray]] = []
        while at < end:
            now = min(CHUNK, end - at, ERA - at % ERA)
            self.compile(state.era)
            self._kept = state if self._calls_host else None  # otherwise the program takes its memory
            with self._behaviours_own_error():
                state, metrics = self._compiled[state.era](state, jnp.int32(now))
                rows.append({name: np.asarray(values)[:now] for name, values in metrics.items()})
            at += now
            if at % ERA == 0:
                state = self.place(state.in_era(at // ERA))
            self._kept = state
        self._kept = None
        if not rows:
            return state, {}
        return state, {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}

    def recover(self) -> TrainState | None:
        """The state before the call of the compiled program that raised, unless the program took its memory."""
        kept, self._kept = self._kept, None
        return kept

    @contextmanager
    def _behaviours_own_error(self) -> Iterator[None]:
        """Raise what a behaviour raised that the compiled program called, in place of what jax says of it."""
        if self.behaviour is not None:
            self.behaviour.failure = None
        try:
            yield
        except Exception:
            if self.behaviour is None or self.behaviour.failure is None:
                raise
            failure, self.behaviour.failure = self.behaviour.failure, None
            raise failure from failure.__cause__

    def _run(self, state: TrainState, iterations: Array) -> tuple[TrainState, Metrics]:
        """Up to CHUNK iterations; the number is an argument, so that every number is the same program."""

        # Traced once, though asked for twice: for its shapes and in the loop.
        iterate = jax.jit(jax.vmap(self._iterate, in_axes=(0, None)), inline=True)

        def body(row: Array, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
            state, buffers = carry
            state, metrics = iterate(state, Iteration.of(state.iteration[0], state.era))
            return state, {name: buffers[name].at[row].set(values) for name, values in metrics.items()}

        shapes = jax.eval_shape(iterate, state, Iteration.of(state.iteration[0], state.era))[1]
        buffers = {name: jnp.zeros((CHUNK, *leaf.shape), leaf.dtype) for name, leaf in shapes.items()}
        result: tuple[TrainState, Metrics] = jax.lax.fori_loop(0, iterations, body, (state, buffers))
        return result

    def _iterate(self, state: TrainState, iteration: Iteration) -> tuple[TrainState, Metrics]:
        """One iteration of one seed."""
        collect_key, learn_key = jax.random.split(iteration.fold_into(state.key))
        epsilon = self.algorithm.exploration(self.algorithm.frames_before(iteration))
        state, rollouts, episodes = self._collect(state, collect_key, epsilon)
        state, metrics = self._learn(state, rollouts, iteration, learn_key)
        state = replace(state, iteration=state.iteration + 1)
        return state, metrics | episodes | ({"epsilon": epsilon} if self.algorithm.explores else {})

    def _collect(self, state: TrainState, key: Array, epsilon: Array) -> tuple[TrainState, Rollout, Metrics]:
        """One rollout of every environment, and what became of the episodes."""
        algorithm = self.algorithm.seeing(state.normaliser)
        acting = algorithm.acting_params(state.params)
        if not algorithm.perturbs:
            acting = prepare(algorithm.network, acting)

        def step(carry: Any, random: tuple[Array, Array, Any]) -> tuple[Any, Any]:
            env_state, obs, returns, lengths, waiting = carry
            gumbel, env_keys, noise = random
            now = algorithm.perturb(acting, noise) if algorithm.perturbs else acting
            log_mu = algorithm.behaviour(now, obs, epsilon)
            if self.behaviour is not None:
                coin_key = jax.random.fold_in(env_keys[0, 0], 1)
                log_mu = self.behaviour.mix(log_mu, self.behaviour.traced(obs), coin_key)
            action = policies.best(log_mu + gumbel, algorithm.network.factors).astype(jnp.int32)  # a sample of mu
            moved = _step_and_reset(self._steppable, env_keys, env_state, action, self.spec.costly_reset)
            if algorithm.cuts_rollouts:
                moved = _unless(waiting, moved, env_state, obs)
            returns, lengths = returns + moved.reward, jnp.minimum(lengths, _LONGEST - 1) + 1
            done = moved.terminated | moved.truncated
            taken = policies.taken(log_mu, action)
            row = Rollout(obs, action, moved.reward, moved.terminated, moved.truncated, taken)
            ended = (done.sum(), jnp.where(done, returns, 0).sum(), jnp.where(done, lengths, 0).sum())
            if algorithm.cuts_rollouts:
                waiting = done = done | waiting
            carry = (moved.env_state, moved.obs, jnp.where(done, 0, returns), jnp.where(done, 0, lengths), waiting)
            successor = moved.successor if self.spec.truncates else ()
            return carry, (row, successor, ended)

        # Those whose rollout was cut: they wait for the next one.
        waiting = jnp.zeros(self.config.n_envs, jnp.bool_) if algorithm.cuts_rollouts else ()
        carry = (state.env_state, state.observation, state.episode_return, state.episode_length, waiting)
        carry, (rows, successors, ended) = jax.lax.scan(step, carry, self._randomness(key, acting))
        env_state, obs, returns, lengths, _ = carry
        if not self.spec.truncates:
            successors = obs[None]
        rows = rows._replace(obs=jnp.concatenate([rows.obs, successors]))
        rollouts = Rollout(*(jnp.moveaxis(leaf, 0, 1) for leaf in rows))
        state = replace(
            state, env_state=env_state, observation=obs, episode_return=returns, episode_length=lengths
        )
        episodes, total, steps = (x.sum().astype(jnp.float32) for x in ended)
        mean = {"episode_return": total / episodes, "episode_length": steps / episodes}  # nan without any
        guards = _guards(self.spec.layout, self.spec.factors, rollouts)
        if self.behaviour is not None:  # an action that nobody gave a probability was taken nonetheless
            guards["behaviour_sound"] = jnp.isfinite(rollouts.log_mu).all().astype(jnp.float32)
        return state, rollouts, {"episodes": episodes} | guards | mean

    def _randomness(self, key: Array, acting: PyTree) -> tuple[Array, Array, Any]:
        """Gumbel noise (T, n_envs, A), keys (T, n_envs, 2, 2) and, for noisy networks, noise of a rollout.

        Drawn at once: every call of the generator adds about as much to the compile time as a layer does.
        """
        steps = (self.config.rollout_length, self.config.n_envs)
        gumbel_key, env_key = jax.random.split(key)
        gumbel = jax.random.gumbel(gumbel_key, (*steps, self.env.n_actions))
        env_keys = jax.random.split(env_key, (*steps, 2))
        if not self.algorithm.perturbs:
            return gumbel, env_keys, ()
        return gumbel, env_keys, self.algorithm.noise(acting, jax.random.fold_in(key, 2), steps[0])

    def check_evaluation(self, episodes: int) -> None:
        """See :class:`Learner`: every episode has an environment of its own, and all are stepped at once."""
        key = jax.random.PRNGKey(0)
        shapes = jax.tree.leaves(jax.eval_shape(self._eval_steppable.reset, key))
        inside = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in shapes)
        # Two copies of the state, its random keys, and the activations of the largest layer.
        widest = max(math.prod(self.env.observation_shape), self.network.n_flat, self.network.n_features)
        each = self.n_seeds * (2 * inside + 32 + 4 * widest)
        free = available_memory(self.n_devices)
        if free is not None and episodes * each > 0.8 * free:
            raise CapoError(
                f"{episodes:,} episodes of {self.n_seeds} seed(s) at once need about "
                f"{episodes * each / 1e6:,.0f} MB, but {free / 1e6:,.0f} MB are free: at most "
                f"{int(0.8 * free / each):,} episodes fit"
            )

    def evaluate(self, params: PyTree, keys: Array, episodes: int, deterministic: bool | None = None) -> NDArray:
        """See :class:`Learner`. Each of ``episodes`` environments plays exactly one episode.

        So short episodes count no more than long ones, and a seed's episodes depend on its own key alone.
        """
        params = self.place(params)
        best = self.algorithm.evaluates_best if deterministic is None else deterministic
        returns, running = self._evaluate(params, keys, episodes=episodes, deterministic=best)
        warn_of_endless(self.eval_env.name, int(np.sum(running)), running.size)
        return np.asarray(returns)

    def _evaluate_on_devices(
        self, params: PyTree, keys: Array, episodes: int, deterministic: bool
    ) -> tuple[Array, Array]:
        """Returns (K, episodes), and which of the episodes were still running after the most steps."""
        seeds = jax.vmap(partial(self._evaluate_seed, episodes=episodes, deterministic=deterministic))
        found: tuple[Array, Array] = self._spread(seeds, (_SEEDS, _SEEDS), (_SEEDS, _SEEDS))(params, keys)
        return found

    def _evaluate_seed(
        self, params: PyTree, key: Array, episodes: int, deterministic: bool
    ) -> tuple[Array, Array]:
        algorithm, params = unpack_playable(self.algorithm, params)
        acting = prepare(algorithm.network, algorithm.acting_params(params))
        best = deterministic or not algorithm.samples

        def step(carry: Any) -> Any:
            t, env_state, obs, returns, running = carry
            action_key, env_key = jax.random.split(jax.random.fold_in(key, t))
            scores = algorithm.action_scores(acting, obs)
            factors = self.network.factors
            action = policies.best(scores, factors) if best else policies.sample(action_key, scores, factors)
            env_keys = jax.random.split(env_key, episodes)
            env_state, obs, reward, terminated, truncated = jax.vmap(self._eval_steppable.step)(
                env_keys, env_state, action.astype(jnp.int32)
            )
            returns = returns + jnp.where(running, reward, 0.0)
            done = jnp.asarray(terminated, jnp.bool_) | jnp.asarray(truncated, jnp.bool_)
            return t + 1, env_state, obs, returns, running & ~done

        env_state, obs = jax.vmap(self._eval_steppable.reset)(
            jax.random.split(jax.random.fold_in(key, MAX_EVALUATION_STEPS), episodes)
        )
        carry = (jnp.int32(0), env_state, obs, jnp.zeros(episodes), jnp.ones(episodes, jnp.bool_))
        # Several steps between two looks at who still plays: on a GPU a look is a round trip to the host.
        steps = partial(jax.lax.fori_loop, 0, EVALUATION_CHUNK, lambda _, c: step(c))
        carry = jax.lax.while_loop(lambda c: c[4].any() & (c[0] < MAX_EVALUATION_STEPS), steps, carry)
        return carry[3], carry[4]


def _guards(layout: Layout | None, factors: tuple[int, ...], rollouts: Rollout) -> Metrics:
    """Whether what the environment gave is sound, 1 or 0 each: training stops on 0."""
    sound = {"rewards_finite": jnp.isfinite(rollouts.reward).all().astype(jnp.float32)}
    parts = {"": rollouts.obs} if layout is None else layout.unpack(rollouts.obs)
    finite = [jnp.isfinite(part).all() for part in parts.values() if jnp.issubdtype(part.dtype, jnp.floating)]
    if finite:
        sound["observations_finite"] = reduce(jnp.logical_and, finite).astype(jnp.float32)
    if layout is not None and layout.masked:
        some = policies.each_factor(lambda own: own.any(axis=-1, keepdims=True), factors, parts[MASK]).all(axis=-1)
        length = rollouts.reward.shape[-1]
        # After a terminated episode nothing is done any more, so nothing has to be allowed.
        after = replay.at_successors(some, length) | rollouts.terminated
        sound["masks_sound"] = (some[:, :length].all() & after.all()).astype(jnp.float32)
    return sound


@dataclass(frozen=True)
class _Moved:
    """What one step of all environments led to; ``obs`` is that of the new episode where one ended."""

    env_state: PyTree
    obs: Array
    successor: Array
    reward: Array
    terminated: Array
    truncated: Array


def _unless(waiting: Array, moved: _Moved, env_state: PyTree, obs: Array) -> _Moved:
    """What a step led to; where an environment waits (n,), nothing happened."""
    return _Moved(
        _where(waiting, env_state, moved.env_state),
        _where(waiting, obs, moved.obs),
        _where(waiting, obs, moved.successor),
        jnp.where(waiting, 0.0, moved.reward),
        moved.terminated & ~waiting,
        moved.truncated & ~waiting,
    )


def _step_and_reset(env: Any, keys: Array, env_state: PyTree, action: Array, costly_reset: bool) -> _Moved:
    """Step n environments, with two keys each (n, 2, 2), and start a new episode where one ended."""
    env_state, successor, reward, terminated, truncated = jax.vmap(env.step)(keys[:, 0], env_state, action)
    terminated = jnp.asarray(terminated, jnp.bool_)
    truncated = jnp.asarray(truncated, jnp.bool_) & ~terminated
    reset = _reset_few if costly_reset else _reset_all
    env_state, obs = reset(env, keys[:, 1], (env_state, successor), terminated | truncated)
    return _Moved(env_state, obs, successor, jnp.asarray(reward, jnp.float32), terminated, truncated)


def _where(chosen: Array, new: PyTree, old: PyTree) -> PyTree:
    """The rows of one tree where ``chosen`` (n,) is true, and of another elsewhere."""

    def pick(new: Array, old: Array) -> Array:
        return jnp.where(chosen.reshape(-1, *(1,) * (old.ndim - 1)), new, old)

    return jax.tree.map(pick, new, old)


def _reset_all(env: Any, keys: Array, now: PyTree, done: Array) -> PyTree:
    """State and observation of n environments, ``now``, and of a new episode where one is ``done``.

    A new episode is begun for every environment, and left unused where none ended: in most environments that is
    cheaper than to look.
    """
    return _where(done, jax.vmap(env.reset)(keys), now)


def _reset_few(env: Any, keys: Array, now: PyTree, done: Array) -> PyTree:
    """The same, where new episodes are costly: they are begun a few at a time, and only as many as are needed."""
    batch = max(1, len(done) // RESET_BATCHES)
    place = jnp.cumsum(done) - 1  # of each environment in the queue of those that are done
    queue = jnp.argsort(~done, stable=True)

    def some(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        first, now = carry
        fresh = jax.vmap(env.reset)(keys[queue.at[first + jnp.arange(batch)].get(mode="clip")])
        behind = place - first
        served = done & (behind >= 0) & (behind < batch)
        fresh = jax.tree.map(lambda leaf: leaf[behind.clip(0, batch - 1)], fresh)
        return first + batch, _where(served, fresh, now)

    return jax.lax.while_loop(lambda carry: carry[0] < done.sum(), some, (jnp.int32(0), now))[1]


@partial(jax.jit, donate_argnums=0)
def _put_rows(state: TrainState, rows: TrainState, index: Array) -> TrainState:
    """The state with other rows at ``index``."""
    result: TrainState = jax.tree.map(lambda leaf, row: leaf.at[index].set(row), state, rows)
    return result


def _seeds_mesh(n_seeds: int) -> Mesh | None:
    """As many local devices as share the seeds evenly; None if that is one."""
    devices = jax.local_devices()
    count = max(n for n in range(1, len(devices) + 1) if n_seeds % n == 0)
    return None if count == 1 else Mesh(np.array(devices[:count]), ("seeds",))


def _compiler_options(level: int = 1) -> dict[str, Any] | None:
    """Compile faster for a CPU: with 1 a fifth, and the program is as fast; 0 is for what runs only once."""
    name = "xla_backend_optimization_level"
    if jax.default_backend() != "cpu" or name in os.environ.get("XLA_FLAGS", ""):
        return None
    return {name: level}


def _placed(leaf: Any, sharding: NamedSharding) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # type: ignore[no-untyped-call]
