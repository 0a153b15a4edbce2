"""The rows of a report that a study gives. Damage in one of its trainings leaves the others intact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from allrounder.experiments.manifest import STUDY_FILE, Manifest, TrialEntry, collect_results
from allrounder.experiments.published import find_published
from allrounder.experiments.run_rows import note_damage, read_classes, read_minutes, read_training
from allrounder.report.entry import Entry
from allrounder.report.study import StudyResults


def read_study_rows(manifest: Manifest, folder: Path) -> tuple[list[Entry], StudyResults]:
    """Read the rows of a study with all their seeds, and the results of their table."""
    entries = {label: Entry(label, study=manifest.name) for label in manifest.labels}
    parts: list[StudyResults] = []
    advice = f"continue it with: allrounder sweep {folder / STUDY_FILE} --out {folder}"
    if (published := find_published(folder)) is not None:
        advice = "finish it where the study runs, and publish the study again"
    for trial in manifest.trials:
        run = folder / trial.folder
        problems: list[str] = []
        training = None
        if published is not None:
            with note_damage(problems):
                published.check_files_below(trial.folder)
        if not problems and run.is_dir():
            training = read_training(run, problems, advice)
        elif not problems:
            problems.append(f"{run}: not trained yet; {advice}")
        is_unfinished = bool(problems)
        minutes = read_minutes(run, training, problems)
        classes = read_classes(run, problems)
        for label, which in trial.rows.items():
            row_problems = list(problems)
            part = _collect_row(manifest, folder, replace(trial, rows={label: which}), row_problems)
            if part.missing and not (is_unfinished or row_problems):
                row_problems.append(f"{run}: {which} is not evaluated; {advice}")
            entry = entries[label]
            entries[label] = replace(
                entry,
                outcomes={**entry.outcomes, **part.outcomes.get(label, {})},
                trainings=entry.trainings if training is None else {**entry.trainings, trial.seed: training},
                cost=trial.cost,
                minutes=(*entry.minutes, *minutes),
                classes=entry.classes or classes,
                problems=tuple(dict.fromkeys((*entry.problems, *row_problems))),
            )
            parts.append(part)
    return list(entries.values()), _join_parts(manifest, folder, entries, parts)


def _collect_row(manifest: Manifest, folder: Path, trial: TrialEntry, problems: list[str]) -> StudyResults:
    """Load the outcome of one row and seed; if it is damaged, it is missing."""
    with note_damage(problems):
        return collect_results(replace(manifest, trials=(trial,)), folder)
    return StudyResults({}, missing=[f"{label}, seed {trial.seed}" for label in trial.rows])


def _join_parts(
    manifest: Manifest, folder: Path, entries: dict[str, Entry], parts: list[StudyResults]
) -> StudyResults:
    minutes = {label: [m for part in parts for m in part.minutes.get(label, ())] for label in entries}
    return replace(
        collect_results(replace(manifest, trials=()), folder),
        outcomes={label: entry.outcomes for label, entry in entries.items() if entry.outcomes},
        cost={label: entry.cost for label, entry in entries.items()},
        missing=[line for part in parts for line in part.missing],
        minutes={label: measured for label, measured in minutes.items() if measured},
    )
