"""``capo solve``: solve an MDP, given by name or file, with exact CAPO and print a short report."""

from __future__ import annotations

import argparse
import gc
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from capo.commands.common import Subparsers, add_command
from capo.errors import CapoError, CapoWarning
from capo.files import prepare_folder, write_json, write_text
from capo.report.figures import matplotlib
from capo.report.run_figures import draw_solution
from capo.runs.layout import is_run
from capo.tabular import mdps
from capo.tabular.baselines import policy_iteration
from capo.tabular.coordinates import ORDERS
from capo.tabular.solver import Result, solve

_CERTIFICATE = ("certificate.json", "certificate.txt")
CHECK_UP_TO = 2000  # states, for the comparison with policy iteration

_EXAMPLES = """\
MDPs:
  chain:10  chain:10,9     the paper's chain of length 10 with one or nine actions that move up
  garnet:100,4,5           100 states, 4 actions, 5 successors; also random:S,A  forest:S  grid:N  bandit:r1,r2,...
  slippery:1000            a slippery grid of 1000 x 1000 states, for scale
  FrozenLake-v1            Gymnasium's toy-text environments
  file.npz                 written by mdp.save(...), or any arrays transition, reward and gamma

examples:
  capo solve chain:10 --rule cyclic --certificate
  capo solve FrozenLake-v1 --gamma 0.99 --rule batch
  capo solve garnet:100,4,5 --rule randomized --tol 1e-6 --out runs/garnet
  capo solve bandit --rule on-policy --stepsize on-policy --iterations 10000
  capo solve slippery:1000 --tol 1e-6
  capo solve chain:10 --critic k-step --certificate
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "solve",
        run,
        help="solve a finite MDP exactly, with a certificate",
        description="Solve a finite MDP by coordinate ascent on a softmax policy, with exact advantages.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("mdp", metavar="MDP", help="a name or a file; see below")
    parser.add_argument("--gamma", type=float, help="discount (each MDP has its own default)")

    rule = parser.add_argument_group("coordinate rule").add_argument
    rule("--rule", default="cyclic", help="cyclic, randomized, batch, on-policy or behaviour (default cyclic)")
    rule("--order", help=f"order of the cyclic rule: {', '.join(ORDERS)}")
    behaviour = "behaviour rule: 'epsilon-greedy' follows the current policy (default uniform)"
    rule("--behaviour", metavar="POLICY", help=behaviour)
    rule("--epsilon", type=float, help="fraction of random actions in the epsilon-greedy behaviour (default 0.1)")
    rule("--batch-size", type=int, metavar="N", help="pairs per iteration of the behaviour rule (default 1)")
    horizon = "solve the MDP over N steps only; rules on-policy and behaviour: steps after which a walk restarts"
    rule("--horizon", type=int, metavar="N", help=horizon)

    step = parser.add_argument_group("step size").add_argument
    step("--stepsize", default="log", help="log, fixed, clipped or on-policy (default log)")
    step("--multiple", type=float, help="log: multiple of log 1/pi, at least 1")
    step("--eta", type=float, help="fixed: the step size")
    step("--clip", type=float, help="clipped: upper limit of log 1/pi")
    step("--beta", type=float, help="on-policy: at most 1/(|A|+1)")
    step("--zeta", type=float, help="on-policy: at most 1/|A|")
    step("--allow-violation", action="store_true", help="allow step sizes that the theorems do not cover")

    stop = parser.add_argument_group("stopping and output").add_argument
    stop("--iterations", type=int, metavar="N", help="run N iterations, or fewer if --tol is reached first")
    stop("--cycles", type=float, metavar="N", help="the same, counted in cycles of the rule")
    stop(
        "--tol", type=float, help="stop when V* - V is certified to be at most this (default 1e-8, if attainable)"
    )
    stop("--sign-tol", type=float, help="treat advantages up to this size as 0")
    critic = "how policies are evaluated: auto, exact, direct, signs or k-step (default auto: k-step if large)"
    stop("--critic", default="auto", help=critic)
    stop("--k", type=int, metavar="N", help="k-step critic: sweeps per round (default: as many as it takes)")
    stop("--threads", type=int, metavar="N", help="k-step critic: threads (default: one per core if large)")
    stop("--device", default="auto", help="k-step critic: auto, cpu or gpu (default auto)")
    stop("--time-limit", type=float, metavar="S", help="stop after S seconds and report what is certified by then")
    stop("--seed", type=int, default=0, help="seed of the rule's random numbers (default 0)")
    stop("--certificate", action="store_true", help="check the paper's statements during the run")
    stop("--out", type=Path, metavar="DIR", help="write the result, history, policy and a plot to DIR")


_OWN = ("mdp", "gamma", "out", "certificate", "run")  # options that are not passed on to capo.solve


def run(options: argparse.Namespace) -> int:
    """Run the command; 1 if a tolerance was not reached or a certificate line failed."""
    gc.set_threshold(100_000, 50, 100)  # compiling makes many objects, and hardly any garbage in cycles
    mdp = mdps.parse(options.mdp, options.gamma)
    if options.out is not None:
        matplotlib()  # fail now if it is not installed, not after the work
        if is_run(options.out):
            raise CapoError(f"{options.out} contains a training run; choose another folder with --out")
        prepare_folder(options.out)
    chosen: dict[str, Any] = {name: value for name, value in vars(options).items() if name not in _OWN}
    if options.certificate and options.critic == "auto":
        chosen["critic"] = "exact"  # the paper's statements are about its exact algorithm
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CapoWarning)
        result = solve(mdp, progress=True, **chosen)
    for warning in caught:
        print(f"capo: warning: {warning.message}", file=sys.stderr)
    print(result)
    if options.out is not None:
        print(f"  written to  {options.out}/: {', '.join(_save(result, options.out))}")
        proven = result.proof().gap_bound
        print(f"  proven      V* - V <= {proven:.6g} with every rounding error counted; see capo verify --help")
    if result.mdp.n_states <= CHECK_UP_TO:
        gap = np.abs(policy_iteration(result.mdp).values - result.values)[result.covered].max()
        print(f"  checked     against policy iteration: values differ by at most {gap:.2g}")
    certificate = result.certificate() if options.certificate else None
    if certificate is not None:
        print(f"\n{certificate}")
        if options.out is not None:
            write_json(options.out / _CERTIFICATE[0], certificate.to_dict())
            write_text(options.out / _CERTIFICATE[1], f"{certificate}\n")
            print(f"\nwritten to {options.out}/: {', '.join(_CERTIFICATE)}")
    missed = result.tol is not None and not result.converged
    return 1 if missed or (certificate is not None and not certificate.held) else 0


def _save(result: Result, folder: Path) -> list[str]:
    """Write the result and remove the certificate of an earlier run."""
    result.save(folder)
    for name in _CERTIFICATE:
        (folder / name).unlink(missing_ok=True)
    draw_solution(result.history, folder / "history.png", title=f"{result.algorithm} on {result.mdp.name}")
    return ["result.json", "history.csv", "history.png", "policy.npz", "proof.npz"]
