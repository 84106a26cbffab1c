"""Clip the gradient, scale it, take a step. The learning rate is applied in the step, since it is traced."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from capo.arrays import Array, PyTree

Optimiser = Literal["adam", "radam", "rmsprop", "rmsprop-tf"]


def make(
    kind: Optimiser, clip: optax.GradientTransformation, *, epsilon: float, decay: float = 0.99
) -> optax.GradientTransformation:
    """``clip``, then Adam, RAdam or RMSprop.

    Args:
        kind: ``radam`` is Adam with shorter steps while its second moment is uncertain, and plain momentum in the
            first few (Liu et al., 2020).
            ``rmsprop`` is PyTorch's: the second moment starts at 0, epsilon is added to its root.
            ``rmsprop-tf`` is TensorFlow's: the moment starts at 1, epsilon is added inside the root.
        clip: ``optax.clip_by_global_norm`` or :func:`clip_by_norm_like_torch`.
        epsilon: added to the denominator.
        decay: of RMSprop's second moment; Adam and RAdam always use 0.9 and 0.999.
    """
    if kind == "adam":
        scale = optax.scale_by_adam(eps=epsilon)
    elif kind == "radam":
        scale = optax.scale_by_radam(eps=epsilon)
    elif kind == "rmsprop":
        scale = optax.scale_by_rms(decay, epsilon, eps_in_sqrt=False)
    else:
        scale = optax.scale_by_rms(decay, epsilon, initial_scale=1.0)
    return optax.chain(clip, scale)


def clip_by_norm_like_torch(limit: float) -> optax.GradientTransformation:
    """Scale gradients longer than ``limit`` down to it, as PyTorch does: it adds 1e-6 to the length."""

    def update(grads: PyTree, state: optax.EmptyState, params: PyTree = None) -> tuple[PyTree, optax.EmptyState]:
        del params
        factor = jnp.minimum(limit / (global_norm(grads) + 1e-6), 1.0)
        return jax.tree.map(lambda g: g * factor, grads), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def clip_each_by_norm(limit: float) -> optax.GradientTransformation:
    """Scale the gradient of each network, an entry of the tree, down to ``limit`` if it is longer."""

    def update(grads: PyTree, state: optax.EmptyState, params: PyTree = None) -> tuple[PyTree, optax.EmptyState]:
        del params
        clip = optax.clip_by_global_norm(limit)
        return {name: clip.update(part, state)[0] for name, part in grads.items()}, state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def global_norm(grads: PyTree) -> Array:
    """Length of the gradient. optax clips by the same expression, so the compiler computes it once."""
    norm: Array = optax.tree.norm(grads)
    return norm


def step(
    optimiser: optax.GradientTransformation, params: PyTree, state: PyTree, grads: PyTree, learning_rate: Array
) -> tuple[PyTree, PyTree]:
    """One descent step: the new parameters and the optimiser's new state."""
    updates, state = optimiser.update(grads, state)
    return jax.tree.map(lambda p, u: p - learning_rate * u, params, updates), state
