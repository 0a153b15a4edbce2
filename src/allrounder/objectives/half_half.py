"""Natural and adversarial training in one loss."""

from __future__ import annotations

from typing import ClassVar, Literal, final

import torch
from torch import nn
from typing_extensions import override

from allrounder.attacks.base import AttackResult
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import Share, frozen_config
from allrounder.objectives.base import AnyAttack, SingleThreatObjective, ThreatOrUnion, cross_entropy_loss
from allrounder.types import Batch, BatchNormMode, Context, ImageKind, Loss, Passes


@final
@frozen_config
class HalfHalf(SingleThreatObjective):
    """Half natural, half adversarial: loss = (1 - beta) CE(f(x), y) + beta CE(f(x'), y), with x' as in AT.

    At beta = 0 it is natural training and crafts nothing; at beta = 1 it equals AT bit for bit. Goodfellow et
    al., 2015, Explaining and harnessing adversarial examples, here with PGD instead of one step.
    """

    reference: ClassVar[str] = "Goodfellow et al., 2015"

    threat: ThreatOrUnion
    """The threat, or a list of threats for an attack that takes their union (worst-of, random-of, msd)."""
    attack: AnyAttack = Pgd(steps=10, step=0.25)
    beta: Share = 0.5
    """The weight of the crafted images."""
    forward: Literal["separate", "joint"] = "separate"
    """Whether crafted and natural images, in this order, pass the network separately, each with their own
    batch statistics, or as one joint batch."""
    norm_layers: BatchNormMode = "eval"
    """Batch-norm while crafting: eval, train, or train_frozen."""

    @property
    @override
    def uses_crafted(self) -> bool:
        return self.beta != 0

    def loss_passes(self) -> Passes:
        """Two forwards and backwards; one if one of the weights is zero."""
        return Passes(1, 1) * (1 if self.beta in (0, 1) else 2)

    @override
    def logit_kinds(self) -> frozenset[ImageKind]:
        weights: dict[ImageKind, float] = {"natural": 1 - self.beta, "adversarial": self.beta}
        return frozenset(kind for kind, weight in weights.items() if weight)

    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """The weighted mean; the accuracy is that of natural images, if there are any."""
        if crafted is None:
            return cross_entropy_loss(model(batch.x), batch, "natural")
        if self.beta == 1:
            return cross_entropy_loss(model(crafted.x), batch, "adversarial")
        if self.forward == "joint":
            robust_logits, natural_logits = model(torch.cat([crafted.x, batch.x])).split(len(batch))
        else:
            robust_logits, natural_logits = model(crafted.x), model(batch.x)
        robust = cross_entropy_loss(robust_logits, batch, "adversarial")
        natural = cross_entropy_loss(natural_logits, batch, "natural")
        total = (1 - self.beta) * natural.total + self.beta * robust.total
        parts = {**natural.parts, "robust": robust.parts["accuracy"]}
        return Loss(total, parts, {**natural.logits, **robust.logits})
