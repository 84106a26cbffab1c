"""Algorithm 2 of the paper: pairs and their advantages come from the caller, and the policy may be anything with
logits.

One iteration, on a batch B of pairs:

1. an evaluator of any kind gives the advantages A of the pairs under the current policy pi_m;
2. the target is softmax(f + alpha * 1{(s, a) in B} * sign(A)) at every state of the batch
   (:func:`target_distribution`);
3. gradient steps on the KL divergence between the policy and that target, summed over the states of the batch
   (:func:`ascent_loss`, :func:`descend`).

:func:`coordinate_ascent` is the loop. Its parts are pure functions, so that a program can run many of them at
once, as the chain and the grid experiments do. Public as ``capo.ascent``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from capo.arrays import Array, NDArray, PyTree
from capo.checks import positive, whole
from capo.errors import CapoError, unknown_name
from capo.neural.algorithms.ncapo import KL, actor_loss
from capo.tabular.engine import RELATIVE_SIGN_TOL, value_scale
from capo.tabular.mdp import MDP
from capo.tabular.theory.lemmas import PolicyValues
from capo.update import LOG, StepSize, coordinate_update, log_normalise

__all__ = [
    "Ascent",
    "AscentRule",
    "Policy",
    "ascent_loss",
    "coordinate_ascent",
    "descend",
    "exact_advantages",
    "network_logits",
    "network_policy",
    "table_logits",
    "table_policy",
    "target_distribution",
]

Params: TypeAlias = PyTree
Logits: TypeAlias = Callable[[Params, Any], Array]  # (params, observations (n, ...)) -> (n, A)
LogPolicy: TypeAlias = Callable[[Any], NDArray]  # observations (n, ...) -> log-probabilities (n, A), float64
Evaluate: TypeAlias = Callable[[LogPolicy, NDArray, NDArray], Any]


@dataclass(frozen=True)
class AscentRule:
    """What an iteration does with a batch.

    Attributes:
        kl: the direction of the loss; policy-to-target, KL(pi || target), is the paper's.
        step: the step size alpha; log 1/pi is the paper's.
        by_advantage: multiply alpha by |A| / mean |A| of the batch; the paper's update uses the sign only.
        steps: gradient steps towards one target.
    """

    kl: KL = "policy-to-target"
    step: StepSize = LOG
    by_advantage: bool = False
    steps: int = 1

    def __post_init__(self) -> None:
        if self.kl not in get_args(KL):
            raise unknown_name("kl", self.kl, get_args(KL))
        if self.step.kind == "on-policy":
            raise CapoError("Algorithm 2 counts no visits: the step size must be log, fixed or clipped")
        whole("steps", self.steps)


@dataclass(frozen=True)
class Policy:
    """A policy to train: its initial parameters, and the function from parameters to logits.

    Attributes:
        logits: (params, observations (n, ...)) -> (n, A), differentiable in the parameters by jax.
    """

    params: Params
    logits: Logits


def table_policy(n_states: int, n_actions: int) -> Policy:
    """theta itself, (S, A), from 0. Observations are state numbers."""
    shape = whole("n_states", n_states), whole("n_actions", n_actions)
    return Policy({"theta": np.zeros(shape, np.float32)}, table_logits)


def network_policy(
    n_states: int, n_actions: int, width: int = 256, rng: np.random.Generator | None = None
) -> Policy:
    """One hidden layer of ReLU on one-hot states, the paper's for the chain. Observations are state numbers.

    Weights and biases start uniform in +-1/sqrt(inputs), drawn from ``rng``.
    """
    rng = np.random.default_rng(0) if rng is None else rng

    def dense(inputs: int, outputs: int) -> Params:
        bound = inputs**-0.5
        weights = rng.uniform(-bound, bound, (inputs, outputs)).astype(np.float32)
        return {"w": weights, "b": rng.uniform(-bound, bound, outputs).astype(np.float32)}

    n_states, n_actions, width = (
        whole(name, value) for name, value in (("n_states", n_states), ("n_actions", n_actions), ("width", width))
    )
    return Policy({"hidden": dense(n_states, width), "head": dense(width, n_actions)}, network_logits)


def table_logits(params: Params, states: Any) -> Array:
    """(n, A) of :func:`table_policy`, at state numbers (n,)."""
    return jnp.asarray(params["theta"])[states]


def network_logits(params: Params, states: Any) -> Array:
    """(n, A) of :func:`network_policy`, at state numbers (n,)."""
    # One-hot states: the hidden layer's input is its rows.
    hidden = jax.nn.relu(jnp.asarray(params["hidden"]["w"])[states] + params["hidden"]["b"])
    return jnp.asarray(hidden @ params["head"]["w"] + params["head"]["b"])


# --- one iteration, as pure functions -------------------------------------------------------------------------


def target_distribution(
    log_pi: Array, advantage: Array, in_batch: Array, rule: AscentRule = AscentRule()
) -> Array:
    """CAPO's target pi~ = softmax(f + alpha * 1{in batch} * sign(A)).

    Args:
        log_pi: (n, A) log pi_m.
        advantage: (n, A); read where ``in_batch`` only.
        in_batch: (n, A) 1 for the pairs of the batch, 0 for the others.

    Returns:
        (n, A) log-probabilities; those of pi_m in rows without a pair of the batch.
    """
    sign = jnp.sign(advantage) * in_batch
    alpha = rule.step.alpha(log_pi, sign)
    if rule.by_advantage:
        size = jnp.abs(advantage) * in_batch
        alpha = alpha * size * in_batch.sum() / jnp.maximum(size.sum(), float(np.finfo(size.dtype).tiny))
    return coordinate_update(log_pi, sign, alpha)


def ascent_loss(
    log_pi: Array, old: Array, advantage: Array, in_batch: Array, rule: AscentRule = AscentRule()
) -> Array:
    """The loss of the policy that is trained: KL to the target, summed over the states of the batch.

    Args:
        log_pi: (n, A) of the policy that is trained.
        old, advantage, in_batch: (n, A) of pi_m; see :func:`target_distribution`.
    """
    target = jax.lax.stop_gradient(target_distribution(old, advantage, in_batch, rule))
    return jnp.sum(in_batch.max(axis=1) * actor_loss(log_pi, target, rule.kl))


def descend(
    loss: Callable[[Params], Array],
    carry: tuple[Params, PyTree],
    optimiser: optax.GradientTransformation,
    steps: int = 1,
) -> tuple[Params, PyTree]:
    """Gradient steps on a loss.

    Args:
        loss: of the parameters.
        carry: the parameters and the optimiser's state.
    """

    def step(_: Any, carry: tuple[Params, PyTree]) -> tuple[Params, PyTree]:
        params, state = carry
        direction, state = optimiser.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, direction), state

    return step(0, carry) if steps == 1 else jax.lax.fori_loop(0, steps, step, carry)


# --- evaluators -----------------------------------------------------------------------------------------------


def exact_advantages(mdp: MDP) -> Evaluate:
    """The evaluator for a known MDP: one linear solve; advantages that are only round-off count as 0."""
    tolerance, states = RELATIVE_SIGN_TOL * value_scale(mdp), np.arange(mdp.n_states)

    def evaluate(log_policy: LogPolicy, where: NDArray, actions: NDArray) -> NDArray:
        found = PolicyValues(mdp, log_policy(states)).advantage[where, actions]
        return np.where(np.abs(found) > tolerance, found, 0.0)

    return evaluate


# --- the loop -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ascent:
    """The progress of Algorithm 2: what a callback receives, and the final result.

    Attributes:
        params: of the policy.
        iterations: made so far.
        loss: before the gradient steps of the last iteration.
    """

    policy: Policy
    params: Params
    iterations: int = 0
    loss: float = float("nan")

    def log_policy(self, observations: Any) -> NDArray:
        """(n, A) log-probabilities at ``observations`` (n, ...), float64."""
        logits = np.asarray(self.policy.logits(self.params, np.asarray(observations)), np.float64)
        return np.asarray(log_normalise(logits)[0])


def coordinate_ascent(
    policy: Policy,
    batches: Iterable[tuple[Any, Any]],
    evaluate: Evaluate,
    *,
    learning_rate: float = 1e-3,
    optimiser: optax.GradientTransformation | None = None,
    rule: AscentRule = AscentRule(),
    callback: Callable[[Ascent], object] | None = None,
) -> Ascent:
    """Algorithm 2: train a policy on batches of pairs with an evaluator of any kind.

    Args:
        policy: :func:`table_policy`, :func:`network_policy`, or a :class:`Policy` of your own.
        batches: one (observations (n, ...), actions (n,)) per iteration, from any rule, such as a generator that
            draws from a replay. Equal observations are one state of the batch, and a repeated pair counts once.
        evaluate: ``evaluate(log_policy, observations, actions)`` gives the advantages (n,) of the pairs under the
            current policy. ``log_policy(observations)`` are its log-probabilities (n, A). If a repeated pair has
            several, their mean counts. :func:`exact_advantages` is one for a known MDP.
        learning_rate: of Adam.
        optimiser: of optax, instead of Adam.
        rule: direction of the loss, step size, gradient steps per batch.
        callback: called after every iteration; returning False ends the training.

    >>> import capo
    >>> mdp = capo.mdps.bandit()
    >>> everything = (np.zeros(mdp.n_actions, int), np.arange(mdp.n_actions))
    >>> found = coordinate_ascent(table_policy(1, mdp.n_actions), [everything] * 60, exact_advantages(mdp),
    ...                           learning_rate=0.1)
    >>> found.iterations, int(found.log_policy([0]).argmax())
    (60, 0)
    """
    adam = optax.adam(positive("learning_rate", learning_rate)) if optimiser is None else optimiser
    update = jax.jit(partial(_iteration, policy.logits, adam, rule))
    params, state = policy.params, adam.init(policy.params)
    found = Ascent(policy, params)
    for observations, actions in batches:
        where, taken = _checked_batch(observations, actions)
        advantage = np.asarray(evaluate(found.log_policy, where, taken))
        if advantage.shape != taken.shape or not np.isfinite(advantage).all():
            raise CapoError(
                f"iteration {found.iterations + 1}: evaluate must return {len(taken)} finite advantages, one per "
                f"pair, not an array of shape {advantage.shape}"
                + ("" if advantage.shape != taken.shape else " with values that are not finite")
            )
        n_actions = found.log_policy(where[:1]).shape[1]
        rows, gains, chosen = _rows(where, taken, advantage, n_actions)
        params, state, loss = update(params, state, rows, gains, chosen)
        found = Ascent(policy, params, found.iterations + 1, float(loss))
        if callback is not None:
            said = callback(found)
            if isinstance(said, bool | np.bool_) and not said:
                break
    return found


def _checked_batch(observations: Any, actions: Any) -> tuple[NDArray, NDArray]:
    where, taken = np.asarray(observations), np.asarray(actions)
    if taken.ndim != 1 or len(taken) == 0 or len(where) != len(taken) or taken.dtype.kind not in "iu":
        raise CapoError(
            f"a batch must be observations (n, ...) and integer actions (n,) with n >= 1, not of shapes "
            f"{where.shape} and {taken.shape}"
        )
    return where, taken


def _rows(where: NDArray, taken: NDArray, advantage: NDArray, n_actions: int) -> tuple[NDArray, NDArray, NDArray]:
    """A batch by state: the states (n, ...), advantages (n, A), and which pairs (n, A) are in it.

    There are as many rows as pairs whatever repeats, so that one program fits every batch: the rows that are left
    over are copies of the first without a pair.
    """
    if taken.min() < 0 or taken.max() >= n_actions:
        raise CapoError(f"actions must be from 0 to {n_actions - 1}, not {taken.min()} to {taken.max()}")
    _, first, row = np.unique(where, axis=0, return_index=True, return_inverse=True)
    row, n = row.ravel(), len(taken)
    rows = np.concatenate([where[first], np.repeat(where[:1], n - len(first), axis=0)])
    counts, sums = np.zeros((n, n_actions)), np.zeros((n, n_actions))
    np.add.at(counts, (row, taken), 1.0)
    np.add.at(sums, (row, taken), advantage)
    return rows, sums / np.maximum(counts, 1.0), np.minimum(counts, 1.0)


def _iteration(
    logits: Logits,
    optimiser: optax.GradientTransformation,
    rule: AscentRule,
    params: Params,
    state: PyTree,
    rows: Array,
    advantage: Array,
    in_batch: Array,
) -> tuple[Params, PyTree, Array]:
    """One iteration on a batch by state (:func:`_rows`): parameters, the optimiser's state, the loss before it."""
    old = jax.nn.log_softmax(logits(params, rows))

    def loss(params: Params) -> Array:
        return ascent_loss(jax.nn.log_softmax(logits(params, rows)), old, advantage, in_batch, rule)

    before = loss(params)
    params, state = descend(loss, (params, state), optimiser, rule.steps)
    return params, state, before
