"""Low-fidelity critics: how much does an algorithm need from its advantages?

The paper argues that CAPO, which uses only the sign of A, suits tasks whose values are poorly known. Two parts
test it: ``game`` trains on a MinAtar game with noisy rewards (:mod:`capo.experiments.noise_game`), ``tabular``
runs exact algorithms on small MDPs whose advantages pass through a bad critic before they are used. Three kinds:

- ``sign``: the sign is right, the size is noise: A times a log-normal factor, drawn anew for every update. CAPO
  cannot tell the difference; gradients can;
- ``flip``: the sign is wrong with probability p;
- ``gauss``: A plus Gaussian noise, in units of the standard deviation of A under the uniform policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from capo.errors import CapoError
from capo.experiments import common, noise_game, training
from capo.experiments.common import SUMMARY, Floats, Ints, Row
from capo.experiments.together import train_together
from capo.experiments.training import QUICK
from capo.progress import show_progress
from capo.report import figures
from capo.tabular.baselines import policy_iteration
from capo.tabular.critic import single_threaded_blas
from capo.tabular.engine import RELATIVE_SIGN_TOL, value_scale
from capo.tabular.mdp import MDP
from capo.tabular.mdps import chain, garnet, grid, random
from capo.tabular.theory import PolicyValues
from capo.update import StepSize, coordinate_update, log_normalise

Noise = Literal["sign", "flip", "gauss"]

DATA = ("*.json",)  # of either part; the tabular one has two CSV files beside its summary.json
OPTIONS = ("part", *training.OPTIONS, "algos", "levels", "together", "seconds")

# --- the tabular part -----------------------------------------------------------------------------------------

LEVELS: dict[Noise, tuple[float, ...]] = {
    "sign": (0.0, 1.0, 2.0),
    "flip": (0.0, 0.05, 0.1, 0.2, 0.3, 0.4),
    "gauss": (0.0, 0.3, 1.0, 3.0, 10.0),
}
NOISES: dict[Noise, str] = {
    "sign": "right signs, sizes multiplied by a log-normal factor of this sigma",
    "flip": "signs wrong with this probability",
    "gauss": "Gaussian noise of this size (1: the spread of A under the uniform policy)",
}
MDPS: dict[str, tuple[str, Callable[[], MDP]]] = {
    "random": ("random, S 10, A 4, gamma .9", lambda: random(10, 4, gamma=0.9, seed=0)),
    "garnet": ("garnet, S 20, A 4, gamma .95", lambda: garnet(20, 4, 3, gamma=0.95, seed=0)),
    "chain": ("chain 10, 10 actions", lambda: chain(10, 9)),
    "grid": ("maze 5 x 5, -1 per step", lambda: grid(5, seed=0)),
}


@dataclass(frozen=True)
class Algorithm:
    """An algorithm that is given the noisy advantages.

    Attributes:
        eta: CAPO's fixed step; None is the log step. For pg and npg the factor of the gradient or of A, in units
            that do not depend on the MDP (see :func:`_unit`).
    """

    title: str  # for tables
    rule: Literal["batch", "cyclic", "randomized", "pg", "npg"]  # the first three are CAPO's
    eta: float | None = None


ALGORITHMS: dict[str, Algorithm] = {
    "batch": Algorithm("Batch CAPO, log 1/pi", "batch"),
    "cyclic": Algorithm("Cyclic CAPO, log 1/pi", "cyclic"),
    "randomized": Algorithm("Randomized CAPO, log 1/pi", "randomized"),
    "batch .1": Algorithm("Batch CAPO, fixed 0.1", "batch", 0.1),
    "batch 1": Algorithm("Batch CAPO, fixed 1", "batch", 1.0),
    "npg .1": Algorithm("NPG, eta 0.1", "npg", 0.1),
    "npg 1": Algorithm("NPG, eta 1", "npg", 1.0),
    "pg 1": Algorithm("policy gradient, eta 1", "pg", 1.0),
    "pg 10": Algorithm("policy gradient, eta 10", "pg", 10.0),
}


def run(
    out: Path,
    quick: bool = False,
    progress: bool = True,
    *,
    together: bool | None = None,
    seconds: float | None = None,
    **options: Any,
) -> None:
    """Compute what is missing of both parts, or of the one that is asked for, and write its files into ``out``.

    Args:
        together: train all levels of a learner as rows of one program.
        seconds: each of these programs may take; then what it has reached is the result.
        **options: of :func:`training.run_parts`; ``algos`` are learners on the game, all if none is given.
    """
    plan = QUICK if quick else noise_game.PLAN
    if together:
        options["train"] = partial(train_together, seconds=math.inf if seconds is None else seconds)
    elif seconds is not None:
        raise CapoError("--seconds needs --together")
    training.run_parts("noise", TABULAR, plan, noise_game.jobs, out, progress, **options)


def run_tabular(out: Path, quick: bool, progress: bool) -> None:
    """Write tabular_curves.csv, tabular.csv and summary.json."""
    seeds, sweeps = (5, 40) if quick else (20, 100)
    ticker = show_progress(progress)
    curves: dict[tuple[Noise, str, float, int], dict[str, float]] = {}  # by MDP
    table: list[Row] = []
    total, done = len(MDPS) * len(ALGORITHMS) * len(LEVELS), 0
    for name, (_, make) in MDPS.items():
        mdp = make()
        for kind, levels in LEVELS.items():
            for key, algorithm in ALGORITHMS.items():
                ticker.show(f"noise: {done} of {total} done; now {algorithm.title}, {kind}, {name}")
                done += 1
                points, scores = learn(mdp, algorithm, kind, levels, seeds, sweeps)
                for level, found in zip(levels, scores, strict=True):
                    own = {"mdp": name, "noise": kind, "algorithm": key, "level": level}
                    table.append({**own, **_summary(points, found)})
                    for point, mean in zip(points, found.mean(axis=0), strict=True):
                        curves.setdefault((kind, key, level, int(point)), {})[name] = float(mean.round(4))
    ticker.close()
    columns = ("noise", "algorithm", "level", "sweep")
    kept = [{**dict(zip(columns, at, strict=True)), **row} for at, row in curves.items() if at[1] in _DRAWN]
    settings = {
        "mdps": {name: title for name, (title, _) in MDPS.items()},
        "levels": LEVELS,
        "seeds": seeds,
        "seeds_are": "independent runs from one generator, default_rng([0, number of the algorithm]), for the "
        "noise and the randomized rule; each MDP is one instance, seed 0",
        "sweeps": sweeps,
        "sweep": "one update of all pairs, or as many single updates as there are pairs",
        "score": "(V - V_uniform) / (V* - V_uniform) at the start: 0 is the uniform policy, 1 optimal",
        "spread": "low and high are the 10 % and 90 % quantiles over seeds",
        "units": "NPG adds eta A / (mean |A| of the uniform policy) to theta, policy gradient eta S times its "
        "gradient over the same number: without noise both step sizes are comparable on all MDPs",
    }
    summary = {"experiment": "noise", "quick": quick, "tabular": settings}
    common.write_data(out, summary, tabular_curves=kept, tabular=table)


TABULAR = training.ExactPart("tabular", (SUMMARY, "tabular_curves.csv", "tabular.csv"), run_tabular)


# --- the algorithms under noise -------------------------------------------------------------------------------


class Critic(NamedTuple):
    """Reports exact advantages as a bad critic would."""

    kind: Noise
    level: Floats  # (K,) the size of the noise in each of the K runs
    spread: float  # the unit of Gaussian noise
    rng: np.random.Generator
    tol: float = 0.0  # advantages up to this size are round-off, and count as 0

    def corrupt(self, advantage: Floats) -> Floats:
        """The advantages (K, ...) with noise."""
        advantage = np.where(np.abs(advantage) > self.tol, advantage, 0.0)
        size = self.level.reshape(-1, *(1,) * (advantage.ndim - 1))
        if self.kind == "flip":
            return np.where(self.rng.random(advantage.shape) < size, -advantage, advantage)
        draws = self.rng.standard_normal(advantage.shape)
        if self.kind == "sign":
            return np.asarray(advantage * np.exp(size * draws))
        return np.asarray(advantage + size * self.spread * draws)


def learn(
    mdp: MDP, algorithm: Algorithm, kind: Noise, levels: tuple[float, ...], seeds: int, sweeps: int
) -> tuple[Ints, Floats]:
    """Run one algorithm at all levels of noise.

    Returns:
        sweeps (points,) and scores (levels, seeds, points): (V - V_uniform) / (V* - V_uniform), V exact.
    """
    first = np.full((mdp.n_states, mdp.n_actions), -math.log(mdp.n_actions))
    log_pi = np.tile(first, (len(levels) * seeds, 1, 1))
    rng = np.random.default_rng([0, list(ALGORITHMS.values()).index(algorithm)])
    spread, size = _unit(mdp, first)
    critic = Critic(kind, np.repeat(levels, seeds), spread, rng, RELATIVE_SIGN_TOL * value_scale(mdp))
    points = np.unique(np.geomspace(1, sweeps + 1, 40).round().astype(np.int64)) - 1
    values = []
    with single_threaded_blas:
        for sweep in range(sweeps + 1):
            if sweep in points:
                values.append(_values(mdp, np.exp(log_pi)) @ mdp.start)
            if sweep < sweeps:
                log_pi = _sweep(mdp, algorithm, critic, size, log_pi)
    low = float(mdp.start @ mdp.policy_values(np.exp(first)))
    high = float(mdp.start @ policy_iteration(mdp).values)
    scores = (np.stack(values, axis=1) - low) / (high - low)
    return points, scores.reshape(len(levels), seeds, len(points))


def _unit(mdp: MDP, log_pi: Floats) -> tuple[float, float]:
    """Standard deviation and mean absolute value of A under a policy, over the states that are not terminal."""
    advantage = PolicyValues(mdp, log_pi).advantage[~mdp.terminal]
    return float(advantage.std()), float(np.abs(advantage).mean())


def _system(mdp: MDP, pi: Floats) -> Floats:
    """(K, S, S) I - gamma P_pi for policies (K, S, A)."""
    moves = np.einsum("ksa,sat->kst", pi, mdp.transition, optimize=True)
    return np.asarray(np.eye(mdp.n_states) - mdp.gamma * moves)


def _values(mdp: MDP, pi: Floats) -> Floats:
    """(K, S) for policies (K, S, A)."""
    reward = (pi * mdp.reward).sum(axis=2)
    return np.asarray(np.linalg.solve(_system(mdp, pi), reward[..., None])[..., 0])


def _sweep(mdp: MDP, algorithm: Algorithm, critic: Critic, size: float, log_pi: Floats) -> Floats:
    """The policies (K, S, A) after one more sweep; ``size`` is the unit of A."""
    step = StepSize() if algorithm.eta is None else StepSize("fixed", eta=algorithm.eta)
    if algorithm.rule in ("cyclic", "randomized"):
        return _single_sweep(mdp, algorithm.rule, step, critic, log_pi)
    pi = np.exp(log_pi)
    values = _values(mdp, pi)
    q = mdp.reward + mdp.gamma * np.einsum("sat,kt->ksa", mdp.transition, values, optimize=True)
    noisy = critic.corrupt(q - values[..., None])
    if algorithm.rule == "batch":
        sign = np.sign(noisy)
        return np.asarray(coordinate_update(log_pi, sign, step.alpha(log_pi, sign)))
    assert algorithm.eta is not None
    direction = noisy / size
    if algorithm.rule == "pg":
        mu = ~mdp.terminal / (~mdp.terminal).sum()
        right = np.broadcast_to(mu[:, None], (len(pi), len(mu), 1))
        visits = np.linalg.solve(_system(mdp, pi).transpose(0, 2, 1), right)
        direction = direction * visits * pi * len(mu)
    return np.asarray(log_normalise(log_pi + algorithm.eta * direction)[0])


def _single_sweep(mdp: MDP, rule: str, step: StepSize, critic: Critic, log_pi: Floats) -> Floats:
    """As many single updates as there are live pairs: each once (cyclic), or drawn uniformly per run."""
    runs, _, n_actions = log_pi.shape
    log_pi, every = log_pi.copy(), np.arange(runs)
    states = np.flatnonzero(~mdp.terminal)
    order = np.stack([np.repeat(states, n_actions), np.tile(np.arange(n_actions), len(states))], axis=1)
    pi = np.exp(log_pi)
    inverse: Floats = np.linalg.inv(_system(mdp, pi)).astype(np.float64)
    values = np.asarray(np.einsum("kst,kt->ks", inverse, (pi * mdp.reward).sum(axis=2)))
    for i in range(len(order)):
        chosen = order[np.full(runs, i)] if rule == "cyclic" else order[critic.rng.integers(len(order), size=runs)]
        state, action = chosen.T
        reward, moves = mdp.reward[state], mdp.transition[state]
        q = reward + mdp.gamma * np.einsum("kat,kt->ka", moves, values)
        noisy = critic.corrupt(q[every, action] - values[every, state])
        row = log_pi[every, state]
        sign = np.where(np.arange(n_actions) == action[:, None], np.sign(noisy)[:, None], 0.0)
        new = np.asarray(coordinate_update(row, sign, step.alpha(row, sign)))
        log_pi[every, state] = new
        # One row of P_pi has changed: Sherman-Morrison gives V and the inverse without another solve.
        change = np.exp(new) - np.exp(row)
        ahead = mdp.gamma * np.einsum("ka,kat->kt", change, moves)
        column = inverse[every, :, state]
        left = np.einsum("kt,ktu->ku", ahead, inverse)
        factor = 1 / (1 - left[every, state])
        gain = (change * reward).sum(axis=1) + np.einsum("kt,kt->k", ahead, values)
        values = values + column * (gain * factor)[:, None]
        inverse = inverse + column[:, :, None] * (left * factor[:, None])[:, None, :]
    return log_pi


def _summary(points: Ints, found: Floats) -> Row:
    """The seeds (seeds, points): how they end, how well they do in the second half, when half have 95 %."""
    late = found[:, points >= points[-1] / 2]
    return {
        "final": float(found[:, -1].mean()),
        "late": float(late.mean()),
        "late_low": float(np.quantile(late.mean(axis=1), 0.1)),
        "late_high": float(np.quantile(late.mean(axis=1), 0.9)),
        "median_first": common.median_first(points, found >= 0.95),
    }


# --- what is printed ------------------------------------------------------------------------------------------


def report(folder: Path) -> str:
    """The tables of the parts that are there, from the files in ``folder``."""
    parts = []
    if (folder / SUMMARY).exists():
        summary = common.read_json(folder / SUMMARY)
        parts = common.quick_note(summary["quick"], "seeds and sweeps")
        parts += report_tabular(folder, summary["tabular"])
    game = noise_game.report_game(folder)
    if not parts and not game:
        raise CapoError(f"{folder}: contains neither part of the noise experiment; run without --draw-only first")
    return "\n\n".join([*parts, *(game or ["Note: the game has not been run (--part game)"])])


def report_tabular(folder: Path, settings: Row) -> list[str]:
    """One table per kind of noise: the mean score late in the run, over all MDPs and on the worst of them."""
    rows = {(r["noise"], r["algorithm"], r["level"], r["mdp"]): r for r in common.read_csv(folder / "tabular.csv")}
    parts = []
    for kind, levels in settings["levels"].items():
        lines = []
        for key, algorithm in ALGORITHMS.items():
            cells = []
            for level in levels:
                late = [rows[kind, key, level, name]["late"] for name in settings["mdps"]]
                cells.append(f"{np.mean(late):.3f} ({min(late):.2f})")
            clean = [rows[kind, key, 0.0, name]["median_first"] for name in settings["mdps"]]
            lines.append([algorithm.title, *cells, common.count(max(np.nan_to_num(clean, nan=math.inf)))])
        header = ["", *(f"{level:g}" for level in levels), "sweeps to 95 %"]
        parts.append(common.text_table(f"{kind}: {NOISES[kind]}", header, lines))
    parts.append(
        f"Scores (0: uniform policy, 1: optimal), averaged over the second half of {settings['sweeps']} sweeps "
        f"and {settings['seeds']} seeds:\nmean over {len(settings['mdps'])} MDPs (and the worst of them). "
        "sweeps to 95 %: without noise, on the slowest MDP."
    )
    return parts


# --- what is drawn --------------------------------------------------------------------------------------------

_DRAWN = {
    "batch": (figures.COLOURS[0], "-"),
    "cyclic": (figures.COLOURS[5], "-"),
    "batch 1": (figures.COLOURS[2], "--"),
    "npg .1": (figures.COLOURS[4], "-."),
    "npg 1": (figures.COLOURS[1], "-."),
    "pg 1": (figures.COLOURS[3], ":"),
}
_LABELS = {"flip": "probability of a wrong sign", "gauss": "Gaussian noise / spread of A"}
_OVER_TIME = (("flip", 0.1), ("gauss", 1.0))


def draw(folder: Path, out: Path) -> list[Path]:
    """tabular.png (scores by noise), tabular_time.png (by sweep) and game.png, of the parts that are there."""
    drawn = []
    if (folder / SUMMARY).exists():
        settings = common.read_json(folder / SUMMARY)["tabular"]
        drawn = [draw_tabular(folder, out, settings), draw_tabular_time(folder, out, settings)]
    return drawn + noise_game.draw_game(folder, out)


def draw_tabular(folder: Path, out: Path, settings: Row) -> Path:
    """Score late in the run against the noise, one row per kind of noise and one column per MDP."""
    table = common.read_groups(folder / "tabular.csv", "noise", "mdp", "algorithm")
    text = (
        f"Advantages from a bad critic: 1 is optimal, 0 the uniform policy; mean of {settings['seeds']} runs "
        f"over the second half of {settings['sweeps']} sweeps, band 10 % to 90 %"
    )
    path = out / "tabular.png"
    with _panels(path, settings, "score late in the run", text, sharex="row") as axes:
        for axis_row, (kind, label) in zip(axes, _LABELS.items(), strict=True):
            for axis, name in zip(axis_row, settings["mdps"], strict=True):
                for key, (colour, style) in _DRAWN.items():
                    rows = table[kind, name, key]
                    x = np.arange(len(rows))
                    axis.plot(x, [r["late"] for r in rows], color=colour, ls=style, label=ALGORITHMS[key].title)
                    low, high = [r["late_low"] for r in rows], [r["late_high"] for r in rows]
                    axis.fill_between(x, low, high, color=colour, alpha=0.1, lw=0)
                axis.set_xticks(x, [f"{row['level']:g}" for row in rows])
                axis.set_xlabel(label)
    return path


def draw_tabular_time(folder: Path, out: Path, settings: Row) -> Path:
    """Score by sweep at one level of each kind of noise."""
    curves = common.read_groups(folder / "tabular_curves.csv", "noise", "algorithm", "level")
    ticks = [tick for tick in (0, 3, 10, 30, 100) if tick <= settings["sweeps"]]
    text = (
        "Top: one sign in ten is wrong. Bottom: Gaussian noise as large as the spread of A. Mean of "
        f"{settings['seeds']} runs; 1 is optimal"
    )
    path = out / "tabular_time.png"
    with _panels(path, settings, "score", text, sharex=True) as axes:
        for axis_row, at in zip(axes, _OVER_TIME, strict=True):
            for axis, name in zip(axis_row, settings["mdps"], strict=True):
                for key, (colour, style) in _DRAWN.items():
                    rows = curves[at[0], key, at[1]]
                    x = [row["sweep"] for row in rows]
                    axis.plot(x, [row[name] for row in rows], color=colour, ls=style, label=ALGORITHMS[key].title)
                axis.set_xscale("symlog", linthresh=5)
                axis.set_xlim(0, settings["sweeps"])
                axis.set_xticks(ticks, [str(tick) for tick in ticks])
        for axis in axes[1]:
            axis.set_xlabel("sweeps over all pairs")
    return path


@contextmanager
def _panels(path: Path, settings: Row, label: str, text: str, **options: Any) -> Iterator[Any]:
    """A figure of scores with one column per MDP and two rows of axes, to be filled in."""
    names = settings["mdps"]
    with figures.figure(path, 2, len(names), size=(13, 6.6), sharey=True, **options) as (drawing, axes):
        yield axes
        for axis, name in zip(axes[0], names, strict=True):
            axis.set_title(MDPS[name][0])
        for axis in axes.flat:
            axis.set_ylim(-0.25, 1.04)
            axis.axhline(0, color=figures.MUTED, lw=0.8)
        for axis in axes[:, 0]:
            axis.set_ylabel(label)
        figures.legend_below(drawing, axes.flat[:1])
        common.caption(drawing, text)
