"""Environments of either kind with a time limit, or whose observations are the last few frames side by side.

A stack of k frames is joined along the last axis, the oldest first: (H, W, C) becomes (H, W, k C). At the start of
an episode it holds the first frame k times, so nothing of the episode before is seen. That is also what lets a
replay of rollouts store each frame once: a stack follows from the frames and from where episodes ended.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, NDArray, PyTree
from capo.envs.protocol import EnvSpec, HostStep, HostVector, WatchableEnv, is_jitted
from capo.errors import CapoError


def wrap(env: Any, frame_stack: int = 1, time_limit: int = 0) -> Any:
    """An environment with episodes of at most ``time_limit`` steps (0: no limit), seen ``frame_stack`` at a time.

    Raises:
        CapoError: if its observations can't be stacked.
    """
    jitted = is_jitted(env)
    if time_limit:
        env = TimeLimit(env, time_limit) if jitted else HostTimeLimit(env, time_limit)
    if frame_stack > 1:
        spec = EnvSpec(env)
        if spec.layout is not None or not spec.observation_shape or spec.frame_stack > 1:
            raise CapoError(
                f"{spec.name!r}: frame_stack={frame_stack} needs observations that are a single array "
                "with at least one axis, not stacked already, and no action mask: leave frame_stack at 1"
            )
        env = FrameStack(env, frame_stack) if jitted else HostFrameStack(env, frame_stack)
    return env


class _Wrapper:
    """Everything that is not defined here is the inner environment's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # asked for before there is one, when it is copied
            raise AttributeError(name)
        return getattr(self.inner, name)


# --- inside jax -----------------------------------------------------------------------------------------------


class _JittedWrapper(_Wrapper):
    """A jitted environment whose state is a pair, the first of which is the inner environment's."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in ("action_mask", "picture"):
            return found
        return lambda env_state: found(env_state[0])


class TimeLimit(_JittedWrapper):
    """A jitted environment whose episodes are truncated after ``limit`` steps."""

    truncates = True

    def __init__(self, inner: Any, limit: int) -> None:
        super().__init__(inner)
        self.limit = limit

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        env_state, obs = self.inner.reset(key)
        return (env_state, jnp.int32(0)), obs

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        inside, count = env_state
        inside, obs, reward, terminated, truncated = self.inner.step(key, inside, action)
        count = count + 1
        return (inside, count), obs, reward, terminated, truncated | (count >= self.limit)


class FrameStack(_JittedWrapper):
    """A jitted environment whose observations are its last ``frames`` observations."""

    def __init__(self, inner: Any, frames: int) -> None:
        super().__init__(inner)
        self.frame_stack = frames
        self.observation_shape = stacked_shape(tuple(inner.observation_shape), frames)

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        env_state, obs = self.inner.reset(key)
        stack = jnp.concatenate([obs] * self.frame_stack, axis=-1)
        return (env_state, stack), stack

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        inside, stack = env_state
        inside, obs, reward, terminated, truncated = self.inner.step(key, inside, action)
        stack = jnp.concatenate([stack[..., obs.shape[-1] :], obs], axis=-1)
        return (inside, stack), stack, reward, terminated, truncated


# --- on the host ----------------------------------------------------------------------------------------------


class _HostWrapper(_Wrapper):
    """A :class:`HostEnv` whose vectors, and the environment to watch, are wrapped too."""

    def open(self, n: int) -> HostVector:
        return self._vector(self.inner.open(n))

    def open_for_evaluation(self, n: int) -> HostVector | None:
        vector = self.inner.open_for_evaluation(n)
        return None if vector is None else self._vector(vector)

    def open_to_watch(self) -> WatchableEnv:
        watched: WatchableEnv = self.inner.open_to_watch()
        return watched._replace(env=self._single(watched.env))

    def _vector(self, vector: HostVector) -> HostVector:
        raise NotImplementedError

    def _single(self, env: Any) -> Any:
        raise NotImplementedError


class HostTimeLimit(_HostWrapper):
    """An environment of the host whose episodes are truncated after ``limit`` steps."""

    truncates = True

    def __init__(self, inner: Any, limit: int) -> None:
        super().__init__(inner)
        self.limit = limit

    def _vector(self, vector: HostVector) -> HostVector:
        return LimitedVector(vector, self.limit)

    def _single(self, env: Any) -> Any:
        return _LimitedSingle(env, self.limit)


class LimitedVector(_Wrapper):
    """A :class:`HostVector` that starts new episodes where old ones reach the limit."""

    n: int
    skips: bool
    send = None  # its steps are not split

    def __init__(self, vector: HostVector, limit: int) -> None:
        super().__init__(vector)
        self._limit = limit
        self._steps = np.zeros(vector.n, np.int64)

    def reset(self, seed: int) -> NDArray:
        self._steps[:] = 0
        first: NDArray = self.inner.reset(seed)
        return first

    def step(self, action: NDArray) -> HostStep:
        moved: HostStep = self.inner.step(action)
        self._steps[moved.valid] += 1
        over = moved.ended
        late = moved.valid & ~over & (self._steps >= self._limit)
        self._steps[over | late] = 0
        if not late.any():
            return moved
        obs = moved.obs.copy()
        obs[late] = self.inner.restart(late)
        truncated = moved.truncated | (late & ~moved.terminated)
        return moved._replace(obs=obs, truncated=truncated, over=over | late)

    def restart(self, who: NDArray) -> NDArray:
        self._steps[who] = 0
        first: NDArray = self.inner.restart(who)
        return first

    def close(self) -> None:
        self.inner.close()


class HostFrameStack(_HostWrapper):
    """An environment of the host whose observations are its last ``frames`` observations."""

    def __init__(self, inner: Any, frames: int) -> None:
        super().__init__(inner)
        self.frame_stack = frames
        self.observation_shape = stacked_shape(tuple(inner.observation_shape), frames)
        self.raw_shape = stacked_shape(tuple(inner.raw_shape), frames)

    def encode(self, observations: NDArray) -> NDArray:
        """Stacks of raw observations (N, *raw_shape), each of their frames encoded."""
        frames = np.split(np.asarray(observations), self.frame_stack, axis=-1)
        shape = tuple(self.inner.raw_shape)
        return np.concatenate([self.inner.encode(frame.reshape(-1, *shape)) for frame in frames], axis=-1)

    def _vector(self, vector: HostVector) -> HostVector:
        return StackedVector(vector, self.frame_stack)

    def _single(self, env: Any) -> Any:
        return _StackedSingle(env, self.frame_stack)


class StackedVector(_Wrapper):
    """A :class:`HostVector` that gives its last ``frames`` observations side by side."""

    n: int
    skips: bool
    send = None  # its steps are not split

    def __init__(self, vector: HostVector, frames: int) -> None:
        super().__init__(vector)
        self._frames = frames
        self._stack = np.zeros(0)  # (n, ...) what is acted on next; never written to once it is given away

    def reset(self, seed: int) -> NDArray:
        self._stack = self._filled(self.inner.reset(seed))
        return self._stack

    def step(self, action: NDArray) -> HostStep:
        moved: HostStep = self.inner.step(action)
        width = moved.successor.shape[-1]
        successor = np.concatenate([self._stack[..., width:], moved.successor], axis=-1)
        # Where learning stops, nothing from before is seen afterwards, even if the game continues.
        fresh = moved.terminated | moved.truncated | ~moved.valid
        obs = successor
        if fresh.any():
            obs = successor.copy()
            obs[fresh] = self._filled(moved.obs[fresh])
        self._stack = obs
        return moved._replace(obs=obs, successor=successor)

    def restart(self, who: NDArray) -> NDArray:
        first = self._filled(self.inner.restart(who))
        self._stack = self._stack.copy()
        self._stack[who] = first
        return first

    def close(self) -> None:
        self.inner.close()

    def _filled(self, obs: NDArray) -> NDArray:
        """Stacks of the first observations (m, ...) of episodes."""
        return np.concatenate([obs] * self._frames, axis=-1)


class _LimitedSingle(_Wrapper):
    """One environment to watch, with a time limit."""

    def __init__(self, env: Any, limit: int) -> None:
        super().__init__(env)
        self._limit, self._steps = limit, 0

    def reset(self, **arguments: Any) -> Any:
        self._steps = 0
        return self.inner.reset(**arguments)

    def step(self, action: int) -> tuple[Any, Any, bool, bool, Any]:
        obs, reward, terminated, truncated, info = self.inner.step(action)
        self._steps += 1
        return obs, reward, terminated, truncated or self._steps >= self._limit, info


class _StackedSingle(_Wrapper):
    """One environment to watch, whose observations are stacks of raw ones."""

    def __init__(self, env: Any, frames: int) -> None:
        super().__init__(env)
        self._frames = frames

    def reset(self, **arguments: Any) -> tuple[NDArray, Any]:
        obs, info = self.inner.reset(**arguments)
        self._stack = np.concatenate([np.atleast_1d(obs)] * self._frames, axis=-1)
        return self._stack, info

    def step(self, action: int) -> tuple[NDArray, Any, bool, bool, Any]:
        obs, reward, terminated, truncated, info = self.inner.step(action)
        newest = np.atleast_1d(obs)
        self._stack = np.concatenate([self._stack[..., newest.shape[-1] :], newest], axis=-1)
        return self._stack, reward, terminated, truncated, info


def stacked_shape(shape: tuple[int, ...], frames: int) -> tuple[int, ...]:
    """The shape of a stack of observations; those without an axis get one.

    >>> stacked_shape((84, 84, 1), 4), stacked_shape((), 3)
    ((84, 84, 4), (3,))
    """
    return (*shape[:-1], shape[-1] * frames) if shape else (frames,)
