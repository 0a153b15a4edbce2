"""What one learner is asked to do, with its own policy."""

from __future__ import annotations

from typing import Annotated, final

from pydantic import AfterValidator, Field

from allrounder.config.fields import Kind, Number, value
from allrounder.config.schedules import MaybeDecay, Rate
from allrounder.data.augment import AUGMENTS, Augment, CropFlip
from allrounder.objectives import OBJECTIVES, Objective
from allrounder.optim import UPDATES, Descend, Update
from allrounder.optim.optimizers import AnyOptimizer, Sgd
from allrounder.types import Passes

RESERVED = ("global", "best", "last", "live")
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"


def _free(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f'"{name}" is taken: a learner may not be called {", ".join(RESERVED)}')
    return name


@final
@value
class Task:
    """One learner's sub-task: objective, optimiser, learning rate, augmentation, averaging."""

    name: Annotated[str, Field(pattern=NAME), AfterValidator(_free)]
    """The learner's name in shares, logs and files."""
    objective: Annotated[Objective, Kind(lambda: OBJECTIVES)]
    lr: Rate
    optimizer: AnyOptimizer = Sgd()
    update: Annotated[Update, Kind(lambda: UPDATES)] = Descend()
    augment: Annotated[Augment, Kind(lambda: AUGMENTS)] = CropFlip()
    stream: str = "shared"
    """Tasks of one stream draw the same augmentation of a mini-batch, as released; another name draws its
    own."""
    smoothing: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """Label smoothing: soft targets for the loss, hard labels for attacks."""
    average: MaybeDecay = None
    """Decay of this learner's own weight average, which then is what it gives to the mix; false for none."""

    def passes(self) -> Passes:
        """What a step takes, at most."""
        return self.update.passes(self.objective)

    def divisible(self) -> bool:
        """Whether several ranks can share its batches: memories could come to differ between them."""
        whole = self.objective.whole_batch or self.update.whole_batch
        return not whole and not self.objective.memory()

    def problems(self, epochs: int) -> list[tuple[tuple[str, str], str]]:
        """Fields of the objective or the update that make no sense in a run of so many epochs."""
        of_objective = self.objective.problems(epochs)
        of_update = self.update.problems(self.objective, self.optimizer, epochs)
        found = [(("objective", field), said) for field, said in of_objective]
        return found + [(("update", field), said) for field, said in of_update]
