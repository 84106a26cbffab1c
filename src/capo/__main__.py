"""``python -m capo``: the same as ``capo``."""

from capo.cli import entry

entry()
