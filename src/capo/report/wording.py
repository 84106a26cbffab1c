"""How trainings were made and measured, in words: the sentences of tables, pages and results files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capo.report.series import samples
from capo.runs.records import TRAINING_END, Record

STICKY = 0.1  # MinAtar's own


def protocol(record: Record) -> dict[str, str]:
    """How the curves and scores were measured; a results file's own sentences where it has no numbers."""
    found = dict(record.protocol)
    if record.settings and not found:
        found["Training curve"] = training_curve(record.settings)
        found["Sticky actions"] = sticky_actions(record.env)
        if record.episodes is not None:
            found["Evaluation curve"] = evaluation(record.episodes, samples(record.algorithm, record.settings))
    if record.finals:
        found["Final score"] = final_score(record)
    return found


def final_score(record: Record) -> str:
    """How the final scores were measured; empty if that is not known."""
    if record.scored_by == "training":
        return f"training episodes in the last {TRAINING_END:.0%} of frames, with exploration (no evaluation)"
    if record.final_episodes is None:
        return record.protocol.get("Final score", "")
    greedy = (
        not samples(record.algorithm, record.settings) if record.deterministic is None else record.deterministic
    )
    return evaluation(record.final_episodes, not greedy)


def evaluation(episodes: int, sampled: bool) -> str:
    """How an evaluation is made.

    >>> evaluation(100, sampled=True)
    '100 full episodes per seed, actions sampled from the policy, no epsilon'
    """
    actions = "actions sampled from the policy" if sampled else "greedy actions"
    return f"{episodes} full episodes per seed, {actions}, no epsilon"


def training_curve(settings: Mapping[str, Any]) -> str:
    """What a training curve is."""
    how = "mean return of the episodes that ended since the last log point, with the exploration of training"
    start, end = settings.get("epsilon_start"), settings.get("epsilon_final")
    if settings.get("behaviour") == "uniform":
        how += " (all actions are uniformly random, so this is not the learned policy)"
    elif isinstance(start, int | float) and isinstance(end, int | float) and (start or end):
        how += f" (epsilon {start:g} to {end:g})"
    return how + "; smoothed over 2 % of the run"


def sticky_actions(env: str) -> str:
    """What is known of an environment's sticky actions."""
    if env.startswith("minatar-"):
        return f"the last action is repeated with probability {STICKY}; there is no time limit"
    return "none added by capo"


def facts(record: Record) -> list[tuple[str, str]]:
    """Duration, start, commit, hardware and versions, as (what, value)."""
    found = [] if record.wall_seconds is None else [("training took", duration(record.wall_seconds))]
    found += [(name, str(record.made_by[name])) for name in ("started", "commit") if record.made_by.get(name)]
    hardware = record.made_by.get("hardware")
    if isinstance(hardware, Mapping):
        processor, cores, backend = (hardware.get(name) for name in ("processor", "cores", "backend"))
        devices = ", ".join(map(str, hardware.get("devices", ())))
        parts = [processor, cores and f"{cores} cores", backend and f"{backend}: {devices}"]
        found.append(("hardware", "; ".join(str(part) for part in parts if part)))
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return [*found, ("versions", versions or "unknown")]


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(70), duration(600), duration(9000)
    ('70 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
