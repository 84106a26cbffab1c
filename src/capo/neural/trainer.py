"""One call of ``learn``: a plan that is checked as a whole, then the loop over chunks of iterations.

A run advances in *chunks* of whole iterations that end at fixed places (multiples of ``log_every`` iterations),
never at a moment of the clock, so a run that was stopped and resumed goes through the same chunks as one that was
not. Between two chunks the trainer logs, evaluates, checkpoints, and stops if asked.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from capo.arrays import NDArray
from capo.envs.failures import EnvironmentFailed
from capo.errors import CapoError, CapoWarning
from capo.files import DiskError
from capo.neural.algorithms.settings import CommonSettings
from capo.neural.collapse import CollapseWatch
from capo.neural.learners import Learner
from capo.neural.learners.behaviours import BehaviourFailed
from capo.neural.learners.protocol import available_memory
from capo.neural.metrics import BadEnvironment, Diverged, Rows, blank, divergences, is_finite, rows
from capo.neural.pace import Pace
from capo.neural.seeds import SeedGroup, Seeds
from capo.progress import Ticker, clock
from capo.runs import checkpoint
from capo.runs.checkpoint import Interval
from capo.runs.interrupts import Interrupted, Interrupts, Unanswered
from capo.runs.layout import FRAMES, RETURN, SCORE, SEED
from capo.runs.writer import RunWriter

Callback = Callable[[Rows], bool | None]


LOG_EVERY = 10_000  # frames per seed between two log points, if the run is long enough
LOG_EVERY_HOST = 2_000  # the same where the host steps the environment
LOG_POINTS = 20  # at least, in a short run


@dataclass(frozen=True)
class Plan:
    """What a call of ``learn`` is going to do; nothing in it changes while it is done.

    Attributes:
        settings: with the horizon of this plan.
        target: the iteration at which every seed is done.
        log_every: iterations between two log points.
        behaviour: who acts, in words, if not the agent's own policy.
    """

    settings: CommonSettings
    target: int
    log_every: int
    behaviour: str | None = None

    @property
    def frames_per_iteration(self) -> int:
        """Environment steps of one iteration of one seed."""
        return self.settings.frames_per_iteration

    @property
    def frames(self) -> int:
        """Frames of every seed once the plan is done."""
        return self.target * self.frames_per_iteration


def first_log_every(asked: int | None, jitted: bool, frames_per_iteration: int, iterations: int) -> int:
    """Iterations between two log points, which a run keeps from its first plan on.

    Args:
        asked: frames between them, if the user said.
        jitted: whether the environment is.
        frames_per_iteration: of one seed.
        iterations: of the first plan.
    """
    if asked is not None:
        return max(1, round(asked / frames_per_iteration))
    usual = LOG_EVERY if jitted else LOG_EVERY_HOST
    return max(1, min(usual // frames_per_iteration, iterations // LOG_POINTS))


@dataclass(frozen=True)
class Evaluations:
    """Evaluations during training.

    Attributes:
        every: frames between two of them.
        play: the returns (K, episodes) of a group's policies.
    """

    every: int
    play: Callable[[SeedGroup], NDArray]


class Trainer:
    """Brings seeds to a plan's target.

    Args:
        plan: what to do.
        learner: made for the plan's settings.
        seeds: what is trained.
        shown: where progress is shown.
        evaluations: during training, if there are any.
    """

    def __init__(
        self, plan: Plan, learner: Learner, seeds: Seeds, shown: Ticker, evaluations: Evaluations | None = None
    ) -> None:
        self.plan, self.learner, self.seeds, self.shown = plan, learner, seeds, shown
        self.run: RunWriter | None = None
        self.newest: Path | None = None  # checkpoint
        self._evaluations = evaluations
        self._every = Interval(seconds=math.inf)
        self._content: Callable[[], dict[str, Any]] = dict
        self._saved_at, self._saved_frames = time.monotonic(), -1
        self._warned_of_range = False
        sizes = learner.spec.factors or (learner.spec.n_actions,)
        self._collapse = CollapseWatch(plan.settings, sizes, plan.frames, own=plan.behaviour is None)
        self._interrupts = Interrupts()
        self._pace = Pace(shown)

    # Before anything is written ---------------------------------------------------------------------------

    def prepare(self, out: Path | None, keep: int) -> None:
        """Make the first state and the program, and refuse what can't be done.

        Args:
            out: the folder of the run, if it has one.
            keep: checkpoints kept there.

        Raises:
            CapoError: if a seed has no state to continue from, or disk or device have no room for the training.
        """
        self.seeds.start(self.learner)
        if out is not None:
            self._check_disk(out, keep)
        if self.seeds.iteration < self.plan.target:
            self._compile()

    def _check_disk(self, out: Path, keep: int) -> None:
        needed = checkpoint.size(self.seeds.tree()) * (keep + 1)
        existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
        free = shutil.disk_usage(existing).free
        if needed > free:
            raise CapoError(
                f"{out}: {keep} checkpoints and one being written need {needed / 1e6:,.0f} MB, but the disk has "
                f"{free / 1e6:,.0f} MB left; free some space, keep fewer, or shrink the replay"
            )

    def _compile(self) -> None:
        """Compile the program unless that is done, and refuse one that the device has no room for."""
        new = self.learner.compile_seconds is None
        if new:
            self.shown.message("compiling the training program (once per process) ...")
        seconds, memory = self.learner.compile(self.seeds.era), self.learner.compiled_memory()
        if memory is not None:
            self._check_device(memory)
        if new:
            needed = "" if memory is None else f"; it needs {memory / 1e6:,.0f} MB, including its state"
            self.shown.message(f"compiled in {seconds:.1f} s{needed}")

    def _check_device(self, memory: int) -> None:
        """Raise if the device has no room for what the program needs besides its state, which is there already."""
        states = [group for group in self.seeds.groups if group.state is not None]
        for group in states:
            group.state = self.learner.place(group.state)  # a resumed one may be elsewhere
        work = memory - sum(leaf.nbytes for group in states for leaf in jax.tree.leaves(group.state))
        free = available_memory(self.learner.n_devices)
        if free is not None and work > free:
            raise CapoError(
                f"the training program needs {work / 1e6:,.0f} MB in addition to its state, but "
                f"{free / 1e6:,.0f} MB are free: set a smaller batch_size or n_envs, or run fewer seeds"
            )

    # The run's folder -------------------------------------------------------------------------------------

    def write_to(
        self, run: RunWriter, every: Interval, content: Callable[[], dict[str, Any]], new_plan: bool
    ) -> None:
        """Log and checkpoint into a run's folder, starting with a checkpoint that knows the plan.

        Args:
            run: the folder, whose config.json is that of the plan.
            every: how often to checkpoint.
            content: makes a checkpoint's plain part, but for the lengths of the logs.
            new_plan: whether the plan differs from that of the newest checkpoint.
        """
        self.run, self._every, self._content = run, every, content
        paths = run.store.paths()
        if paths and not new_plan:
            self.newest, self._saved_frames = paths[-1], checkpoint.frames_of(paths[-1])
        else:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Write a checkpoint, unless the newest one is of this very moment."""
        frames = self._total_frames
        if self.run is not None and frames != self._saved_frames:
            content = {**self._content(), "logs": self.run.log_lengths()}
            self.newest = self.run.store.save(frames, self.seeds.tree(), content)
            self._saved_frames = frames
        self._saved_at = time.monotonic()

    def _checkpoint_due(self) -> bool:
        if self._every.seconds is not None:
            return time.monotonic() - self._saved_at >= self._every.seconds
        assert self._every.frames is not None
        return self._total_frames - self._saved_frames >= self._every.frames

    @property
    def _total_frames(self) -> int:
        return self.seeds.total_iterations * self.plan.frames_per_iteration

    # The loop ---------------------------------------------------------------------------------------------

    def train(self, callback: Callback | None = None) -> None:
        """Train until the target, a callback's False, or a signal."""
        with self._interrupts:
            try:
                self._train(callback)
            except DiskError as error:
                if self.run is None or self.newest is None:
                    raise
                hint = f"then `capo resume {self.run.path}` continues from {self.newest.name}"
                raise DiskError(f"{error}; {hint}") from error
            except Unanswered:
                raise self._stopped_midway() from None

    def _train(self, callback: Callback | None) -> None:
        for group in self.seeds.groups:
            while group.sound and group.iteration < self.plan.target:
                self._stop_if_asked(group)
                before = group.iteration
                log_point = self._advance(group)
                try:
                    self._evaluate(group, log_point, before)
                except BaseException as error:  # an evaluation that fails costs no rows, and nothing learned
                    self._log(log_point)
                    if isinstance(error, Exception):  # not if someone is in a hurry
                        self._checkpoint()
                    raise
                self._log(log_point)
                self._show(log_point)
                self._warn_of_range(log_point)
                self._warn_of_collapse(log_point)
                if callback is not None and _is_false(callback(log_point)):
                    self._checkpoint()
                    return
                if not group.sound or group.iteration >= self.plan.target or self._checkpoint_due():
                    self._checkpoint()
        self._stop_if_asked(self.seeds.groups[-1])

    def _log(self, log_point: Rows) -> None:
        if self.run is not None:
            self.run.log(log_point)

    def _stopped_midway(self) -> Interrupted:
        """A signal came and no log point did: keep the last whole iteration, if the learner still has it."""
        self._interrupts.answer()
        with contextlib.suppress(CapoError):
            self._checkpoint()
        signum, groups = self._interrupts.signum, self.seeds.groups
        assert signum is not None
        at = next((group for group in groups if group.sound and group.iteration < self.plan.target), groups[-1])
        return Interrupted(signum, at.iteration * self.plan.frames_per_iteration, self.newest)

    def _advance(self, group: SeedGroup) -> Rows:
        """Run one chunk of a group; returns its log point."""
        try:
            return self._chunk(group)
        except (EnvironmentFailed, BehaviourFailed) as error:
            frames = group.iteration * self.plan.frames_per_iteration
            learned = f"The agent keeps what it learned up to frame {frames:,}"
            if group.state is None and frames:
                learned = "A parameter had already become nan or infinite, so the agent cannot continue"
            folder = f"; the newest checkpoint is {self.newest}" if self.newest else ""
            raise type(error)(f"{error}. {learned}{folder}") from error.__cause__

    def _chunk(self, group: SeedGroup) -> Rows:
        plan, learner = self.plan, self.learner
        state = group.start(learner)
        iterations = min(plan.log_every - group.iteration % plan.log_every, plan.target - group.iteration)
        begin = time.perf_counter()
        group.state = None  # the learner takes its memory for the result: if it fails there is no state
        try:
            left = plan.target - group.iteration
            group.state, metrics = self._pace.run(learner, state, iterations, left)
        except BaseException:
            kept = learner.recover()
            if kept is not None and is_finite(kept.params):  # whole iterations, perhaps fewer than asked for
                group.state, group.iteration = kept, kept.reached
            raise
        seconds = time.perf_counter() - begin
        self.seeds.elapsed += seconds
        group.iteration += iterations
        log_point = rows(metrics, group.seeds, group.iteration, plan.frames_per_iteration)
        speed = plan.frames_per_iteration * len(group.seeds) / max(seconds / iterations, 1e-9)
        for row in log_point:
            row |= {"elapsed_seconds": self.seeds.elapsed, "frames_per_second": speed}
        before = set(group.diverged)
        found = divergences(metrics, group.seeds, group.iteration, learner.env.name, group.state.params)
        self._freeze(group, {seed: error for seed, error in found.items() if seed not in before})
        return [blank(row) if row[SEED] in group.diverged else row for row in log_point if row[SEED] not in before]

    def _freeze(self, group: SeedGroup, found: Mapping[int, Diverged]) -> None:
        """Leave the seeds that diverged behind, and report those that just did.

        A seed that shares its program with others keeps its place in it: their numbers must not depend on it. Its
        rows of the state are those of its beginning from now on, at every log point.

        Raises:
            Diverged: if no seed is left.
        """
        group.diverged |= {seed: f"{_verb(error)} at {error}" for seed, error in found.items()}
        which = [index for index, seed in enumerate(group.seeds) if seed in group.diverged]
        if not group.sound:
            group.state = None  # nothing may act on it, continue from it or save it
        elif which:
            assert group.state is not None
            group.state = self.learner.restart(group.state, group.seeds, which)
        if not found:
            return
        if not self.seeds.sound():
            error = next(iter(found.values()))
            text = self._explain(error)
            group.diverged |= dict.fromkeys(found, text)
            self._record_divergence({"diverged": text})
            raise type(error)(text)
        for seed in found:
            text = f"seed {seed} {group.diverged[seed]}. It is no longer trained; the other seeds continue"
            self.shown.message(text)
            warnings.warn(text, CapoWarning, stacklevel=6)
        self._record_divergence({"diverged_seeds": {str(seed): why for seed, why in self.seeds.diverged.items()}})

    def _explain(self, error: Diverged) -> str:
        """What happened, what is left, and what to do."""
        cure = "start a new run with a lower learning_rate or max_grad_norm"
        if isinstance(error, BadEnvironment):
            cure = "correct the environment and start a new run"
        kept = f"No checkpoint was kept because the run has no folder (out=): {cure}"
        if self.newest:
            kept = (
                f"The last good checkpoint is {self.newest}, which can be loaded like any saved agent; continuing "
                f"from it leads to the same result, so {cure}"
            )
        return f"training {_verb(error)} at {error}. {kept}"

    def _record_divergence(self, entry: Mapping[str, Any]) -> None:
        """Leave word for whoever resumes the run."""
        if self.run is not None:
            with contextlib.suppress(DiskError):  # what happened matters more
                self.run.write_config({**self.run.config, **entry})

    def _evaluate(self, group: SeedGroup, log_point: Rows, before: int) -> None:
        """If an evaluation fell due since iteration ``before``, play and put the scores into the rows."""
        if self._evaluations is None:
            return
        for row in log_point:
            row[SCORE] = math.nan
        log_point = [row for row in log_point if row[SEED] not in group.diverged]
        if not log_point:
            return
        per_iteration, every = self.plan.frames_per_iteration, self._evaluations.every
        due = group.iteration * per_iteration // every > before * per_iteration // every
        if due or group.iteration >= self.plan.target:
            for row, returns in zip(log_point, self._evaluations.play(group), strict=True):
                row[SCORE] = float(np.mean(returns, dtype=np.float64))
            mean = float(np.mean([row[SCORE] for row in log_point]))
            whose = f"seed {group.seeds[0]}, " if len(self.seeds.groups) > 1 else ""
            self.shown.message(f"{whose}evaluation at frame {int(log_point[0][FRAMES]):,}: return {mean:.4g}")

    def _stop_if_asked(self, group: SeedGroup) -> None:
        signum = self._interrupts.signum
        if signum is not None:
            self._interrupts.answer()
            self._checkpoint()
            raise Interrupted(signum, group.iteration * self.plan.frames_per_iteration, self.newest)

    # What the user is told --------------------------------------------------------------------------------

    def _show(self, log_point: Rows) -> None:
        known = [row[RETURN] for row in log_point if not math.isnan(row[RETURN])]
        mean = float(np.mean(known)) if known else math.nan
        speed = log_point[0]["frames_per_second"]
        total = self.plan.frames * len(self.seeds.groups)
        left = (total - self._total_frames) * len(self.seeds.groups[0].seeds) / speed
        text = status(self._total_frames, total, speed, mean, left)
        self.shown.show(text, self._total_frames / max(total, 1))

    def _warn_of_range(self, log_point: Rows) -> None:
        """Warn, once, if values have reached an end of the atoms: what lies beyond can't be told apart."""
        ends = self.plan.settings.value_range()
        if ends is None or self._warned_of_range:
            return
        low, high = ends
        margin = 0.02 * (high - low)
        for row in log_point:
            value = row["value"]
            if value < min(low + margin, 0) or value > max(high - margin, 0):
                self._warned_of_range = True
                text = (
                    f"seed {row['seed']}: the mean value is {value:.4g}, at an end of the atoms "
                    f"(v_min={low:g}, v_max={high:g}); returns beyond them cannot be distinguished: start "
                    "a new run with a wider range"
                )
                self._warn(text)
                return

    def _warn_of_collapse(self, log_point: Rows) -> None:
        """Warn, once, of a policy that stopped exploring before it learned anything."""
        text = self._collapse.look(log_point)
        if text is not None:
            self._warn(text)

    def _warn(self, text: str) -> None:
        """Say something once: beside the progress if that is shown, else as a warning."""
        if self.shown.silent:
            warnings.warn(text, CapoWarning, stacklevel=6)
        else:
            self.shown.message(text)


def status(frames: int, total: int, speed: float, episode_return: float, left: float) -> str:
    """One line about where a run stands.

    >>> status(250_000, 1_000_000, 50_000.0, 3.25, 15.0)
    'frames 250,000/1,000,000  50,000 frames/s  return 3.25  left 0:15'
    """
    shown = "-" if math.isnan(episode_return) else f"{episode_return:.4g}"
    wait = "-" if math.isnan(left) else clock(left)
    return f"frames {frames:,}/{total:,}  {speed:,.0f} frames/s  return {shown}  left {wait}"


def _verb(error: Diverged) -> str:
    return "stopped" if isinstance(error, BadEnvironment) else "diverged"


def _is_false(answer: Any) -> bool:
    """Whether a callback returned False, Python's or numpy's; None and other values don't stop a run."""
    return isinstance(answer, bool | np.bool_) and not answer
