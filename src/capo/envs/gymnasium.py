"""A Gymnasium environment as a :class:`HostEnv`: described by its spaces, and copied as often as needed."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np

from capo.arrays import NDArray
from capo.envs.failures import describe_error
from capo.envs.ids import find_wrapper, split_id, wrappers_of
from capo.envs.masks import HostMasks, check_vector_source, find_source
from capo.envs.protocol import EnvSpec, HostVector, WatchableEnv
from capo.envs.sb3 import SB3Vector, is_sb3_vector
from capo.envs.spaces import discrete_actions, observation_encoding
from capo.envs.stepping import SeparateCopies, UserVector, autoreset_mode
from capo.errors import CapoError

MAX_COPIES = 10_000  # of one environment
_VECTOR_ARGUMENTS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")  # only make_vec takes them


def is_gymnasium_object(env: Any) -> bool:
    """Whether ``env`` is an environment or a vector environment of Gymnasium, or a vector of Stable-Baselines3."""
    try:
        import gymnasium
    except ImportError:
        return False
    return isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv) or is_sb3_vector(env)


class GymEnv:
    """A Gymnasium environment with discrete actions; see :class:`HostEnv` for its attributes.

    Made from an id, also ``module:id,argument=value,...`` (as many copies as wanted), a ``gymnasium.Env`` (that
    one object is stepped), a vector environment, also Stable-Baselines3's (its copies are stepped), or a function
    that makes one of these (it is called whenever a new one is needed). How observations are encoded:
    :mod:`capo.envs.spaces`. Action masks are taken from ``info["action_mask"]`` or a method ``action_masks()``.

    The inner state of a Gymnasium environment cannot be saved: a resumed run starts new episodes, with
    environment seeds that depend on the run's seed and the iteration it resumes at.
    """

    jitted = False
    truncates = True

    def __init__(self, env: Any, first: Any = None) -> None:
        """See the class; ``first`` is one that a function made already."""
        self._source = env
        self._is_factory = not isinstance(env, str) and not is_gymnasium_object(env)
        self._vector = False  # known once there is one
        one = first if first is not None else self._make_one() if self.reopens else env
        self._described = one
        self._vector = _is_vector(one)
        observation_space = getattr(one, "single_observation_space", one.observation_space)
        action_space = getattr(one, "single_action_space", one.action_space)
        self.name: str = env if isinstance(env, str) else _name(one)
        source = find_source(one, self._vector, owned=self.reopens)
        if self._vector and not is_sb3_vector(one):
            check_vector_source(self.name, source, autoreset_mode(one))
        if self.reopens:
            one.close()
        self.observation_space = observation_space
        self.n_actions, self.factors, self.first_action = discrete_actions(self.name, action_space)
        self._encoding = observation_encoding(self.name, observation_space)
        self.observation_shape = self._encoding.shape
        self.observation_dtype = self._encoding.dtype
        self.observation_high = self._encoding.high
        self.raw_shape = self._encoding.raw_shape
        self.layout = self._encoding.layout
        self.batched = self._encoding.batched if self._encoding.composite else None
        self.drawable = self._encoding.drawable
        self.leaves = self._encoding.leaves
        self.masked = source is not None
        self._masks = None if source is None else HostMasks(source, EnvSpec(self))
        self._read_mask = None if self._masks is None else self._masks.of_env

    def __repr__(self) -> str:
        seen = f"observations {self.observation_shape} {self.observation_dtype}"
        return f"<{self.name}: {self.n_actions} actions, {seen}>"

    @property
    def reopens(self) -> bool:
        """Whether new environments can be made for every seed: from an id or by a function."""
        return isinstance(self._source, str) or self._is_factory

    @property
    def fixed_copies(self) -> int | None:
        if self._vector:
            return int(self._described.num_envs)
        return None if self.reopens else 1

    @property
    def vector_copies(self) -> int | None:
        return self.fixed_copies if self._vector else None

    def encode(self, observations: Any) -> NDArray:
        return self._encoding.encode(observations)

    def open(self, n: int) -> HostVector:
        if self._vector:
            return self._open_vector()
        if self.reopens:
            return self._copies(n)
        return SeparateCopies([self._source], self._encoding, self.first_action, self._masks, owned=False)

    def _open_vector(self) -> HostVector:
        """The user's vector environment, or a new one."""
        vector = self._source() if self._is_factory else self._source
        kind = SB3Vector if is_sb3_vector(vector) else UserVector
        return kind(vector, self._encoding, self.first_action, self._masks, owned=self._is_factory)

    def open_for_evaluation(self, n: int) -> HostVector | None:
        import gymnasium

        if self._vector and self._is_factory:
            return self._open_vector()
        if isinstance(self._source, gymnasium.vector.VectorWrapper):  # it may change the rewards
            return None
        try:
            return self._copies(n)
        except Exception:  # whatever a user's environment raises when it is made or copied
            return None

    def open_to_watch(self) -> WatchableEnv:
        if not self._vector and not self.reopens:
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
            raise CapoError(
                f"cannot step {n:,} copies of {self.name!r} on the host: at most {MAX_COPIES:,} are supported"
            )
        made = [self._make_one() for _ in range(n)]
        if len({id(env) for env in made}) < n:
            raise CapoError(
                f"the function that makes {self.name!r} returned the same object twice: it must make a "
                "new environment each time; to train on one object, give the object itself"
            )
        return SeparateCopies(made, self._encoding, self.first_action, self._masks)

    def _make_one(self, **more: Any) -> Any:
        """A new single environment; ``more`` are arguments of ``gymnasium.make``."""
        if self._vector:
            return self._make_one_of_vector(more)
        if isinstance(self._source, str):
            name, arguments = split_id(self._source)
            wrappers = [find_wrapper(text) for text in wrappers_of(self._source)]
            return _make(name, arguments | more, wrappers)
        if self._is_factory:
            return self._source()
        return copy.deepcopy(self._source)

    def _make_one_of_vector(self, more: dict[str, Any]) -> Any:
        """One of the environments that the user's vector steps, with the wrappers of each."""
        spec = None if is_sb3_vector(self._described) else self._described.unwrapped.spec
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
        env = self._described
        while isinstance(env, gymnasium.vector.VectorWrapper):
            if type(env) not in harmless:
                return False
            env = env.env
        return True


def _is_vector(env: Any) -> bool:
    import gymnasium

    return isinstance(env, gymnasium.vector.VectorEnv) or is_sb3_vector(env)


def _name(env: Any) -> str:
    """An environment's id, or the name of its class."""
    if is_sb3_vector(env):
        with contextlib.suppress(Exception):  # of one that only looks like Stable-Baselines3's
            return str(env.get_attr("spec")[0].id)
        return type(env).__name__
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec else type(env.unwrapped).__name__


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
