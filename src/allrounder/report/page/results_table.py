"""The table of results on the page: natural accuracy, the judge's columns, then all others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import final

from allrounder.report.corruption_metrics import parse_shift_id
from allrounder.report.entry import JUDGE, Entry, Results, choose_judge
from allrounder.report.figures.cost import count_passes
from allrounder.report.outcome import NATURAL, THREAT_SUMMARIES, Column
from allrounder.report.statistics import format_percent
from allrounder.report.study import SeedCell, StudyResults

JUDGE_TITLE = "AutoAttack"


@final
@dataclass(frozen=True)
class NumberCell:
    """One number of the table, as it is shown and as it is sorted."""

    text: str
    sort: float | None = None
    """None where there is no number; such cells stay at the end."""
    interval: str = ""
    spread: str = ""
    """The standard deviation over several seeds."""
    mark: str = ""
    """"best" or "second best" of the column."""
    differs: bool = False


@final
@dataclass(frozen=True)
class ColumnGroup:
    """Neighbouring columns of one attack, or of one kind of images."""

    title: str
    note: str
    """What a reader must know about all its numbers."""
    columns: tuple[str, ...]


@final
@dataclass(frozen=True)
class TableRow:
    """A row of the report with all its numbers."""

    name: str
    cells: tuple[NumberCell, ...]


@final
@dataclass(frozen=True)
class ResultsTable:
    """The header in two levels, rows, and notes."""

    groups: tuple[ColumnGroup, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...]


def build_results_table(results: Results) -> ResultsTable:
    """Return the table of all rows, also of those that were not evaluated."""
    combined = combine(results)
    columns = order_columns(combined.columns(), choose_judge(results.entries))
    cells = combined.cells()
    position = {column: number for number, column in enumerate(combined.columns())}
    parts: list[tuple[str, str, str, list[NumberCell]]] = []
    mixed = find_mixed_summaries(results)
    for column in columns:
        numbers = [cells[e.name][position[column]] if e.name in cells else None for e in results.entries]
        group, title = _titles(column)
        parts.append(
            (
                group,
                _group_note(column),
                title,
                _number_cells(numbers, ranks=not (column[1] in THREAT_SUMMARIES and column[0] in mixed)),
            )
        )
        paper = [None if cell is None else cell.paper for cell in numbers]
        if any(percent is not None for percent in paper):
            parts.append((group, _group_note(column), "paper", _paper_cells(paper)))
    parts += _cost_columns(results.entries)
    groups = [
        ColumnGroup(group, note, tuple(title for _, _, title, _ in same))
        for (group, note), same in groupby(parts, key=lambda part: part[:2])
    ]
    rows = [
        TableRow(entry.name, tuple(numbers[index] for *_, numbers in parts))
        for index, entry in enumerate(results.entries)
    ]
    return ResultsTable(tuple(groups), tuple(rows), tuple(_notes(combined)))


def combine(results: Results) -> StudyResults:
    """Return all evaluated rows as one study, with the papers' numbers of the studies that they belong to."""
    entries = results.evaluated
    studies = list(results.studies.values())
    paper = {name: numbers for study in studies for name, numbers in study.paper.items()}
    return StudyResults(
        {entry.name: entry.outcomes for entry in entries},
        {entry.name: paper[entry.name] for entry in entries if entry.name in paper},
        {entry.name: entry.cost for entry in entries if entry.cost},
        reference=studies[0].reference_row() if len(studies) == 1 else "",
        source="; ".join(dict.fromkeys(study.source for study in studies if study.source)),
        missing=[text for study in studies for text in study.missing],
    )


def order_columns(columns: Sequence[Column], judge: str | None) -> list[Column]:
    """Sort columns: natural images, the judge, other attacks, then changed images; attacks stay together."""
    attacks = list(dict.fromkeys(_attack(column) for column in columns))

    def rank(column: Column) -> tuple[int, int]:
        attack = _attack(column)
        if attack in (NATURAL, judge):
            return (0 if attack == NATURAL else 1), 0
        return (2 if is_attack(column) else 3), attacks.index(attack)

    return sorted(columns, key=rank)


def is_attack(column: Column) -> bool:
    """Whether a column shows an attack, or the worst or mean of one: not natural or changed images."""
    name, summary = column
    return name != NATURAL and (summary in (None, "worst", "mean")) and parse_shift_id(name) is None


def attack_title(attack: str) -> str:
    """Return the name of an attack as a heading."""
    return JUDGE_TITLE if attack == JUDGE else attack


def _attack(column: Column) -> str:
    return column[0].partition("@")[0]


def _titles(column: Column) -> tuple[str, str]:
    """The title of a column's group, and its own."""
    name, summary = column
    attack, _, threat = name.partition("@")
    if name == NATURAL:
        return "no attack", NATURAL
    return attack_title(attack), summary or threat or attack


def _group_note(column: Column) -> str:
    return "upper bound" if is_attack(column) and _attack(column) != JUDGE else ""


def find_mixed_summaries(results: Results) -> list[str]:
    """Return the attacks whose worst and mean are over other threats in one row than in another."""
    threats: dict[str, set[frozenset[str]]] = {}
    for entry in results.evaluated:
        for outcome in entry.outcomes.values():
            for attack, summary in outcome.columns():
                if summary in THREAT_SUMMARIES:
                    threats.setdefault(attack, set()).add(frozenset(outcome.probes(attack)))
    return [attack for attack, different in threats.items() if len(different) > 1]


def _number_cells(numbers: Sequence[SeedCell | None], *, ranks: bool) -> list[NumberCell]:
    """The cells of a column; as in all tables, nothing is the best if all numbers are equal as shown. Numbers
    that cannot be compared are not ranked."""
    percents = {format_percent(cell.mean) for cell in numbers if cell is not None}
    order = sorted(percents, key=float, reverse=True)
    marks = dict(zip(order, ("best", "second best"), strict=False)) if ranks and len(order) > 1 else {}
    return [NumberCell("-") if cell is None else _number_cell(cell, marks) for cell in numbers]


def _number_cell(cell: SeedCell, marks: Mapping[str, str]) -> NumberCell:
    percent = format_percent(cell.mean)
    return NumberCell(
        percent,
        cell.mean,
        "" if cell.interval is None else "-".join(map(format_percent, cell.interval)),
        "" if cell.std is None else format_percent(cell.std),
        marks.get(percent, ""),
        cell.differs,
    )


def _paper_cells(percents: Sequence[float | None]) -> list[NumberCell]:
    return [NumberCell("-") if p is None else NumberCell(f"{p:.2f}", p / 100) for p in percents]


def _cost_columns(entries: Sequence[Entry]) -> list[tuple[str, str, str, list[NumberCell]]]:
    """The cost and the measured minutes of training, if any row has them."""
    costs = [
        NumberCell(entry.cost, count_passes(entry.cost)) if entry.cost else NumberCell("-")
        for entry in entries
    ]
    means = [statistics.fmean(entry.minutes) if entry.minutes else None for entry in entries]
    minutes = [NumberCell("-") if mean is None else NumberCell(f"{mean:.1f}", mean) for mean in means]
    columns = [("training", "", "cost", costs), ("training", "", "minutes", minutes)]
    return [column for column in columns if any(cell.sort is not None for cell in column[3])]


def _notes(combined: StudyResults) -> list[str]:
    """The notes of the same table in Markdown; warnings have their own section."""
    return combined.notes("markdown") if combined.outcomes else ["No row was evaluated."]
