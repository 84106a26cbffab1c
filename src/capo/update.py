"""The paper's equation as pure functions: step sizes, the coordinate update, the target distribution.

    theta'(s, a) = theta(s, a) + alpha(s, a) * 1{(s, a) in B} * sign(A(s, a))

Everything works on **normalised log-probabilities** ``log_pi`` rather than on theta: a softmax policy does
not change when a state's theta is shifted, and log pi never overflows where exp(theta) does. A negative
update with ``alpha = log 1/pi`` squares pi, so log pi doubles at every visit and would reach minus infinity
after about a thousand of them; it is kept at or above :func:`floor`, from where a positive update still
brings pi back to 1/(2 - pi), as in exact arithmetic.

All functions take numpy or jax arrays, with actions on the last axis, and return arrays of the same library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np

from capo.checks import positive
from capo.errors import CapoError, unknown_name

if TYPE_CHECKING:  # capo.arrays imports jax, which the tabular half does not need
    from capo.arrays import Array, NDArray

A = TypeVar("A", "NDArray", "Array")  # an array of numpy or of jax
Other: TypeAlias = "NDArray | Array | float"  # an array of the same library, or a number
Kind = Literal["log", "fixed", "clipped", "on-policy"]
KINDS: tuple[str, ...] = get_args(Kind)
MOST_MULTIPLE, MOST_ETA = 1e6, 1e290  # beyond these log pi at the floor would overflow


def _namespace(x: NDArray | Array) -> Any:
    """``numpy`` or ``jax.numpy``, whichever ``x`` belongs to."""
    if isinstance(x, np.ndarray | np.generic | float | int | list | tuple):
        return np
    import jax.numpy as jnp  # imported here: the tabular half does not need it

    return jnp


def floor(dtype: Any) -> float:
    """The lowest log-probability kept: twice it is still finite in ``dtype``."""
    return float(np.finfo(dtype).min) * 1e-8


def log_normalise(theta: A) -> tuple[A, A]:
    """Log-softmax over the last axis, accurate for probabilities close to 1, kept above the floor.

    Args:
        theta: (..., A) unnormalised log-weights, each row with a finite maximum.

    Returns:
        ``log_pi`` (..., A) and ``log_z`` (...,), the log of each row's sum of weights.
    """
    xp = _namespace(theta)
    theta = xp.asarray(theta)
    top = theta.argmax(axis=-1)
    peak = theta.max(axis=-1, keepdims=True)
    is_top = xp.arange(theta.shape[-1]) == top[..., None]
    # The largest weight is left out of the sum and enters through log1p: otherwise log pi of an action with
    # pi = 1 - 1e-20 would be 0, and so would its step size.
    rest = xp.where(is_top, 0.0, xp.exp(xp.where(is_top, 0.0, theta - peak))).sum(axis=-1, keepdims=True)
    log_z = peak + xp.log1p(rest)
    # theta - log_z in two steps: at the top entry peak cancels exactly and only -log1p(rest) remains.
    log_pi = (theta - peak) - xp.log1p(rest)
    return xp.maximum(log_pi, floor(log_pi.dtype)), log_z[..., 0]


@dataclass(frozen=True)
class StepSize:
    """A step size alpha(s, a), computed from log pi, sign(A) and, on-policy, the visit count.

    kind        alpha
    ``log``     multiple * log 1/pi; the theorems need multiple >= 1, the batch rate exactly 1
    ``fixed``   eta
    ``clipped`` min(log 1/pi, clip)
    ``on-policy``  log 1/pi for A <= 0; log(beta/(1-beta) / pi) for A > 0 and pi < beta; otherwise
                zeta * log((N+1)/N), where N >= 1 counts visits, the current one included.
                beta and zeta default to the largest allowed, 1/(A+1) and 1/A
    """

    kind: Kind = "log"
    multiple: float = 1.0
    eta: float = 1.0
    clip: float = 50.0
    beta: float | None = None
    zeta: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise unknown_name("step size", self.kind, KINDS)
        for name in ("multiple", "eta", "clip", "beta", "zeta"):
            value = getattr(self, name)
            if value is None and name in ("beta", "zeta"):
                continue
            object.__setattr__(self, name, positive(f"step size: {name}", value))
        if self.multiple > MOST_MULTIPLE:
            raise CapoError(f"step size: multiple={self.multiple:g} must be at most {MOST_MULTIPLE:g}")
        if self.eta > MOST_ETA:
            raise CapoError(f"step size: eta={self.eta:g} must be at most {MOST_ETA:g}")
        if self.beta is not None and self.beta >= 1:
            raise CapoError(f"step size: beta={self.beta} must be between 0 and 1, both excluded")

    def with_defaults(self, n_actions: int) -> StepSize:
        """The same step size with beta and zeta filled in for ``n_actions`` actions."""
        if self.kind != "on-policy":
            return self
        beta = 1 / (n_actions + 1) if self.beta is None else self.beta
        zeta = 1 / n_actions if self.zeta is None else self.zeta
        return StepSize("on-policy", beta=beta, zeta=zeta)

    def violations(self, n_actions: int) -> list[str]:
        """The theorems' conditions on the step size that this one breaks, in words."""
        broken = []
        if self.kind == "log" and self.multiple < 1:
            broken.append(f"multiple={self.multiple:g} < 1: alpha >= log 1/pi is what every guarantee needs")
        if self.kind == "on-policy":
            if self.beta is not None and self.beta > 1 / (n_actions + 1):
                broken.append(f"beta={self.beta:g} > 1/(|A|+1) = {1 / (n_actions + 1):g}")
            if self.zeta is not None and self.zeta > 1 / n_actions:
                broken.append(f"zeta={self.zeta:g} > 1/|A| = {1 / n_actions:g}")
        return broken

    def alpha(self, log_pi: A, sign: Other, counts: Other | None = None) -> A:
        """The step size of every entry.

        Args:
            log_pi: (..., A) normalised log-probabilities.
            sign: (..., A) sign of the advantage, in {-1, 0, 1}.
            counts: (..., A) visits so far, the current one included; needed by ``on-policy`` only.

        Returns:
            (..., A), non-negative.
        """
        xp = _namespace(log_pi)
        log_pi = xp.asarray(log_pi)
        alpha: A
        if self.kind == "fixed":
            alpha = xp.full_like(log_pi, self.eta)
        elif self.kind == "clipped":
            alpha = clipped_step(log_pi, self.clip)
        elif self.kind == "log":
            alpha = -self.multiple * log_pi
        elif counts is None:
            raise CapoError("the on-policy step size needs visit counts: pass counts=")
        else:
            settings = self.with_defaults(log_pi.shape[-1])
            assert settings.beta is not None
            assert settings.zeta is not None
            rescue = np.log(settings.beta / (1 - settings.beta)) - log_pi
            slow = settings.zeta * xp.log1p(1.0 / xp.maximum(counts, 1))
            upward = xp.where(log_pi < np.log(settings.beta), rescue, slow)
            alpha = xp.where(xp.asarray(sign) > 0, upward, -log_pi)
        return alpha


LOG = StepSize("log")


def clipped_step(log_pi: A, clip: Other) -> A:
    """min(log 1/pi, clip), the step size ``clipped``: (..., A) to (..., A)."""
    smaller: A = _namespace(log_pi).minimum(-log_pi, clip)
    return smaller


def coordinate_update(log_pi: A, sign: Other, alpha: Other) -> A:
    """One CAPO update of whole rows: ``log softmax(log_pi + alpha * sign)``.

    Args:
        log_pi: (..., A) normalised log-probabilities.
        sign: (..., A) sign of the advantage where the pair is in the batch, 0 where it is not.
        alpha: (..., A) step sizes.

    Returns:
        (..., A) normalised log-probabilities of the updated policy, at or above the floor.

    >>> pi = coordinate_update(np.log([0.25, 0.75]), np.array([1, 0]), StepSize().alpha(np.log([0.25, 0.75]), 1))
    >>> np.exp(pi).round(4).tolist()  # 1/(2 - pi) and the rest divided by (2 - pi)
    [0.5714, 0.4286]
    """
    return coordinate_update_with_shift(log_pi, sign, alpha)[0]


def coordinate_update_with_shift(log_pi: A, sign: Other, alpha: Other) -> tuple[A, A]:
    """:func:`coordinate_update`, and the log-normaliser (...,) it divided by.

    The sum of these shifts over time is what turns log pi back into the paper's theta.
    """
    xp = _namespace(log_pi)
    log_pi, sign, alpha = xp.asarray(log_pi), xp.asarray(sign), xp.asarray(alpha)
    # Where the sign is 0 nothing is added, even if alpha is as large as the floor allows.
    return log_normalise(log_pi + xp.where(sign == 0, 0.0, sign * alpha))
