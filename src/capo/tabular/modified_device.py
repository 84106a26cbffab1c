"""Sweeps of modified CAPO on a GPU, or on any devices that jax has, in float64.

The rounds and the certificate are those of :class:`capo.tabular.modified.Sharp` with Jacobi sweeps. Several
devices split the states: each holds its part of the transitions, and all values, which every sweep gathers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from capo.errors import CapoError
from capo.tabular.mdp import MDP, Floats
from capo.tabular.modified import Residuals, action_mask, one_hot

MOST_PADDING = 3.0  # padded successors per real one; beyond it, rows differ too much in length
FEW = 2  # own sweeps that gain nothing: gathering P_pi before them costs as much as another improvement
MOST_SKIPPED = 15  # rounds in a row without a policy's own sweeps, where those gain nothing
UNROLLED = 16  # loops of up to this many steps are written out, so that they become one kernel


def has_gpu() -> bool:
    """Whether jax sees a GPU."""
    return any(device.platform == "gpu" for device in jax.devices())


def gpu_devices() -> list[Any]:
    """The GPUs, or an error."""
    found = [device for device in jax.devices() if device.platform == "gpu"]
    if not found:
        seen = ", ".join(sorted({device.platform for device in jax.devices()}))
        raise CapoError(f"device='gpu': jax sees no GPU, only {seen}; install jax[cuda13], or use device='cpu'")
    return found


class Padded(NamedTuple):
    """Transitions with K successors per pair; shorter rows are filled up with probability 0.

    States come last, so that neighbouring states are neighbours in memory.

    Attributes:
        successors, probabilities: (A, K, n).
    """

    successors: Any
    probabilities: Any


class Segments(NamedTuple):
    """Transitions as E entries, for rows that differ much in length.

    Attributes:
        successors, probabilities: (E,).
        pairs: (E,) the pair s * A + a that an entry belongs to, in ascending order.
    """

    successors: Any
    probabilities: Any
    pairs: Any


class Problem(NamedTuple):
    """An MDP on the devices, with n >= S states: those beyond S make n a multiple of the number of devices.

    Attributes:
        transitions: of all pairs.
        reward: (A, n).
        allowed: (A, n) the actions that a state has; None if all have all.
        terminal: (n,); None if no state is.
    """

    transitions: Padded | Segments
    reward: Any
    allowed: Any = None
    terminal: Any = None


class Device:
    """A sharp policy and its values on one or several devices; see :class:`capo.tabular.modified.Sweeper`.

    Args:
        problem: what is solved; its arrays are on the devices.
        gamma: discount.
        n_states: S.
        devices: those that the arrays are on.
    """

    gauss_seidel = False

    def __init__(self, problem: Problem, gamma: float, n_states: int, devices: Sequence[Any]) -> None:
        self._problem, self._n_states = problem, n_states
        self._start: tuple[Floats, Any] | None = None  # a start distribution, and the same on the devices
        everywhere = _sharding(devices)
        put = partial(jax.lax.with_sharding_constraint, shardings=everywhere)
        with jax.enable_x64(True):
            self._begin = jax.jit(partial(_begin, put, gamma, n_states))
            self._improve = jax.jit(partial(_improve, put, gamma, n_states))
            self._sweep = jax.jit(partial(_sweep, put, gamma, n_states))
            self._residuals = jax.jit(partial(_residuals, gamma, n_states))
        self.restart()

    @classmethod
    def of(cls, mdp: MDP, devices: Sequence[Any] | None = None) -> Device:
        """Bring an MDP's arrays to the devices, all GPUs if None."""
        devices = gpu_devices() if devices is None else list(devices)
        return cls(load(mdp, devices), mdp.gamma, mdp.n_states, devices)

    def restart(self) -> None:
        """Go back to the first policy and values."""
        with jax.enable_x64(True):
            self._values, self._action = self._begin(self._problem)
        self._skipped, self._to_skip, self._size = 0, 0, 0.0

    @property
    def share(self) -> float:
        """0 in rounds that should not make a policy's own sweeps.

        Where one or two of them reach their goal, as where values spread state by state and only improvements
        carry them further, gathering P_pi costs more than it gains: they are left out for 1, 3, 7, ... rounds.
        """
        return 0.0 if self._skipped <= self._to_skip else 1.0

    def improve(self) -> Residuals:
        self._skipped += 1
        with jax.enable_x64(True):
            self._values, self._action, found = self._improve(self._problem, self._values, self._action)
            up, low, self._size = np.asarray(found).tolist()  # one transfer: a round waits for nothing else
            return Residuals(up, low, up)

    def sweep(self, most: int, goal: float) -> tuple[int, float, float]:
        with jax.enable_x64(True):
            self._values, *found = self._sweep(self._problem, self._values, self._action, most, goal)
            count, low, high = jax.device_get(found)
        self._to_skip = min(2 * self._to_skip + 1, MOST_SKIPPED) if count <= FEW < most else 0
        self._skipped = 0
        return int(count), float(low), float(high)

    def residuals(self) -> Residuals:
        with jax.enable_x64(True):
            found = self._residuals(self._problem, self._values, self._action)
            return Residuals(*(float(number) for number in jax.device_get(found)))

    def shift(self, amount: float) -> None:
        with jax.enable_x64(True):
            self._values = self._values + amount

    def size(self) -> float:
        return self._size

    def value_at(self, start: Floats) -> float:
        with jax.enable_x64(True):
            if self._start is None or self._start[0] is not start:
                padding = np.zeros(len(self._values) - len(start))
                self._start = start, jax.device_put(np.concatenate([start, padding]), self._values.sharding)
            return float(self._start[1] @ self._values)

    def wait(self) -> None:
        for array in (*jax.tree.leaves(self._problem), self._values, self._action):
            array.block_until_ready()

    def close(self) -> None:
        pass

    @property
    def values(self) -> Floats:
        return np.asarray(self._values)[: self._n_states]

    @property
    def log_policy(self) -> Floats:
        return one_hot(np.asarray(self._action)[: self._n_states], self._problem.reward.shape[0])


# --- bringing an MDP to the devices ---------------------------------------------------------------------------


def _sharding(devices: Sequence[Any], *axes: str | None) -> NamedSharding:
    """The axis named "states" is split over the devices; without axes, all of them hold everything."""
    mesh = Mesh(np.array(devices), ("states",), axis_types=(AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]


def load(mdp: MDP, devices: Sequence[Any]) -> Problem:
    """Bring an MDP's arrays to the devices."""
    rows, n_actions = mdp.csr(), mdp.n_actions
    n_states = -(-mdp.n_states // len(devices)) * len(devices)
    width = int(np.diff(rows.indptr).max())
    even = width * mdp.n_states * n_actions <= MOST_PADDING * rows.nnz + 1000
    first, last = _sharding(devices, "states"), _sharding(devices, None, "states")

    def states_last(array: Any) -> Any:
        """(A, n) from (S, A)."""
        padding = np.ones((n_states - mdp.n_states, n_actions), array.dtype)
        return jax.device_put(np.ascontiguousarray(np.concatenate([array, padding]).T), last)

    with jax.enable_x64(True):
        transitions = _padded(rows, n_states, n_actions, devices) if even else _segments(rows, len(devices), first)
        mask = action_mask(mdp)
        terminal = np.zeros(n_states, bool)
        terminal[: mdp.n_states] = mdp.terminal
        return Problem(
            transitions,
            states_last(mdp.reward),
            None if mask is None else states_last(mask),
            jax.device_put(terminal, first) if terminal.any() else None,
        )


def _padded(rows: Any, n_states: int, n_actions: int, devices: Sequence[Any]) -> Padded:
    """All rows as long as the longest; the host writes states first, the devices turn them over."""
    length, total = np.diff(rows.indptr), n_states * n_actions
    pairs, width = len(length), int(length.max())
    if rows.nnz == total * width:
        successors, probabilities = rows.indices.astype(np.int32, copy=False), rows.data
    else:
        successors, probabilities = np.zeros((total, width), np.int32), np.zeros((total, width))
        row = np.repeat(np.arange(pairs), length)
        column = np.arange(rows.nnz) - np.repeat(rows.indptr[:-1], length)
        successors[row, column], probabilities[row, column] = rows.indices, rows.data
    split = _sharding(devices, None, None, "states")
    turn = jax.jit(lambda array: array.transpose(1, 2, 0), out_shardings=split)
    shape = (n_states, n_actions, width)
    states_first = _sharding(devices, "states")
    both = (successors.reshape(shape), probabilities.reshape(shape))
    return Padded(*(turn(jax.device_put(array, states_first)) for array in both))


def _segments(rows: Any, parts: int, split: NamedSharding) -> Segments:
    """The entries as they are stored, their number made a multiple of ``parts``."""
    length = np.diff(rows.indptr)
    pairs = np.repeat(np.arange(len(length), dtype=np.int32), length)
    padding = -rows.nnz % parts
    arrays = (
        np.pad(rows.indices.astype(np.int32, copy=False), (0, padding)),
        np.pad(rows.data, (0, padding)),
        np.pad(pairs, (0, padding), mode="edge"),
    )
    return Segments(*(jax.device_put(array, split) for array in arrays))


# --- compiled -------------------------------------------------------------------------------------------------


def _loop(count: int, body: Callable[[Any, Any], Any], carry: Any) -> Any:
    """``carry = body(i, carry)`` for every i."""
    if count > UNROLLED:
        return jax.lax.fori_loop(0, count, body, carry)
    for i in range(count):
        carry = body(i, carry)
    return carry


def _mean(probabilities: Any, successors: Any, values: Any) -> Any:
    """(n,) the sum of p V over the successors, from (K, n): one of them at a time, without a (K, n) array of V."""

    def add(j: Any, total: Any) -> Any:
        return total + probabilities[j] * _at(values, successors[j])

    return _loop(successors.shape[0], add, jnp.zeros(successors.shape[1:], values.dtype))


def _at(values: Any, successors: Any) -> Any:
    return values.at[successors].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _own(parts: Any, action: Any) -> Any:
    """(..., n) what belongs to each state's action, from (A, ..., n).

    Few actions are all read, in order, which is faster than fetching single numbers of each.
    """
    if len(parts) > UNROLLED:
        index = action.reshape(1, *[1] * (parts.ndim - 2), -1)
        return jnp.take_along_axis(parts, index, axis=0)[0]
    return _loop(len(parts), lambda a, own: jnp.where(action == a, parts[a], own), jnp.zeros_like(parts[0]))


def _sums(entries: Any, segments: Any, count: int) -> Any:
    return jax.ops.segment_sum(entries, segments, count, indices_are_sorted=True)


def _best(problem: Problem, gamma: float, values: Any, action: Any) -> tuple[Any, Any, Any]:
    """max Q(V), the first action that attains it, and Q(V) of ``action``: (n,) each."""
    transitions, reward = problem.transitions, problem.reward
    n_actions, n_states = reward.shape
    if isinstance(transitions, Segments):
        successors, probabilities, pairs = transitions
        total = _sums(probabilities * _at(values, successors), pairs, n_states * n_actions)
        means = total.reshape(n_states, n_actions).T

    def compare(a: Any, carry: Any) -> Any:
        best, chosen, kept = carry
        if isinstance(transitions, Segments):
            mean = means[a]
        else:
            mean = _mean(transitions.probabilities[a], transitions.successors[a], values)
        q = reward[a] + gamma * mean
        if problem.allowed is not None:
            q = jnp.where(problem.allowed[a], q, -jnp.inf)
        chosen = jnp.where(q > best, jnp.int32(a), chosen)
        return jnp.maximum(best, q), chosen, jnp.where(action == a, q, kept)

    nothing = jnp.full(n_states, -jnp.inf)
    return _loop(n_actions, compare, (nothing, jnp.zeros(n_states, jnp.int32), nothing))  # type: ignore[no-any-return]


def _spread(n_states: int, residual: Any) -> tuple[Any, Any]:
    """The least and the greatest residual over the first ``n_states``."""
    real = jnp.arange(len(residual)) < n_states
    return jnp.where(real, residual, jnp.inf).min(), jnp.where(real, residual, -jnp.inf).max()


def _unknown(n_states: int, residual: Any) -> Any:
    """0; NaN if a residual of the first ``n_states`` is not finite, which a minimum or maximum may pass over."""
    finite = jnp.isfinite(residual) | (jnp.arange(len(residual)) >= n_states)
    return jnp.where(finite.all(), 0.0, jnp.nan)


def _begin(put: Any, gamma: float, n_states: int, problem: Problem) -> tuple[Any, Any]:
    """Values and actions to start from: see ``first_actions`` and ``first_values`` of capo.tabular.modified."""
    reward = problem.reward
    allowed = reward if problem.allowed is None else jnp.where(problem.allowed, reward, -jnp.inf)
    action, greatest = allowed.argmax(axis=0).astype(jnp.int32), allowed.max(axis=0)
    least = _spread(n_states, greatest)[0] / (1 - gamma)
    values = greatest + gamma * least
    if problem.terminal is not None:
        values = jnp.where(problem.terminal & (least <= 0), 0.0, values)
    return put(values), action


def _improve(
    put: Any, gamma: float, n_states: int, problem: Problem, values: Any, action: Any
) -> tuple[Any, Any, Any]:
    """New values and actions; the greatest and the least residual, and the size of some of the values: (3,)."""
    best, chosen, kept = _best(problem, gamma, values, action)
    action = jnp.where(best > kept, chosen, action)
    low, high = _spread(n_states, best - values)
    unknown = _unknown(n_states, best - values)
    size = jnp.abs(best[:: max(1, len(best) // 64)]).max()
    return put(best), action, jnp.stack([high + unknown, low + unknown, size])


def _sweep(
    put: Any, gamma: float, n_states: int, problem: Problem, values: Any, action: Any, most: Any, goal: Any
) -> Any:
    """Up to ``most`` sweeps with P_pi gathered once."""
    transitions, n_actions = problem.transitions, problem.reward.shape[0]
    mean: Callable[[Any], Any]
    rewards = _own(problem.reward, action)
    if isinstance(transitions, Segments):
        successors, probabilities, pairs = transitions
        states = pairs // n_actions
        weights = jnp.where(pairs % n_actions == action[states], probabilities, 0.0)
        mean = lambda values: _sums(weights * _at(values, successors), states, len(action))
    else:
        weights, successors = _own(transitions.probabilities, action), _own(transitions.successors, action)
        mean = partial(_mean, weights, successors)

    def unfinished(state: Any) -> Any:
        _, count, low, high = state
        return (count < most) & ((count == 0) | (high - low > goal))

    def one(state: Any) -> Any:
        values, count, _, _ = state
        new = rewards + gamma * mean(values)
        return put(new), count + 1, *_spread(n_states, new - values)

    zero = jnp.zeros((), values.dtype)
    return jax.lax.while_loop(unfinished, one, (values, jnp.zeros((), jnp.int32), zero, zero))


def _residuals(gamma: float, n_states: int, problem: Problem, values: Any, action: Any) -> tuple[Any, Any, Any]:
    best, _, kept = _best(problem, gamma, values, action)
    up, unknown = _spread(n_states, best - values)[1], _unknown(n_states, best - values)
    low, high = _spread(n_states, kept - values)
    return up + unknown, low + unknown, high
