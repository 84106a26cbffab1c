"""A policy as an ONNX file: observations as the environment gives them in, probabilities, action and value out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from capo.arrays import NDArray, PyTree
from capo.envs.protocol import Env, EnvSpec, is_jitted
from capo.errors import CapoError
from capo.files import write_bytes
from capo.neural.algorithms.base import Algorithm
from capo.neural.parts.normaliser import scale_of
from capo.neural.parts.onnx_graph import Graph

TOLERANCE = 1e-4  # of the check before the file is written
CHECKED = 3  # observations


def write_onnx(path: Path, algorithm: Algorithm, params: PyTree, env: Env, expected: Any) -> None:
    """Write a policy; before that it is played on some observations and compared.

    Args:
        path: the file.
        algorithm: whose networks they are.
        params: of one seed, numpy arrays.
        env: the environment.
        expected: ``agent.policy``, what the file is compared with.

    Raises:
        CapoError: if onnx is missing, the networks or the observations can't be written as a graph, the graph
            computes something else, or the file can't be written.
    """
    model = build(algorithm, params, env)
    _check(model, env, expected)
    write_bytes(path, model.SerializeToString())


def build(algorithm: Algorithm, params: PyTree, env: Env) -> Any:
    """The ONNX model, preprocessing included: ``observation`` and optionally ``action_mask`` in."""
    spec = EnvSpec(env)
    if spec.factors:
        raise CapoError(f"{spec.name!r} has actions of several factors, which can't be exported yet")
    if algorithm.config.frame_stack > 1:
        raise CapoError("a policy that sees a stack of frames (frame_stack) can't be exported yet")
    graph = Graph()
    x = _observations(graph, algorithm, spec, getattr(env, "observation_space", None))
    everything = np.ones((1, spec.n_actions), np.bool_)
    mask = graph.input("action_mask", np.bool_, ("mask_batch", spec.n_actions), default=everything)
    scores, values = algorithm.export(graph, params, x)
    scores = graph.node("Where", mask, scores, graph.constant(-np.inf))
    best = graph.node("ArgMax", scores, axis=-1, keepdims=0)
    if algorithm.samples:
        pi = graph.node("Softmax", scores, axis=-1)
    else:
        off_on = graph.constant([0, 1])
        pi = graph.node("OneHot", best, graph.constant(spec.n_actions, np.int64), off_on, axis=-1)
    action = graph.node("Add", best, graph.constant(spec.first_action, np.int64))
    if algorithm.network.critic_outputs == 1:
        value = graph.reshape(values, -1)
    else:
        weighted = graph.node("Mul", pi, values)
        value = graph.node("ReduceSum", weighted, graph.constant([1], np.int64), keepdims=0)
    graph.output("action", action, np.int64, ("batch",))
    graph.output("probabilities", pi, np.float32, ("batch", spec.n_actions))
    graph.output("value", value, np.float32, ("batch",))
    return graph.finish("policy", {"environment": spec.name, "algorithm": algorithm.name})


def _observations(graph: Graph, algorithm: Algorithm, spec: EnvSpec, space: Any) -> str:
    """The input ``observation`` in the environment's own form, made into what the networks take."""
    if len(spec.seen) > 1:
        raise CapoError(f"{spec.name!r} has observations of several parts, which can't be exported yet")
    (part,) = spec.seen
    shape, dtype = part.shape, np.dtype(part.dtype)
    if hasattr(space, "n") and spec.raw_shape == () and dtype == np.bool_:  # Discrete
        raw = graph.input("observation", np.int64, ("batch",))
        index = graph.node("Sub", raw, graph.constant(int(getattr(space, "start", 0)), np.int64))
        return graph.node("OneHot", index, graph.constant(shape[0], np.int64), graph.constant([0, 1]), axis=-1)
    if spec.raw_shape not in (shape, ()):
        raise CapoError(
            f"{spec.name!r} has observations that are encoded before the networks see them ({spec.raw_shape} to "
            f"{shape}), which can't be exported: wrap the environment so that it gives one array"
        )
    given = np.dtype(getattr(space, "dtype", None) or dtype)
    x = graph.input("observation", given, ("batch", *spec.raw_shape))
    if given != dtype:
        x = graph.cast(x, dtype)
    if dtype != np.float32:
        x = graph.cast(x, np.float32)
    if dtype == np.uint8:
        x = graph.node("Div", x, graph.constant(algorithm.network.byte_high))
    x = graph.reshape(x, -1, *shape)
    statistics = algorithm.network.normaliser
    return x if statistics is None else graph.normalised(x, *scale_of(statistics[part.name]))


def _check(model: Any, env: Env, expected: Any) -> None:
    """Raise unless the graph computes what the agent does."""
    from onnx.reference import ReferenceEvaluator

    observations = _samples(env)
    _, probabilities, values = ReferenceEvaluator(model).run(None, {"observation": observations})
    wanted = expected(observations, action_masks=np.ones(int(env.n_actions), np.bool_))
    same = all(
        np.allclose(found, right, rtol=TOLERANCE, atol=TOLERANCE)
        for found, right in ((probabilities, wanted.probabilities), (values, wanted.values))
    )
    if not same:
        raise CapoError(
            f"the graph of {env.name!r} does not compute what the agent does, so no file was written: its "
            "observations are changed in a way that can't be exported yet"
        )


def _samples(env: Env) -> NDArray:
    """A few observations as the environment gives them."""
    if is_jitted(env):
        keys = jax.random.split(jax.random.PRNGKey(0), CHECKED)
        return np.stack([np.asarray(env.reset(key)[1]) for key in keys])
    space: Any = getattr(env, "observation_space")  # noqa: B009 - only Gymnasium's have one
    return np.stack([np.asarray(space.sample()) for _ in range(CHECKED)])
