"""Notices a policy that became deterministic before it learned anything."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from capo.neural.algorithms.settings import CommonSettings
from capo.neural.metrics import Rows
from capo.neural.parts.policies import Sizes
from capo.runs.layout import FRAMES, RETURN, SEED

COLLAPSED = 0.02  # of the uniform policy's entropy
FIRST, LAST = 3, 5  # log points with a finished episode: what returns are compared with, and what is compared
LEAST_PART = 0.1  # of the plan's frames: before that, a low entropy may pass


@dataclass
class _History:
    """What is kept of a seed's log points."""

    first: list[float] = field(default_factory=list)  # its first returns
    collapsed: list[float] = field(default_factory=list)  # its returns since the entropy is low
    explored: bool = False  # whether the entropy was ever high


class CollapseWatch:
    """Looks at every log point for seeds whose entropy is gone while their returns have not risen.

    Says so once, and only of seeds that it saw explore: what a resumed run did before is not known here.

    Args:
        settings: of the run; they decide what is suggested.
        sizes: of the factors of an action; of its only one, if it is a single number.
        frames: of the plan, per seed.
        own: whether the agent acts itself during training.
    """

    def __init__(self, settings: CommonSettings, sizes: Sizes, frames: int, own: bool = True) -> None:
        self._settings, self._frames = settings, frames
        self._most = sum(math.log(size) for size in sizes)
        self._seeds: dict[float, _History] = {}
        # Where somebody else acts during training, its returns say nothing about the policy.
        own = own and getattr(settings, "behaviour", None) != "uniform"
        self._silent = not own or self._most == 0

    def look(self, log_point: Rows) -> str | None:
        """A notice about the rows of one log point, if there is something to say."""
        stuck = [row for row in log_point if not self._silent and self._is_stuck(row)]
        if not stuck:
            return None
        self._silent = True
        worst = min(stuck, key=lambda row: row["entropy"])
        history = self._seeds[worst[SEED]]
        seeds = ", ".join(f"{row[SEED]:g}" for row in stuck)
        return (
            f"seed{'s' if len(stuck) > 1 else ''} {seeds}: the policy has become deterministic (entropy "
            f"{worst['entropy']:.2g} of at most {self._most:.2g}) but returns have not risen "
            f"({np.mean(history.first):.4g} at first, {np.mean(history.collapsed):.4g} now), so it hardly "
            f"explores. Unless there is nothing more to learn, start a new run with {self._cure()}"
        )

    def _is_stuck(self, row: dict[str, float]) -> bool:
        entropy, reached = row.get("entropy", math.nan), row[RETURN]
        history = self._seeds.setdefault(row[SEED], _History())
        if math.isnan(entropy):
            return False
        if entropy > COLLAPSED * self._most:
            history.explored = True
            history.collapsed = []
        if math.isnan(reached):
            return False
        if len(history.first) < FIRST:
            history.first.append(reached)
        elif entropy <= COLLAPSED * self._most:
            history.collapsed = [*history.collapsed, reached][-LAST:]
        enough = len(history.collapsed) == LAST and row[FRAMES] >= LEAST_PART * self._frames
        return history.explored and enough and not _risen(history.first, history.collapsed)

    def _cure(self) -> str:
        """What to try, among the settings that the algorithm has."""
        settings = self._settings
        tries = []
        if hasattr(settings, "advantage_weight") and settings.advantage_weight != "certain":
            tries.append("advantage_weight=certain")
        if hasattr(settings, "entropy"):
            tries.append(f"a larger entropy weight (entropy={max(5 * settings.entropy, 0.01):g})")
        if hasattr(settings, "epsilon_final"):
            tries.append(f"more exploration (epsilon_final={min(max(2 * settings.epsilon_final, 0.05), 1):g})")
        tries.append(f"a lower learning_rate ({settings.learning_rate / 3:.1g})")
        return ", ".join(tries[:-1]) + (" or " if len(tries) > 1 else "") + tries[-1]


def _risen(before: list[float], after: list[float]) -> bool:
    """Whether the mean rose by more than twice its standard error.

    The noise of returns is taken from ``after`` alone, where the policy no longer changes: a run that learns fast
    rises within ``before``, whose spread is then what it learned.
    """
    error = math.sqrt(np.var(after, ddof=1) * (1 / len(before) + 1 / len(after)))
    return float(np.mean(after)) - float(np.mean(before)) > 2 * error
