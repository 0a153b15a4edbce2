"""Interpolated adversarial training: mixup of natural images and of adversarial images."""

from __future__ import annotations

from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import nn

from allrounder.attacks.base import AttackResult
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import PositiveFloat, frozen_config
from allrounder.data.augment.mixup import symmetric_beta
from allrounder.objectives.base import AnyAttack, SingleThreatObjective, accuracy
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Batch, BatchNormMode, Context, Images, Loss, Passes


@final
@frozen_config
class Iat(SingleThreatObjective):
    """Interpolated adversarial training (IAT): the mean of the mixup losses of x and of x', with x' as in AT.

    With w ~ Beta(alpha, alpha) and a permutation pi of the batch, the mixup loss is
    w CE(f(m), y) + (1 - w) CE(f(m), y[pi]) for m = w x + (1 - w) x[pi]. There is one w for the whole batch;
    w and pi are drawn separately for x and x'. The attack sees images that are not mixed. Lamb et al., 2019,
    Interpolated adversarial training: achieving robust neural networks without sacrificing too much accuracy.
    """

    reference: ClassVar[str] = "Lamb et al., 2019"
    whole_batch: ClassVar[bool] = True

    threat: Threat
    attack: AnyAttack = Pgd(steps=10, step=0.25)
    alpha: PositiveFloat = 1.0
    """The parameter of the beta distribution: weights are near 0 or 1 for small alpha, and uniform at 1."""
    norm_layers: BatchNormMode = "eval"
    """Batch-norm while crafting: eval (as intended), train, or train_frozen."""

    def loss_passes(self) -> Passes:
        """Two forwards and backwards."""
        return Passes(2, 2)

    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """The mean of both losses, natural images first; the accuracy is that of mixed natural images."""
        assert crafted is not None
        natural = mixup_loss(model, batch.x, batch, self.alpha, ctx.rng.fold_in("mix", "natural"))
        robust = mixup_loss(model, crafted.x, batch, self.alpha, ctx.rng.fold_in("mix", "robust"))
        total = (natural.total + robust.total) / 2
        return Loss(total, {**natural.parts, "robust": robust.parts["accuracy"]})


def mixup_loss(model: nn.Module, x: Images, batch: Batch, alpha: float, rng: Rng) -> Loss:
    """The mixup loss of images x with a batch's targets; the accuracy counts the label of larger weight."""
    u = rng.fold_in("weight").uniform(torch.empty(2, dtype=torch.float64))
    weight = float(symmetric_beta(alpha, u[0], u[1]))
    partner = rng.fold_in("partner").permutation(len(batch)).to(x.device)
    logits = model(weight * x + (1 - weight) * x[partner])
    targets = batch.targets(logits.shape[1])
    # Cross-entropy is linear in its targets, so mixed targets give mixed losses.
    total = F.cross_entropy(logits, weight * targets + (1 - weight) * targets[partner])
    labels = batch.y if weight >= 0.5 else batch.y[partner]
    return Loss(total, {"accuracy": accuracy(logits, labels)})
