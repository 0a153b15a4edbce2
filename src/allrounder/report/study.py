"""Tables of studies: several networks for every row, one for each seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, final

import numpy as np

from allrounder.report import tables
from allrounder.report.footnotes import footnotes, stored_flags
from allrounder.report.outcome import Column, Outcome
from allrounder.report.seed_statistics import SeedComparison, SeedsByImages, seed_interval
from allrounder.report.statistics import McNemar, format_percent
from allrounder.report.tables import EMPTY, Cell, ResultTable, column_key, column_title

Comparison: TypeAlias = McNemar | SeedComparison
"""A row against the reference row: with one seed, or with several."""
SIGNIFICANCE = 0.05


@final
@dataclass(frozen=True, eq=False)
class SeedCell:
    """The accuracies of a row in a column, one for each seed, in [0, 1]."""

    accuracies: tuple[float, ...]
    interval: tuple[float, float] | None = None
    """The 95% interval over seeds and images; for one seed, over images; None if the images differ."""
    paper: float | None = None
    """What a paper reports, in percent."""
    differs: bool = False
    """Whether the row differs significantly from the reference row."""

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def std(self) -> float | None:
        """The sample standard deviation over seeds; None for one seed."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def to_cell(self) -> Cell:
        """The mean in percent, with the deviation over seeds; for one seed, with the interval over images."""
        percent = format_percent(self.mean)
        if self.std is not None:
            spread = f" +- {format_percent(self.std)}"
        else:
            spread = "" if self.interval is None else f" ({'-'.join(map(format_percent, self.interval))})"
        return Cell(f"{percent}{spread}", percent, differs=self.differs)


@final
@dataclass(frozen=True, eq=False)
class StudyResults:
    """The outcomes of a study, by row and seed."""

    outcomes: Mapping[str, Mapping[int, Outcome]]
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """What a paper reports, in percent, by row and column."""
    cost: Mapping[str, str] = field(default_factory=dict[str, str])
    """Forward and backward passes of an image over the whole run, by row: "132/132"."""
    reference: str = ""
    """The row that the others are compared with; the first one by default."""
    source: str = ""
    """Where the paper's numbers come from."""
    missing: Sequence[str] = ()
    """Trainings that are not finished or not evaluated."""
    minutes: Mapping[str, Sequence[float]] = field(default_factory=dict[str, list[float]])
    """The measured minutes of training, by row, one for each seed."""
    paper_minutes: Mapping[str, float] = field(default_factory=dict[str, float])
    """The minutes of training that a paper reports, by row."""

    def columns(self) -> list[Column]:
        """The columns of all outcomes: natural, every probe, and summaries over several threats."""
        outcomes = [outcome for by_seed in self.outcomes.values() for outcome in by_seed.values()]
        return list(dict.fromkeys(column for outcome in outcomes for column in outcome.columns()))

    def reference_row(self) -> str:
        """The row that the others are compared with."""
        return self.reference if self.reference in self.outcomes else next(iter(self.outcomes), "")

    def cells(self) -> dict[str, list[SeedCell | None]]:
        """All numbers by row; None where no outcome of the row has the column."""
        differing = self._significant_differences()
        return {
            row: [self.cell(row, column, (row, column) in differing) for column in self.columns()]
            for row in self.outcomes
        }

    def cell(self, row: str, column: Column, differs: bool = False) -> SeedCell | None:
        """The numbers of one row in one column; None if no outcome of the row has the column."""
        outcomes = [outcome for outcome in self.outcomes[row].values() if column in outcome.columns()]
        if not outcomes:
            return None
        accuracies = tuple(outcome.accuracy(*column) for outcome in outcomes)
        interval = outcomes[0].interval(*column)
        if len(outcomes) > 1:
            interval = (
                seed_interval(_stack(outcomes, column))
                if all(map(outcomes[0].has_same_images, outcomes))
                else None
            )
        paper = self.paper.get(row, {}).get(column_key(column))
        return SeedCell(accuracies, interval, paper, differs)

    def compare_with_reference(self, row: str, column: Column) -> Comparison | None:
        """A row against the reference row, over the seeds that both have; None if not comparable."""
        outcomes, references = self.outcomes[row], self.outcomes.get(self.reference_row(), {})
        seeds = [seed for seed in outcomes if seed in references]
        if row == self.reference_row() or column[1] == "mean" or not seeds:
            return None
        rows, others = ([by_seed[seed] for seed in seeds] for by_seed in (outcomes, references))
        try:
            tests = [outcome.mcnemar(others[0], *column) for outcome in (*rows, *others)]
        except (ValueError, KeyError):
            return None  # other images, or other probes
        return tests[0] if len(seeds) == 1 else SeedComparison(_stack(rows, column), _stack(others, column))

    @cached_property
    def comparisons(self) -> dict[tuple[str, Column], Comparison]:
        """All comparisons with the reference row, by row and column."""
        keys = [(row, column) for row in self.outcomes for column in self.columns()]
        return {key: test for key in keys if (test := self.compare_with_reference(*key)) is not None}

    def _significant_differences(self) -> set[tuple[str, Column]]:
        """Where a row differs from the reference row, by Holm's method over all comparisons of the table."""
        p_values = {key: test.p_value for key, test in self.comparisons.items()}
        differing: set[tuple[str, Column]] = set()
        for rank, key in enumerate(sorted(p_values, key=lambda key: p_values[key])):
            if p_values[key] > SIGNIFICANCE / (len(p_values) - rank):
                break
            differing.add(key)
        return differing

    def notes(self, style: str = "text", rows: Sequence[str] = (), titles: Sequence[str] = ()) -> list[str]:
        """What a reader must know, one sentence a line; about some rows and columns if they are named."""
        outcomes = {
            f"{row}, seed {seed}": outcome
            for row in rows or self.outcomes
            for seed, outcome in self.outcomes[row].items()
        }
        lines = [self.describe_numbers(rows), *tables.summary_notes(self.columns())]
        lines += self.describe_tests(tables.MARKS[style].differs, rows, titles)
        if self.cost:
            lines.append("Cost: forward/backward passes of every training image over the whole run, at most.")
        if self.minutes:
            lines.append("Minutes: of training on this machine, without validation; mean over seeds.")
        if any(self.paper.values()):
            lines.append(f"Paper: {self.source or 'as reported'}, in percent; not measured here.")
        lines += footnotes(outcomes) if outcomes else []
        for name, outcome in outcomes.items():
            lines += [f"{name}: {finding}" for finding in outcome.facts.get("findings", ())]
        missing = self.missing_trainings(rows)
        return lines + ([f"MISSING: {'; '.join(missing)}."] if missing else [])

    def missing_trainings(self, rows: Sequence[str] = ()) -> list[str]:
        """The trainings that are not finished or not evaluated, of some rows if they are named."""
        return [text for text in self.missing if not rows or text.rpartition(", seed ")[0] in rows]

    def describe_numbers(self, rows: Sequence[str] = ()) -> str:
        """What the numbers are, of some rows if they are named."""
        seeds = sorted({seed for row in rows or self.outcomes for seed in self.outcomes[row]})
        deviation = f"mean +- standard deviation over seeds {', '.join(map(str, seeds))}"
        shown = deviation if len(seeds) > 1 else "with 95% intervals"
        return f"Percent of images classified correctly: {shown}."

    def describe_tests(self, mark: str, rows: Sequence[str] = (), titles: Sequence[str] = ()) -> list[str]:
        """What the mark of significant differences means, if some rows and columns have any."""
        tests = [
            self.comparisons[row, column]
            for row, column in self._significant_differences()
            if (not rows or row in rows) and (not titles or column_title(column) in titles)
        ]
        methods: list[str] = []
        if any(isinstance(test, SeedComparison) for test in tests):
            methods.append("a test over seeds and paired images (Welch-Satterthwaite t)")
        if any(isinstance(test, McNemar) for test in tests):
            scope = "with one seed it does not account for the variation between trainings"
            methods.append(f"a paired test over images (McNemar; {scope})")
        family = "all rows and columns of the study" if rows or titles else "the table"
        level = f"Holm over {family}, level {SIGNIFICANCE}"
        return [f'{mark}: differs from "{self.reference_row()}" by {method}; {level}.' for method in methods]

    def to_table(self, style: str = "text") -> ResultTable:
        """The table in a style of `tables.MARKS`; a paper's numbers stand beside ours."""
        numbers = self.cells().values()
        columns: list[tuple[str, list[Cell]]] = []
        for index, column in enumerate(self.columns()):
            cells = [row[index] for row in numbers]
            columns.append(
                (_title(column, style), [EMPTY if cell is None else cell.to_cell() for cell in cells])
            )
            paper = [None if cell is None else cell.paper for cell in cells]
            if any(percent is not None for percent in paper):
                columns.append(("paper", [EMPTY if p is None else Cell(f"{p:.2f}") for p in paper]))
        if self.cost:
            columns.append(("cost", [Cell(self.cost.get(row, "-")) for row in self.outcomes]))
        columns += self._minutes_columns()
        rows = [(row, [cells[index] for _, cells in columns]) for index, row in enumerate(self.outcomes)]
        # LaTeX notes are escaped, so they use the mark of plain text.
        notes = self.notes("markdown" if style == "markdown" else "text")
        return ResultTable(["row", *(title for title, _ in columns)], rows, notes)

    def _minutes_columns(self) -> list[tuple[str, list[Cell]]]:
        """The measured minutes of training and those of a paper, if there are any."""
        measured = {row: statistics.fmean(minutes) for row, minutes in self.minutes.items()}
        columns = (("minutes", measured), ("paper", self.paper_minutes))
        return [
            (title, [Cell(f"{minutes[row]:.1f}") if row in minutes else EMPTY for row in self.outcomes])
            for title, minutes in columns
            if minutes
        ]


def _stack(outcomes: Sequence[Outcome], column: Column) -> SeedsByImages:
    """The accuracy of every image, with a row for each outcome."""
    return np.stack([outcome.per_image_accuracy(*column) for outcome in outcomes])


def _title(column: Column, style: str) -> str:
    name, summary = column
    if style != "text":
        return column_title(column)
    if summary and "(" in summary:  # corrupted images, by their source
        return f"{name}\n{summary}".replace(" (", "\n(").replace(", ", ",\n")
    return tables.wrap_cell(name.replace("@", " ")) + (f" {summary}" if summary else "")


def render_study(results: StudyResults, style: str = "markdown") -> str:
    """The table of a study in the style markdown, latex, csv or json."""
    styles: dict[str, Callable[[StudyResults], str]] = {
        "markdown": lambda results: tables.to_markdown(results.to_table("markdown")),
        "latex": lambda results: tables.to_latex(results.to_table("latex")),
        "csv": _study_csv,
        "json": _study_json,
    }
    if style not in styles:
        raise ValueError(f"table: got style {style!r}, expected one of {', '.join(styles)}")
    return styles[style](results)


def _study_csv(results: StudyResults) -> str:
    """One line for every training, accuracies in [0, 1]."""
    columns = results.columns()
    lines: list[list[object]] = [["row", "seed", *map(column_key, columns), "n", "cost", "flags"]]
    for row, by_seed in results.outcomes.items():
        for seed, outcome in by_seed.items():
            present = outcome.columns()
            numbers = [outcome.accuracy(*column) if column in present else "" for column in columns]
            facts = [len(outcome), results.cost.get(row, ""), "; ".join(stored_flags(outcome))]
            lines.append([row, seed, *numbers, *facts])
    return tables.to_csv(lines)


def _study_json(results: StudyResults) -> str:
    rows: list[dict[str, Any]] = []
    for row, cells in results.cells().items():
        numbers = {
            column_key(column): {
                "mean": cell.mean,
                "deviation": cell.std,
                "seeds": list(cell.accuracies),
                "interval": cell.interval,
                "paper": cell.paper,
                "p": None if (test := results.comparisons.get((row, column))) is None else test.p_value,
            }
            for column, cell in zip(results.columns(), cells, strict=True)
            if cell is not None
        }
        facts = {str(seed): dict(outcome.facts) for seed, outcome in results.outcomes[row].items()}
        minutes = {"minutes": list(results.minutes[row])} if row in results.minutes else {}
        rows.append(
            {"row": row, "results": numbers, "cost": results.cost.get(row), **minutes, "facts": facts}
        )
    content = {
        "reference": results.reference_row(),
        "rows": rows,
        "missing": list(results.missing),
        "notes": results.notes(),
    }
    return tables.to_json(content)
