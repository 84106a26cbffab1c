"""One training as a job: a task with an id made of its content, in a run's folder of its own."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from capo import envs
from capo.envs.noise import NoisyReward, noisy_name
from capo.errors import CapoError
from capo.neural.agent import Agent
from capo.neural.algorithms import registry
from capo.neural.algorithms.settings import CommonSettings, override
from capo.runs.layout import is_run
from capo.runs.reader import read_config, salvage_config, salvage_evaluation
from capo.runs.records import environment_name
from capo.runs.writer import write_evaluation


@dataclass(frozen=True)
class Job:
    """Some seeds of one algorithm with one set of settings on one environment, trained and then evaluated.

    Attributes:
        env: the environment's name.
        settings: that replace the preset's.
        seeds: on a jitted environment they are one program.
        eval_every: frames between two evaluations during training; None for none.
        eval_episodes: per seed, of each of those.
        final_episodes: per seed, of the evaluation after training.
        evaluation_seed: of that evaluation.
        reward_noise: standard deviation of Gaussian noise on training rewards; evaluations have none.
        checkpoint_every, keep: as of an agent; they change nothing about the result, nor the id.
    """

    env: str
    algorithm: str
    preset: str
    frames: int
    seeds: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    eval_every: int | None = None
    eval_episodes: int = 100
    final_episodes: int = 100
    evaluation_seed: int = 0
    log_every: int | None = None
    reward_noise: float = 0.0
    checkpoint_every: str = "60s"
    keep: int = 1

    # What it is -------------------------------------------------------------------------------------------------

    @cached_property
    def config(self) -> CommonSettings:
        """All settings; a setting that does not exist is an error."""
        base = registry.find(self.algorithm).settings.preset(self.preset, self.env)
        return override(base, self.settings)

    @cached_property
    def id(self) -> str:
        """Environment, algorithm, preset, and a digest of everything that the result depends on."""
        content = asdict(self)
        del content["checkpoint_every"], content["keep"]
        # Only what differs from the defaults: a later version's new setting leaves the ids as they are.
        usual = type(self.config)().to_dict()
        now = self.config.to_dict()
        content["settings"] = {key: value for key, value in now.items() if value != usual[key]}
        if "horizon" not in self.settings:
            content["settings"].pop("horizon", None)  # that of the frames
        text = json.dumps(content, sort_keys=True)
        name = re.sub(r"[^\w.-]+", "-", f"{self.env}-{self.algorithm}-{self.preset}")
        return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    @property
    def whole_frames(self) -> int:
        """Frames per seed, in whole iterations."""
        one = self.config.frames_per_iteration
        return -(-self.frames // one) * one

    @property
    def title(self) -> str:
        """For messages."""
        return self.describe(self.settings)

    def describe(self, names: Iterable[str]) -> str:
        """What the job is, with the settings of these names."""
        first, last = self.seeds[0], self.seeds[-1]
        which = f"seed {first}" if len(self.seeds) == 1 else f"seeds {', '.join(map(str, self.seeds))}"
        if len(self.seeds) > 2 and list(self.seeds) == list(range(first, last + 1)):
            which = f"seeds {first} to {last}"
        changed = "".join(f", {key}={value}" for key, value in self.settings.items() if key in names)
        return f"{self.algorithm} ({self.preset}) on {self.env}{changed}, {which}"

    # What is there already --------------------------------------------------------------------------------------

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """What a run's config.json has that is not this job's, in words."""
        wanted: dict[str, Any] = {
            "algorithm": self.algorithm,
            "preset": self.preset,
            "seeds": list(self.seeds),
            "frames": self.whole_frames,
            "eval_every": self.eval_every,
            "eval_episodes": self.eval_episodes,
        }
        found = [
            f"{key} {stored.get(key)!r}, not {value!r}" for key, value in wanted.items() if stored[key] != value
        ]
        env = noisy_name(self.env, self.reward_noise)
        if environment_name(stored) != env:
            found.append(f"environment {environment_name(stored)!r}, not {env!r}")
        now = self.config.to_dict()
        if "horizon" not in self.settings:
            del now["horizon"]
        then = registry.all_settings(self.algorithm, stored["config"])
        return found + [f"{key} {then[key]!r}, not {value!r}" for key, value in now.items() if then[key] != value]

    def check(self, folder: Path) -> None:
        """Raise if ``folder`` holds a run that is not this job's."""
        if is_run(folder):
            differ = self.differences(read_config(folder))
            if differ:
                raise CapoError(
                    f"{folder}: contains a run with other settings ({'; '.join(differ)}); a default may "
                    "have changed with a new version of capo: give another --out, or remove the folder"
                )

    def done(self, folder: Path) -> bool:
        """Whether ``folder`` holds all that this job makes."""
        evaluation, _ = salvage_evaluation(folder)
        if evaluation is None or evaluation["frames"] < self.whole_frames:
            return False
        config, problems = salvage_config(folder)
        same = evaluation["seeds"] == list(self.seeds) and evaluation["episodes_per_seed"] == self.final_episodes
        return same and not problems and not self.differences(config)

    # Training ---------------------------------------------------------------------------------------------------

    def run(self, folder: Path) -> None:
        """Train from the newest checkpoint, or from the start, and evaluate."""
        if self.done(folder):
            return
        self.check(folder)
        make = registry.find(self.algorithm).agent
        if is_run(folder):
            agent: Agent = make.resume(folder, use_previous=True, **self._environments())
            left = agent.frames_left
        else:
            agent = make(
                preset=self.preset,
                seeds=self.seeds,
                out=folder,
                checkpoint_every=self.checkpoint_every,
                keep=self.keep,
                log_every=self.log_every,
                eval_every=self.eval_every,
                eval_episodes=self.eval_episodes,
                **self._environments(),
                **self.settings,
            )
            left = self.frames
        try:
            if left:
                agent.learn(left, progress_bar=True)
            write_evaluation(folder, agent.evaluate(self.final_episodes, seed=self.evaluation_seed).to_dict())
        finally:
            agent.close()

    def _environments(self) -> dict[str, Any]:
        """What is trained on and what evaluations play: the same, unless training rewards are noisy."""
        if not self.reward_noise:
            return {"env": self.env, "eval_env": None}
        return {"env": NoisyReward(envs.make(self.env), self.reward_noise), "eval_env": self.env}


def varied(jobs: Sequence[Job]) -> list[str]:
    """The settings that are not the same in all jobs."""
    names = dict.fromkeys(name for job in jobs for name in job.settings)
    return [name for name in names if len({str(job.settings.get(name)) for job in jobs}) > 1]


def titles(jobs: Sequence[Job]) -> dict[str, str]:
    """What each job is called beside the others, by id: settings that all have in common are left out."""
    names = varied(jobs)
    return {job.id: job.describe(names) for job in jobs}
