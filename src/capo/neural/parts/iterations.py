"""The number of an iteration, on a device whose integers have 32 bits.

A long run passes 2**31 iterations. Its state counts them modulo 2**31 in an int32; how often that count went round
is the *era*, which is part of the program rather than of its data: a run in its first era compiles to what it
would be if there were no others; the next era is another program (one more compilation every 2**31 iterations).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array

ERA = 2**31  # iterations
LARGEST_PERIOD = ERA - 1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Iteration:
    """``era * ERA + low``, counted from 0.

    Attributes:
        low: uint32 below :data:`ERA` (below twice that after an addition), of any shape.
        era: a Python integer, the same for all entries of ``low``.
    """

    low: Array
    era: int = field(default=0, metadata={"static": True})

    @staticmethod
    def of(count: Array, era: int = 0) -> Iteration:
        """From the int32 that a state counts with."""
        return Iteration(count.astype(jnp.uint32), era)

    @staticmethod
    def number(value: int) -> Iteration:
        """From a Python integer of any size."""
        return Iteration(jnp.uint32(value % ERA), value // ERA)

    def __add__(self, more: int) -> Iteration:
        """A later iteration; ``more`` is a small number, not negative."""
        return Iteration(self.low + np.uint32(more), self.era)

    def __mod__(self, period: int) -> Array:
        """The remainder as int32; ``period`` is at most :data:`LARGEST_PERIOD`."""
        rest = self.low % np.uint32(period)
        if self.era:
            rest = (rest + np.uint32(self.era * ERA % period)) % np.uint32(period)
        return rest.astype(jnp.int32)

    def at_most(self, bound: int) -> Array:
        """The smaller of the iteration and ``bound`` < ERA, as int32."""
        if self.era:
            return jnp.full(self.low.shape, bound, jnp.int32)
        return jnp.minimum(self.low, np.uint32(bound)).astype(jnp.int32)

    def reached(self, first: int) -> Array:
        """Whether this is iteration ``first`` (a Python integer of any size) or a later one."""
        left = first - self.era * ERA
        if left <= 0 or left >= 2 * ERA:
            return jnp.full(self.low.shape, left <= 0)
        return self.low >= np.uint32(left)

    def as_float(self) -> Array:
        """As float32, correctly rounded in the first era."""
        low = self.low.astype(jnp.float32)
        return low + np.float32(self.era * ERA) if self.era else low

    def fold_into(self, key: Array) -> Array:
        """A random key of this iteration alone.

        The first era folds its iterations into ``key`` itself; a later one first folds in a number that is none.
        """
        return jax.random.fold_in(fold_in(key, ERA - 1 + self.era) if self.era else key, self.low)


def crosses(iteration: Iteration, step: int, period: int) -> Array:
    """Whether ``(iteration + 1) * step`` is at a multiple of ``period``, or passed one since the iteration before.

    Args:
        iteration: counted from 0.
        step: how far an iteration goes, such as its frames.
        period: at most :data:`LARGEST_PERIOD`.

    >>> [bool(crosses(Iteration.number(i), 16, 40)) for i in range(6)]  # 16, 32, 48, 64, 80, 96
    [False, False, True, False, True, False]
    """
    if step >= period:
        return jnp.full(iteration.low.shape, True)
    return _times(iteration + 1, step, period) < step


def _times(iteration: Iteration, factor: int, period: int) -> Array:
    """``iteration * factor % period`` as int32, without overflow."""
    one = (iteration % period).astype(jnp.uint32)
    if (period - 1) * factor < 2**32:
        return (one * np.uint32(factor) % np.uint32(period)).astype(jnp.int32)
    total = jnp.zeros_like(one)
    for bit in f"{factor:b}":  # doubling and adding: nothing exceeds twice the period
        total = (total + total) % np.uint32(period)
        if bit == "1":
            total = (total + one) % np.uint32(period)
    return total.astype(jnp.int32)


def fold_in(key: Array, number: int) -> Array:
    """``jax.random.fold_in`` of a number of any size: words of 32 bits, from the lowest on."""
    key = jax.random.fold_in(key, np.uint32(number % 2**32))
    return fold_in(key, number // 2**32) if number >= 2**32 else key
