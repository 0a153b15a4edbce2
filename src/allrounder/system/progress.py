"""Reports of how far a training or an evaluation is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, final, runtime_checkable

from typing_extensions import override

LOG = logging.getLogger("allrounder")


@runtime_checkable
class Progress(Protocol):
    """Receives the progress of a training or a download."""

    def begin(self, total: int, done: int) -> None:
        """Start with the number of steps and how many of them an earlier session took."""

    def step(self, t: int) -> None:
        """Step t is done."""

    def log(self, text: str) -> None:
        """A message of one line for the user."""


@final
@dataclass(frozen=True)
class TrainingStatus:
    """What a training reports after every epoch, beside its steps; all of it is in its metrics."""

    epoch: int
    """The number of finished epochs."""
    epochs: int
    losses: Mapping[str, float] = field(default_factory=dict[str, float])
    """Each learner's mean loss over the last epoch."""
    shares: Mapping[str, float] = field(default_factory=dict[str, float])
    """Each learner's share in the mix; empty for a single learner."""
    accuracies: Mapping[str, float] = field(default_factory=dict[str, float])
    """Natural accuracy, and robust accuracy by threat, of the last validation."""
    next_exchange: int | None = None
    """The epoch of the next exchange, if there is one."""


@runtime_checkable
class StatusProgress(Protocol):
    """A progress that also shows losses and accuracies."""

    def report(self, status: TrainingStatus) -> None:
        """An epoch is done, or the training starts."""


def report_status(progress: Progress, status: TrainingStatus) -> None:
    """Report the status of a training, if the progress shows it."""
    if isinstance(progress, StatusProgress):
        progress.report(status)


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
