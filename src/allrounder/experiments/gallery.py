"""The gallery of a report: loads two of its runs, and compares them image by image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from allrounder.config.fields import did_you_mean
from allrounder.errors import AllrounderError, InputError
from allrounder.evaluation.gallery import EvaluatedNetwork, make_gallery
from allrounder.report.entry import Entry, Results, choose_judge
from allrounder.report.gallery import Gallery
from allrounder.report.outcome import Outcome
from allrounder.training.data import load_data
from allrounder.training.run import Run, load


@final
@dataclass(frozen=True, eq=False)
class _EvaluatedRun:
    """The first seed of a row that has both a run folder and an outcome."""

    entry: Entry
    folder: Path
    outcome: Outcome

    def load(self) -> EvaluatedNetwork:
        """Load the weights that were evaluated."""
        model = load(self.folder, str(self.outcome.facts.get("weights", "best")))
        return EvaluatedNetwork(self.entry.name, model, self.outcome)


def gallery_of_runs(
    results: Results,
    pair: tuple[str, str] | None = None,
    explain: Callable[[str], None] = lambda reason: None,
) -> Gallery | None:
    """Compare two rows of a report on the images that both were evaluated on.

    Without `pair`, these are the row with the best natural accuracy and the one with the best accuracy under
    all threats of the attack that ranks the report. Returns None if there is nothing to show, after `explain`
    was called with the reason: no run folders, other images, data or weights that cannot be read.
    """
    runs = {run.entry.name: run for entry in results.entries if (run := _find_run(entry)) is not None}
    if pair is not None:
        _check_names(pair, results)
    judge = choose_judge(results.evaluated)
    try:
        a, b = _choose_pair(list(runs.values()), judge) if pair is None else _take_pair(pair, runs)
        if judge is None:
            raise InputError("no attack was evaluated")
        gallery = make_gallery(a.load(), b.load(), load_data(Run(a.folder).recipe), judge)
    except (AllrounderError, OSError) as error:
        explain(f"no gallery: {str(error).removeprefix('gallery: ')}")
        return None
    if not gallery.items:
        explain(f"no gallery: {a.entry.name} and {b.entry.name} differ on no image as the gallery shows it")
        return None
    return gallery


def _find_run(entry: Entry) -> _EvaluatedRun | None:
    """None if no seed of the row has both a run folder and an outcome."""
    for seed, outcome in entry.outcomes.items():
        if seed in entry.trainings:
            return _EvaluatedRun(entry, Path(entry.trainings[seed].folder), outcome)
    return None


def _check_names(pair: tuple[str, str], results: Results) -> None:
    names = [entry.name for entry in results.entries]
    for name in pair:
        if name not in names:
            expected = f"expected two of {', '.join(names)}{did_you_mean(name, names)}"
            raise InputError(f"gallery: there is no row {name!r}, {expected}")
    if pair[0] == pair[1]:
        raise InputError(f"gallery: got {pair[0]!r} twice, expected two different rows")


def _take_pair(pair: tuple[str, str], runs: dict[str, _EvaluatedRun]) -> tuple[_EvaluatedRun, _EvaluatedRun]:
    for name in pair:
        if name not in runs:
            raise InputError(f"{name} has no run folder with an evaluation")
    return runs[pair[0]], runs[pair[1]]


def _choose_pair(runs: Sequence[_EvaluatedRun], judge: str | None) -> tuple[_EvaluatedRun, _EvaluatedRun]:
    """The best natural accuracy and the best worst case, among the most rows of equal images and threats."""
    groups: dict[object, list[_EvaluatedRun]] = {}
    for run in runs:
        if judge is not None and (probes := run.outcome.probes(judge)):
            images = run.outcome.facts.get("data"), run.outcome.facts.get("rows")
            groups.setdefault((images, frozenset(probes)), []).append(run)
    group = max(groups.values(), key=len) if groups else []
    if len(group) < 2:
        raise InputError(
            "there are no two runs that were evaluated on the same images with the same attack and threats"
        )
    assert judge is not None
    robust = max(group, key=lambda run: run.outcome.worst(judge))
    natural = max((run for run in group if run is not robust), key=lambda run: run.outcome.accuracy())
    return natural, robust
