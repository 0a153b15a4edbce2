"""The table of training objectives: a new method is one file here and one line below."""

from __future__ import annotations

from allrounder.objectives.adversarial import Adversarial
from allrounder.objectives.base import Objective
from allrounder.objectives.fat import Fat
from allrounder.objectives.half_half import HalfHalf
from allrounder.objectives.iat import Iat
from allrounder.objectives.mart import Mart
from allrounder.objectives.natural import Natural
from allrounder.objectives.score import Score
from allrounder.objectives.trades import Trades

OBJECTIVES: dict[str, type[Objective]] = {
    "natural": Natural,
    "adversarial": Adversarial,
    "half-half": HalfHalf,
    "trades": Trades,
    "mart": Mart,
    "fat": Fat,
    "iat": Iat,
    "score": Score,
}

__all__ = [
    "OBJECTIVES",
    "Adversarial",
    "Fat",
    "HalfHalf",
    "Iat",
    "Mart",
    "Natural",
    "Objective",
    "Score",
    "Trades",
]
