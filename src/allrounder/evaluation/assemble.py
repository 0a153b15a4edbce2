"""Builds outcomes from stored results, with the facts that a reader of the numbers needs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from allrounder.errors import RunError
from allrounder.evaluation.identity import digest_rows
from allrounder.evaluation.probes import Probe
from allrounder.evaluation.stages import probe_stages
from allrounder.evaluation.store import AttackResults, ResultStore
from allrounder.report.corruption_metrics import parse_shift_id
from allrounder.report.outcome import NATURAL, Facts, Outcome
from allrounder.system.files import temporary_path
from allrounder.types import Labels

PER_PROBE_FACTS = ("stages", "settings", "white_box", "attacks", "ood")
"""Facts with an entry for every probe, or for every set of corrupted images."""


def assemble_outcome(
    store: ResultStore, probes: Sequence[Probe], rows: Labels, labels: Labels, facts: Facts
) -> Outcome:
    """The outcome of some probes on the images at `rows`.

    In a cascade, the first stage that fools the network decides the prediction and the distance.
    """
    natural = store.results(NATURAL)
    check_complete(NATURAL, natural, rows)
    predicted = {NATURAL: natural.predicted[rows]}
    distance: dict[str, Tensor] = {}
    fooled_by: dict[str, Tensor] = {}
    for probe in probes:
        name = str(probe)
        predicted[name] = natural.predicted[rows].clone()
        distance[name] = natural.distance[rows].clone()
        fooled_by[name] = torch.where(predicted[name] == labels, -1, 0)
        for stage in probe_stages(probe):
            results = store.results(stage.key())
            robust = fooled_by[name] == -1
            check_complete(name, results, rows[robust])
            fooled = robust & (results.predicted[rows] != labels)
            predicted[name] = torch.where(fooled, results.predicted[rows], predicted[name])
            distance[name] = torch.where(fooled, results.distance[rows], distance[name])
            fooled_by[name] = torch.where(fooled, stage.number + 1, fooled_by[name])
    return Outcome(
        labels.numpy(),
        {name: tensor.numpy() for name, tensor in predicted.items()},
        facts,
        distance={name: tensor.numpy() for name, tensor in distance.items()},
        stage={name: tensor.numpy() for name, tensor in fooled_by.items()},
    )


def check_complete(name: str, results: AttackResults, rows: Labels) -> None:
    """Raise if the result of a row is missing."""
    if missing := int((~results.done[rows]).sum()):
        raise RunError(f"{name}: {missing} of {len(rows)} images have no result; call again to continue")


def load_outcome(file: Path) -> Outcome | None:
    """The outcome in a file, or None if there is no such file."""
    if not file.is_file():
        return None
    try:
        return Outcome.load(file)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RunError(f"{file}: cannot be read ({error}); move it away and call again") from None


def update_outcome(earlier: Outcome, now: Outcome) -> Outcome:
    """Add the probes of a new outcome to those of an earlier one of the same images.

    Of a probe in both, the new result counts. Corrupted images of one set cannot be combined with those of
    another set: then the earlier ones are dropped.
    """
    old_sets, new_sets = (outcome.facts.get("ood", {}) for outcome in (earlier, now))
    replaced = [name for name in old_sets if name in new_sets and old_sets[name] != new_sets[name]]

    def merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
        kept = {
            name: entry
            for name, entry in old.items()
            if (shift := parse_shift_id(name)) is None or shift.set_name not in replaced
        }
        return {**kept, **new}

    facts = merge(earlier.facts, now.facts)
    for key in PER_PROBE_FACTS:
        if key in facts:
            facts[key] = merge(earlier.facts.get(key, {}), now.facts.get(key, {}))
    questions = [*earlier.facts.get("questions", ()), *now.facts.get("questions", ())]
    facts["questions"] = list(dict.fromkeys(questions))
    return Outcome(
        now.label,
        merge(earlier.predicted, now.predicted),
        facts,
        distance=merge(earlier.distance, now.distance),
        stage=merge(earlier.stage, now.stage),
    )


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
            file.unlink(missing_ok=True)  # an earlier call with more images may have written one
            continue
        file.parent.mkdir(exist_ok=True)
        index = torch.tensor(fooled)
        tensors = {
            "x": torch.stack([images[int(rows[position])] for position in fooled]),
            "row": rows[index],
            "label": torch.from_numpy(outcome.label)[index],
            "predicted": torch.from_numpy(outcome.predicted[name])[index],
        }
        save_file(tensors, temporary_path(file), metadata={"probe": name})
        temporary_path(file).replace(file)


def describe_budgets(probes: Sequence[Probe], classes: int) -> dict[str, str]:
    """What the attacks of every probe spend on an image, in words."""
    return {
        str(probe): "; ".join(stage.attack.describe_budget(classes) for stage in probe_stages(probe))
        for probe in probes
    }


def probe_facts(probes: Sequence[Probe], rows: Labels) -> dict[str, Any]:
    """The facts that are known before anything runs: the images, and the stages and settings of all probes.

    Warns of a budget that looks like a mistake, and keeps the warning as a fact.
    """
    questions = [threat.budget_warning() for threat in dict.fromkeys(probe.threat for probe in probes)]
    for question in filter(None, questions):
        warnings.warn(question, stacklevel=3)
    stages = {str(probe): [stage.attack for stage in probe_stages(probe)] for probe in probes}
    return {
        "images": len(rows),
        "rows": digest_rows(rows),
        "stages": {name: [attack.label() for attack in attacks] for name, attacks in stages.items()},
        "settings": {name: [str(attack) for attack in attacks] for name, attacks in stages.items()},
        "white_box": {name: [attack.is_white_box for attack in attacks] for name, attacks in stages.items()},
        "questions": [question for question in questions if question is not None],
    }
