"""Builds outcomes from stored results, with the facts that a reader of the numbers needs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allrounder.errors import RunError
from allrounder.evaluation.identity import digest_rows
from allrounder.evaluation.probes import Probe, probe_stages
from allrounder.evaluation.store import AttackResults, ResultStore
from allrounder.report.corruption_metrics import FloatArray, parse_shift_id
from allrounder.report.outcome import NATURAL, Facts, IntArray, Outcome
from allrounder.system.checked_files import write_arrays
from allrounder.system.files import check_location, explain_write_errors, make_folder
from allrounder.types import Labels

PER_PROBE_FACTS = ("stages", "settings", "white_box", "attacks", "ood", "masking")
"""Facts with an entry for every probe, for every set of corrupted images, or for every threat."""
MASKING_ATTACKS = ("fab", "fab-t", "square")
"""Stages that find what masked gradients hide."""


def assemble_outcome(
    store: ResultStore, probes: Sequence[Probe], rows: Labels, labels: Labels, facts: Facts
) -> Outcome:
    """The outcome of some probes on the images at `rows`.

    In a cascade, the first stage that fools the network decides the prediction and the distance.
    """
    natural = store.results(NATURAL)
    check_complete(NATURAL, natural, rows)
    predicted = {NATURAL: natural.predicted[rows].numpy()}
    distance: dict[str, FloatArray] = {}
    fooled_by: dict[str, IntArray] = {}
    for probe in probes:
        prediction, norm = natural.predicted[rows], natural.distance[rows]
        number = torch.where(prediction == labels, -1, 0)
        for stage in probe_stages(probe):
            results = store.results(stage.key())
            robust = number == -1
            check_complete(str(probe), results, rows[robust])
            fooled = robust & (results.predicted[rows] != labels)
            prediction = torch.where(fooled, results.predicted[rows], prediction)
            norm = torch.where(fooled, results.distance[rows], norm)
            number = torch.where(fooled, stage.number + 1, number)
        predicted[str(probe)] = prediction.numpy()
        distance[str(probe)], fooled_by[str(probe)] = norm.numpy(), number.numpy()
    return Outcome(labels.numpy(), predicted, facts, distance, fooled_by)


def check_complete(name: str, results: AttackResults, rows: Labels) -> None:
    """Raise if the result of a row is missing."""
    if missing := int((~results.done[rows]).sum()):
        raise RunError(f"{name}: {missing} of {len(rows)} images have no result; call again to continue")


def outcome_file(folder: Path, outcome: Outcome) -> Path:
    """The file in a results folder that holds all probes of the images of an outcome."""
    return folder / "outcomes" / f"{outcome.facts['rows']}.safetensors"


def read_outcome(file: Path) -> Outcome | None:
    """The outcome in a file, or None if there is no such file."""
    check_location(file.parent)
    return Outcome.load(file) if file.is_file() else None


def update_outcome(earlier: Outcome, now: Outcome) -> Outcome:
    """Add the probes of a new outcome to those of an earlier one of the same images.

    Of a probe in both, the new result counts. Earlier results on another set of corrupted images are dropped,
    and so is the check for masked gradients under a threat that FAB, Square or AutoAttack has evaluated.
    """
    old_sets, new_sets = (outcome.facts.get("ood", {}) for outcome in (earlier, now))
    replaced = [name for name in old_sets if name in new_sets and old_sets[name] != new_sets[name]]

    def merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
        shifts = {name: parse_shift_id(name) for name in old}
        dropped = {name for name, shift in shifts.items() if shift and shift.set_name in replaced}
        return {**{name: entry for name, entry in old.items() if name not in dropped}, **new}

    facts = merge(earlier.facts, now.facts)
    for key in PER_PROBE_FACTS:
        if key in facts:
            facts[key] = merge(earlier.facts.get(key, {}), now.facts.get(key, {}))
    if masking := {
        threat: counts
        for threat, counts in facts.pop("masking", {}).items()
        if not _has_masking_attack(threat, facts)
    }:
        facts["masking"] = masking
    questions = [*earlier.facts.get("questions", ()), *now.facts.get("questions", ())]
    facts["questions"] = list(dict.fromkeys(questions))
    distance, stage = merge(earlier.distance, now.distance), merge(earlier.stage, now.stage)
    predicted = merge(earlier.predicted, now.predicted)
    confidence = earlier.confidence if now.confidence is None else now.confidence
    return Outcome(now.label, predicted, facts, distance, stage, confidence)


def _has_masking_attack(threat: str, facts: Facts) -> bool:
    """Whether FAB or Square is a stage of a probe of a threat, as in AutoAttack."""
    stages = [
        stages for probe, stages in facts.get("stages", {}).items() if probe.partition("@")[2] == threat
    ]
    return any(stage in MASKING_ATTACKS for stage in chain.from_iterable(stages))


def save_examples(
    folder: Path, store: ResultStore, probes: Sequence[Probe], outcome: Outcome, rows: Labels
) -> None:
    """Write one file per probe: the images that fooled the network, with rows, labels and predictions."""
    for probe in probes:
        name = str(probe)
        fooled_by = outcome.stage[name]
        fooled = [position for position, number in enumerate(fooled_by) if number > 0]
        images: dict[int, Tensor] = {}
        for stage in probe_stages(probe):
            by_stage = {int(rows[position]) for position in fooled if fooled_by[position] == stage.number + 1}
            images |= store.examples(stage.key(), by_stage)
        file = folder / "examples" / f"{name.replace('/', '_').replace(':', '-')}.safetensors"
        if not fooled:
            with explain_write_errors(file):
                file.unlink(missing_ok=True)  # an earlier call with more images may have written one
            continue
        if not images.keys() >= {int(rows[position]) for position in fooled}:
            raise RunError(f"{name}: images that fool the network are missing; call again to compute them")
        make_folder(file.parent)
        arrays = {
            "x": torch.stack([images[int(rows[position])] for position in fooled]).numpy(),
            "row": rows.numpy()[fooled],
            "label": outcome.label[fooled],
            "predicted": outcome.predicted[name][fooled],
        }
        write_arrays(file, arrays, {"probe": name})


def describe_budgets(probes: Sequence[Probe], classes: int) -> dict[str, str]:
    """What the attacks of every probe spend on an image, in words."""
    return {
        str(probe): "; ".join(stage.attack.describe_budget(classes) for stage in probe_stages(probe))
        for probe in probes
    }


def probe_facts(probes: Sequence[Probe], rows: Labels, shape: Sequence[int]) -> dict[str, Any]:
    """The images, which have this shape, and the stages and settings of all probes.

    Warns of budgets that look like a mistake.
    """
    threats = dict.fromkeys(probe.threat for probe in probes)
    questions = [warning for threat in threats if (warning := threat.budget_warning(shape)) is not None]
    for question in questions:
        warnings.warn(question, stacklevel=3)
    stages = {str(probe): [stage.attack for stage in probe_stages(probe)] for probe in probes}
    return {
        "images": len(rows),
        "rows": digest_rows(rows),
        "stages": {name: [attack.label() for attack in attacks] for name, attacks in stages.items()},
        "settings": {name: [str(attack) for attack in attacks] for name, attacks in stages.items()},
        "white_box": {name: [attack.is_white_box for attack in attacks] for name, attacks in stages.items()},
        "questions": questions,
    }
