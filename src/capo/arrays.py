"""The array types of everything that runs inside jax, named once."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import numpy as np

Array: TypeAlias = jax.Array
"""An array inside jax, or a traced one."""
NDArray: TypeAlias = np.ndarray[Any, Any]
"""An array of numpy, of any shape and dtype."""
PyTree: TypeAlias = Any
"""Nested dicts, tuples and dataclasses of arrays; its structure stands in the docstring of whoever takes it."""
Metrics: TypeAlias = dict[str, Array]
"""Scalars to log, by the name of their column."""
