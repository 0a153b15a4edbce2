"""The end of the page: for every row its state, recipe, environment and the provenance of its numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from allrounder.report.entry import Entry
from allrounder.report.footnotes import format_fact
from allrounder.report.outcome import Outcome

PROVENANCE = {
    "weights": "Weights",
    "selected_on": "Weights selected on",
    "seed": "Seed of the evaluation",
    "budget": "Budget",
    "batch_size": "Batch size",
    "classes": "Classes",
    "cost": "Cost",
    "recipe": "Fingerprint of the recipe",
    "network": "Digest of the network",
    "data": "Digest of the data",
    "rows": "Digest of the chosen images",
}
"""The facts of an outcome that come first, with their titles."""
SEPARATE = ("attacks", "flags", "findings", "images")
"""Facts that are shown elsewhere."""


@final
@dataclass(frozen=True)
class SeedDetails:
    """One network of a row."""

    seed: int
    facts: tuple[tuple[str, str], ...]
    """Titles and texts: state, folder, digests, and other facts of the outcome."""
    attacks: tuple[tuple[str, str], ...]
    """Probes with their exact budgets."""
    other_facts: str
    """All remaining facts, as JSON."""
    sessions: tuple[tuple[tuple[str, str], ...], ...]
    """The environment of every process that trained it: keys and texts."""
    recipe: str


@final
@dataclass(frozen=True)
class RunDetails:
    """All networks of a row."""

    row: str
    state: str
    problems: tuple[str, ...]
    seeds: tuple[SeedDetails, ...]


def describe_run(entry: Entry) -> RunDetails:
    """Return the details of a row."""
    states = dict.fromkeys(training.state for training in entry.trainings.values())
    evaluated = "evaluated" if entry.outcomes else "not evaluated"
    seeds = dict.fromkeys([*entry.trainings, *entry.outcomes])
    return RunDetails(
        entry.name,
        "; ".join([*states, evaluated]),
        entry.problems,
        tuple(_describe_seed(entry, seed) for seed in seeds),
    )


def _describe_seed(entry: Entry, seed: int) -> SeedDetails:
    training, outcome = entry.trainings.get(seed), entry.outcomes.get(seed)
    facts: list[tuple[str, str]] = (
        []
        if training is None
        else [
            ("Folder", training.folder),
            ("State", training.state),
            ("Epochs", str(training.epochs or "")),
            ("Learners", ", ".join(training.learners)),
        ]
    )
    facts += [] if outcome is None else [("Test images", str(len(outcome))), *_provenance(outcome)]
    attacks: Mapping[str, Any] = {} if outcome is None else outcome.facts.get("attacks", {})
    return SeedDetails(
        seed,
        tuple((title, text) for title, text in facts if text),
        tuple((probe, format_fact(budget)) for probe, budget in attacks.items()),
        "" if outcome is None else _other_facts(outcome),
        () if training is None else tuple(_list_facts(session) for session in training.sessions),
        "" if training is None else training.recipe,
    )


def _provenance(outcome: Outcome) -> list[tuple[str, str]]:
    facts = outcome.facts
    return [(title, format_fact(facts[key])) for key, title in PROVENANCE.items() if key in facts]


def _other_facts(outcome: Outcome) -> str:
    others = {key: fact for key, fact in outcome.facts.items() if key not in (*PROVENANCE, *SEPARATE)}
    return json.dumps(others, indent=1, default=str) if others else ""


def _list_facts(session: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((key, format_fact(fact)) for key, fact in session.items())
