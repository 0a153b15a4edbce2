"""The table of training objectives: a new method is one file here and one line below."""

from __future__ import annotations

from allrounder.objectives.adversarial import Adversarial
from allrounder.objectives.base import Objective
from allrounder.objectives.multi import Average, Worst
from allrounder.objectives.natural import Natural

OBJECTIVES: dict[str, type[Objective]] = {
    "natural": Natural,
    "adversarial": Adversarial,
    "avg": Average,
    "max": Worst,
}

__all__ = ["OBJECTIVES", "Adversarial", "Average", "Natural", "Objective", "Worst"]
