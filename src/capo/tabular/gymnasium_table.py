"""The transition table of Gymnasium's toy-text environments as the arguments of an MDP."""

from __future__ import annotations

import difflib
import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp

from capo.errors import CapoError


def read(env: Any, make_options: dict[str, Any]) -> tuple[Any, Any, Any, Any, str]:
    """Transition, reward, start, terminal and name of an environment or of the one with this id."""
    if isinstance(env, str):
        env = _make(env, make_options)
    inner = getattr(env, "unwrapped", env)
    table = getattr(inner, "P", None)
    if table is None:
        raise CapoError(
            f"{env} has no transition table `P`: only Gymnasium's toy-text environments "
            "(FrozenLake-v1, Taxi-v4, CliffWalking-v1) can be converted to an MDP"
        )
    _check_table(table)
    start = np.asarray(getattr(inner, "initial_state_distrib", np.ones(len(table))), np.float64)
    name = env.spec.id if getattr(env, "spec", None) is not None else type(inner).__name__
    return *_arrays(table, start / start.sum()), name


def _make(name: str, options: dict[str, Any]) -> Any:
    try:
        import gymnasium
    except ImportError:
        raise CapoError("Gymnasium is not installed: pip install 'capo-rl[gym]'") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about newer versions of the same environment
            return gymnasium.make(name, **options)
    except gymnasium.error.Error as error:
        why = str(error).splitlines()[0]
        if isinstance(error, gymnasium.error.UnregisteredEnv):
            near = difflib.get_close_matches(name, list(gymnasium.registry), n=3, cutoff=0.4)
            why += f"; did you mean {' or '.join(near)}?" if near else ""
        raise CapoError(f"no Gymnasium environment {name!r}: {why}") from error
    except TypeError as error:
        raise CapoError(
            f"Gymnasium environment {name!r} does not accept the options {options}: {error}"
        ) from error


def _check_table(table: Any) -> None:
    """Raise if states or actions are not numbered from 0, or if a transition leads outside the table."""
    n_states = len(table)
    n_actions = len(table[0]) if n_states and 0 in table else 0
    if n_states == 0 or n_actions == 0:
        raise CapoError("the transition table is empty: an MDP needs at least one state and one action")
    for s in range(n_states):
        if s not in table or sorted(table[s]) != list(range(n_actions)):
            raise CapoError(
                f"the transition table must have actions 0..{n_actions - 1} at state {s}, as at state 0"
            )
        for a, outcomes in table[s].items():
            for outcome in outcomes:
                if not 0 <= outcome[1] < n_states:
                    raise CapoError(f"state {s}, action {a} of the transition table leads to state {outcome[1]}")


def _arrays(table: Any, start: Any) -> tuple[Any, Any, Any, Any]:
    """Transition, reward, start and terminal from P[s][a] = [(probability, target, reward, terminated), ...]."""
    n_states, n_actions = len(table), len(table[0])
    flat = [
        (s * n_actions + a, float(probability), int(target), float(reward), bool(ended))
        for s in range(n_states)
        for a in range(n_actions)
        for probability, target, reward, ended in table[s][a]
    ]
    pair, probability, target, reward, ended = (np.array(column) for column in zip(*flat, strict=True))

    # States in mid-episode: reached from the start by transitions that do not end the episode.
    source = pair // n_actions
    alive = start > 0
    while True:
        grown = alive.copy()
        grown[target[alive[source] & ~ended & (probability > 0)]] = True
        if (grown == alive).all():
            break
        alive = grown
    ends = np.zeros(n_states, bool)
    ends[target[ended]] = True
    ends &= ~alive
    extra = bool((ended & ~ends[target]).any())
    size = n_states + extra
    target = np.where(ended & ~ends[target], n_states, target)
    transition = sp.coo_array((probability, (pair, target)), shape=(size * n_actions, size))
    rewards = np.bincount(pair, probability * reward, minlength=size * n_actions).reshape(size, n_actions)
    matrix: Any = transition.toarray().reshape(size, n_actions, size) if size <= 1000 else transition
    return matrix, rewards, np.append(start, [0.0] * extra), np.append(ends, [True] * extra).astype(bool)
