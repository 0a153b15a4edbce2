"""The rows of a report that one attack measured under the same threats, so that they can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from allrounder.report.chart import Axis
from allrounder.report.entry import Entry, choose_judge
from allrounder.report.figures.base import join_names
from allrounder.report.footnotes import stored_flags
from allrounder.report.outcome import JUDGE, NATURAL, Column
from allrounder.report.study import SeedCell


@final
@dataclass(frozen=True, eq=False)
class Judged:
    """Rows under the attack that ranks them."""

    attack: str
    probes: tuple[str, ...]
    """The attack's probes that the rows are compared under, one for each threat."""
    entries: tuple[Entry, ...]
    """The rows with natural predictions and those of the probes, and nothing else."""
    left_out: tuple[str, ...]
    """The names of evaluated rows that lack one of the probes: another attack does not replace it."""

    @property
    def column(self) -> Column:
        """The column that ranks: the worst of several threats, or the only one."""
        return (self.probes[0], None) if len(self.probes) == 1 else (self.attack, "worst")

    @property
    def norms(self) -> list[str]:
        """The norms of the threats, in their order."""
        return list(dict.fromkeys(threat_of(probe).partition(":")[0] for probe in self.probes))

    def axis(self, probes: Sequence[str] = ()) -> Axis:
        """The axis of robust accuracies under some of the probes; all by default."""
        return Axis(f"robust accuracy, {self.describe(probes)}", percent=True)

    def describe(self, probes: Sequence[str] = ()) -> str:
        """Some of the probes in words, all by default: "worst of Linf:8/255 and L2:1/2 (AutoAttack)"."""
        threats = [threat_of(probe) for probe in probes or self.probes]
        worst = "worst of " if len(threats) > 1 else ""
        return f"{worst}{' and '.join(threats)} ({attack_title(self.attack)})"

    def robust_cell(self, entry: Entry, probes: Sequence[str] = ()) -> SeedCell:
        """The share of images of a row that are correct under each of some probes; all by default."""
        if not probes or len(probes) == len(self.probes):
            return _cell(entry, self.column)
        return _cell(restrict(entry, probes), (probes[0], None) if len(probes) == 1 else self.column)

    def natural_cell(self, entry: Entry) -> SeedCell:
        """The natural accuracy of a row, of the same seeds."""
        return _cell(entry, (NATURAL, None))

    def notes(self, probes: Sequence[str] = ()) -> str:
        """What a reader must know about the robust accuracies under some of the probes, all by default."""
        notes: list[str] = []
        if len(probes or self.probes) > 1:
            notes.append("Worst: correct under every threat at once.")
        if self.attack != JUDGE:
            notes.append(f"{self.attack} only: an upper bound; AutoAttack may leave less.")
        if self.left_out:
            notes.append(f"Left out, without {' and '.join(self.probes)}: {join_names(self.left_out)}.")
        flagged = [entry.name for entry in self.entries if any(map(stored_flags, entry.outcomes.values()))]
        if flagged:
            notes.append(f"Evaluations with warnings: {join_names(flagged)}.")
        outcomes = [outcome for entry in self.entries for outcome in entry.outcomes.values()]
        if not all(outcomes[0].has_same_images(other) for other in outcomes):
            notes.append("The rows were not measured on the same images.")
        return " ".join(notes)


def judge_entries(entries: Sequence[Entry]) -> Judged | None:
    """Choose the attack that ranks and the threats that most of its outcomes have, the larger set of two
    equally frequent ones; keep the rows that have all of them. None if there is no attack."""
    attack = choose_judge(entries)
    if attack is None:
        return None
    measured = [outcome.probes(attack) for entry in entries for outcome in entry.outcomes.values()]
    counts = Counter(frozenset(probes) for probes in measured if probes)
    chosen = max(counts, key=lambda probes: (counts[probes], len(probes)))
    probes = next(probes for probes in measured if chosen == frozenset(probes))
    kept = [restrict(entry, probes) for entry in entries]
    left_out = [entry.name for entry in kept if not entry.outcomes]
    return Judged(attack, tuple(probes), tuple(entry for entry in kept if entry.outcomes), tuple(left_out))


def restrict(entry: Entry, probes: Sequence[str]) -> Entry:
    """Return a row with natural predictions and those of some probes, for the seeds that have all of them."""
    names = (NATURAL, *probes)
    outcomes = {
        seed: replace(
            outcome,
            predicted={name: outcome.predicted[name] for name in names},
            distance={name: outcome.distance[name] for name in names if name in outcome.distance},
            stage={name: outcome.stage[name] for name in names if name in outcome.stage},
        )
        for seed, outcome in entry.outcomes.items()
        if all(name in outcome.predicted for name in names)
    }
    return replace(entry, outcomes=outcomes)


def attack_title(attack: str) -> str:
    """An attack in words; anything weaker than AutoAttack only bounds robustness from above."""
    return "AutoAttack" if attack == JUDGE else f"{attack} only: an upper bound"


def threat_of(probe: str) -> str:
    """The threat of a probe, such as "Linf:8/255"."""
    return probe.partition("@")[2] or probe


def _cell(entry: Entry, column: Column) -> SeedCell:
    cell = entry.cell(column)
    assert cell is not None, "judged rows have all of their columns"
    return cell
