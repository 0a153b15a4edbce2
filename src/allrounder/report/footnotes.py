"""The footnotes of a table: what a reader must know about how its numbers were obtained.

They are derived from these facts of an outcome, where it has them:

seed, batch_size, budget  how it was evaluated
split                     "held-out" for training images that the recipe holds out; test images otherwise
attacks                   the settings of every attack, as a text or by name
ood                       the sets of corrupted images and of perturbation sequences
weights, selected_on      which weights were evaluated, and on which images they were selected
extra                     training images besides the dataset's own
mixture                   how networks were mixed after training
networks                  the number of networks that a prediction needs, if there are several
flags                     warnings about the numbers; a warning about a threat begins with the threat
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

from allrounder.report.corruption_metrics import (
    STANDARD_SHIFTS,
    metrics_by_perturbation,
    parse_shift_id,
    sources,
    standard_perturbations,
)
from allrounder.report.outcome import JUDGE, Outcome
from allrounder.report.statistics import format_percent

Outcomes: TypeAlias = Mapping[str, Outcome]


def footnotes(outcomes: Outcomes) -> list[str]:
    """The notes to a table with these rows, one sentence a line; a note on some rows only names them."""
    parts = (
        _describe_evaluation,
        _describe_attacks,
        describe_missing_judge,
        _describe_shifts,
        describe_selection,
        describe_extra_data,
        _describe_mixture,
    )
    lines = [line for describe in parts for line in _group_by_text(outcomes, describe)]
    first, *others = outcomes.values()
    if not all(map(first.has_same_images, others)):
        lines.append("The rows were not measured on the same images.")
    return lines + _group_by_text(outcomes, stored_flags, "FLAGGED: ")


def stored_flags(outcome: Outcome, threat: str | None = None) -> list[str]:
    """The warnings in the facts of an outcome; with a threat, without those about other threats."""
    others = {name.partition("@")[2] for name in outcome.predicted if threat is not None} - {threat, ""}
    flags: Sequence[str] = outcome.facts.get("flags", ())
    return [flag for flag in flags if not flag.startswith(tuple(f"{other}: " for other in others))]


def _group_by_text(
    outcomes: Outcomes, describe: Callable[[Outcome], Sequence[str]], prefix: str = ""
) -> list[str]:
    """One line for every text, with the names of its rows unless it holds for all of them."""
    rows: dict[str, list[str]] = {}
    for name, outcome in outcomes.items():
        for text in describe(outcome):
            rows.setdefault(text, []).append(name)
    return [
        f"{prefix}{text}." if len(names) == len(outcomes) else f"{', '.join(names)}: {prefix}{text}."
        for text, names in rows.items()
    ]


def _describe_evaluation(outcome: Outcome) -> list[str]:
    keys = [key for key in ("seed", "batch_size", "budget") if key in outcome.facts]
    facts = [f"{key.replace('_', ' ')} {format_fact(outcome.facts[key])}" for key in keys]
    return ["; ".join([count_images(outcome), *facts])]


def count_images(outcome: Outcome) -> str:
    """Return the number of images of an outcome, and what they are unless they are test images."""
    images = f"{outcome.facts['split']} training images" if "split" in outcome.facts else "images"
    return f"{len(outcome)} {images}"


def _describe_attacks(outcome: Outcome) -> list[str]:
    return [f"{name}: {format_fact(budget)}" for name, budget in outcome.facts.get("attacks", {}).items()]


def describe_missing_judge(outcome: Outcome) -> list[str]:
    """Name the threats for which AutoAttack was not run."""
    names = [name for name in outcome.predicted if "@" in name and parse_shift_id(name) is None]
    threats = dict.fromkeys(name.partition("@")[2] for name in names)
    missing = [threat for threat in threats if f"{JUDGE}@{threat}" not in names]
    if not missing:
        return []
    bounds = "accuracies under other attacks are upper bounds"
    return [f"AutoAttack ({JUDGE}) was not run for {', '.join(missing)}: {bounds}"]


def _describe_shifts(outcome: Outcome) -> list[str]:
    titles = {"c": "Corruptions", "p": "Perturbations"}
    lines: list[str] = []
    for set_name, description in outcome.facts.get("ood", {}).items():
        unusable = "NOT USED, though taken as official: " if set_name.endswith("unusable") else ""
        lines.append(f"{titles[set_name[0]]}: {unusable}{format_fact(description)}")
    total = len(STANDARD_SHIFTS["p"])
    for source in sources(outcome.predicted, "p"):
        predicted = {name: array for name, array in outcome.predicted.items() if f"@p-{source}:" in name}
        metrics = standard_perturbations(metrics_by_perturbation(predicted, outcome.label))
        if metrics:
            count = f"{len(metrics)} of {total}" if len(metrics) < total else total
            percent = format_percent(sum(flips for _, flips in metrics.values()) / len(metrics))
            lines.append(f"Flip rate ({source}): {percent}%, the mean over {count} perturbations")
            lines.append(f"Means over perturbations ({source}) cover {', '.join(metrics)}")
    return lines


def describe_selection(outcome: Outcome) -> list[str]:
    """Say which weights were evaluated, and on which images they were selected."""
    selected_on, weights = outcome.facts.get("selected_on"), outcome.facts.get("weights")
    name = "Weights" if weights is None else f"Weights {format_fact(weights)!r}"
    if selected_on is None:
        return [] if weights is None else [name]
    images = "the TEST set, so too optimistic" if selected_on == "test" else f"{selected_on} images"
    if selected_on == "validation" and outcome.facts.get("split") == "held-out":
        images = "THE SAME images, so too optimistic"
    return [f"{name} selected on {images}"]


def describe_extra_data(outcome: Outcome) -> list[str]:
    """Say which images were used besides those of the dataset."""
    extra = [outcome.facts["extra"]] if "extra" in outcome.facts else []
    return [f"Trained with EXTRA DATA: {format_fact(images)}" for images in extra]


def _describe_mixture(outcome: Outcome) -> list[str]:
    if "mixture" not in outcome.facts:
        return []
    networks: int = outcome.facts.get("networks", 1)
    what, cost = "Weights", ""
    if networks > 1:
        what, cost = f"Outputs of {networks} networks", f"; a prediction costs that of {networks} networks"
    return [f"{what} mixed after training: {format_fact(outcome.facts['mixture'])}{cost}"]


def format_fact(fact: object) -> str:
    """Return a fact as a text: mappings as "key value, key value", other values as JSON."""
    if isinstance(fact, Mapping):
        parts = cast(Mapping[str, object], fact)
        return ", ".join(f"{key} {format_fact(part)}" for key, part in parts.items())
    return fact if isinstance(fact, str) else json.dumps(fact)
