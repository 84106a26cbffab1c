"""``capo envs``: the environments that are installed, and what they look like to an agent."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from capo.commands.common import Subparsers, add_command
from capo.errors import CapoError, unknown_name

# In the order in which they are shown; the suites among them are written out, since importing them brings jax.
GROUPS = ("minatar", "gymnasium", "minigrid", "atari", "gymnax", "pgx", "jumanji", "craftax", "navix")

EXAMPLES = """examples:
  capo envs                list everything that is installed
  capo envs gymnax pgx     only these groups
  capo envs minigrid       names include the wrapper that the observations need
  capo train gymnax:CartPole-v1 --seeds 8
"""


def add_parser(subparsers: Subparsers) -> None:
    option = add_command(
        subparsers,
        "envs",
        run,
        help="list the environments that are installed",
        description="List the environments that are installed, with their observations and actions.",
        epilog=EXAMPLES,
    ).add_argument
    option("group", nargs="*", metavar="GROUP", help=f"any of {', '.join(GROUPS)} (default: all)")


def run(arguments: argparse.Namespace) -> int:
    """Print a table for each group."""
    from capo.envs import catalogue

    for group in arguments.group:
        if group not in GROUPS:
            raise unknown_name("group", group, GROUPS)
    missing = []
    for group in arguments.group or GROUPS:
        version = catalogue.version(group)
        if version is None:
            missing.append(group)
            continue
        print(f"{group} {version}", flush=True)
        for line in _lines(group):
            print(line, flush=True)
        print()
    for group in missing:
        print(f"{group} is not installed: pip install 'capo-rl[{catalogue.EXTRAS.get(group, group)}]'")
    return 0


def _lines(group: str) -> Iterator[str]:
    from capo.envs import catalogue

    names = catalogue.names(group)
    width = max(map(len, names), default=0)
    for name in names:
        yield f"  {name:{width}}  {_spaces(name)}"


def _spaces(name: str) -> str:
    from capo import envs
    from capo.envs import catalogue

    reason = catalogue.slow(name)
    if reason:
        return reason
    try:
        env: Any = envs.make(name)
    except CapoError as error:
        return f"not supported: {str(error).removeprefix(repr(name)).lstrip(': ')}"
    except Exception as error:  # a package that it needs and that is missing, data that it would download
        return f"cannot be made: {type(error).__name__}: {error}".splitlines()[0]
    spec = envs.EnvSpec(env)
    parts = ", ".join(f"{part.name} {part.dtype}{list(part.shape)}".strip() for part in spec.seen)
    actions = " x ".join(map(str, spec.factors or (spec.n_actions,)))
    return f"{parts}; {actions} actions{', masked' if spec.masked else ''}"
