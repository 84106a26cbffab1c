"""Weights & Biases beside metrics.csv and TensorBoard: a callback for ``learn``, and ``--log wandb``.

Everything else about a run works without it; wandb is imported when the first row is logged.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from capo.errors import CapoError
from capo.runs.layout import FRAMES, SEED, is_timing

_ID = "wandb_id"  # in ``agent.extra``, so that a resumed run continues the same curves


class WandbCallback:
    """Logs every row of metrics.csv to Weights & Biases: ``agent.learn(..., callback=WandbCallback())``.

    Args:
        project: the name of the project there.
        **options: more arguments of ``wandb.init``, such as ``mode="offline"``.

    Raises:
        CapoError: if wandb is not installed.
    """

    def __init__(self, project: str = "capo", **options: Any) -> None:
        try:
            import wandb
        except ImportError as error:
            raise CapoError("logging to Weights & Biases needs the extra: pip install 'capo-rl[wandb]'") from error
        self._init = wandb.init
        self._options = {"project": project, **options}
        self._run: Any = None

    def prepare(self, agent: Any) -> None:
        """Give the run an id, which config.json keeps."""
        given = agent.extra.get(_ID)
        if not (isinstance(given, str) and re.fullmatch(r"[a-z0-9]{8}", given)):
            agent.extra[_ID] = secrets.token_hex(4)

    def __call__(self, agent: Any, rows: Sequence[Mapping[str, float]]) -> None:
        """Log the rows of a log point; the first call starts the run."""
        if self._run is None:
            self._run = self._start(agent)
        several = len(agent.seeds) > 1
        for row in rows:
            prefix = f"seed-{int(row[SEED])}/" if several else ""
            values = {
                f"{prefix}{'time' if is_timing(name) else 'train'}/{name}": float(value)
                for name, value in row.items()
                if name not in (SEED, FRAMES, "iteration") and math.isfinite(value)
            }
            self._run.log({FRAMES: int(row[FRAMES]), **values})

    def _start(self, agent: Any) -> Any:
        self.prepare(agent)
        name = agent.out.name if agent.out is not None else f"{agent.env.name}-{agent.algorithm}"
        about = {"algorithm": agent.algorithm, "env": agent.env.name, "preset": agent.preset, "seeds": agent.seeds}
        options = {"name": name, "id": agent.extra[_ID], "resume": "allow", **self._options}
        if agent.out is not None:
            options.setdefault("dir", str(agent.out))
        run = self._init(config={**about, **agent.config.to_dict()}, **options)
        run.define_metric(FRAMES)
        run.define_metric("*", step_metric=FRAMES)
        return run

    def close(self) -> None:
        """End the run there."""
        if self._run is not None:
            self._run.finish()
            self._run = None
