"""The short notes below a table of a document: what the numbers are, how many images they are of, and every
warning, with the same warning about several trainings in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

from allrounder.report.footnotes import (
    count_images,
    describe_extra_data,
    describe_missing_judge,
    describe_selection,
    stored_flags,
)
from allrounder.report.outcome import Outcome
from allrounder.report.study import StudyResults
from allrounder.report.tables import MARKS

Training: TypeAlias = tuple[str, int]
"""A row and a seed."""
COUNT = re.compile(r"(?<![\w.:@/-])(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")
"""A number that may differ from training to training in the text of a warning, such as 12.5 or 10,000; not
that of pgd-20 or L2:1."""
GAP = "\0"


def short_notes(
    results: StudyResults, style: str = "text", rows: Sequence[str] = (), titles: Sequence[str] = ()
) -> list[str]:
    """Return the short notes to some rows and columns of a table; to all if none are named."""
    outcomes = {
        (row, seed): o for row in rows or results.outcomes for seed, o in results.outcomes[row].items()
    }
    lines = [results.describe_numbers(rows), *results.describe_tests(MARKS[style].differs, rows, titles)]
    lines.append(f"{' or '.join(dict.fromkeys(map(count_images, outcomes.values())))}.")
    return lines + warning_notes(results, rows)


def warning_notes(results: StudyResults, rows: Sequence[str] = ()) -> list[str]:
    """Return every warning about some rows of a table, and what is missing; about all if none are named."""
    outcomes = {
        (row, seed): o for row in rows or results.outcomes for seed, o in results.outcomes[row].items()
    }
    lines = condense_warnings(outcomes)
    first, *others = outcomes.values()
    if not all(map(first.has_same_images, others)):
        lines.append("The rows were not measured on the same images.")
    missing = [text.rpartition(", seed ") for text in results.missing_trainings(rows)]
    if missing:
        lines.append(f"MISSING: {list_trainings((row, int(seed)) for row, _, seed in missing)}.")
    return lines


def condense_warnings(outcomes: Mapping[Training, Outcome]) -> list[str]:
    """Return one line for every kind of warning, with the rows and seeds that have it unless all have.
    Threats are in one line if the same trainings have the warning for all of them."""
    kinds: dict[tuple[str, str], _Warnings] = {}
    for training, outcome in outcomes.items():
        threats = {name.partition("@")[2] for name in outcome.predicted}
        for start, text in _list_warnings(outcome):
            threat, _, rest = text.partition(": ")
            threat, rest = (threat, rest) if threat in threats else ("", text)
            kind = kinds.setdefault((f"{start}{COUNT.sub(GAP, rest)}", threat), _Warnings(start))
            kind.texts.append(rest)
            kind.trainings[training] = None
    merged: dict[tuple[str, bool, frozenset[Training]], _Warnings] = {}
    for (text, threat), kind in kinds.items():
        key = text, bool(threat), frozenset(kind.trainings)
        merged.setdefault(key, _Warnings(kind.start)).extend(kind, threat)
    return [kind.describe(len(outcomes)) for kind in merged.values()]


def list_trainings(trainings: Iterable[Training]) -> str:
    """Return rows with their seeds: "AT, seeds 0, 1; NT, seed 2"."""
    seeds: dict[str, list[int]] = {}
    for row, seed in trainings:
        seeds.setdefault(row, []).append(seed)
    return "; ".join(
        f"{row}, {'seed' if len(numbers) == 1 else 'seeds'} {', '.join(map(str, sorted(numbers)))}"
        for row, numbers in seeds.items()
    )


@final
@dataclass
class _Warnings:
    """Warnings whose texts differ in numbers and threats only."""

    start: str
    texts: list[str] = field(default_factory=list[str])
    threats: list[str] = field(default_factory=list[str])
    trainings: dict[Training, None] = field(default_factory=dict[Training, None])

    def extend(self, other: _Warnings, threat: str) -> None:
        """Add the warnings for another threat, or for none if it is empty."""
        self.texts += other.texts
        self.threats += [threat] if threat else []
        self.trainings |= other.trainings

    def describe(self, num_trainings: int) -> str:
        """Return one sentence, in which numbers that differ are ranges."""
        ranges = zip(*(COUNT.findall(text) for text in self.texts), strict=True)
        shown = iter([_describe_range(numbers) for numbers in ranges])
        text = COUNT.sub(lambda _: next(shown), self.texts[0])
        start = self.start + (f" under {', '.join(self.threats)}" if self.threats else "")
        text = f"{start}: {text}" if start else text
        is_everywhere = len(self.trainings) == num_trainings
        return f"{text}." if is_everywhere else f"{text}: {list_trainings(self.trainings)}."


def _describe_range(numbers: Sequence[str]) -> str:
    by_value = {float(number.replace(",", "")): number for number in numbers}
    low, high = by_value[min(by_value)], by_value[max(by_value)]
    return low if low == high else f"{low} to {high}"


def _list_warnings(outcome: Outcome) -> list[tuple[str, str]]:
    """Return everything about an outcome that a reader must not miss, with the word that begins it."""
    selected_on_test = outcome.facts.get("selected_on") == "test"
    selection = describe_selection(outcome) if selected_on_test else []
    plain = [*describe_missing_judge(outcome), *selection, *describe_extra_data(outcome)]
    warnings = [("", text) for text in plain]
    warnings += [("FLAGGED", flag) for flag in stored_flags(outcome)]
    return warnings + [("Preflight", str(finding)) for finding in outcome.facts.get("findings", ())]
