"""What a report is made of: rows with their outcomes and trainings, and studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

from allrounder.report.corruption_metrics import parse_shift_id
from allrounder.report.dial import DialPoint
from allrounder.report.outcome import JUDGE, NATURAL, Column, Outcome
from allrounder.report.study import SeedCell, StudyResults


@final
@dataclass(frozen=True, eq=False)
class TrainingFacts:
    """What the folder of a run says about its training."""

    folder: str
    """As it was named, never an absolute path that was not."""
    state: str
    """Such as "finished" or "interrupted, epoch 3 of 12 done"."""
    recipe: str
    """The resolved recipe, as TOML."""
    learners: tuple[str, ...] = ()
    epochs: int = 0
    events: tuple[Mapping[str, Any], ...] = ()
    """The log: see report/curves.py."""
    exchanges: tuple[int, ...] = ()
    """The epochs after or within which learners restart from the global weights, one for each exchange."""
    sessions: tuple[Mapping[str, Any], ...] = ()
    """Versions, device, threads and commit of every process that trained it: env.json."""
    mixtures: tuple[DialPoint, ...] = ()
    """The mixtures of its learners that `allrounder dial` measured."""


@final
@dataclass(frozen=True, eq=False)
class Entry:
    """One row of a report: a network, or the networks of several seeds."""

    name: str
    """Unique in a report."""
    outcomes: Mapping[int, Outcome] = field(default_factory=dict[int, Outcome])
    """By seed; empty if nothing was evaluated."""
    trainings: Mapping[int, TrainingFacts] = field(default_factory=dict[int, TrainingFacts])
    """By seed; empty for networks that were trained elsewhere."""
    study: str = ""
    """The name of the study that the row belongs to, if any."""
    cost: str = ""
    """Forward/backward passes of every training image over the whole run: "132/132"."""
    minutes: tuple[float, ...] = ()
    """Measured minutes of training, one for each seed; empty if unknown."""
    classes: tuple[str, ...] = ()
    """The names of the classes; empty if unknown."""
    problems: tuple[str, ...] = ()
    """What is damaged, missing or unfinished, one sentence each."""

    @cached_property
    def results(self) -> StudyResults:
        """The outcomes as a study of one row."""
        return StudyResults({self.name: self.outcomes})

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the first seed, if there is one."""
        return next(iter(self.outcomes.values()), None)

    def columns(self) -> list[Column]:
        """The columns of the outcomes."""
        return self.results.columns() if self.outcomes else []

    def cell(self, column: Column) -> SeedCell | None:
        """The mean over seeds and the 95% interval of a column; None if it was not measured."""
        return self.results.cell(self.name, column)


@final
@dataclass(frozen=True, eq=False)
class Results:
    """Everything that a report shows."""

    entries: tuple[Entry, ...]
    studies: Mapping[str, StudyResults] = field(default_factory=dict[str, StudyResults])
    """By name; their rows are among the entries."""

    @property
    def evaluated(self) -> list[Entry]:
        """The entries that have outcomes."""
        return [entry for entry in self.entries if entry.outcomes]

    def select_rows(self, parts: Sequence[str]) -> Results:
        """Return the rows whose names contain one of some texts, in any case of letters. A text that is the
        whole name of a row selects that row only."""
        wanted = [part.lower() for part in parts]
        names_in_full = {entry.name.lower() for entry in self.entries} & set(wanted)
        contained = [part for part in wanted if part not in names_in_full]
        entries = [
            entry
            for entry in self.entries
            if entry.name.lower() in names_in_full or any(part in entry.name.lower() for part in contained)
        ]
        names = {entry.name for entry in entries}
        studies: dict[str, StudyResults] = {}
        for name, study in self.studies.items():
            outcomes = {row: by_seed for row, by_seed in study.outcomes.items() if row in names}
            if outcomes:
                studies[name] = replace(study, outcomes=outcomes)
        return Results(tuple(entries), studies)


def choose_judge(entries: Sequence[Entry]) -> str | None:
    """Return the attack that ranks the entries: AutoAttack if one of them has it, else the attack that most
    of them have, the first of several. None if there is no attack."""
    counts: dict[str, int] = {}
    for entry in entries:
        for attack in _attacks(entry):
            counts[attack] = counts.get(attack, 0) + 1
    if not counts or JUDGE in counts:
        return JUDGE if counts else None
    return max(counts, key=lambda attack: counts[attack])


def _attacks(entry: Entry) -> list[str]:
    names = [name for outcome in entry.outcomes.values() for name in outcome.predicted]
    attacks = [name for name in names if name != NATURAL and parse_shift_id(name) is None]
    return list(dict.fromkeys(name.partition("@")[0] for name in attacks))
