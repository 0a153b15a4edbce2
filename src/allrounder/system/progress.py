"""Who is told how a training goes on."""

from __future__ import annotations

import logging
from typing import Protocol, final, runtime_checkable

LOG = logging.getLogger("allrounder")


@runtime_checkable
class Progress(Protocol):
    """A listener; the terminal's lives with the command line, so that a library user hears nothing."""

    def begin(self, total: int, done: int) -> None:
        """The number of steps, and how many an earlier session took."""

    def step(self, t: int) -> None:
        """Step t is done."""

    def say(self, text: str) -> None:
        """One line for the reader."""


@final
class Silent:
    """Shows nothing."""

    def begin(self, total: int, done: int) -> None:
        """Nothing."""

    def step(self, t: int) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """What concerns a reader goes to the log."""
        LOG.info(text)
