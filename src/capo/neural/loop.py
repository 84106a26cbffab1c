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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from capo.envs.protocol import is_jitted, may_truncate
from capo.errors import CapoError
from capo.neural import algorithms
from capo.neural.algorithm import Algorithm, Metrics, TrainState
from capo.neural.networks import ShapesOnly, ready
from capo.neural.replay import ReplaySpec, Rollout
from capo.neural.settings import Settings

Array = Any
PyTree = Any

# How arrays are split among devices: by seed on the first axis, on the second (metrics), or not at all.
_SEEDS, _ROWS, _WHOLE = (PartitionSpec(*axes) for axes in (("seeds",), (None, "seeds"), ()))  # type: ignore[no-untyped-call]
CHUNK = 1024  # rows of the metrics buffer: the most iterations of one compiled call
EVALUATION_CHUNK = 16  # divides the next one
MAX_EVALUATION_STEPS = 50_000  # an agent that never loses must not play for ever


class _Learner:
    """What learners on jitted and on host environments have in common."""

    def __init__(self, env: Any, config: Settings, n_seeds: int) -> None:
        if n_seeds < 1:
            raise CapoError(f"n_seeds={n_seeds} must be at least 1")
        self.algorithm: Algorithm = algorithms.of(config)(config, env)
        self.env, self.n_seeds = env, n_seeds
        self.config: Any = config
        self.network = self.algorithm.network
        self.frames_per_iteration = self.algorithm.frames_per_iteration
        self.compile_seconds: float | None = None
        self._refuse_what_does_not_fit()
        self._act = jax.jit(partial(_act, self.algorithm), static_argnames="deterministic")

    @property
    def replay(self) -> ReplaySpec:
        """Shapes of the rollouts, and of the replay where whole rollouts are kept."""
        return self.algorithm.rollouts

    def describe(self) -> str:
        """What a run will do, in a few lines: frames, replay ratio, batch, updates, memory."""
        config = self.config
        single = getattr(self.env, "fixed_copies", None) == 1 and config.n_envs > 1
        rollouts = f"{config.n_envs} rollouts of one environment" if single else f"{config.n_envs} environments"
        learning, *more = self.algorithm.describe_learning(self.n_seeds)
        return "\n".join(
            (
                f"{self.env.name}: {self.n_seeds} seed(s), {rollouts} x "
                f"{config.rollout_length} steps = {self.frames_per_iteration} frames an iteration and seed"
                + (f", spread over {self.n_devices} devices" if self.n_devices > 1 else ""),
                learning,
                f"network: {self.network.kind}, {self.n_parameters:,} parameters",
                *more,
            )
        )

    @property
    def updates_per_iteration(self) -> float:
        """Gradient steps an iteration, on average."""
        return self.algorithm.updates_per_iteration

    @property
    def n_parameters(self) -> int:
        """Numbers in the networks of one seed, target networks aside."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.algorithm.init_params(ShapesOnly())))

    @property
    def n_devices(self) -> int:
        """Devices that the seeds are spread over."""
        return 1

    def compiled_memory(self) -> int | None:
        """Bytes that the compiled program needs on the device, the state included, where that is known."""
        return None

    def take_kept(self) -> TrainState | None:
        """After a :meth:`run` that failed: the last whole state, if there still is one."""
        return None

    def policy_params(self, state: TrainState, seed_index: int) -> PyTree:
        """The networks of one seed, for :meth:`act` and :meth:`evaluate`."""
        return jax.tree.map(lambda leaf: leaf[seed_index], state.params)

    def act(
        self,
        params: PyTree,
        observations: Array,
        key: Array | None = None,
        deterministic: bool = False,
        action_mask: Array | None = None,
    ) -> np.ndarray[Any, Any]:
        """Actions (N,) for raw observations (N, ...) of the environment.

        Args:
            params: from :meth:`policy_params`.
            observations: (N, ...) as the environment gives them.
            key: raw random key; not needed if deterministic.
            deterministic: the likeliest action instead of a sample.
            action_mask: (N, A) or (A,), true where the action is allowed.
        """
        encode = getattr(self.env, "encode", lambda raw: raw.astype(self.env.observation_dtype))
        obs = encode(np.asarray(observations))
        if obs.shape[1:] != tuple(self.env.observation_shape):
            raise CapoError(
                f"observations of shape {obs.shape} given to {self.env.name!r}, where one has the shape "
                f"{tuple(self.env.observation_shape)}: the first axis counts them"
            )
        mask = np.ones((obs.shape[0], self.env.n_actions), np.bool_)
        if action_mask is not None:
            mask &= np.asarray(action_mask, np.bool_)
            if not mask.any(axis=-1).all():
                raise CapoError("action_mask forbids every action of some observation")
        if key is None:
            if not deterministic:
                raise CapoError("act needs a key unless deterministic=True")
            key = jax.random.PRNGKey(0)
        return np.asarray(self._act(params, obs, key, mask, deterministic=deterministic))

    def _init_params(self, seeds: Sequence[int]) -> PyTree:
        """Parameters of all seeds, with the leading axis K."""
        each = [self.algorithm.init_params(np.random.default_rng(seed)) for seed in seeds]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)

    def _init_seed(self, params: PyTree, key: Array) -> TrainState:
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
        )

    def close(self) -> None:
        """Let go of what is not memory."""

    def _refuse_what_does_not_fit(self) -> None:
        free = available_memory(self.n_devices)
        networks = self._network_bytes(free)
        if free is not None and networks > 0.8 * free:
            raise CapoError(
                f"the networks and their optimiser need {networks / 1e6:,.0f} MB ({self.n_parameters:,} "
                f"parameters x {self.n_seeds} seed(s)) but {free / 1e6:,.0f} MB are free: set a smaller width "
                f"than {self.config.width}, or run fewer seeds"
            )
        one, setting, value = self.algorithm.memory
        if self.config.n_envs > value:  # what is kept is at least one rollout of each
            setting, value = "n_envs", self.config.n_envs
        needed = one * self.n_seeds
        if free is not None and needed > 0.8 * free:
            raise CapoError(
                f"the replay needs {needed / 1e6:,.0f} MB ({setting}={value} x {self.n_seeds} seeds) but "
                f"{free / 1e6:,.0f} MB are free: set {setting} to {int(value * 0.8 * free / needed)} or less, "
                "or run fewer seeds"
            )

    def _network_bytes(self, enough: int | None) -> int:
        """Bytes of parameters, gradients, target networks and optimiser of all seeds; none of them is made.

        Args:
            enough: if parameters and gradients take more than this, nothing else is counted.
        """
        params = self.algorithm.init_params(ShapesOnly())
        total = 2 * _bytes(params) * self.n_seeds
        if enough is not None and total > enough:  # shapes that jax itself may not be able to count
            return total
        rest = jax.eval_shape(lambda p: (self.algorithm.init_target(p), self.algorithm.init_optimiser(p)), params)
        return total + _bytes(rest) * self.n_seeds


def _bytes(shapes: PyTree) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


class JittedLearner(_Learner):
    """An algorithm on a jitted environment: K seeds are one program."""

    def __init__(self, env: Any, config: Settings, n_seeds: int) -> None:
        self.mesh = _seeds_mesh(n_seeds)
        super().__init__(env, config, n_seeds)
        self._compiled: Any = None
        static = ("episodes", "deterministic")
        self._evaluate = jax.jit(self._evaluate_seeds, static_argnames=static)
        self._evaluate_spread = jax.jit(self._evaluate_on_devices, static_argnames=static)

    @property
    def n_devices(self) -> int:
        """Devices that the seeds are spread over."""
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
        """A state, or a part of it, on the devices that its seeds run on."""
        return to_device(state) if self.mesh is None else jax.device_put(state, NamedSharding(self.mesh, _SEEDS))

    def init(self, seeds: Sequence[int]) -> TrainState:
        """The state before the first iteration, one row a seed."""
        keys = seed_keys(seeds, self.n_seeds)
        made = None if self.mesh is None else NamedSharding(self.mesh, _SEEDS)  # where it is to be, at once
        begin = jax.jit(self._begin, out_shardings=made, compiler_options=_compiler_options(level=0))
        state: TrainState = begin(self._init_params(seeds), keys)
        return state

    def shapes(self, seeds: Sequence[int]) -> TrainState:
        """Shapes and types of that state; nothing is made."""
        keys = seed_keys(seeds, self.n_seeds)
        shapes: TrainState = jax.eval_shape(lambda: self._begin(self._init_params(seeds), keys))
        return shapes

    def _begin(self, params: PyTree, keys: Array) -> TrainState:
        """The state before the first iteration, for networks and keys of all seeds."""

        def one(params: PyTree, key: Array) -> TrainState:
            state_key, reset_key = jax.random.split(key)
            env_state, obs = jax.vmap(self.env.reset)(jax.random.split(reset_key, self.config.n_envs))
            return replace(self._init_seed(params, state_key), env_state=env_state, observation=obs)

        return jax.vmap(one)(params, keys)

    def compile(self) -> float:
        """Compile the training program (once) and return the seconds it took."""
        if self.compile_seconds is None:
            begin = time.perf_counter()
            shapes = self.shapes(range(self.n_seeds))
            if self.mesh is not None:
                shapes = jax.tree.map(partial(_placed, sharding=NamedSharding(self.mesh, _SEEDS)), shapes)
            run = self._spread(self._run, (_SEEDS, _WHOLE), (_SEEDS, _ROWS))
            lowered = jax.jit(run, donate_argnums=0).lower(shapes, jnp.int32(0))
            self._compiled = lowered.compile(compiler_options=_compiler_options())
            self.compile_seconds = time.perf_counter() - begin
        return self.compile_seconds

    def compiled_memory(self) -> int | None:
        """Bytes that the compiled program needs on all devices, the state included, if the backend says so."""
        self.compile()
        plan = self._compiled.memory_analysis()
        if plan is None:
            return None
        return self.n_devices * int(plan.argument_size_in_bytes + plan.temp_size_in_bytes)

    def run(self, state: TrainState, iterations: int) -> tuple[TrainState, dict[str, np.ndarray[Any, Any]]]:
        """``iterations`` iterations; the state given is used up (its buffers are donated).

        Returns:
            The state after them, and a dict of arrays (iterations, K).
        """
        self.compile()
        state = self.place(state)
        rows: list[Metrics] = []
        done = 0
        while done < iterations:
            now = min(CHUNK, iterations - done)
            state, metrics = self._compiled(state, jnp.int32(now))
            rows.append({name: np.asarray(values)[:now] for name, values in metrics.items()})
            done += now
        if not rows:
            return state, {}
        return state, {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}

    def _run(self, state: TrainState, iterations: Array) -> tuple[TrainState, Metrics]:
        """Up to CHUNK iterations; the number is an argument, so that every number is the same program."""

        def body(row: Array, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
            state, buffers = carry
            state, metrics = jax.vmap(self._iterate, in_axes=(0, None))(state, state.iteration[0])
            return state, {name: buffers[name].at[row].set(values) for name, values in metrics.items()}

        shapes = jax.eval_shape(lambda: jax.vmap(self._iterate, in_axes=(0, None))(state, jnp.int32(0)))[1]
        buffers = {name: jnp.zeros((CHUNK, *leaf.shape), leaf.dtype) for name, leaf in shapes.items()}
        result: tuple[TrainState, Metrics] = jax.lax.fori_loop(0, iterations, body, (state, buffers))
        return result

    def _iterate(self, state: TrainState, iteration: Array) -> tuple[TrainState, Metrics]:
        """One iteration of one seed."""
        collect_key, learn_key = jax.random.split(jax.random.fold_in(state.key, iteration))
        epsilon = self.algorithm.exploration(iteration.astype(jnp.float32) * self.frames_per_iteration)
        state, rollouts, episodes = self._collect(state, collect_key, epsilon)
        state, metrics = self.algorithm.learn(state, rollouts, iteration, learn_key)
        state = replace(state, iteration=state.iteration + 1)
        return state, metrics | episodes | ({"epsilon": epsilon} if self.algorithm.explores else {})

    def _collect(self, state: TrainState, key: Array, epsilon: Array) -> tuple[TrainState, Rollout, Metrics]:
        """One rollout of every environment, and what became of the episodes."""
        algorithm = self.algorithm
        acting = algorithm.acting(state.params)
        if not algorithm.perturbs:
            acting = ready(algorithm.network, acting)

        def step(carry: Any, random: tuple[Array, Array, Any]) -> tuple[Any, Any]:
            env_state, obs, returns, lengths = carry
            gumbel, env_keys, noise = random
            now = algorithm.perturb(acting, noise) if algorithm.perturbs else acting
            log_mu = algorithm.behaviour(now, obs, epsilon)
            action = (log_mu + gumbel).argmax(-1).astype(jnp.int32)  # a sample of mu
            moved = _step_and_reset(self.env, env_keys, env_state, action)
            returns, lengths = returns + moved.reward, lengths + 1
            done = moved.terminated | moved.truncated
            taken = jnp.take_along_axis(log_mu, action[:, None], axis=-1)[:, 0]
            row = Rollout(obs, action, moved.reward, moved.terminated, moved.truncated, taken)
            ended = (done.sum(), jnp.where(done, returns, 0).sum(), jnp.where(done, lengths, 0).sum())
            carry = (moved.env_state, moved.obs, jnp.where(done, 0, returns), jnp.where(done, 0, lengths))
            successor = moved.successor if may_truncate(self.env) else ()
            return carry, (row, successor, ended)

        carry = (state.env_state, state.observation, state.episode_return, state.episode_length)
        carry, (rows, successors, ended) = jax.lax.scan(step, carry, self._randomness(key, acting))
        env_state, obs, returns, lengths = carry
        if not may_truncate(self.env):
            successors = obs[None]
        rows = rows._replace(obs=jnp.concatenate([rows.obs, successors]))
        rollouts = Rollout(*(jnp.moveaxis(leaf, 0, 1) for leaf in rows))
        state = replace(
            state, env_state=env_state, observation=obs, episode_return=returns, episode_length=lengths
        )
        episodes, total, steps = (x.sum().astype(jnp.float32) for x in ended)
        mean = {"episode_return": total / episodes, "episode_length": steps / episodes}  # nan without any
        guards = {"rewards_finite": jnp.isfinite(rollouts.reward).all().astype(jnp.float32)}
        if jnp.issubdtype(rollouts.obs.dtype, jnp.floating):
            guards["observations_finite"] = jnp.isfinite(rollouts.obs).all().astype(jnp.float32)
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

    def evaluate(
        self, params: PyTree, key: Array, episodes: int, deterministic: bool = False
    ) -> np.ndarray[Any, Any]:
        """Returns (episodes,) of one seed's policy: one whole episode in each of ``episodes`` environments.

        Actions are sampled, without epsilon, unless ``deterministic``. Since every environment plays exactly
        one episode, short episodes count no more than long ones.
        """
        params = jax.tree.map(lambda leaf: leaf[None], params)
        returns = self._evaluate(params, key[None], episodes=episodes, deterministic=deterministic)
        return np.asarray(returns)[0, :]

    def evaluate_all(
        self, state: TrainState, keys: Array, episodes: int, deterministic: bool = False
    ) -> np.ndarray[Any, Any]:
        """:meth:`evaluate` of all seeds at once, with a random key each (K, 2): (K, episodes)."""
        params = self.place(state.params)
        return np.asarray(self._evaluate_spread(params, keys, episodes=episodes, deterministic=deterministic))

    def _evaluate_on_devices(self, params: PyTree, keys: Array, episodes: int, deterministic: bool) -> Array:
        function = partial(self._evaluate_seeds, episodes=episodes, deterministic=deterministic)
        return self._spread(function, (_SEEDS, _SEEDS), _SEEDS)(params, keys)

    def _evaluate_seeds(self, params: PyTree, keys: Array, episodes: int, deterministic: bool) -> Array:
        return jax.vmap(partial(self._evaluate_seed, episodes=episodes, deterministic=deterministic))(params, keys)

    def _evaluate_seed(self, params: PyTree, key: Array, episodes: int, deterministic: bool) -> Array:
        acting = ready(self.network, self.algorithm.acting(params))
        best = deterministic or not self.algorithm.samples

        def step(carry: Any) -> Any:
            t, env_state, obs, returns, running = carry
            action_key, env_key = jax.random.split(jax.random.fold_in(key, t))
            scores = self.algorithm.scores(acting, obs)
            action = scores.argmax(-1) if best else jax.random.categorical(action_key, scores)
            env_keys = jax.random.split(env_key, episodes)
            env_state, obs, reward, terminated, truncated = jax.vmap(self.env.step)(
                env_keys, env_state, action.astype(jnp.int32)
            )
            returns = returns + jnp.where(running, reward, 0.0)
            done = jnp.asarray(terminated, jnp.bool_) | jnp.asarray(truncated, jnp.bool_)
            return t + 1, env_state, obs, returns, running & ~done

        env_state, obs = jax.vmap(self.env.reset)(
            jax.random.split(jax.random.fold_in(key, MAX_EVALUATION_STEPS), episodes)
        )
        carry = (jnp.int32(0), env_state, obs, jnp.zeros(episodes), jnp.ones(episodes, jnp.bool_))
        # Several steps between two looks at who still plays: on a GPU a look is a round trip to the host.
        steps = partial(jax.lax.fori_loop, 0, EVALUATION_CHUNK, lambda _, c: step(c))
        carry = jax.lax.while_loop(lambda c: c[4].any() & (c[0] < MAX_EVALUATION_STEPS), steps, carry)
        return carry[3]


@dataclass(frozen=True)
class _Moved:
    """What one step of all environments led to; ``obs`` is that of the new episode where one ended."""

    env_state: PyTree
    obs: Array
    successor: Array
    reward: Array
    terminated: Array
    truncated: Array


def _step_and_reset(env: Any, keys: Array, env_state: PyTree, action: Array) -> _Moved:
    """Step n environments, with two keys each (n, 2, 2), and start a new episode where one ended."""
    n = action.shape[0]
    env_state, successor, reward, terminated, truncated = jax.vmap(env.step)(keys[:, 0], env_state, action)
    fresh_state, fresh_obs = jax.vmap(env.reset)(keys[:, 1])
    terminated = jnp.asarray(terminated, jnp.bool_)
    truncated = jnp.asarray(truncated, jnp.bool_) & ~terminated
    done = terminated | truncated

    def pick(fresh: Array, old: Array) -> Array:
        return jnp.where(done.reshape(n, *(1,) * (old.ndim - 1)), fresh, old)

    return _Moved(
        jax.tree.map(pick, fresh_state, env_state),
        pick(fresh_obs, successor),
        successor,
        jnp.asarray(reward, jnp.float32),
        terminated,
        truncated,
    )


def _act(algorithm: Algorithm, params: PyTree, obs: Array, key: Array, mask: Array, deterministic: bool) -> Array:
    scores = algorithm.scores(algorithm.acting(params), obs)
    scores = jnp.where(mask, scores, -jnp.inf)
    best = deterministic or not algorithm.samples
    return scores.argmax(-1) if best else jax.random.categorical(key, scores)


def seed_keys(seeds: Sequence[int], n_seeds: int) -> Array:
    """Raw random keys (K, 2) of the seeds; everything a seed does follows from its own key."""
    seeds = [int(seed) for seed in seeds]
    if len(seeds) != n_seeds:
        raise CapoError(f"{len(seeds)} seeds given to a learner made for {n_seeds}")
    for seed in seeds:
        if not 0 <= seed < 2**31:
            raise CapoError(f"seed {seed} must lie between 0 and 2**31 - 1")
    return jnp.stack([jax.random.PRNGKey(seed) for seed in seeds])


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


def to_device(state: PyTree) -> PyTree:
    """The state with numpy leaves (as a checkpoint has them) copied to the device."""
    return jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jnp.array(x), state)


def available_memory(n_devices: int = 1) -> int | None:
    """Bytes free on so many devices that share evenly (or on this machine, for CPUs), or None if not known."""
    try:
        every = [device.memory_stats() for device in jax.local_devices()[:n_devices]]
        if all(stats and "bytes_limit" in stats for stats in every):
            return n_devices * min(int(s["bytes_limit"]) - int(s.get("bytes_in_use", 0)) for s in every)
    except (RuntimeError, NotImplementedError):
        pass
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def make_learner(env: Any, config: Settings, n_seeds: int = 1) -> Any:
    """The learner for an environment made by :func:`capo.envs.make` (or a name for it).

    The type of ``config`` says which algorithm learns.
    Nothing large is allocated yet; what would not fit is refused here.
    """
    from capo import envs

    env = envs.make(env)
    if is_jitted(env):
        return JittedLearner(env, config, n_seeds)
    from capo.neural.host import HostLearner

    return HostLearner(env, config, n_seeds)
