"""Ready-made MDPs: the paper's (bandit, chain, grid maze) and those of the field (garnet, forest, random,
a slippery grid of any size). Public as ``capo.mdps``; :func:`parse` turns ``chain:10,9`` into one."""

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
from capo.tabular.mdp import MDP

_MOVES = ((-1, 0), (0, -1), (0, 1), (1, 0))  # top, left, right, down


def bandit(rewards: npt.ArrayLike = (10.0, 9.9, 9.9, 0.0), gamma: float = 0.5) -> MDP:
    """A multi-armed bandit: one state, one action an arm. Advantages do not depend on gamma.

    The default is the paper's four-armed one.
    """
    try:
        arms = np.asarray(rewards, np.float64)
    except (TypeError, ValueError):
        raise CapoError(f"rewards={rewards!r} must be a vector of numbers") from None
    if arms.ndim != 1 or arms.size == 0:
        raise CapoError(f"rewards of shape {arms.shape}: a bandit needs a vector with at least one arm")
    return MDP(
        np.ones((1, arms.size, 1)),
        arms[None],
        gamma,
        name=f"bandit:{','.join(map(_number, arms))}" if arms.size <= 8 else f"bandit of {arms.size} arms",
    )


def chain(n: int = 10, up_actions: int = 1, stochastic: bool = False, gamma: float = 0.99) -> MDP:
    """The paper's chain: states S_0..S_n, start S_1; going up ends with 0.1, going right reaches 100 at S_n.

    Args:
        n: number of the last state.
        up_actions: how many actions go up; 1 is the paper's text, n - 1 its authors' program.
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
    start = np.eye(n + 1)[1]
    return MDP(
        transition, reward, gamma, start, terminal=[0, n], name=_spelled(chain, 2, n, up_actions, stochastic)
    )


def grid(
    size: int = 5,
    wall: Literal["horizontal", "vertical"] = "vertical",
    distance_reward: bool = False,
    random_start: bool = True,
    gamma: float = 0.99,
    seed: int = 0,
) -> MDP:
    """The paper's maze: ``size`` x ``size`` with one wall that has one gap, goal at the bottom right.

    Moves go top, left, right, down and stay put against the wall and the border. A step costs 1, or, with
    ``distance_reward``, the Manhattan distance to the goal; the goal pays 100 and ends the episode.

    Args:
        size: side of the grid, at least 4.
        wall: the wall's direction; its line and the gap in it come from ``seed``.
        distance_reward: see above.
        random_start: start uniformly over the free cells; otherwise at the top left.
        gamma: discount.
        seed: of the wall's line and gap.
    """
    size = whole("size", size, 4)
    if wall not in ("horizontal", "vertical"):
        raise unknown_name("wall", wall, ("horizontal", "vertical"))
    rng = np.random.default_rng(whole("seed", seed, 0))
    line, gap = int(rng.integers(1, size - 1)), int(rng.integers(0, size))
    blocked = np.zeros((size, size), bool)
    if wall == "vertical":
        blocked[np.arange(size) != gap, line] = True
    else:
        blocked[line, np.arange(size) != gap] = True
    number = np.full((size, size), -1)
    number[~blocked] = np.arange((~blocked).sum())
    n_states = int((~blocked).sum())
    goal = n_states - 1
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
    start = np.ones(n_states)
    start[goal] = 0
    start = start / start.sum() if random_start else np.eye(n_states)[0]
    return MDP(
        transition,
        reward,
        gamma,
        start,
        terminal=[goal],
        name=_spelled(grid, 1, size, wall, distance_reward, random_start, seed),
    )


def slippery_grid(size: int = 10, slip: float = 0.2, gamma: float = 0.99) -> MDP:
    """A ``size`` x ``size`` sparse grid for scale: S = size², four moves, goal at the bottom right.

    A move goes astray with probability ``slip``, half to either side; against the border it stays put. A step
    costs 1 until the goal is reached.
    """
    size = whole("size", size, 2)
    slip = between("slip", slip, 0, 1)
    n_states = size * size
    row, column = np.divmod(np.arange(n_states), size)
    # Where each of the four moves leads from every state: (4, S).
    targets = np.stack(
        [np.clip(row + d, 0, size - 1) * size + np.clip(column + r, 0, size - 1) for d, r in _MOVES]
    )
    sideways = ((1, 2), (0, 3), (0, 3), (1, 2))  # the two moves at a right angle to each
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
    uniform in [0, 1)."""
    n_states, n_actions = whole("n_states", n_states), whole("n_actions", n_actions)
    branching = whole("branching", branching)
    if branching > n_states:
        raise CapoError(f"branching={branching} must be at most n_states={n_states}")
    rng = np.random.default_rng(whole("seed", seed, 0))
    n_pairs = n_states * n_actions
    # The first `branching` of a random order of all states; for large S, draws are repeated until distinct.
    if n_states <= 2000:
        targets = rng.permuted(np.tile(np.arange(n_states), (n_pairs, 1)), axis=1)[:, :branching]
    else:
        targets = np.stack([rng.choice(n_states, branching, replace=False) for _ in range(n_pairs)])
    cuts = np.sort(rng.random((n_pairs, branching - 1)), axis=1)
    probability = np.diff(cuts, axis=1, prepend=0.0, append=1.0)
    pairs = np.repeat(np.arange(n_pairs), branching)
    matrix = sp.coo_array((probability.ravel(), (pairs, targets.ravel())), shape=(n_pairs, n_states))
    transition: Any = matrix if n_states > 2000 else matrix.toarray().reshape(n_states, n_actions, n_states)
    reward = rng.random((n_states, n_actions))
    return MDP(transition, reward, gamma, name=_spelled(garnet, 3, n_states, n_actions, branching, seed))


def random(n_states: int = 10, n_actions: int = 4, gamma: float = 0.95, seed: int = 0) -> MDP:
    """Dense transitions, uniform on the simplex; rewards uniform in [0, 1)."""
    n_states, n_actions = whole("n_states", n_states), whole("n_actions", n_actions)
    rng = np.random.default_rng(whole("seed", seed, 0))
    weights = rng.standard_exponential((n_states, n_actions, n_states))
    transition = weights / weights.sum(axis=2, keepdims=True)
    name = _spelled(random, 2, n_states, n_actions, seed)
    return MDP(transition, rng.random((n_states, n_actions)), gamma, name=name)


def forest(n_states: int = 3, fire: float = 0.1, old: float = 4.0, cut: float = 2.0, gamma: float = 0.95) -> MDP:
    """Forest management: wait (the forest ages, or burns down with probability ``fire``) or cut it.

    Waiting pays ``old`` in the oldest state; cutting pays 1, or ``cut`` in the oldest state, nothing in the
    youngest.
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


NAMES: dict[str, Callable[..., MDP]] = {
    "bandit": bandit,
    "chain": chain,
    "grid": grid,
    "slippery": slippery_grid,
    "garnet": garnet,
    "random": random,
    "forest": forest,
}


def parse(text: str, gamma: float | None = None) -> MDP:
    """The MDP a short text names: ``chain:10``, ``chain:10,9``, ``garnet:100,4,5``, ``FrozenLake-v1``,
    ``file.npz``. What follows the colon are the function's first arguments in order; the ``name`` of an
    MDP made here is such a text, up to 8 arms of a bandit and unless ``rescale_rewards`` or ``with_start``
    changed it.

    Args:
        text: the name.
        gamma: discount; each kind has its own default, Gymnasium's 0.99; a file keeps its own.
    """
    if text.endswith(".npz"):
        mdp = MDP.load(text)
        if gamma is not None and gamma != mdp.gamma:
            return mdp.with_gamma(gamma)
        return mdp
    name, _, arguments = text.partition(":")
    if name in NAMES:
        options = {} if gamma is None else {"gamma": gamma}
        return _call(name, arguments, options)
    if "-v" in name and not arguments:
        return MDP.from_gymnasium(name, 0.99 if gamma is None else gamma)
    if text and Path(text).exists():
        raise CapoError(f"{text} is not an .npz file: save an MDP with mdp.save(...)")
    raise unknown_name("MDP", name, [*NAMES, "FrozenLake-v1", "Taxi-v4", "CliffWalking-v1"])


def _call(name: str, arguments: str, options: dict[str, Any]) -> MDP:
    function = NAMES[name]
    parameters = _parameters(function)
    parts = arguments.split(",") if arguments else []
    if name == "bandit" and parts:
        return bandit([_parsed(name, arguments, part) for part in parts], **options)
    if len(parts) > len(parameters):
        raise CapoError(
            f"{name} takes at most {len(parameters)} numbers ({', '.join(parameters)}), got {arguments}"
        )
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
    except (MemoryError, ValueError) as error:  # numpy's for an array beyond all memory
        raise CapoError(f"{name}:{arguments} does not fit into memory: {error}") from None


def _parsed(name: str, arguments: str, part: str) -> int | float:
    try:
        number = float(part)
    except ValueError:
        raise CapoError(
            f"{name}:{arguments}: the part after the colon must be numbers separated by commas"
        ) from None
    if not math.isfinite(number):
        raise CapoError(f"{name}:{arguments}: the numbers must be finite")
    if part.strip().lstrip("+-").isdecimal():  # beyond 2^53 a float is another number
        return int(part)
    return int(number) if number == int(number) else number


def _parameters(function: Callable[..., MDP]) -> dict[str, Any]:
    """The parameters that may stand after the colon, with their usual values."""
    return {key: p.default for key, p in inspect.signature(function).parameters.items() if key != "gamma"}


def _spelled(function: Callable[..., MDP], least: int, *values: Any) -> str:
    """The text that :func:`parse` turns into the MDP of these arguments; ``least`` of them always stand there."""
    usual = _parameters(function).values()
    changed = [i for i, (value, default) in enumerate(zip(values, usual, strict=True), 1) if value != default]
    name = next(name for name, known in NAMES.items() if known is function)
    return f"{name}:{','.join(map(_number, values[: max([least, *changed])]))}"


def _number(value: Any) -> str:
    """As short as it can be and still be read back as the same number."""
    if isinstance(value, str):
        return value
    return str(int(value)) if isinstance(value, int | np.integer) else repr(float(value)).removesuffix(".0")
