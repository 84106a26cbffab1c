"""What a tuning is going to do, made from what a user gave and checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capo import envs
from capo.checks import as_path, check_seed, seeds_from, whole
from capo.errors import CapoError
from capo.neural.algorithms import registry
from capo.neural.algorithms.settings import CommonSettings
from capo.neural.preset_file import is_preset_file, read_preset
from capo.sweeps.batch import Batch
from capo.sweeps.space import Space, default_space, read_space, space_from
from capo.sweeps.tuning_folder import FORMAT

TOGETHER, TOGETHER_HOST = 16, 8  # trials of a batch: as one program, and one after another
FRESH_EPISODES = 100  # of the evaluation with fresh seeds


@dataclass(frozen=True)
class Plan:
    """What a tuning is going to do.

    Attributes:
        env: its name, or an environment; ``env_name`` is its name in any case.
        settings: of all trials, on top of the preset.
        space: what is searched.
        first: the settings of the first trial: the preset's, moved into the space where they lie outside.
        trials: how many, over all calls.
        stages: frames per seed at which scores are taken.
        seeds: that every trial is trained with.
        seed: of the proposals.
        fresh_seeds: that the result is trained with again.
        together: trials of a batch.
    """

    env: Any
    env_name: str
    algorithm: str
    preset: str
    settings: dict[str, Any]
    space: Space
    first: dict[str, Any]
    trials: int
    stages: tuple[int, ...]
    seeds: tuple[int, ...]
    seed: int
    fresh_seeds: tuple[int, ...]
    episodes: int
    together: int

    def batch(self, trials: Sequence[Mapping[str, Any]]) -> Batch:
        """These trials as a batch."""
        each = tuple(dict(one) for one in trials)
        return self._batch(each, self.seeds, self.stages, self.episodes)

    def fresh_batch(self, tuned: Mapping[str, Any]) -> Batch:
        """The best settings and the preset's own, trained to the end with the fresh seeds."""
        return self._batch((dict(tuned), {}), self.fresh_seeds, self.stages[-1:], FRESH_EPISODES)

    def _batch(self, trials: Any, seeds: tuple[int, ...], stages: tuple[int, ...], episodes: int) -> Batch:
        return Batch(self.env, self.algorithm, self.preset, self.settings, trials, seeds, stages, episodes)

    def asked(self) -> dict[str, Any]:
        """As it goes into tuning.json, the number of trials left out: it may grow."""
        return {
            "format": FORMAT,
            "env": self.env_name,
            "algorithm": self.algorithm,
            "preset": self.preset,
            "settings": self.settings,
            "space": {name: one.to_dict() for name, one in self.space.items()},
            "stages": list(self.stages),
            "seeds": list(self.seeds),
            "seed": self.seed,
            "fresh_seeds": list(self.fresh_seeds),
            "episodes": self.episodes,
            "together": self.together,
        }


def make_plan(
    env: Any,
    algorithm: str,
    *,
    frames: int,
    trials: int,
    preset: str | Path,
    settings: Mapping[str, Any],
    space: str | Path | Mapping[str, Any] | None,
    seeds: int | Sequence[int],
    seed: int,
    fresh_seeds: int,
    episodes: int,
    halvings: int,
    together: int | None,
) -> Plan:
    """A plan; see :func:`capo.tune` for the arguments.

    Raises:
        CapoError: if anything is wrong.
    """
    kind = registry.find(algorithm).settings
    made = envs.make(env)
    jitted = envs.is_jitted(made)
    if not isinstance(env, str) and not jitted:
        raise CapoError("give a host environment by its id: each trial needs its own copy")
    fixed = dict(settings)
    if is_preset_file(preset):
        found = read_preset(preset, algorithm, kind)
        preset, fixed = found.name, found.settings | fixed
    searched = _space(space, kind, fixed)
    chosen = tuple(seeds_from(seed, seeds))
    count = whole("fresh_seeds", fresh_seeds, 0)
    usual = TOGETHER if jitted else TOGETHER_HOST
    plan = Plan(
        env,
        made.name,
        algorithm,
        str(preset),
        fixed,
        searched,
        {},
        whole("trials", trials),
        _stages(whole("frames", frames), whole("halvings", halvings, 0)),
        chosen,
        check_seed(seed),
        tuple(check_seed(max(chosen) + 1 + n) for n in range(count)),
        whole("episodes", episodes),
        usual if together is None else whole("together", together),
    )
    base = plan.batch([]).settings_of({}, made.name)
    _check_stages(plan.stages, base.frames_per_iteration)
    plan.first.update({name: one.nearest(getattr(base, name)) for name, one in searched.items()})
    return plan


def _space(given: Any, kind: type[CommonSettings], fixed: Mapping[str, Any]) -> Space:
    if "horizon" in fixed:
        raise CapoError("horizon can't be set in a tuning: it is the number of frames of a trial")
    if given is None:
        space = {name: one for name, one in default_space(kind).items() if name not in fixed}
    elif isinstance(given, Mapping):
        space = space_from(given, kind)
    else:
        space = read_space(as_path("space", given), kind)
    both = sorted(set(space) & set(fixed))
    if both:
        raise CapoError(f"{both[0]} is both set and searched: leave it out of the settings or of the space")
    if not space:
        raise CapoError("there is nothing to search: the algorithm's settings define no ranges; give a space")
    return space


def _stages(frames: int, halvings: int) -> tuple[int, ...]:
    """
    >>> _stages(1000, 2)
    (250, 500, 1000)
    """
    return tuple(-(-frames // 2 ** (halvings - stage)) for stage in range(halvings + 1))


def _check_stages(stages: Sequence[int], per_iteration: int) -> None:
    """Raise if two stages end with the same iteration."""
    iterations = [-(-frames // per_iteration) for frames in stages]
    if len(set(iterations)) < len(iterations):
        raise CapoError(
            f"{stages[-1]:,} frames are too few for {len(stages) - 1} halvings: the first stage would end after "
            f"{stages[0]:,} frames, and an iteration has {per_iteration:,}; give more frames or fewer halvings"
        )
