"""Trials of the certain-sign update: variants x environments x seeds, one row of a CSV each.

    python benchmarks/research_signs.py --out results/research/certain_signs.csv --frames 200000 \\
        --env Acrobot-v1 FrozenLake-v1 --seeds 0 1 2 --variant heads 'heads critic_heads=16'

A variant is a name from VARIANTS, then changes: settings of NCAPO, and options of :class:`Trial` (see OPTIONS).
A row that is in the file already is not computed again. ``--table`` prints the file as a table.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from suite_parts.tasks import TASKS, register

from capo import envs
from capo.arrays import Array, Metrics
from capo.neural.algorithms.ncapo import NCAPOAlgorithm, NCAPOConfig
from capo.neural.algorithms.offpolicy import Targets
from capo.neural.algorithms.settings import override
from capo.neural.learners import make_learner
from capo.neural.parts import certainty, networks, policies
from capo.neural.parts.networks import Inputs, Params
from capo.neural.parts.replay import Rollout

OPTIONS: dict[str, Any] = {
    "shape": "erf",  # or linear: the advantage over its deviation, not limited to 1
    "coordinates": "all",  # or taken: the taken actions only
    "unsure_entropy": 0.0,  # weight of the entropy where signs are uncertain
    "memory": 0.0,  # iterations over which the noise of returns is remembered: the larger of now and its mean
    "remember": 1.0,  # part of the remembered noise that counts in the signs
    "mean_noise": False,  # the noise is that of the heads' mean, in which their fixed parts cancel
    "prior": 0.0,  # size of a fixed random part of every head, in remembered deviations of the noise; needs memory
    "bootstrap": 0.0,  # part of the heads that do not learn from a rollout
    "spread_floor": 0.0,  # uncertainty of every sign, in remembered deviations of the returns; needs memory
    "rare": 0.0,  # the noise of an action is divided by (A mu)^rare: what is rarely taken is known less
    "actor_rate": 1.0,  # the actor's learning rate over the critic's
    "recency": 1.0,  # age of the rollouts drawn: uniform to this power
}
# What NCAPO's default on vectors was before it had certain signs.
_SAMPLED = {
    "learning_rate": 1e-3,
    "batch_size": 32,
    "retrace_lambda": 1.0,
    "width": 64,
    "layer_norm": False,
    "advantage_weight": "none",
    "critic_heads": 1,
    "explorers": 0.0,
    "kl": "policy-to-target",
    "floor": 0.0,
    "critic_units": "rewards",
    "tau_q": 0.05,
    "noise_uncertainty": 0.3,
    "noise_uncertainty_schedule": "constant",
    "chance_kept": 0.0,
    "clip_each_network": False,
}
_PLAIN = {**_SAMPLED, "retrace_lambda": 0.8, "layer_norm": True, "width": 128, "batch_size": 16}
_HEADS = {**_PLAIN, "advantage_weight": "certain", "critic_heads": 8, "critic_units": "noise"}
# What it was with certain signs alone.
_FORMER = {
    "learning_rate": 2e-3,
    "noise_uncertainty": 0.3,
    "noise_uncertainty_schedule": "constant",
    "chance_kept": 0.0,
    "clip_each_network": False,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "former": _FORMER,
    "sampled": _SAMPLED,
    "plain": {**_PLAIN, "advantage_weight": "normalised"},
    "noise": {
        **_PLAIN,
        "advantage_weight": "certain",
        "noise_uncertainty": 1.0,
        "shape": "linear",
        "coordinates": "taken",
    },
    "heads": _HEADS,
    "logits": {**_HEADS, "kl": "logits", "floor": 1e-3},
}
FIELDS = ("variant", "env", "seed", "frames", "score", "sd", "trained", "entropy", "certainty", "seconds", "curve")


class Trial(NCAPOAlgorithm):
    """NCAPO with options that are under trial."""

    options: dict[str, Any]

    # What is remembered is kept beside the networks, where no gradient moves it.

    def init_params(self, rng: np.random.Generator) -> Params:
        params = super().init_params(rng)
        if self.options["memory"]:
            params["memory"] = {"kernel": np.zeros(2, np.float32)}  # of the noise and of the returns' variance
        return params

    def acting_params(self, params: Params) -> Params:
        acting = super().acting_params(params)
        return {**acting, "memory": params["memory"]} if self.options["prior"] else acting

    def learn(self, state: Any, rollouts: Rollout, iteration: Any, key: Array) -> Any:
        state, metrics = super().learn(state, rollouts, iteration, key)
        if self.options["memory"]:
            old = state.params["memory"]["kernel"]
            step = jnp.maximum(1.0 / self.options["memory"], 1.0 / (iteration.as_float() + 1.0))
            new = old + step * (jnp.stack([metrics["noise"], metrics["scale"]]) - old)
            state = replace(state, params={**state.params, "memory": {"kernel": new}})
        return state, metrics

    def loss(self, params: Params, target: Params, batch: Rollout, *rest: Any) -> Any:
        if self.options["memory"]:
            self._memory = jax.lax.stop_gradient(params["memory"]["kernel"])
        return super().loss(params, target, batch, *rest)

    # Fixed random parts of the heads.

    def prior(self, params: Params, inputs: Inputs) -> Array | float:
        """The fixed parts (..., M, A)."""
        if not self.options["prior"]:
            return 0.0
        rng = np.random.default_rng(12345)
        body = networks.init_body(self.network, rng)
        n = self.network.n_actions * self.critic.n_heads
        half = networks.dense(rng, self.network.n_features, n // 2, scale=1.0)["kernel"]
        head = {"kernel": np.concatenate([half, -half], axis=1), "bias": np.zeros(n, np.float32)}
        q = self.critic.values(networks.outputs(self.network, {"body": body, "head": head}, inputs))
        return self.options["prior"] * jnp.sqrt(jax.lax.stop_gradient(params["memory"]["kernel"][0])) * q

    def head_values(self, acting: Params, inputs: Inputs) -> Array:
        return super().head_values(acting, inputs) + self.prior(acting, inputs)

    def slow_policy_and_q(self, params: Params, target: Params, inputs: Inputs, *rest: Any) -> Any:
        log_pi, q = super().slow_policy_and_q(params, target, inputs, *rest)
        self._prior = self.prior(params, inputs)
        return log_pi, q + self._prior

    def critic_losses(self, outputs: Array, batch: Rollout, targets: Targets) -> Array:
        values, length = self.critic.values(outputs), batch.reward.shape[-1]
        if self.options["prior"]:
            values = values + self._prior[:, :length]
        errors = jnp.square(policies.taken_column(values, batch.action) - targets.returns)
        if self.options["bootstrap"]:
            weights = self.learns(batch).astype(jnp.float32) / (1.0 - self.options["bootstrap"])
            errors = weights[:, None] * errors
        return jnp.mean(errors, axis=-1)

    def learns(self, batch: Rollout) -> Array:
        """Which heads (B, M) learn from a rollout: a hash of what was stored in it."""
        bits = jax.lax.bitcast_convert_type(batch.log_mu, jnp.uint32)
        primes = np.random.default_rng(0).integers(1, 2**31, bits.shape[-1]) * 2 + 1
        code = jnp.sum((bits + batch.action.astype(jnp.uint32) * 7919) * jnp.asarray(primes, jnp.uint32), axis=-1)
        heads = jnp.arange(self.critic.n_heads, dtype=jnp.uint32) * jnp.uint32(0x9E3779B9)
        mixed = (code[:, None] ^ heads) * jnp.uint32(0x85EBCA6B)
        mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0xC2B2AE35)
        return (mixed >> 8).astype(jnp.float32) / 2**24 >= self.options["bootstrap"]

    def gradient_step(self, params: Params, opt_state: Any, *rest: Any) -> Any:
        new, opt_state, metrics = super().gradient_step(params, opt_state, *rest)
        if self.options["actor_rate"] != 1.0:
            rate = self.options["actor_rate"]
            new["actor"] = jax.tree.map(lambda a, b: a + rate * (b - a), params["actor"], new["actor"])
        return new, opt_state, metrics

    def draw(self, key: Array, iteration: Any, shape: tuple[int, ...]) -> Array:
        if self.options["recency"] == 1.0:
            return super().draw(key, iteration, shape)
        spec = self.rollouts
        count = (iteration.at_most(spec.n_iterations - 1) + 1) * spec.n_envs
        age = jax.random.uniform(key, shape) ** self.options["recency"] * count
        newest = (iteration % spec.n_iterations + 1) * spec.n_envs - 1
        return (newest - jnp.minimum(age.astype(jnp.int32), count - 1)) % spec.capacity

    # Signs.

    def belief(self, batch: Rollout, targets: Targets) -> tuple[Array, Array]:
        options, config = self.options, self.config
        errors = targets.returns - policies.taken_column(targets.q, batch.action)
        noise = jnp.mean(jnp.square(errors.mean(axis=-1) if options["mean_noise"] else errors))
        scale = jnp.var(self.over_heads(targets.returns))
        self._seen = {"noise": noise, "scale": scale}
        if not (options["memory"] or options["rare"] or options["mean_noise"]):
            return super().belief(batch, targets)
        if options["memory"]:
            noise = jnp.maximum(noise, options["remember"] * self._memory[0])
            scale = jnp.maximum(scale, self._memory[1])
        often = (1.0 - config.epsilon_final) * self.network.n_actions * jnp.exp(targets.log_pi)
        often = (often + config.epsilon_final) ** options["rare"]
        mean, variance = certainty.advantage_belief(targets.log_pi, targets.q, self.network.factors)
        variance = variance + config.noise_uncertainty**2 * noise / often
        return mean, variance + options["spread_floor"] ** 2 * scale

    def certain_signs(self, batch: Rollout, targets: Targets) -> Array:
        sign = super().certain_signs(batch, targets)
        if self.options["shape"] == "linear":
            sign = math.sqrt(2.0) * jax.scipy.special.erfinv(jnp.clip(sign, -0.9999, 0.9999))
        if self.options["coordinates"] == "taken":
            sign = jnp.where(jnp.arange(self.network.n_actions) == batch.action[..., None], sign, 0.0)
        return sign

    def losses(self, log_pi: Array, batch: Rollout, targets: Targets) -> Metrics:
        self._seen = {}
        found = super().losses(log_pi, batch, targets)
        found |= {name: jnp.broadcast_to(x, batch.reward.shape) for name, x in self._seen.items()}
        if self.options["unsure_entropy"]:
            weight = self.options["unsure_entropy"] * jnp.maximum(1.0 - found["certainty"], 0.0)
            found["actor_loss"] = found["actor_loss"] - weight * policies.entropy(log_pi)
        return found


def make_env(name: str) -> Any:
    """A task of the suite as the suite makes it; any other environment as it comes."""
    register()
    return envs.make(TASKS[name].capo_env if name in TASKS else name)


def parse(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """``name setting=value ...`` to settings and options."""
    name, *changes = text.split()
    given = dict(VARIANTS[name])
    for change in changes:
        key, value = change.split("=")
        given[key] = value
    options = dict(OPTIONS)
    for key in [key for key in given if key in OPTIONS]:
        value, kind = given.pop(key), type(OPTIONS[key])
        options[key] = value in (True, "True", "true", "1") if kind is bool else kind(value)
    return given, options


def train(variant: str, env_name: str, seeds: list[int], frames: int, preset: str) -> Any:
    """Rows of one variant on one environment."""
    settings, options = parse(variant)
    env = make_env(env_name)
    config = override(NCAPOConfig.preset(preset, env.name), {"horizon": frames, **settings})
    algorithm = Trial(config, env)
    algorithm.options = options
    learner = make_learner(algorithm, env)
    for seed in seeds:
        begin = time.perf_counter()
        learner.compile()
        begin = time.process_time()
        state = learner.init([seed])
        iterations = -(-frames // config.frames_per_iteration)
        curve, logged = [], {}
        done = 0
        for part in range(8):
            now = iterations * (part + 1) // 8 - done
            state, logged = learner.run(state, now)
            done += now
            episodes = np.nansum(logged["episodes"])
            total = np.nansum(logged["episodes"] * np.nan_to_num(logged["episode_return"]))
            curve.append(total / episodes if episodes else math.nan)
        if hasattr(learner, "close"):
            learner.close()
        seconds = time.process_time() - begin  # of all threads: the machine is shared
        returns = learner.evaluate(state.params, jax.random.split(jax.random.PRNGKey(seed + 1000), 1), 64)
        yield {
            "variant": variant,
            "env": env_name,
            "seed": seed,
            "frames": frames,
            "score": f"{returns.mean():.4g}",
            "sd": f"{returns.std():.3g}",
            "trained": f"{curve[-1]:.4g}",
            "entropy": f"{logged['entropy'].mean():.3g}",
            "certainty": f"{logged['certainty'].mean():.3g}" if "certainty" in logged else "",
            "seconds": f"{seconds:.0f}",
            "curve": " ".join(f"{value:.3g}" for value in curve),
        }


def table(path: Path) -> str:
    """The scores of a file, one line per variant and number of frames, one column per environment."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = list(dict.fromkeys(row["env"] for row in rows))
    lines = [f"| variant | frames | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for variant, frames in dict.fromkeys((row["variant"], row["frames"]) for row in rows):
        cells = []
        for name in names:
            mine = [row for row in rows if (row["variant"], row["frames"], row["env"]) == (variant, frames, name)]
            cells.append(", ".join(f"{float(row['score']):.3g} ({row['seed']})" for row in mine) or "-")
        lines.append(f"| `{variant}` | {int(frames):,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/research/certain_signs.csv"))
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--env", nargs="+", default=[])
    parser.add_argument("--preset", default="default", help="what the variant default is")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--variant", nargs="+", default=[])
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table(options.out))
        return
    known = set()
    if options.out.exists():
        with options.out.open() as file:
            known = {(r["variant"], r["env"], int(r["seed"]), int(r["frames"])) for r in csv.DictReader(file)}
    for variant in options.variant:
        for env in options.env:
            seeds = [seed for seed in options.seeds if (variant, env, seed, options.frames) not in known]
            for row in train(variant, env, seeds, options.frames, options.preset) if seeds else ():
                new = not options.out.exists()
                with options.out.open("a", newline="") as file:
                    writer = csv.DictWriter(file, FIELDS)
                    if new:
                        writer.writeheader()
                    writer.writerow(row)
                print(" | ".join(str(value) for value in row.values()), flush=True)


if __name__ == "__main__":
    main()
