"""A function of jax with its loops unrolled: every ``scan``, ``fori_loop`` and ``while_loop``.

On a GPU a loop costs something in every iteration: a few kernel launches, and a round trip to the host where its
condition has to be known. Games have many short loops over a handful of things (eight cars, ten columns); once
unrolled, the compiler fuses all of their iterations into a few kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from capo.arrays import Array, PyTree
from capo.errors import CapoError


def unroll_loops(function: Callable[..., PyTree], max_iterations: int) -> Callable[..., PyTree]:
    """``function`` with its loops unrolled (except inside the body of a ``scan``) and branches as selections.

    Args:
        function: of arrays (or trees of them) to a tree of arrays.
        max_iterations: no ``while_loop`` runs longer than this; iterations beyond it would be missing.

    Raises:
        CapoError: when traced, if ``max_iterations`` is 0 and there is a ``while_loop``.
    """

    def unrolled(*arguments: PyTree) -> PyTree:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        results = _evaluate(program, jax.tree.leaves(arguments), max_iterations)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return unrolled


def _evaluate(program: Any, arguments: list[Array], max_iterations: int) -> list[Array]:
    """The results of a closed jaxpr."""
    jaxpr = program.jaxpr
    values: dict[Any, Array] = dict(zip(jaxpr.constvars, program.consts, strict=True))
    values |= dict(zip(jaxpr.invars, arguments, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        given = [read(variable) for variable in equation.invars]
        primitive, params = equation.primitive, equation.params
        found: Any
        if primitive.name in ("jit", "pjit"):
            found = _evaluate(params["jaxpr"], given, max_iterations)
        elif primitive.name in ("custom_jvp_call", "custom_vjp_call"):
            found = _evaluate(params["call_jaxpr"], given, max_iterations)
        elif primitive.name == "while":
            if not max_iterations:
                raise CapoError("max_iterations=0 must be positive: the function has a while_loop")
            found = _while(params, given, max_iterations)
        elif primitive.name == "cond":
            found = _cond(params, given, max_iterations)
        else:
            if primitive.name == "scan":
                params = params | {"unroll": max(1, params["length"])}
            found = primitive.bind(*given, **params)
        results = found if primitive.multiple_results else [found]
        values |= dict(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _while(params: dict[str, Any], given: list[Array], max_iterations: int) -> list[Array]:
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    condition_consts, body_consts, carry = given[:first], given[first:second], given[second:]
    for _ in range(max_iterations):
        (running,) = _evaluate(params["cond_jaxpr"], [*condition_consts, *carry], max_iterations)
        moved = _evaluate(params["body_jaxpr"], [*body_consts, *carry], max_iterations)
        carry = [jnp.where(running, new, old) for new, old in zip(moved, carry, strict=True)]
    return carry


def _cond(params: dict[str, Any], given: list[Array], max_iterations: int) -> list[Array]:
    which, *arguments = given
    branches = [_evaluate(branch, arguments, max_iterations) for branch in params["branches"]]
    return [jax.lax.select_n(which, *results) for results in zip(*branches, strict=True)]
