"""What a tabular run returns: the policy, its values, how it got there, and what can be said about it."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capo.files import prepare_folder, write_atomically, write_json
from capo.provenance import provenance
from capo.tabular.coordinates import Rule
from capo.tabular.mdp import MDP, Bools, Floats
from capo.update import StepSize

if TYPE_CHECKING:
    from capo.tabular.theory import Certificate

Ints = npt.NDArray[np.int64]


@dataclass
class Trace:
    """The updates of a run one by one, from the first on: what a certificate checks.

    Single-coordinate runs fill ``state``, ``action`` (T,) and ``row`` (T, A), the log-policy of that state after
    the update; the others fill ``log_policies`` (T, S, A), the whole log-policy after it. ``sign`` and ``alpha``
    are (T,) or (T, S, A) accordingly, with sign 0 outside the batch.

    Attributes:
        first: (S, A) log-policy before the first update.
        batch: (T, S, A) which pairs an update took; None for single coordinates.
        value: (T,) V at the start distribution after each update, as the run's own engine had it.
    """

    first: Floats
    sign: npt.NDArray[np.int8]
    alpha: Floats
    value: Floats
    state: Ints | None = None
    action: Ints | None = None
    row: Floats | None = None
    log_policies: Floats | None = None
    batch: Bools | None = None

    def __len__(self) -> int:
        return len(self.value)

    @property
    def single(self) -> bool:
        """Whether every update took one coordinate."""
        return self.state is not None


@dataclass
class Result:
    """The outcome of :func:`capo.solve` or of a baseline.

    Attributes:
        policy: (S, A).
        log_policy: (S, A), exact where ``policy`` underflows.
        values: (S,) V of the policy.
        q: (S, A).
        value: V at the start distribution.
        converged: whether the certified gap reached the tolerance asked for.
        gap_bound: V*(s) - V(s) is at most this at every state in ``covered``; no V* is needed for it.
        covered: (S,) the states the bound speaks of: all, or those a walk can meet.
        counts: (S, A) visits of every pair; None for baselines, which have no coordinates.
        history: arrays ``iteration``, ``value`` (at the start distribution), ``gap_bound``, ``seconds``.
        stopped: why the run ended, in words.
    """

    mdp: MDP
    algorithm: str
    log_policy: Floats
    values: Floats
    gap_bound: float
    covered: Bools
    converged: bool
    stopped: str
    iterations: int
    seconds: float
    history: dict[str, Floats]
    settings: dict[str, Any] = field(default_factory=dict)
    counts: Ints | None = None
    rule: Rule | None = None
    stepsize: StepSize | None = None
    sign_tol: float = 0.0
    cycle_length: int = 1
    mu: Floats | None = None
    trace: Trace | None = None
    refactorisations: int = 0

    @cached_property
    def policy(self) -> Floats:
        return np.exp(self.log_policy)

    @cached_property
    def q(self) -> Floats:
        return self.mdp.q_values(self.values)

    @property
    def value(self) -> float:
        return float(self.mdp.start @ self.values)

    @property
    def cycles(self) -> float:
        """Iterations in units of the rule's cycle (S*A single updates; 1 for batch)."""
        return self.iterations / self.cycle_length

    def certificate(self, mu: Any = None, seeds: int = 100, max_steps: int = 2000) -> Certificate:
        """Check the paper's statements along this run; see :func:`capo.theory.certify`."""
        from capo.tabular.theory import certify

        return certify(self, mu=mu, seeds=seeds, max_steps=max_steps)

    def __str__(self) -> str:
        mdp = self.mdp
        lines = [f"{self.algorithm} on {mdp.name or 'an MDP'} ({mdp.n_states} states, {mdp.n_actions} actions, "
                 f"gamma {mdp.gamma:g})"]  # fmt: skip
        what = ", ".join(f"{key} {value}" for key, value in self.settings.items())
        lines += [f"  settings    {what}"] if what else []
        unit = f" = {self.cycles:.4g} cycles" if self.cycle_length > 1 else ""
        lines.append(f"  stopped     {self.stopped}")
        lines.append(f"  iterations  {self.iterations}{unit}, {_seconds(self.seconds)}")
        lines.append(f"  value       {self.value:.10g} at the start distribution")
        whom = (
            "every state" if self.covered.all() else f"{self.covered.sum()} of {mdp.n_states} states (reachable)"
        )
        lines.append(f"  V* - V      at most {self.gap_bound:.3g} at {whom}")
        if self.counts is not None:
            lines.append(f"  visits      {self._visits()}")
        return "\n".join(lines)

    def _visits(self) -> str:
        assert self.counts is not None
        live = self.counts[~self.mdp.terminal] if not self.mdp.terminal.all() else self.counts
        never = int((live == 0).sum())
        text = f"{live.min()} to {live.max()} a pair"
        return text + (f"; {never} pairs never visited (Condition 1 asks for infinitely many)" if never else "")

    def save(self, folder: str | Path) -> Path:
        """Write result.json, history.csv and policy.npz into ``folder``."""
        target = prepare_folder(folder)
        rows = io.StringIO()
        table = csv.writer(rows, lineterminator="\n")
        table.writerow(self.history)
        table.writerows(zip(*(column.tolist() for column in self.history.values()), strict=True))
        write_atomically(target / "history.csv", lambda file: file.write(rows.getvalue().encode()))
        arrays: dict[str, Any] = {
            "log_policy": self.log_policy,
            "values": self.values,
            "covered": self.covered,
        }
        if self.counts is not None:
            arrays["counts"] = self.counts
        write_atomically(target / "policy.npz", lambda file: np.savez_compressed(file, **arrays))
        summary = {
            "mdp": self.mdp.name,
            "gamma": self.mdp.gamma,
            "states": self.mdp.n_states,
            "actions": self.mdp.n_actions,
            "algorithm": self.algorithm,
            "settings": {key: str(value) for key, value in self.settings.items()},
            "iterations": self.iterations,
            "value": self.value,
            "gap_bound": self.gap_bound,
            "covered_states": int(self.covered.sum()),
            "converged": self.converged,
            "stopped": self.stopped,
            "seconds": self.seconds,
            **provenance(),
        }
        return write_json(target / "result.json", summary)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"
