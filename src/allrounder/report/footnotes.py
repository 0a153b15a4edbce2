"""What a reader must know of how the numbers of some outcomes came about, in sentences.

They tell what these facts say, where an outcome has them:

seed, lane, budget    how it was measured
attacks               the settings of every attack, as a text or by name
ood                   the sets of corrupted images and of perturbation sequences
weights, selected_on  which weights were measured, and on which images they were chosen
extra                 images besides the dataset's own that it was trained on
flags                 sentences of doubt about the numbers; one about a threat begins with it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

import numpy as np

from allrounder.report.corruption_metrics import AVERAGED, by_perturbation, sources
from allrounder.report.outcome import Outcome
from allrounder.report.statistics import percent

Outcomes: TypeAlias = Mapping[str, Outcome]


def footnotes(outcomes: Outcomes) -> list[str]:
    """The notes to a table with these rows, a sentence a line; those on some rows only name them."""
    order = (_measured, _attacked, _shifted, _selected, _trained)
    lines = [line for say in order for line in _grouped(outcomes, say)]
    first, *others = (outcome.label for outcome in outcomes.values())
    if not all(np.array_equal(first, label) for label in others):
        lines.append("The rows were not measured on the same images.")
    return lines + _grouped(outcomes, flags, "FLAGGED: ")


def flags(outcome: Outcome, threat: str | None = None) -> list[str]:
    """The doubts about an outcome; with a threat, without those about its other threats."""
    others = {name.partition("@")[2] for name in outcome.predicted if threat is not None} - {threat, ""}
    said: Sequence[str] = outcome.facts.get("flags", ())
    return [text for text in said if not text.startswith(tuple(f"{other}: " for other in others))]


def _grouped(outcomes: Outcomes, say: Callable[[Outcome], Sequence[str]], before: str = "") -> list[str]:
    """A line for everything said, with the names of the rows it is said of, unless that is all of them."""
    found: dict[str, list[str]] = {}
    for name, outcome in outcomes.items():
        for text in say(outcome):
            found.setdefault(text, []).append(name)
    return [
        f"{before}{text}." if len(names) == len(outcomes) else f"{', '.join(names)}: {before}{text}."
        for text, names in found.items()
    ]


def _measured(outcome: Outcome) -> list[str]:
    known = {"seed": "seed", "lane": "lane width", "budget": "budget"}
    told = [f"{word} {_plain(outcome.facts[key])}" for key, word in known.items() if key in outcome.facts]
    return ["; ".join([f"{len(outcome)} images", *told])]


def _attacked(outcome: Outcome) -> list[str]:
    return [f"{name}: {_plain(how)}" for name, how in outcome.facts.get("attacks", {}).items()]


def _shifted(outcome: Outcome) -> list[str]:
    named = {"c": "Corruptions", "p": "Perturbations"}
    told: list[str] = []
    for of, about in outcome.facts.get("ood", {}).items():
        instead = "NOT USED, though taken as official: " if of.endswith("unusable") else ""
        told.append(f"{named[of[0]]}: {instead}{_plain(about)}")
    for source in sources(outcome.predicted, "p"):
        of = {name: seen for name, seen in outcome.predicted.items() if f"@p-{source}:" in name}
        rates = [flips for _, flips in by_perturbation(of, outcome.label).values()]
        count = f"{len(rates)} of {len(AVERAGED['p'])}" if len(rates) < len(AVERAGED["p"]) else len(rates)
        flips = percent(sum(rates) / len(rates))
        told.append(f"Flip rate ({source}): {flips}%, the mean over {count} perturbations")
    return told


def _selected(outcome: Outcome) -> list[str]:
    on, weights = outcome.facts.get("selected_on"), outcome.facts.get("weights")
    of = "Weights" if weights is None else f"Weights {_plain(weights)!r}"
    if on is None:
        return [] if weights is None else [of]
    return [f"{of} selected on {'the TEST set, so too optimistic' if on == 'test' else f'{on} images'}"]


def _trained(outcome: Outcome) -> list[str]:
    return [f"Trained with EXTRA DATA: {_plain(outcome.facts['extra'])}"] if "extra" in outcome.facts else []


def _plain(fact: object) -> str:
    if isinstance(fact, Mapping):
        return ", ".join(f"{key} {_plain(part)}" for key, part in cast(Mapping[str, object], fact).items())
    return fact if isinstance(fact, str) else json.dumps(fact)
