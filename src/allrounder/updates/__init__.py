"""The table of updates: a method that edits gradients or weights is one file here and one line below."""

from __future__ import annotations

from allrounder.updates.base import Descend, Update
from allrounder.updates.curve import OnCurve
from allrounder.updates.guarded import Guarded
from allrounder.updates.perturbed import WeightPerturbed
from allrounder.updates.projected import Projected
from allrounder.updates.reconstructed import Reconstructed

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
