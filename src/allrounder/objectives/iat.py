"""Interpolated adversarial training: mixed natural images, and mixed adversarial ones."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
import torch.nn.functional as F
from torch import nn

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack, Crafted, perturb
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import Kind, Positive, value
from allrounder.data.augment.mixup import symmetric_beta
from allrounder.objectives.base import Objective
from allrounder.rng import Draws
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Images, Loss, NormLayers, Passes


@final
@value
class Iat(Objective):
    """Interpolated adversarial training (IAT): the mean of two mixup losses, of x and of x' of AT.

    With w ~ Beta(alpha, alpha) and a permutation pi of the batch, a mixup loss is
    w CE(f(m), y) + (1 - w) CE(f(m), y[pi]) for m = w x + (1 - w) x[pi]; one w for the whole batch, and others
    for x' than for x. The attack sees images that are not mixed. Lamb et al., 2019, Interpolated adversarial
    training: achieving robust neural networks without sacrificing too much accuracy.
    """

    reference: ClassVar[str] = "Lamb et al., 2019"
    whole_batch: ClassVar[bool] = True

    threat: Threat
    attack: Annotated[Attack, Kind(lambda: ATTACKS)] = Pgd(steps=10, step=0.25)
    alpha: Positive = 1.0
    """The weight is near 0 or 1 where alpha is small, and uniform at 1."""
    norm_layers: NormLayers = "eval"
    """Batch-norm while crafting: eval (as intended), train, or train_frozen."""

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

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted:
        """Attack the current network on images and hard labels that are not mixed."""
        draws = ctx.draws.at("attack")
        return perturb(self.attack, model, batch.x, batch.y, self.threat, draws, norm_layers=self.norm_layers)

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """The mean of both losses, natural images first; the accuracy is that of mixed natural images."""
        assert crafted is not None
        natural = mixed(model, batch.x, batch, self.alpha, ctx.draws.at("mix", "natural"))
        robust = mixed(model, crafted.x, batch, self.alpha, ctx.draws.at("mix", "robust"))
        total = (natural.total + robust.total) / 2
        return Loss(total, {**natural.parts, "robust": robust.parts["accuracy"]})


def mixed(model: nn.Module, x: Images, batch: Batch, alpha: float, draws: Draws) -> Loss:
    """A mixup loss of images with a batch's targets; its accuracy counts the label of the larger part."""
    u = draws.at("weight").uniform(torch.empty(2, dtype=torch.float64))
    weight = float(symmetric_beta(alpha, u[0], u[1]))
    other = draws.at("partner").permutation(len(batch)).to(x.device)
    logits = model(weight * x + (1 - weight) * x[other])
    targets = batch.targets(logits.shape[1])
    # Cross-entropy is linear in its targets, so mixing these is mixing the losses.
    total = F.cross_entropy(logits, weight * targets + (1 - weight) * targets[other])
    larger = batch.y if weight >= 0.5 else batch.y[other]
    return Loss(total, {"accuracy": (logits.detach().argmax(1) == larger).float().mean()})
