"""Reads the runs, studies and evaluations that a report shows, without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, final

from allrounder.errors import RunError
from allrounder.experiments.manifest import (
    MANIFEST_FILE,
    STUDY_FILE,
    Manifest,
    find_study_folder,
    shipped_studies,
)
from allrounder.experiments.published import check_published_files
from allrounder.experiments.run_rows import is_evaluation, note_damage, read_evaluation_row, read_run_rows
from allrounder.experiments.study_rows import read_study_rows
from allrounder.report.entry import Entry, Results
from allrounder.report.study import StudyResults
from allrounder.system.files import check_location
from allrounder.training.record import FORMAT_FILE, METRICS_FILE, RECIPE_FILE

RUN_FILES = (RECIPE_FILE, METRICS_FILE, FORMAT_FILE)
"""A folder with one of these is a run, if perhaps a damaged one."""
T = TypeVar("T")


@final
@dataclass(frozen=True, eq=False)
class _Source:
    """What one path gives: rows, and for a study its results by row."""

    title: str
    """The name of the study, or of the folder: tells rows of the same name apart."""
    entries: Sequence[Entry]
    study: StudyResults | None = None

    def names(self) -> list[tuple[str, str]]:
        """The name of every row, and a longer one that tells where it comes from."""
        form = "{name} ({title})" if self.study is None else "{title}: {name}"
        return [(row.name, form.format(name=row.name, title=self.title)) for row in self.entries]


def read_results(paths: str | Path | Sequence[str | Path]) -> Results:
    """Read run folders, studies (their folders or the names of shipped ones) and evaluation folders.

    A run gives a row for its best weights if they were evaluated, else its last ones, and a row for each of
    the other evaluated weights, such as "NAME (linf)". What is damaged, missing or unfinished becomes a
    problem of its row. Raises RunError for a path that is none of these.
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    sources = [_read_source(str(path)) for path in dict.fromkeys(map(Path, paths))]
    titles = iter(_make_unique([(s.title, s.title) for s in sources if s.study is not None]))
    sources = [source if source.study is None else replace(source, title=next(titles)) for source in sources]
    names = iter(_make_unique([pair for source in sources for pair in source.names()]))
    entries: list[Entry] = []
    studies: dict[str, StudyResults] = {}
    for source in sources:
        study = "" if source.study is None else source.title
        renamed = {entry.name: next(names) for entry in source.entries}
        entries += [replace(entry, name=renamed[entry.name], study=study) for entry in source.entries]
        if source.study is not None:
            studies[study] = _rename_rows(source.study, renamed)
    return Results(tuple(entries), studies)


def _read_source(path: str) -> _Source:
    folder = Path(path)
    check_location(folder)
    shipped = shipped_studies()
    is_study = any((folder / name).is_file() for name in (MANIFEST_FILE, STUDY_FILE))
    if is_study or path in shipped or (folder.is_file() and folder.suffix == ".toml"):
        return _read_study(find_study_folder(path, None, shipped))
    title = folder.resolve().name
    problems: list[str] = []
    with note_damage(problems):
        check_published_files(folder)
    if problems:
        return _Source(title, [Entry(title, problems=tuple(problems))])
    if any((folder / name).is_file() for name in RUN_FILES):
        return _Source(title, read_run_rows(folder))
    if is_evaluation(folder):
        return _Source(title, [read_evaluation_row(folder)])
    problem = "not a run, a study or an evaluation" if folder.exists() else "no such folder"
    expected = "the folder of a run, of a study or of an evaluation, or the name of a shipped study"
    raise RunError(f"{path}: {problem}; expected {expected} (see: allrounder ls)")


def _read_study(folder: Path) -> _Source:
    problems: list[str] = []
    with note_damage(problems):
        manifest = Manifest.load(folder)
        return _Source(manifest.name, *read_study_rows(manifest, folder))
    name = folder.resolve().name
    return _Source(name, [Entry(name, problems=tuple(problems))])


def _make_unique(wanted: Sequence[tuple[str, str]]) -> list[str]:
    """Return the first name of every pair, the second where several have the same first, and a number behind
    it where that is not enough."""
    counts = Counter(short for short, _ in wanted)
    names: list[str] = []
    for short, long in wanted:
        name = base = short if counts[short] == 1 else long
        number = 2
        while name in names:
            name, number = f"{base} {number}", number + 1
        names.append(name)
    return names


def _rename_rows(study: StudyResults, names: Mapping[str, str]) -> StudyResults:
    """Return the results of a study whose rows have the names of the report."""

    def rename(by_row: Mapping[str, T]) -> dict[str, T]:
        return {names.get(row, row): value for row, value in by_row.items()}

    return replace(
        study,
        outcomes=rename(study.outcomes),
        paper=rename(study.paper),
        cost=rename(study.cost),
        minutes=rename(study.minutes),
        paper_minutes=rename(study.paper_minutes),
        reference=names.get(study.reference, study.reference),
    )
