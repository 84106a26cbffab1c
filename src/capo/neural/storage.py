"""What an agent leaves in files, and how it comes back: save, load, resume; and how far its training is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from capo import envs
from capo.checks import as_path
from capo.errors import CapoError, CapoWarning
from capo.neural.learners import Learner
from capo.neural.parts import layers
from capo.neural.player import Player
from capo.neural.seeds import Seeds
from capo.neural.setup import Setup
from capo.neural.trainer import Plan
from capo.neural.versions import check_same_settings, check_version, version_difference
from capo.provenance import provenance, versions
from capo.runs import checkpoint, schema
from capo.runs.checkpoint import Checkpoint, Interval
from capo.runs.layout import CHECKPOINTS, CONFIG
from capo.runs.writer import RunWriter, check_new


class StoredAgent(Player):
    """An agent's setup, what its seeds have learned, and its files; :class:`capo.neural.agent.Agent` trains it.

    Attributes:
        extra: more entries for config.json, kept when the run is resumed.
    """

    out: Path | None
    log_every: int | None
    _setup: Setup

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

    # Where the training stands -----------------------------------------------------------------------------

    @property
    def frames(self) -> int:
        """Frames that every seed has been trained for."""
        return self._states.iteration * self.config.frames_per_iteration

    @property
    def frames_left(self) -> int:
        """Frames left of the last :meth:`learn`, if it was stopped."""
        return 0 if self._plan is None else max(0, self._plan.frames - self.frames)

    @property
    def saved(self) -> bool:
        """Whether the newest checkpoint in the run's folder is up to date."""
        paths = [] if self.out is None else checkpoint.CheckpointStore(self.out / CHECKPOINTS).paths()
        now = self._states.total_iterations * self.config.frames_per_iteration
        return bool(paths) and checkpoint.frames_of(paths[-1]) == now

    @property
    def uneven(self) -> bool:
        """Whether some seeds are ahead of others: possible if seeds trained one after another were stopped."""
        return len({group.iteration for group in self._states.groups}) > 1

    def whole_iterations(self, frames: int) -> int:
        """``frames`` rounded up to whole iterations, as :meth:`learn` does."""
        per_iteration = self.config.frames_per_iteration
        return -(-frames // per_iteration) * per_iteration

    @property
    def diverged(self) -> dict[int, str]:
        """The seeds that are no longer trained because a loss or parameter became nan or infinite, and which."""
        return self._states.diverged

    @property
    def wall_seconds(self) -> float:
        """Seconds spent training, over all seeds and processes; compilation and evaluation do not count."""
        return self._states.elapsed

    @property
    def precision(self) -> str:
        """Number format of the matrix products on this machine: bfloat16, float32, or tf32.

        tf32 is what a GPU does by default with float32 numbers: it keeps 10 of 23 bits before it multiplies.
        """
        return layers.precision_here(self.learner.algorithm.network)

    @property
    def _horizon_set(self) -> bool:
        """Whether the horizon is the user's or that of an earlier plan, not the settings' default."""
        return self._plan is not None or "horizon" in self._setup.overrides

    # Files ------------------------------------------------------------------------------------------------

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
                    f"{path}: the run was continued or changed by another agent since this one last "
                    "trained in it; continue from its current state with "
                    f"{type(self).__name__}.resume({str(path)!r})"
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
            "behaviour": plan.behaviour,
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
            "behaviour": None if plan is None else plan.behaviour,
            "training": {
                "parts": self._states.content(),
                "log_every": 1 if plan is None else plan.log_every,
                "target": 0 if plan is None else plan.target,
                "elapsed_seconds": self._states.elapsed,
                "frames_per_iteration": self.config.frames_per_iteration,
            },
        }

    def save(self, path: str | Path) -> Path:
        """Write the whole agent, including its training state, to one file; an older file is replaced atomically.

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
        **own: Any,
    ) -> Self:
        """An agent from :meth:`save`, or from the newest checkpoint of a run's folder.

        It continues as if it had never stopped: ``load(path).learn(n)`` ends where the saved agent would have,
        bit for bit on a jitted environment.

        Args:
            path: what was given to :meth:`save`, a checkpoint, or a run's folder.
            env: the environment or a function that makes it, needed only if the agent was not made from a name.
            out: a new folder for the files of what is learned from now on.
            eval_env: as for a new agent, if it was not given as a name.
            trust: whether an environment named ``module:id`` in the file may import that module, which runs its
                code; it is never imported from the current folder.
            **own: ``network`` and schedules, if the agent was made with objects of your own.
        """
        agent = cls.from_checkpoint(checkpoint.find(path), env, eval_env, trust, own)
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
        **own: Any,
    ) -> Self:
        """The agent of a run's folder, which continues there with ``agent.learn(agent.frames_left)``.

        The logs are cut back to the checkpoint, so the rows after it are written again. From now on the folder
        belongs to this agent, until its :meth:`learn` has ended or it is closed.

        Args:
            path: the run's folder.
            env: as in :meth:`load`.
            use_previous: if the newest checkpoint is damaged, go back to the one before it.
            eval_env: as in :meth:`load`.
            trust: as in :meth:`load`.
            anyway: continue although the run was made by a version of capo whose results differ.
            **own: as in :meth:`load`.
        """
        path = as_path("resume", path)
        run = RunWriter.open(path)
        try:
            agent, short = cls._resumed(run, env, eval_env, use_previous, trust, anyway, own)
        except BaseException:
            run.close()
            raise
        if short:
            text = f"{path}: rows are missing from {', '.join(sorted(short))}, so the folder was changed"
            warnings.warn(text, CapoWarning, stacklevel=2)
        agent._run = run
        return agent

    @classmethod
    def _resumed(
        cls,
        run: RunWriter,
        env: Any,
        eval_env: Any,
        use_previous: bool,
        trust: bool,
        anyway: bool,
        own: Mapping[str, Any],
    ) -> tuple[Self, list[str]]:
        """The agent of a run that is open, and the logs that are shorter than they should be."""
        path, config = run.path, run.config
        every = Interval.parse(config["checkpoint_every"])
        saved = run.store.load(use_previous)
        if saved is None:
            run.check_never_started()
            check_version(path / CONFIG, config, cls._algorithm.Config, anyway)
            agent = cls._from_config(config, env, eval_env, trust, own)
        else:
            schema.check_checkpoint(saved.path, saved.content)
            schema.check_same_run(saved.path, config, saved.content)
            check_version(saved.path, saved.content, cls._algorithm.Config, anyway)
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", CapoWarning
                )  # that the version is another one, which was just said
                agent = cls.from_checkpoint(saved, env, eval_env, trust, own)
            check_same_settings(path, cls._algorithm.Config.from_dict(config["config"]), agent.config)
            run.store.set_aside_after(saved.path)
        short = run.cut_logs({} if saved is None else saved.content.get("logs", {}))
        run.follow_plan(agent._run_plan())
        agent.out, agent._run_exists = path, True
        agent.checkpoint_every, agent.keep = every, int(config["keep"])
        agent.extra = dict(config["extra"])
        return agent, short

    @classmethod
    def _from_config(
        cls, config: Mapping[str, Any], env: Any, eval_env: Any, trust: bool, own: Mapping[str, Any]
    ) -> Self:
        """A run that was killed before its first checkpoint: as it was when it started."""
        agent = cls._untrained(config, env, eval_env, trust, own)
        per_iteration = agent.config.frames_per_iteration
        target, log_every = (int(config[key]) // per_iteration for key in ("frames", "log_every"))
        agent._plan = Plan(agent.config, target, log_every, config.get("behaviour"))
        return agent

    @classmethod
    def from_checkpoint(
        cls,
        saved: Checkpoint,
        env: Any = None,
        eval_env: Any = None,
        trust: bool = False,
        own: Mapping[str, Any] | None = None,
    ) -> Self:
        """An agent from a checkpoint in memory; see :meth:`load` for the arguments."""
        schema.check_checkpoint(saved.path, saved.content)
        if different := version_difference(saved.path, saved.content, cls._algorithm.Config):
            warnings.warn(different, CapoWarning, stacklevel=3)
        agent = cls._untrained(saved.content, env, eval_env, trust, own or {})
        training = saved.content["training"]
        if training["frames_per_iteration"] != agent.config.frames_per_iteration:
            raise CapoError(f"{saved.path}: its frames per iteration do not match its settings")
        agent._predictions = saved.content["predictions"]
        agent._states.elapsed = training["elapsed_seconds"]
        if training["target"]:
            behaviour = saved.content.get("behaviour")
            agent._plan = Plan(agent.config, training["target"], training["log_every"], behaviour)
        agent._states.restore(saved, agent.learner)
        return agent

    @classmethod
    def _untrained(
        cls, content: Mapping[str, Any], env: Any, eval_env: Any, trust: bool, own: Mapping[str, Any]
    ) -> Self:
        """An agent with the stored setup and settings, and no state yet."""
        agent = cls.__new__(cls)
        agent._setup = Setup.from_dict(cls._algorithm, content, env, eval_env, trust, own)
        agent._begin()
        agent.config = cls._algorithm.Config.from_dict(content["config"])
        return agent
