"""Collecting rollouts whose observations stay on the device: one frame per step goes there, stacks are made there.

An environment with a stack of k frames would otherwise move and copy every frame k times, several times over. What
is collected is what :class:`capo.neural.learners.host.Collector` collects and
:func:`capo.neural.parts.replay.pack_rollouts` packs, bit for bit.

The environments may be in two groups that take turns: while one is stepped, the device chooses actions for the
other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, NDArray
from capo.envs.protocol import HostStep, HostVector
from capo.neural.parts import replay
from capo.neural.parts.replay import ReplaySpec, Rollout

# (stack, frame, fresh, turn) -> (new stack, actions, log-probabilities), all of one group and on the device
Act = Callable[[Array, Array, NDArray, int], tuple[Array, Array, Array]]


class EpisodeCount:
    """Returns and lengths of the episodes of n environments."""

    def __init__(self, n: int) -> None:
        self._return, self._length = np.zeros(n), np.zeros(n, np.int64)
        self._returns: list[float] = []
        self._lengths: list[int] = []

    def add(self, first: int, moved: HostStep) -> None:
        """Count a step of the environments from ``first`` on."""
        who = first + np.flatnonzero(moved.valid)
        self._return[who] += moved.reward[moved.valid]
        self._length[who] += 1
        for i in who[moved.ended[moved.valid]]:
            self._returns.append(float(self._return[i]))
            self._lengths.append(int(self._length[i]))
            self._return[i], self._length[i] = 0.0, 0

    def take(self) -> dict[str, float]:
        """Number, mean return and mean length of the episodes that ended since the last call."""
        returns, lengths = self._returns, self._lengths
        self._returns, self._lengths = [], []
        return {
            "episodes": float(len(returns)),
            "episode_return": float(np.mean(returns)) if returns else float("nan"),
            "episode_length": float(np.mean(lengths)) if lengths else float("nan"),
        }


class FrameCollector:
    """Steps groups of environments in turn, and gives one rollout of T steps of each, packed, on the device.

    Args:
        vectors: the groups; none of them skips steps. Their observations are single frames.
        spec: shapes of the rollouts of all environments together.
        seed: of the environments.
    """

    def __init__(self, vectors: Sequence[HostVector], spec: ReplaySpec, seed: int) -> None:
        self._vectors, self._spec = list(vectors), spec
        sizes = [vector.n for vector in vectors]
        self._first = [sum(sizes[:i]) for i in range(len(sizes))]
        self.steps = 0  # of all environments, since the last complete iteration
        shape = spec.observation_shape
        self._stacks = [jnp.zeros((n, *shape), spec.observation_dtype) for n in sizes]
        starts = zip(vectors, self._first, strict=True)
        self._frames = [jax.device_put(vector.reset(seed + first)) for vector, first in starts]
        self._fresh = [np.ones(n, np.bool_) for n in sizes]
        self._pending: list[NDArray | None] = [None for _ in sizes]
        self._count = EpisodeCount(sum(sizes))
        self._assemble = jax.jit(self._assembled)

    def collect(self, act: Act) -> tuple[Rollout, dict[str, float]]:
        """One rollout of every environment with the actions of ``act``, and the episodes that ended."""
        groups, length, n = len(self._vectors), self._spec.length, self._spec.n_envs
        self.steps = 0
        rows: list[dict[str, list[Array]]] = [{} for _ in range(groups)]
        reward, terminated, truncated = (np.zeros((n, length), dtype) for dtype in (np.float32, bool, bool))

        def finish(group: int, step: int) -> None:
            moved = self._receive(group)
            self.steps += self._vectors[group].n
            where = slice(self._first[group], self._first[group] + self._vectors[group].n)
            reward[where, step], terminated[where, step] = moved.reward, moved.terminated
            truncated[where, step] = moved.truncated
            self._count.add(self._first[group], moved)
            self._fresh[group] = moved.terminated | moved.truncated
            frame = self._frames[group] = jax.device_put(moved.obs)
            # They differ only where an episode ended, which is rare: most steps move a single array.
            _append(rows[group], successor=jax.device_put(moved.successor) if moved.ended.any() else frame)

        for step in range(length):
            for group in range(groups):
                if step:
                    finish(group, step - 1)
                frame, fresh = self._frames[group], self._fresh[group]
                stack, action, log_mu = act(self._stacks[group], frame, fresh, step * groups + group)
                self._stacks[group] = stack
                if not step:
                    _append(rows[group], first=stack)
                _append(rows[group], frame=frame, action=action, log_mu=log_mu)
                self._send(group, np.asarray(action))
        for group in range(groups):
            finish(group, length - 1)
        return self._assemble(rows, reward, terminated, truncated), self._count.take()

    def _send(self, group: int, action: NDArray) -> None:
        send = getattr(self._vectors[group], "send", None)
        if send is None:
            self._pending[group] = action
        else:
            send(action)

    def _receive(self, group: int) -> HostStep:
        vector: Any = self._vectors[group]
        action, self._pending[group] = self._pending[group], None
        moved: HostStep = vector.receive() if action is None else vector.step(action)
        return moved

    def _assembled(
        self, rows: list[dict[str, list[Array]]], reward: Array, terminated: Array, truncated: Array
    ) -> Rollout:
        """The rollouts (n_envs, T), packed, from what the groups gave step by step."""
        width = self._spec.frame_shape[-1] if self._spec.frames > 1 else 0

        def one(group: dict[str, list[Array]]) -> tuple[Array, Array, Array]:
            oldest = [group["first"][0][..., i * width : (i + 1) * width] for i in range(self._spec.frames - 1)]
            obs = jnp.stack([*oldest, *group["frame"], *group["successor"]], axis=1)
            return obs, jnp.stack(group["action"], axis=1), jnp.stack(group["log_mu"], axis=1)

        obs, action, log_mu = (jnp.concatenate(parts) for parts in zip(*map(one, rows), strict=True))
        return Rollout(replay.pack_frames(self._spec, obs), action, reward, terminated, truncated, log_mu)


def next_stack(spec: ReplaySpec, stack: Array, frame: Array, fresh: Array) -> Array:
    """The stacks (n, *observation_shape) after frames (n, *frame_shape); these alone where ``fresh`` (n,)."""
    if spec.frames == 1:
        return frame
    filled = jnp.concatenate([frame] * spec.frames, axis=-1)
    moved = jnp.concatenate([stack[..., frame.shape[-1] :], frame], axis=-1)
    return jnp.where(fresh.reshape(-1, *(1,) * (frame.ndim - 1)), filled, moved)


def _append(lists: dict[str, list[Array]], **new: Array) -> None:
    for name, array in new.items():
        lists.setdefault(name, []).append(array)
