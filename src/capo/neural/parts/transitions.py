"""A ring of single transitions with priorities, from which n-step returns are drawn.

The ring holds M steps of all E environments of a seed in chronological order, so the steps that follow a
transition are the rows below it. The write position follows from the iteration: K seeds write to the same place.

A priority of 0 marks what must not be drawn: slots not yet written, and the newest ``n_step`` steps, whose
returns are still incomplete.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from capo.arrays import Array
from capo.neural.parts import replay
from capo.neural.parts.iterations import Iteration
from capo.neural.parts.replay import ReplaySpec, Rollout


class Transitions(NamedTuple):
    """The ring; observations are packed as :func:`capo.neural.parts.replay.pack` does."""

    obs: Array  # (M, E, ...)
    final: Array  # (M, E, ...) what the step led to; (0,) if the environment never truncates
    action: Array  # (M, E) int32; coordinates (M, E, F) if actions have factors
    reward: Array  # (M, E) float32
    terminated: Array  # (M, E) bool
    truncated: Array  # (M, E) bool
    priority: Array  # (M, E) float32; the chance of being drawn is proportional to it
    largest: Array  # () float32, the largest priority so far: a new transition gets it


class NStep(NamedTuple):
    """A batch to train on: Q(obs, action) is regressed on returns + discount * Q(next_obs, .)."""

    obs: Array  # (B, *observation_shape)
    action: Array  # (B,) int32
    returns: Array  # (B,) discounted rewards of up to n steps, none from beyond the episode's end
    discount: Array  # (B,) gamma ** (steps taken), 0 if the episode terminated within them
    next_obs: Array  # (B, *observation_shape) where those steps led, before any reset


@dataclass(frozen=True)
class RingSpec:
    """Shapes of the ring of one seed."""

    rollouts: ReplaySpec  # of one iteration
    steps: int  # M, a multiple of the rollouts' length
    n_step: int

    @property
    def truncates(self) -> bool:
        """Whether episodes can be truncated, so that final observations are kept."""
        return self.rollouts.successors > 1 or self.rollouts.length == 1

    @property
    def capacity(self) -> int:
        """Transitions kept."""
        return self.steps * self.rollouts.n_envs

    @property
    def nbytes(self) -> int:
        """Bytes of one seed's ring."""
        shapes = jax.eval_shape(lambda: empty(self))
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in shapes)


def spec_for(rollouts: ReplaySpec, capacity: int, n_step: int) -> RingSpec:
    """A ring of at least ``capacity`` transitions, in whole iterations, with room for their returns."""
    steps = max(-(-capacity // rollouts.n_envs), n_step + rollouts.length + 1)
    return RingSpec(rollouts, -(-steps // rollouts.length) * rollouts.length, n_step)


def empty(spec: RingSpec) -> Transitions:
    """A ring with nothing in it."""
    inside = spec.rollouts
    grid = (spec.steps, inside.n_envs)
    row = jax.eval_shape(
        lambda: replay.pack(inside, jnp.zeros(inside.observation_shape, inside.observation_dtype))
    )
    return Transitions(
        obs=jnp.zeros((*grid, *row.shape), row.dtype),
        final=jnp.zeros((*grid, *row.shape) if spec.truncates else (0,), row.dtype),
        action=jnp.zeros((*grid, *inside.action_shape), jnp.int32),
        reward=jnp.zeros(grid, jnp.float32),
        terminated=jnp.zeros(grid, jnp.bool_),
        truncated=jnp.zeros(grid, jnp.bool_),
        priority=jnp.zeros(grid, jnp.float32),
        largest=jnp.ones((), jnp.float32),
    )


def add(spec: RingSpec, ring: Transitions, rollouts: Rollout, iteration: Iteration) -> Transitions:
    """Store one iteration's rollouts (E, T) over the oldest ones; steps with complete returns can be drawn."""
    length = spec.rollouts.length
    start = position(spec, iteration)
    packed = replay.pack(spec.rollouts, rollouts.obs)
    columns = {
        "obs": packed[:, :length],
        "action": rollouts.action,
        "reward": rollouts.reward,
        "terminated": rollouts.terminated,
        "truncated": rollouts.truncated,
    }
    if spec.truncates:
        columns["final"] = packed[:, length:]
    written = {
        name: jax.lax.dynamic_update_slice_in_dim(getattr(ring, name), jnp.moveaxis(new, 0, 1), start, 0)
        for name, new in columns.items()
    }
    age = (start + length - 1 - jnp.arange(spec.steps)) % spec.steps
    filled = (iteration.at_most(spec.steps // length - 1) + 1) * length  # steps in the ring
    complete = (age >= spec.n_step) & (age < filled)
    fresh = complete & (age < spec.n_step + length)
    kept = jnp.where(complete[:, None], ring.priority, 0.0)
    return ring._replace(**written, priority=jnp.where(fresh[:, None], ring.largest, kept))


def position(spec: RingSpec, iteration: Iteration) -> Array:
    """Where the steps of an iteration begin in the ring, which holds whole iterations."""
    length = spec.rollouts.length
    return iteration % (spec.steps // length) * length


def draw(priority: Array, uniform: Array) -> tuple[Array, Array]:
    """Indices drawn in proportion to the priorities, one from each of B equal strata.

    Two levels of sums instead of a tree: about sqrt(N) blocks of sqrt(N), so a draw is one sum over all
    priorities and two short searches, which compile well, also under vmap.

    Args:
        priority: (N,) not negative, not all 0.
        uniform: (B,) random numbers in [0, 1).

    Returns:
        Indices (B,) of entries that are not 0, and their probabilities (B,).
    """
    n, batch = priority.shape[0], uniform.shape[0]
    size = math.isqrt(n - 1) + 1
    blocks = jnp.pad(priority, (0, -n % size)).reshape(-1, size)
    sums = blocks.sum(axis=-1)
    ends = jnp.cumsum(sums)
    total = ends[-1]
    points = (jnp.arange(batch) + uniform) / batch * total
    block = _first_beyond(ends, sums, points)
    rest = points - (ends - sums)[block]
    chosen = blocks[block]
    index = block * size + _first_beyond(jnp.cumsum(chosen, axis=-1), chosen, rest)
    return index, priority[index] / total


def _first_beyond(ends: Array, weights: Array, points: Array) -> Array:
    """First entry of positive weight whose end is beyond each point; rounding never selects a weight of 0."""
    reachable = jnp.where(weights > 0, ends, -jnp.inf)
    reachable = jnp.broadcast_to(reachable, (points.shape[0], reachable.shape[-1]))
    points = jnp.minimum(points, jnp.nextafter(reachable.max(axis=-1), -jnp.inf))
    return jnp.argmax(reachable > points[:, None], axis=-1)


def take(spec: RingSpec, ring: Transitions, index: Array, gamma: float) -> NStep:
    """The n-step transitions that start at flat indices (B,)."""
    time, env = index // spec.rollouts.n_envs, index % spec.rollouts.n_envs
    times = (time[:, None] + jnp.arange(spec.n_step)) % spec.steps  # (B, n)
    at = (times, env[:, None])
    terminated, truncated = ring.terminated[at], ring.truncated[at]
    done = (terminated | truncated).astype(jnp.int32)
    before = jnp.cumsum(done, axis=-1) - done  # episode ends before step k
    reward = jnp.where(before == 0, ring.reward[at], 0.0)
    returns = reward @ gamma ** jnp.arange(spec.n_step, dtype=jnp.float32)
    ended = done.sum(axis=-1) > 0
    last = jnp.where(ended, jnp.argmax(done, axis=-1), spec.n_step - 1)

    def at_last(x: Array) -> Array:
        return jnp.take_along_axis(x, last[:, None], axis=-1)[:, 0]

    alive = 1.0 - (at_last(terminated) & ended)
    beyond = ring.obs[(time + spec.n_step) % spec.steps, env]
    if spec.truncates:
        final = ring.final[at_last(times), env]
        beyond = jnp.where(ended.reshape(-1, *(1,) * (beyond.ndim - 1)), final, beyond)
    return NStep(
        obs=replay.unpack(spec.rollouts, ring.obs[time, env]),
        action=ring.action[time, env],
        returns=returns,
        discount=alive * gamma ** (last + 1).astype(jnp.float32),
        next_obs=replay.unpack(spec.rollouts, beyond),
    )


def prioritise(ring: Transitions, index: Array, priority: Array) -> Transitions:
    """Set new priorities (B,) of drawn transitions."""
    flat = ring.priority.reshape(-1).at[index].set(priority)
    return ring._replace(
        priority=flat.reshape(ring.priority.shape), largest=jnp.maximum(ring.largest, priority.max())
    )
