"""The agent people hold: learn, predict, evaluate, save, load.

An :class:`Agent` is a shell around a jitted learner. It owns the training state and decides when to log,
to checkpoint and to stop; what is computed is the learner's alone. The run advances in *chunks* of whole
iterations that end at fixed places (multiples of ``log_every`` iterations), never at a moment of the clock,
so that a run that was stopped and resumed goes through the same chunks as one that was not.
"""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import jax
import numpy as np

from capo import envs
from capo.checks import whole
from capo.errors import CapoError, CapoWarning, unknown_name
from capo.neural import algorithms, checkpoint, loop
from capo.neural.checkpoint import Checkpoint, CheckpointStore
from capo.neural.evaluation import Evaluation, check_seed
from capo.neural.host import check_copies
from capo.neural.networks import spec_for
from capo.neural.progress import Reporter, reporter
from capo.neural.run import CHECKPOINTS, CONFIG, METRICS, Interval, RunFolder, check_new, read_config
from capo.neural.session import Session, Tests
from capo.neural.settings import Settings, is_minatar, override, plain
from capo.neural.training import Part, Rows, Training
from capo.provenance import provenance, versions

LOG_EVERY = 10_000  # frames of a seed between two log points, if the run is long enough
LOG_EVERY_HOST = 2_000  # the same where the host steps the environment
LOG_POINTS = 20  # at least, in a short run
PREDICT_STREAM, EVALUATE_STREAM = 2**31 - 2, 2**31 - 1  # folded into keys; training folds in its iterations

Callback = Callable[["Agent", Rows], bool | None]


class Agent:
    """What all algorithms share. Use a subclass such as :class:`NCAPO`."""

    algorithm: ClassVar[str]

    def __init__(
        self,
        env: Any,
        preset: str = "default",
        *,
        seed: int = 0,
        seeds: int | Sequence[int] | None = None,
        out: str | Path | None = None,
        checkpoint_every: str | int | Interval = "60s",
        keep: int = 3,
        log_every: int | None = None,
        eval_every: int | None = None,
        eval_episodes: int = 100,
        **settings: Any,
    ) -> None:
        """An agent that has learned nothing yet.

        Args:
            env: a name (``"minatar-breakout"``, ``"CartPole-v1"``), a Gymnasium environment or vector
                environment with discrete actions, or an object of capo's own environment protocol.
            preset: the settings to start from.
            seed: where all randomness comes from.
            seeds: train several agents: a number (``seed``, ``seed + 1``, ...) or a list of seeds. On a
                jitted environment they are one program; otherwise they run one after another.
            out: a new folder for the run's files; without it nothing is written.
            checkpoint_every: ``"60s"`` or a number of frames; only with ``out``.
            keep: how many checkpoints to keep.
            log_every: frames between two log points, rounded to whole iterations.
            eval_every: frames between two evaluations on the way, each at the next log point, and one at the end
                of every :meth:`learn`; they are a column of metrics.csv. None: no evaluations on the way.
            eval_episodes: of each of those evaluations.
            **settings: settings that replace the preset's, by name.
        """
        self.seeds = _seeds(seed, seeds)
        self.env = envs.make(env)
        self._jitted = envs.is_jitted(self.env)
        self._given_env = env if isinstance(env, str) else None
        if not self._jitted and len(self.seeds) > 1 and not isinstance(env, str):
            raise CapoError(
                "several seeds need the environment's id rather than one object: each seed starts anew"
            )
        self.preset = preset
        settings = {name: plain(value) for name, value in settings.items()}
        self.config: Any = self._configure(settings)
        self._warn_if_channels_first()
        self.overrides = settings
        self.extra: dict[str, Any] = {}  # more entries for config.json, kept when the run is resumed
        self.out = None if out is None else _path("out", out)
        if self.out is not None:
            check_new(self.out)
        self.checkpoint_every = Interval.parse(checkpoint_every)
        self.keep = CheckpointStore(Path(), keep).keep
        self._log_every_frames = None if log_every is None else whole("log_every", log_every)
        self.eval_every = None if eval_every is None else whole("eval_every", eval_every)
        self.eval_episodes = whole("eval_episodes", eval_episodes)
        self._horizon_set = "horizon" in settings
        self._training: Training | None = None
        self._run_exists = False
        self._predictions = 0
        self._playing = 0

    def __repr__(self) -> str:
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        what = f"{self.env.name!r}, preset {self.preset!r}, {seeds}, {self.frames:,} frames"
        return f"<{type(self).__name__} on {what}>"

    def _warn_if_channels_first(self) -> None:
        shape = tuple(self.env.observation_shape)
        if len(shape) == 3 and shape[0] < shape[1] == shape[2] and spec_for(self.config, shape, 1).kind == "conv":
            text = (
                f"{self.env.name}: observations of shape {shape} look like (channels, height, width), but the "
                "convolution takes (height, width, channels): move the first axis to the end, or set network='mlp'"
            )
            warnings.warn(text, CapoWarning, stacklevel=3)

    def _configure(self, settings: Mapping[str, Any]) -> Settings:
        """The preset's settings with the user's; a vector environment has as many copies as it has."""
        base = self._settings().preset(self.preset, self.env.name)
        copies = getattr(self.env, "vector_copies", None)
        if copies is not None:
            settings = {"n_envs": copies, **settings}
        config = override(base, settings)
        check_copies(self.env, config.n_envs)  # type: ignore[attr-defined]
        return config

    @classmethod
    def _settings(cls) -> type[Settings]:
        return algorithms.by_name(cls.algorithm).Config

    # Learning ---------------------------------------------------------------------------------------------

    @property
    def frames(self) -> int:
        """Frames every seed has behind it."""
        training = self._training
        return 0 if training is None else training.iteration * int(training.learner.frames_per_iteration)

    @property
    def frames_left(self) -> int:
        """Frames missing from the last :meth:`learn`, if it was stopped."""
        training = self._training
        return (
            0 if training is None else training.target * int(training.learner.frames_per_iteration) - self.frames
        )

    @property
    def uneven(self) -> bool:
        """Whether some seeds are further than others: those that are trained in turn, if they were stopped."""
        return self._training is not None and len({part.iteration for part in self._training.parts}) > 1

    def whole_iterations(self, frames: int) -> int:
        """``frames`` rounded up to whole iterations, as :meth:`learn` does."""
        per_iteration = int(self._ready().learner.frames_per_iteration)
        return -(-frames // per_iteration) * per_iteration

    @property
    def wall_seconds(self) -> float:
        """Seconds spent training, over all seeds and sessions; compiling and evaluating don't count."""
        return 0.0 if self._training is None else self._training.elapsed

    @property
    def samples(self) -> bool:
        """Whether the policy is stochastic; if not, the best action is always taken."""
        return algorithms.by_name(self.algorithm).samples

    def learn(
        self,
        frames: int,
        *,
        progress_bar: bool = False,
        callback: Callback | None = None,
        horizon: int | None = None,
    ) -> Self:
        """Train for ``frames`` environment steps of each seed.

        Training advances by whole iterations; if ``frames`` is not a multiple of one, it is rounded up and
        a message says to what. The first call sets the horizon of the schedules (epsilon, learning rate) to
        its frames, unless the settings have one; later calls go on at the schedules' final values.

        Args:
            frames: environment steps, over all environments of a seed.
            progress_bar: a bar on a terminal, a line every ten seconds elsewhere (both on standard error).
            callback: called at every log point as ``callback(agent, rows)`` with the new rows of
                metrics.csv; returning False stops the run.
            horizon: a new horizon for the schedules, in frames since the start of training.

        Returns:
            The agent itself.

        Raises:
            Interrupted: a KeyboardInterrupt, after SIGINT or SIGTERM; the agent is intact.
            CapoError: if a loss or parameter stops being finite, or the disk refuses to be written.
        """
        if not _is_count(frames):
            raise CapoError(f"learn({frames!r}): the number of frames has to be a positive integer")
        if horizon is not None and not _is_count(horizon):
            raise CapoError(f"horizon={horizon!r}: has to be a positive number of frames")
        if callback is not None and not callable(callback):
            raise CapoError(f"callback={callback!r}: has to be a function of the agent and the new rows")
        training = self._ready()
        training.start()  # says so if there is no state to go on from, before anything is written
        per_iteration = int(training.learner.frames_per_iteration)
        iterations = self.whole_iterations(int(frames)) // per_iteration
        before = (training.target, self.config)
        plan = (training.learner, training.target, training.log_every)
        own = (self.config, self._horizon_set, self._run_exists)
        run: RunFolder | None = None
        with ExitStack() as stack:
            try:
                self._set_horizon(training, iterations * per_iteration, horizon)
                if training.target == 0:  # the first plan; a resumed run keeps its log points, also at frame 0
                    training.log_every = self._log_every_iterations(iterations, per_iteration)
                training.target = training.iteration + iterations
                run = self._open_run(training)
                if run is not None:
                    stack.callback(run.close)
                shown = reporter(training.target * per_iteration * len(training.parts), progress_bar)
                stack.callback(shown.close)
                self._introduce(shown, training, int(frames), progress_bar)
                self._warn_if_idle(shown, training, iterations * per_iteration, per_iteration)
                session = Session(training, run, shown, self.checkpoint_every, self._content, self._tests())
                session.start(new_plan=before != (training.target, self.config))
            except BaseException:  # nothing was trained: the next call makes its own plan
                training.learner, training.target, training.log_every = plan
                self.config, self._horizon_set, self._run_exists = own
                if run is not None:
                    run.withdraw()
                raise
            session.train(None if callback is None else partial(callback, self))
        return self

    def _tests(self) -> Tests | None:
        """The evaluations on the way; the last one is :meth:`evaluate`'s, episode by episode."""
        if self.eval_every is None:
            return None

        def returns(part: Part) -> Any:
            key = _key(0, EVALUATE_STREAM)
            return _play(self._ready().learner, part, key, self.eval_episodes, deterministic=False)

        return Tests(self.eval_every, returns)

    def _ready(self) -> Training:
        """The training, made at its first use."""
        if self._training is None:
            together = self._jitted
            learner = loop.make_learner(self.env, self.config, len(self.seeds) if together else 1)
            self._training = Training(learner, self.seeds, together)
        return self._training

    def _set_horizon(self, training: Training, first: int, given: int | None) -> None:
        wanted = given if given is not None else self.config.horizon if self._horizon_set else first
        self._horizon_set = True
        if wanted != self.config.horizon:
            self.config = dataclasses.replace(self.config, horizon=int(wanted))
            training.learner.close()
            # The horizon is compiled in; the state does not depend on it and goes on.
            training.learner = loop.make_learner(self.env, self.config, len(training.parts[0].seeds))

    def _log_every_iterations(self, iterations: int, per_iteration: int) -> int:
        if self._log_every_frames is not None:
            return max(1, round(self._log_every_frames / per_iteration))
        usual = LOG_EVERY if self._jitted else LOG_EVERY_HOST
        return max(1, min(usual // per_iteration, iterations // LOG_POINTS))

    def _introduce(self, shown: Reporter, training: Training, asked: int, visible: bool) -> None:
        """Say what is about to happen: frames, batch, replay ratio."""
        learner = training.learner
        frames = (training.target - training.iteration) * int(learner.frames_per_iteration)
        shown.message(str(learner.describe()))
        if len(training.parts) > 1:
            shown.message(f"{len(training.parts)} seeds, one after another")
        if getattr(self.config, "behaviour", None) == "uniform":
            shown.message("it acts uniformly while training: returns shown on the way are of uniform play")
        self._warn_if_repeating(shown)
        slow = "cpu" in self._settings().PRESETS and self.preset != "cpu" and is_minatar(self.env.name)
        if slow and jax.default_backend() == "cpu":
            shown.message(f"preset {self.preset} is meant for a GPU; here preset cpu is several times as fast")
        if frames != asked:
            text = (
                f"learn({asked:,}): rounded up to {frames:,} frames, whole iterations of "
                f"{int(learner.frames_per_iteration):,}"
            )
            shown.message(text)
            if not visible:
                warnings.warn(text, CapoWarning, stacklevel=3)

    def _warn_if_repeating(self, shown: Reporter) -> None:
        """Say so if a batch is larger than the whole replay, which holds a whole iteration at least."""
        config = self.config
        for name, least in (("replay_rollouts", 1), ("replay_transitions", config.rollout_length)):
            kept = max(getattr(config, name, math.inf), config.n_envs * least)
            if kept != math.inf and config.batch_size > kept:
                text = (
                    f"batch_size={config.batch_size:,} is more than the replay holds ({name}={kept:,}): it repeats"
                )
                shown.message(text)
                warnings.warn(text, CapoWarning, stacklevel=4)

    def _warn_if_idle(self, shown: Reporter, training: Training, frames: int, per_iteration: int) -> None:
        """Say so if the learning rate has come to its end, which is 0, or will before the frames are done."""
        done = training.iteration * per_iteration
        idle = min(frames, done + frames - self.config.horizon)
        if self.config.learning_rate_schedule == "constant" or idle < per_iteration:
            return
        text = (
            f"the learning rate is 0 from the horizon ({self.config.horizon:,} frames) on, so "
            f"{'nothing' if idle == frames else f'in the last {idle:,} frames nothing'} will be learned: "
            f"learn({frames}, horizon={done + frames}) spreads the schedules anew"
        )
        shown.message(text)
        warnings.warn(text, CapoWarning, stacklevel=3)

    # Files ------------------------------------------------------------------------------------------------

    def _open_run(self, training: Training) -> RunFolder | None:
        """The run's folder with config.json up to date; None if the agent has no ``out``."""
        if self.out is None:
            return None
        per_iteration = int(training.learner.frames_per_iteration)
        config = {
            "algorithm": self.algorithm,
            "env": self._given_env,
            "environment": self._environment(),
            "preset": self.preset,
            "overrides": self.overrides,
            "config": self.config.to_dict(),
            "seeds": list(self.seeds),
            "frames": training.target * per_iteration,
            "frames_per_iteration": per_iteration,
            "log_every": training.log_every * per_iteration,
            "checkpoint_every": str(self.checkpoint_every),
            "eval_every": self.eval_every,
            "eval_episodes": self.eval_episodes,
            "keep": self.keep,
            "start_frames": training.iteration * per_iteration,
            "extra": self.extra,
            "diverged": None,
            "precision": training.learner.network.precision,  # what "auto" meant here
            **provenance(),
        }
        if not self._run_exists:
            run = RunFolder.create(self.out, config)
            self._run_exists = True
        else:
            run = RunFolder.open(self.out)
            config["start_frames"] = run.config.get("start_frames", 0)
            with run.closed_if_it_fails():
                run.write_config({**run.config, **config})
        return run

    def _environment(self) -> dict[str, Any]:
        """What has to be the same when a run goes on."""
        return {
            "name": self.env.name,
            "n_actions": int(self.env.n_actions),
            "observation_shape": list(self.env.observation_shape),
            "observation_dtype": str(np.dtype(self.env.observation_dtype)),
            "jitted": self._jitted,
        }

    def _content(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """What a checkpoint holds besides arrays."""
        training = self._ready()
        return {
            "algorithm": self.algorithm,
            "env": self._given_env,
            "environment": self._environment(),
            "preset": self.preset,
            "overrides": dict(self.overrides),
            "config": self.config.to_dict(),
            "horizon_set": self._horizon_set,
            "seeds": list(self.seeds),
            "versions": versions(),
            "predictions": self._predictions,
            "eval_every": self.eval_every,
            "eval_episodes": self.eval_episodes,
            "training": training.content(),
            **more,
        }

    def save(self, path: str | Path) -> Path:
        """Write the whole agent, training state included, to one file; it replaces an older one in one step.

        Returns:
            The file: ``path``, with ``.safetensors`` added if it had no ending.
        """
        path = _file(_path("save", path))
        training = self._ready()
        training.start()
        checkpoint.write(path, training.tree(), self._content({}))
        return path

    @classmethod
    def load(cls, path: str | Path, env: Any = None, out: str | Path | None = None) -> Self:
        """An agent from :meth:`save`, or from the newest checkpoint of a run's folder.

        It goes on as if it had never stopped: ``load(path).learn(n)`` ends where the saved agent would have,
        bit for bit on a jitted environment.

        Args:
            path: what was given to :meth:`save`, a checkpoint, or a run's folder.
            env: the environment, needed only if the agent was not made from an environment's name.
            out: a new folder for the files of what is learned from now on.
        """
        agent = cls._from_checkpoint(_newest(_path("load", path)), env)
        if out is not None:
            agent.out = _path("out", out)
            check_new(agent.out)
        return agent

    @classmethod
    def resume(cls, path: str | Path, env: Any = None, use_previous: bool = False) -> Self:
        """The agent of a run's folder, to go on in that folder with ``agent.learn(agent.frames_left)``.

        The logs are cut back to the checkpoint, so the rows after it are written again.

        Args:
            path: the run's folder.
            env: as in :meth:`load`.
            use_previous: if the newest checkpoint is damaged, go back to the one before it.
        """
        path = _path("resume", path)
        config = read_config(path)
        run = RunFolder.open(path)
        try:
            saved = run.store.load(use_previous)
            if saved is None:
                if config.get("start_frames", 0):
                    raise CapoError(
                        f"{path}: the run was to go on from a saved agent at frame {config['start_frames']:,} and "
                        "ended before its first checkpoint: load that agent again, with another out="
                    )
                if run.has_rows():  # a run's first checkpoint is older than its first row
                    raise CapoError(
                        f"{path}: {METRICS} has rows, but the checkpoints are gone: put them back into "
                        f"{path / CHECKPOINTS}, or train in another folder"
                    )
                agent = cls._from_config(config, env)
            else:
                agent = cls._from_checkpoint(saved, env)
                _check_same_settings(path, cls._settings().from_dict(config["config"]), agent.config)
                run.store.set_aside_after(saved.path)
            short = run.cut_logs({} if saved is None else saved.content["logs"])
        finally:
            run.close()
        if short:
            text = f"{path}: rows are missing from {', '.join(sorted(short))}: it was changed"
            warnings.warn(text, CapoWarning, stacklevel=2)
        agent.out, agent._run_exists = path, True
        agent.checkpoint_every, agent.keep = Interval.parse(config["checkpoint_every"]), int(config["keep"])
        agent.extra = dict(config["extra"])
        return agent

    def resume_notes(self, config: Mapping[str, Any]) -> list[str]:
        """What keeps this run from being exactly the one that ``config`` started, in words."""
        notes = []
        if config.get("diverged"):
            notes.append(
                f"this goes on from the last good checkpoint, at frame {self.frames:,}, since {config['diverged']}"
            )
        if not self._jitted:
            notes.append(
                f"{self.env.name} is stepped by Gymnasium, which can't save it: the episodes and rollouts "
                "that were under way are lost and new episodes start; everything else is restored exactly"
            )
        now = provenance()
        for package in ("jax", "jaxlib", "pgx", "gymnasium"):
            then, here = config["versions"].get(package), now["versions"].get(package)
            if then != here:
                notes.append(f"{package} was {then} and is {here} now: results may differ in the last digits")
        then, here = config.get("precision"), self._ready().learner.network.precision
        if then not in (None, here):
            notes.append(f"matrix products were {then} and are {here} here (set precision to choose)")
        if config["hardware"] != now["hardware"]:
            notes.append("the hardware is not the one the run started on: results may differ in the last digits")
        return notes

    @classmethod
    def _from_config(cls, config: Mapping[str, Any], env: Any) -> Self:
        """A run that was killed before its first checkpoint: as it was when it started."""
        agent = cls._bare(config, env)
        agent._horizon_set = True
        training = agent._ready()
        per_iteration = int(training.learner.frames_per_iteration)
        training.log_every = int(config["log_every"]) // per_iteration
        training.target = int(config["frames"]) // per_iteration
        return agent

    @classmethod
    def _from_checkpoint(cls, saved: Checkpoint, env: Any) -> Self:
        agent = cls._bare(saved.content, env)
        agent._horizon_set = saved.content["horizon_set"]
        agent._predictions = saved.content["predictions"]
        agent._ready().restore(saved)
        return agent

    @classmethod
    def _bare(cls, content: Mapping[str, Any], env: Any) -> Self:
        """An agent with the stored settings and a checked environment, and no state yet."""
        if content["algorithm"] != cls.algorithm:
            raise CapoError(f"this is a run of {content['algorithm']}, not of {cls.algorithm}")
        if env is None:
            env = content["env"]
        if env is None:
            raise CapoError(
                f"the agent was trained on an object ({content['environment']['name']!r}), which a file "
                f"can't hold: in Python, give it again as env= (capo.{cls.__name__}.load(..., env=...), or resume)"
            )
        # Files of earlier versions have none of these two.
        tests = {name: content[name] for name in ("eval_every", "eval_episodes") if name in content}
        agent = cls(env, content["preset"], seeds=content["seeds"], **tests, **content["overrides"])
        agent.config = cls._settings().from_dict(content["config"])
        found, stored = agent._environment(), content["environment"]
        for key, value in stored.items():
            if found.get(key) != value:
                raise CapoError(
                    f"the environment changed: {key} was {value!r} when the run was saved and is "
                    f"{found.get(key)!r} now; the same environment is needed to go on"
                )
        return agent

    # Acting -----------------------------------------------------------------------------------------------

    def use_seed(self, seed: int) -> Self:
        """Let :meth:`predict` act as the policy of this seed (the first one, unless told)."""
        if seed not in self.seeds:
            raise CapoError(f"seed {seed} is not of this agent: its seeds are {', '.join(map(str, self.seeds))}")
        self._playing = self.seeds.index(seed)
        return self

    def _policy(self, index: int) -> tuple[Any, Any]:
        """The learner and the parameters of the policy of the index-th seed."""
        training = self._ready()
        part = training.playable(self.seeds[index])
        inside = part.seeds.index(self.seeds[index])
        return training.learner, training.learner.policy_params(part.state, inside)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_mask: Any = None,
    ) -> tuple[np.ndarray[Any, Any], Any]:
        """The action for an observation, or the actions for a batch of them.

        Signature and result are Stable-Baselines3's, so its ``evaluate_policy`` works with this agent.

        Args:
            observation: of the environment's shape, or with one leading batch axis.
            state: handed back unchanged; the policy has no memory.
            episode_start: not used, for the same reason.
            deterministic: take the likeliest action instead of sampling one.
            action_mask: (actions,) or (batch, actions), true where an action is allowed.

        Returns:
            The action as an array of shape () or (batch,), and ``state``.
        """
        del episode_start
        shape = tuple(getattr(self.env, "raw_shape", self.env.observation_shape))
        try:
            array = np.asarray(observation)
        except ValueError:  # rows of different lengths
            array = np.empty((), object)
        if array.dtype.kind not in "biuf":
            raise CapoError(
                f"predict: an observation is an array of numbers, which this {type(observation).__name__} is not; "
                f"{self.env.name} has shape {shape}, a batch of them {('n', *shape)}"
            )
        single = array.shape == shape
        if not single and (array.ndim == 0 or array.shape[1:] != shape):
            raise CapoError(
                f"predict: an observation of shape {array.shape} was given; {self.env.name} has shape "
                f"{shape}, a batch of them {('n', *shape)}"
            )
        batch = array[None] if single else array
        mask = None if action_mask is None else self._mask(action_mask, len(batch))
        if not len(batch):
            return np.zeros(0, np.int64), state
        learner, params = self._policy(self._playing)
        key = jax.random.fold_in(_key(self.seeds[self._playing], PREDICT_STREAM), self._predictions)
        self._predictions += 1
        if self._jitted:
            batch = batch.astype(self.env.observation_dtype)
        actions = np.asarray(learner.act(params, batch, key, deterministic, mask)).astype(np.int64)
        actions += getattr(self.env, "_first_action", 0)  # a Discrete space may start anywhere
        return (actions[0] if single else actions), state

    def _mask(self, action_mask: Any, batch: int) -> np.ndarray[Any, Any]:
        actions = int(self.env.n_actions)
        try:
            mask = np.asarray(action_mask, bool)
        except ValueError:  # rows of different lengths
            raise CapoError(f"action_mask has rows of different lengths, not {actions} entries each") from None
        if mask.shape not in ((actions,), (batch, actions)):
            raise CapoError(f"action_mask has shape {mask.shape}; allowed are {(actions,)} and {(batch, actions)}")
        mask = np.broadcast_to(mask, (batch, actions))
        if not mask.any(axis=1).all():
            raise CapoError("action_mask allows no action at all for some observation")
        return mask

    def evaluate(self, episodes: int = 100, *, deterministic: bool = False, seed: int = 0) -> Evaluation:
        """Play whole episodes with the policy of every seed, without exploration.

        On a jitted environment all seeds play at once, in one program that is compiled for each number of
        episodes and not again. Seeds that are trained one after another and have not begun are left out, with a
        warning.

        Args:
            episodes: of each trained seed.
            deterministic: take the likeliest action instead of sampling one.
            seed: of the evaluation itself; the same seed gives the same episodes on a jitted environment.

        Returns:
            The returns of all episodes (seeds, episodes), with their mean and its standard error.
        """
        if not _is_count(episodes):
            raise CapoError(f"evaluate({episodes!r}): the number of episodes has to be a positive integer")
        episodes = int(episodes)
        check_seed(seed)
        training = self._ready()
        begun = training.begun()
        parts = [training.playable(part.seeds[0]) for part in begun]  # all of them, before any plays
        seeds = tuple(seed for part in parts for seed in part.seeds)
        if len(seeds) < len(self.seeds):
            left = [seed for seed in self.seeds if seed not in seeds]
            text = f"seeds that have not been trained yet are left out: {', '.join(map(str, left))}"
            warnings.warn(text, CapoWarning, stacklevel=2)
        returns = [
            np.asarray(_play(training.learner, part, _key(seed, EVALUATE_STREAM), episodes, deterministic))
            for part in parts
        ]
        likeliest = deterministic or not self.samples
        frames = min(part.iteration for part in parts) * int(training.learner.frames_per_iteration)
        return Evaluation(np.concatenate(returns).astype(np.float64), seeds, likeliest, frames)

    def watch(
        self,
        path: str | Path,
        *,
        episodes: int = 1,
        steps: int = 1000,
        deterministic: bool = False,
        seed: int = 0,
        per_second: float = 15.0,
    ) -> list[float]:
        """Play and draw it as a GIF, with the score; :meth:`use_seed` chooses whose policy plays.

        Args:
            path: the GIF file.
            episodes: how many are shown.
            steps: how many are shown at most.
            deterministic: take the likeliest action instead of sampling one.
            seed: of the game.
            per_second: steps a second.

        Returns:
            The scores of the episodes that came to their end, without what wrappers of a whole vector
            environment make of its rewards.
        """
        from capo.neural.play import check_film, film

        path = _path("watch", path)
        check_film(path, per_second)
        episodes, steps = whole("episodes", episodes), whole("steps", steps)
        scores, _, _ = film(self, path, episodes, steps, deterministic, seed, per_second)
        return scores


class NCAPO(Agent):
    """Neural CAPO: off-policy coordinate ascent with Retrace and a replay of rollouts.

    >>> agent = NCAPO("minatar-breakout", preset="cpu", seeds=4, out="runs/breakout")  # doctest: +SKIP
    >>> agent.learn(1_000_000, progress_bar=True)  # doctest: +SKIP

    >>> agent = NCAPO("probe-action", width=16)
    >>> actions, _ = agent.predict([[1.0], [-1.0]], action_mask=[False, True])
    >>> actions.tolist()
    [1, 1]
    """

    algorithm = "ncapo"


class OffPAC(Agent):
    """Off-policy actor-critic: NCAPO's machinery with the importance-weighted policy gradient.

    >>> OffPAC("probe-action", width=16, n_envs=8, rollout_length=2).learn(16).frames
    16
    """

    algorithm = "offpac"


class A2C(Agent):
    """Advantage actor-critic, on-policy, with Stable-Baselines3's meaning of every setting.

    >>> A2C("probe-action", width=16).learn(80).frames
    80
    """

    algorithm = "a2c"


class PPO(Agent):
    """Proximal policy optimization, on-policy, with Stable-Baselines3's meaning of every setting.

    >>> PPO("probe-action", n_envs=4, rollout_length=16, batch_size=32, width=16).learn(128).frames
    128
    """

    algorithm = "ppo"


class Rainbow(Agent):
    """Deep Q-learning with n-step, distributional, double, dueling, noisy and prioritised parts.

    Its policy is greedy: ``deterministic`` makes no difference to :meth:`predict` and :meth:`evaluate`.

    >>> Rainbow("probe-action", width=16, learning_starts=16).learn(64).frames
    64
    """

    algorithm = "rainbow"


ALGORITHMS: dict[str, type[Agent]] = {agent.algorithm: agent for agent in (NCAPO, OffPAC, A2C, PPO, Rainbow)}


def algorithm(name: str) -> type[Agent]:
    """The agent class of an algorithm's name."""
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


def load(path: str | Path, env: Any = None) -> Agent:
    """The agent of a run's folder or of a saved file, whatever its algorithm; see :meth:`Agent.load`."""
    saved = _newest(_path("load", path))
    return algorithm(str(saved.content["algorithm"]))._from_checkpoint(saved, env)


def _newest(path: Path) -> Checkpoint:
    """The checkpoint that ``path`` stands for: itself, or the newest one of a run's folder."""
    file = _file(path)
    if not path.exists() and not file.exists():
        also = f" nor {file}" if file != path else ""
        raise CapoError(f"{path}: there is no such run or saved agent{also}")
    if not path.is_dir():
        return checkpoint.read(path if path.exists() else file)
    if file != path and file.exists():
        if not (path / CONFIG).exists():
            return checkpoint.read(file)
        raise CapoError(
            f"{path}: there are both the run {path}{os.sep} and the saved agent {file}: load {file} "
            f"or {path / CHECKPOINTS}{os.sep}..., or move one of them"
        )
    read_config(path)  # says so if this is no run
    saved = CheckpointStore(path / CHECKPOINTS).load()
    if saved is None:
        raise CapoError(f"{path}: the run has no checkpoint yet")
    return saved


def _path(call: str, path: Any) -> Path:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise CapoError(f"{call}: {path!r} is not the name of a file or folder")
    return Path(path)


def _seeds(seed: int, seeds: Any) -> list[int]:
    chosen: list[Any]
    if seeds is None:
        chosen = [seed]
    elif isinstance(seeds, Sequence | np.ndarray) and not isinstance(seeds, str):
        chosen = list(seeds)
    else:
        check_seed(seed)
        chosen = list(range(seed, seed + whole("seeds", seeds)))
    if not chosen or len(set(chosen)) != len(chosen):
        raise CapoError(f"seeds={seeds!r}: at least one is needed, and no two may be equal")
    for one in chosen:
        check_seed(one)
    return [int(one) for one in chosen]


def _is_count(value: Any) -> bool:
    """Whether ``value`` is a positive whole number; 1e6 is one."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    return bool(math.isfinite(value) and value >= 1 and int(value) == value)


def _key(seed: int, stream: int) -> jax.Array:
    return jax.random.fold_in(jax.random.PRNGKey(seed), stream)


def _play(learner: Any, part: Part, key: jax.Array, episodes: int, deterministic: bool) -> Any:
    """Returns (seeds, episodes) of a part; a seed's episodes don't depend on which seeds play beside it."""
    state: Any = part.state
    keys = jax.vmap(partial(jax.random.fold_in, key))(np.asarray(part.seeds))
    return learner.evaluate_all(state, keys, episodes, deterministic)


def _file(path: Path) -> Path:
    return path if path.suffix else path.with_name(path.name + checkpoint.SUFFIX)


def _check_same_settings(path: Path, now: Settings, then: Settings) -> None:
    # A new horizon is written to config.json a moment before it is in a checkpoint; the checkpoint counts.
    there = then.to_dict()
    keys = sorted(key for key, value in now.to_dict().items() if value != there[key] and key != "horizon")
    if keys:
        raise CapoError(
            f"{path}: config.json was changed since the checkpoint was written ({', '.join(keys)}): to go on "
            "with the same run, put it back; for other settings start a new one"
        )
