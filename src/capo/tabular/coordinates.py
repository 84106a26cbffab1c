"""Coordinate rules: which state-action pairs an iteration updates.

=============  ===============================================================================================
``cyclic``     one pair an iteration, every pair once a cycle (:class:`Cyclic`; almost cyclic: at least once)
``randomized`` one pair an iteration, drawn from d_gen > 0 (:class:`Randomized`)
``batch``      all pairs (:class:`Batch`)
``on-policy``  the pair that the current policy meets next on a walk through the MDP (:class:`OnPolicy`)
``behaviour``  the pairs met by following a fixed or an epsilon-greedy policy (:class:`Behaviour`)
an iterable    of pairs (s, a), or of lists of pairs (:class:`Given`)
=============  ===============================================================================================

A rule is a description without state; ``rule.source(mdp, rng)`` gives what the solver draws from.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from capo.checks import between, whole
from capo.errors import CapoError, unknown_name
from capo.tabular.critic import Walk
from capo.tabular.mdp import MDP, Bools, Floats, check_distribution

Ints = npt.NDArray[np.int64]
ORDERS = ("state-major", "action-major", "permuted", "almost-cyclic")


class PairSource:
    """Single pairs, known without looking at the policy; ``take(n)`` gives the next n as (n, 2).

    Fewer than n come back only where the user's iterable has ended.
    """

    def __init__(self, blocks: Iterator[Ints]) -> None:
        self._blocks = blocks
        self._left = np.empty((0, 2), np.int64)

    def take(self, n: int) -> Ints:
        parts = [self._left]
        size = len(self._left)
        while size < n:
            block = next(self._blocks, None)
            if block is None:
                break
            parts.append(block)
            size += len(block)
        joined = np.concatenate(parts)
        self._left = joined[n:]
        return joined[:n]


@dataclass
class WalkSource:
    """Pairs met on a walk that depends on the current policy; ``batch`` of them an iteration."""

    walk: Walk
    rng: np.random.Generator
    batch: int

    def uniforms(self, n: int) -> Floats:
        """(n, 3) numbers that drive n steps: action, next state, restart."""
        return self.rng.random((n, 3))


@dataclass
class BatchSource:
    """All pairs, every iteration."""


@dataclass
class ListSource:
    """Mini-batches of pairs from a user's iterable."""

    batches: Iterator[Ints]


Source = PairSource | WalkSource | BatchSource | ListSource


@dataclass(frozen=True)
class Cyclic:
    """Every pair once a cycle.

    order: ``state-major`` (0,0), (0,1), ...; ``action-major`` (0,0), (1,0), ...; ``permuted``, a new random
    order every cycle; ``almost-cyclic``, a random order with S*A/2 extra pairs in every cycle; or an (L, 2) array
    of pairs that holds each at least once (L > S*A is almost cyclic too).
    """

    order: str | Any = "state-major"
    name: str = "cyclic"

    def cycle_length(self, mdp: MDP) -> int:
        pairs = mdp.n_states * mdp.n_actions
        if not isinstance(self.order, str):
            return len(self._given(mdp))
        return pairs + pairs // 2 + pairs % 2 if self.order == "almost-cyclic" else pairs

    def source(self, mdp: MDP, rng: np.random.Generator) -> PairSource:
        return PairSource(self._cycles(mdp, rng))

    def covers(self, mdp: MDP) -> Bools:
        return np.ones(mdp.n_states, bool)

    def check(self, mdp: MDP) -> None:
        if isinstance(self.order, str):
            if self.order not in ORDERS:
                raise unknown_name("order", self.order, ORDERS)
        else:
            self._given(mdp)

    def _given(self, mdp: MDP) -> Ints:
        order = check_pairs(self.order, mdp, "order")
        flat = order[:, 0] * mdp.n_actions + order[:, 1]
        missing = np.setdiff1d(np.arange(mdp.n_states * mdp.n_actions), flat)
        if missing.size:
            s, a = divmod(int(missing[0]), mdp.n_actions)
            raise CapoError(f"order: pair ({s}, {a}) is missing; a cycle holds every pair at least once")
        return order

    def _cycles(self, mdp: MDP, rng: np.random.Generator) -> Iterator[Ints]:
        s, a = np.divmod(np.arange(mdp.n_states * mdp.n_actions), mdp.n_actions)
        every = np.stack([s, a], axis=1).astype(np.int64)
        if not isinstance(self.order, str):
            yield from itertools.repeat(self._given(mdp))
        elif self.order == "state-major":
            yield from itertools.repeat(every)
        elif self.order == "action-major":
            yield from itertools.repeat(every[np.lexsort((s, a))])
        while True:
            cycle = every
            if self.order == "almost-cyclic":
                extra = rng.integers(0, len(every), self.cycle_length(mdp) - len(every))
                cycle = np.concatenate([every, every[extra]])
            yield rng.permutation(cycle)


@dataclass(frozen=True)
class Randomized:
    """One pair an iteration from d_gen: (S, A) or (S*A,), positive everywhere; uniform if not given; or a
    function of the iteration (1, 2, ...) that returns one."""

    d_gen: Any = None
    name: str = "randomized"

    def distribution(self, mdp: MDP, iteration: int = 1) -> Floats:
        """(S, A) d_gen at an iteration, checked."""
        shape = (mdp.n_states, mdp.n_actions)
        given = self.d_gen(iteration) if callable(self.d_gen) else self.d_gen
        if given is None:
            return np.full(shape, 1 / (shape[0] * shape[1]))
        try:
            array = np.asarray(given, np.float64)
        except (TypeError, ValueError):
            raise CapoError(f"d_gen: {given!r} is not an array of numbers") from None
        if array.shape not in (shape, (shape[0] * shape[1],)):
            raise CapoError(f"d_gen: shape {array.shape} must be (S, A) = {shape}")
        if (array == 0).any():
            s, a = divmod(int(np.flatnonzero(array.ravel() == 0)[0]), shape[1])
            raise CapoError(f"d_gen({s}, {a}) = 0: every pair must be drawn with positive probability")
        return check_distribution(array.ravel(), array.size, "d_gen", positive=True).reshape(shape)

    def cycle_length(self, mdp: MDP) -> int:
        return mdp.n_states * mdp.n_actions

    def source(self, mdp: MDP, rng: np.random.Generator) -> PairSource:
        return PairSource(self._draws(mdp, rng))

    def covers(self, mdp: MDP) -> Bools:
        return np.ones(mdp.n_states, bool)

    def check(self, mdp: MDP) -> None:
        self.distribution(mdp)

    def _draws(self, mdp: MDP, rng: np.random.Generator) -> Iterator[Ints]:
        if callable(self.d_gen):
            for iteration in itertools.count(1):
                cumulative = self.distribution(mdp, iteration).ravel().cumsum()
                yield _pick(cumulative, rng.random(1), mdp.n_actions)
        cumulative = self.distribution(mdp).ravel().cumsum()
        while True:
            yield _pick(cumulative, rng.random(1024), mdp.n_actions)


@dataclass(frozen=True)
class Batch:
    """All pairs, every iteration."""

    name: str = "batch"

    def cycle_length(self, mdp: MDP) -> int:  # noqa: ARG002
        return 1

    def source(self, mdp: MDP, rng: np.random.Generator) -> BatchSource:  # noqa: ARG002
        return BatchSource()

    def covers(self, mdp: MDP) -> Bools:
        return np.ones(mdp.n_states, bool)

    def check(self, mdp: MDP) -> None:
        pass


@dataclass(frozen=True)
class OnPolicy:
    """The pair that the current policy meets next.

    horizon: steps after which the walk restarts (max of S and 1/(1 - gamma) if not given), as it does at
    terminal states. restart: (S,) where from; the start distribution if not given.
    """

    horizon: int | None = None
    restart: Any = None
    name: str = "on-policy"

    def cycle_length(self, mdp: MDP) -> int:
        return mdp.n_states * mdp.n_actions

    def source(self, mdp: MDP, rng: np.random.Generator) -> WalkSource:
        uniform = np.full((mdp.n_states, mdp.n_actions), 1 / mdp.n_actions)
        return _walk_source(mdp, rng, uniform, 1.0, self.restart, self.horizon, 1)

    def covers(self, mdp: MDP) -> Bools:
        return _met(mdp, self.restart)

    def check(self, mdp: MDP) -> None:
        _check_walk(mdp, self.restart, self.horizon)


@dataclass(frozen=True)
class Behaviour:
    """The pairs met by following a behaviour policy, ``batch_size`` of them an iteration.

    policy: (S, A), fixed; uniform if not given; or ``"epsilon-greedy"``, which follows the current policy and,
    with probability ``epsilon``, takes a uniform action instead. horizon, restart: as for :class:`OnPolicy`.
    """

    policy: Any = None
    epsilon: float | None = None  # 0.1 if not given
    batch_size: int = 1
    horizon: int | None = None
    restart: Any = None
    name: str = "behaviour"

    @property
    def _adaptive(self) -> bool:
        return isinstance(self.policy, str)

    def _fixed(self, mdp: MDP) -> Floats:
        shape = (mdp.n_states, mdp.n_actions)
        if self.policy is None or self._adaptive:
            return np.full(shape, 1 / mdp.n_actions)
        return check_policy(self.policy, mdp, "behaviour policy")

    def cycle_length(self, mdp: MDP) -> int:
        return -(-mdp.n_states * mdp.n_actions // int(self.batch_size))

    def source(self, mdp: MDP, rng: np.random.Generator) -> WalkSource:
        epsilon = 0.1 if self.epsilon is None else self.epsilon
        mix = 1 - epsilon if self._adaptive else 0.0
        return _walk_source(mdp, rng, self._fixed(mdp), mix, self.restart, self.horizon, int(self.batch_size))

    def covers(self, mdp: MDP) -> Bools:
        return _met(mdp, self.restart)

    def check(self, mdp: MDP) -> None:
        if self._adaptive and self.policy != "epsilon-greedy":
            raise unknown_name("behaviour policy", self.policy, ("epsilon-greedy",))
        if self.epsilon is not None:
            between("epsilon", self.epsilon, 0, 1)
            if not self._adaptive:
                raise CapoError("epsilon belongs to behaviour='epsilon-greedy'; a fixed behaviour policy has none")
        whole("batch_size", self.batch_size)
        self._fixed(mdp)
        _check_walk(mdp, self.restart, self.horizon)


@dataclass(frozen=True)
class Given:
    """Pairs, or lists of pairs, from any iterable; the run ends where it does."""

    iterable: Iterable[Any]
    name: str = "given"

    def cycle_length(self, mdp: MDP) -> int:
        return mdp.n_states * mdp.n_actions

    def source(self, mdp: MDP, rng: np.random.Generator) -> PairSource | ListSource:  # noqa: ARG002
        items = iter(self.iterable)
        first = next(items, None)
        if first is None:
            raise CapoError("the iterable of coordinates is empty")
        items = itertools.chain([first], items)
        try:
            single = np.ndim(first) == 1
        except ValueError:  # a ragged list: no pair, and as a batch it is refused with its content
            single = False
        if single:
            return PairSource(check_pairs([item], mdp, "coordinate") for item in items)
        return ListSource(check_pairs(item, mdp, "batch of coordinates") for item in items)

    def covers(self, mdp: MDP) -> Bools:
        return np.ones(mdp.n_states, bool)

    def check(self, mdp: MDP) -> None:
        pass


Rule = Cyclic | Randomized | Batch | OnPolicy | Behaviour | Given
RULES: dict[str, Callable[..., Rule]] = {
    "cyclic": Cyclic,
    "randomized": Randomized,
    "batch": Batch,
    "on-policy": OnPolicy,
    "behaviour": Behaviour,
}


def make_rule(rule: Any, **options: Any) -> Rule:
    """A rule from its name and options, from a rule object, or from an iterable of coordinates."""
    given = {key: value for key, value in options.items() if value is not None}
    if isinstance(rule, Rule):
        if given:
            raise CapoError(f"rule is a {type(rule).__name__} already: set {', '.join(given)} on it instead")
        return rule
    if isinstance(rule, str):
        if rule not in RULES:
            raise unknown_name("rule", rule, RULES)
        try:
            return RULES[rule](**given)
        except TypeError:
            fields = getattr(RULES[rule], "__dataclass_fields__", {})
            # The behaviour policy is the option `behaviour` to users.
            wrong = ["behaviour" if key == "policy" else key for key in given if key not in fields]
            raise CapoError(f"rule {rule!r} does not take {', '.join(wrong)}") from None
    if isinstance(rule, Iterable):
        if given:
            raise CapoError(f"an iterable of coordinates does not take {', '.join(given)}")
        return Given(rule)
    raise CapoError(f"rule={rule!r} must be one of {', '.join(RULES)}, or an iterable of (state, action) pairs")


def check_pairs(given: Any, mdp: MDP, what: str) -> Ints:
    """(n, 2) pairs within the MDP, or a CapoError."""
    try:
        array = np.asarray(given)
    except ValueError:
        raise CapoError(f"{what}: {given!r} is not a list of (state, action) pairs") from None
    if array.ndim != 2 or array.shape[1] != 2 or len(array) == 0 or not np.issubdtype(array.dtype, np.integer):
        raise CapoError(f"{what}: {given!r} must be integer pairs (state, action), shape (n, 2)")
    limits = np.array([mdp.n_states, mdp.n_actions])
    bad = ((array < 0) | (array >= limits)).any(axis=1)
    if bad.any():
        s, a = array[bad][0]
        raise CapoError(f"{what}: pair ({s}, {a}) is outside {mdp.n_states} states x {mdp.n_actions} actions")
    return array.astype(np.int64)


def check_policy(given: Any, mdp: MDP, what: str) -> Floats:
    """(S, A) rows that are distributions, or a CapoError."""
    try:
        array = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise CapoError(f"{what}: {given!r} is not an array of numbers") from None
    if array.shape != (mdp.n_states, mdp.n_actions):
        raise CapoError(f"{what}: shape {array.shape} must be (S, A) = {(mdp.n_states, mdp.n_actions)}")
    for s in np.flatnonzero((np.abs(array.sum(axis=1) - 1) > 1e-8) | ~(array >= 0).all(axis=1)):
        check_distribution(array[s], mdp.n_actions, f"{what}, state {s}")
    return np.asarray(array / array.sum(axis=1, keepdims=True))


def _pick(cumulative: Floats, uniforms: Floats, n_actions: int) -> Ints:
    flat = np.minimum(np.searchsorted(cumulative, uniforms, side="right"), len(cumulative) - 1)
    return np.stack(np.divmod(flat, n_actions), axis=1).astype(np.int64)


def _restart(mdp: MDP, given: Any) -> Floats:
    if given is not None:
        return check_distribution(given, mdp.n_states, "restart distribution")
    return np.asarray(mdp.start)


def _met(mdp: MDP, restart: Any) -> Bools:
    return mdp.reachable(_restart(mdp, restart))


def _check_walk(mdp: MDP, restart: Any, horizon: int | None) -> None:
    origin = _restart(mdp, restart)
    if not (origin > 0)[~mdp.terminal].any():
        raise CapoError("walks would start in terminal states only: give a restart distribution elsewhere")
    if horizon is not None:
        whole("horizon", horizon)


def _walk_source(
    mdp: MDP,
    rng: np.random.Generator,
    behaviour: Floats,
    mix: float,
    restart: Any,
    horizon: int | None,
    batch: int,
) -> WalkSource:
    origin = np.where(mdp.terminal, 0.0, _restart(mdp, restart))  # a walk that starts at an end meets nothing
    origin = origin / origin.sum()
    first = int(np.searchsorted(origin.cumsum(), rng.random(), side="right"))
    first = min(first, int(np.flatnonzero(origin)[-1]))
    steps = max(mdp.n_states, round(1 / (1 - mdp.gamma))) if horizon is None else int(horizon)
    return WalkSource(Walk(behaviour, mix, origin, steps, np.array([first, 0], np.int64)), rng, batch)
