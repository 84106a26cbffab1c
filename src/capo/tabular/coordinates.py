"""Coordinate rules: which state-action pairs an iteration updates.

=============  ===============================================================================================
``cyclic``     one pair per iteration, every pair once per cycle (:class:`Cyclic`; almost cyclic: at least once)
``randomized`` one pair per iteration, drawn from d_gen > 0 (:class:`Randomized`)
``batch``      all pairs (:class:`Batch`)
``on-policy``  the next pair on a walk that follows the current policy (:class:`OnPolicy`)
``behaviour``  the next pairs on a walk that follows a fixed or an epsilon-greedy policy (:class:`Behaviour`)
an iterable    of pairs (s, a), or of lists of pairs (:class:`FromIterable`)
=============  ===============================================================================================

A rule only describes, it has no state; ``rule.source(mdp, rng)`` gives what the solver draws from, except for
``batch``, which has nothing to draw.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from capo.checks import between, has_items, whole
from capo.errors import CapoError, unknown_name
from capo.tabular.critic import Walk
from capo.tabular.mdp import MDP, Bools, Floats, Ints, as_floats, check_distribution

ORDERS = ("state-major", "action-major", "permuted", "almost-cyclic")


class PairSource:
    """Pairs that do not depend on the policy, in ``blocks`` (n, 2).

    Blocks are mini-batches, or, if ``single``, only a way to make many single pairs at once.
    """

    def __init__(self, blocks: Iterator[Ints], single: bool = True) -> None:
        self.blocks, self.single = blocks, single
        self._left = np.empty((0, 2), np.int64)

    def take(self, n: int) -> Ints:
        """(n, 2) the next single pairs; fewer than n only when the user's iterable has ended."""
        parts, size = [self._left], len(self._left)
        while size < n and (block := next(self.blocks, None)) is not None:
            parts.append(block)
            size += len(block)
        joined = np.concatenate(parts)
        self._left = joined[n:]
        return joined[:n]


@dataclass
class WalkSource:
    """Pairs visited on a walk that depends on the current policy; ``batch`` of them per iteration."""

    walk: Walk
    rng: np.random.Generator
    batch: int

    @property
    def single(self) -> bool:
        """Whether an iteration updates one pair."""
        return self.batch == 1

    def uniforms(self, n: int) -> Floats:
        """(n, 3) random numbers for n steps: action, next state, restart."""
        return self.rng.random((n, 3))


Source = PairSource | WalkSource


class _Rule:
    """What rules have in common unless they say otherwise."""

    def cycle_length(self, mdp: MDP) -> int:
        """Iterations in a cycle: as many as there are pairs."""
        return mdp.n_pairs

    def covers(self, mdp: MDP) -> Bools:
        """(S,) the states that the rule can reach."""
        return np.ones(mdp.n_states, bool)

    def check(self, mdp: MDP) -> None:
        """Raise a CapoError if the rule does not fit the MDP."""


@dataclass(frozen=True)
class Cyclic(_Rule):
    """Every allowed pair once per cycle.

    order: ``state-major`` (0,0), (0,1), ...; ``action-major`` (0,0), (1,0), ...; ``permuted``, a new random
    order in every cycle; ``almost-cyclic``, a random order with half as many extra pairs in every cycle; or an
    (L, 2) array that contains every pair at least once (if longer than that, it is almost cyclic too).
    """

    order: str | Any = "state-major"
    name: str = "cyclic"

    def cycle_length(self, mdp: MDP) -> int:
        pairs = mdp.n_pairs
        if not isinstance(self.order, str):
            return len(self._given(mdp))
        return pairs + pairs // 2 + pairs % 2 if self.order == "almost-cyclic" else pairs

    def source(self, mdp: MDP, rng: np.random.Generator) -> PairSource:
        return PairSource(self._cycles(mdp, rng))

    def check(self, mdp: MDP) -> None:
        if not isinstance(self.order, str):
            self._given(mdp)
        elif self.order not in ORDERS:
            raise unknown_name("order", self.order, ORDERS)

    def _given(self, mdp: MDP) -> Ints:
        order = check_pairs(self.order, mdp, "order")
        flat = order[:, 0] * mdp.n_actions + order[:, 1]
        missing = np.setdiff1d(np.flatnonzero(mdp.allowed), flat)
        if missing.size:
            s, a = divmod(int(missing[0]), mdp.n_actions)
            raise CapoError(f"order: pair ({s}, {a}) is missing; a cycle must contain every pair at least once")
        return order

    def _cycles(self, mdp: MDP, rng: np.random.Generator) -> Iterator[Ints]:
        s, a = np.nonzero(mdp.allowed)
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
class Randomized(_Rule):
    """One pair per iteration, drawn from d_gen.

    d_gen: (S, A) or (S*A,), positive for every allowed pair and 0 for the others; a function of the iteration
    (1, 2, ...) that returns such an array; uniform by default.
    """

    d_gen: Any = None
    name: str = "randomized"

    def distribution(self, mdp: MDP, iteration: int = 1) -> Floats:
        """(S, A) d_gen at an iteration, checked."""
        shape = (mdp.n_states, mdp.n_actions)
        given = self.d_gen(iteration) if callable(self.d_gen) else self.d_gen
        if given is None:
            return mdp.masked(np.full(shape, 1 / mdp.n_pairs), 0.0)
        array = as_floats("d_gen: ", given)
        if array.shape not in (shape, (shape[0] * shape[1],)):
            raise CapoError(f"d_gen: shape {array.shape} must be (S, A) = {shape}")
        weights = array.reshape(shape)
        if ((weights == 0) & mdp.allowed).any():
            s, a = np.argwhere((weights == 0) & mdp.allowed)[0]
            raise CapoError(f"d_gen({s}, {a}) = 0: every pair must be drawn with positive probability")
        _refuse_barred(weights, mdp, "d_gen")
        return check_distribution(array.ravel(), array.size, "d_gen").reshape(shape)

    def source(self, mdp: MDP, rng: np.random.Generator) -> PairSource:
        return PairSource(self._draws(mdp, rng))

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
class Batch(_Rule):
    """All pairs, every iteration."""

    name: str = "batch"

    def cycle_length(self, mdp: MDP) -> int:  # noqa: ARG002
        return 1


class _WalkRule(_Rule):
    """What the rules that walk through the MDP have in common."""

    horizon: int | None
    restart: Any

    def covers(self, mdp: MDP) -> Bools:
        return mdp.reachable(self._origin(mdp))

    def check(self, mdp: MDP) -> None:
        if not (self._origin(mdp) > 0)[~mdp.terminal].any():
            raise CapoError(
                "walks would start only in terminal states: give a restart distribution over other states"
            )
        if self.horizon is not None:
            whole("horizon", self.horizon)

    def _origin(self, mdp: MDP) -> Floats:
        given = mdp.start if self.restart is None else self.restart
        return check_distribution(given, mdp.n_states, "restart distribution")

    def _walk(self, mdp: MDP, rng: np.random.Generator, behaviour: Floats, mix: float, batch: int) -> WalkSource:
        origin = np.where(mdp.terminal, 0.0, self._origin(mdp))  # a walk cannot start at a terminal state
        origin = origin / origin.sum()
        first = int(np.searchsorted(origin.cumsum(), rng.random(), side="right"))
        first = min(first, int(np.flatnonzero(origin)[-1]))
        steps = max(mdp.n_states, round(1 / (1 - mdp.gamma))) if self.horizon is None else int(self.horizon)
        return WalkSource(Walk(behaviour, mix, origin, steps, np.array([first, 0], np.int64)), rng, batch)


@dataclass(frozen=True)
class OnPolicy(_WalkRule):
    """The next pair on a walk that follows the current policy.

    horizon: steps after which the walk restarts, as it does at terminal states; by default the larger of S and
    1/(1 - gamma). restart: (S,) distribution that a walk starts from; by default the start distribution.
    """

    horizon: int | None = None
    restart: Any = None
    name: str = "on-policy"

    def source(self, mdp: MDP, rng: np.random.Generator) -> WalkSource:
        return self._walk(mdp, rng, mdp.uniform_policy, 1.0, 1)


@dataclass(frozen=True)
class Behaviour(_WalkRule):
    """The next pairs on a walk that follows a behaviour policy, ``batch_size`` of them per iteration.

    policy: (S, A), fixed; or ``"epsilon-greedy"``, which follows the current policy and, with probability
    ``epsilon``, takes a uniformly random action instead; uniform by default. horizon, restart: as for
    :class:`OnPolicy`.
    """

    policy: Any = None
    epsilon: float | None = None  # 0.1 by default
    batch_size: int = 1
    horizon: int | None = None
    restart: Any = None
    name: str = "behaviour"

    @property
    def _adaptive(self) -> bool:
        return isinstance(self.policy, str)

    def _fixed(self, mdp: MDP) -> Floats:
        if self.policy is None or self._adaptive:
            return mdp.uniform_policy
        return check_policy(self.policy, mdp, "behaviour policy")

    def cycle_length(self, mdp: MDP) -> int:
        return -(-mdp.n_pairs // int(self.batch_size))

    def source(self, mdp: MDP, rng: np.random.Generator) -> WalkSource:
        epsilon = 0.1 if self.epsilon is None else self.epsilon
        mix = 1 - epsilon if self._adaptive else 0.0
        return self._walk(mdp, rng, self._fixed(mdp), mix, int(self.batch_size))

    def check(self, mdp: MDP) -> None:
        if self._adaptive and self.policy != "epsilon-greedy":
            raise unknown_name("behaviour policy", self.policy, ("epsilon-greedy",))
        if self.epsilon is not None:
            between("epsilon", self.epsilon, 0, 1)
            if not self._adaptive:
                raise CapoError(f"epsilon={self.epsilon} applies to behaviour='epsilon-greedy' only")
        whole("batch_size", self.batch_size)
        self._fixed(mdp)
        super().check(mdp)


@dataclass(frozen=True)
class FromIterable(_Rule):
    """Pairs, or lists of pairs, from any iterable; the run ends when it does."""

    iterable: Iterable[Any]
    name: str = "given"

    def source(self, mdp: MDP, rng: np.random.Generator) -> PairSource:  # noqa: ARG002
        items = iter(self.iterable)
        first = next(items, None)
        if first is None:
            raise CapoError("the iterable of coordinates is empty")
        items = itertools.chain([first], items)
        try:
            single = np.ndim(first) == 1
        except ValueError:  # a ragged list is not a pair; as a batch it is refused with its content
            single = False
        if single:
            return PairSource(check_pairs([item], mdp, "coordinate") for item in items)
        return PairSource((check_pairs(item, mdp, "batch of coordinates") for item in items), single=False)


Rule = Cyclic | Randomized | Batch | OnPolicy | Behaviour | FromIterable
_NAMED: tuple[type[Cyclic | Randomized | Batch | OnPolicy | Behaviour], ...]
_NAMED = (Cyclic, Randomized, Batch, OnPolicy, Behaviour)
RULES = {rule.name: rule for rule in _NAMED}


def make_rule(rule: Any, **options: Any) -> Rule:
    """A rule from its name and options, from a rule object, or from an iterable of coordinates."""
    given = {key: value for key, value in options.items() if value is not None}
    if isinstance(rule, Rule):
        if given:
            raise CapoError(
                f"rule is given as an object ({type(rule).__name__}): set {', '.join(given)} on it instead"
            )
        return rule
    if isinstance(rule, str):
        if rule not in RULES:
            raise unknown_name("rule", rule, RULES)
        try:
            return RULES[rule](**given)
        except TypeError:
            # The behaviour policy is the option `behaviour` to users.
            fields = RULES[rule].__dataclass_fields__
            wrong = ["behaviour" if key == "policy" else key for key in given if key not in fields]
            raise CapoError(f"rule {rule!r} does not take {', '.join(wrong)}") from None
    if isinstance(rule, Iterable) and has_items(rule):
        if given:
            raise CapoError(f"an iterable of coordinates does not take {', '.join(given)}")
        return FromIterable(rule)
    raise CapoError(f"rule={rule!r} must be one of {', '.join(RULES)}, or an iterable of (state, action) pairs")


def fits_any_mdp(rule: Any) -> bool:
    """Whether a rule, given by its name or as an object, needs no walk and no pairs of a particular MDP."""
    kind = RULES.get(rule) if isinstance(rule, str) else type(rule)
    return kind in (Cyclic, Randomized, Batch)


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
    pairs = array.astype(np.int64)
    barred = ~mdp.allowed[pairs[:, 0], pairs[:, 1]]
    if barred.any():
        s, a = pairs[barred][0]
        raise CapoError(f"{what}: action {a} is not allowed in state {s}; {_choices(mdp, s)}")
    return pairs


def _choices(mdp: MDP, state: int) -> str:
    """The actions of a state, for a message."""
    return f"allowed: {', '.join(map(str, np.flatnonzero(mdp.allowed[state])))}"


def _refuse_barred(weights: Floats, mdp: MDP, what: str) -> None:
    """Raise if ``weights`` (S, A) are not 0 where an action is not allowed."""
    if mdp.actions is not None and (barred := (weights != 0) & ~mdp.actions).any():
        s, a = np.argwhere(barred)[0]
        given = f"{what}({s}, {a}) = {weights[s, a]:g}"
        raise CapoError(f"{given}: action {a} is not allowed in state {s} and must have 0; {_choices(mdp, s)}")


def check_policy(given: Any, mdp: MDP, what: str) -> Floats:
    """(S, A) policy whose rows are distributions, or a CapoError."""
    array = as_floats(f"{what}: ", given)
    if array.shape != (mdp.n_states, mdp.n_actions):
        raise CapoError(f"{what}: shape {array.shape} must be (S, A) = {(mdp.n_states, mdp.n_actions)}")
    _refuse_barred(array, mdp, what)
    for s in np.flatnonzero((np.abs(array.sum(axis=1) - 1) > 1e-8) | ~(array >= 0).all(axis=1)):
        check_distribution(array[s], mdp.n_actions, f"{what}, state {s}")
    return np.asarray(array / array.sum(axis=1, keepdims=True))


def _pick(cumulative: Floats, uniforms: Floats, n_actions: int) -> Ints:
    # Rounding may leave the sum below a uniform number: the last pair that can be drawn stands in.
    last = int(np.searchsorted(cumulative, cumulative[-1]))
    flat = np.minimum(np.searchsorted(cumulative, uniforms, side="right"), last)
    return np.stack(np.divmod(flat, n_actions), axis=1).astype(np.int64)
