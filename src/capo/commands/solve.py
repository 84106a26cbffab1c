"""``capo solve``: an MDP from its name or file, solved by exact CAPO, with a short report."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from capo.errors import CapoError, CapoWarning
from capo.files import prepare_folder, write_atomically, write_json
from capo.report.figures import matplotlib
from capo.report.folders import is_run
from capo.report.history import draw_history
from capo.tabular import mdps
from capo.tabular.baselines import policy_iteration
from capo.tabular.coordinates import ORDERS
from capo.tabular.result import Result
from capo.tabular.solver import solve
from capo.tabular.theory import Certificate

CHECK_UP_TO = 2000  # states, for the comparison with policy iteration

_EXAMPLES = """\
MDPs:
  chain:10  chain:10,9     the paper's chain of 10 with one or nine actions that go up
  garnet:100,4,5           100 states, 4 actions, 5 successors; also random:S,A  forest:S  grid:N  bandit:r1,r2,...
  slippery:1000            a slippery grid of 1000 x 1000 states, for scale
  FrozenLake-v1            Gymnasium's toy-text environments
  file.npz                 what mdp.save(...) wrote, or arrays transition, reward and gamma

examples:
  capo solve chain:10 --rule cyclic --certificate
  capo solve FrozenLake-v1 --gamma 0.99 --rule batch
  capo solve garnet:100,4,5 --rule randomized --tol 1e-6 --out runs/garnet
  capo solve bandit --rule on-policy --stepsize on-policy --iterations 10000
  capo solve slippery:316 --rule batch --tol 1e-6
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "solve",
        help="solve a finite MDP exactly, with a certificate",
        description="Solve a finite MDP by coordinate ascent on its softmax policy, with exact advantages.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("mdp", metavar="MDP", help="a name or a file, see below")
    parser.add_argument("--gamma", type=float, help="discount (each MDP has its own default)")
    rule = parser.add_argument_group("coordinate rule")
    rule.add_argument(
        "--rule", default="cyclic", help="cyclic, randomized, batch, on-policy or behaviour (default cyclic)"
    )
    rule.add_argument("--order", help=f"of the cyclic rule: {', '.join(ORDERS)}")
    rule.add_argument(
        "--behaviour", metavar="POLICY", help="'epsilon-greedy': follow the policy (default: uniform)"
    )
    rule.add_argument("--epsilon", type=float, help="of the epsilon-greedy behaviour (default 0.1)")
    rule.add_argument("--batch-size", type=int, metavar="N", help="pairs an iteration of the behaviour rule")
    rule.add_argument("--horizon", type=int, metavar="N", help="steps after which a walk restarts")
    step = parser.add_argument_group("step size")
    step.add_argument("--stepsize", default="log", help="log, fixed, clipped or on-policy (default log)")
    for name, what in (
        ("multiple", "of log 1/pi, at least 1 (log)"),
        ("eta", "the step (fixed)"),
        ("clip", "at which log 1/pi is cut (clipped)"),
        ("beta", "at most 1/(|A|+1) (on-policy)"),
        ("zeta", "at most 1/|A| (on-policy)"),
    ):
        step.add_argument(f"--{name}", type=float, help=what)
    step.add_argument("--allow-violation", action="store_true", help="run step sizes outside the theorems' range")
    stop = parser.add_argument_group("stopping and output")
    stop.add_argument("--iterations", type=int, metavar="N", help="exactly so many, unless --tol is reached first")
    stop.add_argument("--cycles", type=float, metavar="N", help="the same in cycles")
    stop.add_argument(
        "--tol", type=float, help="certified bound on V* - V to stop at (default 1e-8, if attainable)"
    )
    stop.add_argument("--sign-tol", type=float, help="advantages up to this size count as 0")
    stop.add_argument("--critic", default="auto", help="evaluation in rule batch: auto, direct or signs")
    stop.add_argument("--seed", type=int, default=0, help="of the rule's random numbers (default 0)")
    stop.add_argument("--certificate", action="store_true", help="check the paper's statements along the run")
    stop.add_argument("--out", type=Path, metavar="DIR", help="write result, history, policy and a plot there")
    parser.set_defaults(run=run)


_PASSED_ON = (
    "rule", "stepsize", "iterations", "tol", "seed", "cycles", "order", "behaviour", "epsilon", "batch_size",
    "horizon", "multiple", "eta", "clip", "beta", "zeta", "allow_violation", "sign_tol", "critic",
)  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run the command; 1 when a tolerance was not reached or a certificate line failed."""
    mdp = mdps.parse(options.mdp, options.gamma)
    if options.out is not None:
        matplotlib()  # so that a missing package is known before the work
        if is_run(options.out):
            raise CapoError(f"{options.out}: holds a training run; give another folder as --out")
        prepare_folder(options.out)
    chosen: dict[str, Any] = {name: getattr(options, name) for name in _PASSED_ON}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CapoWarning)
        result = solve(mdp, progress=True, **chosen)
    for warning in caught:
        print(f"capo: warning: {warning.message}", file=sys.stderr)
    print(result)
    if options.out is not None:
        print(f"  written to  {options.out}/: {', '.join(_save(result, options.out))}")
    if mdp.n_states <= CHECK_UP_TO:
        print(_against_policy_iteration(result))
    certificate = result.certificate() if options.certificate else None
    if certificate is not None:
        print(f"\n{certificate}")
        if options.out is not None:
            print(f"\nwritten to {options.out}/: {', '.join(_save_certificate(certificate, options.out))}")
    missed = "tol" in result.settings and not result.converged  # asked for a gap and did not get there
    return 1 if missed or (certificate is not None and not certificate.held) else 0


def _against_policy_iteration(result: Result) -> str:
    best = policy_iteration(result.mdp)
    gap = np.abs(best.values - result.values)[result.covered].max()
    return f"  checked     against policy iteration: largest difference of values {gap:.2g}"


_CERTIFICATE = ("certificate.json", "certificate.txt")


def _save(result: Result, folder: Path) -> list[str]:
    """Write the result; an earlier run's certificate does not stay beside it."""
    result.save(folder)
    for name in _CERTIFICATE:
        (folder / name).unlink(missing_ok=True)
    draw_history(result.history, folder / "history.png", title=f"{result.algorithm} on {result.mdp.name}")
    return ["result.json", "history.csv", "history.png", "policy.npz"]


def _save_certificate(certificate: Certificate, folder: Path) -> tuple[str, ...]:
    write_json(folder / _CERTIFICATE[0], certificate.to_dict())
    text = f"{certificate}\n".encode()
    write_atomically(folder / _CERTIFICATE[1], lambda file: file.write(text))
    return _CERTIFICATE
