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
from capo.neural.parts import policies
from capo.neural.parts.replay import Rollout

OPTIONS: dict[str, Any] = {
    "shape": "erf",  # or linear: the advantage over its deviation, not limited to 1
    "coordinates": "all",  # or taken: the taken actions only
    "unsure_entropy": 0.0,  # weight of the entropy where signs are uncertain
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
        sign = super().certain_signs(batch, targets)
        if self.options["shape"] == "linear":
            sign = math.sqrt(2.0) * jax.scipy.special.erfinv(jnp.clip(sign, -0.9999, 0.9999))
        if self.options["coordinates"] == "taken":
            sign = jnp.where(jnp.arange(self.network.n_actions) == batch.action[..., None], sign, 0.0)
        return sign

    def losses(self, log_pi: Array, batch: Rollout, targets: Targets) -> Metrics:
        found = super().losses(log_pi, batch, targets)
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
