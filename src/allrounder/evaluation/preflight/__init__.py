"""The preflight: checks on a few images whether the evaluation of a network would be meaningful.

Use it as `doctor(model, x[:50], y[:50]).raise_if_bad()`. A new check is one function of a `Case`, listed in
`CHECKS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from allrounder.errors import PreflightError
from allrounder.evaluation.preflight import behaviour, inputs
from allrounder.evaluation.preflight.base import Case, Finding, NoAnswer, PreflightCheck
from allrounder.inference.attack_view import attack_view
from allrounder.rng import Rng
from allrounder.types import Classifier

CHECKS: tuple[tuple[PreflightCheck, ...], ...] = (
    (inputs.check_shape, inputs.check_dtype, inputs.check_finite_images, inputs.check_labels),
    (inputs.check_device_and_dtype, inputs.check_logits),
    (inputs.check_finite_logits, inputs.check_classes),
    (
        inputs.check_range,
        behaviour.check_training_mode,
        behaviour.check_probabilities,
        behaviour.check_randomness,
        behaviour.check_batch_independence,
        behaviour.check_in_place,
        behaviour.check_gradients,
        inputs.check_accuracy,
    ),
    (behaviour.check_positions,),
)
"""Checks by stage. A stage relies on the ones before it, so none follows one with a severe finding."""


@final
@dataclass(frozen=True)
class Diagnosis:
    """The findings of the preflight."""

    findings: tuple[Finding, ...]
    classes: int | None = None
    """Number of classes of the network, if it returned logits."""

    @property
    def ok(self) -> bool:
        """Whether no finding is severe."""
        return not any(finding.severe for finding in self.findings)

    def raise_if_bad(self) -> None:
        """Raise PreflightError with all severe findings, if there are any."""
        if not self.ok:
            severe = "".join(f"\n- {finding}" for finding in self.findings if finding.severe)
            raise PreflightError(f"an evaluation would be meaningless:{severe}")

    def lines(self) -> list[str]:
        """One line per finding, severe ones first; a single line if there are none."""
        ordered = sorted(self.findings, key=lambda finding: not finding.severe)
        lines = [f"{'severe' if finding.severe else 'note'}: {finding}" for finding in ordered]
        return lines or ["no faults found in the network, the images and the labels"]


def doctor(
    model: Classifier, x: Tensor, y: Tensor, *, classes: int | None = None, batch_size: int | None = None
) -> Diagnosis:
    """Check a network, images in [0, 1] and their labels before a long evaluation in batches of `batch_size`.

    All images are checked, and at most 64 of them are passed through the network. A module is checked in eval
    mode, as it is evaluated; its modes, buffers and gradients and the global generators are restored.
    """
    # Tensors made in inference mode cannot be part of a graph; their clones can.
    with torch.inference_mode(False), torch.no_grad(), Rng(0).fold_in("doctor").seed_global():
        x, y = (t.clone() if t.is_inference() else t.detach() for t in (x, y))
        modules = list(model.modules()) if isinstance(model, nn.Module) else []
        case = Case(model, x, y, classes, sum(module.training for module in modules), batch_size)
        # The mode train_frozen uses the network itself, not a copy, and restores its buffers afterwards.
        with attack_view(model, x, "train_frozen" if modules else "eval"):
            if isinstance(model, nn.Module):
                model.eval()
            findings = _run_checks(case)
            has_logits = "logits" in vars(case) and case.logits.dim() == 2
            return Diagnosis(findings, case.logits.shape[1] if has_logits else None)


def _run_checks(case: Case) -> tuple[Finding, ...]:
    """Run the checks until a stage has a severe finding; equal findings are reported once."""
    findings: list[Finding] = []
    for stage in CHECKS:
        for check in stage:
            try:
                finding = check(case)
            except NoAnswer as error:
                finding = error.finding
            if finding is not None and finding not in findings:
                findings.append(finding)
        if any(finding.severe for finding in findings):
            break
    return tuple(findings)


__all__ = ["CHECKS", "Case", "Diagnosis", "Finding", "PreflightCheck", "PreflightError", "doctor"]
