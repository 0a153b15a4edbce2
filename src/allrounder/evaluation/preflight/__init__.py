"""The preflight: a few images show whether the evaluation of a network would mean anything.

doctor(model, x[:50], y[:50]).raise_if_bad()

A new check is one function of a `Case`, entered in CHECKS.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from allrounder.evaluation.preflight import behaviour, inputs, scaling
from allrounder.evaluation.preflight.base import Case, Check, Finding, Silent
from allrounder.inference.attack_view import lend
from allrounder.rng import Draws
from allrounder.types import Classifier

CHECKS: tuple[tuple[Check, ...], ...] = (
    (inputs.shape, inputs.dtype, inputs.finite_images, inputs.labels),
    (inputs.place, inputs.forward),
    (inputs.finite_answers, inputs.classes),
    (
        scaling.box,
        behaviour.training_mode,
        behaviour.probabilities,
        behaviour.randomness,
        behaviour.neighbours,
        behaviour.in_place,
        behaviour.gradients,
        scaling.accuracy,
    ),
)
"""Stage by stage: every stage relies on the ones before, so one with a severe finding is the last."""


class Unfit(ValueError):
    """Images, labels or a network whose evaluation would mean nothing."""


@final
@dataclass(frozen=True)
class Diagnosis:
    """All that was found."""

    findings: tuple[Finding, ...]
    classes: int | None = None
    """How many classes the network tells apart, where it answered."""

    @property
    def ok(self) -> bool:
        """Whether nothing severe was found."""
        return not any(finding.severe for finding in self.findings)

    def raise_if_bad(self) -> None:
        """Raise Unfit with every severe finding."""
        if not self.ok:
            bad = "".join(f"\n- {finding}" for finding in self.findings if finding.severe)
            raise Unfit(f"an evaluation would mean nothing:{bad}")

    def lines(self) -> list[str]:
        """One line for every finding, the severe ones first; one line for none."""
        marks = {True: "severe", False: "note"}
        ordered = sorted(self.findings, key=lambda finding: not finding.severe)
        return [f"{marks[finding.severe]}: {finding}" for finding in ordered] or ["nothing found"]


def doctor(model: Classifier, x: Tensor, y: Tensor, *, classes: int | None = None) -> Diagnosis:
    """Examine a network, images in [0, 1] and their labels before a long evaluation.

    All images are looked at, and the network is asked about 64 of them at most. A module is examined in eval
    mode, as it is evaluated, and comes back as it was: modes, buffers, gradients and the global generators.
    """
    # Tensors made in inference mode cannot enter a graph; their clones can.
    with torch.inference_mode(False), torch.no_grad(), Draws(0).at("doctor").ambient():
        x, y = (t.clone() if t.is_inference() else t.detach() for t in (x, y))
        parts = list(model.modules()) if isinstance(model, nn.Module) else []
        case = Case(model, x, y, classes, sum(part.training for part in parts))
        # train_frozen lends the network itself, not a copy, and restores its buffers afterwards.
        with lend(model, x, "train_frozen" if parts else "eval"):
            if isinstance(model, nn.Module):
                model.eval()
            found = _examine(case)
            answered = "logits" in vars(case) and case.logits.dim() == 2
            return replace(found, classes=case.logits.shape[1]) if answered else found


def _examine(case: Case) -> Diagnosis:
    diagnosis = Diagnosis(())
    for stage in CHECKS:
        for check in stage:
            try:
                found = check(case)
            except Silent as silent:
                found = silent.finding
            if found is not None and found not in diagnosis.findings:
                diagnosis = Diagnosis((*diagnosis.findings, found))
        if not diagnosis.ok:
            break
    return diagnosis


__all__ = ["CHECKS", "Case", "Check", "Diagnosis", "Finding", "Unfit", "doctor"]
