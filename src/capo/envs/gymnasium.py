"""A Gymnasium environment as a :class:`HostEnv`: described by its spaces, and copied as often as needed."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np

from capo.arrays import NDArray
from capo.envs.failures import describe_error
from capo.envs.ids import split_id
from capo.envs.masks import HostMasks, check_vector_source, find_source
from capo.envs.protocol import EnvSpec, HostVector, WatchableEnv
from capo.envs.spaces import discrete_actions, observation_encoding
from capo.envs.stepping import SeparateCopies, UserVector, autoreset_mode
from capo.errors import CapoError

MAX_COPIES = 10_000  # of one environment
_VECTOR_ARGUMENTS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")  # only make_vec takes them


def is_gymnasium_object(env: Any) -> bool:
    """Whether ``env`` is an environment or a vector environment of Gymnasium."""
    try:
        import gymnasium
    except ImportError:
        return False
    return isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv)


class GymEnv:
    """A Gymnasium environment with discrete actions; see :class:`HostEnv` for its attributes.

    Made from an id, also ``module:id,argument=value,...`` (as many copies as wanted), a ``gymnasium.Env`` (that
    one object is stepped) or a vector environment (its copies are stepped). Box observations keep their dtype
    (float64 becomes float32), Discrete ones become one-hot and MultiBinary ones booleans. Action masks are taken
    from ``info["action_mask"]`` or a method ``action_masks()``.

    The inner state of a Gymnasium environment cannot be saved: a resumed run starts new episodes, with
    environment seeds that depend on the run's seed and the iteration it resumes at.
    """

    jitted = False
    truncates = True

    def __init__(self, env: Any) -> None:
        import gymnasium

        self._source = env
        self._vector = isinstance(env, gymnasium.vector.VectorEnv)
        one = self._make_one() if isinstance(env, str) else env
        observation_space = one.single_observation_space if self._vector else one.observation_space
        action_space = one.single_action_space if self._vector else one.action_space
        spec = getattr(one, "spec", None)
        self.name: str = env if isinstance(env, str) else spec.id if spec else type(env.unwrapped).__name__
        source = find_source(one, self._vector, owned=isinstance(env, str))
        if isinstance(env, str):
            one.close()
        if self._vector:
            check_vector_source(self.name, source, autoreset_mode(env))
        self.n_actions, self.factors, self.first_action = discrete_actions(self.name, action_space)
        self._encoding = observation_encoding(self.name, observation_space)
        self.observation_shape = self._encoding.shape
        self.observation_dtype = self._encoding.dtype
        self.observation_high = self._encoding.high
        self.raw_shape = self._encoding.raw_shape
        self.masked = source is not None
        self._masks = None if source is None else HostMasks(source, EnvSpec(self))
        self._read_mask = None if self._masks is None else self._masks.of_env

    @property
    def fixed_copies(self) -> int | None:
        if isinstance(self._source, str):
            return None
        return int(self._source.num_envs) if self._vector else 1

    @property
    def vector_copies(self) -> int | None:
        return self.fixed_copies if self._vector else None

    def encode(self, observations: NDArray) -> NDArray:
        return self._encoding.encode(np.asarray(observations))

    def open(self, n: int) -> HostVector:
        if self._vector:
            return UserVector(self._source, self.encode, self.first_action, self._masks)
        if isinstance(self._source, str):
            return self._copies(n)
        return SeparateCopies([self._source], self.encode, self.first_action, self._masks, owned=False)

    def open_for_evaluation(self, n: int) -> HostVector | None:
        import gymnasium

        if isinstance(self._source, gymnasium.vector.VectorWrapper):  # it may change the rewards
            return None
        try:
            return self._copies(n)
        except Exception:  # whatever a user's environment raises when it is made or copied
            return None

    def open_to_watch(self) -> WatchableEnv:
        if not self._vector and not isinstance(self._source, str):
            try:
                env, owned = copy.deepcopy(self._source), True
            except Exception:  # whatever a user's environment raises when it is copied
                env, owned = self._source, False
            return WatchableEnv(env, owned, _renders(env), self._read_mask)
        with contextlib.suppress(Exception):  # if it has no such mode, its observation is drawn instead
            env = self._make_one(render_mode="rgb_array")
            if _renders(env):
                return WatchableEnv(env, True, True, self._read_mask)
            env.close()
        return WatchableEnv(self._make_one(), True, False, self._read_mask)

    def _copies(self, n: int) -> SeparateCopies:
        if n > MAX_COPIES:
            raise CapoError(f"{n:,} copies of {self.name!r} were asked for; the host steps at most {MAX_COPIES:,}")
        envs = [self._make_one() for _ in range(n)]
        return SeparateCopies(envs, self.encode, self.first_action, self._masks)

    def _make_one(self, **more: Any) -> Any:
        """A new single environment; ``more`` are arguments of ``gymnasium.make``."""
        if self._vector:
            return self._make_one_of_vector(more)
        if isinstance(self._source, str):
            name, arguments = split_id(self._source)
            return _make(name, arguments | more)
        return copy.deepcopy(self._source)

    def _make_one_of_vector(self, more: dict[str, Any]) -> Any:
        """One of the environments that the user's vector steps, with the wrappers of each."""
        spec = self._source.unwrapped.spec
        if spec is None:
            raise CapoError("cannot make a single copy: the vector environment has no spec")
        if not self._wrappers_keep_play():
            raise CapoError("cannot make a single copy: the wrappers of the vector environment act on all of them")
        arguments = {key: value for key, value in spec.kwargs.items() if key not in _VECTOR_ARGUMENTS}
        wrappers = spec.kwargs.get("wrappers") or ()
        single = copy.copy(spec)
        single.kwargs = {}
        return _make(single, arguments | more, wrappers)

    def _wrappers_keep_play(self) -> bool:
        """Whether a single environment without the vector's wrappers looks and acts the same.

        That is known of those of Gymnasium that change only rewards and infos.
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


def _make(what: Any, arguments: dict[str, Any], wrappers: Any = ()) -> Any:
    """``gymnasium.make`` of an id or a spec, and ``wrappers`` around it."""
    import gymnasium

    try:
        env = gymnasium.make(what, **arguments)
        for wrapper in wrappers:
            env = wrapper(env)
    except Exception as error:  # also what the environment's own constructor raises
        name = what if isinstance(what, str) else what.id
        raise CapoError(f"Gymnasium cannot make {name!r}: {describe_error(error)}") from error
    return env


def _renders(env: Any) -> bool:
    """Whether an environment draws itself; a missing drawing library may surface as any error."""
    try:
        env.reset(seed=0)
        picture: NDArray = np.asarray(env.render() if env.render_mode == "rgb_array" else None)
    except Exception:
        return False
    return picture.ndim == 3 and picture.shape[2] == 3 and picture.dtype == np.uint8
