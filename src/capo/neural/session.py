"""One call of ``learn``: the loop over chunks, and what happens between two of them."""

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

from capo.envs.gym import EnvironmentFailed
from capo.errors import CapoError, CapoWarning
from capo.neural import checkpoint
from capo.neural.checkpoint import DiskError
from capo.neural.loop import available_memory
from capo.neural.progress import Reporter
from capo.neural.run import Interrupted, Interrupts, Interval, RunFolder
from capo.neural.training import BadEnvironment, Diverged, Part, Rows, Training
from capo.report.curve import SCORE


@dataclass(frozen=True)
class Tests:
    """Evaluations on the way.

    Attributes:
        every: frames between two of them.
        returns: of a part's policies as they are: (seeds, episodes).
    """

    every: int
    returns: Callable[[Part], Any]


class Session:
    """Advances a training to its target: logs, shows, checkpoints, and stops if asked.

    Args:
        training: what to advance.
        run: the folder to write to, or None.
        shown: where progress is shown.
        every: how often to checkpoint.
        content: makes a checkpoint's plain part from the lengths of the logs.
        tests: the evaluations on the way, if there are any.
    """

    def __init__(
        self,
        training: Training,
        run: RunFolder | None,
        shown: Reporter,
        every: Interval,
        content: Callable[[Mapping[str, Any]], dict[str, Any]],
        tests: Tests | None = None,
    ) -> None:
        self.training, self.run, self.shown = training, run, shown
        self.every, self._content, self._tests = every, content, tests
        self.last: Path | None = None  # the newest checkpoint
        self._saved_at, self._saved_frames = time.monotonic(), -1
        self._at_the_edge = False  # whether the user was told
        self._interrupts = Interrupts()

    def start(self, new_plan: bool) -> None:
        """Make sure that there is a state, a program, and a checkpoint that knows what is about to be done.

        Args:
            new_plan: whether the target or the settings differ from those of the newest checkpoint.

        Raises:
            CapoError: if the disk or the device has no room for the training.
        """
        self.training.start()
        if self.run is not None:
            self._check_space(self.run)
        if self.training.iteration < self.training.target:
            with self._interrupts:
                self._compile()
        if self.run is not None:
            paths = self.run.store.paths()
            if paths and not new_plan:
                self.last, self._saved_frames = paths[-1], checkpoint.frames_of(paths[-1])
            else:
                self._checkpoint()

    def train(self, callback: Callable[[Rows], bool | None] | None = None) -> None:
        """Train until the target, a callback's False, or a signal."""
        with self._interrupts:
            try:
                self._train(callback)
            except DiskError as error:
                assert self.run is not None
                hint = f"then `capo resume {self.run.path}` goes on from {self.last.name}" if self.last else ""
                raise DiskError(f"{error}; {hint}" if hint else str(error)) from error

    def _train(self, callback: Callable[[Rows], bool | None] | None) -> None:
        training = self.training
        for part in training.parts:
            while part.iteration < training.target:
                self._stop_if_asked(part)
                before = part.iteration
                rows = self._advance(part)
                try:
                    self._test(part, rows, before)
                finally:  # an evaluation that fails costs no rows
                    if self.run is not None:
                        self.run.log(rows)
                self._show(rows)
                self._warn_at_the_edge(rows)
                if callback is not None and _is_false(callback(rows)):
                    self._checkpoint()
                    return
                if part.iteration >= training.target or self._due():
                    self._checkpoint()
        self._stop_if_asked(training.parts[-1])

    def _test(self, part: Part, rows: Rows, before: int) -> None:
        """Play the policies if it is time to, since iteration ``before``, and put their scores into the rows."""
        if self._tests is None:
            return
        for row in rows:
            row[SCORE] = math.nan
        per_iteration, every = int(self.training.learner.frames_per_iteration), self._tests.every
        due = part.iteration * per_iteration // every > before * per_iteration // every
        if due or part.iteration >= self.training.target:
            for row, returns in zip(rows, np.asarray(self._tests.returns(part)), strict=True):
                row[SCORE] = float(np.mean(returns, dtype=np.float64))
            mean = float(np.mean([row[SCORE] for row in rows]))
            whose = f"seed {part.seeds[0]}, " if len(self.training.parts) > 1 else ""
            self.shown.message(f"{whose}evaluation at frame {int(rows[0]['frames']):,}: return {mean:.4g}")

    def _compile(self) -> None:
        """Compile the program unless that is done, and refuse one that the device has no room for."""
        learner = self.training.learner
        new = learner.compile_seconds is None
        if new:
            self.shown.message("compiling the training program (once a process) ...")
        seconds, memory = learner.compile(), learner.compiled_memory()
        if memory is not None:
            self._refuse_what_does_not_fit(memory)
        if new:
            needed = "" if memory is None else f"; it needs {memory / 1e6:,.0f} MB, its state included"
            self.shown.message(f"compiled in {seconds:.1f} s{needed}")

    def _refuse_what_does_not_fit(self, memory: int) -> None:
        """Raise if the device has no room for what the program needs beside its state, which is there already."""
        learner = self.training.learner
        for part in self.training.parts:
            if part.state is not None:
                part.state = learner.place(part.state)  # a resumed one may be elsewhere
        work = memory - sum(leaf.nbytes for part in self.training.parts for leaf in jax.tree.leaves(part.state))
        free = available_memory(learner.n_devices)
        if free is not None and work > free:
            raise CapoError(
                f"the training program needs {work / 1e6:,.0f} MB beside its state, but {free / 1e6:,.0f} MB are "
                "free: set a smaller batch_size or n_envs, or run fewer seeds"
            )

    def _advance(self, part: Part) -> Rows:
        try:
            return self.training.advance(part)
        except EnvironmentFailed as error:
            frames = part.iteration * int(self.training.learner.frames_per_iteration)
            learned = f"The agent keeps what it learned up to frame {frames:,}"
            if part.state is None and frames:
                learned = "Before that, a parameter stopped being a finite number: the agent can't go on"
            folder = f"; the newest checkpoint is {self.last}" if self.last else ""
            raise EnvironmentFailed(f"{error}. {learned}{folder}") from error.__cause__
        except Diverged as error:
            part.diverged = self._obituary(error)
            self._note(part.diverged)
            raise type(error)(part.diverged) from None

    def _obituary(self, error: Diverged) -> str:
        """What happened, what is left, and what to do."""
        what, cure = "diverged", "start a new run with a lower learning_rate or max_grad_norm"
        if isinstance(error, BadEnvironment):
            what, cure = "stopped", "correct the environment and start a new run"
        kept = f"No checkpoint was kept, since the run has no folder (out=): {cure}"
        if self.last:
            kept = (
                f"The last good checkpoint is {self.last}, to be loaded as any saved agent; going on from it "
                f"leads to the same place, so {cure}"
            )
        return f"training {what} at {error}. {kept}"

    def _note(self, diverged: str) -> None:
        """Leave word for who resumes the run."""
        if self.run is not None:
            with contextlib.suppress(DiskError):  # what happened matters more
                self.run.write_config({**self.run.config, "diverged": diverged})

    def _stop_if_asked(self, part: Part) -> None:
        signum = self._interrupts.signum
        if signum is None:
            return
        self._checkpoint()
        frames = part.iteration * int(self.training.learner.frames_per_iteration)
        raise Interrupted(signum, frames, self.last)

    def _show(self, rows: Rows) -> None:
        training = self.training
        known = [row["episode_return"] for row in rows if not np.isnan(row["episode_return"])]
        iterations = sum(training.target - part.iteration for part in training.parts)
        left = iterations * int(training.learner.frames_per_iteration) * len(rows)
        speed = rows[0]["frames_per_second"]
        mean = float(np.mean(known)) if known else float("nan")
        self.shown.update(training.total_frames, speed, mean, left / speed)

    def _warn_at_the_edge(self, rows: Rows) -> None:
        """Say so, once, if the values have come to an end of the atoms: what lies beyond can't be told apart."""
        ends = self.training.learner.config.value_range()
        if ends is None or self._at_the_edge:
            return
        low, high = ends
        margin = 0.02 * (high - low)
        for row in rows:
            value = row["value"]
            if value < min(low + margin, 0) or value > max(high - margin, 0):
                self._at_the_edge = True
                text = (
                    f"seed {row['seed']}: the mean value is {value:.4g}, at an end of the atoms (v_min={low:g}, "
                    f"v_max={high:g}); returns beyond them can't be told apart: start a new run with a wider range"
                )
                self.shown.message(text)
                warnings.warn(text, CapoWarning, stacklevel=4)
                return

    # Checkpoints ------------------------------------------------------------------------------------------

    def _check_space(self, run: RunFolder) -> None:
        needed = checkpoint.size(self.training.tree()) * (run.store.keep + 1)
        free = shutil.disk_usage(run.path).free
        if needed > free:
            raise CapoError(
                f"{run.path}: {run.store.keep} checkpoints and one being written need {needed / 1e6:,.0f} "
                f"MB, the disk has {free / 1e6:,.0f} MB left; free some, keep fewer, or shrink the replay"
            )

    def _checkpoint(self) -> None:
        """Write a checkpoint, unless the newest one is of this very moment."""
        frames = self.training.total_frames
        if self.run is not None and frames != self._saved_frames:
            content = self._content({"logs": self.run.log_lengths()})
            self.last = self.run.store.save(frames, self.training.tree(), content)
            self._saved_frames = frames
        self._saved_at = time.monotonic()

    def _due(self) -> bool:
        if self.every.seconds is not None:
            return time.monotonic() - self._saved_at >= self.every.seconds
        assert self.every.frames is not None
        return self.training.total_frames - self._saved_frames >= self.every.frames


def _is_false(answer: Any) -> bool:
    """Whether a callback said False, Python's or numpy's; None and other values don't stop a run."""
    return isinstance(answer, bool | np.bool_) and not answer
