"""Reports of how far a training or an evaluation is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final, runtime_checkable

from typing_extensions import override

LOG = logging.getLogger("allrounder")


@runtime_checkable
class Progress(Protocol):
    """Receives the progress of a training or a download. The progress bars are in the command line, so that
    library users see none."""

    def begin(self, total: int, done: int) -> None:
        """Start with the number of steps and how many of them an earlier session took."""

    def step(self, t: int) -> None:
        """Step t is done."""

    def log(self, text: str) -> None:
        """A message of one line for the user."""


@final
class NullProgress(Progress):
    """Shows no progress; messages go to the log."""

    @override
    def log(self, text: str) -> None:
        LOG.info(text)


@final
@dataclass(frozen=True)
class ProgressEvent:
    """How far a job is, as it reports to its parent process."""

    name: str
    """The job."""
    done: int = 0
    total: int = 1
    stage: str = ""
    """What the job is doing: "training", or the probe of an evaluation."""
    fooled: int = 0
    """In an evaluation: the number of images that are fooled so far."""
    forwards: int = 0
    """In an evaluation: forward passes so far, in batches."""
    backwards: int = 0
    """In an evaluation: backward passes so far, in batches."""
    error: str = ""
    """Why the job failed, if it did."""


ProgressCallback: TypeAlias = Callable[[ProgressEvent], None]
