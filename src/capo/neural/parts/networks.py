"""Actor and critic as plain parameter trees and pure functions.

No network library: a plain tree of arrays is easy to vmap over seeds, to average into target networks and to
checkpoint, and the layers are few (:mod:`capo.neural.parts.layers`).

A *body* maps observations to features, a *head* maps features to numbers, usually one per action. Trees:

    separate trunks: {"actor": {"body", "head"}, "critic": {"body", "head"}}
    shared trunk:    {"body", "actor": {"head"}, "critic": {"head"}}

A body is {"dense": [...]}, with a "conv" before them for a small grid. For any other observation (a large image, a
category, several parts) it is {"parts": [...], "dense": [...]} with one entry per :class:`Encoder`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, PyTree
from capo.envs.layout import Layout, Part
from capo.neural.parts import encoders, layers, normaliser, units
from capo.neural.parts.encoders import Encoder
from capo.neural.parts.layers import KERNEL, Layer, ShapesOnly, dense, hidden, shapes
from capo.neural.parts.own_network import OwnNetwork
from capo.neural.parts.policies import masked

__all__ = ["Inputs", "Layer", "NetworkSpec", "Params", "ShapesOnly", "dense", "shapes"]

Params: TypeAlias = PyTree
"""Nested dicts and lists of layers: one network or several."""


@dataclass(frozen=True)
class NetworkSpec:
    """What the networks look like; decides the parameter tree."""

    kind: Literal["mlp", "conv", "parts", "own"]
    observation_shape: tuple[int, ...]  # what the first layer takes, if the kind is not "parts"
    n_actions: int
    width: int
    conv_features: int
    layer_norm: bool
    shared_trunk: bool
    precision: Literal["float32", "bfloat16"] = "float32"
    activation: Literal["relu", "tanh", "silu"] = "relu"
    critic_outputs: int | None = None  # numbers that the critic's head gives; one per action if None
    dense_layers: int | None = None  # if None: one after a convolution, two without one
    byte_high: int = 255  # the largest value of observations that are bytes
    layout: Layout | None = None  # if given, observations are rows of bytes packed by it
    encoders: tuple[Encoder, ...] = ()  # of the parts of the observation, if the kind is "parts"
    factors: tuple[int, ...] = ()  # sizes of the factors of an action, adding up to n_actions; () if it has none
    own: OwnNetwork | None = None  # the body that the user brought, if the kind is "own"
    widths: tuple[int, ...] = ()  # units of each dense layer; empty: ``width`` units in ``n_dense`` layers
    # Running statistics of some parts, by name: what the networks see is normalised by them.
    normaliser: normaliser.ByPart | None = field(default=None, compare=False)

    @property
    def plain_name(self) -> str:
        """The name of the only part that is seen, or of the first of several."""
        if self.encoders:
            return self.encoders[0].part.name
        return "" if self.layout is None else self.layout.seen[0].name

    @property
    def n_dense(self) -> int:
        """Dense layers of a body, after what the encoders give."""
        if self.own is not None:
            return 0
        if self.widths:
            return len(self.widths)
        if self.dense_layers is not None:
            return self.dense_layers
        convolves = self.kind == "conv" or any(one.convolves for one in self.encoders)
        return 1 if convolves else 2

    @property
    def n_features(self) -> int:
        """Numbers that a body gives to the heads."""
        if self.own is not None:
            return self.own.n_features
        return self.dense_widths[-1] if self.n_dense else self.n_flat

    @property
    def dense_widths(self) -> tuple[int, ...]:
        """Units of each dense layer of a body."""
        return self.widths or (self.width,) * self.n_dense

    @property
    def n_flat(self) -> int:
        """Numbers that go into the first dense layer."""
        if self.kind == "parts":
            return sum(one.n_outputs for one in self.encoders)
        if self.kind != "conv":
            return Part("", self.observation_shape, "float32").size
        return layers.grid_size(self.observation_shape, self.conv_features)

    def describe(self) -> str:
        """In a few words, how the networks take in an observation."""
        if self.kind != "parts":
            return self.kind
        if len(self.encoders) == 1:
            return self.encoders[0].kind
        return " + ".join(map(str, self.encoders))


class NetworkSettings(Protocol):
    """The settings that decide what the networks look like; ``shared_trunk`` is optional."""

    @property
    def network(self) -> encoders.Network: ...
    @property
    def width(self) -> int: ...
    @property
    def widths(self) -> str: ...
    @property
    def activation(self) -> Literal["relu", "tanh", "silu"]: ...
    @property
    def conv_features(self) -> int: ...
    @property
    def layer_norm(self) -> bool: ...


def spec_for(config: NetworkSettings, seen: Sequence[Part] | Sequence[int], n_actions: int) -> NetworkSpec:
    """The networks for an environment.

    Args:
        config: the settings.
        seen: the parts of an observation that the networks see, or the shape of the only one.
        n_actions: number of actions.
    """
    if all(isinstance(part, Part) for part in seen) and seen:
        parts = tuple(cast("Sequence[Part]", seen))
    else:
        parts = (Part("", tuple(cast("Sequence[int]", seen)), "float32"),)
    chosen = encoders.choose(config.network, parts, config.conv_features, config.width)
    first = chosen[0]
    simple = len(chosen) == 1 and first.kind in ("vector", "conv")  # the layers that every version had
    kind: Literal["mlp", "conv", "parts"] = "parts" if not simple else "conv" if first.kind == "conv" else "mlp"
    return NetworkSpec(
        kind,
        first.part.shape if simple else (),
        n_actions,
        config.width,
        config.conv_features,
        config.layer_norm,
        getattr(config, "shared_trunk", True),
        activation=config.activation,
        widths=tuple(int(size) for size in config.widths.split(",")) if config.widths else (),
        byte_high=first.part.high if simple else 255,
        encoders=() if simple else chosen,
    )


def precision(asked: str, seen: Sequence[Part]) -> Literal["float32", "bfloat16"]:
    """Resolve ``auto``: bfloat16 on an accelerator, for observations it represents exactly (bits, bytes)."""
    exact = all(part.dtype in ("bool", "uint8") or part.classes for part in seen)
    half = asked == "bfloat16" or (asked == "auto" and exact and jax.default_backend() != "cpu")
    return "bfloat16" if half else "float32"


def init(spec: NetworkSpec, rng: np.random.Generator) -> Params:
    """Orthogonal parameters; the policy head is scaled by 0.01, so that the first policy is nearly uniform.

    Made by numpy on the host: compiling a QR factorisation takes seconds, computing one does not.
    """
    actor = {"head": dense(rng, spec.n_features, spec.n_actions, scale=0.01)}
    critic = {"head": dense(rng, spec.n_features, spec.critic_outputs or spec.n_actions, scale=1.0)}
    if spec.shared_trunk:
        return {"body": init_body(spec, rng), "actor": actor, "critic": critic}
    return {
        "actor": {"body": init_body(spec, rng), **actor},
        "critic": {"body": init_body(spec, rng), **critic},
    }


def select(params: Params, name: Literal["actor", "critic"]) -> Params:
    """One network, ``{"body", "head"}``, whether or not it shares its trunk."""
    return {"body": params["body"], **params[name]} if "body" in params else params[name]


class Inputs(NamedTuple):
    """Observations in the form that the first layers take, to share them between networks."""

    # (..., n); for a small grid what layers.grid_windows gives; for several parts a tuple with one entry for each;
    # for a network of the user's, the observation itself
    x: PyTree
    mask: Array | None = None  # (..., A) the actions allowed; None if all are, everywhere

    def steps(self, start: int, stop: int | None) -> Inputs:
        """The inputs of steps ``start`` to ``stop`` of rollouts (B, T, ...)."""
        cut: Inputs = jax.tree.map(lambda leaf: leaf[:, start:stop], self)
        return cut

    @property
    def n_steps(self) -> int:
        """T, of rollouts (B, T, ...)."""
        return int(jax.tree.leaves(self.x)[0].shape[1])


def inputs(spec: NetworkSpec, obs: Array | Inputs) -> Inputs:
    """Observations (..., *observation_shape) of any dtype, in the form that the first layers take."""
    if isinstance(obs, Inputs):
        return obs
    mask = spec.layout.mask(obs) if spec.layout is not None and spec.layout.masked else None
    values = values_of(spec, obs)
    if spec.normaliser is not None:
        values = values | normaliser.apply(spec.normaliser, values)
    if spec.own is not None and spec.layout is not None and len(spec.layout.seen) > 1:
        seen = spec.layout.seen
        return Inputs({one.name: layers.as_float(spec, values[one.name], one.high) for one in seen}, mask)
    if spec.kind == "parts":
        return Inputs(tuple(encoders.inputs(spec, one, values[one.part.name]) for one in spec.encoders), mask)
    plain = values[spec.plain_name]
    lead = plain.shape[: plain.ndim - len(spec.observation_shape)]
    x = layers.as_float(spec, plain, spec.byte_high)
    if spec.own is not None:
        return Inputs(x, mask)
    x = layers.grid_windows(spec.observation_shape, x) if spec.kind == "conv" else x.reshape(*lead, -1)
    return Inputs(x, mask)


def values_of(spec: NetworkSpec, obs: Array) -> dict[str, Array]:
    """Observations (..., *observation_shape) as the arrays (..., *part.shape) of their parts, by name."""
    return {spec.plain_name: obs} if spec.layout is None else spec.layout.unpack(obs)


def prepare(spec: NetworkSpec, params: Params) -> Params:
    """The networks with their kernels in the form that products take: for loops in which they do not change."""

    def prepared(node: PyTree) -> PyTree:
        if "own" in node:
            return node
        if layers.is_layer(node):
            return node | {"kernel": node["kernel"].astype(spec.precision)}
        node = node | {"dense": [prepared(layer) for layer in node["dense"]]}
        if "parts" in node:
            pairs = zip(spec.encoders, node["parts"], strict=True)
            return node | {"parts": [encoders.prepare(spec, one, part) for one, part in pairs]}
        return node | {"conv": layers.wide_kernel(spec, spec.observation_shape, node["conv"])}

    def layer_or_body(node: PyTree) -> bool:
        return isinstance(node, dict) and bool({"kernel", "conv", "parts", "own"} & node.keys())

    made: Params = jax.tree.map(prepared, params, is_leaf=layer_or_body)
    return made


def logits_and_q(spec: NetworkSpec, params: Params, obs: Array | Inputs) -> tuple[Array, Array, Array]:
    """Both networks at once.

    Args:
        obs: (..., *observation_shape) of any dtype, or what :func:`inputs` made of them.

    Returns:
        logits (..., A), masked; the outputs of the critic's head (usually Q (..., A)); its features (..., width).
    """
    actor, critic = select(params, "actor"), select(params, "critic")
    obs = inputs(spec, obs)
    features = body(spec, critic["body"], obs)
    policy_features = features if spec.shared_trunk else body(spec, actor["body"], obs)
    logits = masked(head(spec, actor["head"], policy_features), obs.mask)
    return logits, head(spec, critic["head"], features), features


def policy_logits(spec: NetworkSpec, actor: Params, obs: Array | Inputs) -> Array:
    """The logits (..., A) of an actor ``{"body", "head"}``, masked."""
    obs = inputs(spec, obs)
    return masked(outputs(spec, actor, obs), obs.mask)


def outputs(spec: NetworkSpec, network: Params, obs: Array | Inputs) -> Array:
    """One network ``{"body", "head"}`` on observations (..., *observation_shape): the head's outputs."""
    return head(spec, network["head"], body(spec, network["body"], obs))


def head(spec: NetworkSpec, layer: Layer, features: Array) -> Array:
    """Features (..., width) to the head's outputs (usually one per action), float32."""
    outputs: Array = layers.product(spec, layer["kernel"], features, jnp.float32) + layer["bias"]
    return outputs if "unit" not in layer else outputs * units.factor(layer["unit"])


def body(spec: NetworkSpec, params: Params, obs: Array | Inputs) -> Array:
    """Observations (..., *observation_shape) to features (..., width)."""
    x = inputs(spec, obs).x
    if spec.own is not None:
        return spec.own.apply(params["own"], x)
    if isinstance(x, tuple):
        parts = zip(spec.encoders, params["parts"], x, strict=True)
        x = encoders.join([encoders.apply(spec, *part) for part in parts])
    elif spec.kind == "conv":
        x = layers.convolve_grid(spec, spec.observation_shape, params["conv"], x, spec.conv_features)
    for layer in params["dense"]:
        x = layers.activate(spec, layer, layers.product(spec, layer["kernel"], x))
    features: Array = x
    return features


def init_body(spec: NetworkSpec, rng: np.random.Generator) -> Params:
    """Orthogonal layers of one body, or what the user's network starts with."""
    if spec.own is not None:
        return {"own": spec.own.shapes() if isinstance(rng, ShapesOnly) else spec.own.init(rng), "dense": []}
    body: Params = {}
    if spec.kind == "parts":
        body["parts"] = [encoders.init(spec, one, rng) for one in spec.encoders]
    elif spec.kind == "conv":
        body["conv"] = hidden(spec, rng, KERNEL * KERNEL * spec.observation_shape[2], spec.conv_features)
    sizes = [spec.n_flat, *spec.dense_widths]
    body["dense"] = [hidden(spec, rng, n_in, n_out) for n_in, n_out in itertools.pairwise(sizes)]
    return body
