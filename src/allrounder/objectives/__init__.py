"""The table of training objectives: a new method is one file here and one line below."""

from __future__ import annotations

from allrounder.objectives.adversarial import Adversarial
from allrounder.objectives.base import Objective
from allrounder.objectives.eat import Eat
from allrounder.objectives.msd import Msd
from allrounder.objectives.multi import Average, Worst
from allrounder.objectives.natural import Natural
from allrounder.objectives.ramp import Ramp

OBJECTIVES: dict[str, type[Objective]] = {
    "natural": Natural,
    "adversarial": Adversarial,
    "avg": Average,
    "max": Worst,
    "msd": Msd,
    "e-at": Eat,
    "ramp": Ramp,
}

__all__ = ["OBJECTIVES", "Adversarial", "Average", "Eat", "Msd", "Natural", "Objective", "Ramp", "Worst"]
