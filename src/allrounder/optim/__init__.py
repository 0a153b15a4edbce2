"""Optimisers and update rules; a new update rule is a file here and a line in UPDATES."""

from __future__ import annotations

from allrounder.optim.agr import Agr
from allrounder.optim.awp import Awp
from allrounder.optim.base import Descend, Update
from allrounder.optim.mode_curve import ModeCurve
from allrounder.optim.overfit_guard import CatastrophicOverfittingGuard
from allrounder.optim.ramp_projection import GradientProjection

UPDATES: dict[str, type[Update]] = {
    "descend": Descend,
    "agr": Agr,
    "awp": Awp,
    "overfit-guard": CatastrophicOverfittingGuard,
    "gradient-projection": GradientProjection,
    "curve": ModeCurve,
}

__all__ = [
    "UPDATES",
    "Agr",
    "Awp",
    "CatastrophicOverfittingGuard",
    "Descend",
    "GradientProjection",
    "ModeCurve",
    "Update",
]
