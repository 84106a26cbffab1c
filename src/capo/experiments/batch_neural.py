"""Algorithm 2 of the paper: a neural policy, batches of pairs from outside, an exact evaluator.

The chain and the grid use it. Where the pairs come from is decided beforehand (:func:`cyclic_stream`,
:func:`walk_stream`, :func:`replayed`), so that every method can be given the same batches; the advantages of the
current policy come from one linear solve, so that no method suffers from its critic. What is left to compare is
the update: CAPO's target distribution, Off-PAC's weighted policy gradient, PPO's clipped surrogate. All three
follow Adam on the same network, or on a table of theta.

Many runs (their own start, batches and, for the grid, maze) and many learning rates are one vmapped program. The
parameters are float32; values and advantages are float64, since signs are taken of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

from capo.neural.ncapo import actor_loss
from capo.tabular.mdp import MDP
from capo.tabular.solver import RELATIVE_SIGN_TOL, value_scale
from capo.update import LOG, StepSize, coordinate_update

Array = Any
Params = Any
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

WIDTH = 256  # of the hidden layer, as in the paper
NETWORK = "one hidden layer of 256, ReLU, one-hot states; Adam; first parameters uniform in +-1/sqrt(inputs)"
PPO_CLIP = 0.2


class Problem(NamedTuple):
    """An MDP as arrays; with a leading axis, one for each run."""

    transition: Array  # (S, A, S)
    reward: Array  # (S, A)
    start: Array  # (S,)
    live: Array  # (S,) 1, or 0 for an end
    gamma: Array
    sign_tol: Array  # advantages up to this size count as 0


class Values(NamedTuple):
    """The exact critic's answer."""

    v: Array  # (S,)
    q: Array  # (S, A)
    advantage: Array  # (S, A), 0 where it is round-off
    visits: Array  # (S,) discounted visits to states that are no end, up to a constant; 0 unless wanted


@dataclass(frozen=True)
class Learner:
    """A method: how a batch of pairs changes the policy.

    Attributes:
        method: capo, offpac or ppo.
        policy: network (one hidden layer of 256) or table (theta itself).
        kl: of CAPO's loss; policy-to-target is the paper's.
        step: CAPO's alpha; log 1/pi is the paper's.
        by_advantage: multiply alpha by |A| / mean |A| of the batch; the paper's CAPO knows the sign only.
        weight: what Off-PAC weighs log pi with; q is the paper's equation, advantage its authors' program.
        steps: gradient steps on a batch, towards one target or on one surrogate.
        own_batches: the size of on-policy batches, drawn from the current policy's discounted visitation; None
            takes the batches that are given.
    """

    method: Literal["capo", "offpac", "ppo"] = "capo"
    policy: Literal["network", "table"] = "network"
    kl: Literal["policy-to-target", "target-to-policy"] = "policy-to-target"
    step: StepSize = LOG
    by_advantage: bool = False
    weight: Literal["q", "advantage"] = "q"
    steps: int = 1
    own_batches: int | None = None


# --- the exact evaluator --------------------------------------------------------------------------------------


def stack(mdps: Sequence[MDP]) -> Problem:
    """MDPs of one shape as one problem with a leading axis (numpy float64)."""
    return Problem(
        np.stack([mdp.transition for mdp in mdps]),
        np.stack([mdp.reward for mdp in mdps]),
        np.stack([mdp.start for mdp in mdps]),
        np.stack([1.0 - mdp.terminal for mdp in mdps]),
        np.array([mdp.gamma for mdp in mdps]),
        np.array([RELATIVE_SIGN_TOL * value_scale(mdp) for mdp in mdps]),
    )


def evaluate(problem: Problem, pi: Array, visits: bool = False) -> Values:
    """V, Q and A of the policy ``pi`` (S, A), by one linear solve; its visits too if they are wanted."""
    reward = jnp.sum(pi * problem.reward, axis=1)
    if visits:
        # Both from one inverse: two batched solves at a time have blocked each other for ever in XLA's threads.
        inverse = jnp.linalg.solve(_system(problem, pi), jnp.eye(pi.shape[0], dtype=pi.dtype))
        v, visited = inverse @ reward, problem.live * (problem.start @ inverse)
    else:
        v, visited = jnp.linalg.solve(_system(problem, pi), reward), jnp.zeros_like(reward)
    q = problem.reward + problem.gamma * problem.transition @ v
    advantage = q - v[:, None]
    return Values(v, q, jnp.where(jnp.abs(advantage) > problem.sign_tol, advantage, 0.0), visited)


def _system(problem: Problem, pi: Array) -> Array:
    moves = jnp.einsum("sa,sat->st", pi, problem.transition)
    return jnp.eye(pi.shape[0], dtype=pi.dtype) - problem.gamma * moves


def expected_return(problem: Problem, pi: Array, horizon: int) -> Array:
    """The undiscounted return of ``pi`` (S, A) within ``horizon`` steps: an expectation, nothing is sampled."""
    moves = jnp.einsum("sa,sat->st", pi, problem.transition)
    reward = jnp.sum(pi * problem.reward, axis=1)

    def step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        where, total = carry
        return (where @ moves, total + where @ reward), None

    (_, total), _ = jax.lax.scan(step, (problem.start, jnp.zeros((), pi.dtype)), None, length=horizon)
    return total


# --- the policy -----------------------------------------------------------------------------------------------


def init(learner: Learner, n_states: int, n_actions: int, rng: np.random.Generator) -> Params:
    """First parameters: uniform in +-1/sqrt(inputs), weights and biases alike; a table starts at 0."""
    if learner.policy == "table":
        return {"theta": np.zeros((n_states, n_actions), np.float32)}

    def dense(inputs: int, outputs: int) -> Params:
        bound = inputs**-0.5
        weights = rng.uniform(-bound, bound, (inputs, outputs)).astype(np.float32)
        return {"w": weights, "b": rng.uniform(-bound, bound, outputs).astype(np.float32)}

    return {"hidden": dense(n_states, WIDTH), "head": dense(WIDTH, n_actions)}


def log_policy(params: Params) -> Array:
    """(S, A) log-probabilities in all states, float64. One-hot states: the hidden layer's input is its rows."""
    if "theta" in params:
        logits = params["theta"]
    else:
        hidden = jax.nn.relu(params["hidden"]["w"] + params["hidden"]["b"])
        logits = hidden @ params["head"]["w"] + params["head"]["b"]
    return jax.nn.log_softmax(logits.astype(jnp.float64))


# --- the three losses -----------------------------------------------------------------------------------------


def capo_target(
    log_pi: Array, advantage: Array, batch: Array, step: StepSize = LOG, by_advantage: bool = False
) -> tuple[Array, Array]:
    """The target distribution of CAPO, and which states are in the batch.

    Args:
        log_pi: (S, A) of the current policy.
        advantage: (S, A) exact.
        batch: (n,) pairs as s * A + a; one that is there twice counts once.
        step: alpha.
        by_advantage: see :class:`Learner`.

    Returns:
        (S, A) log-probabilities softmax(f + alpha sign(A)) on the batch, and (S,) 0 or 1.
    """
    chosen = jnp.zeros(log_pi.size, log_pi.dtype).at[batch].set(1.0).reshape(log_pi.shape)
    sign = jnp.sign(advantage) * chosen
    alpha = step.alpha(log_pi, sign)
    if by_advantage:
        size = jnp.abs(advantage) * chosen
        alpha = alpha * size * chosen.sum() / jnp.maximum(size.sum(), 1e-300)
    return coordinate_update(log_pi, sign, alpha), chosen.max(axis=1)


def loss(learner: Learner, params: Params, old: Array, values: Values, batch: Array) -> Array:
    """What is descended: a sum over the batch's states (CAPO) or a mean over its pairs (the others).

    Args:
        learner: the method.
        params: of the policy that learns.
        old: (S, A) log-probabilities of the policy that ``values`` belong to.
        values: exact.
        batch: (n,) pairs as s * A + a.
    """
    new = log_policy(params)
    if learner.method == "capo":
        target, visited = capo_target(old, values.advantage, batch, learner.step, learner.by_advantage)
        return jnp.sum(visited * actor_loss(new, target, learner.kl))
    n_actions = old.shape[1]
    log_new, log_old = new.ravel()[batch], old.ravel()[batch]
    # Importance weights pi / b: b is uniform over the actions, or the policy itself.
    weight = jnp.ones_like(log_old) if learner.own_batches else n_actions * jnp.exp(log_old)
    if learner.method == "offpac":
        gain = (values.q if learner.weight == "q" else values.advantage).ravel()[batch]
        return -jnp.mean(weight * gain * log_new)
    ratio, gain = jnp.exp(log_new - log_old), values.advantage.ravel()[batch]
    return -jnp.mean(weight * jnp.minimum(ratio * gain, jnp.clip(ratio, 1 - PPO_CLIP, 1 + PPO_CLIP) * gain))


# --- training -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """What a run is beside its data: sizes, all known when it is compiled."""

    learner: Learner
    iterations: int
    record_every: int
    horizon: int

    @property
    def points(self) -> Ints:
        """The iterations at which the return is recorded: before the first update, and every so many."""
        return np.arange(0, self.iterations + 1, self.record_every)


def train(
    setup: Setup, problem: Problem, params: Params, batches: Ints, rates: Sequence[float], seed: int
) -> Floats:
    """Train all runs at all learning rates.

    Args:
        setup: the method and the sizes.
        problem: with a leading axis of runs.
        params: of the runs, with a leading axis.
        batches: (runs, iterations, n) pairs as s * A + a; or (runs, 1, n) where all iterations have the same.
        rates: learning rates of Adam.
        seed: of on-policy batches.

    Returns:
        (rates, runs, points) undiscounted expected returns at ``setup.points``.
    """
    runs = batches.shape[0]
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), runs)
        pairs = np.asarray(batches, np.int32)
        returns = _train_all(setup, problem, params, pairs, keys, np.asarray(rates, np.float32))
        return np.asarray(returns)


@partial(jax.jit, static_argnums=0)
def _train_all(setup: Setup, problem: Problem, params: Params, batches: Array, keys: Array, rates: Array) -> Array:
    runs = jax.vmap(partial(_train_one, setup), in_axes=(0, 0, 0, 0, None))
    return jax.vmap(runs, in_axes=(None, None, None, None, 0))(problem, params, batches, keys, rates)


def _train_one(setup: Setup, problem: Problem, params: Params, batches: Array, key: Array, rate: Array) -> Array:
    """One run at one learning rate: (points,) returns."""
    learner, adam = setup.learner, optax.scale_by_adam()

    def iteration(i: Array, carry: tuple[Params, Any]) -> tuple[Params, Any]:
        old = log_policy(carry[0])
        pi = jnp.exp(old)
        values = evaluate(problem, pi, visits=learner.own_batches is not None)
        if learner.own_batches:
            chances = jax.random.uniform(jax.random.fold_in(key, i), (learner.own_batches,))
            batch = _draw(values.visits[:, None] * pi, chances)
        else:
            batch = batches[jnp.minimum(i, batches.shape[0] - 1)]

        def step(_: Array, carry: tuple[Params, Any]) -> tuple[Params, Any]:
            params, state = carry
            gradient = jax.grad(lambda p: loss(learner, p, old, values, batch))(params)
            direction, state = adam.update(gradient, state)
            return jax.tree.map(lambda p, d: p - rate * d, params, direction), state

        return step(i, carry) if learner.steps == 1 else jax.lax.fori_loop(0, learner.steps, step, carry)

    def measure(params: Params) -> Array:
        return expected_return(problem, jnp.exp(log_policy(params)), setup.horizon)

    def stretch(carry: tuple[Params, Any], first: Array) -> tuple[tuple[Params, Any], Array]:
        carry = jax.lax.fori_loop(first, first + setup.record_every, iteration, carry)
        return carry, measure(carry[0])

    _, later = jax.lax.scan(stretch, (params, adam.init(params)), jnp.asarray(setup.points[:-1]))
    return jnp.concatenate([measure(params)[None], later])


def _draw(weights: Array, chances: Array) -> Array:
    """Pairs s * A + a drawn in proportion to ``weights`` (S, A), one for each uniform number."""
    below = jnp.cumsum(weights.ravel())
    drawn = jnp.searchsorted(below, chances * below[-1], side="right")
    return jnp.minimum(drawn, weights.size - 1)


# --- where the pairs come from --------------------------------------------------------------------------------


def live_pairs(mdp: MDP) -> Ints:
    """All pairs s * A + a of states that are not an end."""
    states = np.flatnonzero(~mdp.terminal)
    return np.asarray((states[:, None] * mdp.n_actions + np.arange(mdp.n_actions)).ravel())


def cyclic_stream(mdp: MDP, length: int) -> Ints:
    """(length,) pairs, one state after the other, each pair once a cycle."""
    return np.resize(live_pairs(mdp), length)


def walk_stream(mdp: MDP, length: int, horizon: int, rng: np.random.Generator) -> Ints:
    """(length,) pairs met by a uniformly random policy in episodes of at most ``horizon`` steps."""
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
    """Batches out of a replay buffer.

    Every iteration the next ``batch`` pairs of the stream enter a buffer that keeps the last ``replay`` of them,
    and the update takes ``batch`` of those, drawn uniformly without replacement.

    Args:
        stream: (iterations * batch,) pairs.

    Returns:
        (iterations, batch).
    """
    iterations = len(stream) // batch
    filled = (np.arange(iterations) + 1) * batch
    chance = rng.random((iterations, replay))
    chance[np.arange(replay) >= filled[:, None]] = 2.0  # what is not there yet
    age = np.argsort(chance, axis=1)[:, :batch]
    return np.asarray(stream[filled[:, None] - 1 - age])


Source = Literal["all", "cyclic", "cyclic replay", "walk replay"]


@dataclass(frozen=True)
class Sizes:
    """Of a set of runs."""

    iterations: int
    batch: int
    replay: int
    record_every: int
    horizon: int


def batches_from(source: Source, mdps: Sequence[MDP], sizes: Sizes) -> Ints:
    """(runs, iterations or 1, n) pairs for :func:`train`; run k draws with seed k.

    ``all``: all pairs, every iteration. ``cyclic``: the next pairs of the cycle. ``cyclic replay`` and
    ``walk replay``: drawn from a buffer that the cycle, or a uniformly random policy, fills.
    """
    if source == "all":
        return np.stack([live_pairs(mdp)[None] for mdp in mdps])
    length = sizes.iterations * sizes.batch
    found = []
    for k, mdp in enumerate(mdps):
        rng = np.random.default_rng([k, 1])
        if source == "walk replay":
            stream = walk_stream(mdp, length, sizes.horizon, rng)
        else:
            stream = cyclic_stream(mdp, length)
        fresh = stream.reshape(-1, sizes.batch)
        found.append(fresh if source == "cyclic" else replayed(stream, sizes.batch, sizes.replay, rng))
    return np.stack(found)


def run_all(
    learner: Learner, mdps: Sequence[MDP], batches: Ints, rates: Sequence[float], sizes: Sizes
) -> tuple[Ints, Floats]:
    """Train one run on each MDP at every rate: the recorded iterations and (rates, runs, points) returns.

    Run k starts from parameters drawn with seed k, the same for every method and rate.
    """
    n_states, n_actions = mdps[0].n_states, mdps[0].n_actions
    starts = [init(learner, n_states, n_actions, np.random.default_rng([k, 0])) for k in range(len(mdps))]
    params = jax.tree.map(lambda *leaves: np.stack(leaves), *starts)
    setup = Setup(learner, sizes.iterations, sizes.record_every, sizes.horizon)
    return setup.points, train(setup, stack(mdps), params, batches, rates, seed=0)


def plain_return(mdp: MDP, policy: Floats, horizon: int) -> float:
    """:func:`expected_return` in plain numpy."""
    where, total = mdp.start, 0.0
    moves, reward = mdp.policy_transition(policy), (policy * mdp.reward).sum(axis=1)
    for _ in range(horizon):
        total += float(where @ reward)
        where = where @ moves
    return total
