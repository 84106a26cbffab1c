"""A policy as an ONNX file: observations as the environment gives them in, probabilities, action and value out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np

from capo.arrays import NDArray, PyTree
from capo.envs.layout import MASK, Part
from capo.envs.protocol import Env, EnvSpec, is_jitted
from capo.envs.spaces import Bits, Categories, Leaf, Numbers, Pixels, nested
from capo.errors import CapoError
from capo.files import write_bytes
from capo.neural.algorithms.base import Algorithm
from capo.neural.parts.normaliser import ByPart, scale_of
from capo.neural.parts.onnx_graph import Graph

TOLERANCE = 1e-4  # of the check before the file is written
CHECKED = 4  # observations
_OUTPUTS = ("action", "probabilities", "value")
LARGEST = 100.0  # number in them: a Box may allow numbers that no network can compute with

Expected = Callable[[Any, Any], tuple[NDArray, NDArray]]
"""A batch of observations and their masks (N, A) to probabilities (N, A) and values (N,)."""


def write_onnx(path: Path, algorithm: Algorithm, params: PyTree, env: Env, expected: Expected) -> None:
    """Write a policy; before that it is played on some observations and compared.

    Args:
        path: the file.
        algorithm: whose networks they are.
        params: of one seed, numpy arrays.
        env: the environment, with the wrappers of the settings.
        expected: what the file is compared with.

    Raises:
        CapoError: if onnx is missing, the networks or the observations can't be written as a graph, the graph
            computes something else, or the file can't be written.
    """
    model = build(algorithm, params, env)
    _check(model, env, expected)
    write_bytes(path, model.SerializeToString())


def build(algorithm: Algorithm, params: PyTree, env: Env) -> Any:
    """The ONNX model, preprocessing included: the observation and optionally ``action_mask`` in."""
    spec = EnvSpec(env)
    graph = Graph()
    parts = _parts(graph, env)
    taken = _as_taken(graph, parts, spec.seen, algorithm.network.normaliser)
    everything = np.ones((1, spec.n_actions), np.bool_)
    mask = graph.input(MASK, np.bool_, ("mask_batch", spec.n_actions), default=everything)
    scores, values = algorithm.export(graph, params, taken, mask if spec.masked else None)
    pi, action, shape = _choice(graph, spec, graph.node("Where", mask, scores, graph.constant(-np.inf)), algorithm)
    if algorithm.network.critic_outputs == 1:
        value = graph.reshape(values, -1)
    else:
        weighted = graph.node("Mul", pi, values)
        value = graph.node("ReduceSum", weighted, graph.constant([1], np.int64), keepdims=0)
    shapes, dtypes = (shape, (spec.n_actions,), ()), (np.int64, np.float32, np.float32)
    for name, found, dtype, own in zip(_OUTPUTS, (action, pi, value), dtypes, shapes, strict=True):
        graph.output(name, found, dtype, ("batch", *own))
    return graph.finish("policy", {"environment": spec.name, "algorithm": algorithm.name})


# Observations -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Input:
    """An input of the graph: one array of an observation, as the environment gives it."""

    part: str  # its name in the observation
    shape: tuple[int, ...]  # without the batch axis
    dtype: np.dtype[Any]
    leaf: Leaf | None = None  # how it is encoded; None if that is not needed
    frames: int = 1  # that are joined along its last axis

    @property
    def name(self) -> str:
        """Of the input."""
        return f"{self.part}_observation" if self.part in (MASK, *_OUTPUTS) else self.part


def _inputs(env: Env) -> list[_Input]:
    """What the environment gives."""
    spec = EnvSpec(env)
    leaves: tuple[Leaf, ...] = getattr(env, "leaves", ())
    if len(leaves) == 1 and not leaves[0].path:
        return [_Input("observation", spec.raw_shape, leaves[0].raw_dtype, leaves[0], spec.frame_stack)]
    if leaves:
        return [_Input(leaf.parts[0].name, leaf.raw_shape, leaf.raw_dtype, leaf) for leaf in leaves]
    if len(spec.seen) == 1:
        (part,) = spec.seen
        return [_Input("observation", part.shape, np.dtype(getattr(env, "observation_dtype", part.dtype)))]
    return [_Input(part.name, part.shape, np.dtype(part.dtype)) for part in spec.seen]


def _parts(graph: Graph, env: Env) -> list[str]:
    """The inputs, and what holds each part (N, *part.shape) that is seen, in order."""
    found = []
    for one in _inputs(env):
        x = graph.input(one.name, one.dtype, ("batch", *one.shape))
        if one.leaf is None:
            found.append(x)
            continue
        size = one.shape[-1] // one.frames if one.frames > 1 else 0
        frames = [graph.cut(x, i * size, (i + 1) * size) for i in range(one.frames)] if size else [x]
        encoded = [_encoded(graph, one.leaf, graph.reshape(frame, -1, *one.leaf.raw_shape)) for frame in frames]
        found += [graph.joined(list(each)) for each in zip(*encoded, strict=True)]
    return found


def _encoded(graph: Graph, leaf: Leaf, x: str) -> list[str]:
    """What :attr:`Leaf.encode` does: (N, *raw_shape) to (N, *part.shape) for each part."""
    shapes = [part.shape for part in leaf.parts]
    match leaf.encode:
        case Bits():
            return [graph.reshape(graph.cast(x, np.bool_), -1, *shapes[0])]
        case Pixels(axes=axes):
            moved = graph.node("Transpose", x, perm=[0, *(axis + 1 for axis in axes)]) if axes else x
            return [graph.reshape(moved, -1, *shapes[0])]
        case Numbers(dtype=dtype):
            return [graph.reshape(graph.cast(x, dtype), -1, *shapes[0])]
        case Categories() as encode:
            return _categories(graph, encode, graph.cast(graph.reshape(x, -1, len(encode.sizes)), np.int64))


def _categories(graph: Graph, encode: Categories, x: str) -> list[str]:
    """Entries (N, k) to bits, indices of a table's rows, or both."""
    places = graph.node("Add", x, graph.constant(encode.offsets - encode.starts, np.int64))
    found = []
    for kind, one_hot in ((~encode.long, True), (encode.long, False)):
        if not kind.any():
            continue
        of_kind = graph.node("Gather", places, graph.constant(np.flatnonzero(kind), np.int64), axis=1)
        if one_hot:
            width = graph.constant(int(encode.sizes[kind].sum()), np.int64)
            each = graph.node("OneHot", of_kind, width, graph.constant([0, 1]), axis=-1)
            of_kind = graph.node("ReduceMax", each, axes=[1], keepdims=0)
        found.append(of_kind)
    return found


def _as_taken(
    graph: Graph, found: Sequence[str], seen: Sequence[Part], normaliser: ByPart | None
) -> Mapping[str, str]:
    """The parts by name, as the networks take them: floats, bytes in [0, 1], normalised; categories as int64."""
    taken = {}
    for x, part in zip(found, seen, strict=True):
        if part.classes:
            taken[part.name] = graph.cast(x, np.int64)
            continue
        x = graph.cast(x, np.float32)
        if part.dtype == "uint8":
            x = graph.node("Div", x, graph.constant(part.high))
        statistics = (normaliser or {}).get(part.name)
        taken[part.name] = x if statistics is None else graph.normalised(x, *scale_of(statistics))
    return taken


# Actions ----------------------------------------------------------------------------------------------------


def _choice(graph: Graph, spec: EnvSpec, scores: str, algorithm: Algorithm) -> tuple[str, str, tuple[int, ...]]:
    """Probabilities (N, A), the most likely action in the environment's numbers, and the shape that it has."""
    probabilities, actions = [], []
    for start, end in pairwise(accumulate(spec.factors or (spec.n_actions,), initial=0)):
        own = graph.cut(scores, start, end) if spec.factors else scores
        best = graph.node("ArgMax", own, axis=-1, keepdims=1)
        actions.append(graph.node("Add", best, graph.constant(start, np.int64)))
        if algorithm.samples:
            probabilities.append(graph.node("Softmax", own, axis=-1))
        else:
            places = (graph.constant(end - start, np.int64), graph.constant([0, 1]))
            probabilities.append(graph.node("OneHot", graph.reshape(best, -1), *places, axis=-1))
    first = np.asarray(spec.first_action)
    action = graph.reshape(graph.joined(actions), -1, *first.shape)
    return graph.joined(probabilities), graph.node("Add", action, graph.constant(first, np.int64)), first.shape


# The check --------------------------------------------------------------------------------------------------


def _check(model: Any, env: Env, expected: Expected) -> None:
    """Raise unless the graph computes what the agent does, with and without masks."""
    from onnx.reference import ReferenceEvaluator

    spec, graph = EnvSpec(env), ReferenceEvaluator(model)
    inputs, observations = _samples(env)
    everything = np.ones((CHECKED, spec.n_actions), np.bool_)
    for mask in (everything, _some_allowed(spec)):
        _, *found = graph.run(None, {**inputs, MASK: mask})
        for one, wanted in zip(found, expected(observations, mask), strict=True):
            if not np.allclose(one, wanted, rtol=TOLERANCE, atol=TOLERANCE):
                raise CapoError(
                    f"the exported graph of {spec.name!r} does not reproduce the agent, so no file was "
                    "written: its observations are transformed in a way that cannot be exported yet"
                )


def _some_allowed(spec: EnvSpec) -> NDArray:
    """Random masks (CHECKED, A) that allow something of every factor."""
    rng = np.random.default_rng(0)
    mask = rng.random((CHECKED, spec.n_actions)) < 0.5
    for start, end in pairwise(accumulate(spec.factors or (spec.n_actions,), initial=0)):
        mask[np.arange(CHECKED), rng.integers(start, end, CHECKED)] = True
    return mask


def _samples(env: Env) -> tuple[dict[str, NDArray], Any]:
    """A few observations: the graph's inputs, and a batch as ``predict`` takes it."""
    inputs = _inputs(env)
    if is_jitted(env):
        keys = jax.random.split(jax.random.PRNGKey(0), CHECKED)
        rows = np.stack([np.asarray(env.reset(key)[1]) for key in keys])
        layout = getattr(env, "layout", None)
        parts = {"observation": rows} if layout is None else layout.unpack(rows)
        return {one.name: parts[one.part] for one in inputs}, rows
    arrays = {one.name: _drawn(one, env) for one in inputs}
    leaves = {one.leaf.path: arrays[one.name] for one in inputs if one.leaf is not None}
    if () in leaves or not leaves:
        return arrays, arrays["observation"]
    return arrays, nested(leaves)


def _drawn(one: _Input, env: Any) -> NDArray:
    """Random values (CHECKED, *shape) of an input."""
    if one.leaf is None:
        return np.random.default_rng(0).integers(0, 256, (CHECKED, *one.shape)).astype(one.dtype)
    space = env.observation_space
    for key in one.leaf.path:
        space = space[key]
    drawn = []
    for _ in range(CHECKED):
        frames = [np.asarray(space.sample()) for _ in range(one.frames)]
        drawn.append(np.concatenate(list(map(np.atleast_1d, frames)), axis=-1) if one.frames > 1 else frames[0])
    values = np.stack(drawn).astype(one.dtype)
    return values.clip(-LARGEST, LARGEST) if one.dtype.kind == "f" else values
