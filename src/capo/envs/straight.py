"""A function of jax without its loops: every ``scan``, ``fori_loop`` and ``while_loop`` written out.

On a GPU a loop is paid for at every turn: a few launches, and a round trip to the host where its condition has to
be known. Games have many short loops over a handful of things (eight cars, ten columns); written out, the compiler
fuses all of their turns into a few kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from capo.errors import CapoError

Array = Any
PyTree = Any


def straight(function: Callable[..., PyTree], turns: int) -> Callable[..., PyTree]:
    """``function`` with its loops written out (those inside the body of a ``scan`` stay), and branches as choices.

    Args:
        function: of arrays (or trees of them) to a tree of arrays.
        turns: what a ``while_loop`` never exceeds; further turns would be missing.

    Raises:
        CapoError: when traced, if ``turns`` is 0 and there is a ``while_loop``.
    """

    def written_out(*arguments: PyTree) -> PyTree:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        results = _evaluate(program, jax.tree.leaves(arguments), turns)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return written_out


def _evaluate(program: Any, arguments: list[Array], turns: int) -> list[Array]:
    """The results of a closed jaxpr."""
    jaxpr = program.jaxpr
    values: dict[Any, Array] = dict(zip(jaxpr.constvars, program.consts, strict=True))
    values |= dict(zip(jaxpr.invars, arguments, strict=True))

    def read(variable: Any) -> Array:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        given = [read(variable) for variable in equation.invars]
        primitive, params = equation.primitive, equation.params
        if primitive.name in ("jit", "pjit"):
            found = _evaluate(params["jaxpr"], given, turns)
        elif primitive.name in ("custom_jvp_call", "custom_vjp_call"):
            found = _evaluate(params["call_jaxpr"], given, turns)
        elif primitive.name == "while":
            if not turns:
                raise CapoError("a loop whose length is not known beforehand: say how many turns it makes at most")
            found = _while(params, given, turns)
        elif primitive.name == "cond":
            found = _cond(params, given, turns)
        else:
            if primitive.name == "scan":
                params = params | {"unroll": max(1, params["length"])}
            found = primitive.bind(*given, **params)
        if not primitive.multiple_results:
            found = [found]
        values |= dict(zip(equation.outvars, found, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _while(params: dict[str, Any], given: list[Array], turns: int) -> list[Array]:
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    condition_consts, body_consts, carry = given[:first], given[first:second], given[second:]
    for _ in range(turns):
        (running,) = _evaluate(params["cond_jaxpr"], [*condition_consts, *carry], turns)
        moved = _evaluate(params["body_jaxpr"], [*body_consts, *carry], turns)
        carry = [jnp.where(running, new, old) for new, old in zip(moved, carry, strict=True)]
    return carry


def _cond(params: dict[str, Any], given: list[Array], turns: int) -> list[Array]:
    which, *arguments = given
    branches = [_evaluate(branch, arguments, turns) for branch in params["branches"]]
    return [jax.lax.select_n(which, *results) for results in zip(*branches, strict=True)]
