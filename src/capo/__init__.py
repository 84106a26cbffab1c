"""Coordinate Ascent Policy Optimization: exact on tabular MDPs, neural on discrete-action environments."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from capo.errors import CapoError, CapoWarning

if TYPE_CHECKING:
    from capo.neural import ascent
    from capo.neural.algorithms.a2c import A2C
    from capo.neural.algorithms.ncapo import NCAPO
    from capo.neural.algorithms.offpac import OffPAC
    from capo.neural.algorithms.ppo import PPO
    from capo.neural.algorithms.pqn import PQN
    from capo.neural.algorithms.rainbow import Rainbow
    from capo.neural.algorithms.registry import load
    from capo.neural.ascent import coordinate_ascent
    from capo.neural.learners.behaviours import Mixture
    from capo.sweeps.sweep import sweep
    from capo.sweeps.tuning import tune
    from capo.tabular import baselines, mdps, theory
    from capo.tabular.mdp import MDP
    from capo.tabular.proof import prove, verify
    from capo.tabular.solver import Result, solve, solve_many
    from capo.update import StepSize

__version__ = "0.1.0"
__all__ = [
    "A2C",
    "MDP",
    "NCAPO",
    "PPO",
    "PQN",
    "CapoError",
    "CapoWarning",
    "Mixture",
    "OffPAC",
    "Rainbow",
    "Result",
    "StepSize",
    "__version__",
    "ascent",
    "baselines",
    "coordinate_ascent",
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

_PARTS = {
    "MDP": "tabular.mdp",
    "Mixture": "neural.learners.behaviours",
    "Result": "tabular.solver",
    "StepSize": "update",
    "coordinate_ascent": "neural.ascent",
    "prove": "tabular.proof",
    "solve": "tabular.solver",
    "solve_many": "tabular.solver",
    "sweep": "sweeps.sweep",
    "tune": "sweeps.tuning",
    "verify": "tabular.proof",
}


def __getattr__(name: str) -> Any:
    """Everything is imported at its first use: the tabular half needs no jax, and a command starts at once."""
    found = _find(name)
    globals()[name] = found
    return found


def _find(name: str) -> Any:
    if name in _PARTS:
        return getattr(import_module(f"capo.{_PARTS[name]}"), name)
    if name in ("baselines", "mdps", "theory"):
        return import_module(f"capo.tabular.{name}")
    if name == "ascent":
        return import_module("capo.neural.ascent")
    if name == "load" or name[:1].isupper():
        from capo.neural.algorithms import registry

        agents = {row.agent.__name__: row.agent for row in registry.ROWS.values()}
        if name in agents or name == "load":
            return registry.load if name == "load" else agents[name]
    if name in ("tabular", "update"):
        return import_module(f"capo.{name}")
    raise AttributeError(f"module 'capo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
