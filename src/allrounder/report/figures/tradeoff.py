"""Natural against robust accuracy, and the accuracies under two norms against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TypeAlias

from allrounder.report.chart import AnyChart, Chart, Series, pareto_front
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.base import NATURAL_AXIS, FigureKind, chart_name, interval_in_percent
from allrounder.report.figures.judged import Judged, judge_entries, threat_of
from allrounder.report.study import SeedCell

CellOf: TypeAlias = Callable[[Entry], SeedCell]

ABOUT = (
    "Each point is a row, with 95% intervals; up and to the right is better. No row beats one on the Pareto "
    "front in both accuracies."
)


def build_tradeoff(results: Results) -> list[AnyChart]:
    """Plot natural against robust accuracy, then every pair of norms."""
    judged = judge_entries(results.evaluated)
    if judged is None or not judged.entries:
        return []
    title = "Natural and robust accuracy"
    series = _points(judged.entries, judged.natural_cell, judged.robust_cell)
    about = f"{ABOUT} {judged.notes()}".strip()
    charts: list[AnyChart] = [Chart("tradeoff", title, about, NATURAL_AXIS, judged.axis(), series)]
    return charts + [_norms_chart(judged, a, b) for a, b in combinations(judged.norms, 2)]


def _norms_chart(judged: Judged, first: str, second: str) -> Chart:
    """The robust accuracy under one norm against that under another."""
    a, b = (
        [probe for probe in judged.probes if threat_of(probe).partition(":")[0] == norm]
        for norm in (first, second)
    )
    series = _points(
        judged.entries,
        lambda entry: judged.robust_cell(entry, a),
        lambda entry: judged.robust_cell(entry, b),
    )
    title = f"Robust accuracy under {first} and {second}"
    about = f"{ABOUT} {judged.notes(max(a, b, key=len))}".strip()
    return Chart(chart_name("tradeoff", first, second), title, about, judged.axis(a), judged.axis(b), series)


def _points(entries: Sequence[Entry], x_of: CellOf, y_of: CellOf) -> tuple[Series, ...]:
    """One point for every row, and the front of several."""
    cells = {entry.name: (x_of(entry), y_of(entry)) for entry in entries}
    points = {name: (100 * x.mean, 100 * y.mean) for name, (x, y) in cells.items()}
    series = [
        Series(
            name,
            x=(points[name][0],),
            y=(points[name][1],),
            mark="points",
            x_interval=interval_in_percent(x),
            y_interval=interval_in_percent(y),
            row=name,
        )
        for name, (x, y) in cells.items()
    ]
    if len(points) > 1:
        xs, ys = zip(*pareto_front(list(points.values())), strict=True)
        series.append(Series("Pareto front", xs, ys, mark="dashes"))
    return tuple(series)


TRADEOFF = FigureKind(
    "Trade-off",
    "Accuracy on natural images against accuracy under attack.",
    build_tradeoff,
    "no run was evaluated under an attack; evaluate one with: allrounder eval RUN",
)
