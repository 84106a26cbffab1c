"""Ready-made MDPs: the paper's (bandit, chain, grid maze) and common benchmarks (garnet, forest, random, slippery
grid). Public as ``capo.mdps``; :func:`parse` makes one from a text such as ``chain:10,9``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from capo.checks import between, whole
from capo.errors import CapoError, unknown_name
from capo.tabular.mdp import MDP, as_floats

_MOVES = ((-1, 0), (0, -1), (0, 1), (1, 0))  # top, left, right, down


def bandit(rewards: npt.ArrayLike = (10.0, 9.9, 9.9, 0.0), gamma: float = 0.5) -> MDP:
    """A multi-armed bandit: one state, one action per arm. Advantages do not depend on gamma.

    The default is the paper's four-armed bandit.
    """
    arms = as_floats("rewards=", rewards, "must be a vector of numbers")
    if arms.ndim != 1 or arms.size == 0:
        raise CapoError(f"rewards of shape {arms.shape}: a bandit needs a vector with at least one arm")
    name = f"bandit:{','.join(map(_number, arms))}" if arms.size <= 8 else f"bandit of {arms.size} arms"
    return MDP(np.ones((1, arms.size, 1)), arms[None], gamma, name=name)


def chain(n: int = 10, up_actions: int = 1, stochastic: bool = False, gamma: float = 0.99) -> MDP:
    """The paper's chain: states S_0..S_n, start S_1; going up ends with 0.1, going right reaches 100 at S_n.

    Args:
        n: index of the last state.
        up_actions: how many actions go up; 1 in the paper's text, n - 1 in its authors' code.
        stochastic: going right moves 0 to 3 states, each with probability 1/4.
        gamma: discount.
    """
    n, up_actions = whole("n", n, 2), whole("up_actions", up_actions)
    transition = np.zeros((n + 1, up_actions + 1, n + 1))
    reward = np.zeros((n + 1, up_actions + 1))
    for s in range(1, n):
        transition[s, :up_actions, 0] = 1
        reward[s, :up_actions] = 0.1
        for step in (0, 1, 2, 3) if stochastic else (1,):
            probability = 0.25 if stochastic else 1.0
            transition[s, up_actions, min(s + step, n)] += probability
            reward[s, up_actions] += 100 * probability * (s + step >= n)
    name = _spelled(chain, 2, n, up_actions, stochastic)
    return MDP(transition, reward, gamma, np.eye(n + 1)[1], terminal=[0, n], name=name)


def grid(
    size: int = 5,
    wall: Literal["horizontal", "vertical"] = "vertical",
    distance_reward: bool = False,
    random_start: bool = True,
    gamma: float = 0.99,
    seed: int = 0,
) -> MDP:
    """The paper's maze: a ``size`` x ``size`` grid with a wall that has one gap; the goal is at the bottom right.

    The actions move up, left, right and down; moving into the wall or the border has no effect. A step costs 1,
    or, with ``distance_reward``, the Manhattan distance to the goal; the goal pays 100 and ends the episode.

    Args:
        size: side of the grid, at least 4.
        wall: the wall's direction; its position and its gap come from ``seed``.
        distance_reward: see above.
        random_start: start uniformly over the free cells; otherwise at the top left.
        gamma: discount.
        seed: for the wall's position and gap.
    """
    size = whole("size", size, 4)
    if wall not in ("horizontal", "vertical"):
        raise unknown_name("wall", wall, ("horizontal", "vertical"))
    rng = np.random.default_rng(whole("seed", seed, 0))
    line, gap = int(rng.integers(1, size - 1)), int(rng.integers(0, size))
    blocked = np.zeros((size, size), bool)
    blocked[line, np.arange(size) != gap] = True
    blocked = blocked.T if wall == "vertical" else blocked
    n_states = int((~blocked).sum())
    number, goal = np.full((size, size), -1), n_states - 1
    number[~blocked] = np.arange(n_states)
    transition = np.zeros((n_states, 4, n_states))
    reward = np.zeros((n_states, 4))
    for row, column in np.argwhere(~blocked):
        s = number[row, column]
        for action, (down, right) in enumerate(_MOVES):
            r, c = row + down, column + right
            inside = 0 <= r < size and 0 <= c < size and not blocked[r, c]
            target = number[r, c] if inside else s
            transition[s, action, target] = 1
            cost = (size - 1 - row) + (size - 1 - column) if distance_reward else 1
            reward[s, action] = 100 if target == goal else -cost
    start = np.append(np.ones(goal) / goal, 0.0) if random_start else np.eye(n_states)[0]
    name = _spelled(grid, 1, size, wall, distance_reward, random_start, seed)
    return MDP(transition, reward, gamma, start, terminal=[goal], name=name)


def slippery_grid(size: int = 10, slip: float = 0.2, gamma: float = 0.99) -> MDP:
    """A ``size`` x ``size`` sparse grid for scale: S = size², four moves, goal at the bottom right.

    With probability ``slip`` a move goes to one of the two sides instead; moving into the border has no effect. A
    step costs 1 until the goal is reached.
    """
    size = whole("size", size, 2)
    slip = between("slip", slip, 0, 1)
    n_states = size * size
    row, column = np.divmod(np.arange(n_states), size)
    # Where each of the four moves leads from every state: (4, S).
    targets = np.stack(
        [np.clip(row + d, 0, size - 1) * size + np.clip(column + r, 0, size - 1) for d, r in _MOVES]
    )
    sideways = ((1, 2), (0, 3), (0, 3), (1, 2))  # the two moves perpendicular to each
    probability = np.empty((n_states, 4, 3))
    target = np.empty((n_states, 4, 3), np.int32)
    for action, (one, other) in enumerate(sideways):
        target[:, action] = targets[[action, one, other]].T
        probability[:, action] = (1 - slip, slip / 2, slip / 2)
    pairs = np.repeat(np.arange(n_states * 4, dtype=np.int64), 3)
    transition = sp.coo_array((probability.ravel(), (pairs, target.ravel())), shape=(n_states * 4, n_states))
    reward = np.full((n_states, 4), -1.0)
    return MDP(transition, reward, gamma, terminal=[n_states - 1], name=_spelled(slippery_grid, 1, size, slip))


def garnet(n_states: int = 100, n_actions: int = 4, branching: int = 5, gamma: float = 0.95, seed: int = 0) -> MDP:
    """A Garnet MDP: each pair leads to ``branching`` random states with random probabilities; rewards
    are uniform in [0, 1)."""
    n_states, n_actions = whole("n_states", n_states), whole("n_actions", n_actions)
    branching = whole("branching", branching)
    if branching > n_states:
        raise CapoError(f"branching={branching} must be at most n_states={n_states}")
    rng = np.random.default_rng(whole("seed", seed, 0))
    n_pairs = n_states * n_actions
    targets = _distinct(rng, n_states, n_pairs, branching)
    cuts = np.sort(rng.random((n_pairs, branching - 1)), axis=1)
    probability = np.diff(cuts, axis=1, prepend=0.0, append=1.0)
    pairs = np.repeat(np.arange(n_pairs), branching)
    matrix = sp.coo_array((probability.ravel(), (pairs, targets.ravel())), shape=(n_pairs, n_states))
    transition: Any = matrix if n_states > 2000 else matrix.toarray().reshape(n_states, n_actions, n_states)
    reward = rng.random((n_states, n_actions))
    return MDP(transition, reward, gamma, name=_spelled(garnet, 3, n_states, n_actions, branching, seed))


def _distinct(rng: np.random.Generator, n: int, rows: int, count: int) -> npt.NDArray[np.int64]:
    """``count`` different numbers below ``n`` in each of so many rows, all sets of them equally likely."""
    if n <= 2000:  # the first of a random order of all
        return rng.permuted(np.tile(np.arange(n), (rows, 1)), axis=1)[:, :count]
    if count**2 > n:  # most draws would have a number twice
        return np.stack([rng.choice(n, count, replace=False) for _ in range(rows)])
    found, again = rng.integers(n, size=(rows, count)), np.arange(rows)
    while again.size:
        drawn = np.sort(found[again], axis=1)
        again = again[(drawn[:, 1:] == drawn[:, :-1]).any(axis=1)]
        found[again] = rng.integers(n, size=(again.size, count))
    return found


def random(n_states: int = 10, n_actions: int = 4, gamma: float = 0.95, seed: int = 0) -> MDP:
    """Dense transitions, uniform on the simplex; rewards are uniform in [0, 1)."""
    n_states, n_actions = whole("n_states", n_states), whole("n_actions", n_actions)
    rng = np.random.default_rng(whole("seed", seed, 0))
    weights = rng.standard_exponential((n_states, n_actions, n_states))
    transition = weights / weights.sum(axis=2, keepdims=True)
    name = _spelled(random, 2, n_states, n_actions, seed)
    return MDP(transition, rng.random((n_states, n_actions)), gamma, name=name)


def forest(n_states: int = 3, fire: float = 0.1, old: float = 4.0, cut: float = 2.0, gamma: float = 0.95) -> MDP:
    """Forest management: wait (the forest ages, or burns down with probability ``fire``) or cut it.

    Waiting pays ``old`` in the oldest state. Cutting pays ``cut`` in the oldest state, nothing in the youngest,
    and 1 in between.
    """
    n_states = whole("n_states", n_states, 2)
    fire = between("fire", fire, 0, 1)
    transition = np.zeros((n_states, 2, n_states))
    for s in range(n_states):
        transition[s, 0, 0] += fire
        transition[s, 0, min(s + 1, n_states - 1)] += 1 - fire
        transition[s, 1, 0] = 1
    reward = np.zeros((n_states, 2))
    reward[-1, 0] = old
    reward[1:, 1] = 1
    reward[-1, 1] = cut
    return MDP(transition, reward, gamma, np.eye(n_states)[0], name=_spelled(forest, 1, n_states, fire, old, cut))


_MAKERS: tuple[Callable[..., MDP], ...] = (bandit, chain, grid, slippery_grid, garnet, random, forest)
NAMES = {maker.__name__.removesuffix("_grid"): maker for maker in _MAKERS}


def parse(text: str, gamma: float | None = None) -> MDP:
    """The MDP that a short text names: ``chain:10``, ``garnet:100,4,5``, ``FrozenLake-v1``, ``file.npz``.

    What follows the colon are the function's first arguments in order. The ``name`` of an MDP made here is such a
    text, except for bandits with more than 8 arms; ``rescale_rewards`` and ``with_start`` do not change it.

    Args:
        text: the name.
        gamma: discount; by default each kind has its own, Gymnasium's 0.99, and a file keeps the one it has.
    """
    if not isinstance(text, str):
        raise CapoError(f"mdps.parse: {text!r} is not text; give a name such as 'chain:10' or 'file.npz'")
    if text.endswith(".npz"):
        mdp = MDP.load(text)
        return mdp if gamma is None or gamma == mdp.gamma else mdp.with_gamma(gamma)
    name, _, arguments = text.partition(":")
    if name in NAMES:
        return _call(name, arguments, {} if gamma is None else {"gamma": gamma})
    if "-v" in name and not arguments:
        return MDP.from_gymnasium(name, 0.99 if gamma is None else gamma)
    if text and Path(text).exists():
        raise CapoError(f"{text} is not an .npz file: write one with mdp.save(...)")
    raise unknown_name("MDP", name, [*NAMES, "FrozenLake-v1", "Taxi-v4", "CliffWalking-v1"])


def _call(name: str, arguments: str, options: dict[str, Any]) -> MDP:
    function = NAMES[name]
    parameters = _parameters(function)
    parts = arguments.split(",") if arguments else []
    if name == "bandit" and parts:
        return bandit([_parsed(name, arguments, part) for part in parts], **options)
    if len(parts) > (most := len(parameters)):
        raise CapoError(f"{name} takes at most {most} numbers ({', '.join(parameters)}), got {arguments}")
    given: dict[str, Any] = {
        parameter: part.strip() if parameter == "wall" else _parsed(name, arguments, part)
        for parameter, part in zip(parameters, parts, strict=False)
    }
    for parameter in ("stochastic", "distance_reward", "random_start"):
        if given.get(parameter, 0) not in (0, 1):
            raise CapoError(f"{name}:{arguments}: {parameter} must be 0 or 1")
    try:
        return function(**given, **options)
    except CapoError:
        raise
    except (MemoryError, ValueError) as error:  # what numpy raises for an array that is too large
        raise CapoError(f"{name}:{arguments} does not fit in memory: {error}") from None


def _parsed(name: str, arguments: str, part: str) -> int | float:
    try:
        number = float(part)
    except ValueError:
        rule = "the part after the colon must be numbers separated by commas"
        raise CapoError(f"{name}:{arguments}: {rule}") from None
    if not math.isfinite(number):
        raise CapoError(f"{name}:{arguments}: the numbers must be finite")
    if part.strip().lstrip("+-").isdecimal():  # beyond 2^53 a float is another number
        return int(part)
    return int(number) if number == int(number) else number


def _parameters(function: Callable[..., MDP]) -> dict[str, Any]:
    """The parameters that may follow the colon, with their defaults."""
    return {key: p.default for key, p in inspect.signature(function).parameters.items() if key != "gamma"}


def _spelled(function: Callable[..., MDP], least: int, *values: Any) -> str:
    """The text from which :func:`parse` makes this MDP; it always has the first ``least`` arguments."""
    usual = _parameters(function).values()
    changed = [i for i, (value, default) in enumerate(zip(values, usual, strict=True), 1) if value != default]
    name = next(name for name, known in NAMES.items() if known is function)
    return f"{name}:{','.join(map(_number, values[: max([least, *changed])]))}"


def _number(value: Any) -> str:
    """The shortest text that reads back as the same number."""
    if isinstance(value, str):
        return value
    return str(int(value)) if isinstance(value, int | np.integer) else repr(float(value)).removesuffix(".0")
