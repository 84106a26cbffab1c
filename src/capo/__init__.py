"""Coordinate Ascent Policy Optimization: exact on tabular MDPs, neural on discrete-action environments."""

from capo.errors import CapoError, CapoWarning
from capo.tabular import baselines, mdps, theory
from capo.tabular.mdp import MDP
from capo.tabular.result import Result
from capo.tabular.solver import solve, solve_many
from capo.update import StepSize

__version__ = "0.1.0"
__all__ = [
    "MDP",
    "CapoError",
    "CapoWarning",
    "Result",
    "StepSize",
    "__version__",
    "baselines",
    "mdps",
    "solve",
    "solve_many",
    "theory",
]
