"""The figures of a report, one file each."""

from __future__ import annotations

from collections.abc import Mapping

from allrounder.report.figures.base import FigureKind
from allrounder.report.figures.classes import CLASSES
from allrounder.report.figures.tradeoff import TRADEOFF

__all__ = ["FIGURES", "FigureKind"]

FIGURES: Mapping[str, FigureKind] = {
    "tradeoff": TRADEOFF,
    "classes": CLASSES,
}
"""By name, in the order of a report."""
