"""The five MinAtar games of pgx, jitted, with the original's sticky actions (probability 0.1)."""

from __future__ import annotations

from typing import Any

import jax
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


class MinAtar:
    """A MinAtar game: boolean observations (10, 10, channels), the game's minimal action set.

    There is no time limit (``truncates`` is False); Freeway ends by itself after 2500 steps.
    """

    jitted = True
    truncates = False

    def __init__(self, name: str) -> None:
        try:
            import pgx
        except ImportError as error:
            raise CapoError(f"{name!r} needs the extra 'minatar': pip install 'capo-rl[minatar]'") from error
        self.name = name
        self._game = pgx.make(name)
        self._start = RESETS.get(name, self._game.init)
        self._play = STEPS.get(name, self._game.step)
        start = jax.eval_shape(self._game.init, jax.random.PRNGKey(0))  # pgx itself would play, and compile
        (self.n_actions,) = start.legal_action_mask.shape
        self.observation_shape = start.observation.shape
        self.observation_dtype = np.dtype(np.bool_)
        if name in LOOP_ITERATIONS and jax.default_backend() != "cpu":  # the results are the same
            most = LOOP_ITERATIONS[name]
            self.reset = unroll_loops(self.reset, most)  # type: ignore[method-assign]
            self.step = unroll_loops(self.step, most)  # type: ignore[method-assign]

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        state: Any = self._start(key)
        return state, state.observation

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        state: Any = self._play(env_state, action, key)
        return state, state.observation, state.rewards[0], state.terminated, state.truncated
