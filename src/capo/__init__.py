"""Coordinate Ascent Policy Optimization: exact on tabular MDPs, neural on discrete-action environments."""

from typing import TYPE_CHECKING, Any

from capo.errors import CapoError, CapoWarning
from capo.update import StepSize

if TYPE_CHECKING:
    from capo.neural.agent import NCAPO

__version__ = "0.1.0"
__all__ = ["NCAPO", "CapoError", "CapoWarning", "StepSize", "__version__"]


def __getattr__(name: str) -> Any:
    """The neural half is imported at its first use: it brings jax, which the tabular half does not need."""
    if name == "NCAPO":
        from capo.neural.agent import NCAPO

        return NCAPO
    raise AttributeError(f"module 'capo' has no attribute {name!r}")
