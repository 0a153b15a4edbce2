"""Tables of one or several outcomes, and of every corruption and perturbation by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

import numpy as np

from allrounder.report.corruption_metrics import ALL_SEVERITIES, sources
from allrounder.report.footnotes import Outcomes, footnotes, stored_flags
from allrounder.report.outcome import THREAT_SUMMARIES, Column, Facts, Outcome
from allrounder.report.robustbench import to_robustbench
from allrounder.report.statistics import format_percent
from allrounder.report.tables import (
    COLUMN_TITLES,
    EMPTY,
    SUMMARY_NOTE,
    Cell,
    Table,
    escape_latex,
    to_csv,
    to_json,
    to_latex,
    to_markdown,
)

LATEX_NORMS = {"Linf": r"$\ell_\infty$", "L2": r"$\ell_2$", "L1": r"$\ell_1$"}
Metric = TypeVar("Metric")


def render(
    outcomes: Outcomes,
    style: str = "markdown",
    *,
    intervals: bool = True,
    about: Facts | None = None,
    threat: str | None = None,
) -> str:
    """A table with one row for every named outcome, in the style markdown, latex, csv or json.

    Other styles: robustbench (the file of a model in RobustBench's list, from one outcome, with `about` and
    `threat`), and corruptions, perturbations and corruptions-csv, which show every corruption or perturbation
    by itself. `intervals` adds 95% intervals in Markdown and LaTeX; CSV and JSON always have them.
    """
    styles: dict[str, Callable[[OutcomeTable], str]] = {
        "markdown": lambda table: to_markdown(table.to_table(intervals)),
        "latex": lambda table: to_latex(table.to_table(intervals)),
        "csv": _outcomes_csv,
        "json": _outcomes_json,
    }
    if style == "robustbench" and len(outcomes) == 1:
        return to_robustbench(next(iter(outcomes.values())), about or {}, threat)
    if style in SHIFT_STYLES and outcomes and threat is None:
        return SHIFT_STYLES[style](outcomes)
    if style not in styles or not outcomes or threat is not None:
        several = ", ".join((*SHIFT_STYLES, *styles))
        expected = f"one or more in {several}, or one in robustbench, which alone takes a threat"
        raise ValueError(
            f"table: got {len(outcomes)} outcomes, style {style!r}, threat {threat}; expected {expected}"
        )
    return styles[style](OutcomeTable.of(outcomes))


@final
@dataclass(frozen=True)
class Accuracy:
    """An accuracy and its 95% interval, in [0, 1]."""

    accuracy: float
    low: float
    high: float


@final
@dataclass(frozen=True, eq=False)
class OutcomeTable:
    """The accuracies of some outcomes; columns are (probe, None) or (attack, "worst" or "mean")."""

    outcomes: Outcomes
    columns: Sequence[Column]
    rows: Sequence[Sequence[Accuracy | None]]

    @classmethod
    def of(cls, outcomes: Outcomes) -> OutcomeTable:
        """Every probe of any outcome; worst and mean only of outcomes that have all threats of the attack."""
        none = np.empty(0, np.int64)
        union = Outcome(none, {name: none for outcome in outcomes.values() for name in outcome.predicted})

        def measure(outcome: Outcome, attack: str, threat: str | None) -> Accuracy | None:
            if not set(union.probe_names(attack, threat)) <= set(outcome.predicted):
                return None
            return Accuracy(outcome.accuracy(attack, threat), *outcome.interval(attack, threat))

        columns = union.columns()
        rows = [[measure(outcome, *column) for column in columns] for outcome in outcomes.values()]
        return cls(outcomes, columns, rows)

    def column_names(self) -> list[str]:
        """Short names of the columns."""
        return [name if summary is None else f"{name} {summary}" for name, summary in self.columns]

    def to_table(self, intervals: bool) -> Table:
        """The table for Markdown and LaTeX."""
        titles = [
            name if summary is None else f"{name} {COLUMN_TITLES.get(summary, summary)}"
            for name, summary in self.columns
        ]
        rows = [
            (name, [_percent_cell(entry, intervals) for entry in row])
            for name, row in zip(self.outcomes, self.rows, strict=True)
        ]
        return Table(["model", *titles], rows, self.notes(intervals), self._latex_header())

    def _latex_header(self) -> list[list[str]]:
        """The attacks above their threats; without threats one line."""
        attacks, threats = ["model"], [""]
        for name, summary in self.columns:
            attack, _, threat = name.partition("@")
            norm, _, budget = threat.partition(":")
            attacks.append(escape_latex(attack))
            if summary:
                threats.append(escape_latex(COLUMN_TITLES.get(summary, summary)))
            else:
                threats.append(f"{LATEX_NORMS.get(norm, escape_latex(norm))} {escape_latex(budget)}".strip())
        return [attacks, threats] if any(threats) else [attacks]

    def notes(self, intervals: bool) -> list[str]:
        """What a reader must know, one sentence a line."""
        first = f"Percent of images classified correctly{', with 95% intervals' if intervals else ''}."
        has_summary = any(summary in THREAT_SUMMARIES for _, summary in self.columns)
        return [first, *([SUMMARY_NOTE] if has_summary else []), *footnotes(self.outcomes)]


def _percent_cell(entry: Accuracy | None, intervals: bool) -> Cell:
    if entry is None:
        return EMPTY
    percent = format_percent(entry.accuracy)
    return Cell(percent, percent, (entry.low, entry.high) if intervals else None)


def _outcomes_csv(table: OutcomeTable) -> str:
    """Accuracies in [0, 1] with the ends of their intervals."""
    numbers = [f"{name}{end}" for name in table.column_names() for end in ("", " low", " high")]
    lines: list[list[object]] = [["model", *numbers, "n", "seed", "selected_on", "flags"]]
    for (name, outcome), row in zip(table.outcomes.items(), table.rows, strict=True):
        line: list[object] = [name]
        for entry in row:
            line += ["", "", ""] if entry is None else [entry.accuracy, entry.low, entry.high]
        facts = [outcome.facts.get(key, "") for key in ("seed", "selected_on")]
        lines.append([*line, len(outcome), *facts, "; ".join(stored_flags(outcome))])
    return to_csv(lines)


def _outcomes_json(table: OutcomeTable) -> str:
    """Accuracies in [0, 1], the accuracy after every stage, and all facts."""
    rows: list[dict[str, Any]] = []
    for (name, outcome), row in zip(table.outcomes.items(), table.rows, strict=True):
        results = {
            column: {"accuracy": entry.accuracy, "low": entry.low, "high": entry.high}
            for column, entry in zip(table.column_names(), row, strict=True)
            if entry is not None
        }
        content: dict[str, Any] = {
            "name": name,
            "n": len(outcome),
            "results": results,
            "after": {probe: outcome.accuracy_by_stage(probe) for probe in outcome.stage},
            "flags": stored_flags(outcome),
        }
        if perturbations := outcome.perturbations():
            content["flip_rates"] = {title: flip_rate for title, (_, flip_rate) in perturbations.items()}
        rows.append({**content, "facts": dict(outcome.facts)})
    return to_json({"columns": table.column_names(), "rows": rows})


def corruption_table(outcomes: Outcomes) -> str:
    """In Markdown: one table for every outcome, a row for each corruption and a column for each severity."""
    tables: list[Table] = []
    for name, outcome in outcomes.items():
        accuracies = _require(name, outcome.corruptions(), "corruptions")
        rows = [(corruption, _severity_cells(by_severity)) for corruption, by_severity in accuracies.items()]
        header = [name, *(f"severity {severity}" for severity in ALL_SEVERITIES), "mean"]
        tables.append(Table(header, rows, _average_lines(outcome, "corruptions")))
    return _join_tables(tables, outcomes)


def perturbation_table(outcomes: Outcomes) -> str:
    """In Markdown: one table for every outcome, a row for each perturbation, with accuracy and flip rate."""
    tables: list[Table] = []
    for name, outcome in outcomes.items():
        metrics = _require(name, outcome.perturbations(), "perturbations")
        numbers = list(metrics.items())
        if len(sources(outcome.predicted, "p")) == 1:
            mean = sum(accuracy for accuracy, _ in metrics.values()) / len(metrics)
            numbers.append(("mean", (mean, outcome.flip_rate())))
        rows = [(title, [Cell(format_percent(number)) for number in pair]) for title, pair in numbers]
        header = [name, "correct over all frames", "flip rate"]
        tables.append(Table(header, rows, _average_lines(outcome, "perturbations")))
    return _join_tables(tables, outcomes)


def corruption_csv(outcomes: Outcomes) -> str:
    """One row for every outcome, one column for every corruption and severity, accuracies in [0, 1].

    The header has two lines, as in the file that RobustBench writes.
    """
    accuracies = {
        name: _require(name, outcome.corruptions(), "corruptions") for name, outcome in outcomes.items()
    }
    columns = list(
        dict.fromkeys(
            (corruption, severity)
            for by_corruption in accuracies.values()
            for corruption, by_severity in by_corruption.items()
            for severity in by_severity
        )
    )
    lines: list[list[object]] = [
        ["corruption", *(corruption for corruption, _ in columns), "source"],
        ["severity", *(severity for _, severity in columns), ""],
    ]
    for name, by_corruption in accuracies.items():
        sets = outcomes[name].facts.get("ood", {})
        source = "; ".join(description for key, description in sets.items() if key.startswith("c"))
        numbers = [by_corruption.get(corruption, {}).get(severity, "") for corruption, severity in columns]
        lines.append([name, *numbers, source])
    return to_csv(lines)


SHIFT_STYLES: dict[str, Callable[[Outcomes], str]] = {
    "corruptions": corruption_table,
    "perturbations": perturbation_table,
    "corruptions-csv": corruption_csv,
}
"""Styles that show every corruption or perturbation by itself."""


def _require(name: str, metrics: dict[str, Metric], what: str) -> dict[str, Metric]:
    if not metrics:
        raise ValueError(f"table: {name} has no {what}, expected some; evaluate with ood={what[0]!r}")
    return metrics


def _severity_cells(by_severity: dict[int, float]) -> list[Cell]:
    """One cell for each severity, and the mean if all severities were measured."""
    percents = [
        format_percent(by_severity[severity]) if severity in by_severity else "-"
        for severity in ALL_SEVERITIES
    ]
    is_complete = len(by_severity) == len(ALL_SEVERITIES)
    mean = format_percent(sum(by_severity.values()) / len(by_severity)) if is_complete else "-"
    return [Cell(text) for text in (*percents, mean)]


def _average_lines(outcome: Outcome, what: str) -> list[str]:
    """The averages with their intervals, one sentence each, with the image set."""
    lines: list[str] = []
    for attack, title in outcome.columns():
        if attack == what and title is not None:
            low, high = (format_percent(end) for end in outcome.interval(attack, title))
            percent = format_percent(outcome.accuracy(attack, title))
            lines.append(f"{what}, {title}: {percent} ({low}-{high}).")
    return lines


def _join_tables(tables: Sequence[Table], outcomes: Outcomes) -> str:
    parts = [to_markdown(table).removesuffix("\n") for table in tables]
    return "\n\n".join([*parts, "\n".join(["Percent of images.", *footnotes(outcomes)])]) + "\n"
