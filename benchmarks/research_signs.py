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
import optax
from suite_parts.tasks import TASKS, register

from capo import envs
from capo.arrays import Array, Metrics
from capo.neural.algorithms.ncapo import NCAPOAlgorithm, NCAPOConfig
from capo.neural.algorithms.offpolicy import Targets
from capo.neural.algorithms.settings import override
from capo.neural.learners import make_learner
from capo.neural.parts import certainty, networks, optimisers, policies
from capo.neural.parts.replay import Rollout

OPTIONS: dict[str, Any] = {
    "shape": "erf",  # or linear: the advantage over its deviation, not limited to 1
    "coordinates": "all",  # or taken: the taken actions only
    "unsure_entropy": 0.0,  # weight of the entropy where signs are uncertain
    "memory": 0.0,  # iterations over which the noise of returns is remembered: the larger of now and its mean
    "remember": 1.0,  # part of the remembered noise that counts in the signs
    "mean_noise": False,  # the noise is that of the heads' mean, in which their fixed parts cancel
    "bootstrap": 0.0,  # part of the heads that do not learn from a rollout
    "prior": 0.0,  # size of the heads' fixed random parts, in remembered deviations of the noise
    "spread_floor": 0.0,  # uncertainty of every sign, in remembered deviations of the returns
    "prior_units": "noise",  # or returns: what the fixed random parts are measured in
    "match": 0.0,  # an action keeps so many times P(A > 0) / A of probability
    "rare": 0.0,  # the noise of an action is divided by (A mu)^rare: what is rarely taken is known less
    "actor_rate": 1.0,  # the actor's learning rate over the critic's
    "sign_tau": 0.0,  # signs come from a critic averaged with this step per iteration
    "clip_each": False,  # actor and critic each clip their own gradient
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
}
_PLAIN = {**_SAMPLED, "retrace_lambda": 0.8, "layer_norm": True, "width": 128, "batch_size": 16}
_HEADS = {**_PLAIN, "advantage_weight": "certain", "critic_heads": 8, "critic_units": "noise"}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
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

    def certain_signs(self, batch: Rollout, targets: Targets) -> Array:
        own = self.options["memory"] or self.options["rare"] or self.options["mean_noise"]
        q = targets.q
        errors = targets.returns - policies.taken_column(q, batch.action)
        noise = jnp.mean(jnp.square(errors.mean(axis=-1) if self.options["mean_noise"] else errors))
        mean, variance = certainty.advantage_belief(targets.log_pi, q, self.network.factors)
        self._seen = {
            "noise": jnp.full(batch.reward.shape, noise),
            "scale": jnp.full(batch.reward.shape, jnp.var(self.over_heads(targets.returns))),
            "spread": variance.mean(-1),
            "advantage_square": jnp.square(mean).mean(-1),
            "rewarded": (batch.reward > 0).astype(jnp.float32),
        }
        if not own:
            sign = super().certain_signs(batch, targets)
        else:
            if self.options["memory"]:
                remembered = jax.lax.stop_gradient(self._params["memory"]["kernel"][0])
                noise = jnp.maximum(noise, self.options["remember"] * remembered)
            noise = jnp.square(self.config.noise_uncertainty) * noise
            if self.options["rare"]:
                epsilon = self.config.epsilon_final
                often = (1.0 - epsilon) * self.network.n_actions * jnp.exp(targets.log_pi) + epsilon
                noise = noise / often ** self.options["rare"]
            variance = variance + noise
            if self.options["spread_floor"]:
                scale = jnp.maximum(
                    jnp.var(self.over_heads(targets.returns)),
                    jax.lax.stop_gradient(self._params["memory"]["kernel"][1]),
                )
                variance = variance + self.options["spread_floor"] ** 2 * scale
            sign = certainty.expected_sign(mean + self.config.optimism * jnp.sqrt(variance), variance)
        if self.options["match"]:
            kept = self.options["match"] * 0.5 * (1.0 + sign) / self.network.n_actions
            sign = jnp.where((sign < 0) & (jnp.exp(targets.log_pi) < kept), -sign, sign)
        if self.options["shape"] == "linear":
            sign = math.sqrt(2.0) * jax.scipy.special.erfinv(jnp.clip(sign, -0.9999, 0.9999))
        if self.options["coordinates"] == "taken":
            sign = jnp.where(jnp.arange(self.network.n_actions) == batch.action[..., None], sign, 0.0)
        return sign

    def init_target(self, params: Any) -> Any:
        target = super().init_target(params)
        if self.options["sign_tau"]:
            target["slow"] = jax.tree.map(jnp.copy, networks.select(params, "critic"))
        return target

    def init_params(self, rng: np.random.Generator) -> Any:
        params = super().init_params(rng)
        if self.options["memory"]:
            params["memory"] = {"kernel": np.zeros(2, np.float32)}
        return params

    def optimiser(self) -> optax.GradientTransformation:
        if not self.options["clip_each"]:
            return super().optimiser()
        limit, epsilon = self.config.max_grad_norm, self.config.optimiser_epsilon

        def update(grads: Any, state: Any, params: Any = None) -> Any:
            del params
            norms = {name: optimisers.global_norm(part) for name, part in grads.items()}
            scale = {name: jnp.minimum(limit / (norm + 1e-6), 1.0) for name, norm in norms.items()}
            return {name: jax.tree.map(lambda g, s=scale[name]: s * g, part) for name, part in grads.items()}, state

        clip = optax.GradientTransformation(lambda _: optax.EmptyState(), update)
        return optimisers.make(self.config.optimiser, clip, epsilon=epsilon)

    def acting_params(self, params: Any) -> Any:
        acting = super().acting_params(params)
        return {**acting, "memory": params["memory"]} if self.options["prior"] else acting

    def behaviour(self, acting: Any, obs: Array, epsilon: Array) -> Array:
        self._acting = acting
        return super().behaviour(acting, obs, epsilon)

    def head_values(self, acting: Any, inputs: Any) -> Array:
        return super().head_values(acting, inputs) + self.prior(acting, inputs)

    def prior(self, params: Any, inputs: Any) -> Array | float:
        """The fixed parts (..., M, A) of the heads."""
        if not self.options["prior"]:
            return 0.0
        rng = np.random.default_rng(12345)
        body = networks.init_body(self.network, rng)
        n_actions, heads = self.network.n_actions, self.critic.n_heads
        half = networks.dense(rng, self.network.n_features, n_actions * heads // 2, scale=1.0)["kernel"]
        head = {"kernel": np.concatenate([half, -half], axis=1), "bias": np.zeros(n_actions * heads, np.float32)}
        q = self.critic.values(networks.outputs(self.network, {"body": body, "head": head}, inputs))
        unit = jax.lax.stop_gradient(params["memory"]["kernel"][int(self.options["prior_units"] == "returns")])
        return self.options["prior"] * jnp.sqrt(unit) * q

    def slow_policy_and_q(self, params: Any, target: Any, inputs: Any, *rest: Any) -> Any:
        log_pi, q = super().slow_policy_and_q(params, target, inputs, *rest)
        self._prior = self.prior(params, inputs)
        return log_pi, q + self._prior

    def update_target(self, params: Any, target: Any) -> Any:
        moved = super().update_target(params, target)
        if self.options["sign_tau"]:
            tau = self.options["sign_tau"]
            slow = networks.select(params, "critic")
            moved["slow"] = jax.tree.map(lambda s, f: (1 - tau) * s + tau * f, target["slow"], slow)
        return moved

    def loss(self, params: Any, target: Any, batch: Rollout, *rest: Any) -> Any:
        self._params, self._target, self._obs = params, target, batch.obs
        return super().loss(params, target, batch, *rest)

    def learn(self, state: Any, rollouts: Rollout, iteration: Any, key: Array) -> Any:
        state, metrics = super().learn(state, rollouts, iteration, key)
        if self.options["memory"]:
            old = state.params["memory"]["kernel"]
            step = jnp.maximum(1.0 / self.options["memory"], 1.0 / (iteration.as_float() + 1.0))
            new = old + step * (jnp.stack([metrics["noise"], metrics["scale"]]) - old)
            state = replace(state, params={**state.params, "memory": {"kernel": new}})
        return state, metrics

    def gradient_step(self, params: Any, opt_state: Any, *rest: Any) -> Any:
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

    def critic_losses(self, outputs: Array, batch: Rollout, targets: Targets) -> Array:
        if not self.options["bootstrap"] and not self.options["prior"]:
            return super().critic_losses(outputs, batch, targets)
        # Which heads learn from a rollout is a hash of what was stored in it.
        bits = jax.lax.bitcast_convert_type(batch.log_mu, jnp.uint32)
        primes = jnp.asarray(np.random.default_rng(0).integers(1, 2**31, bits.shape[-1]) * 2 + 1, jnp.uint32)
        code = jnp.sum((bits + batch.action.astype(jnp.uint32) * 7919) * primes, axis=-1)
        heads = jnp.arange(self.critic.n_heads, dtype=jnp.uint32)
        mixed = (code[:, None] ^ (heads * jnp.uint32(0x9E3779B9))) * jnp.uint32(0x85EBCA6B)
        mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0xC2B2AE35)
        learns = (mixed >> 8).astype(jnp.float32) / 2**24 >= self.options["bootstrap"]  # (B, M)
        values = self.critic.values(outputs)
        if self.options["prior"]:
            values = values + self._prior[:, : values.shape[1]]
        errors = policies.taken_column(values, batch.action) - targets.returns
        weights = learns / (1.0 - self.options["bootstrap"])
        return jnp.mean(weights[:, None] * jnp.square(errors), axis=-1)

    def losses(self, log_pi: Array, batch: Rollout, targets: Targets) -> Metrics:
        if self.options["sign_tau"]:
            length = batch.reward.shape[-1]
            obs = networks.inputs(self.network, self._obs).steps(0, length)
            q = self.critic.values(networks.outputs(self.network, self._target["slow"], obs))
            prior = self._prior[:, :length] if self.options["prior"] else 0.0
            targets = targets._replace(q=jax.lax.stop_gradient(q + prior))
        found = super().losses(log_pi, batch, targets)
        found |= self._seen
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


def train(
    variant: str, env_name: str, seeds: list[int], frames: int, preset: str, verbose: bool = False
) -> Any:
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
            if verbose:
                seen = {name: float(np.sqrt(logged[name].mean())) for name in ("noise", "scale", "spread", "advantage_square")}
                also = ("rewarded", "entropy", "certainty", "value", "actor_loss", "grad_norm")
                seen |= {name: float(logged[name].mean()) for name in also}
                print(part, f"{curve[-1]:.4g}", " ".join(f"{k} {v:.3g}" for k, v in seen.items()), flush=True)
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
    parser.add_argument("--verbose", action="store_true", help="print what the critic believes, eight times per run")
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
            for row in train(variant, env, seeds, options.frames, options.preset, options.verbose) if seeds else ():
                new = not options.out.exists()
                with options.out.open("a", newline="") as file:
                    writer = csv.DictWriter(file, FIELDS)
                    if new:
                        writer.writeheader()
                    writer.writerow(row)
                print(" | ".join(str(value) for value in row.values()), flush=True)


if __name__ == "__main__":
    main()
