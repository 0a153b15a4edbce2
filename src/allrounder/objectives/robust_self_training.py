"""Robust self-training: a loss that weighs pseudo-labelled images differently from labelled ones."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from allrounder.attacks.base import AttackResult
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import Share, frozen_config
from allrounder.objectives.base import AnyAttack, SingleThreatObjective, accuracy, cross_entropy
from allrounder.threats.threat import Threat
from allrounder.types import Batch, BatchNormMode, Context, Logits, Loss, Passes, PerExample


@final
@frozen_config
class RobustSelfTraining(SingleThreatObjective):
    """Robust self-training (RST): loss = (1 - beta) L_nat + beta L_rob, both weighted means over two sets.

    L = sum_i v_i CE_i / sum_i v_i, with v_i = 1 - w for an image of the training set and v_i = w for an image
    of the extra set, labelled by a teacher. w is `natural_weight` in L_nat, on natural images, and
    `robust_weight` in L_rob, on crafted images. Without an extra set both are plain means, as in half
    natural, half adversarial training, from another random start. Raghunathan et al., 2020, Understanding and
    mitigating the tradeoff between robustness and accuracy.
    """

    reference: ClassVar[str] = "Raghunathan et al., 2020"
    whole_batch: ClassVar[bool] = True

    threat: Threat
    attack: AnyAttack = Pgd(steps=10, step=0.25, start="gaussian")
    beta: Share = 0.5
    """The weight of the crafted images."""
    natural_weight: Share = 0.0
    """The weight of an extra image in L_nat; 0.9 in the released code, 0 without an extra set."""
    robust_weight: Share = 0.0
    """The weight of an extra image in L_rob; 0.5 in the released code, 0 without an extra set."""
    norm_layers: BatchNormMode = "eval"
    """Batch-norm while crafting: eval, train, or train_frozen."""

    def loss_passes(self) -> Passes:
        """Two forwards and backwards."""
        return Passes(2, 2)

    def problem_without_extra(self) -> tuple[str, str] | None:
        """A weight above zero for extra images."""
        for name, weight in (("natural_weight", self.natural_weight), ("robust_weight", self.robust_weight)):
            if weight > 0:
                return name, f"is {weight:g}, but there is no second set of images; add extra, or set it to 0"
        return None

    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """Crafted images first, as released, then natural ones, each with their own batch statistics."""
        assert crafted is not None
        robust, natural = model(crafted.x), model(batch.x)
        total = (1 - self.beta) * weighted_cross_entropy(natural, batch, self.natural_weight)
        total = total + self.beta * weighted_cross_entropy(robust, batch, self.robust_weight)
        return Loss(total, {"accuracy": accuracy(natural, batch.y), "robust": accuracy(robust, batch.y)})


def weighted_cross_entropy(logits: Logits, batch: Batch, weight: float) -> Tensor:
    """The weighted mean of the cross-entropy: `weight` for extra images, 1 - `weight` for the others."""
    losses = cross_entropy(logits, batch, reduction="none")
    if batch.extra is None:
        return losses.mean()
    weights: PerExample = torch.where(batch.extra, losses.new_tensor(weight), losses.new_tensor(1 - weight))
    # If all weights are zero, the loss is zero.
    return (weights * losses).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
