"""The table of training objectives: a new method is one file here and one line below."""

from __future__ import annotations

from allrounder.objectives.adversarial import Adversarial
from allrounder.objectives.base import Objective
from allrounder.objectives.natural import Natural
from allrounder.objectives.rst import RobustSelfTraining

OBJECTIVES: dict[str, type[Objective]] = {
    "natural": Natural,
    "adversarial": Adversarial,
    "rst": RobustSelfTraining,
}

__all__ = ["OBJECTIVES", "Adversarial", "Natural", "Objective", "RobustSelfTraining"]
