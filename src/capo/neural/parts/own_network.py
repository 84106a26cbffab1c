"""A network that the user brings: the body, from an observation to features; its heads are capo's own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from capo.arrays import Array, PyTree
from capo.envs.failures import describe_error
from capo.envs.layout import Part
from capo.errors import CapoError

_CONTRACT = (
    "a network needs init(key, observation) -> params and apply(params, observation) -> features (n,), both for a "
    "single observation"
)


def check_network(given: Any) -> None:
    """Raise a CapoError unless this is an object with the two methods."""
    if isinstance(given, type) or not all(callable(getattr(given, name, None)) for name in ("init", "apply")):
        shown = repr(given) if isinstance(given, str | int) else f"an object of type {type(given).__name__}"
        if isinstance(given, type):
            shown = f"the class {given.__name__}, not an instance of it"
        raise CapoError(
            f"network is {shown}; it must be 'auto', 'mlp', 'conv', 'nature', 'impala', or an object of your "
            f"own: {_CONTRACT}"
        )


class OwnNetwork:
    """A user's object on an environment. Two are equal only if they are the same object.

    Args:
        given: with ``init(key, observation)`` and ``apply(params, observation)``; the observation is a single
            one, in float32, bytes scaled to [0, 1].
        parts: what the networks see of an observation; if several, the object gets a dict of them by name.

    Attributes:
        n_features: numbers that it gives to the heads.
        digest: of the names and shapes of its parameters.

    Raises:
        CapoError: if a method is missing or fails, or returns something else.
    """

    def __init__(self, given: Any, parts: Sequence[Part]) -> None:
        check_network(given)
        self.name = type(given).__name__
        self._given = given
        self._shape: Any = {part.name: part.shape for part in parts} if len(parts) > 1 else parts[0].shape
        key, observation = jax.random.PRNGKey(0), self._zeros()
        self._shapes = self._traced(given.init, key, observation)
        wrong = [
            jax.tree_util.keystr(path)
            for path, leaf in jax.tree_util.tree_leaves_with_path(self._shapes)
            if leaf.dtype != jnp.float32
        ]
        if wrong:
            raise CapoError(f"network {self.name}: init must return float32 arrays only; {wrong[0]} is not one")
        features = self._traced(given.apply, self._shapes, observation)
        if not isinstance(features, jax.ShapeDtypeStruct) or features.ndim != 1 or not features.size:
            shown = getattr(features, "shape", type(features).__name__)
            raise CapoError(
                f"network {self.name}: apply returned {shown}, not features of shape (n,); {_CONTRACT}"
            )
        self.n_features = int(features.size)
        leaves = jax.tree_util.tree_leaves_with_path(self._shapes)
        shapes = str([(jax.tree_util.keystr(path), leaf.shape) for path, leaf in leaves])
        self.digest = hashlib.sha256(shapes.encode()).hexdigest()[:16]

    def _traced(self, method: Callable[..., Any], *arguments: Any) -> PyTree:
        """The shapes that a method returns."""
        try:
            return jax.eval_shape(method, *arguments)
        except Exception as error:
            raise CapoError(
                f"network {self.name} on an observation of shape {self._shape} raised {describe_error(error)}; "
                f"{_CONTRACT}"
            ) from error

    def shapes(self) -> PyTree:
        """The shapes of its parameters."""
        return self._shapes

    def init(self, rng: np.random.Generator) -> PyTree:
        """New parameters."""
        key = jax.random.PRNGKey(int(rng.integers(2**31)))
        return self._given.init(key, self._zeros())

    def _zeros(self) -> PyTree:
        """An observation of the right shape."""
        if isinstance(self._shape, dict):
            return {name: jnp.zeros(shape) for name, shape in self._shape.items()}
        return jnp.zeros(self._shape)

    def apply(self, params: PyTree, x: PyTree) -> Array:
        """Features (..., n_features) of observations (..., *observation_shape), or of a dict of parts; float32."""
        if isinstance(x, dict):
            first = next(iter(self._shape))
            lead = x[first].shape[: x[first].ndim - len(self._shape[first])]
            rows: PyTree = {name: x[name].reshape(-1, *shape) for name, shape in self._shape.items()}
        else:
            lead = x.shape[: x.ndim - len(self._shape)]
            rows = x.reshape(-1, *self._shape)
        features: Array = jax.vmap(self._given.apply, in_axes=(None, 0))(params, rows)
        return features.astype(jnp.float32).reshape(*lead, self.n_features)
