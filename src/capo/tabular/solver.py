"""``capo.solve``, the loop behind it, and the :class:`Result` it returns."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from capo.checks import as_path, one_of, positive, whole
from capo.errors import CapoError
from capo.files import atomic_file, prepare_folder, write_json, write_text
from capo.provenance import provenance
from capo.tabular.coordinates import Batch, fits_any_mdp, make_rule
from capo.tabular.engine import Problem, Runner, make_stepsize, prepare, solve_many, takes_k_steps
from capo.tabular.mdp import MDP, Floats, check_distribution, require_mdp
from capo.tabular.modified import SWEEPS
from capo.tabular.modified_run import DEVICES, ModifiedRun, prepare_modified
from capo.tabular.proof import Proof, prove
from capo.tabular.record import Callback, ManyResult, Recorder, RunRecord, Snapshot
from capo.tabular.theory import Certificate, certify
from capo.update import StepSize

__all__ = ["ManyResult", "Result", "Snapshot", "solve", "solve_many"]


@dataclass(repr=False)
class Result(RunRecord):
    """The outcome of :func:`capo.solve` or of a baseline.

    Attributes:
        policy: (S, A).
        log_policy: (S, A), exact where ``policy`` underflows.
        values: (S,) V of the policy; with the k-step critic a lower bound on it, within ``gap_bound`` of V*.
        q: (S, A).
        value: V at the start distribution.
        converged: whether the certified gap reached the tolerance asked for.
        gap_bound: V*(s) - V(s) is at most this at every state in ``covered``; computed without knowing V*.
        covered: (S,) the states that the bound holds for: all, or those that a walk can reach.
        tol: the gap that the run should reach; None if it should run a number of iterations.
        counts: (S, A) visits of every pair; None for baselines, which have no coordinates, and for the k-step
            critic, whose rounds are cycles.
        history: arrays ``iteration``, ``value`` (at the start distribution), ``gap_bound``, ``seconds``.
        stopped: why the run ended, in words.
        settings: what was run, for display.
        rule, stepsize, critic: the coordinate rule, the step size and the critic (``direct`` or ``signs`` for
            rule ``batch``, ``k-step`` for modified CAPO); None for baselines.
        baseline: which baseline it was; None for CAPO.
        trace: the first updates one by one; None for baselines and if they would not fit in memory.
        rounds: the first rounds of modified CAPO one by one, if they fit in memory.
        refactorisations: how often the critic had to start over because of rounding.
        horizon: H of a run over a finite horizon, whose ``mdp`` is the unrolled one; otherwise None.
        undiscounted: whether that was without a discount; ``values`` are then scaled as described in
            :meth:`MDP.unroll`.
    """

    def certificate(self, mu: Any = None, seeds: int = 100, max_steps: int = 2000) -> Certificate:
        """Check the paper's statements on this run; see :func:`capo.theory.certify`."""
        return certify(self, mu=mu, seeds=seeds, max_steps=max_steps)

    def _by_step(self, per_state: Floats) -> Floats:
        if self.horizon is None:
            raise CapoError("this run has no horizon: values and policies by step need solve(..., horizon=H)")
        return np.asarray(per_state[:-1].reshape(self.horizon, -1, *per_state.shape[1:]))

    @property
    def policy_by_step(self) -> Floats:
        """(H, S, A) the policy of each step of a run over a finite horizon."""
        return self._by_step(self.policy)

    @property
    def values_by_step(self) -> Floats:
        """(H, S) V of each step of a run over a finite horizon: the value of the remaining steps."""
        values = self._by_step(self.values)
        if not self.undiscounted:
            return values
        return np.asarray(values * self.mdp.gamma ** np.arange(len(values))[:, None])  # see MDP.unroll

    def __repr__(self) -> str:
        return (
            f"<Result: {self.algorithm} on {self.mdp.label}: value {self.value:.6g}, "
            f"V* - V <= {self.gap_bound:.3g} after {self.iterations:,} iterations>"
        )

    def __str__(self) -> str:
        mdp = self.mdp
        lines = [f"{self.algorithm} on {mdp.label} ({mdp.summary})"]
        what = ", ".join(f"{key} {value}" for key, value in self.settings.items())
        lines += [f"  settings    {what}"] if what else []
        unit = f" = {self.cycles:.4g} cycles" if self.cycle_length > 1 else ""
        time = f"{self.seconds:.2f} s" if self.seconds >= 0.1 else f"{self.seconds * 1000:.1f} ms"
        lines.append(f"  stopped     {self.stopped}")
        lines.append(f"  iterations  {self.iterations}{unit}, {time}")
        lines.append(f"  value       {self.value:.10g} at the start distribution")
        covered = int(self.covered.sum())
        where = "every state" if self.covered.all() else f"the {covered} reachable states of {mdp.n_states}"
        lines.append(f"  V* - V      at most {self.gap_bound:.3g} at {where}")
        if self.counts is not None:
            lines.append(f"  visits      {self._visits()}")
        return "\n".join(lines)

    def _visits(self) -> str:
        assert self.counts is not None
        wanted = self.mdp.allowed & (~self.mdp.terminal | self.mdp.terminal.all())[:, None]
        live = self.counts[wanted]
        never = int((live == 0).sum())
        text = f"{live.min()} to {live.max()} per pair"
        return text + (f"; {never} pairs never visited (Condition 1 requires infinitely many)" if never else "")

    def proof(self) -> Proof:
        """Bounds on V* - V that hold in floating point, with a proof; see :func:`capo.verify`."""
        return self._proof

    @cached_property
    def _proof(self) -> Proof:
        return prove(self.mdp, self.policy, self.values, self.covered, algorithm=self.algorithm)

    def save(self, path: str | Path) -> Path:
        """Write a proof or a folder.

        Args:
            path: a name that ends in .npz, for the :meth:`proof` alone; otherwise a folder, which gets
                result.json, history.csv, policy.npz and proof.npz.

        Returns:
            The proof, or result.json.
        """
        target = as_path("save(path)", path)
        if target.suffix == ".npz":
            return self.proof().save(target)
        prepare_folder(target)
        proof = self.proof()
        proof.save(target / "proof.npz")
        rows = io.StringIO()
        table = csv.writer(rows, lineterminator="\n")
        table.writerow(self.history)
        table.writerows(zip(*(column.tolist() for column in self.history.values()), strict=True))
        write_text(target / "history.csv", rows.getvalue())
        arrays: dict[str, Any] = {"log_policy": self.log_policy, "values": self.values, "covered": self.covered}
        if self.counts is not None:
            arrays["counts"] = self.counts
        with atomic_file(target / "policy.npz") as file:
            np.savez_compressed(file, **arrays)
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
            "proven_gap_bound": proof.gap_bound,
            "covered_states": int(self.covered.sum()),
            "converged": self.converged,
            "stopped": self.stopped,
            "seconds": self.seconds,
            **provenance(),
        }
        return write_json(target / "result.json", summary)


def solve(
    mdp: MDP,
    rule: Any = "cyclic",
    stepsize: str | StepSize = "log",
    iterations: int | None = None,
    tol: float | None = None,
    seed: int = 0,
    *,
    cycles: float | None = None,
    order: Any = None,
    d_gen: Any = None,
    behaviour: Any = None,
    epsilon: float | None = None,
    batch_size: int | None = None,
    horizon: int | None = None,
    restart: Any = None,
    multiple: float | None = None,
    eta: float | None = None,
    clip: float | None = None,
    beta: float | None = None,
    zeta: float | None = None,
    allow_violation: bool = False,
    init: Any = None,
    theta: Any = None,
    mu: Any = None,
    sign_tol: float | None = None,
    critic: Literal["auto", "exact", "direct", "signs", "k-step"] = "auto",
    k: int | None = None,
    sweeps: Literal["auto", "gauss-seidel", "jacobi"] = "auto",
    threads: int | None = None,
    device: Literal["auto", "cpu", "gpu"] = "auto",
    time_limit: float | None = None,
    record_every: int | None = None,
    callback: Callback | None = None,
    progress: bool = False,
) -> Result:
    """Solve an MDP by Coordinate Ascent Policy Optimization with exact advantages.

    Args:
        mdp: the MDP.
        rule: ``cyclic``, ``randomized``, ``batch``, ``on-policy``, ``behaviour``, a rule object from
            :mod:`capo.tabular.coordinates`, or an iterable of pairs (s, a) or of lists of pairs.
        stepsize: ``log``, ``fixed``, ``clipped``, ``on-policy``, or a :class:`capo.StepSize`.
        iterations: the maximum number of iterations; exactly this many if ``tol`` is not given.
        tol: stop when V* - V is certified to be at most this at every covered state. If ``tol``, ``iterations``
            and ``cycles`` are all missing, it is 1e-8, or the tightest gap that the sign tolerance allows if that
            is coarser.
        seed: for the rule's random numbers.
        cycles: ``iterations`` in units of the rule's cycle.
        order: order of the cyclic rule.
        d_gen: distribution of the randomized rule.
        behaviour, epsilon, batch_size: for the behaviour rule.
        horizon: for the rules that walk (on-policy and behaviour), steps after which a walk restarts. For the
            others, solve the MDP over this many steps only, with or without a discount: every step has a policy
            and values of its own (:attr:`Result.policy_by_step`, :attr:`Result.values_by_step`). What is solved
            is ``mdp.unroll(horizon)``, so every rule, bound and certificate applies.
        restart: for the rules that walk.
        multiple, eta, clip, beta, zeta: for the step size.
        allow_violation: accept beta, zeta or multiple outside the range the theorems need, with a warning.
        init: (S, A) initial policy; uniform if neither this nor ``theta`` is given.
        theta: (S, A) initial softmax parameters.
        mu: (S,) distribution for the rate bounds of the certificate; uniform by default.
        sign_tol: advantages up to this size count as 0. By default 1e-13 times a bound on the values (at
            least 1); with critic ``signs`` and a ``tol``, the largest that still reaches it.
        critic: how policies are evaluated. ``exact``: the paper's algorithm; rule ``batch`` then uses ``direct``
            (LU) or ``signs`` (iteratively, only as far as the signs need), by size. ``k-step``: modified CAPO, for
            large MDPs, with rule ``cyclic``, ``batch`` or an iterable of lists of pairs. ``auto``: ``k-step`` for
            sparse MDPs of 5000 states or more if neither ``iterations`` nor ``cycles`` is given, else ``exact``.
            ``result.critic`` tells which.
        k: k-step critic: sweeps per round; by default as many as the residuals suggest.
        sweeps: k-step critic: kind of sweeps; by default chosen by how the residuals behave.
        threads: k-step critic: number of threads; by default one per core for large MDPs.
        device: k-step critic: ``gpu`` uses all GPUs that jax sees, ``auto`` the same for large MDPs.
        time_limit: seconds after which the run ends at the next entry of the history.
        record_every: iterations between entries of the history; by default every cycle at first, then sparser.
        callback: called with a :class:`Snapshot` at every entry of the history; returning False stops the run.
        progress: show a status line on standard error.

    Returns:
        A :class:`capo.Result`.

    >>> import capo
    >>> result = capo.solve(capo.mdps.chain(10), rule="cyclic")
    >>> result.converged, round(result.value, 3)
    (True, 92.274)
    """
    arguments = dict(locals())
    if isinstance(mdp, MDP) and horizon is not None and fits_any_mdp(rule):
        return _solve_steps(arguments, whole("horizon", horizon))
    require_mdp(mdp)
    chosen = make_rule(
        rule, order=order, d_gen=d_gen, policy=behaviour, epsilon=epsilon, batch_size=batch_size,
        horizon=horizon, restart=restart,
    )  # fmt: skip
    step = make_stepsize(
        stepsize, mdp, allow_violation, multiple=multiple, eta=eta, clip=clip, beta=beta, zeta=zeta
    )
    seed = whole("seed", seed, 0)
    if callback is not None and not callable(callback):
        raise CapoError(f"callback={callback!r} must be callable")
    time_limit = None if time_limit is None else positive("time_limit", time_limit)
    if takes_k_steps(critic, mdp, chosen, step, counted=iterations is not None or cycles is not None):
        for name, value, allowed in (("sweeps", sweeps, SWEEPS), ("device", device, DEVICES)):
            one_of(name, value, allowed)
        if cycles is not None:
            raise CapoError("a round of the k-step critic is one cycle: give iterations instead of cycles")
        own_step = isinstance(stepsize, StepSize) or stepsize != "log" or multiple is not None
        modified = prepare_modified(
            mdp, chosen, step, own_step=own_step, iterations=iterations, tol=tol, init=init, theta=theta,
            sign_tol=sign_tol, k=k, sweeps=sweeps, threads=threads, device=device, record_every=record_every,
        )  # fmt: skip
        return _modified_result(modified, mu, callback, progress, time_limit)
    given = {"k": k, "threads": threads} | {"sweeps": sweeps, "device": device}
    wrong = [name for name, value in given.items() if not _left_out(value)]
    if wrong:
        raise CapoError(f"{', '.join(wrong)}: only for critic='k-step', but this run uses the exact critic")
    problem = prepare(mdp, chosen, step, iterations, tol, cycles, init, theta, mu, sign_tol, critic, record_every)
    recorder = Recorder(f"{chosen.name} CAPO", problem.limit, problem.tol, callback, progress, time_limit)
    runner = problem.runner(seed)
    ended = "the iterable of coordinates ended"
    iterations = recorder.run(runner.advance, runner.status, ended, problem.cycle, problem.record_every)
    return _result(problem, runner, iterations, {**problem.settings, "seed": seed}, recorder.outcome())


def _left_out(value: Any) -> bool:
    """Whether an option of the k-step critic says nothing; arrays, which compare entry by entry, say something."""
    return value is None or (isinstance(value, str) and value in ("auto", "cpu"))


def _modified_result(
    modified: ModifiedRun, mu: Any, callback: Callback | None, progress: bool, time_limit: float | None
) -> Result:
    """Run modified CAPO."""
    mdp, name = modified.mdp, f"modified {modified.rule.name} CAPO"
    weights = None if mu is None else check_distribution(mu, mdp.n_states, "mu", positive=True)
    recorder = Recorder(name, modified.limit, modified.tol, callback, progress, time_limit)
    rounds, trace = modified.run(recorder)
    outcome = recorder.outcome()
    return Result(
        **outcome,
        mdp=mdp,
        algorithm=name,
        log_policy=rounds.sweeper.log_policy,
        values=rounds.values,
        covered=np.ones(mdp.n_states, bool),
        converged=modified.tol is not None and outcome["gap_bound"] <= modified.tol,
        iterations=rounds.rounds,
        settings=modified.settings,
        tol=modified.tol,
        rule=modified.rule,
        stepsize=modified.stepsize,
        critic="k-step",
        sign_tol=modified.tolerance,
        mu=weights,
        rounds=trace,
    )


def _result(
    problem: Problem, runner: Runner, iterations: int, settings: dict[str, Any], outcome: dict[str, Any]
) -> Result:
    return Result(
        **outcome,
        mdp=problem.mdp,
        algorithm=f"{problem.rule.name} CAPO",
        log_policy=runner.log_policy,
        values=runner.values,
        covered=problem.covered,
        converged=problem.tol is not None and outcome["gap_bound"] <= problem.tol,
        iterations=iterations,
        settings=settings,
        tol=problem.tol,
        counts=runner.counts,
        rule=problem.rule,
        stepsize=problem.stepsize,
        critic=problem.critic if isinstance(problem.rule, Batch) else None,
        sign_tol=problem.sign_tol,
        cycle_length=problem.cycle,
        mu=problem.mu,
        trace=runner.trace(),
        refactorisations=runner.refactorisations,
    )


def _solve_steps(arguments: dict[str, Any], steps: int) -> Result:
    """Solve the MDP over a number of steps: the arguments of :func:`solve` with the MDP unrolled."""
    result = solve(**(arguments | {"mdp": arguments["mdp"].unroll(steps), "horizon": None}))
    result.horizon, result.undiscounted = steps, arguments["mdp"].gamma == 1
    result.settings = {"horizon": steps, **result.settings}
    return result
