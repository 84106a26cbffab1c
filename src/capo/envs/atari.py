"""Atari games by ale-py's own vector environment: C++ threads, grey frames of 84x84 pixels.

Each of the agent's steps is four frames of the game with the same action; the observation is the brighter of the
last two, pixel by pixel. A game begins with up to 30 steps without an action, and with the fire button where the
game waits for it. Rewards are the game's own: the settings ``reward_clip`` and ``frame_stack`` say what is learned
from, and the preset ``atari`` sets both.

In training the loss of a life ends what is learned from as if the game were over, but the game continues, and the
scores of the training curve are those of whole games. Evaluations play whole games, and know nothing of lives.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from capo.arrays import NDArray
from capo.envs.failures import describe_error, environment_call
from capo.envs.ids import split_id
from capo.envs.layout import Layout
from capo.envs.protocol import FirstAction, HostStep, HostVector, WatchableEnv
from capo.errors import CapoError, unknown_name
from capo.provenance import usable_cores

PREFIX = "ALE/"
SIZE = 84  # pixels of an observation's side
_ZOOM = 3  # of the picture to look at

# What may follow a name, as in ALE/Pong-v5,repeat_action_probability=0.25; all but the first are ale-py's.
_ARGUMENTS: dict[str, Any] = {
    "episodic_life": True,
    "repeat_action_probability": 0.0,
    "full_action_space": False,
    "frameskip": 4,
    "noop_max": 30,
    "use_fire_reset": True,
    "max_num_frames_per_episode": 108_000,
}


def is_atari(name: str) -> bool:
    """Whether a name is that of an Atari game: ``ALE/Pong-v5``, perhaps with arguments."""
    return name.startswith(PREFIX)


class AtariEnv:
    """An Atari game; see :class:`capo.envs.HostEnv` for its attributes.

    The state of the games can't be saved: a resumed run starts new ones.

    Args:
        name: an id of ale-py, such as ``ALE/Pong-v5``, and arguments behind it:
            ``ALE/Pong-v5,episodic_life=false,repeat_action_probability=0.25``.
    """

    jitted = False
    splits = True
    truncates = True
    masked = False
    factors: tuple[int, ...] = ()
    first_action: FirstAction = 0
    observation_shape: tuple[int, ...] = (SIZE, SIZE, 1)
    observation_dtype: np.dtype[Any] = np.dtype(np.uint8)
    observation_high = 255
    raw_shape: tuple[int, ...] = (SIZE, SIZE, 1)
    layout: Layout | None = None
    fixed_copies: int | None = None
    vector_copies: int | None = None

    def __init__(self, name: str) -> None:
        self.name = name
        plain, given = split_id(name)
        for key, value in given.items():
            if key not in _ARGUMENTS:
                raise unknown_name(f"argument of {plain}", key, _ARGUMENTS)
            usual = _ARGUMENTS[key]
            if isinstance(value, bool) != isinstance(usual, bool) or not isinstance(value, int | float):
                raise CapoError(f"{name}: {key}={value!r} must be a value such as {usual!r}")
        self._game = _rom(plain)
        self._arguments = _ARGUMENTS | given
        self._lives = bool(self._arguments.pop("episodic_life"))
        one = self._make(1)
        self.n_actions = int(one.single_action_space.n)
        one.close()

    def encode(self, observations: NDArray) -> NDArray:
        return np.asarray(observations, np.uint8)

    def open(self, n: int) -> HostVector:
        return AtariVector(self._make(n), self._lives)

    def open_for_evaluation(self, n: int) -> HostVector | None:
        return AtariVector(self._make(n), lives=False)

    def open_to_watch(self) -> WatchableEnv:
        return WatchableEnv(_Watched(AtariVector(self._make(1), lives=False)), owned=True, renders=True)

    def _make(self, n: int) -> Any:
        from ale_py.vector_env import AtariVectorEnv

        try:
            return AtariVectorEnv(
                self._game,
                n,
                num_threads=min(n, usable_cores()),  # of those that this process may use: not ale-py's default
                stack_num=1,
                img_height=SIZE,
                img_width=SIZE,
                reward_clipping=False,
                autoreset_mode="SameStep",
                **self._arguments,
            )
        except Exception as error:
            raise CapoError(f"ale-py cannot make {self.name!r}: {describe_error(error)}") from error


class AtariVector:
    """A :class:`HostVector` around ale-py's.

    Args:
        vector: resets a game in the step that ends it, and gives its last observation as ``final_obs``.
        lives: whether the loss of a life terminates what is learned from.
    """

    skips = False

    def __init__(self, vector: Any, lives: bool) -> None:
        self._vector, self._ends_with_life = vector, lives
        self.n = int(vector.num_envs)
        self._lives = np.zeros(self.n, np.int64)

    def reset(self, seed: int) -> NDArray:
        with environment_call("reset"):
            obs, info = self._vector.reset(seed=seed)
        self._lives = np.array(info["lives"], np.int64)
        return _channels_last(obs)

    def step(self, action: NDArray) -> HostStep:
        self.send(action)
        return self.receive()

    def send(self, action: NDArray) -> None:
        """Let the threads begin a step with actions (n,); :meth:`receive` waits for its end."""
        with environment_call("step"):
            self._vector.send(np.asarray(action, np.int64))

    def receive(self) -> HostStep:
        """The step that :meth:`send` began."""
        with environment_call("step"):
            obs, reward, terminated, truncated, info = self._vector.recv()
        terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        over = terminated | truncated
        obs = successor = _channels_last(obs)
        if over.any():
            successor = obs.copy()
            successor[over] = _channels_last(info["final_obs"])[over]
        lives = np.array(info["lives"], np.int64)
        if self._ends_with_life:
            terminated = terminated | ((lives < self._lives) & ~over)
        self._lives = lives
        valid = np.ones(self.n, np.bool_)
        return HostStep(
            obs, successor, np.array(reward, np.float32), terminated, truncated & ~terminated, valid, over
        )

    def restart(self, who: NDArray) -> NDArray:
        with environment_call("reset"):
            obs, info = self._vector.reset(options={"reset_mask": np.asarray(who, np.bool_)})
        self._lives = np.array(info["lives"], np.int64)
        return _channels_last(obs)[who]

    def close(self) -> None:
        self._vector.close()


class _Watched:
    """One game to look at, with the methods of a ``gymnasium.Env`` that a film needs."""

    def __init__(self, vector: AtariVector) -> None:
        self._vector = vector

    def reset(self, seed: int | None = None) -> tuple[NDArray, dict[str, Any]]:
        self._frame = self._vector.reset(seed or 0)[0]
        return self._frame, {}

    def step(self, action: int) -> tuple[NDArray, float, bool, bool, dict[str, Any]]:
        moved = self._vector.step(np.array([action]))
        self._frame = moved.successor[0]
        return self._frame, float(moved.reward[0]), bool(moved.terminated[0]), bool(moved.truncated[0]), {}

    def render(self) -> NDArray:
        """The newest observation, larger, in shades of grey (H, W, 3)."""
        return np.repeat(self._frame.repeat(_ZOOM, 0).repeat(_ZOOM, 1), 3, axis=2)

    def close(self) -> None:
        self._vector.close()


def _channels_last(obs: NDArray) -> NDArray:
    """ale-py's (n, 1, H, W), which it may write to again, as a new (n, H, W, 1)."""
    return np.array(np.moveaxis(obs, 1, -1), np.uint8, order="C")


def names() -> list[str]:
    """The ids of all games.

    Raises:
        CapoError: if ale-py is not installed.
    """
    return sorted(_games("Atari"))


def _games(wanted: str) -> dict[str, Any]:
    """Gymnasium's entries of all games by id; ``wanted`` is what they are asked for, for the message."""
    try:
        import ale_py
        import ale_py.vector_env
        import gymnasium
    except ImportError as error:
        raise CapoError(f"{wanted!r} needs the extra 'atari': pip install 'capo-rl[atari]' ({error})") from error
    gymnasium.register_envs(ale_py)
    return {key: spec for key, spec in gymnasium.registry.items() if is_atari(key)}


def _rom(name: str) -> str:
    """The name of the game's file, of an id without arguments.

    Raises:
        CapoError: if ale-py is not installed or has no such game.
    """
    games = _games(name)
    if name not in games:
        raise unknown_name("Atari game", name, games)
    return str(games[name].kwargs["game"])
