"""The figures of a report, one file each."""

from __future__ import annotations

from collections.abc import Mapping

from allrounder.config.fields import did_you_mean
from allrounder.config.text import shorten
from allrounder.errors import InputError
from allrounder.report.chart import AnyChart
from allrounder.report.entry import Results
from allrounder.report.figures.ablation import ABLATION
from allrounder.report.figures.base import FigureKind
from allrounder.report.figures.calibration import CALIBRATION
from allrounder.report.figures.classes import CLASSES
from allrounder.report.figures.confusion import CONFUSION
from allrounder.report.figures.corruptions import CORRUPTIONS
from allrounder.report.figures.cost import COSTS
from allrounder.report.figures.curves import CURVES
from allrounder.report.figures.dial import DIAL
from allrounder.report.figures.distances import DISTANCES
from allrounder.report.figures.eps import EPS
from allrounder.report.figures.stages import STAGES
from allrounder.report.figures.theory import THEORY
from allrounder.report.figures.tradeoff import TRADEOFF

__all__ = ["FIGURES", "FigureKind", "build_charts"]

FIGURES: Mapping[str, FigureKind] = {
    "tradeoff": TRADEOFF,
    "ablation": ABLATION,
    "eps": EPS,
    "stages": STAGES,
    "distances": DISTANCES,
    "classes": CLASSES,
    "confusion": CONFUSION,
    "calibration": CALIBRATION,
    "corruptions": CORRUPTIONS,
    "cost": COSTS,
    "curves": CURVES,
    "dial": DIAL,
    "theory": THEORY,
}
"""By name, in the order of a report."""


def build_charts(name: str, results: Results) -> list[AnyChart]:
    """Make the charts of a figure; an empty list if the results have nothing to show in it."""
    if name not in FIGURES:
        expected = f"expected one of {', '.join(FIGURES)}{did_you_mean(name, FIGURES)}"
        raise InputError(f"{shorten(name)}: no such figure, {expected}")
    return FIGURES[name].build(results)
