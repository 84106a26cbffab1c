"""What the files of a run may hold: types, ranges, known names, no paths. Every reader checks against this.

A *rule* is what a value must be, in words, and a test of it; a file's *fields* are rules by name. :func:`problems`
lists what breaks them: whoever continues a run raises, a report leaves the field out and says so. What no single
field can say (a checkpoint's name against its content, seeds against settings) has functions of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from capo.checks import MAX_SEEDS
from capo.errors import CapoError
from capo.runs.layout import EVENT_FILE, EVENTS, FRAMES, METRICS, RETURN, SEED

MOST = 2**53  # of any count in a file: beyond it JSON readers disagree
MAX_EPISODES = 1_000_000  # of one evaluation, per seed
MAX_TEXT = 1000  # characters of a name

Rule = tuple[str, Callable[[Any], bool]]  # what a value must be, in words, and whether it is
Fields = Mapping[str, Rule]


# --- rules ----------------------------------------------------------------------------------------------------


def integer(low: int = -MOST, high: int = MOST) -> Rule:
    """An integer in [low, high]."""
    words = {-MOST: "an integer", 0: "an integer of at least 0", 1: "a positive integer"}[low]
    return words + (
        "" if high == MOST else f" of at most {high:,}"
    ), lambda value: _is(value, int) and low <= value <= high


def text(words: str, pattern: str = "", most: int = MAX_TEXT) -> Rule:
    """Printable text, of a form if ``pattern`` is given."""
    form = re.compile(pattern)
    return (
        words,
        lambda value: (
            _is(value, str)
            and len(value) <= most
            and value.isprintable()
            and (not pattern or form.fullmatch(value) is not None)
        ),
    )


def or_null(rule: Rule, words: str = "null") -> Rule:
    """The same, or null."""
    return f"{rule[0]}, or {words}", lambda value: value is None or rule[1](value)


def list_of(words: str, rule: Rule, least: int = 0, most: int = MOST) -> Rule:
    """A list whose items all fit a rule."""
    return (
        words,
        lambda value: isinstance(value, list) and least <= len(value) <= most and all(map(rule[1], value)),
    )


def object_of(words: str, fields: Fields, required: Iterable[str] = (), others: Rule | None = None) -> Rule:
    """An object whose fields fit their rules; ``others`` is the rule of the rest, which are otherwise free."""
    needed = tuple(required)
    return (
        words,
        lambda value: (
            isinstance(value, dict)
            and all(name in value for name in needed)
            and not problems(value, fields)
            and (others is None or all(name in fields or others[1](one) for name, one in value.items()))
            and all(key.isprintable() and len(key) <= MAX_TEXT for key in value)
        ),
    )


def _is(value: Any, *types: type) -> bool:
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _number(value: Any) -> bool:
    """A float, or an integer that is one."""
    return _is(value, float) or (_is(value, int) and abs(value) <= MOST)


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool) or _number(value) or _TEXT[1](value)


def _distinct(rule: Rule) -> Rule:
    return rule[0], lambda value: rule[1](value) and len(set(value)) == len(value)


_TEXT = text("text")
_LONG_TEXT: Rule = ("text", lambda value: _is(value, str) and len(value) <= 100_000)
_NAME = text("a name", r"[\w.+-]+")
_TEXT_NAME = text("a name", r".+")
_COUNT, _COUNT_OR_ZERO = integer(1), integer(0)
_BOOL: Rule = ("true or false", lambda value: _is(value, bool))
_NUMBER: Rule = ("a number", _number)
_FINITE: Rule = ("a finite number of at least 0", lambda value: _number(value) and 0 <= value < math.inf)
_PLAIN: Rule = ("a number, a string, true, false or null", _plain)
_SETTINGS = object_of("an object of numbers, strings, true, false and null", {}, others=_PLAIN)
_TEXTS = object_of("an object of strings", {}, others=_TEXT)
_SEED_KEY = re.compile(r"\d{1,10}", re.ASCII)
_SEED: Rule = ("a seed", lambda value: _is(value, int) and 0 <= value < 2**31)
_SEEDS = _distinct(list_of("a list of integers", _SEED, least=1, most=MAX_SEEDS))
_BY_SEED: Rule = (
    "an object of strings by seed",
    lambda value: (
        isinstance(value, dict)
        and all(map(_SEED_KEY.fullmatch, value))
        and all(map(_LONG_TEXT[1], value.values()))
    ),
)
_INTERVAL: Rule = (
    "an interval such as '5m' or '100000'",
    lambda value: (_is(value, str) and len(value) <= 40) or (_number(value) and 0 < value < math.inf),
)
_HARDWARE = object_of(
    "an object of plain values and a list of devices",
    {"devices": list_of("a list of names", _TEXT)},
    others=("", _plain),
)


# --- config.json ------------------------------------------------------------------------------------------------

_ENVIRONMENT_FIELDS: Fields = {
    "name": _TEXT,
    "n_actions": _COUNT,
    "observation_shape": list_of("a list of integers", _COUNT_OR_ZERO, most=8),
    "observation_dtype": _NAME,
    "jitted": _BOOL,
    "observation_parts": list_of("a list of strings", _TEXT, most=1000),
    "masked": _BOOL,
    "factors": list_of("a list of integers", _COUNT, most=10_000),
}
# What config.json and a checkpoint share: see Setup.to_dict.
_SETUP_FIELDS: Fields = {
    "algorithm": _NAME,
    "env": or_null(_TEXT_NAME, "null for an environment given as an object"),
    "environment": object_of("an object that describes an environment", _ENVIRONMENT_FIELDS),
    "preset": _NAME,
    "overrides": _SETTINGS,
    "config": _SETTINGS,
    "seeds": _SEEDS,
    "eval_every": or_null(_COUNT),
    "eval_episodes": integer(1, MAX_EPISODES),
    "eval_env": or_null(_TEXT_NAME),
    "semantics": _COUNT,
    "versions": _TEXTS,
    "behaviour": or_null(_TEXT, "null for the agent's own policy"),
    "own": _TEXTS,
}
CONFIG_FIELDS: Fields = {
    **_SETUP_FIELDS,
    "frames": _COUNT,
    "frames_per_iteration": _COUNT,
    "log_every": _COUNT,
    "checkpoint_every": _INTERVAL,
    "keep": integer(1, 1_000_000),
    "start_frames": _COUNT_OR_ZERO,
    "extra": object_of(
        f"an object, with eval_episodes from 0 to {MAX_EPISODES:,}", {"eval_episodes": integer(0, MAX_EPISODES)}
    ),
    "diverged": or_null(_LONG_TEXT),
    "diverged_seeds": _BY_SEED,
    "precision": or_null(_NAME),
    "hardware": _HARDWARE,
    "commit": or_null(_TEXT),
    "started": _TEXT,
}
# Those without which a run cannot be continued.
CONFIG_REQUIRED = (
    "algorithm",
    "env",
    "environment",
    "preset",
    "overrides",
    "config",
    "seeds",
    "frames",
    "log_every",
    "checkpoint_every",
    "keep",
    "extra",
    "versions",
    "hardware",
)
REPORTED_FIELDS = ("algorithm", "env", "config", "seeds", "frames", "versions")  # a report says if one is missing


# --- checkpoints ------------------------------------------------------------------------------------------------

_PART = object_of(
    "",
    {"seeds": _SEEDS, "iteration": _COUNT_OR_ZERO, "started": _BOOL, "diverged": _BY_SEED},
    ("seeds", "iteration", "started"),
)
_TRAINING_FIELDS: Fields = {
    "parts": list_of("a list of groups of seeds", _PART, least=1, most=MAX_SEEDS),
    "log_every": _COUNT,
    "target": _COUNT_OR_ZERO,
    "elapsed_seconds": _FINITE,
    "frames_per_iteration": _COUNT,
}
CHECKPOINT_FIELDS: Fields = {
    **_SETUP_FIELDS,
    "horizon_set": _BOOL,
    "predictions": ("an integer from 0 to 2**32 - 1", lambda value: _is(value, int) and 0 <= value < 2**32),
    "training": object_of(
        f"an object with valid {', '.join(_TRAINING_FIELDS)}", _TRAINING_FIELDS, _TRAINING_FIELDS
    ),
    "logs": object_of("the lengths of logs", {}, others=_COUNT_OR_ZERO),
}
CHECKPOINT_REQUIRED = (
    "algorithm",
    "env",
    "environment",
    "preset",
    "overrides",
    "config",
    "seeds",
    "predictions",
    "training",
)


# --- evaluation.json, metrics.csv and results files -----------------------------------------------------------

EVALUATION_FIELDS: Fields = {
    "seeds": _SEEDS,
    "mean_by_seed": list_of("a list of numbers", _NUMBER),
    "frames": _COUNT_OR_ZERO,
    "episodes_per_seed": _COUNT,
    "deterministic": _BOOL,
}
METRICS_COLUMNS = (SEED, FRAMES, RETURN)  # those without which there is nothing to read

_CURVE = object_of(
    "",
    {
        "frames": list_of("", ("", lambda value: _number(value) and 0 <= value < math.inf)),
        "returns": list_of("", or_null(_NUMBER)),
    },
    ("frames", "returns"),
)
_RESULT_SEED = object_of(
    "",
    {
        "seed": _SEED,
        "training": _CURVE,
        "evaluation": _CURVE,
        "final_returns": list_of("", or_null(_NUMBER), least=1),
    },
    ("seed", "training", "evaluation", "final_returns"),
)
_PROGRAM = object_of(
    "",
    {
        "started": _TEXT,
        "wall_seconds": _FINITE,
        "seeds": list_of("", _SEED, most=MAX_SEEDS),
        "versions": _TEXTS,
        "hardware": _HARDWARE,
    },
    ("started", "wall_seconds", "seeds"),
)
RESULT_FIELDS: Fields = {
    "env": _TEXT_NAME,
    "algorithm": _NAME,
    "preset": _NAME,
    "config": _SETTINGS,
    "reward_noise": _FINITE,
    "frames_trained": _COUNT,
    "episodes": or_null(_COUNT),
    "final_episodes": or_null(_COUNT),
    "deterministic": or_null(_BOOL),
    "protocol": object_of("an object of strings", {}, others=_LONG_TEXT),
    "quick": _BOOL,
    "programs": list_of("a list of programs", _PROGRAM, least=1),
    "seeds": list_of("a list of seeds with their curves and returns", _RESULT_SEED),
}
RESULT_REQUIRED = (
    "env",
    "algorithm",
    "preset",
    "config",
    "frames_trained",
    "protocol",
    "quick",
    "programs",
    "seeds",
)


# --- checks -----------------------------------------------------------------------------------------------------


def problems(content: Mapping[str, Any], fields: Fields) -> dict[str, str]:
    """The fields that break their rule, and how."""
    return {
        name: f"{name} must be {rule}, not {shown(content[name])}"
        for name, (rule, fits) in fields.items()
        if name in content and not fits(content[name])
    }


def shown(value: Any) -> str:
    """A value for a message: one printable line that is not too long."""
    line = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return line if len(line) <= 100 else f"{line[:97]}..."


def check(path: Path, content: Mapping[str, Any], fields: Fields, required: Sequence[str]) -> None:
    """Raise if a file's content lacks something or breaks a rule.

    Raises:
        CapoError: names the file, the field and the rule.
    """
    if missing := [name for name in required if name not in content]:
        raise CapoError(f"{path}: not written by this version of capo (no {', '.join(missing)})")
    if unfit := problems(content, fields):
        raise CapoError(f"{path}: {'; '.join(unfit.values())}")


def check_checkpoint(path: Path, content: Any) -> None:
    """Raise if what a checkpoint says besides its arrays is not what an agent wrote, or contradicts itself.

    Raises:
        CapoError: names the file, the field and the rule.
    """
    if not isinstance(content, dict):
        raise CapoError(f"{path}: not written by this version of capo")
    check(path, content, CHECKPOINT_FIELDS, CHECKPOINT_REQUIRED)
    seeds, parts = content["seeds"], content["training"]["parts"]
    if [seed for part in parts for seed in part["seeds"]] != seeds:
        raise CapoError(f"{path}: its groups of seeds do not match its list of seeds, {shown(seeds)}")
    if any(part["iteration"] and not part["started"] and not part.get("diverged") for part in parts):
        raise CapoError(f"{path}: a group of seeds has iterations but no state")
    for name in content.get("logs", {}):
        if not is_log(name, seeds):
            raise CapoError(f"{path}: {shown(name)} is not a log of this run: only {METRICS} and its events are")


def check_same_run(path: Path, config: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Raise if a checkpoint is not one of the run that ``config`` describes.

    Raises:
        CapoError: names what differs.
    """
    for name in ("algorithm", "env", "seeds"):
        if config[name] != content[name]:
            raise CapoError(
                f"{path} is a checkpoint of another run: {name} {shown(content[name])}, but config.json has "
                f"{name} {shown(config[name])}"
            )


def frames_inside(content: Mapping[str, Any]) -> int | None:
    """The frames that a checkpoint's name must give, over all groups of seeds; None if it does not say."""
    training = content.get("training")
    if problems(content, {"training": CHECKPOINT_FIELDS["training"]}) or training is None:
        return None
    return sum(int(part["iteration"]) for part in training["parts"]) * int(training["frames_per_iteration"])


def is_log(name: str, seeds: Iterable[int] | None = None) -> bool:
    """Whether ``name`` is a log inside a run's folder: metrics.csv, or the events of one of its seeds."""
    if name == METRICS:
        return True
    match = re.fullmatch(rf"{EVENTS}/seed-(0|[1-9]\d{{0,9}})/{re.escape(EVENT_FILE)}", name, re.ASCII)
    return match is not None and (seeds is None or int(match[1]) in set(seeds))
