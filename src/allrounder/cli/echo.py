"""Print plain text. Unlike `display`, this does not import rich, which takes time."""

from __future__ import annotations

import sys

PIPE_WIDTH = 110
"""The width of tables and lists if the output is not a terminal."""


def echo(text: str) -> None:
    """Print a text unchanged: no colours, no markup, no wrapping."""
    print(text, flush=True)


def echo_error(text: str) -> None:
    """Print a text unchanged to standard error."""
    print(text, file=sys.stderr, flush=True)
