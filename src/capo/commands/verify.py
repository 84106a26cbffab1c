"""``capo verify``: check a proof file against the MDP that it is about."""

from __future__ import annotations

import argparse
from pathlib import Path

from capo.commands.common import Subparsers, add_command
from capo.tabular import mdps
from capo.tabular.proof import verify

_EXAMPLES = """\
A proof is written by result.save("x.npz") and by 'capo solve MDP --out DIR' (DIR/proof.npz). It holds a policy,
values, and bounds on V* - V that hold despite rounding. Exit status: 0 proved, 1 not proved, 2 the file is
damaged or belongs to another MDP.

examples:
  capo solve slippery:100 --rule batch --tol 1e-6 --out runs/slippery
  capo verify runs/slippery/proof.npz slippery:100
  capo verify proof.npz mine.npz
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "verify",
        run,
        help="check a proof of how far a policy is from the best one",
        description="Check a proof file: compute its bounds again, with every rounding error accounted for.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the proof, an .npz")
    parser.add_argument("mdp", metavar="MDP", help="a name or a file, as for 'capo solve'")
    parser.add_argument("--gamma", type=float, help="discount, if it is not the MDP's own")
    parser.add_argument("--horizon", type=int, metavar="N", help="the MDP over N steps, as given to 'capo solve'")


def run(options: argparse.Namespace) -> int:
    """Run the command; 1 if a claim could not be confirmed."""
    mdp = mdps.parse(options.mdp, options.gamma)
    mdp = mdp if options.horizon is None else mdp.unroll(options.horizon)
    found = verify(options.file, mdp)
    proof = found.proof
    where = "every state" if proof.covered.all() else f"{int(proof.covered.sum())} of {mdp.n_states} states"
    print(f"{'proved' if found else 'NOT PROVED'}: {options.file} on {mdp.label} ({mdp.summary})")
    print(f"  policy      {proof.algorithm}")
    print(f"  claimed     V* - V <= {proof.gap_bound!r} at {where}")
    print(f"  recomputed  V* - V <= {found.gap_bound!r}, every rounding error accounted for")
    if found.problem:
        print(f"  problem     {found.problem}")
    return 0 if found else 1
