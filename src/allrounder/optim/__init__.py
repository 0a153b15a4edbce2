"""The table of updates: a method that edits gradients or weights is one file here and one line below."""

from __future__ import annotations

from allrounder.optim.agr import Reconstructed
from allrounder.optim.awp import WeightPerturbed
from allrounder.optim.base import Descend, Update
from allrounder.optim.mode_curve import OnCurve
from allrounder.optim.overfit_guard import Guarded
from allrounder.optim.ramp_projection import Projected

UPDATES: dict[str, type[Update]] = {
    "descend": Descend,
    "reconstructed": Reconstructed,
    "awp": WeightPerturbed,
    "guarded": Guarded,
    "projected": Projected,
    "curve": OnCurve,
}

__all__ = [
    "UPDATES",
    "Descend",
    "Guarded",
    "OnCurve",
    "Projected",
    "Reconstructed",
    "Update",
    "WeightPerturbed",
]
