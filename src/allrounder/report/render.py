"""Tables of one or several outcomes, and of every corruption and perturbation by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar, final

import numpy as np

from allrounder.errors import InputError
from allrounder.report import tables
from allrounder.report.corruption_metrics import ALL_SEVERITIES, sources, standard_perturbations
from allrounder.report.footnotes import Outcomes, footnotes, stored_flags
from allrounder.report.outcome import Column, Facts, Outcome
from allrounder.report.robustbench import to_robustbench
from allrounder.report.statistics import format_percent
from allrounder.report.tables import EMPTY, Cell, ResultTable, column_key, column_title, escape_latex

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
    styles: dict[str, Callable[[Outcomes], str]] = {
        **SHIFT_STYLES,
        "markdown": lambda outcomes: tables.to_markdown(AccuracyTable.of(outcomes).to_table(intervals)),
        "latex": lambda outcomes: tables.to_latex(AccuracyTable.of(outcomes).to_table(intervals)),
        "csv": _outcomes_csv,
        "json": _outcomes_json,
    }
    if style == "robustbench" and len(outcomes) == 1:
        return to_robustbench(next(iter(outcomes.values())), about or {}, threat)
    if style not in styles or not outcomes or threat is not None:
        got = f"got {len(outcomes)} outcomes, style {style!r}, threat {threat}"
        expected = f"one or more in {', '.join(styles)}, or one in robustbench, which alone takes a threat"
        raise InputError(f"table: {got}; expected {expected}")
    return styles[style](outcomes)


class Accuracy(NamedTuple):
    """An accuracy and its 95% interval, in [0, 1]."""

    accuracy: float
    low: float
    high: float


@final
@dataclass(frozen=True, eq=False)
class AccuracyTable:
    """The accuracies of some outcomes."""

    outcomes: Outcomes
    columns: Sequence[Column]
    rows: Sequence[Sequence[Accuracy | None]]

    @classmethod
    def of(cls, outcomes: Outcomes) -> AccuracyTable:
        """Every probe of any outcome; worst and mean only of outcomes that have all threats of the attack."""
        none = np.empty(0, np.int64)
        union = Outcome(none, {name: none for outcome in outcomes.values() for name in outcome.predicted})

        def measure(outcome: Outcome, column: Column) -> Accuracy | None:
            if not set(union.probe_names(*column)) <= set(outcome.predicted):
                return None
            return Accuracy(outcome.accuracy(*column), *outcome.interval(*column))

        columns = union.columns()
        rows = [[measure(outcome, column) for column in columns] for outcome in outcomes.values()]
        return cls(outcomes, columns, rows)

    def to_table(self, intervals: bool) -> ResultTable:
        """The table for Markdown and LaTeX."""
        first = f"Percent of images classified correctly{', with 95% intervals' if intervals else ''}."
        notes = [first, *tables.summary_notes(self.columns), *footnotes(self.outcomes)]
        cells = [[_percent_cell(entry, intervals) for entry in row] for row in self.rows]
        header = ["model", *map(column_title, self.columns)]
        return ResultTable(header, list(zip(self.outcomes, cells, strict=True)), notes, self._latex_header())

    def _latex_header(self) -> list[list[str]]:
        """The attacks above their threats; without threats one line."""
        attacks, threats = ["model"], [""]
        for name, summary in self.columns:
            attack, _, threat = name.partition("@")
            norm, _, budget = threat.partition(":")
            attacks.append(escape_latex(attack))
            if summary:
                threats.append(escape_latex(column_title((name, summary)).removeprefix(f"{name} ")))
            else:
                threats.append(f"{LATEX_NORMS.get(norm, escape_latex(norm))} {escape_latex(budget)}".strip())
        return [attacks, threats] if any(threats) else [attacks]


def _percent_cell(entry: Accuracy | None, intervals: bool) -> Cell:
    if entry is None:
        return EMPTY
    percent = format_percent(entry.accuracy)
    return Cell(percent, percent, (entry.low, entry.high) if intervals else None)


def _outcomes_csv(outcomes: Outcomes) -> str:
    """Accuracies in [0, 1] with the ends of their intervals."""
    table = AccuracyTable.of(outcomes)
    numbers = [f"{column_key(column)}{end}" for column in table.columns for end in ("", " low", " high")]
    lines: list[list[object]] = [["model", *numbers, "n", "seed", "selected_on", "flags"]]
    for (name, outcome), row in zip(outcomes.items(), table.rows, strict=True):
        accuracies = [number for entry in row for number in entry or ("", "", "")]
        facts = [outcome.facts.get(key, "") for key in ("seed", "selected_on")]
        lines.append([name, *accuracies, len(outcome), *facts, "; ".join(stored_flags(outcome))])
    return tables.to_csv(lines)


def _outcomes_json(outcomes: Outcomes) -> str:
    """Accuracies in [0, 1], the accuracy after every stage, and all facts."""
    table = AccuracyTable.of(outcomes)
    keys = [column_key(column) for column in table.columns]
    rows: list[dict[str, Any]] = []
    for (name, outcome), row in zip(outcomes.items(), table.rows, strict=True):
        content: dict[str, Any] = {
            "name": name,
            "n": len(outcome),
            "results": {
                key: entry._asdict() for key, entry in zip(keys, row, strict=True) if entry is not None
            },
            "after": {probe: outcome.accuracy_by_stage(probe) for probe in outcome.stage},
            "flags": stored_flags(outcome),
        }
        if perturbations := outcome.perturbations():
            content["flip_rates"] = {title: flip_rate for title, (_, flip_rate) in perturbations.items()}
        rows.append({**content, "facts": dict(outcome.facts)})
    return tables.to_json({"columns": keys, "rows": rows})


def _corruption_table(name: str, outcome: Outcome) -> ResultTable:
    """A row for each corruption, a column for each severity, and the mean if all severities were measured."""
    rows: list[tuple[str, list[Cell]]] = []
    for corruption, by_severity in _require(name, outcome.corruptions(), "corruptions").items():
        shares = [by_severity.get(severity) for severity in ALL_SEVERITIES]
        complete = len(by_severity) == len(ALL_SEVERITIES)
        shares.append(sum(by_severity.values()) / len(by_severity) if complete else None)
        rows.append(
            (corruption, [EMPTY if share is None else Cell(format_percent(share)) for share in shares])
        )
    header = [name, *(f"severity {severity}" for severity in ALL_SEVERITIES), "mean"]
    return ResultTable(header, rows, _average_notes(outcome, "corruptions"))


def _perturbation_table(name: str, outcome: Outcome) -> ResultTable:
    """A row for each perturbation, with accuracy and flip rate."""
    metrics = dict(_require(name, outcome.perturbations(), "perturbations"))
    averaged = standard_perturbations(metrics)
    if averaged and len(sources(outcome.predicted, "p")) == 1:
        mean = sum(accuracy for accuracy, _ in averaged.values()) / len(averaged)
        metrics["mean"] = mean, outcome.flip_rate()
    rows = [(title, [Cell(format_percent(number)) for number in pair]) for title, pair in metrics.items()]
    header = [name, "correct over all frames", "flip rate"]
    return ResultTable(header, rows, _average_notes(outcome, "perturbations"))


def _average_notes(outcome: Outcome, kind: str) -> list[str]:
    """The averages with their intervals, one sentence each, with the image set."""
    lines: list[str] = []
    for column in outcome.columns():
        if column[0] == kind:
            low, high = map(format_percent, outcome.interval(*column))
            lines.append(f"{kind}, {column[1]}: {format_percent(outcome.accuracy(*column))} ({low}-{high}).")
    return lines


def _join_tables(build: Callable[[str, Outcome], ResultTable], outcomes: Outcomes) -> str:
    """In Markdown: one table for every outcome."""
    parts = [
        tables.to_markdown(build(name, outcome)).removesuffix("\n") for name, outcome in outcomes.items()
    ]
    return "\n\n".join([*parts, "\n".join(["Percent of images.", *footnotes(outcomes)])]) + "\n"


def _corruption_csv(outcomes: Outcomes) -> str:
    """One row for every outcome, one column for every corruption and severity, accuracies in [0, 1].

    The header has two lines, as in the file that RobustBench writes.
    """
    accuracies = {name: _require(name, o.corruptions(), "corruptions") for name, o in outcomes.items()}
    numbered = [item for by_corruption in accuracies.values() for item in by_corruption.items()]
    columns = list(dict.fromkeys((name, severity) for name, numbers in numbered for severity in numbers))
    lines: list[list[object]] = [
        ["corruption", *(corruption for corruption, _ in columns), "source"],
        ["severity", *(severity for _, severity in columns), ""],
    ]
    for name, by_corruption in accuracies.items():
        sets = outcomes[name].facts.get("ood", {})
        source = "; ".join(description for key, description in sets.items() if key.startswith("c"))
        numbers = [by_corruption.get(corruption, {}).get(severity, "") for corruption, severity in columns]
        lines.append([name, *numbers, source])
    return tables.to_csv(lines)


def _require(name: str, metrics: dict[str, Metric], kind: str) -> dict[str, Metric]:
    if not metrics:
        raise InputError(f"table: {name} has no {kind}, expected some; evaluate with ood={kind[0]!r}")
    return metrics


SHIFT_STYLES: dict[str, Callable[[Outcomes], str]] = {
    "corruptions": partial(_join_tables, _corruption_table),
    "perturbations": partial(_join_tables, _perturbation_table),
    "corruptions-csv": _corruption_csv,
}
"""Styles that show every corruption or perturbation by itself."""
