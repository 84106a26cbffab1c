"""A ring buffer of whole rollouts on the device.

The write position is a function of the iteration alone (every iteration stores one rollout per environment), so
the buffer needs no counters, and K seeds write to the same place: one slice, no scatter.

Observations that are stacks of frames are stored as frames, each once: see :func:`pack_rollouts`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from capo.arrays import Array
from capo.neural.parts.iterations import Iteration


class Rollout(NamedTuple):
    """N rollouts of T steps; in the replay ``obs`` is packed: see :func:`pack_rollouts`.

    ``obs`` has T + 1 rows, the last one being where the rollout ended, if the environment never truncates;
    otherwise 2 T: the observation of every step, then what every step led to (the final observation where
    an episode ended).
    """

    obs: Array  # (N, T + S, *observation_shape), S = 1 or T
    action: Array  # (N, T) int32; coordinates (N, T, F) if actions have factors
    reward: Array  # (N, T) float32
    terminated: Array  # (N, T) bool
    truncated: Array  # (N, T) bool
    log_mu: Array  # (N, T) float32, log-probability of the action when it was taken


def at_successors(values: Array, length: int) -> Array:
    """Values (N, T + S) of all rows of ``obs`` to those (N, T) of what each of the T = ``length`` steps led to."""
    return values[:, length:] if values.shape[-1] == 2 * length else values[:, 1:]


def filled(rollouts: Rollout) -> Array:
    """1.0 for the steps (N, T) of rollouts that are cut at the end of an episode, 0.0 for the padding after it.

    >>> steps = jnp.array([[False, True, False, False], [False, False, False, True]])
    >>> empty = jnp.zeros((2, 4))
    >>> filled(Rollout(empty, empty, empty, terminated=steps, truncated=empty > 0, log_mu=empty)).tolist()
    [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
    """
    ends = (rollouts.terminated | rollouts.truncated).astype(jnp.int32)
    before = jnp.cumsum(ends, axis=-1) - ends
    return (before == 0).astype(jnp.float32)


@dataclass(frozen=True)
class ReplaySpec:
    """Shapes of the replay of one seed."""

    n_envs: int
    n_iterations: int  # how many iterations fit
    clear_every: int  # iterations between two clearings; 0 for none
    length: int
    successors: int  # rows of ``obs`` beyond ``length``: 1, or ``length`` where episodes may be truncated
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype[Any]
    action_shape: tuple[int, ...] = ()  # (F,) if actions have factors
    frames: int = 1  # if more, an observation is so many frames along its last axis: see capo.envs.wrappers

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Of one frame: of an observation, if it is not a stack."""
        *rest, last = self.observation_shape or (1,)
        return (*rest, last // self.frames) if self.frames > 1 else self.observation_shape

    @property
    def stored_rows(self) -> int:
        """Rows of a stored rollout's ``obs``: observations, or frames."""
        return self.length + self.successors + self.frames - 1

    @property
    def capacity(self) -> int:
        """Rollouts kept."""
        return self.n_envs * self.n_iterations

    @property
    def packed(self) -> bool:
        """Whether observations are stored as bits."""
        return self.observation_dtype == np.bool_

    @property
    def nbytes(self) -> int:
        """Bytes of one seed's replay."""
        shapes = jax.eval_shape(lambda: empty(self))
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in shapes)


def spec_for(
    observation_shape: tuple[int, ...],
    observation_dtype: DTypeLike,
    truncates: bool,
    *,
    n_envs: int,
    length: int,
    capacity: int = 1,
    clear_every: int = 0,
    n_factors: int = 0,
    frames: int = 1,
) -> ReplaySpec:
    """The replay for an environment.

    Args:
        observation_shape: of one observation.
        observation_dtype: its dtype; booleans are stored as bits.
        truncates: whether episodes may be truncated.
        n_envs: rollouts per iteration.
        length: T, steps of a rollout.
        capacity: rollouts to keep, rounded up to whole iterations.
        clear_every: empty the replay every so many iterations; 0 never does.
        n_factors: of an action; 0 if it is a single number.
        frames: how many of them an observation stacks along its last axis.
    """
    return ReplaySpec(
        n_envs,
        -(-capacity // n_envs),
        clear_every,
        length,
        length if truncates else 1,
        tuple(observation_shape),
        np.dtype(observation_dtype),
        (n_factors,) if n_factors else (),
        frames,
    )


def empty(spec: ReplaySpec) -> Rollout:
    """A replay with nothing in it."""
    steps = (spec.capacity, spec.length)
    size = math.prod(spec.frame_shape)
    row = ((size + 7) // 8,) if spec.packed else spec.frame_shape
    dtype = np.uint8 if spec.packed else spec.observation_dtype
    return Rollout(
        obs=jnp.zeros((spec.capacity, spec.stored_rows, *row), dtype),
        action=jnp.zeros((*steps, *spec.action_shape), jnp.int32),
        reward=jnp.zeros(steps, jnp.float32),
        terminated=jnp.zeros(steps, jnp.bool_),
        truncated=jnp.zeros(steps, jnp.bool_),
        log_mu=jnp.zeros(steps, jnp.float32),
    )


def pack(spec: ReplaySpec, obs: Array) -> Array:
    """Observations (..., *observation_shape) as they are stored: eight booleans per byte."""
    if not spec.packed:
        return obs
    lead = obs.shape[: obs.ndim - len(spec.observation_shape)]
    return jnp.packbits(obs.reshape(*lead, -1), axis=-1)


def unpack(spec: ReplaySpec, stored: Array) -> Array:
    """The inverse of :func:`pack`."""
    if not spec.packed:
        return stored
    size = math.prod(spec.observation_shape)
    bits = jnp.unpackbits(stored, axis=-1, count=size).astype(jnp.bool_)
    return bits.reshape(*stored.shape[:-1], *spec.observation_shape)


def pack_rollouts(spec: ReplaySpec, rollouts: Rollout) -> Rollout:
    """Rollouts with their observations as the replay stores them.

    Stacks of k frames become frames: the k of the first observation, the newest of each later one, and the newest
    of each successor, T + S + k - 1 rows in place of k (T + S). The rest follows: at the start of an episode a
    stack is its first frame k times, and an episode's end is stored in the rollout.
    """
    obs = rollouts.obs
    if spec.frames == 1:
        return rollouts._replace(obs=pack(spec, obs))
    one = _one_frame(spec)
    width = one.observation_shape[-1]
    oldest = [obs[:, :1, ..., i * width : (i + 1) * width] for i in range(spec.frames - 1)]
    return rollouts._replace(obs=pack(one, jnp.concatenate([*oldest, obs[..., -width:]], axis=1)))


def unpack_rollouts(spec: ReplaySpec, stored: Rollout) -> Rollout:
    """The inverse of :func:`pack_rollouts`."""
    if spec.frames == 1:
        return stored._replace(obs=unpack(spec, stored.obs))
    k, length = spec.frames, spec.length
    frames = unpack(_one_frame(spec), stored.obs)
    done = stored.terminated | stored.truncated
    # Row p of ``frames`` is the newest of observation p - (k - 1); the stack of observation t is the rows t to
    # t + k - 1, but none before the first frame of its episode.
    after = jnp.where(done, jnp.arange(length) + k, 0)  # the row of the frame that begins the next episode
    first = jnp.pad(jax.lax.cummax(after, axis=1), ((0, 0), (1, 0)))  # (N, T + 1)
    rows = jnp.maximum(jnp.arange(length + 1)[:, None] + jnp.arange(k), first[..., None])
    if spec.successors == length:
        # What step t led to: the stack of observation t without its oldest frame, and the frame it led to.
        newest = jnp.broadcast_to(jnp.arange(length)[:, None] + length + k - 1, (*done.shape, 1))
        led_to = jnp.concatenate([rows[:, :length, 1:], newest], axis=-1)
        rows = jnp.concatenate([rows[:, :length], led_to], axis=1)
    stacks = jax.vmap(lambda mine, at: mine[at])(frames, rows)  # (N, T + S, k, *frame_shape)
    stacks = jnp.moveaxis(stacks, 2, -2)
    return stored._replace(obs=stacks.reshape(*stacks.shape[:2], *spec.observation_shape))


def pack_frames(spec: ReplaySpec, frames: Array) -> Array:
    """Single frames (..., *frame_shape) as they are stored."""
    return pack(_one_frame(spec), frames)


def _one_frame(spec: ReplaySpec) -> ReplaySpec:
    """The same replay of single frames."""
    return replace(spec, observation_shape=spec.frame_shape, frames=1)


def add(spec: ReplaySpec, replay: Rollout, rollouts: Rollout, iteration: Iteration) -> Rollout:
    """Store one iteration's rollouts (n_envs, packed), overwriting the oldest once the ring is full."""
    since = iteration % spec.clear_every if spec.clear_every else iteration
    start = since % spec.n_iterations * spec.n_envs
    pairs = zip(replay, rollouts, strict=True)
    return Rollout(*(jax.lax.dynamic_update_slice_in_dim(old, new, start, 0) for old, new in pairs))


def draw(spec: ReplaySpec, key: Array, iteration: Iteration, shape: tuple[int, ...]) -> Array:
    """Indices of stored rollouts, uniform with replacement, int32 of the shape given.

    ``iteration`` is the current one, whose rollouts are stored already.
    """
    if spec.clear_every:
        since = jnp.minimum(iteration % spec.clear_every, spec.n_iterations - 1)
    else:
        since = iteration.at_most(spec.n_iterations - 1)
    count = (since + 1) * spec.n_envs
    # The product can round up to count itself.
    return jnp.minimum((jax.random.uniform(key, shape) * count).astype(jnp.int32), count - 1)


def take(spec: ReplaySpec, replay: Rollout, index: Array) -> Rollout:
    """The rollouts at ``index`` (B,), observations unpacked."""
    return unpack_rollouts(spec, Rollout(*(leaf[index] for leaf in replay)))
