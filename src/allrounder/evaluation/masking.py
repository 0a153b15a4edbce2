"""A check for masked gradients: whether a short FAB and Square find much more than the attacks that ran.

Attacks that follow the gradient of a loss overestimate the robustness of a network where that gradient is
small or misleading. FAB follows the decision boundary, and Square uses no gradient, so they often succeed
there. The check takes at most 483 forward and 90 backward passes on each of at most 50 images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from allrounder.attacks.base import Attack
from allrounder.attacks.combined import Cascade
from allrounder.attacks.fab import Fab
from allrounder.attacks.square import Square
from allrounder.distributed import World
from allrounder.evaluation.assemble import assemble_outcome
from allrounder.evaluation.job import EvaluationJob
from allrounder.evaluation.probes import Probe, probe_stages
from allrounder.evaluation.shifts import CorruptionEval
from allrounder.evaluation.store import ResultStore
from allrounder.report.outcome import NATURAL, Facts, Outcome
from allrounder.system.processes import use_threads
from allrounder.system.progress import ProgressCallback, ProgressEvent
from allrounder.threats.threat import Threat
from allrounder.types import Labels

CHECK_ATTACK = Cascade(attacks=(Fab(steps=30, targets=3), Square(queries=300)))
"""Short attacks: they need not find the accuracy, only a large difference."""
MAX_IMAGES, MIN_IMAGES = 50, 20
"""How many correctly classified images are used, and how many are too few for a statement."""


def check_masking(
    job: EvaluationJob, store: ResultStore, rows: Labels, facts: Facts, progress: ProgressCallback
) -> dict[str, Any]:
    """The fact "masking" of an outcome, given its other facts: the counts of every threat to check.

    There is none if no threat needs it, if too few images are classified correctly, or if the network is
    random, because then any attack that queries it often finds more. The results are stored like those of
    other attacks. This process computes all of them, so they do not depend on the number of processes.
    """
    if any(str(finding).startswith("random:") for finding in facts.get("findings", ())):
        return {}
    outcome = assemble_outcome(store, job.probes, rows, job.split.labels[rows], {})
    positions = choose_positions(outcome)
    threats = _threats_to_check(job.probes) if len(positions) >= MIN_IMAGES else {}
    with use_threads(facts["threads"]):
        counts = {
            str(threat): _count_fooled(job, rows, outcome, positions, threat, names, progress)
            for threat, names in threats.items()
        }
    return {"masking": counts} if counts else {}


def choose_positions(outcome: Outcome) -> NDArray[np.int64]:
    """Positions of correctly classified images: the first of every class, then the second, and so on."""
    correct = np.flatnonzero(outcome.predicted[NATURAL] == outcome.label)
    seen: Counter[int] = Counter()
    order: list[tuple[int, int, int]] = []
    for position in correct.tolist():
        label = int(outcome.label[position])
        order.append((seen[label], label, position))
        seen[label] += 1
    return np.array(sorted(position for *_, position in sorted(order)[:MAX_IMAGES]), dtype=np.int64)


def _threats_to_check(probes: Sequence[Probe]) -> dict[Threat, list[str]]:
    """The threats with attacks that use gradients but without FAB and Square, each with its attacks."""
    names: dict[Threat, list[str]] = {}
    attacks: dict[Threat, list[Attack]] = {}
    for probe in probes:
        names.setdefault(probe.threat, []).append(probe.name)
        attacks.setdefault(probe.threat, []).extend(stage.attack for stage in probe_stages(probe))
    return {
        threat: names[threat]
        for threat, stages in attacks.items()
        if any(attack.is_white_box for attack in stages)
        and not any(isinstance(attack, Fab | Square) for attack in stages)
    }


def _count_fooled(
    job: EvaluationJob,
    rows: Labels,
    outcome: Outcome,
    positions: NDArray[np.int64],
    threat: Threat,
    names: Sequence[str],
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Images checked, images that the attacks of the evaluation leave robust, and of these, images fooled."""
    correct = [outcome.predicted[f"{name}@{threat}"] == outcome.label for name in names]
    robust = rows[torch.from_numpy(positions[np.all(correct, axis=0)[positions]])]
    counts = {"attacks": list(names), "images": len(positions), "robust": len(robust), "fooled": 0}
    if len(robust):
        probe = Probe("masking-check", CHECK_ATTACK, threat)
        check = replace(job, probes=(probe,), corruptions=CorruptionEval())

        def report(event: ProgressEvent) -> None:
            progress(replace(event, stage=f"masking check {event.stage}"))

        store = check.run(robust, 1, report, World.single_process())
        checked = assemble_outcome(store, check.probes, robust, job.split.labels[robust], {})
        counts["fooled"] = int((checked.predicted[str(probe)] != checked.label).sum())
    return counts
