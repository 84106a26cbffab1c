"""How often a learned critic has the sign right, and what that does to the score, in a maze whose truth is known.

The paper's low-fidelity claim is that CAPO needs only the sign of the advantage. Here Algorithm 3 runs on tables
instead of networks: rollouts by epsilon-greedy, a replay, Q by Retrace, CAPO's update on the pairs of the batch
by the sign of their Retrace advantage alone; without and with Gaussian noise on the training rewards, with the
paper's step log 1/pi (clipped at 50) and with a fixed step of 1. At points along the training the policy is
evaluated exactly, so that every sign can be told right or wrong:

- *critic*: sign(Q(s, a) - V(s)) of the table Q, over all pairs of states that are not terminal;
- *used*: the sign of the mean Retrace advantage, over the pairs of the batch, which is what moves the policy;
- *by size*: the same with every pair weighted by its exact |A|, since most pairs of a good policy hardly matter.

Pairs whose exact advantage is 0 count for neither. All runs of a case are one numpy program.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from capo.experiments import common
from capo.experiments.algorithm2 import HORIZON, plain_return
from capo.experiments.common import SUMMARY, Floats, Ints, Row
from capo.progress import show_progress
from capo.report import figures
from capo.tabular.baselines import policy_iteration
from capo.tabular.mdp import MDP
from capo.tabular.mdps import grid
from capo.tabular.theory import PolicyValues
from capo.update import StepSize, coordinate_update

DATA = ("curves.csv", "table.csv", SUMMARY)
OPTIONS = ()
NOISES = (0.0, 3.0, 10.0, 30.0)
STEPS = {
    "log": ("min(log 1/pi, 50), the paper's", StepSize("clipped", clip=50.0)),
    "fixed": ("a fixed step of 1", StepSize("fixed", eta=1.0)),
}
WHAT = {
    "critic": "right signs, critic",
    "used": "right signs, used",
    "by_size": "right signs, used, by size",
    "score": "score",
}
EXACT_ZERO = 1e-6  # exact advantages up to this size have no sign


@dataclass(frozen=True)
class Sizes:
    """Of a training; epsilon falls over the first tenth of it, as in the paper."""

    runs: int = 10
    iterations: int = 300
    points: int = 10
    n_envs: int = 16
    length: int = 16
    replay: int = 640  # rollouts
    batch: int = 32  # rollouts
    critic_steps: int = 4  # per iteration
    critic_rate: float = 0.2
    epsilon: tuple[float, float] = (0.3, 0.05)

    @property
    def frames(self) -> int:
        """Steps of one run."""
        return self.iterations * self.n_envs * self.length


class Rollouts(NamedTuple):
    """(R, n, T) steps of n rollouts per run."""

    state: Ints
    action: Ints
    reward: Floats
    following: Ints
    ended: Floats  # 1 where the goal was reached
    cut: Floats  # 1 where the episode was cut off
    mu: Floats  # the probability with which the action was taken


def run(out: Path, quick: bool = False, progress: bool = True) -> None:
    """Compute everything and write curves.csv, table.csv and summary.json into ``out``."""
    mdp = grid(5)
    sizes = Sizes(runs=3, iterations=40, points=4) if quick else Sizes()
    noises = NOISES[:3:2] if quick else NOISES
    ticker = show_progress(progress)
    curves: list[Row] = []
    for name in STEPS:
        for noise in noises:
            ticker.show(f"signs: {STEPS[name][0]}, reward noise {noise:g}")
            curves += train(mdp, name, noise, sizes)
    ticker.close()
    summary = {
        "experiment": "signs",
        "quick": quick,
        "maze": mdp.label,
        "gamma": mdp.gamma,
        "sizes": {name: getattr(sizes, name) for name in sizes.__dataclass_fields__},
        "frames": sizes.frames,
        "runs": f"seeds 0 to {sizes.runs - 1}",
        "noises": noises,
        "precision": "float64",
        "returns": {"optimum": _best(mdp), "uniform": _uniform(mdp), "is": "undiscounted, expected, 100 steps"},
        "score": "(return - uniform) / (optimum - uniform)",
        "critic": "share of the pairs of live states at which sign(Q - V) is that of the exact advantage",
        "used": "the same of the mean Retrace advantages of the pairs in the batch that moved the policy last",
        "by_size": "used, every pair weighted by its exact |A|",
        "left_out": f"pairs with an exact advantage up to {EXACT_ZERO:g}",
    }
    table = [_summary(name, noise, curves) for name in STEPS for noise in noises]
    common.write_data(out, summary, curves=curves, table=table)


def _best(mdp: MDP) -> float:
    return plain_return(mdp, policy_iteration(mdp).policy)


def _uniform(mdp: MDP) -> float:
    return plain_return(mdp, np.full((mdp.n_states, mdp.n_actions), 1 / mdp.n_actions))


# --- one training ---------------------------------------------------------------------------------------------


def train(mdp: MDP, name: str, noise: float, sizes: Sizes) -> list[Row]:
    """All runs of one case; one row per run and point."""
    rng = np.random.default_rng([int(10 * noise), list(STEPS).index(name)])
    shape = sizes.runs, mdp.n_states, mdp.n_actions
    log_pi, q = np.full(shape, -np.log(mdp.n_actions)), np.zeros(shape)
    where = _drawn(np.cumsum(mdp.start), rng.random((sizes.runs, sizes.n_envs)))
    age = np.zeros_like(where)
    kept: Rollouts | None = None
    low, high, rows = _uniform(mdp), _best(mdp), []
    for iteration in range(1, sizes.iterations + 1):
        part = min(1.0, 10 * (iteration - 1) / sizes.iterations)
        epsilon = (1 - part) * sizes.epsilon[0] + part * sizes.epsilon[1]
        mu = (1 - epsilon) * np.exp(log_pi) + epsilon / mdp.n_actions
        fresh, where, age = collect(mdp, mu, where, age, sizes.length, noise, rng)
        kept = fresh if kept is None else _joined(kept, fresh, sizes.replay)
        for _ in range(sizes.critic_steps):
            batch = _sample(kept, sizes.batch, rng)
            returns, _ = retrace(mdp.gamma, np.exp(log_pi), q, batch)
            mean, seen = by_pair(returns, batch, shape)
            q = np.where(seen, q + sizes.critic_rate * (mean - q), q)
        batch = _sample(kept, sizes.batch, rng)
        _, advantage = retrace(mdp.gamma, np.exp(log_pi), q, batch)
        mean, seen = by_pair(advantage, batch, shape)
        sign = np.where(seen, np.sign(mean), 0.0)
        if iteration % (sizes.iterations // sizes.points) == 0:
            for k in range(sizes.runs):
                score = (plain_return(mdp, np.exp(log_pi[k])) - low) / (high - low)
                key: Row = {"step": name, "noise": noise, "run": k}
                frames = iteration * sizes.n_envs * sizes.length
                rows.append({**key, "frames": frames, **shares(mdp, log_pi[k], q[k], sign[k]), "score": score})
        log_pi = np.asarray(coordinate_update(log_pi, sign, STEPS[name][1].alpha(log_pi, sign)))
    return rows


def _drawn(below: Floats, chance: Floats) -> Ints:
    """Indices drawn by cumulative probabilities ``below`` (..., n), one for each of ``chance`` (...)."""
    return np.asarray(np.minimum((below <= chance[..., None]).sum(axis=-1), below.shape[-1] - 1))


def collect(
    mdp: MDP, mu: Floats, where: Ints, age: Ints, length: int, noise: float, rng: np.random.Generator
) -> tuple[Rollouts, Ints, Ints]:
    """``length`` steps of every environment (R, n) with the policy ``mu`` (R, S, A), and where they are then."""
    run = np.arange(len(mu))[:, None]
    moves, start = np.cumsum(mdp.transition, axis=2), np.cumsum(mdp.start)
    steps: list[tuple[Any, ...]] = []
    for _ in range(length):
        action = _drawn(np.cumsum(mu[run, where], axis=-1), rng.random(where.shape))
        following = _drawn(moves[where, action], rng.random(where.shape))
        reward = mdp.reward[where, action] + noise * rng.standard_normal(where.shape)
        ended = mdp.terminal[following]
        cut = ~ended & (age + 1 >= HORIZON)
        steps.append((where, action, reward, following, ended, cut, mu[run, where, action]))
        again = _drawn(start, rng.random(where.shape))
        where, age = np.where(ended | cut, again, following), np.where(ended | cut, 0, age + 1)
    columns = [np.stack(column, axis=-1) for column in zip(*steps, strict=True)]
    columns[4:6] = [column.astype(float) for column in columns[4:6]]
    return Rollouts(*columns), where, age


def _joined(kept: Rollouts, fresh: Rollouts, most: int) -> Rollouts:
    """The replay: the newest ``most`` rollouts."""
    pairs = zip(kept, fresh, strict=True)
    return Rollouts(*(np.concatenate([old, new], axis=1)[:, -most:] for old, new in pairs))


def _sample(kept: Rollouts, batch: int, rng: np.random.Generator) -> Rollouts:
    runs, stored = kept.state.shape[:2]
    chosen = rng.integers(stored, size=(runs, batch))
    drawn: list[Any] = [array[np.arange(runs)[:, None], chosen] for array in kept]
    return Rollouts(*drawn)


def retrace(gamma: float, pi: Floats, q: Floats, batch: Rollouts) -> tuple[Floats, Floats]:
    """Retrace returns with lambda = 1, and advantages over V(s), (R, n, T) each, for tables (R, S, A)."""
    run = np.arange(len(pi))[:, None, None]
    v = (pi * q).sum(axis=2)
    taken, alive = q[run, batch.state, batch.action], 1 - batch.ended
    delta = batch.reward + gamma * alive * v[run, batch.following] - taken
    trace = np.minimum(1.0, pi[run, batch.state, batch.action] / batch.mu)
    returns, later = np.empty_like(delta), np.zeros(delta.shape[:2])
    for t in reversed(range(delta.shape[2])):
        if t + 1 < delta.shape[2]:
            onward = gamma * alive[..., t] * (1 - batch.cut[..., t]) * trace[..., t + 1]
        else:
            onward = np.zeros_like(later)
        later = delta[..., t] + onward * later
        returns[..., t] = taken[..., t] + later
    return returns, returns - v[run, batch.state]


def by_pair(values: Floats, batch: Rollouts, shape: tuple[int, int, int]) -> tuple[Floats, Any]:
    """The mean of ``values`` (R, n, T) at every pair (R, S, A), and which pairs are in the batch."""
    run = np.broadcast_to(np.arange(shape[0])[:, None, None], values.shape)
    sums, counts = np.zeros(shape), np.zeros(shape)
    np.add.at(sums, (run, batch.state, batch.action), values)
    np.add.at(counts, (run, batch.state, batch.action), 1.0)
    return sums / np.maximum(counts, 1.0), counts > 0


def shares(mdp: MDP, log_pi: Floats, q: Floats, sign: Floats) -> dict[str, float]:
    """The shares of right signs of one run: of Q - V (S, A), and of those used (S, A), 0 where there is none."""
    exact = PolicyValues(mdp, log_pi).advantage
    truth = np.where(np.abs(exact) > EXACT_ZERO, np.sign(exact), 0) * ~mdp.terminal[:, None]
    said = np.sign(q - (np.exp(log_pi) * q).sum(axis=1, keepdims=True))
    both = (truth != 0) & (sign != 0)
    used = (sign == truth)[both].astype(float)
    return {
        "critic": float((said == truth)[truth != 0].mean()),
        "used": float(used.mean()) if both.any() else float("nan"),
        "by_size": float(np.average(used, weights=np.abs(exact)[both])) if both.any() else float("nan"),
    }


def _summary(name: str, noise: float, curves: list[Row]) -> Row:
    rows = [row for row in curves if (row["step"], row["noise"]) == (name, noise)]
    last = max(row["frames"] for row in rows)
    ends = [row for row in rows if row["frames"] == last]
    return {
        "step": name,
        "noise": noise,
        "runs": len(ends),
        **{f"{what}_along": float(np.nanmean([row[what] for row in rows])) for what in WHAT},
        **{f"{what}_end": float(np.nanmean([row[what] for row in ends])) for what in WHAT},
        "score_low": min(row["score"] for row in ends),
        "score_high": max(row["score"] for row in ends),
    }


# --- what is printed and drawn --------------------------------------------------------------------------------


def report(folder: Path) -> str:
    """The table, from the files in ``folder``."""
    summary = common.read_json(folder / SUMMARY)
    rows = [
        [
            f"{STEPS[row['step']][0]}; reward noise {row['noise']:g}",
            *(f"{row[name]:.1%}" for name in ("critic_along", "used_along", "by_size_along", "by_size_end")),
            f"{row['score_along']:.3f}",
            f"{row['score_end']:.3f}",
            f"{row['score_low']:.2f} - {row['score_high']:.2f}",
        ]
        for row in common.read_csv(folder / "table.csv")
    ]
    header = ["", "critic", "used", "by size", "end", "score", "end", "lowest - highest"]
    title = (
        f"Algorithm 3 on tables, maze {summary['maze']}, {summary['frames']:,} frames, {summary['runs']}: share "
        "of right signs\nand score (0: uniform policy, 1: optimum), means along the training and at its end"
    )
    parts = common.quick_note(summary["quick"], "frames, runs and noises")
    note = (
        "critic: sign(Q - V) at all pairs. used: sign of the Retrace advantage at the pairs of the batch. Both\n"
        "are compared with the exact advantages of the policy at that time; pairs where those are 0 are\n"
        "left out. by size: used, every pair weighted by its exact |A|."
    )
    return "\n\n".join([*parts, common.text_table(title, header, rows, note)])


def draw(folder: Path, out: Path) -> list[Path]:
    """signs.png from the files in ``folder``: shares and scores along the training, by noise."""
    summary = common.read_json(folder / SUMMARY)
    groups = common.read_groups(folder / "curves.csv", "step", "noise")
    path = out / "signs.png"
    with figures.figure(path, len(STEPS), len(WHAT), size=(13, 6.2), sharex=True, sharey=True) as (drawing, axes):
        for line, (step, (title, _)) in zip(axes, STEPS.items(), strict=True):
            for axis, (name, label) in zip(line, WHAT.items(), strict=True):
                for i, noise in enumerate(summary["noises"]):
                    rows = groups.get((step, float(noise)), [])
                    frames = sorted({row["frames"] for row in rows})
                    means = [np.nanmean([row[name] for row in rows if row["frames"] == f]) for f in frames]
                    axis.plot(frames, means, color=figures.COLOURS[i], label=f"reward noise {noise:g}")
                axis.set_title(f"{label}\n{title}")
                axis.axhline(1, color=figures.MUTED, lw=0.8)
                axis.xaxis.set_major_formatter(figures.short_number)
        for axis in axes[-1]:
            axis.set_xlabel("frames")
        figures.legend_below(drawing, axes.flat, columns=4)
        common.caption(drawing, "Algorithm 3 on tables in a maze: means over runs", summary["quick"])
    return [path]
