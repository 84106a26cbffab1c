"""How often the critic has the sign right, and what that does to the score: NCAPO in a maze whose truth is known.

The paper's low-fidelity claim is that CAPO needs only the sign of the advantage. Here NCAPO, with the paper's
sign-only update, learns its critic by Retrace from its own episodes in a maze, without and with Gaussian noise
on the training rewards. At points along the training its policy is evaluated exactly, so that every sign the
critic gives can be told right or wrong:

- *critic*: sign(Q(s, a) - V(s)) of the critic, over all pairs of states that are not terminal;
- *used*: the sign of the Retrace advantage, over steps drawn from the replay, which is what moves the actor.

Pairs whose exact advantage is 0 count for neither.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, PyTree
from capo.envs.noise import NoisyReward
from capo.experiments import common
from capo.experiments.algorithm2 import HORIZON, plain_return
from capo.experiments.common import SUMMARY, Floats, Row
from capo.neural.algorithms import registry
from capo.neural.algorithms.base import TrainState
from capo.neural.algorithms.ncapo import NCAPOConfig
from capo.neural.algorithms.offpolicy import OffPolicy, retrace_targets
from capo.neural.learners.protocol import Learner
from capo.neural.parts import networks, replay
from capo.progress import show_progress
from capo.report import figures
from capo.tabular.baselines import policy_iteration
from capo.tabular.mdp import MDP
from capo.tabular.mdps import grid
from capo.tabular.theory import PolicyValues

DATA = ("curves.csv", "table.csv", SUMMARY)
OPTIONS = ()
NOISES = (0.0, 3.0, 10.0, 30.0)
# The preset paper, smaller: the maze has 21 states.
SIZES: dict[str, Any] = {
    "n_envs": 16,
    "rollout_length": 16,
    "gradient_steps": 8,
    "replay_rollouts": 1600,
    "width": 64,
}
FRAMES, SEEDS, POINTS = 102_400, 10, 10
DRAWN = 256  # rollouts of the replay whose signs are looked at
EXACT_ZERO = 1e-6  # exact advantages up to this size have no sign


class MazeEnv:
    """A tabular MDP as a jitted environment: one-hot observations, episodes cut after HORIZON steps."""

    jitted = True
    truncates = True

    def __init__(self, mdp: MDP) -> None:
        self.name, self.n_actions = f"maze {mdp.label}", mdp.n_actions
        self.observation_shape, self.observation_dtype = (mdp.n_states,), np.dtype(np.float32)
        self._start = np.cumsum(mdp.start)
        self._moves = np.cumsum(mdp.transition, axis=2)
        self._reward, self._terminal = np.asarray(mdp.reward, np.float32), np.asarray(mdp.terminal)

    def _observe(self, state: Array) -> Array:
        return jax.nn.one_hot(state, self.observation_shape[0], dtype=jnp.float32)

    def _drawn(self, below: Array, key: Array) -> Array:
        found = jnp.searchsorted(below, jax.random.uniform(key), side="right")
        return jnp.minimum(found, self.observation_shape[0] - 1)

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        state = self._drawn(jnp.asarray(self._start, jnp.float32), key)
        return (state, jnp.int32(0)), self._observe(state)

    def step(self, key: Array, env_state: PyTree, action: Array) -> tuple[PyTree, Array, Array, Array, Array]:
        state, age = env_state
        after = self._drawn(jnp.asarray(self._moves, jnp.float32)[state, action], key)
        ended = jnp.asarray(self._terminal)[after]
        cut = (age + 1 >= HORIZON) & ~ended
        return (after, age + 1), self._observe(after), jnp.asarray(self._reward)[state, action], ended, cut


def run(out: Path, quick: bool = False, progress: bool = True) -> None:
    """Compute everything and write curves.csv, table.csv and summary.json into ``out``."""
    mdp = grid(5)
    frames, seeds, points = (5_120, 2, 2) if quick else (FRAMES, SEEDS, POINTS)
    noises = NOISES[:3:2] if quick else NOISES
    ticker = show_progress(progress)
    curves: list[Row] = []
    for noise in noises:
        ticker.show(f"signs: reward noise {noise:g}")
        curves += train(mdp, noise, frames, seeds, points)
    ticker.close()
    table = [_summary(noise, curves) for noise in noises]
    summary = {
        "experiment": "signs",
        "quick": quick,
        "maze": mdp.label,
        "gamma": mdp.gamma,
        "frames": frames,
        "seeds": f"0 to {seeds - 1}",
        "noises": noises,
        "config": _config(frames).to_dict(),
        "precision": "float32",
        "returns": {"optimum": _best(mdp), "uniform": _uniform(mdp), "is": "undiscounted, expected, 100 steps"},
        "score": "(return - uniform) / (optimum - uniform)",
        "critic": "share of the pairs of live states at which sign(Q - V) is that of the exact advantage",
        "used": f"the same of the Retrace advantages of {DRAWN} rollouts drawn from the replay",
        "left_out": f"pairs with an exact advantage up to {EXACT_ZERO:g}",
    }
    common.write_data(out, summary, curves=curves, table=table)


def _config(frames: int) -> NCAPOConfig:
    return replace(NCAPOConfig.preset("paper", "maze"), **SIZES, horizon=frames)


def _best(mdp: MDP) -> float:
    return plain_return(mdp, policy_iteration(mdp).policy)


def _uniform(mdp: MDP) -> float:
    return plain_return(mdp, np.full((mdp.n_states, mdp.n_actions), 1 / mdp.n_actions))


# --- one training ---------------------------------------------------------------------------------------------


def train(mdp: MDP, noise: float, frames: int, seeds: int, points: int) -> list[Row]:
    """Train all seeds as one program; one row per seed and point."""
    env: Any = MazeEnv(mdp)
    config = _config(frames)
    learner = registry.learner_for(NoisyReward(env, noise) if noise else env, config, seeds)
    state = learner.init(range(seeds))
    low, high = _uniform(mdp), _best(mdp)
    each = frames // config.frames_per_iteration // points
    rows: list[Row] = []
    for point in range(1, points + 1):
        state, _ = learner.run(state, each)
        for seed, (log_pi, q, replayed) in enumerate(observe(learner, state)):
            right = shares(mdp, log_pi, q, *replayed)
            score = (plain_return(mdp, np.exp(log_pi)) - low) / (high - low)
            key = {"noise": noise, "seed": seed}
            rows.append({**key, "frames": point * each * config.frames_per_iteration, **right, "score": score})
    return rows


def observe(learner: Learner, state: TrainState) -> list[tuple[Floats, Floats, tuple[Any, Any, Any]]]:
    """Per seed: log pi (S, A) and Q (S, A) of all states, and state, action and sign (n,) of replayed steps."""
    algorithm = learner.algorithm
    assert isinstance(algorithm, OffPolicy)
    key = jax.random.PRNGKey(state.reached)

    @jax.jit
    def one(state: TrainState) -> Any:
        spec, (n_states,) = algorithm.network, algorithm.rollouts.observation_shape
        every = networks.inputs(spec, jnp.eye(n_states)[None])
        logits, outputs, _ = networks.logits_and_q(spec, state.params, every)
        stored = jax.random.randint(key, (DRAWN,), 0, algorithm.rollouts.capacity)
        batch = replay.take(algorithm.rollouts, state.replay, stored)
        inputs = networks.inputs(spec, batch.obs)
        own, _, features = networks.logits_and_q(spec, state.params, inputs)
        target = networks.prepare(spec, state.target)
        slow, q_slow = algorithm.slow_policy_and_q(state.params, target, inputs, own, features)
        advantage = retrace_targets(algorithm.config, batch, slow, q_slow).advantage
        where = jnp.argmax(batch.obs[:, : batch.action.shape[1]], axis=-1)
        written = batch.obs[:, 0].sum(axis=-1) > 0  # the ring may not be full yet
        sign = jnp.where(written[:, None], jnp.sign(advantage), 0)
        return jax.nn.log_softmax(logits[0]), algorithm.critic.values(outputs)[0], where, batch.action, sign

    found = []
    for k in range(learner.n_seeds):
        own = jax.tree.map(lambda leaf, k=k: leaf[k], state)
        log_pi, q, where, action, sign = jax.tree.map(np.asarray, one(own))
        found.append((log_pi.astype(float), q.astype(float), (where.ravel(), action.ravel(), sign.ravel())))
    return found


def shares(mdp: MDP, log_pi: Floats, q: Floats, where: Any, action: Any, sign: Any) -> dict[str, float]:
    """The shares of right signs: the critic's (S, A), and those used, (n,) with 0 for what does not count."""
    exact = PolicyValues(mdp, log_pi - np.log(np.exp(log_pi).sum(axis=1, keepdims=True))).advantage
    truth = np.where(np.abs(exact) > EXACT_ZERO, np.sign(exact), 0) * ~mdp.terminal[:, None]
    said = np.sign(q - (np.exp(log_pi) * q).sum(axis=1, keepdims=True))
    counts = truth[where, action] * (sign != 0)
    return {
        "critic": float((said == truth)[truth != 0].mean()),
        "used": float((counts == sign)[counts != 0].mean()) if counts.any() else float("nan"),
    }


def _summary(noise: float, curves: list[Row]) -> Row:
    rows = [row for row in curves if row["noise"] == noise]
    last = max(row["frames"] for row in rows)
    ends = [row for row in rows if row["frames"] == last]
    along = {name: float(np.nanmean([row[name] for row in rows])) for name in ("critic", "used")}
    return {
        "noise": noise,
        "seeds": len(ends),
        "critic_along": along["critic"],
        "used_along": along["used"],
        **{f"{name}_end": float(np.nanmean([row[name] for row in ends])) for name in ("critic", "used", "score")},
        "score_low": min(row["score"] for row in ends),
        "score_high": max(row["score"] for row in ends),
    }


# --- what is printed and drawn --------------------------------------------------------------------------------


def report(folder: Path) -> str:
    """The table, from the files in ``folder``."""
    summary = common.read_json(folder / SUMMARY)
    rows = [
        [
            f"reward noise {row['noise']:g}",
            *(f"{row[name]:.1%}" for name in ("critic_along", "critic_end", "used_along", "used_end")),
            f"{row['score_end']:.3f}",
            f"{row['score_low']:.2f} - {row['score_high']:.2f}",
        ]
        for row in common.read_csv(folder / "table.csv")
    ]
    header = ["", "critic", "critic, end", "used", "used, end", "score", "lowest - highest"]
    title = (
        f"NCAPO in the maze {summary['maze']}, {summary['frames']:,} frames, seeds {summary['seeds']}: share of "
        "right signs\n(along the training, at its end) and score at the end (0: uniform policy, 1: optimum)"
    )
    parts = common.quick_note(summary["quick"], "frames, seeds and noises")
    note = (
        "critic: sign(Q - V) at all pairs. used: sign of the Retrace advantage on replayed steps. Signs are\n"
        "compared with the exact advantages of the policy at that time; pairs where those are 0 are left out."
    )
    return "\n\n".join([*parts, common.text_table(title, header, rows, note)])


def draw(folder: Path, out: Path) -> list[Path]:
    """signs.png from the files in ``folder``: shares and scores along the training, by noise."""
    summary = common.read_json(folder / SUMMARY)
    groups = common.read_groups(folder / "curves.csv", "noise")
    names = {"critic": "right signs, critic", "used": "right signs, used by the actor", "score": "score"}
    path = out / "signs.png"
    with figures.figure(path, 1, 3, size=(11, 3.6), sharex=True, sharey=True) as (drawing, axes):
        for axis, (name, label) in zip(axes.flat, names.items(), strict=True):
            for i, noise in enumerate(summary["noises"]):
                rows = groups.get((float(noise),), [])
                frames = sorted({row["frames"] for row in rows})
                means = [np.nanmean([row[name] for row in rows if row["frames"] == f]) for f in frames]
                axis.plot(frames, means, color=figures.COLOURS[i], label=f"reward noise {noise:g}")
            axis.set(title=label, xlabel="frames")
            axis.axhline(1, color=figures.MUTED, lw=0.8)
            axis.xaxis.set_major_formatter(figures.short_number)
        figures.legend_below(drawing, axes.flat, columns=4)
        common.caption(drawing, "NCAPO, sign only, in a maze: means over seeds", summary["quick"])
    return [path]
