"""Optimisers and update rules; a new update rule is a file here and a line in UPDATES."""

from __future__ import annotations

from allrounder.optim.agr import Agr as Agr
from allrounder.optim.awp import Awp as Awp
from allrounder.optim.base import Descend as Descend
from allrounder.optim.base import TrainingStep as TrainingStep
from allrounder.optim.base import Update as Update
from allrounder.optim.mode_curve import ModeCurve as ModeCurve
from allrounder.optim.overfit_guard import CatastrophicOverfittingGuard as CatastrophicOverfittingGuard
from allrounder.optim.ramp_projection import GradientProjection as GradientProjection

UPDATES: dict[str, type[Update]] = {
    "descend": Descend,
    "agr": Agr,
    "awp": Awp,
    "overfit-guard": CatastrophicOverfittingGuard,
    "gradient-projection": GradientProjection,
    "curve": ModeCurve,
}
