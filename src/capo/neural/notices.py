"""What a user should know before a training starts: what it will do, and what about it looks wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import jax

from capo.envs.atari import is_atari
from capo.envs.layout import MASK
from capo.envs.masks import METHOD
from capo.envs.spaces import Leaf
from capo.neural.algorithms.settings import CommonSettings, is_minatar
from capo.neural.learners import Learner
from capo.neural.trainer import Plan

LARGE_IMAGE = 16_384  # pixels from which an image is said to be large


def introduce(plan: Plan, learner: Learner, preset: str, groups: int, asked: int, frames: int) -> Iterator[str]:
    """Lines that say what is about to happen.

    Args:
        plan: what will be done.
        learner: that does it.
        preset: where the settings started from.
        groups: of seeds that are trained one after another.
        asked: the frames that the user gave.
        frames: what that is in whole iterations.
    """
    yield learner.describe()
    if groups > 1:
        yield f"{groups} seeds, one after another"
    if plan.behaviour is not None:
        yield f"during training, actions come from {plan.behaviour}, and so do the returns shown"
    elif getattr(plan.settings, "behaviour", None) == "uniform":
        yield "actions are uniformly random during training, so the returns shown are those of random play"
    slow = "cpu" in plan.settings.PRESETS and preset != "cpu" and is_minatar(learner.env.name)
    if slow and jax.default_backend() == "cpu":
        yield f"preset {preset} is meant for a GPU; on this machine, preset cpu is several times faster"
    if is_atari(learner.env.name) and jax.default_backend() == "cpu":
        yield "training on Atari is meant for a GPU; on a CPU, convolutions take almost all of the time"
    if frames != asked:
        yield f"rounded up to {frames:,} frames: whole iterations of {plan.frames_per_iteration:,}"


def warnings_about(plan: Plan, done: int, learner: Learner) -> Iterator[str]:
    """What looks wrong about a plan.

    Args:
        plan: what will be done.
        done: frames that every seed has behind it.
        learner: that does it.
    """
    yield from _large_images(learner)
    yield from _masks_among_observations(learner)
    yield from _repeating(plan.settings)
    yield from _idle(plan, done)


def _large_images(learner: Learner) -> Iterator[str]:
    """Images such as Atari's raw frames of 210x160 pixels."""
    for part in learner.spec.seen:
        if len(part.shape) == 3 and math.prod(part.shape[:2]) >= LARGE_IMAGE:
            size = "x".join(map(str, part.shape))
            yield (
                f"{learner.env.name}: observations are images of {size}, {part.n_bytes:,} bytes each; "
                "learning from them unchanged is slow and takes a lot of memory: shrink them first, for "
                "example to 84x84 in greyscale with gymnasium.wrappers.ResizeObservation and "
                "GrayscaleObservation, or, for Atari's games, with AtariPreprocessing"
            )


def _masks_among_observations(learner: Learner) -> Iterator[str]:
    """A part of observations that looks like an action mask, which nobody follows."""
    leaves: Sequence[Leaf] = getattr(learner.env, "leaves", ())
    shape = (learner.spec.n_actions,)
    if not learner.spec.masked and any(leaf.path[-1:] == (MASK,) and leaf.raw_shape == shape for leaf in leaves):
        yield (
            f"{learner.env.name}: observations have a part {MASK!r}, which the networks see but which "
            f"forbids no action: if it is meant as a mask, return it in info[{MASK!r}] or from a method "
            f"{METHOD}()"
        )


def _repeating(settings: CommonSettings) -> Iterator[str]:
    """A batch larger than the whole replay, which holds at least one iteration."""
    for name, least in (("replay_rollouts", 1), ("replay_transitions", settings.rollout_length)):
        kept = max(getattr(settings, name, math.inf), settings.n_envs * least)
        batch = getattr(settings, "batch_size", 0)
        if kept != math.inf and batch > kept:
            yield (
                f"batch_size={batch:,} is more than the replay holds ({name}={kept:,}), so batches contain "
                "duplicates"
            )


def _idle(plan: Plan, done: int) -> Iterator[str]:
    """A learning rate that reaches its end, which is 0, before the frames are done."""
    settings, frames = plan.settings, plan.frames - done
    idle = min(frames, plan.frames - settings.horizon)
    if settings.learning_rate_schedule == "constant" or idle < plan.frames_per_iteration:
        return
    when = "nothing will be learned" if idle == frames else f"nothing will be learned in the last {idle:,} frames"
    yield (
        f"the learning rate is 0 after the horizon ({settings.horizon:,} frames), so {when}: "
        f"learn({frames}, horizon={plan.frames}) spreads the schedules over all frames"
    )
