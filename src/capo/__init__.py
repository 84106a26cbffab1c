"""Coordinate Ascent Policy Optimization: exact on tabular MDPs, neural on discrete-action environments."""

from capo.errors import CapoError, CapoWarning
from capo.update import StepSize

__version__ = "0.1.0"
__all__ = ["CapoError", "CapoWarning", "StepSize", "__version__"]
