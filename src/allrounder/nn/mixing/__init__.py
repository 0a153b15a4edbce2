"""Mix rules: learners' weights become global weights; a new rule is a file here and a line in MIXES."""

from __future__ import annotations

from allrounder.nn.mixing.base import LearnerView, MixRule
from allrounder.nn.mixing.chosen import Chosen
from allrounder.nn.mixing.ema import Ema
from allrounder.nn.mixing.fisher import Fisher
from allrounder.nn.mixing.outer import Outer
from allrounder.nn.mixing.uniform import Uniform

MIXES: dict[str, type[MixRule]] = {
    "ema": Ema,
    "uniform": Uniform,
    "fisher": Fisher,
    "outer": Outer,
    "chosen": Chosen,
}

__all__ = ["MIXES", "Chosen", "Ema", "Fisher", "LearnerView", "MixRule", "Outer", "Uniform"]
