"""pgx: board and card games. In games of several players the others are played inside the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from capo.arrays import Array, PyTree
from capo.envs.suites.common import Adapter, no_arguments
from capo.envs.suites.opponents import Opponent, find, random_opponent
from capo.errors import CapoError


class PgxState(NamedTuple):
    """The state of a game, and whose view it is."""

    game: Any  # of pgx
    player: Array  # () int32, which player the agent is in this episode


class PgxEnv(Adapter):
    """A game of pgx, from the view of one player.

    Which player the agent is, and so who begins, is drawn in every episode. The reward is that player's, and an
    illegal action loses the game, as pgx has it. The other players move inside ``reset`` and ``step``, until it is
    the agent's turn or the game is over.

    Args:
        env: the game.
        opponent: who plays the other players: None for random legal moves, a function (see
            :data:`capo.envs.suites.opponents.Opponent`), an agent, or the path of a run or a saved agent.
        name: of the environment.
    """

    def __init__(self, env: Any, opponent: Any = None, name: str | None = None, truncates: bool = True) -> None:
        name = name or f"pgx:{env.id}"
        self._env, self._players = env, int(env.num_players)
        self.truncates = truncates
        if self._players == 1 and opponent is not None:
            raise CapoError(f"{name!r} is played alone: it takes no opponent")
        self._opponent: Opponent = random_opponent
        if not env.id.startswith("minatar"):  # there every action is always legal
            self.action_mask = self._action_mask
        game = jax.eval_shape(env.init, jax.random.PRNGKey(0))
        super().__init__(name, game.legal_action_mask.shape[0])
        if opponent is not None:
            self._opponent = find(opponent, PgxEnv(env, None, name, truncates))

    def start(self, key: Array) -> tuple[PyTree, PyTree]:
        if self._players == 1:
            game = self._env.init(key)
            return PgxState(game, jnp.int32(0)), game.observation
        begin, seat, others = jax.random.split(key, 3)
        player = jax.random.randint(seat, (), 0, self._players)
        game, _ = self._others_play(others, self._env.init(begin), player)
        return PgxState(game, player), game.observation

    def advance(self, key: Array, env_state: Any, action: Array) -> tuple[PyTree, PyTree, Array, Array, Array]:
        game, player = env_state
        if self._players == 1:
            game = self._env.step(game, action, key)
            reward = game.rewards[0]
        else:
            move, others = jax.random.split(key)
            game = self._env.step(game, action, move)
            own = game.rewards[player]
            game, reward = self._others_play(others, game, player)
            reward = own + reward
        return PgxState(game, player), game.observation, reward, game.terminated, game.truncated

    def _others_play(self, key: Array, game: Any, player: Array) -> tuple[Any, Array]:
        """The game when it is the player's turn again, or over; and what the player was paid until then."""

        def waits(carry: tuple[Any, Array, Array]) -> Array:
            game, _, _ = carry
            turn: Array = (game.current_player != player) & ~game.terminated & ~game.truncated
            return turn

        def move(carry: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
            game, reward, key = carry
            key, choose, chance = jax.random.split(key, 3)
            action = self._opponent(choose, game.observation, game.legal_action_mask)
            game = self._env.step(game, jnp.asarray(action, jnp.int32), chance)
            return game, reward + game.rewards[player], key

        nothing = jnp.zeros((), game.rewards.dtype)
        game, reward, _ = jax.lax.while_loop(waits, move, (game, nothing, key))
        return game, reward

    def _action_mask(self, env_state: Any) -> Array:
        """The legal actions, (A,)."""
        mask: Array = env_state.game.legal_action_mask
        return mask


def names() -> list[str]:
    """The ids of pgx."""
    import pgx

    return list(pgx.available_envs())


def make(name: str, env_id: str, arguments: Mapping[str, Any]) -> PgxEnv:
    """A game by its id; the argument ``opponent`` is ``random`` or a path."""
    import pgx

    arguments = dict(arguments)
    opponent = str(arguments.pop("opponent")) if "opponent" in arguments else None
    no_arguments(name, arguments, ["opponent"])
    # No game of pgx has a time limit of its own; a user's object may.
    return PgxEnv(pgx.make(env_id), opponent, f"pgx:{env_id}", truncates=False)


def adapt(env: Any, opponent: Any = None) -> PgxEnv:
    """The adapter of a game of pgx."""
    return PgxEnv(env, opponent)
