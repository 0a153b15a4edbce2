"""The rows of every study side by side, with what a paper reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from allrounder.report.chart import AnyChart, Axis, Chart, Series
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.base import FigureKind, interval_in_percent, unique_slugs
from allrounder.report.figures.judged import attack_title, judge_entries
from allrounder.report.outcome import NATURAL
from allrounder.report.study import SeedCell, StudyResults
from allrounder.report.tables import column_key, column_title

PAPER = " (paper)"
"""What the name of a series of a paper's numbers ends with."""


def build_ablation(results: Results) -> list[AnyChart]:
    """Plot one chart for every study that has outcomes."""
    slugs = unique_slugs(results.studies)
    charts = [_study_chart(name, slugs[name], study) for name, study in results.studies.items()]
    return [chart for chart in charts if chart is not None]


def _study_chart(name: str, slug: str, study: StudyResults) -> Chart | None:
    entries = [Entry(row, outcomes) for row, outcomes in study.outcomes.items() if outcomes]
    if not entries:
        return None
    rows = tuple(entry.name for entry in entries)
    paper = study.paper
    series = _column_series(rows, "natural", [study.cell(row, (NATURAL, None)) for row in rows])
    series += _paper_series(rows, "natural", [paper.get(row, {}).get(NATURAL) for row in rows])
    judged = judge_entries(entries)
    if judged is not None:
        compared = replace(study, outcomes={entry.name: entry.outcomes for entry in judged.entries})
        for column in compared.columns():
            key, title = column_key(column), column_title(column)
            if key != NATURAL:
                cells = [compared.cell(row, column) if row in compared.outcomes else None for row in rows]
                series += _column_series(rows, title, cells)
                series += _paper_series(rows, title, [paper.get(row, {}).get(key) for row in rows])
    sentences = ["Percent of images classified correctly, with 95% intervals."]
    if any(bars.name.endswith(PAPER) for bars in series):
        sentences.append(f"Paper: {study.source or 'as reported'}; not measured here.")
    sentences += [judged.notes()] if judged is not None else []
    attack = f" ({attack_title(judged.attack)})" if judged is not None else ""
    return Chart(
        f"ablation-{slug}",
        f"Study {name}",
        " ".join(filter(None, sentences)),
        Axis("row"),
        Axis(f"accuracy{attack}", percent=True),
        tuple(series),
    )


def _column_series(rows: tuple[str, ...], name: str, cells: Sequence[SeedCell | None]) -> list[Series]:
    """The numbers of a column; NaN for rows that were not measured. A number without an interval, of seeds on
    different images, has one of no length."""
    y = [math.nan if cell is None else 100 * cell.mean for cell in cells]
    intervals = [
        (interval_in_percent(cell) if cell is not None else ()) or ((value, value),)
        for value, cell in zip(y, cells, strict=True)
    ]
    ends = tuple(interval[0] for interval in intervals)
    return [Series(name, rows, tuple(y), "bars", ends)]


def _paper_series(rows: tuple[str, ...], name: str, percents: Sequence[float | None]) -> list[Series]:
    """What a paper reports in a column, if anything."""
    y = tuple(math.nan if percent is None else percent for percent in percents)
    return [] if all(map(math.isnan, y)) else [Series(f"{name}{PAPER}", rows, y, "bars")]


ABLATION = FigureKind(
    "Studies",
    "The rows of every study side by side.",
    build_ablation,
    "no study has evaluated rows; name a study, or run one with: allrounder sweep STUDY",
)
