"""Low-fidelity critics: how much does an algorithm need from its advantages?

The paper argues that CAPO, which uses the sign of A only, suits tasks whose values are known badly. Two parts test
it: ``game`` trains on a MinAtar game with noisy rewards (:mod:`capo.experiments.noise_game`), ``tabular`` runs
exact algorithms on small MDPs, whose advantages pass through a bad critic before they are used. Three kinds:

- ``sign``: the sign is right, the size is noise: A times a log-normal factor, drawn anew at every look. CAPO
  cannot tell the difference; gradients can;
- ``flip``: the sign is wrong with probability p;
- ``gauss``: A plus Gaussian noise, in units of the standard deviation of A under the uniform policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from capo.errors import CapoError, unknown_name
from capo.experiments import minatar, noise_game, variants
from capo.experiments.common import content_of, groups, read_csv, read_json, text_table, write_csv
from capo.files import write_json
from capo.progress import Ticker
from capo.provenance import provenance
from capo.report import figures
from capo.tabular.baselines import Evaluation, policy_iteration
from capo.tabular.critic import single_threaded_blas
from capo.tabular.mdp import MDP
from capo.tabular.mdps import chain, garnet, grid, random
from capo.tabular.solver import RELATIVE_SIGN_TOL, value_scale
from capo.update import StepSize, coordinate_update, log_normalise

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Noise = Literal["sign", "flip", "gauss"]

Part = Literal["tabular", "game"]
PARTS: tuple[str, ...] = get_args(Part)

DATA = ("*.json",)  # of either part; the tabular one has TABULAR beside its summary.json
TABULAR = ("tabular_curves.csv", "tabular.csv", "summary.json")

# --- the tabular part -----------------------------------------------------------------------------------------

LEVELS: dict[Noise, tuple[float, ...]] = {
    "sign": (0.0, 1.0, 2.0),
    "flip": (0.0, 0.05, 0.1, 0.2, 0.3, 0.4),
    "gauss": (0.0, 0.3, 1.0, 3.0, 10.0),
}
NOISES: dict[Noise, str] = {
    "sign": "right signs, sizes times a log-normal factor of this sigma",
    "flip": "signs wrong with this probability",
    "gauss": "Gaussian noise of this size (1: the spread of A under the uniform policy)",
}
MDPS: dict[str, tuple[str, Callable[[], MDP]]] = {
    "random": ("random, S 10, A 4, gamma .9", lambda: random(10, 4, gamma=0.9, seed=0)),
    "garnet": ("garnet, S 20, A 4, gamma .95", lambda: garnet(20, 4, 3, gamma=0.95, seed=0)),
    "chain": ("chain 10, 10 actions", lambda: chain(10, 9)),
    "grid": ("maze 5 x 5, -1 a step", lambda: grid(5, seed=0)),
}


@dataclass(frozen=True)
class Algorithm:
    """Who gets the noisy advantages.

    Attributes:
        title: for tables.
        rule: batch, cyclic or randomized for CAPO; pg or npg.
        eta: CAPO's fixed step; None is the log step. For pg and npg the factor of the gradient and of A, in units
            that do not depend on the MDP (see :func:`_unit`).
    """

    title: str
    rule: Literal["batch", "cyclic", "randomized", "pg", "npg"]
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
    part: str | None = None,
    games: Sequence[str] | None = None,
    algos: Sequence[str] | None = None,
    frames: int | None = None,
    seeds: int | None = None,
    preset: str | None = None,
    workers: int | None = None,
) -> None:
    """Compute what is missing of both parts, or of the one that is asked for, and write its files into ``out``.

    The tabular part takes minutes: it is computed again if it is asked for by name, else only if it is missing.
    """
    if part is not None and part not in PARTS:
        raise unknown_name("part", part, PARTS)
    say = minatar.teller("noise", progress)
    own = {"games": games, "algos": algos, "frames": frames, "seeds": seeds, "preset": preset, "workers": workers}
    variants.refuse_with(part, "tabular", **own)
    plan = minatar.chosen_plan(noise_game.QUICK if quick else noise_game.PLAN, frames, seeds, preset)
    jobs = noise_game.jobs(out, quick, games, algos, plan)
    if part != "tabular":
        variants.check(jobs)
    if part == "tabular" or (part is None and not _has_tabular(out, quick)):
        _run_tabular(out, quick, progress)
    elif part is None:
        say(f"the tabular part is finished already (in {out}; --part tabular computes it again)")
    if part != "tabular":
        minatar.train_all(jobs, "trainings on MinAtar", say, progress, workers or 1)


def _has_tabular(out: Path, quick: bool) -> bool:
    """Whether the tabular part is there, whole and of this size."""
    whole = all((out / name).exists() for name in TABULAR)
    return whole and content_of(out / "summary.json").get("quick") is quick


def _run_tabular(out: Path, quick: bool, progress: bool) -> None:
    ticker = Ticker(progress)
    try:
        tabular = run_tabular(out, quick, ticker)
    finally:
        ticker.close()
    write_json(
        out / "summary.json",
        {"experiment": "noise", "quick": quick, "tabular": tabular, **provenance()},
    )


def run_tabular(out: Path, quick: bool, ticker: Ticker) -> dict[str, Any]:
    """Write tabular_curves.csv and tabular.csv; the settings for summary.json."""
    seeds, sweeps = (5, 40) if quick else (20, 100)
    curves: dict[tuple[Noise, str, float, int], dict[str, float]] = {}  # by MDP
    table: list[dict[str, Any]] = []
    total, done = len(MDPS) * len(ALGORITHMS) * len(LEVELS), 0
    for name, (_, make) in MDPS.items():
        mdp = make()
        for kind, levels in LEVELS.items():
            for key, algorithm in ALGORITHMS.items():
                ticker.show(f"noise: {done} of {total} done, now {algorithm.title}, {kind}, {name}")
                done += 1
                points, scores = learn(mdp, algorithm, kind, levels, seeds, sweeps)
                for level, found in zip(levels, scores, strict=True):
                    table.append(
                        {"mdp": name, "noise": kind, "algorithm": key, "level": level, **_summary(points, found)}
                    )
                    for point, mean in zip(points, found.mean(axis=0), strict=True):
                        curves.setdefault((kind, key, level, int(point)), {})[name] = float(mean.round(4))
    columns = ("noise", "algorithm", "level", "sweep")
    kept = [{**dict(zip(columns, at, strict=True)), **row} for at, row in curves.items() if at[1] in _DRAWN]
    write_csv(out / "tabular_curves.csv", kept)
    write_csv(out / "tabular.csv", table)
    return {
        "mdps": {name: title for name, (title, _) in MDPS.items()},
        "levels": LEVELS,
        "seeds": seeds,
        "seeds_are": "independent runs out of one generator, default_rng([0, number of the algorithm]), for the "
        "noise and the randomized rule; each MDP is one instance, seed 0",
        "sweeps": sweeps,
        "sweep": "one update of all pairs, or as many single updates as there are pairs",
        "score": "(V - V_uniform) / (V* - V_uniform) at the start: 0 is the uniform policy, 1 optimal",
        "spread": "low and high are the 10 % and 90 % quantiles over seeds",
        "units": "NPG adds eta A / (mean |A| of the uniform policy) to theta, policy gradient eta S times its "
        "gradient over the same number: without noise both sizes are alike on all MDPs",
    }


# --- the algorithms under noise -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Arrays:
    """An MDP as the loops below want it."""

    transition: Floats  # (S, A, S)
    reward: Floats  # (S, A)
    gamma: float
    start: Floats
    tol: float
    live: Floats  # (S,)

    @classmethod
    def of(cls, mdp: MDP) -> _Arrays:
        live = (~mdp.terminal).astype(float)
        tol = RELATIVE_SIGN_TOL * value_scale(mdp)
        return cls(np.asarray(mdp.transition), mdp.reward, mdp.gamma, mdp.start, tol, live)

    def system(self, pi: Floats) -> Floats:
        """(K, S, S) I - gamma P_pi for policies (K, S, A)."""
        moves = np.einsum("ksa,sat->kst", pi, self.transition, optimize=True)
        return np.asarray(np.eye(len(self.reward)) - self.gamma * moves)

    def values(self, pi: Floats) -> Floats:
        """(K, S)."""
        reward = (pi * self.reward).sum(axis=2)
        return np.asarray(np.linalg.solve(self.system(pi), reward[..., None])[..., 0])

    def advantage(self, values: Floats) -> Floats:
        """(K, S, A), 0 where it is round-off."""
        q = self.reward + self.gamma * np.einsum("sat,kt->ksa", self.transition, values, optimize=True)
        found = q - values[..., None]
        return np.where(np.abs(found) > self.tol, found, 0.0)


def corrupt(advantage: Floats, kind: Noise, level: Floats, spread: float, rng: np.random.Generator) -> Floats:
    """What a bad critic makes of the advantages.

    Args:
        advantage: (K, ...).
        kind: of the noise.
        level: (K,) its size in each of the K runs.
        spread: the unit of Gaussian noise.
        rng: source of the noise.
    """
    size = level.reshape(-1, *(1,) * (advantage.ndim - 1))
    if kind == "flip":
        return np.where(rng.random(advantage.shape) < size, -advantage, advantage)
    draws = rng.standard_normal(advantage.shape)
    if kind == "sign":
        return np.asarray(advantage * np.exp(size * draws))
    return np.asarray(advantage + size * spread * draws)


def learn(
    mdp: MDP, algorithm: Algorithm, kind: Noise, levels: tuple[float, ...], seeds: int, sweeps: int
) -> tuple[Ints, Floats]:
    """Run one algorithm at all levels of noise.

    Returns:
        sweeps (points,) and scores (levels, seeds, points): (V - V_uniform) / (V* - V_uniform), V exact.
    """
    arrays = _Arrays.of(mdp)
    runs = len(levels) * seeds
    level = np.repeat(levels, seeds)
    first = np.full((mdp.n_states, mdp.n_actions), -math.log(mdp.n_actions))
    log_pi = np.tile(first, (runs, 1, 1))
    rng = np.random.default_rng([0, list(ALGORITHMS.values()).index(algorithm)])
    points = _points(sweeps)
    record = set(points.tolist())
    spread, size = _unit(mdp, first)
    values = []
    with single_threaded_blas:
        updates = _updates(arrays, algorithm, kind, level, spread, size, log_pi, rng)
        for sweep in range(sweeps + 1):
            if sweep in record:
                values.append(arrays.values(np.exp(log_pi)) @ arrays.start)
            if sweep < sweeps:
                log_pi = next(updates)
    low = float(mdp.start @ mdp.policy_values(np.exp(first)))
    high = float(mdp.start @ policy_iteration(mdp).values)
    scores = (np.stack(values, axis=1) - low) / (high - low)
    return points, scores.reshape(len(levels), seeds, len(points))


def _points(sweeps: int) -> Ints:
    return np.unique(np.geomspace(1, sweeps + 1, 40).round().astype(np.int64)) - 1


def _unit(mdp: MDP, log_pi: Floats) -> tuple[float, float]:
    """Standard deviation and mean absolute value of A under a policy, over the states that are no end."""
    advantage = Evaluation(mdp, log_pi).advantage[~mdp.terminal]
    return float(advantage.std()), float(np.abs(advantage).mean())


def _updates(
    arrays: _Arrays,
    algorithm: Algorithm,
    kind: Noise,
    level: Floats,
    spread: float,
    size: float,
    log_pi: Floats,
    rng: np.random.Generator,
) -> Iterator[Floats]:
    """The policies (K, S, A) after each sweep, for ever."""
    step = StepSize() if algorithm.eta is None else StepSize("fixed", eta=algorithm.eta)
    while True:
        if algorithm.rule in ("cyclic", "randomized"):
            log_pi = _single_sweep(arrays, algorithm.rule, step, kind, level, spread, log_pi, rng)
        else:
            pi = np.exp(log_pi)
            noisy = corrupt(arrays.advantage(arrays.values(pi)), kind, level, spread, rng)
            if algorithm.rule == "batch":
                sign = np.sign(noisy)
                log_pi = np.asarray(coordinate_update(log_pi, sign, step.alpha(log_pi, sign)))
            else:
                assert algorithm.eta is not None
                direction = noisy / size
                if algorithm.rule == "pg":
                    mu = arrays.live / arrays.live.sum()
                    system = arrays.system(pi).transpose(0, 2, 1)
                    right = np.broadcast_to(mu[:, None], (len(pi), len(mu), 1))
                    visits = np.linalg.solve(system, right)
                    direction = direction * visits * pi * len(mu)
                log_pi = np.asarray(log_normalise(log_pi + algorithm.eta * direction)[0])
        yield log_pi


def _single_sweep(
    arrays: _Arrays,
    rule: str,
    step: StepSize,
    kind: Noise,
    level: Floats,
    spread: float,
    log_pi: Floats,
    rng: np.random.Generator,
) -> Floats:
    """As many single updates as there are live pairs: each once (cyclic), or drawn uniformly by every run."""
    runs, _, n_actions = log_pi.shape
    log_pi, every = log_pi.copy(), np.arange(runs)
    states = np.flatnonzero(arrays.live)
    order = np.stack([np.repeat(states, n_actions), np.tile(np.arange(n_actions), len(states))], axis=1)
    inverse, values = _follow(arrays, log_pi)
    for i in range(len(order)):
        chosen = order[np.full(runs, i)] if rule == "cyclic" else order[rng.integers(len(order), size=runs)]
        state, action = chosen.T
        q = arrays.reward[state] + arrays.gamma * np.einsum("kat,kt->ka", arrays.transition[state], values)
        found = q[every, action] - values[every, state]
        noisy = corrupt(np.where(np.abs(found) > arrays.tol, found, 0.0), kind, level, spread, rng)
        row = log_pi[every, state]
        sign = np.where(np.arange(n_actions) == action[:, None], np.sign(noisy)[:, None], 0.0)
        new = np.asarray(coordinate_update(row, sign, step.alpha(row, sign)))
        log_pi[every, state] = new
        # One row of P_pi has changed: Sherman and Morrison give V and the inverse without another solve.
        change = np.exp(new) - np.exp(row)
        ahead = arrays.gamma * np.einsum("ka,kat->kt", change, arrays.transition[state])
        column = inverse[every, :, state]
        left = np.einsum("kt,ktu->ku", ahead, inverse)
        factor = 1 / (1 - left[every, state])
        gain = (change * arrays.reward[state]).sum(axis=1) + np.einsum("kt,kt->k", ahead, values)
        values = values + column * (gain * factor)[:, None]
        inverse = inverse + column[:, :, None] * (left * factor[:, None])[:, None, :]
    return log_pi


def _follow(arrays: _Arrays, log_pi: Floats) -> tuple[Floats, Floats]:
    """(I - gamma P_pi)^-1 (K, S, S) and V (K, S), afresh."""
    pi = np.exp(log_pi)
    inverse: Floats = np.linalg.inv(arrays.system(pi)).astype(np.float64)
    return inverse, np.asarray(np.einsum("kst,kt->ks", inverse, (pi * arrays.reward).sum(axis=2)))


def _summary(points: Ints, found: Floats) -> dict[str, Any]:
    """Of the seeds (seeds, points): where they end, how well they do on the way, when half have 95 %."""
    there = found >= 0.95
    first = np.where(there.any(axis=1), points[there.argmax(axis=1)].astype(float), np.inf)
    median = float(np.median(first))
    late = found[:, points >= points[-1] / 2]
    return {
        "final": float(found[:, -1].mean()),
        "late": float(late.mean()),
        "late_low": float(np.quantile(late.mean(axis=1), 0.1)),
        "late_high": float(np.quantile(late.mean(axis=1), 0.9)),
        "median_first": None if math.isinf(median) else median,
    }


# --- what is printed ------------------------------------------------------------------------------------------


def report(folder: Path) -> str:
    """The tables of the parts that are there, from the files in ``folder``."""
    parts = []
    if (folder / "summary.json").exists():
        summary = read_json(folder / "summary.json")
        parts += ["QUICK run: fewer seeds and sweeps than the full one."] if summary["quick"] else []
        parts += report_tabular(folder, summary["tabular"])
    game = noise_game.report_game(folder)
    if not parts and not game:
        raise CapoError(f"{folder}: neither part of the noise experiment is there; run without --draw-only first")
    return "\n\n".join([*parts, *(game or ["Note: the part on a game has not been run (--part game)"])])


def report_tabular(folder: Path, settings: dict[str, Any]) -> list[str]:
    """One table a kind of noise: the mean score late in the run, over all MDPs and on the worst of them."""
    rows = {(r["noise"], r["algorithm"], r["level"], r["mdp"]): r for r in read_csv(folder / "tabular.csv")}
    parts = []
    for kind, levels in settings["levels"].items():
        lines = []
        for key, algorithm in ALGORITHMS.items():
            cells = []
            for level in levels:
                late = [rows[kind, key, level, name]["late"] for name in settings["mdps"]]
                cells.append(f"{np.mean(late):.3f} ({min(late):.2f})")
            clean = [rows[kind, key, 0.0, name]["median_first"] for name in settings["mdps"]]
            slow = max(math.inf if math.isnan(value) else value for value in clean)
            lines.append([algorithm.title, *cells, "-" if math.isinf(slow) else f"{slow:.0f}"])
        parts.append(
            text_table(
                f"{kind}: {NOISES[kind]}",
                ["", *(f"{level:g}" for level in levels), "sweeps to 95 %"],
                lines,
            )
        )
    parts.append(
        f"Scores (0: uniform policy, 1: optimal), mean over the second half of {settings['sweeps']} sweeps and "
        f"{settings['seeds']} seeds:\nmean over {len(settings['mdps'])} MDPs (and on the worst of them). "
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
    if (folder / "summary.json").exists():
        settings = read_json(folder / "summary.json")["tabular"]
        drawn = [draw_tabular(folder, out, settings), draw_tabular_time(folder, out, settings)]
    return drawn + noise_game.draw_game(folder, out)


def draw_tabular(folder: Path, out: Path, settings: dict[str, Any]) -> Path:
    """Score late in the run against the noise, a row a kind of noise and a column an MDP."""
    table = groups(read_csv(folder / "tabular.csv"), "noise", "mdp", "algorithm")
    path, names = out / "tabular.png", settings["mdps"]
    with figures.figure(path, 2, len(names), size=(13, 6.6), sharey=True, sharex="row") as (drawing, axes):
        for axis_row, (kind, label) in zip(axes, _LABELS.items(), strict=True):
            for axis, name in zip(axis_row, names, strict=True):
                for key, (colour, style) in _DRAWN.items():
                    rows = table[kind, name, key]
                    x = np.arange(len(rows))
                    axis.plot(x, [r["late"] for r in rows], color=colour, ls=style, label=ALGORITHMS[key].title)
                    low, high = [r["late_low"] for r in rows], [r["late_high"] for r in rows]
                    axis.fill_between(x, low, high, color=colour, alpha=0.1, lw=0)
                axis.set_xticks(x, [f"{row['level']:g}" for row in rows])
                axis.set_xlabel(label)
        _finish(drawing, axes, names, "score late in the run")
        drawing.suptitle(
            f"Advantages from a bad critic: 1 is optimal, 0 the uniform policy; mean of {settings['seeds']} runs "
            f"over the second half of {settings['sweeps']} sweeps, band 10 % to 90 %",
            x=0.01,
            ha="left",
        )
    return path


def draw_tabular_time(folder: Path, out: Path, settings: dict[str, Any]) -> Path:
    """Score by sweep at one level of each kind of noise."""
    curves = groups(read_csv(folder / "tabular_curves.csv"), "noise", "algorithm", "level")
    path, names = out / "tabular_time.png", settings["mdps"]
    with figures.figure(path, 2, len(names), size=(13, 6.6), sharey=True, sharex=True) as (drawing, axes):
        for axis_row, (kind, level) in zip(axes, _OVER_TIME, strict=True):
            for axis, name in zip(axis_row, names, strict=True):
                for key, (colour, style) in _DRAWN.items():
                    rows = curves[kind, key, level]
                    x = [row["sweep"] for row in rows]
                    axis.plot(x, [row[name] for row in rows], color=colour, ls=style, label=ALGORITHMS[key].title)
                axis.set_xscale("symlog", linthresh=5)
                axis.set_xlim(0, settings["sweeps"])
                ticks = [tick for tick in (0, 3, 10, 30, 100) if tick <= settings["sweeps"]]
                axis.set_xticks(ticks, [str(tick) for tick in ticks])
        for axis in axes[1]:
            axis.set_xlabel("sweeps over all pairs")
        _finish(drawing, axes, names, "score")
        drawing.suptitle(
            f"Above: one sign in ten is wrong. Below: Gaussian noise as large as the spread of A. Mean of "
            f"{settings['seeds']} runs; 1 is optimal",
            x=0.01,
            ha="left",
        )
    return path


def _finish(drawing: Any, axes: Any, names: dict[str, str], label: str) -> None:
    for axis, title in zip(axes[0], names.values(), strict=True):
        axis.set_title(title)
    for axis in axes.flat:
        axis.set_ylim(-0.25, 1.04)
        axis.axhline(0, color=figures.MUTED, lw=0.8)
    for axis in axes[:, 0]:
        axis.set_ylabel(label)
    figures.legend_below(drawing, axes.flat[:1])
