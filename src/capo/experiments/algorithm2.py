"""Algorithm 2 of the paper: a neural or tabular policy, batches of pairs from outside, true values, many runs.

The chain, the grid and the ablation use it. The batches are fixed beforehand (:func:`batches_from`), so that every
method can be given the same ones. The advantages of the current policy come from one linear solve, so no method
suffers from its critic. What is left to compare is the update: CAPO's (:mod:`capo.neural.ascent`), Off-PAC's
weighted policy gradient, PPO's clipped surrogate. All three follow Adam on the same network, or on a table of
theta.

All runs (each with its own start, batches and, in the grid, maze) at all learning rates are one vmapped program.
Parameters are float32; values and advantages are float64, because their signs matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from capo.arrays import Array, PyTree
from capo.experiments.common import Floats, Ints
from capo.neural import ascent
from capo.progress import Ticker
from capo.tabular.engine import RELATIVE_SIGN_TOL, value_scale
from capo.tabular.mdp import MDP
from capo.update import LOG, StepSize

Params = PyTree  # {"theta"}, or {"hidden", "head"} with {"w", "b"} each
Source = Literal["all", "cyclic", "cyclic replay", "walk replay"]

WIDTH = 256  # of the hidden layer, as in the paper
NETWORK = "one hidden layer of 256, ReLU, one-hot states; Adam; first parameters uniform in +-1/sqrt(inputs)"
RETURN = "undiscounted, expected under the policy (nothing is sampled), episodes cut at 100 steps"
PPO_CLIP = 0.2
HORIZON = 100  # steps per episode


class StackedMDP(NamedTuple):
    """An MDP as arrays; with a leading axis, one MDP per run."""

    transition: Array  # (S, A, S)
    reward: Array  # (S, A)
    start: Array  # (S,)
    live: Array  # (S,) 1, or 0 for a terminal state
    gamma: Array
    sign_tol: Array  # advantages up to this size count as 0


class ExactValues(NamedTuple):
    """The true values of one policy."""

    v: Array  # (S,)
    q: Array  # (S, A)
    advantage: Array  # (S, A), 0 where it is only round-off
    visits: Array  # (S,) discounted visits to live states, up to a constant; 0 unless asked for


@dataclass(frozen=True)
class UpdateRule:
    """How a batch of pairs changes the policy.

    Attributes:
        method: capo, offpac or ppo.
        policy: network (one hidden layer of 256) or table (theta itself).
        kl: the direction of CAPO's loss; policy-to-target is the paper's.
        step: CAPO's alpha; log 1/pi is the paper's.
        by_advantage: multiply alpha by |A| / mean |A| of the batch; the paper's CAPO uses the sign only.
        weight: what Off-PAC weights log pi with; q is the paper's equation, advantage its authors' program.
        steps: gradient steps per batch, towards one target or on one surrogate.
        own_batches: the size of on-policy batches, drawn from the current policy's discounted visitation; None
            uses the batches that are given.
    """

    method: Literal["capo", "offpac", "ppo"] = "capo"
    policy: Literal["network", "table"] = "network"
    kl: Literal["policy-to-target", "target-to-policy"] = "policy-to-target"
    step: StepSize = LOG
    by_advantage: bool = False
    weight: Literal["q", "advantage"] = "q"
    steps: int = 1
    own_batches: int | None = None

    @property
    def ascent(self) -> ascent.AscentRule:
        """The part of it that is CAPO's."""
        return ascent.AscentRule(self.kl, self.step, self.by_advantage, self.steps)


@dataclass(frozen=True)
class RunSizes:
    """How long runs are, and how large their batches."""

    iterations: int = 1000
    batch: int = 16
    replay: int = 100
    record_every: int = 10
    horizon: int = HORIZON

    @property
    def points(self) -> Ints:
        """The iterations at which the return is recorded: before the first update, then every ``record_every``."""
        return np.arange(0, self.iterations + 1, self.record_every)


# --- true values ----------------------------------------------------------------------------------------------


def stack(mdps: Sequence[MDP]) -> StackedMDP:
    """MDPs of one shape as one, with a leading axis (numpy float64)."""
    tol = [RELATIVE_SIGN_TOL * value_scale(mdp) for mdp in mdps]
    rows = [(m.transition, m.reward, m.start, 1.0 - m.terminal, m.gamma) for m in mdps]
    columns: list[Any] = [np.stack(column) for column in (*zip(*rows, strict=True), tol)]
    return StackedMDP(*columns)


def evaluate(mdp: StackedMDP, pi: Array, visits: bool = False) -> ExactValues:
    """V, Q and A of the policy ``pi`` (S, A), by one linear solve; its visits too if asked for."""
    reward = jnp.sum(pi * mdp.reward, axis=1)
    if visits:
        # Both from one inverse: two batched solves at a time have blocked each other forever in XLA's threads.
        inverse = jnp.linalg.solve(_system(mdp, pi), jnp.eye(pi.shape[0], dtype=pi.dtype))
        v, visited = inverse @ reward, mdp.live * (mdp.start @ inverse)
    else:
        v, visited = jnp.linalg.solve(_system(mdp, pi), reward), jnp.zeros_like(reward)
    q = mdp.reward + mdp.gamma * mdp.transition @ v
    advantage = q - v[:, None]
    return ExactValues(v, q, jnp.where(jnp.abs(advantage) > mdp.sign_tol, advantage, 0.0), visited)


def _system(mdp: StackedMDP, pi: Array) -> Array:
    moves = jnp.einsum("sa,sat->st", pi, mdp.transition)
    return jnp.eye(pi.shape[0], dtype=pi.dtype) - mdp.gamma * moves


def expected_return(mdp: StackedMDP, pi: Array, horizon: int) -> Array:
    """The expected undiscounted return of ``pi`` (S, A) within ``horizon`` steps; nothing is sampled."""
    moves = jnp.einsum("sa,sat->st", pi, mdp.transition)
    reward = jnp.sum(pi * mdp.reward, axis=1)

    def step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        where, total = carry
        return (where @ moves, total + where @ reward), None

    (_, total), _ = jax.lax.scan(step, (mdp.start, jnp.zeros((), pi.dtype)), None, length=horizon)
    return total


# --- the policy -----------------------------------------------------------------------------------------------


def init(rule: UpdateRule, n_states: int, n_actions: int, rng: np.random.Generator) -> Params:
    """Initial parameters: uniform in +-1/sqrt(inputs), weights and biases alike; a table starts at 0."""
    return _policy(rule, n_states, n_actions, rng).params


def _policy(rule: UpdateRule, n_states: int, n_actions: int, rng: np.random.Generator) -> ascent.Policy:
    if rule.policy == "table":
        return ascent.table_policy(n_states, n_actions)
    return ascent.network_policy(n_states, n_actions, WIDTH, rng)


def log_policy(params: Params) -> Array:
    """(S, A) log-probabilities in all states, float64."""
    logits = ascent.table_logits if "theta" in params else ascent.network_logits
    return jax.nn.log_softmax(logits(params, slice(None)).astype(jnp.float64))


# --- the three losses -----------------------------------------------------------------------------------------


def pairs_chosen(log_pi: Array, batch: Array) -> Array:
    """(S, A) 1 for the pairs of ``batch`` (n,), given as s * A + a; a repeated one counts once."""
    return jnp.zeros(log_pi.size, log_pi.dtype).at[batch].set(1.0).reshape(log_pi.shape)


def loss(rule: UpdateRule, params: Params, old: Array, values: ExactValues, batch: Array) -> Array:
    """The loss: a sum over the states of ``batch`` (n,) (CAPO) or a mean over its pairs (the others).

    ``old`` (S, A) are the log-probabilities of the policy that ``values`` belong to; ``params`` are trained.
    """
    new = log_policy(params)
    if rule.method == "capo":
        return ascent.ascent_loss(new, old, values.advantage, pairs_chosen(old, batch), rule.ascent)
    n_actions = old.shape[1]
    log_new, log_old = new.ravel()[batch], old.ravel()[batch]
    # Importance weights pi / b: b is uniform over the actions, or the policy itself.
    weight = jnp.ones_like(log_old) if rule.own_batches else n_actions * jnp.exp(log_old)
    if rule.method == "offpac":
        gain = (values.q if rule.weight == "q" else values.advantage).ravel()[batch]
        return -jnp.mean(weight * gain * log_new)
    ratio, gain = jnp.exp(log_new - log_old), values.advantage.ravel()[batch]
    return -jnp.mean(weight * jnp.minimum(ratio * gain, jnp.clip(ratio, 1 - PPO_CLIP, 1 + PPO_CLIP) * gain))


# --- training -------------------------------------------------------------------------------------------------


def run_all(
    rule: UpdateRule, mdps: Sequence[MDP], batches: Ints, rates: Sequence[float], sizes: RunSizes
) -> tuple[Ints, Floats]:
    """Train one run on each MDP (all of one shape) at every learning rate of Adam.

    Run k starts from parameters drawn with seed k, the same for every rule and rate.

    Args:
        batches: (runs, iterations, n) pairs as s * A + a; (runs, 1, n) if all iterations have the same.

    Returns:
        The recorded iterations (points,), and the undiscounted expected returns there (rates, runs, points).
    """
    n_states, n_actions = mdps[0].n_states, mdps[0].n_actions
    starts = [init(rule, n_states, n_actions, np.random.default_rng([k, 0])) for k in range(len(mdps))]
    params = jax.tree.map(lambda *leaves: np.stack(leaves), *starts)
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), len(mdps))
        pairs = np.asarray(batches, np.int32)
        returns = _train_all(rule, sizes, stack(mdps), params, pairs, keys, np.asarray(rates, np.float32))
        return sizes.points, np.asarray(returns)


def run_methods(
    experiment: str,
    cases: Mapping[str, tuple[Sequence[MDP], Sequence[float]]],
    methods: Mapping[Any, tuple[str, dict[str, Any], Source]],
    sizes: RunSizes,
    ticker: Ticker,
) -> Iterator[tuple[str, Any, float, Floats]]:
    """Train every method on every case.

    Args:
        cases: the MDPs, one per run, and the learning rates, by name.
        methods: title, settings of :class:`UpdateRule` and source of the pairs, by key.

    Yields:
        Case, method, learning rate, and the returns (runs, points).
    """
    total, done = len(cases) * len(methods), 0
    for case, (mdps, rates) in cases.items():
        batches = {source: batches_from(source, mdps, sizes) for _, _, source in methods.values()}
        for method, (title, settings, source) in methods.items():
            ticker.show(f"{experiment}: {done} of {total} done, now {title}, {case}")
            _, returns = run_all(UpdateRule(**settings), mdps, batches[source], rates, sizes)
            done += 1
            for rate, found in zip(rates, returns, strict=True):
                yield case, method, rate, found


@partial(jax.jit, static_argnums=(0, 1))
def _train_all(
    rule: UpdateRule, sizes: RunSizes, mdp: StackedMDP, params: Params, batches: Array, keys: Array, rates: Array
) -> Array:
    runs = jax.vmap(partial(_train_one, rule, sizes), in_axes=(0, 0, 0, 0, None))
    return jax.vmap(runs, in_axes=(None, None, None, None, 0))(mdp, params, batches, keys, rates)


def _train_one(
    rule: UpdateRule, sizes: RunSizes, mdp: StackedMDP, params: Params, batches: Array, key: Array, rate: Array
) -> Array:
    """One run at one learning rate: (points,) returns."""
    adam = optax.chain(optax.scale_by_adam(), optax.scale(-rate))

    def iteration(i: Array, carry: tuple[Params, Any]) -> tuple[Params, Any]:
        old = log_policy(carry[0])
        pi = jnp.exp(old)
        values = evaluate(mdp, pi, visits=rule.own_batches is not None)
        if rule.own_batches:
            chances = jax.random.uniform(jax.random.fold_in(key, i), (rule.own_batches,))
            batch = _draw(values.visits[:, None] * pi, chances)
        else:
            batch = batches[jnp.minimum(i, batches.shape[0] - 1)]

        return ascent.descend(lambda p: loss(rule, p, old, values, batch), carry, adam, rule.steps)

    def measure(params: Params) -> Array:
        return expected_return(mdp, jnp.exp(log_policy(params)), sizes.horizon)

    def stretch(carry: tuple[Params, Any], first: Array) -> tuple[tuple[Params, Any], Array]:
        carry = jax.lax.fori_loop(first, first + sizes.record_every, iteration, carry)
        return carry, measure(carry[0])

    _, later = jax.lax.scan(stretch, (params, adam.init(params)), jnp.asarray(sizes.points[:-1]))
    return jnp.concatenate([measure(params)[None], later])


def _draw(weights: Array, chances: Array) -> Array:
    """Pairs s * A + a drawn in proportion to ``weights`` (S, A), one for each uniform number."""
    below = jnp.cumsum(weights.ravel())
    drawn = jnp.searchsorted(below, chances * below[-1], side="right")
    return jnp.minimum(drawn, weights.size - 1)


# --- where the pairs come from --------------------------------------------------------------------------------


def live_pairs(mdp: MDP) -> Ints:
    """All pairs s * A + a of states that are not terminal."""
    states = np.flatnonzero(~mdp.terminal)
    return np.asarray((states[:, None] * mdp.n_actions + np.arange(mdp.n_actions)).ravel())


def cyclic_stream(mdp: MDP, length: int) -> Ints:
    """(length,) pairs, one state after the other, each pair once per cycle."""
    return np.resize(live_pairs(mdp), length)


def walk_stream(mdp: MDP, length: int, horizon: int, rng: np.random.Generator) -> Ints:
    """(length,) pairs visited by a uniformly random policy in episodes of at most ``horizon`` steps."""
    where = mdp.start.cumsum()
    moves = mdp.transition.cumsum(axis=2)
    actions = rng.integers(mdp.n_actions, size=length)
    chances = rng.random((length, 2))
    pairs = np.empty(length, np.int64)
    last = mdp.n_states - 1
    state, age = -1, 0
    for i in range(length):
        if state < 0:
            state, age = min(int(np.searchsorted(where, chances[i, 0], side="right")), last), 0
        pairs[i] = state * mdp.n_actions + actions[i]
        state = min(int(np.searchsorted(moves[state, actions[i]], chances[i, 1], side="right")), last)
        age += 1
        if mdp.terminal[state] or age >= horizon:
            state = -1
    return pairs


def replayed(stream: Ints, batch: int, replay: int, rng: np.random.Generator) -> Ints:
    """Batches (iterations, batch) from a replay buffer.

    Every iteration the next ``batch`` pairs of ``stream`` (iterations * batch,) enter a buffer that keeps the last
    ``replay`` of them, and the batch is ``batch`` of those, drawn uniformly without replacement.
    """
    iterations = len(stream) // batch
    filled = (np.arange(iterations) + 1) * batch
    chance = rng.random((iterations, replay))
    chance[np.arange(replay) >= filled[:, None]] = 2.0  # not filled yet
    age = np.argsort(chance, axis=1)[:, :batch]
    return np.asarray(stream[filled[:, None] - 1 - age])


def batches_from(source: Source, mdps: Sequence[MDP], sizes: RunSizes) -> Ints:
    """(runs, iterations or 1, n) pairs for :func:`run_all`; run k draws with seed k.

    ``all``: all pairs in every iteration. ``cyclic``: the next pairs of the cycle. ``cyclic replay`` and
    ``walk replay``: pairs from a buffer that the cycle, or a uniformly random policy, fills.
    """
    if source == "all":
        return np.stack([live_pairs(mdp)[None] for mdp in mdps])
    length = sizes.iterations * sizes.batch
    found = []
    for k, mdp in enumerate(mdps):
        rng = np.random.default_rng([k, 1])
        walk = source == "walk replay"
        stream = walk_stream(mdp, length, sizes.horizon, rng) if walk else cyclic_stream(mdp, length)
        fresh = stream.reshape(-1, sizes.batch)
        found.append(fresh if source == "cyclic" else replayed(stream, sizes.batch, sizes.replay, rng))
    return np.stack(found)


def plain_return(mdp: MDP, policy: Floats, horizon: int = HORIZON) -> float:
    """:func:`expected_return` in plain numpy."""
    where, total = mdp.start, 0.0
    moves, reward = mdp.policy_transition(policy), (policy * mdp.reward).sum(axis=1)
    for _ in range(horizon):
        total += float(where @ reward)
        where = where @ moves
    return total
