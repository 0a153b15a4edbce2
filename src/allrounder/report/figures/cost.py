"""What a training costs, and what it achieves."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from typing import TypeAlias

from allrounder.report.chart import AnyChart, Axis, Chart, Series
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.base import NATURAL_AXIS, FigureKind, interval_in_percent, join_names
from allrounder.report.figures.judged import judge_entries
from allrounder.report.outcome import NATURAL
from allrounder.report.study import SeedCell

CellOf: TypeAlias = Callable[[Entry], SeedCell | None]
COST = re.compile(r"(\d+)/(\d+)")


def count_passes(cost: str) -> float | None:
    """The sum of forward and backward passes; None if the cost is unknown."""
    match = COST.fullmatch(cost)
    return None if match is None else float(match[1]) + float(match[2])


def build_cost(results: Results) -> list[AnyChart]:
    """Plot robust and natural accuracy against the passes and the minutes of training."""
    entries = results.evaluated
    passes = {entry.name: n for entry in entries if (n := count_passes(entry.cost))}
    minutes = {entry.name: statistics.fmean(entry.minutes) for entry in entries if any(entry.minutes)}
    units = (
        ("passes", passes, "forward and backward passes of every training image over the whole run, at most"),
        ("minutes", minutes, "of training, as measured; the mean over seeds"),
    )
    judged = judge_entries(entries)
    charts: list[AnyChart] = []
    for key, costs, words in units:
        x = Axis(key, log=True)
        about = f"Each point is a row, with a 95% interval. {key.capitalize()}: {words}."
        if unknown := [entry.name for entry in entries if entry.name not in costs]:
            about += f" Unknown for: {join_names(unknown)}."
        if judged is not None and (series := _points(judged.entries, costs, judged.robust_cell)):
            text = f"{about} {judged.notes()}".strip()
            title = f"Robust accuracy by {key}"
            charts.append(Chart(f"cost-{key}-robust", title, text, x, judged.axis(), series))
        if series := _points(entries, costs, lambda entry: entry.cell((NATURAL, None))):
            title = f"Natural accuracy by {key}"
            charts.append(Chart(f"cost-{key}-natural", title, about, x, NATURAL_AXIS, series))
    return charts


def _points(entries: Sequence[Entry], costs: dict[str, float], cell_of: CellOf) -> tuple[Series, ...]:
    """One point for every row whose cost is known."""
    cells = {entry.name: cell_of(entry) for entry in entries if entry.name in costs}
    return tuple(
        Series(row, (costs[row],), (100 * cell.mean,), "points", interval_in_percent(cell), row=row)
        for row, cell in cells.items()
        if cell is not None
    )


COSTS = FigureKind(
    "Cost",
    "Accuracy against the cost of training.",
    build_cost,
    "no evaluated run has a known cost; name finished runs or a study",
)
