"""Policies that act during training in place of the agent's own: a function, another agent, or a mixture.

Off-policy algorithms learn from the actions of any policy, as long as they know how probable each action was when
it was taken: Retrace divides by it. So a behaviour is a function of observations that gives, for a batch of N,

    the probabilities (N, A) of all actions, from which capo draws with the run's own random numbers; or
    a tuple: actions (N,) that it chose itself, and the probability (N,) with which it chose each of them.

Where actions have F factors, A counts the actions of all of them, side by side, each factor's probabilities sum to
1, and actions are (N, F), every factor counted from 0. Where the environment has action masks, probabilities are
those of the actions allowed: what is given to others is shared out among these in proportion.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from capo.arrays import Array, NDArray
from capo.envs.failures import describe_error
from capo.envs.layout import Layout
from capo.errors import CapoError
from capo.neural.parts import policies

Function = Callable[[Any], Any]
_FORMS = (
    "it must return the probabilities (n, actions) of all actions, or a tuple: the actions (n,) it takes and the "
    "probability (n,) of each of them"
)


class BehaviourFailed(CapoError):
    """A behaviour raised an error, or returned something else than it must."""


@dataclass(frozen=True)
class Mixture:
    """A behaviour that acts for a share of the steps: ``learn(..., behaviour=Mixture(f, share=0.5))``.

    Args:
        behaviour: a function or an agent, as for ``learn``.
        share: the probability, at every step, that it acts; otherwise the agent's own policy does.
    """

    behaviour: Any
    share: float

    def __post_init__(self) -> None:
        number = isinstance(self.share, int | float | np.number) and not isinstance(self.share, bool)
        if not number or not 0 < self.share <= 1:
            raise CapoError(f"share={self.share!r} of a Mixture must be a number above 0 and at most 1")


@dataclass
class Behaviour:
    """A function that acts on ``n_actions`` actions, with probability ``share`` at every step.

    Two are equal if they have the same function: see :meth:`is_still` for whether a compiled program serves both.

    Attributes:
        function: see the top of this file; it gets observations (N, *observation_shape) as the networks do.
        note: what it is, in words.
        factors: sizes of the factors of an action; () if it is a single number.
        layout: of the observations; it finds the action masks, if there are any.
        fixed: whether the function can't change, like the policy of another agent at one iteration.
        draws: whether it chooses actions itself; None before its first call.
        traceable: whether a compiled program contains it, or else calls it on the host; None before :meth:`check`.
        failure: what it raised when it was called from a compiled program, which can't raise it as it is.
    """

    function: Function
    share: float
    n_actions: int
    note: str = field(compare=False)
    factors: policies.Sizes = ()
    layout: Layout | None = None
    fixed: bool = field(default=False, compare=False)
    draws: bool | None = field(default=None, init=False, compare=False)
    traceable: bool | None = field(default=None, init=False, compare=False)
    failure: BaseException | None = field(default=None, init=False, compare=False)
    _in_jax: bool = field(default=False, init=False, compare=False, repr=False)  # whether it returned jax arrays

    def is_still(self, other: Behaviour | None) -> bool:
        """Whether what was compiled with this behaviour serves ``other`` too.

        A program has the function's constants in it if it was traced. So the same function, whose parameters may
        have changed since, needs a new program then.
        """
        return self == other and (self.fixed or not self.traceable)

    def check(self, observations: NDArray) -> None:
        """Call the function on concrete observations, and find out how a compiled program is to call it.

        One that draws actions is called on the host: its random numbers would be drawn once, when it is traced.

        Raises:
            BehaviourFailed: if it raises, returns something else than it must, or can't be traced twice.
        """
        self.on_host(observations)
        if self.traceable is not None:
            return
        self.traceable = False
        if self.draws or not self._in_jax:
            return
        self.traceable = self.is_traceable(observations.shape, observations.dtype)
        try:
            self.on_host(observations)
        except BehaviourFailed as error:
            if not isinstance(error.__cause__, TypeError):  # not what jax says of a trace's abstract array
                raise
            raise BehaviourFailed(
                f"behaviour ({self.note}) keeps a jax array, such as a random key, from one call to the next; a "
                "compiled program cannot. Return numpy arrays (np.asarray(...)), and it is called at every step"
            ) from error

    def on_host(self, observations: NDArray) -> NDArray:
        """Log-probabilities (N, A) for concrete observations; -inf but for the chosen action if it draws itself.

        Raises:
            BehaviourFailed: if the function raises, or returns something else than it must.
        """
        result = self._call(observations)
        self._note_form(result)
        count, mask = len(observations), self._mask(observations)
        if self.draws:
            actions, probabilities = self._pair(self._array(result[0]), self._array(result[1]), count, mask)
            log_mu = np.full((count, self.n_actions), -np.inf, np.float32)
            log_mu[np.arange(count)[:, None], actions] = 0.0  # of several factors, the first has the probability
            log_mu[np.arange(count), actions[:, 0]] = np.log(probabilities)
            return log_mu
        found = self._distribution(self._array(result), count)
        if mask is not None:
            found = self._allowed(np, found, mask)
            if self._empty(found, mask).any():
                raise self._wrong("no probability for any of the actions that the action mask allows")
        with np.errstate(divide="ignore"):
            return np.log(found, dtype=np.float32)

    def traced(self, observations: Array) -> Array:
        """The same inside a jitted program: as :meth:`check`, which comes first, found that it is to be called.

        Probabilities of actions that are all forbidden become nan, which ends the training.
        """
        if not self.traceable:
            shape = jax.ShapeDtypeStruct((len(observations), self.n_actions), jnp.float32)  # type: ignore[no-untyped-call]
            called: Array = io_callback(self._called, shape, observations)
            return called
        mask, result = self._mask(observations), self._call(observations)
        found = jnp.asarray(result, jnp.float32)
        if mask is not None:
            found = self._allowed(jnp, found, mask)
            found = jnp.where(self._empty(found, mask)[:, None], jnp.nan, found)
        return jnp.log(found)

    def _called(self, observations: Array) -> NDArray:
        """:meth:`on_host`, from a compiled program."""
        try:
            return self.on_host(np.asarray(observations))
        except BaseException as error:  # a signal's, too
            self.failure = error
            raise

    def _call(self, observations: Any) -> Any:
        try:
            return self.function(observations)
        except Exception as error:
            raise BehaviourFailed(f"behaviour ({self.note}) raised {describe_error(error)}") from error

    def is_traceable(self, shape: tuple[int, ...], dtype: Any) -> bool:
        """Whether the function is one of jax: given an abstract array, it returns jax's probabilities.

        One that returns numpy's would be called once, and its result repeated for ever.
        """
        found: list[bool] = []

        def trace(observations: Array) -> Array:
            result = self.function(observations)
            whole = _is_of_jax(result) and jnp.asarray(result).shape == (shape[0], self.n_actions)
            found.append(whole)
            return jnp.zeros(())

        try:
            jax.eval_shape(trace, jax.ShapeDtypeStruct(shape, dtype))  # type: ignore[no-untyped-call]
        except Exception:  # whatever numpy or the function itself says about an abstract array
            return False
        return found[0]

    def mix(self, own: Array, given: Array, key: Array) -> Array:
        """The log-probabilities (N, A) to draw from and to store.

        Where the function draws itself, or actions have factors, a coin decides who acts, and what is stored is
        the probability of whoever did.

        Args:
            own: (N, A) of the agent's own policy.
            given: (N, A) from :meth:`on_host` or :meth:`traced`.
            key: for the coins.
        """
        if self.share >= 1:
            return given
        if self.draws or self.factors:  # a mixture of products is not a product
            return jnp.where(jax.random.uniform(key, (len(own), 1)) < self.share, given, own)
        return jnp.logaddexp(given + np.log(self.share), own + np.log1p(-self.share))

    def _note_form(self, result: Any) -> None:
        draws = isinstance(result, tuple) and len(result) == 2  # a list of two is the rows of two observations
        if self.draws not in (None, draws):
            raise BehaviourFailed(
                f"behaviour ({self.note}) returned a pair in one call and a single array in another: {_FORMS}"
            )
        self.draws, self._in_jax = draws, _is_of_jax(result)

    def _array(self, returned: Any) -> NDArray:
        try:
            return np.asarray(returned)
        except ValueError:
            raise self._wrong("rows of different lengths") from None
        except Exception as error:  # an abstract array of jax that the function kept, or whatever an object says
            raise self._wrong(f"what is not an array ({describe_error(error)})") from error

    def _pair(
        self, actions: NDArray, probabilities: NDArray, count: int, mask: NDArray | None
    ) -> tuple[NDArray, NDArray]:
        """The places (n, F) of the actions among all of them, and their probabilities (n,)."""
        shapes = f"shapes {actions.shape} and {probabilities.shape}"
        wanted = (count, len(self.factors)) if self.factors else (count,)
        if actions.shape != wanted or probabilities.shape != (count,):
            raise self._wrong(f"{shapes} for {count} observations")
        if actions.dtype.kind not in "iu":
            raise self._wrong(f"actions of dtype {actions.dtype}, which are not integers")
        if probabilities.dtype.kind not in "fiu":
            raise self._wrong(f"probabilities of dtype {probabilities.dtype}, which are not numbers")
        actions, sizes = actions.reshape(count, -1), np.array(self._sizes)
        if ((actions < 0) | (actions >= sizes)).any():
            most = " and ".join(str(size - 1) for size in dict.fromkeys(self._sizes))
            raise self._wrong(f"an action outside 0 to {most}")
        if not ((probabilities > 0) & (probabilities <= 1 + 1e-5)).all():
            raise self._wrong("a probability of a taken action that is not above 0 and at most 1")
        places = actions.astype(np.int64) + np.array(self._starts)
        if mask is not None and not np.take_along_axis(mask, places, axis=1)[mask.any(axis=1)].all():
            raise self._wrong("an action that the environment's action mask does not allow")
        return places, probabilities

    def _distribution(self, probabilities: NDArray, count: int) -> NDArray:
        if probabilities.shape != (count, self.n_actions) or probabilities.dtype.kind != "f":
            shown = f"an array of shape {probabilities.shape} and dtype {probabilities.dtype}"
            raise self._wrong(f"{shown} for {count} observations and {self.n_actions} actions")
        if not ((probabilities >= 0).all() and np.allclose(self._totals(probabilities), 1, atol=1e-3)):
            each = " for each factor" if self.factors else ""
            raise self._wrong(f"probabilities that are negative or do not sum to 1{each}")
        return probabilities

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.factors or (self.n_actions,)

    @property
    def _starts(self) -> tuple[int, ...]:
        """The place of each factor's first action among all of them."""
        return (0, *itertools.accumulate(self._sizes[:-1]))

    def _totals(self, probabilities: Any) -> Any:
        """The sum (N, F) of the probabilities (N, A) of each factor."""
        xp = np if isinstance(probabilities, np.ndarray) else jnp
        each = zip(self._starts, self._sizes, strict=True)
        return xp.stack([probabilities[:, start : start + size].sum(axis=-1) for start, size in each], axis=-1)

    def _empty(self, allowed: Any, mask: Any) -> Any:
        """(N,) where :meth:`_allowed` left no probability although the mask allows something."""
        return (self._totals(allowed) == 0).any(axis=-1) & mask.any(axis=-1)

    def _allowed(self, xp: Any, probabilities: Any, mask: Any) -> Any:
        """Probabilities (N, A) of the actions that a mask (N, A) allows; as they are where it allows nothing."""
        kept = xp.where(mask, probabilities, 0.0)
        each = xp.repeat(self._totals(kept), np.array(self._sizes), axis=-1, **self._length(xp))
        some = mask.any(axis=-1, keepdims=True)
        return xp.where(some, kept / xp.where(each > 0, each, 1.0), probabilities)

    def _length(self, xp: Any) -> dict[str, int]:
        return {} if xp is np else {"total_repeat_length": self.n_actions}  # jax must know it

    def _mask(self, observations: Any) -> Any:
        """The action masks (N, A) of packed observations; None if there are none."""
        return self.layout.mask(observations) if self.layout is not None and self.layout.masked else None

    def _wrong(self, what: str) -> BehaviourFailed:
        return BehaviourFailed(f"behaviour ({self.note}) returned {what}: {_FORMS}")


def _is_of_jax(result: Any) -> bool:
    """Whether what a function returned is made of jax's arrays."""
    leaves = result if isinstance(result, tuple | list) else [result]
    return all(isinstance(leaf, jax.Array) for leaf in leaves)
