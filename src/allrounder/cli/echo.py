"""Print plain text. Unlike `display`, this does not import rich, which takes time."""

from __future__ import annotations

import shutil
import sys
from contextvars import ContextVar

PIPE_WIDTH = 110
"""The width of tables and lists if the output is not a terminal and COLUMNS is not set."""
QUIET = ContextVar("quiet", default=False)
"""Whether only results are printed: the option --quiet."""


def echo(text: str) -> None:
    """Print a text unchanged: no colours, no markup, no wrapping."""
    print(text, flush=True)


def echo_note(text: str) -> None:
    """Print a text that is not a result; nothing with --quiet."""
    if not QUIET.get():
        echo(text)


def echo_error(text: str) -> None:
    """Print a text unchanged to standard error."""
    print(text, file=sys.stderr, flush=True)


def output_width() -> int:
    """Return the width of the output: COLUMNS, that of the terminal, or PIPE_WIDTH."""
    return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
