"""A run of modified CAPO behind ``capo.solve``: its arguments, checked, and a loop that can stop at any moment."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from capo.checks import positive, whole
from capo.errors import CapoError, CapoWarning, unknown_name
from capo.provenance import usable_cores
from capo.tabular.coordinates import Batch, Cyclic, FromIterable, Rule
from capo.tabular.engine import DEFAULT_TOL, initial_log_policy, rounded_up
from capo.tabular.mdp import MDP
from capo.tabular.modified import (
    EPS,
    SHARP,
    SWEEPS,
    THREADS_ABOVE,
    Rounds,
    Sharp,
    Soft,
    Sweeper,
    action_mask,
    traced_rounds,
)
from capo.tabular.record import Recorder, RoundTrace, Status
from capo.update import StepSize

DEVICES = ("auto", "cpu", "gpu")
DEFAULT_ROUNDS = 1_000_000  # where a run that asked for a gap gives up
GPU_ABOVE = 1_000_000  # pairs above which device="auto" looks for a GPU


@dataclass
class ModifiedRun:
    """A run that has been checked in full and is ready to start.

    Attributes:
        limit: the most rounds.
        tolerance: differences of Q up to this have sign 0.
        sharp: whether steps leave one action per state.
        settings: for display; completed by :meth:`run`.
    """

    mdp: MDP
    rule: Rule
    stepsize: StepSize
    limit: int
    tol: float | None
    tolerance: float
    sharp: bool
    init: Any
    theta: Any
    k: int | None
    sweeps: str
    threads: int
    device: str
    record_every: int | None
    settings: dict[str, Any] = field(default_factory=dict)

    def _sweeper(self) -> Sweeper:
        gauss_seidel = self.sweeps == "gauss-seidel"
        if self.device == "gpu":
            from capo.tabular.modified_device import Device  # jax takes a second to import

            return Device.of(self.mdp)
        if self.sharp:
            return Sharp(self.mdp, gauss_seidel, self.threads)
        first = initial_log_policy(self.mdp, self.init, self.theta)
        in_turn, sets = isinstance(self.rule, Cyclic), None
        if isinstance(self.rule, FromIterable):
            sets = self.rule.source(self.mdp, np.random.default_rng(0)).blocks
        return Soft(
            self.mdp, first, self.stepsize.multiple, in_turn, self.tolerance, sets, gauss_seidel, self.threads
        )

    def run(self, recorder: Recorder) -> tuple[Rounds, RoundTrace | None]:
        """Make rounds until the recorder ends the run or the user does; returns them and their trace."""
        sweeper = self._sweeper()
        choose = self.sweeps == "auto" and self.device == "cpu"
        rounds = Rounds(sweeper, self.mdp.gamma, self.k, choose, traced_rounds(self.mdp))
        run_rounds(rounds, recorder, self.mdp, self.tol, self.record_every)
        kind = "Gauss-Seidel" if sweeper.gauss_seidel else "Jacobi with MacQueen's shift"
        self.settings["sweeps"] = f"{rounds.sweeps}, {kind}"
        all_pairs, in_turn = not isinstance(self.rule, FromIterable), isinstance(self.rule, Cyclic)
        return rounds, rounds.trace(self.stepsize.multiple, in_turn, all_pairs, self.tolerance)


def run_rounds(rounds: Rounds, recorder: Recorder, mdp: MDP, tol: float | None, every: int | None = None) -> None:
    """Make rounds until the recorder or the user ends the run; then certify what there is, from every pair."""
    sweeper, ended = rounds.sweeper, ""
    rounds.gap_bound = _first_gap(mdp)

    def advance(n: int) -> int:
        nonlocal ended
        for done in range(n):
            rounds.round()
            if isinstance(sweeper, Soft) and sweeper.ended:
                ended = "the iterable of coordinates ended"
                rounds.rounds -= 1  # that one found nothing to update
            elif rounds.stalled:
                ended = f"rounding keeps V* - V from being known to within less than {rounds.gap_bound:.3g}"
            if ended:
                return 0
            if tol is not None and rounds.gap_bound <= tol:
                rounds.certify()  # the bound of the round itself, confirmed from every pair
                return done + 1
        return n

    def status() -> Status:
        return rounds.value_at(mdp.start), rounds.gap_bound, lambda: sweeper.log_policy

    try:
        try:
            recorder.run(advance, status, "no more rounds", every=every, early=True)
        except KeyboardInterrupt:
            recorder.stopped = "stopped by Ctrl-C"
            sweeper.wait()
        recorder.stopped = ended or recorder.stopped
        # Wherever a stop came: the certificate holds for any policy and any values.
        gap = rounds.certify()
        recorder.settle(rounds.rounds, rounds.value_at(mdp.start), gap)
    finally:
        sweeper.close()


def _first_gap(mdp: MDP) -> float:
    """A bound on V* - V of the first policy: the greatest reward for ever against the least."""
    mask = action_mask(mdp)
    rewards = mdp.reward if mask is None else mdp.reward[mask]
    return float(rewards.max() - rewards.min()) / (1 - mdp.gamma)


# --- checks ---------------------------------------------------------------------------------------------------


def prepare_modified(
    mdp: MDP, rule: Rule, step: StepSize, *, own_step: bool, iterations: int | None, tol: float | None,
    init: Any, theta: Any, sign_tol: float | None, k: int | None, sweeps: str, threads: int | None, device: str,
    record_every: int | None,
) -> ModifiedRun:  # fmt: skip
    """Check the arguments of :func:`capo.solve` for the k-step critic and fill in their defaults.

    ``own_step``: whether the user chose the step size; otherwise the cyclic rule takes the largest.
    """
    rule.check(mdp)
    _check_rule(rule, step)
    if sweeps not in SWEEPS:
        raise unknown_name("sweeps", sweeps, SWEEPS)
    sharp = isinstance(rule, Cyclic) and not own_step and init is None and theta is None
    if sharp:
        step = StepSize("log", multiple=SHARP)
    where = _check_device(device, mdp, sharp, sweeps)
    scale = float(np.abs(mdp.reward).max()) / (1 - mdp.gamma)
    tolerance = 8 * EPS * scale if sign_tol is None else positive("sign_tol", sign_tol)
    limit = DEFAULT_ROUNDS if iterations is None else whole("iterations", iterations)
    tol = _check_tol(tol, iterations, 2 * tolerance / (1 - mdp.gamma))
    pairs = mdp.n_states * mdp.n_actions
    several = usable_cores() if pairs >= THREADS_ABOVE else 1
    count = several if threads is None else whole("threads", threads)
    settings: dict[str, Any] = {
        "rule": rule.name,
        "step size": "log 1/pi" if step.multiple == 1 else f"{step.multiple:g} log 1/pi",
        "critic": "k-step",
        "k": "adaptive" if k is None else whole("k", k),
        **({"tol": f"{tol:g}"} if tol is not None else {}),
        **({"device": where} if where != "cpu" else {"threads": count}),
    }
    return ModifiedRun(
        mdp, rule, step, limit, tol, tolerance, sharp, init, theta, k, sweeps, min(count, mdp.n_states), where,
        None if record_every is None else whole("record_every", record_every), settings,
    )  # fmt: skip


def _check_rule(rule: Rule, step: StepSize) -> None:
    if step.kind != "log":
        raise CapoError(f"critic='k-step' needs steps of at least log 1/pi: stepsize='log', not {step.kind!r}")
    if isinstance(rule, Cyclic):
        if rule.order != "state-major":
            raise CapoError("critic='k-step' goes through the pairs state by state: order must be 'state-major'")
    elif not isinstance(rule, Batch | FromIterable):
        raise CapoError(
            f"critic='k-step' takes rule 'cyclic', 'batch' or an iterable of lists of pairs, not {rule.name!r}"
        )


def _check_tol(tol: float | None, iterations: int | None, attainable: float) -> float | None:
    if tol is not None:
        return positive("tol", tol)
    if iterations is not None:
        return None
    if attainable > DEFAULT_TOL:
        warnings.warn(
            f"the default tol of {DEFAULT_TOL:g} may not be attainable on this MDP because of rounding; stopping "
            f"at {rounded_up(attainable)} instead",
            CapoWarning,
            stacklevel=4,
        )
    return max(DEFAULT_TOL, attainable)


def _check_device(device: str, mdp: MDP, sharp: bool, sweeps: str) -> str:
    """``cpu`` or ``gpu``."""
    if device not in DEVICES:
        raise unknown_name("device", device, DEVICES)
    if device == "gpu":
        if not sharp or sweeps == "gauss-seidel":
            raise CapoError(
                "device='gpu' supports only Jacobi sweeps with the largest steps: use rule='cyclic' "
                "without stepsize options, init, theta or sweeps='gauss-seidel', or device='cpu'"
            )
        return "gpu"
    driver = Path("/proc/driver/nvidia/version")
    large = mdp.n_states * mdp.n_actions >= GPU_ABOVE
    if device == "auto" and sharp and sweeps != "gauss-seidel" and large and driver.exists():
        from capo.tabular.modified_device import has_gpu

        return "gpu" if has_gpu() else "cpu"
    return "cpu"
