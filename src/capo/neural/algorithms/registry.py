"""The algorithms, one row each: to add one, write a file like ``ppo.py`` and add its row here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capo import envs
from capo.envs.suites import opponents
from capo.errors import CapoError, unknown_name
from capo.neural.agent import Agent
from capo.neural.algorithms.a2c import A2C, A2CAlgorithm, A2CConfig
from capo.neural.algorithms.base import Algorithm
from capo.neural.algorithms.ncapo import NCAPO, NCAPOAlgorithm, NCAPOConfig
from capo.neural.algorithms.offpac import OffPAC, OffPACAlgorithm, OffPACConfig
from capo.neural.algorithms.ppo import PPO, PPOAlgorithm, PPOConfig
from capo.neural.algorithms.pqn import PQN, PQNAlgorithm, PQNConfig
from capo.neural.algorithms.rainbow import Rainbow, RainbowAlgorithm, RainbowConfig
from capo.neural.algorithms.settings import CommonSettings
from capo.neural.learners import Learner, make_learner
from capo.runs import checkpoint, schema


@dataclass(frozen=True)
class Row:
    """What the command line, the docs, the report page and the experiments know about an algorithm."""

    name: str  # on the command line and in files
    title: str  # in tables and figures
    colour: str  # in figures
    settings: type[CommonSettings]
    algorithm: type[Algorithm]
    agent: type[Agent]
    dark_colour: str = ""  # on the report page: a contrast of at least 4.5 to 1 against white


# In the order in which they are shown. The colours can be told apart by the colour-blind.
ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("ncapo", "NCAPO", "#D55E00", NCAPOConfig, NCAPOAlgorithm, NCAPO, "#C04300"),
        Row("ppo", "PPO", "#0072B2", PPOConfig, PPOAlgorithm, PPO, "#0067A3"),
        Row("a2c", "A2C", "#009E73", A2CConfig, A2CAlgorithm, A2C, "#007A5A"),
        Row("rainbow", "Rainbow", "#CC79A7", RainbowConfig, RainbowAlgorithm, Rainbow, "#A2407E"),
        Row("pqn", "PQN", "#56B4E9", PQNConfig, PQNAlgorithm, PQN, "#00718A"),
        Row("offpac", "Off-PAC", "#E69F00", OffPACConfig, OffPACAlgorithm, OffPAC, "#806000"),
    )
}


def register(row: Row) -> None:
    """Add an algorithm of your own.

    Raises:
        CapoError: if its name is taken.
    """
    if row.name in ROWS:
        raise CapoError(f"algorithm {row.name!r} is already registered: choose another name")
    ROWS[row.name] = row


def find(name: str) -> Row:
    """The row of the algorithm called ``name``.

    Raises:
        CapoError: if there is none, with the nearest names that exist.
    """
    if name not in ROWS:
        raise unknown_name("algorithm", name, ROWS)
    return ROWS[name]


def all_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from a file, which may be older than some of them; those that it lacks have their default.

    >>> all_settings("ncapo", {"gamma": 0.5})["actor_lambda"]
    1.0
    """
    return find(name).settings().to_dict() | dict(settings)


def evaluates_best(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether evaluations of an algorithm with these settings take the best actions rather than sample.

    >>> evaluates_best("ncapo", {}), evaluates_best("ncapo", {"evaluation": "best"}), evaluates_best("pqn", {})
    (False, True, True)
    """
    return not find(name).algorithm.samples or settings.get("evaluation") == "best"


def load(path: str | Path, env: Any = None, *, eval_env: Any = None, trust: bool = False, **own: Any) -> Agent:
    """The agent of a run's folder or of a saved file, whatever its algorithm; see :meth:`Agent.load`."""
    saved = checkpoint.find(path)
    schema.check_checkpoint(saved.path, saved.content)
    return find(str(saved.content["algorithm"])).agent.from_checkpoint(saved, env, eval_env, trust, own)


def opponent(given: Any, game: Any) -> opponents.Opponent:
    """An agent, or the agent of a run's folder or a saved file, as an opponent in ``game``."""
    agent = given if isinstance(given, Agent) else load(given, game)
    return agent.as_opponent()


opponents.load_with(opponent)


def learner_for(env: Any, config: CommonSettings, n_seeds: int = 1) -> Learner:
    """The learner for an environment (or the name of one); the type of ``config`` says which algorithm learns."""
    env = envs.make(env)
    algorithm = next(row.algorithm for row in ROWS.values() if row.settings is type(config))
    return make_learner(algorithm(config, env), env, n_seeds)
