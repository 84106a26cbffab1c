"""The agent people hold: learn, predict, evaluate, save, load.

An :class:`Agent` owns its settings and what its seeds have learned. :meth:`Agent.learn` makes a frozen
:class:`Plan`, checks all of it, and only then commits to it; the :class:`Trainer` does the work.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from capo.checks import as_path, seeds_from, whole
from capo.errors import CapoError, CapoWarning
from capo.neural import notices
from capo.neural.algorithms.settings import CommonSettings
from capo.neural.learners import Behaviour, Learner, make_learner
from capo.neural.metrics import Rows
from capo.neural.player import EVALUATE_STREAM, make_behaviour, stream_key
from capo.neural.setup import Setup
from capo.neural.storage import StoredAgent
from capo.neural.trainer import Evaluations, Plan, Trainer, first_log_every
from capo.progress import show_progress
from capo.runs.checkpoint import Interval
from capo.runs.writer import RunWriter, check_new

Callback = Callable[["Agent", Rows], bool | None]


class Agent(StoredAgent):
    """What all algorithms share. Use a subclass such as :class:`capo.NCAPO`."""

    algorithm: ClassVar[str]  # its name

    def __init_subclass__(cls) -> None:
        cls.algorithm = cls._algorithm.name

    def __init__(
        self,
        env: Any,
        preset: str | Path = "default",
        *,
        seed: int = 0,
        seeds: int | Sequence[int] | None = None,
        out: str | Path | None = None,
        checkpoint_every: str | int | Interval = "60s",
        keep: int = 3,
        log_every: int | None = None,
        eval_every: int | None = None,
        eval_episodes: int = 100,
        eval_env: Any = None,
        **settings: Any,
    ) -> None:
        """An agent that has learned nothing yet.

        Args:
            env: a name (``"minatar-breakout"``, ``"CartPole-v1"``), a function that makes an environment, a
                Gymnasium environment or vector environment with discrete actions, a vector environment of
                Stable-Baselines3, or an object of capo's own environment protocol.
            preset: the settings to start from, by name, or a preset file (``.toml``), such as `capo tune` writes.
            seed: where all randomness comes from.
            seeds: train several agents: a number (``seed``, ``seed + 1``, ...) or a list of seeds. On a
                jitted environment they are one program; otherwise they run one after another.
            out: a new folder for the run's files; without it nothing is written.
            checkpoint_every: ``"60s"`` or a number of frames; only with ``out``.
            keep: how many checkpoints to keep.
            log_every: frames between two log points, rounded to whole iterations.
            eval_every: frames between two evaluations during training, each at the next log point, and one at
                the end of every :meth:`learn`; they are a column of metrics.csv. None: no such evaluations.
            eval_episodes: episodes of each of those evaluations.
            eval_env: the environment that evaluations play, with the same observations and actions; the training
                environment if None.
            **settings: settings that replace the preset's, by name. ``network`` may be an object of your own, with
                ``init(key, observation)`` and ``apply(params, observation)``; ``learning_rate``, ``entropy`` and
                ``epsilon`` may be functions of the progress, from 0 to 1.
        """
        chosen = seeds_from(seed, seeds)
        self._setup = Setup.make(
            self._algorithm, env, preset, settings, chosen, eval_every, eval_episodes, eval_env
        )
        self._begin()
        if out is not None:
            self.out = as_path("out", out)
            check_new(self.out)
        self.checkpoint_every = Interval.parse(checkpoint_every)
        self.keep = whole("keep", keep)
        if log_every is not None:
            self.log_every = whole("log_every", log_every)

    def __repr__(self) -> str:
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        what = f"{self.env.name!r}, preset {self.preset!r}, {seeds}, {self.frames:,} frames"
        return f"<{type(self).__name__} on {what}>"

    # Learning ---------------------------------------------------------------------------------------------

    def learn(
        self,
        frames: int | None = None,
        *,
        total_timesteps: int | None = None,
        progress_bar: bool = False,
        callback: Callback | None = None,
        horizon: int | None = None,
        behaviour: Any = None,
    ) -> Self:
        """Train for ``frames`` environment steps of each seed.

        Training advances by whole iterations; ``frames`` is rounded up to a multiple of one. The first call sets
        the horizon of the schedules (epsilon, learning rate) to its frames, unless the settings have one; later
        calls continue at the schedules' final values.

        Args:
            frames: environment steps, over all environments of a seed.
            total_timesteps: another name for ``frames``, the one Stable-Baselines3 uses.
            progress_bar: show a bar in a terminal or a notebook; elsewhere, a line every ten seconds on standard
                error.
            callback: called at every log point as ``callback(agent, rows)`` with the new rows of
                metrics.csv; returning False stops the run.
            horizon: a new horizon for the schedules, in frames since the start of training.
            behaviour: what acts during this call, for off-policy algorithms: a function of observations (N, ...)
                that returns the probabilities (N, actions) of all actions, or a tuple of the actions (N,) it takes
                and their probabilities (N,); another agent; or a :class:`capo.Mixture` of either with the agent's
                own policy. It is not saved: give it again to continue a run that was stopped. None or ``"own"``:
                the agent's own policy.

        Returns:
            The agent itself.

        Raises:
            Interrupted: a KeyboardInterrupt, after SIGINT, SIGTERM or SIGHUP; the agent is intact.
            CapoError: if the plan cannot be carried out (nothing has changed then), a loss or parameter of every
                seed stops being finite (if only some do: see :attr:`diverged`), or a write fails.
        """
        frames = _frames(frames, total_timesteps)
        if callback is not None and not callable(callback):
            raise CapoError(f"callback={callback!r} must be a function of the agent and the new rows")
        acting = self._behaviour(behaviour)
        plan = self._make_plan(frames, None if horizon is None else whole("horizon", horizon), acting)
        learner = self._learner_for(plan.settings, acting)
        if self._setup.eval_every is not None:
            learner.check_evaluation(self._setup.eval_episodes)
        with ExitStack() as stack:
            run: RunWriter | None = None
            if self._run_exists and self.out is not None:
                run = self._run = self._own_run(self.out)
                stack.callback(self._release, run)
            elif self.out is not None:
                check_new(self.out)  # again: another run may have taken it since
            shown = show_progress(progress_bar, final=True)
            stack.callback(shown.close)
            done = self.frames
            groups = len(self._states.groups)
            for text in notices.introduce(plan, learner, self.preset, groups, frames, plan.frames - done):
                shown.message(text)
            for text in notices.warnings_about(plan, done, learner):
                shown.message(text)
                warnings.warn(text, CapoWarning, stacklevel=2)
            trainer = Trainer(plan, learner, self._states, shown, self._evaluations(learner))
            trainer.prepare(self.out, self.keep)
            if self.out is not None:
                config = self._run_config(plan)
                if run is None:
                    run = RunWriter.create(self.out, config)
                    stack.callback(self._release, run)
                with run.withdrawn_on_error():
                    content = partial(self._content, plan)
                    trainer.write_to(run, self.checkpoint_every, content, new_plan=plan != self._plan)
                    run.update_config(config)  # after the checkpoint, which is what counts if only one is written
                self._run_exists = True
            self._plan, self.config = plan, plan.settings
            trainer.train(None if callback is None else partial(callback, self))
        return self

    def _behaviour(self, given: Any) -> Behaviour | None:
        """Who acts, from what the user gave; None for the agent's own policy.

        Raises:
            CapoError: if the algorithm is on-policy, or a run that was stopped had a behaviour and gets none.
        """
        if given is None and self._plan is not None and self._plan.behaviour and self.frames_left:
            raise CapoError(
                f"the last learn() was stopped while {self._plan.behaviour} acted, which cannot be stored in a "
                'file: give it again, learn(..., behaviour=...), or behaviour="own" to let the agent act itself'
            )
        if given is None or (isinstance(given, str) and given == "own"):
            return None
        if self._algorithm.on_policy:
            raise CapoError(
                f"{type(self).__name__} is on-policy and learns only from its own actions: behaviour= needs an "
                "off-policy algorithm, such as NCAPO, OffPAC or Rainbow"
            )
        return make_behaviour(given, self)

    def _make_plan(self, frames: int, horizon: int | None, acting: Behaviour | None) -> Plan:
        """What ``learn(frames, horizon=horizon)`` would do."""
        per_iteration = self.config.frames_per_iteration
        iterations = self.whole_iterations(frames) // per_iteration
        if horizon is None:
            horizon = self.config.horizon if self._horizon_set else iterations * per_iteration
        if self._plan is not None:
            log_every = self._plan.log_every
        else:
            log_every = first_log_every(self.log_every, self._jitted, per_iteration, iterations)
        settings = dataclasses.replace(self.config, horizon=horizon)
        note = None if acting is None else acting.note
        return Plan(settings, self._states.iteration + iterations, log_every, note)

    def _learner_for(self, settings: CommonSettings, acting: Behaviour | None = None) -> Learner:
        """The learner with these settings and this behaviour: the one there is, or a new one.

        Both are compiled in.
        """
        learner = self._learner
        if learner is None or learner.config != settings or not _acts(learner, acting):
            self._close_environments()
            n_seeds = len(self._states.groups[0].seeds)
            algorithm = self._algorithm(settings, self.env, self._setup.own)
            learner = self._learner = make_learner(algorithm, self.env, n_seeds, self._setup.eval_env, acting)
        return learner

    @property
    def learner(self) -> Learner:
        """What steps the environment and runs the compiled programs, made at first use."""
        return self._learner or self._learner_for(self.config)

    def _evaluations(self, learner: Learner) -> Evaluations | None:
        """The evaluations during training; the last one plays the same episodes as :meth:`evaluate`."""
        setup = self._setup
        if setup.eval_every is None:
            return None
        key = stream_key(0, EVALUATE_STREAM)
        return Evaluations(setup.eval_every, partial(self._returns, learner, key, setup.eval_episodes, None))

    def close(self) -> None:
        """Close the training environments and release the run's folder.

        The next :meth:`learn` opens new environments, with new episodes.
        """
        if self._run is not None:
            self._release(self._run)
        self._close_environments()

    def _close_environments(self) -> None:
        if self._learner is not None:
            self._learner.close()


def _acts(learner: Learner, acting: Behaviour | None) -> bool:
    """Whether what a learner has compiled serves this behaviour, or none."""
    return acting is None if learner.behaviour is None else learner.behaviour.is_still(acting)


def _frames(frames: int | None, total_timesteps: int | None) -> int:
    """The frames to train for, under whichever name they were given."""
    if (frames is None) == (total_timesteps is None):
        given = "neither was" if frames is None else "both were"
        raise CapoError(
            "learn() needs either frames or total_timesteps (another name for it), a positive integer: "
            f"{given} given"
        )
    return whole("frames", frames) if frames is not None else whole("total_timesteps", total_timesteps)
