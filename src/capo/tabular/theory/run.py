"""A run made ready for checking: the MDP in [0, 1] rewards, V*, allowances for rounding, policies of its trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from capo.tabular.coordinates import Batch
from capo.tabular.critic import SIGN_CRITIC_ABOVE
from capo.tabular.mdp import MDP, Floats, check_distribution
from capo.tabular.result import Result, Trace
from capo.tabular.theory.evaluation import EPS, Evaluated, optimal, value_rounding

Ints = npt.NDArray[np.int64]
LOG_RANGE = 745.0  # exp(-745) is the least positive number: beyond it an error in log pi no longer shows


@dataclass(frozen=True)
class Run:
    """What every check reads.

    Values, advantages and gaps below are those of ``mdp``, whose rewards lie in [0, 1].

    Attributes:
        scale, low: reward = scale * (reward in [0, 1]) + low.
        rounding: of a value that is evaluated here.
        engine: how far the run's own values may be off: its rounding and the drift it allows itself (sign_tol).
        ambiguous: advantages up to this size have no reliable sign: 2 sign_tol and the rounding of A.
        slack: the gap that advantages counted as 0 can leave, 2 sign_tol/(1 - gamma).
        steps: (n,) the updates that one-step lines check: update t leads from policy t to policy t + 1.
    """

    result: Result
    mdp: MDP
    scale: float
    low: float
    mu: Floats
    best: Evaluated
    rounding: float
    engine: float
    ambiguous: float
    slack: float
    steps: Ints
    seeds: int
    max_steps: int

    @property
    def trace(self) -> Trace:
        assert self.result.trace is not None
        return self.result.trace

    @property
    def whole(self) -> bool:
        """Whether the trace holds every update of the run."""
        return self.result.trace is not None and len(self.trace) == self.result.iterations

    @property
    def step_rounding(self) -> float:
        """Of a difference of values compared with advantages weighted by visitation / (1 - gamma)."""
        return 4 * self.rounding / (1 - self.mdp.gamma)

    @property
    def weight_rounding(self) -> float:
        """Of a probability."""
        return 64 * (1 + self.mdp.n_actions) * EPS

    @property
    def log_rounding(self) -> float:
        """Of log pi, relatively: exp turns an error of EPS \\|x\\| in x, \\|x\\| <= 745, into a relative one."""
        return 16 * LOG_RANGE * EPS

    def unit(self, values: Any) -> Floats:
        """Values of the original MDP in the units of ``mdp``."""
        return (np.asarray(values, float) - self.low / (1 - self.mdp.gamma)) / self.scale

    def engine_at(self, gap_bound: Any) -> Any:
        """``engine``, and what an evaluation that goes only as far as the signs need may leave beside it.

        Such an evaluation adds (1 + gamma) times its error to the greatest advantage, so the gap it certifies
        bounds that error.
        """
        large = self.mdp.is_sparse and self.mdp.n_states >= SIGN_CRITIC_ABOVE
        critic = self.result.settings.get("critic", "signs" if large else "direct")
        if not isinstance(self.result.rule, Batch) or critic != "signs":
            return self.engine
        return self.engine + np.asarray(gap_bound) / self.scale * (1 - self.mdp.gamma) / (1 + self.mdp.gamma)


def prepare(result: Result, mu: Any, seeds: int, max_steps: int) -> Run:
    """Everything that is settled before the first check."""
    original = result.mdp
    scaled = not original.has_unit_rewards
    mdp = original.rescale_rewards() if scaled else original
    low = float(original.reward.min()) if scaled else 0.0
    scale = float(np.ptp(original.reward)) or 1.0 if scaled else 1.0
    weights = result.mu if mu is None else check_distribution(mu, mdp.n_states, "mu", positive=True)
    best = optimal(mdp, first=result.log_policy.argmax(axis=1))
    rounding = value_rounding(mdp, float(best.values.max()))
    # V* itself is known up to its Bellman residual.
    rounding += max(float(best.advantage.max()), 0.0) / (1 - mdp.gamma)
    g = 1 - mdp.gamma
    largest = max(abs(low) / g, float(np.abs(scale * best.values + low / g).max()))
    engine = rounding + (value_rounding(original, largest) + result.sign_tol) / scale
    tolerance = 2 * result.sign_tol / scale
    updates = 0 if result.trace is None else len(result.trace)
    n = min(max_steps, updates, _affordable(mdp))
    return Run(
        result=result,
        mdp=mdp,
        scale=scale,
        low=low,
        mu=np.full(mdp.n_states, 1 / mdp.n_states) if weights is None else np.asarray(weights),
        best=best,
        rounding=rounding,
        engine=engine,
        ambiguous=tolerance + (1 + mdp.gamma) * engine,
        slack=tolerance / g,
        steps=spread(updates, n),
        seeds=seeds,
        max_steps=max_steps,
    )


def _affordable(mdp: MDP) -> int:
    """Evaluations that take seconds rather than minutes."""
    return int(max(20, 1e10 / mdp.n_states**3))


def spread(total: int, n: int) -> Ints:
    """Up to n of 0..total - 1, evenly, the first and the last among them."""
    if total <= 0 or n <= 0:
        return np.empty(0, np.int64)
    return np.unique(np.linspace(0, total - 1, min(n, total)).round().astype(np.int64))


def policies(trace: Trace, wanted: Any) -> Iterator[tuple[int, Floats]]:
    """(k, log-policy after k updates) for each k in ``wanted``, in order."""
    indices = np.unique(np.asarray(wanted, np.int64))
    if trace.log_policies is not None:
        for k in indices.tolist():
            yield k, trace.first if k == 0 else trace.log_policies[k - 1]
        return
    assert trace.state is not None
    assert trace.row is not None
    log_policy, done = trace.first.copy(), 0
    for k in indices.tolist():
        # Of several updates of a state the last counts, which is how numpy assigns repeated indices.
        log_policy[trace.state[done:k]] = trace.row[done:k]
        done = k
        yield k, log_policy.copy()


def signs_of(trace: Trace, t: int) -> npt.NDArray[np.int8]:
    """(S, A) signs of update t, 0 outside its batch."""
    if trace.state is None:
        return np.asarray(trace.sign[t])
    assert trace.action is not None
    signs = np.zeros(trace.first.shape, np.int8)
    signs[trace.state[t], trace.action[t]] = trace.sign[t]
    return signs


def batch_of(trace: Trace, t: int) -> npt.NDArray[np.bool_]:
    """(S, A) the pairs of update t."""
    if trace.batch is not None:
        return np.asarray(trace.batch[t])
    assert trace.state is not None
    assert trace.action is not None
    batch = np.zeros(trace.first.shape, bool)
    batch[trace.state[t], trace.action[t]] = True
    return batch
