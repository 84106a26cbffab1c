"""Gymnasium environments: their spaces checked and encoded, several copies stepped together on the host.

All autoreset modes end in the same :class:`HostStep`: the observation to act on next, the observation the
step led to, and whether the step was one at all (in the next-step mode, the call after an episode's end only
resets and its transition means nothing).
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from capo.errors import CapoError

NDArray = np.ndarray[Any, Any]


class EnvironmentFailed(CapoError):
    """A Gymnasium environment raised an error, or gave a reward or an observation that is no number."""


@contextlib.contextmanager
def blame(call: str) -> Iterator[None]:
    """Turn whatever a user's environment raises into an :class:`EnvironmentFailed` that names the ``call``."""
    try:
        yield
    except EnvironmentFailed:
        raise
    except Exception as error:
        raise EnvironmentFailed(f"its {call} raised {_words(error)}") from error


@contextlib.contextmanager
def naming(where: str, kept: str = "") -> Iterator[None]:
    """Say ``where`` an environment failed, and what was ``kept``; the environment's own error stays the cause."""
    try:
        yield
    except EnvironmentFailed as error:
        raise EnvironmentFailed(f"{where}: {error}{kept and f'. {kept}'}") from error.__cause__


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class HostStep(NamedTuple):
    """One step of n environments, observations encoded."""

    obs: NDArray  # (n, ...) what to act on next
    successor: NDArray  # (n, ...) what the step led to: the final observation where the episode ended
    reward: NDArray  # (n,) float32
    terminated: NDArray  # (n,) bool
    truncated: NDArray  # (n,) bool, false where terminated
    valid: NDArray  # (n,) bool, false where the call only reset the environment


class HostEnvs(Protocol):
    """Several environments stepped together, reset by themselves at an episode's end.

    Attributes:
        n: how many.
        skips: whether a call may reset one of them instead of stepping it.
    """

    n: int
    skips: bool

    def reset(self, seed: int) -> NDArray: ...

    def step(self, action: NDArray) -> HostStep: ...

    def restart(self, who: NDArray) -> NDArray: ...

    def close(self) -> None: ...


class GymEnv:
    """A Gymnasium environment with discrete actions.

    Made from an id, also ``module:id,argument=value,...`` (as many copies as wanted), a ``gymnasium.Env`` (that
    one object is stepped) or a vector environment (its copies are stepped). Box observations keep their dtype
    (float64 becomes float32), Discrete ones become one-hot and MultiBinary ones booleans.

    The inner state of a Gymnasium environment cannot be saved: a resumed run starts new episodes, with
    environment seeds that depend on the run's seed and the iteration it resumes at.
    """

    jitted = False
    truncates = True

    def __init__(self, env: Any) -> None:
        import gymnasium

        self._source = env
        self._vector = isinstance(env, gymnasium.vector.VectorEnv)
        probe = self._make_one() if isinstance(env, str) else env
        spaces = ("single_observation_space", "single_action_space") if self._vector else _SPACES
        observation_space, action_space = (getattr(probe, name) for name in spaces)
        spec = getattr(probe, "spec", None)
        self.name: str = env if isinstance(env, str) else spec.id if spec else type(env.unwrapped).__name__
        if isinstance(env, str):
            probe.close()
        if not isinstance(action_space, gymnasium.spaces.Discrete):
            raise CapoError(
                f"{self.name!r} has the action space {action_space}, but CAPO needs a finite number of "
                "actions (Discrete): wrap the environment so that it offers a list of actions to choose from"
            )
        self.n_actions = int(action_space.n)
        self._first_action = int(action_space.start)
        self._encoding = _encoding(self.name, observation_space)
        self.observation_shape = self._encoding.shape
        self.observation_dtype = self._encoding.dtype
        # What the networks divide bytes by: images have 255, a board of 0 and 1 has 1.
        bounds = np.asarray(getattr(observation_space, "high", 255))
        self.observation_high = max(int(bounds.max()), 1) if self.observation_dtype == np.uint8 else 255
        self.raw_shape: tuple[int, ...] = tuple(observation_space.shape or ())

    @staticmethod
    def recognises(env: Any) -> bool:
        """Whether ``env`` is an object of Gymnasium."""
        try:
            import gymnasium
        except ImportError:
            return False
        return isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv)

    @staticmethod
    def knows(name: str) -> bool:
        """Whether ``name`` is a Gymnasium id, with or without a module before it and arguments behind it."""
        try:
            import gymnasium
        except ImportError:
            return False
        if name.startswith("MinAtar/") and name not in gymnasium.registry:
            _register_minatar()
        module, _, name = _split(name)[0].rpartition(":")
        if module:
            try:
                importlib.import_module(module)  # registers its environments
            except Exception as error:  # also what the module itself raises
                raise CapoError(f"{module}:{name}: importing {module} raised {_words(error)}") from error
        return name in gymnasium.registry

    @property
    def fixed_copies(self) -> int | None:
        """How many environments there are, or None if as many as wanted can be made."""
        if isinstance(self._source, str):
            return None
        return int(self._source.num_envs) if self._vector else 1

    @property
    def vector_copies(self) -> int | None:
        """How many environments a given vector environment steps; None if none was given."""
        return self.fixed_copies if self._vector else None

    def encode(self, observations: NDArray) -> NDArray:
        """Raw observations (N, *raw_shape) as the networks take them: (N, *observation_shape)."""
        return self._encoding.encode(np.asarray(observations))

    def open(self, n: int) -> HostEnvs:
        """The environments to train on: ``n`` copies of an id, else the ones given."""
        if self._vector:
            return _GivenVector(self._source, self.encode, self._first_action)
        if isinstance(self._source, str):
            return _Copies([self._make_one() for _ in range(n)], self.encode, self._first_action)
        return _Copies([self._source], self.encode, self._first_action, ours=False)

    def open_for_evaluation(self, n: int) -> HostEnvs | None:
        """``n`` separate copies to evaluate on, or None if none can be made of what was given."""
        import gymnasium

        if isinstance(self._source, gymnasium.vector.VectorWrapper):  # a reward of its own counts
            return None
        try:
            return _Copies([self._make_one() for _ in range(n)], self.encode, self._first_action)
        except Exception:  # whatever a user's environment raises when it is made or copied
            return None

    def open_to_watch(self) -> Watched:
        """One environment to look at, which draws itself if it can."""
        if not self._vector and not isinstance(self._source, str):
            try:
                env, ours = copy.deepcopy(self._source), True
            except Exception:  # whatever a user's environment raises when it is copied
                env, ours = self._source, False
            return Watched(env, ours, _draws(env))
        try:
            env = self._make_one(render_mode="rgb_array")
        except Exception:  # one that has no such mode; without it the observation is drawn
            return Watched(self._make_one(), True, False)
        if _draws(env):
            return Watched(env, True, True)
        env.close()
        return Watched(self._make_one(), True, False)

    def _make_one(self, **more: Any) -> Any:
        import gymnasium

        wrappers: Any = ()
        made_of: Any
        if isinstance(self._source, str):
            made_of, arguments = _split(self._source)
        elif not self._vector:
            return copy.deepcopy(self._source)
        else:
            if self._source.unwrapped.spec is None:
                raise CapoError("of this vector environment no single one can be made: it does not say how")
            if not self._plays_as_one():
                raise CapoError("of this vector environment no single one can be made: its wrappers are for all")
            made_of = copy.copy(self._source.unwrapped.spec)  # with the wrappers of each, if they say which
            arguments = {key: value for key, value in made_of.kwargs.items() if key not in _OF_VECTORS}
            wrappers = made_of.kwargs.get("wrappers") or ()
            made_of.kwargs = {}
        try:
            env = gymnasium.make(made_of, **{**arguments, **more})
            for wrapper in wrappers:
                env = wrapper(env)
        except Exception as error:  # also what the environment's own constructor raises
            name = made_of if isinstance(made_of, str) else made_of.id
            raise CapoError(f"Gymnasium cannot make {name!r}: {_words(error)}") from error
        return env

    def _plays_as_one(self) -> bool:
        """Whether one of the environments a vector is made of, without its wrappers, looks and acts the same.

        Gymnasium's own that change rewards and infos only are known to.
        """
        import gymnasium
        from gymnasium.wrappers import vector

        rewards = (vector.NormalizeReward, vector.ClipReward, vector.TransformReward)
        harmless = (*rewards, vector.RecordEpisodeStatistics, vector.DictInfoToList)
        env = self._source
        while isinstance(env, gymnasium.vector.VectorWrapper):
            if type(env) not in harmless:
                return False
            env = env.env
        return True


_SPACES = ("observation_space", "action_space")
_OF_VECTORS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")  # arguments of make_vec alone


def _split(name: str) -> tuple[str, dict[str, Any]]:
    """An id and the arguments behind it.

    >>> _split("FrozenLake-v1,map_name=8x8,is_slippery=false")
    ('FrozenLake-v1', {'map_name': '8x8', 'is_slippery': False})
    """
    name, *parts = name.split(",")
    arguments = {}
    for part in parts:
        key, equals, text = part.partition("=")
        if not equals or not key.isidentifier():
            raise CapoError(f"{part!r}: behind a Gymnasium id come arguments, as in FrozenLake-v1,map_name=8x8")
        try:
            arguments[key] = json.loads(text)
        except ValueError:
            arguments[key] = {"True": True, "False": False, "None": None}.get(text, text)
    return name, arguments


class Watched(NamedTuple):
    """An environment to look at."""

    env: Any
    ours: bool  # made for this, and to be closed
    draws: bool  # has pictures of its own

    def picture(self) -> NDArray | None:
        """Its own picture (H, W, 3) of bytes, if it draws any."""
        return np.asarray(self.env.render()) if self.draws else None


def _draws(env: Any) -> bool:
    """Whether an environment draws itself; a missing drawing library may surface as anything."""
    try:
        env.reset(seed=0)
        picture: NDArray = np.asarray(env.render() if env.render_mode == "rgb_array" else None)
    except Exception:
        return False
    return picture.ndim == 3 and picture.shape[2] == 3 and picture.dtype == np.uint8


def gymnasium_ids() -> list[str]:
    """All registered ids; empty if Gymnasium is not installed."""
    try:
        import gymnasium
    except ImportError:
        return []
    return sorted(gymnasium.registry)


def _register_minatar() -> None:
    try:
        importlib.import_module("minatar.gym").register_envs()
    except ImportError as error:
        raise CapoError("MinAtar/ ids need the package 'minatar': pip install minatar") from error


class _Encoding(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    encode: Callable[[NDArray], NDArray]


def _encoding(name: str, space: Any) -> _Encoding:
    """How observations of a space become arrays for the networks."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        size, start = int(space.n), int(space.start)
        eye = np.eye(size, dtype=np.bool_)
        return _Encoding((size,), np.dtype(np.bool_), partial(_one_hot, name, eye, start))
    if isinstance(space, spaces.MultiBinary):
        return _Encoding(tuple(space.shape), np.dtype(np.bool_), lambda obs: obs.astype(np.bool_))
    if isinstance(space, spaces.Box):
        keep = space.dtype in (np.bool_, np.uint8, np.float32)
        dtype: np.dtype[Any] = np.dtype(space.dtype if keep else np.float32)
        shape = tuple(space.shape) or (1,)
        return _Encoding(shape, dtype, lambda obs: obs.astype(dtype).reshape(len(obs), *shape))
    raise CapoError(
        f"{name!r} has the observation space {space}; Box, Discrete and MultiBinary are supported: "
        "flatten it with gymnasium.wrappers.FlattenObservation"
    )


def _one_hot(name: str, eye: NDArray, start: int, obs: NDArray) -> NDArray:
    with np.errstate(invalid="ignore"):  # nan becomes some integer, and differs from it
        index = obs.astype(np.int64) - start
    wrong = (index < 0) | (index >= len(eye)) | (obs != index + start)
    if wrong.any():
        raise CapoError(
            f"{name!r}: {obs[wrong][0]!s} is no observation of it, these are the integers from {start} to "
            f"{start + len(eye) - 1}"
        )
    return eye[index]


def _checked(moved: HostStep) -> HostStep:
    """The step itself, if what it paid and showed are numbers."""
    wrong = moved.reward[moved.valid & ~np.isfinite(moved.reward)]
    if wrong.size:
        raise EnvironmentFailed(f"its step gave the reward {wrong[0]:g}, which is not a finite number")
    _seen("step", moved.successor)
    if moved.obs is not moved.successor:
        _seen("reset", moved.obs)
    return moved


def _seen(call: str, obs: NDArray) -> NDArray:
    """The observations themselves, if they are numbers."""
    wrong = obs[~np.isfinite(obs)] if obs.dtype.kind == "f" else obs[:0]
    if wrong.size:
        raise EnvironmentFailed(
            f"its {call} gave an observation with {wrong.flat[0]:g} in it, which is not a finite number"
        )
    return obs


class _Copies:
    """Single environments stepped one after another; a finished episode is reset at once."""

    skips = False

    def __init__(
        self, envs: list[Any], encode: Callable[[NDArray], NDArray], first_action: int, ours: bool = True
    ) -> None:
        self._envs, self._encode, self._first_action, self._ours = envs, encode, first_action, ours
        self.n = len(envs)

    def reset(self, seed: int) -> NDArray:
        with blame("reset"):
            obs = np.stack([np.array(env.reset(seed=seed + i)[0]) for i, env in enumerate(self._envs)])
            return _seen("reset", self._encode(obs))

    def step(self, action: NDArray) -> HostStep:
        successors, observations = [], []
        reward = np.zeros(self.n, np.float32)
        terminated, truncated = np.zeros(self.n, np.bool_), np.zeros(self.n, np.bool_)
        with blame("step"):
            for i, env in enumerate(self._envs):
                obs, reward[i], terminated[i], truncated[i], _ = env.step(int(action[i]) + self._first_action)
                successors.append(np.array(obs))  # an environment may write the next one into the same array
                if terminated[i] or truncated[i]:
                    with blame("reset"):
                        obs = env.reset()[0]
                observations.append(np.array(obs))
            successor, obs = self._encode(np.stack(successors)), self._encode(np.stack(observations))
        return _checked(
            HostStep(obs, successor, reward, terminated, truncated & ~terminated, np.ones(self.n, np.bool_))
        )

    def restart(self, who: NDArray) -> NDArray:
        """Start new episodes where ``who`` (n,) says so; the observations (n, ...) of these copies."""
        with blame("reset"):
            obs = np.stack([np.array(self._envs[i].reset()[0]) for i in np.flatnonzero(who)])
            return _seen("reset", self._encode(obs))

    def close(self) -> None:
        """Close what was made here; an environment that the user made is the user's to close."""
        for env in self._envs if self._ours else []:
            with contextlib.suppress(Exception):  # one that failed may fail here too, and what it gave is ours
                env.close()


class _GivenVector:
    """A vector environment that the user made, in whichever autoreset mode."""

    def __init__(self, vector: Any, encode: Callable[[NDArray], NDArray], first_action: int) -> None:
        self._vector, self._encode, self._first_action = vector, encode, first_action
        self.n = int(vector.num_envs)
        mode = (vector.metadata or {}).get("autoreset_mode", "NextStep")
        self._mode = str(getattr(mode, "value", mode))  # an enum in Gymnasium 1.1 and later
        if self._mode not in ("NextStep", "SameStep", "Disabled"):
            raise CapoError(f"unknown autoreset mode {mode!r} of {vector!r}")
        self.skips = self._mode == "NextStep"
        self._only_resets = np.zeros(self.n, np.bool_)

    def reset(self, seed: int) -> NDArray:
        self._only_resets[:] = False
        with blame("reset"):
            return _seen("reset", self._encode(self._vector.reset(seed=seed)[0]))

    def step(self, action: NDArray) -> HostStep:
        with blame("step"):
            return _checked(self._step(action))

    def _step(self, action: NDArray) -> HostStep:
        obs, reward, terminated, truncated, info = self._vector.step(action + self._first_action)
        terminated, truncated = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        done = terminated | truncated
        obs = self._encode(obs)
        successor = obs
        valid = ~self._only_resets
        if self._mode == "NextStep":
            self._only_resets = done
        elif done.any():
            successor = obs.copy()
            if self._mode == "SameStep":
                final = info["final_obs"] if "final_obs" in info else info["final_observation"]
                for i in np.flatnonzero(done):
                    successor[i] = self._encode(np.asarray(final[i])[None])[0]
            else:
                obs = self._encode(self._vector.reset(options={"reset_mask": done})[0])
        return HostStep(obs, successor, np.asarray(reward, np.float32), terminated, truncated & ~terminated, valid)

    def restart(self, who: NDArray) -> NDArray:
        """As above; Gymnasium's vector environments reset single copies in every mode."""
        self._only_resets = self._only_resets & ~who
        with blame("reset"):
            return self._encode(self._vector.reset(options={"reset_mask": who})[0])[who]

    def close(self) -> None:
        """The user made it and closes it."""
