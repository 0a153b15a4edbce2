"""Training objectives, one file per published method; a new one is a file here and a line in OBJECTIVES."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from allrounder.config.fields import adapter
from allrounder.objectives.adversarial import Adversarial as Adversarial
from allrounder.objectives.average import Average as Average
from allrounder.objectives.base import Objective as Objective
from allrounder.objectives.e_at import Eat as Eat
from allrounder.objectives.fat import Fat as Fat
from allrounder.objectives.half_half import HalfHalf as HalfHalf
from allrounder.objectives.iat import Iat as Iat
from allrounder.objectives.logit_pairing import LogitPairing as LogitPairing
from allrounder.objectives.mart import Mart as Mart
from allrounder.objectives.natural import Natural as Natural
from allrounder.objectives.part import Part as Part
from allrounder.objectives.random_task import RandomTask as RandomTask
from allrounder.objectives.robust_self_training import RobustSelfTraining as RobustSelfTraining
from allrounder.objectives.score import Score as Score
from allrounder.objectives.taught import Taught as Taught
from allrounder.objectives.taught import Teacher as Teacher
from allrounder.objectives.trades import Trades as Trades
from allrounder.threats.norms import NORMS

OBJECTIVES: dict[str, type[Objective]] = {
    "natural": Natural,
    "adversarial": Adversarial,
    "half-half": HalfHalf,
    "random-task": RandomTask,
    "trades": Trades,
    "mart": Mart,
    "fat": Fat,
    "iat": Iat,
    "rst": RobustSelfTraining,
    "score": Score,
    "part": Part,
    "avg": Average,
    "e-at": Eat,
    "ramp": LogitPairing,
    "taught": Taught,
}

EXAMPLE_FIELDS: dict[str, Any] = {
    "threat": "Linf:8/255",
    "against": ["Linf:8/255", "L2:128/255"],
    "source": "Linf:8/255",
    "target": "L2:128/255",
    "base": {"kind": "half-half", "threat": "Linf:8/255"},
    "natural": {"teacher": "natural"},
    "adversarial": {"teacher": "global"},
}
"""Values of fields with which objectives are listed, such as the threats of the papers on CIFAR-10."""


def describe_objective(kind: str) -> str:
    """The reference of a method, the norms it supports, and the passes of a step with default settings."""
    cls: Any = OBJECTIVES[kind]
    names = [field.name for field in fields(cls) if field.name in EXAMPLE_FIELDS]
    objective: Objective = adapter(cls).validate_python({name: EXAMPLE_FIELDS[name] for name in names})
    norms = " ".join(name for name, norm in NORMS.items() if norm in cls.norms) or "no norm"
    parts = (cls.reference, norms, f"{objective.passes()} forward/backward passes")
    return "; ".join(part for part in parts if part)
