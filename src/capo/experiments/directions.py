"""Update directions: the empirical policy gradient and CAPO's update beside the true gradient, in the maze.

A study that the paper's source announces in a comment: "We compare the empirical policy gradient direction and the
true gradient direction", for on-policy actor-critic with batches of different sizes and true values. Nothing else
is given. Here every method trains a table of theta with exact advantages, so that its direction differs from the
true gradient only by the pairs in its batch and by what it makes of them:

- on-policy actor-critic: the mean of A(s, a) grad log pi(a|s) over pairs drawn from the discounted visits;
- Off-PAC: the same over pairs of a uniform behaviour policy, with importance weights;
- CAPO: alpha sign(A) on pairs of the same uniform behaviour policy, with alpha = log 1/pi.

Per iteration: the cosine between the step in theta and the true gradient of V at the start distribution, whether
the step points downhill (a negative inner product), and whether V fell.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from capo.experiments import common
from capo.experiments.algorithm2 import StackedMDP, stack
from capo.experiments.common import SUMMARY, Floats, Ints, Row
from capo.progress import show_progress
from capo.report import figures
from capo.tabular.baselines import policy_iteration
from capo.tabular.mdp import MDP
from capo.tabular.mdps import grid
from capo.update import coordinate_update, log_normalise

DATA = ("curves.csv", "table.csv", SUMMARY)
OPTIONS = ()
Method = Literal["actor-critic", "offpac", "capo"]
METHODS: dict[Method, str] = {
    "actor-critic": "on-policy actor-critic",
    "offpac": "Off-PAC, uniform behaviour",
    "capo": "CAPO, uniform behaviour",
}
STARTS = {"fixed": "start at (1, 1)", "random": "random start"}
BATCHES = (1, 4, 16, 64, 256)
ITERATIONS = 500
ETA = 0.1  # of the gradient methods, on theta; the advantages are of the order of the rewards
WINDOW = 20  # iterations per point of a curve
FALL = 1e-9  # V fell if it did by more than this
DONE = 1e-6  # V is at the optimum if it is this close: what is left of the gradient is rounding


class Values(NamedTuple):
    """The true values of one policy per run."""

    v: Floats  # (R,) at the start distribution
    advantage: Floats  # (R, S, A), 0 where it is only round-off
    visits: Floats  # (R, S) discounted visits from the start distribution, 0 at terminal states; they add up to 1
    gradient: Floats  # (R, S, A) of V at the start distribution


def run(out: Path, quick: bool = False, progress: bool = True) -> None:
    """Compute everything and write curves.csv, table.csv and summary.json into ``out``."""
    runs, iterations = (5, 100) if quick else (30, ITERATIONS)
    batches = (1, 16) if quick else BATCHES
    ticker = show_progress(progress)
    curves: list[Row] = []
    table: list[Row] = []
    best: dict[str, float] = {}
    for start in STARTS:
        mdps = [_maze(start, k) for k in range(runs)]
        best[start] = float(np.mean([policy_iteration(mdp).value for mdp in mdps]))
        for method in METHODS:
            for size in batches:
                ticker.show(f"directions: {STARTS[start]}, {METHODS[method]}, batches of {size}")
                found = train(mdps, method, size, iterations)
                key = {"start": start, "method": method, "batch": size}
                table.append({**key, **_summary(found)})
                curves += _curve(key, found)
    ticker.close()
    summary = {
        "experiment": "directions",
        "quick": quick,
        "maze": "5 x 5, -1 per step, 100 at the goal",
        "gamma": grid().gamma,
        "runs": runs,
        "runs_are": f"seeds 0 to {runs - 1}, for the maze (wall vertical for even seeds) and the batches",
        "iterations": iterations,
        "batches": batches,
        "eta": ETA,
        "optimum": best,
        "value": "V at the start distribution, discounted",
        "policy": "a table of theta, from 0; exact advantages; plain steps",
        "pairs": "actor-critic: from the discounted visits of the current policy; the others: from the discounted "
        "visits of the uniform policy; drawn anew in every iteration",
        "left_out": f"steps of policies within {DONE:g} of the optimum, in cosine and downhill",
        "points": f"means over {WINDOW} iterations and the runs; low and high: 10 % and 90 % quantiles over both",
    }
    common.write_data(out, summary, curves=curves, table=table)


def _maze(start: str, seed: int) -> MDP:
    wall: Literal["horizontal", "vertical"] = "horizontal" if seed % 2 else "vertical"
    return grid(5, wall=wall, seed=seed, random_start=start == "random")


# --- one method -----------------------------------------------------------------------------------------------


def train(mdps: Sequence[MDP], method: Method, size: int, iterations: int) -> dict[str, Floats]:
    """One run on each MDP (all of one shape).

    Returns:
        (R, iterations) each: ``cosine`` of the step with the true gradient, ``downhill`` and ``fell`` as 0 or 1,
        and ``value`` after the step. Where the step is 0, or V at the optimum already, cosine and downhill are
        NaN.
    """
    best = np.array([policy_iteration(mdp).value for mdp in mdps])
    rngs = [np.random.default_rng([k, size]) for k in range(len(mdps))]
    shape = len(mdps), mdps[0].n_states, mdps[0].n_actions
    log_pi = np.full(shape, -np.log(shape[2]))
    mazes = stack(mdps)
    now = evaluate(mazes, log_pi)
    uniform = now.visits[..., None] / np.full(shape, float(shape[2]))
    columns: dict[str, list[Floats]] = {name: [] for name in ("cosine", "downhill", "fell", "value")}
    for _ in range(iterations):
        pi = np.exp(log_pi)
        weights = now.visits[..., None] * pi if method == "actor-critic" else uniform
        counts = np.stack([pick(w, size, rng) for w, rng in zip(weights, rngs, strict=True)])
        step = direction(method, log_pi, now.advantage, counts)
        log_pi = _moved(method, log_pi, step)
        new = evaluate(mazes, log_pi)
        inner = (step * now.gradient).sum(axis=(1, 2))
        lengths = np.sqrt((step**2).sum(axis=(1, 2)) * (now.gradient**2).sum(axis=(1, 2)))
        still = (lengths <= 1e-200) | (best - now.v < DONE)  # there the gradient is rounding
        columns["cosine"].append(np.where(still, np.nan, inner / np.where(still, 1.0, lengths)))
        columns["downhill"].append(np.where(still, np.nan, inner < 0))
        columns["fell"].append((new.v < now.v - FALL).astype(float))
        columns["value"].append(new.v)
        now = new
    return {name: np.stack(column, axis=1) for name, column in columns.items()}


def evaluate(mdp: StackedMDP, log_pi: Floats) -> Values:
    """True values of one policy (R, S, A) per MDP, by one inverse each."""
    gamma, pi = mdp.gamma[:, None], np.exp(log_pi)
    moves = np.einsum("rsa,rsat->rst", pi, mdp.transition)
    inverse = np.linalg.inv(np.eye(pi.shape[1]) - gamma[..., None] * moves)
    v = np.einsum("rst,rt->rs", inverse, (pi * mdp.reward).sum(axis=2))
    advantage = mdp.reward + gamma[..., None] * np.einsum("rsat,rt->rsa", mdp.transition, v) - v[..., None]
    advantage = np.where(np.abs(advantage) > mdp.sign_tol[:, None, None], advantage, 0.0)
    discounted = np.maximum(mdp.live * np.einsum("rs,rst->rt", mdp.start, inverse), 0.0)
    gradient = discounted[..., None] * pi * advantage
    visits = discounted / discounted.sum(axis=1, keepdims=True)
    return Values((mdp.start * v).sum(axis=1), advantage, visits, gradient)


def pick(weights: Floats, size: int, rng: np.random.Generator) -> Ints:
    """(S, A) how often each pair is among ``size`` pairs drawn in proportion to ``weights`` (S, A)."""
    counts: Ints = rng.multinomial(size, weights.ravel() / weights.sum()).reshape(weights.shape)
    return counts


def direction(method: Method, log_pi: Floats, advantage: Floats, counts: Ints) -> Floats:
    """(R, S, A) the change of theta that a method makes of a batch; of the gradients, before the rate.

    The mean of w A(s, a) grad log pi(a|s) over the batch, w = pi / uniform for Off-PAC and 1 on-policy; for CAPO
    alpha sign(A) on the pairs of the batch, each once.
    """
    pi = np.exp(log_pi)
    if method == "capo":
        return np.asarray(-log_pi * np.sign(advantage) * (counts > 0))
    weighted = counts * advantage * (pi * pi.shape[2] if method == "offpac" else 1.0)
    size = counts.sum(axis=(1, 2), keepdims=True)
    return np.asarray((weighted - weighted.sum(axis=2, keepdims=True) * pi) / size)


def _moved(method: Method, log_pi: Floats, step: Floats) -> Floats:
    if method == "capo":
        return np.asarray(coordinate_update(log_pi, np.sign(step), np.abs(step)))
    return np.asarray(log_normalise(log_pi + ETA * step)[0])


def _summary(found: dict[str, Floats]) -> Row:
    early = slice(0, max(1, found["cosine"].shape[1] // 5))
    return {
        "cosine_first_fifth": float(np.nanmean(found["cosine"][:, early])),
        "cosine": float(np.nanmean(found["cosine"])),
        "downhill": float(np.nanmean(found["downhill"])),
        "fell": float(found["fell"].mean()),
        "value_100": float(found["value"][:, min(99, found["value"].shape[1] - 1)].mean()),
        "value": float(found["value"][:, -1].mean()),
        "moving": float(np.isfinite(found["cosine"]).mean()),
    }


def _curve(key: Row, found: dict[str, Floats]) -> list[Row]:
    rows = []
    for begin in range(0, found["cosine"].shape[1], WINDOW):
        part = {name: values[:, begin : begin + WINDOW] for name, values in found.items()}
        cosine = part["cosine"][np.isfinite(part["cosine"])]
        if cosine.size == 0:
            break
        low, high = np.quantile(cosine, [0.1, 0.9])
        rows.append(
            {
                **key,
                "iteration": begin + part["cosine"].shape[1],
                "mean": round(float(cosine.mean()), 5),
                "low": round(float(low), 5),
                "high": round(float(high), 5),
                "value": round(float(part["value"][:, -1].mean()), 4),
            }
        )
    return rows


# --- what is printed and drawn --------------------------------------------------------------------------------


def report(folder: Path) -> str:
    """The tables, from the files in ``folder``."""
    summary = common.read_json(folder / SUMMARY)
    table = common.read_csv(folder / "table.csv")
    parts = common.quick_note(summary["quick"], "runs, iterations and batch sizes")
    for start, title in STARTS.items():
        rows = [
            [
                f"{METHODS[row['method']]}, {row['batch']:.0f}",
                f"{row['cosine_first_fifth']:.3f}",
                f"{row['cosine']:.3f}",
                f"{row['downhill']:.1%}",
                f"{row['fell']:.2%}",
                f"{row['value_100']:.1f}",
                f"{row['value']:.1f}",
            ]
            for row in table
            if row["start"] == start
        ]
        parts.append(
            common.text_table(
                f"{summary['maze']}, {title}; {summary['runs']} mazes, {summary['iterations']} iterations; "
                f"the optimum is {summary['optimum'][start]:.1f}",
                [
                    "method, batch",
                    "cosine, first fifth",
                    "cosine",
                    "downhill",
                    "V fell",
                    "V at 100",
                    "V at the end",
                ],
                rows,
            )
        )
    parts.append(
        "cosine: of the step in theta with the true gradient, mean over iterations and runs. downhill: steps\n"
        "whose inner product with the true gradient is negative. V fell: steps after which V at the start\n"
        f"distribution is lower. Gradient methods: eta {summary['eta']:g}; CAPO has no rate."
    )
    return "\n\n".join(parts)


def _draw_row(axes: Any, groups: common.Groups, start: str, batches: Sequence[int]) -> None:
    """One row of the figure: cosines by iteration, a panel per method, a colour per batch size."""
    for axis, (method, title) in zip(axes, METHODS.items(), strict=True):
        for i, size in enumerate(batches):
            if rows := groups.get((start, method, float(size))):
                common.draw_curve(axis, rows, figures.COLOURS[i], f"batches of {size}")
        axis.axhline(0, color=figures.MUTED, lw=0.8)
        axis.set(ylim=(-1.02, 1.02), xlabel="iterations")
        axis.set_title(f"{title}, {STARTS[start]}")
    axes[0].set_ylabel("cosine with the true gradient")


def draw(folder: Path, out: Path) -> list[Path]:
    """directions.png, from the files in ``folder``."""
    summary = common.read_json(folder / SUMMARY)
    groups = common.read_groups(folder / "curves.csv", "start", "method", "batch")
    path = out / "directions.png"
    with figures.figure(path, len(STARTS), len(METHODS), size=(11, 6.4), sharex=True, sharey=True) as (
        drawing,
        axes,
    ):
        for row, start in zip(axes, STARTS, strict=True):
            _draw_row(row, groups, start, summary["batches"])
        figures.legend_below(drawing, axes.flat, columns=5)
        common.caption(
            drawing,
            f"Directions of update steps in {summary['runs']} mazes, true values: means and 10 to 90 % quantiles",
            summary["quick"],
        )
    return [path]
