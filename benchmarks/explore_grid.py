"""Exploration: a designed comparison of many settings of NCAPO on one MinAtar game, one program, many rows.

    python benchmarks/explore_grid.py --out FILE --game asterix --name base --rows 16 --frames 1e7 \
        --base "width=256" --factors "learning_rate=2e-3/1e-3 entropy=.01/.003" --first-seed 5000
    ... --settings "-" "learning_rate=1e-3" --seeds 3      named settings instead of a design

Columns of evaluation (mean over EPISODES episodes): sampled, best (actions), q (best action of the critic), each of
the last networks and of their running average ("a-...").
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo import envs
from capo.neural.algorithms import offpolicy
from capo.neural.algorithms.ncapo import NCAPOAlgorithm, NCAPOConfig, actor_loss, actor_target
from capo.neural.algorithms.settings import TracedFraction, TracedNonNegative, TracedPositive, field_kinds, override
from capo.neural.learners.jitted import JittedLearner
from capo.neural.learners.trials import TrialsLearner
from capo.neural.parts import certainty, optimisers, policies
from capo.neural.parts.critic import CriticHead
from capo.neural.parts.policies import taken


@dataclass(frozen=True)
class Config(NCAPOConfig):
    average: TracedFraction = 0.02  # step of the running average, per iteration
    average_acts: TracedFraction = 0.0  # 1: the running average acts in training
    average_from: TracedFraction = 0.0  # 1: the running average is pi_m
    weight_cap: TracedPositive = 1e6  # min(|A| / mean |A|, cap) / min(cap, 1)
    weight_floor: TracedNonNegative = 0.0  # 0 below this
    huber: TracedPositive = 1e6  # in rms errors
    weight_decay: TracedNonNegative = 0.0
    dueling: bool = False
    pull: TracedNonNegative = 0.0
    actor_coefficient: TracedPositive = 1.0
    radam: bool = False
    mix: TracedFraction = 0.0  # part of the advantage that is the critic's own, Q' - V, at the taken action


@dataclass(frozen=True)
class Head(CriticHead):
    dueling: bool = False
    pull: Any = 0.0
    huber: Any = 1e6

    def n_outputs(self, n_actions: int) -> int:
        return n_actions + 1 if self.dueling else super().n_outputs(n_actions)

    def initial_bias(self, n_actions: int) -> Any:
        return np.zeros(n_actions + 1, np.float32) if self.dueling else super().initial_bias(n_actions)

    def values(self, outputs):
        return outputs[..., :1] + outputs[..., 1:] if self.dueling else super().values(outputs)

    def loss(self, outputs, action, returns):
        if self.n_heads > 1:
            return super().loss(outputs, action, returns)
        e = jnp.abs(taken(self.values(outputs), action) - returns)
        unit = jax.lax.stop_gradient(jnp.sqrt(jnp.mean(jnp.square(e)))) * self.huber + 1e-8
        loss = jnp.where(e < unit, jnp.square(e), 2 * unit * e - jnp.square(unit))
        if self.dueling:
            loss = loss + self.pull * jnp.mean(jnp.square(outputs[..., 1:]), axis=-1)
        return loss


class Explore(NCAPOAlgorithm):
    Config = Config
    config: Config

    @property
    def critic(self):
        head = super().critic
        c = self.config
        return Head(head.categorical, head.n_atoms, head.v_min, head.v_max, head.n_heads, c.dueling, c.pull, c.huber)

    def optimiser(self):
        import optax
        c = self.config
        if c.radam:
            return optimisers.make("radam", optax.clip_by_global_norm(c.max_grad_norm), epsilon=c.optimiser_epsilon)
        return super().optimiser()

    def init_target(self, params):
        return super().init_target(params) | {"average": jax.tree.map(jnp.copy, params)}

    def update_target(self, params, target):
        target = dict(target)
        average = target.pop("average")
        step = self.config.average
        return super().update_target(params, target) | {
            "average": jax.tree.map(lambda s, f: s + step * (f - s), average, params)
        }

    def gradient_step(self, params, opt_state, target, batch, learning_rate, entropy, train):
        new, opt_state, metrics = super().gradient_step(
            params, opt_state, target, batch, learning_rate, entropy, train
        )
        decay = learning_rate * self.config.weight_decay
        new = jax.tree.map(lambda n, o: n - decay * o if o.ndim > 1 else n, new, params)
        return new, opt_state, metrics

    def losses(self, log_pi, batch, targets):
        c, factors = self.config, self.network.factors
        logged = {}
        if c.advantage_weight == "certain":
            advantage = self.certain_signs(batch, targets)
            logged = {"certainty": certainty.mean_certainty(targets.log_pi, advantage)}
        else:
            sampled = targets.advantage
            value = jnp.sum(jnp.exp(targets.log_pi) * targets.q, axis=-1)
            sampled = (1 - c.mix) * sampled + c.mix * (taken(targets.q, batch.action) - value)
            size = jnp.abs(sampled) / (jnp.mean(jnp.abs(sampled)) + 1e-8)
            weight = jnp.where(size < c.weight_floor, 0.0, jnp.minimum(size, c.weight_cap) / jnp.minimum(c.weight_cap, 1.0))
            signed = jnp.sign(sampled) * weight
            advantage = jnp.where(
                policies.is_taken(batch.action, self.network.n_actions, factors), signed[..., None], 0.0
            )
        pi_tilde = actor_target(targets.log_pi, advantage, c, factors)
        return {"actor_loss": c.actor_coefficient * actor_loss(log_pi, pi_tilde, c.kl, factors), **logged}


class Learner(TrialsLearner):
    def _collect(self, state, key, epsilon):
        w = self.algorithm.config.average_acts
        mixed = jax.tree.map(lambda p, a: p + w * (a - p), state.params, state.target["average"])
        after, *rest = super()._collect(replace(state, params=mixed), key, epsilon)
        return (replace(after, params=state.params), *rest)


def columns(algorithm, params) -> dict[str, Any]:
    """Networks whose sampled actions are those of each column."""
    def with_head(head, scale):
        actor = {**params["actor"], "head": jax.tree.map(lambda x: x * scale, head)}
        return {**params, "actor": actor}

    critic = params["critic"]["head"]
    n = algorithm.network.n_actions
    if algorithm.config.dueling:
        critic = jax.tree.map(lambda x: x[..., 1:], critic)
    if algorithm.critic.n_heads > 1:
        critic = jax.tree.map(lambda x: x.reshape(*x.shape[:-1], -1, n).mean(-2), critic)
    made = {"sampled": params, "best": with_head(params["actor"]["head"], 1e4)}
    if algorithm.config.shared_trunk:
        made["q"] = with_head(critic, 1e4)
    return made


HADAMARD = np.array([[(-1) ** bin(i & j).count("1") for j in range(16)] for i in range(16)]) < 0


def design(n_rows: int, factors: dict[str, list[str]], rng: np.random.Generator) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = [{} for _ in range(n_rows)]
    for block in range(0, n_rows, 16):
        cols, order = rng.permutation(np.arange(1, 16)), rng.permutation(16)
        for k, (name, levels) in enumerate(factors.items()):
            flip = rng.integers(2)
            for i in range(min(16, n_rows - block)):
                rows[block + i][name] = float(levels[int(HADAMARD[order[i], cols[k % 15]]) ^ flip])
    return rows


def changes(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.replace(",", " ").split() if pair not in ("", "-"))


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--game", required=True)
    p.add_argument("--name", default="")
    p.add_argument("--preset", default="default")
    p.add_argument("--base", default="")
    p.add_argument("--factors", default="")
    p.add_argument("--rows", type=int, default=16)
    p.add_argument("--settings", nargs="*", default=[])
    p.add_argument("--seeds", type=int, default=1)
    p.add_argument("--first-seed", type=int, default=5000)
    p.add_argument("--frames", type=float, default=1e7)
    p.add_argument("--episodes", type=int, default=50)
    p.add_argument("--stop", type=float, default=1e9, help="evaluate after so many seconds of training at the latest")
    o = p.parse_args()
    frames = int(o.frames)
    begun = time.perf_counter()
    env = envs.make(f"minatar-{o.game}")
    config = override(Config(**NCAPOConfig.preset(o.preset, env.name).to_dict()), {"horizon": str(frames)} | changes(o.base))
    if o.settings:
        trials = [{k: float(v) for k, v in changes(s).items()} for s in o.settings for _ in range(o.seeds)]
        seeds = [o.first_seed + i for _ in o.settings for i in range(o.seeds)]
        names = [s for s in o.settings for _ in range(o.seeds)]
    else:
        factors = {k: v.split("/") for k, v in changes(o.factors).items()}
        rng = np.random.default_rng(abs(hash((o.game, o.name))) % 2**31 if False else sum(map(ord, o.game + o.name)))
        trials = design(o.rows, factors, rng)
        seeds = [o.first_seed + i for i in range(o.rows)]
        names = ["design"] * o.rows
    kinds = field_kinds(Config)
    for t in trials:
        override(config, t)
    used = sorted({k for t in trials for k in t})
    assert all(kinds[k].traced for k in used), used
    algorithm = Explore(config, env)
    learner = Learner(algorithm, env, used, len(trials))
    # each row has a seed of its own: TrialsLearner.start takes trials x seeds
    state: Any = learner.init(seeds)
    cols = {n: np.array([t.get(n, getattr(config, n)) for t in trials], np.float32) for n in used}
    state = replace(state, numbers=learner.place({n: jnp.array(c) for n, c in cols.items()}))
    compiled = learner.compile()
    print(f"{o.game} {o.name}: {len(trials)} rows, compiled in {compiled:.0f} s", flush=True)
    per = learner.frames_per_iteration
    iterations, pieces = frames // per, 20
    curve, trained = [], 0.0
    o.out.parent.mkdir(parents=True, exist_ok=True)
    keys = jnp.stack([jax.random.PRNGKey(9000 + s) for s in seeds])

    def write(evaluations: dict[str, list[float]], at: int) -> None:
        rows = [
            {
                "game": o.game, "name": o.name, "preset": o.preset, "base": o.base, "setting": names[i], "seed": seeds[i], "numbers": trials[i],
                "frames": at, "curve": [round(float(c[i]), 2) for c in curve],
                "evaluation": {k: round(float(v[i]), 2) for k, v in evaluations.items()},
            }
            for i in range(len(trials))
        ]
        o.out.write_text(json.dumps({"compile_seconds": compiled, "training_seconds": trained, "config": config.to_dict(), "rows": rows}))

    def evaluate() -> dict[str, Any]:
        made = {}
        for prefix, params in (("", state.params), ("a-", state.target["average"])):
            for name, chosen in columns(algorithm, params).items():
                made[prefix + name] = learner.evaluate(chosen, keys, o.episodes).mean(axis=1)
        return made

    done = 0
    for piece in range(pieces):
        target = iterations * (piece + 1) // pieces
        begin = time.perf_counter()
        state, metrics = learner.run(state, target - done)
        done = target
        trained += time.perf_counter() - begin
        episodes = metrics["episodes"]
        total = np.nansum(np.nan_to_num(metrics["episode_return"]) * episodes, axis=0)
        curve.append(total / np.maximum(episodes.sum(axis=0), 1))
        write({}, done * per)
        print(f"{o.game} {o.name}: {done * per:,} frames, {trained:.0f} s, {done * per * len(trials) / trained:,.0f} frames/s, "
              f"mean {curve[-1].mean():.2f}, best {curve[-1].max():.2f}", flush=True)
        if time.perf_counter() - begun > o.stop:
            break
    begin = time.perf_counter()
    found = evaluate()
    write(found, done * per)
    print(f"{o.game} {o.name}: evaluated in {time.perf_counter() - begin:.0f} s: "
          + ", ".join(f"{k} {v.mean():.2f}" for k, v in found.items()), flush=True)


if __name__ == "__main__":
    main()
