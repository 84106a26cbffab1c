"""Sweeps of modified CAPO on a GPU, or on any devices that jax has, in float64.

The rounds and the certificate are those of :class:`capo.tabular.modified.Sharp` with Jacobi sweeps. Several
devices split the states: each holds its part of the transitions, and all values, which every sweep gathers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from capo.errors import CapoError
from capo.tabular.mdp import MDP, Floats
from capo.tabular.modified import Residuals, action_mask, first_actions, first_values, one_hot

MOST_PADDING = 3.0  # padded successors per real one; beyond it, rows differ too much in length


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


def padded(mdp: MDP, n_states: int) -> tuple[Any, Any, Any, Any]:
    """Successors (n, A, K) and their probabilities, rewards (n, A) and the allowed actions (n, A).

    K is the longest row's length; shorter rows, and the states that make n a multiple of the number of devices,
    are filled up with probability 0.
    """
    rows, n_actions = mdp.csr(), mdp.n_actions
    length = np.diff(rows.indptr)
    width = int(length.max())
    if width * len(length) > MOST_PADDING * rows.nnz + 1000:
        raise CapoError(
            f"device='gpu' pads every row to the longest one's {width} successors, "
            f"{width * len(length) / rows.nnz:.0f} times what is stored: use device='cpu'"
        )
    pairs, total = len(length), n_states * n_actions
    successors, probabilities = np.zeros((total, width), np.int32), np.zeros((total, width))
    if rows.nnz == pairs * width:
        successors[:pairs] = rows.indices.reshape(pairs, width)
        probabilities[:pairs] = rows.data.reshape(pairs, width)
    else:
        row = np.repeat(np.arange(pairs), length)
        column = np.arange(rows.nnz) - np.repeat(rows.indptr[:-1], length)
        successors[row, column], probabilities[row, column] = rows.indices, rows.data
    reward, allowed = np.zeros((n_states, n_actions)), np.ones((n_states, n_actions), bool)
    reward[: mdp.n_states] = mdp.reward
    mask = action_mask(mdp)
    if mask is not None:
        allowed[: mdp.n_states] = mask
    shape = (n_states, n_actions, width)
    return successors.reshape(shape), probabilities.reshape(shape), reward, allowed


class Device:
    """A sharp policy and its values on one or several devices; see :class:`capo.tabular.modified.Sweeper`.

    Args:
        mdp: the MDP.
        devices: all GPUs if None.
    """

    gauss_seidel = False
    share = 1.0

    def __init__(self, mdp: MDP, devices: Sequence[Any] | None = None) -> None:
        self.mdp = mdp
        self._start: tuple[Floats, Any] | None = None  # a start distribution, and the same on the devices
        devices = gpu_devices() if devices is None else list(devices)
        mesh = Mesh(np.array(devices), ("states",))
        split = NamedSharding(mesh, PartitionSpec("states"))  # type: ignore[no-untyped-call]
        everywhere = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        n_states = -(-mdp.n_states // len(devices)) * len(devices)
        action = np.zeros(n_states, np.int32)
        action[: mdp.n_states] = first_actions(mdp)
        first = np.zeros(n_states)
        first[: mdp.n_states] = first_values(mdp, mdp.reward[np.arange(mdp.n_states), action[: mdp.n_states]])
        real = np.arange(n_states) < mdp.n_states
        with jax.enable_x64(True):
            self._arrays = tuple(jax.device_put(part, split) for part in (*padded(mdp, n_states), real))
            self._values, self._action = jax.device_put(first, everywhere), jax.device_put(action, split)
            put = partial(jax.lax.with_sharding_constraint, shardings=everywhere)
            self._improve = jax.jit(partial(_improve, put, mdp.gamma))
            self._sweep = jax.jit(partial(_sweep, put, mdp.gamma))
            self._residuals = jax.jit(partial(_residuals, mdp.gamma))

    def improve(self) -> Residuals:
        with jax.enable_x64(True):
            values, action, found = self._improve(*self._arrays, self._values, self._action)
            self._values, self._action = values, action
            return Residuals(*(float(number) for number in found))

    def sweep(self, most: int, goal: float) -> tuple[int, float, float]:
        with jax.enable_x64(True):
            self._values, count, low, high = self._sweep(*self._arrays, self._values, self._action, most, goal)
            return int(count), float(low), float(high)

    def residuals(self) -> Residuals:
        with jax.enable_x64(True):
            found = self._residuals(*self._arrays, self._values, self._action)
            return Residuals(*(float(number) for number in found))

    def shift(self, amount: float) -> None:
        with jax.enable_x64(True):
            self._values = self._values + amount

    def size(self) -> float:
        return float(np.abs(np.asarray(self._values[:: max(1, len(self._values) // 64)])).max())

    def value_at(self, start: Floats) -> float:
        with jax.enable_x64(True):
            if self._start is None or self._start[0] is not start:
                padding = np.zeros(len(self._values) - len(start))
                self._start = start, jax.device_put(np.concatenate([start, padding]), self._values.sharding)
            return float(self._start[1] @ self._values)

    def wait(self) -> None:
        self._values.block_until_ready()

    def close(self) -> None:
        pass

    @property
    def values(self) -> Floats:
        return np.asarray(self._values)[: self.mdp.n_states]

    @property
    def log_policy(self) -> Floats:
        return one_hot(np.asarray(self._action)[: self.mdp.n_states], self.mdp.n_actions)


# --- compiled -------------------------------------------------------------------------------------------------


def _all_q(gamma: float, successors: Any, probabilities: Any, reward: Any, allowed: Any, values: Any) -> Any:
    """(n, A) Q(V), with minus infinity for actions that a state does not have.

    One successor of every pair at a time: (n, A, K) values are never in memory at once.
    """
    total = sum(probabilities[:, :, j] * values[successors[:, :, j]] for j in range(successors.shape[2]))
    return jnp.where(allowed, reward + gamma * total, -jnp.inf)


def _spread(real: Any, residual: Any) -> tuple[Any, Any]:
    """The least and the greatest residual over the states that are not padding."""
    return jnp.where(real, residual, jnp.inf).min(), jnp.where(real, residual, -jnp.inf).max()


def _improve(
    put: Any, gamma: float, successors: Any, probabilities: Any, reward: Any, allowed: Any, real: Any,
    values: Any, action: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    q = _all_q(gamma, successors, probabilities, reward, allowed, values)
    best = q.max(axis=1)
    kept = jnp.take_along_axis(q, action[:, None], axis=1)[:, 0]
    action = jnp.where(best > kept, q.argmax(axis=1).astype(jnp.int32), action)
    low, high = _spread(real, best - values)
    return put(best), action, (high, low, high)


def _sweep(
    put: Any, gamma: float, successors: Any, probabilities: Any, reward: Any, allowed: Any, real: Any,
    values: Any, action: Any, most: Any, goal: Any,
) -> Any:  # fmt: skip
    """Up to ``most`` sweeps with P_pi gathered once."""
    del allowed
    own = action[:, None]
    weight = jnp.take_along_axis(probabilities, own[:, :, None], axis=1)[:, 0]
    target = jnp.take_along_axis(successors, own[:, :, None], axis=1)[:, 0]
    rewards = jnp.take_along_axis(reward, own, axis=1)[:, 0]

    def unfinished(state: Any) -> Any:
        _, count, low, high = state
        return (count < most) & ((count == 0) | (high - low > goal))

    def one(state: Any) -> Any:
        values, count, _, _ = state
        total = sum(weight[:, j] * values[target[:, j]] for j in range(target.shape[1]))
        new = rewards + gamma * total
        return put(new), count + 1, *_spread(real, new - values)

    zero = jnp.zeros((), values.dtype)
    return jax.lax.while_loop(unfinished, one, (values, jnp.zeros((), jnp.int32), zero, zero))


def _residuals(
    gamma: float,
    successors: Any,
    probabilities: Any,
    reward: Any,
    allowed: Any,
    real: Any,
    values: Any,
    action: Any,
) -> tuple[Any, Any, Any]:
    q = _all_q(gamma, successors, probabilities, reward, allowed, values)
    kept = jnp.take_along_axis(q, action[:, None], axis=1)[:, 0]
    low, high = _spread(real, kept - values)
    return _spread(real, q.max(axis=1) - values)[1], low, high
