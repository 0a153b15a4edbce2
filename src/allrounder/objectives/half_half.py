"""Natural and adversarial training in one loss."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, final

import torch
from torch import nn

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack, Crafted, perturb
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import Kind, Share, value
from allrounder.objectives.base import Objective, fit
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Loss, NormLayers, Passes


@final
@value
class HalfHalf(Objective):
    """Half natural, half adversarial: loss = (1 - beta) CE(f(x), y) + beta CE(f(x'), y), with x' as in AT.

    At beta = 0 it is natural training and crafts nothing; at beta = 1 it is AT, to the bit. Goodfellow et
    al., 2015, Explaining and harnessing adversarial examples, with PGD in the place of one step.
    """

    reference: ClassVar[str] = "Goodfellow et al., 2015"

    threat: Threat
    attack: Annotated[Attack, Kind(lambda: ATTACKS)] = Pgd(steps=10, step=0.25)
    beta: Share = 0.5
    """The weight of the crafted images."""
    forward: Literal["separate", "joint"] = "separate"
    """Whether crafted and natural images, in this order, go through the network one after the other, each
    with batch statistics of their own, or joined to one batch."""
    norm_layers: NormLayers = "eval"
    """Batch-norm while crafting: eval, train, or train_frozen."""

    def __post_init__(self) -> None:
        self.attack.check_supports(self.threat)

    def threats(self) -> tuple[Threat, ...]:
        """The one threat."""
        return (self.threat,)

    def craft_passes(self) -> Passes:
        """The attack's, unless nothing depends on it."""
        return Passes() if self.beta == 0 else self.attack.passes()

    def loss_passes(self) -> Passes:
        """Two pairs; one for weights of which one is zero."""
        return Passes(1, 1) * (1 if self.beta in (0, 1) else 2)

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted | None:
        """Attack the current network on hard labels, unless nothing depends on it."""
        if self.beta == 0:
            return None
        draws = ctx.draws.at("attack")
        return perturb(self.attack, model, batch.x, batch.y, self.threat, draws, norm_layers=self.norm_layers)

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """The weighted mean; its accuracy is that of natural images, where there are any."""
        if crafted is None:
            return fit(model(batch.x), batch)
        if self.beta == 1:
            return fit(model(crafted.x), batch)
        if self.forward == "joint":
            both = model(torch.cat([crafted.x, batch.x]))
            robust, natural = (fit(logits, batch) for logits in both.split(len(batch)))
        else:
            robust = fit(model(crafted.x), batch)
            natural = fit(model(batch.x), batch)
        total = (1 - self.beta) * natural.total + self.beta * robust.total
        return Loss(total, {**natural.parts, "robust": robust.parts["accuracy"]})
