"""Coordinate Ascent Policy Optimization: exact on tabular MDPs, neural on discrete-action environments."""

from typing import TYPE_CHECKING, Any

from capo.errors import CapoError, CapoWarning
from capo.tabular import baselines, mdps, theory
from capo.tabular.mdp import MDP
from capo.tabular.proof import prove, verify
from capo.tabular.solver import Result, solve, solve_many
from capo.update import StepSize

if TYPE_CHECKING:
    from capo.neural.algorithms.a2c import A2C
    from capo.neural.algorithms.ncapo import NCAPO
    from capo.neural.algorithms.offpac import OffPAC
    from capo.neural.algorithms.ppo import PPO
    from capo.neural.algorithms.rainbow import Rainbow
    from capo.neural.algorithms.registry import load
    from capo.sweeps.sweep import sweep
    from capo.sweeps.tuning import tune

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
    "load",
    "mdps",
    "prove",
    "solve",
    "solve_many",
    "sweep",
    "theory",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    """The neural half is imported at its first use: it brings jax, which the tabular half does not need."""
    if name == "sweep":
        from capo.sweeps.sweep import sweep

        return sweep
    if name == "tune":
        from capo.sweeps.tuning import tune

        return tune
    if name == "load" or name[:1].isupper():
        from capo.neural.algorithms import registry

        agents = {row.agent.__name__: row.agent for row in registry.ROWS.values()}
        if name in agents or name == "load":
            return registry.load if name == "load" else agents[name]
    raise AttributeError(f"module 'capo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
