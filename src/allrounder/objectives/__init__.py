"""The table of training objectives: a new method is one file here and one line below."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from allrounder.config.fields import adapter
from allrounder.objectives.adversarial import Adversarial
from allrounder.objectives.average import Average, Worst
from allrounder.objectives.base import Objective
from allrounder.objectives.e_at import Eat
from allrounder.objectives.fast import Fast
from allrounder.objectives.fat import Fat
from allrounder.objectives.half_half import HalfHalf
from allrounder.objectives.iat import Iat
from allrounder.objectives.logit_pairing import LogitPairing
from allrounder.objectives.mart import Mart
from allrounder.objectives.msd import Msd
from allrounder.objectives.natural import Natural
from allrounder.objectives.part import Part
from allrounder.objectives.robust_self_training import RobustSelfTraining
from allrounder.objectives.score import Score
from allrounder.objectives.trades import Trades
from allrounder.threats.norms import NORMS

OBJECTIVES: dict[str, type[Objective]] = {
    "natural": Natural,
    "adversarial": Adversarial,
    "half-half": HalfHalf,
    "trades": Trades,
    "mart": Mart,
    "fat": Fat,
    "iat": Iat,
    "rst": RobustSelfTraining,
    "score": Score,
    "part": Part,
    "avg": Average,
    "max": Worst,
    "msd": Msd,
    "e-at": Eat,
    "ramp": LogitPairing,
    "fast": Fast,
}

FILLED: dict[str, Any] = {
    **{"threat": "Linf:8/255", "against": ["Linf:8/255", "L2:128/255"]},
    **{"source": "Linf:8/255", "target": "L2:128/255"},
}
"""What lists show of methods that need to be told the threats: those of the papers on CIFAR-10."""


def facts(kind: str) -> str:
    """Where a method is from, the norms it trains under, and its passes of a step with its defaults."""
    cls: Any = OBJECTIVES[kind]
    needed = [field.name for field in fields(cls) if field.default is field.default_factory is MISSING]
    value: Objective = adapter(cls).validate_python({name: FILLED[name] for name in needed})
    norms = " ".join(name for name, norm in NORMS.items() if norm in cls.norms) or "no norm"
    return f"{cls.reference}; {norms}; {value.passes()} forward/backward passes"


__all__ = [
    "OBJECTIVES",
    "Adversarial",
    "Average",
    "Eat",
    "Fast",
    "Fat",
    "HalfHalf",
    "Iat",
    "LogitPairing",
    "Mart",
    "Msd",
    "Natural",
    "Objective",
    "Part",
    "RobustSelfTraining",
    "Score",
    "Trades",
    "Worst",
    "facts",
]
