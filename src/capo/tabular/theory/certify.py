"""The certificate of a run: every statement that applies, checked along what the run really did."""

from __future__ import annotations

from typing import Any

from capo.checks import whole
from capo.tabular.critic import single_threaded_blas
from capo.tabular.result import Result
from capo.tabular.theory import records, steps, theorems
from capo.tabular.theory.certificate import Book, Certificate
from capo.tabular.theory.run import Run, prepare


def certify(result: Result, *, mu: Any = None, seeds: int = 100, max_steps: int = 2000) -> Certificate:
    """Check the paper's statements along a run.

    Everything is evaluated again by plain linear algebra; V* comes from plain policy iteration; nothing is taken
    from the engine that made the run. Rewards outside [0, 1] are rescaled first, which changes no sign and no
    policy.

    Args:
        result: of :func:`capo.solve` or of a baseline.
        mu: (S,) positive distribution of the rates; the result's own, or uniform, if not given.
        seeds: for statements about expectations and probabilities.
        max_steps: at most so many updates, spread evenly, are evaluated for the one-step lines.

    >>> import capo
    >>> certificate = certify(capo.solve(capo.mdps.chain(10), rule="cyclic"))
    >>> certificate.held, certificate.line("Theorem 2 (cyclic), rate at rho, repaired").status
    (True, 'held')
    """
    seeds, max_steps = whole("seeds", seeds), whole("max_steps", max_steps)
    with single_threaded_blas:
        run, book = prepare(result, mu, seeds, max_steps), Book()
        if result.rule is None or result.trace is None:
            _certify_without_trace(run, book)
        else:
            _certify_capo(run, book)
    return Certificate(_title(run), _header(run), book.lines())


def _certify_capo(run: Run, book: Book) -> None:
    for statement in (records.STEP, records.ARITHMETIC):
        book.expect(statement, relation="=")
    records.check_step_sizes(run, book)
    records.check_arithmetic(run, book)
    book.expect(records.DIRECTION)
    book.expect(records.VALUE, relation="=")
    gap = records.check_final(run, book)
    visited = records.check_visits(run, book)
    records.check_history(run, book)
    book.expect(theorems.THEOREM_1)
    steps.announce(run, book)
    values = steps.walk(run, book, extra=theorems.cycle_ends(run).ravel())
    records.check_recorded_values(run, book, values)
    steps.check_theta_max(run, book)
    steps.check_fixed_cycles(run, book)
    theorems.check_convergence(run, book, values[0], gap, visited)
    theorems.check_cyclic(run, book, values)
    theorems.check_batch(run, book, values)
    theorems.check_randomized(run, book)
    theorems.check_on_policy(run, book)


def _certify_without_trace(run: Run, book: Book) -> None:
    records.check_final(run, book)
    records.check_history(run, book)
    if run.result.rule is None:
        theorems.check_baseline(run, book)
        book.skip("CAPO's lemmas and rates", f"{run.result.algorithm} is not a CAPO update")
    else:
        too_large = "the MDP has too many pairs for a trace of the updates to be kept"
        book.skip("CAPO's lemmas and rates", too_large if run.result.iterations else "no update was made")


def _title(run: Run) -> str:
    mdp = run.mdp
    name = run.result.mdp.name or "an MDP"
    return (
        f"Certificate: {run.result.algorithm} on {name} ({mdp.n_states} states, {mdp.n_actions} actions, "
        f"gamma {mdp.gamma:g}), {run.result.iterations} iterations"
    )


def _header(run: Run) -> list[str]:
    result = run.result
    header = []
    if run.mdp is not result.mdp:
        shift = f"r {'-' if run.low >= 0 else '+'} {abs(run.low):g}"
        header.append(f"rewards rescaled to [0, 1]: ({shift}) / {run.scale:g}; signs and policies stay the same")
    given = "uniform" if (run.mu == run.mu[0]).all() else f"min {run.mu.min():.3g}"
    header.append(f"mu {given}; values evaluated independently, to within {run.rounding:.1e}")
    if result.trace is not None:
        n, traced = len(run.steps), len(run.trace)
        checked = f"all {n}" if n == traced else f"{n} of the {traced} traced updates, evenly spread"
        rest = "" if run.whole else f"; the run made {result.iterations}"
        header.append(f"one-step lines: {checked}{rest if n < traced else f' updates{rest}'}")
    header.append("worst: lhs/(rhs + rounding) for <=, |lhs - rhs|/rounding for =; held means at most 1;")
    header.append("at: updates made when it was worst")
    return header
