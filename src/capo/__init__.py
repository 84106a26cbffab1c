"""Coordinate Ascent Policy Optimization: exact on tabular MDPs, neural on discrete-action environments."""

from typing import TYPE_CHECKING, Any

from capo.errors import CapoError, CapoWarning
from capo.tabular import baselines, mdps, theory
from capo.tabular.mdp import MDP
from capo.tabular.result import Result
from capo.tabular.solver import solve, solve_many
from capo.update import StepSize

if TYPE_CHECKING:
    from capo.neural.agent import A2C, NCAPO, PPO, OffPAC, Rainbow

__version__ = "0.1.0"
__all__ = [
    "A2C",
    "MDP",
    "NCAPO",
    "PPO",
    "CapoError",
    "CapoWarning",
    "OffPAC",
    "Rainbow",
    "Result",
    "StepSize",
    "__version__",
    "baselines",
    "mdps",
    "solve",
    "solve_many",
    "theory",
]


def __getattr__(name: str) -> Any:
    """The neural half is imported at its first use: it brings jax, which the tabular half does not need."""
    if name in ("A2C", "NCAPO", "OffPAC", "PPO", "Rainbow"):
        from capo.neural import agent

        return getattr(agent, name)
    raise AttributeError(f"module 'capo' has no attribute {name!r}")
