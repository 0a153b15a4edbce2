"""Fast adversarial training: one step from a random start."""

from __future__ import annotations

from typing import ClassVar, final

from torch import nn

from allrounder.attacks.base import Crafted, perturb
from allrounder.attacks.pgd import Pgd, Step
from allrounder.config.fields import value
from allrounder.objectives.base import Objective, fit
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Loss, NormLayers, Passes


@final
@value
class Fast(Objective):
    """Fast adversarial training (Fast-AT): loss = CE(f(x'), y), with x' one step from a random start.

    x' = P(x_0 + step * eps * sign(grad_x CE(f(x_0), y))), x_0 = P(x + U(-eps, eps)). The step is longer than
    the budget: shorter ones are weaker, and much longer ones overfit to it catastrophically, that is the
    network stays right on x' and loses all robustness within an epoch. The update "guarded" ends a training
    that does. Batch-norm is in training mode while crafting, as released, so both passes move its statistics.
    Wong, Rice and Kolter, 2020, Fast is better than free: revisiting adversarial training.
    """

    reference: ClassVar[str] = "Wong, Rice and Kolter, 2020"

    threat: Threat
    step: Step = 1.25
    """Length of the step, as a fraction of eps."""
    norm_layers: NormLayers = "train"
    """Batch-norm while crafting: train (as released), eval, or train_frozen."""

    # Differs: as the code released for CIFAR-10, x_0 is clipped to the box before the step; that for ImageNet
    # steps from the start as it is drawn, and clips only what the network sees. ADR 0020
    @property
    def attack(self) -> Pgd:
        """The single step."""
        return Pgd(steps=1, step=self.step)

    def threats(self) -> tuple[Threat, ...]:
        """The one threat."""
        return (self.threat,)

    def craft_passes(self) -> Passes:
        """One pair."""
        return self.attack.passes()

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted:
        """One step, on hard labels."""
        draws = ctx.draws.at("attack")
        return perturb(self.attack, model, batch.x, batch.y, self.threat, draws, norm_layers=self.norm_layers)

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """Cross-entropy on the crafted images."""
        assert crafted is not None
        return fit(model(crafted.x), batch)
