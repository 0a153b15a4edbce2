"""What a training and an evaluation take, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from allrounder.types import Passes


@final
@dataclass(frozen=True)
class LearnerCost:
    """What one learner takes: passes and seconds of a step, and bytes that it holds all the time."""

    name: str
    passes: Passes
    seconds: float
    weights: int
    momentum: int
    average: int
    memory: int
    part: int
    """Its part of the mixture: what it sends when the global weights are asked for."""

    @property
    def bytes(self) -> int:
        """All that it holds."""
        return self.weights + self.momentum + self.average + self.memory + self.part


@final
@dataclass(frozen=True)
class SuiteCost:
    """What some probes take on some images, at most."""

    images: int
    passes: Passes
    """For every image."""
    seconds: float


@final
@dataclass(frozen=True)
class Plan:
    """What a training takes, and the evaluation that its recipe names."""

    steps: int
    """Of an epoch."""
    epochs: int
    learners: tuple[LearnerCost, ...]
    fetch: float
    """Seconds until a batch is there."""
    activations: int
    """Bytes by which the process grew in a step, beyond what stays: activations, gradients, scratch."""
    validation: SuiteCost
    validations: int
    checkpoint: int
    """Bytes on disk."""
    checkpoint_seconds: float
    checkpoints: int
    exchanges: int
    evaluation: SuiteCost
    remarks: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> float:
        """A step of all learners, one after the other."""
        return self.fetch + sum(learner.seconds for learner in self.learners)

    @property
    def epoch_seconds(self) -> float:
        """The steps of an epoch."""
        return self.step_seconds * self.steps

    @property
    def seconds(self) -> float:
        """The whole training: steps, validations, checkpoints."""
        apart = self.validation.seconds * self.validations + self.checkpoint_seconds * self.checkpoints
        return self.epoch_seconds * self.epochs + apart

    @property
    def memory(self) -> int:
        """Bytes at the peak: what learners hold, and what comes and goes in a step."""
        return sum(learner.bytes for learner in self.learners) + self.activations

    @property
    def wire(self) -> int:
        """Bytes that are sent for an exchange or a validation where learners sit apart: every part once."""
        return sum(learner.part for learner in self.learners)
