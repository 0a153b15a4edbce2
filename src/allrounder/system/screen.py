"""Where a progress bar is drawn: a terminal, a notebook, or a stream of lines such as a file."""

from __future__ import annotations

import html
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from io import TextIOBase
from typing import Any, cast, final
from uuid import uuid4

from typing_extensions import override


class Screen(ABC):
    """Shows messages, and below them a few lines that are replaced."""

    seconds_between_draws: float | None = None
    """The shortest time between two calls of `draw`; None if the screen cannot replace lines."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Show a message, which stays."""

    @abstractmethod
    def draw(self, lines: Sequence[str]) -> None:
        """Replace the lines that were drawn last."""

    @abstractmethod
    def close(self) -> None:
        """Leave the lines that were drawn last as they are."""


@final
class LineScreen(Screen):
    """A file, a pipe or the log of a cluster: nothing can be replaced."""

    def __init__(self, stream: TextIOBase):
        self.stream = stream

    @override
    def write(self, text: str) -> None:
        self.stream.write(f"{text}\n")
        self.stream.flush()

    @override
    def draw(self, lines: Sequence[str]) -> None:
        pass

    @override
    def close(self) -> None:
        pass


@final
class TerminalScreen(Screen):
    """A terminal. Lines that are too long are cut, because a wrapped line cannot be replaced."""

    seconds_between_draws = 0.1

    def __init__(self, stream: TextIOBase):
        self.stream = stream
        self.lines: list[str] = []

    @override
    def write(self, text: str) -> None:
        self._replace([text, *self.lines], len(self.lines))

    @override
    def draw(self, lines: Sequence[str]) -> None:
        width = shutil.get_terminal_size().columns - 1
        drawn = len(self.lines)
        self.lines = [line[:width] for line in lines]
        self._replace(self.lines, drawn)

    @override
    def close(self) -> None:
        self.lines = []

    def _replace(self, lines: Sequence[str], count: int) -> None:
        """Write lines over the last `count` ones."""
        up = f"\x1b[{count}A" if count else ""
        self.stream.write(f"{up}\r\x1b[J" + "".join(f"{line}\n" for line in lines))
        self.stream.flush()


@final
class NotebookScreen(Screen):
    """The output of a cell: one block of text, which is sent again as a whole."""

    seconds_between_draws = 0.5

    def __init__(self, shell: Any):
        self.shell = shell
        self.display_id = uuid4().hex
        self.messages: list[str] = []
        self.lines: list[str] = []
        self.shown = False

    @override
    def write(self, text: str) -> None:
        self.messages.append(text)
        self._publish()

    @override
    def draw(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)
        self._publish()

    @override
    def close(self) -> None:
        pass

    def _publish(self) -> None:
        text = "\n".join([*self.messages, *self.lines])
        content = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
        transient = {"display_id": self.display_id}
        self.shell.display_pub.publish(data=content, metadata={}, transient=transient, update=self.shown)
        self.shown = True


def find_screen() -> Screen:
    """Return the screen of this process; a bar goes to standard error, so that output can be redirected."""
    # A notebook has imported IPython already; importing it here would take time elsewhere.
    ipython: Any = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    if hasattr(shell, "kernel"):
        return NotebookScreen(shell)
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    stream = cast(TextIOBase, sys.stderr)
    return TerminalScreen(stream) if is_terminal else LineScreen(stream)
