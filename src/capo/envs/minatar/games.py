"""The five MinAtar games of pgx, jitted, with the original's sticky actions (probability 0.1)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, PyTree
from capo.envs.minatar import asterix, freeway, seaquest
from capo.envs.minatar.unrolled import unroll_loops
from capo.errors import CapoError

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
# Games that are faster on an accelerator with their loops unrolled, and the most iterations of a loop whose length
# is not known in advance: Space Invaders searches ten columns and rows.
LOOP_ITERATIONS = {"minatar-space_invaders": 10}
# Games with a reset and a step of our own, on every device: without loops, and the same to the bit as pgx's.
RESETS = {"minatar-asterix": asterix.reset, "minatar-freeway": freeway.reset, "minatar-seaquest": seaquest.reset}
STEPS = {"minatar-asterix": asterix.step, "minatar-freeway": freeway.step, "minatar-seaquest": seaquest.step}
NAMES = tuple(f"minatar-{game}" for game in GAMES)
FULL = "-full"  # behind a name: all six actions of MinAtar, of which those that a game does not use do nothing
FULL_NAMES = tuple(f"{name}{FULL}" for name in NAMES)


class MinAtar:
    """A MinAtar game: boolean observations (10, 10, channels), the game's minimal action set.

    With ``-full`` behind the name it has all six actions (none, left, up, right, down, fire). There is no time
    limit (``truncates`` is False); Freeway ends by itself after 2500 steps.
    """

    jitted = True
    truncates = False

    def __init__(self, name: str) -> None:
        try:
            import pgx
        except ImportError as error:
            raise CapoError(f"{name!r} needs the extra 'minatar': pip install 'capo-rl[minatar]'") from error
        self.name = name
        game, self._full = name.removesuffix(FULL), name.endswith(FULL)
        self._game = pgx.make(game)
        self._start = RESETS.get(game, self._game.init)
        self._play = STEPS.get(game, self._game.step)
        start = jax.eval_shape(self._game.init, jax.random.PRNGKey(0))  # pgx itself would play, and compile
        used = np.asarray(self._game.minimal_action_set).tolist()
        # Of each of the six actions, its number among those that the game uses; 0 does nothing in every game.
        self._numbers = np.array([used.index(action) if action in used else 0 for action in range(6)], np.int32)
        self.n_actions = len(self._numbers) if self._full else start.legal_action_mask.shape[0]
        self.observation_shape = start.observation.shape
        self.observation_dtype = np.dtype(np.bool_)
        if game in LOOP_ITERATIONS and jax.default_backend() != "cpu":  # the results are the same
            most = LOOP_ITERATIONS[game]
            self.reset = unroll_loops(self.reset, most)  # type: ignore[method-assign]
            self.step = unroll_loops(self.step, most)  # type: ignore[method-assign]

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        state: Any = self._start(key)
        return state, state.observation

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        if self._full:
            action = jnp.asarray(self._numbers)[action]
        state: Any = self._play(env_state, action, key)
        return state, state.observation, state.rewards[0], state.terminated, state.truncated
