"""Tables of every corruption and every perturbation by itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import TypeVar

from allrounder.report.corruption_metrics import ALL, sources
from allrounder.report.footnotes import Outcomes, footnotes
from allrounder.report.outcome import AVERAGES, Outcome
from allrounder.report.statistics import percent

Found = TypeVar("Found")


def corruptions(outcomes: Outcomes) -> str:
    """In Markdown: a table for every outcome, corruptions down and severities across."""
    parts: list[str] = []
    for name, outcome in outcomes.items():
        found = _needed(name, outcome.corruptions(), "corruptions")
        rows = [[corruption, *_across(shares)] for corruption, shares in found.items()]
        header = [name, *(f"severity {severity}" for severity in ALL), "mean"]
        parts.append(_markdown(header, rows, _means(outcome, "corruptions")))
    return _with_notes(parts, outcomes)


def perturbations(outcomes: Outcomes) -> str:
    """In Markdown: a table for every outcome, perturbations down, accuracy and flip rate across."""
    parts: list[str] = []
    for name, outcome in outcomes.items():
        found = _needed(name, outcome.perturbations(), "perturbations")
        rows = [[title, percent(share), percent(flips)] for title, (share, flips) in found.items()]
        if len(sources(outcome.predicted, "p")) == 1:
            mean = sum(share for share, _ in found.values()) / len(found)
            rows.append(["mean", percent(mean), percent(outcome.flip_rate())])
        header = [name, "correct over all frames", "flip rate"]
        parts.append(_markdown(header, rows, _means(outcome, "perturbations")))
    return _with_notes(parts, outcomes)


def corruptions_csv(outcomes: Outcomes) -> str:
    """A row for every outcome, a column for every corruption and severity, shares in [0, 1].

    The header has two lines, as the file that RobustBench writes.
    """
    found = {name: _needed(name, outcome.corruptions(), "corruptions") for name, outcome in outcomes.items()}
    columns = list(dict.fromkeys((c, s) for of in found.values() for c, shares in of.items() for s in shares))
    text = io.StringIO()
    sheet = csv.writer(text, lineterminator="\n")
    sheet.writerow(["corruption", *(corruption for corruption, _ in columns), "source"])
    sheet.writerow(["severity", *(severity for _, severity in columns), ""])
    for name, of in found.items():
        told = outcomes[name].facts.get("ood", {})
        source = "; ".join(about for key, about in told.items() if key.startswith("c"))
        sheet.writerow([name, *(of.get(corruption, {}).get(s, "") for corruption, s in columns), source])
    return text.getvalue()


SHIFTED: dict[str, Callable[[Outcomes], str]] = {
    "corruptions": corruptions,
    "perturbations": perturbations,
    "corruptions-csv": corruptions_csv,
}


def _needed(name: str, found: dict[str, Found], what: str) -> dict[str, Found]:
    if not found:
        raise ValueError(f"table: {name} has no {what}, expected some; evaluate with ood={what[0]!r}")
    return found


def _across(shares: dict[int, float]) -> list[str]:
    whole = len(shares) == len(ALL)
    cells = [percent(shares[severity]) if severity in shares else "-" for severity in ALL]
    return [*cells, percent(sum(shares.values()) / len(shares)) if whole else "-"]


def _means(outcome: Outcome, what: str) -> list[str]:
    """The averages with their intervals, each a sentence that says which set it is."""
    assert what in AVERAGES
    lines: list[str] = []
    for attack, title in outcome.columns():
        if attack == what and title is not None:
            low, high = (percent(end) for end in outcome.interval(attack, title))
            lines.append(f"{what}, {title}: {percent(outcome.accuracy(attack, title))} ({low}-{high}).")
    return lines


def _markdown(header: list[str], rows: list[list[str]], below: list[str]) -> str:
    rule = [":--", *["--:"] * (len(header) - 1)]
    lines = [
        "| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in (header, rule, *rows)
    ]
    return "\n".join([*lines, "", *below])


def _with_notes(parts: list[str], outcomes: Outcomes) -> str:
    return "\n\n".join([*parts, "\n".join(["Percent of images.", *footnotes(outcomes)])]) + "\n"
