"""Most of the examples' time is compiling: machine code is not optimised."""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # before jax is imported
