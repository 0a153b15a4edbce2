"""Robust self-training: a loss that weighs images by who labelled them."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
import torch.nn.functional as F
from torch import nn

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack, Crafted, perturb
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import Kind, Share, value
from allrounder.objectives.base import Objective
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Logits, Loss, NormLayers, Passes, PerExample


@final
@value
class RobustSelfTraining(Objective):
    """Robust self-training (RST): loss = (1 - beta) L_nat + beta L_rob, both means over two sets of images.

    L = sum_i v_i CE_i / sum_i v_i, with v_i = 1 - w for an image of the training set and v_i = w for one of
    the second set, whose labels a teacher gave; w is `natural_weight` in L_nat, on images as they are, and
    `robust_weight` in L_rob, on crafted ones. Without a second set this is the plain mean of both, the same
    as half natural, half adversarial training from another start. Raghunathan et al., 2020, Understanding
    and mitigating the tradeoff between robustness and accuracy.
    """

    reference: ClassVar[str] = "Raghunathan et al., 2020"
    whole_batch: ClassVar[bool] = True

    threat: Threat
    attack: Annotated[Attack, Kind(lambda: ATTACKS)] = Pgd(steps=10, step=0.25, start="gaussian")
    beta: Share = 0.5
    """The weight of the crafted images."""
    natural_weight: Share = 0.0
    """How much an image of the second set counts in L_nat; 0.9 in the released code, 0 without such a set."""
    robust_weight: Share = 0.0
    """How much one counts in L_rob; 0.5 in the released code, 0 without such a set."""
    norm_layers: NormLayers = "eval"
    """Batch-norm while crafting: eval, train, or train_frozen."""

    def __post_init__(self) -> None:
        self.attack.check_supports(self.threat)

    def threats(self) -> tuple[Threat, ...]:
        """The one threat."""
        return (self.threat,)

    def craft_passes(self) -> Passes:
        """The attack's."""
        return self.attack.passes()

    def loss_passes(self) -> Passes:
        """Two pairs."""
        return Passes(2, 2)

    def without_extra(self) -> tuple[str, str] | None:
        """Weights of images that are not there."""
        for name, weight in (("natural_weight", self.natural_weight), ("robust_weight", self.robust_weight)):
            if weight > 0:
                return name, f"is {weight:g}, but there is no second set of images; add extra, or set it to 0"
        return None

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted:
        """Attack the current network on hard labels, whoever gave them."""
        draws = ctx.draws.at("attack")
        return perturb(self.attack, model, batch.x, batch.y, self.threat, draws, norm_layers=self.norm_layers)

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """Crafted images first, as released, then natural ones, each with batch statistics of their own."""
        assert crafted is not None
        robust, natural = model(crafted.x), model(batch.x)
        total = (1 - self.beta) * weighted(natural, batch, self.natural_weight)
        total = total + self.beta * weighted(robust, batch, self.robust_weight)
        right = [(logits.detach().argmax(1) == batch.y).float().mean() for logits in (natural, robust)]
        return Loss(total, {"accuracy": right[0], "robust": right[1]})


def weighted(logits: Logits, batch: Batch, weight: float) -> torch.Tensor:
    """The mean cross-entropy, in which an image of the second set counts `weight`, another 1 - `weight`."""
    if batch.partner is None:
        losses = F.cross_entropy(logits, batch.y, label_smoothing=batch.smoothing, reduction="none")
    else:
        losses = F.cross_entropy(logits, batch.targets(logits.shape[1]), reduction="none")
    if batch.extra is None:
        return losses.mean()
    second, first = losses.new_tensor(weight), losses.new_tensor(1 - weight)
    counts: PerExample = torch.where(batch.extra, second, first)
    # Where nothing counts there is nothing to fit.
    return (counts * losses).sum() / counts.sum().clamp(min=torch.finfo(counts.dtype).tiny)
