"""The table of updates: a method that edits gradients or weights is one file here and one line below."""

from __future__ import annotations

from allrounder.updates.base import Descend, Update
from allrounder.updates.curve import OnCurve

UPDATES: dict[str, type[Update]] = {"descend": Descend, "curve": OnCurve}

__all__ = ["UPDATES", "Descend", "OnCurve", "Update"]
