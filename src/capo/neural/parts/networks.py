"""Actor and critic as plain parameter trees and pure functions.

No network library: there are only two kinds of layer, dense and a 3x3 convolution written as a matrix product,
and a plain tree of arrays is easy to vmap over seeds, to average into target networks and to checkpoint.
A real convolution would become a grouped one under vmap, which is slow on every device. Here three whole rows of
the grid, side by side, are multiplied by one banded matrix to give a row of the result: a (batched) product of
about 100 x 100, which suits matrix units, on an input copied three times rather than nine.

A *body* maps observations to features, a *head* maps features to numbers, usually one per action. Trees:

    separate trunks: {"actor": {"body", "head"}, "critic": {"body", "head"}}
    shared trunk:    {"body", "actor": {"head"}, "critic": {"head"}}
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from capo.arrays import Array, PyTree
from capo.envs.layout import Layout
from capo.errors import CapoError
from capo.neural.parts import normaliser
from capo.neural.parts.layer_norm import kernels_run_here, normalise
from capo.neural.parts.normaliser import Statistics

Params: TypeAlias = PyTree
"""Nested dicts and lists of layers: one network or several."""
Layer: TypeAlias = dict[str, PyTree]
"""Arrays by name: kernel (n_in, n_out), bias (n_out,), and what LayerNorm or noise add."""

KERNEL = 3
# A banded matrix has W/3 times the entries it needs: beyond this width it costs more than it saves.
MAX_BANDED_WIDTH = 16


@dataclass(frozen=True)
class NetworkSpec:
    """What the networks look like; decides the parameter tree."""

    kind: Literal["mlp", "conv"]
    observation_shape: tuple[int, ...]  # what the first layer takes: of the part seen, if there is a layout
    n_actions: int
    width: int
    conv_features: int
    layer_norm: bool
    shared_trunk: bool
    precision: Literal["float32", "bfloat16"] = "float32"
    activation: Literal["relu", "tanh"] = "relu"
    critic_outputs: int | None = None  # numbers that the critic's head gives; one per action if None
    dense_layers: int | None = None  # if None: one after a convolution, two without one
    byte_high: int = 255  # the largest value of observations that are bytes
    layout: Layout | None = None  # if given, observations are rows of bytes packed by it
    normaliser: Statistics | None = field(default=None, compare=False)  # of observations, if normalised

    @property
    def n_dense(self) -> int:
        """Dense layers of a body."""
        return self.dense_layers if self.dense_layers is not None else 1 if self.kind == "conv" else 2

    @property
    def n_features(self) -> int:
        """Numbers that a body gives to the heads."""
        return self.width if self.n_dense else self.n_flat

    @property
    def n_flat(self) -> int:
        """Numbers that go into the first dense layer."""
        shape = self.observation_shape
        if self.kind == "mlp":
            return math.prod(shape)
        return (shape[0] - KERNEL + 1) * (shape[1] - KERNEL + 1) * self.conv_features


class NetworkSettings(Protocol):
    """The settings that decide what the networks look like; ``shared_trunk`` and ``activation`` are optional."""

    @property
    def network(self) -> Literal["auto", "mlp", "conv"]: ...
    @property
    def width(self) -> int: ...
    @property
    def conv_features(self) -> int: ...
    @property
    def layer_norm(self) -> bool: ...


def spec_for(config: NetworkSettings, observation_shape: tuple[int, ...], n_actions: int) -> NetworkSpec:
    """The networks for an environment; ``auto`` chooses the convolution for image grids (three axes)."""
    image = len(observation_shape) == 3 and min(observation_shape[:2]) >= KERNEL
    if config.network == "conv" and not image:
        raise CapoError(
            f"network='conv' needs observations (height, width, channels) of at least 3x3; "
            f"these have shape {observation_shape}: use network='mlp'"
        )
    kind: Literal["mlp", "conv"] = "conv" if image and config.network in ("auto", "conv") else "mlp"
    return NetworkSpec(
        kind,
        tuple(observation_shape),
        n_actions,
        config.width,
        config.conv_features,
        config.layer_norm,
        getattr(config, "shared_trunk", True),
        activation=getattr(config, "activation", "relu"),
    )


def precision(asked: str, observation_dtype: DTypeLike) -> Literal["float32", "bfloat16"]:
    """Resolve ``auto``: bfloat16 on an accelerator, for observations it represents exactly (bits, bytes)."""
    exact = np.dtype(observation_dtype) in (np.dtype(np.bool_), np.dtype(np.uint8))
    half = asked == "bfloat16" or (asked == "auto" and exact and jax.default_backend() != "cpu")
    return "bfloat16" if half else "float32"


class ShapesOnly(np.random.Generator):
    """Given instead of a generator, makes the functions below return shapes instead of arrays."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))


def shapes(**layer: tuple[int, ...]) -> Layer:
    """A layer as it is made with :class:`ShapesOnly`."""
    return {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in layer.items()}  # type: ignore[no-untyped-call]


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
    """Observations in the form that a first layer takes, to share them between networks."""

    x: Array  # (..., n); for a convolution (..., H-2, n), on a wide grid (..., H-2, W-2, n): see _windows

    def steps(self, start: int, stop: int | None) -> Inputs:
        """The inputs of steps ``start`` to ``stop`` of rollouts (B, T, ...)."""
        return Inputs(self.x[:, start:stop])


def inputs(spec: NetworkSpec, obs: Array | Inputs) -> Inputs:
    """Observations (..., *observation_shape) of any dtype, in the form that the first layer takes."""
    if isinstance(obs, Inputs):
        return obs
    x = as_numbers(spec, obs)
    lead = x.shape[: x.ndim - len(spec.observation_shape)]
    if spec.normaliser is not None:
        x = normaliser.apply(spec.normaliser, x).astype(x.dtype)
    return Inputs(_windows(spec, x) if spec.kind == "conv" else x.reshape(*lead, -1))


def as_numbers(spec: NetworkSpec, obs: Array) -> Array:
    """Observations (..., *observation_shape) of any dtype as floating-point numbers, taken out of their layout."""
    if spec.layout is not None:
        (part,) = spec.layout.seen
        obs = spec.layout.unpack(obs)[part.name]
    return _as_float(obs, spec)


def prepare(spec: NetworkSpec, params: Params) -> Params:
    """The networks with their kernels in the form that products take: for loops in which they do not change."""

    def prepared(node: PyTree) -> PyTree:
        if "conv" in node:
            return node | {
                "conv": _wide(spec, node["conv"]),
                "dense": [prepared(layer) for layer in node["dense"]],
            }
        return node | {"kernel": node["kernel"].astype(spec.precision)}

    def layer_or_convolving_body(node: PyTree) -> bool:
        return isinstance(node, dict) and ("kernel" in node or "conv" in node)

    made: Params = jax.tree.map(prepared, params, is_leaf=layer_or_convolving_body)
    return made


def logits_and_q(spec: NetworkSpec, params: Params, obs: Array | Inputs) -> tuple[Array, Array, Array]:
    """Both networks at once.

    Args:
        obs: (..., *observation_shape) of any dtype, or what :func:`inputs` made of them.

    Returns:
        logits (..., A), the outputs of the critic's head (usually Q (..., A)), and its features (..., width).
    """
    actor, critic = select(params, "actor"), select(params, "critic")
    obs = inputs(spec, obs)
    features = body(spec, critic["body"], obs)
    policy_features = features if spec.shared_trunk else body(spec, actor["body"], obs)
    return head(spec, actor["head"], policy_features), head(spec, critic["head"], features), features


def outputs(spec: NetworkSpec, network: Params, obs: Array | Inputs) -> Array:
    """One network ``{"body", "head"}`` on observations (..., *observation_shape): the head's outputs."""
    return head(spec, network["head"], body(spec, network["body"], obs))


def head(spec: NetworkSpec, layer: Layer, features: Array) -> Array:
    """Features (..., width) to the head's outputs (usually one per action), float32."""
    outputs: Array = _product(spec, layer["kernel"], features, jnp.float32) + layer["bias"]
    return outputs


def body(spec: NetworkSpec, layers: Params, obs: Array | Inputs) -> Array:
    """Observations (..., *observation_shape) to features (..., width)."""
    x = inputs(spec, obs).x
    if spec.kind == "conv":
        x = _convolve(spec, layers["conv"], x)
    for layer in layers["dense"]:
        x = _activate(spec, layer, _product(spec, layer["kernel"], x))
    return x


def _as_float(obs: Array, spec: NetworkSpec) -> Array:
    """Booleans to 0 and 1, bytes (images, boards) to [0, 1]."""
    dtype = jnp.dtype(spec.precision)
    return obs.astype(dtype) / spec.byte_high if obs.dtype == jnp.uint8 else obs.astype(dtype)


def _windows(spec: NetworkSpec, x: Array) -> Array:
    """What a 3x3 convolution multiplies, (..., H, W, C) to (..., H-2, n): three whole rows side by side.

    On a wide grid, nine shifted copies, (..., H-2, W-2, 9 C).
    """
    height, width, _ = spec.observation_shape
    rows, columns = height - KERNEL + 1, width - KERNEL + 1
    if width > MAX_BANDED_WIDTH:
        shifts = [x[..., i : i + rows, j : j + columns, :] for i in range(KERNEL) for j in range(KERNEL)]
        return jnp.concatenate(shifts, axis=-1)
    lines = x.reshape(*x.shape[:-3], height, -1)
    # Materialised once: otherwise bits are unpacked again for each of the three copies.
    lines = jax.lax.optimization_barrier(lines)  # type: ignore[no-untyped-call]
    return jnp.concatenate([lines[..., i : i + rows, :] for i in range(KERNEL)], axis=-1)


def _convolve(spec: NetworkSpec, layer: Layer, windows: Array) -> Array:
    """3x3 convolution without padding as one matrix product; :func:`_windows` to (..., (H-2) (W-2) F)."""
    layer = _wide(spec, layer)
    product = _product(spec, layer["kernel"], windows)
    lead = windows.shape[: windows.ndim - (3 if spec.observation_shape[1] > MAX_BANDED_WIDTH else 2)]
    pixels = _activate(spec, layer, product.reshape(*lead, -1, spec.conv_features))
    return pixels.reshape(*lead, -1)


def _wide(spec: NetworkSpec, layer: Layer) -> Layer:
    """A convolution with its kernel as the matrix that multiplies the windows (it may be that already)."""
    _, width, channels = spec.observation_shape
    if width <= MAX_BANDED_WIDTH and layer["kernel"].shape[0] == KERNEL * KERNEL * channels:
        layer = layer | {"kernel": _banded(layer["kernel"], width)}
    return layer | {"kernel": layer["kernel"].astype(spec.precision)}


def _banded(kernel: Array, width: int) -> Array:
    """The kernel (9 C, F) as a matrix (3 W C, (W-2) F) from three whole rows to one row of the result."""
    columns = width - KERNEL + 1
    small = kernel.reshape(KERNEL, KERNEL, -1, kernel.shape[-1])
    shifted = [jnp.pad(small, ((0, 0), (j, columns - 1 - j), (0, 0), (0, 0))) for j in range(columns)]
    return jnp.stack(shifted, axis=3).reshape(-1, columns * kernel.shape[-1])


def _activate(spec: NetworkSpec, layer: Layer, product: Array) -> Array:
    """What follows a product (..., n): bias, LayerNorm if any, activation; in the product's dtype."""
    relu = spec.activation == "relu"
    if "scale" in layer:
        x = normalise(product, layer["bias"], layer["scale"], layer["shift"], relu, kernels_run_here())
        return x if relu else jnp.tanh(x.astype(jnp.float32)).astype(product.dtype)
    x = product.astype(jnp.float32) + layer["bias"]
    return (jax.nn.relu(x) if relu else jnp.tanh(x)).astype(product.dtype)


def _product(spec: NetworkSpec, kernel: Array, x: Array, result: type[np.generic] | None = None) -> Array:
    """``x @ kernel`` in the chosen precision; the product has the dtype ``result``, if given."""
    dtype = jnp.dtype(spec.precision)
    return jnp.matmul(x.astype(dtype), kernel.astype(dtype), preferred_element_type=result or dtype)


def init_body(spec: NetworkSpec, rng: np.random.Generator) -> Params:
    """Orthogonal layers of one body."""
    layers: Params = {}
    if spec.kind == "conv":
        layers["conv"] = _hidden(spec, rng, KERNEL * KERNEL * spec.observation_shape[2], spec.conv_features)
    sizes = [spec.n_flat, *(spec.width,) * spec.n_dense]
    layers["dense"] = [_hidden(spec, rng, n_in, n_out) for n_in, n_out in itertools.pairwise(sizes)]
    return layers


def _hidden(spec: NetworkSpec, rng: np.random.Generator, n_in: int, n_out: int) -> Layer:
    layer = dense(rng, n_in, n_out, scale=math.sqrt(2))  # the gain for relu, customary for tanh too
    if spec.layer_norm and isinstance(rng, ShapesOnly):
        layer |= shapes(scale=(n_out,), shift=(n_out,))
    elif spec.layer_norm:
        layer |= {"scale": np.ones(n_out, np.float32), "shift": np.zeros(n_out, np.float32)}
    return layer


def dense(rng: np.random.Generator, n_in: int, n_out: int, scale: float) -> Layer:
    """A kernel with orthonormal columns (or rows, if those are fewer) times ``scale``, and a bias of 0."""
    if isinstance(rng, ShapesOnly):
        return shapes(kernel=(n_in, n_out), bias=(n_out,))
    q, r = np.linalg.qr(rng.standard_normal((max(n_in, n_out), min(n_in, n_out))))
    q *= np.sign(np.diag(r))  # makes it uniform over the orthogonal matrices
    kernel = scale * (q if n_in >= n_out else q.T)
    return {"kernel": kernel.astype(np.float32), "bias": np.zeros(n_out, np.float32)}
