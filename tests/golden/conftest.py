"""The golden numbers were recorded without LLVM's optimiser, which also makes compiling quick."""

from __future__ import annotations

import os

from golden_store import XLA_FLAGS

os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)  # before jax is imported
