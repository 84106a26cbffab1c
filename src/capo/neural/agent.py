"""The agent people hold: learn, predict, evaluate, save, load.

An :class:`Agent` owns its settings and what its seeds have learned. :meth:`Agent.learn` makes a frozen
:class:`Plan`, checks all of it, and only then commits to it; the :class:`Trainer` does the work.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from capo import envs
from capo.checks import as_path, seeds_from, whole
from capo.errors import CapoError, CapoWarning
from capo.neural import notices
from capo.neural.algorithms.settings import CommonSettings
from capo.neural.learners import Learner, make_learner
from capo.neural.metrics import Rows
from capo.neural.player import EVALUATE_STREAM, Player, stream_key
from capo.neural.seeds import Seeds
from capo.neural.setup import Setup
from capo.neural.trainer import Evaluations, Plan, Trainer, first_log_every
from capo.neural.versions import check_same_settings, check_version, version_difference
from capo.progress import show_progress
from capo.provenance import provenance, versions
from capo.runs import checkpoint, schema
from capo.runs.checkpoint import Checkpoint, Interval
from capo.runs.layout import CHECKPOINTS, CONFIG
from capo.runs.writer import RunWriter, check_new

Callback = Callable[["Agent", Rows], bool | None]


class Agent(Player):
    """What all algorithms share. Use a subclass such as :class:`capo.NCAPO`.

    Attributes:
        extra: more entries for config.json, kept when the run is resumed.
    """

    algorithm: ClassVar[str]  # its name
    out: Path | None
    log_every: int | None

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
            env: a name (``"minatar-breakout"``, ``"CartPole-v1"``), a Gymnasium environment or vector
                environment with discrete actions, or an object of capo's own environment protocol.
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
            **settings: settings that replace the preset's, by name.
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

    def _begin(self) -> None:
        """The setup is there; nothing has been learned."""
        setup = self._setup
        self.env, self.preset, self.seeds, self.config = setup.env, setup.preset, setup.seeds, setup.settings
        self.extra: dict[str, Any] = {}
        self.out = None
        self.checkpoint_every = Interval(seconds=60.0)
        self.keep = 3
        self.log_every = None
        self._jitted = envs.is_jitted(self.env)
        self._states = Seeds(self.seeds, self._jitted)
        self._plan: Plan | None = None  # of the last learn()
        self._learner: Learner | None = None
        self._run_exists = False
        self._run: RunWriter | None = None  # held from resume() to the end of learn()
        self._log_sizes: dict[str, int] | None = None  # as the last learn() left them

    def __repr__(self) -> str:
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        what = f"{self.env.name!r}, preset {self.preset!r}, {seeds}, {self.frames:,} frames"
        return f"<{type(self).__name__} on {what}>"

    # Learning ---------------------------------------------------------------------------------------------

    @property
    def frames(self) -> int:
        """Frames that every seed has behind it."""
        return self._states.iteration * self.config.frames_per_iteration

    @property
    def frames_left(self) -> int:
        """Frames missing from the last :meth:`learn`, if it was stopped."""
        return 0 if self._plan is None else self._plan.frames - self.frames

    @property
    def saved(self) -> bool:
        """Whether the newest checkpoint in the run's folder is of this very moment."""
        paths = [] if self.out is None else checkpoint.CheckpointStore(self.out / CHECKPOINTS).paths()
        now = self._states.total_iterations * self.config.frames_per_iteration
        return bool(paths) and checkpoint.frames_of(paths[-1]) == now

    @property
    def uneven(self) -> bool:
        """Whether some seeds are further than others: those that are trained in turn, if they were stopped."""
        return len({group.iteration for group in self._states.groups}) > 1

    def whole_iterations(self, frames: int) -> int:
        """``frames`` rounded up to whole iterations, as :meth:`learn` does."""
        per_iteration = self.config.frames_per_iteration
        return -(-frames // per_iteration) * per_iteration

    @property
    def diverged(self) -> dict[int, str]:
        """The seeds that stopped being trained since a loss or parameter was no longer finite, and what it was."""
        return self._states.diverged

    @property
    def wall_seconds(self) -> float:
        """Seconds spent training, over all seeds and processes; compiling and evaluating don't count."""
        return self._states.elapsed

    @property
    def precision(self) -> str:
        """Number format of the matrix products: what ``precision="auto"`` means on this machine."""
        return str(self.learner.algorithm.network.precision)

    def learn(
        self,
        frames: int,
        *,
        progress_bar: bool = False,
        callback: Callback | None = None,
        horizon: int | None = None,
    ) -> Self:
        """Train for ``frames`` environment steps of each seed.

        Training advances by whole iterations; ``frames`` is rounded up to a multiple of one. The first call sets
        the horizon of the schedules (epsilon, learning rate) to its frames, unless the settings have one; later
        calls continue at the schedules' final values.

        Args:
            frames: environment steps, over all environments of a seed.
            progress_bar: a bar on a terminal, a line every ten seconds elsewhere (both on standard error).
            callback: called at every log point as ``callback(agent, rows)`` with the new rows of
                metrics.csv; returning False stops the run.
            horizon: a new horizon for the schedules, in frames since the start of training.

        Returns:
            The agent itself.

        Raises:
            Interrupted: a KeyboardInterrupt, after SIGINT, SIGTERM or SIGHUP; the agent is intact.
            CapoError: if the plan can't be carried out (nothing has changed then), a loss or parameter of every
                seed stops being finite (if only some do: see :attr:`diverged`), or a write fails.
        """
        frames = whole("frames", frames)
        if callback is not None and not callable(callback):
            raise CapoError(f"callback={callback!r} must be a function of the agent and the new rows")
        plan = self._make_plan(frames, None if horizon is None else whole("horizon", horizon))
        learner = self._learner_for(plan.settings)
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

    def _own_run(self, path: Path) -> RunWriter:
        """The run's folder, open for this agent alone: as :meth:`resume` took it, or opened again.

        Raises:
            CapoError: if another process owns it, or has trained in it since this agent did.
        """
        if self._run is not None:
            return self._run
        run = RunWriter.open(path)
        try:
            if self._log_sizes is not None and run.log_sizes() != self._log_sizes:
                raise CapoError(
                    f"{path}: the run was continued or changed by somebody else since this agent trained there; "
                    f"continue from there with {type(self).__name__}.resume({str(path)!r})"
                )
        except BaseException:
            run.close()
            raise
        return run

    def _release(self, run: RunWriter) -> None:
        """Let others have the run's folder."""
        with suppress(CapoError):  # of a folder that is gone
            self._log_sizes = run.log_sizes()
        run.close()
        self._run = None

    def _make_plan(self, frames: int, horizon: int | None) -> Plan:
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
        return Plan(settings, self._states.iteration + iterations, log_every)

    @property
    def _horizon_set(self) -> bool:
        """Whether the horizon is the user's or that of an earlier plan, not the settings' default."""
        return self._plan is not None or "horizon" in self._setup.overrides

    def _learner_for(self, settings: CommonSettings) -> Learner:
        """The learner with these settings: the one there is, or a new one, since they are compiled in."""
        if self._learner is None or self._learner.config != settings:
            self._close_environments()
            n_seeds = len(self._states.groups[0].seeds)
            self._learner = make_learner(
                self._algorithm(settings, self.env), self.env, n_seeds, self._setup.eval_env
            )
        return self._learner

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
        return Evaluations(setup.eval_every, partial(self._returns, learner, key, setup.eval_episodes, False))

    def close(self) -> None:
        """Close the training environments and let others have the run's folder.

        The next :meth:`learn` opens new ones, with new episodes.
        """
        if self._run is not None:
            self._release(self._run)
        self._close_environments()

    def _close_environments(self) -> None:
        if self._learner is not None:
            self._learner.close()

    # Files ------------------------------------------------------------------------------------------------

    def _run_config(self, plan: Plan) -> dict[str, Any]:
        """The config.json of a run."""
        return {
            **self._setup.to_dict(plan.settings),
            "frames": plan.frames,
            "frames_per_iteration": plan.frames_per_iteration,
            "log_every": plan.log_every * plan.frames_per_iteration,
            "checkpoint_every": str(self.checkpoint_every),
            "keep": self.keep,
            "start_frames": self.frames,
            "extra": self.extra,
            "diverged": None,
            "diverged_seeds": {str(seed): why for seed, why in self.diverged.items()},
            "precision": self.precision,
            **provenance(),
        }

    def _run_plan(self) -> dict[str, Any]:
        """What of config.json a new plan changes."""
        return {"frames": self.frames + self.frames_left, "config": self.config.to_dict()}

    def _content(self, plan: Plan | None) -> dict[str, Any]:
        """What a checkpoint holds besides arrays."""
        return {
            **self._setup.to_dict(self.config if plan is None else plan.settings),
            "horizon_set": plan is not None or self._horizon_set,
            "versions": versions(),
            "predictions": self._predictions,
            "training": {
                "parts": self._states.content(),
                "log_every": 1 if plan is None else plan.log_every,
                "target": 0 if plan is None else plan.target,
                "elapsed_seconds": self._states.elapsed,
                "frames_per_iteration": self.config.frames_per_iteration,
            },
        }

    def save(self, path: str | Path) -> Path:
        """Write the whole agent, training state included, to one file; it replaces an older one in one step.

        Returns:
            The file: ``path``, with ``.safetensors`` added if it had no extension.
        """
        path = checkpoint.with_suffix(as_path("save", path))
        self._states.start(self.learner)
        checkpoint.write(path, self._states.tree(), self._content(self._plan))
        return path

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: Any = None,
        out: str | Path | None = None,
        *,
        eval_env: Any = None,
        trust: bool = False,
    ) -> Self:
        """An agent from :meth:`save`, or from the newest checkpoint of a run's folder.

        It continues as if it had never stopped: ``load(path).learn(n)`` ends where the saved agent would have,
        bit for bit on a jitted environment.

        Args:
            path: what was given to :meth:`save`, a checkpoint, or a run's folder.
            env: the environment, needed only if the agent was not made from an environment's name.
            out: a new folder for the files of what is learned from now on.
            eval_env: as for a new agent, if it was not given as a name.
            trust: whether an environment named ``module:id`` in the file may import that module, which runs its
                code; never from the current folder.
        """
        agent = cls.from_checkpoint(checkpoint.find(path), env, eval_env, trust)
        if out is not None:
            agent.out = as_path("out", out)
            check_new(agent.out)
        return agent

    @classmethod
    def resume(
        cls,
        path: str | Path,
        env: Any = None,
        use_previous: bool = False,
        *,
        eval_env: Any = None,
        trust: bool = False,
        anyway: bool = False,
    ) -> Self:
        """The agent of a run's folder, to continue there with ``agent.learn(agent.frames_left)``.

        The logs are cut back to the checkpoint, so the rows after it are written again. From now on the folder
        belongs to this agent, until its :meth:`learn` has ended or it is closed.

        Args:
            path: the run's folder.
            env: as in :meth:`load`.
            use_previous: if the newest checkpoint is damaged, go back to the one before it.
            eval_env: as in :meth:`load`.
            trust: as in :meth:`load`.
            anyway: continue although the run was made by a version of capo whose results differ.
        """
        path = as_path("resume", path)
        run = RunWriter.open(path)
        try:
            agent, short = cls._resumed(run, env, eval_env, use_previous, trust, anyway)
        except BaseException:
            run.close()
            raise
        if short:
            text = f"{path}: rows are missing from {', '.join(sorted(short))}: it was changed"
            warnings.warn(text, CapoWarning, stacklevel=2)
        agent._run = run
        return agent

    @classmethod
    def _resumed(
        cls, run: RunWriter, env: Any, eval_env: Any, use_previous: bool, trust: bool, anyway: bool
    ) -> tuple[Self, list[str]]:
        """The agent of a run that is open, and the logs that are shorter than they should be."""
        path, config = run.path, run.config
        every = Interval.parse(config["checkpoint_every"])
        saved = run.store.load(use_previous)
        if saved is None:
            run.check_never_started()
            check_version(path / CONFIG, config, cls._algorithm.Config, anyway)
            agent = cls._from_config(config, env, eval_env, trust)
        else:
            schema.check_checkpoint(saved.path, saved.content)
            schema.check_same_run(saved.path, config, saved.content)
            check_version(saved.path, saved.content, cls._algorithm.Config, anyway)
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", CapoWarning
                )  # that the version is another one, which was just said
                agent = cls.from_checkpoint(saved, env, eval_env, trust)
            check_same_settings(path, cls._algorithm.Config.from_dict(config["config"]), agent.config)
            run.store.set_aside_after(saved.path)
        short = run.cut_logs({} if saved is None else saved.content.get("logs", {}))
        run.follow_plan(agent._run_plan())
        agent.out, agent._run_exists = path, True
        agent.checkpoint_every, agent.keep = every, int(config["keep"])
        agent.extra = dict(config["extra"])
        return agent, short

    @classmethod
    def _from_config(cls, config: Mapping[str, Any], env: Any, eval_env: Any, trust: bool) -> Self:
        """A run that was killed before its first checkpoint: as it was when it started."""
        agent = cls._untrained(config, env, eval_env, trust)
        per_iteration = agent.config.frames_per_iteration
        target, log_every = (int(config[key]) // per_iteration for key in ("frames", "log_every"))
        agent._plan = Plan(agent.config, target, log_every)
        return agent

    @classmethod
    def from_checkpoint(
        cls, saved: Checkpoint, env: Any = None, eval_env: Any = None, trust: bool = False
    ) -> Self:
        """An agent from a checkpoint in memory; see :meth:`load` for the arguments."""
        schema.check_checkpoint(saved.path, saved.content)
        if different := version_difference(saved.path, saved.content, cls._algorithm.Config):
            warnings.warn(different, CapoWarning, stacklevel=3)
        agent = cls._untrained(saved.content, env, eval_env, trust)
        training = saved.content["training"]
        if training["frames_per_iteration"] != agent.config.frames_per_iteration:
            raise CapoError(f"{saved.path}: its frames per iteration are not those of its settings")
        agent._predictions = saved.content["predictions"]
        agent._states.elapsed = training["elapsed_seconds"]
        if training["target"]:
            agent._plan = Plan(agent.config, training["target"], training["log_every"])
        agent._states.restore(saved, agent.learner)
        return agent

    @classmethod
    def _untrained(cls, content: Mapping[str, Any], env: Any, eval_env: Any, trust: bool) -> Self:
        """An agent with the stored setup and settings, and no state yet."""
        agent = cls.__new__(cls)
        agent._setup = Setup.from_dict(cls._algorithm, content, env, eval_env, trust)
        agent._begin()
        agent.config = cls._algorithm.Config.from_dict(content["config"])
        return agent
