"""The beginning of the page: what is shown, what judges it, and what a reader must be warned about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from allrounder.report.entry import JUDGE, Entry, Results, choose_judge
from allrounder.report.figures.base import join_names
from allrounder.report.figures.judged import judge_entries
from allrounder.report.footnotes import stored_flags
from allrounder.report.outcome import NATURAL, Outcome
from allrounder.report.page.results_table import (
    JUDGE_TITLE,
    attack_title,
    find_mixed_summaries,
    is_attack,
)
from allrounder.report.statistics import format_percent
from allrounder.report.study import SeedCell

MACHINE_KEYS = ("platform", "processor", "device", "threads", "torch", "python", "allrounder")


@final
@dataclass(frozen=True)
class Warnings:
    """What a reader must know about one row before using its numbers."""

    row: str
    """Empty for a warning about all rows."""
    lines: tuple[str, ...]


def describe_judge(results: Results) -> str:
    """Return the sentence that says which attack the robust accuracies rest on."""
    judge = choose_judge(results.entries)
    if judge is None:
        return "No row was evaluated under an attack."
    if judge != JUDGE:
        columns = [column for entry in results.evaluated for column in entry.columns() if is_attack(column)]
        weak = "PGD" if all(name.startswith("pgd") for name, _ in columns) else "Weaker attacks"
        return (
            f"{weak} only, an upper bound: robust accuracies are measured under {judge}. {JUDGE_TITLE} "
            "usually finds less robustness, and takes more from some rows than from others."
        )
    without = [entry.name for entry in results.evaluated if not _has_judge(entry)]
    sentence = f"{JUDGE_TITLE} judges the robust accuracies; other attacks are upper bounds."
    return sentence + (f" These rows were not evaluated with it: {join_names(without)}." if without else "")


def build_summary(results: Results) -> list[tuple[str, list[str]]]:
    """Return what is shown, as titles and lines."""
    judge = choose_judge(results.entries)
    missing = len(results.entries) - len(results.evaluated)
    rows = f"{len(results.entries)}" + (f", {missing} of them not evaluated" if missing else "")
    judge_title = "none" if judge is None else attack_title(judge)
    facts = {
        "Rows": [rows],
        "Studies": list(results.studies),
        "Trainings": _count_trainings(results),
        "Test images": _count_images(results),
        "Judge": [judge_title if judge in (JUDGE, None) else f"{judge_title}, an upper bound"],
        "Best natural accuracy": _describe_best(_natural_cells(results)),
        "Best robust accuracy": _describe_best_robust(results),
        "Machine": _machines(results),
    }
    return [(title, lines) for title, lines in facts.items() if lines]


def collect_warnings(results: Results) -> list[Warnings]:
    """Return the warnings about every row: problems of its files, flags, findings, and doubtful facts."""
    warnings = [Warnings("", tuple(_warn_about_all(results)))]
    warnings += [Warnings(entry.name, tuple(_warn_about(entry))) for entry in results.entries]
    return [warning for warning in warnings if warning.lines]


def _has_judge(entry: Entry) -> bool:
    return any(outcome.probes(JUDGE) for outcome in entry.outcomes.values())


def _warn_about_all(results: Results) -> list[str]:
    outcomes = [outcome for entry in results.evaluated for outcome in entry.outcomes.values()]
    same = all(outcomes[0].has_same_images(outcome) for outcome in outcomes)
    warnings = [] if same else ["The rows were not measured on the same images."]
    return warnings + [
        f"The worst and the mean of {attack_title(attack)} are over different threats in different rows."
        for attack in find_mixed_summaries(results)
    ]


def _warn_about(entry: Entry) -> list[str]:
    """The warnings about one row; with several seeds, each names its seed unless it holds for all."""
    seeds: dict[str, list[int]] = {}
    for seed, outcome in entry.outcomes.items():
        for line in dict.fromkeys(_doubts(outcome)):
            seeds.setdefault(line, []).append(seed)
    lines = [
        line if len(found) == len(entry.outcomes) else f"seed {', '.join(map(str, found))}: {line}"
        for line, found in seeds.items()
    ]
    unevaluated = [] if entry.outcomes or entry.problems else ["This row was not evaluated."]
    return [*entry.problems, *unevaluated, *lines]


def _doubts(outcome: Outcome) -> list[str]:
    doubts = [*stored_flags(outcome), *map(str, outcome.facts.get("findings", ()))]
    if outcome.facts.get("selected_on") == "test":
        doubts.append("The weights were selected on the test set, so the numbers are too high.")
    if outcome.facts.get("split") == "held-out":
        doubts.append("It was measured on held-out training images, not on test images.")
    if "extra" in outcome.facts:
        doubts.append("The network was trained with extra data.")
    return doubts


def _count_images(results: Results) -> list[str]:
    """The number of images, by rows if they differ."""
    rows: dict[int, list[str]] = {}
    for entry in results.evaluated:
        for count in {len(outcome) for outcome in entry.outcomes.values()}:
            rows.setdefault(count, []).append(entry.name)
    if len(rows) == 1:
        return [f"{count:,}" for count in rows]
    return [f"{count:,}: {join_names(names)}" for count, names in rows.items()]


def _count_trainings(results: Results) -> list[str]:
    """The number of trainings; one that gives several rows counts once."""
    folders = {training.folder for entry in results.entries for training in entry.trainings.values()}
    return [str(len(folders))] if folders else []


def _natural_cells(results: Results) -> dict[str, SeedCell]:
    return {entry.name: cell for entry in results.evaluated if (cell := entry.cell((NATURAL, None)))}


def _describe_best_robust(results: Results) -> list[str]:
    """The best of the rows that can be compared, and under what."""
    judged = judge_entries(results.evaluated)
    if judged is None:
        return []
    lines = _describe_best({entry.name: judged.robust_cell(entry) for entry in judged.entries})
    return [*lines, f"Measured: {judged.describe()}"] if lines else []


def _describe_best(cells: Mapping[str, SeedCell]) -> list[str]:
    """The highest number, as it is shown, with its row, or with all rows that have it."""
    best = max(cells.values(), key=lambda cell: cell.mean, default=None)
    if best is None:
        return []
    percent = format_percent(best.mean)
    names = [name for name, cell in cells.items() if format_percent(cell.mean) == percent]
    has_interval = len(names) == 1 and best.interval is not None
    interval = f" ({'-'.join(map(format_percent, best.interval or ()))})" if has_interval else ""
    return [f"{percent}%{interval}: {join_names(names)}"]


def _machines(results: Results) -> list[str]:
    trainings = [training for entry in results.entries for training in entry.trainings.values()]
    sessions = [session for training in trainings for session in training.sessions]
    return list(dict.fromkeys(filter(None, map(describe_machine, sessions))))


def describe_machine(session: Mapping[str, Any], keys: Sequence[str] = MACHINE_KEYS) -> str:
    """Return the machine and the versions of a session in one line."""
    plain = ("platform", "processor", "device")
    return ", ".join(
        str(session[key]) if key in plain else f"{key} {session[key]}" for key in keys if key in session
    )
