"""For the reference pages: docstrings as Markdown, which knows neither roles nor doctests.

``:class:`MDP` `` becomes ``MDP`` as code, and lines from ``>>>`` to the next empty one become a block of code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`~?([^`]+)`")
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Rewrites the docstrings as they are read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once per module, class, function and attribute."""
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", text)
