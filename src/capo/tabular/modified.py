"""Modified CAPO: coordinate ascent with a k-step critic, for MDPs too large to evaluate every policy exactly.

It keeps a policy pi and values V with T_pi V >= V. A round takes the signs of Q(V) - T_pi V, updates any set of
pairs with steps of at least log 1/pi, and makes k sweeps V <- T_pi V with the new policy. Then V never falls, the
policy is worth at least V, and V converges to V*: ``docs/explanation/modified-capo.md`` has the proof. k = 1 is
value iteration, k without bound is the paper's algorithm.

At any moment V* - V_pi <= (max(T V - V) - min(T_pi V - V)) / (1 - gamma) at every state.

:class:`Rounds` decides how many sweeps a round makes and of which kind. What makes them is a
:class:`Sweeper`: :class:`Sharp` where steps are so large that a policy has one action per state in floating point,
:class:`Soft` for every other step size and set of pairs, :class:`capo.tabular.modified_device.Device` on a GPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from capo.errors import CapoError
from capo.tabular import kernels_modified as kernels
from capo.tabular.mdp import MDP, Bools, Floats, Ints
from capo.tabular.record import RoundTrace
from capo.update import MOST_MULTIPLE, floor, log_normalise

SHARP = MOST_MULTIPLE  # multiple of log 1/pi that leaves one action per state in floating point
MOST_SWEEPS = 10  # after an improvement that compared all actions of all states; fewer where it was cheaper
REDUCTION = {"gauss-seidel": 0.1, "jacobi": 0.3}  # share of the residual at which a round's sweeps end
SWEEPS = ("auto", "gauss-seidel", "jacobi")
SLOW = 0.9  # a Jacobi sweep that leaves more than this of the residual's span is slow
TRIAL = 5  # sweeps over which this is measured
CONSTANT = 0.5  # a residual whose least entry is this share of its greatest is close to a constant
STALLED_AFTER = 30  # rounds at rounding level without progress
EPS = float(np.finfo(np.float64).eps)
THREADS_ABOVE = 50_000  # pairs above which several threads pay
TRACE_PAIRS, TRACE_BYTES = 20_000, 64 * 2**20


class Residuals(NamedTuple):
    """The greatest T V - V, and the least and the greatest T_pi V - V.

    The first two are not finite if a value or a backup of any state is not.
    """

    up: float
    low: float
    high: float


class Sweeper(Protocol):
    """A policy and values, and the two things a round does with them.

    Attributes:
        gauss_seidel: whether sweeps use the values that they have already renewed.
    """

    gauss_seidel: bool

    @property
    def share(self) -> float:
        """In what share of the states the last improvement compared all actions: fewer, fewer sweeps follow it."""

    def improve(self) -> Residuals:
        """Update the policy and make one sweep; the residuals are those of the values before it."""

    def sweep(self, most: int, goal: float) -> tuple[int, float, float]:
        """Up to ``most`` sweeps, until the residual is at most ``goal``.

        Returns their number and the least and greatest T_pi V - V that the last one found.
        """

    def residuals(self) -> Residuals:
        """Of the policy and the values as they are, from every pair; nothing changes."""

    def shift(self, amount: float) -> None:
        """Add a constant to the values."""

    def size(self) -> float:
        """The size of the values, roughly: the greatest of some of them."""

    def value_at(self, start: Floats) -> float:
        """The values at a start distribution (S,)."""

    def wait(self) -> None:
        """Let everything that is under way end."""

    def close(self) -> None:
        """Release threads."""

    @property
    def values(self) -> Floats:
        """(S,)."""

    @property
    def log_policy(self) -> Floats:
        """(S, A), a copy."""


# --- where a run starts ---------------------------------------------------------------------------------------


def action_mask(mdp: MDP) -> Bools | None:
    """(S, A) which actions a state has; None if all have all."""
    mask = mdp.actions
    return None if mask is None or bool(mask.all()) else mask


def first_actions(mdp: MDP) -> npt.NDArray[np.int32]:
    """(S,) the first of the actions with the greatest reward."""
    mask = action_mask(mdp)
    reward = mdp.reward if mask is None else np.where(mask, mdp.reward, -np.inf)
    return np.asarray(reward.argmax(axis=1), np.int32)


def first_values(mdp: MDP, reward: Floats) -> Floats:
    """(S,) V with T_pi V >= V, from the policy's rewards (S,).

    The least of them for ever, then one sweep; nothing is worth anything after the end.
    """
    least = float(reward.min()) / (1 - mdp.gamma)
    values = reward + mdp.gamma * least
    if least <= 0:
        values[mdp.terminal] = 0.0
    return values


# --- sweeps on a CPU ------------------------------------------------------------------------------------------


class _Cpu:
    """What the sweepers on a CPU share: the MDP's arrays, two vectors of values, and threads."""

    share = 1.0

    def __init__(self, mdp: MDP, values: Floats, gauss_seidel: bool, threads: int) -> None:
        rows = mdp.csr()
        self.mdp, self.gauss_seidel = mdp, gauss_seidel
        mask = action_mask(mdp)
        allowed = np.empty((0, 0), np.bool_) if mask is None else np.ascontiguousarray(mask)
        self._matrix = (rows.indptr, _unsigned(rows.indices), rows.data)
        self._problem = (*self._matrix, mdp.reward, mdp.gamma, allowed)
        edges = np.linspace(0, mdp.n_states, threads + 1).astype(np.int64).tolist()
        self._blocks = list(itertools.pairwise(edges))
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        self._running: list[Future[Any]] = []
        self._values, self._other = values, np.empty(0)
        self._backward = True

    @property
    def values(self) -> Floats:
        return self._values

    def shift(self, amount: float) -> None:
        self._values += amount

    def size(self) -> float:
        return float(np.abs(self._values[:: max(1, len(self._values) // 64)]).max())

    def value_at(self, start: Floats) -> float:
        return float(start @ self._values)

    def wait(self) -> None:
        wait(self._running)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _target(self) -> tuple[Floats, bool, bool, bool]:
        """Where a sweep writes to, whether backward, in place, and Gauss-Seidel block by block."""
        if self.gauss_seidel and self._pool is None:
            return self._values, self._backward, True, False
        if len(self._other) == 0:
            self._other = np.empty_like(self._values)
        return self._other, self.gauss_seidel and self._backward, False, self.gauss_seidel

    def _swept(self) -> None:
        """Take over what a sweep has written; the next one goes the other way."""
        if not self.gauss_seidel or self._pool is not None:
            self._values, self._other = self._other, self._values
        self._backward = not self._backward

    def _each(self, work: Callable[[int, int], Any]) -> Iterator[Any]:
        """``work(first, last)`` for every block of states, on all threads; one column per returned number."""
        if self._pool is None:
            return iter([(number,) for number in work(*self._blocks[0])])
        self._running = [self._pool.submit(work, *block) for block in self._blocks[1:]]
        own = work(*self._blocks[0])
        return zip(own, *(future.result() for future in self._running), strict=True)

    def sweep(self, most: int, goal: float) -> tuple[int, float, float]:
        low, high = 0.0, np.inf
        for done in range(1, most + 1):
            out, backward, _, blocked = self._target()
            low, high = self._evaluate(out, backward, blocked)
            self._swept()
            if (high if self.gauss_seidel else high - low) <= goal:
                return done, low, high
        return most, low, high

    def _evaluate(self, out: Floats, backward: bool, blocked: bool) -> tuple[float, float]:
        """One sweep into ``out``."""
        raise NotImplementedError


def _over_blocks(ups: Iterable[float], lows: Iterable[float], highs: Iterable[float]) -> Residuals:
    """The residuals of all states, from those of each block; unlike Python's, numpy's maximum keeps NaN."""
    return Residuals(float(np.max([*ups])), float(np.min([*lows])), float(np.max([*highs])))


def _unsigned(indices: Any) -> Any:
    """Column numbers as unsigned integers, which compiled code need not check for being negative."""
    small = indices.astype(np.int32, copy=False) if indices.dtype != np.int32 and _fits(indices) else indices
    return small.view(np.uint32 if small.dtype == np.int32 else np.uint64)


def _fits(indices: Any) -> bool:
    return len(indices) == 0 or int(indices.max()) < 2**31


class Sharp(_Cpu):
    """One action per state: the cyclic rule, pair by pair, with steps of ``SHARP`` log 1/pi.

    Going through a state's pairs in turn with such steps ends at the first of the best actions, unless none is
    better than the current one: that is how the kernel computes it.
    """

    def __init__(
        self, mdp: MDP, gauss_seidel: bool = False, threads: int = 1, values: Floats | None = None
    ) -> None:
        self.action = first_actions(mdp)
        reward = np.take_along_axis(mdp.reward, self.action[:, None], axis=1)[:, 0]
        super().__init__(mdp, first_values(mdp, reward) if values is None else values, gauss_seidel, threads)
        self._margin, self._drift = np.full(mdp.n_states, -np.inf), 0.0

    def improve(self) -> Residuals:
        out, backward, in_place, blocked = self._target()

        def work(first: int, last: int) -> Any:
            return kernels.sharp_improve(
                *self._problem, self._values, out, self.action, self._margin, self._drift,
                first, last, backward, in_place, blocked,
            )  # fmt: skip

        ups, lows, highs, compared = self._each(work)
        found = _over_blocks(ups, lows, highs)
        self.share = sum(compared) / self.mdp.n_states
        self._moved(found.low, found.high)
        self._swept()
        return found

    def _moved(self, low: float, high: float) -> None:
        """Account for a sweep that changed V by between low and high."""
        # Beside the span of the change, what rounding may add to the difference of two Q.
        spread = high - (min(low, 0.0) if self.gauss_seidel else low)
        self._drift += self.mdp.gamma * spread + 8 * EPS * self.size()

    def _evaluate(self, out: Floats, backward: bool, blocked: bool) -> tuple[float, float]:
        problem = (*self._matrix, self.mdp.reward, self.mdp.gamma)

        def work(first: int, last: int) -> Any:
            return kernels.sharp_sweep(
                *problem, self._values, out, self.action, first, last, backward, blocked
            )  # fmt: skip

        lows, highs = self._each(work)
        low, high = min(lows), max(highs)
        self._moved(low, high)
        return low, high

    def residuals(self) -> Residuals:
        ups, lows, highs = self._each(
            lambda first, last: kernels.sharp_residuals(*self._problem, self._values, self.action, first, last)
        )
        return _over_blocks(ups, lows, highs)

    @property
    def log_policy(self) -> Floats:
        return one_hot(self.action, self.mdp.n_actions)


def one_hot(action: npt.NDArray[np.int32], n_actions: int) -> Floats:
    """(S, A) log-policy that takes ``action`` (S,): 0 there, the floor elsewhere."""
    log_policy = np.full((len(action), n_actions), floor(np.float64))
    np.put_along_axis(log_policy, action[:, None].astype(np.int64), 0.0, axis=1)
    return log_policy


class Soft(_Cpu):
    """Any softmax policy, and any set of pairs.

    Args:
        mdp: the MDP.
        log_policy: (S, A) initial.
        multiple: of log 1/pi.
        in_turn: the pairs of a state one after another (cyclic) rather than at once (batch).
        tolerance: differences up to this have sign 0.
        sets: (n, 2) pairs of each round; None for all pairs in every round.
    """

    def __init__(
        self, mdp: MDP, log_policy: Floats, multiple: float, in_turn: bool, tolerance: float,
        sets: Iterator[Ints] | None = None, gauss_seidel: bool = False, threads: int = 1,
    ) -> None:  # fmt: skip
        mask = action_mask(mdp)
        allowed = log_policy if mask is None else log_normalise(np.where(mask, log_policy, floor(np.float64)))[0]
        self._log_policy, self._policy = np.array(allowed), np.exp(allowed)
        weighted = np.where(self._policy > 0, self._policy * mdp.reward, 0.0)
        super().__init__(mdp, first_values(mdp, weighted.sum(axis=1)), gauss_seidel, threads)
        self._multiple, self._in_turn, self._tolerance, self._sets = multiple, in_turn, tolerance, sets
        self.ended = False

    def _pairs(self) -> Bools:
        if self._sets is None:
            return np.empty((0, 0), np.bool_)
        chosen = np.zeros(self._policy.shape, np.bool_)
        pairs = next(self._sets, None)
        self.ended = pairs is None
        if pairs is not None:
            chosen[pairs[:, 0], pairs[:, 1]] = True
        return chosen

    def improve(self) -> Residuals:
        out, backward, _, blocked = self._target()
        pairs = self._pairs()

        def work(first: int, last: int) -> Any:
            return kernels.soft_improve(
                *self._problem, self._values, out, self._log_policy, self._policy, pairs,
                self._multiple, self._in_turn, self._tolerance, first, last, backward, blocked,
            )  # fmt: skip

        ups, lows, highs = self._each(work)
        found = _over_blocks(ups, lows, highs)
        self._swept()
        return found

    def _evaluate(self, out: Floats, backward: bool, blocked: bool) -> tuple[float, float]:
        problem = (*self._matrix, self.mdp.reward, self.mdp.gamma)

        def work(first: int, last: int) -> Any:
            return kernels.soft_sweep(
                *problem, self._values, out, self._policy, first, last, backward, blocked
            )  # fmt: skip

        lows, highs = self._each(work)
        return min(lows), max(highs)

    def residuals(self) -> Residuals:
        ups, lows, highs = self._each(
            lambda first, last: kernels.soft_residuals(*self._problem, self._values, self._policy, first, last)
        )
        return _over_blocks(ups, lows, highs)

    @property
    def log_policy(self) -> Floats:
        return self._log_policy.copy()


# --- rounds ---------------------------------------------------------------------------------------------------


class Rounds:
    """Makes rounds with a sweeper: how many sweeps, of which kind, and what is certified so far.

    Args:
        sweeper: what makes the sweeps.
        gamma: discount.
        k: sweeps per round, that of the improvement included; None to let the residuals decide.
        choose: whether to choose between Gauss-Seidel and Jacobi by what the residuals do.
        keep: a trace is kept for this many rounds.
        rounding: how wrong residuals may be at first where initial values are larger than any policy's. Every
            sweep shrinks this part of the values, and with it the error, by gamma.
    """

    def __init__(
        self, sweeper: Sweeper, gamma: float, k: int | None, choose: bool, keep: int = 0, rounding: float = 0.0
    ) -> None:
        self.sweeper, self._gamma, self._k, self._choose, self._keep = sweeper, gamma, k, choose, keep
        self._rounding = rounding
        self.rounds = self.sweeps = 0
        self.gap_bound = np.inf
        self._offset = 0.0  # V is the sweeper's values plus this
        self._spans: list[tuple[int, float]] = []  # (sweeps made, span of T_pi V - V) since the kind last changed
        self._changes, self._least, self._still = 0, np.inf, 0
        self._kept: list[tuple[Floats, Floats]] = []
        self._kinds: list[bool] = []
        self._remember()

    @property
    def values(self) -> Floats:
        """(S,) V, a copy."""
        return self.sweeper.values + self._offset

    def value_at(self, start: Floats) -> float:
        """V at a start distribution (S,)."""
        return self.sweeper.value_at(start) + self._offset

    def round(self) -> None:
        """Make one round."""
        sweeper, jacobi = self.sweeper, not self.sweeper.gauss_seidel
        self._kinds += [jacobi] if len(self._kinds) < self._keep else []
        found = self._finite(sweeper.improve())
        low, high, count = found.low, found.high, 0
        self._note_span(1, low, high)
        measure = found.up - found.low if jacobi else max(found.up, 0.0)
        self.gap_bound = measure / (1 - self._gamma)
        adaptive = round(MOST_SWEEPS * sweeper.share)
        most = adaptive if self._k is None else self._k - 1
        if most:
            goal = -1.0 if self._k is not None else REDUCTION["jacobi" if jacobi else "gauss-seidel"] * measure
            count, low, high = sweeper.sweep(most, goal)
            self._note_span(count, low, high)
        # MacQueen's shift: V + low / (1 - gamma) before the last sweep, which multiplies it by gamma.
        self._offset = self._gamma * low / (1 - self._gamma) if jacobi else 0.0
        self.rounds, self.sweeps = self.rounds + 1, self.sweeps + 1 + count
        self._count_still(measure)
        self._remember()
        if self._choose:
            self._choose_kind(found)

    def certify(self) -> float:
        """The certified gap of policy and values as they are, from every pair. V is shifted as far as it goes."""
        found = self._finite(self.sweeper.residuals())
        self._offset = found.low / (1 - self._gamma)
        if self.sweeper.gauss_seidel:
            self.sweeper.shift(self._offset)
            self._offset = 0.0
        self.gap_bound = (found.up - found.low) / (1 - self._gamma)
        return self.gap_bound

    def _finite(self, found: Residuals) -> Residuals:
        """The residuals with the rounding of large initial values.

        Refused if values have overflowed, or would with the shift: nothing is certain then.
        """
        error = self._rounding * self._gamma**self.sweeps
        found = found._replace(up=found.up + error, low=found.low - error)
        if not (math.isfinite(found.up) and math.isfinite(found.low / (1 - self._gamma))):
            raise CapoError("values are no longer finite: use smaller rewards or a smaller gamma")
        return found

    @property
    def stalled(self) -> bool:
        """Whether rounding keeps the gap from shrinking further."""
        return self._still > STALLED_AFTER

    def _count_still(self, measure: float) -> None:
        at_rounding = measure <= 64 * EPS * self.sweeper.size()
        self._still = self._still + 1 if at_rounding and measure >= self._least else 0
        self._least = min(self._least, measure)

    def _note_span(self, count: int, low: float, high: float) -> None:
        made = self._spans[-1][0] if self._spans else 0
        self._spans = [*self._spans[-20:], (made + count, high - low)]

    def _choose_kind(self, found: Residuals) -> None:
        """Gauss-Seidel where Jacobi's residual does not even out; Jacobi where it is close to a constant.

        A residual that is the same everywhere is removed by the shift at once. Gauss-Seidel sweeps do not make it
        so, but where values flow from an end they reach every state in a few sweeps.
        """
        if self.sweeper.gauss_seidel:
            if found.low >= CONSTANT * found.up > 0 and self._changes < 2:
                self._change_kind()
        elif self._rate() > SLOW:
            self._change_kind()

    def _rate(self) -> float:
        """The factor by which a sweep shrank the residual's span lately; 0 if that is not known yet."""
        now, span = self._spans[-1]
        for made, before in reversed(self._spans[:-1]):
            if now - made >= TRIAL:
                return float((span / before) ** (1 / (now - made))) if before > 0 else 0.0
        return 0.0

    def _change_kind(self) -> None:
        self.sweeper.shift(self._offset)
        self._offset = 0.0
        self.sweeper.gauss_seidel = not self.sweeper.gauss_seidel
        self._spans = []
        self._changes += 1

    def _remember(self) -> None:
        if len(self._kept) <= self._keep and self._keep:
            self._kept.append((self.sweeper.log_policy, self.values))

    def trace(self, multiple: float, in_turn: bool, all_pairs: bool, tolerance: float) -> RoundTrace | None:
        """The rounds that were kept, with how they were made; None if there are none."""
        if len(self._kept) < 2:
            return None
        log_policies, values = (np.array(column) for column in zip(*self._kept, strict=True))
        kinds = np.array(self._kinds[: len(values) - 1], np.bool_)
        return RoundTrace(log_policies, values, kinds, multiple, in_turn, all_pairs, tolerance)


def traced_rounds(mdp: MDP) -> int:
    """How many rounds a trace may keep."""
    pairs = mdp.n_states * mdp.n_actions
    return TRACE_BYTES // (8 * (pairs + mdp.n_states)) if pairs <= TRACE_PAIRS else 0
