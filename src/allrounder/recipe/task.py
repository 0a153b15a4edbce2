"""The task of one learner: objective, optimiser, learning rate, augmentation and averaging."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, final

from pydantic import AfterValidator, Field

from allrounder.config.fields import FiniteFloat, OneOf, PositiveInt, frozen_config
from allrounder.config.phases import find_phases
from allrounder.config.schedules import LearningRate, OptionalDecay
from allrounder.data.augment import AUGMENTS, Augment, CropFlip
from allrounder.objectives import OBJECTIVES, Objective
from allrounder.optim import UPDATES, Descend, Update
from allrounder.optim.optimizers import AnyOptimizer, Sgd
from allrounder.types import Passes

GLOBAL = "global"
"""The name of the global weights among those of the learners."""
RESERVED_NAMES = (GLOBAL, "best", "last", "live")
MAX_NAME = 100
"""Characters of the name of a learner, which is part of the names of files."""
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
BatchSize = Annotated[PositiveInt, Field(ge=2)]
"""A number of images that batch-norm can compute a variance of."""


def _check_not_reserved(name: str) -> str:
    if name in RESERVED_NAMES:
        raise ValueError(f'"{name}" is reserved; a learner may not be called {", ".join(RESERVED_NAMES)}')
    return name


@final
@frozen_config
class Task:
    """One learner's sub-task: objective, optimiser, learning rate, augmentation, averaging."""

    name: Annotated[
        str, Field(pattern=NAME_PATTERN, max_length=MAX_NAME), AfterValidator(_check_not_reserved)
    ]
    """The learner's name in shares, logs and files."""
    objective: Annotated[Objective, OneOf(lambda: OBJECTIVES)]
    lr: LearningRate
    optimizer: AnyOptimizer = Sgd()
    update: Annotated[Update, OneOf(lambda: UPDATES)] = Descend()
    augment: Annotated[Augment, OneOf(lambda: AUGMENTS)] = CropFlip()
    augment_stream: str = "shared"
    """Tasks with the same stream see the same augmentation of a mini-batch, as released; a task with another
    name draws its own."""
    label_smoothing: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 0.0
    """Soft targets for the loss; attacks use the hard labels."""
    average: OptionalDecay = None
    """The decay of this learner's own weight average, which it then gives to the mix; false for none."""
    train_images: PositiveInt | None = None
    """Training images of this learner: its own class-balanced part of those of the recipe; by default all."""
    batch_size: BatchSize | None = None
    """Images of this learner's batches; by default those of the recipe. With this, train_images or
    extra_share, the learner draws its own batches, one for each of the recipe's steps, in passes over its
    images."""
    extra_share: Annotated[FiniteFloat, Field(ge=0, lt=1)] | None = None
    """The share of extra images in this learner's batches, 0 for none; by default that of the recipe."""

    @property
    def has_own_batches(self) -> bool:
        """Whether it draws its own batches, and does not train on those of the recipe."""
        own = (self.train_images, self.batch_size, self.extra_share)
        return any(value is not None for value in own)

    def mean_passes(self, epochs: int) -> Passes:
        """Return an upper bound on the mean passes of a step in a run of `epochs` epochs."""
        return self.total_passes(epochs) * Fraction(1, epochs)

    def total_passes(self, epochs: int) -> Passes:
        """Return an upper bound on the passes of every batch in a run of `epochs` epochs."""
        phases = find_phases(self.objective, epochs)
        ends = [*(start for start, _ in phases[1:]), epochs]
        spans = zip(phases, ends, strict=True)
        return sum((self.update.passes(part) * (end - start) for (start, part), end in spans), Passes())

    def shardable(self) -> bool:
        """Whether several ranks can share a batch: not if the method needs the whole batch or has a state
        that could differ between ranks."""
        needs_whole_batch = self.objective.needs_whole_batch() or self.update.whole_batch
        return not needs_whole_batch and not self.objective.memory()

    def problems(self, epochs: int) -> list[tuple[tuple[str, str], str]]:
        """Return the fields of the objective or update that cannot work in a run of `epochs`, and why."""
        sources = {
            "objective": self.objective.problems(epochs),
            "update": self.update.problems(self.objective, self.optimizer, epochs),
        }
        times = {time.to_epochs(epochs): str(time) for time in self.objective.switch_times()}
        if len(find_phases(self.objective, epochs)) <= len(times):
            written = " and ".join(times.values())
            got = f"a curriculum changes at {written}, so one of its attacks is never used in {epochs} epochs"
            place = "attack" if self.objective.core is self.objective else "base"
            sources["objective"].append((place, f"{got}; choose other times, or other attacks"))
        return [((key, field), text) for key, problems in sources.items() for field, text in problems]
