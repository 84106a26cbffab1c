"""The result of playing whole episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, repr=False)
class Evaluation:
    """What :meth:`Agent.evaluate` found.

    Attributes:
        returns: (seeds, episodes) undiscounted return of every episode.
        seeds: the seeds whose policies played, in that order.
        deterministic: whether the most likely action was taken rather than a sampled one.
        frames: of training behind the policies.
        diverged: the seeds that were left out since they diverged.
    """

    returns: np.ndarray[Any, Any]
    seeds: tuple[int, ...]
    deterministic: bool
    frames: int
    diverged: tuple[int, ...] = ()

    @property
    def mean(self) -> float:
        """Mean return over all seeds and episodes."""
        return float(self.returns.mean())

    @property
    def standard_error(self) -> float:
        """Of :attr:`mean`: over the episodes of one seed; over the seeds' means if there are several.

        Episodes of one policy say nothing about another training run, so with several seeds they don't count
        as independent.
        """
        sample = self.returns[0] if len(self.seeds) == 1 else self.returns.mean(axis=1)
        if len(sample) < 2:
            return float("nan")
        return float(sample.std(ddof=1) / np.sqrt(len(sample)))

    def to_dict(self) -> dict[str, Any]:
        """As it stands in evaluation.json, where provenance is added."""
        return {
            "mean": self.mean,
            "standard_error": None if np.isnan(self.standard_error) else self.standard_error,
            "standard_error_over": "episodes" if len(self.seeds) == 1 else "seeds",
            "episodes_per_seed": int(self.returns.shape[1]),
            "deterministic": self.deterministic,
            "frames": self.frames,
            "seeds": list(self.seeds),
            **({"diverged": list(self.diverged)} if self.diverged else {}),
            "mean_by_seed": [float(mean) for mean in self.returns.mean(axis=1)],
            "returns": [[float(value) for value in row] for row in self.returns],
        }

    def __str__(self) -> str:
        error = "" if np.isnan(self.standard_error) else f" ± {self.standard_error:.2g}"
        many = f" x {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        how = "most likely actions" if self.deterministic else "sampled actions"
        without = f"; excluding seed {', '.join(map(str, self.diverged))}, diverged" if self.diverged else ""
        return f"return {self.mean:.4g}{error} ({self.returns.shape[1]} episodes{many}, {how}{without})"

    def __repr__(self) -> str:
        return f"<Evaluation: {self}>"
