"""Adversarial training with any attack, under one threat or a union of threats."""

from __future__ import annotations

from typing import ClassVar, final

from typing_extensions import override

from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import frozen_config
from allrounder.objectives.base import AnyAttack, SingleThreatObjective, ThreatOrUnion
from allrounder.types import BatchNormMode, ImageKind


@final
@frozen_config
class Adversarial(SingleThreatObjective):
    """Adversarial training (AT): loss = CE(f(x'), y), with x' maximising the attack's loss inside the threat.

    Only adversarial images enter the update. Madry et al., 2018, Towards deep learning models resistant to
    adversarial attacks. Other attacks give other methods:

    - one step, `{ kind = "pgd", steps = 1, step = 1.25 }`, with norm_layers = "train": Fast-AT. The step is
      longer than the budget: shorter steps are weaker, much longer ones cause catastrophic overfitting, which
      the update `overfit-guard` detects. Wong, Rice and Kolter, 2020, Fast is better than free: revisiting
      adversarial training.
    - `worst-of` on a union of threats: MAX, the image of largest loss over all threats. Tramer and Boneh,
      2019, Adversarial training and robustness for multiple perturbations.
    - `msd` on a union of threats, with norm_layers = "train": multi steepest descent. Maini et al., 2020,
      Adversarial robustness against the union of multiple perturbation models.
    """

    reference: ClassVar[str] = "Madry et al., 2018"

    threat: ThreatOrUnion
    """The threat, or a list of threats for an attack that takes their union (worst-of, random-of, msd)."""
    # Differs: Fast-AT clips its random start to the box before the step, as released for CIFAR-10; the code
    # released for ImageNet steps from the start as drawn, and clips only what the network sees. ADR 0020
    attack: AnyAttack = Pgd(steps=10, step=0.25)
    norm_layers: BatchNormMode = "eval"
    """Batch-norm while crafting: eval (as published), train (as in Fast-AT and MSD), or train_frozen."""

    @override
    def logit_kinds(self) -> frozenset[ImageKind]:
        return frozenset({"adversarial"})
